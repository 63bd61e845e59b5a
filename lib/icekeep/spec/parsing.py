"""Text to a filter: the language of `where`.

Comparisons of a column with a literal, IN and NOT IN, IS NULL and IS NOT NULL, AND, parentheses, true and false. Text
stands in single quotes, a name that is no plain word in double quotes or backticks; a quote is doubled within its kind.
The text becomes a tree of `Predicate` and never anything else: no name is looked up here and nothing is executed.
"""

import re
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

from icekeep.errors import ExpressionError
from icekeep.spec.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    MAX_DEPTH,
    RESERVED_WORDS,
    Expression,
    Operation,
    Predicate,
    conjunction,
)

MAX_TEXT_LENGTH = 256 * 1024
"""How many characters a filter may have."""

MAX_LITERALS = 10_000
"""How many literals a filter may hold."""

MAX_NUMBER_LENGTH = 400
"""How many characters and how large an exponent a number may have: more than any column can hold."""


def parse_where(text: str) -> Expression:
    """Read a filter, for example `day >= '2026-01-01' AND kind IN ('a', 'b')`.

    Keywords are read in any case, column names as they are written. A number becomes an int, or a Decimal where it has
    a point or an exponent.

    Raises:
        ExpressionError: the text is not a filter, or uses what the language does not have; `facts` holds the `text` and
            the `position` of the first character that is wrong, counted from 1.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise ExpressionError(f"the filter has {len(text)} characters; it may have {MAX_TEXT_LENGTH}", position=1)
    return _Parser(text).parse()


class _Token(msgspec.Struct, frozen=True):
    """A piece of the text, as it stands there; `start` counts from 0."""

    kind: str
    start: int
    text: str

    @property
    def word(self) -> str:
        """The piece in upper case where it may be a keyword, else nothing."""
        # Letters beyond ASCII whose upper case is ASCII, as the dotless i, make no keyword.
        return self.text.upper() if self.kind == "name" and self.text.isascii() else ""


_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*)
    | (?P<string>'(?:[^']|'')*+')
    | (?P<quoted>"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)
    | (?P<comparison><=|>=|<>|!=|==|[=<>])
    | (?P<mark>[-+(),.*/%])
    """,
    re.VERBOSE,
)
_COMPARISONS = {
    "=": Operation.EQ,
    "==": Operation.EQ,
    "!=": Operation.NOT_EQ,
    "<>": Operation.NOT_EQ,
    "<": Operation.LT,
    "<=": Operation.LT_EQ,
    ">": Operation.GT,
    ">=": Operation.GT_EQ,
}
_MIRRORED = {
    Operation.LT: Operation.GT,
    Operation.LT_EQ: Operation.GT_EQ,
    Operation.GT: Operation.LT,
    Operation.GT_EQ: Operation.LT_EQ,
}
_EXCERPT_LENGTH = 30


