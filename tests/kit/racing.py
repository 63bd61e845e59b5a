"""Processes that append to one table at the same time, and what must be true of the table afterwards."""

import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Barrier
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.commit.manifests import ManifestReader
from icekeep.tables.verbs import append, create_table
from kit.naive_scan import scan_rows
from kit.tables import EVENTS

SCHEMA = pa.schema([pa.field("writer", pa.string()), pa.field("number", pa.int64())])
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
    catalog.create_namespace(EVENTS[:-1], exists_ok=True)
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in more.items()}
    return create_table(catalog, EVENTS, SCHEMA, properties={**PATIENT, **named})


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
        self._context.set_forkserver_preload(["kit.racing"])
        self._barrier = self._context.Barrier(parties)
        self._processes: list[Any] = []

    def start(self, run: Callable[..., None], *arguments: Any) -> None:
        """Run a function of this module in a process; its last argument is the barrier."""
        process = self._context.Process(target=run, args=(*arguments, self._barrier), daemon=True)
        process.start()
        self._processes.append(process)

    def meet(self) -> None:
        """Wait for the others."""
        self._barrier.wait(MEETING_TIMEOUT_S)

    def finish(self) -> None:
        """Wait for all processes to end; each must have done all its commits."""
        for process in self._processes:
            process.join(300)
        codes = [process.exitcode for process in self._processes]
        assert codes == [0] * len(codes), codes


def append_in_step(properties: dict[str, str], writer: str, commits: int, step: Barrier) -> None:
    """Append rows named after a writer and numbered, each in a data file and a commit of its own; meet the others before each."""
    table = open_catalog("local", properties).load(EVENTS)
    for number in range(commits):
        step.wait(MEETING_TIMEOUT_S)
        table = append(table, row(writer, number))


def append_in_step_by_pyiceberg(properties: dict[str, str], writer: str, commits: int, step: Barrier) -> None:
    """The same by PyIceberg, on the same SQL catalog."""
    catalog = ForeignSqlCatalog("local", uri=properties["uri"], warehouse=properties["warehouse"])
    table = catalog.load_table(EVENTS)
    for number in range(commits):
        step.wait(MEETING_TIMEOUT_S)
        table.append(row(writer, number))


def row(writer: str, number: int) -> pa.Table:
    """One row."""
    return pa.table({"writer": [writer], "number": [number]}, schema=SCHEMA)


def rows_of(writers: Mapping[str, int]) -> Counter[tuple[str, int]]:
    """The rows of a table that writers have appended to, each so many."""
    return Counter((writer, number) for writer, commits in writers.items() for number in range(commits))


def as_rows(table: pa.Table) -> Counter[tuple[str, int]]:
    """Rows as a multiset."""
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
