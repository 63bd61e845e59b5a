import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyiceberg.table import StaticTable

from contracts.catalog_contract import CatalogRaceContract
from icekeep.catalog.base import Committed, Conflict, Description, Unknown
from icekeep.catalog.filesystem import VERSION_AGE_KEPT_MS, VERSIONS_KEPT, FilesystemCatalog
from icekeep.errors import (
    ConflictError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.runtime import SystemRuntime
from icekeep.spec.metadata import format_metadata
from icekeep.spec.snapshots import MetadataLogEntry
from icekeep.spec.updates import SetProperties, log_previous
from icekeep.storage.base import Capabilities
from icekeep.storage.local.storage import LocalStorage
from kit.catalogs import COUNTER, EVENTS, add_snapshot, set_counter, simple_metadata
from kit.storage import HookedStorage


class TestFilesystemCatalog(CatalogRaceContract):
    @pytest.fixture
    def properties(self, tmp_path):
        return {"type": "hadoop", "warehouse": f"file://{tmp_path}/warehouse"}

    def test_what_a_listing_would_hide_is_no_name(self, catalog):
        """A table that no listing shows would be nobody's neighbour."""
        for identifier in (("db", ".t"), (".db", "t")):
            for use in (catalog.load, catalog.default_location):
                with pytest.raises(UnsupportedError, match="names begin with a dot are not listed"):
                    use(identifier)
        with pytest.raises(UnsupportedError, match="names begin with a dot are not listed"):
            catalog.create_namespace((".db",))
        catalog.create_namespace(("a.b",))
        assert catalog.list_namespaces() == [("a.b",), ("db",)]


class SettableRuntime(SystemRuntime):
    """A clock that a test moves."""

    ahead_ms = 0

    def now_ms(self):
        return super().now_ms() + self.ahead_ms


@pytest.fixture
def runtime():
    return SettableRuntime()


@pytest.fixture
def storage():
    return HookedStorage(LocalStorage())


@pytest.fixture
def catalog(tmp_path, storage, runtime):
    catalog = FilesystemCatalog("local", {"warehouse": f"file://{tmp_path}/warehouse"}, storage, runtime)
    catalog.create_namespace(("db",))
    return catalog


@pytest.fixture
def table(catalog):
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


@pytest.fixture
def metadata_path(tmp_path):
    return tmp_path / "warehouse" / "db" / "events" / "metadata"


def after_create_of(storage: HookedStorage, name: str, action: Callable[[], object]) -> None:
    """Let another writer act at the moment between our commit and our second look at it."""

    def hook(operation: str, location: str) -> None:
        if operation == "create" and location.endswith(f"/{name}"):
            action()
            storage.fired["interfered"] += 1

    storage.after = hook


def foreign_commit(path: Path, base, *, descends: bool = True) -> None:
    """What a writer that renames over existing files puts in `path`."""
    metadata = base.metadata
    if descends:
        metadata = log_previous(metadata, base.metadata_location.replace("file://", "file:"), metadata.last_updated_ms)
    path.write_bytes(format_metadata(metadata))


def test_versions_are_numbered_and_the_hint_follows(catalog, table, metadata_path):
    assert sorted(os.listdir(metadata_path)) == ["v1.metadata.json", "version-hint.text"]
    assert (metadata_path / "version-hint.text").read_text() == "1"
    for value in range(11):
        table = catalog.swap(table, [], set_counter(value)).table
    assert table.metadata_location == f"file://{metadata_path}/v12.metadata.json"
    assert (metadata_path / "version-hint.text").read_text() == "12"


def test_pyiceberg_reads_what_the_hint_leads_to(catalog, table):
    catalog.swap(table, [], set_counter(1))
    assert StaticTable.from_metadata(table.metadata.location).metadata.properties == {COUNTER: "1"}


@pytest.mark.parametrize("hint", [None, b"", b"1", b"4", b"99", b"-1", b"garbage", b"1" * 1000])
def test_a_hint_that_is_wrong_loses_no_commit_and_is_set_right(catalog, table, metadata_path, hint):
    for value in range(2):
        table = catalog.swap(table, [], set_counter(value)).table
    path = metadata_path / "version-hint.text"
    path.unlink()
    if hint is not None:
        path.write_bytes(hint)
    loaded = catalog.load(EVENTS)
    assert loaded.metadata == table.metadata
    assert isinstance(catalog.swap(loaded, [], set_counter(2)), Committed)
    assert (metadata_path / "v4.metadata.json").exists()
    assert path.read_text() == "4"


def test_a_hint_that_cannot_be_written_costs_nothing(catalog, table, storage, metadata_path):
    def fail(operation, location):
        if location.endswith("version-hint.text"):
            storage.fired["failed"] += 1
            raise UnavailableError("disk full")

    storage.before = lambda operation, location: operation in ("create", "delete_many") and fail(operation, location)
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    assert storage.fired["failed"] == 1
    assert catalog.load(EVENTS).metadata.properties == {COUNTER: "1"}


def test_a_version_that_exists_under_another_name_is_a_conflict(catalog, table, metadata_path):
    (metadata_path / "v2.gz.metadata.json").write_bytes(gzip.compress(format_metadata(table.metadata)))
    outcome = catalog.swap(table, [], set_counter(1))
    assert outcome == Conflict(f"another writer committed 'file://{metadata_path}/v2.gz.metadata.json'", is_final=True)
    assert not (metadata_path / "v2.metadata.json").exists()


def test_two_files_of_the_newest_version_are_refused(catalog, table, metadata_path):
    (metadata_path / "v1.gz.metadata.json").write_bytes(gzip.compress(format_metadata(table.metadata)))
    with pytest.raises(InvalidTableError, match="version 1 of the table has two metadata files"):
        catalog.load(EVENTS)
    with pytest.raises(InvalidTableError, match="version 1 of the table has two metadata files"):
        catalog.swap(table, [], set_counter(1))


def test_a_table_with_the_old_name_for_gzip_is_continued(catalog, metadata_path):
    metadata = simple_metadata(catalog.default_location(EVENTS), **{"write.metadata.compression_codec": "gzip"})
    metadata_path.mkdir(parents=True)
    (metadata_path / "v7.metadata.json.gz").write_bytes(gzip.compress(format_metadata(metadata)))
    outcome = catalog.swap(catalog.load(EVENTS), [], set_counter(1))
    assert outcome.table.metadata_location == f"file://{metadata_path}/v8.gz.metadata.json"
    assert catalog.load(EVENTS).metadata == outcome.table.metadata


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"write.metadata.compression-codec": "gzip"}, "the metadata compression of table 'db.events' cannot change"),
        ({"write.metadata.path": "file:///elsewhere"}, "table property write.metadata.path cannot be used"),
    ],
)
def test_what_would_let_two_writers_miss_each_other_is_refused(catalog, table, metadata_path, properties, problem):
    with pytest.raises(UnsupportedError, match=problem):
        catalog.swap(table, [], [SetProperties(properties)])
    assert not (metadata_path / "v2.metadata.json").exists()


