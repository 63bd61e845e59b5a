"""What a run removed, brought back: on tables in memory, whose storage can be looked at and can fail at every call."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import (
    InvalidTableError,
    NotFoundError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UsageError,
)
from icekeep.maintenance.delete.lease import LEASE_MS, new_lease
from icekeep.maintenance.delete.plan_file import DONE, HEAD, write_head
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile
from icekeep.maintenance.restore.job import list_restorable, plan_restore, restore
from icekeep.spec.evolution import DropColumn, RemovePartitionField
from icekeep.spec.retention import select_expired
from icekeep.spec.snapshots import StatisticsFile
from icekeep.storage.base import DeleteOutcome, MoveOutcome, MoveStatus
from icekeep.tables.verbs import append, update_schema, update_spec
from kit.cases import for_each
from kit.changes import run as commit_change
from kit.expired_tables import ALL_BUT_HEADS, DAY_MS, expired, files_of, in_trash, moves_of, written_plan
from kit.lake import Lake, events, multiset
from kit.memory_catalog import IS_UNKNOWN, LANDS_BUT_IS_UNKNOWN, MemoryCatalog, after
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage, contents
from kit.tables import EVENTS, add, data_file, live, memory_table, raw, set_ref

LOCATION = "memory://lake/wh/db/events"


class Crash(BaseException):
    """The process dies."""


class OneByOne(HookedStorage):
    """Lets a test act between any two files of one call."""

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        outcomes = []
        for move in moves:
            self.before("move_many", move[0])
            outcomes += self.inner.move_many([move])
            self.after("move_many", move[0])
        return outcomes

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        outcomes = []
        for location in locations:
            self.before("delete_many", location)
            outcomes += self.inner.delete_many([location])
            self.after("delete_many", location)
        return outcomes


class World:
    """A table of four snapshots, of which the last is left; `before` is how it was, `plan` what the run wrote."""

    def __init__(self, *, trash: bool = True, restores_snapshots: bool = True, format_version: int = 2) -> None:
        runtime = FakeRuntime()
        self.storage = OneByOne(MemoryStorage(runtime))
        self.catalog = MemoryCatalog(self.storage, runtime=runtime, restores_snapshots=restores_snapshots)
        table = memory_table(self.catalog, format_version=format_version)
        for name in "abc":
            self.storage.create(f"{LOCATION}/data/{name}", f"{name:10}".encode() * 10)
            table = add(table, name)
            self.catalog.runtime.pass_ms(1000)
        self.storage.create(f"{LOCATION}/metadata/1.stats", b"statistics")
        statistics = StatisticsFile(
            snapshot_id=table.metadata.snapshots[0].snapshot_id,
            statistics_path=f"{LOCATION}/metadata/1.stats",
            file_size_in_bytes=10,
            file_footer_size_in_bytes=4,
        )
        table = commit_change(table, ChangeStatistics(updates=(statistics,))).table
        self.before = commit_change(table, DeleteFiles(paths=frozenset({data_file("a").file_path}))).table
        self.rows = {s.snapshot_id: live_at(self.before, s.snapshot_id) for s in self.before.metadata.snapshots}
        self.files = self.table_files()
        self.after, self.plan = expired(self.before, runtime=self.catalog.runtime, trash=trash)
        self.gone = self.plan.snapshot_ids
        assert len(self.gone) == 3
        assert trash != (data_file("a").file_path in self.present())

    def restore(self, run: str | None = None) -> Any:
        return restore(self.load(), run=run)

    def load(self) -> Table:
        return self.catalog.load(EVENTS)

    def present(self) -> set[str]:
        return set(self.storage.inner.files)

    def table_files(self) -> dict[str, bytes]:
        """Every file that is not icekeep's own, but table metadata, of which every commit makes another."""
        files = contents(self.storage.inner, LOCATION)
        return {n: data for n, data in files.items() if not n.startswith(".icekeep") and not n.endswith(".json")}

    def own_files(self) -> set[str]:
        return {name for name in contents(self.storage.inner, LOCATION) if name.startswith(".icekeep")}

    def check_restored(self) -> None:
        """Everything is as it was, but that the snapshots have tags in place of main's history."""
        table, metadata = self.load(), self.load().metadata
        assert self.table_files() == self.files
        assert self.own_files() == set()
        assert metadata.snapshots_by_id == self.before.metadata.snapshots_by_id
        assert {n for n in metadata.refs if n != "main"} == {f"restored-{i}" for i in self.gone}
        assert {i: live(table, f"restored-{i}") for i in self.gone} == {i: self.rows[i] for i in self.gone}
        assert metadata.statistics == self.before.metadata.statistics
        assert metadata.refs["main"] == self.before.metadata.refs["main"]


