"""Shares of listings, on the client's store in memory and on a server that speaks the language of S3."""

import pickle
from collections import Counter

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from icekeep.errors import UnavailableError, UnsupportedError
from icekeep.runtime import SYSTEM
from icekeep.storage.base import ListingShare
from icekeep.storage.locations import parse_location
from icekeep.storage.objects import listing as object_listing
from icekeep.storage.objects import listing as object_pages
from icekeep.storage.objects.storage import ObjectStorage
from icekeep.storage.objects.stores import Stores, open_stores
from kit.cases import for_each


class InMemory(ObjectStorage):
    """On the client's store in memory, which lists in order; `in_order` says whether that is relied on."""

    def __init__(self, keys, *, in_order=True):
        super().__init__({}, SYSTEM)
        memory = MemoryStore()
        for key in keys:
            obstore.put(memory, key, b"1")
        self._memory = Stores(memory, memory, lists_in_order=in_order)

    def _bucket(self, location):
        return self._memory


def small_pages(monkeypatch, names):
    """Pages of so few names that a handful fills some."""
    for module in (object_listing, object_pages):
        monkeypatch.setattr(module, "PAGE_NAMES", names)


def listed(storage, shares):
    return Counter(info.location for share in shares for info in storage.list_share(share))


PARTS = st.text(st.sampled_from("-.0Za%\u00e9\ue000\U0001f9ca\U0010ffff"), min_size=1, max_size=4).filter(
    lambda part: part not in (".", "..")
)
KEYS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@given(keys=st.sets(KEYS, max_size=40), page=st.integers(1, 5), count=st.integers(1, 30), in_order=st.booleans())
def test_shares_hold_each_file_once(keys, page, count, in_order):
    storage = InMemory([*(f"wh/t/{key}" for key in keys), "wh/t-/a", "wh/t0", "wh/t"], in_order=in_order)
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_pages(monkeypatch, page)
        shares = storage.shares("s3://b/wh/t/", count)
        assert listed(storage, shares) == Counter(f"s3://b/wh/t/{key}" for key in keys)
        assert listed(storage, shares) == Counter(info.location for info in storage.list("s3://b/wh/t"))
    if not in_order:
        assert len(shares) == 1


@given(
    keys=st.sets(KEYS, max_size=30),
    page=st.integers(1, 5),
    gone=st.sets(st.integers(0, 29)),
    come=st.sets(KEYS, max_size=10),
)
def test_files_that_stay_while_others_come_and_go_are_held_once(keys, page, gone, come):
    storage = InMemory([f"wh/t/{key}" for key in keys])
    removed = {key for number, key in enumerate(sorted(keys)) if number in gone}
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_pages(monkeypatch, page)
        shares = storage.shares("s3://b/wh/t", 8)
        storage.delete_many([f"s3://b/wh/t/{key}" for key in removed])
        for key in come:
            obstore.put(storage._memory.patient, f"wh/t/{key}", b"1")
        found = listed(storage, shares)
    assert set(found) == {f"s3://b/wh/t/{key}" for key in (keys - removed) | come}
    assert set(found.values()) <= {1}


@given(keys=st.sets(KEYS, max_size=30), after=KEYS, until=KEYS)
def test_share_between_names_in_any_order(keys, after, until):
    share = ListingShare("s3://b/wh/t", f"wh/t/{after}", f"wh/t/{until}")
    for in_order in (True, False):
        storage = InMemory([f"wh/t/{key}" for key in keys], in_order=in_order)
        assert listed(storage, [share]) == Counter(f"s3://b/wh/t/{key}" for key in keys if after < key <= until)


# A server


SERVER_KEYS = [
    *(f"data/00000-{task}-0b{task:02x}{number:02x}.parquet" for task in range(6) for number in range(9)),
    *(f"data/day=2026-01-{day:02d}/{number}" for day in range(1, 12) for number in range(3)),
    *(
        "data/day",
        "data/day-",
        "data/a+b &<'\">",
        "data/%2F%20",
        "data/\u00e9",
        "data/e\u0301/\U0001f9ca",
        "metadata/v1",
    ),
]


