"""Keys with empty parts (`db//events/f`), as Hive and Glue make them in S3, are files like others."""

import sys
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.storage_contract import StorageContract
from icekeep.errors import UnsupportedError, UsageError
from icekeep.runtime import SYSTEM
from icekeep.storage.base import Capabilities, DeleteStatus, MoveStatus
from icekeep.storage.objects import listing as object_pages
from icekeep.storage.objects import stores as object_roots
from icekeep.storage.objects.storage import ObjectStorage
from icekeep.storage.objects.stores import rooted, taken_apart
from kit.cases import cases
from kit.storage import contents


@pytest.fixture
def bucket(store):
    return store.new_bucket()


@pytest.fixture
def storage(store):
    return ObjectStorage(store.properties(), SYSTEM)


class TestBelowAnEmptyPart(StorageContract):
    tells_missing = False

    @pytest.fixture
    def storage(self, storage):
        return storage

    @pytest.fixture
    def root(self, bucket):
        return f"s3://{bucket}/d b//x=%2F/wh"

    def test_a_move_never_replaces_a_file(self, storage, root):
        """As everywhere, but that `./a` is refused."""
        storage.create(f"{root}/a", b"a")
        storage.create(f"{root}/b", b"b")
        for target in ("b", "a"):
            with pytest.raises(FileExistsError):
                storage.move(f"{root}/a", f"{root}/{target}")
        assert contents(storage, root) == {"a": b"a", "b": b"b"}

    @pytest.mark.parametrize(
        "name", [" ", "%2F", "e\u0301", "-rf", "~", "*", "\\", "'", '"', "...", "\U0001f9ca", "+", "&="]
    )
    def test_any_name_is_taken_literally(self, storage, root, store, name):
        """As everywhere, but for control characters, and another client finds the same names."""
        location = f"{root}/literal/{name}/x=a%2Fb%20?q#f"
        storage.create(location, name.encode())
        assert [info.location for info in storage.list(f"{root}/literal")] == [location]
        assert storage.read(location) == name.encode()
        assert store.keys(location.split("/")[2]) == [f"d b//x=%2F/wh/literal/{name}/x=a%2Fb%20?q#f"]


KEYS = ["db//t/data/x", "db//t", "/lead", "//lead", "a///b//c", "d b//x=%2F/é/+&?#~", "db//t//data"]


@pytest.mark.parametrize("key", KEYS)
def test_every_operation_is_on_the_very_key(storage, bucket, store, key):
    plain = "/".join(filter(None, key.split("/")))
    location = f"s3://{bucket}/{key}"
    store.client.put_object(Bucket=bucket, Key=plain, Body=b"another object")
    with storage.write(location) as stream:
        stream.write(b"data")
    assert store.client.get_object(Bucket=bucket, Key=key)["Body"].read() == b"data"
    assert storage.read(location, 4) == storage.open(location).read() == b"data"
    assert storage.head(location).size_bytes == 4
    with pytest.raises(FileExistsError):
        storage.create(location, b"other")
    if "/" in key.strip("/"):
        assert location in [info.location for info in storage.list(location.rpartition("/")[0])]
    assert [one.status for one in storage.delete_many([location])] == [DeleteStatus.DELETED]
    assert storage.head(location) is None
    assert store.keys(bucket) == [plain]


def test_a_large_file_is_sent_in_parts(storage, bucket, store):
    with storage.write(f"s3://{bucket}/db//t/large") as stream:
        stream.write(b"x" * (17 << 20))
    assert store.client.head_object(Bucket=bucket, Key="db//t/large")["ContentLength"] == 17 << 20
    assert store.keys(bucket) == ["db//t/large"]


@pytest.mark.parametrize("source", ["db//t/f", "db/t/f", "/f", "d b//x=%2F/f"])
@pytest.mark.parametrize("target", ["db//t/.trash/f", "other/f", "a//b//f"])
def test_files_are_moved_between_names_of_all_kinds(storage, bucket, store, source, target):
    storage.create(f"s3://{bucket}/{source}", b"data")
    (outcome,) = storage.move_many([(f"s3://{bucket}/{source}", f"s3://{bucket}/{target}")])
    assert outcome.status is MoveStatus.MOVED
    assert store.keys(bucket) == [target]
    assert storage.read(f"s3://{bucket}/{target}") == b"data"
    storage.create(f"s3://{bucket}/{source}", b"more")
    with pytest.raises(FileExistsError):
        storage.move(f"s3://{bucket}/{source}", f"s3://{bucket}/{target}")


def test_empty_part_stops_no_listing_and_is_listed_once(storage, bucket, store, monkeypatch):
    monkeypatch.setattr(object_pages, "PAGE_NAMES", 3)
    keys = [
        *(f"wh/t/data/{n}" for n in range(8)),
        "wh/t/data//a",
        "wh/t//b",
        "wh/t/",
        "wh/t/z//",
        "wh/t/z/9",
        "wh/t2//c",
    ]
    store.put_many(bucket, keys)
    expected = sorted(f"s3://{bucket}/{key}" for key in keys if key.startswith("wh/t/") and not key.endswith("/"))
    for prefix in ("wh/t", "wh/t/"):
        assert sorted(info.location for info in storage.list(f"s3://{bucket}/{prefix}")) == expected
        shares = storage.shares(f"s3://{bucket}/{prefix}", 6)
        assert len(shares) > 1
        assert sorted(info.location for share in shares for info in storage.list_share(share)) == expected
    assert [info.location for info in storage.list(f"s3://{bucket}/wh/t/data/")].count(
        f"s3://{bucket}/wh/t/data//a"
    ) == 1


