"""What every catalog must do; each backend's tests inherit the class and say how to open it."""

import gzip
import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from icekeep.catalog.base import Catalog, Committed, Conflict, Identifier, Table
from icekeep.catalog.open import open_catalog
from icekeep.errors import (
    ConfigError,
    ConflictError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    PropertyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.maintenance.register import unregister_table
from icekeep.runtime import SYSTEM
from icekeep.spec.metadata import parse_metadata
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import (
    AddSnapshot,
    AssertRefSnapshotId,
    AssertTableUuid,
    RemoveSnapshotRef,
    SetSnapshotRef,
    Update,
    requirements_for,
)
from kit.catalogs import COUNTER, EVENTS, add_snapshot, attaching_race, race, set_counter, simple_metadata


class CatalogContract:
    """Inherit and define the fixture `properties`; everything must lie below `tmp_path`.

    Attributes:
        is_absent_until_used: whether there is nothing to look into before the first namespace, such as no file of SQLite.
        keeps_previous: whether the catalog keeps which metadata file was the table before.
        deletes_metadata: whether the client deletes metadata files, as of refused commits; else a server does, or the files
            are the pointer.
        makes_parents: whether a namespace is created with those above it.
        names: that a table may have.
    """

    is_absent_until_used = False
    keeps_previous = False
    deletes_metadata = False
    makes_parents = True
    names: tuple[str, ...] = ("metadata", "data", "Events", "é", "a b", "x=1", "%2F", "_t", "'", "t;--")

    @pytest.fixture
    def properties(self, tmp_path: Path) -> Mapping[str, str]:
        raise NotImplementedError

    @pytest.fixture
    def catalog(self, properties) -> Catalog:
        """A catalog with an empty namespace `db`."""
        catalog = open_catalog("local", properties)
        catalog.create_namespace(("db",))
        return catalog

    @pytest.fixture
    def other(self, properties, catalog) -> Catalog:
        """Another client of the same catalog."""
        return open_catalog("local", properties)

    @pytest.fixture
    def create(self, catalog) -> Callable[..., Table]:
        def create(identifier: Identifier = EVENTS, **table_properties: str) -> Table:
            return catalog.create(identifier, simple_metadata(catalog.default_location(identifier), **table_properties))

        return create

    @pytest.fixture
    def files(self, tmp_path) -> Callable[[], set[str]]:
        def files() -> set[str]:
            names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
            return {name for name in names if "journal" not in name and not name.endswith("version-hint.text")}

        return files

    def test_a_created_table_is_loaded_as_it_was_made(self, catalog, other, create):
        made = create()
        for loaded in (made, catalog.load(EVENTS), other.load(EVENTS)):
            assert loaded.name == "db.events"
            assert loaded.metadata == made.metadata
            assert loaded.metadata_location == made.metadata_location
            assert parse_metadata(loaded.storage.read(loaded.metadata_location), "") == made.metadata
        assert made.catalog is catalog

    def test_a_pointer_is_found_where_the_table_is_loaded_from(self, catalog, other, create):
        made = create()
        for client in (catalog, other):
            for name in (EVENTS, "db.events"):
                assert client.find(name).metadata_location == made.metadata_location
        after = catalog.swap(made, [], set_counter(1)).table
        found = other.find(EVENTS)
        assert found.metadata_location == after.metadata_location != made.metadata_location
        assert parse_metadata(found.storage.read(found.metadata_location), "") == after.metadata

    def test_a_catalog_that_keeps_what_was_the_table_before_tells_it(self, catalog, other, create):
        tables = [create()]
        assert other.find(EVENTS).previous_location is None
        for value in range(2):
            tables.append(catalog.swap(tables[-1], [], set_counter(value)).table)
            assert other.find(EVENTS).previous_location == (
                tables[-2].metadata_location if self.keeps_previous else None
            )

    def test_a_pointer_is_found_though_the_metadata_makes_no_sense(self, catalog, create):
        table = create()
        location = table.metadata_location
        table.storage.delete_many([location])
        table.storage.create(location, b"garbage")
        assert catalog.find(EVENTS).metadata_location == location
        with pytest.raises(InvalidTableError):
            catalog.load(EVENTS)

    @pytest.fixture
    def spoilt(self, catalog, create) -> tuple[Table, str]:
        """A sound version of a table, and where the current one is, which cannot be read."""
        sound = create(owner="one")
        location = catalog.swap(sound, [], set_counter(1)).table.metadata_location
        sound.storage.delete_many([location])
        sound.storage.create(location, b"garbage")
        return sound, location

    def test_reattach_replaces_invalid_metadata_with_earlier_file(self, catalog, other, spoilt):
        sound, location = spoilt
        outcome = catalog.reattach(msgspec.structs.replace(sound, metadata_location=location))
        assert isinstance(outcome, Committed)
        after = other.load(EVENTS)
        assert after.metadata_location == outcome.table.metadata_location not in (location, sound.metadata_location)
        assert after.metadata == outcome.table.metadata
        assert after.metadata.properties == sound.metadata.properties
        # Whoever follows a log reads what is in it.
        assert after.metadata.metadata_log == sound.metadata.metadata_log
        again = catalog.swap(after, [], set_counter(2))
        assert isinstance(again, Committed)

    def test_reattach_replaces_missing_metadata_with_earlier_file(self, catalog, other, spoilt):
        sound, location = spoilt
        sound.storage.delete_many([location])
        # In a directory the files are the pointer: without the newest the table is at the one before, and loads.
        is_pointed_at = other.find(EVENTS).metadata_location == location
        outcome = catalog.reattach(msgspec.structs.replace(sound, metadata_location=location))
        assert isinstance(outcome, Committed if is_pointed_at else Conflict)
        assert other.load(EVENTS).metadata.properties == sound.metadata.properties

    def test_reattach_is_conflict_once_another_file_is_current(self, catalog, other, spoilt, files):
        sound, location = spoilt
        attached = catalog.reattach(msgspec.structs.replace(sound, metadata_location=location)).table
        before = files()
        for client in (catalog, other):
            late = client.reattach(msgspec.structs.replace(sound, metadata_location=location))
            assert isinstance(late, Conflict)
        assert catalog.load(EVENTS).metadata_location == attached.metadata_location
        assert files() == before

    def test_nothing_is_attached_to_a_table_that_was_dropped(self, catalog, other, spoilt):
        sound, location = spoilt
        other.drop(EVENTS)
        assert isinstance(catalog.reattach(msgspec.structs.replace(sound, metadata_location=location)), Conflict)
        with pytest.raises(NotFoundError):
            catalog.load(EVENTS)

    def test_reattach_deletes_no_file(self, catalog, create, files):
        kept = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
        sound = catalog.swap(create(**kept), [], set_counter(1)).table
        location = catalog.swap(sound, [], set_counter(2)).table.metadata_location
        before = files()
        assert isinstance(catalog.reattach(msgspec.structs.replace(sound, metadata_location=location)), Committed)
        assert before < files()

    @pytest.fixture(params=[UnavailableError("away"), RuntimeError("gone")], ids=["ours", "another's"])
    def undeleted(self, request, monkeypatch) -> Callable[[Table], list[str]]:
        """Lets deletions in a table's store fail from then on, and notes the metadata files that were to go."""

        def fail(table: Table) -> list[str]:
            asked: list[str] = []

            def delete_many(_: object, locations: Iterable[str]) -> None:
                asked.extend(location for location in locations if ".metadata.json" in location)
                raise request.param

            monkeypatch.setattr(type(table.storage), "delete_many", delete_many)
            return asked

        return fail

    def test_old_metadata_cleanup_failure_does_not_fail_commit(self, catalog, create, undeleted):
        """The files of the snapshot that had landed were removed."""
        kept = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
        first = create(**kept)
        table = catalog.swap(first, [], set_counter(1)).table
        asked = undeleted(table)
        outcome = catalog.swap(table, [], set_counter(2))
        assert isinstance(outcome, Committed)
        assert asked == ([first.metadata_location] if self.deletes_metadata else [])
        assert catalog.load(EVENTS).metadata_location == outcome.table.metadata_location

    def test_refused_metadata_cleanup_failure_keeps_conflict(self, catalog, other, create, undeleted):
        """The retry was lost, and the outcome told as unknown, though it was proved."""
        base = create()
        theirs, ours = (
            [*add_snapshot(number), SetSnapshotRef("main", SnapshotRef(snapshot_id=number, type="branch"))]
            for number in (7, 8)
        )
        winner = other.swap(other.load(EVENTS), [], theirs).table
        asked = undeleted(base)
        # A server that compares no metadata refuses by what the snapshot requires.
        assert isinstance(catalog.swap(base, requirements_for(base.metadata, ours), ours), Conflict)
        assert len(asked) == (1 if self.deletes_metadata else 0)
        assert catalog.find(EVENTS).metadata_location == winner.metadata_location

    def test_the_pointer_of_a_table_that_is_not_there_is_not_found(self, catalog, create):
        create()
        with pytest.raises(NotFoundError, match=r"no table 'db.event' in catalog 'local'; did you mean 'db.events'\?"):
            catalog.find(("db", "event"))

    def test_the_warehouse_is_above_new_tables(self, catalog):
        assert catalog.default_location(EVENTS).startswith(f"{catalog.warehouse}/")

    def test_a_table_is_put_below_the_warehouse_by_its_name(self, catalog, tmp_path):
        assert catalog.default_location(("a", "b", "t")).endswith(f"{tmp_path}/warehouse/a/b/t")

    def test_table_without_namespace_is_refused_with_fix(self, catalog, create):
        """The error shows the call that creates the namespace."""
        with pytest.raises(
            NotFoundError, match=r"no namespace 'none' in catalog 'local'; create it first with .*\('none',\)"
        ):
            create(("none", "events"))

    def test_a_table_that_exists_is_not_created_again(self, catalog, other, create, files):
        made, before = create(), files()
        for client in (catalog, other):
            with pytest.raises(UsageError, match=r"table 'db.events' exists already in catalog 'local'"):
                client.create(EVENTS, simple_metadata(client.default_location(EVENTS), owner="second"))
        assert catalog.load(EVENTS).metadata == made.metadata
        assert files() == before

    def test_missing_table_is_not_found_and_near_names_suggested(self, catalog, create):
        create()
        create(("db", "orders"))
        with pytest.raises(
            NotFoundError, match=r"^there is no table 'db.event' in catalog 'local'; did you mean 'db.events'\?"
        ):
            catalog.load(("db", "event"))

    def test_hint_lists_few_names(self, catalog, create):
        create()
        with pytest.raises(
            NotFoundError, match=r"^there is no table 'db.zzz' in catalog 'local'; there is 'db.events'$"
        ):
            catalog.load(("db", "zzz"))
        for name in ("orders", "users", "visits"):
            create(("db", name))
        listed = r"namespace 'db' has 4 tables; `icekeep report --catalog local --match 'db\.\*'` lists them$"
        with pytest.raises(NotFoundError, match=listed):
            catalog.load(("db", "zzz"))

    def test_a_table_with_another_name_is_not_proposed(self, catalog, create):
        # Their namespace is the same, and so are three of six letters: what drops tables must not be told to take the other one.
        for name in ("evolved", "stream", "orders_v1", "orders_eu"):
            create(("db", name))
        for name in ("skewed", "streaming_in", "orders_v2", "orders_us", "order"):
            with pytest.raises(NotFoundError, match=r"; namespace 'db' has 4 tables; `icekeep report"):
                catalog.load(("db", name))
        with pytest.raises(NotFoundError, match=r"; did you mean 'db.evolved'\?$"):
            catalog.load(("db", "evovled"))

    def test_a_table_in_a_namespace_that_is_not_there_is_not_found(self, catalog):
        with pytest.raises(
            NotFoundError, match=r"no table 'dv.events' in catalog 'local', nor a namespace 'dv'; there is 'db'"
        ):
            catalog.load(("dv", "events"))

    def test_nothing_is_found_in_a_catalog_that_was_never_used(self, properties, tmp_path):
        catalog = open_catalog("local", properties)
        absent = ConfigError if self.is_absent_until_used else NotFoundError
        with pytest.raises(absent):
            catalog.load(EVENTS)
        if self.is_absent_until_used:
            with pytest.raises(ConfigError, match="there is no file"):
                catalog.list_namespaces()
        else:
            assert catalog.list_namespaces() == []
        with pytest.raises(absent):
            catalog.drop(EVENTS)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "identifier",
        [(), ("events",), ("db", ""), ("db", "a/b"), ("db", "a\nb"), ("..", "x"), ("db", "."), ("db", "e", ".icekeep")],
    )
    def test_a_name_that_cannot_be_one_is_refused_everywhere(self, catalog, identifier):
        for use in (catalog.load, catalog.find, catalog.drop, catalog.default_location):
            with pytest.raises(UsageError):
                use(identifier)
        with pytest.raises(UsageError):
            catalog.create(identifier, simple_metadata("file:///nowhere"))

    def test_a_table_whose_name_has_a_dot_is_as_any_other(self, catalog, other, create):
        name = ("db", "we.b")
        made = create(name)
        assert (made.name, made.full_name) == ("db.`we.b`", "local.db.`we.b`")
        for spelled in (name, "db.`we.b`", 'db."we.b"'):
            assert other.load(spelled).metadata == made.metadata
        with pytest.raises(NotFoundError):
            other.load("db.we.b")
        assert other.list_tables(("db",)) == [name]
        after = catalog.swap(made, [], set_counter(1)).table
        assert other.find(name).metadata_location == after.metadata_location
        catalog.drop(name)
        assert other.list_tables(("db",)) == []

    def test_a_text_is_no_name_in_parts(self, catalog):
        for use in (catalog.create_namespace, catalog.drop_namespace, catalog.list_tables, catalog.default_location):
            with pytest.raises(UsageError, match=r"the name 'd\.b' is given as text; give its parts: \('d', 'b'\)"):
                use("d.b")
        with pytest.raises(UsageError, match=r"give its parts: \('db',\)"):
            catalog.create_namespace("db")
        with pytest.raises(UsageError, match="is given as text"):
            catalog.create("db.events", simple_metadata("file:///nowhere"))

    def test_a_swap_applies_its_updates_and_everybody_sees_it(self, catalog, other, create):
        base = create(owner="me")
        outcome = catalog.swap(base, [AssertTableUuid(base.metadata.table_uuid)], set_counter(1))
        assert isinstance(outcome, Committed)
        assert outcome.table.metadata.properties == {**base.metadata.properties, "owner": "me", COUNTER: "1"}
        assert outcome.table.metadata_location != base.metadata_location
        for client in (catalog, other):
            loaded = client.load(EVENTS)
            assert (loaded.metadata, loaded.metadata_location) == (
                outcome.table.metadata,
                outcome.table.metadata_location,
            )

    def test_the_file_that_a_swap_replaced_is_in_the_metadata_log(self, catalog, create):
        tables = [create()]
        for value in range(3):
            tables.append(catalog.swap(tables[-1], [], set_counter(value)).table)
        log = catalog.load(EVENTS).metadata.metadata_log
        assert [entry.metadata_file for entry in log] == [table.metadata_location for table in tables[:-1]]
        assert [entry.timestamp_ms for entry in log] == [table.metadata.last_updated_ms for table in tables[:-1]]

    def test_a_table_that_was_loaded_before_does_not_change(self, catalog, create):
        base = create()
        catalog.swap(base, [], set_counter(1))
        assert COUNTER not in base.metadata.properties

    def test_swap_of_replaced_base_is_conflict_and_leaves_no_file(self, catalog, other, create, files):
        base = create()
        winner = other.swap(other.load(EVENTS), [], set_counter("winner"))
        before = files()
        outcome = catalog.swap(base, [], set_counter("loser"))
        assert isinstance(outcome, Conflict)
        assert winner.table.metadata_location in outcome.reason
        assert files() == before
        assert catalog.load(EVENTS).metadata == winner.table.metadata

    def test_failed_requirement_is_conflict_and_writes_nothing(self, catalog, create, files):
        base, before = create(), files()
        outcome = catalog.swap(base, [AssertRefSnapshotId("main", 7)], set_counter(1))
        assert outcome == Conflict("ref 'main' is at snapshot None, not 7", is_final=True)
        assert files() == before

    def test_invalid_updates_are_errors_and_write_nothing(self, catalog, create, files):
        base, before = create(), files()
        with pytest.raises(NotFoundError, match="no snapshot 7"):
            catalog.swap(base, [], [SetSnapshotRef("main", SnapshotRef(snapshot_id=7, type="branch"))])
        with pytest.raises(NotFoundError, match="no branch or tag 'audit'"):
            catalog.swap(base, [], [RemoveSnapshotRef("audit")])
        assert files() == before
        assert catalog.load(EVENTS).metadata == base.metadata

    def test_a_swap_of_a_table_that_was_dropped_is_a_conflict(self, catalog, other, create):
        base = create()
        other.drop(EVENTS)
        outcome = catalog.swap(base, [], set_counter(1))
        assert isinstance(outcome, Conflict)
        assert "the table was dropped" in outcome.reason
        with pytest.raises(NotFoundError):
            catalog.load(EVENTS)

    def test_swap_of_dropped_and_recreated_table_is_conflict(self, catalog, other, create):
        base = create(owner="first")
        other.drop(EVENTS)
        create(owner="second")
        assert isinstance(catalog.swap(base, [], set_counter(1)), Conflict)
        assert catalog.load(EVENTS).metadata.properties == {"owner": "second"}

    def test_keys_that_nobody_knows_survive_a_swap(self, catalog, create):
        made = create()
        raw = json.loads(made.storage.read(made.metadata_location))
        made.storage.delete_many([made.metadata_location])
        made.storage.create(made.metadata_location, json.dumps({**raw, "x-new-key": {"deep": [1]}}).encode())
        table = catalog.swap(catalog.load(EVENTS), [], set_counter(1)).table
        assert json.loads(table.storage.read(table.metadata_location))["x-new-key"] == {"deep": [1]}

    def test_a_table_that_wants_gzip_gets_it(self, catalog, other, create):
        base = create(**{"write.metadata.compression_codec": "gzip"})
        table = catalog.swap(base, [], set_counter(1)).table
        for version in (base, table):
            assert version.metadata_location.endswith(".gz.metadata.json")
            assert json.loads(gzip.decompress(version.storage.read(version.metadata_location)))
        assert other.load(EVENTS).metadata == table.metadata

    def test_a_compression_that_the_spec_does_not_know_is_refused(self, create):
        with pytest.raises(PropertyError, match=r"'write.metadata.compression-codec' is 'zstd'; set 'none' or 'gzip'$"):
            create(**{"write.metadata.compression_codec": "zstd"})

    def test_unreadable_metadata_error_names_file(self, catalog, create):
        location = create().metadata_location
        Path(urlsplit(location).path).write_bytes(b"{}")
        with pytest.raises(InvalidTableError, match=location):
            catalog.load(EVENTS)

    def test_a_dropped_table_is_forgotten_and_its_data_stays(self, catalog, other, create):
        table = create()
        table.storage.create(f"{table.metadata.location}/data/file.parquet", b"rows")
        catalog.drop(EVENTS)
        for client in (catalog, other):
            with pytest.raises(NotFoundError):
                client.load(EVENTS)
            assert client.list_tables(("db",)) == []
            assert ("db",) in client.list_namespaces()
        assert table.storage.read(f"{table.metadata.location}/data/file.parquet") == b"rows"

    def test_a_name_is_free_after_a_drop(self, catalog, create):
        create(owner="first")
        catalog.drop(EVENTS)
        create(owner="second")
        assert catalog.load(EVENTS).metadata.properties["owner"] == "second"

    def test_a_drop_says_where_the_metadata_is(self, catalog, other, create):
        """By that the table can be taken back."""
        table = catalog.swap(create(), [], set_counter(1)).table
        location = other.drop(EVENTS)
        assert parse_metadata(table.storage.read(location), location) == table.metadata

    def test_a_dropped_table_is_taken_back_as_it_was(self, catalog, other, create):
        """By what the drop says; it is committed to as before, and its history is there."""
        before = create()
        table = catalog.swap(catalog.swap(before, [], set_counter(1)).table, [], set_counter(2)).table
        back = catalog.register_table(EVENTS, catalog.drop(EVENTS))
        assert back.identifier == EVENTS
        assert back.catalog is catalog
        for loaded in (back, catalog.load(EVENTS), other.load(EVENTS)):
            assert loaded.metadata == table.metadata
            assert loaded.metadata_location == back.metadata_location
        assert catalog.list_tables(("db",)) == [EVENTS]
        assert all(back.storage.head(entry.metadata_file) for entry in back.metadata.metadata_log)
        after = other.swap(other.load(EVENTS), [], set_counter(3)).table
        assert catalog.load(EVENTS).metadata == after.metadata

    def test_a_table_can_be_dropped_and_taken_back_again_and_again(self, catalog, create):
        table = create()
        for _ in range(3):
            back = catalog.register_table(EVENTS, catalog.drop(EVENTS))
            assert back.metadata == table.metadata

    def test_unregistering_needs_the_metadata_that_was_shown(self, catalog, other, create):
        shown = create()
        table = other.swap(other.load(EVENTS), [], set_counter(1)).table
        for stale in (shown, table):
            with pytest.raises(ConflictError):
                unregister_table(stale, shown.metadata_location)
        with pytest.raises(ConflictError):
            unregister_table(shown)
        assert catalog.load(EVENTS).metadata == table.metadata
        location = unregister_table(catalog.load(EVENTS), table.metadata_location)
        assert other.list_tables(("db",)) == []
        assert other.register_table(EVENTS, location).metadata == table.metadata

    def test_a_name_that_is_taken_is_not_registered_over(self, catalog, other, create):
        create(owner="first")
        location = catalog.drop(EVENTS)
        second = create(owner="second")
        for client in (catalog, other):
            with pytest.raises(UsageError, match=r"table 'db.events' exists already in catalog 'local'"):
                client.register_table(EVENTS, location)
        assert catalog.load(EVENTS).metadata == second.metadata
        assert second.storage.head(location) is not None

    def test_register_refuses_invalid_metadata_and_no_namespace(self, catalog, create):
        table = create()
        location = catalog.drop(EVENTS)
        broken = f"{table.metadata.location}/metadata/00009-broken.metadata.json"
        table.storage.create(broken, b"{")
        with pytest.raises(InvalidTableError, match=broken):
            catalog.register_table(EVENTS, broken)
        with pytest.raises(NotFoundError, match=r"there is no metadata file .*no-such-file"):
            catalog.register_table(EVENTS, location.replace(location.rsplit("/", 1)[1], "no-such-file.metadata.json"))
        with pytest.raises(NotFoundError, match="no namespace 'none'"):
            catalog.register_table(("none", "events"), location)
        with pytest.raises(UsageError, match="has no namespace"):
            catalog.register_table(("events",), location)
        assert catalog.list_tables(("db",)) == []
        assert table.storage.head(location) is not None

    @pytest.mark.unsound(201)
    def test_a_table_whose_snapshot_is_gone_is_not_registered(self, catalog, create):
        """As after a purge, of which a metadata file is left."""
        base = create()
        manifest_list = f"{base.metadata.location}/metadata/snap-7.avro"
        base.storage.create(manifest_list, b"list")
        main = SetSnapshotRef("main", SnapshotRef(snapshot_id=7, type="branch"))
        snapshot = msgspec.structs.replace(add_snapshot(7)[0].snapshot, manifest_list=manifest_list)
        table = catalog.swap(base, [], [AddSnapshot(snapshot), main]).table
        location = catalog.drop(EVENTS)
        base.storage.delete_many([manifest_list])
        with pytest.raises(MissingFileError, match=r"snap-7.avro' of the current snapshot .* is missing; was the"):
            catalog.register_table(EVENTS, location)
        base.storage.create(manifest_list, b"list")
        assert catalog.register_table(EVENTS, location).metadata == table.metadata

    def test_recreated_table_is_not_dropped(self, catalog, other, create):
        """What was planned was about another one."""
        planned = create()
        other.drop(EVENTS)
        fresh = simple_metadata(catalog.default_location(EVENTS), owner="second")
        again = other.create(EVENTS, msgspec.structs.replace(fresh, table_uuid=str(SYSTEM.new_uuid())))
        for meant in (
            {"table_uuid": planned.metadata.table_uuid},
            {"table_uuid": planned.metadata.table_uuid, "metadata_location": planned.metadata_location},
        ):
            with pytest.raises(ConflictError, match=r"table 'db.events' in catalog 'local' is not dropped: it"):
                catalog.drop(EVENTS, **meant)
        assert catalog.load(EVENTS).metadata == again.metadata
        catalog.drop(EVENTS, table_uuid=again.metadata.table_uuid.upper(), metadata_location=again.metadata_location)
        assert catalog.list_tables(("db",)) == []

    def test_drop_by_uuid_while_others_commit(self, catalog, other, create):
        planned = create()
        after = other.swap(other.load(EVENTS), [], set_counter(1)).table
        with pytest.raises(ConflictError, match="another writer committed, or created it again"):
            catalog.drop(EVENTS, metadata_location=planned.metadata_location)
        assert catalog.load(EVENTS).metadata == after.metadata
        catalog.drop(EVENTS, table_uuid=planned.metadata.table_uuid)
        assert catalog.list_tables(("db",)) == []

    def test_table_with_invalid_metadata_is_dropped_by_location(self, catalog, other, create):
        """Such metadata says no uuid by which the table could be meant."""
        location = create().metadata_location
        storage = catalog.find(EVENTS).storage
        storage.delete_many([location])
        storage.create(location, b"garbage")
        with pytest.raises(ConflictError, match="is not dropped: its metadata is"):
            catalog.drop(EVENTS, metadata_location=f"{location}.old")
        catalog.drop(EVENTS, metadata_location=location)
        for client in (catalog, other):
            assert client.list_tables(("db",)) == []

    def test_what_is_not_there_cannot_be_dropped(self, catalog):
        with pytest.raises(NotFoundError, match=r"no table 'db.events'"):
            catalog.drop(EVENTS)

    def test_tables_are_listed_by_namespace_and_sorted(self, catalog, create):
        catalog.create_namespace(("db", "raw"))
        for identifier in (("db", "b"), ("db", "a"), ("db", "raw", "c")):
            create(identifier)
        assert catalog.list_tables(("db",)) == [("db", "a"), ("db", "b")]
        assert catalog.list_tables(("db", "raw")) == [("db", "raw", "c")]
        with pytest.raises(NotFoundError, match="no namespace 'none'"):
            catalog.list_tables(("none",))

    def test_a_table_may_have_any_ordinary_name(self, catalog, create):
        for name in self.names:
            create(("db", name))
        assert len(catalog.list_tables(("db",))) == len(self.names)
        assert catalog.list_namespaces() == [("db",)]
        assert all(catalog.load(identifier).identifier == identifier for identifier in catalog.list_tables(("db",)))

    def test_namespaces_are_listed_at_all_levels(self, catalog, create):
        for parent in () if self.makes_parents else (("lake",), ("lake", "raw")):
            catalog.create_namespace(parent)
        catalog.create_namespace(("lake", "raw", "daily"))
        catalog.create_namespace(("lake2",))
        create()
        assert catalog.list_namespaces() == [("db",), ("lake",), ("lake", "raw"), ("lake", "raw", "daily"), ("lake2",)]

    def test_a_namespace_that_exists_is_an_error_unless_that_is_fine(self, catalog, other):
        for client in (catalog, other):
            with pytest.raises(UsageError, match="namespace 'db' exists already in catalog 'local'"):
                client.create_namespace(("db",))
            client.create_namespace(("db",), exists_ok=True)
        assert catalog.list_namespaces() == [("db",)]

    def test_only_an_empty_namespace_is_dropped(self, catalog, other, create):
        if not self.makes_parents:
            catalog.create_namespace(("lake",))
        catalog.create_namespace(("lake", "raw"))
        create()
        for namespace in (("db",), ("lake",)):
            with pytest.raises(UsageError, match="is not empty"):
                catalog.drop_namespace(namespace)
        assert other.list_namespaces() == [("db",), ("lake",), ("lake", "raw")]
        catalog.drop_namespace(("lake", "raw"))
        assert ("lake", "raw") not in other.list_namespaces()
        with pytest.raises(NotFoundError, match=r"no namespace 'lake.raw'"):
            catalog.drop_namespace(("lake", "raw"))

    def test_catalogs_and_tables_travel_to_a_task(self, catalog, create):
        table = create()
        catalog_copy, table_copy = pickle.loads(pickle.dumps((catalog, table)))
        assert catalog_copy.load(EVENTS).metadata == table_copy.metadata == table.metadata
        assert table_copy.storage.read(table.metadata_location) == table.storage.read(table.metadata_location)