def live_at(table: Table, snapshot_id: int) -> Counter[str]:
    """The names of the live files of a snapshot."""
    rows = raw(table, table.metadata.snapshot(snapshot_id).manifest_list)
    entries = [entry for row in rows for entry in raw(table, row["manifest_path"])]
    return Counter(e["data_file"]["file_path"].rsplit("/", 1)[-1] for e in entries if e["status"] != 2)


def but_claims(world: World) -> dict[str, bytes]:
    files = contents(world.storage.inner, LOCATION)
    return {name: data for name, data in files.items() if "/claims/" not in name}


@contextmanager
def untouched(world: World) -> Iterator[None]:
    """Whatever the block does, it changes no file and commits nothing."""
    files, swaps = but_claims(world), len(world.catalog.swaps)
    yield
    assert but_claims(world) == files
    assert len(world.catalog.swaps) == swaps


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_restore_brings_back_all_that_a_run_expired(format_version: int):
    world = World(format_version=format_version)
    result = world.restore()
    world.check_restored()
    assert (result.status, result.run, result.job, result.note) == ("done", "run-1", "expire_snapshots", None)
    assert result.restored_files_count == world.plan.files_count > 5
    assert result.restored_bytes_count == sum(f.bytes for f in world.plan.files) > 100
    assert result.restored_snapshots_count == 3
    assert result.restored_tags == tuple(f"restored-{i}" for i in world.gone)


def test_the_next_expiration_leaves_what_came_back():
    world = World()
    world.restore()
    world.catalog.runtime.pass_ms(10_000 * DAY_MS)
    again, plan = expired(world.load(), runtime=world.catalog.runtime, run="run-2", trash=False)
    assert plan.snapshot_ids == ()
    assert again.metadata.snapshots_by_id.keys() == world.before.metadata.snapshots_by_id.keys()


# Which run.


def test_runs_are_listed_the_newest_first():
    world = World()
    world.catalog.runtime.pass_ms(5)
    world.storage.create(f"{LOCATION}/data/orphan", b"123")
    orphan = GarbageFile(FileKind.ORPHAN, f"{LOCATION}/data/orphan", 3)
    plan = written_plan(world.load(), [orphan], run="run-2", job="remove_orphan_files", runtime=world.catalog.runtime)
    in_trash(plan, world.storage)
    newest, oldest = list_restorable(world.load())
    assert (newest.run, newest.job, newest.snapshots_count, newest.files_count, newest.bytes) == (
        "run-2",
        "remove_orphan_files",
        0,
        1,
        3,
    )
    assert (oldest.run, oldest.job, oldest.snapshots_count) == ("run-1", "expire_snapshots", 3)
    assert oldest.files_count == world.plan.files_count
    assert newest.created_ms == oldest.created_ms + 5
    assert world.restore().run == "run-2"
    assert world.storage.read(f"{LOCATION}/data/orphan") == b"123"
    assert world.restore().run == "run-1"
    assert list_restorable(world.load()) == ()


