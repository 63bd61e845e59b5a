"""Patterns of LIKE that a filter can use: a prefix and one `%` after it, or no wildcard at all.

What the small languages of arguments have in common: tokens, names in quotes, and errors that say where.

Text to a filter: the language of `where`.

Comparisons of a column with a literal, IN, BETWEEN, LIKE 'prefix%', IS NULL, IS NAN, a boolean column alone; NOT, AND, OR,
parentheses, true and false. In the place of a column there may be a transform of one, such as `bucket(16, id)` or, as Iceberg's
procedures have it, `system.bucket(16, id)`. Text stands in single quotes, a name that is no plain word in double quotes or
backticks; a quote is doubled within its kind. The text becomes a tree of `Predicate` and never anything else: no name is
looked up here and nothing is executed.

Filters as text, in the language that `parsing.py` reads.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, NoReturn

import msgspec

from icekeep.errors import ExpressionError, IcekeepBug, UsageError
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    MAX_DEPTH,
    PREFIX_OPERATIONS,
    SET_OPERATIONS,
    UNARY_OPERATIONS,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Not,
    Operation,
    Or,
    Predicate,
    chain,
    conjunction,
    disjunction,
)
from icekeep.spec.filters.literals import DateLiteral, Moment, TimestampLiteral
from icekeep.spec.times import AGE, age_ms
from icekeep.spec.transforms import Bucket, Identity, Transform, Truncate, known_transform
from icekeep.spec.types import DAY_MS, INT, PrimitiveType, Type
from icekeep.spec.values import NANOS_PER_SECOND, parse_date, parse_timestamp, read_bytes, value_to_text

_SUPPORTED = "LIKE takes a prefix with one % at its end, as in 'abc%'"


def read_pattern(pattern: str, escape: str = "\\") -> tuple[str, bool]:
    r"""The text that a pattern asks for, and whether it is the whole value rather than a prefix.

    >>> read_pattern("ab%"), read_pattern(r"10\%")
    (('ab', False), ('10%', True))

    Args:
        escape: the character that takes its meaning from a wildcard, or from itself, after it.

    Raises:
        ValueError: there is another wildcard, or the escape stands before something else.
    """
    text: list[str] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == escape:
            position += 1
            escaped = pattern[position : position + 1]
            if escaped not in ("%", "_", escape):
                raise ValueError(f"the escape {escape} stands before %, _ or {escape} only")
            text.append(escaped)
        elif character == "%":
            if position != len(pattern) - 1:
                raise ValueError(f"{_SUPPORTED}; escape another % as {escape}%")
            return "".join(text), False
        elif character == "_":
            raise ValueError(f"{_SUPPORTED}; the wildcard _ is not supported, escape it as {escape}_")
        else:
            text.append(character)
        position += 1
    return "".join(text), True


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


RESERVED_WORDS = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "TRUE", "FALSE", "TODAY", "NOW"})
"""Words that name a column only in quotes."""

MAX_TEXT_LENGTH = 256 * 1024
"""How many characters a filter may have."""

MAX_LITERALS = 10_000
"""How many literals a filter may hold."""

MAX_NUMBER_LENGTH = 400
"""How many characters and how large an exponent a number may have: more than any column can hold."""

MAX_DAYS_LENGTH = 9
"""How many digits the days before or after today may have, as those of an age."""


def parse_where(text: str, moment_ms: int | None = None) -> Expression:
    """Read a filter, for example `day >= today - 7 AND kind IN ('a', 'b')`.

    Keywords are read in any case, column names as they are written. A number becomes an int, or a Decimal where it has
    a point or an exponent.

    Args:
        moment_ms: what `now` is, in epoch milliseconds; `today` is its day in UTC. One run of a job has one moment.

    Raises:
        ExpressionError: the text is not a filter, or uses what the language does not have, or `today` or `now` without a
            moment; `facts` holds the `text` and the `position` of the first character that is wrong, counted from 1.
    """
    return FilterReader(text, moment_ms).parse()


_TOKEN = re.compile(
    rf"""
    {SPACE}
    | (?P<bytes>[xX]'[^']*')
    | (?P<age>(?:{AGE.pattern})(?!\w))
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*)
    | (?P<string>'(?:[^']|'')*+')
    | {QUOTED_NAME}
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
_COMPARED: dict[Operation, Callable[[Any, Any], bool]] = {
    Operation.EQ: operator.eq,
    Operation.NOT_EQ: operator.ne,
    Operation.LT: operator.lt,
    Operation.LT_EQ: operator.le,
    Operation.GT: operator.gt,
    Operation.GT_EQ: operator.ge,
}
_TYPED = ("DATE", "TIMESTAMP")
_BARE_DATE = re.compile(r"(?<![\w'])\d{4}-\d{2}-\d{2}(?![\w'])")
_OTHER_PATTERNS = ("ILIKE", "RLIKE", "REGEXP", "SIMILAR")


