"""The reports of tasks on rows that move: recorded, stored, read."""

from functools import partial
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError, UnavailableError
from icekeep.formats.rewrite import run as rewriting
from icekeep.formats.rewrite.copy_pages import rewrite_by_pages
from icekeep.formats.rewrite.run import rewrite, rewrite_together
from icekeep.formats.rewrite.task import FilePiece, RewriteOutcome, numbered, reported_moves
from icekeep.formats.row_moves import (
    MovedPiece,
    OriginsWriter,
    ReadNotes,
    RowMoves,
    bitmap_from,
    bitmap_of,
    dropped_positions,
    moves_locations,
    new_positions,
    note_dropped,
    pieces_of,
    positions_in,
    read_origins,
)
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.formats.sort.keys import key_ranges, sort_keys
from icekeep.spec.collections import NO_POSITIONS
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from kit.cases import cases
from kit.columns import parquet_bytes, table_of
from kit.spliced import (
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
    without_floors,
)
from kit.storage import HookedStorage, MemoryStorage

POSITIONS = st.lists(st.integers(0, 2**48), max_size=20)


@pytest.fixture
def storage():
    return MemoryStorage()


def data_file(path, record_count):
    return DataFile(file_path=path, file_format="PARQUET", spec_id=0, record_count=record_count, file_size_in_bytes=1)


def outcome(pieces, files, origins=None, **facts):
    moves = RowMoves(pieces=tuple(pieces), origins=origins, **facts)
    return RewriteOutcome(files=tuple(data_file(*file) for file in files), read_count=0, live_count=0, moves=moves)


def piece(location, first, count, dropped=(), applied=None, ordinal=None):
    return MovedPiece(
        location=location,
        first_position=first,
        row_count=count,
        dropped=bytes(BitMap64(dropped).serialize()) if dropped else b"",
        applied=applied if applied is None else bytes(BitMap64(applied).serialize()),
        first_ordinal=ordinal,
    )


def origins_of(storage, name, numbers, type_=None):
    with OriginsWriter(storage, f"memory:/moves/{name}") as writer:
        writer.write(pa.chunked_array([pa.array(numbers, type_ or pa.uint32())]))
        return writer.close()


def found(outcomes, storage, **wanted):
    result = new_positions(outcomes, storage, {path: BitMap64(positions) for path, positions in wanted.items()})
    return {path: list(positions) for path, positions in result.items()}


@given(POSITIONS)
def test_bitmaps_hold_the_positions_that_they_are_made_of(positions):
    bitmap = bitmap_from(np.array(positions, dtype=np.int64))
    assert bitmap == BitMap64(positions)
    assert positions_in(bitmap).tolist() == sorted(set(positions))
    assert not bitmap_of(b"")


def test_rows_lie_as_far_on_as_live_ones_before_them(storage):
    one = outcome([piece("a", 0, 4, [1]), piece("b", 0, 3, [0, 2]), piece("c", 0, 2)], [("x", 3), ("y", 3)])
    assert found([one], storage, a=range(4), b=range(3), c=range(2)) == {"x": [0, 1, 2], "y": [0, 1, 2]}
    assert found([one], storage, a=[2]) == {"x": [1]}
    assert found([one], storage, b=[1]) == {"y": [0]}
    assert found([one], storage, c=[1]) == {"y": [2]}
    assert found([one], storage, a=[1], b=[0, 2]) == {}


def test_a_file_may_be_shared_by_several_tasks(storage):
    first = outcome([piece("a", 0, 2), piece("a", 6, 2, [7])], [("x", 3)])
    second = outcome([piece("a", 2, 4, [3])], [("y", 3)])
    assert found([first, second], storage, a=[0, 2]) == {"x": [0], "y": [0]}
    assert found([first, second], storage, a=[5, 6]) == {"x": [2], "y": [2]}
    dropped = dropped_positions([first, second], storage, ["a"])
    assert dropped == {"a": BitMap64([3, 7])} == dropped_positions([first, second], storage, ["a"], by_position=True)


def test_positions_beyond_the_end_of_a_file_are_no_rows(storage):
    one = outcome([piece("a", 0, 4)], [("x", 4)])
    assert found([one], storage, a=[3, 4, 2**40]) == {"x": [3]}
    empty = outcome([piece("a", 0, 0)], [])
    assert found([empty], storage, a=[0, 5]) == {}
    assert dropped_positions([empty], storage, ["a"]) == {"a": BitMap64()}


def test_what_no_task_read_is_a_bug_of_ours(storage):
    one = outcome([piece("a", 0, 2), piece("a", 4, 2)], [("x", 4)])
    with pytest.raises(IcekeepBug, match="no task of the group read row 3 of data file 'a'"):
        found([one], storage, a=[0, 3])
    with pytest.raises(IcekeepBug, match="no task of the group read data file 'b'"):
        found([one], storage, b=[0])
    with pytest.raises(IcekeepBug, match="no task of the group read data file 'b'"):
        dropped_positions([one], storage, ["a", "b"])


