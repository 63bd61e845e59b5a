"""Finished groups of data files -> commits.

A group whose files others have changed so that its rewrite is of no use hinders no other group: it is left out, for whoever
plans it anew.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrite_files import RewriteFiles
from icekeep.commit.file_sets import HELD_MAX_COUNT, FileSet, ReadFile, StoredFileSet
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ConflictError, IcekeepError, OutcomeUnknownError
from icekeep.events import Listener, Warned
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.maintenance.compaction.carrying import CarriedDeletes
from icekeep.maintenance.compaction.execute import (
    Finished,
    RewrittenGroup,
    discard,
    forget_moves,
)
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.compaction.plan import FileGroup, RewritePlan, group_files
from icekeep.maintenance.compaction.removed_files import partition_types, read_files
from icekeep.maintenance.compaction.result import RewriteDataFilesResult
from icekeep.maintenance.group_commits import GroupCommitter
from icekeep.maintenance.heartbeat import Heartbeat
from icekeep.runtime import Runtime
from icekeep.spec.applicability import AppliedDelete
from icekeep.spec.layout import own_directory


class Commits(msgspec.Struct, frozen=True, kw_only=True):
    """What all commits of a run are made with.

    Attributes:
        table: as it was planned.
        run_id: names the directory where the run keeps things.
        reader: how the commits read manifests.
        store: writes the files of many groups as a set to a directory.
        summary: what the snapshots say beside their counts.
    """

    table: Table
    run_id: str
    plan: RewritePlan
    options: RewriteDataFilesOptions
    reader: ManifestReader
    store: Callable[[Sequence[FileGroup], str], StoredFileSet]
    listener: Listener
    runtime: Runtime
    summary: Mapping[str, str] = {}


class Committed(msgspec.Struct, frozen=True):
    """What the commits of a run did, and the groups that they left out, with nothing left of their new files."""

    result: RewriteDataFilesResult
    refused: tuple[FileGroup, ...] = ()


def commit_groups(finished: Iterator[Finished], commits: Commits, heartbeat: Heartbeat) -> Committed:
    """Commit groups as they come; what the result says of time and of the plan is for whoever knows it.

    Once a commit has landed no error but an unknown outcome leaves: the result is `partial`, and a warning says why.

    Raises:
        JobFailedError: a group failed, or, with partial progress, all commits or groups did.
        ConflictError: the change does not apply any more, whichever groups it is of, or others kept changing the table.
        OutcomeUnknownError: as `commit` raises it.
    """
    committer = _Committer(commits, heartbeat)
    try:
        committer.commit_finished(finished, len(commits.plan.groups), has_more=commits.options.remove_dangling_deletes)
        committer.check_failures()
    except OutcomeUnknownError:
        raise
    except Exception as error:
        if not committer.has_landed:
            raise
        committer.end_early(error)
    return Committed(committer.result(), tuple(committer.refused))


class _Committer(GroupCommitter[RewrittenGroup]):
    """Commits groups of one plan, and keeps count."""

    files = "data files"

    def __init__(self, commits: Commits, heartbeat: Heartbeat) -> None:
        super().__init__(commits.options, commits.listener)
        self._commits, self._table, self._heartbeat = commits, commits.table, heartbeat
        self._summaries: list[Mapping[str, str]] = []

    def end_early(self, error: Exception) -> None:
        """Take all groups that are in no commit for failed, and say why."""
        done = (*(group.group for group in self.landed), *self.refused)
        self.failed_files_count = _files_count(self._commits.plan.groups) - _files_count(done)
        self.tell_early_end(error)

    def commit(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> None:
        """Replace the groups' files in one snapshot, but for groups that cannot be committed any more.

        Their new files are removed, and all new files if the whole commit is refused.

        Args:
            is_last: nothing comes after it, so it removes dangling deletes where that is asked for.
        """
        left = list(groups)
        while left or not groups:
            try:
                removed, change = self._change(left, is_last=is_last)
            except BaseException:
                self.discard(left)
                raise
            try:
                result = self._committed(change)
            except OutcomeUnknownError:
                raise
            except IcekeepError as error:
                # Only an error of ours proves that nothing landed.
                left = self._without_hindered(left, error)
            else:
                self._landed(left, result)
                return
            finally:
                if isinstance(removed, StoredFileSet):
                    with suppress(IcekeepError):
                        self._table.storage.delete_many(removed.locations())

    def _committed(self, change: RewriteFiles) -> CommitResult:
        work = self._commits
        looking = self._heartbeat.looking(change, [file.file_path for file in change.added])
        return commit(self._table, looking, reader=work.reader, runtime=work.runtime, listener=work.listener)

    def _landed(self, groups: Sequence[RewrittenGroup], result: CommitResult) -> None:
        self.landed += groups
        forget_moves(self._table, _outcomes(groups))
        if result.changed:
            self.commits_count += 1
            self._summaries.append(result.summary)

    def _without_hindered(self, groups: Sequence[RewrittenGroup], error: IcekeepError) -> list[RewrittenGroup]:
        """The groups that an error does not stand in the way of; raises it, with nothing left of any, where it is for all."""
        hindered = self._hindered(groups, error.data_files) if isinstance(error, ConflictError) else []
        if not hindered:
            self.discard(groups)
            raise error
        self.discard(hindered)
        self.refused += [one.group for one in hindered]
        self._commits.listener.on(Warned(f"{_files_of(hindered)} are planned anew: {error.message}"))
        return [one for one in groups if one not in hindered]

    def _hindered(self, groups: Iterable[RewrittenGroup], paths: frozenset[str]) -> list[RewrittenGroup]:
        """The groups that have any of some files."""
        if not paths:
            return []
        storage = self._table.storage
        return [one for one in groups if any(f.file_path in paths for f in group_files(one.group, storage).files)]

    def discard(self, groups: Iterable[RewrittenGroup]) -> None:
        """Remove the new files of groups that are not committed."""
        discard(self._table, _outcomes(groups), self._commits.listener)

    def result(self) -> RewriteDataFilesResult:
        added = [file for group in self.landed for file in group.added]
        return RewriteDataFilesResult(
            status="partial" if self.has_failures else "done",
            rewritten_data_files_count=sum(g.group.files_count for g in self.landed),
            added_data_files_count=len(added),
            rewritten_bytes_count=sum(g.group.bytes for g in self.landed),
            failed_data_files_count=self.failed_files_count,
            removed_delete_files_count=self._counted("removed-delete-files"),
            carried_delete_files_count=self._counted("added-delete-files"),
            planned_anew_files_count=sum(group.files_count for group in self.refused),
            added_bytes_count=sum(f.file_size_in_bytes for f in added),
            commits_count=self.commits_count,
            failed_commits_count=self.failed_commits_count,
            deleted_records_count=sum(g.deleted_records_count for g in self.landed),
            stitched_data_files_count=sum(g.stitched_count for g in self.landed),
            cpu_ms=sum(g.cpu_ms for g in self.landed),
            peak_task_bytes=max((g.peak_bytes for g in self.landed), default=0),
        )

    def _counted(self, key: str) -> int:
        return sum(int(summary.get(key, "0")) for summary in self._summaries)

    def _change(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> tuple[FileSet, RewriteFiles]:
        work, plan, metadata = self._commits, self._commits.plan, self._table.metadata
        replaced = [group.group for group in groups]
        removed: FileSet
        held: tuple[ReadFile, ...] = ()
        if sum(group.files_count for group in replaced) > HELD_MAX_COUNT:
            removed = work.store(replaced, own_directory(metadata, f"runs/{work.run_id}/{work.runtime.new_uuid()}"))
        else:
            held = tuple(self._read(replaced))
            removed = tuple(file.entry for file in held)
        applied: dict[str, AbstractSet[AppliedDelete]] = {
            file.entry.data_file.file_path: file.applied_deletes for file in held if file.applied_deletes
        }
        keeps_number = work.options.use_starting_sequence_number
        return removed, RewriteFiles(
            removed=removed,
            added=tuple(file for group in groups for file in group.added),
            schema_id=plan.schema_id,
            applied_deletes=applied,
            moved_spec_ids=frozenset(group.spec_id for group in replaced if group.is_moved),
            format_version=metadata.format_version,
            starting_sequence_number=plan.sequence_number,
            data_sequence_number=plan.sequence_number if keeps_number else None,
            remove_dangling=is_last and work.options.remove_dangling_deletes,
            manifest_paths=frozenset(file.manifest_path for file in held),
            carrier=CarriedDeletes(groups, self._table, str(work.runtime.new_uuid())),
            branch=plan.branch,
            summary=work.summary,
        )

    def _read(self, groups: Iterable[FileGroup]) -> Iterator[ReadFile]:
        types = partition_types(self._table.metadata)
        for group in groups:
            yield from read_files(group_files(group, self._table.storage), types)


def _outcomes(groups: Iterable[RewrittenGroup]) -> list[RewriteOutcome]:
    return [outcome for group in groups for outcome in group.outcomes]


def _files_of(groups: Iterable[RewrittenGroup]) -> str:
    return f"{_files_count(one.group for one in groups)} data files"


def _files_count(groups: Iterable[FileGroup]) -> int:
    return sum(group.files_count for group in groups)
