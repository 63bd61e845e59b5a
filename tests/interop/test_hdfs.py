"""HDFS for real: a NameNode and a DataNode on this machine, reached by us and by Iceberg Java."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hdfs_native import Client

from contracts.catalog_contract import CatalogContract
from contracts.directories_contract import DirectoriesContract
from contracts.storage_contract import StorageContract
from icekeep.catalog.open import open_catalog
from icekeep.errors import (
    MissingFileError,
    NotFoundError,
    OptionError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.operations.doctor.driver import Notes
from icekeep.operations.doctor.places import StorePlace, look_at_store
from icekeep.runtime import SYSTEM
from icekeep.storage.base import DeleteStatus
from icekeep.storage.hdfs.client import hdfs_path
from icekeep.storage.hdfs.storage import HdfsStorage
from icekeep.tables.verbs import append
from kit.catalogs import (
    EVENTS,
    check_history,
    check_nothing_is_left,
    conflicts_of,
    names,
    our_rows,
    racing_table,
    row,
    rows_of,
    set_counter,
    simple_metadata,
    start_appending,
)
from kit.cluster import JOBS, ClusterTable, check_done, site_on_s3
from kit.java import IcebergJava
from kit.object_store import ObjectStore
from kit.postgres import Postgres
from kit.rows import multiset
from kit.small_servers import TcpProxy
from kit.storage import contents
from kit.submitting import Hdfs, Standalone, Submitter, bare_python, python_with_wheels, zipped_package

pytestmark = pytest.mark.deep

RENAME = b"rename2"
CLOSED_PORT = 1
IMPATIENT = {"dfs.client.failover.max.attempts": "0"}


@pytest.fixture(scope="module")
def hdfs() -> Iterator[Hdfs]:
    cluster = Hdfs()
    yield cluster
    cluster.close()


@pytest.fixture
def storage():
    return HdfsStorage({})


@pytest.fixture
def root(hdfs):
    return hdfs.new_root()


@pytest.fixture
def proxy(hdfs):
    proxy = TcpProxy(hdfs.port)
    yield proxy
    proxy.close()


@pytest.fixture
def by_name(hdfs):
    """The properties by which `hdfs://lake` is the cluster: its second NameNode, the first one being out of reach."""
    return nameservice(CLOSED_PORT, hdfs.port)


@pytest.fixture
def behind(proxy, root):
    """The storage through the proxy: what is done with `root` below `behind.root` happens in the same directory."""
    behind = HdfsStorage(nameservice(proxy.port))
    behind.root = f"hdfs://lake/{root.rpartition('/')[2]}"
    return behind


def nameservice(*ports):
    """Properties that make `hdfs://lake` known, with a NameNode behind each port."""
    ids = [f"nn{n}" for n in range(len(ports))]
    addresses = {f"dfs.namenode.rpc-address.lake.{i}": f"127.0.0.1:{p}" for i, p in zip(ids, ports, strict=True)}
    known = {"dfs.nameservices": "lake", "dfs.ha.namenodes.lake": ",".join(ids), **addresses}
    return {**known, "dfs.client.failover.sleep.base.millis": "10"}


def test_the_doctor_finds_it_well_and_leaves_nothing(storage, root):
    notes = Notes()
    assert look_at_store(notes, StorePlace(storage, f"{root}/wh"), SYSTEM)
    result = notes.result(0)
    assert [(one.check, one.status) for one in result.findings if one.status != "ok"] == []
    assert len(result.findings) == 7
    assert storage.child_names(root) == []


def renaming_to(location):
    """What the request to rename a temporary file to a location contains: the target follows the source, both with lengths."""
    path = hdfs_path(location).path.encode()
    return b".tmp\x12" + bytes([len(path)]) + path


def rewrite(location, data):
    """Replace a file, as no storage of ours would."""
    client = Client(location[: location.index("/", len("hdfs://"))])
    client.delete(hdfs_path(location).path)
    with client.create(hdfs_path(location).path) as stream:
        stream.write(data)


class TestHdfsStorage(StorageContract, DirectoriesContract):
    @pytest.fixture
    def storage(self, storage):
        return storage

    @pytest.fixture
    def root(self, root):
        return root

    # All names of the contract but `a:b`, which HDFS cannot have.
    @pytest.mark.parametrize(
        "name", [" ", "%2F", "e\u0301", "\n", "-rf", "~", "*", "\\", "'", '"', "...", "\U0001f9ca", "+", "{a,b}", "[a]"]
    )
    def test_any_name_is_taken_literally(self, storage, root, name):
        super().test_any_name_is_taken_literally(storage, root, name)


class TestFilesystemCatalogInHdfs(CatalogContract):
    """The catalog's files lie in HDFS below a path that is, locally, `tmp_path`."""

    @pytest.fixture
    def properties(self, hdfs, tmp_path):
        return {"type": "hadoop", "warehouse": f"{hdfs.uri}{tmp_path}/warehouse"}

    @pytest.fixture
    def files(self, hdfs, storage, tmp_path):
        def files():
            return {n for n in contents(storage, f"{hdfs.uri}{tmp_path}") if not n.endswith("version-hint.text")}

        return files

    def test_nothing_is_found_in_a_catalog_that_was_never_used(self, properties, tmp_path, hdfs, storage):
        super().test_nothing_is_found_in_a_catalog_that_was_never_used(properties, tmp_path)
        assert not storage.directory_exists(f"{hdfs.uri}{tmp_path}")

    def test_keys_that_nobody_knows_survive_a_swap(self, catalog, create, storage):
        location = create().metadata_location
        rewrite(location, json.dumps({**json.loads(storage.read(location)), "x-new-key": {"deep": [1]}}).encode())
        table = catalog.swap(catalog.load(EVENTS), [], set_counter(1)).table
        assert json.loads(storage.read(table.metadata_location))["x-new-key"] == {"deep": [1]}

    def test_unreadable_metadata_error_names_file(self, catalog, create):
        location = create().metadata_location
        rewrite(location, b"{}")
        with pytest.raises(Exception, match=location) as raised:
            catalog.load(EVENTS)
        assert raised.value.kind == "invalid-table"


