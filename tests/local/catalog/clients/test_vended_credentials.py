"""A REST catalog's credentials end while a job goes on, and nobody notices."""

import pickle
import traceback
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, UsageError
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.reports.job import report
from icekeep.runtime import SYSTEM
from icekeep.secrets import without_secrets
from icekeep.storage import vended
from icekeep.storage.base import DeleteStatus
from icekeep.tables.verbs import append, create_table
from kit.lake import EVENTS, SCHEMA, events
from kit.object_store import ObjectStore
from kit.rest_server import CREDENTIALS, ENDPOINTS, Vending
from kit.runtime import no_spark


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.close()


@pytest.fixture
def vending(tmp_path, store, monkeypatch) -> Iterator[Vending]:
    monkeypatch.setattr(vended, "_newest", {})
    store.reset()
    vending = Vending(tmp_path, store)
    yield vending
    vending.close()


@pytest.fixture
def table(vending):
    catalog = open_catalog("vending", vending.properties)
    catalog.create_namespace(("db",))
    return create_table(catalog, EVENTS, SCHEMA, location=f"s3://{vending.bucket}/wh/events")


@pytest.mark.parametrize("travels", [False, True])
def test_every_storage_operation_survives_expired_credentials(table, vending, travels):
    base, storage = table.metadata.location, table.storage
    storage.create(f"{base}/there", b"12345")
    big = b"x" * (17 << 20)
    operations = {
        "read": lambda: storage.read(f"{base}/there"),
        "open": lambda: storage.open(f"{base}/there").read(),
        "head": lambda: storage.head(f"{base}/there").size_bytes,
        "list": lambda: len([*storage.list(base)]) > 0,
        "shares": lambda: len(storage.shares(base, 4)) > 0,
        "create": lambda: storage.create(f"{base}/created", b"1"),
        "write": lambda: _write(storage, f"{base}/written", b"1"),
        "large write": lambda: _write(storage, f"{base}/large", big),
        "move": lambda: storage.move(f"{base}/created", f"{base}/moved"),
        "delete": lambda: [one.status for one in storage.delete_many([f"{base}/moved", f"{base}/written"])],
        "capabilities": lambda: storage.capabilities(base).exclusive_create,
        "directory": lambda: storage.directory_exists(base),
        "create with an empty part": lambda: storage.create(f"{base}/odd//there", b"1"),
        "read with an empty part": lambda: storage.read(f"{base}/odd//there"),
        "list an empty part": lambda: len([*storage.list(f"{base}/odd//")]),
    }
    expected = {
        "read": b"12345", "open": b"12345", "head": 5, "list": True, "shares": True, "delete": [DeleteStatus.DELETED] * 2,
        "capabilities": True, "directory": True,
        "read with an empty part": b"1", "list an empty part": 1,
    }  # fmt: skip
    for name, operation in operations.items():
        if travels:
            storage = pickle.loads(pickle.dumps(storage))
        vending.end_keys()
        assert operation() == expected.get(name), name
    assert len(vending.keys) >= len(operations)


def test_listing_resumes_after_credentials_end(table, vending, store):
    store.put_many(vending.bucket, [f"wh/events/many/f{number:04}" for number in range(1500)])
    names = []
    for info in table.storage.list(f"{table.metadata.location}/many"):
        if not names:
            vending.end_keys()
        names.append(info.location.rpartition("/")[2])
    assert names == [f"f{number:04}" for number in range(1500)]


def _write(storage, location, data):
    with storage.write(location) as stream:
        stream.write(data)


def test_open_stream_survives_expired_credentials(table, vending):
    location = f"{table.metadata.location}/f"
    table.storage.create(location, b"ab" * (2 << 20))
    with table.storage.open(location) as stream:
        assert stream.read(2) == b"ab"
        vending.end_keys()
        stream.seek(3 << 20)
        assert stream.read(2) == b"ab"
    with table.storage.write(f"{location}2") as stream:
        stream.write(b"x" * (17 << 20))
        vending.end_keys()
    assert table.storage.head(f"{location}2").size_bytes == 17 << 20


