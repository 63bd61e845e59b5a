"""Finished groups -> commits: all at once, or in batches where partial progress is on.

A commit that is refused since the table is not as it was planned on leaves its groups for the next plan, with what was
written for them: a group that is planned again as it was need not be rewritten again.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrite_deletes import RewriteDeletes
from icekeep.commit.file_sets import ReadFile
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, IcekeepBug, IcekeepError, JobFailedError, OutcomeUnknownError, one_line
from icekeep.events import Listener, Warned
from icekeep.maintenance.heartbeat import Heartbeat
from icekeep.maintenance.position_deletes.execute import FailedGroup, Finished, RewrittenGroup, discard
from icekeep.maintenance.position_deletes.options import RewritePositionDeletesOptions
from icekeep.maintenance.position_deletes.plan import DeletesPlan, size_of
from icekeep.maintenance.position_deletes.result import RewritePositionDeletesResult
from icekeep.runtime import Runtime


class Commits(msgspec.Struct, frozen=True, kw_only=True):
    """What all commits of a run are made with; `table` is any version of it."""

    table: Table
    branch: str
    options: RewritePositionDeletesOptions
    reader: ManifestReader
    listener: Listener
    runtime: Runtime
    heartbeat: Heartbeat


class Committer:
    """Commits groups of the plans of one run, and keeps count.

    Attributes:
        refused: groups, with their new files, whose commit was refused since the table is not as it was planned on.
        refusal: the last such error, `None` after a plan that met none.
    """

    def __init__(self, commits: Commits) -> None:
        self._commits, self._table = commits, commits.table
        self.refused: list[RewrittenGroup] = []
        self.refusal: ConflictError | None = None
        self._landed: list[RewrittenGroup] = []
        self._format_version = 0
        self._dangling_count = self._commits_count = self._failed_commits_count = 0
        self._failed_files_count = 0
        self._is_cut_short = False

    @property
    def has_landed(self) -> bool:
        """Whether a commit of the run is in the table: then nothing but an unknown outcome ends it with an error."""
        return self._commits_count > 0

    def end_early(self, error: Exception, plan: DeletesPlan) -> None:
        """Take all groups of a plan that are in no commit for failed, with nothing left of them, and say why."""
        self.discard(self.refused)
        self.refused, self.refusal = [], None
        landed = {id(group.group) for group in self._landed}
        self._failed_files_count = sum(group.files_count for group in plan.groups if id(group) not in landed)
        # Perhaps only files that reach nothing were left.
        self._is_cut_short = True
        hint = " (a bug of icekeep, please report it)" if isinstance(error, IcekeepBug) else ""
        self._commits.listener.on(
            Warned(
                f"{self._commits_count} commits of the run are in the table, the rest was not done: {one_line(error)}{hint}"
            )
        )

    def run(self, plan: DeletesPlan, finished: Iterator[Finished], format_version: int) -> None:
        """Commit a plan's groups as they come; `format_version` is that of the table that was planned on.

        Raises:
            JobFailedError: a group failed, and partial progress is off.
            ConflictError, OutcomeUnknownError: as `commit` raises them, but for what `refused` tells.
        """
        self.refused, self.refusal, self._format_version = [], None, format_version
        # What failed in an earlier plan is planned anew in this one.
        self._failed_files_count = 0
        if self._commits.options.partial_progress_enabled:
            self._run_in_batches(plan, finished)
        else:
            self._run_at_once(plan, finished)

    def give_up(self) -> None:
        """Remove what was written for groups whose commit was refused, and count them as failed.

        Raises:
            ConflictError: the refusal, where nothing else was committed.
        """
        self.discard(self.refused)
        if self.refusal is not None and not self.has_landed:
            raise self.refusal
        self._failed_commits_count += 1
        self._failed_files_count += sum(group.group.files_count for group in self.refused)

    def discard(self, groups: Iterable[RewrittenGroup]) -> None:
        """Remove the new files of groups that are not committed."""
        for group in groups:
            discard(self._table, group.added, self._commits.listener)

    def result(self) -> RewritePositionDeletesResult:
        """What was done.

        Raises:
            JobFailedError: more commits failed than are allowed, or all groups, and none landed.
        """
        self._check_failures()
        added = [file for group in self._landed for file in group.added]
        return RewritePositionDeletesResult(
            status="partial" if self._failed_files_count or self._is_cut_short else "done",
            rewritten_delete_files_count=sum(g.group.files_count for g in self._landed),
            added_delete_files_count=len(added),
            rewritten_bytes_count=sum(g.group.bytes for g in self._landed),
            added_bytes_count=sum(map(size_of, added)),
            failed_delete_files_count=self._failed_files_count,
            removed_dangling_delete_files_count=self._dangling_count,
            removed_dangling_positions_count=sum(g.dangling_count for g in self._landed),
            replaced_positions_count=sum(g.replaced_count for g in self._landed),
            commits_count=self._commits_count,
            failed_commits_count=self._failed_commits_count,
        )

    def _run_at_once(self, plan: DeletesPlan, finished: Iterator[Finished]) -> None:
        done: list[RewrittenGroup] = []
        try:
            for group in finished:
                if isinstance(group, FailedGroup):
                    raise _failed_job(group) from group.error
                done.append(group)
        except BaseException:
            self.discard(done)
            raise
        self._commit(done, plan.dangling)

    def _run_in_batches(self, plan: DeletesPlan, finished: Iterator[Finished]) -> None:
        options = self._commits.options
        groups_a_commit = max(1, -(-len(plan.groups) // options.partial_progress_max_commits))
        dangling, batch = plan.dangling, list[RewrittenGroup]()
        try:
            for group in finished:
                if isinstance(group, FailedGroup):
                    self._failed_files_count += group.group.files_count
                    self._commits.listener.on(Warned(_left_message(group)))
                else:
                    batch.append(group)
                if len(batch) >= groups_a_commit:
                    groups, batch = batch, []
                    self._commit_batch(groups, dangling)
                    dangling = ()
            groups, batch = batch, []
            self._commit_batch(groups, dangling)
        except BaseException:
            self.discard([*batch, *self.refused])
            raise

    def _commit_batch(self, groups: Sequence[RewrittenGroup], dangling: Sequence[ReadFile]) -> None:
        """Commit a batch of its own accord: that it is refused does not hinder the others."""
        try:
            self._commit(groups, dangling)
        except (OutcomeUnknownError, IcekeepBug):
            raise
        except IcekeepError as error:
            self._failed_commits_count += 1
            self._failed_files_count += sum(group.group.files_count for group in groups)
            self._commits.listener.on(Warned(f"a commit of {len(groups)} file groups failed: {error.message}"))

    def _commit(self, groups: Sequence[RewrittenGroup], dangling: Sequence[ReadFile]) -> None:
        """Replace the groups' files in one snapshot; a refusal that another plan may answer is kept in `refused`."""
        if not groups and not dangling:
            return
        work = self._commits
        try:
            change = self._change(groups, dangling)
            looking = work.heartbeat.looking(change, [file.file_path for group in groups for file in group.added])
            result = commit(self._table, looking, reader=work.reader, runtime=work.runtime, listener=work.listener)
        except OutcomeUnknownError:
            raise
        except ConflictError as error:
            if "attempts" in error.facts:
                # It applied to each base, and others were faster each time: no other plan would be.
                self.discard(groups)
                raise
            self.refused += groups
            self.refusal = error
            return
        except IcekeepError:
            # Only an error of ours proves that nothing landed.
            self.discard(groups)
            raise
        self._landed += groups
        self._dangling_count += len(dangling)
        self._commits_count += result.changed

    def _change(self, groups: Sequence[RewrittenGroup], dangling: Sequence[ReadFile]) -> RewriteDeletes:
        rewritten = [read for group in groups for read in group.group.files]
        named = dict(groups[0].named) if groups else {}
        for group in groups[1:]:
            for digest, one in group.named.items():
                named[digest] = named[digest].and_also(one) if digest in named else one
        return RewriteDeletes(
            rewritten=tuple(read.entry for read in rewritten),
            added=tuple(added for group in groups for added in group.added_deletes),
            named=named,
            dangling=tuple(read.entry for read in dangling),
            format_version=self._format_version,
            manifest_paths=frozenset(read.manifest_path for read in (*rewritten, *dangling)),
            branch=self._commits.branch,
        )

    def _check_failures(self) -> None:
        if self.has_landed:
            return
        options = self._commits.options
        allowed = options.partial_progress_max_failed_commits
        allowed = options.partial_progress_max_commits if allowed is None else allowed
        if self._failed_commits_count > allowed or (self._failed_files_count and not self._landed):
            raise JobFailedError(
                f"{self._failed_commits_count} commits failed (none landed), {allowed} are allowed; "
                f"{self._failed_files_count} delete files are as they were"
            )


def _failed_job(failed: FailedGroup) -> JobFailedError:
    return JobFailedError(
        f"cannot rewrite {failed.group.files_count} delete files of partition {failed.group.partition!r}: "
        f"{failed.error.message}; its files are as they were and the new files are removed",
    )


def _left_message(failed: FailedGroup) -> str:
    group = failed.group
    return f"{group.files_count} delete files of partition {group.partition!r} are left as they are: {failed.error.message}"
