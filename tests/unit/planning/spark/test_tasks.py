"""Tasks by threads, and what is said of one that fails: one line, with the file and what to do."""

import pickle
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle

from icekeep.errors import InvalidTableError, JobFailedError, MissingFileError
from icekeep.planning.spark.executors import (
    UNKNOWN_VERSION,
    by_value,
    described_in_task,
    described_process,
    installed_version,
)
from icekeep.planning.spark.failures import known_error, spark_failed
from icekeep.planning.spark.rows import record_batches
from icekeep.planning.spark.tasks import run_tasks
from icekeep.planning.spark.workers import executor_slots
from icekeep.storage.open import forget_reads, note_read, open_storage
from kit.cases import for_each
from kit.changes import thrown

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("offsets", pa.list_(pa.int64())),
    ]
)


def row(number: int):
    return (number, None if number % 3 == 0 else str(number), bytes([number % 256]), [number] if number % 2 else None)


@for_each(("rows", "sizes"), [(0, []), (1, [1]), (4, [4]), (5, [4, 1]), (12, [4, 4, 4])])
def test_rows_become_batches_of_at_most_some_rows(rows, sizes):
    batches = list(record_batches(map(row, range(rows)), SCHEMA, size=4))
    assert [batch.num_rows for batch in batches] == sizes
    assert all(batch.schema == SCHEMA for batch in batches)
    assert [tuple(r.values()) for batch in batches for r in batch.to_pylist()] == [row(n) for n in range(rows)]


def test_rows_are_not_read_ahead_of_the_batch_they_are_for():
    taken = []
    rows = (taken.append(n) or row(n) for n in range(100))
    next(record_batches(rows, SCHEMA, size=10))
    assert taken == list(range(10))


@pytest.mark.parametrize("bad", [(1, "a", b""), (1, "a", b"", None, 5)])
def test_a_row_of_another_length_than_the_schema_is_an_error(bad):
    with pytest.raises(ValueError, match=r"zip\(\)"):
        list(record_batches([bad], SCHEMA))
    with pytest.raises(ValueError, match=r"zip\(\)"):
        list(record_batches([row(1), bad], SCHEMA))


def halved(payload: int, shared: str) -> str:
    if payload % 2:
        raise InvalidTableError("an odd number", location=shared)
    return f"{shared} {payload // 2}"


def test_threads_do_the_work_in_order():
    assert run_tasks(None, [2, 4, 6, 8], halved, "half", threads=3) == (["half 1", "half 2", "half 3", "half 4"], [])


@pytest.mark.parametrize("threads", [0, 1, 5])
def test_no_payloads_have_no_results(threads):
    assert run_tasks(None, [], halved, "half", threads=threads) == ([], [])


def test_thread_error_stops_new_work_and_keeps_results():
    begun = []

    def work(payload: int, shared: str) -> str:
        begun.append(payload)
        return halved(payload, shared)

    results, [error] = run_tasks(None, [2, 3, *[4] * 50], work, "half", threads=1)
    assert results == ["half 1"]
    assert (type(error), error.message, error.facts) == (InvalidTableError, "an odd number", {"location": "half"})
    assert begun == [2, 3]


def test_other_thread_error_is_a_failed_job_with_its_name():
    _, [error] = run_tasks(None, [1], lambda *_: 1 // 0, None)
    assert isinstance(error, JobFailedError)
    assert "ZeroDivisionError: " in error.message
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupt_is_no_result(interrupt):
    with pytest.raises(type(interrupt)):
        run_tasks(None, [1], lambda *_: thrown(interrupt)(), None)


class Session:
    """As much of a Spark session as tells how many tasks share an executor."""

    def __init__(self, master, parallelism=400, executors=(), **conf):
        self.sparkContext = self
        self.master, self.defaultParallelism = master, parallelism
        self._conf = {key.replace("__", "."): value for key, value in conf.items()}
        self._executors = [("driver", 7), *executors]
        self._jvm = self._jsc = self

    def getConf(self):
        return self._conf

    def __getattr__(self, name):
        """The way through the JVM to what is asked."""
        return self if name in ("java", "lang", "Runtime") else lambda *_: self

    def availableProcessors(self):
        return 6

    def size(self):
        return len(self._executors)

    def apply(self, number):
        name, cores = self._executors[number]
        return SimpleNamespace(id=lambda: name, totalCores=lambda: cores)


@for_each(
    ("session", "slots"),
    [
        (Session("local"), 1),
        (Session("local[3]"), 3),
        (Session("local[ 3 , 4 ]"), 3),
        (Session("local[*]"), 6),
        (Session("local[*,2]", spark__task__cpus="4"), 1),
        (Session("local[8]", spark__task__cpus="2", spark__executor__cores="5"), 4),
        (Session("local[1]", spark__task__cpus="2"), 1),
        (Session("yarn"), 1),
        (Session("k8s://https://host:6443"), 1),
        (Session("yarn", spark__executor__cores="4"), 4),
        (Session("k8s://https://host:6443", spark__executor__cores="5", spark__task__cpus="2"), 2),
        (Session("spark://host:7077", spark__executor__cores="4"), 4),
        (Session("spark://host:7077", executors=[("0", 16), ("1", 12)]), 16),
        (Session("spark://host:7077", parallelism=24), 24),
        (Session("local-cluster[2,3,1024]"), 3),
        (Session("local-cluster[2,3,1024]", spark__executor__cores="1"), 1),
    ],
)
def test_what_shares_memory_are_the_tasks_of_one_executor(session, slots):
    """All slots of the cluster shared one machine's memory, and ordinary tables were refused."""
    assert executor_slots(session) == slots


def test_a_process_says_what_it_has_and_what_it_lacks() -> None:
    told = described_process(["pyarrow", "there-is-no-such-package"])
    assert told["packages"] == {"pyarrow": version("pyarrow"), "there-is-no-such-package": None}
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert pickle.loads(pickle.dumps(told)) == told


def test_a_task_says_the_same() -> None:
    assert list(described_in_task(["pyarrow"], 0, [])) == [described_process(["pyarrow"])]


@pytest.mark.parametrize(("attributes", "expected"), [({"__version__": "4.1.2"}, "4.1.2"), ({}, UNKNOWN_VERSION)])
def test_what_is_no_package_but_can_be_imported_is_there(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, str], expected: str
) -> None:
    module = ModuleType("brought_by_spark")
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, "brought_by_spark", module)
    assert installed_version("brought-by-spark") == expected


BARE = """
import pickle, sys
work = pickle.load(sys.stdin.buffer)
assert "icekeep" not in sys.modules
print(next(work([]))["packages"])
"""


@pytest.mark.process
def test_it_runs_where_icekeep_is_not() -> None:
    with by_value():
        work = cloudpickle.dumps(partial(described_in_task, ("icekeep", "py4j"), 0.0))
    # Without its start-up files Python does not see a package that is installed from a checkout.
    bare = [sys.executable, "-S", "-c", BARE]
    packages = str(Path(pyspark.__file__).parents[1])
    done = subprocess.run(bare, input=work, env={"PYTHONPATH": packages}, capture_output=True, check=False)
    assert done.stderr.decode() == ""
    assert version("py4j") in done.stdout.decode()


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


def test_last_read_file_is_named_before_given_ones():
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


def test_memory_error_in_thread_advises_on_machine_not_executors():
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
def test_worker_death_names_its_file_and_setting(text, said):
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
