"""How much memory a task may use, and how it reads row groups that are large beside that.

Reading a row group whole is fastest. One that takes too much of a task's memory is read in batches; a task that could not
hold even those says so, and what to set.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from icekeep.errors import UnsupportedError
from icekeep.formats.base import PartSizes
from icekeep.formats.control_groups import limit_files
from icekeep.spec.units import MIB

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


_LOCAL_REMEDY = (
    "give this machine, or its container, more memory, or run fewer tasks on it: a smaller N in master 'local[N]'"
)
_CLUSTER_REMEDY = (
    "give the tasks more with 'spark.executor.memoryOverhead' or 'spark.executor.pyspark.memory', or let fewer share an "
    "executor with 'spark.executor.cores'"
)


class TaskMemory(msgspec.Struct, frozen=True):
    """The memory of a task, and what of it is for what: half for reading, half for what waits to be written.

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

    def batch_rows(self, reader: PartSizes) -> int | None:
        """How many rows of an open file to read at one time; null for whole row groups.

        Raises:
            UnsupportedError: no batch of the largest row group would fit.
        """
        part = reader.largest_part()
        if part is None or not part.row_count:
            return None
        budget_bytes = self.available_bytes // _READING_SHARE
        if _COPIES * part.size_bytes <= min(_COPIES * COMFORTABLE_BYTES, budget_bytes):
            return None
        row_bytes = -(-part.size_bytes // part.row_count)
        batch_bytes = min(BATCH_BYTES, self.batch_bytes)
        needed_bytes = reader.held_bytes(part.number) + _COPIES * max(batch_bytes, row_bytes)
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
    the container's limit and of the machine's memory.

    Args:
        slots: how many tasks share the container or the machine: those of one executor, not of the cluster.
        root: where the system's directories `proc` and `sys` are.
    """
    limits = [limit // slots for limit in _shared_limits(root)]
    own_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if own_limit != resource.RLIM_INFINITY:
        limits.append(own_limit - _status_bytes(root, "VmSize"))
    return max(0, min(limits))


def peak_memory_bytes(root: Path = Path("/")) -> int:
    """The most memory that this process has held at one time (resident set)."""
    return _status_bytes(root, "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _shared_limits(root: Path) -> Iterator[int]:
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in limit_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        with suppress(OSError):
            text = file.read_text().strip()
            # A container without a limit says `max`, in the older form a number beyond every memory.
            if text.isdecimal():
                yield int(text)


def _status_bytes(root: Path, key: str) -> int:
    with suppress(OSError):
        for line in (root / "proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0
