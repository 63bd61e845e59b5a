"""What others do beside a job of ours: who commits in its middle, and the rows of every snapshot, read by PyArrow alone.

A job's catalog and listener let others commit when files were rewritten and before the first swap; a thread updates rows all the
time; or Iceberg Java, PyIceberg and we change rows at once, each rows of its own, so that the rows after any commit follow from
whose commit it is. Hundreds of snapshots are read, so each file, which never changes, is read once for all of them.
`row_histories` has one writer at a time, and more that can happen.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from threading import Barrier, Condition, Thread
from typing import Any, NamedTuple, Self
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import In
from pyspark.sql import SparkSession

from icekeep.catalog.base import Catalog, Identifier, SwapOutcome, Table
from icekeep.catalog.wrappers import CatalogWrapper
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError
from icekeep.events import CommitRetried, Event, StepAdvanced, StepStarted
from icekeep.formats.puffin import read_deletion_vector
from icekeep.maintenance.compact.execute import STEP
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.planning.spark.rows import arrow_table
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import INT, LONG, STRING
from icekeep.spec.updates import AddSnapshot
from icekeep.tables.read import scan
from kit.cases import Choices
from kit.columns import column, schema_of
from kit.deletes import new_data_files, position_delete_files, vector_files
from kit.java import IcebergJava, JavaError
from kit.naive_scan import newest_deletes


def rewrites_files(event: Event) -> bool:
    """Whether a compaction says that it begins to rewrite data files, or has rewritten some more."""
    return isinstance(event, StepStarted | StepAdvanced) and event.step == STEP


class Beside(CatalogWrapper):
    """The catalog and the listener of one job, by which others commit in the middle of it.

    Attributes:
        table: to be given to the job.
        landed_count: how many commits of others came between.
    """

    def __init__(self, table: Table, commit: Callable[[], object]) -> None:
        super().__init__(table.catalog)
        self._commit = commit
        self._is_first = True
        self.table = self.over(table)
        self.landed_count = 0

    def on(self, event: Event) -> None:
        if rewrites_files(event):
            self._land()

    def swap(self, table: Table, requirements: Any, updates: Any) -> SwapOutcome:
        if self._is_first:
            self._is_first = False
            self._land()
        return super().swap(table, requirements, updates)

    def _land(self) -> None:
        self._commit()
        self.landed_count += 1


SCHEMA = schema_of(
    column(1, "id", LONG, required=True), column(2, "kind", STRING), column(3, "number", INT), column(4, "note", STRING)
)
NAMES = [field.name for field in SCHEMA.fields]
KINDS = ("a", "b", "c", "d", "e", "f")

Row = tuple[int, str, int, str | None]
Rows = Counter[Row]


class Place(NamedTuple):
    """Where a row lies."""

    file: DataFile
    position: int
    row: Row


class Seen(NamedTuple):
    """What a snapshot holds: its rows, and the live vector of each data file that has one."""

    snapshot: Snapshot
    places: list[Place]
    vectors: dict[str, ManifestEntry]

    @property
    def rows(self) -> Rows:
        return Counter(place.row for place in self.places)


class HistoryReader:
    """Reads any snapshot of one table of `SCHEMA`, in Parquet, with deletes of positions."""

    def __init__(self, table: Table) -> None:
        self._manifests = ManifestReader(table.storage)
        self._storage = table.storage
        self._entries: dict[str, tuple[ManifestEntry, ...]] = {}
        self._rows: dict[str, list[Row]] = {}
        self._deleted: dict[tuple[str, int | None], list[tuple[str, int]]] = {}

    def seen(self, metadata: TableMetadata, snapshot: Snapshot) -> Seen:
        """The rows of a snapshot and where they lie."""
        entries = list(self._live(metadata, snapshot))
        data = [entry for entry in entries if entry.data_file.content is FileContent.DATA]
        deletes = [entry for entry in entries if entry.data_file.content is FileContent.POSITION_DELETES]
        assert len(data) + len(deletes) == len(entries)
        of_vectors = [entry for entry in deletes if is_deletion_vector(entry.data_file)]
        vectors = {str(entry.data_file.referenced_data_file): entry for entry in of_vectors}
        assert len(vectors) == len(of_vectors), "two vectors for a file"
        deleted = newest_deletes(deletes, self._positions)
        places = [
            Place(entry.data_file, position, row)
            for entry in data
            for position, row in enumerate(self._rows_of(entry.data_file.file_path))
            if deleted.get(entry.data_file.file_path, {}).get(position, -1) < (entry.sequence_number or 0)
        ]
        return Seen(snapshot, places, vectors)

    def _live(self, metadata: TableMetadata, snapshot: Snapshot) -> Iterable[ManifestEntry]:
        for manifest in self._manifests.manifests(snapshot):
            if manifest.manifest_path not in self._entries:
                read = self._manifests.entries(manifest, metadata)
                self._entries[manifest.manifest_path] = tuple(entry for entry in read if entry.is_live)
            yield from self._entries[manifest.manifest_path]

    def _rows_of(self, path: str) -> list[Row]:
        if path not in self._rows:
            # Not as a data set, which would make columns of directories.
            self._rows[path] = as_rows(pq.ParquetFile(urlparse(path).path).read(columns=NAMES))
        return self._rows[path]

    def _positions(self, file: DataFile) -> list[tuple[str, int]]:
        key = file.file_path, file.content_offset
        if key not in self._deleted:
            if is_deletion_vector(file):
                positions = read_deletion_vector(self._storage, file)
                self._deleted[key] = [(str(file.referenced_data_file), position) for position in positions]
            else:
                held = pq.ParquetFile(urlparse(file.file_path).path).read()
                pairs = zip(held.column(0).to_pylist(), held.column(1).to_pylist(), strict=True)
                self._deleted[key] = list(pairs)
        return self._deleted[key]


def as_rows(table: pa.Table) -> list[Row]:
    """An Arrow table's rows as tuples, in order."""
    return list(zip(*(table.column(name).to_pylist() for name in NAMES), strict=True))


