"""The language of `where`: as it is written, and text to rows against SQLite and PyIceberg's parser and evaluator."""

import datetime
import pickle
import re
import sqlite3
import string
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.expressions import parser as foreign_parser
from pyiceberg.expressions.visitors import bind as bind_foreign
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.typedef import Record
from pyparsing import ParseException

import icekeep.spec.filters.expressions
import icekeep.spec.filters.parsing
import icekeep.spec.types
from icekeep.errors import ExpressionError, UsageError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    MAX_DEPTH,
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
from icekeep.spec.filters.parsing import (
    MAX_LITERALS,
    MAX_NUMBER_LENGTH,
    FilterReader,
    Token,
    format_expression,
    parse_where,
    read_pattern,
    unquote,
)
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrderReader, parse_sort_order
from icekeep.spec.types import BOOLEAN, INT, STRING, NestedField, Type
from kit.cases import cases, for_each
from kit.examples import check_examples
from kit.filters import (
    COMPARISONS,
    NAN_TESTS,
    NULL_TESTS,
    PREFIXES,
    SETS,
    Column,
    columns,
    filters,
    foreign_schema,
    schema_of,
)
from kit.where_texts import ROWS
from kit.where_texts import texts as written

MOMENT_MS = 1_772_281_845_678


"""2026-02-28T12:30:45.678Z."""


CASES = Path(__file__).with_name("expressions.txt")


def written_cases() -> Iterator[tuple[str, str]]:
    lines = [line for line in CASES.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]
    for filter_, outcome in zip(lines[::2], lines[1::2], strict=True):
        assert outcome.startswith("    "), outcome
        yield filter_, outcome.strip()


READ = [(text, outcome) for text, outcome in written_cases() if not outcome.startswith("!")]


REFUSED = [(text, *outcome.split(" ", 2)[1:]) for text, outcome in written_cases() if outcome.startswith("!")]


@for_each(("text", "expected"), READ)
def test_a_filter_is_read_as_written_beside_it(text: str, expected: str):
    expression = parse_where(text, MOMENT_MS)
    assert format_expression(expression) == expected
    again = parse_where(expected)
    assert again == expression or "now" in text.lower()
    assert format_expression(again) == expected


@for_each(("text", "position", "problem"), REFUSED)
def test_what_is_no_filter_is_refused_at_its_place(text: str, position: str, problem: str):
    with pytest.raises(ExpressionError) as caught:
        parse_where(text, MOMENT_MS)
    place = f"before {text[int(position) - 1 :][:30]!r}" if int(position) <= len(text) else "at its end"
    assert caught.value.message.startswith(f"cannot read the filter at position {position}, {place}: {problem}")
    assert caught.value.facts == {"text": text, "position": int(position)}


@for_each(
    ("text", "literal"),
    [
        ("1", 1),
        ("-1", -1),
        ("1.0", Decimal("1.0")),
        ("1e2", Decimal("1e2")),
        ("'1'", "1"),
        ("true", True),
        ("TRUE", True),
    ],
)
def test_literals_keep_their_kind(text: str, literal: Any):
    expression = parse_where(f"a = {text}")
    assert expression == Predicate(Operation.EQ, "a", (literal,))
    assert type(expression.literals[0]) is type(literal)


def test_lines_and_tabs_are_space_and_stay_in_strings():
    assert parse_where("a\n=\t'x\ny'\r\nAND b = 1") == And(
        Predicate(Operation.EQ, "a", ("x\ny",)), Predicate(Operation.EQ, "b", (1,))
    )


def test_the_message_is_one_line_whatever_the_filter():
    with pytest.raises(ExpressionError) as caught:
        parse_where("a = 1 XOR\nb = '\x1b[31m'")
    assert caught.value.message.isprintable()


def test_a_filter_has_a_greatest_number_of_literals():
    def listing(count: int) -> str:
        return f"a IN ({','.join(map(str, range(count)))})"

    assert len(parse_where(listing(MAX_LITERALS)).literals) == MAX_LITERALS
    with pytest.raises(ExpressionError, match=f"more than {MAX_LITERALS} literals"):
        parse_where(listing(MAX_LITERALS - 1) + " AND b = 1 AND c = 1")


