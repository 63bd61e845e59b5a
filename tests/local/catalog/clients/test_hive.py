"""The Hive catalog against a metastore's protocol over a real socket."""

import importlib
import json
import os
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from hive_metastore.ttypes import MetaException
from pyiceberg.catalog.hive import HiveCatalog as ForeignHiveCatalog

from contracts.catalog_contract import HiveCatalogContract
from icekeep.catalog.base import Committed, Conflict, Description, Unknown
from icekeep.catalog.clients import hive_client
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    PropertyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.events import CommitRetried, SnapshotCommitted
from icekeep.spec.snapshots import Snapshot, SnapshotRef
from icekeep.spec.types import NestedField, PrimitiveType
from icekeep.spec.updates import AddSnapshot, RemoveProperties, SetProperties, SetSnapshotRef, requirements_for
from kit.catalogs import COUNTER, EVENTS, SCHEMA, set_counter, simple_metadata
from kit.changes import Recorder
from kit.hive_server import HiveServer, hive_properties
from kit.runtime import FakeRuntime
from kit.tables import files

ALTER = "alter_table_with_environment_context"


@pytest.fixture
def metastore():
    server = HiveServer()
    yield server
    server.close()


class TestHiveCatalog(HiveCatalogContract):
    @pytest.fixture
    def properties(self, metastore, tmp_path):
        return hive_properties(metastore, tmp_path)

    def test_a_table_is_put_below_the_warehouse_by_its_name(self, catalog, tmp_path):
        assert catalog.default_location(EVENTS).endswith(f"{tmp_path}/warehouse/db.db/events")
        catalog.create_namespace(("placed",), {"location": "file:///elsewhere"})
        assert catalog.default_location(("placed", "t")) == "file:///elsewhere/t"

    def test_only_an_empty_database_is_dropped(self, catalog, other, create):
        create()
        with pytest.raises(UsageError, match="namespace 'db' in catalog 'local' is not empty"):
            catalog.drop_namespace(("db",))
        catalog.drop(EVENTS)
        catalog.drop_namespace(("db",))
        assert other.list_namespaces() == []
        with pytest.raises(NotFoundError, match="no namespace 'db'"):
            other.drop_namespace(("db",))

    @pytest.mark.parametrize("how", ["before", "after", "cut"])
    def test_a_registration_whose_answer_is_lost_is_settled(self, catalog, create, metastore, how):
        table = create()
        location = catalog.drop(EVENTS)
        metastore.fail = ("create_table", how)
        assert catalog.register_table(EVENTS, location).metadata == table.metadata
        assert metastore.fail is None
        assert table.storage.head(location) is not None

    def test_failure_before_registration_proves_nothing_landed(self, catalog, create, metastore):
        create()
        location = catalog.drop(EVENTS)
        metastore.fail = ("lock", "before")
        with pytest.raises(UnavailableError, match="catalog 'local' cannot be asked"):
            catalog.register_table(EVENTS, location)
        assert metastore.tables == {}
        assert catalog.register_table(EVENTS, location).storage.head(location) is not None

    def test_the_entry_says_where_a_table_lies_whatever_it_is(self, catalog, create, metastore):
        """Also of a table of another format, or one whose metadata is gone."""
        table = create(**{"write.data.path": "s3://data/x"})
        table.storage.delete_many([table.metadata_location])
        described = catalog.describe(EVENTS)
        assert (described.location, described.properties["write.data.path"]) == (table.metadata.location, "s3://data/x")
        with pytest.raises(NotFoundError):
            catalog.describe(("db", "none"))
        entry = metastore.tables[EVENTS]
        entry.parameters = None
        assert catalog.describe(EVENTS) == Description(table.metadata.location)
        entry.sd.location = ""
        assert catalog.describe(EVENTS) is None

    def test_tables_are_listed_sorted(self, catalog, create, metastore):
        for name in ("b", "a"):
            create(("db", name))
        foreign = metastore.tables[("db", "a")]
        metastore.tables[("db", "plain")] = type(foreign)(
            dbName="db", tableName="plain", parameters={"EXTERNAL": "TRUE"}
        )
        assert catalog.list_tables(("db",)) == [("db", "a"), ("db", "b")]
        with pytest.raises(NotFoundError, match="no namespace 'none'"):
            catalog.list_tables(("none",))
        with pytest.raises(UnsupportedError, match=r"'db.plain' in catalog 'local' is no Iceberg table"):
            catalog.load(("db", "plain"))

    def test_names_that_a_metastore_does_not_take(self, catalog, create, tmp_path):
        with pytest.raises(
            UsageError, match=r"the metastore refuses 'db.é': é is not a valid object name; Hive's names have"
        ):
            create(("db", "é"))
        with pytest.raises(UsageError, match=r"the metastore refuses 'a b'"):
            catalog.create_namespace(("a b",))
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    def test_more_than_one_level_is_refused_or_not_found(self, catalog):
        with pytest.raises(UnsupportedError, match=r"namespace 'a.b' has 2 levels"):
            catalog.default_location(("a", "b", "t"))
        with pytest.raises(UnsupportedError, match=r"namespace 'a.b' has 2 levels; catalog 'local' has one"):
            catalog.create_namespace(("a", "b"))
        with pytest.raises(UnsupportedError, match=r"namespace 'a.b' has 2 levels"):
            catalog.create(("a", "b", "t"), simple_metadata("file:///nowhere"))
        with pytest.raises(NotFoundError):
            catalog.load(("db", "b", "t"))
        with pytest.raises(NotFoundError):
            catalog.describe(("db", "b", "t"))
        with pytest.raises(NotFoundError):
            catalog.rename(("db", "b", "t"), ("db", "t"))

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

    def test_the_entry_says_what_other_engines_want_to_know(self, catalog, create, metastore):
        base = create()
        after = catalog.swap(base, [], set_counter(1)).table
        entry = metastore.tables[EVENTS]
        assert entry.parameters["metadata_location"] == after.metadata_location
        assert entry.parameters["previous_metadata_location"] == base.metadata_location
        assert entry.parameters[COUNTER] == "1"
        assert [(column.name, column.type) for column in entry.sd.cols] == [("id", "bigint"), ("name", "string")]
        assert metastore.locks[EVENTS] == []

    def test_pyiceberg_reads_commits_and_its_own_is_conflict(self, catalog, create, properties, metastore):
        metastore.compares = False
        base = catalog.swap(create(), [], set_counter(1)).table
        foreign = ForeignHiveCatalog("foreign", **properties).load_table(EVENTS)
        assert foreign.properties[COUNTER] == "1"
        foreign.transaction().set_properties({COUNTER: "theirs"}).commit_transaction()
        outcome = catalog.swap(base, [], set_counter("ours"))
        assert isinstance(outcome, Conflict)
        assert outcome.is_final
        assert catalog.load(EVENTS).metadata.properties[COUNTER] == "theirs"

    def test_what_the_entry_has_from_others_stays(self, catalog, create, metastore):
        base = create()
        metastore.tables[EVENTS].parameters["someone.elses"] = "1"
        metastore.tables[EVENTS].sd.inputFormat = "org.apache.iceberg.mr.hive.HiveIcebergInputFormat"
        base = catalog.swap(base, [], set_counter(1)).table
        assert metastore.tables[EVENTS].parameters["someone.elses"] == "1"
        assert metastore.tables[EVENTS].sd.inputFormat == "org.apache.iceberg.mr.hive.HiveIcebergInputFormat"
        catalog.swap(base, [], [RemoveProperties((COUNTER,))])
        assert COUNTER not in metastore.tables[EVENTS].parameters


