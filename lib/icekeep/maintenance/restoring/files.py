"""The files of a plan: whether each can come back, and moving them to where they were.

A file is in the trash, or back in its place, or, where a move was cut off, both. Nothing is overwritten.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Self, TypeVar

import msgspec
import pyarrow as pa

from icekeep.errors import IcekeepError, SafetyError, UnavailableError, and_more
from icekeep.events import Listener, StepAdvanced
from icekeep.maintenance.deletion.claims import Claim
from icekeep.maintenance.deletion.plans import DeletionPlan, PlanPart, read_part, trash_location
from icekeep.maintenance.deletion.reclaim import NAMED_COUNT
from icekeep.maintenance.deletion.territory import Territory
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import finished_tasks
from icekeep.runtime import Runtime
from icekeep.spec.types import MIB
from icekeep.spelling import counted, counted_doing
from icekeep.storage.base import FileInfo, MoveStatus, Storage
from icekeep.storage.local.links import confined_to
from icekeep.storage.many import head_many

R = TypeVar("R")

STEP = "bringing files back"

_MOVES_AT_ONCE = 10_000
_CHUNK_BYTES = MIB


class _File(msgspec.Struct, frozen=True):
    """Where a file belongs, where it is while it is in the trash, and its length where that is known."""

    original: str
    trash: str
    size_bytes: int | None


class Names(msgspec.Struct, frozen=True):
    """How many files there are of some kind, and the first of them."""

    count: int = 0
    first: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        return cls(len(names), tuple(names[:NAMED_COUNT]))

    def __add__(self, other: "Names") -> "Names":
        return Names(self.count + other.count, (*self.first, *other.first)[:NAMED_COUNT])

    def __bool__(self) -> bool:
        return bool(self.count)


class Returned(msgspec.Struct, frozen=True):
    """What became of the files of a plan: those that were moved, and those that are not in their places."""

    moved_count: int = 0
    moved_bytes: int = 0
    missing: Names = Names()
    taken: Names = Names()
    failed: Names = Names()

    def __add__(self, other: "Returned") -> "Returned":
        return Returned(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

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
                f"{counted(self.failed.count, 'files')} of run {plan.run!r} could not be moved back, {self.failed.first[0]}; "
                f"{done}, run it "
                "again"
            )
        raise SafetyError(f"cannot restore run {plan.run!r}: {'; '.join(self.notes())}; {done}")

    def notes(self) -> list[str]:
        """What is wrong, one line for each kind; none if nothing is."""
        said = []
        if self.missing:
            first = self.missing.first[0]
            said.append(
                f"{counted_doing(self.missing.count, 'files', 'are')} gone, {first!r} among them: others have removed them"
            )
        if self.taken:
            said.append(
                f"{counted_doing(self.taken.count, 'paths', 'are')} in use again, {self.taken.first[0]!r} among them"
            )
        if self.failed:
            said.append(f"{counted(self.failed.count, 'files')} could not be moved back, {self.failed.first[0]}")
        return said


class Returning(msgspec.Struct, frozen=True):
    """A plan whose files are to come back, and what all tasks share that look at them, or move them.

    Attributes:
        claim: on the plan; `None` where it is only looked at.
        places: where files of the table lie; none is moved elsewhere, whatever the plan says.
    """

    plan: DeletionPlan
    claim: Claim | None
    places: Territory
    storage: Storage
    runtime: Runtime


class Away(msgspec.Struct, frozen=True):
    """The files of a plan that are in its trash, and not in their places."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: "Away") -> "Away":
        return Away(self.count + other.count, self.bytes + other.bytes)


def check_targets(work: Returning, spark: SparkSource) -> Away:
    """Look at every file of a plan before the first is moved; returns those that would be.

    Raises:
        SafetyError: one lies outside the table's places.
        SafetyError: the path of one is in use again, or one is neither in the trash nor in its place.
        ClaimedError: another run has taken the plan over.
    """
    plan, missing, taken, away = work.plan, Names(), Names(), Away()
    looked_at = _each_part(_look_at_part, work, spark, "looking at what is to come back")
    for _, (missing_here, taken_here, away_here) in looked_at:
        missing, taken, away = missing + missing_here, taken + taken_here, away + away_here
    if taken:
        raise SafetyError(
            f"cannot restore run {plan.run!r}: {taken.first[0]!r}{and_more(range(taken.count))} is in use again by another "
            "file; move that away, nothing was restored",
            locations=[*taken.first],
        )
    if missing:
        raise SafetyError(
            f"cannot restore run {plan.run!r}: {counted_doing(missing.count, 'files', 'are')} neither in its trash nor in "
            "their places, "
            f"{missing.first[0]!r} among them; if a later run has them in its trash, restore that one first (`icekeep restore "
            "--table NAME --list`), else they are gone; nothing was restored",
            locations=[*missing.first],
        )
    return away


