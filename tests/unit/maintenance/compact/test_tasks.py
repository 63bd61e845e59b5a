"""A group as tasks: what each reads and applies, how large files are cut, how ranges share a group out."""

from itertools import pairwise

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from icekeep.formats.sort.encode import Ordering
from icekeep.maintenance.compact.method import GroupContext, group_task, ordering_of, shares_of
from icekeep.maintenance.compact.plan import FileGroup, GroupDelete, GroupFile, GroupFiles
from icekeep.maintenance.compact.sort_tasks import range_tasks
from icekeep.maintenance.rewrite.options import FileSizes, expected_output_files, input_split_bytes
from icekeep.spec.collections import NO_POSITIONS, PositionSet
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from kit.cases import for_each
from kit.tables import BY_KIND, memory_table

SIZES = FileSizes(target_bytes=1000, min_bytes=750, max_bytes=1800)
METADATA = memory_table(spec=BY_KIND).metadata
PARTITION = PartitionCodec(METADATA.partition_type(METADATA.default_spec_id)).encode(("a",))
BY_ID = Ordering(fields=(SortField(source_id=1, transform=Identity()),))


def file(
    name: str, size: int, offsets: tuple[int, ...] | None = None, deletes: PositionSet = NO_POSITIONS
) -> GroupFile:
    return GroupFile(
        file_path=name,
        file_format="PARQUET",
        spec_id=METADATA.default_spec_id,
        partition=PARTITION,
        record_count=size,
        file_size_in_bytes=size,
        snapshot_id=1,
        sequence_number=3,
        file_sequence_number=3,
        manifest_path="m",
        split_offsets=offsets,
        first_row_id=100,
        deletes=deletes,
    )


def delete(name: str) -> GroupDelete:
    return GroupDelete(
        content=1,
        file_path=name,
        file_format="PARQUET",
        spec_id=METADATA.default_spec_id,
        partition=PARTITION,
        sequence_number=4,
        record_count=2,
        file_size_in_bytes=30,
    )


def group(*files: GroupFile, moved: bool = False) -> FileGroup:
    total = sum(one.file_size_in_bytes for one in files)
    return FileGroup(
        number=4,
        partition="p",
        spec_id=METADATA.default_spec_id,
        output_spec_id=METADATA.default_spec_id + int(moved),
        files_count=len(files),
        bytes=total,
        record_count=total,
        expected_files_count=expected_output_files(total, SIZES),
    )


def context(ordering: Ordering | None = None) -> GroupContext:
    return GroupContext(
        metadata=METADATA, sizes=SIZES, ordering=ordering, sort_order_id=0, run_id="run", budget_bytes=5
    )


def tasks(*files: GroupFile, deletes: tuple[GroupDelete, ...] = ()):
    one = group(*files)
    shares = shares_of(files, range(len(files)), one.expected_files_count, SIZES)
    return [group_task(one, GroupFiles(files, deletes), context(), share, n) for n, share in enumerate(shares)]


def test_each_task_reads_about_one_new_file_in_order():
    found = tasks(*(file(f"f{n}", 300) for n in range(6)))
    assert [[piece.location for piece in task.pieces] for task in found] == [["f0", "f1", "f2"], ["f3", "f4", "f5"]]
    assert [task.partition_id for task in found] == [0, 1]
    assert {task.operation_id for task in found} == {"run-4"}


def test_a_piece_says_what_its_rows_inherit():
    [task] = tasks(file("f", 300))
    [piece] = task.pieces
    assert (piece.partition, piece.first_row_id, piece.data_sequence_number, piece.split) == (("a",), 100, 3, None)


def test_a_task_carries_only_the_deletes_that_reach_its_pieces():
    deletes = tuple(delete(f"d{n}") for n in range(3))
    files = [
        file("f0", 900, deletes=PositionSet([0, 2])),
        file("f1", 900),
        file("f2", 900, deletes=PositionSet([2, 1])),
    ]
    found = tasks(*files, deletes=deletes)
    told = [
        [[task.delete_files[position].file_path for position in piece.deletes] for piece in task.pieces]
        for task in found
    ]
    assert told == [[["d0", "d2"]], [[]], [["d1", "d2"]]]
    assert [[one.file_path for one in task.delete_files] for task in found] == [["d0", "d2"], [], ["d1", "d2"]]
    assert found[0].delete_files[0].content is FileContent.POSITION_DELETES


@given(st.lists(st.integers(1, 900), min_size=2, max_size=20))
@example([1, 847, 539])
def test_large_file_is_split_at_row_groups_without_gaps(sizes):
    offsets = tuple(4 + sum(sizes[:n]) for n in range(len(sizes)))
    size = 4 + sum(sizes) + 10
    found = tasks(file("f", size, offsets))
    pieces = [piece for task in found for piece in task.pieces]
    assert sum(task.files_count for task in found) == expected_output_files(size, SIZES)
    cuts = [piece.split for piece in pieces]
    assert len(found) == 1 or size > input_split_bytes(size, SIZES)
    if len(found) == 1:
        # No cut makes files of a good size.
        assert cuts == [None]
        return
    assert cuts[0][0] == 0
    assert sum(cuts[-1]) == size
    assert all(start + length == following for (start, length), (following, _) in pairwise(cuts))
    assert {start for start, _ in cuts[1:]} <= set(offsets)
    assert {piece.record_count for piece in pieces} == {size}


@for_each("offsets", [None, (4,), (900, 4), (4, 4)])
def test_a_file_whose_offsets_cannot_be_trusted_is_read_whole(offsets):
    [task] = tasks(file("f", 5000, offsets))
    assert [piece.split for piece in task.pieces] == [None]


def test_ranges_share_out_all_keys_and_the_expected_files():
    files = [file(f"f{n}", 900) for n in range(4)]
    whole = group_task(group(*files), GroupFiles(tuple(files)), context(BY_ID))
    assert (whole.ordering, whole.key_range, whole.files_count, whole.budget_bytes) == (BY_ID, None, 4, 5)
    ranges = range_tasks(whole, [b"g"], [3, 1])
    assert [(r.key_range.lower, r.key_range.upper) for r in ranges] == [(None, b"g"), (b"g", None)]
    assert [(r.partition_id, r.files_count, r.pieces) for r in ranges] == [(0, 3, whole.pieces), (1, 1, whole.pieces)]
    assert [one.files_count for one in range_tasks(whole, [b"g"], None)] == [None, None]


def test_rows_for_another_spec_are_ordered_by_its_partitions():
    moved = group(file("f", 300), moved=True)
    metadata = msgspec.structs.replace(METADATA, partition_specs=(*METADATA.partition_specs, other_spec()))
    told = msgspec.structs.replace(context(BY_ID), metadata=metadata)
    assert ordering_of(group(file("f", 300)), context()) is None
    assert ordering_of(moved, told) == msgspec.structs.replace(BY_ID, partition_by=other_spec())
    assert ordering_of(moved, msgspec.structs.replace(told, ordering=None)) == Ordering(partition_by=other_spec())


def other_spec():
    return msgspec.structs.replace(METADATA.spec, spec_id=METADATA.default_spec_id + 1)