def test_a_table_must_be_where_its_name_says(catalog, tmp_path):
    with pytest.raises(UsageError, match="finds tables by their directory"):
        catalog.create(EVENTS, simple_metadata(f"file://{tmp_path}/elsewhere"))
    spelled_otherwise = f"file:{tmp_path}/warehouse//db/events/"
    assert catalog.create(EVENTS, simple_metadata(spelled_otherwise)).metadata.location.startswith("file:/")


def test_a_store_that_is_not_proved_is_not_committed_to(catalog, table, storage, tmp_path):
    class UnprovedStorage(HookedStorage):
        def capabilities(self, location):
            return Capabilities(exclusive_create=False, move=False)

    unproved = FilesystemCatalog("local", {"warehouse": f"file://{tmp_path}/warehouse"}, UnprovedStorage(storage))
    assert unproved.load(EVENTS).metadata == table.metadata
    with pytest.raises(SafetyError, match="refuses to create a name twice"):
        unproved.swap(table, [], set_counter(1))
    with pytest.raises(SafetyError, match="refuses to create a name twice"):
        unproved.create(("db", "t"), simple_metadata(unproved.default_location(("db", "t"))))


def test_a_commit_that_another_writer_built_upon_has_committed(catalog, table, storage, metadata_path):
    def build_upon() -> None:
        foreign_commit(metadata_path / "v3.metadata.json", catalog.load(EVENTS))

    after_create_of(storage, "v2.metadata.json", build_upon)
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert outcome.table.metadata.properties == {COUNTER: "1"}
    assert storage.fired["interfered"] == 1


