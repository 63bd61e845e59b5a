"""Small tables for tests of catalogs, and races between processes: for one table's pointer, or to append to one table."""

import multiprocessing
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Barrier
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog

from icekeep.catalog.base import Catalog, Committed, Conflict, Identifier, Table
from icekeep.catalog.open import open_catalog
from icekeep.commit.manifests import ManifestReader
from icekeep.runtime import SystemRuntime
from icekeep.spec.metadata import TableMetadata, new_table_metadata, parse_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import LONG, STRING, NestedField
from icekeep.spec.updates import AddSnapshot, SetProperties
from icekeep.tables.verbs import append, create_table
from kit.naive_scan import scan_rows
from kit.tables import EVENTS as RACED

SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG, required=True),
        NestedField(field_id=2, name="name", type=STRING),
    )
)
EVENTS: Identifier = ("db", "events")
COUNTER = "test.counter"


def simple_metadata(location: str, **properties: str) -> TableMetadata:
    """Metadata of a new, empty table with two columns; `_` in the names of properties stands for `-`."""
    return new_table_metadata(
        schema=SCHEMA,
        spec=UNPARTITIONED,
        location=location,
        table_uuid=str(uuid.uuid5(uuid.NAMESPACE_URL, location)),
        now_ms=SystemRuntime().now_ms(),
        properties={name.replace("_", "-"): value for name, value in properties.items()},
    )


def set_counter(value: int | str) -> list[SetProperties]:
    """The updates of a commit that sets one table property."""
    return [SetProperties({COUNTER: str(value)})]


def add_snapshot(snapshot_id: int, sequence_number: int = 1) -> list[AddSnapshot]:
    return [
        AddSnapshot(
            Snapshot(
                snapshot_id=snapshot_id,
                timestamp_ms=SystemRuntime().now_ms(),
                sequence_number=sequence_number,
                manifest_list="file:///nowhere/snap.avro",
                summary={"operation": "append"},
                schema_id=0,
            )
        )
    ]


def increment(catalog: Catalog, identifier: Identifier, start: Any = None) -> int:
    """Add one to the counter of a table, however often it takes; how often it conflicted.

    `start`, a barrier, lets several writers load the same base before one of them swaps.
    """
    conflicts = 0
    while True:
        table = catalog.load(identifier)
        if start is not None:
            start.wait()
            start = None
        value = int(table.metadata.properties.get(COUNTER, "0"))
        match catalog.swap(table, [], set_counter(value + 1)):
            case Committed():
                return conflicts
            case Conflict():
                conflicts += 1
            case outcome:
                raise AssertionError(outcome)


