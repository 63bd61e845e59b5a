"""`icekeep restore` on a real table whose files a run has removed: its status, its exit status, what it tells meanwhile."""

import json

import pytest

from icekeep import cli
from icekeep.maintenance.restore import job as restoring
from icekeep.maintenance.restore.files import FileSample, Returned
from kit.expired_tables import expired
from kit.lake import Lake


@pytest.fixture
def conf(tmp_path, monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    lake = Lake(tmp_path)
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    path = tmp_path / "icekeep.yaml"
    path.write_text(f"catalogs:\n  local:\n{lines}")
    expired(lake.filled(commits=3, files=1))
    return str(path)


def restored(conf, capsys):
    status = cli.main(["restore", "--table", "db.events", "--conf", conf, "--output", "json"])
    out, err = capsys.readouterr()
    return status, json.loads(out), err


@pytest.mark.slow
def test_a_restore_tells_how_it_gets_on(conf, capsys):
    status, document, err = restored(conf, capsys)
    assert (status, document["status"]) == (0, "done")
    count = document["result"]["restored_files_count"]
    assert f"bringing files back: started, {count} files" in err
    assert "bringing files back: done in" in err


@pytest.mark.slow
def test_a_restore_that_brings_back_a_part_is_exit_status_3(conf, capsys, monkeypatch):
    """It was `done` and 0, whatever the result said."""
    moves = iter([restoring.move_back, lambda *_: Returned(missing=FileSample.of(["file:///gone"]))])
    monkeypatch.setattr(restoring, "move_back", lambda *arguments: next(moves)(*arguments))
    status, document, _ = restored(conf, capsys)
    assert (status, document["status"], document["result"]["status"]) == (3, "partial", "partial")


@pytest.mark.slow
def test_a_list_of_runs_is_done(conf, capsys):
    assert (
        cli.main(["restore", "--table", "db.events", "--conf", conf, "--list", "--run", "x", "--output", "json"]) == 2
    )
    assert "--list shows all runs, and --run brings one back; give one of them" in capsys.readouterr().out
    status = cli.main(["restore", "--table", "db.events", "--conf", conf, "--list", "--output", "json"])
    document = json.loads(capsys.readouterr().out)
    assert (status, document["status"], len(document["result"]["runs"])) == (0, "done", 1)
