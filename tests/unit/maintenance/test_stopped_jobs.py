"""A job that ends at any of its events, as in a run over many tables that is stopped: no row goes, and nothing is left behind."""

import threading

import pytest

from icekeep.events import SILENT, CommitRetried, StepAdvanced
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.operations.interrupts import Interrupted, JobInterrupts
from icekeep.spec.types import DAY_MS
from kit.deletes import data_files, delete_equal, delete_positions
from kit.job_world import World, reached_files
from kit.lake import events
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

IN_PARTS = {"partial-progress.enabled": "true", "partial-progress.max-commits": "2"}
ALL = {"rewrite-all": "true"}

JOBS = {
    "compact": lambda table, listener: compact(table, no_spark, listener=listener, options=ALL),
    "compact in parts": lambda table, listener: compact(table, no_spark, listener=listener, options=ALL | IN_PARTS),
    "position deletes": lambda table, listener: rewrite_position_deletes(
        table, no_spark, listener=listener, options=ALL
    ),
    "equality deletes": lambda table, listener: convert_equality_deletes(table, no_spark, listener=listener),
    "manifests": lambda table, listener: rewrite_manifests(table, no_spark, listener=listener),
    "expire": lambda table, listener: expire_snapshots(
        table, no_spark, listener=listener, older_than="0d", retain_last=1, trash=0
    ),
    "orphans": lambda table, listener: remove_orphan_files(table, no_spark, listener=listener, trash=0, force=True),
}
REWRITES = ["compact", "compact in parts", "position deletes", "equality deletes", "manifests"]


class StopAt:
    """Has the run stopped just before the event of a number, or of a kind, goes by; `seen` are all events."""

    def __init__(self, *, number: int | None = None, kind: type | None = None) -> None:
        self.seen: list[object] = []
        self.stop = threading.Event()
        self.interrupts = JobInterrupts(self.stop)
        self._number, self._kind = number, kind

    def on(self, event: object) -> None:
        self.seen.append(event)
        if len(self.seen) == self._number or (self._kind is not None and isinstance(event, self._kind)):
            self.stop.set()
        self.interrupts.listener(SILENT).on(event)


def filled(partition_by=(("at", "month"),)) -> World:
    world = World(2, [*partition_by], commit__manifest_merge__enabled="false")
    for month in (1, 2):
        for number in range(3):
            world.append(10 * month + number, month=month, rows=2)
    for file in data_files(world.table)[:4]:
        delete_positions(world.table, [(file.file_path, 0)])
    if not partition_by:
        delete_equal(world.table, events(1, 1).select(["id"]), ["id"])
    for _ in range(2):
        world.memory.create(f"{world.table.metadata.location}/data/orphan-{world.runtime.new_uuid()}.parquet", b"x")
    world.runtime.pass_ms(10 * DAY_MS)
    return world


@pytest.fixture(scope="module")
def worlds() -> dict[bool, World]:
    return {False: filled(), True: filled(())}


def left_behind(world: World, before: set[str]) -> set[str]:
    """New files that no snapshot leads to, but for plans of deletion, which the next run carries out."""
    table = world.table
    known = {*before, *reached_files(table), table.metadata_location}
    known.update(entry.metadata_file for entry in table.metadata.metadata_log)
    own = tuple(f"{table.metadata.location}/.icekeep/{name}/" for name in ("plans", "trash"))
    return {one for one in world.memory.files if one not in known and not one.startswith(own)}


def stopped(world: World, job: str, listener: StopAt) -> bool:
    """Whether the job was interrupted; nothing may be lost or left then."""
    rows, before = world.rows(), set(world.memory.files)
    try:
        with listener.interrupts.of_job():
            JOBS[job](world.table, listener)
    except Interrupted:
        pass
    tags = [name for name in world.table.metadata.refs if name.startswith("icekeep")]
    assert (left_behind(world, before), world.lost_files(), tags, world.rows()) == (set(), set(), [], rows)
    return listener.stop.is_set()


@pytest.mark.parametrize("job", JOBS)
def test_a_job_that_ends_at_any_of_its_events_leaves_nothing(worlds, job):
    world = worlds[job == "equality deletes"]
    all_events = StopAt()
    assert not stopped(world.copy(), job, all_events)
    kinds = {type(event).__name__ for event in all_events.seen}
    assert "StepStarted" in kinds or "SnapshotCommitted" in kinds
    for number in range(1, len(all_events.seen) + 1):
        assert stopped(world.copy(), job, StopAt(number=number))


class Failing:
    """A listener of which the cell of a notebook is gone."""

    def on(self, event: object) -> None:
        raise RuntimeError("the socket is closed")


@pytest.mark.parametrize("job", JOBS)
def test_a_listener_that_fails_at_every_event_ends_no_job(worlds, job, caplog):
    heard, unheard = (worlds[job == "equality deletes"].copy() for _ in range(2))
    told, done = (JOBS[job](world.table, listener) for world, listener in ((heard, SILENT), (unheard, Failing())))
    assert getattr(done, "status", "done") == getattr(told, "status", "done") == "done"
    assert len(unheard.memory.files) == len(heard.memory.files)
    assert caplog.text.count("a listener failed") == 1


@pytest.mark.parametrize("job", REWRITES)
def test_job_stopped_between_commit_attempts_leaves_nothing(worlds, job):
    world = worlds[job == "equality deletes"].copy()
    listener = StopAt(kind=CommitRetried)
    swaps = {"job": 0, "others": 0}

    def meanwhile(operation: str, location: str) -> None:
        if operation != "swap" or swaps["others"]:
            return
        swaps["job"] += 1
        # Also the first attempt to make the tag, which nobody is told of.
        if swaps["job"] % 2:
            swaps["others"] = 1
            world.append(90 + swaps["job"], rows=2)
            swaps["others"] = 0

    before = set(world.memory.files)
    world.storage.before = meanwhile
    with pytest.raises(Interrupted), listener.interrupts.of_job():
        JOBS[job](world.table, listener)
    world.storage.before = lambda operation, location: None
    assert isinstance(listener.seen[-1], CommitRetried)
    assert (left_behind(world, before), world.lost_files()) == (set(), set())


def test_stop_after_a_finished_group_leaves_no_files(worlds):
    world = worlds[False].copy()
    listener = StopAt(kind=StepAdvanced)
    before = set(world.memory.files)
    with pytest.raises(Interrupted), listener.interrupts.of_job():
        compact(world.table, no_spark, listener=listener, options=ALL | {"max-concurrent-file-group-rewrites": "1"})
    assert left_behind(world, before) == set()
