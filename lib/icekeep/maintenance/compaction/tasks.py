"""A group of files as tasks: what each of them reads, which deletes it applies, and what it writes. Pure."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

import msgspec

from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.sort.ordering import Ordering
from icekeep.formats.sort.ranges import key_ranges
from icekeep.maintenance.compaction.plan import FileGroup, GroupDelete, GroupFile, GroupFiles
from icekeep.maintenance.groups.file_sizes import FileSizes, expected_output_files, input_split_bytes
from icekeep.planning.entries.delete_files import delete_file
from icekeep.spec.bins import cut_evenly, packed
from icekeep.spec.layout import own_directory
from icekeep.spec.manifests.encode import PartitionCodecs
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.position_sets import narrowed

_SPLITTABLE = ("PARQUET", "ORC")


class GroupContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a run have in common.

    Attributes:
        ordering: of rows within a partition; null for binpack.
        sort_order_id: what new files say of the order of their rows.
        run_id: in the names of the new files.
        budget_bytes: for the rows that one task has to order.
        moves_pages: whether tasks may move data pages of small files as they are.
        slots: how many tasks share the memory of an executor.
        is_local: whether Spark's master is a local one.
        verifies: whether tasks hash the rows that go in, and read what they wrote again.
    """

    metadata: TableMetadata
    ordering: Ordering | None
    sort_order_id: int
    run_id: str
    budget_bytes: int
    moves_pages: bool = True
    slots: int = 1
    is_local: bool = False
    verifies: bool = False


def ordering_of(group: FileGroup, context: GroupContext) -> Ordering | None:
    """How the rows of a group are ordered: where they move to another spec, by its partitions first."""
    if not group.is_moved:
        return context.ordering
    ordering = Ordering() if context.ordering is None else context.ordering
    return msgspec.structs.replace(ordering, partition_by=context.metadata.specs_by_id[group.output_spec_id])


def rewrite_tasks(group: FileGroup, files: GroupFiles, context: GroupContext, sizes: FileSizes) -> list[RewriteTask]:
    """Tasks for some files of a group that read about as much as makes one file each, and keep the order of the rows.

    A file larger than one task's share is cut where its row groups or stripes begin, if its entry says where.
    """
    shares = _shares(group, files, context.metadata, sizes)
    return [_task(group, files, some, context, number) for number, some in enumerate(shares)]


def rewrite_tasks_count(group: FileGroup, files: GroupFiles, metadata: TableMetadata, sizes: FileSizes) -> int:
    """How many tasks `rewrite_tasks` makes."""
    return len(_shares(group, files, metadata, sizes))


def _shares(
    group: FileGroup, files: GroupFiles, metadata: TableMetadata, sizes: FileSizes
) -> Sequence[Sequence[FilePiece]]:
    total = sum(file.file_size_in_bytes for file in files.files)
    pieces = list(_pieces(files, input_split_bytes(total, sizes), metadata))
    size_of = attrgetter("size_bytes")
    return cut_evenly(pieces, size_of, expected_output_files(total, sizes), (size_of, group.write_max_bytes))


def whole_task(group: FileGroup, files: GroupFiles, context: GroupContext) -> RewriteTask:
    """One task that reads all files of a group and orders their rows."""
    task = _task(group, files, whole_pieces(files, context.metadata), context, 0)
    return msgspec.structs.replace(task, files_count=_files_count(group, 1))


def whole_pieces(files: GroupFiles, metadata: TableMetadata) -> list[FilePiece]:
    """The files of a group to be read whole, in their order."""
    partitions = PartitionCodecs(metadata.partition_types)
    return [_piece(file, partitions) for file in files.files]


def range_tasks(whole: RewriteTask, points: Sequence[bytes], group: FileGroup) -> list[RewriteTask]:
    """The same work for several tasks: each reads all files and takes the rows of its range of keys.

    Args:
        points: where ranges end and the next begin, ascending.
    """
    ranges = key_ranges(points)
    files_count = _files_count(group, len(ranges))
    return [
        msgspec.structs.replace(whole, key_range=one, partition_id=number, files_count=files_count)
        for number, one in enumerate(ranges)
    ]


def _files_count(group: FileGroup, tasks_count: int) -> int | None:
    """How many files a task makes; unknown where its rows go to several partitions."""
    return None if group.is_moved else max(1, round(group.expected_files_count / tasks_count))


def _task(
    group: FileGroup, files: GroupFiles, pieces: Sequence[FilePiece], context: GroupContext, number: int
) -> RewriteTask:
    metadata = context.metadata
    deletes, positions = narrowed(files.deletes, [piece.deletes for piece in pieces])
    partitions = PartitionCodecs(metadata.partition_types)
    ordering = ordering_of(group, context)
    return RewriteTask(
        pieces=tuple(msgspec.structs.replace(p, deletes=some) for p, some in zip(pieces, positions, strict=True)),
        delete_files=tuple(_delete_file(delete, partitions) for delete in deletes),
        schema=metadata.schema,
        table_schemas=metadata.schemas,
        specs=metadata.specs_by_id,
        spec_id=group.output_spec_id,
        table_location=metadata.location,
        properties=metadata.properties,
        target_file_size_bytes=group.write_max_bytes,
        sort_order=metadata.sort_order,
        sort_order_id=context.sort_order_id,
        ordering=ordering,
        budget_bytes=context.budget_bytes,
        moves_pages=context.moves_pages,
        slots=context.slots,
        is_local=context.is_local,
        operation_id=f"{context.run_id}-{group.number}",
        partition_id=number,
        verifies=context.verifies,
        moves_directory=own_directory(metadata, f"runs/{context.run_id}"),
    )


def _delete_file(delete: GroupDelete, partitions: PartitionCodecs) -> DataFile:
    return delete_file(msgspec.structs.asdict(delete), partitions.decode(delete.spec_id, delete.partition))


def _pieces(files: GroupFiles, split_bytes: int, metadata: TableMetadata) -> Iterator[FilePiece]:
    partitions = PartitionCodecs(metadata.partition_types)
    for file in files.files:
        whole = _piece(file, partitions)
        offsets = file.split_offsets or ()
        splits = file.file_format.upper() in _SPLITTABLE and list(offsets) == sorted(set(offsets))
        if not splits or file.file_size_in_bytes <= split_bytes or len(offsets) < 2:
            yield whole
            continue
        ends = [*offsets[1:], file.file_size_in_bytes]
        sizes = [end - start for start, end in zip(offsets, ends, strict=True)]
        for some in packed(range(len(sizes)), (sizes.__getitem__, split_bytes)):
            # The first piece begins where the file does: an entry need not name the very first byte of data.
            start = 0 if some[0] == 0 else offsets[some[0]]
            size_bytes = sum(sizes[number] for number in some)
            yield msgspec.structs.replace(whole, size_bytes=size_bytes, split=(start, ends[some[-1]] - start))


def _piece(file: GroupFile, partitions: PartitionCodecs) -> FilePiece:
    return FilePiece(
        location=file.file_path,
        file_format=file.file_format,
        record_count=file.record_count,
        size_bytes=file.file_size_in_bytes,
        spec_id=file.spec_id,
        partition=partitions.decode(file.spec_id, file.partition),
        first_row_id=file.first_row_id,
        data_sequence_number=file.sequence_number,
        deletes=file.deletes,
    )
