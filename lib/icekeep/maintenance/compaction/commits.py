"""Finished groups of data files -> commits of one plan; groups that others changed are left out, for another plan."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.conflicts import removed_deletes
from icekeep.commit.file_sets import HELD_MAX_COUNT, Digest, FileSet, ReadFile, StoredFileSet
from icekeep.commit.retry import CommitResult
from icekeep.errors import ConflictError
from icekeep.formats.deletes.read import OwnPathProof, hold_own_path
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.maintenance.compaction.carrying import CarriedDeletes
from icekeep.maintenance.compaction.execute import (
    Finished,
    RewrittenGroup,
    discard,
    settle,
)
from icekeep.maintenance.compaction.methods import GroupMethod
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.compaction.plan import FileGroup, RewritePlan, group_files
from icekeep.maintenance.compaction.removed_files import read_files
from icekeep.maintenance.compaction.result import RewriteDataFilesResult
from icekeep.maintenance.groups.commits import GroupCommits, GroupCommitter, partial_once_landed, tell_early_end
from icekeep.maintenance.runs.heartbeat import Heartbeat
from icekeep.maintenance.runs.written_files import WrittenFiles
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.properties import own_directory
from icekeep.spec.reach import AppliedDelete


class Commits(GroupCommits, frozen=True, kw_only=True):
    """What all commits of a plan are made with.

    Attributes:
        table: as it was planned.
        run_id: names the directory where the run keeps things.
        store: writes the files of many groups as a set to a directory.
        summary: what the snapshots say beside their counts.
        written: what hears of the files of tasks.
        only_dangling: which of the delete files that reach nothing may go; `None` for all.
    """

    run_id: str
    plan: RewritePlan
    options: RewriteDataFilesOptions
    store: Callable[[Sequence[FileGroup], str], StoredFileSet]
    summary: Mapping[str, str] = {}
    written: WrittenFiles
    only_dangling: frozenset[Digest] | None = None


class CommittedGroups(msgspec.Struct, frozen=True):
    """What the commits of a plan did, and the groups that they left out, with nothing left of their new files, and why."""

    result: RewriteDataFilesResult
    refused: tuple[FileGroup, ...] = ()
    refusal: ConflictError | None = None


def commit_groups(finished: Iterator[Finished], commits: Commits, heartbeat: Heartbeat) -> CommittedGroups:
    """Commit groups as they come; what the result says of time and of the plan is for whoever knows it.

    Once a commit has landed no error but an unknown outcome leaves: the result is `partial`, and a warning says why.

    Raises:
        JobFailedError: a group failed, or, with partial progress, all commits or groups did.
        ConflictError: each attempt of a commit met other writers (`is_outpaced`).
        OutcomeUnknownError: as `commit` raises it.
    """
    committer = _Committer(commits, heartbeat)
    with partial_once_landed(lambda: committer.has_landed, committer.end_early):
        committer.commit_finished(finished, len(commits.plan.groups), has_more=commits.options.remove_dangling_deletes)
        committer.check_failures()
    return CommittedGroups(committer.result(), tuple(one.group for one in committer.refused), committer.refusal)


class _Committer(GroupCommitter[RewrittenGroup, RewriteFiles]):
    """Commits groups of one plan, and keeps count."""

    files = "data files"

    def __init__(self, commits: Commits, heartbeat: Heartbeat) -> None:
        super().__init__(commits, heartbeat)
        self._commits, self._table = commits, commits.table
        self._done = RewriteDataFilesResult()

    def end_early(self, error: Exception) -> None:
        """Take all groups that are in no commit for failed, but for those that another plan may do, and say why."""
        done = self._done.rewritten_data_files_count + self.refused_files_count
        self.failed_files_count = _files_count(self._commits.plan.groups) - done
        tell_early_end(self.commits_count, error, self._listener)

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
        settle(self._table, _outcomes(groups), self._commits.written)

    def hindered(self, groups: Sequence[RewrittenGroup], error: ConflictError) -> list[RewrittenGroup]:
        storage, paths = self._table.storage, error.data_files
        if not paths:
            return [*groups]
        found = [one for one in groups if any(f.file_path in paths for f in group_files(one.group, storage).files)]
        return found or [*groups]

    def refuse(self, groups: Sequence[RewrittenGroup]) -> None:
        """As ever, but nothing that was written is of use to another plan."""
        self.discard(groups)
        super().refuse(groups)

    def discard(self, groups: Iterable[RewrittenGroup]) -> None:
        """Remove the new files of groups that are not committed."""
        discard(self._table, _outcomes(groups), self._commits.written)

    def result(self) -> RewriteDataFilesResult:
        return msgspec.structs.replace(
            self._done,
            status="partial" if self.has_failures else "done",
            failed_data_files_count=self.failed_files_count,
            planned_anew_files_count=self.refused_files_count,
            commits_count=self.commits_count,
            failed_commits_count=self.failed_commits_count,
        )

    def change(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> RewriteFiles:
        work, plan, metadata = self._commits, self._commits.plan, self._table.metadata
        replaced = [group.group for group in groups]
        removed: FileSet
        held: tuple[ReadFile, ...] = ()
        if _files_count(replaced) > HELD_MAX_COUNT:
            removed = work.store(replaced, own_directory(metadata, f"runs/{work.run_id}/{work.runtime.new_uuid()}"))
        else:
            held = tuple(_read(replaced, self._table))
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
            carrier=CarriedDeletes(groups, self._table, str(work.runtime.new_uuid())),
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
            read = [*_read([group], table)]
            held += read
            if methods[group.number].files_count:
                added.append(_placeholder([one.entry.data_file for one in read]))
        return _change(plan, options, held, tuple(added))

    return [entry for one in removed_deletes(change, table, plan.branch) for entry in one.entries]


def _change(
    plan: RewritePlan, options: RewriteDataFilesOptions, held: Sequence[ReadFile], added: tuple[DataFile, ...]
) -> RewriteFiles:
    """The commit of groups of a plan, without what is known only once the plan is carried out."""
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


def _read(groups: Iterable[FileGroup], table: Table) -> Iterator[ReadFile]:
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