class RestCatalogContract(CatalogContract):
    """Of a catalog whose server checks what commits require, applies their updates and writes metadata."""

    # The server decides how metadata files are named and compressed, and reads them itself.
    test_a_table_that_wants_gzip_gets_it = None
    test_a_compression_that_the_spec_does_not_know_is_refused = None
    test_unreadable_metadata_error_names_file = None
    test_a_pointer_is_found_though_the_metadata_makes_no_sense = None
    test_table_with_invalid_metadata_is_dropped_by_location = None
    test_reattach_replaces_invalid_metadata_with_earlier_file = None
    test_reattach_replaces_missing_metadata_with_earlier_file = None
    test_reattach_is_conflict_once_another_file_is_current = None
    test_nothing_is_attached_to_a_table_that_was_dropped = None
    test_reattach_deletes_no_file = None
    # And it alone knows where new tables go.
    test_the_warehouse_is_above_new_tables = None
    # Without a requirement that says otherwise, a server applies a commit to whatever is current.
    test_swap_of_dropped_and_recreated_table_is_conflict = None

    def test_no_metadata_is_attached_since_the_server_writes_it(self, catalog, create):
        with pytest.raises(UnsupportedError, match=r"writes metadata itself.*'db.events': fix it at the server"):
            catalog.reattach(create())

    def test_swap_of_replaced_base_is_conflict_and_leaves_no_file(self, catalog, other, create, files):
        base = catalog.swap(create(), [], _append(1)).table
        other.swap(other.load(EVENTS), [], _append(2))
        before = files()
        updates = _append(3, 2)
        outcome = catalog.swap(base, requirements_for(base.metadata, updates), updates)
        assert isinstance(outcome, Conflict)
        assert "Requirement failed: " in outcome.reason
        assert files() == before


