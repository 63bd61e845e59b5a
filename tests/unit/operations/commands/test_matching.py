"""A job with `--match`, as an operator types it: on several tables, of which some fail."""

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from icekeep import cli
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import THIS_TABLE, SafetyError, UnavailableError, argument, shown_command
from icekeep.events import RunEnded, RunStarted
from icekeep.operations import job_run
from icekeep.operations.commands import matching
from icekeep.operations.commands import matching as one_of_many
from icekeep.operations.commands.document_schema import schema
from icekeep.tables.verbs import append, create_table
from kit.changes import Recorder
from kit.fake_jobs import problems_of_result
from kit.lake import SCHEMA, Lake, events

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _world(monkeypatch, tmp_path):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path)
    for name in ("b", "a", "c"):
        table = create_table(lake.catalog, ("db", name), SCHEMA)
        for number in range(6):
            table = append(table, [events(number, 3)])
    create_table(lake.catalog, ("db", "other"), SCHEMA)
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n  local:\n{lines}")
    return lake


@pytest.fixture
def run(lake, capsys):
    def run_command(job, *words, pattern="local.db.*"):
        conf = str(lake.directory / "icekeep.yaml")
        match = ["--match", pattern] if pattern else []
        status = cli.main([job, *match, *words, "--config", conf, "--output", "json"])
        out = capsys.readouterr()
        document = json.loads(out.out)
        if "result" in document:
            assert problems_of_result(job, document["result"]) == []
        return status, document, out.err

    return run_command


def statuses(document):
    return {one["table"].rpartition(".")[2]: one["status"] for one in document["result"]["tables"]}


def files_of(lake, name):
    return int(lake.catalog.load(("db", name)).current_snapshot.summary["total-data-files"])


def break_metadata(lake, name):
    Path(lake.catalog.load(("db", name)).metadata_location.removeprefix("file://")).write_text("{")


