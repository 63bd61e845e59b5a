"""Jobs in Spark's sessions: steps, executors, jobs side by side."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import icekeep
from icekeep import (
    compact,
    drop_table,
    expire_snapshots,
    plan_compact,
    plan_scan,
    remove_orphan_files,
    rewrite_manifests,
    rewrite_position_deletes,
    scan,
)
from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError
from icekeep.events import SILENT, Event, StepAdvanced, StepFinished, StepStarted
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.rewrite import groups as module
from icekeep.maintenance.rewrite.groups import side_by_side
from icekeep.operations.doctor.driver import Notes
from icekeep.operations.doctor.examination import look_at_executors
from icekeep.planning.spark import jobs as watching
from icekeep.planning.spark.executors import described_process, executor_answers, executor_processes
from icekeep.planning.spark.jobs import described, in_spark, spark_run
from icekeep.planning.spark.session import Engine, started
from icekeep.planning.spark.tasks import (
    finished_tasks,
    run_tasks,
)
from icekeep.runtime import SYSTEM
from icekeep.storage.open import open_storage
from kit.cases import thinned
from kit.deletes import data_files, delete_equal, delete_positions
from kit.lake import Lake
from kit.runtime import FakeRuntime, no_spark
from kit.spark_jobs import count_at_rest, jobs_after, last_job, running_tasks_count

JOBS: dict[str, Callable[[Table, Engine], Any]] = {
    "compact": lambda table, spark: compact(table, spark, options={"rewrite-all": True}),
    "rewrite_position_deletes": lambda table, spark: rewrite_position_deletes(
        table, spark, options={"rewrite-all": True}
    ),
    "convert_equality_deletes": convert_equality_deletes,
    "rewrite_manifests": rewrite_manifests,
    "expire_snapshots": lambda table, spark: expire_snapshots(
        table, spark, older_than=SYSTEM.now_ms() + 1, retain_last=1, trash=0
    ),
    "remove_orphan_files": remove_orphan_files,
    "drop": lambda table, spark: drop_table(table, spark, purge=True),
    "plan_scan": plan_scan,
    "scan": scan,
}


def with_deletes(lake: Lake) -> Table:
    """A table in which there is something to do for every job."""
    table = lake.filled(commits=3, files=2)
    for file in data_files(table)[:4]:
        table = delete_positions(table, [(file.file_path, 0)])
    table = delete_equal(table, pa.table({"id": [2]}), ["id"], like=data_files(table)[0])
    compact(table, no_spark, where="at < '2013-02-01T00:00:00Z'", options={"rewrite-all": True})
    return lake.load()


@pytest.mark.parametrize("job", thinned(JOBS, 4))
def test_spark_jobs_have_the_run_tag_and_a_description(lake: Lake, in_tasks: Engine, job: str) -> None:
    """Also that there are any: all that is checked of them is in `checked_run`, for every run of every test here."""
    table = with_deletes(lake)
    before = last_job()
    JOBS[job](table, in_tasks)
    jobs = jobs_after(before)
    assert jobs
    ours = frozenset.intersection(*(one.tags for one in jobs))
    assert min((tag for tag in ours if tag.startswith("icekeep-")), key=len)
    assert {one.description.split(": ")[0] for one in jobs} == {f"icekeep {job} {table.name}"}


def test_job_group_and_tags_of_the_caller_are_kept(lake: Lake, in_tasks: Engine, spark_session: SparkSession) -> None:
    context = spark_session.sparkContext
    table = lake.filled(2, 1)
    context.setJobGroup("theirs", "what they do")
    context.addJobTag("their-tag")
    before = last_job()
    try:
        plan_scan(table, in_tasks)
        assert context.getLocalProperty("spark.jobGroup.id") == "theirs"
        assert context.getLocalProperty("spark.job.description") == "what they do"
        assert {*context.getJobTags()} == {"their-tag"}
    finally:
        context.clearJobTags()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
    jobs = jobs_after(before)
    assert {one.group for one in jobs} == {"theirs"}
    assert all("their-tag" in one.tags and one.description.startswith("icekeep plan_scan ") for one in jobs)


def test_steps_stand_behind_each_other(spark_session: SparkSession) -> None:
    before = last_job()
    with spark_run("compact", "db.t", SILENT), described("rewriting group 1 of 2"), spark_run("other", "x", SILENT):
        run_tasks(spark_session, [1], sleeping(), 0, step="sampling")
        in_spark(spark_session, spark_session.range(1).count)
    in_spark(spark_session, spark_session.range(1).count)
    found = [one.description for one in sorted(jobs_after(before), key=lambda one: one.number)]
    assert found[0] == "icekeep compact db.t: rewriting group 1 of 2: sampling"
    assert found[1] == "icekeep compact db.t: rewriting group 1 of 2"
    assert found[-1] == ""


def sleeping() -> Callable[[Any, float], None]:
    """Work for tasks, made in a function so that it travels by value: workers cannot import what this module imports."""

    def slept(_: Any, seconds: float) -> None:
        SYSTEM.sleep_ms(round(1000 * seconds))

    return slept


def awaiting() -> Callable[[str, Path], None]:
    """Work that ends when a file of a name is there; without a name at once."""

    def awaited(name: str, directory: Path) -> None:
        while name and not (directory / name).exists():
            SYSTEM.sleep_ms(10)

    return awaited


def touching() -> Callable[[Path, int], None]:
    """As a task does that deletes file after file."""

    def touched(directory: Path, until: int) -> None:
        for number in range(until):
            (directory / f"{number}").touch()
            SYSTEM.sleep_ms(50)

    return touched


def count(directory: Path) -> int:
    return len([*directory.iterdir()])


def wait_for_files(directory: Path) -> None:
    for _ in range(2_000):
        if count(directory):
            return
        SYSTEM.sleep_ms(50)
    raise AssertionError("no task has begun")


def assert_stopped(directory: Path, spark: SparkSession, until: int) -> None:
    """No Spark job is active, and nothing goes on."""
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert 0 < count_at_rest(spark, lambda: count(directory)) < until


def test_error_stops_spark_jobs_of_sibling_threads(spark_session: SparkSession, tmp_path: Path) -> None:
    def work(number: int) -> int:
        if number:
            run_tasks(spark_session, [tmp_path], touching(), 2_000, step="touching")
            return number
        wait_for_files(tmp_path)
        raise ZeroDivisionError

    undone: list[int] = []
    groups = side_by_side([0, 1], work, spark_session, tag="t", concurrency=2, stop=lambda: None, undo=undone.append)
    with pytest.raises(ZeroDivisionError), spark_run("compact", "db.t", SILENT), closing(groups) as done:
        next(done)
    assert undone == []
    assert_stopped(tmp_path, spark_session, 2_000)


def test_what_ends_a_run_stops_what_other_threads_of_it_do(spark_session: SparkSession, tmp_path: Path) -> None:
    failed: list[IcekeepError] = []

    def work() -> None:
        failed.extend(run_tasks(spark_session, [tmp_path], touching(), 2_000)[1])

    def interrupted() -> None:
        with spark_run("compact", "db.t", SILENT):
            thread = threading.Thread(target=copy_context().run, args=(work,))
            thread.start()
            threads.append(thread)
            wait_for_files(tmp_path)
            raise KeyboardInterrupt

    threads: list[threading.Thread] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    threads[0].join(30)
    assert [type(error).__name__ for error in failed] == ["JobFailedError"]
    assert_stopped(tmp_path, spark_session, 2_000)


def one_goes_on() -> Callable[[int, Path], None]:
    """Task 0 touches files; the other one ends when it has begun to."""
    touched, awaited = touching(), awaiting()

    def work(number: int, directory: Path) -> None:
        if number:
            awaited("0", directory)
        else:
            touched(directory, 2_000)

    return work


def test_who_stops_early_goes_on_when_the_tasks_have_ended(spark_session: SparkSession, tmp_path: Path) -> None:
    """Spark takes a job for ended that is cancelled while its tasks go on: what they wrote then nobody would look for."""
    with (
        spark_run("compact", "db.t", SILENT),
        closing(finished_tasks(spark_session, [0, 1], one_goes_on(), tmp_path)) as answers,
    ):
        next(answers)
    assert running_tasks_count(spark_session) == 0
    assert_stopped(tmp_path, spark_session, 2_000)


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)


class Letting(Told):
    """Lets two more tasks end each time that it is told of some."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def on(self, event: Event) -> None:
        super().on(event)
        told_count = sum(isinstance(one, StepAdvanced) for one in self.events)
        (self._directory / f"told {told_count}").touch()


