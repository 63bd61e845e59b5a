"""Parse and format filters, the language of `where`; the tokenizer and reader are shared with sort orders.

Comparisons of a column with a literal, IN, BETWEEN, LIKE 'prefix%', IS NULL, IS NAN, a boolean column alone; NOT, AND, OR,
parentheses, true and false. In place of a column there may be a transform of one, such as `bucket(16, id)` or, as in
Iceberg's procedures, `system.bucket(16, id)`. Text is in single quotes, a name that is not a plain word in double quotes
or backticks; a quote is doubled within its kind. The text only ever becomes a tree of `Predicate`: no name is looked up
and nothing is executed.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NoReturn

import msgspec

from icekeep.errors import ExpressionError, IcekeepBug, UsageError
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    COMPLEMENTS,
    MAX_DEPTH,
    PREFIX_OPERATIONS,
    SET_OPERATIONS,
    UNARY_OPERATIONS,
    AlwaysFalse,
    AlwaysTrue,
    And,
    BoundPredicate,
    DateLiteral,
    Expression,
    Not,
    NowLiteral,
    Operation,
    Or,
    Predicate,
    TimestampLiteral,
    chain,
    conjunction,
    disjunction,
)
from icekeep.spec.times import AGE, age_ms
from icekeep.spec.transforms import Bucket, Identity, Transform, Truncate, known_transform
from icekeep.spec.types import DAY_MS, INT, PrimitiveType, Type
from icekeep.spec.values import NANOS_PER_SECOND, parse_date, parse_timestamp, read_bytes, value_to_text

SPACE = r"(?P<space>\s+)"
QUOTED_NAME = r'(?P<quoted>"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)'

_PLAIN_TRANSFORMS = {
    "IDENTITY": "identity",
    **dict.fromkeys(("YEAR", "YEARS"), "year"),
    **dict.fromkeys(("MONTH", "MONTHS"), "month"),
    **dict.fromkeys(("DAY", "DAYS", "DATE"), "day"),
    **dict.fromkeys(("HOUR", "HOURS", "DATE_HOUR"), "hour"),
}
_NUMBERED_TRANSFORMS = {"BUCKET": "bucket", "TRUNCATE": "truncate"}

TRANSFORMS = tuple(word.lower() for word in (*_PLAIN_TRANSFORMS, *_NUMBERED_TRANSFORMS))
"""The names of transforms in Spark's SQL."""

_EXCERPT_LENGTH = 30


class Token(msgspec.Struct, frozen=True):
    """A piece of the text, unchanged; `start` counts from 0."""

    kind: str
    start: int
    text: str

    @property
    def word(self) -> str:
        """The text in upper case if it may be a keyword, else empty."""
        # Non-ASCII letters whose upper case is ASCII, such as the dotless i, do not make keywords.
        return self.text.upper() if self.kind == "name" and self.text.isascii() else ""


