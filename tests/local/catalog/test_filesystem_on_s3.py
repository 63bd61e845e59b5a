import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.table import StaticTable

from contracts.catalog_contract import CatalogContract
from icekeep.catalog.base import Committed, Conflict, Unknown
from icekeep.catalog.open import open_catalog
from icekeep.errors import InvalidTableError, OutcomeUnknownError, SafetyError, UnsupportedError
from icekeep.spec.metadata import format_metadata, parse_metadata
from icekeep.spec.updates import log_previous
from icekeep.tables.verbs import append
from kit.catalogs import (
    COUNTER,
    EVENTS,
    add_snapshot,
    check_race,
    increment,
    names,
    our_rows,
    racing_table,
    row,
    rows_of,
    set_counter,
    simple_metadata,
    start_appending,
)

ARROW_IO = "pyiceberg.io.pyarrow.PyArrowFileIO"


@pytest.fixture
def bucket(store):
    return store.new_bucket()


@pytest.fixture
def properties(store, bucket):
    return {"type": "hadoop", "warehouse": f"s3://{bucket}/wh", **store.properties()}


@pytest.fixture
def catalog(properties):
    catalog = open_catalog("local", properties)
    catalog.create_namespace(("db",))
    return catalog


@pytest.fixture
def table(catalog):
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


class TestFilesystemCatalogOnS3(CatalogContract):
    @pytest.fixture
    def properties(self, store, bucket, tmp_path):
        return {"type": "hadoop", "warehouse": f"s3://{bucket}{tmp_path}/warehouse", **store.properties()}

    @pytest.fixture
    def files(self, store, bucket):
        return lambda: {name for name in store.keys(bucket) if not name.endswith("version-hint.text")}

    def test_keys_that_nobody_knows_survive_a_swap(self, catalog, create, store):
        location = create().metadata_location
        raw = json.loads(read(store, location))
        overwrite(store, location, json.dumps({**raw, "x-new-key": {"deep": [1]}}).encode())
        table = catalog.swap(catalog.load(EVENTS), [], set_counter(1)).table
        assert json.loads(table.storage.read(table.metadata_location))["x-new-key"] == {"deep": [1]}

    def test_unreadable_metadata_error_names_file(self, catalog, create, store):
        location = create().metadata_location
        overwrite(store, location, b"{}")
        with pytest.raises(InvalidTableError, match=location):
            catalog.load(EVENTS)


def read(store, location):
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return store.client.get_object(Bucket=bucket, Key=key)["Body"].read()


