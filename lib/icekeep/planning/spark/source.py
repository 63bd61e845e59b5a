"""A Spark session that may not have been started yet: planning small tables needs none, and starting one takes seconds."""

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import SparkSession

from icekeep.errors import UsageError
from icekeep.planning.spark.session import build_session

SparkSource: TypeAlias = SparkSession | Callable[[], SparkSession] | None
"""A session; a function that starts one the first time it is called, and returns it again later; or by default the session
that runs, or a new one, once it is needed.
"""


def started(spark: SparkSource) -> SparkSession:
    """The session itself.

    Raises:
        UsageError: as `build_session` raises it.
    """
    if spark is None:
        return build_session("icekeep")
    return spark if isinstance(spark, SparkSession) else spark()


def check_source(spark: object) -> None:
    """Raise `UsageError` for what is no source of a session: a filter given in its place would else fail much later."""
    if not (spark is None or isinstance(spark, SparkSession) or callable(spark)):
        raise UsageError(
            f"{spark!r} is no Spark session; give a session, or nothing, and other arguments by their names"
        )
