"""Patterns over the names of tables, against a naive matcher."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.reports.matching import matcher
from kit.cases import cases

NAMES = st.lists(st.text("ab", min_size=1, max_size=3), min_size=2, max_size=4).map(tuple)
PARTS = st.one_of(st.just("**"), st.text("ab*", min_size=1, max_size=3).filter(lambda part: "**" not in part))


def naive(parts, name):
    if not parts:
        return not name
    if not name:
        return False
    if parts[0] == "**":
        return naive(parts[1:], name[1:]) or naive(parts, name[1:])
    return one(parts[0], name[0]) and naive(parts[1:], name[1:])


def one(part, text):
    if not part:
        return not text
    if part[0] == "*":
        return one(part[1:], text) or (bool(text) and one(part, text[1:]))
    return bool(text) and part[0] == text[0] and one(part[1:], text[1:])


@cases(400)
@given(st.lists(PARTS, min_size=2, max_size=4), NAMES)
def test_a_pattern_matches_as_a_naive_matcher_does(parts, name):
    assert matcher(".".join(parts))(name) is naive(parts, name)


def test_without_a_pattern_all_are_meant():
    assert matcher(None)(("db", "events"))


@pytest.mark.parametrize("pattern", ["db", "", "db.", ".a", "a..b", "db.a**", "***"])
def test_what_can_match_nothing_is_refused(pattern):
    with pytest.raises(UsageError, match=r"no table|beside other signs"):
        matcher(pattern)
