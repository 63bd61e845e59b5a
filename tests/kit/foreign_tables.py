"""Sound tables of three engines on the local disk: each is made once, spoilt as often as a test likes, and put back.

Iceberg Java and PyIceberg carry out histories of rows by their own writers; columns and partition fields are changed by icekeep.
PyIceberg deletes rows by writing files anew, and writes Parquet alone, in format versions 1 and 2.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from pyiceberg.expressions import In
from pyiceberg.partitioning import PartitionSpec as ForeignSpec

from icekeep.catalog.base import Table
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.partitioning import build_spec, spec_to_json
from icekeep.spec.schema import Schema
from icekeep.storage.locations import local_path
from kit.columns import pyiceberg_schema, table_of
from kit.java import IcebergJava, JavaError
from kit.java_stories import JavaTable
from kit.judging.panel import JudgeError, Panel
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.row_histories import KINDS, SPECS, ByIcekeep, History, steps_of
from kit.rows import Place, row_texts, to_wire
from kit.runtime import no_spark

_NUMBERS = count(1)


class ByJava:
    """An interpreter of histories (`row_histories.Interpreter`). What Java cannot do is said here alone."""

    def __init__(self, lake: Lake, java: IcebergJava) -> None:
        self.lake, self.name = lake, f"generated{next(_NUMBERS)}"
        self.java_table = JavaTable(java, f"local.db.{self.name}")
        self._compared: set[int] = set()

    @property
    def table(self) -> Table:
        return self.lake.catalog.load(("db", self.name))

    def holds(self, value: Any, file_format: str) -> bool:
        """Not -0.0 in ORC: Java's reader takes the two zeros of a batch for the first."""
        return file_format != "ORC" or not isinstance(value, float) or repr(value) != "-0.0"

    def deletes(self, keys: Sequence[Sequence[Any]], file_format: str) -> bool:
        """Not by NaN and another value at once: where the other is out of a data file's bounds, Java skips the delete."""
        columns = [{repr(value) for value in column if value is not None} for column in zip(*keys, strict=True)]
        is_held = all(self.holds(value, file_format) for key in keys for value in key)
        return is_held and not any("nan" in column and len(column) > 1 for column in columns)

    @property
    def finds_rows(self) -> bool:
        return not self.compares_lost_columns

    @property
    def compares_lost_columns(self) -> bool:
        """Whether rows were deleted by columns that are no longer there: Java's Spark reads that, its own reader does not."""
        return bool(self._compared - self.table.metadata.schema.fields_by_id.keys())

    @property
    def adds_defaults(self) -> bool:
        """Not where there are ORC files, which lack the column: there Java reads no defaults."""
        files = [entry.data_file for entry in live_entries(self.table)]
        return not any(file.file_format.upper() == "ORC" and file.content is FileContent.DATA for file in files)

    def create(self, schema: Schema, partition_by: Sequence[tuple[str, str]], version: int) -> None:
        spec = build_spec(schema, [(name, transform, None) for name, transform in partition_by])
        self.java_table.create(schema, spec, version)

    def append(self, rows: Sequence[Mapping[str, Any]], file_format: str) -> None:
        self._next(file_format).append(rows, files=2)

    def delete_positions(self, ids: Iterable[int], file_format: str, scope: str, *, is_referenced: bool) -> None:
        table = self._next(file_format)
        if self.table.metadata.format_version == 3:
            table.delta(table.vectors(*ids))
        else:
            table.delta(table.positions(*ids, scope=scope, referenced=is_referenced))

    def delete_equal(
        self,
        names: Sequence[str],
        keys: Sequence[Sequence[Any]],
        place: Place,
        file_format: str,
        added: Sequence[Mapping[str, Any]],
    ) -> None:
        metadata, table = self.table.metadata, self._next(file_format)
        self._compared |= {metadata.schema.field(name).field_id for name in names}
        types = metadata.partition_type(place.spec_id).fields
        partition = [to_wire(field.type, value) for field, value in zip(types, place.partition, strict=True)]
        parts = [table.adding(added)] if added else []
        table.delta(*parts, table.equality(names, *keys, spec_id=place.spec_id, partition=partition))

    def rows(self) -> Counter[str]:
        return self.java_table.rows_of_spark() if self.compares_lost_columns else self.java_table.rows()

    def _next(self, file_format: str) -> JavaTable:
        """The table, set to write the next files in a format."""
        self.java_table.file_format = file_format.lower()
        return self.java_table


class ByPyIceberg:
    """An interpreter of histories (`row_histories.Interpreter`), of those without equality deletes."""

    finds_rows = True
    adds_defaults = False

    def __init__(self, lake: Lake) -> None:
        self.lake, self.name = lake, f"pyiceberg{next(_NUMBERS)}"
        self._catalog = lake.foreign_catalog()

    @property
    def table(self) -> Table:
        return self.lake.catalog.load(("db", self.name))

    def holds(self, value: Any, file_format: str) -> bool:
        """Not NaN: where that is a partition, PyIceberg does not find the rows that it is to write there."""
        return value == value

    def deletes(self, keys: Sequence[Sequence[Any]], file_format: str) -> bool:
        return False

    def create(self, schema: Schema, partition_by: Sequence[tuple[str, str]], version: int) -> None:
        spec = build_spec(schema, [(name, transform, None) for name, transform in partition_by])
        self._catalog.create_table(
            ("db", self.name),
            pyiceberg_schema(schema),
            partition_spec=ForeignSpec.model_validate_json(json.dumps(spec_to_json(spec))),
            properties={"format-version": str(version)},
        )

    def append(self, rows: Sequence[Mapping[str, Any]], file_format: str) -> None:
        schema = self.table.metadata.schema
        self._theirs.append(table_of(schema, list(map(dict, rows))))

    def delete_positions(self, ids: Iterable[int], file_format: str, scope: str, *, is_referenced: bool) -> None:
        self._theirs.delete(In("id", {*ids}))

    def delete_equal(
        self,
        names: Sequence[str],
        keys: Sequence[Sequence[Any]],
        place: Place,
        file_format: str,
        added: Sequence[Mapping[str, Any]],
    ) -> None:
        raise NotImplementedError("PyIceberg writes no equality deletes")

    def rows(self) -> Counter[str]:
        return row_texts(self.table.metadata.schema, self._theirs.scan().to_arrow().to_pylist())

    @property
    def _theirs(self) -> Any:
        return self._catalog.load_table(("db", self.name))


