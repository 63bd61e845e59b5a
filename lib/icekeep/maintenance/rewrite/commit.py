"""Finished groups of files -> commits, for every job that rewrites groups: all at once, or in batches with partial progress.

Commits are counted, not subtracted: what failed is what is not in a commit that landed. Groups that others changed, so that
their commit is refused, do not keep the others from landing: they are deferred to another plan (`run.retry_with_replan`).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from icekeep.catalog.base import log_context
from icekeep.commit.attempt import Change
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import CommitResult
from icekeep.errors import (
    ConflictError,
    IcekeepBug,
    IcekeepError,
    JobFailedError,
    OutcomeUnknownError,
    TryAgainError,
    job_failed,
    one_line,
    says_why,
)
from icekeep.events import Listener, Warned
from icekeep.maintenance.rewrite.options import RewriteOptions
from icekeep.maintenance.rewrite.run import RewriteRun, undoing
from icekeep.spec.manifests.structs import DataFile
from icekeep.spelling import counted

_LOG = logging.getLogger(__name__)


class Group(Protocol):
    """Files of one partition that are rewritten together."""

    @property
    def partition(self) -> str:
        """As Iceberg's partition paths show it; empty for a table without partitions."""

    @property
    def files_count(self) -> int:
        """How many files it replaces."""


GroupT = TypeVar("GroupT", bound=Group)


class FailedGroup(msgspec.Struct, Generic[GroupT], frozen=True):
    """A group that could not be rewritten; none of its new files is left."""

    group: GroupT
    error: IcekeepError


class Rewritten(Protocol):
    """A group whose new files are written and not committed."""

    @property
    def group(self) -> Group:
        """What they replace."""

    @property
    def added(self) -> Sequence[DataFile]:
        """The new files."""


RewrittenT = TypeVar("RewrittenT", bound=Rewritten)
ChangeT = TypeVar("ChangeT", bound=Change)


@contextmanager
def keep_partial_result(has_landed: Callable[[], bool], end_early: Callable[[Exception], None]) -> Iterator[None]:
    """Let no error but an unknown outcome leave the block once a commit of the run has landed.

    Args:
        end_early: counts what was not done for failed, and says why.
    """
    try:
        yield
    except OutcomeUnknownError:
        raise
    except Exception as error:
        if not has_landed():
            raise
        end_early(error)


def of_partition(partition: str) -> str:
    """In a sentence, of which partition files are; nothing where they are of none or of several."""
    return f" of partition {partition!r}" if partition else ""


def _severity(error: IcekeepError) -> int:
    """Which of several failures explains a failed run: a bug of icekeep before others that stay, these before all else."""
    if isinstance(error, IcekeepBug):
        return 2
    return int(says_why(error) and not isinstance(error, TryAgainError))


def warn_stopped_early(commits_count: int, error: Exception, listener: Listener) -> None:
    """Say why a run ends though not all of it is done."""
    hint = " (a bug of icekeep, please report it)" if isinstance(error, IcekeepBug) else ""
    listener.on(
        Warned(f"{counted(commits_count, 'commits')} of the run landed, the rest was not done: {one_line(error)}{hint}")
    )


