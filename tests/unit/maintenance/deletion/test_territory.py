"""Only what lies in a table's own places, or where the operator allows, may be deleted (apache/iceberg #16493)."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import OptionError
from icekeep.maintenance.deletion.territory import Territory, territory
from icekeep.storage.locations import canonical, is_under
from kit.cases import for_each
from kit.catalogs import simple_metadata

TABLE = "s3://bucket/wh/db/tbl"


def of(location=TABLE, *allowed, data_path=None, metadata_path=None):
    given_paths = {"write.data.path": data_path, "write.metadata.path": metadata_path}
    return territory(simple_metadata(location, **{k: v for k, v in given_paths.items() if v is not None}), allowed)


def test_a_table_holds_what_lies_below_its_location_by_whole_names():
    """apache/iceberg #16493: a prefix that `tbl` and `tbl2` have in common makes nothing of `tbl2` garbage of `tbl`."""
    mine = of()
    assert mine.roots == (TABLE,)
    assert mine.holds(f"{TABLE}/data/a.parquet")
    assert mine.holds(f"{TABLE}/a.parquet")
    for location in (
        f"{TABLE}2/data/a.parquet",
        f"{TABLE}",
        f"{TABLE}/",
        "s3://bucket/wh/db/a",
        "s3://other/wh/db/tbl/a",
    ):
        assert not mine.holds(location), location


@for_each(
    ("root", "location"),
    [
        ("s3://b/t", "s3a://b/t/f"),
        ("s3a://b/t/", "s3n://b/t/f"),
        ("s3://b/t", "S3://b/t/f"),
        ("abfss://c@a/t", "wasb://c@a/t/f"),
        ("/wh/t", "file:///wh/t/f"),
        ("file:///wh/t", "/wh/t/f"),
        ("file:/wh/t", "file://localhost/wh/t/f"),
        ("file:///wh/t", "file:/wh//t/./data/../f"),
        ("file:///wh//t", "/wh/t/f"),
        ("hdfs://nn/wh/t", "hdfs://nn/wh//t/f"),
        ("hdfs:///wh/t", "hdfs:/wh/t/f"),
        ("s3://b/t", "s3://b/t//f"),
        ("s3://b//t", "s3://b//t/f"),
    ],
)
def test_spellings_of_one_place_are_one(root, location):
    mine = of(root)
    assert mine.holds(location)
    assert mine.mask(pa.array([location])).tolist() == [True]


@for_each(
    ("root", "location"),
    [
        ("s3://b/t", "s3://b/t/../u/f"),
        ("s3://b/t", "s3://b//t/f"),
        ("s3://b/t", "s3://b/x/../t/f"),
        ("s3://b//t", "s3://b/t/f"),
        ("file:///wh/t", "file:///wh/t/../u/f"),
        ("file:///wh/t", "file:///wh/t/.."),
        ("file:///wh/t", "file://host/wh/t/f"),
        ("file://host/wh/t", "file://localhosthost/wh/t/f"),
        ("hdfs://nn/wh/t", "hdfs://other/wh/t/f"),
        ("file:///wh/t", "hdfs:///wh/t/f"),
        ("s3://b/t", "s3://B/t/f"),
        ("s3://b/t", "s3://b/T/f"),
        ("s3://b/t", "s3://b/%74/f"),
        ("s3://b/t", "s3://b/t%2Ff"),
        ("s3://b/t", "b/t/f"),
        ("s3://b/t", ""),
        ("s3://b/t", "s3://b/t/\0f"),
        ("s3://b/t", "s3://b/t/f\0"),
    ],
)
def test_what_is_elsewhere_or_nowhere_is_not_held(root, location):
    """Z1. A key of an object store that merely resolves to a place is another object, so it is kept."""
    mine = of(root)
    assert not mine.holds(location)
    assert mine.mask(pa.array([location])).tolist() == [False]


def test_percent_signs_are_ordinary():
    mine = of("s3://b/a%2Fb")
    assert mine.holds("s3://b/a%2Fb/x=%20/f")
    assert not mine.holds("s3://b/a/b/f")
    assert mine.mask(pa.array(["s3://b/a%2Fb/x=%20/f", "s3://b/a/b/f"])).tolist() == [True, False]


