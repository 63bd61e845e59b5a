"""The memory and processors of this process, within its container's limits, and Arrow's allocator.

Arrow is imported inside functions only: its allocator, and what it imports in turn, are decided before it is loaded.

Reading a row group whole is fastest. One that takes too much of a task's memory is read in batches; where even those do not fit,
the error names the setting to change.
"""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

import msgspec

from icekeep.errors import UnsupportedError
from icekeep.spec.types import MIB

COMFORTABLE_BYTES = 256 * MIB
"""A row group that takes more is read in batches, however much memory there is."""

BATCH_BYTES = 64 * MIB
"""The size of a batch, where there is enough memory."""

_MIN_BYTES = 4 * MIB
"""Smaller row groups are not worth writing."""

_WRITING_SHARE = 4
_READING_SHARE = 2
_COPIES = 2
"""Data is held twice: as it was read, and as it is passed on."""

POOL_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow's own variable, which it reads while it is loaded; a value that an operator has set is kept."""

LIMITED_POOL = "system"
"""C's allocator, which returns freed memory. What the others retain or reserve counts against a limit of the address space."""

_LOCAL_REMEDY = (
    "give this machine, or its container, more memory, or run fewer tasks on it: a smaller N in master 'local[N]'"
)
_CLUSTER_REMEDY = (
    "give the tasks more with 'spark.executor.memoryOverhead' or 'spark.executor.pyspark.memory', or let fewer share an "
    "executor with 'spark.executor.cores'"
)