def test_tasks_that_are_done_are_told_while_a_step_runs(
    spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watching, "FIRST_MS", 0)
    monkeypatch.setattr(watching, "EVERY_SECONDS", 0.05)
    told = Letting(tmp_path)
    with spark_run("compact", "db.t", told):
        names = ["", "", "told 1", "told 1", "told 2", "told 2"]
        run_tasks(spark_session, names, awaiting(), tmp_path, step="waiting")
        run_tasks(spark_session, range(1), sleeping(), 0.4, step="alone")
    assert told.events[0] == StepStarted("waiting", 6, "tasks")
    assert told.events[-1] == StepFinished("waiting")
    advanced = told.events[1:-1]
    assert all(isinstance(event, StepAdvanced) and event.total == 6 for event in advanced)
    assert len(advanced) >= 2
    assert 2 <= sum(event.done for event in advanced if isinstance(event, StepAdvanced)) <= 6
    assert not [thread for thread in threading.enumerate() if thread.name == "spark progress" and lives_on(thread)]


def lives_on(thread: threading.Thread) -> bool:
    thread.join(2)
    return thread.is_alive()


def test_the_session_that_runs_is_taken_where_none_is_given(spark_session: SparkSession, lake: Lake) -> None:
    assert started(None) is SparkSession.getActiveSession()
    table = lake.filled(commits=3, files=1)
    rows_count = scan(table).count()
    assert plan_compact(table, options={"rewrite-all": "true"}).rewritten_data_files_count == 3
    assert compact(table, options={"rewrite-all": "true"}).rewritten_data_files_count == 3
    table = table.refresh()
    assert plan_scan(table).data_files_count > 0
    assert scan(table).count() == rows_count > 0