def overwrite(store, location, data):
    """What a writer does that knows no conditions."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    store.client.put_object(Bucket=bucket, Key=key, Body=data)


def remove(store, location):
    bucket, _, key = location.removeprefix("s3://").partition("/")
    store.client.delete_object(Bucket=bucket, Key=key)


def version(table, number):
    return f"{table.metadata.location}/metadata/v{number}.metadata.json"


def test_a_commit_is_one_request_with_a_condition(table, catalog, store, bucket):
    store.requests.clear()
    outcome = catalog.swap(table, [], set_counter(1))
    assert outcome.table.metadata_location == version(table, 2)
    puts = [(r.path, r.condition) for r in store.sent("PUT", "metadata/v2")]
    assert puts == [(f"/{bucket}/wh/db/events/metadata/v2.metadata.json", "*")]
    assert store.sent("PUT", ".tmp") == []
    assert read(store, f"{table.metadata.location}/metadata/version-hint.text") == b"2"


def test_writers_that_race_lose_no_commit_and_double_none(table, catalog, properties, store, bucket):
    """moto runs in this process, one request at a time; threads, each with a client of its own, stand for processes."""
    start = threading.Barrier(4, timeout=60)

    def write(_: int) -> int:
        own = open_catalog("local", properties)
        return sum(increment(own, EVENTS, start) for _ in range(6))

    with ThreadPoolExecutor(4) as pool:
        conflicts = sum(pool.map(write, range(4)))
    loaded = catalog.load(EVENTS)
    assert loaded.metadata.properties[COUNTER] == "24"
    history = [parse_metadata(loaded.storage.read(e.metadata_file), "") for e in loaded.metadata.metadata_log]
    assert [m.properties.get(COUNTER, "0") for m in history] == [str(n) for n in range(24)]
    assert len([name for name in store.keys(bucket) if name.endswith("metadata.json")]) == 25
    assert conflicts >= 18


def test_a_store_that_ignores_conditions_is_not_committed_to(table, properties, store):
    store.ignores_conditions = True
    catalog = open_catalog("local", properties)
    assert catalog.load(EVENTS).metadata == table.metadata
    before = store.keys(properties["warehouse"].split("/")[2])
    with pytest.raises(SafetyError, match="refuses to create a name twice"):
        catalog.swap(catalog.load(EVENTS), [], set_counter(1))
    with pytest.raises(SafetyError, match="refuses to create a name twice"):
        catalog.create(("db", "t"), simple_metadata(catalog.default_location(("db", "t"))))
    assert store.keys(properties["warehouse"].split("/")[2]) == before


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("status", [None, 500, 503, 504])
def test_a_commit_whose_answer_is_lost_is_found_or_sent_again(catalog, table, store, status, lands):
    if status is None:
        store.lose_answer("PUT", "/v2.metadata.json", lands=lands)
    else:
        store.answer("PUT", "/v2.metadata.json", status, lands=lands)
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    assert not store.is_waiting
    assert catalog.load(EVENTS).metadata_location == version(table, 2)
    assert len(store.sent("PUT", "/v2.metadata.json")) == (1 if lands else 2)


def test_late_commit_does_not_overwrite_later_ones(catalog, table, store):
    store.delay("PUT", "/v2.metadata.json")
    ours = catalog.swap(table, [], set_counter(1))
    theirs = catalog.swap(ours.table, [], set_counter(2))
    assert (type(ours), type(theirs)) == (Committed, Committed)
    assert store.deliver() == ["412 PRECONDITION FAILED"]
    assert catalog.load(EVENTS).metadata == theirs.table.metadata
    assert read(store, version(table, 2)) == format_metadata(ours.table.metadata)


def test_resent_commit_loses_to_one_that_landed(catalog, table, store, properties):
    def be_faster() -> None:
        other = open_catalog("other", properties)
        assert isinstance(other.swap(other.load(EVENTS), [], set_counter(7)), Committed)

    store.delay("PUT", "/v2.metadata.json")
    store.before("PUT", "/v2.metadata.json", be_faster)
    outcome = catalog.swap(table, [], set_counter(1))
    assert (type(outcome), outcome.is_final) == (Conflict, True)
    assert store.deliver() == ["412 PRECONDITION FAILED"]
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "7"


def test_commit_that_meets_itself_landed(catalog, table, store):
    """An answer of 412 for our own object."""
    store.repeat("PUT", "/v2.metadata.json")
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    assert not store.is_waiting


def test_commit_overtaken_by_writer_is_conflict(catalog, table, store, properties):
    other = open_catalog("local", properties)

    def be_faster() -> None:
        assert isinstance(other.swap(other.load(EVENTS), [], set_counter(1)), Committed)

    store.before("PUT", "/v2.metadata.json", be_faster)
    assert catalog.swap(table, [], set_counter(1)) == Conflict(
        f"another writer committed {version(table, 2)!r}", is_final=True
    )
    assert catalog.load(EVENTS).metadata.properties == {COUNTER: "1"}


def test_a_collision_with_a_write_that_failed_is_tried_again(catalog, table, store):
    store.answer("PUT", "/v2.metadata.json", 409, "ConditionalRequestConflict")
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    assert len(store.sent("PUT", "/v2.metadata.json")) == 2


def foreign(table, *, descends=True):
    metadata = table.metadata
    return format_metadata(
        log_previous(metadata, table.metadata_location, metadata.last_updated_ms) if descends else metadata
    )


@pytest.mark.parametrize(
    ("interfere", "cause"),
    [
        (lambda store, table: overwrite(store, version(table, 2), foreign(table)), "another writer replaced"),
        (lambda store, table: overwrite(store, version(table, 3), foreign(table)), "does not descend from it"),
        (lambda store, table: remove(store, version(table, 2)), "does not descend from it"),
        (
            lambda store, table: overwrite(store, version(table, 2).replace(".meta", ".gz.meta"), gzip.compress(b"")),
            "committed version 2 under another name",
        ),
    ],
    ids=["overwritten", "skipped", "deleted", "two names"],
)
def test_commit_undone_by_unconditional_writer_is_unknown(catalog, table, store, interfere, cause):
    """Such a writer cannot be kept out, only found out. It acts when we go on to write the hint."""
    store.before("PUT", "/version-hint.text", lambda: interfere(store, table))
    outcome = catalog.swap(table, [], set_counter(1))
    assert not store.is_waiting
    assert isinstance(outcome, Unknown)
    assert cause in outcome.cause


def test_a_created_table_that_another_writer_replaced_is_unknown(catalog, store):
    location = f"{catalog.default_location(EVENTS)}/metadata/v1.metadata.json"
    store.before("PUT", "/version-hint.text", lambda: overwrite(store, location, b"{}"))
    with pytest.raises(OutcomeUnknownError, match=r"cannot tell whether table 'db.events' was created"):
        catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


@pytest.mark.parametrize("hint", [None, b"", b"1", b"4", b"99", b"-1", b"garbage", b"1" * 1000])
def test_a_hint_that_is_wrong_loses_no_commit_and_is_set_right(catalog, table, store, hint):
    location = f"{table.metadata.location}/metadata/version-hint.text"
    for value in range(2):
        table = catalog.swap(table, [], set_counter(value)).table
    remove(store, location) if hint is None else overwrite(store, location, hint)
    loaded = catalog.load(EVENTS)
    assert loaded.metadata == table.metadata
    outcome = catalog.swap(loaded, [], set_counter(2))
    assert outcome.table.metadata_location == version(table, 4)
    assert read(store, location) == b"4"


def test_a_dropped_table_can_be_put_back_by_hand(catalog, table, store, bucket):
    table = catalog.swap(table, [], add_snapshot(77)).table
    catalog.drop(EVENTS)
    trash = [key for key in store.keys(bucket) if "/.icekeep/trash/" in key]
    assert [key.rsplit("/", 1)[1] for key in trash] == ["v1.metadata.json", "v2.metadata.json"]
    for key in trash:
        table.storage.move(f"s3://{bucket}/{key}", f"{table.metadata.location}/metadata/{key.rsplit('/', 1)[1]}")
    assert catalog.load(EVENTS).metadata == table.metadata


def test_drop_is_refused_if_metadata_cannot_be_moved(table, properties, store, bucket):
    before = store.keys(bucket)
    store.answer("POST", "uploads", 501, "NotImplemented", times=2)
    catalog = open_catalog("local", properties)
    with pytest.raises(UnsupportedError, match=r"cannot drop table 'db.events': it is not proved that the store of"):
        catalog.drop(EVENTS)
    assert store.keys(bucket) == before
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)


def test_a_namespace_that_another_program_made_is_one(catalog, store, bucket):
    for key in ("wh/raw/", "wh/raw/daily/file", "wh/.hidden/file", "wh/a file"):
        store.client.put_object(Bucket=bucket, Key=key, Body=b"")
    assert catalog.list_namespaces() == [("db",), ("raw",), ("raw", "daily")]


def test_a_whole_table_lives_there_and_pyiceberg_reads_it(properties, store):
    """Data files, manifests and metadata; PyIceberg reads them by Arrow's own client of S3."""
    table = racing_table(properties)
    for number in range(3):
        table = append(table, row("process 0", number))
    foreign = StaticTable.from_metadata(table.metadata_location, {**store.properties(), "py-io-impl": ARROW_IO})
    check_race(table, foreign, {"process 0": 3})
    assert {r.condition for r in store.sent("PUT", "/wh/") if "?" not in r.path} == {"*"}


def test_lost_answer_settled_without_a_look(properties, store):
    """Unknown to the storage and to the catalog; the commit library finds its snapshot in the table."""
    table = racing_table(properties)
    name = "/v2.metadata.json"
    store.lose_answer("PUT", name, lands=True, first=lambda: store.answer("HEAD", name, 403))
    table = append(table, row("process 0", 0))
    assert not store.is_waiting
    assert our_rows(table) == rows_of({"process 0": 1})
    assert len(store.sent("PUT", "/v2.metadata.json")) == 1
    assert table.metadata_location.endswith("/v2.metadata.json")


def test_processes_that_append_lose_no_row(properties, store):
    racing_table(properties)
    race = start_appending(properties, writers=2, commits=3)
    race.finish()
    table = open_catalog("local", properties).load(EVENTS)
    foreign = StaticTable.from_metadata(table.metadata_location, {**store.properties(), "py-io-impl": ARROW_IO})
    check_race(table, foreign, dict.fromkeys(names(2), 3))
