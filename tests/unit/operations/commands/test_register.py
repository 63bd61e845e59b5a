"""A table that was dropped is taken back by what the drop has printed, as an operator types it."""

import json

import pytest

import icekeep
from icekeep import cli
from icekeep.catalog.base import format_identifier
from icekeep.catalog.metadata_files import file_version, new_location, next_metadata, write_metadata
from icekeep.errors import SafetyError, UnavailableError, UnsupportedError
from icekeep.events import Warned
from icekeep.spec.updates import SetProperties
from icekeep.tables.verbs import append, create_table
from kit.lake import EVENTS, SCHEMA, Lake, events, multiset
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


def test_dropped_table_is_registered_with_rows_and_snapshots(lake, run):
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
        "current_snapshot_id": str(table.metadata.current_snapshot_id),
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


def test_dropped_table_is_registered_under_another_name(lake, run):
    """A catalog where the name is the directory refuses it."""
    rows, uuid = lake.rows(), lake.load().metadata.table_uuid
    location = run("drop")[1]["result"]["metadata_location"]
    status, document = run("register", "--metadata-location", location, table="db.renamed")
    if lake.properties["type"] == "filesystem":
        assert (status, document["error"]["kind"]) == (2, "usage")
        assert "finds tables by their directory" in document["error"]["message"]
        return
    assert (status, document["result"]["table_uuid"]) == (0, uuid)
    assert lake.catalog.list_tables(("db",)) == [("db", "renamed")]
    assert multiset(lake.foreign_catalog().load_table(("db", "renamed")).scan().to_arrow()) == rows


def test_metadata_file_of_unknown_scheme_is_refused(lake, run):
    assert run("drop")[0] == 0
    for location, status, kind in (("invalid://b/v1.metadata.json", 4, "unsupported"), ("s3//b/v1", 2, "usage")):
        found, document = run("register", "--metadata-location", location)
        assert (found, document["error"]["kind"]) == (status, kind)
        assert repr(location) in document["error"]["message"]
    assert lake.catalog.list_tables(("db",)) == []


@pytest.mark.parametrize("lake", ["sql"], indirect=True)
def test_location_with_trailing_blank_is_another_place(lake, run):
    at = f"{lake.location()} "
    blank = create_table(lake.catalog, ("db", "blank"), SCHEMA, location=at)
    append(blank, events(1, 3))
    location = run("drop", table="db.blank")[1]["result"]["metadata_location"]
    assert location.startswith(f"{at}/metadata/")
    status, document = run("register", "--metadata-location", location, table="db.blank")
    assert (status, document["result"]["location"]) == (0, at)
    append(lake.catalog.load(("db", "blank")), events(2, 3))
    rows = lake.rows()
    assert run("drop", "--purge", table="db.blank")[0] == 0
    assert lake.rows() == rows
    assert not [path for path in lake.files_on_disk() if "/events /" in str(path)]


def test_a_purged_table_is_refused(lake, run):
    location = lake.load().metadata_location
    assert run("drop", "--purge")[1]["result"]["metadata_location"] is None
    status, document = run("register", "--metadata-location", location)
    assert (status, document["error"]["kind"]) == (2, "not-found")
    assert f"there is no metadata file {location!r}" in document["error"]["message"]
    assert lake.catalog.list_tables(("db",)) == []


def test_a_directory_is_answered_with_its_newest_metadata_file(lake, run):
    newest = lake.load().metadata_location
    for directory in (newest.rpartition("/")[0], lake.load().metadata.location + "/"):
        status, document = run("register", "--metadata-location", directory, table="db.other")
        assert (status, document["error"]["kind"]) == (2, "usage")
        start = f"{directory!r} is a directory, and a table is registered by one of its metadata files; the newest is {newest!r}"
        assert document["error"]["message"].startswith(start)


def test_invalid_metadata_location_is_usage_error(run):
    status, document = run("register", "--metadata-location", "no.metadata.json", table="db.other")
    assert (status, document["error"]["kind"]) == (2, "usage")
    assert document["error"]["message"].startswith("metadata location 'no.metadata.json' is relative; give it as")


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


class Told:
    """Hears what is told."""

    def __init__(self):
        self.heard = []

    def on(self, event):
        self.heard.append(event)


