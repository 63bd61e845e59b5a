"""The files of groups as a commit removes them: as they were read, each with the deletes that its rewrite applied.

Few are held. Many never come to the driver: tasks read the groups, deal their files out by the manifest that listed them,
and write a part of a stored set for each manifest.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.file_sets import ReadFile, StoredFileSet, StoredPart, store_part
from icekeep.maintenance.compaction.plan import FileGroup, GroupDelete, GroupFile, GroupFiles, group_files
from icekeep.planning.spark.rows import record_batches
from icekeep.planning.spark.session import SparkSource, started
from icekeep.planning.spark.tasks import dataframe_from_tasks, run_over_partitions
from icekeep.planning.spark.workers import DESCRIBED_FILES, tasks_count
from icekeep.runtime import SYSTEM
from icekeep.spec.collections import PartSet, balanced, narrowed
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.reach import AppliedDelete
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage

_ROWS = pa.schema(
    [
        pa.field("manifest_path", pa.string(), nullable=False),
        # Some files of a group that the manifest lists, pickled.
        pa.field("files", pa.binary(), nullable=False),
    ]
)
_FILES_A_ROW = 200

PartitionTypes = Mapping[int, StructType]


def read_files(files: GroupFiles, types: PartitionTypes) -> Iterator[ReadFile]:
    """The files of a group as they were read: what must still be so when they are replaced."""
    deletes = tuple(map(_applied, files.deletes))
    codecs = PartitionCodecs(types)
    for file in files.files:
        # Files often share their deletes, and there may be hundreds.
        yield ReadFile(_entry(file, codecs), file.manifest_path, PartSet(deletes, file.deletes))


def store_removed_files(table: Table, spark: SparkSource, groups: Sequence[FileGroup], directory: str) -> StoredFileSet:
    """Write the files of groups as a set in storage, in tasks; the driver sees one row a manifest.

    Raises:
        IcekeepError: a task failed; what the others wrote is removed.
    """
    types, storage, session = table.metadata.partition_types, table.storage, started(spark)
    parts_count = tasks_count(session, sum(group.files_count for group in groups), DESCRIBED_FILES, a_slot=4)
    bins = balanced(groups, attrgetter("files_count"), min(parts_count, len(groups)))
    rows = dataframe_from_tasks(session, [_ReadTask(tuple(some), types, storage) for some in bins], _read, _ROWS)
    by_manifest = rows.repartition(parts_count, "manifest_path")
    results, errors = run_over_partitions(
        by_manifest.sortWithinPartitions("manifest_path"),
        _write,
        (storage, directory),
        step="writing down the files that are to be replaced",
    )
    stored = StoredFileSet.of(directory, [part for parts in results for part in parts])
    if errors:
        storage.delete_many(stored.locations())
        raise errors[0]
    return stored


def _applied(delete: GroupDelete) -> AppliedDelete:
    return AppliedDelete(delete.file_path, delete.content_offset, delete.sequence_number, FileContent(delete.content))


def _entry(file: GroupFile, codecs: PartitionCodecs) -> ManifestEntry:
    return ManifestEntry(
        status=Status.EXISTING,
        snapshot_id=file.snapshot_id,
        sequence_number=file.sequence_number,
        file_sequence_number=file.file_sequence_number,
        data_file=DataFile(
            file_path=file.file_path,
            file_format=file.file_format,
            spec_id=file.spec_id,
            partition=codecs.decode(file.spec_id, file.partition),
            record_count=file.record_count,
            file_size_in_bytes=file.file_size_in_bytes,
            first_row_id=file.first_row_id,
        ),
    )


class _ReadTask(msgspec.Struct, frozen=True):
    groups: tuple[FileGroup, ...]
    types: PartitionTypes
    storage: Storage


def _read(task: _ReadTask) -> Iterator[pa.RecordBatch]:
    for group in task.groups:
        yield from record_batches(_rows(group_files(group, task.storage), task.types), _ROWS)


def _rows(files: GroupFiles, types: PartitionTypes) -> Iterator[tuple[Any, ...]]:
    by_manifest = sorted(read_files(files, types), key=attrgetter("manifest_path"))
    for manifest_path, some in groupby(by_manifest, attrgetter("manifest_path")):
        of_manifest = list(some)
        for start in range(0, len(of_manifest), _FILES_A_ROW):
            yield manifest_path, pickle.dumps(_by_themselves(of_manifest[start : start + _FILES_A_ROW]))


def _by_themselves(files: Sequence[ReadFile]) -> list[ReadFile]:
    """Files of one group with those of its deletes that were applied to any of them, and no more."""
    parts: list[Any] = [file.applied_deletes for file in files]
    deletes, positions = narrowed(parts[0].whole, [part.positions for part in parts])
    return [
        msgspec.structs.replace(file, applied_deletes=PartSet(deletes, some))
        for file, some in zip(files, positions, strict=True)
    ]


def _write(batches: Iterable[pa.RecordBatch], shared: tuple[Storage, str]) -> list[StoredPart]:
    """Write a part for each manifest of one task's rows, which come in the order of their manifests."""
    storage, directory = shared
    pairs = ((path, files) for batch in batches for path, files in zip(*map(pa.Array.to_pylist, batch), strict=True))
    parts: list[StoredPart] = []
    try:
        for _, some in groupby(pairs, itemgetter(0)):
            files = [file for _, pickled in some for file in pickle.loads(pickled)]
            # Another attempt at this task may write at the same time.
            parts.append(store_part(files, storage, directory, SYSTEM.new_uuid().int))
    except BaseException:
        storage.delete_many(StoredFileSet.of(directory, parts).locations())
        raise
    return parts
