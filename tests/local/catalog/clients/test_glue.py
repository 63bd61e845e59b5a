"""The Glue catalog against moto's Glue over HTTP; files are on the local disk."""

import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from botocore.exceptions import ReadTimeoutError
from pyiceberg.catalog.glue import GlueCatalog as ForeignGlueCatalog

from contracts.catalog_contract import CatalogContract
from icekeep.catalog.base import Committed, Conflict, Unknown
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, OutcomeUnknownError, UnavailableError, UnsupportedError, UsageError
from icekeep.spec.types import NestedField, PrimitiveType
from kit.catalogs import COUNTER, EVENTS, SCHEMA, set_counter, simple_metadata
from kit.object_store import entry_of, glue_properties
from kit.runtime import FakeRuntime

_SEEDS = itertools.count(1)


@pytest.fixture(scope="module")
def clients(endpoint):
    """Two connections for all tests: each takes botocore half a second to make."""
    return [open_catalog("local", glue_properties(endpoint, "file:///unused"))._client() for _ in range(2)]


@pytest.fixture
def properties(endpoint, clients, tmp_path):
    yield glue_properties(endpoint, (tmp_path / "warehouse").as_uri())
    for database in clients[0].glue.get_databases()["DatabaseList"]:
        clients[0].glue.delete_database(Name=database["Name"])


def connected(properties, client):
    catalog = open_catalog("local", properties, FakeRuntime(next(_SEEDS)))
    catalog._local.client = (os.getpid(), client)
    return catalog


class TestGlueCatalog(CatalogContract):
    keeps_previous = True
    deletes_metadata = True

    # Glue has one level of namespaces.
    test_namespaces_are_listed_at_all_levels = None
    test_only_an_empty_namespace_is_dropped = None
    test_tables_are_listed_by_namespace_and_sorted = None

    @pytest.fixture
    def properties(self, properties):
        return properties

    @pytest.fixture
    def catalog(self, properties, clients):
        catalog = connected(properties, clients[0])
        catalog.create_namespace(("db",))
        return catalog

    @pytest.fixture
    def other(self, properties, clients, catalog):
        return connected(properties, clients[1])

    def test_a_table_is_put_below_the_warehouse_by_its_name(self, catalog, tmp_path):
        assert catalog.default_location(EVENTS).endswith(f"{tmp_path}/warehouse/db.db/events")
        catalog.create_namespace(("placed",), {"location": "file:///elsewhere"})
        assert catalog.default_location(("placed", "t")) == "file:///elsewhere/t"

    def test_only_an_empty_database_is_dropped(self, catalog, other, create):
        create()
        assert catalog.list_tables(("db",)) == [EVENTS]
        with pytest.raises(UsageError, match="namespace 'db' in catalog 'local' is not empty"):
            catalog.drop_namespace(("db",))
        catalog.drop(EVENTS)
        catalog.drop_namespace(("db",))
        assert other.list_namespaces() == []
        with pytest.raises(NotFoundError, match="no namespace 'db'"):
            other.drop_namespace(("db",))

    def test_the_entry_says_where_a_table_lies(self, catalog, create):
        """Also where its metadata is gone."""
        table = create(**{"write.data.path": "s3://data/x"})
        table.storage.delete_many([table.metadata_location])
        described = catalog.describe(EVENTS)
        assert (described.location, described.properties["metadata_location"]) == (
            table.metadata.location,
            table.metadata_location,
        )
        with pytest.raises(NotFoundError):
            catalog.describe(("db", "none"))

    def test_a_rename_is_refused(self, catalog, create):
        create()
        with pytest.raises(UnsupportedError, match="catalog 'local' cannot rename tables: Glue has no such request"):
            catalog.rename(EVENTS, ("db", "new"))
        assert catalog.list_tables(("db",)) == [EVENTS]

    def test_the_entry_says_what_other_engines_want_to_know(self, catalog, create):
        base = create()
        after = catalog.swap(base, [], set_counter(1)).table
        entry = entry_of(catalog, EVENTS)
        assert entry["Parameters"]["metadata_location"] == after.metadata_location
        assert entry["Parameters"]["previous_metadata_location"] == base.metadata_location
        assert [column["Name"] for column in entry["StorageDescriptor"]["Columns"]] == ["id", "name"]

    def test_pyiceberg_reads_commits_and_its_own_is_conflict(self, catalog, create, properties):
        base = catalog.swap(create(), [], set_counter(1)).table
        foreign = ForeignGlueCatalog("foreign", **{**properties, "glue.max-retries": 1}).load_table(EVENTS)
        assert foreign.properties[COUNTER] == "1"
        foreign.transaction().set_properties({COUNTER: "theirs"}).commit_transaction()
        outcome = catalog.swap(base, [], set_counter("ours"))
        assert isinstance(outcome, Conflict)
        assert outcome.is_final
        assert catalog.load(EVENTS).metadata.properties[COUNTER] == "theirs"

    def test_an_error_tells_no_secret(self, catalog, create):
        create()
        assert "glue-secret" not in repr((catalog, catalog.load(EVENTS)))


