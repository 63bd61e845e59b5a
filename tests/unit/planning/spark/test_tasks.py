from types import SimpleNamespace

import pyarrow as pa
import pytest

from icekeep.errors import InvalidTableError, JobFailedError
from icekeep.planning.spark.rows import record_batches
from icekeep.planning.spark.tasks import run_tasks
from icekeep.planning.spark.workers import executor_slots
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


def test_an_error_in_a_thread_takes_no_result_along_and_nothing_else_is_begun():
    begun = []

    def work(payload: int, shared: str) -> str:
        begun.append(payload)
        return halved(payload, shared)

    results, [error] = run_tasks(None, [2, 3, *[4] * 50], work, "half", threads=1)
    assert results == ["half 1"]
    assert (type(error), error.message, error.facts) == (InvalidTableError, "an odd number", {"location": "half"})
    assert begun == [2, 3]


def test_any_other_error_in_a_thread_is_a_failed_job_that_names_it():
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
