"""Patterns for the full names of tables, `catalog.namespace.table`, in the spelling of `icekeep.names`.

`*` stands for any text within one part, the empty text too; `**` stands alone as a part, for any number of parts. At the end of a
pattern it stands for one part or more, so that `prod.sales.**` is what lies below `prod.sales`, and no table of that name.
Upper and lower case differ, as in the catalogs. A part in quotes is no pattern but a name, so that the name of a table is the
pattern of this table alone.
"""

import re
from collections.abc import Iterable
from functools import cached_property

import msgspec

from icekeep.errors import UsageError
from icekeep.names import FULL_NAME, can_be_part, catalog_of, is_quoted, split_name, written_parts

MANY = "**"
_LIKE_OTHER_GLOBS = frozenset("?[]{}!")
_BETWEEN = "\0"
"""What stands between the parts of a name while it is compared, since a part may have dots but no control characters."""
_IN_PART = f"[^{_BETWEEN}]"


class Glob(msgspec.Struct, frozen=True, dict=True):
    """A pattern; `text` is as somebody wrote it."""

    text: str

    def matches(self, name: str) -> bool:
        """Whether it is a pattern of this full name.

        >>> glob = parse_glob("prod.*.orders_*")
        >>> glob.matches("prod.sales.orders_eu"), glob.matches("prod.sales.eu.orders_eu")
        (True, False)
        >>> glob.matches("prod.sales.`orders_v1.2`")
        True
        >>> parse_glob("prod.**").matches("prod.sales.eu.orders_eu")
        True
        """
        return self._expression.fullmatch(_BETWEEN.join(split_name(name))) is not None

    def may_match_in(self, namespace: str) -> bool:
        """Whether a table of this namespace, but of none below it, can have a name that it matches.

        >>> glob = parse_glob("prod.*.orders_*")
        >>> glob.may_match_in("prod.sales"), glob.may_match_in("prod.sales.eu")
        (True, False)
        """
        return self._of_namespaces.fullmatch(_BETWEEN.join((*split_name(namespace), ""))) is not None

    @property
    def catalog(self) -> str | None:
        """The one catalog whose tables it can match, `None` where its first part is a pattern."""
        first = written_parts(self.text)[0]
        return None if _is_pattern(first) else catalog_of(self.text)

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        *before, last = written_parts(self.text)
        below = rf"{_IN_PART}+(?:{_BETWEEN}{_IN_PART}+)*"
        return re.compile(_before(before) + (below if last == MANY else _one(last)), re.DOTALL)

    @cached_property
    def _of_namespaces(self) -> re.Pattern[str]:
        *before, last = written_parts(self.text)
        return re.compile(_before([*before, MANY] if last == MANY else before), re.DOTALL)


def parse_glob(text: str, form: str = FULL_NAME) -> Glob:
    """Read a pattern.

    Args:
        form: of the names that it is for, `FULL_NAME` or `NAME_IN_CATALOG`.

    Raises:
        UsageError: it can match no table, or has signs of other kinds of patterns.
    """
    parts = written_parts(text)
    if not all(map(can_be_part, parts)):
        raise UsageError(f"{text!r} is no pattern; give {form}, with * within a part and ** over parts")
    unquoted = [part for part in parts if not is_quoted(part)]
    if foreign := sorted(_LIKE_OTHER_GLOBS & {*"".join(unquoted)}):
        raise UsageError(
            f"{text!r} has {foreign[0]!r}, which is no sign of a pattern here; there is * within a part and **"
        )
    for part in unquoted:
        if MANY in part and part != MANY:
            raise UsageError(f"{text!r} has ** beside other signs; ** stands alone between dots, * within a part")
    if len(parts) <= form.count(".") and MANY not in parts:
        first = form.partition(".")[0]
        raise UsageError(f"{text!r} can match no table; give {form}, or {first}.** for all of a {first.lower()}")
    return Glob(text)


def _before(parts: Iterable[str]) -> str:
    """What matches all parts of a name but the last. Each ends with its dot, so that `**` may be no part at all."""
    return "".join(f"(?:{_IN_PART}*{_BETWEEN})*" if part == MANY else _one(part) + _BETWEEN for part in parts)


def _one(part: str) -> str:
    """What matches a part of a name.

    What is in quotes matches itself. Of a text between stars the first place is as good as any: none other is tried.
    """
    first, *others = map(re.escape, part.split("*") if _is_pattern(part) else split_name(part))
    if not others:
        return first
    return first + "".join(f"(?>{_IN_PART}*?{text})" for text in others[:-1]) + f"{_IN_PART}*" + others[-1]


def _is_pattern(part: str) -> bool:
    return "*" in part and not is_quoted(part)