def as_table(rows: Iterable[Row]) -> pa.Table:
    rows = list(rows)
    types = (pa.int64(), pa.string(), pa.int32(), pa.string())
    columns = [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate(types)]
    fields = [pa.field(name, type_, nullable=name != "id") for name, type_ in zip(NAMES, types, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def main_history(metadata: TableMetadata) -> list[Snapshot]:
    """The snapshots of `main`, oldest first."""
    chain: list[Snapshot] = []
    next_id = metadata.current_snapshot_id
    while next_id is not None:
        chain.append(metadata.snapshots_by_id[next_id])
        next_id = chain[-1].parent_snapshot_id
    return chain[::-1]


def rows_by_our_scan(table: Table, spark: SparkSession, snapshot: Snapshot) -> Rows:
    return Counter(as_rows(arrow_table(scan(table, spark, snapshot_id=snapshot.snapshot_id))))


def rows_by_pyiceberg(table: Any, snapshot: Snapshot) -> Rows:
    return Counter(as_rows(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()))


def rows_by_java(java: Any, name: str, snapshot: Snapshot) -> Rows:
    answer = java.read(name, True, snapshot.snapshot_id)
    assert [field["name"] for field in answer["schema"]["fields"]] == NAMES
    return Counter(map(tuple, answer["rows"]))


PATIENCE_S = 120


class Refusal(NamedTuple):
    """A commit that was refused: the snapshots that were current when it was planned, and after it was refused."""

    planned_on: int
    seen_then: int


class RowWriter:
    """Writes the files of changes of rows of one table that is partitioned by `kind`, or by nothing."""

    def __init__(self, table: Table, lot: Choices) -> None:
        self.table, self.lot = table, lot
        self.reader = HistoryReader(table)

    def look(self) -> Seen:
        self.table = self.table.catalog.load(self.table.identifier)
        metadata = self.table.metadata
        assert metadata.current_snapshot is not None
        return self.reader.seen(metadata, metadata.current_snapshot)

    def delta(self, seen: Seen, deleted: Sequence[Place], added: Sequence[Row]) -> RowDelta:
        start = seen.snapshot.snapshot_id
        files = new_data_files(self.table, as_table(added)) if added else ()
        change = RowDelta(added=files, starting_snapshot_id=start)
        if not deleted:
            return change
        positions = [(place.file, place.position) for place in deleted]
        named = frozenset(file.file_path for file, _ in positions)
        if self.table.metadata.format_version > 2:
            old = tuple(entry for path, entry in seen.vectors.items() if path in named)
            return replace(change, added_deletes=vector_files(self.table, positions, old), removed_deletes=old)
        scope = self.lot.choice(("file", "partition"))
        return replace(change, added_deletes=position_delete_files(self.table, positions, scope=scope), named=named)


class Updater:
    """The writer; as a context manager it runs in a thread, and what went wrong there is raised at the end.

    It is alone in changing rows, so that it knows them: `states` has the rows after each of its commits, by snapshot.
    """

    def __init__(self, table: Table, seed: int, pause_s: float) -> None:
        """Args:
        pause_s: between its updates, where nobody waits for one.
        """
        self._writer = RowWriter(table, Choices(seed))
        seen = self._writer.look()
        self.states: dict[int, Rows] = {seen.snapshot.snapshot_id: seen.rows}
        self.refusals: list[Refusal] = []
        self.landed_count = 0
        self._rows = seen.rows
        self._pause_s = pause_s
        self._condition = Condition()
        self._is_wanted = self._is_held = self._holds = self._ends = False
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name="updates")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._ends = True
            self._is_held = False
            self._condition.notify_all()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._check()

    def another(self) -> None:
        """Wait until it lands another update."""
        with self._condition:
            wanted = self.landed_count + 1
            while self.landed_count < wanted and self._failure is None:
                self._is_wanted = True
                self._condition.notify_all()
                assert self._condition.wait(PATIENCE_S), "no update lands"
        self._check()

    def hold(self) -> None:
        """Let it plan an update and not commit it; nothing of it lands from here to `release`."""
        with self._condition:
            self._is_held = self._is_wanted = True
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self._holds or self._failure, PATIENCE_S), "no update is planned"
        self._check()

    def release(self) -> None:
        with self._condition:
            self._is_held = False
            self._condition.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise AssertionError("the updates ended") from self._failure

    def _run(self) -> None:
        try:
            while not self._ends:
                self._update()
                with self._condition:
                    self._condition.wait_for(lambda: self._is_wanted or self._ends, self._pause_s)
                    self._is_wanted = False
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            with self._condition:
                self._failure = error
                self._condition.notify_all()

    def _update(self) -> None:
        for attempt in range(2):
            seen = self._writer.look()
            assert seen.rows == self._rows, "other rows than before, and nobody has changed any"
            chosen, new = self._chosen(seen)
            change = self._writer.delta(seen, chosen, new)
            self._wait_while_held()
            try:
                result = commit(self._writer.table, change)
            except ConflictError:
                self.refusals.append(Refusal(seen.snapshot.snapshot_id, self._writer.look().snapshot.snapshot_id))
                assert attempt == 0, "refused twice"
                continue
            assert result.snapshot_id is not None
            self._rows = self._rows - Rows(place.row for place in chosen) + Rows(new)
            with self._condition:
                self.states[result.snapshot_id] = self._rows
                self.landed_count += 1
                self._condition.notify_all()
            return

    def _wait_while_held(self) -> None:
        with self._condition:
            self._holds = self._is_held
            self._condition.notify_all()
            self._condition.wait_for(lambda: not self._is_held)
            self._holds = False

    def _chosen(self, seen: Seen) -> tuple[list[Place], list[Row]]:
        """Rows to update, of old files and new ones, and what becomes of them: some move to another kind, some go."""
        lot = self._writer.lot
        chosen = lot.sample(seen.places, 12)
        new: list[Row] = []
        for place in chosen[1:]:
            id_, kind, number, _ = place.row
            new.append((id_, lot.choice((kind, kind, lot.choice(KINDS))), number + 1, lot.choice((None, "ä", "later"))))
        return chosen, new