def test_parentheses_are_neutral_and_bounded():
    """Parentheses change nothing, and too many are refused at their position."""
    assert parse_where(nested(MAX_DEPTH, "(", ")")) == parse_where("a = 1")
    with pytest.raises(ExpressionError, match=f"deeper than {MAX_DEPTH} levels") as caught:
        parse_where("(" * (MAX_DEPTH + 1) + "a = 1" + ")" * (MAX_DEPTH + 1))
    assert caught.value.facts["position"] == MAX_DEPTH + 1
    with pytest.raises(ExpressionError, match="deeper than"):
        parse_where("(" * 100_000)


def test_numbers_have_a_greatest_length():
    longest = "9" * MAX_NUMBER_LENGTH
    assert parse_where(f"a = {longest}") == Predicate(Operation.EQ, "a", (int(longest),))
    for number in (longest + "9", "1e" + longest, "1e" + longest + "9"):
        with pytest.raises(ExpressionError, match="too many digits"):
            parse_where(f"a = {number}")


@pytest.mark.slow
def test_a_long_chain_of_and_makes_a_shallow_tree():
    text = " AND ".join(f"a = {number}" for number in range(MAX_LITERALS))
    expression = parse_where(text)
    assert format_expression(expression) == text
    assert pickle.loads(pickle.dumps(expression)) == expression


def nested(levels: int, opening: str, closing: str = "") -> str:
    return opening * levels + "a = 1" + closing * levels


@for_each(
    ("opening", "closing"), [("(", ")"), ("NOT ", ""), ("NOT (", ")"), ("(b = 1 OR ", ")"), ("NOT (b = 1 AND ", ")")]
)
def test_nesting_has_a_greatest_depth(opening: str, closing: str):
    parse_where(nested(MAX_DEPTH, opening, closing))
    with pytest.raises(ExpressionError, match=f"deeper than {MAX_DEPTH} levels"):
        parse_where(nested(MAX_DEPTH + 1, opening, closing))


def test_what_nests_as_deep_as_a_filter_may_is_bound_or_refused():
    """Parentheses nest two levels of the tree where they hold both AND and OR."""
    shallow, deep = ("(b OR c AND " * levels + "a" + ")" * levels for levels in (20, MAX_DEPTH))
    schema = Schema(fields=tuple(NestedField(field_id=i, name=n, type=BOOLEAN) for i, n in enumerate("abc", 1)))
    assert row_matches(bind(parse_where(shallow), schema), {1: True, 3: True})
    assert not row_matches(bind(parse_where(shallow), schema), {3: True})
    with pytest.raises(ExpressionError, match="nested deeper than 50 levels; simplify it"):
        bind(parse_where(deep), schema)


@pytest.mark.parametrize("text", ["a < today", "a < now - 1h", "NOT a IN (1, Today)"])
def test_today_and_now_need_a_moment(text: str):
    with pytest.raises(ExpressionError, match="has no moment here; hand one in, or write a date") as caught:
        parse_where(text)
    assert caught.value.facts["position"] == re.search("today|now", text, re.IGNORECASE).start() + 1
    parse_where(text, 0)


@for_each(("moment_ms", "days"), [(0, 0), (86_399_999, 0), (86_400_000, 1), (-1, -1), (1_772_281_845_678, 20_512)])
def test_today_is_the_day_of_the_moment_in_utc(moment_ms: int, days: int):
    assert parse_where("a = today", moment_ms) == Predicate(Operation.EQ, "a", (DateLiteral(days),))
    assert parse_where("a = today - 1", moment_ms) == Predicate(Operation.EQ, "a", (DateLiteral(days - 1),))
    assert parse_where("a = today + 2w", moment_ms) == Predicate(Operation.EQ, "a", (DateLiteral(days + 14),))
    assert parse_where("a = now", moment_ms) == Predicate(Operation.EQ, "a", (NowLiteral(moment_ms),))
    assert parse_where("a = now + 1m", moment_ms) == Predicate(Operation.EQ, "a", (NowLiteral(moment_ms + 60_000),))


@for_each("opening", ["'", '"', "`", "'''", "'" + "''" * 50_000, '"' + 'a""' * 50_000])
def test_an_open_quote_is_found_in_no_time(opening: str):
    with pytest.raises(ExpressionError, match="is not closed"):
        parse_where("a = " + opening + "x" * 100_000)


identifiers = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6) | st.sampled_from(
    ["in", "NULL", "a b", "And", 'q"', "_x", "a.b", "a.in", "..", "a b.c", "today", "Now", "date", "x", "nan", "é.ü"]
)