def test_snapshot_summary_has_the_spark_application_id(spark_session: SparkSession, lake: Lake) -> None:
    table = lake.filled(commits=2, files=1)
    compact(table, spark_session, options={"rewrite-all": "true"})
    made = lake.load().current_snapshot
    assert made is not None
    summary = made.summary or {}
    assert summary["app-id"] == spark_session.sparkContext.applicationId
    assert summary["icekeep.run-id"].startswith("compact-")


def test_thread_without_active_session_takes_the_running_one(spark_session: SparkSession) -> None:
    """Spark's active session is one of a thread; an application that compacts in a pool has its own settings."""
    time_zone = spark_session.conf.get("spark.sql.session.timeZone")
    assert time_zone
    spark_session.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(started, None).result()
        assert taken is spark_session
        assert spark_session.conf.get("spark.sql.session.timeZone") == "America/New_York"
    finally:
        spark_session.conf.set("spark.sql.session.timeZone", time_zone)


PACKAGES = ["icekeep", "pyarrow", "there-is-no-such-package"]


def unwell(notes: Notes) -> list[tuple[str, str]]:
    return [(one.check, one.status) for one in notes.result(0).findings if one.status != "ok" and one.check != "memory"]


def test_executors_say_what_they_have_like_this_process(spark_session: SparkSession) -> None:
    (found,) = executor_processes(spark_session, PACKAGES, "asking")
    ours = described_process(PACKAGES)
    assert {**found, "above": 0} == {**ours, "above": 0}


def test_executors_tell_their_clocks_and_what_they_do_not_reach(spark_session: SparkSession, tmp_path: Path) -> None:
    storage = open_storage({})
    places = [(storage, tmp_path.as_uri()), (storage, "nowhere://x/y")]
    began_ms = SYSTEM.now_ms()
    seen = executor_answers(spark_session, places, "asking")
    assert all(began_ms <= one.now_ms <= SYSTEM.now_ms() for one in seen)
    assert {one.problems[0] for one in seen} == {""}
    assert all("nowhere" in one.problems[1] for one in seen)
    assert all(one.memory_bytes > 0 for one in seen)


