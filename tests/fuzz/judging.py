"""How an answer of the library to a spoilt input is judged."""

from collections.abc import Callable
from typing import Any

from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)

REFUSALS = (InvalidTableError, UnsupportedError)
USER_REFUSALS = (*REFUSALS, UsageError, NotFoundError)


_DERIVED = {"schema", "partition-spec", "next-row-id", "last-sequence-number", "default-spec-id", "current-schema-id",
            "default-sort-order-id"}  # fmt: skip
"""Keys that mean nothing in some versions, or without a list that they point into, and are left out or derived there."""


def taken(read: Callable[[], object], refusals: tuple[type[IcekeepError], ...] = REFUSALS) -> Any:
    """What `read` returns, or null where it refuses with one line; any other error escapes."""
    try:
        return read()
    except refusals as error:
        refusal = error
    assert "\n" not in refusal.message, refusal.message
    return None


def assert_survives(before: Any, after: Any, path: str) -> None:
    """Whatever an accepted document says is still said after it was written again."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if value in (None, [], {}) or (not path and key in _DERIVED) or key in ("direction", "null-order"):
                continue
            if (key, value) == ("current-snapshot-id", -1) or (key == "sequence-number" and "snapshots" in path):
                continue
            if key == "source-ids" and len(value) == 1:
                assert after.get("source-id", value[0]) == value[0]
                continue
            if key in after or not _is_default(key, value):
                assert key in after, f"{path}/{key} is lost"
                assert_survives(value, after[key], f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        assert len(before) == len(after), f"{path} has {len(after)} items, not {len(before)}"
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            assert_survives(one, other, f"{path}[{number}]")
    elif isinstance(before, str) and isinstance(after, str):
        assert before.replace(" ", "").lower() == after.replace(" ", "").lower(), f"{path}: {before!r} became {after!r}"
    else:
        assert before == after, f"{path}: {before!r} became {after!r}"


def _is_default(key: str, value: Any) -> bool:
    return (key, value) in (("blob-metadata", []), ("type", "struct"))
