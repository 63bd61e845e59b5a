"""Keys of a snapshot's summary that are somebody's: those that a user may give have to be of none of them (spec, Appendix F)."""

import re
from collections.abc import Iterable, Mapping

from icekeep.errors import UsageError

RESERVED = "Iceberg, an engine or icekeep writes itself"

_RESERVED = re.compile(
    r"(added|removed|deleted|total|changed|replaced|manifests|entries|partition|partitions|engine|published|source)[-.].*"
    r"|(icekeep|spark|flink|trino|presto|kafka|wap|iceberg)[-._].*"
    r"|operation|app-id|replace-partitions|trino_query_id|presto_query_id"
)


def is_reserved(key: str) -> bool:
    """Whether a key, or all that a pattern with `*` at the end stands for, are written by somebody else.

    >>> is_reserved("ticket"), is_reserved("total-records"), is_reserved("icekeep.*")
    (False, True, True)
    """
    return _RESERVED.fullmatch(key) is not None


def checked_properties(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A user's own keys and values, in the order in which they were given.

    Raises:
        UsageError: a key is reserved, or not a text without control characters, or a value is no text.
    """
    for key, value in given.items():
        if not isinstance(key, str) or not key.strip() or not key.isprintable() or "*" in key:
            raise UsageError(f"{key!r} cannot be a key of a snapshot's summary: give printable text without `*`")
        if not isinstance(value, str):
            raise UsageError(f"the value of {key!r} in a snapshot's summary is {value!r}; give a text")
        if is_reserved(key):
            raise UsageError(
                f"{key!r} cannot be a key of your own in a snapshot's summary: it is one that {RESERVED}; choose another"
            )
    return tuple(given.items())


def carried(summary: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The entries of a summary whose keys match, each as it is or by what it begins with before a `*`; no reserved ones."""
    patterns = tuple(patterns)
    return {key: value for key, value in summary.items() if matching(key, patterns) is not None}


def matching(key: str, patterns: Iterable[str]) -> str | None:
    """The first of some patterns that a key matches; `None` for a reserved one."""
    if is_reserved(key):
        return None
    return next((p for p in patterns if key == p or (p.endswith("*") and key.startswith(p[:-1]))), None)
