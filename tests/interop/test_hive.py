"""Hive's own metastores, 3.1.3 and 4.0.1, over Derby and over PostgreSQL."""

from collections.abc import Iterator

import pytest
from hive_metastore.ttypes import FieldSchema, SerDeInfo, StorageDescriptor, Table

from contracts.catalog_contract import HiveCatalogContract
from icekeep.catalog.base import Committed, Conflict
from icekeep.catalog.open import open_catalog
from icekeep.errors import PropertyError, UsageError
from icekeep.spec.updates import SetProperties
from kit.catalogs import EVENTS, set_counter, simple_metadata
from kit.postgres import Postgres
from kit.servers.catalogs import HiveMetastore

pytestmark = pytest.mark.deep


def started(release: str, postgres: Postgres | None = None) -> Iterator[HiveMetastore]:
    metastore = HiveMetastore(release, postgres)
    metastore.start()
    yield metastore
    metastore.close()


@pytest.fixture(scope="module")
def old_hive():
    yield from started("3.1.3")


@pytest.fixture(scope="module")
def new_hive(postgres):
    yield from started("4.0.1", postgres)


@pytest.fixture(scope="module")
def new_hive_on_derby():
    yield from started("4.0.1")


class HiveContract(HiveCatalogContract):
    # `default` is always there.
    test_nothing_is_found_in_a_catalog_that_was_never_used = None
    # Each database has a location, which is the metastore's own where it is given none.
    test_a_table_is_put_below_the_warehouse_by_its_name = None
    test_the_warehouse_is_above_new_tables = None

    @pytest.fixture
    def properties(self, server, tmp_path):
        properties = server.properties(tmp_path / "warehouse")
        # Each test has the metastore to itself.
        catalog = open_catalog("before", properties)
        for namespace in catalog.list_namespaces():
            for table in catalog.list_tables(namespace):
                catalog.drop(table)
            if namespace != ("default",):
                catalog.drop_namespace(namespace)
        return properties

    @pytest.fixture
    def catalog(self, properties, tmp_path):
        catalog = open_catalog("local", properties)
        catalog.create_namespace(("db",), {"location": (tmp_path / "warehouse" / "db.db").as_uri()})
        return catalog

    def test_a_table_may_have_any_ordinary_name(self, catalog, create):
        for name in self.names:
            create(("db", name))
        # Hive has names in small letters, and takes them in any.
        assert catalog.list_tables(("db",)) == sorted(("db", name.lower()) for name in self.names)
        assert catalog.load(("db", "EVENTS")).metadata == catalog.load(EVENTS).metadata

    def test_a_namespace_that_exists_is_an_error_unless_that_is_fine(self, catalog, other):
        for client in (catalog, other):
            with pytest.raises(UsageError, match="namespace 'db' exists already in catalog 'local'"):
                client.create_namespace(("db",))
            client.create_namespace(("db",), exists_ok=True)
        assert catalog.list_namespaces() == [("db",), ("default",)]

    def test_names_that_a_metastore_does_not_take(self, catalog, create, tmp_path):
        with pytest.raises(UsageError, match=r"the metastore refuses 'db.é': é is not a valid object name"):
            create(("db", "é"))
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class TestHive3(HiveContract):
    @pytest.fixture
    def server(self, old_hive):
        return old_hive


class TestHive4(HiveContract):
    @pytest.fixture
    def server(self, new_hive):
        return new_hive


def test_hive_4_on_derby_guards_commits_by_lock_alone(new_hive_on_derby, tmp_path):
    """The first commit of a process takes as long as the metastore tries: ten times two seconds."""
    catalog = open_catalog("local", new_hive_on_derby.properties(tmp_path / "warehouse"))
    catalog.create_namespace(("db",))
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    first = catalog.swap(table, [], set_counter(1))
    assert isinstance(first, Committed)
    assert isinstance(catalog.swap(table, [], set_counter(2)), Conflict)
    unlocked = catalog.swap(first.table, [], [SetProperties({"engine.hive.lock-enabled": "false"})])
    assert isinstance(unlocked, Committed)
    with pytest.raises(PropertyError, match="over another database than Derby"):
        catalog.swap(unlocked.table, [], set_counter(3))


def test_a_database_with_tables_of_other_kinds_is_listed(old_hive, tmp_path):
    """An insert-only table is shown to nobody who does not say that he knows of such, and would hide all others."""
    properties = old_hive.properties(tmp_path / "warehouse")
    catalog = open_catalog("local", properties)
    catalog.create_namespace(("mixed",))
    catalog.create(("mixed", "events"), simple_metadata(catalog.default_location(("mixed", "events"))))
    client = catalog._client()
    entry = Table(
        dbName="mixed",
        tableName="insert_only",
        sd=StorageDescriptor(
            cols=[FieldSchema("id", "bigint")],
            location=(tmp_path / "insert_only").as_uri(),
            inputFormat="org.apache.hadoop.mapred.TextInputFormat",
            outputFormat="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
            serdeInfo=SerDeInfo(serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
        ),
        tableType="MANAGED_TABLE",
        parameters={"transactional": "true", "transactional_properties": "insert_only"},
    )
    with client._opened() as metastore:
        metastore.create_table(entry)
    assert catalog.list_tables(("mixed",)) == [("mixed", "events")]
