from datetime import timedelta
from itertools import pairwise

import pytest

from icekeep.catalog.base import format_identifier, parse_identifier, validate_namespace
from icekeep.errors import ConflictError, UsageError, first_line
from icekeep.tables.verbs import rollback_to_snapshot
from kit.cases import for_each
from kit.memory_catalog import MemoryCatalog
from kit.tables import add, memory_table


@for_each("text", ["db.events", "lake.raw.events", "db.a b", "db.%2F", "é.ü"])
def test_an_identifier_is_the_parts_between_dots(text):
    assert parse_identifier(text) == tuple(text.split("."))
    assert format_identifier(parse_identifier(text)) == text


@for_each("text", ["", "events", ".events", "db.", "db..events", "db/x.events", "db.eve\nnts", "db.\0"])
def test_identifier_needs_namespace_and_valid_parts(text):
    with pytest.raises(UsageError):
        parse_identifier(text)


def test_a_namespace_may_have_one_level():
    assert validate_namespace(("db",)) == ("db",)
    with pytest.raises(UsageError, match="at least one part"):
        validate_namespace(())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError(), "ValueError"),
        (ConflictError("lost", table="db.events"), "lost"),
    ],
)
def test_an_error_in_a_message_is_first_line(error, text):
    assert first_line(error) == text


def test_a_table_says_what_it_is_in_one_line_and_to_a_notebook():
    table = add(memory_table(), "a")
    snapshot = table.metadata.current_snapshot_id
    assert repr(table) == (
        f"Table(local.db.events: format version 2, columns 3, snapshots 1, current snapshot {snapshot} of 2023-11-14T22:13:20Z)"
    )
    assert "current snapshot none" in repr(memory_table())
    html = table._repr_html_()
    assert "<td>memory://lake/wh/db/events</td>" in html
    assert "<tr><td>1</td><td>id</td><td>long not null</td></tr>" in html


def test_what_a_catalog_calls_itself_is_no_markup():
    table = memory_table(MemoryCatalog(name="<script>"))
    assert "<b>&lt;script&gt;.db.events</b>" in table._repr_html_()


def test_a_table_is_as_it_was_loaded_until_it_is_refreshed():
    before = memory_table()
    after = add(before, "a")
    assert before.current_snapshot is None
    assert before.history() == ()
    assert before.refresh() == after
    assert after.schema == after.metadata.schema


def test_history_says_what_was_current_when():
    table = memory_table()
    for name in "abc":
        table.catalog.runtime.pass_ms(1000)
        table = add(table, name)
    first, second, third = (s.snapshot_id for s in table.metadata.snapshots)
    table.catalog.runtime.pass_ms(1000)
    table = rollback_to_snapshot(table, second)
    seen = [(e.snapshot_id, e.parent_id, e.is_current_ancestor) for e in table.history()]
    assert seen == [(first, None, True), (second, first, True), (third, second, False), (second, first, True)]
    times = [entry.made_current_at for entry in table.history()]
    assert [later - earlier for earlier, later in pairwise(times)] == [timedelta(seconds=1)] * 3