def test_a_percent_sign_is_plain_and_a_colon_is_refused(storage, root):
    assert hdfs_path("hdfs://nn:8020//db/./a/../p=x%2Fy/") == ("nn:8020", "/db/p=x%2Fy")
    assert hdfs_path("hdfs://lake/") == ("lake", "/")
    location = f"{root}/at=12:00/file"
    for use in (storage.read, storage.head, storage.make_directory, lambda o: storage.create(o, b"")):
        with pytest.raises(UnsupportedError, match=r"at=12:00/file' cannot be in HDFS: no name .* a colon"):
            use(location)
    assert [outcome.status for outcome in storage.delete_many([location])] == [DeleteStatus.FAILED]


def test_a_name_that_is_too_long_is_refused_in_one_line(storage, root):
    with pytest.raises(Exception, match=r"cannot create .*: the maximum path component name limit") as raised:
        storage.create(f"{root}/{'n' * 256}", b"")
    assert (raised.value.kind, "\n" in str(raised.value)) == ("invalid-table", False)


def test_a_name_that_a_directory_has_is_taken(storage, root):
    storage.make_directory(f"{root}/taken")
    storage.create(f"{root}/file", b"data")
    for use in (
        lambda: storage.create(f"{root}/taken", b""),
        lambda: storage.write(f"{root}/taken").__enter__(),
        lambda: storage.move(f"{root}/file", f"{root}/taken"),
        lambda: storage.make_directory(f"{root}/file"),
    ):
        with pytest.raises(FileExistsError):
            use()
    assert contents(storage, root) == {"file": b"data"}


def test_directories_are_no_files(storage, root):
    storage.create(f"{root}/dir/file", b"data")
    storage.make_directory(f"{root}/empty")
    assert [outcome.status for outcome in storage.delete_many([f"{root}/empty"])] == [DeleteStatus.FAILED]
    assert storage.directory_exists(f"{root}/empty")
    with pytest.raises(MissingFileError, match="there is no such file"):
        storage.move(f"{root}/dir", f"{root}/other")
    with pytest.raises(MissingFileError, match="there is no such file"):
        storage.read(f"{root}/dir")
    with pytest.raises(MissingFileError, match="there is no such directory"):
        storage.remove_directory(f"{root}/dir/file")
    assert contents(storage, root) == {"dir/file": b"data"}


def test_a_file_is_not_moved_to_another_cluster(storage, root):
    storage.create(f"{root}/file", b"data")
    with pytest.raises(UnsupportedError, match="they are in different stores"):
        storage.move(f"{root}/file", "hdfs://elsewhere:8020/file")


