"""Finished groups of data files -> commits of one plan; groups that others changed are left out, for another plan.

A commit removes the files of its groups as they were read, each with the deletes that its rewrite applied. Few are held. Many
never come to the driver: tasks read the groups, deal their files out by the manifest that listed them, and write a part of a
stored set for each manifest.

Deletes of positions that came while their files were rewritten become deletes of the same rows in the new files:
old positions in the base, less the rows that the tasks dropped -> new positions, by what the tasks reported -> delete files
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import removed_deletes
from icekeep.commit.changes.rewrites import Carried, RewriteFiles
from icekeep.commit.file_sets import HELD_MAX_COUNT, Digest, FileSet, ReadFile, StoredFileSet, StoredPart, store_part
from icekeep.commit.manifests import ChangedDeletes, ManifestReader
from icekeep.commit.retry import CommitResult
from icekeep.errors import ConflictError, InvalidTableError
from icekeep.formats.deletes.read import (
    OwnPathProof,
    hold_own_path,
    read_all_position_deletes,
    read_position_deletes,
    validate_plain,
    write_position_deletes,
)
from icekeep.formats.deletes.rewrite import delete_format, delete_suffix
from icekeep.formats.options import FileNames, attempt_name
from icekeep.formats.puffin import FILE_FORMAT as PUFFIN
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.formats.row_moves import dropped_positions, new_positions
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
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import partition_path
from icekeep.spec.properties import own_directory
from icekeep.spec.reach import AppliedDelete, is_deletion_vector
from icekeep.spec.types import MIB, StructType
from icekeep.spelling import counted
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage

_HELD_BYTES = 64 * MIB
"""Of one delete file: up to here it is read once for all data files that it names."""

_DeleteKey = tuple[str, int | None]
_ByPath = Mapping[str, BitMap64]


class CarriedDeletes:
    """A `DeleteCarrier` for the rows of some rewritten groups.

    What a delete file holds is read once, and a delete file is written once, for all attempts of a commit.
    """

    def __init__(self, groups: Sequence[RewrittenGroup], table: Table, operation_id: str) -> None:
        """Args:
        operation_id: in the names of new delete files; no other commit has it.
        """
        self._groups, self._table = groups, table
        metadata = table.metadata
        self._names = FileNames(attempt_name(operation_id), metadata.location, metadata.properties)
        self._group_of: dict[str, int] = {}
        self._read: dict[tuple[_DeleteKey, str], BitMap64] = {}
        self._written: dict[tuple[str, bytes], DataFile] = {}
        self._vectors: dict[bytes, tuple[DataFile, ...]] = {}

    def carried(
        self, changed: Mapping[str, ChangedDeletes], base: TableMetadata, noted: Callable[[str], None]
    ) -> Carried:
        deleted = self._deleted_positions(changed)
        refusals: dict[str, str] = {}
        moved: dict[str, BitMap64] = {}
        for number, paths in self._by_group(changed).items():
            group = self._groups[number]
            wanted, refused = self._wanted(group, {path: changed[path] for path in paths}, deleted)
            refusals.update(refused)
            if wanted and not refusals:
                moved.update(new_positions(group.outcomes, self._table.storage, wanted))
        if refusals:
            return Carried(refusals=refusals)
        return Carried(self._write(moved, base, noted))

    def _wanted(
        self, group: RewrittenGroup, changed: Mapping[str, ChangedDeletes], deleted: _ByPath
    ) -> tuple[dict[str, BitMap64], dict[str, str]]:
        """The positions to carry over of each file of a group, and the files whose rows were dropped wrongly, with why."""
        storage = self._table.storage
        dropped = dropped_positions(group.outcomes, storage, changed.keys())
        some_lack = any(one.lacks_positions for one in changed.values())
        applied = dropped_positions(group.outcomes, storage, changed.keys(), by_position=True) if some_lack else {}
        wanted: dict[str, BitMap64] = {}
        refusals: dict[str, str] = {}
        for path, one in changed.items():
            needed = BitMap64()
            if one.lacks_keys:
                needed = dropped[path]
            elif one.lacks_positions:
                needed = applied[path]
            if lost := needed - deleted[path]:
                refusals[path] = (
                    f"{counted(len(lost), 'rows')} of data file {path!r}, which its rewrite left out, "
                    f"{'is' if len(lost) == 1 else 'are'} not deleted any more"
                )
            elif extra := deleted[path] - dropped[path]:
                wanted[path] = extra
        return wanted, refusals

    def _by_group(self, changed: Iterable[str]) -> dict[int, list[str]]:
        """The changed files of each group, by its place."""
        unknown = set(changed) - self._group_of.keys()
        for number, group in enumerate(self._groups):
            if not unknown:
                break
            found = {file.file_path for file in group_files(group.group, self._table.storage).files} & unknown
            self._group_of.update(dict.fromkeys(found, number))
            unknown -= found
        by_group: dict[int, list[str]] = {}
        for path in changed:
            by_group.setdefault(self._group_of[path], []).append(path)
        return by_group

    def _deleted_positions(self, changed: Mapping[str, ChangedDeletes]) -> dict[str, BitMap64]:
        """The positions that delete files of a base delete in each file; what an earlier attempt has read is known."""
        asked: dict[_DeleteKey, tuple[DataFile, list[str]]] = {}
        for path, one in changed.items():
            for delete in one.deletes:
                if (_key(delete.data_file), path) not in self._read:
                    asked.setdefault(_key(delete.data_file), (delete.data_file, []))[1].append(path)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            for (file, paths), found in zip(asked.values(), pool.map(self._positions_in, asked.values()), strict=True):
                self._read.update({(_key(file), path): found.get(path, BitMap64()) for path in paths})
        return {
            path: BitMap64.union(BitMap64(), *(self._read[_key(d.data_file), path] for d in one.deletes))
            for path, one in changed.items()
        }

    def _positions_in(self, asked: tuple[DataFile, list[str]]) -> dict[str, BitMap64]:
        """What one delete file says of some data files."""
        (file, paths), storage = asked, self._table.storage
        if is_deletion_vector(file):
            validate_plain(file)
            if [file.referenced_data_file] != paths:
                raise InvalidTableError(
                    f"the deletion vector in {file.file_path!r} is for another file than {paths[0]!r}"
                )
            return {paths[0]: read_deletion_vector(storage, file)}
        held = read_all_position_deletes(storage, file, _HELD_BYTES) if len(paths) > 1 else None
        if held is None:
            return {path: BitMap64(read_position_deletes(storage, file, path)) for path in paths}
        return {path: BitMap64(held[path]) for path in paths if path in held}

    def _write(self, moved: _ByPath, base: TableMetadata, noted: Callable[[str], None]) -> tuple[DataFile, ...]:
        born = {file.file_path: file for group in self._groups for file in group.added}
        if not moved:
            return ()
        in_order = sorted(moved)
        if base.format_version > 2:
            return self._write_vectors([(born[path], moved[path]) for path in in_order], noted)
        return tuple(self._write_positions(born[path], moved[path], noted) for path in in_order)

    def _write_positions(self, file: DataFile, positions: BitMap64, noted: Callable[[str], None]) -> DataFile:
        key = file.file_path, _digest(positions)
        if key not in self._written:
            metadata = self._table.metadata
            properties = metadata.properties
            file_format = delete_format(properties)
            directory = partition_path(metadata.specs_by_id[file.spec_id], metadata.schema, file.partition)
            location = self._names.location(delete_suffix(file_format), directory)
            self._written[key] = write_position_deletes(
                self._table.storage,
                location,
                file_format,
                _rows(file.file_path, positions),
                spec_id=file.spec_id,
                partition=file.partition,
                properties=properties,
            )
            noted(location)
        return self._written[key]

    def _write_vectors(
        self, moved: Sequence[tuple[DataFile, BitMap64]], noted: Callable[[str], None]
    ) -> tuple[DataFile, ...]:
        key = b"".join(file.file_path.encode() + _digest(positions) for file, positions in moved)
        if key not in self._vectors:
            location = self._names.location(delete_suffix(PUFFIN))
            targets = (
                (VectorTarget(location=file.file_path, spec_id=file.spec_id, partition=file.partition), positions)
                for file, positions in moved
            )
            self._vectors[key] = write_deletion_vectors(self._table.storage, location, targets)
            noted(location)
        return self._vectors[key]


def _key(file: DataFile) -> _DeleteKey:
    return file.file_path, file.content_offset


def _digest(positions: BitMap64) -> bytes:
    return blake2b(positions.serialize(), digest_size=16).digest()


def _rows(path: str, positions: BitMap64) -> pa.Table:
    pos = pa.array(positions.to_array(), pa.int64())
    paths: Any = pa.DictionaryArray.from_arrays(pa.nulls(len(pos), pa.int32()).fill_null(0), pa.array([path]))
    return pa.table({"file_path": paths.cast(pa.string()), "pos": pos})


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
