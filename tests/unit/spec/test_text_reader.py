import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import ExpressionError, UsageError
from icekeep.spec.filters.parsing import FilterReader, Token, parse_where, unquote
from icekeep.spec.sorting import SortOrderReader, parse_sort_order
from kit.cases import for_each


def of_filter(text: str) -> list[Token]:
    return FilterReader(text, None).tokens


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
    assert all(text[token.start : token.end] == token.text for token in tokens)


@for_each(
    ("text", "kinds"),
    [
        ("", []),
        ("a1 1st é", ["name", "name", "name"]),
        ("7 07 7d", ["number", "number", "name"]),
        ('"a b" `c d` "q""q"', ["quoted"] * 3),
        ("(),.", ["mark"] * 4),
    ],
)
def test_a_sort_order_is_cut_into_tokens(text: str, kinds: list[str]):
    tokens = of_sort_order(text)
    assert [token.kind for token in tokens] == [*kinds, "end"]
    assert all(text[token.start : token.end] == token.text for token in tokens)


@for_each(("text", "word"), [("and", "AND"), ("Today", "TODAY"), ("date", "DATE"), ("ıs", ""), ('"in"', "")])
def test_keywords_are_ascii_in_any_case_and_never_quoted(text: str, word: str):
    assert of_filter(text)[0].word == word


@for_each("text", ["and", "Today", "1", "'a'", "7d", "(", "=", "X'00'"])
def test_what_is_no_name_is_no_column(text: str):
    with pytest.raises(ExpressionError):
        parse_where(f"{text} is null")


@for_each(("text", "name"), [("date", "date"), ("ıs", "ıs"), ('"in"', "in"), ("`and`.b", "and.b")])
def test_a_word_that_is_no_keyword_and_one_in_quotes_name_columns(text: str, name: str):
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


def test_a_quote_that_a_language_does_not_have_is_not_called_open():
    with pytest.raises(
        UsageError, match=r"^cannot read the sort order at position 1, before \"'a'\": the character \"'\" has no"
    ):
        parse_sort_order("'a'")


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