def test_a_listing_of_many_batches_is_complete(storage, root):
    wanted = {f"{root}/{n % 7}/{n}" for n in range(47)} | {f"{root}/{n}" for n in range(10, 22)}
    for location in wanted:
        storage.create(location, b"")
    assert {info.location for info in storage.list(root)} == wanted
    assert len(storage.child_names(root)) == 19


def test_ranges_of_a_large_file(storage, root):
    data = os.urandom(5_000_011)
    with storage.write(f"{root}/large") as stream:
        for start in range(0, len(data), 700_001):
            stream.write(memoryview(data)[start : start + 700_001])
    assert storage.read(f"{root}/large", len(data)) == data
    with storage.open(f"{root}/large") as stream:
        for start, length in ((4_999_990, 100), (1, 3_000_000), (0, 1), (5_000_011, 5), (9_000_000, 5)):
            assert stream.seek(start) == start
            assert stream.read(length) == data[start : start + length]
        with pytest.raises(ValueError, match="before the beginning"):
            stream.seek(-1)


def test_a_store_without_a_namenode_is_unavailable():
    storage = HdfsStorage(IMPATIENT)
    root = f"hdfs://127.0.0.1:{CLOSED_PORT}/x"
    for use in (
        storage.read,
        storage.head,
        storage.directory_exists,
        storage.capabilities,
        lambda o: list(storage.list(o)),
    ):
        with pytest.raises(UnavailableError, match=rf"'{root}': .*refused"):
            use(root)
    with pytest.raises(UnavailableError, match=r"cannot create .*refused"):
        storage.create(root, b"")
    (outcome,) = storage.delete_many([root])
    assert (outcome.status, "refused" in outcome.reason) == (DeleteStatus.FAILED, True)


def test_a_namenode_in_safe_mode_serves_readers_only(hdfs, storage, root):
    storage.create(f"{root}/file", b"data")
    with hdfs.safe_mode():
        assert contents(storage, root) == {"file": b"data"}
        for use in (
            lambda: storage.create(f"{root}/new", b""),
            lambda: storage.write(f"{root}/new").__enter__(),
            lambda: storage.move(f"{root}/file", f"{root}/new"),
            lambda: storage.make_directory(f"{root}/new"),
            lambda: storage.capabilities(root),
        ):
            with pytest.raises(UnavailableError, match=r"': the NameNode is in safe mode$"):
                use()
        (outcome,) = storage.delete_many([f"{root}/file"])
        assert outcome.status is DeleteStatus.FAILED
    assert contents(storage, root) == {"file": b"data"}


def test_a_directory_that_is_full_is_unavailable(hdfs, storage, root):
    storage.make_directory(root)
    hdfs.allow_names(hdfs_path(root).path, 1)
    with pytest.raises(UnavailableError, match=r"cannot create .*quota"):
        storage.create(f"{root}/file", b"data")


def test_who_may_not_is_told_so(storage, root, monkeypatch):
    storage.create(f"{root}/file", b"data")
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    stranger = HdfsStorage({})
    assert stranger.read(f"{root}/file") == b"data"
    for use in (
        lambda: stranger.create(f"{root}/new", b""),
        lambda: stranger.move(f"{root}/file", f"{root}/new"),
        lambda: stranger.make_directory(f"{root}/new"),
    ):
        with pytest.raises(UsageError, match=r"permission denied: user=mallory, .*; run as a user who may"):
            use()
    (outcome,) = stranger.delete_many([f"{root}/file"])
    assert outcome.status is DeleteStatus.FAILED
    assert contents(storage, root) == {"file": b"data"}


def test_user_may_be_property_but_is_one_per_process(hdfs, storage, root, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "")
    monkeypatch.delenv("HADOOP_USER_NAME")
    storage.make_directory(root)
    path = hdfs_path(root).path
    Client(hdfs.uri).set_permission(path, 0o777)
    HdfsStorage({"hdfs.user": "alice"}).create(f"{root}/file", b"")
    assert Client(hdfs.uri).get_file_info(f"{path}/file").owner == "alice"
    with pytest.raises(UsageError, match=r"hdfs.user is 'bob', but this process talks to HDFS as .* 'alice'"):
        HdfsStorage({"hdfs.user": "bob"}).head(f"{root}/file")


