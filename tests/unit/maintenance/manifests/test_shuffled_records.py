"""Which task gets which record, and how a task cuts what it gets."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.manifests.records import _even_parts as _parts
from icekeep.maintenance.manifests.records import _share, _Writing, range_numbers
from icekeep.maintenance.manifests.survey import Weight, cut_weights
from icekeep.planning.transcode import PLACES_A_MANIFEST, RECORDS
from kit.cases import for_each
from kit.manifests import added
from kit.rewritten_manifests import ManifestStore, target_of, writer_of
from kit.storage import MemoryStorage

_PLACES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 3)), max_size=30)


def batch_of(rows: Sequence[tuple[bytes, int]], record: bytes = b"r") -> pa.RecordBatch:
    """Records of these keys and places."""
    keys, places = ([row[n] for row in rows] for n in (0, 1))
    same: list[Any] = [b""] * len(rows), [1] * len(rows), [1] * len(rows), [record] * len(rows)
    arrays = [pa.array(v, f.type) for v, f in zip((keys, places, *same), RECORDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def numbers(rows: Sequence[tuple[bytes, int]], points: Sequence[bytes], manifests_count: int) -> list[int]:
    return range_numbers(batch_of(rows), points, manifests_count).tolist()


# Ranges.


@given(_PLACES, st.lists(st.integers(0, 6).map(lambda n: bytes([n])), max_size=8).map(sorted))
def test_each_record_falls_into_one_range_and_ranges_are_in_the_order_of_keys(
    drawn: list[tuple[int, int, int]], points: list[bytes]
):
    rows = [(bytes([key]), number * PLACES_A_MANIFEST + place) for key, number, place in drawn]
    found = numbers(rows, points, 10)
    assert len(found) == len(rows)
    assert all(0 <= number <= len(points) for number in found)
    for (row, number), (other_row, other_number) in pairwise(sorted(zip(rows, found, strict=True))):
        assert row <= other_row
        assert number <= other_number
    # Which range a record falls into depends on nothing but itself.
    assert [numbers([row], points, 10)[0] for row in rows] == found


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 12))
def test_points_of_a_survey_give_every_range_some_records(counts: list[int], ranges_count: int):
    weights = [Weight(bytes([n]), b"", count) for n, count in enumerate(counts)]
    parts = cut_weights(weights, ranges_count)
    points = [part[0].key for part in parts[1:]]
    manifests_count = 1000
    rows = [
        (bytes([key]), (place * manifests_count // count) * PLACES_A_MANIFEST)
        for key, count in enumerate(counts)
        for place in range(count)
    ]
    found = numbers(rows, points, manifests_count)
    assert found == sorted(found)
    assert {*found} <= {*range(len(parts))}


def test_a_key_that_fills_several_ranges_is_spread_over_them_manifest_by_manifest():
    points = [b"b", b"b", b"b", b"c"]
    rows = [(b"b", number * PLACES_A_MANIFEST + 5) for number in range(8)]
    assert numbers(rows, points, 8) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert numbers([(b"a", 7 * PLACES_A_MANIFEST), (b"bb", 0), (b"c", 0), (b"d", 0)], points, 8) == [0, 3, 3, 4]
    assert numbers([(b"c", 7 * PLACES_A_MANIFEST)], points, 8) == [4]


def test_without_points_there_is_one_range():
    assert numbers([(b"a", 0), (b"z", 9)], [], 1) == [0, 0]


def test_a_share_of_the_manifests_is_told_the_numbers_of_its_own_alone():
    store = ManifestStore()
    for _ in range(5):
        store.put_entries([added()])
    share = _share(store.task(target_of()), [store.rows[4], store.rows[1]])
    assert [m.manifest_path for m in share.manifests] == [store.rows[4].manifest_path, store.rows[1].manifest_path]
    assert share.numbers == {store.rows[4].manifest_path: 4, store.rows[1].manifest_path: 1}


# Cutting what a task gets.


def cut(batch_rows: Sequence[int], entries_count: int, target_bytes: int, record_bytes: int = 100) -> list[pa.Table]:
    """Records that do not pack, in batches of so many rows, as manifests of a target size."""
    writer = writer_of(target_of(), MemoryStorage(), target_bytes, codec="uncompressed")
    batches, begin = [], 0
    for count in batch_rows:
        batches.append(batch_of([(b"k", place) for place in range(begin, begin + count)], b"r" * record_bytes))
        begin += count
    parts = [*_parts(_Writing(writer, entries_count), batches)]
    assert [place for part in parts for place in part["place"].to_pylist()] == [*range(begin)]
    assert all(part.schema == RECORDS for part in parts)
    return parts


@for_each("batch_rows", [[100] * 10, [1000], [1] * 1000, [7, 993], [999, 1], [334, 333, 333]])
def test_records_are_cut_evenly_whatever_batches_they_come_in(batch_rows: list[int]):
    assert [len(part) for part in cut(batch_rows, 1000, 20_000)] == [200] * 5


@for_each(
    ("rows", "sizes"),
    [
        (1000, [200] * 5),
        (1040, [200, 200, 200, 200, 240]),
        (1160, [*[200] * 5, 160]),
        (930, [*[200] * 4, 130]),
        (70, [70]),
    ],
)
def test_a_rest_of_less_than_half_a_manifest_goes_with_the_last(rows: int, sizes: list[int]):
    found = [len(part) for part in cut([rows], 1000, 20_000)]
    assert found == sizes


def test_the_room_of_a_manifest_follows_from_all_that_the_task_has():
    # 1000 records of 100 bytes are three manifests that come nearest to 35 000 bytes.
    assert [len(part) for part in cut([250] * 4, 1000, 35_000)] == [334, 334, 332]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=10), st.integers(1, 2000), st.integers(100, 50_000))
def test_no_manifest_is_more_than_one_and_a_half(batch_rows: list[int], entries_count: int, target_bytes: int):
    sizes = [len(part) for part in cut(batch_rows, entries_count, target_bytes)]
    assert sum(sizes) == sum(batch_rows)
    room = max(2, -(-entries_count // max(1, round(100 * entries_count / target_bytes))))
    assert all(size == room for size in sizes[:-1])
    assert sizes[-1] < room + max(1, room // 2) or sizes[-1] <= room
    assert Counter(size > 0 for size in sizes) == {True: len(sizes)}


def test_no_records_are_no_manifests():
    assert cut([], 10, 1000) == []
    assert cut([0], 10, 1000) == []
