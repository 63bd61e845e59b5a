"""Our REST catalog against servers that others wrote: SeaweedFS, Nessie and Lakana."""

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

from contracts.catalog_contract import RestCatalogContract
from icekeep.catalog.base import Committed
from icekeep.catalog.open import open_catalog
from icekeep.errors import (
    MissingFileError,
    NotFoundError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UsageError,
)
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.drop.job import drop_table, plan_drop_table
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.restore.job import restore
from icekeep.runtime import SystemRuntime
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import SetSnapshotRef, requirements_for
from icekeep.storage.open import open_storage
from icekeep.tables.verbs import append, create_table
from kit.catalogs import EVENTS, add_snapshot
from kit.lake import SCHEMA, events, multiset
from kit.naive_scan import scan_rows
from kit.runtime import no_spark
from kit.servers.catalogs import LakanaServer, NessieServer, SeaweedServer

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def seaweed():
    server = SeaweedServer()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def nessie(seaweed):
    server = NessieServer(seaweed)
    server.start()
    yield server
    server.close()


class TestSeaweed(RestCatalogContract):
    makes_parents = False
    names = ("metadata", "data", "t_1", "a-b", "1")
    # Names have lower-case letters, digits, `_` and `-`.
    test_a_table_whose_name_has_a_dot_is_as_any_other = None
    # The server writes metadata from what it knows.
    test_keys_that_nobody_knows_survive_a_swap = None
    # Whatever a drop asks for, the server deletes all below the table's location.
    test_a_dropped_table_is_forgotten_and_its_data_stays = None
    test_a_drop_says_where_the_metadata_is = None
    test_a_dropped_table_is_taken_back_as_it_was = None
    test_a_table_can_be_dropped_and_taken_back_again_and_again = None
    test_a_name_that_is_taken_is_not_registered_over = None
    test_register_refuses_invalid_metadata_and_no_namespace = None
    test_a_table_whose_snapshot_is_gone_is_not_registered = None

    @pytest.fixture
    def properties(self, seaweed):
        return seaweed.properties()

    @pytest.fixture
    def files(self, properties):
        return lambda: {file.location for file in open_storage(properties).list(properties["warehouse"])}

    def test_a_table_is_put_below_the_warehouse_by_its_name(self, catalog):
        for namespace in (("a",), ("a", "b")):
            catalog.create_namespace(namespace)
            assert catalog.default_location((*namespace, "t")) == f"{catalog.warehouse}/{'.'.join(namespace)}/t"

    def test_only_an_empty_namespace_is_dropped(self, catalog, create):
        create()
        with pytest.raises(UsageError, match="is not empty"):
            catalog.drop_namespace(("db",))
        # Those below it are no part of it.
        for namespace in (("lake",), ("lake", "raw")):
            catalog.create_namespace(namespace)
        catalog.drop_namespace(("lake",))
        assert catalog.list_namespaces() == [("db",), ("lake", "raw")]

    def test_drop_reports_files_that_server_deleted(self, catalog, create, files):
        """A server may delete the files of a drop that was to keep them; the error says so."""
        table = create()
        with pytest.raises(MissingFileError, match=r"'db.events' is dropped, .*v1.metadata.json' is gone with it"):
            drop_table(table, no_spark)
        assert files() == set()


class TestNessie(RestCatalogContract):
    makes_parents = False
    # It takes `#` in a name for the beginning of a time, and fails at a single quote.
    names = ("metadata", "data", "Events", "é", "a b", "x=1", "%2F", "a%b", "_t", "t;--", "a.b", "日本")
    # Metadata is made of what Nessie keeps, for whoever asks; it has no log.
    test_keys_that_nobody_knows_survive_a_swap = None
    test_the_file_that_a_swap_replaced_is_in_the_metadata_log = None
    # That there is no snapshot yet is no requirement to it.
    test_refused_metadata_cleanup_failure_keeps_conflict = None

    @pytest.fixture
    def properties(self, nessie):
        return nessie.properties()

    @pytest.fixture
    def files(self, seaweed):
        return lambda: {file.location for file in open_storage(seaweed.store_properties).list("s3://nessie")}

    def test_a_table_is_put_below_the_warehouse_by_its_name(self, catalog):
        assert catalog.default_location(EVENTS).startswith("s3://nessie/db/events_")

    def test_two_first_writers_of_an_empty_table(self, catalog, other, create):
        base = create()
        for client, number in ((other, 7), (catalog, 8)):
            updates = [*add_snapshot(number), SetSnapshotRef("main", SnapshotRef(snapshot_id=number, type="branch"))]
            assert isinstance(client.swap(base, requirements_for(base.metadata, updates), updates), Committed)
        assert catalog.load(EVENTS).metadata.snapshots_by_id.keys() == {8}

    def test_it_deletes_files_itself(self, catalog, create, files):
        table, before = create(), files()
        with pytest.raises(SafetyError, match="run nessie-gc"):
            drop_table(table, no_spark, purge=True)
        assert files() == before
        assert catalog.load(EVENTS).metadata_location == table.metadata_location


