"""Ranges of names, on lists of names in memory that are looked at as a store lets look at its own."""

import bisect
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.storage.objects.listing import SortedNames, name_ranges
from kit.cases import Choices


class Sorted:
    """A store's names; `looks` counts requests, each of which brings a page."""

    def __init__(self, names, page):
        self.names = sorted(set(names))
        self.page = page
        self.looks = 0

    def __call__(self, after):
        self.looks += 1
        start = bisect.bisect_right(self.names, after)
        names = self.names[start : start + self.page]
        return SortedNames(names, start + self.page > len(self.names))

    def counts(self, ranges):
        return [
            sum(some.after < name and (name <= some.until or not some.until) for name in self.names) for some in ranges
        ]


def uuid_of(chance):
    return uuid.UUID(int=chance.getrandbits(128), version=4)


# Few letters, so that names share beginnings; the highest character, a slash and what sorts around it.
NAMES = st.sets(
    st.lists(st.sampled_from("/-.0ab\u00e9\ud7ff\U0001f9ca\U0010ffff"), max_size=6).map(
        lambda some: "wh/t/" + "".join(some)
    ),
    max_size=60,
)


@given(names=NAMES, page=st.integers(1, 8), count=st.integers(0, 40))
def test_ranges_are_contiguous_from_first_name_to_last(names, page, count):
    ranges = name_ranges(Sorted(names, page), "wh/t/", count, 2, page)
    assert ranges[0].after == ""
    assert ranges[-1].until == ""
    assert [some.until for some in ranges[:-1]] == [some.after for some in ranges[1:]]
    assert [some.after for some in ranges] == sorted({some.after for some in ranges})


@given(names=NAMES, page=st.integers(1, 8), count=st.integers(2, 40))
def test_ranges_are_enough_unless_already_smallest(names, page, count):
    """One more request could not tell more of a range whose names are all on a page, or begin as the highest does."""
    store = Sorted(names, page)
    ranges = name_ranges(store, "wh/t/", count, 2, 0)
    plain = [name for name in store.names if "\U0010ffff" not in name]
    largest = max(store.counts(ranges))
    assert len(ranges) >= count or largest <= page or plain != store.names


@given(names=NAMES, page=st.integers(1, 8), count=st.integers(2, 40))
def test_what_was_seen_of_a_range_is_true(names, page, count):
    store = Sorted(names, page)
    for some in name_ranges(store, "wh/t/", count, 2, page):
        inside = [name for name in store.names if some.after < name and (name <= some.until or not some.until)]
        assert inside[: len(some.first)] == list(some.first)
        if some.is_seen and "\U0010ffff" not in "".join(store.names):
            assert inside == list(some.first)


CHANCE = Choices(7)
FLAT = [f"wh/t/data/00000-0-{uuid_of(CHANCE)}.parquet" for _ in range(50_000)]
TASKS = [
    f"wh/t/data/{task:05d}-{task + 9000}-{uuid_of(CHANCE)}-00001.parquet" for task in range(200) for _ in range(250)
]
DAYS = [
    f"wh/t/data/day=2026-{month:02d}-{day:02d}/{uuid_of(CHANCE)}.parquet"
    for month in range(1, 13)
    for day in range(1, 29)
    for _ in range(150)
]
HASHED = [f"wh/t/data/{CHANCE.getrandbits(20):020b}/{uuid_of(CHANCE)}.parquet" for _ in range(50_000)]
FEW_BESIDE_MANY = [*FLAT, *(f"wh/t/metadata/snap-{CHANCE.getrandbits(62)}-1-{number}.avro" for number in range(300))]


@pytest.mark.parametrize(
    "names", [FLAT, TASKS, DAYS, HASHED, FEW_BESIDE_MANY], ids=["flat", "tasks", "days", "hashed", "beside"]
)
@pytest.mark.parametrize("count", [4, 16, 64])
def test_engine_names_are_divided_evenly_by_few_requests(names, count):
    """apache/iceberg #16932: one listing on the driver had seen 38 % of a table after eight hours."""
    store = Sorted(names, 1000)
    ranges = name_ranges(store, "wh/t/", count, 1, 1000)
    counts = store.counts(ranges)
    assert sum(counts) == len(store.names)
    assert len(ranges) >= min(count, 50)
    assert max(counts) <= max(4 * len(names) / count, 1500)
    assert store.looks <= 3 * len(ranges) + 30


def test_few_names_are_one_range_by_one_look():
    store = Sorted([f"wh/t/{number}" for number in range(1000)][:999], 1000)
    assert [(some.after, some.until) for some in name_ranges(store, "wh/t/", 64, 4, 1000)] == [("", "")]
    assert store.looks == 1


def test_no_names_are_one_range():
    assert len(name_ranges(Sorted([], 1000), "wh/t/", 64, 4, 1000)) == 1
