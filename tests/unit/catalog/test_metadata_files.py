from types import SimpleNamespace

import pytest

from icekeep.catalog.metadata_files import (
    file_version,
    find_head,
    metadata_files,
    parse_version_name,
    read_hint,
    version_locations,
)
from icekeep.errors import InvalidTableError, UnsupportedError
from kit.cases import for_each
from kit.storage import HookedStorage, MemoryStorage

DIRECTORY = "memory://lake/wh/t/metadata"


@for_each(
    ("name", "version"),
    [
        ("00005-0c566122-32a2-4791-8908-05ded38b56cf.metadata.json", 5),
        ("123456-0c566122.gz.metadata.json", 123456),
        ("v7.metadata.json", 7),
        ("v7.gz.metadata.json", 7),
        ("v7.metadata.json.gz", 7),
        ("0c566122-32a2-4791-8908-05ded38b56cf.metadata.json", -1),
        ("metadata.json", -1),
        ("v.metadata.json", -1),
    ],
)
def test_the_version_of_a_metadata_file_is_in_its_name(name, version):
    assert file_version(f"s3://bucket/1-2/v9.metadata.json/{name}") == version


NAMES = ("v9.metadata.json", "v10.gz.metadata.json", "00009-a.metadata.json", "00012-b.metadata.json", "snap-1.avro")


@for_each(
    ("like", "versions", "expected"),
    [
        ("", range(0), {*NAMES[:4]}),
        ("v10.metadata.json", range(9, 10), {"v9.metadata.json"}),
        ("v10.metadata.json", range(11), {*NAMES[:2]}),
        ("00012-b.metadata.json", range(9, 13), {*NAMES[2:4]}),
        ("00012-b.metadata.json", range(9, 10), {"00009-a.metadata.json"}),
    ],
)
@for_each("lists_by_prefix", [True, False])
def test_direct_metadata_files_are_listed_by_version(lists_by_prefix, like, versions, expected):
    storage, asked = MemoryStorage(), list[str]()
    for name in (*NAMES, "below/v9.metadata.json"):
        storage.create(f"{DIRECTORY}/{name}", b"")

    def list_share(share):
        asked.append(share.starts_with)
        if not lists_by_prefix:
            raise UnsupportedError("not in order")
        return (
            info for info in storage.list(DIRECTORY) if info.location.startswith(f"{DIRECTORY}/{share.starts_with}")
        )

    listing = SimpleNamespace(list_share=list_share, list=storage.list)
    found = {
        info.location.rpartition("/")[2] for info in metadata_files(listing, DIRECTORY, like=like, versions=versions)
    }
    assert found == (expected if lists_by_prefix else {*NAMES[:4]})
    assert "" not in asked or not versions


VERSIONED = "memory://wh/db/t/metadata"


@pytest.fixture
def storage():
    return MemoryStorage()


def put(storage, *names):
    for name in names:
        storage.create(f"{VERSIONED}/{name}", b"")


@for_each(
    ("name", "version"),
    [
        ("v1.metadata.json", 1),
        ("v12.gz.metadata.json", 12),
        ("v12.metadata.json.gz", 12),
        ("v12.zstd.metadata.json", 12),
        ("v0.metadata.json", None),
        ("v01.metadata.json", None),
        ("v.metadata.json", None),
        ("v-1.metadata.json", None),
        ("v1.lz4.metadata.json", None),
        ("v1.gz.metadata.json.gz", None),
        ("v1.metadata.json.tmp", None),
        (".v1.metadata.json.crc", None),
        ("xv1.metadata.json", None),
        ("v1.metadata.json\n", None),
        ("v١.metadata.json", None),
        (f"v{'9' * 19}.metadata.json", None),
        ("00001-0c566122.metadata.json", None),
        ("version-hint.text", None),
    ],
)
def test_a_version_file_has_one_of_four_names(name, version):
    assert parse_version_name(name) == version


def test_every_name_of_a_version_is_read_as_that_version():
    assert [parse_version_name(location.rsplit("/", 1)[-1]) for location in version_locations(VERSIONED, 7)] == [
        7,
        7,
        7,
        7,
    ]


def test_a_directory_without_versions_has_no_head(storage):
    put(storage, "snap-1.avro", "0001-a.metadata.json", "backup/v9.metadata.json")
    storage.create(f"{VERSIONED}/version-hint.text", b"4")
    assert find_head(storage, VERSIONED) is None


