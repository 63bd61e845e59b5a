"""Runs on the command line as they are written down, whatever end they come to; and jobs whose record cannot be written."""

import json
import os
import sqlite3
from pathlib import Path

import msgspec
import pytest

from icekeep import cli
from icekeep.errors import ConflictError
from icekeep.operations.configuration.file import CatalogSettings
from icekeep.operations.console.values import plain_values
from icekeep.operations.recording import beside_warehouse
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter
from kit import fake_jobs
from kit.cases import for_each
from kit.fake_jobs import APPLICATION, FAILURES, HISTORY, JOBS, SEAMS
from kit.runtime import START_MS, FakeRuntime

WAREHOUSE = "catalogs: {local: {type: sql, uri: 'sqlite:///x.db', warehouse: ./lake/wh}}\n"


@pytest.fixture(autouse=True)
def _world(tmp_path, monkeypatch):
    fake_jobs.forget()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "conf").mkdir()
    (tmp_path / "lake").mkdir()
    configure(WAREHOUSE)


def configure(text):
    Path("conf/icekeep.yaml").write_text(text)


def run(*words, jobs=JOBS, runtime=None):
    return cli.main(words, jobs=jobs, seams=SEAMS, runtime=runtime or FakeRuntime())


def written(path="lake/wh.icekeep-runs.db"):
    return RunRecords.at(f"sqlite:///{path}").select(RunFilter(), START_MS)


def compact(name):
    return {"compact": msgspec.structs.replace(JOBS["compact"], run=f"kit.fake_jobs:{name}")}


def test_run_is_recorded_beside_warehouse_as_in_document(capsys):
    assert run("compact", "--table", "db.t", "--where", "id > 1", "--output", "json") == 0
    document = json.loads(capsys.readouterr().out)
    (record,) = written()
    assert (record.status, record.exit_status, record.error_kind) == ("done", 0, None)
    assert (record.job, record.table, record.policy, record.parent_id) == ("compact", "local.db.t", None, None)
    told = ("run_id", "version", "arguments", "started_ms", "ended_ms", "result")
    told += ("snapshot_id_before", "snapshot_id_after", "metadata_location_before", "metadata_location_after")
    assert plain_values({name: getattr(record, name) for name in told}) == {name: document[name] for name in told}
    assert record.arguments == {"where": "id > 1"}
    assert record.host
    # The application has ended by the time at which the run is written down.
    assert (HISTORY[-1], record.app_id) == ("stop", APPLICATION)
    assert not Path("lake/wh").exists()


def test_a_run_that_fails_is_written_down_with_its_error(capsys):
    FAILURES.append(ConflictError("another writer won"))
    assert run("compact", "--table", "db.t") == 75
    (record,) = written()
    assert (record.status, record.exit_status) == ("failed", 75)
    assert (record.error_kind, record.error_message) == ("conflict", "another writer won")
    assert (record.snapshot_id_before, record.snapshot_id_after, record.result) == (2, None, None)


def test_a_table_that_cannot_be_loaded_is_a_run_that_failed_too(capsys):
    seams = msgspec.structs.replace(SEAMS, load_table="kit.fake_jobs:load_broken_table")
    assert cli.main(["compact", "--table", "db.t"], jobs=JOBS, seams=seams, runtime=FakeRuntime()) == 1
    (record,) = written()
    assert (record.table, record.status, record.error_kind) == ("local.db.t", "failed", "invalid-table")


@pytest.mark.parametrize(
    ("function", "status", "exit_status", "kind"),
    [
        ("terminated", "interrupted", 143, "interrupted"),
        ("terminated_and_confused", "interrupted", 143, "interrupted"),
        ("terminated_and_refused", "refused", 4, "safety"),
        ("compact_in_part", "partial", 3, None),
    ],
)
def test_each_end_has_its_status(function, status, exit_status, kind, capsys):
    assert run("compact", "--table", "db.t", jobs=compact(function)) == exit_status
    (record,) = written()
    assert (record.status, record.exit_status, record.error_kind) == (status, exit_status, kind)
    assert record.ended_ms == START_MS


def test_an_error_names_the_table_as_it_was_named(capsys):
    assert run("plan_scan", "--table", "db.t", "--ref", "nope", "--output", "json") == 2
    out, err = capsys.readouterr()
    assert "table 'local.db.t' has no branch or tag 'nope'" in err
    assert json.loads(out)["error"]["message"] == written()[0].error_message
    assert "the table at" not in out


def test_invalid_commands_and_dry_runs_are_not_recorded(capsys):
    assert run("compact", "--table", "db.t", "--dry-run") == 0
    assert run("compact", "--table", "db.t", "--where", "id >") == 2
    assert run("compact", "--colour", "red") == 2
    assert not Path("lake/wh.icekeep-runs.db").exists()


def test_the_database_is_the_one_that_the_configuration_names(capsys, monkeypatch):
    monkeypatch.setenv("RUNS", "runs.db")
    configure(WAREHOUSE + "runs: {uri: 'sqlite:///${RUNS}'}\n")
    assert run("compact", "--table", "db.t") == 0
    assert [one.status for one in written("runs.db")] == ["done"]
    assert not Path("lake/wh.icekeep-runs.db").exists()


