"""`icekeep copy_table` and `rewrite_table_path` on real tables of two catalogs: what they take, print and end with."""

import json

import pytest

from icekeep import cli
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import append
from kit.lake import Lake, events


@pytest.fixture
def lakes(tmp_path, monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    lakes = {}
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        lakes[name] = Lake(tmp_path / name)
    (tmp_path / "conf").mkdir()
    settings = {"catalogs": {name: lake.properties for name, lake in lakes.items()}}
    (tmp_path / "conf/icekeep.yaml").write_text(json.dumps(settings))
    monkeypatch.chdir(tmp_path)
    lakes["here"].catalog.create_namespace(("db",), exists_ok=True)
    return lakes


def filled(lakes):
    """The table under the name that the configuration gives its catalog."""
    from icekeep.operations.loading import load_catalog

    for name in lakes:
        load_catalog(name).create_namespace(("db",), exists_ok=True)
    lake = lakes["here"]
    lake.catalog = load_catalog("here")
    return lake.filled(commits=2, files=2)


def run(capsys, *words):
    status = cli.main([*words, "--table", "here.db.events", "--output", "json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_copy_goes_to_another_catalog_and_is_updated(lakes, capsys):
    from icekeep.operations.loading import load_catalog

    table = filled(lakes)
    words = ("copy_table", "--to", "db.copied", "--to-catalog", "there")
    status, document = run(capsys, *words, "--dry-run")
    assert (status, document["status"], document["result"]["copied_files_count"]) == (0, "planned", 0)
    status, document = run(capsys, *words, "--verify")
    assert (status, document["status"], document["result"]["copied_files_count"]) == (0, "done", 4)
    assert document["result"]["target_table"] == "there.db.copied"
    append(table, events(90, 3))
    status, document = run(capsys, *words)
    assert status == 2
    assert "give --increment to update it" in json.dumps(document)
    status, document = run(capsys, *words, "--increment")
    assert (status, document["result"]["copied_files_count"]) == (0, 1)
    assert len(load_catalog("there").load("db.copied").metadata.snapshots) == 3


def test_a_catalog_that_is_not_configured_is_named(lakes, capsys):
    filled(lakes)
    status, document = run(capsys, "copy_table", "--to", "db.copied", "--to-catalog", "nowhere")
    assert status == 2
    assert "there is no catalog 'nowhere'" in json.dumps(document)


def test_a_list_of_files_is_written_where_it_is_said(lakes, capsys, tmp_path):
    filled(lakes)
    words = ("rewrite_table_path", "--target-prefix", "s3://bucket/copied")
    status, document = run(capsys, *words, "--dry-run")
    assert (status, document["status"], document["result"]["file_list_location"]) == (0, "planned", None)
    staging = (tmp_path / "staging").as_uri()
    status, document = run(capsys, *words, "--staging-location", staging)
    assert (status, document["status"]) == (0, "done")
    result = document["result"]
    lines = (tmp_path / "staging/file-list").read_text().splitlines()
    assert len(lines) == result["files_count"]
    assert all(line.split(",")[1].startswith("s3://bucket/copied/") for line in lines)
    assert local_path(result["file_list_location"]) == str(tmp_path / "staging/file-list")
    status, document = run(capsys, *words, "--no-file-list")
    assert (status, document["result"]["file_list_location"]) == (0, None)
