"""`drop` of tables whose metadata file is gone or damaged: the catalog forgets the name, and no file goes."""

import json
import logging
import sqlite3
from pathlib import Path
from shlex import quote
from urllib.parse import urlparse

import pytest

from icekeep import cli
from icekeep.catalog.base import Pointer
from icekeep.errors import ConflictError, InvalidTableError, MissingFileError, NotFoundError, SafetyError, UsageError
from icekeep.maintenance.drop.job import drop_unreadable, plan_drop_unreadable
from kit.cases import for_each
from kit.changes import Recorder
from kit.lake import EVENTS, Lake
from kit.runtime import no_spark
from kit.tables import EVENTS as IN_MEMORY
from kit.tables import add, memory_table

GONE = MissingFileError("cannot read 'memory://lake/wh/db/events/metadata/2.metadata.json': there is no such file")


@pytest.fixture(params=["sql", "filesystem"])
def lake(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    lake = Lake(tmp_path, request.param)
    lake.filled(commits=2, files=1, rows=1)
    lines = "\n".join(f"  {key}: {value}" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n local:\n{lines}\n")
    yield lake
    logging.getLogger("icekeep").handlers.clear()


@pytest.fixture
def run(capsys, lake):
    def run(*words, status=0):
        found = cli.main([*words, "--table", "local.db.events", "--conf", "icekeep.yaml", "--output", "json"])
        out, err = capsys.readouterr()
        assert found == status, err
        return json.loads(out).get("result"), err

    return run


def test_table_with_unreadable_metadata_drops_and_registers(lake, run):
    """The drop names the previous metadata file, by which the table is registered again."""
    before = lake.load()
    metadata = Path(urlparse(before.metadata_location).path)
    # Without its newest file a table of a `filesystem` catalog is what it was before.
    metadata.write_bytes(b"{") if lake.properties["type"] == "filesystem" else metadata.unlink()
    names = {path.name for path in metadata.parent.parent.rglob("*.*") if path.name != "version-hint.text"}

    assert "nothing is dropped or deleted; drop it without --purge" in run("drop", "--purge", status=4)[1]
    planned, _ = run("drop", "--dry-run")
    assert (planned["is_purged"], planned["unreadable_files"]) == (False, [before.metadata_location])
    assert planned["sound_metadata"] == [
        one["metadata_location"] for one in run("check", status=3)[0]["sound_metadata"]
    ]

    dropped, said = run("drop")
    assert lake.catalog.list_tables(EVENTS[:-1]) == []
    assert {path.name for path in metadata.parent.parent.rglob("*.*")} >= names
    assert (dropped["status"], dropped["is_purged"], dropped["deleted_files_count"]) == ("done", False, 0)
    assert dropped["unreadable_files"] == [dropped["metadata_location"]]
    first = dropped["sound_metadata"][0]
    command = f"icekeep register --table local.db.events --metadata-location {quote(first)} --config icekeep.yaml"
    assert f"so all of them stay; run `{command}` to take it back as it was then" in said

    assert run("register", "--metadata-location", first)[0]["table_uuid"] == before.metadata.table_uuid
    assert len(lake.load().metadata.snapshots) == 1


@pytest.mark.parametrize("lake", ["filesystem"], indirect=True)
def test_a_damaged_version_moved_aside_stops_a_purge(lake, run):
    damaged = Path(urlparse(lake.load().metadata_location).path)
    damaged.write_bytes(b"{")
    dropped, _ = run("drop")
    run("register", "--metadata-location", dropped["sound_metadata"][0])
    aside = Path(urlparse(dropped["metadata_location"]).path)
    files = {*aside.parents[3].rglob("*.*")}
    assert (
        f"or remove '{aside.parent.as_uri()}' first if nobody needs that one any more"
        in run("drop", "--purge", status=4)[1]
    )
    assert {*aside.parents[3].rglob("*.*")} >= files
    aside.unlink()
    assert run("drop", "--purge")[0]["status"] == "done"


@pytest.mark.parametrize("lake", ["sql"], indirect=True)
def test_an_entry_that_names_no_metadata_file_is_dropped(lake, run):
    with sqlite3.connect(lake.directory / "catalog.db") as database:
        database.execute("update iceberg_tables set metadata_location = null")
    dropped, said = run("drop")
    assert (dropped["unreadable_files"], dropped["metadata_location"]) == ([], None)
    assert "so all of them stay; the catalog does not say where they are" in said
    assert lake.catalog.list_tables(EVENTS[:-1]) == []


def broken(*, directory=False):
    """A table in memory whose metadata file is gone, or with it all that lies below its location."""
    table = add(memory_table(), "a")
    files = table.catalog.storage.files
    for location in [*files] if directory else [table.metadata_location]:
        del files[location]
    return table


def asked(function, table, **arguments):
    listener = Recorder()
    return function(table.catalog, IN_MEMORY, GONE, spark=no_spark, listener=listener, **arguments), listener.warnings


@for_each("is_plan", [False, True])
def test_a_table_whose_directory_is_gone_is_dropped(is_plan):
    table = broken(directory=True)
    result, (said,) = asked(plan_drop_unreadable if is_plan else drop_unreadable, table)
    assert (result.unreadable_files, result.sound_metadata) == ((table.metadata_location,), ())
    assert said.endswith(f"no sound metadata file was found in '{table.metadata.location}/metadata'")
    assert (IN_MEMORY in table.catalog.list_tables(IN_MEMORY[:-1])) is is_plan


@for_each(("function", "directory"), [(f, d) for f in (drop_unreadable, plan_drop_unreadable) for d in (False, True)])
def test_what_no_metadata_names_is_not_purged(function, directory):
    table = broken(directory=directory)
    files = {*table.catalog.storage.files}
    with pytest.raises(SafetyError) as refused:
        asked(function, table, purge=True)
    message = refused.value.message
    assert "table 'db.events' is not purged: its metadata does not load (cannot read" in message
    assert "only metadata says which files are its own; nothing is dropped or deleted" in message
    assert ("earlier metadata" in message) is not directory
    assert {*table.catalog.storage.files} == files
    assert table.catalog.list_tables(IN_MEMORY[:-1]) == [IN_MEMORY]


def test_a_drop_of_an_entry_that_names_no_metadata_file_is_work(monkeypatch):
    def find(identifier):
        raise InvalidTableError(f"table {identifier!r} has no metadata location")

    table = broken()
    monkeypatch.setattr(table.catalog, "find", find)
    monkeypatch.setattr(table.catalog, "drop", lambda *_, **__: "")
    result, _ = asked(drop_unreadable, table)
    assert (result.metadata_location, result.is_idle) == (None, False)


def test_what_others_did_meanwhile_is_not_dropped(monkeypatch):
    table = broken()
    monkeypatch.setattr(table.catalog, "find", lambda _: Pointer(f"{table.metadata_location}.old", table.storage))
    with pytest.raises(ConflictError, match=r"is not dropped: its metadata is .* now"):
        asked(drop_unreadable, table)
    monkeypatch.undo()
    asked(drop_unreadable, table)
    with pytest.raises(NotFoundError):
        asked(drop_unreadable, table)


@for_each(("function", "purge"), [(drop_unreadable, True), (drop_unreadable, False), (plan_drop_unreadable, False)])
def test_a_table_that_was_repaired_meanwhile_is_not_dropped(function, purge):
    """Its newest metadata is sound: nobody should be sent to an earlier file."""
    table = add(memory_table(), "a")
    with pytest.raises(
        ConflictError, match=r"'db.events' did not load, and loads now, from 'memory:.*nothing is dropped"
    ):
        asked(function, table, purge=purge)
    assert table.catalog.load(IN_MEMORY).metadata_location == table.metadata_location


@for_each("function", [drop_unreadable, plan_drop_unreadable])
def test_an_approved_plan_without_a_purge_is_a_mistake_here_too(function):
    table = broken()
    with pytest.raises(UsageError, match="approve is 'abc', the hash of a purge's plan"):
        asked(function, table, approve="abc")
    assert table.catalog.list_tables(IN_MEMORY[:-1]) == [IN_MEMORY]
