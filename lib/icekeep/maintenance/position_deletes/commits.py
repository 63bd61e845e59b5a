"""Finished groups of delete files -> commits.

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
from icekeep.errors import ConflictError, IcekeepError, OutcomeUnknownError
from icekeep.events import Listener
from icekeep.maintenance.group_commits import GroupCommitter
from icekeep.maintenance.heartbeat import Heartbeat
from icekeep.maintenance.position_deletes.execute import Finished, RewrittenGroup, discard
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


class Committer(GroupCommitter[RewrittenGroup]):
    """Commits groups of the plans of one run, and keeps count.

    Attributes:
        refused: with their new files.
        refusal: the last such error, `None` after a plan that met none.
    """

    files = "delete files"

    def __init__(self, commits: Commits) -> None:
        super().__init__(commits.options, commits.listener)
        self._commits, self._table = commits, commits.table
        self.refused: list[RewrittenGroup] = []
        self.refusal: ConflictError | None = None
        self._dangling: Sequence[ReadFile] = ()
        self._format_version = self._dangling_count = 0
        self._is_cut_short = False

    def end_early(self, error: Exception, plan: DeletesPlan) -> None:
        """Take all groups of a plan that are in no commit for failed, with nothing left of them, and say why."""
        self.discard(self.refused)
        self.refused, self.refusal = [], None
        landed = {id(group.group) for group in self.landed}
        self.failed_files_count = sum(group.files_count for group in plan.groups if id(group) not in landed)
        # Perhaps only files that reach nothing were left.
        self._is_cut_short = True
        self.tell_early_end(error)

    def run(self, plan: DeletesPlan, finished: Iterator[Finished], format_version: int) -> None:
        """Commit a plan's groups as they come; `format_version` is that of the table that was planned on.

        Raises:
            JobFailedError: a group failed, and partial progress is off.
            ConflictError, OutcomeUnknownError: as `commit` raises them, but for what `refused` tells.
        """
        self.refused, self.refusal, self._format_version = [], None, format_version
        self._dangling = plan.dangling
        # What failed in an earlier plan is planned anew in this one.
        self.failed_files_count = 0
        try:
            self.commit_finished(finished, len(plan.groups), has_more=bool(plan.dangling))
        except BaseException:
            self.discard(self.refused)
            raise

    def give_up(self) -> None:
        """Remove what was written for groups whose commit was refused, and count them as failed.

        Raises:
            ConflictError: the refusal, where nothing else was committed.
        """
        self.discard(self.refused)
        if self.refusal is not None and not self.has_landed:
            raise self.refusal
        self.failed_commits_count += 1
        self.failed_files_count += sum(group.group.files_count for group in self.refused)

    def discard(self, groups: Iterable[RewrittenGroup]) -> None:
        """Remove the new files of groups that are not committed."""
        for group in groups:
            discard(self._table, group.added, self._commits.listener)

    def result(self) -> RewritePositionDeletesResult:
        """What was done.

        Raises:
            JobFailedError: more commits failed than are allowed, or all groups, and none landed.
        """
        self.check_failures()
        added = [file for group in self.landed for file in group.added]
        return RewritePositionDeletesResult(
            status="partial" if self.has_failures or self._is_cut_short else "done",
            rewritten_delete_files_count=sum(g.group.files_count for g in self.landed),
            added_delete_files_count=len(added),
            rewritten_bytes_count=sum(g.group.bytes for g in self.landed),
            added_bytes_count=sum(map(size_of, added)),
            failed_delete_files_count=self.failed_files_count,
            removed_dangling_delete_files_count=self._dangling_count,
            removed_dangling_positions_count=sum(g.dangling_count for g in self.landed),
            replaced_positions_count=sum(g.replaced_count for g in self.landed),
            commits_count=self.commits_count,
            failed_commits_count=self.failed_commits_count,
        )

    def commit(self, groups: Sequence[RewrittenGroup], *, is_last: bool) -> None:
        """Replace the groups' files in one snapshot, the first takes what is dangling along.

        A refusal that another plan may answer is kept in `refused`.
        """
        dangling, self._dangling = self._dangling, ()
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
        self.landed += groups
        self._dangling_count += len(dangling)
        self.commits_count += result.changed

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