def test_the_directories_that_properties_name_are_held():
    mine = of(data_path="s3://data/tbl/", metadata_path="gs://meta/tbl")
    assert mine.roots == (TABLE, "s3://data/tbl", "gs://meta/tbl")
    assert mine.holds("s3a://data/tbl/0101/f")
    assert mine.holds("gs://meta/tbl/snap.avro")
    assert not mine.holds("s3://data/tbl2/f")


def test_a_directory_in_another_is_no_root_of_its_own():
    assert of(data_path=f"{TABLE}/files", metadata_path="s3a://bucket/wh/db/tbl").roots == (TABLE,)
    assert of(data_path="s3://bucket/wh").roots == ("s3://bucket/wh",)
    assert of(TABLE, f"{TABLE}/old", "s3://old/a/b", "s3://old/a").roots == (TABLE, "s3://old/a")


@for_each("bare", ["s3://bucket", "s3://bucket/", "/", "file:///", "s3://bucket//", "s3://bucket/wh/.."])
def test_what_metadata_names_is_never_a_whole_bucket_or_disk(bare):
    """Z1: metadata is written by whoever may write the table."""
    mine = of(data_path=bare, metadata_path=bare)
    assert mine.roots == (TABLE,)
    assert mine.holds(f"{TABLE}/data/f")
    assert not mine.holds("s3://bucket/f")
    at_root = of(bare)
    assert not at_root.holds(f"{bare.rstrip('/')}/f")
    assert not at_root.holds("file:///etc/passwd")


def test_a_table_in_a_bucket_of_its_own_holds_its_directories():
    mine = of("s3://bucket")
    assert mine.roots == ("s3://bucket/data", "s3://bucket/metadata")


def test_a_directory_that_climbs_out_of_the_location_holds_no_disk():
    assert of("file:///wh/t", data_path="../..").roots == ("file:///wh/t",)


def test_a_table_that_lies_elsewhere_holds_nothing_on_this_machine():
    """Z1: the machine on which maintenance runs is not the table writer's."""
    for path in ("file:///home/job", "/home/job", "file://localhost/home/job", "file:/home/job"):
        mine = of(data_path=path, metadata_path=path)
        assert mine.roots == (TABLE,)
        assert not mine.holds("/home/job/.ssh/id")
    assert of("file:///wh/t", data_path="file:///data/t").holds("/data/t/f")


def test_places_that_are_none_hold_nothing_and_fail_nothing():
    mine = of(data_path="x:/\0", metadata_path="s3:/")
    assert mine.roots == (TABLE,)
    assert of("relative/t").roots == ()
    assert not of("relative/t").holds("relative/t/data/f")


@for_each("bad", ["", "a/b", "/", "s3://bucket", "s3://bucket/", "s3://bucket/./", "s3://bucket/a/..", "\0", "file://"])
def test_the_operator_cannot_allow_a_whole_bucket_or_disk(bad):
    with pytest.raises(OptionError, match=r"option reclaim.roots is .*; give locations of directories") as caught:
        of(TABLE, "s3://fine/a", bad)
    assert "\n" not in str(caught.value)


def test_the_operator_may_allow_what_metadata_may_not():
    mine = of(TABLE, "file:///import", "s3a://old/root/")
    assert mine.roots == (TABLE, "file:///import", "s3a://old/root")
    assert mine.holds("/import/f")
    assert mine.holds("s3://old/root/f")


def test_what_is_icekeeps_own_is_no_garbage():
    mine = of(TABLE, "s3://bucket/allowed", data_path=f"{TABLE}/.icekeep/plans")
    for location in (
        f"{TABLE}/.icekeep/plans/x",
        f"{TABLE}//.icekeep/plans/x",
        f"{TABLE}/./.icekeep/plans/x",
        f"{TABLE}/data/../.icekeep/trash/r/files/x",
        "s3a://bucket/wh/db/tbl/.icekeep/x",
        "s3://bucket/allowed/.icekeep/purges/x",
    ):
        assert not mine.holds(location), location
        assert mine.mask(pa.array([location])).tolist() == [False]
    assert mine.holds(f"{TABLE}/data/.icekeeper/x")
    wide = of(TABLE, data_path="s3://bucket/wh")
    assert wide.holds("s3://bucket/wh/x")
    for directory in ("", "/db/other", "/deep/er"):
        assert not wide.holds(f"s3://bucket/wh{directory}/.icekeep/purges/x")
    assert not of(TABLE, data_path="s3://bucket/wh/.icekeep/purges").holds("s3://bucket/wh/.icekeep/purges/x")
    assert of(TABLE, "s3://bucket/wh").holds(f"{TABLE}/x")
    assert not of(TABLE, "s3://bucket/wh").holds(f"{TABLE}/.icekeep/x")