def test_commit_found_in_short_logs(catalog, table, storage):
    short_log = {"write.metadata.previous-versions-max": "1"}

    def build_upon() -> None:
        storage.after = storage.before
        newer = catalog.load(EVENTS)
        for value in range(3):
            newer = catalog.swap(newer, [], set_counter(value)).table
        assert len(newer.metadata.metadata_log) == 1

    after_create_of(storage, "v2.metadata.json", build_upon)
    assert isinstance(catalog.swap(table, [], [SetProperties(short_log)]), Committed)
    assert storage.fired["interfered"] == 1


@pytest.mark.parametrize(
    ("interfere", "cause"),
    [
        (lambda path, base: foreign_commit(path / "v2.metadata.json", base), "another writer replaced"),
        (lambda path, base: foreign_commit(path / "v3.metadata.json", base), "does not descend from it"),
        (
            lambda path, base: foreign_commit(path / "v3.metadata.json", base, descends=False),
            "does not descend from it",
        ),
        (lambda path, base: (path / "v2.gz.metadata.json").write_bytes(b""), "committed version 2 under another name"),
        (lambda path, base: (path / "v2.metadata.json").unlink(), "does not descend from it"),
        (lambda path, base: shutil.rmtree(path), "another writer removed the table"),
        (lambda path, base: (path / "v3.metadata.json").write_bytes(b"{"), "the commit cannot be looked at"),
    ],
    ids=["overwritten", "skipped", "unrelated", "two names", "deleted", "dropped", "unreadable"],
)
def test_a_commit_that_another_writer_undid_is_unknown(catalog, table, storage, metadata_path, interfere, cause):
    after_create_of(storage, "v2.metadata.json", lambda: interfere(metadata_path, table))
    outcome = catalog.swap(table, [], set_counter(1))
    assert storage.fired["interfered"] == 1
    assert isinstance(outcome, Unknown)
    assert cause in outcome.cause
    assert outcome.metadata_location == f"file://{metadata_path}/v2.metadata.json"


def test_slow_commit_of_deleted_version_unacknowledged(catalog, table, storage, metadata_path):
    """The head is far ahead when the file of version 2 appears, and version 2 is free again."""

    def overtake(operation, location):
        if operation == "create" and location.endswith("/v2.metadata.json"):
            storage.before = storage.after
            fast, keeping_few = table, {"write.metadata.previous-versions-max": "2"}
            for _ in range(2, 12):
                fast = catalog.swap(fast, [], [SetProperties(keeping_few)]).table
            for version in range(1, 10):
                (metadata_path / f"v{version}.metadata.json").unlink()
            storage.fired["interfered"] += 1

    storage.before = overtake
    outcome = catalog.swap(table, [], set_counter(1))
    assert storage.fired["interfered"] == 1
    assert isinstance(outcome, Unknown)
    assert "does not descend" in outcome.cause
    assert catalog.load(EVENTS).metadata_location.endswith("/v11.metadata.json")


@pytest.mark.parametrize("is_later", [True, False])
def test_remade_version_is_not_the_logged_one(catalog, table, storage, metadata_path, runtime, is_later):
    """The next version is still there and names the one before it; its writer had the same clock, or another."""

    def overtake(operation, location):
        if operation == "create" and location.endswith("/v2.metadata.json"):
            storage.before = storage.after
            runtime.ahead_ms = 60_000 if is_later else 0
            fast = catalog.swap(table, [], set_counter(2)).table
            catalog.swap(fast, [], set_counter(3))
            (metadata_path / "v2.metadata.json").unlink()
            runtime.ahead_ms = 0
            hour_ago = (metadata_path / "v3.metadata.json").stat().st_mtime - (0 if is_later else 3600)
            os.utime(metadata_path / "v3.metadata.json", (hour_ago, hour_ago))
            storage.fired["interfered"] += 1

    storage.before = overtake
    outcome = catalog.swap(table, [], set_counter(1))
    assert storage.fired["interfered"] == 1
    assert isinstance(outcome, Unknown)
    assert ("does not descend" if is_later else "was there before, and deleted") in outcome.cause


def test_base_far_behind_conflicts(catalog, table, metadata_path):
    fast = table
    for value in range(10):
        fast = catalog.swap(fast, [], set_counter(value)).table
    for version in range(1, 10):
        (metadata_path / f"v{version}.metadata.json").unlink()
    assert catalog.swap(table, [], set_counter(1)) == Conflict(
        f"another writer committed {fast.metadata_location!r}", is_final=True
    )
    assert not (metadata_path / "v2.metadata.json").exists()