@pytest.fixture
def catalog(properties, clients):
    catalog = connected(properties, clients[0])
    catalog.create_namespace(("db",))
    return catalog


@pytest.fixture
def table(catalog):
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


def metadata_files(table):
    return set(table.storage.child_names(f"{table.metadata.location}/metadata"))


def meanwhile(catalog, act, event="before-call.glue.UpdateTable"):
    """Let something happen once when the client is about to change a table, or has changed it."""
    events = catalog._client().glue.meta.events

    def once(**named):
        events.unregister(event, once)
        return act()

    events.register(event, once)


def answer(code, retries=0):
    """What Glue answers when it refuses."""
    parsed = {
        "Error": {"Code": code, "Message": "Glue says no"},
        "ResponseMetadata": {"HTTPStatusCode": 400, "RetryAttempts": retries},
    }
    return lambda: (SimpleNamespace(status_code=400), parsed)


def fail():
    raise ReadTimeoutError(endpoint_url="http://glue")


def test_tables_of_version_3_are_committed_to_and_lose_nothing(catalog):
    """PyIceberg alone refuses to write these, and drops keys that it does not know."""
    fields = (*SCHEMA.fields, NestedField(field_id=3, name="at", type=PrimitiveType("timestamp_ns")))
    base = simple_metadata(catalog.default_location(EVENTS))
    schema = msgspec.structs.replace(SCHEMA, fields=fields)
    metadata = msgspec.structs.replace(base, format_version=3, next_row_id=0, schemas=(schema,), last_column_id=3)
    path = Path(catalog.create(EVENTS, metadata).metadata_location.removeprefix("file://"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "x-unknown": 1}))
    outcome = catalog.swap(catalog.load(EVENTS), [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata.extra == {"x-unknown": 1}
    assert catalog.load(EVENTS).metadata.format_version == 3


def test_column_without_glue_type_keeps_iceberg_type_name(catalog, table):
    path = Path(table.metadata_location.removeprefix("file://"))
    raw = json.loads(path.read_text())
    raw["schemas"][0]["fields"][1]["type"] = "variant"
    path.write_text(json.dumps({**raw, "format-version": 3, "next-row-id": 0}))
    after = catalog.swap(catalog.load(EVENTS), [], set_counter(1)).table
    assert str(after.metadata.schema.fields[1].type) == "variant"
    columns = entry_of(catalog, EVENTS)["StorageDescriptor"]["Columns"]
    assert [column["Type"] for column in columns] == ["bigint", "variant"]


def test_a_version_that_another_writer_took_is_a_conflict(catalog, table, properties, clients):
    refuse, winners = answer("ConcurrentModificationException"), []

    def be_faster():
        winners.append(connected(properties, clients[1]).swap(table, [], set_counter("winner")).table)
        return refuse()

    meanwhile(catalog, be_faster)
    outcome = catalog.swap(table, [], set_counter("loser"))
    assert (type(outcome), outcome.is_final) == (Conflict, True)
    assert "concurrent update" in outcome.reason
    assert len(metadata_files(table)) == 2
    assert catalog.load(EVENTS).metadata == winners[0].metadata


def test_refused_request_with_pending_twin_keeps_metadata_file(catalog, table):
    """It was deleted, and the pointer named a file that was gone."""
    requests = []
    glue = catalog._client().glue

    def note(params, **_):
        requests.append(dict(params))

    glue.meta.events.register("provide-client-params.glue.UpdateTable", note)
    meanwhile(catalog, answer("ConcurrentModificationException"))
    outcome = catalog.swap(table, [], set_counter(1))
    glue.meta.events.unregister("provide-client-params.glue.UpdateTable", note)
    assert (type(outcome), outcome.is_final) == (Conflict, False)
    assert catalog.load(EVENTS).metadata == table.metadata
    glue.update_table(**requests[0])
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "1"


def test_a_conflict_with_our_own_request_is_no_conflict(catalog, table):
    """#14583: the client sends a change again whose answer was lost, and meets what it did."""
    meanwhile(catalog, lambda: meanwhile(catalog, refuse, "needs-retry.glue.UpdateTable"))

    def refuse():
        raise_code = catalog._client().glue.exceptions.ConcurrentModificationException
        raise raise_code({"Error": {"Code": "ConcurrentModificationException", "Message": "no"}}, "UpdateTable")

    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "1"


def test_refusal_after_earlier_sending_deletes_nothing(catalog, table):
    """The client sends again by itself; what it sent first may land after Glue refused the second, and needs its file."""
    meanwhile(catalog, answer("ConcurrentModificationException", 1))
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "1"

    always = answer("ConcurrentModificationException", 1)
    events = catalog._client().glue.meta.events

    def refuse(**_):
        return always()

    events.register("before-call.glue.UpdateTable", refuse)
    unknown = catalog.swap(outcome.table, [], set_counter(2))
    events.unregister("before-call.glue.UpdateTable", refuse)
    assert isinstance(unknown, Unknown)
    assert table.storage.head(unknown.metadata_location) is not None


def test_a_lost_answer_is_settled_by_sending_it_again(catalog, table):
    meanwhile(catalog, fail, "needs-retry.glue.UpdateTable")
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata == outcome.table.metadata
    meanwhile(catalog, fail, "needs-retry.glue.UpdateTable")
    assert commit(table, ChangeProperties(updates={"owner": "me"}), runtime=FakeRuntime()).changed


FAILURES = [
    fail,
    answer("InternalServiceException"),
    answer("OperationTimeoutException"),
    answer("ThrottlingException", 1),
]


@pytest.mark.parametrize("act", [*FAILURES, answer("AccessDeniedException", 1)])
def test_a_request_that_proves_nothing_is_sent_again(catalog, table, act):
    meanwhile(catalog, act)
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "1"
    assert len(metadata_files(table)) == 2


def test_a_change_that_arrives_late_has_a_version_that_is_taken(catalog, table):
    """Glue refuses it then (moto does not): both requests name the version that the one which landed has replaced."""
    versions = []
    events = catalog._client().glue.meta.events

    def note(params, **_):
        versions.append(params["VersionId"])

    events.register("provide-client-params.glue.UpdateTable", note)
    meanwhile(catalog, fail)
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    events.unregister("provide-client-params.glue.UpdateTable", note)
    assert versions[0] == versions[1] != entry_of(catalog, EVENTS)["VersionId"]


def test_a_change_that_is_sent_again_loses_to_another_writers(catalog, table, properties, clients):
    def be_faster():
        other = connected(properties, clients[1])
        assert isinstance(other.swap(other.load(EVENTS), [], set_counter(7)), Committed)

    meanwhile(catalog, fail)
    catalog.runtime.before_sleep = be_faster
    outcome = catalog.swap(table, [], set_counter(1))
    assert (type(outcome), outcome.is_final) == (Conflict, True)
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "7"
    assert len(metadata_files(table)) == 2


def test_repeated_inconclusive_errors_are_unknown_and_keep_file(catalog, table):
    events = catalog._client().glue.meta.events

    def fail_again(**_):
        fail()

    events.register("before-call.glue.UpdateTable", fail_again)
    outcome = catalog.swap(table, [], set_counter(1))
    events.unregister("before-call.glue.UpdateTable", fail_again)
    assert isinstance(outcome, Unknown)
    assert catalog.runtime.sleeps_ms == [1000, 2000, 4000]
    assert table.storage.head(outcome.metadata_location) is not None


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AccessDeniedException", UsageError),
        ("ExpiredTokenException", UsageError),
        ("InvalidInputException", UsageError),
        ("ThrottlingException", UnavailableError),
    ],
)
def test_refused_first_request_proves_nothing_landed(catalog, table, code, error):
    before = metadata_files(table)
    meanwhile(catalog, answer(code))
    with pytest.raises(error, match=rf"^catalog 'local' (refused|is not available): .*{code}.* Glue says no"):
        catalog.swap(table, [], set_counter(1))
    assert metadata_files(table) == before