def test_masks_of_all_kinds_of_arrays():
    mine = of()
    rows = [f"{TABLE}/a", None, "s3://x/a", f"{TABLE}//b"]
    expected = [True, False, False, True]
    texts = pa.array(rows)
    for locations in (
        texts,
        texts.cast(pa.large_string()),
        texts.cast(pa.string_view()),
        texts.dictionary_encode(),
        pa.chunked_array([rows[:1], rows[1:]], pa.string()),
    ):
        mask = mine.mask(locations)
        assert isinstance(mask, np.ndarray)
        assert mask.dtype == np.bool_
        assert mask.tolist() == expected
    assert mine.mask(texts.slice(2)).tolist() == expected[2:]
    for empty in (pa.array([]), pa.array([], pa.string()), pa.chunked_array([], pa.string())):
        assert mine.mask(empty).tolist() == []
    assert Territory(roots=()).mask(texts).tolist() == [False] * 4


def test_a_territory_travels():
    mine = of(TABLE, "s3://x/y")
    assert pickle.loads(pickle.dumps(mine)) == mine


SCHEMES = [
    "s3://",
    "s3a://",
    "S3://",
    "file:///",
    "file:/",
    "file://",
    "/",
    "",
    "hdfs://",
    "memory://",
    "gs://",
    "wasb://",
    "s3:/",
    "FILE:/",
    "x.y://",
]
NAMES = st.sampled_from(
    ["b", "wh", "t", "t2", "T", "%74", "", ".", "..", "...", ".icekeep", ".x", "é", "a b", "\n", "\0", "localhost"]
)
PATHS = st.builds(lambda scheme, names: scheme + "/".join(names), st.sampled_from(SCHEMES), st.lists(NAMES, max_size=6))


@given(
    roots=st.lists(PATHS, max_size=3),
    tails=st.lists(st.tuples(st.integers(0, 2), st.lists(NAMES, max_size=4)), max_size=10),
    paths=st.lists(PATHS, max_size=10),
)
def test_the_mask_is_what_each_location_alone_says(roots, tails, paths):
    mine = Territory(roots=tuple(roots))
    below = ["/".join([roots[n], *names]) for n, names in tails if n < len(roots)]
    locations = [*paths, *below]
    assert mine.mask(pa.array(locations, pa.string())).tolist() == [mine.holds(x) for x in locations]


@given(root=PATHS, names=st.lists(NAMES, max_size=4))
def test_what_is_held_lies_below_a_root(root, names):
    mine = of(root)
    location = "/".join([root, *names])
    if mine.holds(location):
        assert any(is_under(location, r) for r in mine.roots)
        assert canonical(location).count("/") > 3
        assert "/.icekeep/" not in canonical(location)


class Vectorised(Territory, frozen=True):
    def _is_held(self, location, places):
        raise AssertionError(f"{location!r} was looked at on its own")


@for_each("store", ["s3a://bucket", "hdfs://nn", "hdfs://", "file://", "file:", "", "gs://bucket"])
def test_ordinary_locations_are_not_looked_at_one_by_one(store):
    mine = of(f"{store}/wh/.hidden/tbl", "s3://old/a")
    rows = [f"{store}/wh/.hidden/{name}/..x/é=1%2F/00000-{n}.parquet" for n in range(1000) for name in ("tbl", "tbl2")]
    locations = pa.array(rows, pa.string())
    assert Vectorised(roots=mine.roots).mask(locations).tolist() == [True, False] * 1000
    doubled = [row.replace("/tbl/", "/tbl//") for row in rows[::2]]
    assert Vectorised(roots=mine.roots).mask(pa.array(doubled)).all()