def test_a_session_that_is_given_is_looked_at(spark_session: SparkSession, lake: Lake) -> None:
    result = icekeep.doctor(lake.catalog, spark_session, namespace="db")
    found = {(one.about, one.check): one for one in result.findings}
    assert {one.status for one in result.findings if one.check != "memory"} == {"ok"}
    assert "master local[2], 2 tasks at once" in found["executors", "session"].message
    assert found["executors", "packages"].status == "ok"
    assert found[f"store {lake.catalog.warehouse}", "reached by executors"].status == "ok"
    assert ("executors", "memory") in found


def test_clocks_that_differ_are_told(spark_session: SparkSession) -> None:
    notes = Notes()
    look_at_executors(notes, spark_session, ["pyarrow"], [], FakeRuntime(now_ms=0))
    assert unwell(notes) == [("clock", "wrong")]


def beside(
    groups: list[int],
    work: Callable[[int], int],
    spark: SparkSession,
    undo: Callable[[int], object],
    *,
    concurrency: int,
    stop: Callable[[], object] = lambda: None,
) -> Generator[int, None, None]:
    def one(group: int) -> Generator[int, None, None]:
        yield work(group)

    return side_by_side(groups, one, spark, tag="tagged", concurrency=concurrency, stop=stop, undo=undo)


def test_each_group_comes_back_once(spark_session: SparkSession) -> None:
    undone: list[int] = []
    done = beside([1, 2, 3], lambda n: 10 * n, spark_session, undone.append, concurrency=2)
    assert sorted(done) == [10, 20, 30]
    assert undone == []


def test_what_was_done_and_not_seen_is_undone(spark_session: SparkSession) -> None:
    """Also a group that was finished at the same moment as the one that was seen last."""
    undone: list[int] = []
    all_done = threading.Barrier(3)

    def work(number: int) -> int:
        all_done.wait()
        return number

    with closing(beside([1, 2, 3], work, spark_session, undone.append, concurrency=3)) as done:
        seen = next(done)
    assert sorted([seen, *undone]) == [1, 2, 3]


def test_results_stream_until_the_caller_stops(spark_session: SparkSession) -> None:
    undone: list[int] = []
    may_go_on = threading.Event()
    ended = []

    def work(first: int) -> Generator[int, None, None]:
        try:
            for number in range(first, first + 100):
                yield number
                may_go_on.wait()
        finally:
            ended.append(first)

    def stop() -> None:
        may_go_on.set()

    items = side_by_side([0, 100], work, spark_session, tag="tagged", concurrency=2, stop=stop, undo=undone.append)
    with closing(items) as done:
        seen = next(done)
    assert sorted(ended) == [0, 100]
    assert len(undone) < 5
    assert {seen % 100, *(one % 100 for one in undone)} <= {0, 1, 2}


def test_an_error_that_is_no_result_is_raised(spark_session: SparkSession) -> None:
    undone: list[int] = []
    with pytest.raises(ZeroDivisionError):
        list(beside([1, 0], lambda n: 1 // n, spark_session, undone.append, concurrency=1))


def test_groups_not_started_never_start_after_a_stop(spark_session: SparkSession) -> None:
    begun, may_end = [], threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number > 1:
            may_end.wait()
        return number

    def stop(_: str) -> None:
        may_end.set()

    undone: list[int] = []
    stops = mock.Mock()
    with (
        mock.patch.object(type(spark_session.sparkContext), "cancelJobsWithTag", lambda self, tag: stop(tag)),
        closing(beside([1, 2, 3, 4], work, spark_session, undone.append, concurrency=1, stop=stops)) as done,
    ):
        assert next(done) == 1
    stops.assert_called_once_with()
    assert begun in ([1], [1, 2])
    assert undone == begun[1:]


def test_a_thread_that_cannot_begin_its_work_ends_the_run(
    spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the JVM first, which may be gone: the run must not wait for ever, with a heart that beats."""

    def cannot_begin(*_: object) -> Callable[[int], None]:
        def begin(_: int) -> None:
            raise OSError("no JVM")

        return begin

    monkeypatch.setattr(module, "inherited", cannot_begin)
    with pytest.raises(OSError, match="no JVM"):
        list(beside([1, 2], lambda n: n, spark_session, list[int]().append, concurrency=1))
