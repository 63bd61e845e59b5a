from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.delete.reachable import Reached, named_files
from icekeep.maintenance.orphans.compare import Mismatch, any_below, compare
from icekeep.maintenance.orphans.listing import keyed_rows
from icekeep.maintenance.orphans.options import spelling
from kit.cases import for_each
from kit.storage import MemoryStorage
from kit.tables import memory_table


def reached(*names: str, roots: tuple[str, ...] = ()) -> Reached:
    named = named_files({}, [], [], names)
    return Reached(metadata=memory_table().metadata, storage=MemoryStorage(), manifests=(), named=named, roots=roots)


def compared(listed, named, schemes=None, authorities=None, roots=()):
    rule = spelling(schemes, authorities)
    count = len(listed)
    rows = keyed_rows(pa.array(listed, pa.string()), pa.array([1] * count), pa.array([0] * count), rule)
    return compare(
        pa.Table.from_batches([rows]), count, reached(*named, roots=roots), rule, lambda: pytest.fail("Spark"), None
    )


def unnamed(listed, named, **equal):
    return compared(listed, named, **equal).unnamed["location"].to_pylist()


@for_each(
    ("listed", "named"),
    [
        ("file:///dir1/////dir2///file1", "file:///dir1/dir2/file1"),  # testPathsWithExtraSlashes
        ("hdfs://servicename/dir1/file1", "hdfs:///dir1/file1"),  # testPathsWithValidFileHavingNoAuthority
        ("hdfs:///dir1/file1", "hdfs://servicename/dir1/file1"),  # testPathsWithActualFileHavingNoAuthority
        ("s3a://b/f", "s3://b/f"),
        ("s3://b/f", "s3n://b/f"),
        ("abfss://c@a/f", "abfs://c@a/f"),
        ("/a/f", "file:/a/f"),
        ("file://localhost/a/f", "/a/f"),
        ("s3://b/x=a%2Fb/f", "s3://b/x=a%2Fb/f"),
        ("s3://b/x=a b/f", "s3://b/x=a%20b/f"),
        ("s3://b/a/./c/../f", "s3://b/a/f"),
        ("s3://b/caf\u00e9", "s3://b/cafe\u0301"),
        ("file:/A/F", "file:/a/f"),
        ("hdfs://NN:8020/f", "hdfs://nn:8020/f"),
    ],
)
def test_every_spelling_of_a_live_file_keeps_it(listed, named):
    found = compared([listed], [named])
    assert found.unnamed.num_rows == 0
    assert (found.named_count, found.mismatched_count) == (1, 0)


def test_a_file_that_metadata_names_through_links_is_named(tmp_path):
    root = tmp_path / "wh" / "t"
    (root / "data").mkdir(parents=True)
    (tmp_path / "old").symlink_to(tmp_path / "wh")
    (tmp_path / "older").symlink_to(tmp_path / "old" / "t")
    (root / "inner").symlink_to("data")
    (root / "link.parquet").symlink_to(root / "data" / "e")
    names = [tmp_path / "old/t/data/a", tmp_path / "older/data/b", root / "inner/c", tmp_path / "old/t/inner/d"]
    names += [root / "link.parquet", tmp_path / "older/data/../data/f", tmp_path / "elsewhere/g", root / "data/h"]
    listed = [str(root / "data" / name) for name in "abcdefgh"]
    for path in listed:
        Path(path).touch()
    named = [str(name) for name in names]
    assert unnamed(listed, named) == [listed[place] for place in (0, 1, 2, 3, 4, 5, 6)]
    for scheme in ("", "file:", "file://"):
        at = tuple(f"{scheme}{place}" for place in (root, tmp_path / "other"))
        assert unnamed([f"{scheme}{path}" for path in listed], named, roots=at) == [f"{scheme}{listed[6]}"]
    # The directory that is listed may be named through a link itself.
    at = str(tmp_path / "older")
    assert unnamed([f"{at}/data/a", f"{at}/data/x"], [f"{root}/data/a"], roots=(f"{at}/",)) == [f"{at}/data/x"]


