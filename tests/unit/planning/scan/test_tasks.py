"""The rows of a task that share a list of what is applied to them."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.planning.scan.tasks import (
    ReadOptions,
    Split,
    adapted_target_size,
    file_splits,
    read_options,
    sharing_deletes,
    split_tasks,
)
from icekeep.spec.collections import PositionSet, is_stretch, unpacked_positions
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.types import MIB
from kit.cases import for_each


def test_a_table_without_properties_reads_as_icebergs_defaults_say():
    assert read_options({}) == ReadOptions(
        split_target_bytes=134217728, planning_lookback=10, open_file_cost_bytes=4194304, is_adaptive=True
    )


def test_each_property_is_read():
    properties = {
        "read.split.target-size": "1000",
        "read.split.planning-lookback": "+3",
        "read.split.open-file-cost": "0",
        "read.split.adaptive-size.enabled": "False",
        "read.split.metadata-target-size": "of no concern",
    }
    assert read_options(properties) == ReadOptions(
        split_target_bytes=1000, planning_lookback=3, open_file_cost_bytes=0, is_adaptive=False
    )
    assert read_options({"read.split.adaptive-size.enabled": "TRUE"}).is_adaptive


@for_each(
    ("key", "text"),
    [
        ("read.split.target-size", "0"),
        ("read.split.target-size", "128MB"),
        ("read.split.target-size", "-1"),
        ("read.split.planning-lookback", "0"),
        ("read.split.planning-lookback", ""),
        ("read.split.open-file-cost", "-1"),
        ("read.split.open-file-cost", "1.5"),
        ("read.split.adaptive-size.enabled", "yes"),
    ],
)
def test_a_property_that_cannot_be_is_refused_by_name(key, text):
    with pytest.raises(UsageError, match=f"table property '{key}' is '{text}'; set ") as caught:
        read_options({key: text})
    assert caught.value.facts == {"property": key}


@for_each("file_format", ["PARQUET", "parquet", "ORC", "AVRO"])
def test_files_with_blocks_are_cut_at_their_offsets_and_without_them_by_size(file_format):
    assert file_splits(file_format, 100, (4, 60, 90), 30) == ((0, 60), (60, 30), (90, 10))
    assert file_splits(file_format, 100, (4,), 30) == ((0, 100),)
    assert file_splits(file_format, 100, None, 30) == ((0, 30), (30, 30), (60, 30), (90, 10))
    assert file_splits(file_format, 60, (), 30) == ((0, 30), (30, 30))
    assert file_splits(file_format, 10, None, 30) == ((0, 10),)


@for_each("offsets", [(60, 4), (4, 4), (4, 100), (4, 60, 120), (-4, 60)])
def test_offsets_that_cannot_be_true_are_not_cut_at(offsets):
    assert file_splits("PARQUET", 100, offsets, 50) == ((0, 50), (50, 50))


def test_files_of_other_formats_and_empty_files_have_one_split():
    assert file_splits("puffin", 100, (4, 60), 30) == ((0, 100),)
    assert file_splits("lance", 100, None, 30) == ((0, 100),)
    assert file_splits("PARQUET", 0, None, 30) == file_splits("lance", 0, None, 30) == ((0, 0),)


@given(
    st.sampled_from(["PARQUET", "ORC", "avro", "other"]),
    st.integers(0, 300),
    st.none() | st.lists(st.integers(-2, 310), max_size=6).map(sorted) | st.lists(st.integers(0, 300), max_size=4),
    st.integers(1, 400),
)
def test_every_byte_of_a_file_is_in_exactly_one_split(file_format, size, offsets, target):
    splits = file_splits(file_format, size, offsets, target)
    assert splits[0][0] == 0
    assert all(start + length == following for (start, length), (following, _) in pairwise(splits))
    assert sum(splits[-1]) == size
    assert size == 0 or all(length > 0 for _, length in splits)


def file_of(size, *, split_offsets=None, deletes_bytes=0, deletes_count=0):
    """A planned file; its deletes have `deletes_bytes` together."""
    first = {"file_size_in_bytes": 0, "content_size_in_bytes": deletes_bytes}
    others = [{"file_size_in_bytes": 0, "content_size_in_bytes": None}] * (deletes_count - 1)
    return {
        "file_format": "PARQUET",
        "file_size_in_bytes": size,
        "split_offsets": split_offsets,
        "deletes": [first, *others] if deletes_count else None,
        "key_metadata": None,
    }


def weight_of(split, cost):
    deletes = split.file["deletes"] or []
    deletes_bytes = sum(one["content_size_in_bytes"] or 0 for one in deletes)
    return max(split.length + deletes_bytes, (1 + len(deletes)) * cost)


def test_neighbours_in_one_task_are_one_split_and_those_of_another_file_are_not():
    a, b = file_of(100, split_offsets=(4, 30, 60)), file_of(100, split_offsets=(4, 30, 60))
    assert a == b
    [task] = split_tasks([a, b], ReadOptions(open_file_cost_bytes=1), 1000)
    assert [(split.file is a, split.start, split.length) for split in task] == [(True, 0, 100), (False, 0, 100)]
    assert list(split_tasks([], ReadOptions())) == []


def test_row_groups_become_tasks_of_about_the_target():
    big = file_of(100, split_offsets=(4, 30, 60, 80))
    small = file_of(20)
    tasks = split_tasks([big, small], ReadOptions(open_file_cost_bytes=1), 60)
    assert list(tasks) == [[Split(big, 0, 60)], [Split(big, 60, 40), Split(small, 0, 20)]]


def test_deletes_and_the_cost_of_opening_fill_a_task():
    for cost, deletes, expected in (
        (1, (30, 1), [2, 1]),
        (40, (30, 1), [1, 1, 1]),
        (20, (5, 2), [1, 1, 1]),
        (30, (0, 0), [2, 1]),
    ):
        files = [file_of(10, deletes_bytes=deletes[0], deletes_count=deletes[1]) for _ in "abc"]
        options = ReadOptions(split_target_bytes=80, open_file_cost_bytes=cost)
        assert [len(task) for task in split_tasks(files, options)] == expected


_FILES = st.lists(
    st.builds(
        lambda size, cuts, deletes: file_of(
            size,
            split_offsets=sorted({c for c in cuts if c < size}) or None,
            deletes_bytes=deletes * 5,
            deletes_count=deletes,
        ),
        st.integers(0, 200),
        st.lists(st.integers(0, 200), max_size=4),
        st.integers(0, 3),
    ),
    max_size=8,
)


@given(_FILES, st.integers(10, 120), st.integers(1, 4), st.integers(0, 20))
def test_every_byte_of_every_file_is_in_exactly_one_task(files, target, lookback, cost):
    options = ReadOptions(split_target_bytes=target, planning_lookback=lookback, open_file_cost_bytes=cost)
    tasks = list(split_tasks(files, options))
    for file in files:
        pieces = sorted((s.start, s.length) for task in tasks for s in task if s.file is file)
        assert pieces[0][0] == 0
        assert all(start + length == following for (start, length), (following, _) in pairwise(pieces))
        assert sum(pieces[-1]) == file["file_size_in_bytes"]
    for task in tasks:
        touching = [a for a, b in pairwise(task) if a.file is b.file and a.start + a.length == b.start]
        assert not touching
        weight = sum(weight_of(split, cost) for split in task)
        if weight > target:
            # One block that cannot be cut, in a file whose deletes come with it.
            [only] = task
            assert any(
                (only.start, only.length) == cut
                for cut in file_splits("PARQUET", only.file["file_size_in_bytes"], only.file["split_offsets"], target)
            )


@for_each(
    ("scan_bytes", "parallelism", "expected"),
    [
        (1000 * MIB, 4, 128 * MIB),
        (512 * MIB, 4, 128 * MIB),
        (400 * MIB, 8, 50 * MIB),
        (100 * MIB, 50, 16 * MIB),
        (0, 4, 16 * MIB),
    ],
)
def test_a_small_scan_is_cut_finer_so_that_all_slots_have_work(scan_bytes, parallelism, expected):
    assert adapted_target_size(ReadOptions(), scan_bytes, parallelism) == expected
    assert adapted_target_size(ReadOptions(is_adaptive=False), scan_bytes, parallelism) == 128 * MIB
    few = ReadOptions(split_target_bytes=MIB)
    assert adapted_target_size(few, scan_bytes, parallelism) == MIB


@given(st.integers(0, 10**12), st.integers(1, 10**4), st.integers(1, 10**9))
def test_the_adapted_size_is_never_above_the_target_and_enough_for_all_slots(scan_bytes, parallelism, target):
    size = adapted_target_size(ReadOptions(split_target_bytes=target), scan_bytes, parallelism)
    assert 1 <= size <= target
    if size > 16 * MIB:
        assert math.ceil(scan_bytes / size) >= parallelism


def delete(number, content=FileContent.EQUALITY_DELETES, partition=b"p", path=None, offset=None, only=None):
    return {
        "content": int(content),
        "file_path": path or f"d{number}",
        "spec_id": 1,
        "partition": partition,
        "sequence_number": number,
        "content_offset": offset,
        "referenced_data_file": only,
    }


DELETES = [
    *(delete(number) for number in range(5)),
    *(delete(number, partition=b"q", path=f"q{number}") for number in range(3)),
    *(
        delete(1, FileContent.POSITION_DELETES, path="v.puffin", offset=offset, only=only)
        for offset, only in [(4, "a"), (9, "b"), (9, "c")]
    ),
    delete(7, FileContent.POSITION_DELETES, path="pos"),
]


def read_back(task):
    """What each row of a task has."""
    together = [one for row in task for one in row["deletes"]]
    return [(row["start"], [together[n] for n in unpacked_positions(PositionSet, row["reached_by"])]) for row in task]


@given(st.lists(st.lists(st.sampled_from(DELETES), unique_by=repr, max_size=6), min_size=1, max_size=6))
def test_each_row_has_what_it_had(rows):
    task = [{"start": start, "deletes": deletes} for start, deletes in enumerate(rows)]
    shared = sharing_deletes(task)
    # In whatever order the rows come.
    for some in (shared, shared[::-1]):
        found = dict(read_back(some))
        for start, deletes in enumerate(rows):
            assert sorted(map(repr, found[start])) == sorted(map(repr, deletes))
    assert sum(len(row["deletes"]) for row in shared) == len({repr(one) for deletes in rows for one in deletes})


def test_those_of_equality_come_first_and_what_is_newer_than_a_file_is_a_stretch():
    equality = DELETES[:5]
    task = [{"start": n, "deletes": [DELETES[-1], *equality[n:]]} for n in range(5)]
    first, *_ = shared = sharing_deletes(task)
    assert [one["file_path"] for one in first["deletes"]] == ["d0", "d1", "d2", "d3", "d4", "pos"]
    assert all(is_stretch(unpacked_positions(PositionSet, row["reached_by"])) for row in shared)
    assert [row["deletes"] for row in shared[1:]] == [[]] * 4