@pytest.mark.parametrize("offers", [False, True])
def test_credentials_come_from_own_endpoint_where_offered(vending, offers):
    vending.server.endpoints = (*ENDPOINTS, CREDENTIALS) if offers else ()
    catalog = open_catalog("vending", vending.properties)
    catalog.create_namespace(("db",))
    table = create_table(catalog, EVENTS, SCHEMA, location=f"s3://{vending.bucket}/wh/{offers}")
    vending.end_keys()
    vending.server.requests.clear()
    table.storage.read(table.metadata_location)
    path = "/v1/namespaces/db/tables/events"
    assert vending.server.requests == [("GET", f"{path}/credentials" if offers else path)]


def test_credentials_are_renewed_before_they_expire(table, vending):
    hand_out, before = vending.server.vend, len(vending.keys)

    def ending():
        vending.ends_ms = SYSTEM.now_ms() + (3_600_000 if len(vending.keys) > before else 1)
        return hand_out()

    vending.server.vend = ending
    table = table.catalog.load(EVENTS)
    table.storage.read(table.metadata_location)
    table.storage.head(table.metadata_location)
    assert len(vending.keys) == before + 2


def test_lasting_denial_is_reported_and_server_asked_once(table, vending, store):
    location = f"{table.metadata.location}/f"
    before = len(vending.keys)
    store.answer("GET", "/f", 403, "InvalidAccessKeyId", times=50)
    for _ in range(5):
        with pytest.raises(UsageError, match="the store denies access"):
            table.storage.read(location)
    assert len(vending.keys) == before + 1


@pytest.mark.parametrize("is_renewed", [False, True])
def test_a_store_that_quotes_a_vended_secret_has_it_cut_out(table, vending, store, is_renewed):
    location = f"{table.metadata.location}/f"
    if is_renewed:
        vending.end_keys()
        table.storage.read(table.metadata_location)
    secret = f"secret of {vending.keys[-1]}"
    store.answer("GET", "/f", 400, f"BadSignature {secret}", times=50)
    with pytest.raises(IcekeepError) as caught:
        table.storage.read(location)
    raw = "".join(traceback.format_exception(caught.value))
    assert secret in raw
    assert "BadSignature" in without_secrets(raw)
    assert secret not in caught.value.message + without_secrets(raw)


def test_commit_reads_with_storage_of_attempt(table, vending, monkeypatch):
    monkeypatch.setattr(vended.VendedProperties, "ask", lambda self, request, _: request())
    for number in range(3):
        table = append(table, events(number))
    planned = table
    vending.end_keys()
    fresh = planned.catalog.load(EVENTS)
    snapshot = fresh.metadata.current_snapshot
    entries = [
        entry
        for manifest in ManifestReader(fresh.storage).manifests(snapshot)
        for entry in ManifestReader(fresh.storage).entries(manifest, fresh.metadata)
    ]
    file = entries[0].data_file
    change = DeleteFiles(paths=frozenset({file.file_path}))
    assert commit(planned, change, reader=SparkManifestReader(None, planned.storage)).changed


def test_secrets_are_not_shown_by_what_travels(table, vending):
    shown = f"{table.storage!r} {table.storage._vended!r} {table.storage._vended._renewal!r} {table.catalog!r}"
    assert "secret of" not in shown
    assert "hunter2" not in shown


def test_report_renews_credentials(table, vending):
    for number in range(6):
        table = append(table, [events(number, 5)])
    other = create_table(table.catalog, ("db", "other"), SCHEMA, location=f"s3://{vending.bucket}/wh/other")
    append(other, [events(1, 5)])
    whole = report(table.catalog, no_spark)
    assert [one.table for one in whole.tables] == ["vending.db.events", "vending.db.other"]
    assert [(one.faults, one.not_measured) for one in whole.tables] == [((), ())] * 2
    assert whole.tables[0].metadata.metadata_bytes
    count = len(vending.keys)
    # Each key is good for ten requests, and a look at the first table takes more: one key a table is not enough.
    vending.end_keys()
    vending.uses = 10
    found = report(open_catalog("vending", vending.properties), no_spark)
    assert len(vending.keys) > count + len(whole.tables)
    assert (found.status, found.not_read) == ("done", ())
    assert [replace(one, elapsed_ms=0) for one in found.tables] == [replace(one, elapsed_ms=0) for one in whole.tables]
