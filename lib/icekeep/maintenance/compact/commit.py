"""Finished groups of data files -> commits of one plan; groups that others changed are left out, for another plan.

A commit removes the files of its groups as they were read, each with the deletes that its rewrite applied. Few are held. Many
never come to the driver: tasks read the groups, deal their files out by the manifest that listed them, and write a part of a
stored set for each manifest.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.attempt import removed_deletes
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.file_sets import HELD_MAX_COUNT, Digest, FileSet, ReadFile, StoredFileSet, StoredPart, store_part
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import CommitResult
from icekeep.errors import ConflictError
from icekeep.formats.deletes.read import (
    OwnPathProof,
    hold_own_path,
)
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.maintenance.compact.carrying import CarriedDeletes
from icekeep.maintenance.compact.execute import Finished, RewrittenGroup, discard, settle
from icekeep.maintenance.compact.method import GroupMethod
from icekeep.maintenance.compact.options import RewriteDataFilesOptions, RewriteDataFilesResult
from icekeep.maintenance.compact.plan import FileGroup, GroupDelete, GroupFile, GroupFiles, RewritePlan, group_files
from icekeep.maintenance.rewrite.commit import GroupCommitter, keep_partial_result, warn_stopped_early
from icekeep.maintenance.rewrite.run import RewriteRun
from icekeep.planning.spark.rows import record_batches
from icekeep.planning.spark.session import SparkSource, started
from icekeep.planning.spark.tasks import dataframe_from_tasks, run_over_partitions
from icekeep.planning.spark.workers import DESCRIBED_FILES, tasks_count
from icekeep.runtime import SYSTEM
from icekeep.spec.collections import PartSet, balanced, narrowed
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.properties import own_directory
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
        yield from record_batches(_entry_rows(group_files(group, task.storage), task.types), _ROWS)


def _entry_rows(files: GroupFiles, types: PartitionTypes) -> Iterator[tuple[Any, ...]]:
    by_manifest = sorted(read_files(files, types), key=attrgetter("manifest_path"))
    for manifest_path, some in groupby(by_manifest, attrgetter("manifest_path")):
        of_manifest = list(some)
        for start in range(0, len(of_manifest), _FILES_A_ROW):
            yield manifest_path, pickle.dumps(_by_themselves(of_manifest[start : start + _FILES_A_ROW]))


def _by_themselves(files: Sequence[ReadFile]) -> list[ReadFile]:
    """Files of one group, with only those of its deletes that were applied to any of them."""
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


class CompactionCommits(msgspec.Struct, frozen=True, kw_only=True):
    """What all commits of a plan are made with.

    Attributes:
        run: on the table as it was planned.
        reader: how they read manifests.
        store: writes the files of many groups as a set to a directory.
        summary: what the snapshots say beside their counts.
        only_dangling: which of the delete files that reach nothing may go; `None` for all.
    """

    run: RewriteRun
    plan: RewritePlan
    options: RewriteDataFilesOptions
    reader: ManifestReader
    store: Callable[[Sequence[FileGroup], str], StoredFileSet]
    summary: Mapping[str, str] = {}
    only_dangling: frozenset[Digest] | None = None


class CommittedGroups(msgspec.Struct, frozen=True):
    """What the commits of a plan did, and the groups that they deferred, with nothing left of their new files, and why."""

    result: RewriteDataFilesResult
    deferred: tuple[FileGroup, ...] = ()
    conflict: ConflictError | None = None


def commit_groups(finished: Iterator[Finished], commits: CompactionCommits) -> CommittedGroups:
    """Commit groups as they come; the caller adds times and the plan to the result.

    Once a commit has landed no error but an unknown outcome leaves: the result is `partial`, and a warning says why.

    Raises:
        JobFailedError: a group failed, or, with partial progress, all commits or groups did.
        ConflictError: each attempt of a commit met other writers (`is_outpaced`).
        OutcomeUnknownError: as `commit` raises it.
    """
    committer = _Committer(commits)
    with keep_partial_result(lambda: committer.has_landed, committer.end_early):
        committer.commit_finished(finished, len(commits.plan.groups), has_more=commits.options.remove_dangling_deletes)
        committer.check_failures()
    return CommittedGroups(committer.result(), tuple(one.group for one in committer.deferred), committer.conflict)


class _Committer(GroupCommitter[RewrittenGroup, RewriteFiles]):
    """Commits groups of one plan, and keeps count."""

    files = "data files"

    def __init__(self, commits: CompactionCommits) -> None:
        super().__init__(commits.run, commits.options, commits.reader)
        self._commits, self._table = commits, commits.run.table
        self._done = RewriteDataFilesResult()

    def end_early(self, error: Exception) -> None:
        """Take all groups that are in no commit for failed, but for those that another plan may do, and say why."""
        done = self._done.rewritten_data_files_count + self.deferred_files_count
        self.failed_files_count = _files_count(self._commits.plan.groups) - done
        warn_stopped_early(self.commits_count, error, self._listener)

    def send(self, change: RewriteFiles, groups: Sequence[RewrittenGroup]) -> CommitResult:
        try:
            return super().send(change, groups)
        finally:
            if isinstance(change.removed, StoredFileSet):
                with suppress(Exception):
                    self._table.storage.delete_many(change.removed.locations())

    def count(self, groups: Sequence[RewrittenGroup], change: RewriteFiles, result: CommitResult) -> None:
        super().count(groups, change, result)
        self._done = self._done.followed_by(_sums(groups, result.summary if result.changed else {}))
        settle(self._table, _outcomes(groups), self._run.written)

    def conflicting(self, groups: Sequence[RewrittenGroup], error: ConflictError) -> list[RewrittenGroup]:
        storage, paths = self._table.storage, error.data_files
        if not paths:
            return [*groups]
        found = [one for one in groups if any(f.file_path in paths for f in group_files(one.group, storage).files)]
        return found or [*groups]

    def defer(self, groups: Sequence[RewrittenGroup]) -> None:
        """Defer groups and remove their new files: these are of no use to another plan."""
        self.discard(groups)
        super().defer(groups)

    def discard(self, groups: Iterable[RewrittenGroup]) -> None:
        """Remove the new files of groups that are not committed."""
        discard(self._table, _outcomes(groups), self._run.written)

    def result(self) -> RewriteDataFilesResult:
        return msgspec.structs.replace(
            self._done,
            status="partial" if self.has_failures else "done",
            failed_data_files_count=self.failed_files_count,
            planned_anew_files_count=self.deferred_files_count,
            commits_count=self.commits_count,
            failed_commits_count=self.failed_commits_count,
        )

    def change(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> RewriteFiles:
        work, plan, metadata = self._commits, self._commits.plan, self._table.metadata
        replaced = [group.group for group in groups]
        removed: FileSet
        held: tuple[ReadFile, ...] = ()
        if _files_count(replaced) > HELD_MAX_COUNT:
            removed = work.store(
                replaced, own_directory(metadata, f"runs/{self._run.run_id}/{self._table.runtime.new_uuid()}")
            )
        else:
            held = tuple(_read_groups(replaced, self._table))
            removed = tuple(file.entry for file in held)
        change = _change(plan, work.options, held, tuple(file for group in groups for file in group.added))
        return msgspec.structs.replace(
            change,
            removed=removed,
            proof=OwnPathProof(frozenset().union(*(one.proven for one in _outcomes(groups)))),
            moved_spec_ids=frozenset(group.spec_id for group in replaced if group.is_moved),
            format_version=metadata.format_version,
            remove_dangling=is_last and work.options.remove_dangling_deletes,
            only_dangling=work.only_dangling,
            carrier=CarriedDeletes(groups, self._table, str(self._table.runtime.new_uuid())),
            summary=work.summary,
        )


def foreseen_removals(
    table: Table, plan: RewritePlan, options: RewriteDataFilesOptions, methods: Mapping[int, GroupMethod]
) -> list[ManifestEntry] | None:
    """The delete files that the commits of a plan take out of the table as it is; nothing is written.

    Position delete files are read where the commits read them.

    Args:
        methods: how each group is rewritten, by its number.

    Returns:
        Their entries; `None` where only the commits can show it: rows move to partitions of another spec, or the plan has more
        files than are held in memory.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read.
    """
    if any(group.is_moved or not group.has_files for group in plan.groups):
        return None
    if _files_count(plan.groups) > HELD_MAX_COUNT:
        return None

    def change() -> RewriteFiles:
        added, held = [], []
        for group in plan.groups:
            read = [*_read_groups([group], table)]
            held += read
            if methods[group.number].files_count:
                added.append(_placeholder([one.entry.data_file for one in read]))
        return _change(plan, options, held, tuple(added))

    return [entry for one in removed_deletes(change, table, plan.branch) for entry in one.entries]


def _change(
    plan: RewritePlan, options: RewriteDataFilesOptions, held: Sequence[ReadFile], added: tuple[DataFile, ...]
) -> RewriteFiles:
    """The commit of a plan's groups, as far as it is known before the plan is carried out."""
    applied: dict[str, AbstractSet[AppliedDelete]] = {
        file.entry.data_file.file_path: file.applied_deletes for file in held if file.applied_deletes
    }
    return RewriteFiles(
        removed=tuple(file.entry for file in held),
        added=added,
        schema_id=plan.schema_id,
        applied_deletes=applied,
        starting_sequence_number=plan.sequence_number,
        data_sequence_number=plan.sequence_number if options.use_starting_sequence_number else None,
        remove_dangling=options.remove_dangling_deletes,
        manifest_paths=frozenset(file.manifest_path for file in held),
        proof=hold_own_path,
        branch=plan.branch,
    )


