"""Who works beyond this process: a Spark session that may not have been started yet, and up to where it is not asked.

Planning small tables needs no session, and starting one takes seconds.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from icekeep.errors import UsageError
from icekeep.planning.spark.lazily import PACKAGES, is_session, spark_is_missing
from icekeep.planning.spark.limits import LIMITS, Limits
from icekeep.runs import note_application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
else:
    # As annotations are shown that are looked at: PySpark is imported where a session is wanted, and not before.
    SparkSession = Any


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a session, with limits of one's own."""

    spark: SparkSession | Callable[[], SparkSession] | None = None
    limits: Limits = LIMITS


SparkSource: TypeAlias = SparkSession | Callable[[], SparkSession] | Engine | None
"""A session; a function that starts one the first time it is called, and returns it again later; one of these with limits; or
by default the session that runs, or a new one, once it is needed.
"""


_known: list[object] = [None]
"""The context whose application was noted last."""


def started(spark: SparkSource) -> SparkSession:
    """The session itself.

    Raises:
        UsageError: PySpark is not installed, or as `build_session` raises it.
    """
    given = _session_of(spark)
    if is_session(given):
        return _noted(cast("SparkSession", given))
    if given is None:
        try:
            from icekeep.planning.spark.session import build_session
        except ModuleNotFoundError as error:
            if error.name not in PACKAGES:
                raise
            raise spark_is_missing() from error
        return _noted(build_session("icekeep"))
    return _noted(cast("Callable[[], SparkSession]", given)())


def _noted(session: SparkSession) -> SparkSession:
    """A session whose application commits name from now on; the JVM is asked once a session."""
    context = getattr(session, "sparkContext", None)
    if context is not None and context is not _known[0]:
        with suppress(Exception):
            note_application(str(context.applicationId))
            _known[0] = context
    return session


def is_started(spark: SparkSource) -> bool:
    """Whether a session was given, and none has to be started."""
    return is_session(_session_of(spark))


def limits_of(spark: SparkSource) -> Limits:
    """Up to where Spark is not asked."""
    return spark.limits if isinstance(spark, Engine) else LIMITS


def check_source(spark: object) -> None:
    """Raise `UsageError` for what is no source of a session: a filter given in its place would else fail much later."""
    if not (spark is None or is_session(spark) or isinstance(spark, Engine) or callable(spark)):
        raise UsageError(
            f"{spark!r} is no Spark session; give a session, or nothing, and other arguments by their names"
        )


def _session_of(spark: SparkSource) -> SparkSession | Callable[[], SparkSession] | None:
    return spark.spark if isinstance(spark, Engine) else spark
