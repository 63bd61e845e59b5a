"""How names of tables are written: what is printed is read as the same parts, and is one text for one table."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.names import (
    FULL_NAME,
    NAME_IN_CATALOG,
    FullName,
    catalog_of,
    join_parts,
    name_of_form,
    split_name,
    without_catalog,
    written_parts,
)
from kit.cases import cases, for_each

PARTS = st.lists(st.text('ab.`"* \n', max_size=5) | st.text(max_size=5), min_size=1, max_size=4).map(tuple)


@cases(600)
@given(PARTS)
@example(("",))
@example(("`",))
@example(("db", "we.b"))
def test_what_is_printed_is_read_as_the_same_parts(parts):
    assert split_name(join_parts(parts)) == parts


@cases(600)
@given(st.text('ab.`"', max_size=8))
def test_each_spelling_of_a_name_is_printed_alike_and_read_as_the_same_parts(text):
    try:
        parts = split_name(text)
    except UsageError:
        return
    assert split_name(join_parts(parts)) == parts
    assert ".".join(written_parts(text)) == text
    in_double_quotes = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    assert join_parts(split_name(in_double_quotes)) == join_parts(parts)


@for_each(
    "text, parts",
    [
        ("db.events", ("db", "events")),
        ("db.`table:with.special:chars`", ("db", "table:with.special:chars")),
        ('db."table:with.special:chars"', ("db", "table:with.special:chars")),
        ("`a.b`.`say ``hi```", ("a.b", "say `hi`")),
        ('db."a""b"', ("db", 'a"b')),
        ("db.it`s", ("db", "it`s")),
        ("db. blank ", ("db", " blank ")),
        ("db..t", ("db", "", "t")),
    ],
)
def test_parts_are_read_with_the_quotes_of_spark_and_of_trino(text, parts):
    assert split_name(text) == parts


@for_each(
    "parts, text",
    [
        (("db", "events"), "db.events"),
        (("db", "größe 10%:x"), "db.größe 10%:x"),
        (("db", "it`s"), "db.it`s"),
        (("db", "`s"), "db.```s`"),
        (("a.b", "t"), "`a.b`.t"),
        (("db", "a*"), "db.`a*`"),
        (("db", " x"), "db.` x`"),
    ],
)
def test_only_what_needs_quotes_has_them(parts, text):
    assert join_parts(parts) == text


@for_each(
    "text, problem",
    [
        ("db.`events", "the quote ` in 'db.`events' is not closed; a quote within a name is doubled"),
        ('"db', "the quote \" in '\"db' is not closed; a quote within a name is doubled"),
        ("db.`a`b", "'b' follows a quote in 'db.`a`b'; put the whole part in quotes"),
    ],
)
def test_quotes_that_do_not_fit_are_refused_and_the_error_says_where(text, problem):
    with pytest.raises(UsageError) as refused:
        split_name(text)
    assert refused.value.message == problem


@for_each(
    "text, form, name",
    [
        ('lake.db."we.b"', FULL_NAME, "lake.db.`we.b`"),
        ("`lake`.`db`.`t`", FULL_NAME, "lake.db.t"),
        ("db.`a.b`", FULL_NAME, None),
        ("db.`a.b`", NAME_IN_CATALOG, "db.`a.b`"),
        ("`db.events`", NAME_IN_CATALOG, None),
        ("db.", NAME_IN_CATALOG, None),
        ("db.``", NAME_IN_CATALOG, None),
        ("db. t", NAME_IN_CATALOG, None),
        ("db.` t`", NAME_IN_CATALOG, "db.` t`"),
        ("db.`t", NAME_IN_CATALOG, None),
        ("db.a\nb", NAME_IN_CATALOG, None),
    ],
)
def test_a_name_has_the_parts_of_its_form(text, form, name):
    assert name_of_form(text, form) == name


def test_a_full_name_is_taken_apart():
    assert FullName.parse("lake.`a.b`.c.`d.e`") == ("lake", "`a.b`.c", "d.e")
    assert (catalog_of("`la.ke`.db.t"), without_catalog('lake.db."we.b"')) == ("la.ke", 'db."we.b"')
    with pytest.raises(UsageError, match=r"'lake\.`db\.t`' is no full name of a table; give CATALOG\.NAMESPACE\.TABLE"):
        FullName.parse("lake.`db.t`")
