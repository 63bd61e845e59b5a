"""A group of delete files as tasks: each takes the rows for a range of the paths of data files. Pure."""

import msgspec

from icekeep.commit.file_sets import ReadFile
from icekeep.formats.deletes.positions import DeleteSource, DeletesTask, Granularity
from icekeep.maintenance.groups.file_sizes import FileSizes
from icekeep.maintenance.position_deletes.live_files import LivePart, load_live_files
from icekeep.maintenance.position_deletes.plan import DeleteGroup
from icekeep.spec.collections import cut_evenly
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import sequence_number
from icekeep.storage.base import Storage


class TaskContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a run have in common; `run_id` is in the names of the new files."""

    metadata: TableMetadata
    sizes: FileSizes
    granularity: Granularity
    file_format: str
    run_id: str


class RangeTask(msgspec.Struct, frozen=True):
    """A task, and where it finds its live data files."""

    task: DeletesTask
    live: tuple[LivePart, ...]

    def loaded(self, storage: Storage) -> DeletesTask:
        """The task with its live data files; raises as `load_live_files`."""
        return msgspec.structs.replace(self.task, live=load_live_files(self.live, storage))


def deletes_tasks(group: DeleteGroup, context: TaskContext) -> list[RangeTask]:
    """Tasks that together read all rows of a group's files, those for one data file in one task."""
    whole = _whole_task(group, context)
    cuts = _cuts(group)
    tasks = []
    for number, (first, end) in enumerate(zip([None, *cuts], [*cuts, None], strict=True)):
        sources = tuple(source for source in whole.sources if _may_hold(source.file, first, end))
        part = {"sources": sources, "first_path": first, "end_path": end, "partition_id": number}
        live = tuple(part for part in group.live if part.meets(first, end))
        tasks.append(RangeTask(msgspec.structs.replace(whole, **part), live))
    return tasks


def _whole_task(group: DeleteGroup, context: TaskContext) -> DeletesTask:
    metadata = context.metadata
    return DeletesTask(
        sources=tuple(_source(read) for read in group.files),
        live={},
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
    if group.tasks_count < 2:
        return []
    files = [read.entry.data_file for read in group.files]
    # Every path takes some time, however few rows there are for it.
    rows = {file.referenced_data_file: 1.0 for file in files if file.referenced_data_file is not None}
    spread = [file.record_count for file in files if file.referenced_data_file is None]
    if spread:
        rows_a_file = 1 + sum(spread) / max(1, sum(part.files_count for part in group.live))
        for part in group.live:
            rows.update(dict.fromkeys(part.samples, rows_a_file * part.files_count / len(part.samples)))
    for file in files:
        if file.referenced_data_file is not None:
            rows[file.referenced_data_file] += file.record_count
    paths = sorted(rows)
    return [some[0] for some in cut_evenly(paths, rows.__getitem__, group.tasks_count)[1:]] if paths else []
