"""The command `tables`, as an operator types it."""

import json
from pathlib import Path

import pytest

from icekeep import cli
from kit.lake import Lake

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path, "sql")
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n  local:\n{lines}")
    lake.filled(commits=3, files=2)
    return lake


@pytest.fixture
def run(lake, capsys):
    def run_command(*words):
        conf = lake.directory / "icekeep.yaml"
        status = cli.main(["tables", *words, "--conf", str(conf), "--output", "json"])
        return status, json.loads(capsys.readouterr().out)

    return run_command


def test_tables_are_listed_with_what_their_metadata_says(lake, run):
    status, document = run()
    [listed] = document["result"]["tables"]
    files = lake.foreign().inspect.files()
    assert (status, listed["table"], listed["format_version"]) == (0, "local.db.events", 2)
    assert (listed["data_files_count"], listed["delete_files_count"]) == (files.num_rows, 0)
    assert listed["bytes"] == sum(files["file_size_in_bytes"].to_pylist())
    assert listed["snapshots_count"] == len(lake.foreign().metadata.snapshots)
    assert listed["last_updated_ms"] == lake.foreign().metadata.last_updated_ms


def test_one_that_cannot_be_read_is_named_beside_the_others(lake, run):
    Path(lake.load().metadata_location.removeprefix("file://")).write_text("{")
    status, document = run()
    assert (status, document["result"]["tables"]) == (3, [])
    [one] = document["result"]["not_read"]
    assert one["name"] == "local.db.events"
    assert document["result"]["tables_count"] == 1


def test_pattern_selects_tables_and_must_match_one(run):
    assert len(run("--match", "local.db.e*")[1]["result"]["tables"]) == 1
    status, document = run("--match", "db.x*")
    assert (status, document["error"]["kind"]) == (2, "not-found")
    assert document["error"]["message"].startswith("'db.x*' matches no table of local; ")
