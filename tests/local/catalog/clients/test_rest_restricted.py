"""Tables that a server lets a login read in part only, or by its own plans: nothing is done with them, and nothing is shown."""

import json

import pytest

from icekeep import cli
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import SafetyError, UnsupportedError
from icekeep.maintenance.delete.neighbours import neighbours
from kit.cases import for_each
from kit.catalogs import EVENTS, simple_metadata
from kit.rest_server import Fault, Refusal
from kit.runtime import FakeRuntime
from kit.shell import restored_logging
from kit.tables import files

FILTER = {"required-row-filter": {"type": "eq", "left": {"type": "reference", "id": 1}, "right": 5}}
MASKS = {"required-column-projections": [{"field-id": 1, "action": "replace-with-null"}]}
COMMANDS = (
    ("plan_scan",),
    ("compact",),
    ("compact", "--dry-run"),
    ("rewrite_position_deletes",),
    ("rewrite_manifests",),
    ("expire_snapshots", "--older-than", "1h"),
    ("remove_orphan_files",),
    ("check",),
    ("check", "--deep"),
    ("repair", "--fault", "214"),
    ("drop",),
    ("drop", "--purge"),
    ("history",),
    ("ref", "list"),
    ("ref", "create-tag", "t"),
    ("rollback", "--snapshot-id", "1"),
    ("drop-statistics", "--snapshot-id", "1"),
)


@pytest.fixture
def table(server):
    catalog = open_catalog("local", server.properties)
    catalog.create_namespace(("db",))
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


@for_each(
    ("restrictions", "named"),
    [
        (FILTER, "required-row-filter"),
        (MASKS, "required-column-projections"),
        ({**FILTER, **MASKS}, "required-row-filter, required-column-projections"),
        ({"required-row-filter": False}, "required-row-filter"),
        ({"of-a-later-protocol": True}, "of-a-later-protocol"),
        (["?"], "read-restrictions"),
    ],
)
def test_a_table_that_may_be_read_in_part_only_is_refused(server, table, restrictions, named):
    server.restrictions = restrictions
    for ask in (table.catalog.load, table.catalog.find):
        with pytest.raises(UnsupportedError) as raised:
            ask(EVENTS)
        assert raised.value.message == (
            f"catalog 'local' lets this login read table 'db.events' with restrictions only ({named}), and icekeep works on "
            "whole files; use a login that may read all rows and columns"
        )


@for_each(
    "restrictions",
    [
        {},
        {"required-row-filter": None},
        {"required-row-filter": True, "required-column-projections": []},
        {"required-row-filter": {"type": "true"}},
    ],
)
def test_restrictions_that_restrict_nothing_are_none(server, table, restrictions):
    server.restrictions = restrictions
    assert table.catalog.load(EVENTS).metadata == table.metadata


@for_each("mode", ["server", "SERVER", "catalog"])
def test_a_table_whose_scans_the_server_plans_is_refused(server, table, mode):
    server.vended = {"scan-planning-mode": mode}
    with pytest.raises(UnsupportedError) as raised:
        table.catalog.load(EVENTS)
    assert raised.value.message == (
        f"catalog 'local' has scan-planning-mode={mode} for table 'db.events', and icekeep reads manifests itself; have the "
        "server say client to this login"
    )


def test_what_a_table_says_of_its_scans_goes_before_what_the_catalog_says(server, table):
    server.config = {"scan-planning-mode": "server"}
    with pytest.raises(UnsupportedError, match="scan-planning-mode=server"):
        open_catalog("local", server.properties).load(EVENTS)
    server.vended = {"scan-planning-mode": "client"}
    assert open_catalog("local", server.properties).load(EVENTS).metadata == table.metadata


def test_a_restriction_that_comes_while_a_job_runs_ends_its_reads(server, table):
    """New credentials come with an answer that holds for whatever is read by them."""
    server.restrictions = FILTER
    with pytest.raises(UnsupportedError, match="with restrictions only"):
        table.catalog.storage_properties(EVENTS, table.metadata_location)
    with pytest.raises(UnsupportedError, match="with restrictions only"):
        commit(table, AppendFiles(files=files("new")), runtime=FakeRuntime())
    assert server.commits == 1, "the creation"


def test_no_command_works_on_a_restricted_table(server, table, tmp_path, capsys):
    table = commit(table, AppendFiles(files=files("old")), runtime=FakeRuntime()).table
    conf = tmp_path / "icekeep.yaml"
    conf.write_text(json.dumps({"catalogs": {"c": server.properties}}))
    server.restrictions = MASKS
    for command in COMMANDS:
        with restored_logging():
            status = cli.main([*command, "--table", "c.db.events", "--config", str(conf)])
        said = capsys.readouterr().err.splitlines()
        assert (command, status) == (command, 4)
        assert any("with restrictions only (required-column-projections)" in line for line in said), (command, said)
    server.restrictions = None
    assert table.catalog.load(EVENTS).metadata == table.metadata


def test_a_restricted_table_keeps_its_place_beside_others(server, table):
    """A job on another table in its directory would take its files for garbage."""
    catalog = table.catalog
    answer = server.answer

    def restricts_one(method, path, query, body):
        server.restrictions = FILTER if path[-1:] == ["events"] else None
        return answer(method, path, query, body)

    server.answer = restricts_one
    apart = catalog.create(("db", "apart"), simple_metadata(catalog.default_location(("db", "apart"))))
    assert neighbours(apart).unreadable == ()
    inside = catalog.create(("db", "inside"), simple_metadata(f"{table.metadata.location}/inside"))
    with pytest.raises(SafetyError, match=r"'db\.events'"):
        neighbours(inside)


@for_each("status", [400, 422])
def test_a_table_of_a_version_that_the_server_does_not_show_is_unsupported(server, table, status):
    refusal = Refusal(status, "UnsupportedTableFormatVersionException", "table is v4; load it by /v2")
    server.load_faults = [Fault(False, status, json.dumps(refusal.body))]
    with pytest.raises(
        UnsupportedError, match=r"^catalog 'local' refused: UnsupportedTableFormatVersionException: table is v4"
    ):
        table.catalog.load(EVENTS)
    server.faults = [Fault(False, status, json.dumps(refusal.body))]
    with pytest.raises(UnsupportedError, match="UnsupportedTableFormatVersionException"):
        commit(table, AppendFiles(files=files("new")), runtime=FakeRuntime())