@pytest.mark.parametrize("type_", [pa.uint32(), pa.int64()])
def test_rows_in_another_order_lie_where_their_origins_do(storage, type_):
    pieces = [piece("a", 0, 3, [1], ordinal=0), piece("b", 0, 2, ordinal=3)]
    first = outcome(pieces, [("x", 2)], origins_of(storage, 0, [4, 0], type_))
    second = outcome([], [("y", 1), ("z", 1)], origins_of(storage, 1, [3, 2], type_))
    assert found([first, second], storage, a=[0, 1]) == {"x": [1]}
    assert found([first, second], storage, a=[2], b=[0, 1]) == {"x": [0], "y": [0], "z": [0]}
    # Above any number of flags, and equal to others in its lower bits.
    far = outcome(
        [piece("c", 0, 2, ordinal=(1 << 22) - 1)], [("w", 2)], origins_of(storage, 2, [1 << 22, (1 << 22) - 1], type_)
    )
    assert found([far], storage, c=[0]) == {"w": [1]}


@pytest.mark.parametrize("numbers", [[0, 2], [0, 0], [1, 1], [0]])
def test_origins_that_do_not_fit_the_rows_are_a_bug_of_ours(storage, numbers):
    one = outcome([piece("a", 0, 2, ordinal=0)], [("x", 2)], origins_of(storage, 0, numbers))
    with pytest.raises(IcekeepBug):
        found([one], storage, a=[0, 1])


def test_pieces_that_do_not_fit_the_files_are_a_bug_of_ours(storage):
    with pytest.raises(IcekeepBug, match="says that it kept 2 rows, and wrote 3"):
        found([outcome([piece("a", 0, 3, [1])], [("x", 3)])], storage, a=[0])
    with pytest.raises(IcekeepBug, match="have no ordinals"):
        found([outcome([piece("a", 0, 1)], [("x", 1)], origins_of(storage, 0, [0]))], storage, a=[0])


def test_what_lies_in_storage_must_be_there_and_whole(storage):
    gone = outcome([], [], stored=("memory:/moves/gone",))
    with pytest.raises(MissingFileError):
        dropped_positions([gone], storage, [])
    storage.create("memory:/moves/pieces", b"\x93no")
    with pytest.raises(InvalidTableError, match="'memory:/moves/pieces' is damaged"):
        list(pieces_of(RowMoves(stored=("memory:/moves/pieces",)), storage))
    storage.create("memory:/moves/origins", b"ARROW?")
    with pytest.raises(InvalidTableError, match="memory:/moves/origins"):
        list(read_origins(storage, "memory:/moves/origins"))


@given(st.lists(st.integers(0, 50), max_size=6), st.integers(1, 60))
def test_origins_come_back_as_they_were_written(sizes, step):
    storage = MemoryStorage()
    numbers = np.random.default_rng(step).permutation(sum(sizes)).astype(np.uint32)
    with OriginsWriter(storage, "memory:/moves/o") as writer:
        start = 0
        for size in sizes:
            some = numbers[start : start + size]
            writer.write(pa.chunked_array([pa.array(some[n : n + step]) for n in range(0, size, step)], pa.uint32()))
            start += size
        locations = writer.close()
    assert locations == (("memory:/moves/o",) if sum(sizes) else ())
    back = [number for location in locations for batch in read_origins(storage, location) for number in batch]
    assert back == numbers.tolist()


def test_origins_are_written_in_batches_and_read_one_at_a_time(storage):
    numbers = np.arange(300_000, dtype=np.uint32)
    with OriginsWriter(storage, "memory:/moves/o") as writer:
        for start in range(0, len(numbers), 1000):
            writer.write(pa.chunked_array([pa.array(numbers[start : start + 1000])]))
        (location,) = writer.close()
    batches = list(read_origins(storage, location))
    assert len(batches) == 3
    assert np.array_equal(np.concatenate(batches), numbers)


@pytest.mark.parametrize("closed", [False, True])
def test_origins_of_a_task_that_fails_are_not_left(storage, closed):
    def fail():
        with OriginsWriter(storage, "memory:/moves/o") as writer:
            writer.write(pa.chunked_array([pa.array(np.arange(200_000, dtype=np.uint32))]))
            if closed:
                writer.close()
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert not storage.files