@pytest.fixture
def lent(seaweed):
    """A catalog whose server lends keys for one table at a time, and tables in it.

    SeaweedFS lets nobody write but to `metadata/`, `data/` and directories that begin with `_`: below such a one a table may
    have files of any name.
    """
    catalog = open_catalog("local", seaweed.properties(lends_keys=True))
    catalog.create_namespace(("db",))
    for name in ("events", "others"):
        table = create_table(catalog, ("db", name), SCHEMA, location=f"{catalog.warehouse}/db/{name}/_table")
        for number in range(3):
            table = append(table, events(number))
    return catalog


@pytest.fixture
def below(seaweed, lent):
    """The files below a table, by the keys of the one who may do all."""
    storage = open_storage(seaweed.store_properties)
    return lambda table: {file.location for file in storage.list(table.metadata.location)}


def test_keys_that_are_lent_for_a_table_reach_no_other(lent):
    table, other = lent.load(EVENTS), lent.load(("db", "others"))
    assert table.storage.read(table.metadata_location)
    with pytest.raises(UsageError, match="the store denies access"):
        table.storage.read(other.metadata_location)
    with pytest.raises(UsageError, match="the store denies access"):
        list(table.storage.list(lent.warehouse))


def test_all_jobs_work_with_keys_that_reach_one_table(lent, below):
    rows = multiset(pa.concat_tables([events(number) for number in range(3)]))
    others = below(lent.load(("db", "others")))
    compact(lent.load(EVENTS), no_spark, options={"rewrite-all": "true"})
    rewrite_manifests(lent.load(EVENTS), no_spark)
    table = lent.load(EVENTS)
    before = below(table)
    now_ms = table.runtime.now_ms()
    expired = expire_snapshots(table, no_spark, older_than=now_ms, retain_last=1, trash=3, options={"grace": "0s"})
    assert expired.expired_snapshots_count > 2 < expired.deleted_data_files_count
    assert restore(lent.load(EVENTS), run=expired.run_id).restored_files_count == expired.deleted_files_count
    assert before - below(table) == set()
    assert remove_orphan_files(lent.load(EVENTS), no_spark).unreadable_tables == ()
    assert multiset(scan_rows(lent.load(EVENTS))) == rows
    plan = plan_drop_table(lent.load(EVENTS), no_spark, purge=True)
    purged = drop_table(lent.load(EVENTS), no_spark, purge=True, approve=plan.hash)
    assert (purged.status, purged.problems) == ("done", ())
    assert below(table) == set()
    assert below(lent.load(("db", "others"))) == others
    assert multiset(scan_rows(lent.load(("db", "others")))) == rows


@pytest.fixture(params=["SeaweedFS", "Nessie"])
def served(request):
    """The properties of an empty catalog of each server."""
    return request.getfixturevalue({"SeaweedFS": "seaweed", "Nessie": "nessie"}[request.param]).properties()


def test_a_listing_may_have_pages(served):
    catalog, paged = open_catalog("local", served), open_catalog("local", {**served, "rest-page-size": "2"})
    names = sorted((f"n{number}",) for number in range(5))
    for name in names:
        catalog.create_namespace(name)
        create_table(catalog, ("n0", f"t{name[0]}"), SCHEMA)
    assert paged.list_namespaces() == names
    assert paged.list_tables(("n0",)) == [("n0", f"t{name}") for (name,) in names]


def test_views_are_among_no_tables(served):
    catalog, foreign = open_catalog("local", served), RestCatalog("foreign", **served)
    catalog.create_namespace(("db",))
    table = append(create_table(catalog, EVENTS, SCHEMA), events(0))
    version = ViewVersion(
        version_id=1,
        timestamp_ms=table.metadata.last_updated_ms,
        schema_id=0,
        representations=[SQLViewRepresentation(type="sql", sql="select 1 as id", dialect="spark")],
        default_namespace=["db"],
    )
    foreign.create_view("db.view", foreign.load_table("db.events").schema(), version)
    assert catalog.list_tables(("db",)) == [EVENTS]
    with pytest.raises(NotFoundError, match=r"no table 'db.view' in catalog 'local'; there is 'db.events'"):
        catalog.load("db.view")
    assert compact(table, no_spark, options={"rewrite-all": "true"}).rewritten_data_files_count == 1
    assert foreign.view_exists("db.view")


class Ahead(SystemRuntime):
    """Clocks that a test sets forward."""

    seconds = 0

    def monotonic_ms(self):
        return super().monotonic_ms() + 1000 * self.seconds

    def now_ms(self):
        return super().now_ms() + 1000 * self.seconds


