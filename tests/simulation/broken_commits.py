"""The loop of commits and the first changes, broken on purpose: see `mutants`."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
from msgspec.structs import replace

from icekeep.catalog.base import Committed, Conflict
from icekeep.commit import attempt as attempts
from icekeep.commit import outcome as outcomes
from icekeep.commit import retry
from icekeep.commit.attempt import CommitFiles
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.changes.snapshots import ExpireSnapshots, RollbackToSnapshot
from icekeep.commit.outcome import remove_all
from icekeep.commit.retry import _Commit
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, OutcomeUnknownError
from icekeep.maintenance.delete import pending
from icekeep.maintenance.delete.reachable import NO_PATHS
from icekeep.maintenance.expire import run as execute
from icekeep.spec import retention
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.reach import applied_delete
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import SetSnapshotRef, UpgradeFormatVersion
from simulation.replacing import replaced

_commit, _swap, _settle = retry.commit, _Commit._swap, retry.settle


class _AppliedOnce:
    def __init__(self, change: Any) -> None:
        self.change = change
        self.updates: Any = None

    def apply(self, base: Any, attempt: Any) -> Any:
        if self.updates is None:
            self.updates = self.change.apply(base, attempt)
        return self.updates


def skips_requirements() -> AbstractContextManager[Any]:
    """Sends updates to the catalog without what must hold for them."""
    return replaced(retry, "requirements_for", lambda base, updates: ())


def does_not_apply_again() -> AbstractContextManager[Any]:
    """Sends the updates of the first attempt again after a conflict."""
    return replaced(retry, "commit", lambda table, change, **o: _commit(table, _AppliedOnce(change), **o))


def cleans_up_after_unknown() -> AbstractContextManager[Any]:
    """Removes what it wrote although it may have landed."""

    def swap(self: _Commit, *arguments: Any) -> Any:
        try:
            return _swap(self, *arguments)
        except OutcomeUnknownError:
            remove_all(self.files)
            raise

    return replaced(_Commit, "_swap", swap)


def cleans_up_when_interrupted() -> AbstractContextManager[Any]:
    """Takes an interrupt during the swap for a proof that nothing landed."""

    def swap(self: _Commit, *arguments: Any) -> Any:
        try:
            return _swap(self, *arguments)
        except KeyboardInterrupt:
            remove_all(self.files)
            raise

    return replaced(_Commit, "_swap", swap)


def takes_unknown_for_a_conflict() -> AbstractContextManager[Any]:
    """Tries again although the first attempt may have landed."""

    def swap(*arguments: Any) -> Any:
        try:
            return _swap(*arguments)
        except OutcomeUnknownError:
            return Conflict("it seems")

    return replaced(_Commit, "_swap", swap)


def believes_every_conflict() -> AbstractContextManager[Any]:
    """Does not look whether a conflict was its own commit met again, or may be."""

    def settle(outcome: Any, *rest: Any) -> Any:
        return Conflict(outcome.reason, is_final=True) if isinstance(outcome, Conflict) else _settle(outcome, *rest)

    return replaced(retry, "settle", settle)


def takes_what_is_over_for_open() -> AbstractContextManager[Any]:
    """Does not take a requirement that fails for proof that a refused swap will not land."""
    return replaced(outcomes, "failing", lambda requirements, metadata: None)


def doubts_its_upgrade() -> AbstractContextManager[Any]:
    """Says of an upgrade that the catalog has confirmed that it may have landed."""

    def swap(self: _Commit, base: Any, updates: Any, turn: Any) -> Any:
        outcome = _swap(self, base, updates, turn)
        if isinstance(outcome, Committed) and any(isinstance(update, UpgradeFormatVersion) for update in updates):
            raise OutcomeUnknownError("broken on purpose", metadata_location="", snapshot_id=self.snapshot_id)
        return outcome

    return replaced(_Commit, "_swap", swap)


def deletes_before_the_commit() -> AbstractContextManager[Any]:
    """Reclaims what a plan says and only then expires the snapshots."""
    planned = execute.ExpirationRun._planned

    def plan(self: Any, run: Any, expired: Any, number: int) -> Any:
        found = planned(self, run, expired, number)
        if found.plan is not None:
            run.reclaim(found.plan, found.lease, lambda: NO_PATHS)
        return found

    return replaced(execute.ExpirationRun, "_planned", plan)


def does_not_prove_again() -> AbstractContextManager[Any]:
    """Deletes by the plan although others committed since it was made."""
    return replaced(execute, "_nobody_else", lambda *arguments: True)


def carries_out_what_was_never_committed() -> AbstractContextManager[Any]:
    """Takes each plan that lies there for one whose snapshots are gone, and looks at nothing else."""
    stack = ExitStack()
    stack.enter_context(replaced(pending, "is_garbage", lambda files, *rest: np.ones(files.num_rows, np.bool_)))
    stack.enter_context(replaced(pending, "is_committed", lambda *arguments: True))
    return stack


def expires_by_the_first_base() -> AbstractContextManager[Any]:
    """Evaluates the retention policy once, not on the metadata that is replaced."""
    apply, chosen = ExpireSnapshots.apply, {}

    def cached(self: ExpireSnapshots, base: Any, attempt: Any) -> Any:
        return chosen.setdefault(attempt.snapshot_id, apply(self, base, attempt))

    return replaced(ExpireSnapshots, "apply", cached)


def forgets_its_readers() -> AbstractContextManager[Any]:
    """Waits for no reader, whatever the table says of them."""
    return replaced(retention, "registered_readers", lambda metadata, refs: [])


def reuses_a_manifest_list() -> AbstractContextManager[Any]:
    """Publishes the manifest list of the first attempt, whatever others have added since."""
    location, write = attempts.manifest_list_location, CommitFiles.write

    def write_if_new(self: CommitFiles, at: str, data: Any) -> None:
        if at not in self.written:
            write(self, at, data)

    stack = ExitStack()
    stack.enter_context(
        replaced(attempts, "manifest_list_location", lambda base, id_, number, uuid: location(base, id_, 1, uuid))
    )
    stack.enter_context(replaced(CommitFiles, "write", write_if_new))
    return stack


def replaces_without_looking() -> AbstractContextManager[Any]:
    """Adds the files of a compaction also where those that it read are gone."""
    apply = RewriteFiles.apply

    def lenient(self: RewriteFiles, base: Any, attempt: Any) -> Any:
        try:
            return apply(self, base, attempt)
        except ConflictError:
            return AppendFiles(files=self.added).apply(base, attempt)

    return replaced(RewriteFiles, "apply", lenient)


def ignores_new_deletes() -> AbstractContextManager[Any]:
    """Replaces files although rows of them were deleted since they were read."""
    apply = RewriteFiles.apply

    def as_if_applied(self: RewriteFiles, base: Any, attempt: Any) -> Any:
        head, reader = base.head(self.branch), attempt.reader
        live = [e for m in reader.manifests(head) for e in reader.entries(m, base) if e.is_live] if head else []
        deletes = [entry for entry in live if entry.data_file.content is not FileContent.DATA]
        reaching = reaching_deletes(self.removed, deletes, base.specs_by_id)
        applied = {path: frozenset(map(applied_delete, found)) for path, found in reaching.items()}
        return apply(replace(self, applied_deletes=applied), base, attempt)

    return replaced(RewriteFiles, "apply", as_if_applied)


def deletes_rows_of_what_is_gone() -> AbstractContextManager[Any]:
    """Adds position deletes of data files that are no longer live."""
    return replaced(RowDelta, "_check_named", lambda *arguments: None)


def numbers_wrongly() -> AbstractContextManager[Any]:
    """Gives the files of a compaction a new sequence number, so that deletes no longer reach their rows."""
    apply = RewriteFiles.apply
    return replaced(RewriteFiles, "apply", lambda self, *rest: apply(replace(self, data_sequence_number=None), *rest))


def gives_row_ids_twice() -> AbstractContextManager[Any]:
    """Numbers the rows of each commit from 0."""
    assign = attempts.assign_row_ids

    def from_zero(manifests: Any, next_row_id: int) -> Any:
        numbered, end = assign(manifests, 0)
        return numbered, next_row_id + end

    return replaced(attempts, "assign_row_ids", from_zero)


def rolls_back_unseen() -> AbstractContextManager[Any]:
    """Rolls back over commits that it has not seen."""

    def apply(self: RollbackToSnapshot, base: Any, attempt: Any) -> Any:
        base.snapshot(self.snapshot_id)
        return (SetSnapshotRef("main", SnapshotRef(snapshot_id=self.snapshot_id, type="branch")),)

    return replaced(RollbackToSnapshot, "apply", apply)


def blanks_totals() -> AbstractContextManager[Any]:
    """Counts the totals of a snapshot from zero."""
    build = SummaryBuilder.build
    return replaced(SummaryBuilder, "build", lambda self, operation, parent, uuid: build(self, operation, None, uuid))


@contextmanager
def forgets_to_clean_up() -> Iterator[None]:
    """Leaves behind what was refused."""
    with replaced(retry, "remove_all", lambda *files: None), replaced(outcomes, "remove_all", lambda *files: None):
        yield


def removes_every_other_manifest() -> AbstractContextManager[Any]:
    """Removes, after a commit, what earlier attempts wrote without looking whether the last one uses it."""

    def remove(files: CommitFiles, *rest: Any) -> None:
        lists = [location for location in files.written if "/snap-" in location]
        if len(lists) > 1:
            manifests = [location for location in files.written if location not in lists]
            files.storage.delete_many([*lists[:-1], *manifests[:-1]])

    return replaced(retry, "remove_unused", remove)
