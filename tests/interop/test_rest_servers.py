"""Our REST catalog against servers that others wrote: SeaweedFS, Nessie and Lakana."""

import pyarrow as pa
import pytest

from contracts.catalog_contract import RestCatalogContract
from icekeep.catalog.base import Committed
from icekeep.catalog.open import open_catalog
from icekeep.errors import MissingFileError, SafetyError, UsageError
from icekeep.maintenance.compaction.job import compact
from icekeep.maintenance.expiration.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.purge.job import drop_table, plan_drop_table
from icekeep.maintenance.restoring.job import restore
from icekeep.spec.requirements import requirements_for
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import SetSnapshotRef
from icekeep.storage.open import open_storage
from icekeep.tables.append import append
from icekeep.tables.create import create_table
from kit.catalogs import EVENTS, add_snapshot
from kit.lake import SCHEMA, events, multiset
from kit.naive_scan import scan_rows
from kit.no_spark import no_spark
from kit.servers.rest import NessieServer, SeaweedServer


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
    test_what_is_no_metadata_or_in_no_namespace_is_not_registered = None
    test_a_table_whose_snapshot_is_gone_is_not_registered = None

    @pytest.fixture
    def properties(self, seaweed):
        return seaweed.new_catalog()

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

    def test_a_drop_that_was_to_keep_the_files_says_that_they_are_gone(self, catalog, create, files):
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
    test_what_stands_in_the_way_of_refused_metadata_does_not_hide_the_conflict = None

    @pytest.fixture
    def properties(self, nessie):
        return nessie.new_catalog()

    @pytest.fixture
    def files(self, seaweed):
        return lambda: {file.location for file in open_storage(seaweed.store_properties).list("s3://nessie")}

    def test_a_table_is_put_below_the_warehouse_by_its_name(self, catalog):
        assert catalog.default_location(EVENTS).startswith("s3://nessie/db/events_")

    def test_two_writers_of_an_empty_table_may_both_believe_that_they_were_the_first(self, catalog, other, create):
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
    catalog = open_catalog("local", seaweed.new_vending_catalog())
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