numbers = st.integers(-(10**40), 10**40) | st.decimals(-(10**6), 10**6, allow_nan=False, places=3)


texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["%", "a%_", "\\", "'"])


typed = (
    st.builds(DateLiteral, st.integers(-(10**6), 10**7))
    | st.builds(TimestampLiteral, st.integers(-(2**63), 2**63 - 1), st.booleans())
    | st.binary(max_size=4)
)


literals = numbers | texts | st.booleans() | typed


predicates = st.one_of(
    st.builds(
        lambda operation, column, literal: Predicate(operation, column, (literal,)),
        st.sampled_from(COMPARISONS),
        identifiers,
        literals,
    ),
    st.builds(
        lambda operation, column, members: Predicate(operation, column, tuple(members)),
        st.sampled_from(SETS),
        identifiers,
        st.lists(literals, min_size=1, max_size=3),
    ),
    st.builds(
        lambda operation, column, prefix: Predicate(operation, column, (prefix,)),
        st.sampled_from(PREFIXES),
        identifiers,
        texts,
    ),
    st.builds(Predicate, st.sampled_from([*NULL_TESTS, *NAN_TESTS]), identifiers),
)


expressions = st.recursive(
    predicates | st.sampled_from([ALWAYS_TRUE, ALWAYS_FALSE]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=4).map(conjunction)
        | st.lists(inner, min_size=1, max_size=4).map(disjunction)
        | st.builds(Not, inner)
    ),
    max_leaves=8,
)


@given(expressions)
@cases(400)
def test_a_filter_that_is_shown_is_read_as_the_same(expression: Expression):
    assert parse_where(format_expression(expression)) == expression


words = st.sampled_from(
    [
        "a",
        "b",
        '"c d"',
        "1",
        "-1.5",
        "'x'",
        "=",
        "<",
        "<>",
        "(",
        ")",
        ",",
        ".",
        "AND",
        "OR",
        "NOT",
        "IN",
        "IS",
        "NULL",
        "true",
        "BETWEEN",
        "LIKE",
        "'x%'",
        "NAN",
        "today",
        "now",
        "7d",
        "DATE",
        "'2026-01-31'",
        "X'00'",
    ]
)


@given(st.lists(words, max_size=12).map(" ".join) | st.text(string.printable, max_size=40) | st.text(max_size=20))
@cases(500)
def test_any_text_is_a_filter_or_refused_with_a_place_in_it(text: str):
    outcome = read(text)
    if isinstance(outcome, ExpressionError):
        assert 1 <= outcome.facts["position"] <= len(text) + 1
        assert outcome.message.isprintable()
    else:
        shown = format_expression(outcome)
        assert format_expression(parse_where(shown)) == shown


def read(text: str) -> Expression | ExpressionError:
    try:
        return parse_where(text, MOMENT_MS)
    except ExpressionError as problem:
        return problem


def test_of_a_day_that_no_month_has_python_s_own_words_are_told():
    """They differ between its releases."""
    with pytest.raises(ValueError, match="day") as own:
        datetime.date.fromisoformat("2013-02-29")
    with pytest.raises(ExpressionError) as told:
        parse_where("a = DATE '2013-02-29'")
    assert str(told.value).endswith(f"DATE '2013-02-29': {own.value}")


# Patterns


@given(st.text("ab%_\\'", max_size=8))
def test_a_prefix_that_is_shown_is_read_as_the_same(prefix: str):
    shown = format_expression(Predicate(Operation.STARTS_WITH, "x", (prefix,)))
    pattern = shown.removeprefix("x LIKE '").removesuffix("'").replace("''", "'")
    assert read_pattern(pattern) == (prefix, False)


# Formatting


OP = Operation


def schema(*types: Type, required: bool = False) -> Schema:
    """Columns c1, c2 ... of the types."""
    return Schema(
        fields=tuple(
            NestedField(field_id=i, name=f"c{i}", type=type_, required=required) for i, type_ in enumerate(types, 1)
        )
    )


def bound(type_: Type, operation: Operation, *literals: Any, required: bool = False) -> Expression:
    return bind(Predicate(operation, "c1", literals), schema(type_, required=required))


def text(expression: Expression) -> str:
    return format_expression(expression)


@given(st.data())
def test_binding_what_is_shown_gives_the_same_filter(data: st.DataObject):
    table: tuple[Column, ...] = data.draw(columns())
    expression = bind(data.draw(filters(table)), schema_of(table))
    assert bind(parse_where(text(expression)), schema_of(table)) == expression