def move_back(work: Returning, spark: SparkSource, listener: Listener) -> Returned:
    """Move a plan's files from the trash to their places; those that are there already are fine.

    Raises:
        SafetyError: one lies outside the table's places.
        ClaimedError: another run has taken the plan over.
    """
    total = Returned()
    for part, done in _each_part(_move_part_back, work, spark, STEP):
        listener.on(StepAdvanced(STEP, part.files_count))
        total += done
    return total


def _each_part(
    act: Callable[[PlanPart, Returning], R], work: Returning, spark: SparkSource, step: str
) -> Iterator[tuple[PlanPart, R]]:
    """What comes of each part of a plan: here, or in Spark tasks where there are many files; these look at the claim too."""
    parts = work.plan.parts
    if work.plan.files_count <= limits_of(spark).deleted_files_count or len(parts) == 1:
        yield from ((part, act(part, work)) for part in parts)
        return
    tasks = finished_tasks(started(spark), parts, partial(_act_in_task, act), work, step=step)
    errors = []
    with closing(tasks) as finished:
        for number, answer in finished:
            if isinstance(answer, IcekeepError):
                # Raised when all have ended: none may move a file after the claim is given back.
                errors.append(answer)
            else:
                yield parts[number], answer
    if errors:
        raise errors[0]


def _act_in_task(act: Callable[[PlanPart, Returning], R], part: PlanPart, work: Returning) -> R:
    claim = work.claim and work.claim.arrived(work.runtime)
    return act(part, msgspec.structs.replace(work, claim=claim))


def _look_at_part(part: PlanPart, work: Returning) -> tuple[Names, Names, Away]:
    """The files of a part that are gone, those whose places are taken, and those that are to be moved."""
    plan, storage = work.plan, work.storage
    if work.claim is not None:
        work.claim.check(storage, work.runtime)
    files = _files(part, work)
    originals = head_many([file.original for file in files], storage)
    trashed = head_many([file.trash for file in files], storage)
    missing: list[str] = []
    taken: list[str] = []
    away = Away()
    for file, found, trash in zip(files, originals, trashed, strict=True):
        if found is None and trash is not None and plan.is_trash:
            away += Away(1, file.size_bytes or 0)
        elif found is None:
            missing.append(file.original)
        elif _is_other(found, trash, file, storage):
            taken.append(file.original)
    return Names.of(missing), Names.of(taken), away


def _move_part_back(part: PlanPart, work: Returning) -> Returned:
    plan, storage = work.plan, work.storage
    files = _files(part, work)
    total = Returned()
    for start in range(0, len(files), _MOVES_AT_ONCE):
        some = files[start : start + _MOVES_AT_ONCE]
        if work.claim is not None:
            work.claim.check(storage, work.runtime)
        with confined_to(work.places.roots):
            total += _moved(some, storage) if plan.is_trash else Returned(missing=Names.of(_absent(some, storage)))
    return total


def _moved(files: list[_File], storage: Storage) -> Returned:
    outcomes = list(zip(files, storage.move_many((file.trash, file.original) for file in files), strict=True))
    moved = [file for file, outcome in outcomes if outcome.status is MoveStatus.MOVED]
    not_in_trash = [file for file, outcome in outcomes if outcome.status is MoveStatus.MISSING]
    stuck = [
        (file, outcome) for file, outcome in outcomes if outcome.status in (MoveStatus.FAILED, MoveStatus.IMPOSSIBLE)
    ]
    # What could not be moved to the trash is in its place, where no move leads either.
    away = {*_absent([file for file, _ in stuck], storage)}
    failed = [
        f"{file.original!r}: {outcome.reason}"
        for file, outcome in stuck
        if outcome.status is MoveStatus.FAILED or file.original in away
    ]
    return Returned(
        moved_count=len(moved),
        moved_bytes=sum(file.size_bytes or 0 for file in moved),
        missing=Names.of(_absent(not_in_trash, storage)),
        taken=Names.of([file.original for file, outcome in outcomes if outcome.status is MoveStatus.TAKEN]),
        failed=Names.of(failed),
    )


def _absent(files: list[_File], storage: Storage) -> list[str]:
    """Those of some files that are not in their places."""
    originals = head_many([file.original for file in files], storage)
    return [file.original for file, found in zip(files, originals, strict=True) if found is None]


def _files(part: PlanPart, work: Returning) -> list[_File]:
    plan, rows = work.plan, read_part(part, work.storage)
    if plan.is_trash:
        outside = rows["location"].filter(pa.array(~work.places.reaches(rows["location"])))
        if len(outside):
            raise SafetyError(
                f"cannot restore run {plan.run!r}: {len(outside)} of its files lie outside the places of table {plan.table!r}, "
                f"{outside[0].as_py()!r} among them; if they are its own, name their directory in reclaim.roots of the catalog; "
                "nothing was restored",
                locations=outside[:NAMED_COUNT].to_pylist(),
            )
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