class UpdatesBeside:
    """A catalog and a listener for one compaction: updates land whenever files were rewritten, and before each swap of its
    snapshot but the last that it may try; before that one an update is planned, and committed after it.
    """

    def __init__(self, table: Table, updater: Updater, num_retries: int) -> None:
        self._catalog, self._updater, self._lost = table.catalog, updater, num_retries
        self.table = replace(table, catalog=self)
        self.swaps_count = self.retries_count = 0
        self.landed_before = updater.landed_count
        self.landed_meanwhile = 0

    def on(self, event: Event) -> None:
        if rewrites_files(event):
            self._updater.another()
        if isinstance(event, CommitRetried) and self.retries_count < self.swaps_count:
            self.retries_count += 1
            if self.retries_count == self._lost:
                self._updater.hold()

    def load(self, identifier: Identifier | str) -> Table:
        return replace(self._catalog.load(identifier), catalog=self)

    def swap(self, table: Table, requirements: Any, updates: Any) -> SwapOutcome:
        if not any(isinstance(update, AddSnapshot) for update in updates):
            return self._catalog.swap(table, requirements, updates)
        self.swaps_count += 1
        if self.swaps_count <= self._lost:
            self._updater.another()
        self.landed_meanwhile = self._updater.landed_count - self.landed_before
        try:
            return self._catalog.swap(table, requirements, updates)
        finally:
            if self.swaps_count > self._lost:
                self._updater.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


