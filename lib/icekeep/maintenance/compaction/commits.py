"""Finished groups -> commits: all at once, or in batches where partial progress is on.

Commits are counted, not subtracted: what failed is what is not in a commit that landed.
"""

from collections.abc import Iterable, Iterator, Sequence

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrite_files import RewriteFiles
from icekeep.commit.file_sets import HELD_MAX_COUNT, FileSet, ReadFile, StoredFileSet, store_file_set
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, JobFailedError, OutcomeUnknownError
from icekeep.events import Listener, Warned
from icekeep.maintenance.compaction.execute import FailedGroup, RewrittenGroup, discard, failed_job
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.compaction.plan import CandidateFile, RewritePlan
from icekeep.maintenance.compaction.result import RewriteDataFilesResult
from icekeep.runtime import Runtime
from icekeep.spec.layout import own_directory
from icekeep.spec.manifests.encode import PartitionCodec
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, Status

Finished = RewrittenGroup | FailedGroup


class _Committer:
    """Commits batches of groups of one plan, and keeps count."""

    def __init__(
        self,
        table: Table,
        plan: RewritePlan,
        options: RewriteDataFilesOptions,
        reader: ManifestReader,
        listener: Listener,
        runtime: Runtime,
    ) -> None:
        self._table, self._plan, self._options = table, plan, options
        self._reader, self._listener, self._runtime = reader, listener, runtime
        self.landed: list[RewrittenGroup] = []
        self.commits_count = 0
        self.failed_files_count = 0

    def commit(self, groups: Sequence[RewrittenGroup]) -> None:
        """Replace the groups' files in one snapshot; if that is refused, their new files are removed."""
        files = [file for group in groups for file in group.group.files]
        removed = self._removed(files)
        change = RewriteFiles(
            removed=removed,
            added=tuple(file for group in groups for file in group.added),
            schema_id=self._plan.schema_id,
            format_version=self._table.metadata.format_version,
            data_sequence_number=self._plan.sequence_number if self._options.use_starting_sequence_number else None,
            manifest_paths=frozenset(file.manifest_path for file in files),
            branch=self._plan.branch,
        )
        try:
            commit(self._table, change, reader=self._reader, runtime=self._runtime, listener=self._listener)
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            # Only an error of ours proves that nothing landed.
            self.discard(groups)
            raise
        finally:
            if isinstance(removed, StoredFileSet):
                self._table.storage.delete_many(removed.locations())
        self.commits_count += 1
        self.landed += groups

    def _removed(self, files: Sequence[CandidateFile]) -> FileSet:
        entries = _entries(self._table, files)
        if len(files) <= HELD_MAX_COUNT:
            return tuple(entry for _, entry in entries)
        directory = own_directory(self._table.metadata, f"runs/{self._runtime.new_uuid()}")
        read = sorted((ReadFile(entry, path) for path, entry in entries), key=lambda file: file.manifest_path)
        return store_file_set(read, self._table.storage, directory)

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
            added_bytes_count=sum(f.file_size_in_bytes for f in added),
            commits_count=self.commits_count,
        )


def commit_groups(
    finished: Iterator[Finished],
    table: Table,
    plan: RewritePlan,
    options: RewriteDataFilesOptions,
    reader: ManifestReader,
    listener: Listener,
    runtime: Runtime,
) -> RewriteDataFilesResult:
    """Commit groups as they come; `reader` is how the commits read manifests.

    Raises:
        JobFailedError: a group failed, or, with partial progress, more commits than are allowed.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    committer = _Committer(table, plan, options, reader, listener, runtime)
    if options.partial_progress_enabled:
        _commit_in_batches(finished, committer, plan, options, listener)
    else:
        _commit_at_once(finished, committer)
    return committer.result()


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
    committer.commit(done)


def _commit_in_batches(
    finished: Iterator[Finished],
    committer: _Committer,
    plan: RewritePlan,
    options: RewriteDataFilesOptions,
    listener: Listener,
) -> None:
    groups_a_commit = -(-len(plan.groups) // options.partial_progress_max_commits)
    max_failed = options.partial_progress_max_failed_commits
    max_failed = options.partial_progress_max_commits if max_failed is None else max_failed
    failed_commits = 0
    batch: list[RewrittenGroup] = []

    def commit_batch() -> None:
        nonlocal failed_commits
        groups, batch[:] = list(batch), []
        try:
            committer.commit(groups)
        except OutcomeUnknownError:
            raise
        except IcekeepError as error:
            failed_commits += 1
            committer.failed_files_count += sum(g.group.files_count for g in groups)
            listener.on(Warned(f"a commit of {len(groups)} file groups failed: {error.message}"))

    try:
        for group in finished:
            if isinstance(group, FailedGroup):
                committer.failed_files_count += group.group.files_count
                listener.on(Warned(failed_job(group).message))
                continue
            batch.append(group)
            if len(batch) >= groups_a_commit:
                commit_batch()
        if batch:
            commit_batch()
    except BaseException:
        committer.discard(batch)
        raise
    if failed_commits > max_failed or (committer.failed_files_count and not committer.commits_count):
        raise JobFailedError(
            f"{failed_commits} commits failed ({committer.commits_count} landed), {max_failed} are allowed; "
            f"{committer.failed_files_count} data files are as they were"
        )


def _entries(table: Table, files: Iterable[CandidateFile]) -> Iterator[tuple[str, ManifestEntry]]:
    """The entries of candidates as they were read, as far as replacing them asks for, each after its manifest's path."""
    codecs = {spec_id: PartitionCodec(table.metadata.partition_type(spec_id)) for spec_id in table.metadata.specs_by_id}
    for file in files:
        entry = ManifestEntry(
            status=Status.EXISTING,
            snapshot_id=file.snapshot_id,
            sequence_number=file.sequence_number,
            file_sequence_number=file.file_sequence_number,
            data_file=DataFile(
                file_path=file.file_path,
                file_format=file.file_format,
                spec_id=file.spec_id,
                partition=codecs[file.spec_id].decode(file.partition),
                record_count=file.record_count,
                file_size_in_bytes=file.file_size_in_bytes,
                first_row_id=file.first_row_id,
            ),
        )
        yield file.manifest_path, entry