@pytest.mark.parametrize("page", [3, 1000])
@pytest.mark.parametrize("count", [1, 2, 10, 100])
def test_shares_hold_each_file_of_a_server_once(store, monkeypatch, page, count):
    bucket = store.new_bucket()
    store.put_many(bucket, [*(f"wh/t/{key}" for key in SERVER_KEYS), "wh/t2/a", "wh/t-"])
    storage = ObjectStorage(store.properties(), SYSTEM)
    small_pages(monkeypatch, page)
    shares = pickle.loads(pickle.dumps(storage.shares(f"s3a://{bucket}/wh/t", count)))
    assert listed(storage, shares) == Counter(f"s3a://{bucket}/wh/t/{key}" for key in SERVER_KEYS)
    assert len(shares) >= min(count, len(SERVER_KEYS) // page // 2)


def test_shares_do_not_list_what_other_shares_list(store, monkeypatch):
    """Each begins behind a name, and ends at the first page that goes beyond another."""
    bucket = store.new_bucket()
    store.put_many(bucket, (f"wh/t/{number:04d}" for number in range(2300)))
    storage = ObjectStorage(store.properties(), SYSTEM)
    shares = storage.shares(f"s3://{bucket}/wh/t", 20)
    assert 3 <= len(shares) <= 20
    store.requests.clear()
    assert len(listed(storage, shares)) == 2300
    assert len(store.requests) == len(shares)
    assert [("start-after" in request.path) for request in store.requests] == [bool(share.after) for share in shares]


def test_names_that_begin_alike_are_asked_for_without_the_others(store):
    """A commit looks for version files among a hundred thousand manifests."""
    bucket = store.new_bucket()
    store.put_many(bucket, (f"wh/t/{number:04d}.avro" for number in range(2300)))
    store.put_many(bucket, (f"wh/t/{name}" for name in ("v1", "v2", "w", "v3/x", "v")))
    storage = ObjectStorage(store.properties(), SYSTEM)
    store.requests.clear()
    share = ListingShare(f"s3://{bucket}/wh/t", is_deep=False, starts_with="v")
    assert listed(storage, [share]) == Counter(f"s3://{bucket}/wh/t/{name}" for name in ("v1", "v2"))
    assert len(store.requests) == 1


@given(keys=st.sets(KEYS, max_size=30), start=PARTS, page=st.integers(1, 5), in_order=st.booleans())
def test_a_share_of_names_that_begin_alike_has_those_that_go_on(keys, start, page, in_order):
    storage = InMemory([f"wh/t/{key}" for key in keys], in_order=in_order)
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_pages(monkeypatch, page)
        found = listed(storage, [ListingShare("s3://b/wh/t", starts_with=start)])
    assert found == Counter(f"s3://b/wh/t/{key}" for key in keys if key.startswith(start) and key != start)


def test_few_files_are_one_share_by_one_request(store):
    bucket = store.new_bucket()
    store.put_many(bucket, (f"wh/t/{number}" for number in range(20)))
    assert ObjectStorage(store.properties(), SYSTEM).shares(f"s3://{bucket}/wh/t", 50) == [
        ListingShare(f"s3://{bucket}/wh/t")
    ]
    assert len(store.requests) == 1


def test_markers_of_directories_are_in_no_share(store, monkeypatch):
    """The client takes the slash off their names, by which they are out of their place."""
    bucket = store.new_bucket()
    for name in ("both", "empty"):
        store.client.put_object(Bucket=bucket, Key=f"wh/t/{name}/", Body=b"")
        for beside in ("", "-", "-1", ".", "0", "/a", "/b"):
            store.client.put_object(Bucket=bucket, Key=f"wh/t/{name}{beside}", Body=b"1" if beside else b"")
    store.client.delete_object(Bucket=bucket, Key="wh/t/empty")
    store.client.put_object(Bucket=bucket, Key="wh/t/", Body=b"")
    storage = ObjectStorage(store.properties(), SYSTEM)
    expected = {key.removeprefix("wh/") for key in store.keys(bucket) if not key.endswith("/")}
    for page in (1, 2, 3, 1000):
        small_pages(monkeypatch, page)
        found = listed(storage, storage.shares(f"s3://{bucket}/wh/t", 30))
        assert found == Counter(f"s3://{bucket}/wh/{name}" for name in expected)


def test_a_request_of_a_share_that_fails_raises(store, monkeypatch):
    bucket = store.new_bucket()
    store.put_many(bucket, (f"wh/t/{number:02d}" for number in range(40)))
    storage = ObjectStorage(store.properties(), SYSTEM)
    small_pages(monkeypatch, 4)
    shares = storage.shares(f"s3://{bucket}/wh/t", 6)
    store.answer("GET", "start-after", 400, "RequestTimeout", times=100)
    with pytest.raises(UnavailableError, match=f"cannot list 's3://{bucket}/wh/t'"):
        listed(storage, shares)
    with pytest.raises(UnavailableError, match=f"cannot list 's3://{bucket}/wh/t'"):
        storage.shares(f"s3://{bucket}/wh/t", 6)


DISORDERED = """<ListBucketResult><IsTruncated>false</IsTruncated>{}</ListBucketResult>"""
OBJECT = "<Contents><Key>{}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"


def test_differently_ordered_store_is_not_listed_in_parts(store):
    """As stores do that walk directories: what is in `a` comes before `a-b`, although `-` comes before the slash."""
    bucket = store.new_bucket()
    names = ["wh/t/a/1", "wh/t/a-b/1", "wh/t/c"]
    store.answer("GET", "list-type", 200, body=DISORDERED.format("".join(map(OBJECT.format, names))), times=2)
    storage = ObjectStorage(store.properties(), SYSTEM)
    with pytest.raises(UnsupportedError, match="does not list names in the order of their bytes; list it as a whole"):
        listed(storage, [ListingShare(f"s3://{bucket}/wh/t", until="wh/t/b")])
    assert len(list(storage.list(f"s3://{bucket}/wh/t"))) == 3


@for_each(
    ("location", "expected"),
    [
        ("s3://b/k", True),
        ("s3a://b/k", True),
        ("gs://b/k", True),
        ("s3://b--use1-az5--x-s3/k", False),
        ("s3://point-use1-az5--xa-s3/k", False),
        ("abfss://c@a.dfs.core.windows.net/k", False),
        ("az://c/k", False),
    ],
)
def test_an_order_is_relied_on_where_the_store_promises_it(location, expected):
    properties = {"adls.account-name": "a", "adls.account-key": "a2V5"}
    assert open_stores(parse_location(location), properties).lists_in_order is expected
