"""Who works beyond this process: a Spark session that may not have been started yet, and up to where it is not asked.

Planning small tables needs no session, and starting one takes seconds.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import msgspec
from pyspark.sql import SparkSession

from icekeep.errors import UsageError
from icekeep.planning.spark.limits import LIMITS, Limits
from icekeep.planning.spark.session import build_session
from icekeep.runs import note_application


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
        UsageError: as `build_session` raises it.
    """
    given = _session_of(spark)
    if isinstance(given, SparkSession):
        return _noted(given)
    return _noted(build_session("icekeep") if given is None else given())


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
    return isinstance(_session_of(spark), SparkSession)


def limits_of(spark: SparkSource) -> Limits:
    """Up to where Spark is not asked."""
    return spark.limits if isinstance(spark, Engine) else LIMITS


def check_source(spark: object) -> None:
    """Raise `UsageError` for what is no source of a session: a filter given in its place would else fail much later."""
    if not (spark is None or isinstance(spark, (SparkSession, Engine)) or callable(spark)):
        raise UsageError(
            f"{spark!r} is no Spark session; give a session, or nothing, and other arguments by their names"
        )


def _session_of(spark: SparkSource) -> SparkSession | Callable[[], SparkSession] | None:
    return spark.spark if isinstance(spark, Engine) else spark
