"""A run says that it is alive, each job does, and who cleans up goes by it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import JobFailedError, OutcomeUnknownError, SafetyError, UnavailableError
from icekeep.events import SILENT, Warned
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.rewrite.alive import DEAD_AFTER_MS, LOOK_AFTER_MS, Beat, Heartbeat, living_runs, sweep_runs
from icekeep.maintenance.rewrite.run import TAG_PREFIX, RewriteRun
from icekeep.runtime import SYSTEM
from icekeep.storage.base import DeleteOutcome, DeleteStatus
from kit.changes import Recorder
from kit.deletes import data_files, delete_positions
from kit.lake import Lake
from kit.memory_catalog import MemoryCatalog
from kit.numbered_rows import gone, made
from kit.runtime import FakeRuntime, no_spark, with_runtime
from kit.storage import HookedStorage
from kit.tables import memory_table

HOUR_MS = 3_600_000
PLAN = ".icekeep/plans/run/group-0.zst"


@pytest.fixture
def table():
    return memory_table(MemoryCatalog())


def heartbeat_of(table, listener=SILENT, run_id="run"):
    return Heartbeat(table, run_id, "compact", table.catalog.runtime, listener)


def beats(table):
    location = table.metadata.location
    return sorted(
        file.location.removeprefix(f"{location}/") for file in table.storage.list(f"{location}/.icekeep/runs")
    )


def swept(table):
    return sweep_runs(table, table.catalog.runtime, keep="", listener=SILENT)


def living(table):
    return living_runs(table, table.catalog.runtime)


def test_beat_names_its_run_and_keeps_the_previous_one(table):
    heartbeat, runtime = heartbeat_of(table), table.catalog.runtime
    began_ms = runtime.now_ms()
    for _ in range(3):
        runtime.pass_ms(HOUR_MS)
        heartbeat.beat()
    assert beats(table) == [".icekeep/runs/run/alive-000002.json", ".icekeep/runs/run/alive-000003.json"]
    written = msgspec.json.decode(table.storage.read(f"{table.metadata.location}/{beats(table)[-1]}"), type=Beat)
    assert written == Beat(run="run", job="compact", began_ms=began_ms, beat_ms=began_ms + 3 * HOUR_MS)
    heartbeat.end()
    assert beats(table) == []


def test_beat_of_another_process_with_the_run_id_stays(table):
    """Of a run that was begun twice: the one that ends first does not take the other for dead."""
    other, heartbeat = heartbeat_of(table), heartbeat_of(table)
    other.beat()
    heartbeat.beat()
    heartbeat.end()
    assert beats(table) == [".icekeep/runs/run/alive-000001.json"]


def test_a_run_of_three_days_keeps_its_plan_and_is_known_to_live(table):
    table.storage.create(f"{table.metadata.location}/{PLAN}", b"plan")
    heartbeat = heartbeat_of(table)
    for _ in range(3 * 24):
        heartbeat.beat()
        table.catalog.runtime.pass_ms(HOUR_MS)
        assert (swept(table), living(table)) == (0, {"run"})
    assert table.storage.head(f"{table.metadata.location}/{PLAN}") is not None


def test_run_without_beats_is_dead_after_a_day(table):
    table.storage.create(f"{table.metadata.location}/{PLAN}", b"plan")
    heartbeat_of(table).beat()
    table.catalog.runtime.pass_ms(DEAD_AFTER_MS)
    assert (swept(table), living(table)) == (0, {"run"})
    table.catalog.runtime.pass_ms(1)
    assert living(table) == set()
    assert swept(table) == 2
    assert beats(table) == []


def test_leftovers_without_a_beat_go_by_file_age(table):
    """As a version that knew no beats left it."""
    table.storage.create(f"{table.metadata.location}/{PLAN}", b"plan")
    assert living(table) == set()
    table.catalog.runtime.pass_ms(DEAD_AFTER_MS + 1)
    assert swept(table) == 1


@pytest.mark.parametrize("skew_ms", [-40 * DEAD_AFTER_MS, 40 * DEAD_AFTER_MS])
def test_skewed_clock_does_not_change_who_is_alive(table, skew_ms):
    """The age of a beat is that of its file by the store's clock."""
    runtime = table.catalog.runtime
    heartbeat_of(table).beat()
    runtime.pass_ms(HOUR_MS)

    class Skewed:
        def __getattr__(self, name):
            return getattr(runtime, name)

        def now_ms(self):
            return runtime.now_ms() + skew_ms

    assert living_runs(table, Skewed()) == {"run"}
    # The run's own machine may be the one: what it writes has the store's time.
    Heartbeat(table, "skewed", "compact", Skewed(), SILENT).beat()
    assert living(table) == {"run", "skewed"}


def test_refused_beats_give_one_warning_and_no_error(table):
    def fail(operation, _):
        if operation == "create":
            raise UnavailableError("the store is away")

    heard = Recorder()
    heartbeat = heartbeat_of(replace(table, storage=HookedStorage(table.storage, fail)), heard)
    for _ in range(3):
        heartbeat.beat()
    [warning] = [event.message for event in heard.events if isinstance(event, Warned)]
    assert "run run of compact cannot say that it is alive: the store is away" in warning