def _append(snapshot_id: int, sequence_number: int | None = None) -> list[Update]:
    """The updates of a commit that adds a snapshot to `main`, by default the first, second, ... one of that number."""
    main = SetSnapshotRef("main", SnapshotRef(snapshot_id=snapshot_id, type="branch"))
    return [*add_snapshot(snapshot_id, sequence_number or snapshot_id), main]


class CatalogRaceContract(CatalogContract):
    """The contract, and processes that race; apart, since it takes a second or more."""

    @pytest.mark.process
    def test_processes_that_race_lose_no_commit_and_double_none(self, properties, catalog, create, files):
        create(**{"write.metadata.previous_versions_max": "200"})
        conflicts = race(properties, writers=4, swaps=25)
        table = catalog.load(EVENTS)
        assert table.metadata.properties[COUNTER] == "100"
        history = [parse_metadata(table.storage.read(e.metadata_file), "") for e in table.metadata.metadata_log]
        assert [m.properties.get(COUNTER, "0") for m in history] == [str(n) for n in range(100)]
        assert len([name for name in files() if name.endswith("metadata.json")]) == 101
        # In each round all four loaded one base before any swapped, so a test without conflicts has tested nothing.
        assert conflicts >= 75

    @pytest.mark.process
    def test_of_processes_that_attach_metadata_at_once_one_does(self, catalog, properties, spoilt, files):
        sound, location = spoilt
        before = files()
        kinds = attaching_race(properties, sound.metadata_location, location, clients=4)
        assert kinds == {"Committed": 1, "Conflict": 3}
        assert len(files() - before) == 1
        assert catalog.load(EVENTS).metadata.properties == sound.metadata.properties


class HiveCatalogContract(CatalogContract):
    """A metastore, which has one level of namespaces and narrow rules for names."""

    keeps_previous = True
    deletes_metadata = True
    names = ("metadata", "data", "Events", "_t", "1")

    test_a_table_whose_name_has_a_dot_is_as_any_other = None
    test_namespaces_are_listed_at_all_levels = None
    test_only_an_empty_namespace_is_dropped = None
    test_tables_are_listed_by_namespace_and_sorted = None