class PartSize(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that the data of a part of a file (row group, stripe) takes, as far as the file's footer shows.

    `held_bytes` are held beside each batch when it is read in batches.
    """

    number: int
    row_count: int
    size_bytes: int
    held_bytes: int


class TaskMemory(msgspec.Struct, frozen=True):
    """The memory of a task: half for reading, half for rows that wait to be written.

    `is_local`: whether Spark's master is a local one, which decides what an error advises.
    """

    available_bytes: int
    is_local: bool = False

    @property
    def row_group_bytes(self) -> int:
        """The most data that may wait in a row group; encoding it takes as much again."""
        return max(_MIN_BYTES, self.available_bytes // _WRITING_SHARE)

    @property
    def batch_bytes(self) -> int:
        """The most data to process at a time, beside its result."""
        return max(1, self.available_bytes // (2 * _READING_SHARE * _COPIES))

    def batch_rows(self, part: PartSize | None) -> int | None:
        """How many rows to read at a time of a file with this largest part; None for whole row groups.

        Raises `UnsupportedError` where no batch would fit.
        """
        if part is None or not part.row_count:
            return None
        budget_bytes = self.available_bytes // _READING_SHARE
        if _COPIES * part.size_bytes <= min(_COPIES * COMFORTABLE_BYTES, budget_bytes):
            return None
        row_bytes = -(-part.size_bytes // part.row_count)
        batch_bytes = min(BATCH_BYTES, self.batch_bytes)
        needed_bytes = part.held_bytes + _COPIES * max(batch_bytes, row_bytes)
        if needed_bytes > budget_bytes:
            raise UnsupportedError(
                f"row group {part.number} takes {part.size_bytes} bytes and reading it in batches {needed_bytes}, where a task "
                f"may read {budget_bytes} at a time; {_LOCAL_REMEDY if self.is_local else _CLUSTER_REMEDY}",
                row_group=part.number,
                needed_bytes=needed_bytes,
                available_bytes=budget_bytes,
            )
        return max(1, batch_bytes // row_bytes)


def task_memory_bytes(slots: int, root: Path = Path("/")) -> int:
    """How much more memory this process may use, as far as the system shows.

    The least of the rest of the process's own limit (`spark.executor.pyspark.memory` sets one), and this task's share of the
    container's limit and of the machine's memory. `slots` is the number of tasks that share these: those of one executor, not of
    the cluster. `root` holds the system's directories `proc` and `sys`.
    """
    shared = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _limit_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        with suppress(OSError):
            text = file.read_text().strip()
            # Without a limit the file says `max`, in version 1 a number beyond every memory.
            if text.isdecimal():
                shared.append(int(text))
    available_bytes = min(shared) // slots
    own_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if own_limit != resource.RLIM_INFINITY:
        available_bytes = min(available_bytes, own_limit - _status_bytes(root, "VmSize"))
    return max(0, available_bytes)


def peak_memory_bytes(root: Path = Path("/")) -> int:
    return _status_bytes(root, "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(root: Path, key: str) -> int:
    with suppress(OSError):
        for line in (root / "proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0


def processors_count(root: Path = Path("/")) -> int:
    """How many processors this process may run on, or fewer where its container has a quota, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for file in _limit_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        # Version 1 has the period in another file; a group without a limit says `max`, or -1.
        with suppress(OSError, ValueError):
            quota_us, *period_us = file.read_text().split()
            period = int(period_us[0] if period_us else file.with_name("cpu.cfs_period_us").read_text())
            if int(quota_us) > 0 and period > 0:
                count = min(count, -(-int(quota_us) // period))
    return max(1, count)


def _limit_files(root: Path, controller: str, newer: str, older: str) -> Iterator[Path]:
    """The files with the limits of the process's control groups, and of the groups above them.

    `newer` and `older` are their names in version 2 and version 1 of control groups.
    """
    groups = root / "sys/fs/cgroup"
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base, name = (groups / controller, older) if controllers else (groups, newer)
        names = [part for part in path.split("/") if part not in ("", "..")]
        # In a container the path may be that of the machine, while the directory shows the container alone.
        for depth in range(len(names) + 1):
            yield base.joinpath(*names[:depth]) / name


def is_limited() -> bool:
    """Whether address space is limited (`ulimit -v`, in Spark's workers `spark.executor.pyspark.memory`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return limit != resource.RLIM_INFINITY


def choose_pool() -> None:
    """Let Arrow allocate by jemalloc where it has it, by C's allocator where address space is limited, or as an operator chose.

    Its default allocator (mimalloc) requests pages of 2 MB, which the kernel fills with zeros; many are returned soon after, and
    requested again. That took a fifth of the processor time of a rewrite.
    """
    import pyarrow as pa

    if POOL_VARIABLE in os.environ:
        return
    if is_limited():
        pa.set_memory_pool(pa.system_memory_pool())
        return
    with suppress(NotImplementedError):
        pa.set_memory_pool(pa.jemalloc_memory_pool())


@contextmanager
def imported_with(package: str, name: str, value: str) -> Iterator[None]:
    """Set a variable that a package reads when it is imported, which the block does; a value of an operator is kept.

    Child processes do not inherit it. Nothing happens where the package is loaded already.
    """
    is_ours = package not in sys.modules and name not in os.environ
    if is_ours:
        os.environ[name] = value
    try:
        yield
    finally:
        if is_ours:
            del os.environ[name]


def datafusion_package() -> ModuleType:
    """The package DataFusion, imported so that it retains free memory for a second.

    Its allocator (mimalloc) returns free pages to the system after ten milliseconds, and gets them again, filled with zeros, for
    the next batch. On a busy machine that took a fifth of the processor time of decoding manifests.
    """
    with imported_with("datafusion", "MIMALLOC_PURGE_DELAY", "1000"):
        import datafusion
    return datafusion


def leave_pandas_out() -> None:
    """Make PyArrow treat pandas as absent, in a process that only does icekeep's work.

    It would import pandas for the first list that becomes an array, which takes as long, and as much memory, as the rest of a
    small job's start. Other code, PySpark included, can still import pandas, and `to_pandas` finds it; only `pyarrow.array` no
    longer recognises pandas' own types. Nothing happens where pandas is imported already.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    class Without(MetaPathFinder):
        def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
            if fullname == "pandas":
                raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    without = Without()
    sys.meta_path.insert(0, without)
    try:
        # PyArrow looks for pandas once.
        pa.array([None])
    finally:
        sys.meta_path.remove(without)