def runs_of(lake, capsys):
    assert cli.main(["runs", "--config", str(lake.directory / "icekeep.yaml"), "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)["result"]["runs"]


def failing_on(monkeypatch, name, failure):
    """Let a compaction of a table raise something once it has begun."""
    real = job_run.resolve

    def resolve(function):
        work = real(function)
        if function != "icekeep.maintenance.compact.job:compact":
            return work

        def compact(table, spark, **arguments):
            if table.name == f"db.{name}":
                failure()
            return work(table, spark, **arguments)

        return compact

    monkeypatch.setattr(job_run, "resolve", resolve)


def test_each_table_has_own_run_in_order_of_names(lake, run, capsys):
    status, document, err = run("compact", "--option", "min-input-files=2")
    assert (status, document["status"], "table" in document) == (0, "done", False)
    assert document["arguments"] == {"match": "local.db.*", "options": {"min-input-files": "2"}}
    result = document["result"]
    assert [one["table"] for one in result["tables"]] == [f"local.db.{name}" for name in ("a", "b", "c", "other")]
    assert (result["tables_count"], result["failed_tables_count"], result["not_read"]) == (4, 0, [])
    assert {one["exit_status"] for one in result["tables"]} == {0}
    assert result["tables"][0]["figures"]["rewritten_data_files_count"] == 6
    assert {files_of(lake, name) for name in "abc"} == {1}
    runs = {one["table"]: one for one in runs_of(lake, capsys)}
    assert {name: one["run_id"] for name, one in runs.items()} == {
        one["table"]: one["run_id"] for one in result["tables"]
    }
    assert {(one["job"], one["parent_id"], one["policy"]) for one in runs.values()} == {("compact", None, None)}
    assert sum(line.startswith("compact local.db.a: done in ") for line in err.splitlines()) == 1


def test_failed_table_is_reported_and_others_follow(lake, run):
    break_metadata(lake, "a")
    status, document, _ = run("compact")
    assert (status, document["status"], document["result"]["failed_tables_count"]) == (3, "partial", 1)
    broken, *others = document["result"]["tables"]
    assert (broken["status"], broken["exit_status"], broken["error_kind"]) == ("failed", 1, "invalid-table")
    assert "metadata" in broken["error_message"]
    assert {one["status"] for one in others} == {"done"}
    assert files_of(lake, "c") == 1


def test_a_refusal_is_told_in_the_words_of_the_command_line(lake, run, monkeypatch):
    def refuse():
        raise SafetyError(f"{argument('where')} is too much; run `{shown_command('check', '--table', THIS_TABLE)}`")

    failing_on(monkeypatch, "b", refuse)
    status, document, _ = run("compact")
    refused = document["result"]["tables"][1]
    assert (status, refused["status"], refused["exit_status"]) == (3, "refused", 4)
    assert refused["error_message"].startswith("--where is too much; run `icekeep check --table local.db.b --config ")


def test_text_has_line_per_table_and_counts_at_end(lake, capsys):
    break_metadata(lake, "b")
    conf = str(lake.directory / "icekeep.yaml")
    assert cli.main(["compact", "--match", "db.*", "--config", conf]) == 3
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "compact db.*: partial"
    rows = [line.split()[:2] for line in lines if line.startswith("local.db.")]
    assert ["local.db.a", "done"] in rows
    assert ["local.db.b", "failed"] in rows
    assert any(
        line.strip().startswith("local.db.b: ") and line.endswith("(icekeep help invalid-table)") for line in lines
    )
    counts = [line.split() for line in lines if "tables_count" in line]
    assert counts == [["tables_count", "4"], ["failed_tables_count", "1"]]


def test_check_takes_broken_table_and_faults_are_no_failure(lake, run):
    break_metadata(lake, "a")
    status, document, _ = run("check")
    assert (status, document["status"], document["result"]["failed_tables_count"]) == (3, "partial", 0)
    assert statuses(document) == {"a": "faulty", "b": "sound", "c": "sound", "other": "sound"}


def test_a_dry_run_plans_each_and_changes_nothing(lake, run, capsys):
    before = [lake.catalog.load(("db", name)).metadata_location for name in "abc"]
    status, document, _ = run("compact", "--dry-run")
    assert (status, document["status"], document["dry_run"]) == (0, "planned", True)
    assert set(statuses(document).values()) == {"planned"}
    assert document["result"]["tables"][0]["figures"]["rewritten_data_files_count"] == 6
    assert [lake.catalog.load(("db", name)).metadata_location for name in "abc"] == before
    assert runs_of(lake, capsys) == []


def test_interrupt_ends_current_table_and_starts_no_other(lake, run, monkeypatch, capsys):
    failing_on(monkeypatch, "b", lambda: os.kill(os.getpid(), signal.SIGTERM))
    status, document, _ = run("compact")
    assert (status, document["status"]) == (143, "interrupted")
    assert statuses(document) == {"a": "done", "b": "interrupted", "c": "not_begun", "other": "not_begun"}
    ended = document["result"]["tables"][1]
    assert ended["error_message"] == "interrupted by SIGTERM; nothing was committed, the table is as it was"
    assert ended["exit_status"] == 143
    assert document["result"]["tables"][2]["exit_status"] is None
    assert [files_of(lake, name) for name in "abc"] == [1, 6, 6]
    assert {one["table"]: one["status"] for one in runs_of(lake, capsys)} == {
        "local.db.a": "done",
        "local.db.b": "interrupted",
    }


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_between_two_tables_leaves_none_unsaid(lake, run, monkeypatch, moment):
    real = matching.OneOfMany.__call__

    def call(self, one, *arguments):
        if one.table == "local.db.b" and moment == "before":
            raise KeyboardInterrupt
        ran = real(self, one, *arguments)
        if one.table == "local.db.b":
            raise KeyboardInterrupt
        return ran

    monkeypatch.setattr(matching.OneOfMany, "__call__", call)
    status, document, _ = run("compact")
    assert (status, statuses(document)) == (
        130,
        {"a": "done", "b": "interrupted", "c": "not_begun", "other": "not_begun"},
    )


def test_doubtful_failure_on_interrupt_is_reported_and_last(lake, run, monkeypatch):
    def cut_off():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            raise SafetyError("look at it")

    failing_on(monkeypatch, "a", cut_off)
    status, document, _ = run("compact")
    assert (status, document["status"], document["result"]["failed_tables_count"]) == (130, "interrupted", 1)
    assert statuses(document) == {"a": "refused", "b": "not_begun", "c": "not_begun", "other": "not_begun"}


def test_a_table_that_was_dropped_meanwhile_is_left_out(lake, run, monkeypatch):
    failing_on(monkeypatch, "a", lambda: lake.catalog.drop(("db", "b")))
    status, document, _ = run("compact")
    assert (status, statuses(document)) == (0, {"a": "done", "c": "done", "other": "done"})
    assert document["result"]["tables_count"] == 3


def test_a_branch_that_only_some_have_fails_on_the_others(lake, run):
    status, document, _ = run("compact", "--branch", "audit")
    assert (status, set(statuses(document).values())) == (3, {"failed"})
    assert {one["error_kind"] for one in document["result"]["tables"]} == {"not-found"}


def test_what_cannot_be_listed_is_named_beside_the_others(lake, run, monkeypatch):
    lake.catalog.create_namespace(("locked",))
    real = SqlCatalog.list_tables

    def list_tables(self, namespace):
        if namespace == ("locked",):
            raise UnavailableError("the namespace is locked")
        return real(self, namespace)

    monkeypatch.setattr(SqlCatalog, "list_tables", list_tables)
    status, document, _ = run("compact", pattern="local.**")
    assert (status, document["status"], document["result"]["tables_count"]) == (3, "partial", 4)
    [one] = document["result"]["not_read"]
    assert (one["name"], one["kind"], one["reason"]) == ("local.locked.*", "unavailable", "the namespace is locked")


def test_a_catalog_that_is_out_of_reach_does_not_stop_the_others(lake, run):
    conf = lake.directory / "icekeep.yaml"
    conf.write_text(conf.read_text() + "  lost: {type: filesystem, warehouse: nowhere://x}\n")
    status, document, _ = run("rewrite_manifests", pattern="db.*")
    assert (status, [one["name"] for one in document["result"]["not_read"]]) == (3, ["lost.*"])
    assert len(document["result"]["tables"]) == 4


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (
            ("--match", "local.db.x*"),
            "not-found",
            "'local.db.x*' matches no table of local; `icekeep tables` lists all",
        ),
        (("--match", "db"), "usage", "'db' can match no table"),
        (("--match", "db.*", "--catalog", "nowhere"), "not-found", "there is no catalog 'nowhere'"),
        (("--match", "db.*", "--option", "min-input-fils=2"), "option", "min-input-fil"),
        (("--match", "db.*", "--where", "a >"), "expression", "a literal is missing here"),
    ],
)
def test_what_is_wrong_of_all_is_said_once_and_nothing_begins(run, monkeypatch, words, kind, said):
    monkeypatch.setattr(one_of_many, "JobRun", None)
    status, document, _ = run("compact", *words, pattern="")
    assert (status, document["error"]["kind"]) == (2, kind)
    assert said in document["error"]["message"]


