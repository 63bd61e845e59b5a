"""Only what lies below a table's location, or where the operator allows, may be deleted (apache/iceberg #16493)."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.errors import OptionError
from icekeep.maintenance.delete import locations as module
from icekeep.maintenance.delete.locations import DeletableLocations, check_roots, deletable_locations, table_locations
from icekeep.storage.locations import canonical, is_under
from kit.cases import for_each
from kit.catalogs import simple_metadata
from kit.memory_catalog import MemoryCatalog

TABLE = "s3://bucket/wh/db/tbl"


def table_at(location, *, data_path=None, metadata_path=None, configured=()):
    given_paths = {"write.data.path": data_path, "write.metadata.path": metadata_path}
    metadata = simple_metadata(location, **{k: v for k, v in given_paths.items() if v is not None})
    catalog = MemoryCatalog()
    catalog.reclaim_roots = configured
    return Table(("db", "tbl"), metadata, f"{location}/metadata/v1.metadata.json", catalog.storage, catalog)


def of(location=TABLE, *allowed, others=(), **said):
    return deletable_locations(table_at(location, **said), allowed, others)


def test_table_holds_files_below_its_location_by_whole_names():
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


def test_directories_that_properties_name():
    """Whoever may set a property could name the directory of another table, or of nobody's."""
    said = {"data_path": "s3://data/tbl/", "metadata_path": "gs://meta/tbl"}
    mine = of(**said)
    assert mine.roots == (TABLE,)
    for location in ("s3a://data/tbl/0101/f", "gs://meta/tbl/snap.avro"):
        assert not mine.holds(location)
        assert not mine.mask(pa.array([location]))[0]
    assert table_locations(table_at(TABLE, **said).metadata) == [TABLE, "s3://data/tbl", "gs://meta/tbl"]
    for named in (of(TABLE, "s3://data/tbl", **said), of(TABLE, configured=("s3://data/tbl",), **said)):
        assert named.holds("s3a://data/tbl/0101/f")
        assert not named.holds("s3://data/tbl2/f")
        assert not named.holds("gs://meta/tbl/snap.avro")


@for_each(
    ("roots", "others", "held", "kept"),
    [
        # Another table, and its data directory, below this one's location.
        ([], [f"{TABLE}/in"], [f"{TABLE}/data/f", f"{TABLE}/in2/f"], [f"{TABLE}/in", f"{TABLE}/in/f"]),
        # This one lies in another table, or in its data directory.
        ([], ["s3://bucket/wh/db"], [], [f"{TABLE}/data/f"]),
        ([], [TABLE], [], [f"{TABLE}/data/f"]),
        ([TABLE], ["s3://bucket/wh/db"], [f"{TABLE}/data/f"], ["s3://bucket/wh/db/data/f"]),
        ([TABLE], [TABLE], [f"{TABLE}/data/f"], []),
        # One directory for all tables, in which others have directories of their own.
        (["s3://data"], [], [], ["s3://data2/f"]),
        (
            ["s3://data/wh"],
            ["s3://data/wh/other", "s3://data/wh/shared"],
            [f"{TABLE}/f", "s3://data/wh/tbl/f"],
            ["s3://data/wh/other/f", "s3://data/wh/shared/f"],
        ),
        (
            ["s3://data/wh", "s3://data/wh/shared"],
            ["s3://data/wh/other", "s3://data/wh/shared"],
            ["s3://data/wh/shared/f", "s3://data/wh/tbl/f"],
            ["s3://data/wh/other/f"],
        ),
        (
            ["s3://data/wh", "s3://data/wh/other/mine"],
            ["s3://data/wh/other", "s3://data/wh/other/mine/x"],
            ["s3://data/wh/other/mine/f"],
            ["s3://data/wh/other/f", "s3://data/wh/other/mine/x/f"],
        ),
        # As a whole for all tables, a table that lies in another has to be named by itself.
        (["s3://bucket/wh"], ["s3://bucket/wh/db"], ["s3://bucket/wh/x"], [f"{TABLE}/f"]),
        (["s3://bucket/wh"], ["s3://bucket/wh"], [f"{TABLE}/f"], []),
    ],
)
def test_of_nested_places_the_deepest_counts(roots, others, held, kept):
    mine = of(TABLE, *roots, others=others)
    assert [location for location in (*held, *kept) if mine.holds(location)] == held
    assert mine.mask(pa.array([*held, *kept], pa.string())).tolist() == [True] * len(held) + [False] * len(kept)


def test_nested_data_path_is_no_location_of_its_own():
    assert table_locations(table_at(TABLE, data_path="s3://bucket/wh").metadata) == ["s3://bucket/wh"]
    said = {"data_path": f"{TABLE}/files", "metadata_path": "s3a://bucket/wh/db/tbl"}
    assert table_locations(table_at(TABLE, **said).metadata) == [TABLE]