@pytest.fixture
def catalog(metastore, tmp_path):
    catalog = open_catalog("local", hive_properties(metastore, tmp_path), FakeRuntime())
    catalog.create_namespace(("db",))
    return catalog


@pytest.fixture
def table(catalog):
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


def metadata_files(table):
    return set(table.storage.child_names(f"{table.metadata.location}/metadata"))


def test_tables_of_version_3_are_committed_to_and_lose_nothing(catalog, metastore):
    """PyIceberg alone refuses to write these, and drops keys that it does not know."""
    base = simple_metadata(catalog.default_location(EVENTS))
    table = catalog.create(EVENTS, msgspec.structs.replace(base, format_version=3, next_row_id=0))
    path = Path(table.metadata_location.removeprefix("file://"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "x-unknown": {"deep": [1]}}))
    base = catalog.load(EVENTS)
    snapshot = Snapshot(
        snapshot_id=7,
        timestamp_ms=base.metadata.last_updated_ms,
        sequence_number=1,
        manifest_list="file:///nowhere/snap.avro",
        summary={"operation": "replace"},
        first_row_id=0,
        added_rows=5,
        key_id="k",
    )
    updates = [AddSnapshot(snapshot), SetSnapshotRef("main", SnapshotRef(snapshot_id=7, type="branch"))]
    outcome = catalog.swap(base, requirements_for(base.metadata, updates), updates)
    assert isinstance(outcome, Committed)
    raw = json.loads(Path(metastore.tables[EVENTS].parameters["metadata_location"].removeprefix("file://")).read_text())
    assert raw["x-unknown"] == {"deep": [1]}
    assert raw["next-row-id"] == 5
    assert raw["snapshots"][0]["key-id"] == "k"
    assert raw["snapshots"][0]["first-row-id"] == 0


