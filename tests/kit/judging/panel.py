"""All judges side by side: each reads a table as it is, and has the rows that icekeep has, or fails as it is known to.

A judge is foreign software in a process of its own that reads tables by their metadata files, now and as they were before. Six
share no code with Iceberg Java; Trino shares with it how tables are planned, and not how files are read. Who judged what is
counted in a run of the interop tests, kept in a file, and written out for people. `make judges-env` makes what they need.
"""

import json
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.errors import IcekeepError, UnsupportedError
from icekeep.maintenance.check.job import CheckResult, check
from icekeep.spec.schema import Schema
from icekeep.spec.types import ListType, MapType, NestedField, StructType, Type
from icekeep.storage.locations import local_path
from icekeep.tables.read import read_table
from kit.cases import scaled
from kit.deletes import data_files
from kit.java import LineProcess, NoAnswerError, environment_without
from kit.judging.concerns import Kind
from kit.judging.faults import FAULTS, VERSIONS, explained, faults_of
from kit.lake import Lake
from kit.naive_scan import scan_rows
from kit.rows import row_texts
from kit.runtime import no_spark
from kit.shell import ROOT
from kit.trino import Answer, Trino, TrinoError, from_trino

_TICKS = {
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
}


def answer_texts(schema: Schema, rows: pa.Table, *, has_null_lists: bool = True) -> Counter[str]:
    """The rows of an answer in the form of `row_texts`.

    Args:
        has_null_lists: that a null is told from a list or map without elements, and from a struct of nulls.

    Raises:
        ValueError: its columns are not those of the table.
    """
    names = [field.name for field in schema.fields]
    if sorted(rows.column_names) != sorted(names):
        raise ValueError(f"the table has the columns {names}, the answer {rows.column_names}")
    answer = _Answer(has_null_lists)
    columns = [answer.values(rows.column(field.name), field.type) for field in schema.fields]
    return row_texts(schema, (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)))


class _Answer(msgspec.Struct, frozen=True):
    has_null_lists: bool

    def values(self, array: Any, type_: Type) -> list[Any]:
        """Of one column, as `to_wire` takes them."""
        if isinstance(array, pa.ChunkedArray):
            return [value for chunk in array.chunks for value in self.values(chunk, type_)]
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        match type_:
            case StructType(fields=fields):
                return self._structs(array, fields)
            case ListType(element=element):
                return [self._null(type_) if one.values is None else self.values(one.values, element) for one in array]
            case MapType():
                return [self._null(type_) if one.values is None else self._pairs(one.values, type_) for one in array]
        if type_.name in _TICKS:
            return _ticks(array, _TICKS[type_.name])
        return [None if value is None else _value(value, type_.name) for value in array.to_pylist()]

    def _structs(self, array: pa.StructArray, fields: tuple[NestedField, ...]) -> list[Any]:
        columns = [self.values(array.field(field.name), field.type) for field in fields]
        return [
            {field.name: column[n] for field, column in zip(fields, columns, strict=True)}
            if valid
            else self._null(StructType(fields))
            for n, valid in enumerate(array.is_valid().to_pylist())
        ]

    def _pairs(self, entries: pa.StructArray, type_: MapType) -> list[Any]:
        keys, values = self.values(entries.field(0), type_.key), self.values(entries.field(1), type_.value)
        return [*zip(keys, values, strict=True)]

    def _null(self, type_: Type) -> Any:
        if self.has_null_lists:
            return None
        match type_:
            case StructType(fields=fields):
                return {field.name: self._null(field.type) for field in fields}
            case ListType() | MapType():
                return []
        return None


def _ticks(array: Any, type_: pa.DataType) -> list[Any]:
    # A judge may give the number alone, or another unit, but no part of it may be lost.
    if pa.types.is_integer(array.type):
        return array.to_pylist()
    return array.cast(type_).cast(pa.int32() if type_ == pa.date32() else pa.int64()).to_pylist()


