"""A table is taken out of its catalog by what was shown of it, and no file goes; elsewhere it is taken in by what was printed."""

import json

import msgspec
import pytest

import icekeep
from icekeep import cli
from icekeep.catalog.wrappers import CatalogWrapper
from icekeep.errors import ConflictError, OutcomeUnknownError
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append
from kit.lake import EVENTS, Lake, events
from kit.tables import add, data_file, memory_table

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(params=["sql", "filesystem"])
def lake(request, tmp_path):
    lake = Lake(tmp_path, request.param)
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n  local:\n{lines}runs:\n  uri: sqlite:///{tmp_path}/runs.db\n")
    lake.filled(commits=3, files=1)
    return lake


@pytest.fixture
def run(lake, capsys):
    """Runs a command on a table and gives its exit status and its one JSON object."""

    def run_command(command, *words):
        conf = lake.directory / "icekeep.yaml"
        status = cli.main([command, "--table", "db.events", *words, "--conf", str(conf), "--output", "json"])
        return status, json.loads(capsys.readouterr().out)

    return run_command


def test_what_it_prints_is_what_register_takes(lake, run):
    before, rows = lake.load(), lake.rows()
    names = sorted(path.name for path in lake.files_on_disk() if "-hint" not in path.name)
    status, done = run("unregister", "--metadata-location", before.metadata_location)
    assert (status, done["status"], done["table"]) == (0, "done", "local.db.events")
    assert lake.catalog.list_tables(("db",)) == []
    assert sorted(path.name for path in lake.files_on_disk()) == names
    assert run("register", "--metadata-location", done["result"]["metadata_location"])[0] == 0
    assert (lake.load().metadata, lake.rows()) == (before.metadata, rows)


def test_the_record_of_runs_has_the_metadata_file(lake, run):
    at = lake.load().metadata_location
    _, done = run("unregister")
    [written] = RunRecords.at(f"sqlite:///{lake.directory}/runs.db").select(RunFilter(), SYSTEM.now_ms())
    assert (written.job, written.status, written.metadata_location_before) == ("unregister", "done", at)
    assert written.result["metadata_location"] == done["result"]["metadata_location"]
    assert done["metadata_location_after"] is None


def test_rehearsal_shows_the_file_and_changes_nothing(lake, run):
    before, files = lake.load(), sorted(lake.files_on_disk())
    status, shown = run("unregister", "--dry-run")
    assert (status, shown["status"]) == (0, "planned")
    assert shown["result"]["metadata_location"] == before.metadata_location
    assert (lake.load().metadata_location, sorted(lake.files_on_disk())) == (before.metadata_location, files)


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_pointer_that_moved_since_it_was_shown_is_refused(lake, run, words):
    shown = lake.load().metadata_location
    now = append(lake.load(), [events(7)]).metadata_location
    status, document = run("unregister", "--metadata-location", shown, *words)
    assert (status, document["error"]["kind"]) == (75, "conflict")
    assert document["error"]["message"].startswith(
        f"table 'db.events' stays in catalog 'local': its metadata is {now!r} now"
    )
    assert lake.catalog.list_tables(("db",)) == [EVENTS]


def test_commit_after_the_look_keeps_the_table(lake):
    """A drop would forget it: the table is the same, whoever committed to it."""
    table = lake.load()
    append(lake.load(), [events(7)])
    with pytest.raises(ConflictError, match="another writer committed"):
        icekeep.unregister_table(table)
    assert lake.catalog.list_tables(("db",)) == [EVENTS]


def test_unknown_answer_deletes_nothing():
    class Lost(CatalogWrapper):
        def drop(self, identifier, **meant):
            super().drop(identifier, **meant)
            raise OutcomeUnknownError("the connection was lost")

    table = add(memory_table(), data_file("a"))
    files = {*table.storage.files}
    with pytest.raises(OutcomeUnknownError):
        icekeep.unregister_table(msgspec.structs.replace(table, catalog=Lost(table.catalog)))
    assert {*table.storage.files} == files
