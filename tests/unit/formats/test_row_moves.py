"""The reports of tasks on rows that move: recorded, stored, read."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError
from icekeep.formats.rewrite.task import FilePiece, RewriteOutcome, numbered
from icekeep.formats.row_moves import (
    MovedPiece,
    OriginsWriter,
    ReadNotes,
    RowMoves,
    bitmap_from,
    bitmap_of,
    dropped_positions,
    new_positions,
    note_dropped,
    pieces_of,
    positions_in,
    read_origins,
)
from icekeep.formats.sort.encode import Ordering
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from kit.moved_rows import moving_task
from kit.storage import MemoryStorage

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


def test_rows_that_do_not_follow_each_other_are_pieces_of_their_own():
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


def test_ordinals_run_on_from_file_to_file_and_pieces_of_one_share_them():
    pieces = [
        FilePiece(location=path, record_count=count, size_bytes=1, split=split)
        for path, count, split in [("a", 5, None), ("b", 7, (0, 10)), ("b", 7, (10, 20)), ("c", 2, None)]
    ]
    task = moving_task(pieces, ordering=Ordering(fields=(SortField(source_id=3, transform=Identity()),)))
    assert [piece.first_ordinal for piece in numbered(task).pieces] == [0, 5, 5, 12]
    assert numbered(numbered(task)) == numbered(task)
    for other in (replace(task, ordering=None), replace(task, moves_directory=None)):
        assert numbered(other) is other
