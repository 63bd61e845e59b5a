"""Hashes of locations: as equal and as different as what they are hashes of."""

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.storage.location_keys import ANY_PREFIX, Locations, Spelling, location_keys, loose_keys
from icekeep.storage.locations import SCHEMES, canonical
from kit.cases import for_each

HEADS = [
    "", "/", "file:", "file://", "FILE://", "file://localhost", "file:/", "s3://", "s3://bucket", "s3://bucket:9000",
    "s3a://bucket", "S3n://bucket", "s3://Bucket", "s3://bucket/", "s3:", "hdfs://nn:8020", "hdfs://", "abfss://c@a.dfs",
    "wasbs://c@a.dfs", "x-y+z.1://a", "C:",
]  # fmt: skip
COMPONENTS = [
    "a", "b", "A", "", ".", "..", "...", ".hidden", "b.", "a.parquet", "x=1", "x=%2F", "x=%2f", "ä", "a\u0308", "ß", "%",
    "%C3%A4", "part-00000-0000-0001.parquet", "part-00000-0000-0002.parquet", "0123456", "01234567", "012345678", "n" * 1100,
]  # fmt: skip
paths = st.lists(st.sampled_from(COMPONENTS), max_size=6).map(lambda parts: "/" + "/".join(parts))
locations = st.tuples(st.sampled_from(HEADS), paths, st.sampled_from(["", "", "/", "/.", "/.."])).map("".join)


def keys(*some: str) -> list[int]:
    return [int(key) for key in location_keys(pa.array(some, pa.string()))]