def test_a_token_that_is_about_to_end_is_replaced(seaweed, monkeypatch):
    """SeaweedFS gives tokens for an hour, each with the second of its beginning in it."""
    asked = []
    post = requests.Session.post
    runtime = Ahead()
    catalog = open_catalog("local", seaweed.properties(), runtime=runtime)
    monkeypatch.setattr(requests.Session, "post", lambda *of, **told: asked.append(of[1]) or post(*of, **told))
    catalog.create_namespace(("db",))
    catalog.list_namespaces()
    assert asked == [f"{seaweed.uri}/v1/oauth/tokens"]
    runtime.seconds = 3000
    catalog.list_namespaces()
    assert asked == 2 * [f"{seaweed.uri}/v1/oauth/tokens"]


def test_keys_that_are_about_to_end_are_replaced(seaweed, lent, monkeypatch):
    """SeaweedFS lends them for an hour."""
    asked = []
    lend = type(lent).storage_properties
    monkeypatch.setattr(type(lent), "storage_properties", lambda *of: asked.append(of[1:]) or lend(*of))
    runtime = Ahead()
    table = open_catalog("local", lent._properties, runtime=runtime).load(EVENTS)
    before = table.storage.read(table.metadata_location)
    assert asked == []
    runtime.seconds = 3500
    assert table.storage.read(table.metadata_location) == before
    assert asked == [(EVENTS, table.metadata_location)]


def test_requests_may_be_signed_as_aws_wants_it(seaweed):
    given = seaweed.properties()
    keys = {
        "client.access-key-id": seaweed.key,
        "client.secret-access-key": seaweed.secret,
        "client.region": "us-east-1",
    }
    signed = {key: value for key, value in given.items() if key not in ("credential", "oauth2-server-uri")}
    signed |= {**keys, "rest.sigv4-enabled": "true", "rest.signing-name": "s3tables"}
    catalog = open_catalog("local", signed)
    catalog.create_namespace(("db",))
    assert open_catalog("local", given).list_namespaces() == [("db",)]
    with pytest.raises(UsageError, match="refused: ForbiddenException"):
        open_catalog("local", {**signed, "client.secret-access-key": "wrong"}).list_namespaces()


def test_a_credential_that_is_wrong_is_refused_in_one_line(seaweed):
    wrong = {**seaweed.properties(), "credential": "admin:wrong"}
    with pytest.raises(
        UsageError, match=r"^catalog 'local' refused the credential: invalid_client: Invalid client"
    ) as no:
        open_catalog("local", wrong).list_namespaces()
    assert "wrong" not in no.value.message


def test_a_server_that_died_is_there_again_with_what_it_had(seaweed, nessie, served):
    catalog = open_catalog("local", served)
    catalog.create_namespace(("db",))
    table = append(create_table(catalog, EVENTS, SCHEMA), events(0))
    append(table, events(1))
    server = nessie if "branch" in served["uri"] else seaweed
    server.kill()
    try:
        with pytest.raises(UnavailableError, match=r"catalog 'local' (is out of reach|cannot be asked)"):
            compact(catalog.load(EVENTS), no_spark)
    finally:
        server.start()
    done = compact(catalog.load(EVENTS), no_spark, options={"rewrite-all": "true"})
    assert done.rewritten_data_files_count == 2
    assert multiset(scan_rows(catalog.load(EVENTS))) == multiset(pa.concat_tables([events(0), events(1)]))


@pytest.fixture(scope="module")
def lakana():
    server = LakanaServer()
    server.start()
    yield server
    server.close()


@pytest.mark.deep
def test_lakana_expires_tables_itself(lakana, tmp_path):
    properties = lakana.properties(tmp_path)
    catalog, foreign = open_catalog("local", properties), RestCatalog("foreign", **properties)
    name = ("bronze", "events")
    rows = [events(number) for number in range(6)]
    # A table is created at once: the server prepares none.
    made = foreign.create_table(name, SCHEMA)
    for some in rows:
        made.append(some)
    with pytest.raises(UsageError, match="Staged table creation is not implemented"):
        catalog.default_location(("bronze", "others"))
    assert compact(catalog.load(name), no_spark).rewritten_data_files_count == 6
    assert rewrite_manifests(catalog.load(name), no_spark).rewritten_manifests_count == 6
    before = catalog.load(name)
    now_ms = before.runtime.now_ms()
    with pytest.raises(UsageError, match="PermissionDenied: An Iceberg commit cannot remove snapshots"):
        expire_snapshots(before, no_spark, older_than=now_ms, retain_last=1)
    assert catalog.load(name).metadata == before.metadata
    assert multiset(foreign.load_table(name).scan().to_arrow()) == multiset(pa.concat_tables(rows))
    assert drop_table(before, no_spark).metadata_location == before.metadata_location
    # A 404 without the protocol's error may be a proxy's.
    with pytest.raises(OutcomeUnknownError, match="HTTP 404 Not Found"):
        catalog.register_table(name, before.metadata_location)
