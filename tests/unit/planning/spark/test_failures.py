"""What is said of a failed task: one line, with the file and what to do."""

import msgspec
import pytest

from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.planning.spark.failures import known_error, spark_failed
from icekeep.planning.spark.tasks import run_tasks
from icekeep.storage.open import forget_reads, note_read, open_storage
from kit.cases import for_each

OVERHEAD = "spark.executor.memoryOverhead"


class Piece(msgspec.Struct):
    location: str


class Work(msgspec.Struct):
    pieces: tuple[Piece, ...]
    others: tuple[object, ...] = ()


@pytest.fixture(autouse=True)
def _nothing_read():
    forget_reads()


@for_each(
    ("payload", "place"),
    [
        (Work((Piece("s3://b/1"), Piece("s3://b/2"), Piece("s3://b/1"))), ", the task was at 's3://b/1' and 1 more"),
        ([{"file_path": "f", "record_count": 1}], ", the task was at 'f'"),
        (("text", 1, None), ""),
        (None, ""),
        (Work(()), ""),
    ],
)
def test_the_files_that_a_task_was_given_are_named(payload, place):
    found = known_error(OSError(28, "No space left\non device"), payload)
    assert found.message == f"OSError: [Errno 28] No space left on device{place}"


def test_the_file_that_was_read_last_is_named_before_those_that_were_given():
    note_read("s3://b/2")
    work = Work((Piece("s3://b/1"),))
    assert (
        known_error(ValueError("odd"), work).message
        == "ValueError: odd, the last file that the task read is 's3://b/2'"
    )
    assert known_error(ValueError("odd: s3://b/2"), work).message == "ValueError: odd: s3://b/2"
    ours = InvalidTableError("a bad file")
    assert known_error(ours, work) is ours


def test_a_task_that_is_out_of_memory_says_what_to_set():
    message = known_error(MemoryError(), Work((Piece("s3://b/1"),))).message
    assert message.startswith("MemoryError, the task was at 's3://b/1'; give executors more")
    assert OVERHEAD in message


def out_of_memory(payload, shared):
    raise MemoryError


def test_a_thread_that_is_out_of_memory_says_nothing_of_executors():
    _, [error] = run_tasks(None, [Work((Piece("s3://b/1"),))], out_of_memory, None)
    assert error.message == (
        "MemoryError, the task was at 's3://b/1'; give this machine, or its container, more memory"
    )


def read_and_fail(location, storage):
    try:
        storage.open(location)
    except MissingFileError as error:
        raise RuntimeError("odd") from error


def test_each_task_of_a_thread_begins_anew(tmp_path):
    storage = open_storage({})
    location = (tmp_path / "f").as_uri()
    _, [error] = run_tasks(None, [location], read_and_fail, storage)
    assert error.message == f"RuntimeError: odd, the last file that the task read is {location!r}"
    _, [error] = run_tasks(None, [1], lambda *_: {}["odd"], None)
    assert error.message == "KeyError: 'odd'"


FAILED = (
    "Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, most recent failure: Lost task 1.3 in stage 3.0 "
    "(TID 9) (h executor 4): "
)
LOST = (
    f"{FAILED}ExecutorLostFailure (executor 4 exited caused by one of the running tasks) Reason: Container from a bad node: "
    "container_1 on host: x. Exit status: 137.\nDriver stacktrace:"
)
CRASHED = (
    f"{FAILED}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat x.y(z.scala:1)\n"
    "Caused by: java.io.EOFException\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            LOST,
            "an executor was lost (executor 4 exited caused by one of the running tasks: Container from a bad node: ",
        ),
        (CRASHED, "a Python worker was killed, the task was at 'b'; "),
    ],
)
def test_the_death_of_a_worker_is_told_with_its_files_and_what_to_set(text, said):
    message = spark_failed(RuntimeError(text), [Piece("a"), Piece("b")]).message
    assert message.startswith(f"Spark failed: {said}")
    assert "the task was at 'b'" in message
    assert OVERHEAD in message
    assert "\n" not in message
    assert "the task was at" not in spark_failed(RuntimeError(text)).message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Job aborted\nTraceback\n  ZeroDivisionError: nobody expected this\n\tat Java",
            "ZeroDivisionError: nobody expected this",
        ),
        ("\nthe stage is gone\nmore", "the stage is gone"),
        ("", "RuntimeError('')"),
    ],
)
def test_of_what_spark_says_the_line_that_says_most_is_told(text, told):
    assert spark_failed(RuntimeError(text)).message == f"Spark failed: {told}"


ALL = "give spark-submit --archives icekeep-env.tar.gz#env --conf spark.pyspark.python=./env/bin/python"


@for_each(
    ("text", "told"),
    [
        (
            "Job aborted\nModuleNotFoundError: No module named 'icekeep'\n",
            f"the executors' Python has no package 'icekeep'; {ALL}, or --py-files icekeep.zip where all other packages "
            "are installed",
        ),
        (
            "Caused by Traceback\nModuleNotFoundError: No module named 'pyarrow.compute'\n\tat Java",
            f"the executors' Python has no package 'pyarrow'; {ALL}",
        ),
        (
            "[PACKAGE_NOT_INSTALLED] PyArrow >= 15.0.0 must be installed; however, it was not found.",
            f"the executors' Python has no package 'pyarrow'; {ALL}",
        ),
        (
            'java.io.IOException: Cannot run program "./env/bin/python": error=2, No such file or directory',
            f"executors cannot start './env/bin/python'; {ALL}",
        ),
    ],
)
def test_what_executors_lack_is_told_with_what_to_do(text: str, told: str) -> None:
    assert spark_failed(RuntimeError(text)).message == f"Spark failed: {told}"
