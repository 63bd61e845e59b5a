"""Listed files held against what metadata leads to, and what it leads to."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, SafetyError, UnavailableError, UnsupportedError, UsageError
from icekeep.maintenance.delete.reachable import Reached, fails_closed, named_files
from icekeep.maintenance.orphans.compare import Mismatch, any_below, compare
from icekeep.maintenance.orphans.listing import keyed_rows
from icekeep.maintenance.orphans.metadata import _files_at_once, reached_by
from icekeep.maintenance.orphans.options import spelling
from icekeep.spec.metadata import metadata_to_json
from icekeep.spec.snapshots import MetadataLogEntry
from icekeep.spec.updates import SetProperties
from icekeep.storage.base import FileInfo
from icekeep.storage.location_keys import location_keys
from kit.cases import for_each
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import add, manifests_of, memory_table, swap


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
def test_other_schemes_and_authorities(listed, named, equal):
    """testPathsWithEqualSchemes, testPathsWithEqualAuthorities; the file is kept in either case."""
    found = compared([listed, f"{listed}-stray"], [named])
    assert found.unnamed["location"].to_pylist() == [f"{listed}-stray"]
    assert (found.named_count, found.mismatched_count, found.mismatches) == (1, 1, (Mismatch(listed, named),))
    found = compared([listed, f"{listed}-stray"], [named], **equal)
    assert found.unnamed["location"].to_pylist() == [f"{listed}-stray"]
    assert (found.mismatched_count, found.mismatches) == (0, ())


def test_one_of_several_spellings_is_its_own():
    named = ["hdfs://n1/f", "hdfs://n2/f", "hdfs://n3/f"]
    assert compared(["hdfs://n2/f"], named).mismatched_count == 0
    assert compared(["hdfs://n4/f"], named).mismatched_count == 1
    assert compared(["hdfs://n4/f"], [*named, "hdfs:/f"]).mismatched_count == 0


def test_mismatches_are_named_up_to_a_number():
    found = compared([f"hdfs://a/{n}" for n in range(30)], [f"hdfs://b/{n}" for n in range(30)])
    assert (found.mismatched_count, len(found.mismatches)) == (30, 10)


def test_any_below_compares_whole_path_names():
    named = reached("s3a://b/tbl2/f", "s3://b/other/f")
    assert not any_below("s3://b/tbl", named, lambda: pytest.fail("Spark"))
    assert any_below("s3://b/tbl2/", named, lambda: pytest.fail("Spark"))


_NAMES = st.lists(st.text("aA%2f.é ", min_size=1, max_size=4), min_size=1, max_size=4)


@given(st.lists(_NAMES, max_size=6), st.lists(_NAMES, max_size=6), st.randoms(use_true_random=False))
def test_named_files_are_kept_and_all_others_found(listed, named, random):

    def spelled(parts):
        scheme = random.choice(["s3", "s3a", "s3n"])
        return f"{scheme}://b/{random.choice(['/', '//', '/./']).join(parts)}"

    locations = [spelled(parts) for parts in listed + named]
    found = compared(locations, [spelled(parts) for parts in named])
    assert found.named_count + found.unnamed.num_rows == len(locations)
    assert not set(found.unnamed["location"].to_pylist()) & set(locations[len(listed) :])


ROOT = "memory://lake/wh/db/events"


def all_reached(table):
    return reached_by(table, lambda: pytest.fail("Spark"), trust_manifest_list=False)


def named(found):
    return found.named["location"].to_pylist()


def newly_reached(table, before):
    return reached_by(table, lambda: pytest.fail("Spark"), trust_manifest_list=False, since=all_reached(before).seen)


def test_everything_that_metadata_names_is_reached_once():
    """amoro #1959: each kind of file that the spec knows; statistics are in the tests of the job."""
    first = add(memory_table(), "a", "b")
    table = add(first, "c")
    found = all_reached(table)
    manifests = {m.manifest_path for m in (*manifests_of(first), *manifests_of(table))}
    assert {m.manifest_path for m in found.manifests} == manifests
    assert sorted(named(found)) == sorted(
        {
            *manifests,
            *(snapshot.manifest_list for snapshot in table.metadata.snapshots),
            table.metadata_location,
            *(entry.metadata_file for entry in table.metadata.metadata_log),
            f"{ROOT}/metadata/version-hint.text",
        }
    )
    assert len(table.metadata.metadata_log) == 2
    assert found.untotalled_count == 0


def test_a_table_without_snapshots_leads_to_its_metadata():
    table = memory_table()
    found = all_reached(table)
    assert found.manifests == ()
    assert table.metadata_location in named(found)