def test_columns_without_hive_type_refused_early(catalog, tmp_path):
    fields = (*SCHEMA.fields, NestedField(field_id=3, name="at", type=PrimitiveType("timestamp_ns")))
    schema = msgspec.structs.replace(SCHEMA, fields=fields)
    base = simple_metadata(catalog.default_location(EVENTS))
    metadata = msgspec.structs.replace(base, format_version=3, next_row_id=0, schemas=(schema,), last_column_id=3)
    with pytest.raises(UnsupportedError, match="a Hive metastore has no column type for 'timestamp_ns'"):
        catalog.create(EVENTS, metadata)
    assert not (tmp_path / "warehouse").exists()


def test_table_that_entry_cannot_describe_is_read_only(catalog, table):
    path = Path(table.metadata_location.removeprefix("file://"))
    raw = json.loads(path.read_text())
    raw["schemas"][0]["fields"][1]["type"] = "variant"
    path.write_text(json.dumps({**raw, "format-version": 3, "next-row-id": 0}))
    base, before = catalog.load(EVENTS), metadata_files(table)
    with pytest.raises(UnsupportedError, match="a Hive metastore has no column type for 'variant'"):
        catalog.swap(base, [], set_counter(1))
    assert metadata_files(table) == before


@pytest.mark.parametrize("value", ["false", "FALSE", "no"])
def test_lock_free_table_needs_comparing_metastore(catalog, metastore, value):
    """A table whose writers take no lock is committed to only where the metastore compares."""
    metadata = simple_metadata(catalog.default_location(EVENTS), **{"engine.hive.lock-enabled": value})
    table = catalog.create(EVENTS, metadata)
    metastore.compares = False
    with pytest.raises(
        PropertyError, match=rf"table 'db.events' has engine.hive.lock-enabled={value}: its writers take no"
    ):
        catalog.swap(table, [], set_counter(1))
    assert len(metadata_files(table)) == 1
    with pytest.raises(PropertyError, match="its writers take no lock"):
        catalog.rename(EVENTS, ("db", "other"))
    metastore.compares = True
    metastore.calls.clear()
    theirs = catalog.swap(table, [], set_counter(2)).table
    metastore.tables[EVENTS].parameters["metadata_location"] = table.metadata_location
    overtaken(metastore, theirs.metadata_location)
    assert isinstance(catalog.swap(table, [], set_counter(3)), Conflict)
    assert catalog.load(EVENTS).metadata == theirs.metadata
    assert "lock" not in metastore.calls


def test_a_rename_does_not_undo_a_commit_that_came_between(catalog, table, metastore):
    """It sends the whole entry, which was read before."""
    overtaken(metastore, "file:///theirs")
    with pytest.raises(ConflictError, match=r"the renaming of table 'db.events' .* another writer .*has been modified"):
        catalog.rename(EVENTS, ("db", "other"))
    assert metastore.tables[EVENTS].parameters["metadata_location"] == "file:///theirs"
    metastore.calls.clear()
    catalog.rename(EVENTS, ("db", "other"))
    assert metastore.calls.count("lock") == metastore.calls.count("unlock") == 1


def test_an_interrupt_is_not_hidden_by_an_unlock_that_fails(catalog, table, metastore, monkeypatch):
    def interrupted(*_):
        metastore.fail = ("unlock", "cut")
        raise KeyboardInterrupt

    monkeypatch.setattr(hive_client.HiveClient, "_alter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        catalog.swap(table, [], set_counter(1))


@pytest.mark.parametrize("is_lost", [True, False])
def test_possibly_expired_lock_is_retaken_before_change(catalog, table, metastore, is_lost):
    """A metastore that stops for minutes forgets locks, and an old one does not compare either."""
    metastore.compares = False
    read = hive_client._entry_if_any

    def slowly(*arguments):
        catalog.runtime.sleep_ms(400_000)
        if is_lost:
            metastore.locks[EVENTS] = [4711]
        return read(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hive_client, "_entry_if_any", slowly)
        outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Conflict if is_lost else Committed)
    assert (ALTER in metastore.calls) != is_lost


