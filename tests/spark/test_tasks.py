"""Spark's tasks: answers, rows, exchanges. Workers import this module, so it imports nothing of `kit`."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import InheritableThread, TaskContext
from pyspark.sql import SparkSession

from icekeep.errors import InvalidTableError, JobFailedError, OptionError
from icekeep.planning.decoder import note_slow_read, slow_reads
from icekeep.planning.spark import tasks as answers
from icekeep.planning.spark.failures import failed_task
from icekeep.planning.spark.rows import collected, streamed
from icekeep.planning.spark.tasks import (
    attempt_id,
    dataframe_from_tasks,
    finished_tasks,
    run_exchange,
    run_over_partitions,
    run_tasks,
)
from icekeep.runtime import SYSTEM

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


def test_spark_ui_shows_the_step_and_attempts_are_numbered(spark_session: SparkSession) -> None:
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


def test_task_uses_one_arrow_thread(spark_session: SparkSession) -> None:
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


def test_each_partition_has_one_result_even_if_empty(spark_session: SparkSession) -> None:
    rows = spark_session.range(0, 4, 1, 2).repartition(3, "id").select("id")
    results, errors = run_over_partitions(rows, total, 100, step="adding")
    assert (len(results), sum(results), errors) == (3, 6, [])
    results, [error] = run_over_partitions(spark_session.range(0, 4, 1, 2), total, 1)
    assert (results, type(error), error.facts) == ([1], InvalidTableError, {"location": "here"})


def broken(_: int) -> Iterator[pa.RecordBatch]:
    raise InvalidTableError("a damaged manifest", location="there")
    yield


def test_error_in_row_producing_tasks_keeps_its_type(spark_session: SparkSession) -> None:
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


def test_lost_worker_is_a_job_failed_error(spark_session: SparkSession) -> None:
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
