"""Sources of Spark sessions, with limits that tests choose."""

from typing import Any

import msgspec

from icekeep.planning.spark.session import Engine, Limits

NOTHING_HERE = Limits(**dict.fromkeys(Limits.__struct_fields__, -1))
"""Nothing is so little that this process would do it by itself."""


GIVEN_IS_USED = Limits(session_rewrite_bytes=-1)
"""A session that a test gives does all that is rewritten, however little: a test gives it to see it work."""


def limited(spark: Any, **limits: int) -> Engine:
    """A source of a session with some limits of its own, which rewrites however little."""
    return Engine(spark=spark, limits=msgspec.structs.replace(GIVEN_IS_USED, **limits))