def test_who_has_no_name_commits_too(catalog, monkeypatch):
    def nobody():
        raise KeyError("getpwuid(): uid not found: 1000800000")

    monkeypatch.setattr("getpass.getuser", nobody)
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)


FAULTS = [
    *(("unlock", how) for how in ("before", "after", "cut")),
    *((ALTER, how) for how in ("before", "after", "cut")),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_change_with_lost_answer_is_settled_by_resending(catalog, table, metastore, fault):
    metastore.fail = fault
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata == outcome.table.metadata
    assert len(metadata_files(table)) == 2


def test_late_change_is_kept_out_by_resent_one(catalog, table, metastore):
    metastore.fail = (ALTER, "late")
    # A metastore forgets the lock of a client that it hears no more of.
    catalog.runtime.before_sleep = metastore.locks.clear
    outcome = catalog.swap(table, [], set_counter(1))
    theirs = catalog.swap(outcome.table, [], set_counter(2))
    assert isinstance(theirs, Committed)
    with pytest.raises(MetaException, match="The table has been modified"):
        metastore.late()
    assert catalog.load(EVENTS).metadata == theirs.table.metadata


def test_a_change_that_is_sent_again_loses_to_another_writers(catalog, table, metastore, tmp_path):
    def be_faster() -> None:
        other = open_catalog("other", hive_properties(metastore, tmp_path))
        metastore.locks.clear()
        assert isinstance(other.swap(other.load(EVENTS), [], set_counter(7)), Committed)

    metastore.fail = (ALTER, "late")
    catalog.runtime.before_sleep = be_faster
    outcome = catalog.swap(table, [], set_counter(1))
    assert (type(outcome), outcome.is_final) == (Conflict, True)
    with pytest.raises(MetaException, match="The table has been modified"):
        metastore.late()
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "7"
    assert len(metadata_files(table)) == 2


@pytest.mark.parametrize("how", ["before", "after", "cut"])
@pytest.mark.parametrize("version", ["3.0", "4.0.0", "4.0.0-beta-1", "4.0.0-SNAPSHOT", "unknown"])
def test_a_metastore_that_does_not_compare_is_sent_nothing_again(catalog, table, metastore, how, version):
    """What is late there could undo what others have committed since: 4.0.0 compares and changes in two steps (HIVE-28121)."""
    metastore.compares, metastore.version = False, version
    metastore.fail = (ALTER, how)
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Unknown)
    assert table.storage.head(outcome.metadata_location) is not None
    landed = catalog.load(EVENTS).metadata_location == outcome.metadata_location
    assert landed == (how != "before")
    assert metastore.calls.count(ALTER) == 1


def test_wait_for_silent_metastore_is_bounded(metastore, tmp_path):
    catalog = open_catalog("local", hive_properties(metastore, tmp_path, **{"hive.client.socket-timeout-ms": "300"}))
    catalog.create_namespace(("db",))
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    metastore.compares = False
    metastore.fail = (ALTER, "slow")
    assert isinstance(catalog.swap(table, [], set_counter(1)), Unknown)
    metastore.fail = ("get_table_req", "slow")
    with pytest.raises(UnavailableError, match=r"catalog 'local' cannot be asked: .*time"):
        catalog.load(EVENTS)


@pytest.mark.parametrize(
    "fault", [("lock", "before"), ("lock", "cut"), ("get_table_req", "before"), ("get_table_req", "cut")]
)
def test_what_fails_before_the_change_proves_that_nothing_landed(catalog, table, metastore, fault):
    before = metadata_files(table)
    metastore.fail = fault
    with pytest.raises(UnavailableError, match="catalog 'local' cannot be asked"):
        catalog.swap(table, [], set_counter(1))
    assert metadata_files(table) == before
    assert catalog.load(EVENTS).metadata == table.metadata