JAVA_REFUSES = ("ValidationException", "CommitFailedException")


class Step(NamedTuple):
    """A snapshot that an engine made: its rows then, or, where it made several at once, those after the last of these."""

    rows: Rows
    is_whole: bool = True


class Engine:
    """A writer of rows whose ids no other has."""

    def __init__(self, identifier: Identifier, number: int, first_count: int) -> None:
        self.identifier = identifier
        self.lot = Choices(number)
        self._ids = count(number * 1_000_000)
        self.first = self._new(first_count)
        self.rows: dict[int, Row] = {row[0]: row for row in self.first}
        self.steps: list[Step] = []
        self.made: list[int] = []
        self.refused_count = 0

    def change(self, kind: str) -> None:
        """Append, delete or overwrite some rows, planned anew for as long as it is refused."""
        gone: list[int] = [] if kind == "append" else self.lot.sample(sorted(self.rows), 2)
        new: list[Row] = self._new(4) if kind == "append" else []
        if kind == "overwrite":
            new = [(id_, kind, number + 1, "again") for id_, kind, number, _ in map(self.rows.__getitem__, gone)]
        while not self._is_done(gone, new):
            self.refused_count += 1
        self.rows = {id_: row for id_, row in self.rows.items() if id_ not in gone} | {row[0]: row for row in new}

    def _landed(self, gone: Sequence[int], new: Iterable[Row], snapshots_count: int = 1) -> None:
        kept = [row for id_, row in self.rows.items() if id_ not in gone]
        rows = Rows([*kept, *new])
        self.steps += [*[Step(rows, is_whole=False)] * (snapshots_count - 1), Step(rows)]

    def _is_done(self, gone: Sequence[int], new: Sequence[Row]) -> bool:
        """Try once; false if the change was refused."""
        raise NotImplementedError

    def _new(self, number: int) -> list[Row]:
        return [(next(self._ids), self.lot.choice(KINDS), 0, None) for _ in range(number)]


class Ours(Engine):
    """Deletes by position: by position delete files, or by vectors."""

    def __init__(self, catalog: Catalog, identifier: Identifier, number: int, first_count: int) -> None:
        super().__init__(identifier, number, first_count)
        self._catalog = catalog
        self._writer: RowWriter | None = None

    def _is_done(self, gone: Sequence[int], new: Sequence[Row]) -> bool:
        if self._writer is None:
            self._writer = RowWriter(self._catalog.load(self.identifier), self.lot)
        seen = self._writer.look()
        change = self._writer.delta(seen, [place for place in seen.places if place.row[0] in gone], new)
        try:
            result = commit(self._writer.table, change)
        except ConflictError:
            return False
        assert result.snapshot_id is not None
        self.made.append(result.snapshot_id)
        self._landed(gone, new)
        return True