def warnings_of(catalog, location):
    """What a registration warns of; the table is in the catalog after it."""
    told = Told()
    back = icekeep.register_table(catalog, format_identifier(MEMORY_EVENTS), location, listener=told)
    assert back.metadata_location == location
    assert all(isinstance(event, Warned) for event in told.heard)
    return [event.message for event in told.heard]


def name_of(location):
    return location.rpartition("/")[2]


def dead_writer(table):
    """The metadata file of somebody who wrote it and died before the catalog was asked; gives its location."""
    catalog = table.catalog
    metadata = next_metadata(table, [], [SetProperties({"a": "b"})], catalog.runtime.now_ms())
    location = new_location(metadata, file_version(table.metadata_location) + 1, catalog.runtime)
    write_metadata(table.storage, metadata, location)
    return location


def test_door_registers_dropped_table_without_warnings():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a")
    location = icekeep.drop_table(table, None).metadata_location
    assert location == table.metadata_location
    assert warnings_of(catalog, location) == []
    assert catalog.load(MEMORY_EVENTS).metadata == table.metadata


def test_dead_writers_file_beside_committed_one_is_warned_of():
    """The warning comes whichever of the two is registered."""
    for is_dead in (True, False):
        catalog = MemoryCatalog()
        base = memory_table(catalog)
        dead = dead_writer(base)
        live = add(base, "a").metadata_location
        catalog.drop(MEMORY_EVENTS)
        taken, other = (dead, live) if is_dead else (live, dead)
        assert warnings_of(catalog, taken) == [
            f"metadata file {name_of(taken)!r} has {name_of(other)!r} of the same number beside it: at most one of them was "
            "committed (icekeep help dropped-table)"
        ]


def test_uncommitted_file_is_warned_of_by_next_commit():
    """The next metadata file names what it was made from, and so what never was the table."""
    catalog = MemoryCatalog()
    base = memory_table(catalog)
    dead = dead_writer(base)
    table = add(base, "a")
    last = add(table, "b")
    catalog.drop(MEMORY_EVENTS)
    [warning] = warnings_of(catalog, dead)
    live, newest = name_of(table.metadata_location), name_of(last.metadata_location)
    assert warning == (
        f"metadata file {name_of(dead)!r} was perhaps never committed: {newest!r} was made from {live!r}, which has the same "
        "number (icekeep help dropped-table)"
    )
    catalog.drop(MEMORY_EVENTS)
    assert warnings_of(catalog, last.metadata_location) == []


def test_a_file_from_which_a_newer_one_was_made_is_warned_of():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a")
    last = add(table, "b")
    catalog.drop(MEMORY_EVENTS)
    assert warnings_of(catalog, table.metadata_location) == [
        f"metadata file {name_of(table.metadata_location)!r} is not the newest: {name_of(last.metadata_location)!r} was made "
        "from it; if that was committed, what it has added is missing now (icekeep help dropped-table)"
    ]


def test_files_of_earlier_table_are_not_warned_of():
    catalog = MemoryCatalog()
    add(memory_table(catalog), "a")
    catalog.drop(MEMORY_EVENTS)
    table = memory_table(catalog)
    catalog.drop(MEMORY_EVENTS)
    assert warnings_of(catalog, table.metadata_location) == []


def test_a_store_that_cannot_be_listed_does_not_stand_in_the_way(monkeypatch):
    catalog = MemoryCatalog()
    base = memory_table(catalog)
    dead_writer(base)
    catalog.drop(MEMORY_EVENTS)

    def refuse(share):
        raise UnavailableError("the store is out of reach")

    monkeypatch.setattr(catalog.storage, "list_share", refuse)
    assert warnings_of(catalog, base.metadata_location) == []


def test_an_operator_reads_the_warning_on_the_terminal(lake, run, capsys):
    earlier = lake.load().metadata_location
    append(lake.load(), [events(9)])
    location = run("drop")[1]["result"]["metadata_location"]
    earlier = f"{location.rpartition('/')[0]}/{name_of(earlier)}"
    conf = lake.directory / "icekeep.yaml"
    status = cli.main(["register", "--table", "db.events", "--metadata-location", earlier, "--conf", str(conf)])
    assert status == 0
    [line] = [line for line in capsys.readouterr().err.splitlines() if "is not the newest" in line]
    assert line.endswith("(icekeep help dropped-table)")


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
