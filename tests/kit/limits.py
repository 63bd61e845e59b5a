"""Sources of Spark sessions, with limits that tests choose."""

from typing import Any

from icekeep.planning.spark.limits import Limits
from icekeep.planning.spark.source import Engine

NOTHING_HERE = Limits(**dict.fromkeys(Limits.__struct_fields__, -1))
"""Nothing is so little that this process would do it by itself."""


def limited(spark: Any, **limits: int) -> Engine:
    """A source of a session with some limits of its own."""
    return Engine(spark=spark, limits=Limits(**limits))
