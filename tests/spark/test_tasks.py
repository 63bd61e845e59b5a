"""Spark's tasks and sessions: steps, executors, jobs side by side."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark import InheritableThread, TaskContext
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
from icekeep.errors import IcekeepError, InvalidTableError, JobFailedError, OptionError
from icekeep.events import SILENT, Event, StepAdvanced, StepFinished, StepStarted
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.rewrite import groups as module
from icekeep.maintenance.rewrite.groups import side_by_side
from icekeep.operations.doctor.driver import Notes
from icekeep.operations.doctor.examination import look_at_executors
from icekeep.planning.decoder import note_slow_read, slow_reads
from icekeep.planning.spark import jobs as watching
from icekeep.planning.spark import tasks as answers
from icekeep.planning.spark.executors import described_process, executor_answers, executor_processes
from icekeep.planning.spark.failures import failed_task
from icekeep.planning.spark.jobs import described, in_spark, spark_run
from icekeep.planning.spark.rows import collected, streamed
from icekeep.planning.spark.session import Engine, started
from icekeep.planning.spark.tasks import (
    attempt_id,
    dataframe_from_tasks,
    finished_tasks,
    run_exchange,
    run_over_partitions,
    run_tasks,
)
from icekeep.runtime import SYSTEM
from icekeep.storage.open import open_storage
from kit.cases import thinned
from kit.deletes import data_files, delete_equal, delete_positions
from kit.lake import Lake
from kit.runtime import FakeRuntime, no_spark
from kit.spark_jobs import count_at_rest, jobs_after, last_job, running_tasks_count

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def repeated(payload: int, shared: str) -> tuple[str, int]:
    context = TaskContext.get()
    assert context is not None
    return shared * payload, context.partitionId()


@pytest.mark.parametrize("max_bytes", [0, 1 << 20], ids=["broadcast", "in the closure"])
def test_each_payload_has_a_task_and_results_come_in_order(
    spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    monkeypatch.setattr(answers, "_MAX_CLOSURE_BYTES", max_bytes)
    results, errors = run_tasks(spark_session, range(7), repeated, "ab", step="repeating")
    assert (results, errors) == ([("ab" * n, n) for n in range(7)], [])


def test_no_payloads_start_no_job(spark_session: SparkSession) -> None:
    assert run_tasks(spark_session, [], repeated, "ab") == ([], [])


def failing(payload: str, _: None) -> Any:
    match payload:
        case "ours":
            raise OptionError("o", given=1, expected="2")
        case "any":
            return 1 // 0
        case "cannot travel":
            return (n for n in ())
    return payload


def test_what_fails_takes_no_result_along(spark_session: SparkSession) -> None:
    results, errors = run_tasks(spark_session, ["a", "ours", "any", "b", "cannot travel"], failing, None)
    assert results == ["a", "b"]
    assert [type(error) for error in errors] == [OptionError, JobFailedError, JobFailedError]
    assert errors[0].message == OptionError("o", given=1, expected="2").message
    assert errors[1].message.startswith("ZeroDivisionError: ")


def slow(payload: str, _: None) -> None:
    if payload:
        note_slow_read(payload, "a reason")


def test_what_tasks_read_in_the_slow_way_is_counted_here(spark_session: SparkSession) -> None:
    before = slow_reads().count
    run_tasks(spark_session, ["a", "", "b"], slow, None)
    assert slow_reads().count - before == 2


def described_as(_: int, __: None) -> tuple[str | None, int]:
    context = TaskContext.get()
    assert context is not None
    return context.getLocalProperty("spark.job.description"), attempt_id()


def test_sparks_pages_say_what_tasks_do_and_attempts_have_numbers_of_their_own(spark_session: SparkSession) -> None:
    context = spark_session.sparkContext
    context.setJobDescription("before")
    try:
        results, _ = run_tasks(spark_session, [1, 2], described_as, None, step="at work")
        assert [text for text, _ in results] == ["at work", "at work"]
        assert len({attempt for _, attempt in results}) == 2
        results, _ = run_tasks(spark_session, [1], described_as, None)
        assert [text for text, _ in results] == ["before"]
        assert context.getLocalProperty("spark.job.description") == "before"
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def arrows_threads(_: Any, __: None) -> tuple[int, int]:
    return pa.cpu_count(), pa.io_thread_count()


def arrows_threads_as_rows(_: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"n": [*arrows_threads(None, None)]}, schema=NUMBERS)


def test_a_task_uses_one_thread_of_arrow_and_this_process_keeps_its_own(spark_session: SparkSession) -> None:
    own = arrows_threads(None, None)
    assert run_tasks(spark_session, [1], arrows_threads, None) == ([(1, 1)], [])
    assert run_over_partitions(spark_session.range(0, 1, 1, 1), arrows_threads, None) == ([(1, 1)], [])
    rows = dataframe_from_tasks(spark_session, [1], arrows_threads_as_rows, NUMBERS)
    assert [row["n"] for row in collected(rows)] == [1, 1]
    assert run_tasks(None, [1], arrows_threads, None) == ([own], [])


@pytest.mark.parametrize("max_bytes", [0, 1 << 20], ids=["broadcast", "in the closure"])
def test_what_workers_cannot_import_travels_by_value(
    spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    class Local:
        def __radd__(self, other: str) -> str:
            return other + "!"

    monkeypatch.setattr(answers, "_MAX_CLOSURE_BYTES", max_bytes)
    assert run_tasks(spark_session, ["a", "b", "c"], added, Local()) == (["a!", "b!", "c!"], [])


def added(payload: str, shared: Any) -> Any:
    return payload + shared


def counted(payload: int) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    yield pa.RecordBatch.from_pydict({"n": [payload] * payload}, schema=NUMBERS)
    yield pa.RecordBatch.from_pydict({"n": [1000 + context.partitionId()]}, schema=NUMBERS)


def test_rows_of_each_payload_come_from_a_partition_of_its_own(spark_session: SparkSession) -> None:
    rows = dataframe_from_tasks(spark_session, [3, 1, 2, 0, 5], counted, NUMBERS)
    found = Counter(row["n"] for row in collected(rows))
    assert {n: count for n, count in found.items() if n < 1000} == {1: 1, 2: 2, 3: 3, 5: 5}
    assert [n for n in sorted(found.elements()) if n >= 1000] == [1000, 1001, 1002, 1003, 1004]
    assert collected(dataframe_from_tasks(spark_session, [], counted, NUMBERS)) == []


def total(batches: Iterable[pa.RecordBatch], most: int) -> int:
    numbers = [n for batch in batches for n in batch.column(0).to_pylist()]
    if sum(numbers) > most:
        raise InvalidTableError("too much", location="here")
    return sum(numbers)


def test_the_rows_of_each_partition_have_one_result_also_where_there_are_none(spark_session: SparkSession) -> None:
    rows = spark_session.range(0, 4, 1, 2).repartition(3, "id").select("id")
    results, errors = run_over_partitions(rows, total, 100, step="adding")
    assert (len(results), sum(results), errors) == (3, 6, [])
    results, [error] = run_over_partitions(spark_session.range(0, 4, 1, 2), total, 1)
    assert (results, type(error), error.facts) == ([1], InvalidTableError, {"location": "here"})


def broken(_: int) -> Iterator[pa.RecordBatch]:
    raise InvalidTableError("a damaged manifest", location="there")
    yield


def test_an_error_of_tasks_that_make_rows_is_raised_as_what_it_is(spark_session: SparkSession) -> None:
    rows = dataframe_from_tasks(spark_session, [1], broken, NUMBERS).repartition(2, "n")
    with pytest.raises(InvalidTableError, match="a damaged manifest"):
        run_over_partitions(rows, total, 1)


def dying(payload: int, _: None = None) -> Any:
    """As a worker does that is out of memory."""
    os._exit(7)


def faulty(_: int) -> Iterator[pa.RecordBatch]:
    raise ZeroDivisionError("nobody expected this")
    yield


def dying_later(payload: str, directory: str) -> str:
    while not payload and not Path(directory, "sign").exists():
        SYSTEM.sleep_ms(10)
    return payload or dying(0)


def test_a_worker_that_is_lost_takes_no_answers_along(spark_session: SparkSession, tmp_path: Path) -> None:
    """What was written by tasks that had ended is known, and can be removed."""
    found = []
    for number, answer in finished_tasks(spark_session, ["", "a", "b", "c"], dying_later, str(tmp_path)):
        found.append((number, answer))
        if len(found) == 3:
            (tmp_path / "sign").touch()
    number, error = found.pop()
    assert sorted(found) == [(1, "a"), (2, "b"), (3, "c")]
    assert number == -1
    assert isinstance(error, JobFailedError)
    assert failed_task(error) == 0


def waiting_for(payload: str, directory: str) -> str:
    while payload and not Path(directory, payload).exists():
        SYSTEM.sleep_ms(10)
    return payload or "nothing"


def test_answers_come_while_other_tasks_are_at_work(spark_session: SparkSession, tmp_path: Path) -> None:
    with closing(finished_tasks(spark_session, ["sign", ""], waiting_for, str(tmp_path))) as answers:
        assert next(answers) == (1, "nothing")
        (tmp_path / "sign").touch()
        assert next(answers) == (0, "sign")
        assert next(answers, None) is None


def test_a_caller_who_has_enough_ends_the_job(spark_session: SparkSession, tmp_path: Path) -> None:
    with closing(finished_tasks(spark_session, ["never", ""], waiting_for, str(tmp_path))) as answers:
        assert next(answers) == (1, "nothing")
    tracker = spark_session.sparkContext.statusTracker()
    for _ in range(100):
        if tracker.getActiveJobsIds():
            SYSTEM.sleep_ms(100)
    assert not tracker.getActiveJobsIds()


def sending(payload: int, shared: str) -> Iterator[tuple[int, Any]]:
    if payload < 0:
        raise OptionError("o", given=payload, expected="more")
    for number in range(payload):
        yield number % 3, f"{shared}{number}"


def receiving(number: int, sent: Iterable[tuple[int, Any]], shared: str) -> tuple[int, list[str]]:
    found = sorted(value for to, value in sent if to == number)
    if shared == "fail" and number == 1:
        raise OptionError("o", given=1, expected="2")
    return number, found


def test_values_reach_the_task_of_their_number(spark_session: SparkSession) -> None:
    results, errors = run_exchange(spark_session, [4, 2], sending, 4, receiving, "v")
    assert errors == []
    assert results == [(0, ["v0", "v0", "v3"]), (1, ["v1", "v1"]), (2, ["v2"]), (3, [])]


def test_an_error_of_one_that_receives_leaves_the_other_results(spark_session: SparkSession) -> None:
    results, [error] = run_exchange(spark_session, [4], sending, 3, receiving, "fail")
    assert [number for number, _ in results] == [0, 2]
    assert isinstance(error, OptionError)


def test_an_error_of_one_that_sends_leaves_no_result(spark_session: SparkSession) -> None:
    results, [error] = run_exchange(spark_session, [4, -1], sending, 3, receiving, "v")
    assert results == []
    assert isinstance(error, OptionError)


def test_a_worker_that_is_lost_fails_a_job_by_an_error_that_jobs_know(spark_session: SparkSession) -> None:
    """What has been committed before is told then, and what was written is removed."""
    results, [error] = run_tasks(spark_session, [1], dying, None)
    assert results == []
    assert isinstance(error, JobFailedError)
    assert error.message.startswith("Spark failed: ")
    rows = dataframe_from_tasks(spark_session, [1], faulty, NUMBERS)
    for bring in (collected, lambda some: list(streamed(some)), lambda some: run_over_partitions(some, total, 1)):
        with pytest.raises(JobFailedError, match=r"^ZeroDivisionError: nobody expected this$"):
            bring(rows)


def test_an_answer_that_spark_does_not_hand_on_is_an_error(
    spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark logs that it could not update an accumulator, and takes the task for done: what is missing would seem not to be."""
    add = answers.Arrivals.addInPlace
    monkeypatch.setattr(answers.Arrivals, "addInPlace", lambda self, a, b: a if b[0][0] == 1 else add(self, a, b))
    found = dict(finished_tasks(spark_session, ["a", "b", "c"], failing, None))
    error = found.pop(-1)
    assert found == {0: "a", 2: "c"}
    assert isinstance(error, JobFailedError)
    assert "2 answers of 3 tasks" in error.message
    assert run_tasks(spark_session, ["a", "b", "c"], failing, None) == (["a", "b", "c"], [])