def test_a_create_whose_answer_is_lost_is_unknown(catalog, table, storage, metadata_path):
    def lose(operation, location):
        if operation == "create" and location.endswith("/v2.metadata.json"):
            raise OutcomeUnknownError("the connection broke")

    storage.after = lose
    location = f"file://{metadata_path}/v2.metadata.json"
    assert catalog.swap(table, [], set_counter(1)) == Unknown("the connection broke", location)
    assert (metadata_path / "v2.metadata.json").exists()


def test_a_create_that_did_not_happen_is_an_error_that_proves_it(catalog, table, storage, metadata_path):
    def fail(operation, location):
        if operation == "create":
            raise UnavailableError("disk full")

    storage.before = fail
    with pytest.raises(UnavailableError, match="disk full"):
        catalog.swap(table, [], set_counter(1))
    assert not (metadata_path / "v2.metadata.json").exists()


def repeat_create(storage: HookedStorage) -> None:
    """Do what a client does that sends a request twice because the first answer was lost."""

    def answer_of_the_second(operation, location):
        if operation == "create" and location.endswith("/v2.metadata.json"):
            raise FileExistsError(location)

    storage.after = answer_of_the_second


def test_a_snapshot_that_is_in_the_way_of_itself_has_committed(catalog, table, storage):
    repeat_create(storage)
    outcome = catalog.swap(table, [], add_snapshot(77))
    assert isinstance(outcome, Committed)
    assert 77 in catalog.load(EVENTS).metadata.snapshots_by_id


def test_equal_bytes_two_writers_may_choose_prove_nothing(catalog, table, storage):
    """Equal bytes prove a commit only where no other writer could have chosen the same ones."""
    repeat_create(storage)
    assert isinstance(catalog.swap(table, [], set_counter(1)), Conflict)


def test_unreadable_file_in_the_way_leaves_outcome_unknown(catalog, table, storage, metadata_path):
    def vanish(operation, location):
        if operation == "create" and location.endswith("/v2.metadata.json"):
            (metadata_path / "v2.metadata.json").unlink()
            raise FileExistsError(location)

    storage.after = vanish
    assert isinstance(catalog.swap(table, [], add_snapshot(77)), Unknown)


def test_a_created_table_that_another_writer_replaced_is_unknown(catalog, storage, metadata_path):
    after_create_of(storage, "v1.metadata.json", lambda: (metadata_path / "v1.metadata.json").write_bytes(b"{}"))
    with pytest.raises(OutcomeUnknownError, match=r"cannot tell whether table 'db.events' was created"):
        catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


def test_concurrently_created_table_exists_already(catalog, storage, metadata_path):
    def be_faster(operation, location):
        if operation == "create" and location.endswith("/v1.metadata.json"):
            metadata_path.mkdir(parents=True)
            (metadata_path / "v1.metadata.json").write_bytes(b"theirs")

    storage.before = be_faster
    with pytest.raises(UsageError, match=r"table 'db.events' exists already"):
        catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    assert (metadata_path / "v1.metadata.json").read_bytes() == b"theirs"


def test_head_replaced_while_loading_is_loaded_again(catalog, table, storage, metadata_path):
    newer = catalog.swap(table, [], set_counter(1)).table
    content = (metadata_path / "v2.metadata.json").read_bytes()
    (metadata_path / "v2.metadata.json").unlink()

    def move_on(operation, location):
        if operation == "read" and location.endswith("/v1.metadata.json"):
            (metadata_path / "v2.metadata.json").write_bytes(content)
            (metadata_path / "v1.metadata.json").unlink()

    storage.before = move_on
    assert catalog.load(EVENTS).metadata == newer.metadata


def test_a_head_that_vanishes_is_a_missing_file(catalog, table, storage, metadata_path):
    def vanish(operation, location):
        if operation == "read" and location.endswith("/v1.metadata.json"):
            (metadata_path / "v1.metadata.json").unlink()

    storage.before = vanish
    with pytest.raises(MissingFileError):
        catalog.load(EVENTS)