def unquote(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


class TextReader:
    """Recursive descent over the tokens of one text; each method reads one rule of the grammar and moves past it.

    Attributes:
        tokens: the last one is of kind "end".
        what: the name of the text in messages.
        error: its `facts` hold the `text` and the `position` of the first wrong character, counted from 1.
        max_length: in characters.
        pattern: of one token: groups named by kind, among them `space`, `name` and `quoted`.
        quotes: the characters that may open a quoted token.
        functions: the transforms listed in messages.
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
        self.tokens: list[Token] = []
        self._index = start = 0
        while start < len(text):
            match = self.pattern.match(text, start)
            if match is None or match.lastgroup is None:
                character = text[start]
                is_open = character in self.quotes
                problem = "the quote {} is not closed" if is_open else "the character {!r} has no meaning here"
                self._fail(problem.format(character), start)
            if match.lastgroup != "space":
                self.tokens.append(Token(match.lastgroup, start, match[0]))
            start = match.end()
        self.tokens.append(Token("end", start, ""))

    @property
    def _token(self) -> Token:
        """The next token, not yet read."""
        return self.tokens[self._index]

    def _take(self, text: str) -> bool:
        """Move past a keyword or a mark if it is next."""
        is_next = text in (self._token.word, self._token.text)
        self._index += is_next
        return is_next

    def _require(self, text: str, problem: str = "a comma or the closing parenthesis is missing here") -> None:
        if not self._take(text):
            self._fail(problem)

    def _column(self) -> str:
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
        """Read the arguments of a transform: the column, and the transform as metadata spells it."""
        transform = _PLAIN_TRANSFORMS.get(name.word)
        if transform is not None:
            column = self._column()
        elif (numbered := _NUMBERED_TRANSFORMS.get(name.word)) is None:
            self._fail(f"there is no transform of this name; there are {', '.join(self.functions)}", name)
        elif self._token.kind == "number":
            # Spark's users write the number on either side.
            transform = f"{numbered}[{self._whole_number()}]"
            self._require(",", f"after the number of {numbered} a column is missing here")
            column = self._column()
        else:
            column = self._column()
            self._require(",", f"the number of {numbered} is missing here")
            transform = f"{numbered}[{self._whole_number()}]"
        self._require(")")
        return column, transform

    def _whole_number(self) -> int:
        token = self._token
        if token.kind != "number" or not token.text.isdigit():
            self._fail("a whole number is missing here")
        self._index += 1
        return int(token.text)

    def _fail(self, problem: str, at: Token | int | None = None) -> NoReturn:
        """Raise at a token or position, by default at the next token."""
        start = at if isinstance(at, int) else (at or self._token).start
        rest = self._text[start : start + _EXCERPT_LENGTH]
        place = f"before {rest!r}" if rest else "at its end"
        raise self.error(
            f"cannot read the {self.what} at position {start + 1}, {place}: {' '.join(problem.split())}",
            text=self._text,
            position=start + 1,
        )


RESERVED_WORDS = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "TRUE", "FALSE", "TODAY", "NOW"})
"""Words that name a column only in quotes."""

MAX_TEXT_LENGTH = 256 * 1024
"""The greatest length of a filter in characters."""

MAX_LITERALS = 10_000
"""The most literals of one filter."""

MAX_NUMBER_LENGTH = 400
"""The greatest length and exponent of a number: beyond what any column can hold."""

MAX_DAYS_LENGTH = 9
"""The most digits of the days before or after today, as for an age."""

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
_EQUAL = (Operation.EQ, Operation.EQ, operator.eq)
_UNEQUAL = (Operation.NOT_EQ, Operation.NOT_EQ, operator.ne)
_COMPARISONS: dict[str, tuple[Operation, Operation, Callable[[Any, Any], bool]]] = {
    "=": _EQUAL,
    "==": _EQUAL,
    "!=": _UNEQUAL,
    "<>": _UNEQUAL,
    "<": (Operation.LT, Operation.GT, operator.lt),
    "<=": (Operation.LT_EQ, Operation.GT_EQ, operator.le),
    ">": (Operation.GT, Operation.LT, operator.gt),
    ">=": (Operation.GT_EQ, Operation.LT_EQ, operator.ge),
}
"""The operation of each sign, that with its sides exchanged, and the comparison of two literals."""

_BARE_DATE = re.compile(r"(?<![\w'])\d{4}-\d{2}-\d{2}(?![\w'])")


def parse_where(text: str, moment_ms: int | None = None) -> Expression:
    """Read a filter, for example `day >= today - 7 AND kind IN ('a', 'b')`.

    Keywords are case-insensitive, column names are not. `moment_ms` is the time of `now`, in epoch milliseconds; `today` is its
    day in UTC. Raises `ExpressionError` as `TextReader`, also for `today` or `now` without a moment.
    """
    return FilterReader(text, moment_ms).parse()


class FilterReader(TextReader):
    what, error, max_length = "filter", ExpressionError, MAX_TEXT_LENGTH
    pattern, quotes = _TOKEN, "'\"`"
    functions = TRANSFORMS

    def __init__(self, text: str, moment_ms: int | None) -> None:
        super().__init__(text)
        self._moment_ms, self._literal_count = moment_ms, 0
        # A second end, so that every token has a following one.
        self.tokens.append(self.tokens[-1])

    def parse(self) -> Expression:
        if self._token.kind == "end":
            self._fail("it is empty; leave it out to mean every row")
        expression = self._disjunction(depth=0)
        if self._token.kind != "end":
            self._fail("AND, OR or the end is missing here")
        return expression

    def _disjunction(self, depth: int) -> Expression:
        terms: list[Expression] = []
        while not terms or self._take("OR"):
            factors = [self._term(depth)]
            while self._take("AND"):
                factors.append(self._term(depth))
            terms.append(conjunction(factors))
        return disjunction(terms)

    def _term(self, depth: int) -> Expression:
        token = self._token
        if depth > MAX_DEPTH or (depth == MAX_DEPTH and token.text == "("):
            self._fail(f"NOT and parentheses are nested deeper than {MAX_DEPTH} levels")
        if self._take("NOT"):
            # Parentheses after NOT are one level together with it.
            return Not(self._term(depth + (self._token.text != "(")))
        if self._take("("):
            inner = self._disjunction(depth + 1)
            self._require(")", "AND, OR or the closing parenthesis is missing here")
            return inner
        if token.word in ("TRUE", "FALSE") and self.tokens[self._index + 1].kind != "comparison":
            self._index += 1
            return ALWAYS_TRUE if token.word == "TRUE" else ALWAYS_FALSE
        return self._comparison_of_literal() if self._at_literal() else self._predicate()

    def _comparison_of_literal(self) -> Expression:
        """A literal compared with a column, or two numbers, texts or booleans compared with each other, as in `1 = 1`."""
        left, token = self._literal(), self._token
        if token.kind != "comparison":
            self._fail("a comparison with a column is missing here")
        self._index += 1
        _, mirrored, compare = _COMPARISONS[token.text]
        if not self._at_literal():
            column, transform = self._operand()
            return Predicate(mirrored, column, (left,), transform)
        token, right = self._token, self._literal()
        alike = any(isinstance(left, kind) and isinstance(right, kind) for kind in (bool, str, int | Decimal))
        if not alike or isinstance(left, bool) is not isinstance(right, bool):
            self._fail("there is a literal on both sides; one must be a column", token)
        return ALWAYS_TRUE if compare(left, right) else ALWAYS_FALSE

    def _operand(self) -> tuple[str, Transform | None]:
        first = self._index
        column = self._column(may_be_called=True)
        if not self._take("("):
            return column, None
        name, before = self.tokens[self._index - 2], self.tokens[first : self._index - 2]
        # `system.bucket` or `CATALOG.system.bucket`.
        if before and before[-2].word != "SYSTEM":
            self._fail("functions of transforms stand alone or after system, as in system.bucket(16, id)", name)
        column, text = self._transform(name)
        try:
            transform = known_transform(text)
        except UsageError as error:
            self._fail(error.message, name)
        return column, None if isinstance(transform, Identity) else transform

    def _predicate(self) -> Expression:
        column, transform = self._operand()
        token, is_alone = self._token, transform is None
        if token.kind == "comparison":
            self._index += 1
            return Predicate(_COMPARISONS[token.text][0], column, (self._literal(),), transform)
        literals: Sequence[Any] = ()
        is_test = self._take("IS")
        negated = self._take("NOT")
        if is_test:
            operation = Operation.IS_NULL if self._take("NULL") else Operation.IS_NAN
            if operation is Operation.IS_NAN:
                self._require("NAN", "after IS and IS NOT there is NULL or NAN")
        elif is_alone and not negated and (token.kind == "end" or token.word in ("AND", "OR") or token.text == ")"):
            operation, literals = Operation.EQ, (True,)
        elif self._take("BETWEEN"):
            lowest = Predicate(Operation.GT_EQ, column, (self._literal(),), transform)
            self._require("AND", "AND and the upper end of BETWEEN are missing here")
            within = And(lowest, Predicate(Operation.LT_EQ, column, (self._literal(),), transform))
            return Not(within) if negated else within
        elif self._take("IN"):
            operation, literals = Operation.IN, self._list()
        elif self._take("LIKE"):
            prefix, is_whole = self._like()
            operation, literals = Operation.EQ if is_whole else Operation.STARTS_WITH, (prefix,)
        elif self._token.word in ("ILIKE", "RLIKE", "REGEXP", "SIMILAR"):
            self._fail(f"{self._token.word} is not supported; LIKE 'prefix%' is")
        elif self._token.text in ("+", "-", "*", "/", "%"):
            self._fail("arithmetic is supported only after today and now")
        else:
            self._fail("a comparison, IN, BETWEEN, LIKE or IS is missing here")
        return Predicate(COMPLEMENTS[operation] if negated else operation, column, tuple(literals), transform)

    def _fail(self, problem: str, at: Token | int | None = None) -> NoReturn:
        """Where the place is part of a date without quotes, that is the problem."""
        start = at if isinstance(at, int) else (at or self._token).start
        dates = (_BARE_DATE.match(self._text, at) for at in (start - len("2026"), start) if at >= 0)
        date = next(filter(None, dates), None)
        super()._fail(problem if date is None else f"a date stands in single quotes: {date[0]!r}", at)

    def _list(self) -> list[Any]:
        self._require("(", "after IN a list in parentheses is missing here")
        literals = [self._literal()]
        while self._take(","):
            literals.append(self._literal())
        self._require(")")
        return literals

    def _like(self) -> tuple[str, bool]:
        token, escape = self._token, "\\"
        pattern = self._string("after LIKE a pattern in single quotes is missing here")
        if self._take("ESCAPE"):
            escape_token = self._token
            escape = self._string("after ESCAPE a character in single quotes is missing here")
            if len(escape) != 1:
                self._fail("an escape is one character", escape_token)
        try:
            return read_pattern(pattern, escape)
        except ValueError as problem:
            self._fail(str(problem), token)

    def _string(self, missing: str) -> str:
        token = self._token
        if token.kind != "string":
            self._fail(missing)
        self._count_literal()
        self._index += 1
        return unquote(token.text)

    def _column(self, *, may_be_called: bool = False) -> str:
        self._refuse_typed()
        column = super()._column()
        if self._token.text == "(" and not may_be_called:
            self._fail("a transform is of a column, and of no other transform", self.tokens[self._index - 1])
        return column

    def _name(self) -> str:
        token = self._token
        if not _may_be_column(token):
            before, after = self.tokens[self._index - 1], self.tokens[self._index + 1]
            is_meant = before.text == "." or after.kind == "comparison"
            if token.word and is_meant:
                self._fail(f"{token.word} is a reserved word; a column of that name stands in double quotes")
            self._fail("a column or a literal is missing here")
        return super()._name()

    def _at_literal(self) -> bool:
        token = self._token
        if token.kind == "name" and self.tokens[self._index + 1].kind == "string":
            return token.word in ("DATE", "TIMESTAMP")
        return (
            token.kind in ("number", "age", "string", "bytes")
            or token.word in ("TRUE", "FALSE", "NULL", "TODAY", "NOW")
            or token.text in ("-", "+")
        )

    def _literal(self) -> Any:
        token = self._token
        if not self._at_literal():
            self._refuse_typed()
            if _may_be_column(token):
                self._fail("a column is compared with literals only; text stands in single quotes")
            self._fail("a literal is missing here")
        self._count_literal()
        if token.word == "NULL":
            self._fail("nothing compares with NULL; write IS NULL or IS NOT NULL")
        self._index += 1
        try:
            return self._value(token)
        except ValueError as problem:
            shown = f"{token.word} {self._token.text}: " if token.word else ""
            self._fail(f"{shown}{problem}", token)

    def _value(self, token: Token) -> Any:
        """The literal that begins with the token just read; `ValueError` where its text is not a value."""
        match token.kind, token.word:
            case "string", _:
                return unquote(token.text)
            case "bytes", _:
                return read_bytes(token.text[2:-1])
            case "mark", _:
                number = self._token
                if number.kind not in ("number", "age"):
                    self._fail("a number is missing here")
                self._index += 1
                return -self._number(number) if token.text == "-" else self._number(number)
            case _, "TRUE" | "FALSE":
                return token.word == "TRUE"
            case _, "TODAY" | "NOW":
                return self._moment(token)
            case _, "DATE":
                literal: Any = DateLiteral(parse_date(unquote(self._token.text)))
            case _, "TIMESTAMP":
                nanos, offset_seconds = parse_timestamp(unquote(self._token.text), NANOS_PER_SECOND)
                literal = TimestampLiteral(nanos, zoned=offset_seconds is not None)
            case _:
                return self._number(token)
        self._index += 1
        return literal

    def _count_literal(self) -> None:
        self._literal_count += 1
        if self._literal_count > MAX_LITERALS:
            self._fail(f"there are more than {MAX_LITERALS} literals")

    def _refuse_typed(self) -> None:
        token, following = self._token, self.tokens[self._index + 1]
        if token.kind == "name" and _may_be_column(token) and following.kind == "string":
            self._fail(f"{token.text} literals are not supported, DATE and TIMESTAMP are; write the text alone")

    def _moment(self, token: Token) -> DateLiteral | NowLiteral:
        """`today` or `now`, plus or minus an age; a bare number counts days."""
        if self._moment_ms is None:
            self._fail(f"{token.text} has no moment here; hand one in, or write a date", token)
        is_today = token.word == "TODAY"
        shift_ms = 0
        if (sign := self._token.text) in ("+", "-"):
            self._index += 1
            shift_ms = -self._age(is_today=is_today) if sign == "-" else self._age(is_today=is_today)
        if is_today:
            return DateLiteral(self._moment_ms // DAY_MS + shift_ms // DAY_MS)
        return NowLiteral(self._moment_ms + shift_ms)

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

    def _number(self, token: Token) -> int | Decimal:
        if token.kind == "age":
            self._fail("an age stands only after today or now", token)
        is_touched = self._token.start == token.start + len(token.text)
        if is_touched and self._token.kind in ("name", "number", "age"):
            self._fail("this is no number", token)
        digits, _, exponent = token.text.lower().partition("e")
        if len(token.text) > MAX_NUMBER_LENGTH or (exponent and abs(int(exponent)) > MAX_NUMBER_LENGTH):
            self._fail("the number has too many digits", token)
        return int(digits) if not exponent and "." not in digits else Decimal(token.text)


def _may_be_column(token: Token) -> bool:
    return token.kind == "quoted" or (token.kind == "name" and token.word not in RESERVED_WORDS)


def read_pattern(pattern: str, escape: str = "\\") -> tuple[str, bool]:
    r"""The text of a LIKE pattern, and whether it is the whole value rather than a prefix.

    >>> read_pattern("ab%"), read_pattern(r"10\%")
    (('ab', False), ('10%', True))

    `ValueError` for any other wildcard, and for an escape before anything but a wildcard or itself.
    """
    supported = "LIKE takes a prefix with one % at its end, as in 'abc%'"
    text = ""
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == escape:
            character = pattern[position : position + 1]
            position += 1
            if character not in ("%", "_", escape):
                raise ValueError(f"the escape {escape} stands before %, _ or {escape} only")
        elif character == "%":
            if position < len(pattern):
                raise ValueError(f"{supported}; escape another % as {escape}%")
            return text, False
        elif character == "_":
            raise ValueError(f"{supported}; the wildcard _ is not supported, escape it as {escape}_")
        text += character
    return text, True


def format_expression(expression: Expression) -> str:
    """The expression as text that `parse_where` reads back; `now` is shown as the moment it was read as.

    >>> format_expression(parse_where("not day between '2026-01-01' and '2026-01-31'"))
    "NOT (day >= '2026-01-01' AND day <= '2026-01-31')"
    """
    match expression:
        case AlwaysTrue() | AlwaysFalse():
            return "true" if isinstance(expression, AlwaysTrue) else "false"
        case Not(child=child):
            return f"NOT ({format_expression(child)})"
        case And() | Or():
            texts = (
                f"({format_expression(term)})" if isinstance(term, And | Or) else format_expression(term)
                for term in chain(type(expression), [expression])
            )
            return (" AND " if isinstance(expression, And) else " OR ").join(texts)
        case Predicate(literals=literals):
            return _format_predicate(expression, [_format_literal(literal) for literal in literals])
        case BoundPredicate(operation=operation, field=field, values=values, bucket=bucket):
            type_ = field.type if bucket is None else INT
            named = Predicate(operation, field.name, (), bucket)
            return _format_predicate(named, [_format_value(type_, value) for value in values])
    raise IcekeepBug(f"there is no text for the expression {expression!r}")


def format_operand(predicate: Predicate) -> str:
    """The column of a predicate, in double quotes where needed, or its transform, as in `bucket(16, id)`."""
    parts, name = predicate.column.split("."), predicate.column
    if not all(re.fullmatch(r"[^\W\d]\w*", part) and part.upper() not in RESERVED_WORDS for part in parts):
        name = '"' + name.replace('"', '""') + '"'
    match predicate.transform:
        case None | Identity():
            return name
        case Bucket(bucket_count=number):
            return f"bucket({number}, {name})"
        case Truncate(width=number):
            return f"truncate({number}, {name})"
    return f"{predicate.transform}s({name})"


def _format_predicate(predicate: Predicate, values: Sequence[str]) -> str:
    text = f"{format_operand(predicate)} {predicate.operation.value}"
    if predicate.operation in UNARY_OPERATIONS:
        return text
    if predicate.operation in SET_OPERATIONS:
        return f"{text} ({', '.join(values)})"
    if predicate.operation in PREFIX_OPERATIONS:
        pattern = re.sub(r"[\\%_]", r"\\\g<0>", values[0])
        return f"{text} {pattern[:-1]}%'"
    return f"{text} {values[0]}"


def _format_literal(literal: Any) -> str:
    match literal:
        case bool():
            return "true" if literal else "false"
        case bytes():
            return f"X'{literal.hex().upper()}'"
        case int() | float() | Decimal() | DateLiteral() | TimestampLiteral() | NowLiteral():
            return _INFINITIES.get(literal) or str(literal)
    return _quoted(str(literal))


_INFINITIES: dict[Any, str] = {math.inf: "'Infinity'", -math.inf: "'-Infinity'"}
_UNQUOTED = ("boolean", "int", "long", "float", "double", "decimal")


def _format_value(type_: Type, value: Any) -> str:
    assert isinstance(type_, PrimitiveType)
    text = value_to_text(type_, value)
    if type_.name not in _UNQUOTED:
        return _quoted(text)
    return _INFINITIES.get(value) or text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