@for_each("run", ["run-9", "run-", "run", "..", "", "../run-1", "a/b", "."])
def test_a_run_that_is_not_there_is_not_found(run: str):
    world = World()
    with pytest.raises(NotFoundError) as raised:
        world.restore(run)
    assert raised.value.message == f"there is no run {run!r} to restore for table 'local.db.events'; there is 'run-1'"


def test_unambiguous_prefix_names_a_run():
    world = World()
    world.storage.create(f"{LOCATION}/data/orphan", b"123")
    orphan = GarbageFile(FileKind.ORPHAN, f"{LOCATION}/data/orphan", 3)
    written_plan(world.load(), [orphan], run="other-1234-5", job="remove_orphan_files", runtime=world.catalog.runtime)
    written_plan(world.load(), [orphan], run="other-1234-6", job="remove_orphan_files", runtime=world.catalog.runtime)
    with pytest.raises(
        UsageError,
        match="'other-1234' is the beginning of several runs: other-1234-5, other-1234-6; give one of them whole",
    ):
        world.restore("other-1234")
    assert world.restore("other-1234-6").run == "other-1234-6"


def test_where_nothing_was_removed_there_is_nothing_to_restore():
    world = World()
    world.restore()
    with pytest.raises(
        NotFoundError,
        match=r"to restore for table 'local.db.events'; .* `icekeep rollback --table local.db.events --snapshot-id ID`, and",
    ):
        world.restore()


def test_a_run_that_never_committed_is_not_chosen():
    world = World()
    world.restore()
    written_plan(world.load(), [], run="run-2", snapshot_ids=world.gone, trash=False)
    with pytest.raises(NotFoundError, match=r"nothing to restore for table 'local.db.events'; there is 'run-2'"):
        world.restore()


def test_a_plan_of_another_table_is_refused():
    world = World()
    world.storage.delete_many([f"{world.plan.directory}/{HEAD}"])
    write_head(replace(world.plan, table_uuid="another"), world.storage)
    with pytest.raises(SafetyError, match=r"run 'run-1' was of another table \(uuid another\); nothing was restored"):
        world.restore()


# Places.


def test_a_path_in_use_again_stops_the_restore():
    world = World()
    world.storage.create(f"{LOCATION}/data/a", b"somebody else's")

    with (
        untouched(world),
        pytest.raises(SafetyError, match=f"'{LOCATION}/data/a' is in use again by another file; move that away"),
    ):
        world.restore()
    world.storage.delete_many([f"{LOCATION}/data/a"])
    world.restore()
    world.check_restored()


def test_a_path_in_use_again_that_the_trash_has_lost():
    world = World()
    world.storage.delete_many([trash for place, trash in moves_of(world.plan, world.storage) if place.endswith("/a")])
    world.storage.create(f"{LOCATION}/data/a", b"somebody else's")
    with pytest.raises(SafetyError, match="is in use again"):
        world.restore()


def test_interrupted_move_leaves_both_names_of_a_file():
    world = World()
    place, trash = moves_of(world.plan, world.storage)[0]
    world.storage.create(place, world.storage.read(trash))
    # A store that tells the two names of one file from two files finishes such a move; this one cannot.
    with pytest.raises(SafetyError, match="1 path is in use again"):
        world.restore()
    world.storage.delete_many([trash])
    world.restore()
    world.check_restored()


def test_missing_file_stops_the_restore_before_any_move():
    world = World()
    lost = moves_of(world.plan, world.storage)[1:3]
    world.storage.delete_many([trash for _, trash in lost])

    with (
        untouched(world),
        pytest.raises(SafetyError, match="2 files are neither in its trash nor in their places") as raised,
    ):
        world.restore()
    assert repr(lost[0][0]) in raised.value.message


