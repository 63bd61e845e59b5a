"""Which tables of a catalog a pattern means."""

import re
from collections.abc import Callable

from icekeep.catalog.base import Identifier, format_identifier
from icekeep.errors import UsageError

_MANY = "**"


def matcher(pattern: str | None) -> Callable[[Identifier], bool]:
    """Whether a table's name, `namespace.table`, is meant by a pattern; `None` means all.

    `*` stands for any text within one part of a name, `**` alone as a part for one part or more.

    >>> is_meant = matcher("db.*")
    >>> is_meant(("db", "events")), is_meant(("db", "raw", "events"))
    (True, False)

    Raises:
        UsageError: it can match no table.
    """
    if pattern is None:
        return lambda identifier: True
    parts = pattern.split(".")
    if not all(parts) or (len(parts) < 2 and _MANY not in parts):
        raise UsageError(
            f"{pattern!r} can match no table; give NAMESPACE.TABLE, with * within a part and ** over parts"
        )
    if any(_MANY in part and part != _MANY for part in parts):
        raise UsageError(f"{pattern!r} has ** beside other signs; ** stands alone between dots, * within a part")
    expression = re.compile(r"\.".join(map(_part, parts)), re.DOTALL)
    return lambda identifier: expression.fullmatch(format_identifier(identifier)) is not None


def _part(part: str) -> str:
    if part == _MANY:
        return r"[^.]+(?:\.[^.]+)*"
    return "[^.]+" if part == "*" else "[^.]*".join(map(re.escape, part.split("*")))