@for_each("bare", ["s3://bucket", "s3://bucket/", "/", "file:///", "s3://bucket//", "s3://bucket/wh/.."])
def test_what_metadata_names_is_never_a_whole_bucket_or_disk(bare):
    """Z1: metadata is written by whoever may write the table."""
    assert table_locations(table_at(TABLE, data_path=bare, metadata_path=bare).metadata) == [TABLE]
    at_root = of(bare)
    assert not at_root.holds(f"{bare.rstrip('/')}/f")
    assert not at_root.holds("file:///etc/passwd")


def test_table_at_the_bucket_root_holds_the_usual_directories():
    mine = of("s3://bucket", data_path="s3://bucket/wh/db/other")
    assert mine.roots == ("s3://bucket/data", "s3://bucket/metadata")
    assert of("/").roots == of("file:///").roots == ()


def test_remote_table_has_no_local_directories():
    """Z1: the machine on which maintenance runs is not the table writer's."""
    for path in ("file:///home/job", "/home/job", "file://localhost/home/job", "file:/home/job", "../.."):
        said = {"data_path": path, "metadata_path": path}
        assert table_locations(table_at(TABLE, **said).metadata)[0] == TABLE
        assert not of(**said).holds("/home/job/.ssh/id")
        assert not of("file:///wh/t", **said).holds("/home/job/.ssh/id")
    assert table_locations(table_at("file:///wh/t", data_path="file:///data/t").metadata) == [
        "file:///wh/t",
        "file:///data/t",
    ]


def test_places_that_are_none_hold_nothing_and_fail_nothing():
    assert table_locations(table_at(TABLE, data_path="x:/\0", metadata_path="s3:/").metadata) == [TABLE]
    assert of("relative/t").roots == ()
    assert not of("relative/t").holds("relative/t/data/f")


@for_each("bad", ["", "a/b", "/", "s3://bucket", "s3://bucket/", "s3://bucket/./", "s3://bucket/a/..", "\0", "file://"])
def test_the_operator_cannot_allow_a_whole_bucket_or_disk(bad):
    with pytest.raises(OptionError, match=r"option reclaim.roots is .*; give locations of directories") as caught:
        check_roots(["s3://fine/a", bad])
    assert "\n" not in str(caught.value)


def test_the_operator_may_allow_what_metadata_may_not():
    mine = of(TABLE, "file:///import", "s3a://old/root/")
    assert mine.roots == (TABLE, "file:///import", "s3a://old/root")
    assert mine.holds("/import/f")
    assert mine.holds("s3://old/root/f")


def test_what_is_icekeeps_own_is_no_garbage():
    mine = of(TABLE, "s3://bucket/allowed", f"{TABLE}/.icekeep/plans")
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
    wide = of(TABLE, "s3://bucket/wh")
    assert wide.holds("s3://bucket/wh/x")
    for directory in ("", "/db/other", "/deep/er"):
        assert not wide.holds(f"s3://bucket/wh{directory}/.icekeep/purges/x")
    assert not of(TABLE, "s3://bucket/wh/.icekeep/purges").holds("s3://bucket/wh/.icekeep/purges/x")
    assert wide.holds(f"{TABLE}/x")
    assert not wide.holds(f"{TABLE}/.icekeep/x")


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
    assert DeletableLocations(roots=()).mask(texts).tolist() == [False] * 4


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
    others=st.lists(st.tuples(st.integers(0, 2), st.lists(NAMES, max_size=2)), max_size=3),
    tails=st.lists(st.tuples(st.integers(0, 2), st.lists(NAMES, max_size=4)), max_size=10),
    paths=st.lists(PATHS, max_size=10),
)
def test_the_mask_is_what_each_location_alone_says(roots, others, tails, paths):
    theirs = ["/".join([roots[n], *names]) for n, names in others if n < len(roots)]
    mine = DeletableLocations(roots=tuple(roots), others=tuple(theirs))
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


@for_each("store", ["s3a://bucket", "hdfs://nn", "hdfs://", "file://", "file:", "", "gs://bucket"])
def test_ordinary_locations_are_not_looked_at_one_by_one(store, monkeypatch):
    mine = of(f"{store}/wh/.hidden/tbl", "s3://old/a")
    rows = [f"{store}/wh/.hidden/{name}/..x/é=1%2F/00000-{n}.parquet" for n in range(1000) for name in ("tbl", "tbl2")]
    locations = pa.array(rows, pa.string())
    monkeypatch.setattr(module, "_is_held", lambda location, _: pytest.fail(f"{location!r} was looked at on its own"))
    assert mine.mask(locations).tolist() == [True, False] * 1000
    doubled = [row.replace("/tbl/", "/tbl//") for row in rows[::2]]
    assert mine.mask(pa.array(doubled)).all()