def test_a_file_put_in_the_way_at_the_last_moment():
    world = World()
    places = [place for place, _ in moves_of(world.plan, world.storage)]

    def intrude(operation: str, location: str) -> None:
        if operation == "move_many" and places[1] not in world.present():
            world.storage.inner.create(places[1], b"somebody else's")

    world.storage.before = intrude
    with pytest.raises(SafetyError, match="1 path is in use again") as raised:
        world.restore()
    assert repr(places[1]) in raised.value.message
    assert world.storage.read(places[1]) == b"somebody else's"
    assert world.load().metadata == world.after.metadata


def test_a_store_that_fails_leaves_the_rest_to_another_try():
    world = World()

    class Failing(OneByOne):
        def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
            first, *rest = moves
            return [MoveOutcome(first[0], MoveStatus.FAILED, "the disk is tired"), *super().move_many(rest)]

    world.catalog.storage = Failing(world.storage.inner)
    with pytest.raises(
        UnavailableError, match=r"could not be moved back, .*: the disk is tired; no snapshot was restored"
    ):
        world.restore()
    assert world.load().metadata == world.after.metadata
    world.catalog.storage = world.storage
    world.restore()
    world.check_restored()


# Catalogs.


def test_a_catalog_that_takes_no_snapshots_back():
    world = World(restores_snapshots=False)
    swaps = len(world.catalog.swaps)
    result = world.restore()
    assert len(world.catalog.swaps) == swaps
    assert world.load().metadata == world.after.metadata
    assert world.table_files() == world.files
    assert world.own_files() == set()
    assert result.restored_snapshots_count == 0
    assert result.note == (
        "only files can come back: catalog 'local' refuses snapshots with old sequence numbers, so the 3 of this run stay expired"
    )


def test_started_plan_without_trash_is_not_restorable():
    world = World(trash=False)
    world.storage.delete_many([f"{LOCATION}/data/a"])
    with untouched(world), pytest.raises(SafetyError, match="1 file is neither in its trash nor in their places"):
        world.restore()


def test_orphans_come_back_without_a_commit():
    world = World()
    world.restore()
    world.storage.create(f"{LOCATION}/data/orphan", b"123")
    orphan = GarbageFile(FileKind.ORPHAN, f"{LOCATION}/data/orphan", 3)
    plan = written_plan(world.load(), [orphan], run="run-2", job="remove_orphan_files")
    in_trash(plan, world.storage)
    swaps = len(world.catalog.swaps)
    result = world.restore()
    assert (result.job, result.restored_files_count, result.note) == ("remove_orphan_files", 1, None)
    assert len(world.catalog.swaps) == swaps
    assert world.storage.read(f"{LOCATION}/data/orphan") == b"123"
    assert world.own_files() == set()


@pytest.mark.parametrize("lands", [True, False])
def test_unknown_outcome_removes_nothing_and_can_be_retried(lands: bool):
    world = World()
    world.catalog.follow(LANDS_BUT_IS_UNKNOWN if lands else IS_UNKNOWN)
    before = world.own_files()
    if lands:
        # The table's history shows that it landed.
        assert world.restore().status == "done"
    else:
        with pytest.raises(OutcomeUnknownError):
            world.restore()
        assert {name for name in before if "/files/" not in name and not name.endswith(DONE)} <= world.own_files()
        world.restore("run-1")
    world.check_restored()


def test_existing_tag_stops_the_restore_before_any_move():
    world = World()
    head = world.after.metadata.current_snapshot_id
    assert head is not None
    set_ref(world.load(), f"restored-{world.gone[1]}", head)

    with (
        untouched(world),
        pytest.raises(UsageError, match=f"tag 'restored-{world.gone[1]}' exists already, at snapshot {head}"),
    ):
        world.restore()


def test_missing_metadata_copy_stops_the_restore():
    world = World()
    world.storage.delete_many([f"{world.plan.directory}/before.json"])
    with untouched(world), pytest.raises(InvalidTableError, match=r"its copy of the table's metadata, .* is not there"):
        world.restore()