def test_what_fails_before_the_change_proves_that_nothing_landed(catalog, table):
    before = metadata_files(table)
    meanwhile(catalog, fail, "before-call.glue.GetTable")
    with pytest.raises(UnavailableError, match="catalog 'local' cannot be asked: Read timeout"):
        catalog.swap(table, [], set_counter(1))
    assert metadata_files(table) == before


def test_a_table_that_is_dropped_in_the_middle_is_a_conflict(catalog, table, properties, clients):
    def drop():
        connected(properties, clients[1]).drop(EVENTS)

    meanwhile(catalog, drop)
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Conflict)
    assert "the table was dropped or renamed" in outcome.reason


def test_creation_unknown_or_done_once(catalog):
    metadata = simple_metadata(catalog.default_location(EVENTS))
    meanwhile(catalog, fail, "needs-retry.glue.CreateTable")
    with pytest.raises(
        OutcomeUnknownError, match=r"table 'db.events' in catalog 'local' may or may not have been created"
    ):
        catalog.create(EVENTS, metadata)
    with pytest.raises(UsageError, match=r"table 'db.events' exists already"):
        catalog.create(EVENTS, metadata)


def test_a_registration_whose_answer_is_lost_is_settled(catalog, table):
    location = catalog.drop(EVENTS)
    meanwhile(catalog, fail, "needs-retry.glue.CreateTable")
    assert catalog.register_table(EVENTS, location).metadata == table.metadata
    catalog.drop(EVENTS)
    meanwhile(catalog, fail, "before-call.glue.CreateTable")
    assert catalog.register_table(EVENTS, location).metadata_location == location
    catalog.drop(EVENTS)
    meanwhile(catalog, answer("AccessDeniedException"), "before-call.glue.CreateTable")
    with pytest.raises(UsageError, match="Glue says no"):
        catalog.register_table(EVENTS, location)
    assert table.storage.head(location) is not None


def test_a_glue_that_is_not_there_is_unavailable(properties):
    given = {**properties, "glue.endpoint": "http://127.0.0.1:1", "glue.max-retries": "0"}
    with pytest.raises(UnavailableError, match="catalog 'local' cannot be asked: Could not connect"):
        open_catalog("local", given).list_namespaces()
