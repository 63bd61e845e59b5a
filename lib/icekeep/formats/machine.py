"""The machine under this process: its memory and processors as far as a container lets it have them, and Arrow's allocator.

Nothing here imports Arrow before it is asked to: which allocator Arrow has, and what it imports, is decided before it is loaded.

Reading a row group whole is fastest. One that takes too much of a task's memory is read in batches; a task that could not
hold even those says so, and what to set.
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
"""How much data a batch has, where there is memory enough."""

_MIN_BYTES = 4 * MIB
"""A file of smaller row groups is of no use."""

_WRITING_SHARE = 4
_READING_SHARE = 2
_COPIES = 2
"""Data is held twice: as it was read, and as it is handed on."""

POOL_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow's own variable, which it looks at while it is loaded: where an operator has set it, that holds."""

LIMITED_POOL = "system"
"""C's own allocator, which gives back what it is given back. What the others keep for later, or ask for beforehand, counts by
a limit of the address space too."""

_LOCAL_REMEDY = (
    "give this machine, or its container, more memory, or run fewer tasks on it: a smaller N in master 'local[N]'"
)
_CLUSTER_REMEDY = (
    "give the tasks more with 'spark.executor.memoryOverhead' or 'spark.executor.pyspark.memory', or let fewer share an "
    "executor with 'spark.executor.cores'"
)


class PartSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a part of a file (row group, stripe) takes of memory, as far as the file's footer tells.

    `size_bytes` is that of its data in memory; `held_bytes` are held beside a batch while it is read in batches.
    """

    number: int
    row_count: int
    size_bytes: int
    held_bytes: int


class TaskMemory(msgspec.Struct, frozen=True):
    """The memory of a task, and how it is shared out: half for reading, half for rows that wait to be written.

    `is_local`: whether Spark's master is a local one, which decides about what an error advises.
    """

    available_bytes: int
    is_local: bool = False

    @property
    def row_group_bytes(self) -> int:
        """The most data that may wait for its row group to be written; encoding it takes as much again."""
        return max(_MIN_BYTES, self.available_bytes // _WRITING_SHARE)

    @property
    def batch_bytes(self) -> int:
        """The most data to work on at one time, beside what it becomes."""
        return max(1, self.available_bytes // (2 * _READING_SHARE * _COPIES))

    def batch_rows(self, part: PartSize | None) -> int | None:
        """How many rows of a file with this largest part to read at one time; None for whole row groups.

        Raises `UnsupportedError` where no batch of it would fit.
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
    """How much memory this process may use beside what it uses already, as far as the system tells.

    The least of what is left of the process's own limit (`spark.executor.pyspark.memory` sets one), and this task's share of
    the container's limit and of the machine's memory. `slots` is how many tasks share these: those of one executor, not of the
    cluster. `root` is where the system's directories `proc` and `sys` are.
    """
    shared = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _limit_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        with suppress(OSError):
            text = file.read_text().strip()
            # A container without a limit says `max`, in the older form a number beyond every memory.
            if text.isdecimal():
                shared.append(int(text))
    available_bytes = min(shared) // slots
    own_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if own_limit != resource.RLIM_INFINITY:
        available_bytes = min(available_bytes, own_limit - _status_bytes(root, "VmSize"))
    return max(0, available_bytes)


def peak_memory_bytes(root: Path = Path("/")) -> int:
    """The most memory that this process has held at one time (resident set)."""
    return _status_bytes(root, "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(root: Path, key: str) -> int:
    with suppress(OSError):
        for line in (root / "proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0


def processors_count(root: Path = Path("/")) -> int:
    """How many processors this process may run on, or fewer where its container is given less of their time.

    A part of one counts as one. `root` is where the system's directories `proc` and `sys` are.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for file in _limit_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        # The older form has the period in a file of its own; a group without a limit says `max`, or -1.
        with suppress(OSError, ValueError):
            quota_us, *period_us = file.read_text().split()
            period = int(period_us[0] if period_us else file.with_name("cpu.cfs_period_us").read_text())
            if int(quota_us) > 0 and period > 0:
                count = min(count, -(-int(quota_us) // period))
    return max(1, count)


def _limit_files(root: Path, controller: str, newer: str, older: str) -> Iterator[Path]:
    """Where the limits of the process's control groups stand: of each group, and of those above it.

    `newer` and `older` are the file's names in the second version of control groups, and in the first.
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
    """Whether the address space of this process is limited (`ulimit -v`, in Spark's workers `spark.executor.pyspark.memory`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return limit != resource.RLIM_INFINITY


def choose_pool() -> None:
    """Let Arrow allocate by jemalloc where it was built with that, and by C's allocator where address space is limited.

    Its default allocator (mimalloc) asks for pages of 2 MB. The kernel fills each with zeros, gets many of them back soon after,
    and fills the next: a fifth of the processor time in which files are rewritten. Nothing happens where an operator has chosen.
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
    """Give a variable to a package that looks at it once, while the block imports it first; what an operator has set holds.

    Processes that are started from here do not inherit it. Nothing happens where the package is loaded already.
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
    """The package DataFusion, imported so that its memory stays with it for a second.

    Its allocator (mimalloc) hands free pages back to the system after ten milliseconds, and gets them again, filled with
    zeros, for the next batch. On a busy machine this was a fifth of the processor time in which manifests are decoded.
    """
    with imported_with("datafusion", "MIMALLOC_PURGE_DELAY", "1000"):
        import datafusion
    return datafusion


def leave_pandas_out() -> None:
    """Let PyArrow take pandas for absent, in a process that does icekeep's work alone.

    It would import pandas for the first list that becomes an array, which takes as long, and as much memory, as everything else
    that a small job does before its work. Others can import pandas after that, PySpark among them, and `to_pandas` finds it;
    only `pyarrow.array` no longer recognises pandas' own types. Nothing happens where pandas is imported already.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    class Without(MetaPathFinder):
        """Finds no pandas, and leaves all other modules to others."""

        def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
            if fullname == "pandas":
                raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    without = Without()
    sys.meta_path.insert(0, without)
    try:
        # PyArrow looks once.
        pa.array([None])
    finally:
        sys.meta_path.remove(without)