def test_what_others_restored_meanwhile_is_fine():
    world = World()

    def stand_still() -> None:
        world.catalog.runtime.pass_ms(LEASE_MS + 1)
        world.restore()

    world.catalog.follow(after(stand_still))
    result = world.restore()
    assert (result.status, result.restored_snapshots_count) == ("done", 0)
    world.check_restored()


# Crashes and races.


@pytest.mark.slow
@for_each("when", ["before", "after"])
@for_each("trash", [True, False])
def test_after_a_crash_at_any_call_another_restore_completes_it(when: str, trash: bool):
    deaths = Counter[str]()
    for number in count(1):
        world = World(trash=trash)
        calls = count(1)

        def die(operation: str, location: str, number: int = number, calls: Any = calls) -> None:
            if next(calls) == number:
                raise Crash

        setattr(world.storage, when, die)
        try:
            restore(world.load(), run="run-1")
            break
        except (Crash, OutcomeUnknownError) as death:
            deaths[type(death).__name__] += 1
        setattr(world.storage, when, lambda operation, location: None)
        world.catalog.runtime.pass_ms(LEASE_MS + 1)
        if world.storage.head(f"{world.plan.directory}/{HEAD}") is not None:
            world.restore("run-1")
        # What is left once the head is gone does not count; a later run sweeps it.
        world.storage.delete_many([f"{LOCATION}/{name}" for name in world.own_files()])
        world.check_restored()
    # In the commit too, of which nobody can tell then what came of it.
    assert deaths["Crash"] > 20
    assert deaths["OutcomeUnknownError"] > 0


def test_trash_being_emptied_is_not_restorable():
    world = World()
    world.storage.delete_many([f"{world.plan.directory}/{HEAD}"])
    with pytest.raises(NotFoundError, match="nothing to restore"):
        world.restore()
    with pytest.raises(NotFoundError, match="no run 'run-1'"):
        world.restore("run-1")


def test_trash_emptied_during_moves_stops_before_the_commit():
    world = World()
    moves = moves_of(world.plan, world.storage)
    half = [trash for _, trash in moves[len(moves) // 2 :]]

    def empty(operation: str, location: str) -> None:
        if operation == "move_many" and f"{world.plan.directory}/{HEAD}" in world.present():
            world.storage.inner.delete_many([f"{world.plan.directory}/{HEAD}", *half])

    world.storage.before = empty
    with pytest.raises(SafetyError, match=rf"{len(half)} files are gone, .* others have removed them; no snapshot was"):
        world.restore()
    assert world.load().metadata == world.after.metadata


def test_files_taken_away_again_are_fetched_once_more():
    world = World()
    moves = moves_of(world.plan, world.storage)
    world.catalog.follow(after(lambda: [world.storage.inner.move(place, trash) for place, trash in moves[:2]]))
    result = world.restore()
    world.check_restored()
    assert result.restored_files_count == len(moves) + 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnavailableError("the store is out of reach"), "the store is out of reach"),
        (RuntimeError("the JVM is gone"), "RuntimeError: the JVM is gone"),
    ],
    ids=["ours", "another's"],
)
def test_a_failure_after_the_commit_is_a_restore(error: Exception, said: str):
    world = World()

    def fail(operation: str, location: str) -> None:
        if operation == "read" and location.endswith(".jsonl"):
            raise error

    def spoil() -> None:
        world.storage.before = fail

    world.catalog.follow(after(spoil))
    result = world.restore()
    assert (result.status, result.restored_snapshots_count > 0) == ("partial", True)
    assert f"the snapshots are back, and it could not be seen whether all files are: {said}" in result.note
    world.storage.before = lambda *_: None
    assert world.restore(run=world.plan.run).status == "done"
    world.check_restored()


def test_files_deleted_while_the_snapshots_come_back():
    world = World(trash=False)
    place = f"{LOCATION}/data/a"
    world.catalog.follow(after(lambda: world.storage.inner.delete_many([place])))
    result = world.restore()
    assert result.status == "partial"
    assert result.note == f"1 file is gone, {place!r} among them: others have removed them"
    assert f"{world.plan.directory}/{HEAD}" in world.present()


