"""`icekeep history`, as people see it and as machines do, on a real table."""

import io
import json
import re

import msgspec
import pytest
from msgspec.structs import replace

from icekeep import cli
from icekeep.maintenance.history import CommitEntry, CommitHistoryResult, FilesChanged, ManifestsAfter, TableTotals
from icekeep.operations.console.output import format_json
from icekeep.operations.console.terminal import print_tables
from icekeep.operations.console.values import plain_values
from icekeep.operations.shown.results import history_shown
from icekeep.tables.refs import create_branch
from kit.lake import Lake

MS = 1_767_225_600_000
ENTRY = CommitEntry(
    snapshot_id=8059227605345665384,
    parent_snapshot_id=8062083685166986604,
    timestamp_ms=MS + 250,
    since_previous_ms=5_400_000,
    operation="replace",
    made_by="Spark 3.5.1, application local-1, Iceberg 1.9.0",
    refs=("main",),
    added=FilesChanged(
        data_files_count=12,
        record_count=336_776,
        position_delete_files_count=0,
        equality_delete_files_count=0,
        deletion_vectors_count=0,
        bytes=5_400_385,
    ),
    removed=FilesChanged(data_files_count=1_095, record_count=336_776, position_delete_files_count=3, bytes=13_150_642),
    after=TableTotals(data_files_count=15, delete_files_count=0),
    manifests=ManifestsAfter(manifests_count=1_367, created_count=2, replaced_count=366, metadata_bytes=9_000),
    metadata_files_between_count=1,
)
RESULT = CommitHistoryResult(
    metadata_location="file:///m",
    ref="main",
    commits=(ENTRY, CommitEntry(snapshot_id=1, timestamp_ms=MS, is_expired=True)),
    growth=(),
    metadata_files_after_count=0,
    left_out_count=7,
    not_read=(),
)


def printed(result):
    stream = io.StringIO()
    print_tables("history db.t: done", history_shown(result), stream)
    return stream.getvalue()


def test_its_json_round_trips():
    assert msgspec.json.decode(format_json(plain_values(RESULT)), type=CommitHistoryResult, strict=False) == RESULT


def test_two_tables_tell_what_changed_and_what_there_is_after_it():
    lines = printed(RESULT).splitlines()
    rows = [re.split(" {2,}", line.strip()) for line in lines]
    assert rows[:4] == [
        ["history db.t: done"],
        ["of", "main"],
        ["older_commits", "7"],
        ["metadata_files_since", "0"],
    ]
    change, expired = rows[rows.index(["commits (2)"]) + 3 :][:2]
    moment, operation = "2026-01-01 00:00:00 UTC", "replace"
    # Of deletes that went it is known that there are three of one kind, but not how many of the others.
    assert change == [str(ENTRY.snapshot_id), moment, operation, "Spark 3.5.1", "+12 -1,095", "+336,776 -336,776", "-?"]
    assert expired == ["1", moment, "expired", "-", "-", "-", "-"]
    [after] = rows[rows.index(["after_each (1)"]) + 3 :]
    assert after == [
        str(ENTRY.snapshot_id), "1.5 h", "1", "+5.2 MiB -12.5 MiB", "15", "?", "0", "1,367 (+2 -366)", "8.8 KiB"
    ]  # fmt: skip


def test_a_job_of_ours_is_told_by_its_name():
    assert "   icekeep compact   " in printed(replace(RESULT, commits=(replace(ENTRY, job="compact"),)))


def test_it_fits_a_terminal_of_120_columns():
    widths = [len(line) for line in printed(RESULT).splitlines()]
    assert 90 < max(widths) <= 120


def test_unread_files_and_notes_are_shown_only_where_any():
    spoilt = replace(ENTRY, note="its manifest list is not read: it is gone")
    shown = printed(replace(RESULT, commits=(spoilt,), not_read=("s3://b/snap-1.avro",)))
    assert re.search(r"^not_read +s3://b/snap-1.avro$", shown, re.MULTILINE)
    assert shown.endswith(f"{ENTRY.snapshot_id}   its manifest list is not read: it is gone\n")
    assert not re.search("not_read|notes", printed(RESULT))


@pytest.mark.slow
def test_history_shows_tables_to_people_and_numbers_in_json(tmp_path, monkeypatch, capsys):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    lake = Lake(tmp_path)
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n  local:\n{lines}")
    table = lake.filled(commits=3, files=2)
    create_branch(table, "audit", table.metadata.snapshots[0].snapshot_id)
    words = ["history", "--table", "db.events", "--conf", str(tmp_path / "icekeep.yaml")]
    before = lake.files_on_disk()
    assert cli.main([*words, "--output", "json", "--limit", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["job"], document["status"], document["table"]) == ("history", "done", "local.db.events")
    commits = document["result"]["commits"]
    assert [commit["after"]["data_files_count"] for commit in commits] == [6, 4]
    assert document["result"]["left_out_count"] == 1
    assert cli.main([*words, "--all"]) == 0
    out = capsys.readouterr().out
    assert f"{commits[0]['snapshot_id']}" in out
    assert "audit, main" in out
    assert "commits (3)" in out
    assert cli.main([*words, "--ref", "audit", "--since", "1h", "--output", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["result"]["commits"]) == 1
    assert cli.main([*words, "--since", "2000-01-01", "--ref", "dev"]) == 2
    assert "no branch or tag 'dev'" in capsys.readouterr().err
    assert cli.main([*words, "--dry-run"]) == 2
    capsys.readouterr()
    assert lake.files_on_disk() == before
