"""Patterns for tables, against a matcher that tries every way to take a name apart."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.names import NAME_IN_CATALOG, join_parts
from icekeep.policies.values import parse_glob
from kit.cases import cases, for_each


def naive_part(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(naive_part(pattern[1:], text[n:]) for n in range(len(text) + 1))
    return text[:1] == pattern[0] and naive_part(pattern[1:], text[1:])


def naive(pattern: list[str], name: list[str]) -> bool:
    """Whether a pattern of parts matches a name of parts; `**` at the end takes one part at least."""
    if not pattern:
        return not name
    if pattern == ["**"]:
        return bool(name)
    if pattern[0] == "**":
        return any(naive(pattern[1:], name[n:]) for n in range(len(name) + 1))
    return bool(name) and naive_part(pattern[0], name[0]) and naive(pattern[1:], name[1:])


PARTS = st.text("ab*", min_size=1, max_size=3).filter(lambda part: "**" not in part)
PATTERNS = st.lists(PARTS | st.just("**"), min_size=1, max_size=5).filter(lambda p: len(p) > 2 or "**" in p)
NAMES = st.lists(st.text("ab+", min_size=1, max_size=3), min_size=3, max_size=5)


@cases(600)
@given(pattern=PATTERNS, name=NAMES)
@example(pattern=["a", "**", "b"], name=["a", "b", "b"])
@example(pattern=["a", "**"], name=["a", "b", "b"])
@example(pattern=["a", "b", "a", "**"], name=["a", "b", "a"])
@example(pattern=["**", "**", "a"], name=["a", "a", "a"])
def test_a_pattern_matches_as_a_naive_matcher_says(pattern, name):
    assert parse_glob(".".join(pattern)).matches(".".join(name)) is naive(pattern, name)


@cases(600)
@given(pattern=PATTERNS, namespace=st.lists(st.text("ab+", min_size=1, max_size=2), min_size=1, max_size=4))
@example(pattern=["a", "**"], namespace=["a"])
@example(pattern=["a", "b", "**"], namespace=["a"])
def test_pattern_may_match_in_namespace_of_matching_name(pattern, namespace):
    """A part of a pattern without a star is the only name that it matches; else a name can be made of it."""
    glob = parse_glob(".".join(pattern))
    name = pattern[-1].replace("*", "") or "a"
    assert glob.may_match_in(".".join(namespace)) is naive(pattern, [*namespace, name])


@cases(300)
@given(name=st.lists(st.text('a.*?`"', min_size=1, max_size=3), min_size=3, max_size=4))
def test_the_name_of_a_table_is_the_pattern_of_this_table_alone(name):
    glob = parse_glob(join_parts(name))
    assert glob.matches(join_parts(name))
    assert glob.may_match_in(join_parts(name[:-1]))
    assert glob.catalog == name[0]
    assert not glob.matches(join_parts([*name[:-1], f"{name[-1]}b"]))


@for_each(
    "pattern, name, matches",
    [
        ("lake.db.*", "lake.db.`a.b`", True),
        ("lake.db.a*", "lake.db.`a.b`", True),
        ("lake.db.a.b", "lake.db.`a.b`", False),
        ("lake.db.`a.b`", "lake.db.a.b", False),
        ('lake.db."a.b"', "lake.db.`a.b`", True),
        ("lake.db.`a*`", "lake.db.ab", False),
        ("lake.*.t", "lake.`a.b`.t", True),
        ("lake.*.t", "lake.a.b.t", False),
        ("lake.**", "lake.`a.b`.`c.d`", True),
    ],
)
def test_a_dot_in_quotes_is_part_of_a_name(pattern, name, matches):
    assert parse_glob(pattern).matches(name) is matches


def test_a_pattern_of_many_stars_takes_no_time_on_a_long_name():
    """Tried in each way, this would take hours."""
    glob = parse_glob(f"c.d.{'*a' * 20}*b")
    assert not glob.matches(f"c.d.{'a' * 200}")
    assert glob.matches(f"c.d.{'a' * 200}b")


@cases(200)
@given(name=NAMES)
def test_a_name_is_a_pattern_of_itself_alone(name):
    glob = parse_glob(".".join(name))
    assert glob.matches(".".join(name))
    assert not glob.matches(".".join(name) + "a")
    assert not glob.matches(".".join([*name, "a"]))


@for_each(
    ("pattern", "matched", "others"),
    [
        ("prod.sales.*", ["prod.sales.t"], ["prod.sales.eu.t", "prod.sale.t", "Prod.sales.t", "prod.sales.T.x"]),
        ("prod.**", ["prod.s.t", "prod.s.eu.t"], ["production.s.t"]),
        ("prod.sales.**", ["prod.sales.t", "prod.sales.eu.t"], ["prod.sales", "prod.saleseu.t"]),
        ("prod.**.tmp_*", ["prod.s.tmp_1", "prod.s.eu.tmp_"], ["prod.s.tmp1", "prod.tmp_1.x"]),
        ("*.*.*", ["a.b.c"], ["a.b.c.d"]),
        ("**", ["a.b.c", "a.b.c.d"], []),
    ],
)
def test_examples_of_the_documents(pattern, matched, others):
    glob = parse_glob(pattern)
    assert [name for name in matched + others if glob.matches(name)] == matched


@for_each(("pattern", "catalog"), [("prod.a.*", "prod"), ("*.a.b", None), ("**", None), ("p*.a.b", None)])
def test_a_pattern_says_which_catalog_it_is_about(pattern, catalog):
    assert parse_glob(pattern).catalog == catalog


@for_each(
    ("pattern", "problem"),
    [
        ("prod.*", "can match no table; give CATALOG.NAMESPACE.TABLE, or CATALOG.** for all of a catalog"),
        ("*", "can match no table"),
        ("prod..t", "is no pattern; give CATALOG.NAMESPACE.TABLE"),
        ("", "is no pattern"),
        ("prod. a.b", "is no pattern"),
        ("prod.a.t?", "has '?', which is no sign of a pattern here"),
        ("prod.[ab].t", "has '[', which"),
        ("!prod.a.t", "has '!', which"),
        ("prod.a**.t", r"has ** beside other signs"),
        ("prod.***.t", r"has ** beside other signs"),
    ],
)
def test_what_is_no_pattern_is_told(pattern, problem):
    with pytest.raises(UsageError) as caught:
        parse_glob(pattern)
    assert problem in caught.value.message


@for_each("pattern", ["db", "", "db.", ".a", "a..b", "db.a**", "***"])
def test_what_can_match_no_name_in_a_catalog_is_refused(pattern):
    with pytest.raises(UsageError, match=r"no table|beside other signs|no pattern"):
        parse_glob(pattern, NAME_IN_CATALOG)


def test_a_pattern_of_names_in_a_catalog_may_have_two_parts():
    glob = parse_glob("db.*", NAME_IN_CATALOG)
    assert (glob.matches("db.events"), glob.matches("db.raw.events")) == (True, False)
