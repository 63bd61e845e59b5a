"""What changed since an earlier report: tables that are as before, changed, new, gone, and those that a report could not read."""

import json

import pytest
from msgspec.structs import replace

from icekeep.errors import UsageError
from icekeep.operations.console.values import plain_values
from icekeep.reports.page.page import report_page
from icekeep.reports.values import TableChange, TableFigures, figure_changed, read_earlier, report_shown, with_changes
from kit.browser import Page
from kit.cases import for_each
from kit.reports import NOW_MS, bare_table, full_table, not_read, report_of


@pytest.fixture
def written(tmp_path):
    """A report as a command writes it to a file, read again."""

    def write(report):
        path = tmp_path / "earlier.json"
        path.write_text(json.dumps({"job": "report", "result": plain_values(report), "later": 1}))
        return read_earlier(str(path))

    return write


def states(report):
    return {one.table: one.state for one in report.since.tables}


def test_each_table_is_as_before_changed_new_or_gone(written):
    smaller = full_table("lake.db.b", score=90.0, faults=())
    earlier = written(report_of(full_table("lake.db.a"), full_table("lake.db.b"), bare_table("lake.db.old")))
    now = report_of(full_table("lake.db.a"), smaller, bare_table("lake.db.made"))
    found = with_changes(now, earlier, is_whole=True)
    assert found.since.timestamp_ms == NOW_MS
    assert states(found) == {
        "lake.db.a": "same",
        "lake.db.b": "changed",
        "lake.db.made": "new",
        "lake.db.old": "gone",
    }
    changed = found.since.tables[1]
    assert changed.before == TableFigures(
        score=42.0,
        bytes=77 << 20,
        data_files_count=1_234,
        small_files_count=0,
        delete_files_count=3,
        snapshots_count=60,
        faults_count=2,
    )
    assert changed.after == replace(changed.before, score=90.0, faults_count=0)
    assert [one.table for one in found.since.changed] == ["lake.db.b", "lake.db.made", "lake.db.old"]


def test_a_report_of_some_tables_calls_no_other_gone(written):
    earlier = written(report_of(full_table("lake.db.a"), full_table("lake.db.b"), bare_table("else.db.a")))
    assert states(with_changes(report_of(full_table("lake.db.a")), earlier, is_whole=False)) == {"lake.db.a": "same"}
    whole = with_changes(report_of(full_table("lake.db.a")), earlier, is_whole=True)
    assert states(whole) == {"lake.db.a": "same", "lake.db.b": "gone"}


@pytest.mark.parametrize("name", ["lake.db.b", "lake.db.*", "lake.*"])
def test_unread_table_is_neither_new_nor_gone(written, name):
    full, partial = report_of(bare_table("lake.db.b")), report_of(not_read=(not_read(name),))
    assert states(with_changes(partial, written(full), is_whole=True)) == {"lake.db.b": "not_read"}
    assert states(with_changes(full, written(partial), is_whole=True)) == {"lake.db.b": "not_read"}


def test_a_catalog_out_of_reach_has_lost_no_table(written):
    earlier = written(report_of(bare_table("away.db.b")))
    now = report_of(catalogs=(), not_read=(not_read("away.*"),))
    assert states(with_changes(now, earlier, is_whole=True)) == {"away.db.b": "not_read"}


def test_a_figure_is_told_before_and_after():
    before = TableFigures(
        score=42.0,
        bytes=3 << 30,
        data_files_count=1_200,
        small_files_count=9,
        delete_files_count=0,
        snapshots_count=1,
        faults_count=0,
    )
    after = replace(before, score=42.4, bytes=(3 << 30) - 2048, data_files_count=7)
    one = TableChange(table="lake.db.a", state="changed", before=before, after=after)
    told = {name: figure_changed(one, name) for name in TableFigures.__struct_fields__}
    assert told == {
        "score": "42.0 -> 42.4",
        "bytes": "3.0 GiB (-2.0 KiB)",
        "data_files_count": "1,200 -> 7",
        "small_files_count": "9",
        "delete_files_count": "0",
        "snapshots_count": "1",
        "faults_count": "0",
    }
    assert figure_changed(replace(one, after=None), "score") == "42.0"


def test_people_see_the_tables_that_changed(written):
    earlier = written(report_of(full_table("lake.db.a"), full_table("lake.db.b")))
    now = report_of(full_table("lake.db.a", score=50.0), full_table("lake.db.b"))
    found = with_changes(now, earlier, is_whole=True)
    shown = report_shown(found)
    assert shown["since"] == "2026-09-21T14:13:20Z: 1 of 2 tables changed"
    [row] = shown["changes"]
    assert (row["table"], row["state"], row["score"]) == ("lake.db.a", "changed", "42.0 -> 50.0")
    page = Page(report_page(found))
    assert "Compared with the report of 2026-09-21 14:13 UTC: 1 of 2 tables changed." in page.text
    assert "42.0 \u2192 50.0" in page.text
    same = with_changes(report_of(full_table("lake.db.b")), earlier, is_whole=False)
    assert "changes" not in report_shown(same)
    assert "0 of 1 table changed" in Page(report_page(same)).text
    assert "Since the last report" not in Page(report_page(now)).text


@for_each("content", [b"", b"no json", b"[]", b"\xff\xfe", b'{"result": null}', b'{"result": {"tables": [{}]}}'])
def test_a_file_that_is_no_report_is_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("files") / "other.json"
    path.write_bytes(content)
    told = r"other.json' is not the JSON of a report: .+; `icekeep report --output json`"
    with pytest.raises(UsageError, match=told) as raised:
        read_earlier(str(path))
    assert len(raised.value.message.splitlines()) == 1


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read earlier report '.*/none.json': no such file or directory"):
        read_earlier(str(tmp_path / "none.json"))
