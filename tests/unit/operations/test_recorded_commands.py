"""Commands and jobs on a real table, as the record of runs has them afterwards; and the Iceberg table of runs."""

import json
import zlib
from pathlib import Path

import msgspec
import pytest

from icekeep import cli
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter
from icekeep.runtime import SYSTEM
from kit.lake import Lake

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    lake = Lake(tmp_path)
    lake.filled(commits=3, files=1)
    configure(lake)
    return lake


def configure(lake, **runs):
    Path("conf").mkdir(exist_ok=True)
    document = {"catalogs": {"local": lake.properties}, **({"runs": runs} if runs else {})}
    Path("conf/icekeep.yaml").write_text(json.dumps(document))


def run(capsys, *words, table="db.events"):
    status = cli.main([*words, "--table", table, "--output", "json"])
    out, err = capsys.readouterr()
    return status, json.loads(out), err


def written():
    found = RunRecords.at("sqlite:///warehouse.icekeep-runs.db").select(RunFilter(), SYSTEM.now_ms())
    return [*reversed(found)]


def test_only_commands_that_change_tables_are_recorded(lake, capsys):
    first, _, head = [s.snapshot_id for s in lake.load().metadata.snapshots]
    for words in ("ref list", "history", "restore --list", "ref create-tag v0 --dry-run"):
        assert run(capsys, *words.split())[0] == 0
    assert written() == []
    assert run(capsys, "ref", "create-branch", "dev", "--snapshot-id", str(first))[0] == 0
    assert run(capsys, "ref", "create-branch", "dev")[0] == 2
    assert run(capsys, "ref", "replace-branch", "dev", "--snapshot-id", str(head))[0] == 0
    assert run(capsys, "rollback", "--snapshot-id", str(first))[0] == 0
    told = [(one.job, one.status, one.snapshot_id_before, one.snapshot_id_after) for one in written()]
    assert told == [
        ("ref create-branch", "done", None, first),
        ("ref create-branch", "failed", first, None),
        ("ref replace-branch", "done", first, head),
        ("rollback", "done", head, first),
    ]
    last = written()[-1]
    assert last.metadata_location_after == lake.load().metadata_location
    assert last.metadata_location_before != last.metadata_location_after


def test_a_job_on_a_branch_tells_of_that_branch(lake, capsys):
    run(capsys, "ref", "create-branch", "dev")
    head = lake.load().metadata.current_snapshot_id
    status, document, _ = run(capsys, "compact", "--branch", "dev", "--option", "rewrite-all=true")
    assert status == 0
    metadata = lake.load().metadata
    now = metadata.refs["dev"].snapshot_id
    assert (document["snapshot_id_before"], document["snapshot_id_after"]) == (str(head), str(now))
    assert metadata.current_snapshot_id == head != now
    summary = metadata.snapshot(now).summary
    assert summary["icekeep.run-id"] == document["run_id"] == document["result"]["run_id"] == written()[-1].run_id


def test_a_plan_expects_what_the_last_runs_took(lake, capsys):
    options = ["--option", "rewrite-all=true"]
    assert run(capsys, "compact", *options)[0] == 0
    first = written()[-1]
    assert first.estimated_cpu_ms > 0
    records = RunRecords.at("sqlite:///warehouse.icekeep-runs.db")
    records.end(msgspec.structs.replace(first, cpu_ms=3 * first.estimated_cpu_ms))
    status, planned, err = run(capsys, "compact", *options, "--dry-run")
    assert status == 0, (planned, err)
    _, ran, _ = run(capsys, "compact", *options)
    assert planned["result"]["estimated"]["cpu_ms"] == ran["result"]["estimated"]["cpu_ms"]
    second = written()[-1]
    assert ran["result"]["estimated"]["cpu_ms"] == 3 * second.estimated_cpu_ms
    # What one run has learned is no estimate of the next one's.
    assert second.estimated_cpu_ms == pytest.approx(first.estimated_cpu_ms, rel=0.1)
    assert second.cpu_ms == ran["result"]["cpu_ms"]


