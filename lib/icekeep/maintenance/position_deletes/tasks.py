"""A group of delete files as tasks: each takes the rows for a range of the paths of data files. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from icekeep.commit.file_sets import ReadFile
from icekeep.formats.deletes.options import Granularity
from icekeep.formats.deletes.rewrite_positions import DeleteSource, DeletesTask
from icekeep.maintenance.groups.file_sizes import FileSizes
from icekeep.maintenance.position_deletes.plan import DeleteGroup
from icekeep.spec.applicability import sequence_number
from icekeep.spec.bins import cut_evenly
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata


class TaskContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a run have in common; `run_id` is in the names of the new files."""

    metadata: TableMetadata
    sizes: FileSizes
    granularity: Granularity
    file_format: str
    run_id: str


def deletes_tasks(group: DeleteGroup, context: TaskContext) -> list[DeletesTask]:
    """Tasks that together read all rows of a group's files, those for one data file in one task."""
    whole = _whole_task(group, context)
    cuts = _cuts(group)
    tasks = []
    for number, (first, end) in enumerate(zip([None, *cuts], [*cuts, None], strict=True)):
        part = msgspec.structs.replace(whole, first_path=first, end_path=end, partition_id=number)
        tasks.append(
            msgspec.structs.replace(
                part,
                sources=tuple(source for source in whole.sources if _may_hold(source.file, first, end)),
                live={path: file for path, file in whole.live.items() if part.takes(path)},
            )
        )
    return tasks


def _whole_task(group: DeleteGroup, context: TaskContext) -> DeletesTask:
    metadata = context.metadata
    named = {read.entry.data_file.referenced_data_file for read in group.files}
    return DeletesTask(
        sources=tuple(_source(read) for read in group.files),
        live=group.live if None in named else {path: file for path, file in group.live.items() if path in named},
        makes_vectors=metadata.format_version > 2,
        file_format=context.file_format,
        granularity=context.granularity,
        target_file_size_bytes=context.sizes.write_max_bytes,
        schema=metadata.schema,
        spec_id=group.spec_id,
        partition=group.files[0].entry.data_file.partition,
        directory=group.partition,
        table_location=metadata.location,
        properties=metadata.properties,
        operation_id=f"{context.run_id}-{group.number}",
    )


def _source(read: ReadFile) -> DeleteSource:
    return DeleteSource(read.entry.data_file, sequence_number(read.entry))


def _may_hold(file: DataFile, first: str | None, end: str | None) -> bool:
    """Whether a file may have rows of a range of paths; only those that are for one data file say so for certain."""
    path = file.referenced_data_file
    return path is None or ((first is None or first <= path) and (end is None or path < end))


def _cuts(group: DeleteGroup) -> list[str]:
    """Paths where one task's range ends and the next begins, so that each has about as many rows.

    Rows of a file that is for several data files are taken to be spread over all of the partition.
    """
    files = [read.entry.data_file for read in group.files]
    paths = sorted({*group.live, *(f.referenced_data_file for f in files if f.referenced_data_file is not None)})
    if group.tasks_count < 2 or len(paths) < 2:
        return []
    # Every path takes some time, however few rows there are for it.
    rows = np.ones(len(paths))
    for file in files:
        start, end = _span(file.referenced_data_file, paths)
        rows[start:end] += file.record_count / max(1, end - start)
    numbers = range(len(paths))
    return [paths[some[0]] for some in cut_evenly(numbers, rows.data.__getitem__, group.tasks_count)[1:]]


def _span(path: str | None, paths: Sequence[str]) -> tuple[int, int]:
    return (0, len(paths)) if path is None else (bisect_left(paths, path), bisect_right(paths, path))