@for_each(
    ("listed", "named"),
    [
        ("s3://b/a/f", "s3://b/a/f2"),
        ("s3://b/a2/f", "s3://b/a/f"),
        ("s3://b/a/f", "s3://b/a"),
        ("s3://b/x=a%2Fb/f", "s3://b/x=a%2Fc/f"),
    ],
)
def test_other_paths_are_other_files(listed, named):
    assert unnamed([listed], [named]) == [listed]


@for_each(
    ("listed", "named", "equal"),
    [
        ("scheme2://bucket1/dir1/file1", "scheme1://bucket1/dir1/file1", {"schemes": {"scheme1,scheme2": "scheme"}}),
        ("hdfs://n2/dir1/file1", "hdfs://n1/dir1/file1", {"authorities": {"n1,n2": "n"}}),
        ("hdfs://n2/dir1/file1", "hdfs://n1/dir1/file1", {"authorities": {"n1": "n2"}}),
        ("hdfs://nn:9000/f", "hdfs://nn:8020/f", {"authorities": {"nn:8020,nn:9000": "nn"}}),
        ("hdfs://me@nn:8020/f", "hdfs://you@nn:8020/f", {"authorities": {"me@nn:8020": "you@nn:8020"}}),
        ("s3://b2/x=a%2Fb/f", "s3://b1/x=a%2Fb/f", {"authorities": {"b1,b2": "b"}}),
        ("gs://b/x=%zz/100%", "s3://b/x=%zz/100%", {"schemes": {"gs": "s3"}}),
    ],
)
def test_other_schemes_and_authorities_are_mismatches_unless_they_are_said_to_be_equal(listed, named, equal):
    """testPathsWithEqualSchemes, testPathsWithEqualAuthorities; the file is kept in either case."""
    found = compared([listed, f"{listed}-stray"], [named])
    assert found.unnamed["location"].to_pylist() == [f"{listed}-stray"]
    assert (found.named_count, found.mismatched_count, found.mismatches) == (1, 1, (Mismatch(listed, named),))
    found = compared([listed, f"{listed}-stray"], [named], **equal)
    assert found.unnamed["location"].to_pylist() == [f"{listed}-stray"]
    assert (found.mismatched_count, found.mismatches) == (0, ())


def test_a_file_that_metadata_has_by_several_spellings_is_no_mismatch_if_one_of_them_is_its_own():
    named = ["hdfs://n1/f", "hdfs://n2/f", "hdfs://n3/f"]
    assert compared(["hdfs://n2/f"], named).mismatched_count == 0
    assert compared(["hdfs://n4/f"], named).mismatched_count == 1
    assert compared(["hdfs://n4/f"], [*named, "hdfs:/f"]).mismatched_count == 0


def test_mismatches_are_named_up_to_a_number():
    found = compared([f"hdfs://a/{n}" for n in range(30)], [f"hdfs://b/{n}" for n in range(30)])
    assert (found.mismatched_count, len(found.mismatches)) == (30, 10)


def test_without_files_or_names_there_is_nothing_to_compare():
    assert compared([], ["s3://b/f"]).unnamed.num_rows == 0
    assert unnamed(["s3://b/f"], []) == ["s3://b/f"]


def test_whether_anything_lies_below_a_directory_is_asked_by_whole_names():
    named = reached("s3a://b/tbl2/f", "s3://b/other/f")
    assert not any_below("s3://b/tbl", named, lambda: pytest.fail("Spark"))
    assert any_below("s3://b/tbl2/", named, lambda: pytest.fail("Spark"))


_NAMES = st.lists(st.text("aA%2f.é ", min_size=1, max_size=4), min_size=1, max_size=4)


@given(st.lists(_NAMES, max_size=6), st.lists(_NAMES, max_size=6), st.randoms(use_true_random=False))
def test_whatever_is_named_is_kept_and_of_the_rest_nothing_is_lost(listed, named, random):

    def spelled(parts):
        scheme = random.choice(["s3", "s3a", "s3n"])
        return f"{scheme}://b/{random.choice(['/', '//', '/./']).join(parts)}"

    locations = [spelled(parts) for parts in listed + named]
    found = compared(locations, [spelled(parts) for parts in named])
    assert found.named_count + found.unnamed.num_rows == len(locations)
    assert not set(found.unnamed["location"].to_pylist()) & set(locations[len(listed) :])
