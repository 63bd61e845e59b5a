"""Names of tables as people write them: `NAMESPACE.TABLE` in a catalog, and the full name, with the catalog in front.

Dots separate the parts of a name. A part that has a dot of its own is put in quotes, as in SQL: in backquotes as in Spark, or in
double quotes as in Trino, with a quote doubled within its kind. Names are printed with backquotes, and only where these are
needed, so that a table's name is printed in one way.

In a catalog a name is an `Identifier` (`catalog/base.py`), its parts; a full name is text, and tells tables of catalogs apart.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from icekeep.errors import UsageError

FULL_NAME = "CATALOG.NAMESPACE.TABLE"
NAME_IN_CATALOG = "NAMESPACE.TABLE"

_QUOTES = '`"'
_PIECE = re.compile(r'`(?:[^`]|``)*+`|"(?:[^"]|"")*+"|(?![`"])[^.]*+', re.DOTALL)
_QUOTED = re.compile(r'\s*(?:`(?:[^`]|``)*+`|"(?:[^"]|"")*+")', re.DOTALL)
_END = re.compile("[.,]")
_TAKES_QUOTES = re.compile(r'^[`"\s]|[.,*?\[\]{}!]|\s$')
"""What a part would not be read back with: dots, commas in a list, the signs of patterns, and what stands at its ends."""


class FullName(NamedTuple):
    """The parts of a full name; a namespace of several levels has dots."""

    catalog: str
    namespace: str
    table: str

    @classmethod
    def parse(cls, text: str) -> "FullName":
        """Take `lake.db.events` apart.

        >>> FullName.parse("lake.raw.web.clicks")
        FullName(catalog='lake', namespace='raw.web', table='clicks')
        >>> FullName.parse('lake.raw."web.clicks"')
        FullName(catalog='lake', namespace='raw', table='web.clicks')

        Raises:
            UsageError: it has fewer than three parts, or an empty one.
        """
        catalog, *namespace, table = _parts_in_form(text, FULL_NAME)
        return cls(catalog, join_parts(namespace), table)


def written_parts(text: str) -> list[str]:
    """The parts of a name or a pattern as they are written, those in quotes with their quotes.

    >>> written_parts("lake.raw.`web.clicks`")
    ['lake', 'raw', '`web.clicks`']

    Raises:
        UsageError: a quote is not closed, or something follows it.
    """
    parts, at = [], 0
    while True:
        match = _PIECE.match(text, at)
        if match is None:
            raise UsageError(f"the quote {text[at]} in {text!r} is not closed; a quote within a name is doubled")
        parts.append(match[0])
        at = match.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            raise UsageError(f"{text[at:]!r} follows a quote in {text!r}; put the whole part in quotes")
        at += 1


def is_quoted(part: str) -> bool:
    """Whether a written part is in quotes, so that it is taken literally."""
    return part[:1] in {*_QUOTES}


def split_name(text: str) -> tuple[str, ...]:
    """The parts of a name, without quotes; the inverse of `join_parts`. Raises as `written_parts` does.

    >>> split_name('raw."web.clicks"'), split_name("`say ``hello```.t")
    (('raw', 'web.clicks'), ('say `hello`', 't'))
    """
    return tuple(_unquoted(part) for part in written_parts(text))


def join_parts(parts: Iterable[str]) -> str:
    """The parts of a name as text, in quotes where they need them.

    >>> join_parts(("raw", "web.clicks"))
    'raw.`web.clicks`'
    """
    return ".".join("`" + p.replace("`", "``") + "`" if not p or _TAKES_QUOTES.search(p) else p for p in parts)


def split_names(text: str) -> list[str]:
    """Several names with commas between, as they are written; a comma in quotes is part of a name.

    >>> split_names("db.a, db.`b,c`"), split_names("")
    (['db.a', 'db.`b,c`'], [''])
    """
    names: list[str] = []
    begin = at = 0
    while True:
        quoted = _QUOTED.match(text, at)
        end = _END.search(text, at if quoted is None else quoted.end())
        if end is None:
            return [*names, text[begin:].strip()]
        at = end.end()
        if end[0] == ",":
            names.append(text[begin : end.start()].strip())
            begin = at


def full_name(catalog: str, identifier: Iterable[str]) -> str:
    """The full name of a table, or a namespace with its catalog, as it is printed.

    >>> full_name("lake", ("raw", "web.clicks"))
    'lake.raw.`web.clicks`'
    """
    return join_parts((catalog, *identifier))


def _parts_in_form(text: str, form: str) -> tuple[str, ...]:
    """The parts of a name that has as many as a form, such as `FULL_NAME`, or more.

    Raises:
        UsageError: it has fewer, or one that cannot be the name of anything.
    """
    written = written_parts(text)
    parts = split_name(text)
    if len(parts) <= form.count(".") or not all(map(can_be_part, written)):
        raise UsageError(f"{text!r} is no full name of a table; give {form}")
    return parts


def can_be_part(written: str) -> bool:
    """Whether a written part can name something: blanks at its ends are meant only in quotes."""
    part = _unquoted(written)
    return bool(part) and part.isprintable() and (is_quoted(written) or part == part.strip())


def name_of_form(text: str, form: str) -> str | None:
    """A name as it is printed, or `None` for a text that is none of this form.

    >>> name_of_form('lake.db."a.b"', FULL_NAME), name_of_form("db.`events`", FULL_NAME)
    ('lake.db.`a.b`', None)
    """
    try:
        return join_parts(_parts_in_form(text, form))
    except UsageError:
        return None


def catalog_of(full_name: str) -> str:
    """The catalog of a table by its full name, or of a namespace or pattern with the catalog in front."""
    return split_name(full_name)[0]


def without_catalog(full_name: str) -> str:
    """What follows the catalog in a full name or a pattern, as it is written there; nothing where nothing follows."""
    return ".".join(written_parts(full_name)[1:])


def _unquoted(part: str) -> str:
    return part[1:-1].replace(part[0] * 2, part[0]) if is_quoted(part) else part
