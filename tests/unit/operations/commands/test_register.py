"""A table that was dropped is taken back by what the drop has printed, as an operator types it."""

import json

import pytest

import icekeep
from icekeep import cli
from icekeep.catalog.base import format_identifier
from icekeep.errors import SafetyError, UnsupportedError
from icekeep.tables.append import append
from kit.lake import EVENTS, Lake, events
from kit.memory_catalog import MemoryCatalog
from kit.tables import EVENTS as MEMORY_EVENTS
from kit.tables import add, memory_table

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(params=["sql", "filesystem"])
def lake(request, tmp_path):
    lake = Lake(tmp_path, request.param)
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n  local:\n{lines}")
    lake.filled(commits=3, files=1)
    return lake


@pytest.fixture
def run(lake, capsys):
    """Runs a command on a table and gives its exit status and its one JSON object."""

    def run_command(command, *words, table="db.events"):
        conf = lake.directory / "icekeep.yaml"
        status = cli.main([command, "--table", table, *words, "--conf", str(conf), "--output", "json"])
        out = capsys.readouterr().out
        assert out.count("\n") == 1
        return status, json.loads(out)

    return run_command


def test_a_dropped_table_is_taken_back_with_all_of_its_rows_and_snapshots(lake, run):
    table, rows = lake.load(), lake.rows()
    status, dropped = run("drop")
    assert (status, dropped["status"]) == (0, "done")
    location = dropped["result"]["metadata_location"]
    assert location
    status, done = run("register", "--metadata-location", location)
    assert (status, done["job"], done["table"], done["status"]) == (0, "register", "local.db.events", "done")
    back = lake.load()
    assert done["result"] == {
        "metadata_location": back.metadata_location,
        "table_uuid": table.metadata.table_uuid,
        "location": table.metadata.location,
        "current_snapshot_id": table.metadata.current_snapshot_id,
        "snapshots_count": 3,
    }
    assert back.metadata == table.metadata
    # PyIceberg reads it, by its own catalog where there is one.
    assert lake.rows() == rows
    append(back, [events(7)])
    assert lake.rows() > rows


def test_a_name_that_is_taken_is_refused(lake, run):
    location = run("drop")[1]["result"]["metadata_location"]
    lake.create()
    status, document = run("register", "--metadata-location", location)
    assert (status, document["error"]["kind"]) == (2, "usage")
    assert document["error"]["message"] == "table 'db.events' exists already in catalog 'local'"
    assert lake.load().metadata.current_snapshot_id is None


def test_a_purged_table_is_refused(lake, run):
    location = lake.load().metadata_location
    assert run("drop", "--purge")[1]["result"]["metadata_location"] is None
    status, document = run("register", "--metadata-location", location)
    assert (status, document["error"]["kind"]) == (1, "missing-file")
    assert location in document["error"]["message"]
    assert lake.catalog.list_tables(("db",)) == []


def test_a_table_is_not_given_a_second_name(lake, run):
    location = lake.load().metadata_location
    status, document = run("register", "--metadata-location", location, table="db.second")
    assert (status, "\n" in document["error"]["message"]) == (4, False)
    assert document["error"]["message"].startswith("table 'db.second' is not registered: table 'db.second' at ")
    assert "as 'db.events'" in document["error"]["message"]
    assert lake.catalog.list_tables(("db",)) == [EVENTS]


def test_the_metadata_file_must_be_said(run):
    status, document = run("register")
    assert (status, document["error"]["kind"]) == (2, "usage")
    assert "--metadata-location" in document["error"]["message"]


def test_the_door_takes_a_table_back_and_tells_nobody_of_a_table_that_is_not_listed():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a")
    location = icekeep.drop_table(table, None).metadata_location
    assert location == table.metadata_location
    heard = []

    class Told:
        def on(self, event):
            heard.append(event)

    back = icekeep.register_table(catalog, format_identifier(MEMORY_EVENTS), location, listener=Told())
    assert back.metadata == table.metadata
    assert heard == []


def test_a_place_that_another_table_has_by_now_is_refused():
    catalog = MemoryCatalog()
    table = memory_table(catalog)
    location = icekeep.drop_table(table, None).metadata_location
    again = memory_table(catalog)
    catalog.rename(MEMORY_EVENTS, (*MEMORY_EVENTS[:-1], "other"))
    assert again.metadata.location == table.metadata.location
    with pytest.raises(SafetyError, match=r"is not registered: .* is the same place as .* of table 'db.other'"):
        icekeep.register_table(catalog, MEMORY_EVENTS, location)


def test_a_catalog_that_cannot_says_so(monkeypatch):
    catalog = MemoryCatalog()
    location = icekeep.drop_table(memory_table(catalog), None).metadata_location

    def refuse(identifier, metadata_location):
        raise UnsupportedError("catalog 'local' cannot register tables")

    monkeypatch.setattr(catalog, "register_table", refuse)
    with pytest.raises(UnsupportedError, match="cannot register tables"):
        icekeep.register_table(catalog, MEMORY_EVENTS, location)