def test_of_what_was_added_since_only_the_manifests_are_read():
    before = add(memory_table(), "a")
    table = add(swap(before, SetProperties({"a": "b"})), "c")
    found = newly_reached(table, before)
    assert len(manifests_of(table)) == 2
    assert [m.added_snapshot_id for m in found.manifests] == [table.metadata.current_snapshot_id]
    keys = location_keys(found.named["location"])
    assert np.isin(location_keys(all_reached(before).named["location"][:1]), keys).sum() <= 1
    assert table.metadata_location in named(found)


def test_where_nothing_was_added_nothing_is_read():
    before = add(memory_table(), "a")
    assert newly_reached(swap(before, SetProperties({"a": "b"})), before).manifests == ()


def test_corruption_stops_and_transient_errors_pass_through():
    with pytest.raises(SafetyError, match="nothing is deleted, since not everything can be read: cut"), fails_closed():
        raise InvalidTableError("cut")
    with pytest.raises(UnavailableError), fails_closed():
        raise UnavailableError("later")


def logged(*errors):
    """A table whose log names three metadata files, the second of which names statistics; what its reading raises."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    first = add(memory_table(catalog), "a")
    statistics = [{"snapshot-id": 1, "statistics-path": f"{ROOT}/metadata/old.puffin"}]
    older = first.metadata_location
    table = swap(first, SetProperties({"a": "b"}))
    document = {**metadata_to_json(first.metadata), "statistics": statistics}
    catalog.storage.inner.files[older] = (json.dumps(document).encode(), 0)
    assert older in [entry.metadata_file for entry in table.metadata.metadata_log]

    def fail(operation, location):
        if operation == "read" and location == older and errors:
            raise errors[0]

    catalog.storage.before = fail
    return table, older


def test_the_statistics_of_older_metadata_are_reached():
    table, _ = logged()
    assert f"{ROOT}/metadata/old.puffin" in named(all_reached(table))


@pytest.mark.parametrize(
    "error", [UnavailableError("down"), UsageError("the store denies access"), UnsupportedError("no client")]
)
def test_older_metadata_that_cannot_be_read_stops_it(error):
    """What it names may be what a rollback of the catalog needs."""
    table, _ = logged(error)
    with pytest.raises(type(error), match=error.message):
        all_reached(table)


@pytest.mark.parametrize("data", [b"nonsense", b'{"statistics": 7}', b"\x1f\x8b\xff\xff"])
def test_older_metadata_that_makes_no_sense(data):
    table, older = logged()
    table.storage.inner.files[older] = (data, 0)
    with pytest.raises(
        SafetyError, match=r"in the metadata log cannot be read .*; if it is broken for good, move it away"
    ) as raised:
        all_reached(table)
    assert older in raised.value.message
    table.storage.inner.files[older] = (b'{"statistics": [', 0)
    assert f"{ROOT}/metadata/old.puffin" not in named(all_reached(table))


def test_inaccessible_old_metadata_elsewhere_is_skipped():
    """As of a table that was moved: its log names the old place, to which there may be no access any more."""
    table, older = logged()
    elsewhere = MetadataLogEntry(timestamp_ms=0, metadata_file="memory://old/wh/db/events/metadata/v1.metadata.json")
    metadata = replace(table.metadata, metadata_log=(elsewhere, *table.metadata.metadata_log))

    def fail(operation, location):
        if location == elsewhere.metadata_file:
            raise UsageError("the store denies access")

    table.storage.before = fail
    names = named(all_reached(replace(table, metadata=metadata)))
    assert {elsewhere.metadata_file, older, f"{ROOT}/metadata/old.puffin"} <= set(names)


def test_older_metadata_is_read_once():
    """Each look at the table read the whole log: a hundred files of perhaps hundreds of megabytes."""
    table, older = logged()
    unknown, *_ = (e.metadata_file for e in table.metadata.metadata_log if e.metadata_file != older)
    whole = table.storage.inner.files.pop(unknown)
    read = []
    table.storage.before = lambda operation, location: read.append(location) if operation == "read" else None
    before = all_reached(table)
    assert {older, unknown} <= {*read}
    assert before.seen.metadata_files == {e.metadata_file for e in table.metadata.metadata_log} - {unknown}
    table.storage.inner.files[unknown] = whole
    now = swap(table, SetProperties({"c": "d"}))
    read.clear()
    newly = reached_by(now, lambda: pytest.fail("Spark"), trust_manifest_list=False, since=before.seen)
    logs = {e.metadata_file for e in now.metadata.metadata_log}
    assert [location for location in read if location in logs] == [unknown, table.metadata_location]
    assert newly.seen.metadata_files == logs


@pytest.mark.parametrize(("size_bytes", "most"), [(1_000, 16), (4_000_000, 6), (400_000_000, 1)])
def test_large_metadata_files_are_read_one_after_the_other(monkeypatch, size_bytes, most):
    table, _ = logged()
    monkeypatch.setattr(table.storage, "head", lambda location: FileInfo(location, size_bytes, 0))
    assert _files_at_once(table) <= most
    assert _files_at_once(table) >= most / 2