@pytest.mark.parametrize(
    "text",
    [
        WAREHOUSE + "runs: {enabled: false}\n",
        "catalogs: {local: {type: sql, uri: 'sqlite:///x.db'}}",
        "catalogs: {local: {type: sql, uri: 'sqlite:///x.db', warehouse: s3://bucket/wh}}",
        "catalogs: {local: {type: rest, uri: 'http://h', warehouse: lake}}",
        "catalogs: {local: {type: sql, uri: 'sqlite:///x.db', warehouse: /not/there/wh}}",
    ],
)
def test_elsewhere_nothing_is_written_down_and_nothing_said(text, capsys, tmp_path):
    configure(text)
    before = {*tmp_path.rglob("*")}
    assert run("compact", "--table", "db.t") == 0
    assert {*tmp_path.rglob("*")} == before
    assert "written down" not in capsys.readouterr().err


def warnings_of(capsys):
    out, err = capsys.readouterr()
    assert "rewritten_data_files_count  12" in out
    return [line for line in err.splitlines() if "not written down" in line]


def test_a_database_that_is_none_costs_a_warning_and_no_job(capsys):
    Path("lake/wh.icekeep-runs.db").write_text("no database, but a long text that is none")
    assert run("compact", "--table", "db.t") == 0
    (warning,) = warnings_of(capsys)
    assert "wh.icekeep-runs.db' failed: file is not a database" in warning
    assert "compact" in HISTORY


def test_a_database_that_is_locked_costs_a_warning_and_no_job(capsys):
    configure(WAREHOUSE + "runs: {uri: 'sqlite:///runs.db'}\n")
    with sqlite3.connect("runs.db") as other:
        other.execute("BEGIN IMMEDIATE")
        assert run("compact", "--table", "db.t") == 0
    (warning,) = warnings_of(capsys)
    assert "is busy: database is locked" in warning


def test_run_with_unrecorded_start_is_recorded_at_end(capsys, monkeypatch):
    configure(WAREHOUSE + "runs: {uri: 'sqlite:///runs.db'}\n")
    other = sqlite3.connect("runs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(fake_jobs, "build_session", lambda name: other.execute("ROLLBACK"))
    assert run("compact", "--table", "db.t") == 0
    other.close()
    assert len(warnings_of(capsys)) == 1
    assert [one.status for one in written("runs.db")] == ["done"]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("sqlite:nonsense", "configuration key 'runs.uri': cannot be understood"),
        ("sqlite:////not/there/runs.db", "cannot be there: there is no directory '/not/there'"),
        ("sqlite:///${NOT_SET}", "refers to environment variable 'NOT_SET', which is not set"),
        ("sqlite:////proc/version/x/runs.db", "cannot be there: there is no directory '/proc/version/x'"),
    ],
)
def test_a_place_that_is_none_costs_a_warning_and_no_job(uri, reason, capsys):
    configure(WAREHOUSE + f"runs: {{uri: '{uri}'}}\n")
    assert run("compact", "--table", "db.t") == 0
    (warning,) = warnings_of(capsys)
    assert reason in warning


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ("{uri: 'mysql://h/d'}", "configuration key 'runs.uri': is of a database 'mysql', which is not supported"),
        ("{table: nope.ops.runs}", "configuration key 'runs.table': there is no catalog 'nope'; there is local"),
    ],
)
def test_impossible_records_place_is_reported_first(runs, problem, capsys):
    configure(WAREHOUSE + f"runs: {runs}\n")
    assert run("compact", "--table", "db.t") == 2
    assert problem in capsys.readouterr().err
    assert "compact" not in HISTORY


def test_no_directory_is_made_for_a_record(capsys, tmp_path):
    configure(WAREHOUSE + "runs: {uri: 'sqlite:///typo/runs.db'}\n")
    assert run("compact", "--table", "db.t") == 0
    assert len(warnings_of(capsys)) == 1
    assert not (tmp_path / "typo").exists()


@for_each(
    ("properties", "path"),
    [
        ({"type": "sql", "warehouse": "file:///wh"}, "/wh.icekeep-runs.db"),
        ({"type": "hadoop", "warehouse": "/a/wh/"}, "/a/wh.icekeep-runs.db"),
        ({"type": "sql", "warehouse": "wh"}, "{here}/wh.icekeep-runs.db"),
        ({"type": "sql", "warehouse": "./a/wh"}, "{here}/a/wh.icekeep-runs.db"),
        ({"type": "hive", "warehouse": "hdfs://n/wh"}, None),
        ({"type": "rest", "warehouse": "wh"}, None),
        ({"type": "sql", "warehouse": "/"}, None),
        ({"type": "sql"}, None),
    ],
)
def test_the_file_lies_beside_a_warehouse_of_this_machine(properties, path):
    catalog = CatalogSettings("c", properties, dict.fromkeys(properties, "f"))
    assert beside_warehouse(catalog, {}) == (path and path.format(here=os.getcwd()))
