"""The files of a plan: whether each can come back, and moving them to where they were.

A file is in the trash, or back in its place, or, where a move was cut off, both. Nothing is overwritten.
"""

import hashlib

import msgspec

from icekeep.errors import SafetyError, UnavailableError, and_more
from icekeep.events import Listener, StepAdvanced
from icekeep.maintenance.deletion.claims import Claim
from icekeep.maintenance.deletion.plans import DeletionPlan, PlanPart, read_part, trash_location
from icekeep.runtime import Runtime
from icekeep.spec.units import MIB
from icekeep.storage.base import FileInfo, MoveStatus, Storage
from icekeep.storage.many import head_many

STEP = "bringing files back"

_MOVES_AT_ONCE = 10_000
_CHUNK_BYTES = MIB


class _File(msgspec.Struct, frozen=True):
    """Where a file belongs, where it is while it is in the trash, and its length where that is known."""

    original: str
    trash: str
    size_bytes: int | None


class Returned(msgspec.Struct, frozen=True):
    """What became of the files of a plan: those that were moved, and the names of those that are not in their places."""

    moved_count: int = 0
    moved_bytes: int = 0
    missing: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        return not self.missing and not self.taken and not self.failed

    def refuse_incomplete(self, plan: DeletionPlan) -> None:
        """Raise `SafetyError`, or `UnavailableError` where the store failed, if a file is not in its place."""
        if self.is_complete:
            return
        done = "no snapshot was restored; what was moved stays in its place"
        if self.failed:
            raise UnavailableError(
                f"{len(self.failed)} files of run {plan.run!r} could not be moved back, {self.failed[0]}; {done}, run it again"
            )
        raise SafetyError(f"cannot restore run {plan.run!r}: {'; '.join(self.notes())}; {done}")

    def notes(self) -> list[str]:
        """What is wrong, one line for each kind; none if nothing is."""
        said = []
        if self.missing:
            said.append(f"{len(self.missing)} files are gone, {self.missing[0]!r} among them: others have removed them")
        if self.taken:
            said.append(f"{len(self.taken)} paths are in use again, {self.taken[0]!r} among them")
        if self.failed:
            said.append(f"{len(self.failed)} files could not be moved back, {self.failed[0]}")
        return said


def check_targets(plan: DeletionPlan, claim: Claim, storage: Storage, runtime: Runtime) -> None:
    """Look at every file of a plan before the first is moved.

    Raises:
        SafetyError: the path of one is in use again, or one is neither in the trash nor in its place.
        ClaimedError: another run has taken the plan over.
    """
    missing: list[str] = []
    taken: list[str] = []
    for part in plan.parts:
        claim.check(storage, runtime)
        files = _files(plan, part, storage)
        originals = head_many([file.original for file in files], storage)
        trashed = head_many([file.trash for file in files], storage)
        for file, found, trash in zip(files, originals, trashed, strict=True):
            if found is None and (trash is None or not plan.is_trash):
                missing.append(file.original)
            elif found is not None and _is_other(found, trash, file, storage):
                taken.append(file.original)
    if taken:
        raise SafetyError(
            f"cannot restore run {plan.run!r}: {taken[0]!r}{and_more(taken)} is in use again by another file; move that away, "
            "nothing was restored",
            locations=taken[:100],
        )
    if missing:
        raise SafetyError(
            f"cannot restore run {plan.run!r}: {len(missing)} files are neither in its trash nor in their places, {missing[0]!r} "
            "among them; if a later run has them in its trash, restore that one first (`icekeep restore --list`), else they are "
            "gone; nothing was restored",
            locations=missing[:100],
        )


def move_back(plan: DeletionPlan, claim: Claim, storage: Storage, runtime: Runtime, listener: Listener) -> Returned:
    """Move a plan's files from the trash to their places; those that are there already are fine.

    Raises:
        ClaimedError: another run has taken the plan over.
    """
    total = Returned()
    for part in plan.parts:
        files = _files(plan, part, storage)
        for start in range(0, len(files), _MOVES_AT_ONCE):
            some = files[start : start + _MOVES_AT_ONCE]
            claim.check(storage, runtime)
            done = _moved(some, storage) if plan.is_trash else _looked_at(some, storage)
            listener.on(StepAdvanced(STEP, len(some)))
            total = Returned(
                total.moved_count + done.moved_count,
                total.moved_bytes + done.moved_bytes,
                total.missing + done.missing,
                total.taken + done.taken,
                total.failed + done.failed,
            )
    return total


def _moved(files: list[_File], storage: Storage) -> Returned:
    outcomes = list(zip(files, storage.move_many((file.trash, file.original) for file in files), strict=True))
    moved = [file for file, outcome in outcomes if outcome.status is MoveStatus.MOVED]
    absent = [file for file, outcome in outcomes if outcome.status is MoveStatus.MISSING]
    stuck = [
        (file, outcome) for file, outcome in outcomes if outcome.status in (MoveStatus.FAILED, MoveStatus.IMPOSSIBLE)
    ]
    # What could not be moved to the trash is in its place, where no move leads either.
    away = {*_looked_at([file for file, _ in stuck], storage).missing}
    return Returned(
        moved_count=len(moved),
        moved_bytes=sum(file.size_bytes or 0 for file in moved),
        missing=_looked_at(absent, storage).missing,
        taken=tuple(file.original for file, outcome in outcomes if outcome.status is MoveStatus.TAKEN),
        failed=tuple(
            f"{file.original!r}: {outcome.reason}"
            for file, outcome in stuck
            if outcome.status is MoveStatus.FAILED or file.original in away
        ),
    )


def _looked_at(files: list[_File], storage: Storage) -> Returned:
    originals = head_many([file.original for file in files], storage)
    return Returned(missing=tuple(file.original for file, found in zip(files, originals, strict=True) if found is None))


def _files(plan: DeletionPlan, part: PlanPart, storage: Storage) -> list[_File]:
    rows = read_part(part, storage)
    columns = rows["location"].to_pylist(), rows["size_bytes"].to_pylist()
    return [
        _File(original, trash_location(plan, original), size_bytes)
        for original, size_bytes in zip(*columns, strict=True)
    ]


def _is_other(found: FileInfo, trash: FileInfo | None, file: _File, storage: Storage) -> bool:
    """Whether what lies in a file's place is another file."""
    if trash is None:
        return file.size_bytes is not None and found.size_bytes != file.size_bytes
    # A move that was cut off leaves both names of one file.
    return found.size_bytes != trash.size_bytes or not _is_same(file, storage)


def _is_same(file: _File, storage: Storage) -> bool:
    return _content_hash(file.original, storage) == _content_hash(file.trash, storage)


def _content_hash(location: str, storage: Storage) -> bytes:
    content = hashlib.blake2b()
    with storage.open(location) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            content.update(chunk)
    return content.digest()
