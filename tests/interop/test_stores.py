"""Object stores for real: each server keeps to the contract of storages, refuses wrong credentials, and is waited for."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import GetTableRequest

from contracts.life_contract import JOBS, TRY_AGAIN, TableLife
from contracts.storage_contract import ObjectStorageContract
from icekeep.errors import UnavailableError, UsageError
from icekeep.runtime import SYSTEM
from icekeep.storage.location_keys import path_keys
from icekeep.storage.objects.storage import ObjectStorage
from interop.servers import SERVERS
from kit.servers.catalogs import HiveMetastore, NessieServer, SeaweedServer
from kit.servers.gcs import FakeGcsServer
from kit.servers.stores import Azurite, MinIO, SeaweedFS
from kit.shell import ROOT

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    server = Azurite()
    yield server
    server.close()


@pytest.fixture(scope="module")
def minio() -> Iterator[MinIO]:
    server = MinIO()
    yield server
    server.close()


@pytest.fixture(scope="module")
def seaweedfs() -> Iterator[SeaweedFS]:
    server = SeaweedFS()
    yield server
    server.close()


@pytest.fixture(scope="module")
def fake_gcs_server() -> Iterator[FakeGcsServer]:
    server = FakeGcsServer()
    yield server
    server.close()


class RealStoreContract(ObjectStorageContract):
    """What a server does besides, that has credentials and may go away."""

    WRONG: tuple[dict[str, str], ...]

    def test_wrong_credentials_are_told(self, server, root):
        ObjectStorage(server.properties(), SYSTEM).create(f"{root}/file", b"1")
        for wrong in self.WRONG:
            storage = ObjectStorage(server.properties(**wrong), SYSTEM)
            for use in (storage.read, storage.head, storage.capabilities, storage.child_names):
                with pytest.raises(UsageError, match="the store denies access"):
                    use(f"{root}/file")
            with pytest.raises(UsageError, match="the store denies access"):
                storage.create(f"{root}/other", b"")
            with pytest.raises(UsageError, match="the store denies access"):
                list(storage.list(root))
            (outcome,) = storage.delete_many([f"{root}/file"])
            assert "the store denies access" in outcome.reason
        assert server.names(root) == ["file"]

    def test_a_server_that_was_away_has_what_it_had(self, server, storage, root):
        storage.create(f"{root}/file", b"1")
        server.kill()
        with pytest.raises(
            UnavailableError, match=f"cannot read '{root}/file': no connection to the store can be made"
        ):
            storage.read(f"{root}/file")
        server.start()
        assert storage.read(f"{root}/file") == b"1"
        storage.create(f"{root}/other", b"2")
        assert server.names(root) == ["file", "other"]


class TakesBackslashesForSlashes(RealStoreContract):
    NAMES = tuple(name for name in ObjectStorageContract.NAMES if name != "\\")

    def test_backslash_name_equals_listed_name(self, storage, root):
        """Or a file that metadata names so would be deleted as an orphan."""
        storage.create(f"{root}/a\\b", b"1")
        (listed,) = storage.list(root)
        assert listed.location == f"{root}/a/b"
        assert path_keys(pa.array([listed.location])) == path_keys(pa.array([f"{root}/a\\b"]))


class TestAzurite(TakesBackslashesForSlashes):
    BUCKET = "container"
    # More than it deletes by one request; it creates twenty a second.
    MANY = 600
    WRONG = ({"adls.account-key": "bm90IHRoZSBrZXk="},)

    @pytest.fixture
    def server(self, azurite):
        return azurite

    def test_another_account_is_told(self, server, storage, root):
        storage.create(f"{root}/file", b"1")
        with pytest.raises(UsageError, match="there is no such container"):
            ObjectStorage(server.properties(**{"adls.account-name": "another"}), SYSTEM).read(f"{root}/file")


class TestMinIO(RealStoreContract):
    WRONG = ({"s3.secret-access-key": "another secret"}, {"s3.access-key-id": "another"})

    @pytest.fixture
    def server(self, minio):
        return minio


class TestMinIOWithVersioning(TestMinIO):
    KEEPS_VERSIONS = True

    @pytest.fixture
    def root(self, minio):
        return minio.new_root(is_versioned=True)

    def test_what_was_deleted_stays_as_an_older_version(self, server, storage, root):
        storage.create(f"{root}/a", b"1")
        storage.move(f"{root}/a", f"{root}/b")
        storage.delete_many([f"{root}/b"])
        assert server.names(root) == []
        # What proved that the store can move leaves versions too.
        assert {"a", "b"} <= set(server.versions(root))


class TestSeaweedFS(TakesBackslashesForSlashes):
    WRONG = ({"s3.secret-access-key": "another secret"}, {"s3.access-key-id": "another"})

    @pytest.fixture
    def server(self, seaweedfs):
        return seaweedfs

    def test_a_bucket_that_is_not_there_is_told(self, storage, root):
        """To what reads: a write by an administrator makes the bucket."""
        with pytest.raises(UsageError, match="there is no such bucket"):
            storage.read(f"{root.rpartition('/')[0]}-not-there/wh/a")


class TestFakeGcsServer(RealStoreContract):
    tells_missing = True
    # More than a page; each request takes three of Python's.
    MANY = 1100
    # It asks for no credentials.
    test_wrong_credentials_are_told = None

    @pytest.fixture
    def server(self, fake_gcs_server):
        return fake_gcs_server


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


class TestMinIOLife(StoreLife):
    wrong = ({"s3.secret-access-key": "somebody else's"}, "the store denies access")

    def make_old(self, server, location):
        server.make_old(location)
        return True

    @pytest.fixture(scope="class")
    def server(self):
        server = MinIO()
        yield server
        server.close()


class TestMinIOWithVersions(TestMinIOLife):
    def make_old(self, server, location):
        """Of several versions the one with the latest time is what an object is, so that an old one changes nothing."""
        return False

    @pytest.fixture
    def root(self, server):
        return server.new_root(is_versioned=True)


class TestAzuriteLife(StoreLife):
    wrong = ({"adls.account-key": "c29tZWJvZHkgZWxzZSdzIGtleQ=="}, "the store denies access")

    @pytest.fixture(scope="class")
    def server(self):
        server = Azurite()
        yield server
        server.close()


class TestFakeGcsServerLife(StoreLife):
    # The emulator asks for no credentials.
    test_wrong_credentials_are_one_line_and_no_outage = None

    @pytest.fixture(scope="class")
    def server(self):
        server = FakeGcsServer()
        yield server
        server.close()


class TestSeaweedFSLife(TableLife):
    is_on_disk = False
    # Names have lower-case letters, digits, `_` and `-`.
    test_names_that_addresses_must_quote_are_names_like_others = None
    wrong = ({"credential": "admin:somebody else's"}, "refused the credential")
    # Elsewhere a bucket of tables has no `.icekeep/`.
    location = "{warehouse}/{namespace}/{name}/_table"
    # Each drop deletes all files.
    test_dropped_table_can_be_registered_and_purged = None

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
