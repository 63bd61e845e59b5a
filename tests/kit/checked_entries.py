"""Tables in memory whose entries and delete files are checked: damaged by commits that look at nothing, judged by a slow rule."""

import pickle
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, count
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.snapshots import CreateRef
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.commit.summary import SummaryBuilder
from icekeep.events import SILENT
from icekeep.formats.options import write_options
from icekeep.formats.writer import DataFileWriter
from icekeep.maintenance.check.deletes import check_delete_content
from icekeep.maintenance.check.entries import check_entries
from icekeep.maintenance.check.faults import CLASSES, Fault, Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_directory
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, Schema
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef
from icekeep.spec.types import LONG, STRING
from icekeep.spec.updates import Update
from icekeep.storage.locations import canonical
from icekeep.tables.verbs import append, create_table
from kit.cases import Choices
from kit.columns import column, schema_of, table_of
from kit.damager import Damager
from kit.deletes import deletion_vector, equality_deletes, position_deletes
from kit.memory_catalog import MemoryCatalog
from kit.runtime import no_spark
from kit.storage import MemoryStorage
from kit.tables import BY_KIND, data_file, memory_table


class AddBlindly(msgspec.Struct, frozen=True, kw_only=True):
    """A change that adds files, of which it asks nothing, in manifests of their own."""

    data: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()
    branch: str = MAIN

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        summary = SummaryBuilder()
        head = base.head(self.branch)
        manifests = [] if head is None else attempt.reader.manifests(head)
        for content, files in ((ManifestContent.DATA, self.data), (ManifestContent.DELETES, self.deletes)):
            for file in files:
                summary.add(file)
            if files:
                entries = [ManifestEntry(status=Status.ADDED, data_file=file) for file in files]
                manifests += attempt.write_manifests(content.name, entries, files[0].spec_id, content)
        return attempt.snapshot_updates("append", manifests, summary, branch=self.branch)


def add_blindly(table: Table, *data: DataFile, deletes: Iterable[DataFile] = (), branch: str = MAIN) -> Table:
    """The table after another such commit."""
    change = AddBlindly(data=data, deletes=tuple(deletes), branch=branch)
    return commit(table, change, runtime=table.runtime).table


def listed(table: Table, snapshots: Iterable[Snapshot], without: Container[str] = ()) -> Listed:
    """The manifests of some snapshots but those at some locations."""
    reader = ManifestReader(table.storage)
    rows: dict[str, ManifestFile] = {}
    since: dict[str, int] = {}
    read = {one.snapshot_id: [m for m in reader.manifests(one) if m.manifest_path not in without] for one in snapshots}
    for snapshot_id, some in read.items():
        for row in some:
            rows.setdefault(row.manifest_path, row)
            since.setdefault(row.manifest_path, snapshot_id)
    numbers = {path: number for number, path in enumerate(rows)}
    return Listed(
        manifests=tuple(rows.values()),
        members={snapshot_id: BitMap(numbers[row.manifest_path] for row in some) for snapshot_id, some in read.items()},
        since=tuple(since.values()),
        unread=frozenset(),
    )


def exchange_here(monkeypatch: pytest.MonkeyPatch, *modules: Any, parts: int = 3) -> None:
    """Let some modules exchange values in this process as Spark tasks do, which pickle them and know no order."""

    def exchanged(
        session: Any, payloads: Any, send: Any, parts: int, receive: Any, shared: Any, *, step: str
    ) -> tuple[list[Any], list[Any]]:
        shared = pickle.loads(pickle.dumps(shared))
        sent = [one for payload in pickle.loads(pickle.dumps(payloads)) for one in send(payload, shared)]
        boxes = [[one for one in reversed(sent) if one[0] % parts == part] for part in range(parts)]
        results = [receive(part, pickle.loads(pickle.dumps(box)), shared) for part, box in enumerate(boxes)]
        return pickle.loads(pickle.dumps(results)), []

    for module in modules:
        for name, value in (
            ("run_exchange", exchanged),
            ("started", lambda spark: None),
            ("tasks_count", lambda *amounts, **more: parts),
        ):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def checked(table: Table, spark: SparkSource = no_spark, ref: str | None = None, without: Container[str] = ()) -> Tally:
    """What is found in a table, every fault of it.

    Args:
        ref: whose snapshot is looked at; by default all are.
        without: manifests that those who look at manifests could not make sense of.
    """
    subject = subject_of(table, spark, ref)
    check_entries(subject, listed(table, subject.snapshots, without))
    return subject.tally


def subject_of(table: Table, spark: SparkSource = no_spark, ref: str | None = None) -> CheckedTable:
    """What is checked, of a tally that keeps every fault."""
    snapshots = table.metadata.snapshots if ref is None else (table.metadata.head(ref),)
    return CheckedTable(
        table=table,
        snapshots=tuple(one for one in snapshots if one is not None),
        spark=spark,
        listener=SILENT,
        tally=Tally(CLASSES),
    )


