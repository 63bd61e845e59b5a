"""The words of the filter language: text to tokens, and errors that say where."""

import re
from typing import NoReturn

import msgspec

from icekeep.errors import ExpressionError

RESERVED_WORDS = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "TRUE", "FALSE", "TODAY", "NOW"})
"""Words that name a column only in quotes."""


class Token(msgspec.Struct, frozen=True):
    """A piece of the text, as it stands there; `start` counts from 0."""

    kind: str
    start: int
    text: str

    @property
    def word(self) -> str:
        """The piece in upper case where it may be a keyword, else nothing."""
        # Letters beyond ASCII whose upper case is ASCII, as the dotless i, make no keyword.
        return self.text.upper() if self.kind == "name" and self.text.isascii() else ""

    @property
    def is_column(self) -> bool:
        """Whether the piece may name a column."""
        return self.kind == "quoted" or (self.kind == "name" and self.word not in RESERVED_WORDS)

    @property
    def end(self) -> int:
        """Where the next piece may start."""
        return self.start + len(self.text)


_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<bytes>[xX]'[^']*')
    | (?P<age>[0-9]{1,9}[smhdw](?!\w))
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*)
    | (?P<string>'(?:[^']|'')*+')
    | (?P<quoted>"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)
    | (?P<comparison><=|>=|<>|!=|==|[=<>])
    | (?P<mark>[-+(),.*/%])
    """,
    re.VERBOSE,
)
_EXCERPT_LENGTH = 30


def tokenize(text: str) -> list[Token]:
    """The tokens of a filter, the last one of kind "end"; raises `ExpressionError` where there is none."""
    tokens = []
    start = 0
    while start < len(text):
        match = _TOKEN.match(text, start)
        if match is None or match.lastgroup is None:
            fail_at(text, start, _unreadable(text[start]))
        if match.lastgroup != "space":
            tokens.append(Token(match.lastgroup, start, match[0]))
        start = match.end()
    return [*tokens, Token("end", start, "")]


def unquote(text: str) -> str:
    """What stands in quotes; a quote is doubled within its kind."""
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def fail_at(text: str, start: int, problem: str) -> NoReturn:
    """Raise `ExpressionError` for the character at `start`, counted from 0; `facts` count from 1."""
    rest = text[start : start + _EXCERPT_LENGTH]
    place = f"before {rest!r}" if rest else "at its end"
    one_line = " ".join(problem.split())
    raise ExpressionError(
        f"cannot read the filter at position {start + 1}, {place}: {one_line}", text=text, position=start + 1
    )


def _unreadable(character: str) -> str:
    if character in "'\"`":
        return f"the quote {character} is not closed"
    return f"the character {character!r} has no meaning here"