def race(properties: Mapping[str, str], *, writers: int, swaps: int) -> int:
    """Let processes increment the counter of `db.events`, each `swaps` times; how many conflicts there were."""
    context = multiprocessing.get_context("fork")
    start, conflicts = context.Barrier(writers), context.Queue()
    processes = [
        context.Process(target=_increment_often, args=(dict(properties), swaps, start, conflicts))
        for _ in range(writers)
    ]
    for process in processes:
        process.start()
    total = sum(conflicts.get(timeout=30) for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return total


def _increment_often(properties: dict[str, str], swaps: int, start: Barrier, conflicts: Any) -> None:
    catalog = open_catalog("local", properties)
    # Every writer loads the same base before any of them swaps: all but one must conflict, in every round.
    conflicts.put(sum(increment(catalog, EVENTS, start) for _ in range(swaps)))


def attaching_race(properties: Mapping[str, str], sound_location: str, location: str, *, clients: int) -> Counter[str]:
    """Let processes give `db.events` metadata again, all at once; how many outcomes there were of each kind."""
    context = multiprocessing.get_context("fork")
    start, outcomes = context.Barrier(clients), context.Queue()
    processes = [
        context.Process(target=_attach, args=(dict(properties), sound_location, location, start, outcomes))
        for _ in range(clients)
    ]
    for process in processes:
        process.start()
    kinds = Counter(outcomes.get(timeout=30) for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return kinds


def _attach(properties: dict[str, str], sound_location: str, location: str, start: Barrier, outcomes: Any) -> None:
    catalog = open_catalog("local", properties)
    storage = catalog.find(EVENTS).storage
    metadata = parse_metadata(storage.read(sound_location), sound_location)
    start.wait()
    outcomes.put(type(catalog.reattach(Table(EVENTS, metadata, location, storage, catalog))).__name__)


RACE_SCHEMA = pa.schema([pa.field("writer", pa.string()), pa.field("number", pa.int64())])
PATIENT = {
    "commit.retry.num-retries": "1000",
    "commit.retry.min-wait-ms": "10",
    "commit.retry.max-wait-ms": "500",
    "commit.status-check.min-wait-ms": "10",
}
"""Table properties for many writers; Iceberg's default of four retries is for few."""
MEETING_TIMEOUT_S = 120
_LIST = re.compile(r"/snap-\d+-(?P<attempt>\d+)-")


def racing_table(properties: Mapping[str, str], **more: str) -> Table:
    """A new, empty table for a race; `__` in the names of properties stands for `.`, `_` for `-`."""
    catalog = open_catalog("local", properties)
    catalog.create_namespace(RACED[:-1], exists_ok=True)
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    return create_table(catalog, RACED, RACE_SCHEMA, properties={**PATIENT, **named})


def start_appending(properties: Mapping[str, str], *, writers: int, commits: int) -> "Race":
    """Let processes append to `db.events`, each a row in each of its commits; they meet before each commit.

    Where they only began together, a busy machine would let one end before the next has begun.
    """
    race = Race(writers)
    for name in names(writers):
        race.start(append_in_step, dict(properties), name, commits)
    return race


def names(writers: int) -> list[str]:
    """What the processes call themselves in their rows."""
    return [f"process {number}" for number in range(writers)]


class Race:
    """Processes that are given a barrier for `parties`: they meet there, with whoever else calls `meet`."""

    def __init__(self, parties: int) -> None:
        self._context = multiprocessing.get_context("forkserver")
        # The processes are forked from one that has loaded everything and has no threads.
        self._context.set_forkserver_preload(["kit.catalogs"])
        self._barrier = self._context.Barrier(parties)
        self._processes: list[Any] = []

    def start(self, run: Callable[..., None], *arguments: Any) -> None:
        process = self._context.Process(target=run, args=(*arguments, self._barrier), daemon=True)
        process.start()
        self._processes.append(process)

    def meet(self) -> None:
        self._barrier.wait(MEETING_TIMEOUT_S)

    def finish(self) -> None:
        """Wait for all processes to end; each must have done all its commits."""
        for process in self._processes:
            process.join(300)
        codes = [process.exitcode for process in self._processes]
        assert codes == [0] * len(codes), codes


def append_in_step(properties: dict[str, str], writer: str, commits: int, step: Barrier) -> None:
    """Append rows named after a writer and numbered, each in a data file and a commit of its own; meet the others before each."""
    table = open_catalog("local", properties).load(RACED)
    for number in range(commits):
        step.wait(MEETING_TIMEOUT_S)
        table = append(table, row(writer, number))


def append_in_step_by_pyiceberg(properties: dict[str, str], writer: str, commits: int, step: Barrier) -> None:
    """The same by PyIceberg, on the same SQL catalog."""
    catalog = ForeignSqlCatalog("local", uri=properties["uri"], warehouse=properties["warehouse"])
    table = catalog.load_table(RACED)
    for number in range(commits):
        step.wait(MEETING_TIMEOUT_S)
        table.append(row(writer, number))


def row(writer: str, number: int) -> pa.Table:
    return pa.table({"writer": [writer], "number": [number]}, schema=RACE_SCHEMA)


def rows_of(writers: Mapping[str, int]) -> Counter[tuple[str, int]]:
    """The rows of a table that writers have appended to, each so many."""
    return Counter((writer, number) for writer, commits in writers.items() for number in range(commits))


def as_rows(table: pa.Table) -> Counter[tuple[str, int]]:
    return Counter((record["writer"], record["number"]) for record in table.to_pylist())


def our_rows(table: Table) -> Counter[tuple[str, int]]:
    """The rows of a table as we read them: its manifests, and every live data file."""
    return as_rows(scan_rows(table))


def check_race(table: Table, foreign: Any, writers: Mapping[str, int]) -> None:
    """Everything that a race must leave true, the table read by us and (`foreign`) by PyIceberg."""
    assert our_rows(table) == as_rows(foreign.scan().to_arrow()) == rows_of(writers)
    check_history(table, sum(writers.values()))
    check_nothing_is_left(table)


def check_history(table: Table, commits: int) -> None:
    """Every commit is one snapshot on top of the one before, adds one file and counts on; nothing lies about unused."""
    snapshots = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number)
    assert len(snapshots) == len({snapshot.snapshot_id for snapshot in snapshots}) == commits
    assert [snapshot.sequence_number for snapshot in snapshots] == list(range(1, commits + 1))
    parents = [None, *(snapshot.snapshot_id for snapshot in snapshots)]
    assert [snapshot.parent_snapshot_id for snapshot in snapshots] == parents[:-1]
    assert table.metadata.current_snapshot_id == parents[-1]
    for total in ("total-records", "total-data-files"):
        assert [int(snapshot.summary[total]) for snapshot in snapshots] == list(range(1, commits + 1))
    assert all(snapshot.summary["added-data-files"] == "1" for snapshot in snapshots)


def check_nothing_is_left(table: Table) -> None:
    """Storage holds the manifests, lists and data files that the history names, and no others."""
    reader = ManifestReader(table.storage)
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    manifests = {m.manifest_path: m for snapshot in table.metadata.snapshots for m in reader.manifests(snapshot)}
    data = {e.data_file.file_path for m in manifests.values() for e in reader.entries(m, table.metadata)}
    stored = {info.location for info in table.storage.list(table.metadata.location)}
    assert {location for location in stored if location.endswith((".avro", ".parquet"))} == lists | set(
        manifests
    ) | data


def conflicts_of(table: Table) -> int:
    """How many attempts conflicted before those that landed, by the names of manifest lists; PyIceberg's do not tell."""
    found = [_LIST.search(snapshot.manifest_list) for snapshot in table.metadata.snapshots]
    return sum(max(int(match["attempt"]) - 1, 0) for match in found if match)
