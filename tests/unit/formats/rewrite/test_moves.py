"""Every rewrite reports where each row of its old files went, whatever deletes there are and whatever order rows get."""

from functools import partial
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, UnavailableError
from icekeep.formats.rewrite import run as rewriting
from icekeep.formats.rewrite.copy_pages import rewrite_by_pages
from icekeep.formats.rewrite.run import rewrite, rewrite_together
from icekeep.formats.rewrite.task import FilePiece, reported_moves
from icekeep.formats.row_moves import moves_locations, new_positions
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.formats.sort.keys import key_ranges, sort_keys
from icekeep.spec.collections import NO_POSITIONS
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from kit.cases import cases
from kit.columns import parquet_bytes, table_of
from kit.moved_rows import (
    BY_THIRD,
    KEYS,
    MOVING,
    OldFile,
    check_moves,
    cut,
    deleting,
    moving_rows,
    moving_task,
    old_file,
)
from kit.spliced import without_floors
from kit.storage import HookedStorage, MemoryStorage

pytestmark = pytest.mark.slow

BY_KEY = Ordering(fields=(SortField(source_id=3, transform=Identity()),))
ALONG_CURVE = Ordering(curve=Curve(kind="hilbert", column_ids=(2, 3)))
ROW_GROUPS = {"PARQUET": {"row_group_size_bytes": 200}, "ORC": {}, "AVRO": {}}


@pytest.fixture
def storage():
    return MemoryStorage()


@st.composite
def histories(draw, formats=("PARQUET", "PARQUET", "ORC", "AVRO")):
    """Some old files in a store, with the deletes that reach them."""
    storage = MemoryStorage()
    files = []
    for number in range(draw(st.integers(1, 4))):
        file_format = draw(st.sampled_from(formats))
        row_count = draw(st.integers(1, 40))
        # Files with the same keys are read together.
        keys = draw(st.sampled_from([(), (), (3,), (3,), (1, 5, 9), tuple(range(KEYS))]))
        file = OldFile(
            file=old_file(storage, number, row_count, file_format, **ROW_GROUPS[file_format]),
            named=frozenset(draw(st.one_of(st.just(()), st.lists(st.integers(0, 45), max_size=30)))),
            has_vector=draw(st.booleans()),
            keys=frozenset(keys),
        )
        files.append(file)
    return storage, files


def range_tasks(task, points):
    keys = sort_keys(table_of(MOVING, [{"key": key, "at": key} for key in points]), task.ordering, MOVING).to_pylist()
    return [
        replace(task, key_range=one, partition_id=number) for number, one in enumerate(key_ranges(sorted(set(keys))))
    ]


@cases(25)
@given(histories(), st.lists(st.integers(0, 20), max_size=3), st.sampled_from([1, 2**29]), st.integers(0, 8))
def test_rows_that_keep_their_order_are_found_by_the_pieces_that_were_read(history, cuts, target, share):
    storage, files = history
    deletes, whole = deleting(storage, files)
    pieces = [part for piece in whole for part in cut(storage, piece, cuts)]
    shares = [pieces[:share], pieces[share:]] if 0 < share < len(pieces) else [pieces]
    outcomes = [
        rewrite(moving_task(some, deletes, partition_id=number, target_file_size_bytes=target), storage)
        for number, some in enumerate(shares)
    ]
    check_moves(storage, outcomes, files)


@cases(25)
@given(histories(), st.sampled_from([1, 2**30]), st.sampled_from([BY_KEY, ALONG_CURVE]), st.sampled_from([None, 3]))
def test_rows_that_are_sorted_are_found_by_their_origins(history, budget_bytes, ordering, files_count):
    storage, files = history
    deletes, pieces = deleting(storage, files)
    task = moving_task(pieces, deletes, ordering=ordering, budget_bytes=budget_bytes, files_count=files_count)
    check_moves(storage, [rewrite(task, storage)], files)


@cases(15)
@given(histories(), st.lists(st.integers(0, KEYS), max_size=3), st.sampled_from([1, 2**30]))
def test_threads_that_sort_together_tell_it_of_all_ranges(history, points, budget_bytes):
    storage, files = history
    deletes, pieces = deleting(storage, files)
    tasks = range_tasks(moving_task(pieces, deletes, ordering=BY_KEY, budget_bytes=budget_bytes), points)
    check_moves(storage, [rewrite_together(tasks, storage)], files)


@cases(15)
@given(histories(), st.lists(st.integers(0, KEYS), max_size=3))
def test_tasks_that_each_take_a_range_tell_it_together(history, points):
    storage, files = history
    deletes, pieces = deleting(storage, files)
    tasks = range_tasks(moving_task(pieces, deletes, ordering=BY_KEY), points)
    outcomes = [rewrite(task, storage) for task in tasks]
    check_moves(storage, outcomes, files)
    assert len({outcome.moves.reading for outcome in outcomes}) == 1
    assert not any(outcome.moves.pieces for outcome in outcomes[1:])


@cases(15)
@given(histories(), st.sampled_from([(), BY_KEY.fields]), st.lists(st.integers(0, KEYS), max_size=2))
def test_rows_that_move_to_partitions_of_another_spec_are_found(history, fields, points):
    storage, files = history
    deletes, pieces = deleting(storage, files)
    ordering = Ordering(partition_by=BY_THIRD, fields=fields)
    task = moving_task(pieces, deletes, ordering=ordering, spec_id=1)
    outcome = rewrite_together(range_tasks(task, points), storage) if points else rewrite(task, storage)
    assert {file.spec_id for file in outcome.files} <= {1}
    check_moves(storage, [outcome], files)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4))
