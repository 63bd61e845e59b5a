import os
import tracemalloc

import pytest
from msgspec.structs import replace

from icekeep.errors import UnavailableError
from icekeep.events import SILENT, Warned
from icekeep.maintenance.rewrite.alive import DEAD_AFTER_MS, sweep_runs
from icekeep.runtime import SYSTEM
from icekeep.storage.base import FileInfo
from icekeep.storage.local.storage import LocalStorage
from icekeep.storage.objects.storage import ObjectStorage
from kit.changes import Recorder
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import memory_table

OWN = "the-run-that-asks"


class Aging:
    """A store that says of some files, once they are there, that they are older than they are."""

    def __init__(self, inner):
        self._inner = inner
        self.older_ms = {}

    def list(self, prefix_location):
        for file in self._inner.list(prefix_location):
            older_ms = next((ms for name, ms in self.older_ms.items() if file.location.endswith(name)), 0)
            yield replace(file, modified_ms=file.modified_ms - older_ms)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def lake(kind, tmp_path, store):
    if kind == "local":
        return LocalStorage(), f"file://{tmp_path}/events"
    if kind == "s3":
        return ObjectStorage(store.properties(), SYSTEM), f"s3://{store.new_bucket()}/events"
    return MemoryStorage(SYSTEM), "memory://lake/events"


@pytest.fixture(params=["memory", "local", "s3"])
def table(request, tmp_path, store):
    storage, location = lake(request.param, tmp_path, store)
    table = memory_table(MemoryCatalog())
    return replace(table, storage=Aging(storage), metadata=replace(table.metadata, location=location))


def leave(table, *names, older_ms=0):
    for name in names:
        table.storage.create(f"{table.metadata.location}/{name}", b"left")
        table.storage.older_ms[name] = older_ms


def left(table):
    location = table.metadata.location
    return {file.location.removeprefix(f"{location}/") for file in table.storage.list(location)}


OLD_MS = DEAD_AFTER_MS + 60_000
YOUNG_MS = DEAD_AFTER_MS - 60_000


def test_leftovers_go_a_day_after_run_wrote_last(table):
    leave(table, ".icekeep/runs/dead/moves-0", ".icekeep/runs/dead/a/b", ".icekeep/plans/dead/0.arrow", older_ms=OLD_MS)
    leave(table, ".icekeep/runs/alive/moves-0", ".icekeep/plans/other/0.arrow", older_ms=YOUNG_MS)
    assert sweep_runs(table, SYSTEM, keep=OWN, listener=SILENT) == 3
    assert left(table) == {".icekeep/runs/alive/moves-0", ".icekeep/plans/other/0.arrow"}


def test_a_run_that_still_writes_keeps_what_it_wrote_before(table):
    leave(table, ".icekeep/runs/long/moves-0", ".icekeep/plans/long/0.arrow", older_ms=OLD_MS)
    leave(table, ".icekeep/runs/long/moves-1")
    kept = left(table)
    assert sweep_runs(table, SYSTEM, keep=OWN, listener=SILENT) == 0
    assert left(table) == kept


def test_the_run_that_asks_keeps_its_own_and_other_jobs_theirs(table):
    others = (
        ".icekeep/plans/expire_snapshots-1.jsonl",
        ".icekeep/trash/drop-1/v1.metadata.json",
        "data/dead/x.parquet",
        "metadata/x.avro",
    )
    leave(table, f".icekeep/runs/{OWN}/moves-0", *others, older_ms=OLD_MS)
    leave(table, ".icekeep/runs/dead/moves-0", older_ms=OLD_MS)
    assert sweep_runs(table, SYSTEM, keep=OWN, listener=SILENT) == 1
    assert left(table) == {f".icekeep/runs/{OWN}/moves-0", *others}


@pytest.mark.parametrize("above", ["plans", "purges", "trash"])
def test_plan_with_head_waits_and_headless_plan_is_swept(table, above):
    waiting = (f".icekeep/{above}/waiting/plan.json", f".icekeep/{above}/waiting/files-0000.jsonl")
    leave(
        table, *waiting, f".icekeep/{above}/dead/files-0000.jsonl", f".icekeep/{above}/dead/claims/1", older_ms=OLD_MS
    )
    assert sweep_runs(table, SYSTEM, keep=OWN, listener=SILENT) == 2
    assert left(table) == {*waiting}


def test_what_a_run_has_moved_to_the_trash_stays(table):
    """A move keeps a file's time, so that the trash of a run at work looked as if it were left over."""
    heard = Recorder()
    moved, beside = ".icekeep/trash/at-work/files/data/a", ".icekeep/trash/at-work/files.jsonl"
    leave(table, moved, older_ms=9 * DEAD_AFTER_MS)
    leave(table, beside)
    assert sweep_runs(table, SYSTEM, keep=OWN, listener=SILENT) == 0
    table.storage.older_ms[beside] = DEAD_AFTER_MS + 60_000
    assert sweep_runs(table, SYSTEM, keep=OWN, listener=heard) == 1
    assert left(table) == {moved}
    assert heard.warnings == []
    assert sweep_runs(table, SYSTEM, keep=OWN, listener=heard) == 0
    assert left(table) == {moved}
    assert "1 file in the trash belongs to no plan" in heard.warnings[0]


@pytest.mark.parametrize("ahead_ms", [0, 40 * DEAD_AFTER_MS])
def test_a_clock_of_ours_that_is_ahead_makes_no_run_dead(table, ahead_ms):
    leave(table, ".icekeep/runs/alive/moves-0", older_ms=YOUNG_MS)
    ours = FakeRuntime(now_ms=SYSTEM.now_ms() + ahead_ms)
    assert sweep_runs(table, ours, keep=OWN, listener=SILENT) == 0
    assert left(table) == {".icekeep/runs/alive/moves-0"}