PLAIN = tuple(kind for kind in KINDS if kind not in ("equality", "upsert"))
"""What may happen where no rows are deleted by their values, which not all judges read rightly."""


class Origin(NamedTuple):
    """Whose table it is, in which format version and files; all else follows from the seed."""

    engine: str
    version: int
    file_format: str
    seed: int
    is_plain: bool = True

    def __str__(self) -> str:
        return f"{self.engine}-v{self.version}-{self.file_format}-{'plain' if self.is_plain else 'all'}-{self.seed}"


def origins() -> list[Origin]:
    """Of each engine all that it can write: some without and some with equality deletes."""
    found = [
        Origin(engine, version, file_format, 0, is_plain)
        for engine in ("java", "icekeep")
        for version in (1, 2, 3)
        for file_format in ("parquet", "orc", "avro")
        for is_plain in (True, False)
    ]
    found += [Origin("pyiceberg", version, "parquet", 0) for version in (1, 2, 1, 2, 1, 2)]
    return [origin._replace(seed=100 + number) for number, origin in enumerate(found)]


def made(origin: Origin, lake: Lake, java: IcebergJava) -> History:
    """The table, with manifests that were rewritten half way, and entries that were there before."""
    by = {
        "java": lambda: ByJava(lake, java),
        "icekeep": lambda: _ForJava(lake.catalog),
        "pyiceberg": lambda: ByPyIceberg(lake),
    }[origin.engine]()
    history = History(by, origin.version, SPECS[origin.seed % len(SPECS)], (origin.file_format.upper(),))
    kinds = PLAIN if origin.is_plain else KINDS
    if origin.engine == "pyiceberg":
        # It writes no rows where two partition fields are of one column.
        kinds = tuple(kind for kind in kinds if kind != "spec")
    steps = [step for step in steps_of(origin.seed, kinds) if step[0] in kinds]
    half = len(steps) // 2
    history.went_on(steps[:half])
    if origin.engine == "java":
        java.call("local", "rewrite_manifests", table=f"db.{by.name}")
    elif origin.engine == "icekeep":
        rewrite_manifests(history.table, no_spark)
    return history.went_on(steps[half:]).went_on([("positions", origin.seed)])


class _ForJava(ByIcekeep):
    """Writes only what Java reads rightly."""

    holds = ByJava.holds
    deletes = ByJava.deletes


class Spoilable:
    """A sound table on the local disk of a SQL catalog, with a copy of its files from which it is put back."""

    def __init__(self, history: History, lake: Lake, copies: Path) -> None:
        table = history.table
        self.history, self.lake, self.identifier = history, lake, table.identifier
        self._metadata_location = table.metadata_location
        self._home = Path(local_path(table.metadata.location))
        self._copy = copies / table.identifier[-1]
        shutil.copytree(self._home, self._copy)

    def load(self) -> Table:
        """As the catalog has it now."""
        return self.lake.catalog.load(self.identifier)

    def files(self) -> Mapping[Path, bytes]:
        """All its files, with what is in them."""
        return {path: path.read_bytes() for path in self._home.rglob("*") if path.is_file()}

    def put_back(self) -> None:
        """Make it what it was, whatever was done to its files."""
        shutil.rmtree(self._home)
        shutil.copytree(self._copy, self._home)
        self.lake.catalog.drop(self.identifier)
        self.lake.catalog.register_table(self.identifier, self._metadata_location)


Judge = Callable[[Table], Counter[str]]


def judges_of(spoilable: Spoilable, java: IcebergJava, panel: Panel) -> Mapping[str, Judge]:
    """The engines that read the sound table as it is, each as its reader. What one cannot read, it does not judge."""
    table, expected = spoilable.load(), spoilable.history.expected()
    theirs = JavaTable(java, f"local.{table.name}")
    all_: dict[str, Judge] = {
        "Iceberg Java": lambda _: theirs.rows(),
        "Iceberg Java's Spark": lambda _: theirs.rows_of_spark(),
        # polars keeps manifests by their names for as long as it lives, and here they change under their names.
        **{judge.name: judge.rows for judge in panel.judges if judge.name != "polars"},
    }
    found = {name: judge for name, judge in all_.items() if _reads(judge, table, expected)}
    if "Iceberg Java" in found:
        # Its Spark alone applies deletes by columns that are no longer there.
        found.pop("Iceberg Java's Spark", None)
    return found


def _reads(judge: Judge, table: Table, expected: Counter[str]) -> bool:
    try:
        return judge(table) == expected
    except (JavaError, JudgeError):
        return False