def all_faults(tally: Tally) -> list[Fault]:
    """All faults, in order."""
    return [fault for number in sorted(CLASSES) for fault in tally.faults(number)]


def told(tally: Tally) -> Counter[tuple[int, str, int | None, int]]:
    """What is told of all faults: class, file, oldest snapshot and how many snapshots have it."""
    faults = all_faults(tally)
    assert tally.counts == Counter(fault.number for fault in faults)
    return Counter((f.number, canonical(f.where), f.snapshot_id, f.facts["snapshots_count"]) for f in faults)


def live_by_snapshot(table: Table) -> dict[int, list[DataFile]]:
    """The live files of each snapshot, one by one."""
    reader = ManifestReader(table.storage)
    return {
        snapshot.snapshot_id: [
            entry.data_file
            for manifest in reader.manifests(snapshot)
            for entry in reader.entries(manifest, table.metadata)
            if entry.is_live
        ]
        for snapshot in table.metadata.snapshots
    }


def put_files(table: Table) -> Table:
    """The same table, whose files are there, each of its size."""
    for files in live_by_snapshot(table).values():
        for file in files:
            if table.storage.head(file.file_path) is None:
                table.storage.create(file.file_path, bytes(file.file_size_in_bytes))
    return table


def remove_file(table: Table, location: str) -> None:
    """Behind the table's back."""
    table.storage.delete_many([location])


def cut_file(table: Table, location: str) -> None:
    """Leave a file that is a byte longer than it should be."""
    length = len(table.storage.read(location))
    remove_file(table, location)
    table.storage.create(location, bytes(length + 1))


def expected(table: Table) -> Counter[tuple[int, str, int | None, int]]:
    """What must be told of a table but of its dangling deletes: each snapshot is looked at by itself, each pair of files too."""
    found: defaultdict[tuple[int, str, bool], list[int]] = defaultdict(list)
    kinds: defaultdict[str, set[bool]] = defaultdict(set)
    for snapshot_id, files in live_by_snapshot(table).items():
        for fault in {*_of_snapshot(table, files)}:
            found[fault].append(snapshot_id)
        for file in files:
            kinds[canonical(file.file_path)].add(file.content is FileContent.DATA)
    for path in (path for path, some in kinds.items() if len(some) == 2):
        holding = _holding(table, path)
        found[306, path, True] = [one for one, some in holding.items() if len(some) == 2] or [*holding]
    order = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    return Counter((number, path, min(some, key=order.index), len(some)) for (number, path, _), some in found.items())


def _of_snapshot(table: Table, files: list[DataFile]) -> Iterator[tuple[int, str, bool]]:
    """Faults, each with its file, and whether that is doubled as data or as deletes."""
    for file, other in combinations(files, 2):
        path, is_vector = canonical(file.file_path), is_deletion_vector(file) and is_deletion_vector(other)
        same = path == canonical(other.file_path) and file.content == other.content
        if same and (not is_vector or file.content_offset == other.content_offset):
            yield 212, path, file.content is FileContent.DATA
        elif is_vector and file.referenced_data_file == other.referenced_data_file:
            yield 213, canonical(str(file.referenced_data_file)), True
    for file in files:
        info = table.storage.head(file.file_path)
        if info is None:
            yield 301 if file.content is FileContent.DATA else 303, canonical(file.file_path), True
        elif info.size_bytes != file.file_size_in_bytes:
            yield 302, canonical(file.file_path), True


def _holding(table: Table, path: str) -> Mapping[int, set[bool]]:
    """The snapshots that have a file, with whether as data or as deletes."""
    found: defaultdict[int, set[bool]] = defaultdict(set)
    for snapshot_id, files in live_by_snapshot(table).items():
        for file in files:
            if canonical(file.file_path) == path:
                found[snapshot_id].add(file.content is FileContent.DATA)
    return found


