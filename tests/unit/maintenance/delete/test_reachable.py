import pickle

import numpy as np
import pyarrow as pa
import pytest

from icekeep.maintenance.delete.garbage import is_garbage
from icekeep.maintenance.delete.reachable import (
    NO_PATHS,
    NO_SPELLINGS,
    FileKind,
    GarbageFile,
    PathSet,
    Reached,
    SpelledPaths,
    garbage_table,
    named_files,
    paths_by_prefix,
    read_reached,
    union,
)
from icekeep.storage.location_keys import path_keys
from kit.cases import for_each
from kit.runtime import no_spark
from kit.storage import MemoryStorage
from kit.tables import add, memory_table

A, B, C = "s3://b/data/a", "s3://b/data/b", "s3://b/data/c"


def test_a_file_is_in_the_set_by_whatever_store_and_spelling_it_is_named():
    stays = PathSet.of([A, "hdfs://nn1:8020/x", "wasbs://c@a.blob.core.windows.net/y", "s3://b/month%3D1/z"])
    named = ["s3a://b//data/A", "hdfs://ha/x", "abfss://c@a.dfs.core.windows.net/y", "s3://b/month=1/z", C]
    assert stays.mask(named).tolist() == [True, True, True, True, False]


def test_sets_are_joined_cut_and_compared():
    one, other = PathSet.of([A, B, A]), PathSet.of(pa.chunked_array([[B], [C]]))
    assert (len(one), len(one | other), len(one & other)) == (2, 3, 1)
    assert one & other <= one <= union([one, other])
    assert not one <= other
    assert (one & PathSet.of([C])).keys.tolist() == NO_PATHS.keys.tolist() == []
    assert one >= NO_PATHS
    assert pickle.loads(pickle.dumps(one)).keys.tolist() == one.keys.tolist()


def spelled(*locations):
    return SpelledPaths.of(paths_by_prefix(pa.array(locations, pa.string())))


def test_a_set_of_many_stores_is_the_set_of_their_files():
    stays = spelled(A, "hdfs://nn1/x", "s3a://b/data/b", "/y")
    assert len(stays.by_prefix) == 3
    asked = pa.array([B, "hdfs://other/x", "gs://b/y", C])
    assert stays.paths.mask(asked).tolist() == [True, True, True, False]
    assert stays.split_by_spelling(asked, path_keys(asked))[0].tolist() == [True, True, True, False]
    assert len(spelled().paths) == 0


@for_each(
    ("asked", "kept", "told"),
    [
        ("hdfs://nn1/x", ["hdfs://ha/x"], "hdfs://ha/x"),
        ("hdfs://nn1/x", ["hdfs://ha/x", "hdfs://nn1/y"], "hdfs://ha/x"),
        ("hdfs://nn1/x", ["hdfs://ha/x", "hdfs://NN1:8020//x"], None),
        ("hdfs://nn1/x", ["hdfs://ha/x", "hdfs:/x"], None),
        ("hdfs:///x", ["hdfs://ha/x"], None),
        ("s3a://b/x", ["s3://b/x"], None),
        ("s3a://b/x", ["s3://b2/x"], "s3://b2/x"),
    ],
)
def test_what_is_in_the_set_by_another_store_only_is_told(asked, kept, told):
    files = pa.array([asked, "hdfs://nn1/z", asked])
    is_in, found = spelled(*kept).split_by_spelling(files, path_keys(files))
    assert is_in.tolist() == [True, False, True]
    assert [(one.location, one.kept) for one in found.examples] == [(asked, told)] * (2 if told else 0)
    assert len(found) == (1 if told else 0)


def test_of_many_spellings_the_first_are_told():
    stays = spelled(*(f"hdfs://a/{number}" for number in range(30)))
    files = pa.array([f"hdfs://b/{number}" for number in range(30)])
    _, found = stays.split_by_spelling(files, path_keys(files))
    assert (len(found), len(found.examples)) == (30, 10)
    assert (len(found | NO_SPELLINGS), len(found | found), len((found | found).examples)) == (30, 30, 10)


def test_nothing_is_in_no_set():
    assert NO_PATHS.mask([A]).tolist() == [False]
    assert PathSet.of([A]).mask([]).tolist() == []
    assert len(union([])) == 0


@pytest.mark.parametrize("spelling", ["memory://lake/wh/{}", "memory://other/WH/{}"])
def test_a_file_that_is_retained_by_name_under_another_store_stays(spelling):
    named = named_files({}, [], [], ["memory://lake/wh/metadata/v1.metadata.json"])
    retained = Reached(metadata=memory_table().metadata, storage=MemoryStorage(), manifests=(), named=named)
    locations = [spelling.format(name) for name in ("metadata/v1.metadata.json", "metadata/v2.metadata.json")]
    files = garbage_table(GarbageFile(FileKind.METADATA, location) for location in locations)
    assert is_garbage(files, retained, no_spark).tolist() == [False, True]


def test_what_was_seen_is_not_read_again_and_is_named_all_the_same():
    first = add(memory_table(), "a")
    table = add(first, "b")

    def read(table, **since):
        return read_reached(
            table.metadata, table.metadata_location, table.storage, no_spark, trust_manifest_list=False, **since
        )

    whole, before = read(table), read(first)
    newly = read(table, since=before.seen)
    assert [m.added_snapshot_id for m in newly.manifests] == [table.metadata.current_snapshot_id]
    assert newly.seen.lists == whole.seen.lists
    assert np.array_equal(newly.seen.manifest_keys, whole.seen.manifest_keys)
    assert read(table, since=newly.seen).manifests == ()
    lists = [snapshot.manifest_list for snapshot in table.metadata.snapshots]
    assert newly.named_paths.paths.mask(lists).all()
