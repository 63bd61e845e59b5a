"""A Spark session that may not have been started yet: planning small tables needs none, and starting one takes seconds."""

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import SparkSession

SparkSource: TypeAlias = SparkSession | Callable[[], SparkSession]
"""A session, or a function that starts one the first time it is called and returns it again later."""


def started(spark: SparkSource) -> SparkSession:
    """The session itself."""
    return spark if isinstance(spark, SparkSession) else spark()