def test_the_plan_of_a_run_that_may_be_at_work_stays():
    world = World()
    world.storage.delete_many([f"{world.plan.directory}/done.json"])
    new_lease(world.plan.directory, "expire_snapshots", world.storage, world.catalog.runtime)
    world.catalog.runtime.pass_ms(LEASE_MS + 1)
    result = world.restore()
    assert (
        result.note
        == "a call of run 'run-1' may still move files to the trash: tomorrow, run `icekeep restore --table local.db.events "
        "--run run-1` again"
    )
    assert f"{world.plan.directory}/{HEAD}" in world.present()
    # What it moves to the trash even now can come back.
    place, trash = moves_of(world.plan, world.storage)[0]
    world.storage.move(place, trash)
    again = world.restore("run-1")
    assert (again.restored_files_count, again.note) == (1, result.note)
    assert world.table_files() == world.files


def test_orphans_of_a_run_that_may_be_at_work():
    world = World()
    world.restore()
    world.storage.create(f"{LOCATION}/data/orphan", b"123")
    orphan = GarbageFile(FileKind.ORPHAN, f"{LOCATION}/data/orphan", 3)
    runtime = world.catalog.runtime
    plan = written_plan(world.load(), [orphan], run="run-2", job="remove_orphan_files", runtime=runtime)
    new_lease(plan.directory, "remove_orphan_files", world.storage, runtime)
    runtime.pass_ms(LEASE_MS + 1)
    note = world.restore().note
    assert note is not None
    assert note.endswith("tomorrow, run `icekeep restore --table local.db.events --run run-2` again")
    # The mark by which later runs see that there is nothing to be done.
    assert f"{plan.directory}/{DONE}" in world.present()
    assert world.storage.read(f"{LOCATION}/data/orphan") == b"123"


def test_progress_is_told():
    world = World()
    told: list[Any] = []

    class Listening:
        def on(self, event: Any) -> None:
            told.append(event)

    restore(world.load(), listener=Listening())
    assert [type(event).__name__ for event in told][:2] == ["StepStarted", "StepAdvanced"]
    assert sum(event.done for event in told if type(event).__name__ == "StepAdvanced") == world.plan.files_count


@pytest.mark.parametrize("trash", [True, False])
def test_a_dry_run_says_what_would_come_back_and_writes_nothing(trash: bool):
    world = World(trash=trash)
    files, swaps = contents(world.storage.inner, LOCATION), len(world.catalog.swaps)
    planned = plan_restore(world.load())
    assert (contents(world.storage.inner, LOCATION), len(world.catalog.swaps)) == (files, swaps)
    done = world.restore()
    assert planned == replace(done, status="planned")
    with pytest.raises(NotFoundError):
        plan_restore(world.load())


def test_restored_tags_last_as_long_as_keep_for():
    world = World()
    # The age of a tag is that of its snapshot, which is old where it had expired.
    world.catalog.runtime.pass_ms(30 * DAY_MS)
    restore(world.load(), keep_for="7d")
    metadata, now_ms = world.load().metadata, world.catalog.runtime.now_ms()
    assert select_expired(metadata, ALL_BUT_HEADS, now_ms + 7 * DAY_MS - 1).ref_names == frozenset()
    ended = select_expired(metadata, ALL_BUT_HEADS, now_ms + 7 * DAY_MS + 1)
    assert (ended.ref_names, ended.snapshot_ids) == ({f"restored-{i}" for i in world.gone}, {*world.gone})


@pytest.mark.parametrize(
    ("run", "keep_for", "said"),
    [(None, 0, "keep_for is 0; give a span above 0"), ("repair-1", "7d", "a repair brings none back")],
)
def test_a_time_to_keep_that_means_nothing_is_refused(run: str | None, keep_for: str | int, said: str):
    world = World()
    for function in (restore, plan_restore):
        with pytest.raises(UsageError, match=said):
            function(world.load(), run=run, keep_for=keep_for)


