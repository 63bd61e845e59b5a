"""Text to a sort order: what `sort_order` says, in the words of Iceberg's Spark procedures.

Keys with commas between them, for example `day DESC NULLS LAST, bucket(16, id), user.name`: a column or a transform of
one, and if wanted a direction and where nulls come. Or a curve through several columns, `zorder(a, b)` or `hilbert(a, b)`.
A name that is no plain word stands in backticks or double quotes, which are doubled within their kind. No name is looked
up here.
"""

import re
from typing import Literal, cast

import msgspec

from icekeep.errors import UsageError
from icekeep.spec.sorting import SortKey
from icekeep.spec.text_reader import QUOTED_NAME, SPACE, TRANSFORMS, TextReader, Token

MAX_TEXT_LENGTH = 16 * 1024
"""How many characters a sort order may have."""


class CurveKeys(msgspec.Struct, frozen=True):
    """A curve as a user names it, through columns by their full names."""

    kind: Literal["zorder", "hilbert"]
    columns: tuple[str, ...]


def parse_sort_order(text: str) -> tuple[SortKey, ...] | CurveKeys:
    """Read a sort order; words are read in any case, column names as they are written.

    Without a word on nulls they come first with ASC and last with DESC. Columns of curves of one kind are put together,
    as Iceberg does.

    Raises:
        UsageError: the text is no sort order; `facts` holds the `text` and the `position` of the first character that is
            wrong, counted from 1.
    """
    return SortOrderReader(text).parse()


_TOKEN = re.compile(
    rf"""
    {SPACE}
    | (?P<number>[0-9]+(?!\w))
    | (?P<name>\w+)
    | {QUOTED_NAME}
    | (?P<mark>[(),.])
    """,
    re.VERBOSE,
)
_CURVES = ("ZORDER", "HILBERT")


class SortOrderReader(TextReader):
    what, error, max_length = "sort order", UsageError, MAX_TEXT_LENGTH
    pattern, quotes = _TOKEN, '"`'
    functions = (*TRANSFORMS, *(word.lower() for word in _CURVES))

    def parse(self) -> tuple[SortKey, ...] | CurveKeys:
        if self._token.kind == "end":
            self._fail("it is empty; leave it out to mean the table's own order")
        in_parentheses = self._take("(")
        terms = [self._term()]
        while self._take(","):
            terms.append(self._term())
        if in_parentheses and not self._take(")"):
            self._fail("a comma or the closing parenthesis is missing here")
        if self._token.kind != "end":
            self._fail("a comma, ASC, DESC, NULLS FIRST, NULLS LAST or the end is missing here")
        return self._one_kind(terms)

    def _one_kind(self, terms: list[SortKey | CurveKeys]) -> tuple[SortKey, ...] | CurveKeys:
        curves = [term for term in terms if isinstance(term, CurveKeys)]
        keys = tuple(term for term in terms if isinstance(term, SortKey))
        if not curves:
            return keys
        if keys or len({curve.kind for curve in curves}) > 1:
            self._fail("a curve goes with no other key and no other curve", self.tokens[0])
        return CurveKeys(curves[0].kind, tuple(column for curve in curves for column in curve.columns))

    def _term(self) -> SortKey | CurveKeys:
        first = self._token
        self._name()
        if self._token.text == "(":
            self._index += 1
            if first.word in _CURVES:
                return self._curve(first)
            column, transform = self._transform(first)
        else:
            self._index -= 1
            column, transform = self._column(), "identity"
        return self._key(column, transform)

    def _curve(self, name: Token) -> CurveKeys:
        columns = [self._column()]
        while self._take(","):
            columns.append(self._column())
        self._close()
        if self._token.word in ("ASC", "DESC", "NULLS"):
            self._fail("a curve has no direction")
        return CurveKeys(cast("Literal['zorder', 'hilbert']", name.word.lower()), tuple(columns))

    def _key(self, column: str, transform: str) -> SortKey:
        direction = "asc"
        if self._take("DESC"):
            direction = "desc"
        else:
            self._take("ASC")
        null_order = None
        if self._take("NULLS"):
            if self._take("FIRST"):
                null_order = "nulls-first"
            elif self._take("LAST"):
                null_order = "nulls-last"
            else:
                self._fail("after NULLS there is FIRST or LAST")
        return SortKey(column, transform, direction, null_order)
