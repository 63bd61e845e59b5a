import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.spec.filters.expressions import Operation, Predicate
from icekeep.spec.filters.parsing import format_expression, read_pattern
from kit.cases import for_each


@for_each(
    ("pattern", "text", "is_whole"),
    [
        ("", "", True),
        ("%", "", False),
        ("abc", "abc", True),
        ("abc%", "abc", False),
        (r"10\%", "10%", True),
        (r"10\%%", "10%", False),
        (r"\_\\%", "_\\", False),
        (r"a!b%", "a!b", False),
    ],
)
def test_a_pattern_is_a_whole_value_or_a_prefix(pattern: str, text: str, is_whole: bool):
    assert read_pattern(pattern) == (text, is_whole)


@for_each(
    ("pattern", "problem"),
    [
        ("%a", r"another % as \\%"),
        ("a%%", r"another % as \\%"),
        ("a_", r"the wildcard _ is not supported, escape it as \\_"),
        ("_%", "the wildcard _"),
        (r"a\b", r"the escape \\ stands before %, _ or \\ only"),
        ("a\\", "the escape"),
    ],
)
def test_other_wildcards_are_refused_with_what_is_supported(pattern: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        read_pattern(pattern)


def test_another_escape_takes_its_place():
    assert read_pattern(r"a\!%!!%", "!") == ("a\\%!", False)
    with pytest.raises(ValueError, match=r"escape another % as !%"):
        read_pattern("%a", "!")
    with pytest.raises(ValueError, match="the escape ! stands before %, _ or ! only"):
        read_pattern("!a", "!")


@given(st.text("ab%_\\'", max_size=8))
def test_a_prefix_that_is_shown_is_read_as_the_same(prefix: str):
    shown = format_expression(Predicate(Operation.STARTS_WITH, "x", (prefix,)))
    pattern = shown.removeprefix("x LIKE '").removesuffix("'").replace("''", "'")
    assert read_pattern(pattern) == (prefix, False)