def test_a_store_that_cannot_be_asked_makes_nobody_dead(table):
    def fail(operation, _):
        if operation == "list":
            raise UnavailableError("the store is away")

    heartbeat_of(table).beat()
    with pytest.raises(UnavailableError):
        living_runs(replace(table, storage=HookedStorage(table.storage, fail)), table.catalog.runtime)


def test_it_beats_by_itself_until_the_block_ends(table):
    third = threading.Event()

    def note(operation, location):
        if operation == "create" and location.endswith("alive-000003.json"):
            third.set()

    hooked = replace(table, storage=HookedStorage(table.storage, note))
    with Heartbeat(hooked, "run", "compact", table.catalog.runtime, SILENT, every_ms=1):
        assert beats(table)
        assert third.wait(60)
        assert living(table) == {"run"}
    assert beats(table) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat run"]


@pytest.mark.parametrize("error", [JobFailedError("no"), KeyboardInterrupt()])
def test_the_beats_go_whatever_comes_of_the_run(table, error):
    with pytest.raises(type(error)), Heartbeat(table, "run", "compact", table.catalog.runtime, SILENT):
        raise error
    assert beats(table) == []


def test_run_of_unknown_outcome_keeps_its_files_for_a_day(table):
    with pytest.raises(OutcomeUnknownError), Heartbeat(table, "run", "compact", table.catalog.runtime, SILENT):
        raise OutcomeUnknownError("no answer")
    assert living(table) == {"run"}
    table.catalog.runtime.pass_ms(DEAD_AFTER_MS + 1)
    assert living(table) == frozenset()
    assert swept(table) == 1


def test_beats_that_cannot_be_removed_age(table):
    class Denying(HookedStorage):
        def delete_many(self, locations):
            return [DeleteOutcome(location, DeleteStatus.FAILED, "denied") for location in locations]

    with Heartbeat(replace(table, storage=Denying(table.storage)), "run", "x", table.catalog.runtime, SILENT):
        pass
    assert living(table) == {"run"}
    table.catalog.runtime.pass_ms(DEAD_AFTER_MS + 1)
    assert swept(table) == 1


def test_new_files_of_an_old_run_are_looked_at(table):
    locations = [f"{table.metadata.location}/data/{name}" for name in "abcde"]
    table.storage.create(locations[0], b"x")
    heartbeat = heartbeat_of(table)
    table.catalog.runtime.pass_ms(LOOK_AFTER_MS - 1)
    heartbeat.check_there(locations)
    table.catalog.runtime.pass_ms(1)
    heartbeat.check_there(locations[:1])
    with pytest.raises(SafetyError, match=r"4 of 5 new files of 'db.events' are gone .*/b', .*/c', .*/d': .* 23 hours"):
        heartbeat.check_there(locations)


def small_files(lake: Lake) -> Table:
    return lake.filled(commits=6)


def with_position_deletes(lake: Lake) -> Table:
    table = made(lake)
    path = data_files(table)[0].file_path
    for position in range(5):
        table = delete_positions(table, [(path, position)])
    return table


def with_equality_deletes(lake: Lake) -> Table:
    return gone(made(lake), 1, 6)


@pytest.mark.parametrize(
    ("fill", "job", "is_pinned"),
    [
        (small_files, compact, True),
        (with_position_deletes, rewrite_position_deletes, True),
        (with_equality_deletes, convert_equality_deletes, True),
        (small_files, rewrite_manifests, False),
    ],
)
def test_job_is_alive_until_its_commit_and_names_its_files(
    fill: Callable[[Lake], Table], job: Callable[..., Any], is_pinned: bool, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = fill(lake)
    directory = Path(table.metadata.location.removeprefix("file://"))
    dead = directory / ".icekeep/runs/dead/moves-0"
    dead.parent.mkdir(parents=True)
    dead.write_bytes(b"left")
    before = lake.content_on_disk()
    send = RewriteRun.send
    alive: list[frozenset[str]] = []

    def checked(rewrite: RewriteRun, *arguments: Any) -> Any:
        base = rewrite.table
        [run] = living_runs(base, SYSTEM)
        new = lake.content_on_disk() - before
        assert new
        assert all(run in str(path) for path in new)
        # A sweep of another job, some days later by its own clock, which is wrong.
        days_later = FakeRuntime(now_ms=SYSTEM.now_ms() + 3 * DEAD_AFTER_MS)
        sweep_runs(base, days_later, keep="", listener=SILENT)
        assert living_runs(base, SYSTEM) == {run}
        tags = [name for name in base.catalog.load(base.identifier).metadata.refs if name.startswith(TAG_PREFIX)]
        assert [run in tag for tag in tags] == [True] * is_pinned
        alive.append(frozenset({run}))
        return send(rewrite, *arguments)

    monkeypatch.setattr(RewriteRun, "send", checked)
    result = job(with_runtime(table, SYSTEM), no_spark)
    assert len(alive) == 1
    assert result is not None
    assert living_runs(table, SYSTEM) == frozenset()
    refs = lake.catalog.load(table.identifier).metadata.refs
    assert not [name for name in refs if name.startswith(TAG_PREFIX)]