def rows_at(lake: Lake, snapshot_id: int) -> Counter[str]:
    return multiset(lake.foreign().scan(snapshot_id=snapshot_id).to_arrow())


def without_first_file(table: Table) -> Table:
    """A table whose oldest data file is deleted: only snapshots that expire lead to it."""
    paths = [f.location for f in files_of(table.metadata, table.storage).values() if f.kind.is_content]
    return commit(table, DeleteFiles(paths=frozenset({min(paths)}))).table


@pytest.mark.slow
@pytest.mark.parametrize("format_version", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sql", "hadoop"])
@pytest.mark.slow
def test_pyiceberg_reads_through_the_tags_what_it_read_before(tmp_path: Path, kind: str, format_version: int):
    lake = Lake(tmp_path, kind)
    table = without_first_file(lake.filled(4, 2, format_version=format_version))
    before = {s.snapshot_id: rows_at(lake, s.snapshot_id) for s in table.metadata.snapshots}
    _, plan = expired(table)
    assert len(plan.snapshot_ids) == 4
    result = restore(lake.load())
    assert (result.status, result.restored_snapshots_count) == ("done", 4)
    foreign = lake.foreign()
    assert {f"restored-{i}" for i in plan.snapshot_ids} | {"main"} == set(foreign.metadata.refs)
    for snapshot_id in plan.snapshot_ids:
        assert foreign.snapshot_by_name(f"restored-{snapshot_id}").snapshot_id == snapshot_id
    assert {i: rows_at(lake, i) for i in before} == before
    assert len({str(rows) for rows in before.values()}) > 3


@pytest.mark.slow
def test_schemas_and_specs_are_restored_with_their_snapshots(tmp_path: Path):
    lake = Lake(tmp_path)
    table = lake.filled(2, 1)
    table = commit(table, DeleteFiles(paths=frozenset(paths_of(table)))).table
    table = update_schema(update_spec(table, [RemovePartitionField("at_month")]), [DropColumn("amount")])
    table = append(table, [events(50).drop_columns(["amount"])])
    before = {s.snapshot_id: rows_at(lake, s.snapshot_id) for s in table.metadata.snapshots}
    metadata = table.metadata
    after, _ = expired(table, clean_expired_metadata=True)
    after, second = expired(after, clean_expired_metadata=True, run="run-2")
    assert second.snapshot_ids == ()
    assert len(after.metadata.partition_specs) < len(metadata.partition_specs)
    assert len(after.metadata.schemas) < len(metadata.schemas)
    assert restore(lake.load(), run="run-1").restored_snapshots_count == 3
    now = lake.load().metadata
    assert now.specs_by_id == metadata.specs_by_id
    assert set(now.schemas_by_id) == {s.schema_id for s in metadata.snapshots} | {metadata.current_schema_id}
    assert {i: rows_at(lake, i) for i in before} == before


def paths_of(table: Table) -> list[str]:
    return [f.location for f in files_of(table.metadata, table.storage).values() if f.kind.is_content]


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.slow
def test_a_move_that_was_cut_off_on_this_machine_is_finished(tmp_path: Path):
    lake = Lake(tmp_path)
    table = without_first_file(lake.filled(3, 2))
    before = {s.snapshot_id: rows_at(lake, s.snapshot_id) for s in table.metadata.snapshots}
    _, plan = expired(table)
    for place, trash in moves_of(plan, table.storage)[:3]:
        os.makedirs(os.path.dirname(urlparse(place).path), exist_ok=True)
        os.link(urlparse(trash).path, urlparse(place).path)
    assert restore(lake.load()).restored_files_count == plan.files_count
    assert {i: rows_at(lake, i) for i in before} == before
    assert not any(path.is_file() for path in (tmp_path / "warehouse").rglob("trash/**/*"))
