"""The REST catalog against a real server on this machine: the contract, as far as it is not the server that decides."""

import json
import pickle
import threading
from pathlib import Path

import msgspec
import pytest

from contracts.catalog_contract import RestCatalogContract
from icekeep import cli
from icekeep.catalog.base import Committed, Conflict, Description, Unknown
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import (
    NotFoundError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.maintenance.delete.neighbours import neighbours
from icekeep.spec.metadata import parse_metadata
from icekeep.spec.snapshots import Snapshot, SnapshotRef
from icekeep.spec.updates import (
    AddEncryptionKey,
    AddSnapshot,
    AssertTableUuid,
    RemoveSnapshots,
    SetSnapshotRef,
    requirements_for,
)
from kit.cases import for_each
from kit.catalogs import COUNTER, EVENTS, add_snapshot, set_counter, simple_metadata
from kit.rest_server import ENDPOINTS, Fault, Refusal
from kit.runtime import FakeRuntime
from kit.shell import restored_logging
from kit.tables import files


class TestRestCatalog(RestCatalogContract):
    @pytest.fixture
    def properties(self, server):
        return server.properties

    def test_a_table_is_put_below_the_warehouse_by_its_name(self, catalog, tmp_path):
        catalog.create_namespace(("a", "b"))
        assert catalog.default_location(("a", "b", "t")).endswith(f"{tmp_path}/warehouse/a/b/t")
        with pytest.raises(NotFoundError, match="no namespace 'none'"):
            catalog.default_location(("none", "t"))
        assert catalog.list_tables(("a", "b")) == []

    def test_swap_with_met_requirements_applies_to_current_table(self, catalog, other, create):
        base = create()
        other.swap(base, [], set_counter(1))
        outcome = catalog.swap(base, [AssertTableUuid(base.metadata.table_uuid)], [*add_snapshot(7)])
        assert outcome.table.metadata.properties[COUNTER] == "1"
        assert outcome.table.metadata.snapshots_by_id.keys() == {7}

    @pytest.mark.parametrize(
        "fault",
        [
            Fault(applied=True, is_cut=True),
            Fault(applied=False, is_cut=True),
            Fault(applied=True, status=504),
            Fault(applied=False, status=503, body="busy"),
            Fault(applied=True, is_doubled=True),
        ],
    )
    def test_a_registration_whose_answer_is_lost_is_settled(self, catalog, create, server, fault):
        table = create()
        location = catalog.drop(EVENTS)
        server.faults.append(fault)
        assert catalog.register_table(EVENTS, location).metadata == table.metadata
        assert server.pointers == {EVENTS: location}
        assert server.faults == []

    def test_server_describes_table_with_unreadable_metadata(self, catalog, create, server):
        table = create(**{"write.data.path": "s3://data/x"})
        described = catalog.describe(EVENTS)
        assert described == Description(
            table.metadata.location, {"write.data.path": "s3://data/x"}, (table.metadata_location,), is_whole=True
        )
        with pytest.raises(NotFoundError):
            catalog.describe(("db", "none"))

    def test_a_server_without_the_endpoint_is_unsupported(self, catalog, create, server):
        create()
        location = catalog.drop(EVENTS)
        server.endpoints = tuple(endpoint for endpoint in ENDPOINTS if "register" not in endpoint)
        with pytest.raises(UnsupportedError, match=r"catalog 'local' does not take 'POST .*/register'"):
            open_catalog("local", server.properties).register_table(EVENTS, location)
        assert server.pointers == {}

    def test_a_renamed_table_keeps_its_location(self, catalog, create):
        table = create()
        create(("db", "taken"))
        catalog.rename(EVENTS, ("db", "new"))
        assert catalog.load(("db", "new")).metadata == table.metadata
        with pytest.raises(NotFoundError, match=r"no table 'db.events'"):
            catalog.rename(EVENTS, ("db", "other"))
        with pytest.raises(UsageError, match=r"table 'db.taken' exists already"):
            catalog.rename(("db", "new"), ("db", "taken"))
        with pytest.raises(NotFoundError, match="no namespace 'none'"):
            catalog.rename(("db", "new"), ("none", "new"))

    @pytest.mark.parametrize("format_version", [1, 2, 3])
    def test_tables_of_every_version_are_created_and_committed_to(self, catalog, format_version):
        base = simple_metadata(catalog.default_location(EVENTS))
        row_id = 0 if format_version == 3 else None
        table = catalog.create(EVENTS, msgspec.structs.replace(base, format_version=format_version, next_row_id=row_id))
        assert table.metadata.format_version == format_version
        snapshot = Snapshot(
            snapshot_id=7,
            timestamp_ms=table.metadata.last_updated_ms,
            sequence_number=table.metadata.next_sequence_number,
            manifest_list="file:///nowhere/snap.avro",
            summary={"operation": "replace", "icekeep.commit-id": "c"},
            schema_id=0,
            first_row_id=row_id,
            added_rows=None if row_id is None else 5,
        )
        updates = [AddSnapshot(snapshot), SetSnapshotRef("main", SnapshotRef(snapshot_id=7, type="branch"))]
        outcome = catalog.swap(table, requirements_for(table.metadata, updates), updates)
        assert isinstance(outcome, Committed)
        assert outcome.table.metadata.current_snapshot == snapshot
        assert outcome.table.metadata.next_row_id == (5 if format_version == 3 else None)

    def test_what_pyicebergs_models_do_not_know_is_sent_all_the_same(self, catalog, create, server):
        table = create()
        (add,) = add_snapshot(7)
        keyed = msgspec.structs.replace(add.snapshot, key_id="key")
        key = {"key-id": "k", "encrypted-key-metadata": "AA=="}
        server.faults = [Fault(applied=False, status=400)]
        catalog.swap(table, [], [AddSnapshot(keyed), AddEncryptionKey(key)])
        snapshot, encryption_key = server.bodies[-1]["updates"]
        assert snapshot["snapshot"]["key-id"] == "key"
        assert encryption_key == {"action": "add-encryption-key", "encryption-key": key}

    def test_all_requirements_are_sent_and_none_hides_another(self, catalog, create, server):
        refs = {name: SnapshotRef(snapshot_id=7, type="branch") for name in ("main", "b1", "b2")}
        made = [*add_snapshot(7), *add_snapshot(8, 2), *(SetSnapshotRef(name, ref) for name, ref in refs.items())]
        base = catalog.swap(create(), [], made).table
        moved = [SetSnapshotRef("b2", SnapshotRef(snapshot_id=8, type="branch"))]
        assert isinstance(catalog.swap(base, [], moved), Committed)
        both = [SetSnapshotRef(name, SnapshotRef(snapshot_id=8, type="branch")) for name in ("b1", "b2")]
        outcome = catalog.swap(base, requirements_for(base.metadata, both), both)
        assert isinstance(outcome, Conflict)
        assert "b2" in outcome.reason

    def test_a_commit_that_was_sent_twice_is_not_a_second_table(self, catalog, server, tmp_path):
        location = (tmp_path / "t").as_uri()
        server.faults = [Fault(applied=True, is_doubled=True)]
        table = catalog.create(EVENTS, simple_metadata(location))
        assert catalog.load(EVENTS).metadata == table.metadata
        server.faults = [Fault(applied=True, is_cut=True)]
        with pytest.raises(
            OutcomeUnknownError, match=r"the creation of table 'db.second' in catalog 'local' may or may not"
        ):
            catalog.create(("db", "second"), simple_metadata((tmp_path / "s").as_uri()))

    def test_tables_that_pyicebergs_models_cannot_read_are_loaded(self, catalog, create):
        path = Path(create().metadata_location.removeprefix("file://"))
        raw = json.loads(path.read_text())
        raw["schemas"][0]["fields"][1]["type"] = "variant"
        path.write_text(json.dumps({**raw, "format-version": 3, "next-row-id": 0}))
        assert str(catalog.load(EVENTS).metadata.schema.fields[1].type) == "variant"

    def test_table_without_metadata_location_is_refused(self, catalog, create, server):
        create()
        server.answer = lambda *_: {"metadata": {}}
        with pytest.raises(
            UnsupportedError, match=r"^the server of catalog 'local' gives no metadata location of table 'db"
        ):
            catalog.load(EVENTS)

    def test_threads_that_commit_at_once_lose_nothing(self, catalog, create):
        create()

        def work(number: int) -> None:
            for n in range(5):
                while True:
                    base = catalog.load(EVENTS)
                    new_id = 100 * number + n + 1
                    updates = [
                        *add_snapshot(new_id, base.metadata.next_sequence_number),
                        SetSnapshotRef("main", SnapshotRef(snapshot_id=new_id, type="branch")),
                    ]
                    if isinstance(catalog.swap(base, requirements_for(base.metadata, updates), updates), Committed):
                        break

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        metadata = catalog.load(EVENTS).metadata
        assert len(metadata.snapshots) == len(metadata.snapshot_log) == 20


EXPIRATION = [RemoveSnapshots((7,))]


@pytest.fixture
def two_snapshots(server):
    """A table with snapshots 7 and 8, main at 8."""
    catalog = open_catalog("local", server.properties)
    catalog.create_namespace(("db",))
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    main = [SetSnapshotRef("main", SnapshotRef(snapshot_id=8, type="branch"))]
    return catalog.swap(table, [], [*add_snapshot(7), *add_snapshot(8, 2), *main]).table


def expire(table):
    return table.catalog.swap(table, requirements_for(table.metadata, EXPIRATION), EXPIRATION)


def test_reference_lost_with_its_snapshot(server, two_snapshots):
    def tag() -> None:
        other = open_catalog("local", server.properties)
        made = [SetSnapshotRef("audit", SnapshotRef(snapshot_id=7, type="tag"))]
        assert isinstance(other.swap(two_snapshots, [], made), Committed)

    server.before_commit = tag
    outcome = expire(two_snapshots)
    assert isinstance(outcome, Unknown)
    assert "the references 'audit' that somebody made meanwhile" in outcome.cause
    assert outcome.metadata_location == ""


def test_expiration_after_another_commit_lands(server, two_snapshots):
    other = open_catalog("local", server.properties)
    server.before_commit = lambda: other.swap(two_snapshots, [], set_counter(1))
    outcome = expire(two_snapshots)
    assert isinstance(outcome, Committed)
    assert outcome.table.metadata.snapshots_by_id.keys() == {8}
    assert outcome.table.metadata.properties[COUNTER] == "1"


def test_what_an_expiration_replaced_must_be_read_to_tell(server, two_snapshots):
    other = open_catalog("local", server.properties)

    def overtake() -> None:
        table = other.swap(two_snapshots, [], set_counter(1)).table
        server.after_commit = lambda: Path(table.metadata_location.removeprefix("file://")).unlink()

    server.before_commit = overtake
    outcome = expire(two_snapshots)
    assert isinstance(outcome, Unknown)
    assert "it is not known which references went with them" in outcome.cause


def test_a_server_that_keeps_no_log_is_believed(server):
    server.keeps_log = False
    catalog = open_catalog("local", server.properties)
    catalog.create_namespace(("db",))
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    base = catalog.swap(table, [], [*add_snapshot(7), *add_snapshot(8, 2)]).table
    assert isinstance(expire(base), Committed)


def test_vended_credentials_reach_the_storage_alone(server):
    server.config = {"s3.region": "eu-1"}
    server.vended = {"s3.access-key-id": "vended-id", "s3.secret-access-key": "vended-secret", "s3.region": "eu-2"}
    catalog = open_catalog("local", {**server.properties, "s3.endpoint": "http://store", "s3.secret-access-key": "own"})
    catalog.create_namespace(("db",))
    location = catalog.default_location(EVENTS)
    table = catalog.create(
        EVENTS, simple_metadata(location, **{"s3.endpoint": "http://evil", "py_io_impl": "os.system"})
    )
    seen = table.storage._properties
    assert seen["s3.access-key-id"] == "vended-id"
    assert seen["s3.secret-access-key"] == "vended-secret"
    assert seen["s3.region"] == "eu-2"
    assert seen["s3.endpoint"] == "http://store"
    assert "py-io-impl" not in seen
    assert all(isinstance(value, str) for value in seen.values())
    assert "secret" not in repr((table, catalog))
    copy = pickle.loads(pickle.dumps(table))
    assert copy.storage._properties == seen


def test_registered_file_read_by_server_properties(server):
    server.config = {"s3.endpoint": "http://store"}
    catalog = open_catalog("local", {**server.properties, "s3.access-key-id": "own", "s3.endpoint": "http://elsewhere"})
    seen = catalog.storage._properties
    assert (seen["s3.endpoint"], seen["s3.access-key-id"]) == ("http://store", "own")


def test_the_credentials_of_the_longest_prefix_are_the_ones(server, tmp_path):
    server.credentials = [
        {"prefix": "file:", "config": {"s3.session-token": "short"}},
        {"prefix": tmp_path.as_uri(), "config": {"s3.session-token": "long"}},
    ]
    catalog = open_catalog("local", server.properties)
    catalog.create_namespace(("db",))
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    assert table.storage._properties["s3.session-token"] == "long"


def test_a_token_is_sent_and_never_told(server):
    server.token = "very-secret-token"
    good = open_catalog("local", {**server.properties, "token": "very-secret-token"})
    good.create_namespace(("db",))
    bad = open_catalog("local", {**server.properties, "token": "wrong-token"})
    with pytest.raises(UsageError, match=r"catalog 'local' refused: NotAuthorizedException: bad token"):
        bad.load(EVENTS)


def test_a_server_that_is_not_there_is_unavailable(server):
    server.close()
    with pytest.raises(UnavailableError, match=r"catalog 'local' is out of reach at http://.*: connection refused$"):
        open_catalog("local", server.properties).list_namespaces()


def test_a_server_may_not_turn_partial_snapshots_on(server):
    server.config = {"snapshot-loading-mode": "refs"}
    with pytest.raises(UnsupportedError, match="snapshot-loading-mode=refs"):
        open_catalog("local", server.properties).load(EVENTS)


def test_each_thread_has_a_client_of_its_own_and_keeps_it(server):
    catalog = open_catalog("local", server.properties)
    seen = [catalog._client(), catalog._client()]
    thread = threading.Thread(target=lambda: seen.append(catalog._client()))
    thread.start()
    thread.join()
    assert seen[0] is seen[1] is not seen[2]
    assert pickle.loads(pickle.dumps(catalog))._client() is not seen[0]


def test_metadata_is_read_from_its_file_and_not_from_the_answer(server):
    catalog = open_catalog("local", server.properties)
    catalog.create_namespace(("db",))
    made = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    path = Path(made.metadata_location.removeprefix("file://"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "new-key": 1}))
    assert catalog.load(EVENTS).metadata.extra == {"new-key": 1}
    assert parse_metadata(made.storage.read(made.metadata_location), "").extra == {"new-key": 1}


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


def test_scan_mode_of_table_overrides_that_of_catalog(server, table):
    server.config = {"scan-planning-mode": "server"}
    with pytest.raises(UnsupportedError, match="scan-planning-mode=server"):
        open_catalog("local", server.properties).load(EVENTS)
    server.vended = {"scan-planning-mode": "client"}
    assert open_catalog("local", server.properties).load(EVENTS).metadata == table.metadata


def test_restriction_during_job_ends_its_reads(server, table):
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
def test_unsupported_table_version_is_refused(server, table, status):
    refusal = Refusal(status, "UnsupportedTableFormatVersionException", "table is v4; load it by /v2")
    server.load_faults = [Fault(False, status, json.dumps(refusal.body))]
    with pytest.raises(
        UnsupportedError, match=r"^catalog 'local' refused: UnsupportedTableFormatVersionException: table is v4"
    ):
        table.catalog.load(EVENTS)
    server.faults = [Fault(False, status, json.dumps(refusal.body))]
    with pytest.raises(UnsupportedError, match="UnsupportedTableFormatVersionException"):
        commit(table, AppendFiles(files=files("new")), runtime=FakeRuntime())