class PyIceberg(Engine):
    """Deletes by writing files anew."""

    def __init__(self, properties: dict[str, str], identifier: Identifier, number: int, first_count: int) -> None:
        super().__init__(identifier, number, first_count)
        self._properties = properties

    def _is_done(self, gone: Sequence[int], new: Sequence[Row]) -> bool:
        catalog = ForeignSqlCatalog("local", uri=self._properties["uri"], warehouse=self._properties["warehouse"])
        table = catalog.load_table(self.identifier)
        # It does not see all deletes that came since it read (its check begins at the head), so it may not try twice.
        table.metadata.properties.update({"commit.retry.num-retries": "0", "write.delete.mode": "copy-on-write"})
        begun = table.metadata.current_snapshot_id
        try:
            if not gone:
                table.append(as_table(new))
            elif new:
                table.overwrite(as_table(new), In("id", set(gone)))
            else:
                table.delete(In("id", set(gone)))
        except (CommitFailedException, ValidationException):
            return False
        made: list[int] = []
        snapshot = table.current_snapshot()
        while snapshot is not None and snapshot.snapshot_id != begun:
            made.insert(0, snapshot.snapshot_id)
            snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
        self.made += made
        self._landed(gone, new, len(made))
        return True


class Java(Engine):
    """Spark with Iceberg Java: deletes by position or vector, overwrites as `write.update.mode` says."""

    def __init__(self, java: IcebergJava, identifier: Identifier, number: int, first_count: int) -> None:
        super().__init__(identifier, number, first_count)
        self._java = java

    def _is_done(self, gone: Sequence[int], new: Sequence[Row]) -> bool:
        name = ".".join(("local", *self.identifier))
        ids = ", ".join(map(str, gone))
        values = ", ".join(f"({id_}, '{kind}', {number}, NULL)" for id_, kind, number, _ in new)
        text = f"DELETE FROM {name} WHERE id IN ({ids})"
        if not gone:
            text = f"INSERT INTO {name} VALUES {values}"
        elif new:
            text = f"UPDATE {name} SET number = number + 1, note = 'again' WHERE id IN ({ids})"
        try:
            self._java.sql(text)
        except JavaError as error:
            if any(kind in f"{error.kind} {error.message}" for kind in JAVA_REFUSES):
                return False
            raise
        self._landed(gone, new)
        return True


class Together:
    """Engines that change a table in threads, each change at the same time, and the listener of compactions beside them.

    Whenever files were rewritten, some change lands.
    """

    def __init__(self, engines: Sequence[Engine], kinds: Sequence[str]) -> None:
        """Args:
        kinds: of the changes of each engine, in an order of its own.
        """
        self._engines, self._kinds = engines, kinds
        self._barrier = Barrier(len(engines))
        self._condition = Condition()
        self._landed_count = 0
        self._failures: list[BaseException] = []
        self._threads = [Thread(target=self._run, args=(engine,)) for engine in engines]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._barrier.abort()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]

    @property
    def goes_on(self) -> bool:
        """Whether any engine has something left to do."""
        return not self._failures and any(thread.is_alive() for thread in self._threads)

    def on(self, event: Event) -> None:
        if rewrites_files(event):
            with self._condition:
                wanted = min(self._landed_count + 1, len(self._engines) * len(self._kinds))
                assert self._condition.wait_for(lambda: self._landed_count >= wanted or self._failures, PATIENCE_S), (
                    "nobody changes anything"
                )

    def _run(self, engine: Engine) -> None:
        try:
            for kind in engine.lot.sample(self._kinds, len(self._kinds)):
                self._barrier.wait(PATIENCE_S)
                engine.change(kind)
                with self._condition:
                    self._landed_count += 1
                    self._condition.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised where they are waited for
            self._barrier.abort()
            with self._condition:
                self._failures.append(error)
                self._condition.notify_all()


FAR_AHEAD_MS = 4_102_444_800_000  # the year 2100
ALL = {"rewrite-all": "true"}

Work = Callable[..., Any]
"""Takes a table, a session and a listener."""

COMMON: Mapping[str, Work] = {
    "rewrite_manifests": rewrite_manifests,
    "rewrite_position_deletes": lambda *table, **more: rewrite_position_deletes(*table, options=ALL, **more),
    "compact after deletes": lambda *table, **more: compact(*table, options={"delete-file-threshold": "1"}, **more),
    "expire_snapshots": lambda *table, **more: expire_snapshots(*table, older_than=FAR_AHEAD_MS, retain_last=1, **more),
    "compact everything": lambda *table, **more: compact(
        *table, options={**ALL, "remove-dangling-deletes": "true"}, **more
    ),
}


def sorting(order: str) -> Work:
    return lambda *table, **more: compact(*table, sort_order=order, options=ALL, **more)