def test_a_clock_of_ours_that_is_behind_makes_no_run_dead(table):
    leave(table, ".icekeep/runs/dead/moves-0", older_ms=OLD_MS)
    ours = FakeRuntime(now_ms=SYSTEM.now_ms() - DEAD_AFTER_MS)
    assert sweep_runs(table, ours, keep=OWN, listener=SILENT) == 0
    assert left(table) == {".icekeep/runs/dead/moves-0"}


def test_a_table_without_runs_is_listed_and_nothing_is_written(table):
    hooked = HookedStorage(table.storage)
    assert sweep_runs(replace(table, storage=hooked), SYSTEM, keep=OWN, listener=SILENT) == 0
    assert hooked.fired == {"child_names": 4, "delete_many": 1}


def test_of_a_waiting_plan_only_the_head_is_read(table):
    """Every file of the trash was listed, and held, in each job that swept."""
    moved = [f".icekeep/trash/waiting/files/data/{n}" for n in range(50)]
    leave(table, ".icekeep/trash/waiting/plan.json", *moved, older_ms=OLD_MS)
    leave(table, ".icekeep/plans/dead/files-0000.jsonl", older_ms=OLD_MS)
    hooked, listed = HookedStorage(table.storage), []
    hooked.before = lambda operation, location: listed.append(location) if operation == "list" else None
    assert sweep_runs(replace(table, storage=hooked), SYSTEM, keep=OWN, listener=SILENT) == 1
    directory = f"{table.metadata.location}/.icekeep/plans/dead"
    assert [location for location in listed if "/.icekeep/" in location] == [directory]
    assert len(left(table)) == 51


def test_a_plan_whose_head_comes_while_files_are_listed(table):
    leave(table, ".icekeep/plans/late/files-0000.jsonl", older_ms=OLD_MS)

    def write_head(operation, location):
        if operation == "list" and location.endswith("/late"):
            leave(table, ".icekeep/plans/late/plan.json", older_ms=OLD_MS)

    hooked = HookedStorage(table.storage, write_head)
    assert sweep_runs(replace(table, storage=hooked), SYSTEM, keep=OWN, listener=SILENT) == 0
    assert len(left(table)) == 2


def test_unplanned_trash_is_counted_in_bounded_memory():
    runtime = FakeRuntime(now_ms=9 * DEAD_AFTER_MS)
    table = memory_table(MemoryCatalog())
    directory = f"{table.metadata.location}/.icekeep/trash/lost"

    class Full(MemoryStorage):
        def child_names(self, location):
            return ["lost"] if location.endswith("/trash") else []

        def list(self, prefix_location):
            assert prefix_location == directory
            yield from (FileInfo(f"{directory}/files/data/{n:09d}", 1, 0) for n in range(50_000))
            # What was made in this file and is there still: other threads of the process make things as well.
            made_here = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__)])
            held_bytes.append(sum(statistic.size for statistic in made_here.statistics("filename")))

    heard, held_bytes = Recorder(), list[int]()
    tracemalloc.start()
    try:
        assert sweep_runs(replace(table, storage=Full(runtime)), runtime, keep=OWN, listener=heard) == 0
        assert max(held_bytes) < 1_000_000
    finally:
        tracemalloc.stop()
    assert f"50,000 files in the trash belong to no plan, '{directory}/files/data/000000000' among" in heard.warnings[0]


def failing(operation):
    def fail(called, location):
        if called == operation:
            raise UnavailableError(f"no {operation} today")

    return fail


@pytest.mark.parametrize("operation", ["child_names", "list", "create", "head"])
def test_a_store_that_refuses_is_told_of_and_ends_no_run(tmp_path, operation):
    storage, location = LocalStorage(), f"file://{tmp_path}/events"
    table = memory_table(MemoryCatalog())
    table = replace(table, storage=storage, metadata=replace(table.metadata, location=location))
    storage.create(f"{location}/.icekeep/runs/dead/x", b"left")
    os.utime(tmp_path / "events/.icekeep/runs/dead/x", (0, 0))
    heard = Recorder()
    refusing = replace(table, storage=HookedStorage(storage, failing(operation)))
    assert sweep_runs(refusing, SYSTEM, keep=OWN, listener=heard) == 0
    assert [type(event) for event in heard.events] == [Warned]
    assert f"no {operation} today" in heard.events[0].message
    assert (tmp_path / "events/.icekeep/runs/dead/x").exists()
    assert sweep_runs(table, SYSTEM, keep=OWN, listener=SILENT) == 1


def test_a_file_that_cannot_be_deleted_is_told_of(tmp_path):
    storage, location = MemoryStorage(FakeRuntime(now_ms=0)), "memory://lake/events"
    table = memory_table(MemoryCatalog())
    storage.create(f"{location}/.icekeep/runs/dead/x", b"left")
    storage.create(f"{location}/.icekeep/runs/dead/y", b"left")

    class Denying(HookedStorage):
        def delete_many(self, locations):
            return [
                replace(outcome, status=type(outcome.status).FAILED, reason="denied")
                if "/x" in outcome.location
                else outcome
                for outcome in super().delete_many(locations)
            ]

    storage.runtime = SYSTEM
    denying = replace(table, storage=Denying(storage), metadata=replace(table.metadata, location=location))
    heard = Recorder()
    assert sweep_runs(denying, SYSTEM, keep=OWN, listener=heard) == 1
    assert [event.message for event in heard.events] == [
        f"could not delete '{location}/.icekeep/runs/dead/x', left by a run that died: denied"
    ]