def test_permissions_are_hadoop_defaults_or_by_umask(hdfs, root):
    for mask, of_file, of_directory in (("", 0o644, 0o755), ("002", 0o664, 0o775)):
        storage = HdfsStorage({"fs.permissions.umask-mode": mask} if mask else {})
        storage.make_directory(f"{root}/{mask}_")
        storage.create(f"{root}/{mask}_/file", b"")
        path = hdfs_path(f"{root}/{mask}_").path
        assert Client(hdfs.uri).get_file_info(path).permission == of_directory
        assert Client(hdfs.uri).get_file_info(f"{path}/file").permission == of_file
    with pytest.raises(OptionError, match="umask-mode is 'u=rwx'"):
        HdfsStorage({"fs.permissions.umask-mode": "u=rwx"})


def test_a_nameservice_leads_to_the_namenode_that_answers(by_name, storage, root):
    HdfsStorage(by_name).create(f"hdfs://lake{hdfs_path(root).path}/file", b"data")
    assert contents(storage, root) == {"file": b"data"}
    HdfsStorage({f"hadoop.{key}": value for key, value in by_name.items()}).read(
        f"hdfs://lake{hdfs_path(root).path}/file"
    )


def test_a_location_without_a_host_is_in_the_default_file_system(hdfs, storage, root, tmp_path, monkeypatch):
    storage.create(f"{root}/file", b"data")
    path = f"hdfs://{hdfs_path(root).path}/file"
    assert HdfsStorage({"hdfs.host": "127.0.0.1", "hdfs.port": str(hdfs.port)}).read(path) == b"data"
    assert HdfsStorage({"fs.defaultFS": hdfs.uri}).read(path) == b"data"
    site = "<configuration><property><name>fs.defaultFS</name><value>{}</value></property></configuration>"
    (tmp_path / "core-site.xml").write_text(site.format(hdfs.uri))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert HdfsStorage({}).read(path) == b"data"
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with pytest.raises(UsageError, match=r"no fs.defaultFS setting found; check the catalog's properties"):
        HdfsStorage({}).read(path)


def test_a_host_without_a_port_has_hadoops_port():
    with pytest.raises(UnavailableError, match="refused"):
        HdfsStorage(IMPATIENT).read("hdfs://127.0.0.1/file")


@pytest.mark.parametrize("authority", ["h:port", "[", "a b"])
def test_an_authority_that_makes_no_sense_is_refused_in_one_line(authority):
    with pytest.raises(UsageError, match=r"cannot reach 'hdfs://.*; check the catalog's properties") as raised:
        HdfsStorage(IMPATIENT).read(f"hdfs://{authority}/file")
    assert "\n" not in str(raised.value)


def test_create_with_lost_answer_is_settled_by_temporary_name(behind, proxy, storage, root):
    proxy.lose_answer(RENAME)
    behind.create(f"{behind.root}/file", b"data")
    assert not proxy.is_waiting
    assert contents(storage, root) == {"file": b"data"}


def test_lost_create_request_proves_nothing_was_created(behind, proxy, storage, root):
    proxy.lose_request(RENAME)
    with pytest.raises(UnavailableError, match=r"cannot create"):
        behind.create(f"{behind.root}/file", b"data")
    assert not proxy.is_waiting
    assert contents(storage, root) == {}


@pytest.fixture
def hasty(proxy, behind):
    """As `behind`, and it gives up calls soon."""
    hasty = HdfsStorage(nameservice(proxy.port) | {"ipc.client.rpc-timeout.ms": "1000"})
    hasty.make_directory(behind.root)
    return hasty


def test_an_answer_that_does_not_come_is_not_waited_for_forever(behind, hasty, proxy, storage, root):
    proxy.swallow_answer(RENAME)
    hasty.create(f"{behind.root}/file", b"data")
    assert not proxy.is_waiting
    assert contents(storage, root) == {"file": b"data"}


def test_a_namenode_that_goes_silent(hdfs, behind, hasty, proxy, storage, root):
    proxy.before(RENAME, hdfs.pause)
    try:
        with pytest.raises(OutcomeUnknownError, match=r"was created: no answer in 1 seconds$"):
            hasty.create(f"{behind.root}/file", b"data")
        with pytest.raises(UnavailableError, match=r"cannot look at .*: no answer in 1 seconds$"):
            hasty.head(f"{behind.root}/file")
    finally:
        hdfs.go_on()
    while storage.head(f"{root}/file") is None:
        assert not proxy.is_waiting
    assert contents(storage, root) == {"file": b"data"}