def test_listeners_hear_of_each_run_and_of_no_other(lake, run, monkeypatch):
    heard = Recorder()
    real = matching.run_on_matching

    def listening(command, job, context):
        return real(command, job, msgspec.structs.replace(context, listener=heard))

    monkeypatch.setattr(matching, "run_on_matching", listening)
    run("compact", pattern="db.*")
    started = [one for one in heard.events if isinstance(one, RunStarted)]
    assert [(one.table, one.parent_id) for one in started] == [
        (f"local.db.{name}", None) for name in ("a", "b", "c", "other")
    ]
    assert len([one for one in heard.events if isinstance(one, RunEnded)]) == 4


def test_estimates_learn_from_earlier_runs_of_each_table(lake, run, monkeypatch):
    paces = []
    monkeypatch.setattr(job_run, "cpu_pace_of", lambda job, table, *_: paces.append((job, table)) or 3.0)
    _, document, _ = run("compact")
    assert paces == [("compact", f"local.db.{name}") for name in ("a", "b", "c", "other")]
    assert document["status"] == "done"


def test_the_schema_has_what_these_jobs_print(lake):
    outcomes = {one["title"]: one for one in schema().document["anyOf"] if "title" in one}
    assert [
        name
        for name, one in outcomes.items()
        if {"$ref": "#/$defs/MatchedTables"} in one["properties"]["result"].get("anyOf", ())
    ] == [
        "compact",
        "rewrite_position_deletes",
        "rewrite_manifests",
        "compute_partition_stats",
        "compute_table_stats",
        "expire_rows",
        "expire_snapshots",
        "remove_orphan_files",
        "check",
    ]