def _value(value: Any, name: str) -> Any:
    match name:
        case "uuid" if isinstance(value, bytes):
            return UUID(bytes=value)
        case "uuid" if isinstance(value, str):
            return UUID(value)
        case "string" if isinstance(value, bytes):
            return value.decode()
        case "boolean":
            return bool(value)
    return value


ENVIRONMENT = ROOT / ".venv-judges"
# Tests run beside each other, each with judges of its own.
_ONE_THREAD = dict.fromkeys(
    ("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS", "OMP_NUM_THREADS", "GOMAXPROCS"), "1"
)


class JudgeError(Exception):
    """What a judge said instead of rows."""


class Judge:
    """One judge; its process starts with the first question, and anew where it has ended.

    Args:
        name: of the software.
        command: that starts its worker.
        has_null_lists: whether it tells a null from a list or map without elements, and from a struct of nulls.
    """

    def __init__(self, name: str, command: Sequence[Path], *, has_null_lists: bool = True) -> None:
        self.name, self.has_null_lists = name, has_null_lists
        self._command = command
        self._process: LineProcess | None = None
        self._version = ""

    @property
    def version(self) -> str:
        """Of the software, as its process tells it."""
        self._started()
        return self._version

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def rows(self, table: Table) -> Counter[str]:
        """The rows of a table on the local disk, in the form of `row_texts`; raises `JudgeError` where it cannot read it."""
        process = self._started()
        rows = process.home / "rows"
        self._ask(process, {"metadata": local_path(table.metadata_location), "rows": str(rows)})
        found = Counter[str]()
        with pa.memory_map(str(rows)) as file:
            # Batches of another schema are another stream.
            while file.tell() < file.size():
                answer = pa.ipc.open_stream(file).read_all()
                try:
                    found += answer_texts(table.metadata.schema, answer, has_null_lists=self.has_null_lists)
                except (ValueError, KeyError) as error:
                    raise JudgeError(f"its answer is not of the table's columns: {error}") from error
        return found

    def files_read(self, table: Table, where: str) -> int:
        """In how many data files of a table it looks for the rows that a filter in SQL matches; DuckDB and ClickHouse tell it."""
        request = {"metadata": local_path(table.metadata_location), "where": where}
        answer = self._ask(self._started(), request)
        return answer["files"] if "files" in answer else len(data_files(table)) - answer["pruned"]

    def _started(self) -> LineProcess:
        if self._process is not None and self._process.is_running:
            return self._process
        if not self._command[0].exists():
            raise FileNotFoundError(f"there is no {self._command[0]}; run `make judges-env` first")
        self.close()
        environment = environment_without("PYTHON", "PYICEBERG_", TZ="UTC", **_ONE_THREAD)
        self._process = LineProcess(self.name, self._command, environment)
        self._version = json.loads(self._process.answer())["version"]
        return self._process

    def _ask(self, process: LineProcess, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer = json.loads(process.ask(json.dumps(request)))
        except NoAnswerError as error:
            raise JudgeError(str(error)) from error
        if "error" in answer:
            raise JudgeError(answer["error"])
        return answer


CATALOG = "judged"
_REGISTER = """
    INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
    VALUES ('local', 'db', ?, ?, 'TABLE')
"""


class TrinoJudge(Judge):
    """Gives the rows of tables by their metadata files, each under a name of its own in a catalog of its own."""

    def __init__(self, trino: Trino) -> None:
        super().__init__("Trino", ())
        self.trino = trino
        self._names = count(1)
        self._lake: Lake | None = None

    @property
    def version(self) -> str:
        return self.trino.version

    def close(self) -> None:
        if self._lake is not None:
            shutil.rmtree(self._lake.directory, ignore_errors=True)
            self._lake = None

    def rows(self, table: Table) -> Counter[str]:
        try:
            return texts(table.metadata.schema, self.trino.query(f"SELECT * FROM {self._registered(table)}"))
        except (TrinoError, ValueError) as error:
            raise JudgeError(str(error)) from error

    def files_read(self, table: Table, where: str) -> int:
        try:
            return self.trino.splits_read(f"SELECT * FROM {self._registered(table)} WHERE {where}")
        except TrinoError as error:
            raise JudgeError(str(error)) from error

    def _registered(self, table: Table) -> str:
        if self._lake is None:
            self._lake = Lake(Path(tempfile.mkdtemp(prefix="judge-")))
            self.trino.open_catalog(CATALOG, self._lake.properties)
        name = f"t{next(self._names)}"
        with sqlite3.connect(self._lake.directory / "catalog.db") as database:
            database.execute(_REGISTER, (name, table.metadata_location))
        return f"{CATALOG}.db.{name}"


def texts(schema: Schema, answer: Answer) -> Counter[str]:
    """The rows of a whole table in the form of `row_texts`; raises `ValueError` where its columns are not the table's."""
    names = [field.name.lower() for field in schema.fields]
    if list(answer.columns) != names:
        raise ValueError(f"the table has the columns {names}, the answer {list(answer.columns)}")
    struct = schema.as_struct()
    return row_texts(schema, (from_trino(struct, row) for row in answer.rows))


WORKER = Path(__file__).with_name("worker.py")


def all_judges(trino: Trino) -> list[Judge]:
    """Those of the panel, none started yet.

    Args:
        trino: the server that one of them asks, and that others may ask too.
    """
    return [
        _by_python("DuckDB", "duckdb"),
        # Its lists, maps and structs are never null.
        _by_python("ClickHouse", "clickhouse", has_null_lists=False),
        _by_python("iceberg-rust", "rust"),
        _by_python("polars", "polars"),
        _by_python("PyIceberg", "pyiceberg"),
        Judge("iceberg-go", (ENVIRONMENT / "bin" / "iceberg-go-judge",)),
        TrinoJudge(trino),
    ]


def _by_python(name: str, worker: str, *, has_null_lists: bool = True) -> Judge:
    command = (ENVIRONMENT / "bin" / "python", WORKER, Path(worker))
    return Judge(name, command, has_null_lists=has_null_lists)


_VERSION = re.compile(r"^(?:v(\d+)|(\d+)-.*)(?:\.gz|\.zstd)?\.metadata\.json$|^v(\d+)\.gz\.metadata\.json$")


def newest_metadata(directory: Path) -> Iterator[Path]:
    """The newest metadata file of each table below a directory."""
    newest: dict[Path, tuple[int, int, Path]] = {}
    for path in directory.rglob("*.metadata.json"):
        match = _VERSION.match(path.name)
        # What was moved aside is of no table any more.
        if match is None or any(part.startswith(".") for part in path.relative_to(directory).parts):
            continue
        version = int(next(filter(None, match.groups())))
        key = (version, path.stat().st_mtime_ns, path)
        newest[path.parent] = max(newest.get(path.parent, key), key)
    for _, _, path in newest.values():
        yield path


def checks_below(directory: Path) -> Iterator[tuple[Path, CheckResult]]:
    """What the check says of each table below a directory that loads."""
    catalog = open_catalog("sound", {"type": "sql", "uri": "sqlite:///:memory:", "warehouse": directory.as_uri()})
    catalog.create_namespace(("db",))
    for number, path in enumerate(newest_metadata(directory)):
        try:
            table = catalog.register_table(("db", f"t{number}"), path.as_uri())
        except IcekeepError:
            continue
        yield path, check(table, no_spark, deep=True)


BEFORE = 4
"""At how many snapshots before the present one a table is judged; `--cases` above 1 multiplies it."""


def states_below(directory: Path, seen: set[str]) -> Iterator[Table]:
    """Each table below a directory now, and at some of its snapshots before, the newest first.

    What does not load is passed over: that is for the test to see, or it made it so.

    Args:
        seen: metadata files that were judged before; those that come now are added.
    """
    catalog = open_catalog("judged", {"type": "sql", "uri": "sqlite:///:memory:", "warehouse": directory.as_uri()})
    catalog.create_namespace(("db",))
    numbers = count()

    def loaded(location: str) -> Table | None:
        try:
            return catalog.register_table(("db", f"t{next(numbers)}"), location)
        except (IcekeepError, OSError):
            return None

    for path in newest_metadata(directory):
        # Of a table that was judged as it is now, the states before were too.
        if path.as_uri() in seen or (table := loaded(path.as_uri())) is None:
            continue
        log = [entry.metadata_file for entry in reversed(table.metadata.metadata_log)]
        earlier = filter(None, map(loaded, log))
        for state in islice(_by_snapshot(chain((table,), earlier)), 1 + scaled(BEFORE, least=BEFORE)):
            if state.metadata_location not in seen:
                seen.add(state.metadata_location)
                yield state


def _by_snapshot(states: Iterator[Table]) -> Iterator[Table]:
    """Those whose snapshot is not that of one before."""
    known: set[int | None] = set()
    for state in states:
        if (snapshot := state.metadata.current_snapshot_id) not in known:
            known.add(snapshot)
            yield state


ALL, READ, ROWS = "all", "tables", "rows"
KEPT = ROOT / "build" / "judged_by_file.json"

Count = tuple[str, str, str]
"""Of what is counted: a judge, a label of a table or `ALL`, and `READ`, `ROWS`, or what a known fault is."""

LEFT_OUT: Count = ("icekeep", ALL, "left out")
"""States of tables that no judge was asked about, since icekeep does not read them."""


def save(counts: Mapping[Path, Counter[Count]]) -> None:
    """Keep what a run has counted, by the test file that made the tables.

    It takes the place of what was kept of these files; what other runs counted of other files stays. So files can be run
    one after the other.
    """
    found = _kept_by_file() if KEPT.exists() else {}
    found.update({str(file.relative_to(ROOT)): counted for file, counted in counts.items()})
    there = {name: counted for name, counted in sorted(found.items()) if (ROOT / name).exists()}
    KEPT.parent.mkdir(exist_ok=True)
    told = {name: [(*key, number) for key, number in sorted(counted.items())] for name, counted in there.items()}
    KEPT.write_text(json.dumps(told))


def kept() -> Counter[Count]:
    """What the last run of each file counted, added up; raises `FileNotFoundError` where there was none."""
    return sum(_kept_by_file().values(), Counter[Count]())


def kept_files() -> list[str]:
    """The files whose counts are kept."""
    return [*_kept_by_file()]


def _kept_by_file() -> dict[str, Counter[Count]]:
    found = json.loads(KEPT.read_text())
    return {
        name: Counter({(judge, label, what): number for judge, label, what, number in counted})
        for name, counted in found.items()
    }


def summary(counts: Counter[Count]) -> Iterator[str]:
    """A line for each judge that was asked, and one for what none was asked about."""
    for judge, version in VERSIONS.items():
        read, rows, failed = counts[judge, ALL, READ], counts[judge, ALL, ROWS], _faults_count(counts, judge, ALL)
        if read or failed:
            told = (
                f"read {read:,} states of tables as icekeep does, {rows:,} rows, and showed a known fault at {failed:,}"
            )
            yield f"judged: {judge} {version} {told}"
    if counts[LEFT_OUT]:
        yield f"judged: nobody was asked about {counts[LEFT_OUT]:,} states of tables that icekeep does not read"


def counted_table(counts: Counter[Count]) -> Iterator[str]:
    """In Markdown: of each kind of table how many each judge read rightly, and at how many it showed a known fault."""
    labels = {label for _, label, _ in counts} - {ALL}
    yield f"| states of tables | {' | '.join(f'{judge} {version}' for judge, version in VERSIONS.items())} |"
    yield f"|---|{'---|' * len(VERSIONS)}"
    for label in (ALL, *sorted(labels)):
        cells = (_cell(counts, judge, label) for judge in VERSIONS)
        yield f"| {label} | {' | '.join(cells)} |"
    yield f"| rows | {' | '.join(f'{counts[judge, ALL, ROWS]:,}' for judge in VERSIONS)} |"


def _cell(counts: Counter[Count], judge: str, label: str) -> str:
    read, failed = counts[judge, label, READ], _faults_count(counts, judge, label)
    return f"{read:,} ({failed:,})" if failed else f"{read:,}"


def _faults_count(counts: Counter[Count], judge: str, label: str) -> int:
    """At how many states of tables with a label a judge showed a known fault."""
    of_label = (one for one in counts.items() if one[0][:2] == (judge, label))
    return sum(number for (_, _, what), number in of_label if what not in (READ, ROWS))


def faults_table() -> Iterator[str]:
    """In Markdown: what each judge is known not to do."""
    for judge, version in VERSIONS.items():
        yield ""
        yield f"**{judge} {version}**"
        yield ""
        for fault in FAULTS:
            if fault.judge == judge:
                told = ("an error" if fault.says else "wrong rows", fault.issue)
                yield f"* {fault.what} ({', '.join(filter(None, told))})"


JUDGED: Counter[Count] = Counter()
"""What all panels of this process have counted."""


class Panel:
    """The judges, and what they have read so far.

    Attributes:
        counts: by judge and by what is told of a table: tables that it read rightly, their rows, and known faults.
    """

    def __init__(self, trino: Trino) -> None:
        self.judges = all_judges(trino)
        self.counts = JUDGED
        self._seen: set[str] = set()

    def judge(self, name: str) -> Judge:
        """The one of that name."""
        return next(judge for judge in self.judges if judge.name == name)

    def close(self) -> None:
        for judge in self.judges:
            judge.close()

    def judged_below(self, directory: Path) -> list[str]:
        """The `disagreements` over all tables below a directory, now and before, that were not judged yet."""
        return [told for table in states_below(directory, self._seen) for told in self.disagreements(table)]

    def disagreements(self, table: Table) -> list[str]:
        """What judges have otherwise than icekeep's own scan, where that is no fault of theirs that is known.

        Nobody is asked about a table that icekeep does not read: tests spoil some.
        """
        try:
            kind, ours = Kind(table), our_rows(table)
        except (IcekeepError, OSError):
            self.counts[LEFT_OUT] += 1
            return []
        schema = table.metadata.schema
        both = {one: answer_texts(schema, ours, has_null_lists=one) for one in (False, True)}
        labels = [ALL, *kind.labels()]
        found = []
        for judge in self.judges:
            expected, error, wrong = both[judge.has_null_lists], "", ""
            try:
                rows = judge.rows(table)
                wrong = "" if rows == expected else _difference(rows, expected)
            except JudgeError as told:
                error = wrong = str(told)
            fault = explained(faults_of(judge.name, kind), error) if wrong else None
            if wrong and fault is None:
                found.append(f"{judge.name} {judge.version}, {', '.join(labels[1:])}: {wrong}")
                continue
            for label in labels:
                self.counts[judge.name, label, fault.what if fault else READ] += 1
                self.counts[judge.name, label, ROWS] += 0 if fault else expected.total()
        return found


def our_rows(table: Table) -> pa.Table:
    """By icekeep's own scan; by the plain reader where Spark, which the scan may run on, has no type for a column.

    Raises:
        UnsupportedError: neither reads it.
    """
    kind = Kind(table)
    if not kind.data_files:
        return pa.table({field.name: pa.chunked_array([], pa.null()) for field in table.metadata.schema.fields})
    try:
        return read_table(table)
    except UnsupportedError:
        if kind.equality_deletes:
            raise
        return scan_rows(table)


def _difference(rows: Counter[str], expected: Counter[str]) -> str:
    missing, added = expected - rows, rows - expected
    return (
        f"{rows.total()} rows, icekeep has {expected.total()}; "
        f"missing {missing.total()}: {[*missing][:3]}; added {added.total()}: {[*added][:3]}"
    )