class _Parser:
    """Recursive descent over the tokens of one text; each method reads one rule of the grammar and moves past it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize()
        self._index = 0
        self._literal_count = 0

    def parse(self) -> Expression:
        if self._token.kind == "end":
            self._fail("it is empty; leave it out to mean every row")
        expression = self._conjunction(depth=0)
        if self._token.kind != "end":
            self._fail("AND or the end is missing here")
        return expression

    def _tokenize(self) -> list[_Token]:
        tokens = []
        start = 0
        while start < len(self._text):
            match = _TOKEN.match(self._text, start)
            if match is None or match.lastgroup is None:
                self._fail(_unreadable(self._text[start]), _Token("unknown", start, self._text[start]))
            if match.lastgroup != "space":
                tokens.append(_Token(match.lastgroup, start, match[0]))
            start = match.end()
        return [*tokens, _Token("end", start, "")]

    @property
    def _token(self) -> _Token:
        return self._tokens[self._index]

    @property
    def _following(self) -> _Token:
        return self._tokens[min(self._index + 1, len(self._tokens) - 1)]

    def _take(self, text: str) -> bool:
        """Move past a keyword or a mark if it is next."""
        found = text in (self._token.word, self._token.text)
        self._index += found
        return found

    def _conjunction(self, depth: int) -> Expression:
        terms = [self._term(depth)]
        while self._take("AND"):
            terms.append(self._term(depth))
        if self._token.word == "OR":
            self._fail("OR is not supported yet")
        return conjunction(terms)

    def _term(self, depth: int) -> Expression:
        token = self._token
        if self._take("("):
            if depth == MAX_DEPTH:
                self._fail(f"parentheses are nested deeper than {MAX_DEPTH} levels", token)
            inner = self._conjunction(depth + 1)
            if not self._take(")"):
                self._fail("AND or the closing parenthesis is missing here")
            return inner
        if token.word == "NOT":
            self._fail("NOT is not supported yet, but in NOT IN and IS NOT NULL")
        if token.word in ("TRUE", "FALSE") and self._following.kind != "comparison":
            self._index += 1
            return ALWAYS_TRUE if token.word == "TRUE" else ALWAYS_FALSE
        return self._mirrored_comparison() if self._at_literal() else self._predicate(self._column())

    def _mirrored_comparison(self) -> Expression:
        literal = self._literal()
        if self._token.kind != "comparison":
            self._fail("a comparison with a column is missing here")
        operation = self._comparison()
        if self._at_literal():
            self._fail("there is a literal on both sides; one must be a column")
        return Predicate(_MIRRORED.get(operation, operation), self._column(), (literal,))

    def _predicate(self, column: str) -> Expression:
        token = self._token
        if token.kind == "comparison":
            operation = self._comparison()
            return Predicate(operation, column, (self._literal(),))
        if self._take("IS"):
            return Predicate(self._null_test(), column)
        if self._take("IN"):
            return Predicate(Operation.IN, column, self._list())
        if self._take("NOT"):
            if self._take("IN"):
                return Predicate(Operation.NOT_IN, column, self._list())
            self._refuse_unsupported(f"NOT {self._token.word}")
        self._refuse_unsupported(token.word)
        self._fail("a comparison, IN or IS is missing here")

    def _refuse_unsupported(self, words: str) -> None:
        if words.removeprefix("NOT ") in ("BETWEEN", "LIKE", "ILIKE", "RLIKE"):
            self._fail(f"{words} is not supported yet")
        if self._token.text in ("+", "-", "*", "/", "%"):
            self._fail("arithmetic is not supported")

    def _comparison(self) -> Operation:
        operation = _COMPARISONS[self._token.text]
        self._index += 1
        return operation

    def _null_test(self) -> Operation:
        operation = Operation.NOT_NULL if self._take("NOT") else Operation.IS_NULL
        if not self._take("NULL"):
            self._fail("after IS and IS NOT only NULL is supported yet")
        return operation

    def _list(self) -> tuple[Any, ...]:
        if not self._take("("):
            self._fail("after IN a list in parentheses is missing here")
        literals = [self._literal()]
        while self._take(","):
            literals.append(self._literal())
        if not self._take(")"):
            self._fail("a comma or the closing parenthesis is missing here")
        return tuple(literals)

    def _column(self) -> str:
        token = self._token
        if token.kind not in ("name", "quoted") or token.word in RESERVED_WORDS:
            self._fail("a column or a literal is missing here")
        if token.kind == "name" and self._following.kind == "string":
            self._fail(f"{token.text} literals are not supported yet; write the text alone, as '2026-01-31'")
        self._index += 1
        if self._token.text == ".":
            self._fail("nested columns are not supported yet; a name that has a dot in it stands in double quotes")
        if self._token.text == "(":
            self._fail("functions are not supported yet", token)
        return token.text if token.kind == "name" else _unquote(token.text)

    def _at_literal(self) -> bool:
        token = self._token
        return token.kind in ("number", "string") or token.word in ("TRUE", "FALSE", "NULL") or token.text in ("-", "+")

    def _literal(self) -> Any:
        token = self._token
        if not self._at_literal():
            self._fail_literal()
        self._literal_count += 1
        if self._literal_count > MAX_LITERALS:
            self._fail(f"there are more than {MAX_LITERALS} literals")
        if token.word == "NULL":
            self._fail("nothing compares with NULL; write IS NULL or IS NOT NULL")
        self._index += 1
        if token.kind == "string":
            return _unquote(token.text)
        return self._number(token) if token.kind == "number" else self._signed(token)

    def _fail_literal(self) -> NoReturn:
        if self._token.kind == "name" and self._following.kind == "string":
            self._fail(f"{self._token.text} literals are not supported yet; write the text alone, as '2026-01-31'")
        if self._token.kind in ("name", "quoted") and self._token.word not in RESERVED_WORDS:
            self._fail("a column is compared with literals only; text stands in single quotes")
        self._fail("a literal is missing here")

    def _signed(self, token: _Token) -> Any:
        if token.word:
            return token.word == "TRUE"
        number_token = self._token
        if number_token.kind != "number":
            self._fail("a number is missing here")
        self._index += 1
        number = self._number(number_token)
        return -number if token.text == "-" else number

    def _number(self, token: _Token) -> int | Decimal:
        digits, _, exponent = token.text.lower().partition("e")
        if self._token.start == token.start + len(token.text) and self._token.kind in ("name", "number"):
            self._fail("this is no number", token)
        if len(token.text) > MAX_NUMBER_LENGTH or (exponent and abs(int(exponent)) > MAX_NUMBER_LENGTH):
            self._fail("the number has too many digits", token)
        return int(digits) if not exponent and "." not in digits else Decimal(token.text)

    def _fail(self, problem: str, token: _Token | None = None) -> NoReturn:
        start = (token or self._token).start
        rest = self._text[start : start + _EXCERPT_LENGTH]
        place = f"before {rest!r}" if rest else "at its end"
        raise ExpressionError(
            f"cannot read the filter at position {start + 1}, {place}: {problem}", text=self._text, position=start + 1
        )


def _unquote(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _unreadable(character: str) -> str:
    if character in "'\"`":
        return f"the quote {character} is not closed"
    return f"the character {character!r} has no meaning here"