def test_non_contiguous_rows_are_separate_pieces():
    notes = ReadNotes()
    notes.begin("a", has_key_deletes=True)
    rows = [notes.add(0, 3), notes.add(3, 2), notes.add(9, 2)]
    notes.begin("b")
    rows.append(notes.add(0, 1))
    notes.begin("empty")
    mask = np.array([0, 0, 1, 1, 0, 0, 1, 1], dtype=bool)
    by_position = np.array([0, 0, 0, 1, 0, 0, 0, 1], dtype=bool)
    note_dropped(rows, mask, by_position)
    first, second, third, last = notes.pieces()
    assert [(p.location, p.first_position, p.row_count) for p in (first, second, third, last)] == [
        ("a", 0, 5), ("a", 9, 2), ("b", 0, 1), ("empty", 0, 0),
    ]  # fmt: skip
    assert [list(bitmap_of(p.dropped)) for p in (first, second, third, last)] == [[2, 3], [10], [0], []]
    assert list(bitmap_of(first.applied)) == [3]
    assert second.applied == b""
    assert third.applied is None


def test_ordinals_continue_across_files():
    """Pieces of one file share its first ordinal, and numbering twice changes nothing."""
    pieces = [
        FilePiece(location=path, record_count=count, size_bytes=1, split=split)
        for path, count, split in [("a", 5, None), ("b", 7, (0, 10)), ("b", 7, (10, 20)), ("c", 2, None)]
    ]
    task = moving_task(pieces, ordering=Ordering(fields=(SortField(source_id=3, transform=Identity()),)))
    assert [piece.first_ordinal for piece in numbered(task).pieces] == [0, 5, 5, 12]
    assert numbered(numbered(task)) == numbered(task)
    for other in (replace(task, ordering=None), replace(task, moves_directory=None)):
        assert numbered(other) is other


BY_KEY = Ordering(fields=(SortField(source_id=3, transform=Identity()),))
ALONG_CURVE = Ordering(curve=Curve(kind="hilbert", column_ids=(2, 3)))
ROW_GROUPS = {"PARQUET": {"row_group_size_bytes": 200}, "ORC": {}, "AVRO": {}}


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


@pytest.mark.slow
@cases(25)
@given(histories(), st.lists(st.integers(0, 20), max_size=3), st.sampled_from([1, 2**29]), st.integers(0, 8))
def test_rows_in_order_are_found_by_pieces_read(history, cuts, target, share):
    storage, files = history
    deletes, whole = deleting(storage, files)
    pieces = [part for piece in whole for part in cut(storage, piece, cuts)]
    shares = [pieces[:share], pieces[share:]] if 0 < share < len(pieces) else [pieces]
    outcomes = [
        rewrite(moving_task(some, deletes, partition_id=number, target_file_size_bytes=target), storage)
        for number, some in enumerate(shares)
    ]
    check_moves(storage, outcomes, files)


@pytest.mark.slow
@cases(25)
@given(histories(), st.sampled_from([1, 2**30]), st.sampled_from([BY_KEY, ALONG_CURVE]), st.sampled_from([None, 3]))
def test_rows_that_are_sorted_are_found_by_their_origins(history, budget_bytes, ordering, files_count):
    storage, files = history
    deletes, pieces = deleting(storage, files)
    task = moving_task(pieces, deletes, ordering=ordering, budget_bytes=budget_bytes, files_count=files_count)
    check_moves(storage, [rewrite(task, storage)], files)


@pytest.mark.slow
@cases(15)
@given(histories(), st.lists(st.integers(0, KEYS), max_size=3), st.sampled_from([1, 2**30]))
def test_threads_that_sort_together_tell_it_of_all_ranges(history, points, budget_bytes):
    storage, files = history
    deletes, pieces = deleting(storage, files)
    tasks = range_tasks(moving_task(pieces, deletes, ordering=BY_KEY, budget_bytes=budget_bytes), points)
    check_moves(storage, [rewrite_together(tasks, storage)], files)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("ordering", [None, BY_KEY])
def test_where_nobody_asks_nothing_is_told_or_kept(storage, ordering):
    _, deletes, pieces = some_files(storage)
    outcome = rewrite(moving_task(pieces, deletes, ordering=ordering, moves_directory=None), storage)
    assert outcome.moves is None
    assert not [key for key in storage.files if ".icekeep" in key]
    with pytest.raises(IcekeepBug, match="did not report"):
        new_positions([outcome], storage, {})


@pytest.mark.slow
def test_without_deletes_no_bitmap_is_told_and_nothing_is_stored(storage):
    files = [OldFile(file=old_file(storage, number, 10)) for number in range(2)]
    _, pieces = deleting(storage, files)
    outcome = rewrite(moving_task(pieces), storage)
    assert [(p.location, p.first_position, p.row_count, p.dropped, p.applied) for p in outcome.moves.pieces] == [
        (file.path, 0, 10, b"", None) for file in files
    ]
    assert moves_locations([outcome]) == []


@pytest.mark.slow
def test_rows_that_only_positions_delete_are_told_once(storage):
    files, deletes, pieces = some_files(storage)
    told = {piece.location: piece for piece in rewrite(moving_task(pieces, deletes), storage).moves.pieces}
    assert told[files[0].path].applied is None
    assert told[files[1].path].applied not in (None, b"")
    assert told[files[2].path].applied == b""


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
