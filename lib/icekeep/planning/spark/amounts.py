"""How much one Spark task gets: work is cut by its amount, and the scheduler finds the slots.

How many cores are registered says nothing of that: under dynamic allocation there are two when a run begins, and hundreds
when it is under way. Little work is cut finely, as long as a task is worth its start; much work coarsely, since each task
costs milliseconds, and memory of the driver for what it answers.

What operators set keeps its meaning. `spark.default.parallelism` is how many tasks may be small, 100 where nobody has set it;
it makes no task larger than it may be, nor so small that its start takes longer than its work. On a local master, whose
slots never change, it is the number of these. `spark.sql.shuffle.partitions` is for the joins and aggregations that Spark
divides by itself.
"""

from typing import TYPE_CHECKING

import msgspec

from icekeep.planning.spark.slots import is_local, parallelism
from icekeep.spec.units import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_TASKS = 100
_PARALLELISM = "spark.default.parallelism"


class Amount(msgspec.Struct, frozen=True):
    """What a task gets of some work: `least` is worth its start, `most` is enough for any."""

    least: int
    most: int


MANIFEST_BYTES = Amount(4 * MIB, 32 * MIB)
"""Stored bytes of manifests that are decoded: some 70,000 to 500,000 entries."""

FILTERED_MANIFEST_BYTES = Amount(MIB // 2, 8 * MIB)
"""The same where each entry is an object, as in a commit."""

LIST_ROWS = Amount(1_000_000, 8_000_000)
"""Rows of manifest lists, and what opening them counts for in rows."""

NEW_MANIFESTS = Amount(8, 16)
"""Manifests that a task writes of a range of keys: so many that the last one, which is cut short, matters little."""

MATCHED_FILES = Amount(20_000, 100_000)
"""Data files that are matched with the delete files that reach them."""

LISTED_FILES = Amount(20_000, 100_000)
"""Files of a listing."""

DESCRIBED_FILES = Amount(5_000, 50_000)
"""Files of groups, each with what a commit must know of it."""

SHUFFLED_KEYS = Amount(100_000, 1_000_000)
"""Rows of a partition of a shuffle by keys: a key, and at most a location beside it."""

DATA_BYTES = Amount(16 * MIB, 128 * MIB)
"""Bytes of data files that are read."""


def tasks_count(spark: "SparkSession", total: float, amount: Amount, *, a_slot: int = 1, beside: float = 0) -> int:
    """Into how many tasks work is cut, at least one.

    Args:
        total: all of the work, in the unit of `amount`.
        a_slot: as for `small_tasks`.
        beside: what each task reads in any case, in the same unit: of its own it gets at least as much.
    """
    least, most = max(amount.least, beside), max(amount.most, beside)
    return max(1, int(-(-total // most)), min(small_tasks(spark, a_slot=a_slot), int(total // least)))


def small_tasks(spark: "SparkSession", *, a_slot: int = 1) -> int:
    """How many tasks may be small.

    Args:
        a_slot: how many for each slot of a local master; several where shares of equal amounts take unequal times.
    """
    if spark.sparkContext.getConf().get(_PARALLELISM) is not None:
        return parallelism(spark)
    return a_slot * parallelism(spark) if is_local(spark) else _SMALL_TASKS
