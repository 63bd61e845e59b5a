import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import ExpressionError
from icekeep.spec.filters.lexing import Token, fail_at, tokenize, unquote


@pytest.mark.parametrize(
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
def test_a_text_is_cut_into_tokens(text: str, kinds: list[str]):
    tokens = tokenize(text)
    assert [token.kind for token in tokens] == [*kinds, "end"]
    assert all(text[token.start : token.end] == token.text for token in tokens)


@pytest.mark.parametrize(
    ("text", "word", "is_column"),
    [("and", "AND", False), ("Today", "TODAY", False), ("date", "DATE", True), ("ıs", "", True), ('"in"', "", True)],
)
def test_keywords_are_ascii_in_any_case_and_never_quoted(text: str, word: str, is_column: bool):
    token = tokenize(text)[0]
    assert (token.word, token.is_column) == (word, is_column)


def test_what_is_no_name_is_no_column():
    assert not any(token.is_column for token in tokenize("1 'a' 7d ( = X'00'"))


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
        tokenize(text)
    assert caught.value.facts == {"text": text, "position": position}


def test_an_error_shows_a_piece_of_the_text_or_its_end():
    with pytest.raises(ExpressionError, match=f"at position 2, before '{'b' * 30}': why$"):
        fail_at("a" + "b" * 31, 1, "why")
    with pytest.raises(ExpressionError, match=r"at position 2, at its end: why$"):
        fail_at("a", 1, "why")


@given(st.text(max_size=8), st.sampled_from("'\"`"))
def test_quoting_is_undone(text: str, quote: str):
    quoted = quote + text.replace(quote, quote * 2) + quote
    assert unquote(quoted) == text
    assert tokenize(quoted) == [
        Token("string" if quote == "'" else "quoted", 0, quoted),
        Token("end", len(quoted), ""),
    ]