# Text reader


def of_filter(text: str) -> list[Token]:
    return FilterReader(text, None).tokens[:-1]


def of_sort_order(text: str) -> list[Token]:
    return SortOrderReader(text).tokens


@for_each(
    ("text", "kinds"),
    [
        ("", []),
        ("a1 _b é", ["name", "name", "name"]),
        ("1 1.5 .5 1e3 2.E-1", ["number"] * 5),
        ("7d 12h 90s 30m 2w", ["age"] * 5),
        ("7D 7y 7days 1234567890d", ["number", "name"] * 4),
        ("'a' 'it''s' ''", ["string"] * 3),
        ('"a b" `c d` "q""q"', ["quoted"] * 3),
        ("x'00' X'' x 'a'", ["bytes", "bytes", "name", "string"]),
        ("= == != <> < <= > >=", ["comparison"] * 8),
        ("-+(),.*/%", ["mark"] * 9),
        ("a<=-1", ["name", "comparison", "mark", "number"]),
    ],
)
def test_a_filter_is_cut_into_tokens(text: str, kinds: list[str]):
    tokens = of_filter(text)
    assert [token.kind for token in tokens] == [*kinds, "end"]
    assert all(text[token.start :].startswith(token.text) for token in tokens)


@for_each(("text", "word"), [("and", "AND"), ("Today", "TODAY"), ("date", "DATE"), ("ıs", ""), ('"in"', "")])
def test_keywords_are_ascii_in_any_case_and_never_quoted(text: str, word: str):
    assert of_filter(text)[0].word == word


@for_each("text", ["and", "Today", "1", "'a'", "7d", "(", "=", "X'00'"])
def test_what_is_no_name_is_no_column(text: str):
    with pytest.raises(ExpressionError):
        parse_where(f"{text} is null")


@for_each(("text", "name"), [("date", "date"), ("ıs", "ıs"), ('"in"', "in"), ("`and`.b", "and.b")])
def test_non_keywords_and_quoted_words_name_columns(text: str, name: str):
    assert parse_where(f"{text} is null").column == name


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("a = 'x", 5, "the quote ' is not closed"),
        ("`a", 1, "the quote ` is not closed"),
        ("a ; b", 3, "the character ';' has no"),
    ],
)
def test_what_is_no_token_is_refused_at_its_place(text: str, position: int, problem: str):
    with pytest.raises(ExpressionError, match=problem) as caught:
        of_filter(text)
    assert caught.value.facts == {"text": text, "position": position}


def test_an_error_shows_a_piece_of_the_text_or_its_end():
    with pytest.raises(
        ExpressionError, match=f"^cannot read the filter at position 3, before '{'b' * 30}': a comparison"
    ):
        parse_where("a " + "b" * 31)
    with pytest.raises(
        UsageError, match=r"^cannot read the sort order at position 3, at its end: a column is missing here$"
    ):
        parse_sort_order("a,")


@given(st.text(max_size=8), st.sampled_from("'\"`"))
def test_quoting_is_undone(text: str, quote: str):
    quoted = quote + text.replace(quote, quote * 2) + quote
    assert unquote(quoted) == text
    end = Token("end", len(quoted), "")
    assert of_filter(quoted) == [Token("string" if quote == "'" else "quoted", 0, quoted), end]
    if quote != "'":
        assert of_sort_order(quoted) == [Token("quoted", 0, quoted), end]


FIELD = NestedField(field_id=1, name="c1", type=INT)
TERM = BoundPredicate(OP.EQ, FIELD, (1,))


@pytest.mark.parametrize("constant", [ALWAYS_TRUE, ALWAYS_FALSE])
def test_constants_keep_identity_when_pickled(constant: Expression):
    assert pickle.loads(pickle.dumps(constant)) is constant
    assert pickle.loads(pickle.dumps(Not(constant))).child is constant


def test_chain_is_flattened_in_order_by_connective():
    a, b, c, d = (Predicate(OP.IS_NULL, name) for name in "abcd")
    either = Or(c, d)
    assert chain(And, [And(And(a, b), either)]) == [a, b, either]
    assert chain(Or, [either, And(a, b)]) == [c, d, And(a, b)]
    assert chain(And, []) == []


def test_examples():
    check_examples(
        "spec/filters/parsing.txt",
        icekeep.spec.filters.expressions,
        icekeep.spec.filters.parsing,
        icekeep.spec.types,
        globals(),
    )