@cases(10)
def test_rows_whose_pages_are_moved_keep_their_order(row_counts):
    storage = MemoryStorage()
    pieces = []
    for number, row_count in enumerate(row_counts):
        path = f"memory:/t/old/{number}.parquet"
        data = parquet_bytes(
            moving_rows(path, row_count), compression="zstd", use_dictionary=False, write_page_index=True
        )
        storage.create(path, data)
        pieces.append(FilePiece(location=path, record_count=row_count, size_bytes=len(data)))
    files = [OldFile(file=file_of(piece)) for piece in pieces]
    with without_floors():
        outcome = rewrite_by_pages(moving_task(pieces), storage)
    assert outcome is not None
    check_moves(storage, [outcome], files)


def file_of(piece):
    return DataFile(
        file_path=piece.location,
        file_format="PARQUET",
        spec_id=0,
        record_count=piece.record_count,
        file_size_in_bytes=piece.size_bytes,
    )


def some_files(storage):
    """Three files: positions, a vector and keys delete rows of them."""
    files = [
        OldFile(file=old_file(storage, 0, 30), named=frozenset({0, 7, 29})),
        OldFile(file=old_file(storage, 1, 20), named=frozenset({5}), has_vector=True, keys=frozenset({1, 2})),
        OldFile(file=old_file(storage, 2, 25), keys=frozenset({1, 2})),
    ]
    return files, *deleting(storage, files)


@pytest.mark.parametrize("ordering", [None, BY_KEY])
def test_what_is_too_large_for_a_report_lies_beside_the_origins(storage, ordering):
    files, deletes, pieces = some_files(storage)
    task = moving_task(pieces, deletes, ordering=ordering, partition_id=4, task_attempt_id=9)
    with mock.patch.object(rewriting, "reported_moves", partial(reported_moves, max_bytes=100)):
        outcome = rewrite(task, storage)
    assert outcome.moves.pieces == ()
    names = ["pieces"] if ordering is None else ["pieces", "origins"]
    expected = [f"memory:/t/.icekeep/runs/run/{name}-00004-9-op" for name in names]
    assert moves_locations([outcome]) == expected
    assert {key for key in storage.files if ".icekeep" in key} == {
        key for key in storage.files if key.endswith("-9-op")
    }
    check_moves(storage, [outcome], files)


@pytest.mark.parametrize("ordering", [None, BY_KEY])
def test_where_nobody_asks_nothing_is_told_or_kept(storage, ordering):
    _, deletes, pieces = some_files(storage)
    outcome = rewrite(moving_task(pieces, deletes, ordering=ordering, moves_directory=None), storage)
    assert outcome.moves is None
    assert not [key for key in storage.files if ".icekeep" in key]
    with pytest.raises(IcekeepBug, match="did not report"):
        new_positions([outcome], storage, {})


def test_without_deletes_no_bitmap_is_told_and_nothing_is_stored(storage):
    files = [OldFile(file=old_file(storage, number, 10)) for number in range(2)]
    _, pieces = deleting(storage, files)
    outcome = rewrite(moving_task(pieces), storage)
    assert [(p.location, p.first_position, p.row_count, p.dropped, p.applied) for p in outcome.moves.pieces] == [
        (file.path, 0, 10, b"", None) for file in files
    ]
    assert moves_locations([outcome]) == []


def test_rows_that_only_positions_delete_are_told_once(storage):
    files, deletes, pieces = some_files(storage)
    told = {piece.location: piece for piece in rewrite(moving_task(pieces, deletes), storage).moves.pieces}
    assert told[files[0].path].applied is None
    assert told[files[1].path].applied not in (None, b"")
    assert told[files[2].path].applied == b""


def test_of_a_task_without_rows_no_origins_are_kept(storage):
    files, deletes, pieces = some_files(storage)
    nothing, everything = range_tasks(moving_task(pieces, deletes, ordering=BY_KEY), [-1])
    outcomes = [rewrite(task, storage) for task in (nothing, everything)]
    assert [len(outcome.moves.origins) for outcome in outcomes] == [0, 1]
    check_moves(storage, outcomes, files)


class Failing:
    """Fails the `number`th time that a file is begun which has some text in its name."""

    def __init__(self, text, number=1):
        self.text, self.number = text, number

    def __call__(self, operation, location):
        if operation == "write" and self.text in location:
            self.number -= 1
            if not self.number:
                raise UnavailableError("the store is full")


@pytest.mark.parametrize(
    "failing", [Failing("/origins-"), Failing("/pieces-"), Failing("/data/"), Failing("/data/", 3)]
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_task_that_fails_leaves_nothing(storage, failing, is_shared):
    _, deletes, pieces = some_files(storage)
    before = set(storage.files)
    task = moving_task(pieces, deletes, ordering=BY_KEY, files_count=3)
    run = partial(rewrite_together, range_tasks(task, [6])) if is_shared else partial(rewrite, task)
    hooked = HookedStorage(storage, before=Failing(failing.text, failing.number))
    with (
        mock.patch.object(rewriting, "reported_moves", partial(reported_moves, max_bytes=100)),
        pytest.raises(UnavailableError, match="full"),
    ):
        run(hooked)
    assert set(storage.files) == before


def test_tasks_that_read_other_rows_say_so(storage):
    _, deletes, pieces = some_files(storage)
    task = moving_task(pieces, deletes, ordering=BY_KEY)
    first, second = range_tasks(task, [6])
    without = [replace(piece, deletes=NO_POSITIONS) for piece in pieces]
    readings = [
        rewrite(one, storage).moves.reading
        for one in (first, second, replace(second, task_attempt_id=1, pieces=tuple(without)))
    ]
    assert readings[0] == readings[1] != readings[2]