class FilterReader(TextReader):
    what, error, max_length = "filter", ExpressionError, MAX_TEXT_LENGTH
    pattern, quotes = _TOKEN, "'\"`"
    functions = TRANSFORMS

    def __init__(self, text: str, moment_ms: int | None) -> None:
        super().__init__(text)
        self._moment_ms = moment_ms
        self._literal_count = 0

    def parse(self) -> Expression:
        if self._token.kind == "end":
            self._fail("it is empty; leave it out to mean every row")
        expression = self._disjunction(depth=0)
        if self._token.kind != "end":
            self._fail("AND, OR or the end is missing here")
        return expression

    def _disjunction(self, depth: int) -> Expression:
        terms = [self._conjunction(depth)]
        while self._take("OR"):
            terms.append(self._conjunction(depth))
        return disjunction(terms)

    def _conjunction(self, depth: int) -> Expression:
        terms = [self._term(depth)]
        while self._take("AND"):
            terms.append(self._term(depth))
        return conjunction(terms)

    def _term(self, depth: int) -> Expression:
        token = self._token
        if depth > MAX_DEPTH:
            self._fail(f"NOT and parentheses are nested deeper than {MAX_DEPTH} levels")
        if self._take("NOT"):
            # Parentheses after NOT belong to it, as does the level.
            return Not(self._term(depth + (self._token.text != "(")))
        if self._take("("):
            if depth == MAX_DEPTH:
                self._fail(f"NOT and parentheses are nested deeper than {MAX_DEPTH} levels", token)
            inner = self._disjunction(depth + 1)
            if not self._take(")"):
                self._fail("AND, OR or the closing parenthesis is missing here")
            return inner
        if token.word in ("TRUE", "FALSE") and self._following.kind != "comparison":
            self._index += 1
            return ALWAYS_TRUE if token.word == "TRUE" else ALWAYS_FALSE
        return self._mirrored_comparison() if self._at_literal() else self._predicate(self._operand())

    def _mirrored_comparison(self) -> Expression:
        literal = self._literal()
        if self._token.kind != "comparison":
            self._fail("a comparison with a column is missing here")
        operation = self._comparison()
        if self._at_literal():
            return self._constant(operation, literal)
        return self._operand().asked(_MIRRORED.get(operation, operation), literal)

    def _constant(self, operation: Operation, left: Any) -> Expression:
        """A comparison of two literals, as `1 = 1`: of two numbers, two texts or two truths."""
        token, right = self._token, self._literal()
        kind = next(
            (one for one in (bool, str, int | Decimal) if isinstance(left, one) and isinstance(right, one)), None
        )
        if kind is None or isinstance(left, bool) is not isinstance(right, bool):
            self._fail("there is a literal on both sides; one must be a column", token)
        return ALWAYS_TRUE if _COMPARED[operation](left, right) else ALWAYS_FALSE

    def _operand(self) -> "_Operand":
        """A column, or a transform of one."""
        first = self._index
        column = self._column(may_be_called=True)
        if not self._take("("):
            return _Operand(column)
        name, before = self.tokens[self._index - 2], self.tokens[first : self._index - 2]
        # As `system.bucket` or `CATALOG.system.bucket`.
        if before and before[-2].word != "SYSTEM":
            self._fail("functions of transforms stand alone or after system, as in system.bucket(16, id)", name)
        column, text = self._transform(name)
        try:
            transform = known_transform(text)
        except UsageError as error:
            self._fail(error.message, name)
        return _Operand(column, None if isinstance(transform, Identity) else transform)

    def _predicate(self, operand: "_Operand") -> Expression:
        token = self._token
        if token.kind == "comparison":
            operation = self._comparison()
            return operand.asked(operation, self._literal())
        if self._take("IS"):
            return self._unary(operand)
        is_alone = operand.transform is None
        if is_alone and (token.kind == "end" or token.word in ("AND", "OR") or token.text == ")"):
            return operand.asked(Operation.EQ, True)
        negated = self._take("NOT")
        if self._take("IN"):
            return operand.asked(Operation.NOT_IN if negated else Operation.IN, *self._list())
        if self._take("BETWEEN"):
            return self._between(operand, negated=negated)
        if self._take("LIKE"):
            return self._like(operand, negated=negated)
        self._fail_predicate()

    def _fail(self, problem: str, token: Token | None = None) -> NoReturn:
        """Raise for a token; where that is of a date, which without quotes is numbers, that is what is wrong."""
        start = (token or self._token).start
        dates = (_BARE_DATE.match(self._text, at) for at in (start - len("2026"), start) if at >= 0)
        date = next(filter(None, dates), None)
        super()._fail(problem if date is None else f"a date stands in single quotes: {date[0]!r}", token)

    def _fail_predicate(self) -> NoReturn:
        if self._token.word in _OTHER_PATTERNS:
            self._fail(f"{self._token.word} is not supported; LIKE 'prefix%' is")
        if self._token.text in ("+", "-", "*", "/", "%"):
            self._fail("arithmetic is supported only after today and now")
        self._fail("a comparison, IN, BETWEEN, LIKE or IS is missing here")

    def _comparison(self) -> Operation:
        operation = _COMPARISONS[self._token.text]
        self._index += 1
        return operation

    def _unary(self, operand: "_Operand") -> Expression:
        negated = self._take("NOT")
        if self._take("NULL"):
            return operand.asked(Operation.NOT_NULL if negated else Operation.IS_NULL)
        if self._take("NAN"):
            return operand.asked(Operation.NOT_NAN if negated else Operation.IS_NAN)
        self._fail("after IS and IS NOT there is NULL or NAN")

    def _list(self) -> tuple[Any, ...]:
        if not self._take("("):
            self._fail("after IN a list in parentheses is missing here")
        literals = [self._literal()]
        while self._take(","):
            literals.append(self._literal())
        if not self._take(")"):
            self._fail("a comma or the closing parenthesis is missing here")
        return tuple(literals)

    def _between(self, operand: "_Operand", *, negated: bool) -> Expression:
        lowest = self._literal()
        if not self._take("AND"):
            self._fail("AND and the upper end of BETWEEN are missing here")
        within = And(operand.asked(Operation.GT_EQ, lowest), operand.asked(Operation.LT_EQ, self._literal()))
        return Not(within) if negated else within

    def _like(self, operand: "_Operand", *, negated: bool) -> Expression:
        token = self._token
        pattern = self._string("after LIKE a pattern in single quotes is missing here")
        escape = "\\"
        if self._take("ESCAPE"):
            escape_token = self._token
            escape = self._string("after ESCAPE a character in single quotes is missing here")
            if len(escape) != 1:
                self._fail("an escape is one character", escape_token)
        try:
            prefix, is_whole = read_pattern(pattern, escape)
        except ValueError as problem:
            self._fail(str(problem), token)
        if is_whole:
            return operand.asked(Operation.NOT_EQ if negated else Operation.EQ, prefix)
        return operand.asked(Operation.NOT_STARTS_WITH if negated else Operation.STARTS_WITH, prefix)

    def _string(self, missing: str) -> str:
        if self._token.kind != "string":
            self._fail(missing)
        self._count_literal()
        self._index += 1
        return unquote(self.tokens[self._index - 1].text)

    def _column(self, *, may_be_called: bool = False) -> str:
        self._refuse_typed()
        column = super()._column()
        if self._token.text == "(" and not may_be_called:
            self._fail("a transform is of a column, and of no other transform", self.tokens[self._index - 1])
        return column

    def _name(self) -> str:
        token = self._token
        if not _may_be_column(token):
            is_meant = self.tokens[self._index - 1].text == "." or self._following.kind == "comparison"
            if token.word and is_meant:
                self._fail(f"{token.word} is a reserved word; a column of that name stands in double quotes")
            self._fail("a column or a literal is missing here")
        return super()._name()

    def _at_literal(self) -> bool:
        token = self._token
        if token.kind == "name" and self._following.kind == "string":
            return token.word in _TYPED
        return (
            token.kind in ("number", "age", "string", "bytes")
            or token.word in ("TRUE", "FALSE", "NULL", "TODAY", "NOW")
            or token.text in ("-", "+")
        )

    def _literal(self) -> Any:
        token = self._token
        if not self._at_literal():
            self._fail_literal()
        self._count_literal()
        if token.word == "NULL":
            self._fail("nothing compares with NULL; write IS NULL or IS NOT NULL")
        self._index += 1
        if token.word in _TYPED:
            return self._typed(token)
        if token.word in ("TODAY", "NOW"):
            return self._moment(token)
        if token.word:
            return token.word == "TRUE"
        match token.kind:
            case "string":
                return unquote(token.text)
            case "bytes":
                return self._bytes(token)
            case "mark":
                return self._signed(token)
        return self._number(token)

    def _count_literal(self) -> None:
        self._literal_count += 1
        if self._literal_count > MAX_LITERALS:
            self._fail(f"there are more than {MAX_LITERALS} literals")

    def _fail_literal(self) -> NoReturn:
        self._refuse_typed()
        if _may_be_column(self._token):
            self._fail("a column is compared with literals only; text stands in single quotes")
        self._fail("a literal is missing here")

    def _refuse_typed(self) -> None:
        is_word = self._token.kind == "name" and _may_be_column(self._token)
        if is_word and self._following.kind == "string":
            self._fail(f"{self._token.text} literals are not supported, DATE and TIMESTAMP are; write the text alone")

    def _typed(self, token: Token) -> DateLiteral | TimestampLiteral:
        text = unquote(self._token.text)
        try:
            if token.word == "DATE":
                literal: DateLiteral | TimestampLiteral = DateLiteral(parse_date(text))
            else:
                nanos, offset_seconds = parse_timestamp(text, NANOS_PER_SECOND)
                literal = TimestampLiteral(nanos, zoned=offset_seconds is not None)
        except ValueError as problem:
            self._fail(f"{token.word} {self._token.text}: {problem}", token)
        self._index += 1
        return literal

    def _bytes(self, token: Token) -> bytes:
        try:
            return read_bytes(token.text[2:-1])
        except ValueError as problem:
            self._fail(str(problem), token)

    def _moment(self, token: Token) -> DateLiteral | Moment:
        """`today` or `now`, less or plus an age; a number alone counts days."""
        if self._moment_ms is None:
            self._fail(f"{token.text} has no moment here; hand one in, or write a date", token)
        is_today = token.word == "TODAY"
        shift_ms = 0
        if self._token.text in ("+", "-"):
            sign = -1 if self._token.text == "-" else 1
            self._index += 1
            shift_ms = sign * self._age(is_today=is_today)
        if is_today:
            return DateLiteral(self._moment_ms // DAY_MS + shift_ms // DAY_MS)
        return Moment(self._moment_ms + shift_ms)

    def _age(self, *, is_today: bool) -> int:
        token = self._token
        self._index += 1
        if is_today and token.kind == "number" and token.text.isdigit():
            if len(token.text) > MAX_DAYS_LENGTH:
                self._fail("the number has too many digits", token)
            return int(self._number(token)) * DAY_MS
        if token.kind != "age":
            self._fail(
                "after today and a sign there is a number of days, or an age as 7d or 2w"
                if is_today
                else "after now and a sign there is an age, as 12h or 7d",
                token,
            )
        span_ms = age_ms(token.text)
        if is_today and span_ms % DAY_MS:
            self._fail("today takes whole days, as 7d or 2w; now takes any age", token)
        return span_ms

    def _signed(self, token: Token) -> Any:
        if self._token.kind not in ("number", "age"):
            self._fail("a number is missing here")
        self._index += 1
        number = self._number(self.tokens[self._index - 1])
        return -number if token.text == "-" else number

    def _number(self, token: Token) -> int | Decimal:
        """The number of the token that was moved past last."""
        if token.kind == "age":
            self._fail("an age stands only after today or now", token)
        if self._token.start == token.end and self._token.kind in ("name", "number", "age"):
            self._fail("this is no number", token)
        digits, _, exponent = token.text.lower().partition("e")
        if len(token.text) > MAX_NUMBER_LENGTH or (exponent and abs(int(exponent)) > MAX_NUMBER_LENGTH):
            self._fail("the number has too many digits", token)
        return int(digits) if not exponent and "." not in digits else Decimal(token.text)


class _Operand(NamedTuple):
    """What is compared: a column, or a transform of it."""

    column: str
    transform: Transform | None = None

    def asked(self, operation: Operation, *literals: Any) -> Predicate:
        return Predicate(operation, self.column, literals, self.transform)


def _may_be_column(token: Token) -> bool:
    return token.kind == "quoted" or (token.kind == "name" and token.word not in RESERVED_WORDS)


def format_expression(expression: Expression) -> str:
    """The expression as text that `parse_where` reads back; `now` has become the moment that it was.

    >>> from icekeep.spec.filters.parsing import parse_where
    >>> format_expression(parse_where("not day between '2026-01-01' and '2026-01-31'"))
    "NOT (day >= '2026-01-01' AND day <= '2026-01-31')"
    """
    match expression:
        case AlwaysTrue():
            return "true"
        case AlwaysFalse():
            return "false"
        case Not(child=child):
            return f"NOT ({format_expression(child)})"
        case And() | Or():
            word = " AND " if isinstance(expression, And) else " OR "
            return word.join(_format_term(term) for term in chain(type(expression), [expression]))
        case Predicate(operation=operation, literals=literals):
            return _format_predicate(operation, format_operand(expression), [_format_literal(one) for one in literals])
        case BoundPredicate(operation=operation, field=field, values=values, bucket=bucket):
            type_ = field.type if bucket is None else INT
            operand = format_operand(Predicate(operation, field.name, (), bucket))
            return _format_predicate(operation, operand, [_format_value(type_, value) for value in values])
    raise IcekeepBug(f"there is no text for the expression {expression!r}")


def format_name(column: str) -> str:
    """A column's full name as a filter writes it, in double quotes where it needs them."""
    is_plain = all(_SIMPLE_PART.fullmatch(part) and part.upper() not in RESERVED_WORDS for part in column.split("."))
    return column if is_plain else '"' + column.replace('"', '""') + '"'


def format_operand(predicate: Predicate) -> str:
    """What a predicate asks about: a column, or a transform of one, `bucket(16, id)`."""
    name = format_name(predicate.column)
    match predicate.transform:
        case None | Identity():
            return name
        case Bucket(bucket_count=number):
            return f"bucket({number}, {name})"
        case Truncate(width=number):
            return f"truncate({number}, {name})"
    return f"{predicate.transform}s({name})"


_SIMPLE_PART = re.compile(r"[^\W\d]\w*")
_WILDCARD = re.compile(r"[\\%_]")


def _format_term(expression: Expression) -> str:
    text = format_expression(expression)
    return f"({text})" if isinstance(expression, And | Or) else text


def _format_predicate(operation: Operation, name: str, values: Sequence[str]) -> str:
    if operation in UNARY_OPERATIONS:
        return f"{name} {operation.value}"
    if operation in SET_OPERATIONS:
        return f"{name} {operation.value} ({', '.join(values)})"
    if operation in PREFIX_OPERATIONS:
        pattern = _WILDCARD.sub(r"\\\g<0>", values[0])
        return f"{name} {operation.value} {pattern[:-1]}%'"
    return f"{name} {operation.value} {values[0]}"


def _format_literal(literal: Any) -> str:
    match literal:
        case bool():
            return "true" if literal else "false"
        case bytes():
            return f"X'{literal.hex().upper()}'"
        case float() if math.isinf(literal):
            return _format_infinity(literal)
        case int() | float() | Decimal() | DateLiteral() | TimestampLiteral() | Moment():
            return str(literal)
    return _quote(str(literal))


def _format_value(type_: Type, value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return _format_infinity(value)
    text = value_to_text(type_, value)
    return text if isinstance(value, int | float | Decimal) and _is_number_or_truth(type_) else _quote(text)


def _format_infinity(value: float) -> str:
    return "'Infinity'" if value > 0 else "'-Infinity'"


def _is_number_or_truth(type_: Type) -> bool:
    return isinstance(type_, PrimitiveType) and type_.name in ("boolean", "int", "long", "float", "double", "decimal")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