def test_tasks_whose_thread_cannot_begin_are_an_error(
    spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread asks the JVM before its work begins, and that may be gone: nobody must wait for ever."""

    def gone(_: object) -> None:
        raise OSError("no JVM")

    monkeypatch.setattr(InheritableThread, "run", gone)
    [(number, error)] = finished_tasks(spark_session, ["a"], failing, None)
    assert (number, str(error)) == (-1, "Spark failed: no JVM")
    with pytest.raises(OSError, match="no JVM"):
        run_tasks(spark_session, ["a"], failing, None)


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
def test_every_spark_job_has_the_tag_of_its_run_and_says_what_it_is_for(lake: Lake, in_tasks: Engine, job: str) -> None:
    """Also that there are any: all that is checked of them is in `checked_run`, for every run of every test here."""
    table = with_deletes(lake)
    before = last_job()
    JOBS[job](table, in_tasks)
    jobs = jobs_after(before)
    assert jobs
    ours = frozenset.intersection(*(one.tags for one in jobs))
    assert min((tag for tag in ours if tag.startswith("icekeep-")), key=len)
    assert {one.description.split(": ")[0] for one in jobs} == {f"icekeep {job} {table.name}"}


def test_what_a_user_has_set_for_the_thread_stays_and_their_group_is_that_of_our_jobs(
    lake: Lake, in_tasks: Engine, spark_session: SparkSession
) -> None:
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


def test_an_error_of_a_sibling_stops_the_spark_jobs_of_the_others(spark_session: SparkSession, tmp_path: Path) -> None:
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


def test_a_snapshot_names_the_application_of_the_session_that_made_it(spark_session: SparkSession, lake: Lake) -> None:
    table = lake.filled(commits=2, files=1)
    compact(table, spark_session, options={"rewrite-all": "true"})
    made = lake.load().current_snapshot
    assert made is not None
    summary = made.summary or {}
    assert summary["app-id"] == spark_session.sparkContext.applicationId
    assert summary["icekeep.run-id"].startswith("compact-")


def test_a_thread_without_an_active_session_takes_the_one_that_runs_and_changes_nothing_of_it(
    spark_session: SparkSession,
) -> None:
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


def test_results_of_one_item_come_one_by_one_and_end_where_the_caller_stops(spark_session: SparkSession) -> None:
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


def test_groups_that_have_not_begun_never_begin_once_the_caller_stops(spark_session: SparkSession) -> None:
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
