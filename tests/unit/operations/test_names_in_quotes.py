"""A table whose name has a dot, made by PyIceberg, through every command that names a table."""

import json
import logging

import pytest

from icekeep import cli
from icekeep.catalog.base import Identifier
from kit.lake import Lake, events

NAME: Identifier = ("db", "we.b")
PRINTED = "local.db.`we.b`"


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lake = Lake(tmp_path)
    lines = [f"  {key}: {value}" for key, value in {"catalogs": "", **lake.properties}.items() if key != "catalogs"]
    text = "catalogs:\n local:\n" + "\n".join(lines) + "\nruns: {uri: 'sqlite:///runs.db'}\n"
    text += "policies: [{name: n, schedule: null, tables: ['local.db.\"we.b\"'], jobs: {rewrite_manifests: }}]\n"
    text += "tables: {'local.db.\"we.b\"': {jobs: {rewrite_manifests: {spec_id: 0}}}}\n"
    (tmp_path / "icekeep.yaml").write_text(text)
    foreign = lake.foreign_catalog().create_table(NAME, schema=events(0).schema)
    for number in range(2):
        foreign.append(events(number))
    yield lake
    logging.getLogger("icekeep").handlers.clear()


@pytest.fixture
def run(lake, capsys):
    def run(*words: str, status: int = 0):
        found = cli.main([*words, "--conf", "icekeep.yaml", "--output", "json"])
        out, err = capsys.readouterr()
        assert found == status, err
        return json.loads(out) if out else None

    return run


def test_each_command_finds_it_and_prints_its_name_in_backquotes(run, lake):
    named, as_trino = ("--table", "db.`we.b`"), ("--table", 'local.db."we.b"')
    assert run("report", *named)["result"]["tables"][0]["table"] == PRINTED
    assert run("history", *as_trino)["table"] == PRINTED
    assert run("check", *named)["table"] == PRINTED
    assert run("policy", "explain", *named)["result"]["policies"] == ["n"]
    assert run("ref", "create-tag", "v1", *named)["table"] == PRINTED
    assert run("compact", *as_trino, "--option", "rewrite-all=true")["result"]["rewritten_data_files_count"] == 2
    assert run("expire_snapshots", *named, "--older-than", "0s", "--retain-last", "1", "--plan-out", "p")["result"]
    assert run("apply", "p")["table"] == PRINTED
    assert {one["table"] for one in run("runs", *as_trino)["result"]["runs"]} == {PRINTED}
    assert run("drop", *named)["table"] == PRINTED
    assert lake.catalog.list_tables(("db",)) == []


def test_patterns_and_policies_reach_it(run):
    for pattern in ("local.db.*", "db.we*", "local.db.`we.b`"):
        assert [one["table"] for one in run("report", "--match", pattern)["result"]["tables"]] == [PRINTED]
    assert run("policy", "check")["result"]["unknown_names"] == []
    assert [one["table"] for one in run("maintain", "--policy", "n", "--dry-run")["result"]["tables"]] == [PRINTED]
    run("report", "--match", "db.we.b", status=2)


def test_unquoted_dots_are_namespaces_and_error_suggests_quotes(run, capsys):
    assert cli.main(["history", "--table", "local.db.we.b", "--conf", "icekeep.yaml"]) == 2
    assert "did you mean 'db.`we.b`'? Put a part that has a dot in quotes" in capsys.readouterr().err
