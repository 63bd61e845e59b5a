"""What is found out about live data files, and what of them is held."""

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.formats.deletes.rewrite import LiveFile
from icekeep.maintenance.deletes import live_rows as live_data
from icekeep.maintenance.deletes import live_rows as live_files
from icekeep.maintenance.deletes.live_rows import PackedLiveFiles, PathRange, load_live_files, packed_parts
from icekeep.spec.reach import path_digest
from icekeep.storage.local.storage import LocalStorage
from kit.cases import cases

P = (0, b"p")
PATHS = st.lists(st.text("ab/é", max_size=4), unique=True).map(sorted)
BOUNDS = st.none() | st.text("ab/é", max_size=3).map(str.encode)


def looked_at(paths: list[str], ranges: list[PathRange], keep: Any = None) -> live_data.LiveData:
    rows = [(*P, path, 1, False, None) for path in paths]
    columns = [*(pa.array(values) for values in [*zip(*rows, strict=True)][:-1]), pa.nulls(len(rows), pa.int64())]
    batches = [pa.record_batch(columns, list(live_data._ROW))] if rows else []
    return live_data._looked_at(batches, {P: ranges}, keep, packs=True)


@cases(200)
@given(paths=PATHS, bounds=st.lists(st.tuples(BOUNDS, BOUNDS), max_size=6))
def test_a_range_is_met_where_bounds_leave_a_live_path_possible(paths, bounds):
    ranges = [PathRange(number, lower, upper) for number, (lower, upper) in enumerate(bounds)]
    expected = {n for n, (lower, upper) in enumerate(bounds) if any(_between(lower, path, upper) for path in paths)}
    assert looked_at(paths, ranges).met == expected


def _between(lower: bytes | None, path: str, upper: bytes | None) -> bool:
    """Whether a path may lie between two bounds, the upper one of which may be cut."""
    encoded = path.encode()
    below = upper is None or encoded <= upper or encoded.startswith(upper)
    return below and (lower is None or lower <= encoded)


@cases(50)
@given(numbers=st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 2**62), st.booleans()), max_size=60))
def test_packed_files_are_found_again_and_no_others(numbers):
    files = {path: LiveFile(number, has_vector=has_vector) for path, (number, has_vector) in numbers.items()}
    packed = PackedLiveFiles(part.packed or b"" for part in packed_parts(files))
    assert {path: packed.get(path) for path in files} == files
    assert packed.at(path_digest("somewhere else")) is None
    assert len(packed) == len(files)


def test_digests_that_begin_alike_are_told_apart(monkeypatch):
    names = {"a": b"x" * 8 + b"1" * 8, "b": b"x" * 8 + b"2" * 8, "c": b"x" * 8 + b"3" * 8}
    monkeypatch.setattr(live_files, "path_digest", names.__getitem__)
    packed = PackedLiveFiles(part.packed or b"" for part in packed_parts({"a": LiveFile(1), "b": LiveFile(2)}))
    assert [packed.get(name) for name in "abc"] == [LiveFile(1), LiveFile(2), None]


def test_parts_that_tasks_put_into_storage_are_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(live_files, "PART_FILES", 10)
    storage, location = LocalStorage(), (tmp_path / "live.bin").as_uri()
    paths = [f"p{n:03d}" for n in range(35)]
    with live_data.ExitStack() as stack:
        found = looked_at(paths, [PathRange(0, None, None)], live_data._PartsFile(location, storage, stack).keep)
    parts = found.parts[P]
    assert [(part.files_count, part.packed, part.location) for part in parts[:2]] == [(10, None, location)] * 2
    assert len(load_live_files(parts[1:3], storage)) == 20
    whole = load_live_files(parts, storage)
    assert all(whole.get(path) == LiveFile(1) for path in paths)
    (tmp_path / "live.bin").write_bytes((tmp_path / "live.bin").read_bytes()[:-1])
    with pytest.raises(InvalidTableError, match="make a new plan"):
        load_live_files(parts, storage)


def test_live_files_are_held_as_samples_of_each_part(monkeypatch):
    """A dictionary of all data files took 240 bytes a file, on the driver."""
    monkeypatch.setattr(live_files, "PART_FILES", 2000)

    def batches(count: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, count, 1000):
            directory = "s3://bucket/warehouse/db.db/events/data"
            paths = [f"{directory}/{n:08d}-of-a-name-as-long-as-they-are" for n in range(start, start + 1000)]
            columns = [[P[0]] * 1000, [P[1]] * 1000, paths, [1] * 1000, [False] * 1000, pa.nulls(1000, pa.int64())]
            yield pa.record_batch([pa.array(values) for values in columns], list(live_data._ROW))

    def kept_and_peak(count: int) -> tuple[int, int]:
        tracemalloc.start()
        try:
            nowhere = live_data._PartsFile(None, LocalStorage(), live_data.ExitStack())
            found = live_data._looked_at(batches(count), {P: [PathRange(0, None, None)]}, nowhere.keep, packs=False)
            assert sum(part.files_count for part in found.parts[P]) == count
            gc.collect()
            return tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    kept_and_peak(1000)
    _, peak = kept_and_peak(8_000)
    kept_of_more, peak_of_more = kept_and_peak(32_000)
    assert kept_of_more < 16 * 6_000
    assert peak_of_more < peak + 200_000
