"""What the small languages of arguments have in common: tokens, names in quotes, and errors that say where."""

import re
from typing import ClassVar, NoReturn

import msgspec

from icekeep.errors import UsageError

SPACE = r"(?P<space>\s+)"
QUOTED_NAME = r'(?P<quoted>"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)'

_EXCERPT_LENGTH = 30


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
    """

    what: ClassVar[str]
    error: ClassVar[type[UsageError]]
    max_length: ClassVar[int]
    pattern: ClassVar[re.Pattern[str]]
    quotes: ClassVar[str]

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