def put_versions(table, metadata_path, runtime, *, log_length):
    """Make version 150 of a table with all the versions before it, whose log names the last `log_length` of them."""
    for version in range(2, 150):
        (metadata_path / f"v{version}.metadata.json").write_text(f'{{"table-uuid": "{table.metadata.table_uuid}"}}')
    names = [f"file://{metadata_path}/v{version}.metadata.json" for version in range(150 - log_length, 150)]
    log = tuple(MetadataLogEntry(timestamp_ms=runtime.now_ms(), metadata_file=name) for name in names)
    (metadata_path / "v150.metadata.json").write_bytes(format_metadata(replace(table.metadata, metadata_log=log)))


@pytest.mark.parametrize(
    ("age_ms", "log_length", "deleted"),
    [
        # The commit makes version 151 and keeps one file in the log: all the others may go that are old and far behind.
        (VERSION_AGE_KEPT_MS + 60_000, 149, range(1, 151 - VERSIONS_KEPT + 1)),
        (VERSION_AGE_KEPT_MS + 60_000, VERSIONS_KEPT - 2, []),
        (VERSION_AGE_KEPT_MS - 60_000, 149, []),
        # What left the log in an earlier commit is for orphan removal.
        (VERSION_AGE_KEPT_MS + 60_000, 120, range(30, 151 - VERSIONS_KEPT + 1)),
    ],
    ids=["old and far behind", "old", "far behind", "not in the log"],
)
def test_log_leavers_are_deleted_if_old_and_far_behind(
    catalog, table, runtime, metadata_path, age_ms, log_length, deleted
):
    put_versions(table, metadata_path, runtime, log_length=log_length)
    runtime.ahead_ms = age_ms
    trimming = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    assert isinstance(catalog.swap(catalog.load(EVENTS), [], [SetProperties(trimming)]), Committed)
    left = {int(path.name[1:].split(".")[0]) for path in metadata_path.glob("v*.metadata.json")}
    assert left == set(range(1, 152)) - set(deleted)


def test_hadoop_checksum_goes_with_its_metadata_file(catalog, table, runtime, metadata_path):
    trimming = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    put_versions(table, metadata_path, runtime, log_length=149)
    for path in [*metadata_path.glob("v*.metadata.json")]:
        path.with_name(f".{path.name}.crc").write_bytes(b"crc")
    runtime.ahead_ms = VERSION_AGE_KEPT_MS + 60_000
    assert isinstance(catalog.swap(catalog.load(EVENTS), [], [SetProperties(trimming)]), Committed)
    left = {path.name for path in metadata_path.glob("v*.metadata.json")}
    summed = {path.name.removeprefix(".").removesuffix(".crc") for path in metadata_path.glob(".v*.crc")}
    assert left - summed == {max(left, key=lambda name: int(name[1:].split(".")[0]))}
    assert summed < left


def test_a_dropped_table_can_be_put_back_by_hand(catalog, table, metadata_path):
    table = catalog.swap(table, [], set_counter(1)).table
    catalog.drop(EVENTS)
    (trash,) = (metadata_path.parent / ".icekeep" / "trash").iterdir()
    assert sorted(os.listdir(trash)) == ["v1.metadata.json", "v2.metadata.json"]
    for path in trash.iterdir():
        path.rename(metadata_path / path.name)
    assert catalog.load(EVENTS).metadata == table.metadata


def test_a_drop_that_stops_half_way_leaves_the_table(catalog, table, storage, metadata_path):
    table = catalog.swap(table, [], set_counter(1)).table

    def stop(operation, location):
        if operation == "move" and storage.fired["move"] == 2:
            raise UnavailableError("stopped")

    storage.before = stop
    with pytest.raises(UnavailableError):
        catalog.drop(EVENTS)
    assert catalog.load(EVENTS).metadata == table.metadata


def test_a_commit_during_a_drop_is_told(catalog, table, storage, metadata_path):
    def commit_meanwhile(operation, location):
        if operation == "move":
            foreign_commit(metadata_path / "v2.metadata.json", table)

    storage.before = commit_meanwhile
    with pytest.raises(
        ConflictError, match=r"another writer committed to table 'db.events' while it was being dropped"
    ):
        catalog.drop(EVENTS)


def test_reregistered_table_has_its_versions_and_hint(catalog, table, metadata_path):
    table = catalog.swap(table, [], set_counter(1)).table
    location = catalog.drop(EVENTS)
    assert "/.icekeep/trash/drop-" in location
    assert catalog.register_table(EVENTS, location).metadata_location == table.metadata_location
    assert sorted(os.listdir(metadata_path)) == ["v1.metadata.json", "v2.metadata.json", "version-hint.text"]
    assert (metadata_path / "version-hint.text").read_text() == "2"
    assert not [path for path in (metadata_path.parent / ".icekeep" / "trash").rglob("*") if path.is_file()]