@pytest.mark.parametrize("data", [b"ours", b"theirs"])
def test_create_overtaken_by_writer_finds_name_taken(behind, proxy, storage, root, data):
    proxy.before(RENAME, lambda: storage.create(f"{root}/file", b"theirs"))
    with pytest.raises(FileExistsError):
        behind.create(f"{behind.root}/file", data)
    assert not proxy.is_waiting
    assert contents(storage, root) == {"file": b"theirs"}


def after_rename(monkeypatch, act):
    """Let something happen after each rename, before its caller hears of it."""
    rename = Client.rename

    def rename_and_act(client, source, target, overwrite=False):
        rename(client, source, target, overwrite)
        act(client, source, target)

    monkeypatch.setattr(Client, "rename", rename_and_act)


def test_a_rename_that_was_sent_twice(storage, root, monkeypatch):
    rename = Client.rename
    after_rename(monkeypatch, lambda client, source, target: rename(client, source, target))
    storage.create(f"{root}/file", b"data")
    storage.move(f"{root}/file", f"{root}/moved")
    assert contents(storage, root) == {"moved": b"data"}


@pytest.mark.parametrize("replaced", [None, b"theirs"])
def test_file_gone_after_rename_leaves_outcome_unknown(storage, root, monkeypatch, replaced):
    def lose(client, source, target):
        client.delete(target)
        if replaced is not None:
            with client.create(target) as stream:
                stream.write(replaced)
        raise OSError("connection reset")

    after_rename(monkeypatch, lose)
    with pytest.raises(OutcomeUnknownError, match=r"file '[^ ]*/file' was created: connection reset$"):
        storage.create(f"{root}/file", b"data")


def test_a_namenode_that_refuses_to_settle_it(hdfs, storage, root, monkeypatch):
    def fail(*_, **__):
        raise OSError("connection reset")

    storage.make_directory(root)
    with monkeypatch.context() as patched:
        patched.setattr(Client, "rename", fail)
        patched.setattr(Client, "delete", fail)
        with pytest.raises(OutcomeUnknownError, match="connection reset"):
            storage.create(f"{root}/file", b"data")
    (name,) = contents(storage, root)
    assert name.endswith(".tmp")
    assert not name.startswith((".", "_"))


