"""The language of `sort_order`: examples of Iceberg's RewriteDataFilesProcedure, and that what is written is what is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.spec.sorting import MAX_TEXT_LENGTH, CurveKeys, SortKey, parse_sort_order
from kit.cases import for_each


@for_each(
    ("text", "keys"),
    [
        ("id", [SortKey("id")]),
        ("id, name", [SortKey("id"), SortKey("name")]),
        ("(id, name)", [SortKey("id"), SortKey("name")]),
        ("id ASC", [SortKey("id", direction="asc")]),
        ("id desc", [SortKey("id", direction="desc")]),
        ("id DESC NULLS LAST, name asc nulls first", [
            SortKey("id", direction="desc", null_order="nulls-last"),
            SortKey("name", null_order="nulls-first"),
        ]),
        ("id NULLS LAST", [SortKey("id", null_order="nulls-last")]),
        ("bucket(16, id)", [SortKey("id", "bucket[16]")]),
        ("bucket(id, 16) DESC", [SortKey("id", "bucket[16]", "desc")]),
        ("truncate(name, 10)", [SortKey("name", "truncate[10]")]),
        ("TRUNCATE(10, name)", [SortKey("name", "truncate[10]")]),
        ("years(a), months(a), days(a), hours(a)", [SortKey("a", t) for t in ("year", "month", "day", "hour")]),
        ("year(a), month(a), day(a), hour(a)", [SortKey("a", t) for t in ("year", "month", "day", "hour")]),
        ("date(a), date_hour(a), identity(a)", [SortKey("a", t) for t in ("day", "hour", "identity")]),
        ("user.name", [SortKey("user.name")]),
        ("days(`event log`.at)", [SortKey("event log.at", "day")]),
        ("`a b` DESC, \"c\"\"d\", `e``f`", [SortKey("a b", direction="desc"), SortKey('c"d'), SortKey("e`f")]),
        # Words of the language may be names of columns.
        ("asc desc, nulls nulls last, days, zorder", [
            SortKey("asc", direction="desc"),
            SortKey("nulls", null_order="nulls-last"),
            SortKey("days"),
            SortKey("zorder"),
        ]),
        ("1st", [SortKey("1st")]),
    ],
)  # fmt: skip
def test_keys_are_read(text, keys):
    assert parse_sort_order(text) == tuple(keys)


@for_each(
    ("text", "curve"),
    [
        ("zorder(a, b)", CurveKeys("zorder", ("a", "b"))),
        ("ZOrder( a , user.b, `c d` )", CurveKeys("zorder", ("a", "user.b", "c d"))),
        ("hilbert(a, b)", CurveKeys("hilbert", ("a", "b"))),
        ("zorder(a)", CurveKeys("zorder", ("a",))),
        # Iceberg puts the columns of several terms together.
        ("zorder(a, b), zorder(c)", CurveKeys("zorder", ("a", "b", "c"))),
    ],
)
def test_curves_are_read(text, curve):
    assert parse_sort_order(text) == curve


@for_each(
    ("text", "position", "problem"),
    [
        ("", 1, "it is empty"),
        ("   ", 4, "it is empty"),
        ("a,", 3, "a column is missing"),
        ("a b", 3, "a comma, ASC, DESC"),
        ("a asc desc", 7, "a comma, ASC, DESC"),
        ("a nulls", 8, "after NULLS"),
        ("a nulls desc", 9, "after NULLS"),
        ("a desc nulls first asc", 20, "a comma, ASC, DESC"),
        ("a..b", 3, "a column is missing"),
        ("a.", 3, "a column is missing"),
        ("(a, b", 6, "closing parenthesis"),
        ("bucket(a)", 9, "the number of bucket is missing"),
        ("bucket(16)", 10, "after the number of bucket a column"),
        ("bucket(a, b)", 11, "a whole number is missing"),
        ("days(a, 3)", 7, "closing parenthesis"),
        ("lower(a)", 1, "there is no transform"),
        ("a, lower(b)", 4, "there is no transform"),
        ("zorder()", 8, "a column is missing"),
        ("zorder(a, b", 12, "closing parenthesis"),
        ("zorder(a, b) desc", 14, "a curve has no direction"),
        ("zorder(a, b), c", 1, "a curve goes with no other"),
        ("c, hilbert(a, b)", 1, "a curve goes with no other"),
        ("zorder(a, b), hilbert(a, b)", 1, "a curve goes with no other"),
        ("`a", 1, "not closed"),
        ("a; drop", 2, "no meaning"),
        ("a, 7", 4, "a column is missing"),
    ],
)
def test_what_is_no_sort_order_is_refused_with_its_place(text, position, problem):
    with pytest.raises(UsageError, match="cannot read the sort order") as raised:
        parse_sort_order(text)
    assert raised.value.facts["position"] == position
    assert problem in raised.value.message


def test_a_text_of_any_length_is_not_read():
    with pytest.raises(UsageError, match="characters"):
        parse_sort_order("a" * (MAX_TEXT_LENGTH + 1))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda name: "." not in name)
TRANSFORMS = st.sampled_from(["identity", "year", "month", "day", "hour"]) | st.builds(
    "{}[{}]".format, st.sampled_from(["bucket", "truncate"]), st.integers(1, 2**31 - 1)
)
KEYS = st.builds(
    SortKey,
    st.lists(NAMES, min_size=1, max_size=3).map(".".join),
    TRANSFORMS,
    st.sampled_from(["asc", "desc"]),
    st.sampled_from([None, "nulls-first", "nulls-last"]),
)


def written(key: SortKey, quote: str) -> str:
    name = ".".join(quote + part.replace(quote, quote * 2) + quote for part in key.column.split("."))
    function, _, number = key.transform.rstrip("]").partition("[")
    term = f"{function}({number}, {name})" if number else f"{function}({name})"
    nulls = "" if key.null_order is None else key.null_order.replace("-", " ")
    return f"{name if key.transform == 'identity' else term} {key.direction} {nulls}"


@given(st.lists(KEYS, min_size=1, max_size=4), st.sampled_from(["`", '"']))
def test_what_is_written_is_what_is_read(keys, quote):
    assert parse_sort_order(", ".join(written(key, quote) for key in keys)) == tuple(keys)


@given(st.text(max_size=40) | st.text('abc ,().`"1desnul', max_size=30))
def test_any_text_is_read_or_refused(text):
    refused = None
    try:
        parse_sort_order(text)
    except UsageError as error:
        refused = error
    if refused is not None:
        assert 1 <= refused.facts["position"] <= len(text) + 1
        assert "\n" not in refused.message
