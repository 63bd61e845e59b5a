"""Finished groups -> commits: all at once, or in batches where partial progress is on.

Commits are counted, not subtracted: what failed is what is not in a commit that landed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrite_files import RewriteFiles
from icekeep.commit.file_sets import HELD_MAX_COUNT, FileSet, ReadFile, StoredFileSet
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepBug, IcekeepError, JobFailedError, OutcomeUnknownError
from icekeep.events import Listener, Warned
from icekeep.maintenance.compaction.execute import FailedGroup, Finished, RewrittenGroup, discard, failed_job
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.compaction.plan import FileGroup, RewritePlan, group_files
from icekeep.maintenance.compaction.removed_files import partition_types, read_files
from icekeep.maintenance.compaction.result import RewriteDataFilesResult
from icekeep.runtime import Runtime
from icekeep.spec.applicability import AppliedDelete
from icekeep.spec.layout import own_directory


class Commits(msgspec.Struct, frozen=True, kw_only=True):
    """What all commits of a run are made with.

    Attributes:
        table: as it was planned.
        reader: how the commits read manifests.
        store: writes the files of many groups as a set to a directory.
        summary: what the snapshots say beside their counts.
    """

    table: Table
    plan: RewritePlan
    options: RewriteDataFilesOptions
    reader: ManifestReader
    store: Callable[[Sequence[FileGroup], str], StoredFileSet]
    listener: Listener
    runtime: Runtime
    summary: Mapping[str, str] = {}


def commit_groups(finished: Iterator[Finished], commits: Commits) -> RewriteDataFilesResult:
    """Commit groups as they come; what the result says of time and of the plan is for whoever knows it.

    Raises:
        JobFailedError: a group failed, or, with partial progress, more commits than are allowed, or all.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    committer = _Committer(commits)
    if commits.options.partial_progress_enabled:
        _commit_in_batches(finished, committer, commits)
    else:
        _commit_at_once(finished, committer)
    return committer.result()


class _Committer:
    """Commits groups of one plan, and keeps count."""

    def __init__(self, commits: Commits) -> None:
        self._commits, self._table = commits, commits.table
        self.landed: list[RewrittenGroup] = []
        self.commits_count = self.failed_commits_count = 0
        self.failed_files_count = 0
        self._removed_delete_files_count = 0

    def commit(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> None:
        """Replace the groups' files in one snapshot; if that is refused, their new files are removed.

        Args:
            is_last: nothing comes after it, so it removes dangling deletes where that is asked for.
        """
        work = self._commits
        try:
            removed, change = self._change(groups, is_last=is_last)
        except BaseException:
            self.discard(groups)
            raise
        try:
            result = commit(self._table, change, reader=work.reader, runtime=work.runtime, listener=work.listener)
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            # Only an error of ours proves that nothing landed.
            self.discard(groups)
            raise
        finally:
            if isinstance(removed, StoredFileSet):
                self._table.storage.delete_many(removed.locations())
        self.landed += groups
        if result.changed:
            self.commits_count += 1
            self._removed_delete_files_count += int(result.summary.get("removed-delete-files", "0"))

    def discard(self, groups: Iterable[RewrittenGroup]) -> None:
        """Remove the new files of groups that are not committed."""
        for group in groups:
            discard(self._table, group.added)

    def result(self) -> RewriteDataFilesResult:
        added = [file for group in self.landed for file in group.added]
        return RewriteDataFilesResult(
            status="partial" if self.failed_files_count else "done",
            rewritten_data_files_count=sum(g.group.files_count for g in self.landed),
            added_data_files_count=len(added),
            rewritten_bytes_count=sum(g.group.bytes for g in self.landed),
            failed_data_files_count=self.failed_files_count,
            removed_delete_files_count=self._removed_delete_files_count,
            added_bytes_count=sum(f.file_size_in_bytes for f in added),
            commits_count=self.commits_count,
            failed_commits_count=self.failed_commits_count,
            deleted_records_count=sum(g.deleted_records_count for g in self.landed),
            stitched_data_files_count=sum(g.stitched_count for g in self.landed),
            cpu_ms=sum(g.cpu_ms for g in self.landed),
            peak_task_bytes=max((g.peak_bytes for g in self.landed), default=0),
        )

    def _change(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> tuple[FileSet, RewriteFiles]:
        work, plan, metadata = self._commits, self._commits.plan, self._table.metadata
        replaced = [group.group for group in groups]
        removed: FileSet
        held: tuple[ReadFile, ...] = ()
        if sum(group.files_count for group in replaced) > HELD_MAX_COUNT:
            removed = work.store(replaced, own_directory(metadata, f"runs/{work.runtime.new_uuid()}"))
        else:
            held = tuple(self._read(replaced))
            removed = tuple(file.entry for file in held)
        applied: dict[str, frozenset[AppliedDelete]] = {
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
            branch=plan.branch,
            summary=work.summary,
        )

    def _read(self, groups: Iterable[FileGroup]) -> Iterator[ReadFile]:
        types = partition_types(self._table.metadata)
        for group in groups:
            yield from read_files(group_files(group, self._table.storage), types)


def _commit_at_once(finished: Iterator[Finished], committer: _Committer) -> None:
    done: list[RewrittenGroup] = []
    try:
        for group in finished:
            if isinstance(group, FailedGroup):
                raise failed_job(group) from group.error
            done.append(group)
    except BaseException:
        committer.discard(done)
        raise
    committer.commit(done, is_last=True)


def _commit_in_batches(finished: Iterator[Finished], committer: _Committer, commits: Commits) -> None:
    plan, options = commits.plan, commits.options
    groups_a_commit = -(-len(plan.groups) // options.partial_progress_max_commits)
    batch: list[RewrittenGroup] = []
    seen_count = 0
    try:
        for group in finished:
            seen_count += 1
            if isinstance(group, FailedGroup):
                committer.failed_files_count += group.group.files_count
                commits.listener.on(Warned(_left_message(group)))
            else:
                batch.append(group)
            is_last = seen_count == len(plan.groups)
            if len(batch) >= groups_a_commit or (is_last and (batch or options.remove_dangling_deletes)):
                groups, batch = batch, []
                _commit_batch(groups, committer, commits, is_last=is_last)
    except BaseException:
        committer.discard(batch)
        raise
    _check_failures(committer, options)


def _commit_batch(groups: list[RewrittenGroup], committer: _Committer, commits: Commits, *, is_last: bool) -> None:
    """Commit a batch of its own accord: that it is refused does not hinder the others."""
    try:
        committer.commit(groups, is_last=is_last)
    except (OutcomeUnknownError, IcekeepBug):
        raise
    except IcekeepError as error:
        committer.failed_commits_count += 1
        committer.failed_files_count += sum(group.group.files_count for group in groups)
        commits.listener.on(Warned(f"a commit of {len(groups)} file groups failed: {error.message}"))


def _check_failures(committer: _Committer, options: RewriteDataFilesOptions) -> None:
    allowed = options.partial_progress_max_failed_commits
    allowed = options.partial_progress_max_commits if allowed is None else allowed
    if committer.failed_commits_count > allowed or (committer.failed_files_count and not committer.landed):
        raise JobFailedError(
            f"{committer.failed_commits_count} commits failed ({committer.commits_count} landed), {allowed} are allowed; "
            f"{committer.failed_files_count} data files are as they were"
        )


def _left_message(failed: FailedGroup) -> str:
    group = failed.group
    return f"{group.files_count} files of partition {group.partition!r} are left as they are: {failed.error.message}"