def test_a_temporary_name_that_is_taken_creates_nothing(storage, root, monkeypatch):
    monkeypatch.setattr(storage._runtime, "new_uuid", lambda: "the-same", raising=False)
    with storage.write(f"{root}/the-same.tmp"):
        pass
    with pytest.raises(UnavailableError, match=r"its temporary file '.*/the-same.tmp' exists already"):
        storage.create(f"{root}/file", b"data")
    assert contents(storage, root) == {"the-same.tmp": b""}


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_refusal_to_overwrite_is_what_keeps_the_first_file(storage, root, monkeypatch, overwrite):
    """With a rename that overwrites, all of eight writers would believe that they created the one name."""
    rename = Client.rename
    monkeypatch.setattr(Client, "rename", lambda client, source, target, **_: rename(client, source, target, overwrite))
    barrier = threading.Barrier(8)
    won = []

    def create(data):
        barrier.wait()
        try:
            storage.create(f"{root}/file", data)
        except FileExistsError:
            return
        won.append(data)

    storage.make_directory(root)
    threads = [threading.Thread(target=create, args=(b"%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.read(f"{root}/file") in won
    assert len(won) == (8 if overwrite else 1)


def test_overwriting_store_is_not_proved_and_takes_no_commit(hdfs, tmp_path, monkeypatch):
    rename = Client.rename
    monkeypatch.setattr(Client, "rename", lambda client, source, target, **_: rename(client, source, target, True))
    catalog = open_catalog("local", {"type": "hadoop", "warehouse": f"{hdfs.uri}{tmp_path}"})
    catalog.create_namespace(("db",))
    with pytest.raises(SafetyError, match="cannot commit below"):
        catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    with pytest.raises(NotFoundError):
        catalog.load(EVENTS)


def test_the_proof_is_made_once(storage, root, monkeypatch):
    renames = []
    after_rename(monkeypatch, lambda client, source, target: renames.append(target))
    for location in (root, f"{root}/a", root):
        assert storage.capabilities(location).exclusive_create
    assert len(renames) == 1


@pytest.fixture
def lake(by_name, root):
    """Properties of a filesystem catalog in a nameservice, with an empty namespace `db`."""
    properties = {"type": "hadoop", "warehouse": f"hdfs://lake{hdfs_path(root).path}", **by_name}
    open_catalog("local", properties).create_namespace(("db",))
    return properties


def test_a_commit_whose_answer_is_lost_is_committed_peers_10(lake, proxy):
    table = racing_table(lake)
    behind = open_catalog("local", lake | nameservice(proxy.port)).load(EVENTS)
    behind.storage.capabilities(behind.metadata.location)
    proxy.lose_answer(renaming_to(f"{table.metadata.location}/metadata/v2.metadata.json"))
    after = append(append(behind, row("a", 0)), row("a", 1))
    assert not proxy.is_waiting
    loaded = open_catalog("local", lake).load(EVENTS)
    assert loaded.metadata == after.metadata
    assert our_rows(loaded) == rows_of({"a": 2})
    check_history(loaded, 2)
    assert table.metadata.table_uuid == loaded.metadata.table_uuid


def test_a_commit_that_another_writer_overtakes_is_tried_again(lake, proxy):
    table = racing_table(lake)
    behind = open_catalog("local", lake | nameservice(proxy.port)).load(EVENTS)
    behind.storage.capabilities(behind.metadata.location)
    second = f"{table.metadata.location}/metadata/v2.metadata.json"
    proxy.before(renaming_to(second), lambda: append(table, row("a", 0)))
    append(behind, row("b", 0))
    assert not proxy.is_waiting
    loaded = open_catalog("local", lake).load(EVENTS)
    assert our_rows(loaded) == rows_of({"a": 1, "b": 1})
    assert conflicts_of(loaded) == 1
    check_history(loaded, 2)
    check_nothing_is_left(loaded)


def test_four_processes_lose_no_commit_and_double_none(lake, tried):
    racing_table(lake)
    start_appending(lake, writers=4, commits=10).finish()
    table = open_catalog("local", lake).load(EVENTS)
    assert our_rows(table) == rows_of(dict.fromkeys(names(4), 10))
    check_history(table, 40)
    check_nothing_is_left(table)
    assert conflicts_of(table) >= 10
    tried("commits of processes racing in HDFS", 40)
    tried("conflicts that they met in HDFS", conflicts_of(table))


def test_java_and_we_commit_to_one_table_in_turn(hdfs, java: IcebergJava, root):
    """Judged by Iceberg Java: its HadoopCatalog reads what we committed, commits to it, and we go on from there."""
    properties = {"type": "filesystem", "warehouse": root}
    catalog = open_catalog("local", properties)
    table = append(racing_table(properties), row("ours", 0))
    java.open_catalog("in_hdfs", properties)
    assert java.rows("in_hdfs.db.events") == multiset([["ours", 0]])
    java.append("in_hdfs.db.events", [["theirs", 0], ["theirs", 1]])
    # Ours is made from a table value that has not seen theirs.
    table = append(table, row("ours", 1))
    assert our_rows(table) == rows_of({"ours": 2, "theirs": 2})
    assert java.rows("in_hdfs.db.events") == multiset([["ours", 0], ["ours", 1], ["theirs", 0], ["theirs", 1]])
    assert table.metadata_location == f"{root}/db/events/metadata/v4.metadata.json"
    assert catalog.load(EVENTS).metadata == table.metadata


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    cluster = Standalone(bare_python(tmp_path / "bare"), workers=1)
    yield cluster
    cluster.close()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    server = ObjectStore()
    yield server
    server.close()


def test_jobs_on_a_cluster(
    cluster: Standalone, store: ObjectStore, postgres: Postgres, java: IcebergJava, tmp_path: Path
) -> None:
    """Tables lie on S3, their catalog in PostgreSQL."""
    site = site_on_s3(store, postgres.new_database(), java, tmp_path)
    python = python_with_wheels(tmp_path / "wheels")
    submitter = Submitter.with_zip(tmp_path / "edge", site.properties, cluster.master, zipped_package(tmp_path), python)
    table = ClusterTable(site, "events")
    for name in ("compact", "expire"):
        before = table.operations()
        done = submitter.run(JOBS[name].job, *JOBS[name].arguments, table=table.name, in_tasks=True)
        check_done(JOBS[name], done, table, before)
        assert submitter.events().task_counts