class GroupCommitter(ABC, Generic[RewrittenT, ChangeT]):
    """Commits the groups of a run and keeps count; a job says what change replaces them, and how they are discarded.

    Attributes:
        files: what messages call the files of a group.
        landed_groups_count: that are in a commit; they are counted, and no longer held.
        deferred: groups that are left for another plan, since others changed what was to be replaced.
        conflict: the error of the first of them, `None` where nothing was deferred; also where there was no group.
        commits_count: that landed, and changed something.
        failed_commits_count: that did not land; their groups are as they were.
        failed_files_count: files of groups that are as they were.
    """

    files: ClassVar[str]

    def __init__(self, run: RewriteRun, options: RewriteOptions, reader: ManifestReader) -> None:
        self._run, self._options, self._reader, self._listener = run, options, reader, run.listener
        self.deferred: list[RewrittenT] = []
        self.conflict: ConflictError | None = None
        self.commits_count = self.failed_commits_count = self.failed_files_count = self.landed_groups_count = 0
        self._first_error: IcekeepError | None = None
        self._most_severe: IcekeepError | None = None

    @abstractmethod
    def change(self, groups: Sequence[RewrittenT], *, is_last: bool) -> ChangeT:
        """What replaces the files of some groups.

        Args:
            is_last: no commit of the plan comes after it.
        """

    @abstractmethod
    def discard(self, groups: Iterable[RewrittenT]) -> None:
        """Remove the new files of groups that are not committed."""

    def commit(self, groups: Sequence[RewrittenT], *, is_last: bool) -> None:
        """Replace the files of some groups in one snapshot, but for groups that others changed: they are `deferred`.

        New files of what is neither committed nor deferred are removed.

        Args:
            is_last: no commit of the plan comes after it.

        Raises:
            ConflictError: each attempt met other writers; no other plan helps.
            OutcomeUnknownError, IcekeepError: as `commit` raises it.
        """
        left = list(groups)
        while True:
            with undoing(partial(self.discard, left)):
                change = self.change(left, is_last=is_last)
            try:
                result = self.send(change, left)
            except OutcomeUnknownError:
                raise
            except IcekeepError as error:
                # Only an error of icekeep proves that nothing landed.
                with undoing(partial(self.discard, left)):
                    if not isinstance(error, ConflictError) or error.is_outpaced:
                        raise
                    conflicting = self.conflicting(left, error)
                    table = self._run.table
                    text = "%s: %d groups are left for another plan: %s"
                    _LOG.info(text, table.name, len(conflicting), error.message, extra=log_context(table))
                    self.defer(conflicting)
                self.conflict = self.conflict or error
                left = [one for one in left if all(one is not other for other in conflicting)]
                if not left:
                    return
            else:
                self.count(left, change, result)
                return

    def send(self, change: ChangeT, groups: Sequence[RewrittenT]) -> CommitResult:
        """Commit a change that replaces some groups, as `RewriteRun.send` does."""
        added = [file.file_path for group in groups for file in group.added]
        return self._run.send(change, added, partial(self.discard, groups), self._reader)

    def count(self, groups: Sequence[RewrittenT], change: ChangeT, result: CommitResult) -> None:
        """Take some groups, whose change has landed, for done."""
        self.landed_groups_count += len(groups)
        self.commits_count += result.changed

    def conflicting(self, groups: Sequence[RewrittenT], error: ConflictError) -> list[RewrittenT]:
        """The groups that others changed; all where a job, or the error, does not tell them apart."""
        return [*groups]

    def defer(self, groups: Sequence[RewrittenT]) -> None:
        """Leave groups, with what was written for them, for another plan."""
        self.deferred += groups

    @property
    def deferred_files_count(self) -> int:
        """How many files are left for another plan to replace."""
        return sum(one.group.files_count for one in self.deferred)

    @property
    def has_failures(self) -> bool:
        """Whether something was not done that another run may do."""
        return bool(self.failed_files_count or self.failed_commits_count)

    @property
    def has_landed(self) -> bool:
        """Whether a commit of the run is in the table: then nothing but an unknown outcome ends it with an error."""
        return self.commits_count > 0

    def commit_finished(
        self, finished: Iterator[RewrittenT | FailedGroup[Any]], groups_count: int, *, has_more: bool
    ) -> None:
        """Commit the groups of one plan as they come.

        Args:
            groups_count: how many come.
            has_more: there is something to commit beside groups, so that a last commit is made though no group is left.
        """
        if self._options.partial_progress_enabled:
            self._commit_in_batches(finished, groups_count, has_more=has_more)
        else:
            self._commit_at_once(finished)

    def check_failures(self) -> None:
        """Warn where more commits failed than are allowed; where none landed, or nothing came of the run, that is an error."""
        options = self._options
        allowed = options.partial_progress_max_failed_commits
        allowed = options.partial_progress_max_commits if allowed is None else allowed
        nothing_came_of_it = self.has_failures and not (self.landed_groups_count or self.conflict)
        are_too_many = self.failed_commits_count > allowed
        what = "no file group could be rewritten"
        if self.failed_commits_count:
            what = f"{counted(self.failed_commits_count, 'commits')} failed ({self.commits_count} landed), {allowed} are allowed"
        first = "" if self._first_error is None else self._first_error.message
        text = f"{what}; {self.failed_files_count} {self.files} are as they were; the first failure: {first}"
        if self._most_severe is not None and self._most_severe is not self._first_error:
            text = f"{text}; most severe: {self._most_severe.message}"
        if not self.has_landed and (are_too_many or nothing_came_of_it):
            raise job_failed(text, self._most_severe) from self._most_severe
        if are_too_many:
            self._listener.on(Warned(text))

    def _commit_at_once(self, finished: Iterator[RewrittenT | FailedGroup[Any]]) -> None:
        done: list[RewrittenT] = []
        with undoing(lambda: self.discard(done)):
            for group in finished:
                if isinstance(group, FailedGroup):
                    error = group.error
                    text = f"cannot rewrite {self._named(group.group)}: {error.message}"
                    if error.facts.get("kept_files"):
                        # It says itself what became of the old files and the new.
                        raise JobFailedError(text) from error
                    what = "its files are as they were and the new files are removed"
                    raise job_failed(f"{text}; {what}", error) from error
                done.append(group)
        try:
            self.commit(done, is_last=True)
        except (OutcomeUnknownError, TryAgainError):
            raise
        except IcekeepError as error:
            error.append(f"its {self.files} are as they were and the new files are removed")
            raise

    def _commit_in_batches(
        self, finished: Iterator[RewrittenT | FailedGroup[Any]], groups_count: int, *, has_more: bool
    ) -> None:
        groups_a_commit = max(1, -(-groups_count // self._options.partial_progress_max_commits))
        batch: list[RewrittenT] = []
        with undoing(lambda: self.discard(batch)):
            for seen_count, group in enumerate(finished, start=1):
                if isinstance(group, FailedGroup):
                    self.failed_files_count += group.group.files_count
                    self._note_failure(group.error)
                    left = "is left as it is" if group.group.files_count == 1 else "are left as they are"
                    self._listener.on(Warned(f"{self._named(group.group)} {left}: {group.error.message}"))
                else:
                    batch.append(group)
                if len(batch) >= groups_a_commit and seen_count < groups_count:
                    groups, batch = batch, []
                    self._commit_batch(groups, is_last=False)
            if batch or has_more:
                groups, batch = batch, []
                self._commit_batch(groups, is_last=True)

    def _commit_batch(self, groups: Sequence[RewrittenT], *, is_last: bool) -> None:
        """Commit a batch; that it fails does not keep the others from landing."""
        try:
            self.commit(groups, is_last=is_last)
        except (OutcomeUnknownError, IcekeepBug):
            raise
        except IcekeepError as error:
            self.failed_commits_count += 1
            self._note_failure(error)
            self.failed_files_count += sum(group.group.files_count for group in groups)
            self._listener.on(Warned(f"a commit of {counted(len(groups), 'file groups')} failed: {error.message}"))

    def _note_failure(self, error: IcekeepError) -> None:
        self._first_error = self._first_error or error
        if self._most_severe is None or _severity(error) > _severity(self._most_severe):
            self._most_severe = error

    def _named(self, group: Any) -> str:
        return f"{counted(group.files_count, self.files)}{of_partition(group.partition)}"
