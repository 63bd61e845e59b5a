"""What a rewrite will take, from bytes and from rates that `make bench-compaction` measures. Pure.

An estimate is for choosing the hour and the size of the cluster; the result tells what it was instead.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from icekeep.spec.types import MIB


class RewriteMethod(StrEnum):
    """How the rows of a group reach their new files."""

    STITCH = "stitch"
    """Whole row groups are copied byte for byte."""

    REENCODE = "re-encode"
    """Rows are read and written, in the order that they have; columns of small Parquet files may be moved page by page."""

    SORT = "sort"
    """Rows are read, ordered within tasks, and written."""

    SHUFFLE = "shuffle"
    """Rows are read, sent to the task of their range by Spark, ordered there, and written."""


RATES_BYTES_A_SECOND = {
    RewriteMethod.STITCH: 1_000 * MIB,
    RewriteMethod.REENCODE: 45 * MIB,
    RewriteMethod.SORT: 21 * MIB,
    RewriteMethod.SHUFFLE: 11 * MIB,
}
"""Input of one core, compressed Parquet of mixed columns."""

_TASK_MS = 60
_GROUP_MS = 120


class Work(msgspec.Struct, frozen=True):
    """Some input that goes one way, in so many tasks."""

    method: RewriteMethod
    bytes: int
    tasks_count: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan will take, milliseconds and bytes.

    Attributes:
        elapsed_ms: on the slots that the Spark application has now, if it has them to itself.
        cpu_ms: of all tasks together, what one pays for.
        read_bytes, written_bytes: from and to storage; how much rows shrink when they are rewritten is not known.
        requests_count: of storage, at least: one for each file that is opened or made.
    """

    elapsed_ms: int = 0
    cpu_ms: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    requests_count: int = 0


def estimate(
    works: Iterable[Work],
    *,
    slots: int,
    groups_count: int,
    files_count: int,
    new_files_count: int,
    delete_bytes: int,
    pace: float = 1.0,
) -> Estimate:
    """Add up what pieces of work take.

    Args:
        slots: how many tasks run at once.
        files_count: that are read, delete files among them.
        delete_bytes: of the delete files that are applied.
        pace: how much more processor time than the rates say earlier runs took.
    """
    pieces = [*works]
    by_rates_ms = sum(
        work.bytes * 1000 // RATES_BYTES_A_SECOND[work.method] + work.tasks_count * _TASK_MS for work in pieces
    )
    cpu_ms = round(by_rates_ms * pace)
    tasks = sum(work.tasks_count for work in pieces)
    total = sum(work.bytes for work in pieces)
    return Estimate(
        elapsed_ms=cpu_ms // max(1, min(slots, tasks)) + groups_count * _GROUP_MS,
        cpu_ms=cpu_ms,
        read_bytes=total + delete_bytes,
        written_bytes=total,
        requests_count=files_count + new_files_count,
    )
