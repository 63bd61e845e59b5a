"""A group of files as tasks: what each of them reads, which deletes it applies, and what it writes. Pure."""

from collections.abc import Sequence

import msgspec

from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import key_ranges
from icekeep.maintenance.compaction.plan import FileGroup, GroupDelete, GroupFile, GroupFiles
from icekeep.maintenance.compaction.shares import Share, Slice
from icekeep.maintenance.groups.file_sizes import FileSizes
from icekeep.planning.entries import delete_file
from icekeep.spec.collections import narrowed
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory


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
        sizes: of the new files.
        verifies: whether tasks hash the rows that go in, and read what they wrote again.
    """

    metadata: TableMetadata
    sizes: FileSizes
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


def share_task(group: FileGroup, files: GroupFiles, share: Share, context: GroupContext, number: int) -> RewriteTask:
    """The task for a share of a group whose rows stay in their order."""
    partitions = PartitionCodecs(context.metadata.partition_types)
    pieces = [_piece(files.files[one.position], partitions, one) for one in share.slices]
    return _task(group, files, pieces, context, number, share.files_count)


def whole_task(group: FileGroup, files: GroupFiles, context: GroupContext) -> RewriteTask:
    """One task that reads all files of a group and orders their rows."""
    # Rows that move go to partitions which nobody knows yet.
    files_count = None if group.is_moved else max(1, group.expected_files_count)
    return _task(group, files, whole_pieces(files, context.metadata), context, 0, files_count)


def whole_pieces(files: GroupFiles, metadata: TableMetadata) -> list[FilePiece]:
    """The files of a group to be read whole, in their order."""
    partitions = PartitionCodecs(metadata.partition_types)
    return [_piece(file, partitions) for file in files.files]


def range_tasks(whole: RewriteTask, points: Sequence[bytes], files_counts: Sequence[int] | None) -> list[RewriteTask]:
    """The same work for several tasks: each reads all files and takes the rows of its range of keys.

    Args:
        points: where ranges end and the next begin, ascending.
        files_counts: how many files come of each range; `None` where their size alone says it.
    """
    ranges = key_ranges(points)
    counts = [None] * len(ranges) if files_counts is None else files_counts
    return [
        msgspec.structs.replace(whole, key_range=one, partition_id=number, files_count=count)
        for number, (one, count) in enumerate(zip(ranges, counts, strict=True))
    ]


def _task(
    group: FileGroup,
    files: GroupFiles,
    pieces: Sequence[FilePiece],
    context: GroupContext,
    number: int,
    files_count: int | None,
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
        # How many files there are to be is known: one ends by its size only before it would be too large.
        target_file_size_bytes=context.sizes.write_max_bytes if files_count is None else context.sizes.max_bytes,
        files_count=files_count,
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


def _piece(file: GroupFile, partitions: PartitionCodecs, part: Slice | None = None) -> FilePiece:
    size_bytes = file.file_size_in_bytes if part is None else part.size_bytes
    split = None if part is None else part.split
    part_rows = None if split is None else file.record_count * size_bytes // file.file_size_in_bytes
    rows = file.record_count if part_rows is None else part_rows
    return FilePiece(
        location=file.file_path,
        file_format=file.file_format,
        record_count=file.record_count,
        size_bytes=size_bytes,
        split=split,
        part_rows=part_rows,
        deleted_count=file.deleted_count * rows // max(1, file.record_count),
        spec_id=file.spec_id,
        partition=partitions.decode(file.spec_id, file.partition),
        first_row_id=file.first_row_id,
        data_sequence_number=file.sequence_number,
        deletes=file.deletes,
    )
