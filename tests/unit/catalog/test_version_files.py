import pytest

from icekeep.catalog.metadata_files import find_head, parse_version_name, read_hint, version_locations
from icekeep.errors import InvalidTableError, UnsupportedError
from kit.cases import for_each
from kit.storage import HookedStorage, MemoryStorage

DIRECTORY = "memory://wh/db/t/metadata"


@pytest.fixture
def storage():
    return MemoryStorage()


def put(storage, *names):
    for name in names:
        storage.create(f"{DIRECTORY}/{name}", b"")


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
    assert [parse_version_name(location.rsplit("/", 1)[-1]) for location in version_locations(DIRECTORY, 7)] == [
        7,
        7,
        7,
        7,
    ]


def test_a_directory_without_versions_has_no_head(storage):
    put(storage, "snap-1.avro", "0001-a.metadata.json", "backup/v9.metadata.json")
    storage.create(f"{DIRECTORY}/version-hint.text", b"4")
    assert find_head(storage, DIRECTORY) is None


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
        storage.create(f"{DIRECTORY}/version-hint.text", hint)
    assert find_head(storage, DIRECTORY) == (12, f"{DIRECTORY}/v12.metadata.json")


def test_numbers_are_compared_as_numbers(storage):
    put(storage, "v9.metadata.json", "v10.metadata.json")
    assert find_head(storage, DIRECTORY).version == 10


def test_old_versions_that_were_deleted_and_gaps_do_not_hide_the_head(storage):
    put(storage, "v2.metadata.json", "v58.metadata.json", "v60.gz.metadata.json")
    assert find_head(storage, DIRECTORY) == (60, f"{DIRECTORY}/v60.gz.metadata.json")


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
def test_versions_that_came_after_the_listing_are_found_by_probing(storage, added, hint):
    class SlowListing(HookedStorage):
        def list_share(self, share):
            before = [*super().list_share(share)]
            put(storage, *added)
            storage.create(f"{DIRECTORY}/version-hint.text", hint)
            return iter(before)

    put(storage, "v3.metadata.json")
    slow = SlowListing(storage)
    assert find_head(slow, DIRECTORY).version == 6
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

    assert find_head(Asked(storage), DIRECTORY).version == 2
    assert sorted(asked) == [f"{DIRECTORY}/v1.metadata.json", f"{DIRECTORY}/v2.metadata.json"]


def test_a_store_that_lists_in_no_order_is_asked_for_all_names(storage):
    class Disordered(HookedStorage):
        def list_share(self, share):
            raise UnsupportedError("the store does not list names in order")

    put(storage, "v1.metadata.json", "snap-1.avro", "v2.gz.metadata.json")
    assert find_head(Disordered(storage), DIRECTORY).version == 2


def test_that_there_is_no_version_is_believed_of_a_whole_listing_alone(storage):
    """A store may say that it lists in order, and not do so: a table would be made beside the one that is there."""

    class Stopped(HookedStorage):
        def list_share(self, share):
            return iter(())

    put(storage, "v1.metadata.json", "v2.metadata.json")
    assert find_head(Stopped(storage), DIRECTORY).version == 2


def test_a_version_with_two_files_at_the_head_is_refused(storage):
    put(storage, "v4.metadata.json", "v5.metadata.json", "v5.gz.metadata.json")
    with pytest.raises(
        InvalidTableError, match=r"version 5 of the table has two metadata files, .*v5.gz.* and .*v5.meta"
    ):
        find_head(storage, DIRECTORY)


def test_a_version_with_two_files_below_the_head_is_history(storage):
    put(storage, "v4.metadata.json", "v4.gz.metadata.json", "v5.metadata.json")
    assert find_head(storage, DIRECTORY).version == 5


def test_a_hint_that_is_huge_is_not_even_read(storage):
    storage.create(f"{DIRECTORY}/version-hint.text", b"1" * 10_000_000)
    hooked = HookedStorage(storage)
    assert read_hint(hooked, DIRECTORY) is None
    assert hooked.fired == {"head": 1}