@pytest.mark.parametrize(
    "hint",
    [
        None,
        b"",
        b"1",
        b"11",
        b"12",
        b"13",
        b"999999",
        b" 12\n",
        b"-12",
        b"0",
        b"abc",
        b"\xff\xfe",
        b"1" * 10_000_000,
        b"v12",
        b"1_2",
    ],
    ids=lambda hint: repr(hint)[:12],
)
def test_the_head_is_the_newest_version_whatever_the_hint_says(storage, hint):
    put(storage, *(f"v{n}.metadata.json" for n in range(1, 13)))
    if hint is not None:
        storage.create(f"{VERSIONED}/version-hint.text", hint)
    assert find_head(storage, VERSIONED) == (12, f"{VERSIONED}/v12.metadata.json")


def test_numbers_are_compared_as_numbers(storage):
    put(storage, "v9.metadata.json", "v10.metadata.json")
    assert find_head(storage, VERSIONED).version == 10


def test_deleted_versions_and_gaps_do_not_hide_head(storage):
    put(storage, "v2.metadata.json", "v58.metadata.json", "v60.gz.metadata.json")
    assert find_head(storage, VERSIONED) == (60, f"{VERSIONED}/v60.gz.metadata.json")


@pytest.mark.parametrize(
    ("added", "hint"),
    [
        (("v4.metadata.json", "v5.gz.metadata.json", "v6.metadata.json"), b"3"),
        (("v4.metadata.json", "v5.gz.metadata.json", "v6.metadata.json"), b"5"),
        # The fourth version came and went: only the hint leads over the gap.
        (("v5.gz.metadata.json", "v6.metadata.json"), b"5"),
        (("v6.metadata.json",), b"6"),
    ],
)
def test_versions_added_after_listing_are_found_by_probing(storage, added, hint):
    class SlowListing(HookedStorage):
        def list_share(self, share):
            before = [*super().list_share(share)]
            put(storage, *added)
            storage.create(f"{VERSIONED}/version-hint.text", hint)
            return iter(before)

    put(storage, "v3.metadata.json")
    slow = SlowListing(storage)
    assert find_head(slow, VERSIONED).version == 6
    assert slow.fired["list_share"] == 1


def test_only_names_like_those_of_versions_are_asked_for(storage):
    """A hundred thousand manifests lie beside them."""
    put(storage, *(f"{n:05d}-m0.avro" for n in range(50)), "snap-1.avro", "v1.metadata.json", "v2.metadata.json")
    asked = []

    class Asked(HookedStorage):
        def list_share(self, share):
            for info in super().list_share(share):
                asked.append(info.location)
                yield info

    assert find_head(Asked(storage), VERSIONED).version == 2
    assert sorted(asked) == [f"{VERSIONED}/v1.metadata.json", f"{VERSIONED}/v2.metadata.json"]


def test_a_store_that_lists_in_no_order_is_asked_for_all_names(storage):
    class Disordered(HookedStorage):
        def list_share(self, share):
            raise UnsupportedError("the store does not list names in order")

    put(storage, "v1.metadata.json", "snap-1.avro", "v2.gz.metadata.json")
    assert find_head(Disordered(storage), VERSIONED).version == 2


def test_absence_of_versions_needs_whole_listing(storage):
    """A store may say that it lists in order, and not do so: a table would be made beside the one that is there."""

    class Stopped(HookedStorage):
        def list_share(self, share):
            return iter(())

    put(storage, "v1.metadata.json", "v2.metadata.json")
    assert find_head(Stopped(storage), VERSIONED).version == 2


def test_a_version_with_two_files_at_the_head_is_refused(storage):
    put(storage, "v4.metadata.json", "v5.metadata.json", "v5.gz.metadata.json")
    with pytest.raises(
        InvalidTableError, match=r"version 5 of the table has two metadata files, .*v5.gz.* and .*v5.meta"
    ):
        find_head(storage, VERSIONED)


def test_a_version_with_two_files_below_the_head_is_history(storage):
    put(storage, "v4.metadata.json", "v4.gz.metadata.json", "v5.metadata.json")
    assert find_head(storage, VERSIONED).version == 5


def test_a_hint_that_is_huge_is_not_even_read(storage):
    storage.create(f"{VERSIONED}/version-hint.text", b"1" * 10_000_000)
    hooked = HookedStorage(storage)
    assert read_hint(hooked, VERSIONED) is None
    assert hooked.fired == {"head": 1}