def test_a_listing_below_an_empty_part_finds_nothing_beside_it(storage, bucket, store):
    store.put_many(bucket, ["db//t/a", "db/t/b", "db//t2/c", "db//t//d", "db//t"])
    base = f"s3://{bucket}/db//t"
    assert sorted(info.location for info in storage.list(base)) == [f"{base}//d", f"{base}/a"]
    assert sorted(info.location for info in storage.list(f"s3://{bucket}/db/t")) == [f"s3://{bucket}/db/t/b"]


def test_deletions_of_all_kinds_are_answered_in_order(storage, bucket, store):
    keys = ["db//a", "db/a", "db//b", "db/./c", "gone//d"]
    store.put_many(bucket, ["db//a", "db/a", "db//b", "db/b"])
    answers = storage.delete_many([f"s3://{bucket}/{key}" for key in keys])
    deleted, failed = DeleteStatus.DELETED, DeleteStatus.FAILED
    assert [one.status for one in answers] == [deleted, deleted, deleted, failed, deleted]
    assert store.keys(bucket) == ["db/b"]


def test_child_names_below_empty_part_are_complete(storage, bucket):
    root = f"s3://{bucket}/db"
    for name in (
        "/events/plans/run-1/plan.json",
        "/events/plans/run-2/files/a",
        "/events/plans/note",
        "events/plans/beside",
    ):
        storage.create(f"{root}/{name}", b"x")
    assert storage.child_names(f"{root}//events/plans") == ["note", "run-1", "run-2"]
    assert storage.child_names(f"{root}//events/none") == []


def test_what_a_store_can_do_is_proved_below_an_empty_part(storage, bucket, store):
    assert storage.capabilities(f"s3://{bucket}/db//t") == Capabilities(exclusive_create=True, move=True)
    assert store.keys(bucket) == []


@pytest.mark.parametrize("location", ["gs://b/a//k", "abfss://c@acct.dfs.core.windows.net/a//k"])
def test_other_stores_refuse_them(location):
    with pytest.raises(UnsupportedError, match="cannot be used in an object store"):
        ObjectStorage({"gcs.no-auth": "true", "adls.anon": "true"}, SYSTEM).read(location)


def test_a_listing_without_botocore_says_what_to_install(storage, bucket, store, monkeypatch):
    store.put_many(bucket, ["db//a"])
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(UsageError, match=r"icekeep\[catalogs\] brings it"):
        list(storage.list(f"s3://{bucket}/db"))


@pytest.mark.parametrize(("code", "error"), [("NoSuchBucket", "no such bucket"), ("AccessDenied", "denies access")])
def test_a_listing_that_the_store_refuses_is_an_error_of_ours(storage, bucket, store, code, error):
    store.answer("GET", "list-type", 403, code, times=10)
    with pytest.raises(UsageError, match=error):
        list(storage.list(f"s3://{bucket}/db//t"))


PARTS = st.lists(st.sampled_from(["", "", "a", "b=%2F", "é"]), min_size=1, max_size=6)


@cases(200)
@given(PARTS)
def test_a_root_and_what_is_behind_it_are_the_key(parts):
    key = "/".join([*parts, "f"])
    if object_roots.has_empty_parts(key):
        root, rest = taken_apart(key)
        assert f"{root}/{rest}" == f"/{key}"
        assert not object_roots.has_empty_parts(rest)


@pytest.mark.parametrize(
    ("config", "environment", "address"),
    [
        ({}, {}, "https://s3.us-east-1.amazonaws.com/bucket"),
        ({}, {"AWS_REGION": "eu-west-3"}, "https://s3.eu-west-3.amazonaws.com/bucket"),
        (
            {"region": "eu-west-3", "virtual_hosted_style_request": True},
            {},
            "https://bucket.s3.eu-west-3.amazonaws.com",
        ),
        ({"endpoint": "http://h:1"}, {"AWS_ENDPOINT_URL": "http://other"}, "http://h:1/bucket"),
        ({"endpoint": "http://bucket.h:1", "virtual_hosted_style_request": True}, {}, "http://bucket.h:1"),
        ({}, {"AWS_ENDPOINT_URL": "http://h:1/"}, "http://h:1/bucket"),
    ],
)
def test_the_address_of_a_root_is_below_that_of_its_bucket(config, environment, address, monkeypatch):
    for name in (*object_roots._ENDPOINTS, *object_roots._REGIONS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    bucket, made = rooted("bucket", "/d b/", config, "/source/")
    assert made["endpoint"] == address + quote("/d b/")
    assert bucket == "bucket/source/"


def test_a_client_that_would_ask_for_another_name_is_not_used(monkeypatch):
    monkeypatch.setattr(object_roots.obstore, "sign", lambda *_: "https://s3.amazonaws.com/bucket/db/a/b?x=1")
    with pytest.raises(UnsupportedError, match="the client would ask for '/bucket/db/a/b'"):
        rooted("bucket", "/db/", {})