def _placeholder(files: Sequence[DataFile]) -> DataFile:
    """A new file of a group, as far as it matters to delete files: it is in the partition of the old ones, and has their rows."""
    file = files[0]
    return DataFile(
        file_path="",
        file_format=file.file_format,
        spec_id=file.spec_id,
        partition=file.partition,
        record_count=sum(one.record_count for one in files),
        file_size_in_bytes=0,
    )


def _read_groups(groups: Iterable[FileGroup], table: Table) -> Iterator[ReadFile]:
    types = table.metadata.partition_types
    for group in groups:
        yield from read_files(group_files(group, table.storage), types)


def _sums(groups: Sequence[RewrittenGroup], summary: Mapping[str, str]) -> RewriteDataFilesResult:
    """What a commit of some groups has done; `summary` is that of its snapshot, if it made one."""
    added = [file for group in groups for file in group.added]
    return RewriteDataFilesResult(
        rewritten_data_files_count=_files_count(one.group for one in groups),
        added_data_files_count=len(added),
        rewritten_bytes_count=sum(one.group.bytes for one in groups),
        removed_delete_files_count=int(summary.get("removed-delete-files", "0")),
        carried_delete_files_count=int(summary.get("added-delete-files", "0")),
        added_bytes_count=sum(file.file_size_in_bytes for file in added),
        deleted_records_count=sum(one.deleted_records_count for one in groups),
        stitched_data_files_count=sum(one.stitched_count for one in groups),
        cpu_ms=sum(one.cpu_ms for one in groups),
        peak_task_bytes=max((one.peak_bytes for one in groups), default=0),
    )


def _outcomes(groups: Iterable[RewrittenGroup]) -> list[RewriteOutcome]:
    return [outcome for group in groups for outcome in group.outcomes]


def _files_count(groups: Iterable[FileGroup]) -> int:
    return sum(group.files_count for group in groups)
