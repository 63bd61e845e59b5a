"""A table's whole life on servers that others wrote: catalogs of Hive and REST, stores of S3, Azure and Google's kind."""

import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import GetTableRequest

from contracts.life_contract import JOBS, TRY_AGAIN, TableLife
from interop.servers import SERVERS
from kit.servers.catalogs import HiveMetastore, NessieServer, SeaweedServer
from kit.servers.gcs import FakeGcsServer
from kit.servers.stores import Azurite, MinIO
from kit.shell import ROOT

pytestmark = pytest.mark.deep


def test_the_page_has_a_row_for_each_server():
    page = (ROOT / "docs/servers.md").read_text()
    rows = [f"| {server.name} | {server.release} |" for server in SERVERS]
    assert [row for row in rows if row not in page] == []


class HiveLife(TableLife):
    # Names have letters, digits and underscores.
    test_names_that_addresses_must_quote_are_names_like_others = None
    # Without Kerberos a metastore lets anyone in.
    test_wrong_credentials_are_one_line_and_no_outage = None

    @pytest.fixture
    def properties(self, server, tmp_path):
        return server.properties(tmp_path / "warehouse")


class TestHive3(HiveLife):
    @pytest.fixture(scope="class")
    def server(self):
        metastore = HiveMetastore("3.1.3")
        metastore.start()
        yield metastore
        metastore.close()


class TestHive4(HiveLife):
    @pytest.fixture(scope="class")
    def server(self, postgres):
        metastore = HiveMetastore("4.0.1", postgres)
        metastore.start()
        yield metastore
        metastore.close()

    @pytest.fixture(autouse=True)
    def pyiceberg_that_knows_it(self, monkeypatch):
        """PyIceberg as it would be if it asked for tables as Hive 4.0.1 wants it (iceberg-python#1653)."""
        monkeypatch.setattr(
            Client,
            "get_table",
            lambda self, dbname, tbl_name: self.get_table_req(GetTableRequest(dbname, tbl_name)).table,
        )


class StoreLife(TableLife):
    """A catalog in SQLite, whose tables lie in the store."""

    is_on_disk = False
    # PyIceberg, which makes the tables, cannot read below a name with `#`.
    odd_names = ("with blank", "50%", "übung", "a+b")

    @pytest.fixture
    def root(self, server):
        return server.new_root()

    @pytest.fixture
    def properties(self, server, root, tmp_path):
        return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": root, **server.properties()}


class TestMinIO(StoreLife):
    wrong = ({"s3.secret-access-key": "somebody else's"}, "the store denies access")

    def make_old(self, server, location):
        server.make_old(location)
        return True

    @pytest.fixture(scope="class")
    def server(self):
        server = MinIO()
        yield server
        server.close()


class TestMinIOWithVersions(TestMinIO):
    def make_old(self, server, location):
        """Of several versions the one with the latest time is what an object is, so that an old one changes nothing."""
        return False

    @pytest.fixture
    def root(self, server):
        return server.new_root(is_versioned=True)


class TestAzurite(StoreLife):
    wrong = ({"adls.account-key": "c29tZWJvZHkgZWxzZSdzIGtleQ=="}, "the store denies access")

    @pytest.fixture(scope="class")
    def server(self):
        server = Azurite()
        yield server
        server.close()


class TestFakeGcsServer(StoreLife):
    # The emulator asks for no credentials.
    test_wrong_credentials_are_one_line_and_no_outage = None

    @pytest.fixture(scope="class")
    def server(self):
        server = FakeGcsServer()
        yield server
        server.close()


class TestSeaweedFS(TableLife):
    is_on_disk = False
    # Names have lower-case letters, digits, `_` and `-`.
    test_names_that_addresses_must_quote_are_names_like_others = None
    wrong = ({"credential": "admin:somebody else's"}, "refused the credential")
    # Elsewhere a bucket of tables has no `.icekeep/`.
    location = "{warehouse}/{namespace}/{name}/_table"
    # Each drop deletes all files.
    test_a_dropped_table_is_registered_again_and_a_purge_leaves_nothing = None

    @pytest.fixture(scope="class")
    def server(self):
        server = SeaweedServer()
        server.start()
        yield server
        server.close()

    @pytest.fixture
    def properties(self, server):
        return server.properties()


class TestNessie(TableLife):
    is_on_disk = False
    deletes = False
    odd_names = ("with blank", "50%", "übung")
    wrong = ({"s3.secret-access-key": "somebody else's"}, "the store denies access")

    def test_jobs_win_beside_two_writers(self, life):
        """But `compact`, which may give up: Nessie does not show the snapshot that it began with any more."""
        with life.appending(writers=2):
            assert life.status("compact", *JOBS["compact"]) in (0, TRY_AGAIN)
            life.run("rewrite_manifests")
        life.assert_rows("beside writers")
        life.run("check", "--deep")

    @pytest.fixture(scope="class")
    def server(self):
        store = SeaweedServer()
        store.start()
        server = NessieServer(store)
        server.start()
        yield server
        server.close()
        store.close()

    @pytest.fixture
    def properties(self, server):
        return server.properties()