def overtaken(metastore, location):
    """Another writer, who takes no lock, moves the pointer between our look and our change."""

    def overtake() -> None:
        metastore.tables[EVENTS].parameters["metadata_location"] = location

    metastore.before_alter = overtake


def test_comparing_metastore_detects_writer_without_lock(catalog, table, metastore):
    """HIVE-26882."""
    theirs = catalog.swap(table, [], set_counter("theirs")).table
    metastore.tables[EVENTS].parameters["metadata_location"] = table.metadata_location
    before = metadata_files(table)
    overtaken(metastore, theirs.metadata_location)
    outcome = catalog.swap(table, [], set_counter("ours"))
    assert isinstance(outcome, Conflict)
    assert "The table has been modified" in outcome.reason
    assert catalog.load(EVENTS).metadata == theirs.metadata
    assert metadata_files(table) == before


def test_conflict_with_unreadable_metadata_is_unknown(catalog, table, metastore):
    overtaken(metastore, "file:///theirs")
    outcome = catalog.swap(table, [], set_counter("ours"))
    assert isinstance(outcome, Unknown)
    assert table.storage.head(outcome.metadata_location) is not None


def test_a_lock_that_is_not_had_is_a_conflict(metastore, tmp_path):
    catalog = open_catalog("local", hive_properties(metastore, tmp_path, **{"lock-check-retries": "2"}))
    catalog.create_namespace(("db",))
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    before = metadata_files(table)
    metastore.locks[EVENTS] = [4711]
    outcome = catalog.swap(table, [], set_counter(1))
    assert outcome == Conflict("the lock of table 'db.events' is not to be had, its state is WAITING", is_final=True)
    assert metadata_files(table) == before
    assert metastore.locks[EVENTS] == [4711]


def test_an_unlock_that_fails_is_settled_by_looking(catalog, table, metastore):
    metastore.fail = ("unlock", "cut")
    result = commit(table, AppendFiles(files=files("new")), runtime=FakeRuntime())
    assert result.changed
    assert catalog.load(EVENTS).metadata.current_snapshot_id == result.snapshot_id


def test_a_creation_that_may_have_happened_is_unknown(catalog, metastore):
    metastore.fail = ("create_table", "cut")
    with pytest.raises(
        OutcomeUnknownError, match=r"table 'db.events' in catalog 'local' may or may not have been created"
    ):
        catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    assert catalog.load(EVENTS).name == "db.events"


def test_a_metastore_that_is_not_there_is_unavailable(metastore, tmp_path):
    metastore.close()
    with pytest.raises(UnavailableError, match="catalog 'local' cannot be asked: "):
        open_catalog("local", hive_properties(metastore, tmp_path)).list_namespaces()


def test_threads_that_commit_at_once_lose_nothing(catalog, table):
    conflicts = []

    def work() -> None:
        for _ in range(5):
            while True:
                base = catalog.load(EVENTS)
                value = int(base.metadata.properties.get(COUNTER, "0"))
                outcome = catalog.swap(base, [], [SetProperties({COUNTER: str(value + 1)})])
                if isinstance(outcome, Committed):
                    break
                conflicts.append(outcome)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "20"
    assert conflicts
    assert all(isinstance(outcome, Conflict) for outcome in conflicts)
    assert len(metadata_files(table)) == 21


def test_commit_after_conflict_loads_table_under_lock(catalog, table, metastore):
    """Who waits for the lock waits for another's commit: what was loaded before is stale whenever it is granted."""
    others = open_catalog("local", catalog._properties, FakeRuntime())

    def commit_theirs():
        metastore.before_lock = None
        assert isinstance(others.swap(others.load(EVENTS), [], set_counter(len(metastore.calls))), Committed)
        metastore.before_lock = commit_theirs

    metastore.before_lock = commit_theirs
    heard = Recorder()
    committed = commit(table, AppendFiles(files=files("a")), listener=heard)
    metastore.before_lock = None
    assert [type(event) for event in heard.events] == [CommitRetried, SnapshotCommitted]
    assert catalog.load(EVENTS).metadata == committed.table.metadata
    assert metastore.locks[EVENTS] == []