class Damaged:
    """A table that grows by lot: appends and deletes, branches and rewritten manifests, and now and then what no table may be."""

    def __init__(self, seed: int) -> None:
        self.chosen = Choices(seed)
        self.version = self.chosen.choice((1, 2, 3))
        self.table = memory_table(spec=BY_KIND, format_version=self.version, commit__manifest_merge__enabled="false")
        self._count = 0
        self._branches = [MAIN]
        steps = [self._append, self._append, self._rewrite, self._again, self._delete, self._branch]
        steps += [self._deletes, self._both] if self.version == 2 else []
        steps += [self._vector, self._vector, self._both] if self.version == 3 else []
        self._append()
        for _ in range(self.chosen.randint(6, 12)):
            self.chosen.choice(steps)()
        put_files(self.table)
        self._lose()

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def _on(self) -> str:
        return self.chosen.choice(self._branches)

    def _live(self, branch: str = MAIN) -> list[DataFile]:
        head = self.table.metadata.head(branch)
        assert head is not None
        files = live_by_snapshot(self.table)[head.snapshot_id]
        return sorted((f for f in files if f.content is FileContent.DATA), key=lambda file: file.file_path)

    def _data(self) -> DataFile:
        live = self._live()
        if not live:
            self._append()
        return self.chosen.choice(self._live())

    def _append(self) -> None:
        files = [data_file(self._name("d"), partition=(self.chosen.choice("ab"),)) for _ in range(3)]
        self.table = add_blindly(self.table, *files, branch=self._on())

    def _again(self) -> None:
        """A file that some snapshot has once more: under another spelling, or in a commit together with itself."""
        every = [f for files in live_by_snapshot(self.table).values() for f in files if f.content is FileContent.DATA]
        file = self.chosen.choice(sorted(every, key=lambda one: one.file_path))
        spelled = replace(file, file_path=file.file_path.replace("/data/", self.chosen.choice(("/data/", "/./data/"))))
        self.table = add_blindly(self.table, *[spelled] * self.chosen.choice((1, 1, 2)), branch=self._on())

    def _delete(self) -> None:
        change = DeleteFiles(paths=frozenset({self._data().file_path}))
        self.table = commit(self.table, change, runtime=self.table.runtime).table

    def _rewrite(self) -> None:
        rewrite_manifests(self.table, no_spark)
        self.table = self.table.refresh()

    def _branch(self) -> None:
        name = self._name("branch")
        head = self.table.metadata.head(MAIN)
        assert head is not None
        change = CreateRef(name, SnapshotRef(snapshot_id=head.snapshot_id, type="branch"))
        self.table = commit(self.table, change, runtime=self.table.runtime).table
        self._branches.append(name)

    def _deletes(self) -> None:
        where: dict[str, Any] = {"partition": (self.chosen.choice("abc"),)}
        deletes = [position_deletes(self._name("p"), **where), equality_deletes(self._name("e"), **where)]
        self.table = add_blindly(self.table, deletes=deletes, branch=self._on())

    def _vector(self) -> None:
        targets = [self._data() for _ in range(2)]
        name = self._name("v")
        vectors = [
            deletion_vector(name, file.file_path.rpartition("/")[2], 4 + 50 * number, file.partition)
            for number, file in enumerate(targets)
        ]
        self.table = add_blindly(self.table, deletes=vectors, branch=self._on())

    def _both(self) -> None:
        file = self._data()
        deletes = [replace(position_deletes("x", partition=file.partition), file_path=file.file_path)]
        self.table = add_blindly(self.table, deletes=deletes, branch=self._on())

    def _lose(self) -> None:
        every = {canonical(f.file_path) for files in live_by_snapshot(self.table).values() for f in files}
        for path in self.chosen.sample(sorted(every), min(len(every), 4)):
            self.chosen.choice((remove_file, cut_file))(self.table, path)


NAME = ("db", "t")
SCHEMA = schema_of(column(1, "id", LONG, required=True), column(2, "kind", STRING))
POSITIONS = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))

_NUMBERS = count()


def made(version: int, *ids: Sequence[int], **properties: str) -> Table:
    """A table in memory with a data file for each range of ids; `__` in the names of properties stands for `.`."""
    catalog = MemoryCatalog(MemoryStorage())
    catalog.create_namespace(("db",))
    named = {key.replace("__", "."): value for key, value in properties.items()}
    table = create_table(catalog, NAME, SCHEMA, format_version=version, properties=named)
    for some in ids or (range(5), range(5, 10)):
        table = append(table, rows(some))
    return table


def rows(ids: Iterable[int]) -> Any:
    return table_of(SCHEMA, [{"id": n, "kind": "ab"[n % 2]} for n in ids])


def damager(table: Table) -> Damager:
    return Damager(table.catalog, NAME, Choices(1))


def checked_deletes(table: Table, spark: SparkSource = no_spark) -> tuple[list[Fault], Tally]:
    """The faults of what delete files hold, and the tally."""
    table = table.catalog.load(NAME)
    subject = subject_of(table, spark)
    check_delete_content(subject, listed(table, subject.snapshots))
    return all_faults(subject.tally), subject.tally


def one_fault(table: Table) -> Fault:
    """The only fault; nothing was left unchecked but row ids of rows that cannot be read by what is wrong."""
    [fault], tally = checked_deletes(table)
    assert [gap for gap in tally.gaps() if not gap.what.startswith("row ids of")] == []
    return fault


def written(table: Table, schema: Schema, values: Sequence[dict[str, Any]], file_format: str = "PARQUET") -> DataFile:
    """A file with rows in the order in which they are given."""
    location = f"{data_directory(table.metadata)}/by-hand-{next(_NUMBERS)}.{file_format.lower()}"
    options = write_options({"write.format.default": file_format.lower()}, schema)
    with DataFileWriter(table.storage, schema, options, lambda: location, spec_id=0) as writer:
        writer.write(table_of(schema, list(values)))
        (file,) = writer.close()
    return file


def with_files(table: Table, *data: DataFile, deletes: Sequence[DataFile] = ()) -> Table:
    """The table after a commit that asks nothing of the files."""
    return commit(table, AddBlindly(data=data, deletes=tuple(deletes)), runtime=table.runtime).table