def test_a_table_that_is_dropped_and_taken_in_again(lake, capsys):
    before = lake.load()
    status, dropped, _ = run(capsys, "drop")
    assert (status, dropped["metadata_location_before"]) == (0, before.metadata_location)
    assert (dropped["metadata_location_after"], dropped["snapshot_id_after"]) == (None, None)
    status, taken, _ = run(capsys, "register", "--metadata-location", before.metadata_location)
    assert (status, taken["metadata_location_before"]) == (0, None)
    assert taken["snapshot_id_after"] == str(before.metadata.current_snapshot_id)
    assert [(one.job, one.metadata_location_after) for one in written()] == [
        ("drop", None),
        ("register", taken["metadata_location_after"]),
    ]


def test_expired_snapshots_are_restored_by_run_id(lake, capsys):
    status, expired, _ = run(capsys, "expire_snapshots", "--older-than", "0s", "--retain-last", "1")
    assert (status, expired["result"]["is_in_trash"]) == (0, True)
    status, restored, _ = run(capsys, "restore", "--run", expired["run_id"])
    assert (status, restored["result"]["run"]) == (0, expired["run_id"])
    assert restored["result"]["restored_snapshots_count"] == 2
    assert [one.job for one in written()] == ["expire_snapshots", "restore"]


def test_ended_runs_are_appended_to_readable_iceberg_table(lake, capsys):
    configure(lake, table="local.ops.runs")
    assert run(capsys, "ref", "create-tag", "one")[0] == 0
    assert run(capsys, "ref", "create-tag", "one")[0] == 2
    rows = lake.foreign_catalog().load_table(("ops", "runs")).scan().to_arrow().to_pylist()
    assert {row["run_id"]: row["status"] for row in rows} == {one.run_id: one.status for one in written()}
    assert sorted(row["status"] for row in rows) == ["done", "failed"]


def test_unsuitable_iceberg_table_costs_only_a_warning(lake, capsys):
    configure(lake, table="local.db.events")
    status, document, err = run(capsys, "ref", "create-tag", "one")
    assert status == 0
    [warning] = [line for line in err.splitlines() if "is not written down" in line]
    assert "run_id" in warning
    assert [one.run_id for one in written()] == [document["run_id"]]


def test_applied_or_refused_plan_is_recorded_by_hash(lake, capsys):
    """A plan that is refused counts as no failure of its job."""
    first = lake.load().metadata.snapshots[0].snapshot_id
    words = ("expire_snapshots", "--older-than", "0s", "--retain-last", "1", "--plan-out")
    assert run(capsys, *words, "stale.jsonl")[0] == 0
    assert run(capsys, "ref", "create-tag", "keep", "--snapshot-id", str(first))[0] == 0
    _, document, _ = run(capsys, *words, "plan.jsonl")
    assert [cli.main(["apply", name, "--output", "json"]) for name in ("stale.jsonl", "plan.jsonl")] == [4, 0]
    refused, done = [one for one in written() if "plan" in one.arguments]
    assert (refused.exit_status, done.exit_status, done.arguments["plan"]) == (4, 0, document["plan"]["hash"])
    assert refused.arguments["plan"] != done.arguments["plan"]
    records = RunRecords.at("sqlite:///warehouse.icekeep-runs.db")
    assert records.last_of(["local.db.events"], SYSTEM.now_ms()) == {}


def test_expiration_keeps_catalog_scan_and_dry_run_does_not(lake, capsys):
    records, identity = RunRecords.at("sqlite:///warehouse.icekeep-runs.db"), lake.load().catalog.identity
    assert run(capsys, "expire_snapshots", "--dry-run")[0] == 0
    assert records.last_look(identity) is None
    assert run(capsys, "expire_snapshots")[0] == 0
    first = records.last_look(identity)
    assert b'"events"' in zlib.decompress(first[1])
    # Another process, and the same day.
    assert run(capsys, "expire_snapshots")[0] == 0
    assert records.last_look(identity) == first