def test_the_lock_is_not_held_while_a_change_takes_long_to_apply(catalog, table, metastore, monkeypatch):
    """Others give up waiting after fourteen seconds."""
    held = []
    apply = AppendFiles.apply

    def slowly(change, base, attempt):
        held.append(list(metastore.locks.get(EVENTS, ())))
        catalog.runtime.sleep_ms(6_000)
        return apply(change, base, attempt)

    monkeypatch.setattr(AppendFiles, "apply", slowly)
    others = open_catalog("local", catalog._properties, FakeRuntime())

    def commit_theirs():
        metastore.before_lock = None
        assert isinstance(others.swap(others.load(EVENTS), [], set_counter(1)), Committed)

    metastore.before_lock = commit_theirs
    commit(table, AppendFiles(files=files("a")))
    assert held == [[], []]


def test_on_derby_the_lock_alone_guards_a_commit(catalog, table, metastore):
    """It compares no text as long as a location: the metastore tries for twenty seconds, and changes nothing."""
    metastore.is_derby = True
    first = catalog.swap(table, [], set_counter(1))
    assert isinstance(first, Committed)
    calls = len(metastore.calls)
    second = catalog.swap(first.table, [], set_counter(2))
    assert isinstance(second, Committed)
    assert metastore.calls[calls:].count(ALTER) == 1
    assert isinstance(catalog.swap(table, [], set_counter(3)), Conflict)
    unlocked = catalog.swap(second.table, [], [SetProperties({"engine.hive.lock-enabled": "false"})]).table
    with pytest.raises(PropertyError, match="over another database than Derby"):
        catalog.swap(unlocked, [], set_counter(4))


def test_table_without_lock_is_refused_on_derby(catalog, table, metastore):
    unlocked = catalog.swap(table, [], [SetProperties({"engine.hive.lock-enabled": "false"})]).table
    before = metadata_files(unlocked)
    metastore.is_derby = True
    with pytest.raises(PropertyError, match="nothing was changed"):
        catalog.swap(unlocked, [], set_counter(4))
    assert metadata_files(unlocked) == before


@pytest.mark.parametrize(
    "error", [UsageError("no ticket"), UnavailableError("no KDC"), EOFError(), MetaException("no")]
)
def test_landed_commit_survives_failed_unlock(catalog, table, metastore, monkeypatch, error):
    """A ticket of Kerberos may end while the lock is held, and its error says nothing of the commit."""
    others = open_catalog("local", catalog._properties, FakeRuntime())
    connected = hive_client.HiveClient._connected

    def refuse(_):
        raise error

    def commit_theirs():
        metastore.before_lock = None
        assert isinstance(others.swap(others.load(EVENTS), [], set_counter(1)), Committed)
        monkeypatch.setattr(hive_client._Connection, "__exit__", closed)

    def closed(connection, *_):
        connection._transport.close()
        # The commit has landed: all that is left to be done is to unlock.
        if metastore.calls[-1] == ALTER:
            monkeypatch.setattr(hive_client.HiveClient, "_connected", refuse)

    metastore.before_lock = commit_theirs
    heard = Recorder()
    committed = commit(table, AppendFiles(files=files("a")), listener=heard)
    monkeypatch.setattr(hive_client.HiveClient, "_connected", connected)
    assert [type(event) for event in heard.events] == [CommitRetried, SnapshotCommitted]
    now = catalog.load(EVENTS)
    assert now.metadata == committed.table.metadata
    assert all(map(now.storage.head, (snapshot.manifest_list for snapshot in now.metadata.snapshots)))


def test_expired_lock_is_retaken_while_committing(catalog, table, metastore, monkeypatch):
    """As where the metastore was away for minutes, with the answer to the commit: it is sent again all the same."""
    others = open_catalog("local", catalog._properties, FakeRuntime())

    def commit_theirs():
        metastore.before_lock = None
        assert isinstance(others.swap(others.load(EVENTS), [], set_counter(1)), Committed)
        metastore.before_alter = lose_lock

    def lose_lock():
        metastore.locks.clear()
        catalog.runtime.sleep_ms(400_000)
        metastore.fail = ("get_table_req", "before")
        raise MetaException("the database went away")

    metastore.before_lock = commit_theirs
    heard = Recorder()
    began_ms = catalog.runtime.monotonic_ms()
    commit(table, AppendFiles(files=files("a")), listener=heard)
    assert [type(event) for event in heard.events] == [CommitRetried, SnapshotCommitted]
    assert catalog.runtime.monotonic_ms() - began_ms < 500_000


