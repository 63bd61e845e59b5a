"""Finished groups of delete files -> commits.

A commit that is refused since the table is not as it was planned on leaves its groups for the next plan, with what was
written for them: a group that is planned again as it was need not be rewritten again.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from icekeep.commit.changes.deletes import RewriteDeletes
from icekeep.commit.file_sets import ReadFile
from icekeep.commit.retry import CommitResult
from icekeep.maintenance.groups.commits import GroupCommits, GroupCommitter, tell_early_end
from icekeep.maintenance.position_deletes.execute import Finished, RewrittenGroup, discard
from icekeep.maintenance.position_deletes.options import RewritePositionDeletesOptions
from icekeep.maintenance.position_deletes.plan import DeletesPlan
from icekeep.maintenance.position_deletes.result import RewritePositionDeletesResult
from icekeep.maintenance.runs.heartbeat import Heartbeat
from icekeep.maintenance.runs.written_files import WrittenFiles


class Commits(GroupCommits, frozen=True, kw_only=True):
    """What all commits of a run are made with; `table` is any version of it, `written` hears of the files of tasks."""

    options: RewritePositionDeletesOptions
    branch: str
    written: WrittenFiles


class Committer(GroupCommitter[RewrittenGroup, RewriteDeletes]):
    """Commits groups of the plans of one run, and keeps count; refused ones keep their new files for the next plan."""

    files = "delete files"

    def __init__(self, commits: Commits, heartbeat: Heartbeat) -> None:
        super().__init__(commits, heartbeat)
        self._branch, self._written = commits.branch, commits.written
        self._dangling: Sequence[ReadFile] = ()
        self._format_version = self._dangling_count = self._dangling_bytes = 0
        self._done = RewritePositionDeletesResult()
        self._added_paths: set[str] = set()
        self._landed_numbers: set[int] = set()
        self._is_cut_short = False

    def take_refused(self) -> list[RewrittenGroup]:
        """The groups that were left for another plan; who takes them sees to their new files."""
        refused, self.refused = self.refused, []
        return refused

    def without_landed(self, plan: DeletesPlan) -> DeletesPlan:
        """A later plan of the run, but for groups of nothing but what the run has put there: they are as they should be."""
        added = self._added_paths
        groups = [one for one in plan.groups if any(file.entry.data_file.file_path not in added for file in one.files)]
        return msgspec.structs.replace(plan, groups=tuple(groups))

    def end_early(self, error: Exception, plan: DeletesPlan) -> None:
        """Take all groups of a plan that are in no commit for failed, and say why."""
        left = [group for group in plan.groups if group.number not in self._landed_numbers]
        self.failed_files_count = sum(group.files_count for group in left)
        self.failed_commits_count += self.refusal is not None
        # Perhaps only files that reach nothing were left.
        self._is_cut_short = True
        tell_early_end(self.commits_count, error, self._listener)

    def run(self, plan: DeletesPlan, finished: Iterator[Finished], format_version: int) -> None:
        """Commit a plan's groups as they come; `format_version` is that of the table that was planned on.

        Raises:
            JobFailedError: a group failed, and partial progress is off.
            ConflictError: no other plan helps (`is_outpaced`); where one may, `refusal` and `refused` tell.
            OutcomeUnknownError: as `commit` raises it.
        """
        self.refusal, self._format_version = None, format_version
        self._dangling = plan.dangling
        self._landed_numbers = set()
        # What failed in an earlier plan is planned anew in this one.
        self.failed_files_count = 0
        self.commit_finished(finished, len(plan.groups), has_more=bool(plan.dangling))

    def discard(self, groups: Iterable[RewrittenGroup]) -> None:
        """Remove the new files of groups that are not committed."""
        for group in groups:
            discard(group.added, self._written)

    def result(self) -> RewritePositionDeletesResult:
        """What was done.

        Raises:
            JobFailedError: more commits failed than are allowed, or all groups, and none landed.
        """
        self.check_failures()
        return msgspec.structs.replace(
            self._done,
            status="partial" if self.has_failures or self._is_cut_short else "done",
            failed_delete_files_count=self.failed_files_count,
            removed_dangling_delete_files_count=self._dangling_count,
            removed_dangling_bytes_count=self._dangling_bytes,
            commits_count=self.commits_count,
            failed_commits_count=self.failed_commits_count,
        )

    def commit(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> None:
        """As ever; the first commit takes what is dangling along."""
        if groups or self._dangling:
            super().commit(groups, is_last=is_last)

    def count(self, groups: Sequence[RewrittenGroup], change: RewriteDeletes, result: CommitResult) -> None:
        super().count(groups, change, result)
        dangling = [one for one in groups if one.group.seems_dangling and not one.added]
        rewritten = [one for one in groups if one not in dangling]
        self._dangling_count += len(change.dangling) + sum(one.group.files_count for one in dangling)
        self._dangling_bytes += sum(entry.data_file.own_bytes for entry in change.dangling)
        self._dangling_bytes += sum(one.group.bytes for one in dangling)
        self._landed_numbers.update(one.group.number for one in groups)
        added = {file.file_path for one in groups for file in one.added}
        self._added_paths |= added
        self._written.settle(added)
        self._done = self._done.followed_by(_sums(rewritten))

    def change(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> RewriteDeletes:
        dangling, self._dangling = self._dangling, ()
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
            branch=self._branch,
        )


def _sums(groups: Sequence[RewrittenGroup]) -> RewritePositionDeletesResult:
    added = [file for one in groups for file in one.added]
    return RewritePositionDeletesResult(
        rewritten_delete_files_count=sum(one.group.files_count for one in groups),
        added_delete_files_count=len(added),
        rewritten_bytes_count=sum(one.group.bytes for one in groups),
        added_bytes_count=sum(file.own_bytes for file in added),
        removed_dangling_positions_count=sum(one.dangling_count for one in groups),
        replaced_positions_count=sum(one.replaced_count for one in groups),
    )