def are_alike(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    """Whether those of each side are equal where those of the other are."""
    return len({*ours}) == len({*theirs}) == len({*zip(ours, theirs, strict=True)})


@given(st.lists(locations, min_size=1, max_size=30))
def test_keys_are_equal_where_canonical_spellings_are(some: list[str]) -> None:
    assert are_alike(keys(*some), [canonical(location) for location in some])


@pytest.mark.slow
@given(st.lists(locations, min_size=1, max_size=12), st.integers(0, 11))
def test_key_is_independent_of_other_keys_and_array_layout(some: list[str], start: int) -> None:
    alone = [keys(location)[0] for location in some]
    plain = pa.array(some, pa.string())
    forms: list[Locations] = [
        plain,
        plain.cast(pa.large_string()),
        plain.cast(pa.string_view()),
        plain.dictionary_encode(),
        pa.chunked_array([plain.slice(0, start), plain.slice(start)]),
        pa.chunked_array([plain.slice(0, start).dictionary_encode(), plain.slice(start).dictionary_encode()]),
    ]
    for form in forms:
        assert location_keys(form).tolist() == alone
    assert location_keys(plain.slice(start)).tolist() == alone[start:]
    assert location_keys(plain.dictionary_encode().slice(start)).tolist() == alone[start:]


def test_keys_of_the_spellings_of_one_file() -> None:
    assert len({*keys("/a/b", "file:/a/b", "file:///a/b", "file://localhost/a/b", "//a/./c/../b/")}) == 1
    assert len({*keys("s3://k/a", "s3a://k/a", "s3n://k//a", "S3://k/a/")}) == 1
    assert len({*keys("s3://k/a", "s3://K/a", "s3://k/A", "s3://k/a%20", "s3://a/k", "/k/a", "hdfs://k/a")}) == 7


def test_all_kinds_of_heads_may_lie_side_by_side() -> None:
    many = [f"{head}/data/{number}.parquet" for number in range(1000) for head in ("s3://b", "file:", "", "s3a://b")]
    found = location_keys(pa.array(many))
    assert are_alike(found.tolist(), [canonical(location) for location in many])
    buckets = [f"s3://bucket-{number}/data/a.parquet" for number in range(300)]
    assert len(np.unique(location_keys(pa.array(buckets)))) == 300


@pytest.mark.slow
def test_keys_of_similar_paths_differ_and_use_all_bits() -> None:
    many = [
        f"s3://lake/db/events/data/day={day:03d}/{part:05d}-{part * day}-{'ab' * 20}-{day:08d}.parquet"
        for day in range(300)
        for part in range(1000)
    ]
    found = location_keys(pa.array(many))
    assert len(np.unique(found)) == len(many)
    ones = [int(np.count_nonzero(found >> bit & 1)) for bit in range(64)]
    # Each bit is set in half of them: 274 is the standard deviation.
    assert all(abs(count - len(many) // 2) < 6 * 274 for count in ones)


@given(st.binary(min_size=24, max_size=24), st.integers(0, 23), st.integers(0, 23))
def test_a_change_of_two_characters_changes_half_of_the_bits(raw: bytes, first: int, second: int) -> None:
    text = bytes(65 + byte % 26 for byte in raw)
    other = bytearray(text)
    for place in (first, second):
        other[place] = other[place] + 1 if other[place] < 90 else 65
    one, two = (np.uint64(key & (2**64 - 1)) for key in keys(f"/{text.decode()}", f"/{other.decode()}"))
    assert 8 < int(one ^ two).bit_count() < 56


@pytest.mark.process
def test_keys_are_the_same_everywhere() -> None:
    # From other processes and later versions too: they are written down.
    assert keys("s3://bucket/db/events/data/part-00001.parquet", "/a", "file:///") == KNOWN
    code = (
        "import pyarrow as pa;from icekeep.storage.location_keys import location_keys as k;print(k(pa.array(['/a'])))"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_ENVIRONMENT)
    assert there.stdout.strip() == f"[{KNOWN[1]}]"


def test_no_locations_have_no_keys() -> None:
    for none in (
        pa.array([], pa.string()),
        pa.chunked_array([], pa.string()),
        pa.array([], pa.string()).dictionary_encode(),
    ):
        found = location_keys(none)
        assert found.dtype == np.int64
        assert len(found) == 0
        assert [len(some) for some in loose_keys(none)] == [0, 0]


@for_each("place", [0, 1, 20_000])
@for_each("wrong", ["", "a/b", "s3:a", "/a\0", "s3://b\0/a"])
def test_what_is_no_location_is_refused(wrong: str, place: int) -> None:
    many = [f"/a/{number}" for number in range(20_001)]
    many[place] = wrong
    for work in (lambda: location_keys(pa.array(many)), lambda: loose_keys(pa.array(many))):
        with pytest.raises(InvalidTableError):
            work()


def test_nulls_are_refused() -> None:
    nulls = pa.array(["/a", None])
    for form in (nulls, nulls.dictionary_encode(), pa.chunked_array([nulls])):
        with pytest.raises(IcekeepBug):
            location_keys(form)


def test_an_entry_that_a_dictionary_does_not_use_does_not_matter() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([2, 0], pa.int8()), pa.array(["/a", "no location", "/b"]))
    assert location_keys(coded).tolist() == keys("/b", "/a")


def loose(
    *some: str, schemes: dict[str, str] | None = None, authorities: dict[str, str] | None = None
) -> list[tuple[int, int]]:
    found = loose_keys(pa.array(some, pa.string()), Spelling(schemes or {}, authorities or {}))
    return [*zip(*(part.tolist() for part in found), strict=True)]


@given(st.lists(locations, min_size=1, max_size=30))
def test_what_has_one_key_has_one_loose_key_too(some: list[str]) -> None:
    exact, found = keys(*some), loose(*some)
    by_key = dict(zip(exact, found, strict=True))
    assert [by_key[key] for key in exact] == found


@given(st.lists(locations, min_size=1, max_size=12))
def test_a_loose_key_does_not_depend_on_the_others(some: list[str]) -> None:
    assert loose(*some) == [loose(location)[0] for location in some]


@for_each(
    ("one", "other"),
    [
        ("/x=a%2Fb", "/x=a%2fb"), ("/x=%C3%A4", "/x=ä"), ("/x=ä", "/x=a\u0308"), ("/Straße", "/STRASSE"), ("/A/b", "/a/B"),
        ("/a%20b", "/a b"), ("/a%2520b", "/A%20B".replace("%20", "%2520")), ("s3://b/Ä", "/ä"), ("/%41", "/a"),
        ("abfs://c/t/x\\y", "/t/x/y"), ("/t/x%5Cy", "/t/x/y"),
    ],
)  # fmt: skip
def test_looser_spellings_of_a_path_are_one(one: str, other: str) -> None:
    assert keys(one) != keys(other) or one == other
    assert loose(one)[0][0] == loose(other)[0][0]


def test_a_path_is_decoded_once_only() -> None:
    assert loose("/a%2520b")[0][0] == loose("/a%20b".replace("%20", "%2520"))[0][0] != loose("/a b")[0][0]
    assert len({path for path, _ in loose("/a", "/b", "/a/b", "/a%00", "/a%", "/ä")}) == 6


def test_prefixes_are_compared_by_scheme_and_authority() -> None:
    found = [prefix for _, prefix in loose("s3://b/x", "s3a://b/y", "S3N://B/z", "s3://c/x", "hdfs://b/x")]
    assert len({*found[:3]}) == 1
    assert len({*found}) == 3
    assert ANY_PREFIX not in found


@for_each("location", ["/a", "file:/a", "file:///a", "hdfs:///a", "hdfs:/a", "file://localhost/a"])
def test_a_location_without_scheme_or_authority_has_any_prefix(location: str) -> None:
    assert loose(location)[0][1] == ANY_PREFIX


@for_each("kind", [kind for kind in SCHEMES if kind != "file"])
def test_schemes_of_one_store_kind_are_equal(kind: str) -> None:
    some = [f"{scheme}://b/x" for scheme in SCHEMES[kind]]
    assert len({*loose(*some)}) == len({*loose(*some, schemes={"oss": kind})}) == 1


def test_equal_schemes_and_authorities_are_one() -> None:
    some = "oss://b/x", "s3a://b/x", "s3://b/x", "s3://Backup/x", "hdfs://nn1/x", "hdfs://nn2/x"
    assert len({prefix for _, prefix in loose(*some)}) == 5
    found = loose(*some, schemes={"S3": "OSS"}, authorities={"backup": "B", "nn1": "ha", "nn2": "ha"})
    prefixes = [prefix for _, prefix in found]
    assert len({*prefixes[:4]}) == 1
    assert prefixes[4] == prefixes[5] != prefixes[0]
    assert loose("s3n://b/x", schemes={"s3n": "gs"})[0][1] == loose("gs://b/x", schemes={"s3n": "gs"})[0][1]


_ENVIRONMENT = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"}
KNOWN = [-219188992083441169, -5739178121061231445, -5233528198679969847]