NAMES = ("n", "s", "b", "odd name")
SCHEMA = Schema(
    fields=tuple(
        NestedField(field_id=i, name=name, type=type_)
        for i, (name, type_) in enumerate(zip(NAMES, (INT, STRING, BOOLEAN, INT), strict=True), 1)
    )
)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA case_sensitive_like = ON")
    connection.execute('CREATE TABLE t (position INTEGER, n INTEGER, s TEXT, b BOOLEAN, "odd name" INTEGER)')
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", [(i, *row) for i, row in enumerate(ROWS)])
    yield connection
    connection.close()


def matching(where: str) -> list[int]:
    expression = bind(parse_where(where), SCHEMA)
    return [i for i, row in enumerate(ROWS) if row_matches(expression, dict(enumerate(row, 1)))]


@given(written())
@cases(300)
def test_the_rows_of_a_filter_are_those_that_sqlite_finds(database: sqlite3.Connection, where: str):
    found = [position for (position,) in database.execute(f"SELECT position FROM t WHERE {where} ORDER BY position")]
    assert matching(where) == found


@given(written())
@cases(100)
def test_what_not_finds_is_neither_found_nor_unknown(database: sqlite3.Connection, where: str):
    query = f"SELECT position FROM t WHERE NOT ({where}) ORDER BY position"
    assert matching(f"NOT ({where})") == [position for (position,) in database.execute(query)]
    assert not set(matching(f"NOT ({where})")) & set(matching(where))


@pytest.mark.slow
@given(written(for_pyiceberg=True))
@cases(100)
def test_the_rows_of_a_filter_are_those_that_pyiceberg_finds(where: str):
    evaluate = expression_evaluator(foreign_schema(SCHEMA), foreign_parser.parse(where), True)
    for position, row in enumerate(ROWS):
        if None not in row:
            assert evaluate(Record(*row)) == (position in matching(where))


REFUSED_BY_PYICEBERG = [
    ("b", "a boolean column alone is no predicate there"),
    ("`odd name` = 1", "only double quotes quote a name"),
    ('"n.x" = 1', "a quoted name may hold no dot"),
    ("true AND n = 1", "a constant stands alone"),
    ("NOT TRUE", "a constant stands alone"),
    ("n NOT BETWEEN 1 AND 2", "NOT BETWEEN is not known"),
    ("n IN (1, 2.5)", "a list holds literals of one kind"),
    ("n = 1e3", "a number has no exponent"),
    ("n = - 5", "a sign stands at its number"),
    ("s = DATE '2013-01-01'", "there are no typed literals"),
    ("s < today", "there is no clock"),
    ("s LIKE 'a' ESCAPE '!'", "there is no ESCAPE"),
    ("größe = 1", "a name is of ASCII letters"),
]
READ_OTHERWISE_BY_PYICEBERG = [
    ("s LIKE 'b_'", "there _ is no wildcard but itself; here it would be one, and is refused"),
    ("s LIKE 'a\\b'", "there a backslash escapes % only; here one before another character is refused"),
    ("in = 1", "there keywords may name columns; here they stand in quotes"),
]
"""All differences between PyIceberg's parser and ours, each with its reason. Besides them PyIceberg compares with null:
it finds rows with a null in != and NOT IN, and fails on them in <. It cuts fractions off (below)."""


@for_each(("where", "reason"), REFUSED_BY_PYICEBERG)
def test_what_pyiceberg_cannot_read_and_we_can(where: str, reason: str):
    parse_where(where, moment_ms=0)
    with pytest.raises((ParseException, ValueError, TypeError)):
        bind_foreign(foreign_schema(SCHEMA), foreign_parser.parse(where), True)


@pytest.mark.parametrize(("where", "reason"), READ_OTHERWISE_BY_PYICEBERG)
def test_what_pyiceberg_reads_and_we_refuse(where: str, reason: str):
    foreign_parser.parse(where)
    with pytest.raises(ExpressionError):
        parse_where(where)


def test_pyiceberg_cuts_a_fraction_off_and_loses_rows():
    evaluate = expression_evaluator(foreign_schema(SCHEMA), foreign_parser.parse("n < 2.5"), True)
    two = next(i for i, row in enumerate(ROWS) if row[0] == 2)
    assert two in matching("n < 2.5")
    assert not evaluate(Record(*ROWS[two]))
