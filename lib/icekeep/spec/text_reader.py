"""What the small languages of arguments have in common: tokens, names in quotes, and errors that say where."""

import re
from typing import ClassVar, NoReturn

import msgspec

from icekeep.errors import UsageError

SPACE = r"(?P<space>\s+)"
QUOTED_NAME = r'(?P<quoted>"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)'

_EXCERPT_LENGTH = 30

_PLAIN_TRANSFORMS = {
    "IDENTITY": "identity",
    **dict.fromkeys(("YEAR", "YEARS"), "year"),
    **dict.fromkeys(("MONTH", "MONTHS"), "month"),
    **dict.fromkeys(("DAY", "DAYS", "DATE"), "day"),
    **dict.fromkeys(("HOUR", "HOURS", "DATE_HOUR"), "hour"),
}
_NUMBERED_TRANSFORMS = {"BUCKET": "bucket", "TRUNCATE": "truncate"}

TRANSFORMS = tuple(word.lower() for word in (*_PLAIN_TRANSFORMS, *_NUMBERED_TRANSFORMS))
"""What transforms of columns are called in Spark's SQL."""


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
    def end(self) -> int:
        """Where the next piece may start."""
        return self.start + len(self.text)


def unquote(text: str) -> str:
    """What stands in quotes; a quote is doubled within its kind."""
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


class TextReader:
    """Recursive descent over the tokens of one text; each method of a language reads one rule and moves past it.

    Attributes:
        tokens: all of them, the last one of kind "end".
        what: the text in messages.
        error: raised where the text is wrong; `facts` hold the `text` and the `position` of the first wrong character, counted
            from 1.
        max_length: in characters.
        pattern: of tokens: groups named by kind, among them `space`, `name` and `quoted`.
        quotes: what may begin a quoted piece.
        functions: the names that may stand before a parenthesis.
    """

    what: ClassVar[str]
    error: ClassVar[type[UsageError]]
    max_length: ClassVar[int]
    pattern: ClassVar[re.Pattern[str]]
    quotes: ClassVar[str]
    functions: ClassVar[tuple[str, ...]]

    def __init__(self, text: str) -> None:
        if len(text) > self.max_length:
            raise self.error(f"the {self.what} has {len(text)} characters; it may have {self.max_length}", position=1)
        self._text = text
        self.tokens = self._tokenized()
        self._index = 0

    @property
    def _token(self) -> Token:
        """The next one."""
        return self.tokens[self._index]

    @property
    def _following(self) -> Token:
        return self.tokens[min(self._index + 1, len(self.tokens) - 1)]

    def _take(self, text: str) -> bool:
        """Move past a keyword or a mark if it is next."""
        found = text in (self._token.word, self._token.text)
        self._index += found
        return found

    def _column(self) -> str:
        """Names with dots between them."""
        parts = [self._name()]
        while self._take("."):
            parts.append(self._name())
        return ".".join(parts)

    def _name(self) -> str:
        token = self._token
        if token.kind not in ("name", "quoted"):
            self._fail("a column is missing here")
        self._index += 1
        return token.text if token.kind == "name" else unquote(token.text)

    def _transform(self, name: Token) -> tuple[str, str]:
        """What follows the name of a transform and its opening parenthesis: the column, and the transform as metadata has it."""
        if (plain := _PLAIN_TRANSFORMS.get(name.word)) is not None:
            column = self._column()
            self._close()
            return column, plain
        if (numbered := _NUMBERED_TRANSFORMS.get(name.word)) is None:
            self._fail(f"there is no transform of this name; there are {', '.join(self.functions)}", name)
        # Spark's users write the number on either side.
        number = self._whole_number() if self._token.kind == "number" else None
        if number is not None:
            self._comma(f"after the number of {numbered} a column is missing here")
        column = self._column()
        if number is None:
            self._comma(f"the number of {numbered} is missing here")
            number = self._whole_number()
        self._close()
        return column, f"{numbered}[{number}]"

    def _whole_number(self) -> int:
        if self._token.kind != "number" or not self._token.text.isdigit():
            self._fail("a whole number is missing here")
        self._index += 1
        return int(self.tokens[self._index - 1].text)

    def _comma(self, missing: str) -> None:
        if not self._take(","):
            self._fail(missing)

    def _close(self) -> None:
        if not self._take(")"):
            self._fail("a comma or the closing parenthesis is missing here")

    def _fail(self, problem: str, token: Token | None = None) -> NoReturn:
        """Raise for a token, the next one by default."""
        self._fail_at((token or self._token).start, problem)

    def _fail_at(self, start: int, problem: str) -> NoReturn:
        rest = self._text[start : start + _EXCERPT_LENGTH]
        place = f"before {rest!r}" if rest else "at its end"
        one_line = " ".join(problem.split())
        raise self.error(
            f"cannot read the {self.what} at position {start + 1}, {place}: {one_line}",
            text=self._text,
            position=start + 1,
        )

    def _tokenized(self) -> list[Token]:
        tokens = []
        start = 0
        while start < len(self._text):
            match = self.pattern.match(self._text, start)
            if match is None or match.lastgroup is None:
                self._fail_at(start, self._unreadable(self._text[start]))
            if match.lastgroup != "space":
                tokens.append(Token(match.lastgroup, start, match[0]))
            start = match.end()
        return [*tokens, Token("end", start, "")]

    def _unreadable(self, character: str) -> str:
        if character in self.quotes:
            return f"the quote {character} is not closed"
        return f"the character {character!r} has no meaning here"