def test_lock_is_released_while_inputs_are_unavailable(catalog, table, metastore, monkeypatch):
    """Other writers go on while what a change reads is out of reach."""
    held = []
    apply = AppendFiles.apply

    def failing(change, base, attempt):
        held.append(list(metastore.locks.get(EVENTS, ())))
        if len(held) in (2, 3):
            catalog.runtime.sleep_ms(60_000)
            raise UnavailableError("the store does not answer")
        return apply(change, base, attempt)

    monkeypatch.setattr(AppendFiles, "apply", failing)
    others = open_catalog("local", catalog._properties, FakeRuntime())

    def commit_theirs():
        metastore.before_lock = None
        assert isinstance(others.swap(others.load(EVENTS), [], set_counter(1)), Committed)

    metastore.before_lock = commit_theirs
    commit(table, AppendFiles(files=files("a")))
    assert [bool(ids) for ids in held] == [False, True, False, False]


@pytest.mark.parametrize("how", ["cut", "after"])
def test_a_lock_whose_answer_is_lost_is_not_in_our_own_way(catalog, table, metastore, how):
    """The metastore keeps it for minutes, and a job gives up before."""
    metastore.fail = ("lock", how)
    with pytest.raises(UnavailableError):
        catalog.swap(table, [], set_counter(1))
    assert len(metastore.locks[EVENTS]) == 1
    metastore.locks[EVENTS].append(4711)
    metastore.agents[4711] = "another"
    assert isinstance(catalog.swap(table, [], set_counter(1)), Conflict)
    assert metastore.locks[EVENTS] == [4711]
    metastore.locks[EVENTS].clear()
    calls = len(metastore.calls)
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    assert "show_locks" not in metastore.calls[calls:]


def test_a_commit_goes_on_after_the_answer_to_a_lock_was_lost(catalog, table, metastore):
    metastore.fail = ("lock", "cut")
    heard = Recorder()
    commit(table, AppendFiles(files=files("a")), listener=heard)
    assert [type(event) for event in heard.events] == [CommitRetried, SnapshotCommitted]
    assert metastore.locks[EVENTS] == []


def test_lock_is_taken_even_if_metastore_cannot_show_locks(catalog, table, metastore):
    metastore.fail = ("lock", "before")
    with pytest.raises(UnavailableError):
        catalog.swap(table, [], set_counter(1))
    metastore.fail = ("show_locks", "before")
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)


def test_lock_is_released_when_closing_its_connection_fails(catalog, table, metastore, monkeypatch):
    ended = hive_client._Connection.__exit__

    def failing(connection, *of):
        ended(connection, *of)
        if metastore.calls[-1] == "lock":
            raise KeyboardInterrupt

    monkeypatch.setattr(hive_client._Connection, "__exit__", failing)
    with pytest.raises(KeyboardInterrupt), catalog.locked(table):
        pass
    assert (metastore.locks[EVENTS], catalog._client()._locks._held) == ([], {})


RELEASE = version("pyiceberg")
OPEN = (
    "from icekeep.catalog.open import open_catalog\n"
    "try:\n open_catalog('prod', {'type': 'hive', 'uri': 'thrift://127.0.0.1:1'}).list_namespaces()\n"
    "except Exception as e: print(type(e).__name__, e)\n"
)


def test_installed_pyiceberg_has_hive_metastore_classes():
    try:
        importlib.import_module("icekeep.catalog.clients.hive_thrift")
    except ImportError as error:
        pytest.fail(f"PyIceberg {RELEASE} does not bring what a Hive catalog takes from it: {error}")


def said(code, *directories):
    path = os.pathsep.join([*map(str, directories), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_a_release_without_the_classes_is_named():
    assert said(f"import sys\nsys.modules['hive_metastore'] = None\n{OPEN}") == (
        f"UnsupportedError catalog 'prod' needs the Python module 'hive_metastore', which pyiceberg {RELEASE} does not "
        "bring; icekeep[catalogs] brings it (how to install it: docs/install.md)\n"
    )


def test_a_release_that_lacks_some_of_the_classes_is_named(tmp_path):
    package = tmp_path / "hive_metastore"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "ThriftHiveMetastore.py").write_text("class Client: pass\n")
    (package / "ttypes.py").write_text("class Table: pass\n")
    assert said(OPEN, tmp_path).startswith(
        f"UnsupportedError catalog 'prod' needs classes for Hive that pyiceberg {RELEASE} lacks: "
        "cannot import name 'AlreadyExistsException' from 'hive_metastore.ttypes'"
    )