@pytest.mark.parametrize("stops_at", [1, 2])
def test_a_registration_that_stops_half_way_has_the_table_or_not(catalog, table, storage, stops_at):
    """The head comes first, so that no writer sees an older version as the newest."""
    table = catalog.swap(table, [], set_counter(1)).table
    location = catalog.drop(EVENTS)
    storage.fired.clear()

    def stop(operation, location):
        if operation in ("move", "move_many") and storage.fired["move"] + storage.fired["move_many"] == stops_at:
            raise UnavailableError("stopped")

    storage.before = stop
    if stops_at == 1:
        with pytest.raises(UnavailableError):
            catalog.register_table(EVENTS, location)
        assert catalog.list_tables(("db",)) == []
        storage.before = lambda operation, location: None
    assert catalog.register_table(EVENTS, location).metadata == table.metadata
    assert catalog.load(EVENTS).metadata == table.metadata


def test_an_older_version_of_a_dropped_table_can_be_taken_back(catalog, table):
    after = catalog.swap(table, [], set_counter(1)).table
    location = catalog.drop(EVENTS).replace("v2.", "v1.")
    back = catalog.register_table(EVENTS, location)
    assert back.metadata == table.metadata
    again = catalog.swap(back, [], set_counter(2)).table
    assert again.metadata_location == after.metadata_location
    assert again.metadata.properties == {COUNTER: "2"}


def test_foreign_metadata_restarts_count_and_stays_in_log(catalog, table, storage):
    metadata = table.metadata
    catalog.drop(EVENTS)
    foreign = f"{metadata.location}/metadata/00007-8c0f1b2e.metadata.json"
    storage.create(foreign, format_metadata(metadata))
    back = catalog.register_table(EVENTS, foreign)
    assert back.metadata_location.endswith("/metadata/v1.metadata.json")
    assert [entry.metadata_file for entry in back.metadata.metadata_log] == [foreign]
    assert replace(back.metadata, metadata_log=()) == metadata


def test_table_elsewhere_cannot_be_registered_under_name(catalog, table):
    location = catalog.drop(EVENTS)
    with pytest.raises(
        UsageError, match=r"finds tables by their directory: the table of .* lies at .*/db/events', and not"
    ):
        catalog.register_table(("db", "other"), location)
    assert catalog.register_table(EVENTS, location).metadata == table.metadata


def test_table_location_is_its_directory_despite_metadata(catalog, table):
    assert catalog.describe(EVENTS) == Description(table.metadata.location)


def test_a_table_cannot_be_renamed(catalog, table):
    with pytest.raises(UnsupportedError, match=r"cannot rename 'db.events'"):
        catalog.rename(EVENTS, ("db", "clicks"))


def test_a_namespace_is_a_directory_that_anybody_may_make(catalog, tmp_path):
    (tmp_path / "warehouse" / "raw" / "daily").mkdir(parents=True)
    (tmp_path / "warehouse" / ".hidden").mkdir()
    (tmp_path / "warehouse" / "a file").write_bytes(b"")
    (tmp_path / "warehouse" / "link").symlink_to(tmp_path / "warehouse")
    assert catalog.list_namespaces() == [("db",), ("raw",), ("raw", "daily")]


def test_a_namespace_cannot_have_properties(catalog):
    with pytest.raises(UnsupportedError, match="cannot have properties"):
        catalog.create_namespace(("raw",), {"location": "file:///elsewhere"})


def test_namespace_cannot_be_in_table_or_its_leftovers(catalog, table):
    for _ in range(2):
        for namespace in (EVENTS, (*EVENTS, "deeper")):
            with pytest.raises(UsageError, match="holds a table, or what a dropped table left"):
                catalog.create_namespace(namespace)
        if catalog.list_tables(("db",)):
            catalog.drop(EVENTS)
    with pytest.raises(UsageError, match=r"is not empty: .* holds 'events'"):
        catalog.drop_namespace(("db",))


def test_a_directory_with_other_metadata_is_no_table(catalog, metadata_path):
    metadata_path.mkdir(parents=True)
    (metadata_path / "00001-0c566122.metadata.json").write_text(json.dumps({}))
    assert catalog.list_tables(("db",)) == []
    with pytest.raises(NotFoundError):
        catalog.load(EVENTS)
