"""The files of a plan that come back: whether each can, where it is moved to, and whether its snapshots have all that they need.

A file is in the trash, or back in its place, or, where a move was cut off, both. Nothing is overwritten.

Later runs may have removed what the snapshots need besides. A file that an older and a younger snapshot share is not in the plan
of the run that expired the older one. It goes with the younger one, and may be in another trash, or nowhere. That it is in its
place proves nothing: the run that expired the younger one may be about to delete it. So each file that is needed must be in the
plan, or live in a snapshot that the table has at the commit. Data and delete files may also lie outside the table's own places,
where no run deletes them, as imported files do.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import THIS_TABLE, IcekeepError, SafetyError, UnavailableError, and_more, shown_command
from icekeep.events import Listener, StepAdvanced
from icekeep.maintenance.delete.garbage import held_against
from icekeep.maintenance.delete.kept import paths_of_other_plans
from icekeep.maintenance.delete.lease import PlanLease
from icekeep.maintenance.delete.locations import DeletableLocations, named_roots, table_locations
from icekeep.maintenance.delete.plan_file import DeletionPlan, PlanPart, read_part, trash_location
from icekeep.maintenance.delete.reachable import Reached, among, fails_closed
from icekeep.maintenance.delete.run import NAMED_COUNT
from icekeep.planning.entries import DecodedEntries, EntryFilter, Fold, SpecFilter, folded
from icekeep.planning.manifest_lists import ListedManifests, listed_manifests
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, finished_tasks, run_tasks
from icekeep.runtime import Runtime
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB
from icekeep.spelling import counted, counted_doing
from icekeep.storage.base import FileInfo, MoveStatus, Storage, head_many
from icekeep.storage.local.links import confined_to
from icekeep.storage.location_keys import Keys, Locations, location_keys, path_keys
from icekeep.storage.locations import canonical

R = TypeVar("R")

STEP = "bringing files back"

_MOVES_AT_ONCE = 10_000
_CHUNK_BYTES = MIB


class _File(msgspec.Struct, frozen=True):
    """Where a file belongs, where it is while it is in the trash, and its length where that is known."""

    original: str
    trash: str
    size_bytes: int | None


class FileSample(msgspec.Struct, frozen=True):
    """How many files there are of some kind, and the first of them."""

    count: int = 0
    first: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        return cls(len(names), tuple(names[:NAMED_COUNT]))

    def __add__(self, other: "FileSample") -> "FileSample":
        return FileSample(self.count + other.count, (*self.first, *other.first)[:NAMED_COUNT])

    def __bool__(self) -> bool:
        return bool(self.count)


class Returned(msgspec.Struct, frozen=True):
    """The files of a plan that were moved, or would be, and those that are not in their places."""

    moved_count: int = 0
    moved_bytes: int = 0
    missing: FileSample = FileSample()
    taken: FileSample = FileSample()
    failed: FileSample = FileSample()

    def __add__(self, other: "Returned") -> "Returned":
        return Returned(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    @property
    def is_complete(self) -> bool:
        """Whether no file is missing from its place."""
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
        """What is wrong, one line for each kind."""
        notes = []
        if self.missing:
            first = self.missing.first[0]
            notes.append(
                f"{counted_doing(self.missing.count, 'files', 'are')} gone, {first!r} among them: others have removed them"
            )
        if self.taken:
            notes.append(
                f"{counted_doing(self.taken.count, 'paths', 'are')} in use again, {self.taken.first[0]!r} among them"
            )
        if self.failed:
            notes.append(f"{counted(self.failed.count, 'files')} could not be moved back, {self.failed.first[0]}")
        return notes


class Returning(msgspec.Struct, frozen=True):
    """A plan whose files are to come back, and what all tasks share that look at them, or move them.

    Attributes:
        lease: on the plan; `None` where it is only looked at.
        places: where files of the table lie; none is moved elsewhere, whatever the plan says.
    """

    plan: DeletionPlan
    lease: PlanLease | None
    places: DeletableLocations
    storage: Storage
    runtime: Runtime


def check_targets(work: Returning, spark: SparkSource) -> Returned:
    """Look at every file of a plan before the first is moved; returns what would be moved.

    Raises:
        SafetyError: one lies outside the table's places, or the path of one is in use again, or one is neither in the trash nor
            in its place.
        ClaimedError: another run has taken the plan over.
    """
    plan, found = work.plan, Returned()
    for _, part in _each_part(_look_at_part, work, spark, "looking at what is to come back"):
        found += part
    if found.taken:
        first = found.taken.first
        raise SafetyError(
            f"cannot restore run {plan.run!r}: {first[0]!r}{and_more(range(found.taken.count))} is in use again by another "
            "file; move that away, nothing was restored",
            locations=[*first],
        )
    if found.missing:
        first = found.missing.first
        raise SafetyError(
            f"cannot restore run {plan.run!r}: {counted_doing(found.missing.count, 'files', 'are')} neither in its trash nor in "
            f"their places, {first[0]!r} among them; if a later run has them in its trash, restore that one first "
            f"(`{shown_command('restore', '--table', THIS_TABLE, '--list')}`), else they are gone; nothing was restored",
            locations=[*first],
        )
    return found


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
    """What comes of each part of a plan: here, or in Spark tasks where there are many files; these look at the lease too."""
    parts = work.plan.parts
    if work.plan.files_count <= limits_of(spark).deleted_files_count or len(parts) == 1:
        yield from ((part, act(part, work)) for part in parts)
        return
    tasks = finished_tasks(started(spark), parts, partial(_act_in_task, act), work, step=step)
    errors = []
    with closing(tasks) as finished:
        for number, answer in finished:
            if isinstance(answer, IcekeepError):
                # Raised when all have ended: none may move a file after the lease is given back.
                errors.append(answer)
            else:
                yield parts[number], answer
    if errors:
        raise errors[0]


def _act_in_task(act: Callable[[PlanPart, Returning], R], part: PlanPart, work: Returning) -> R:
    lease = work.lease and work.lease.arrived(work.runtime)
    return act(part, msgspec.structs.replace(work, lease=lease))


def _look_at_part(part: PlanPart, work: Returning) -> Returned:
    plan, storage = work.plan, work.storage
    if work.lease is not None:
        work.lease.check(storage, work.runtime)
    files = _files(part, work)
    originals = head_many([file.original for file in files], storage)
    trashed = head_many([file.trash for file in files], storage)
    away: list[_File] = []
    missing: list[str] = []
    taken: list[str] = []
    for file, found, trash in zip(files, originals, trashed, strict=True):
        if found is None and trash is not None and plan.is_trash:
            away.append(file)
        elif found is None:
            missing.append(file.original)
        elif _is_other(found, trash, file, storage):
            taken.append(file.original)
    return Returned(
        moved_count=len(away),
        moved_bytes=sum(file.size_bytes or 0 for file in away),
        missing=FileSample.of(missing),
        taken=FileSample.of(taken),
    )


def _move_part_back(part: PlanPart, work: Returning) -> Returned:
    plan, storage = work.plan, work.storage
    files = _files(part, work)
    total = Returned()
    for start in range(0, len(files), _MOVES_AT_ONCE):
        some = files[start : start + _MOVES_AT_ONCE]
        if work.lease is not None:
            work.lease.check(storage, work.runtime)
        with confined_to(work.places.roots):
            total += _moved(some, storage) if plan.is_trash else Returned(missing=FileSample.of(_absent(some, storage)))
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
        missing=FileSample.of(_absent(not_in_trash, storage)),
        taken=FileSample.of([file.original for file, outcome in outcomes if outcome.status is MoveStatus.TAKEN]),
        failed=FileSample.of(failed),
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
    if found.size_bytes != trash.size_bytes:
        return True
    return _content_hash(file.original, storage) != _content_hash(file.trash, storage)


def _content_hash(location: str, storage: Storage) -> bytes:
    content = hashlib.blake2b()
    with storage.open(location) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            content.update(chunk)
    return content.digest()


F = TypeVar("F", bound=Fold)

_NO_KEYS = np.empty(0, np.int64)
_PENDING_KEYS = 1_000_000


def check_needs(plan: DeletionPlan, before: TableMetadata, table: Table, spark: SparkSource) -> None:
    """Prove that each file to which the plan's snapshots lead is there, and stays when they are back.

    Where all snapshots are still there that the table had beside these when the plan was proved, so are their files, and
    nothing is read.

    Args:
        before: the table before the run.
        table: to which the snapshots come back, as it is.

    Raises:
        SafetyError: one is not, or not everything that the table leads to can be read.
    """
    now = table.metadata.snapshots_by_id
    expired = {*plan.snapshot_ids}
    if (before.snapshots_by_id.keys() - expired) | {*plan.newer_snapshot_ids} <= now.keys():
        return
    gone = [s for s in before.snapshots if s.snapshot_id in expired and s.snapshot_id not in now]
    missing = _Needs(plan, before, table, spark).missing(gone)
    if missing:
        raise SafetyError(
            f"cannot restore run {plan.run!r}: its snapshots need {counted(len(missing), 'files')} that later runs have "
            f"removed, or are about to remove, {missing[0]!r} among them; restore later runs first, the newest before the others "
            f"(`{shown_command('restore', '--table', table.full_name, '--list')}`); where there is none the files are gone; no "
            "snapshot was restored",
            locations=missing[:100],
        )


class _Needs:
    """Finds what snapshots need and lack; their own metadata files may be in the trash of the plan still.

    Of files no more is held than keys, eight bytes each; names only of those that seem to be lacking.
    """

    def __init__(self, plan: DeletionPlan, before: TableMetadata, table: Table, spark: SparkSource) -> None:
        self._plan, self._before, self._base, self._spark = plan, before, table.metadata, spark
        self._table, self._storage = table, table.storage
        self._planned = _planned_keys(plan, table.storage, spark)

    def missing(self, snapshots: Sequence[Snapshot]) -> list[str]:
        """Files that the snapshots lead to and that are neither the plan's nor held by a snapshot of the table."""
        held_lists = {canonical(s.manifest_list) for s in self._base.snapshots if s.manifest_list is not None}
        lists = [s.manifest_list for s in snapshots if s.manifest_list is not None]
        in_plan = {*self._planned_of(lists)}
        lost = [location for location in lists if location not in in_plan and canonical(location) not in held_lists]
        unreadable = {*lost}
        readable = [s for s in snapshots if s.manifest_list not in unreadable]
        held = self._listed(self._base.snapshots)
        others = self._listed(self._found(readable), without=held.keys).manifests
        whole = {*self._planned_of([m.manifest_path for m in others])}
        lost += [m.manifest_path for m in others if m.manifest_path not in whole]
        return lost + self._unheld([m for m in others if m.manifest_path in whole], held)

    def _unheld(self, manifests: Sequence[ManifestFile], held: ListedManifests) -> list[str]:
        """The files of manifests of the plan that are lacking."""
        places = self._places([manifest.manifest_path for manifest in manifests])
        located = [replace(manifest, manifest_path=places[manifest.manifest_path]) for manifest in manifests]
        keys = self._folded(located, partial(_NeededKeys, self._planned)).keys
        if not len(keys):
            return []
        retained = Reached(metadata=self._base, storage=self._storage, manifests=held.manifests)
        with fails_closed("no snapshot is restored"):
            unheld = keys[~held_against(keys, retained, self._spark).mask]
        if not len(unheld):
            return []
        return self._gone_or_planned(self._folded(located, partial(_NeededNames, self._planned, unheld)).names)

    def _gone_or_planned(self, files: list[str]) -> list[str]:
        """Of data and delete files that no snapshot holds all but those that nobody deletes, and that are there.

        In the table's own places an engine of others may be deleting them.
        """
        places = DeletableLocations(roots=(*table_locations(self._base), *named_roots(self._table)))
        is_ours = places.mask(pa.array(files, pa.string()))
        named = paths_of_other_plans(self._plan, self._table).mask(files)
        there = head_many(files, self._storage)
        return [
            path
            for path, *may_go, found in zip(files, is_ours, named, there, strict=True)
            if any(may_go) or found is None
        ]

    def _planned_of(self, locations: list[str]) -> list[str]:
        names = pa.array(locations, pa.string())
        return names.filter(pa.array(among(location_keys(names), self._planned), pa.bool_())).to_pylist()

    def _listed(self, snapshots: Sequence[Snapshot], without: Keys | None = None) -> ListedManifests:
        return listed_manifests(self._storage, self._spark, snapshots, check=True, trust=True, without=without)

    def _folded(self, manifests: Sequence[ManifestFile], new: Callable[[], F]) -> F:
        specs = {m.partition_spec_id: SpecFilter(self._before.partition_type(m.partition_spec_id)) for m in manifests}
        return folded(self._storage, self._spark, manifests, EntryFilter(specs=specs), {"file_path"}, new)

    def _found(self, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
        """Snapshots with the locations from which they can be read now."""
        lists = [one.manifest_list for one in snapshots if one.manifest_list is not None]
        places = self._places([*lists, *(location for one in snapshots for location in one.manifests or ())])
        return [
            replace(one, manifests=tuple(places[location] for location in one.manifests or ()))
            if one.manifest_list is None
            else replace(one, manifest_list=places[one.manifest_list])
            for one in snapshots
        ]

    def _places(self, locations: Sequence[str]) -> dict[str, str]:
        """Where each of some files is: in the trash of the plan, or where it belongs."""
        trashed = [trash_location(self._plan, location) for location in locations] if self._plan.is_trash else []
        found = zip(locations, trashed, head_many(trashed, self._storage), strict=True) if trashed else ()
        return {location: location for location in locations} | {
            location: there for location, there, info in found if info is not None
        }


class _NeededKeys:
    """A fold over live files: the path keys of those that are not in the plan."""

    def __init__(self, planned: Keys) -> None:
        self._planned = planned
        self._found: list[Keys] = []
        self._added_count = self._kept_count = 0

    @property
    def keys(self) -> Keys:
        """What was found, each once, ascending."""
        return np.unique(np.concatenate([_NO_KEYS, *self._found]))

    def add(self, decoded: DecodedEntries) -> None:
        self._take(path_keys(_unplanned(decoded, self._planned)))

    def merge(self, other: "_NeededKeys") -> None:
        self._take(other.keys)

    def _take(self, keys: Keys) -> None:
        self._found.append(keys)
        self._added_count += len(keys)
        # Many manifests may list the same files.
        if self._added_count > max(self._kept_count, _PENDING_KEYS):
            self._found = [self.keys]
            self._added_count, self._kept_count = 0, len(self._found[0])


class _NeededNames:
    """The same for the names of those that have one of some path keys."""

    def __init__(self, planned: Keys, wanted: Keys) -> None:
        self._planned, self._wanted = planned, wanted
        self._names: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        return [*self._names.values()]

    def add(self, decoded: DecodedEntries) -> None:
        files = _unplanned(decoded, self._planned)
        some = files.filter(pa.array(among(path_keys(files), self._wanted), pa.bool_())).to_pylist()
        self._names |= {canonical(name): name for name in some}

    def merge(self, other: "_NeededNames") -> None:
        self._names |= other._names


def _unplanned(decoded: DecodedEntries, planned: Keys) -> Locations:
    files = decoded.entries["file_path"]
    return files.filter(pa.array(~among(location_keys(files), planned), pa.bool_()))


def _planned_keys(plan: DeletionPlan, storage: Storage, spark: SparkSource) -> Keys:
    """`location_keys` of the files of a plan, ascending."""
    is_much = plan.files_count > limits_of(spark).plan_files_count
    session = started(spark) if is_much else None
    found = all_results(run_tasks(session, plan.parts, _keys_of_part, storage, step="reading the plan"))
    return np.sort(np.concatenate([_NO_KEYS, *found]))


def _keys_of_part(part: PlanPart, storage: Storage) -> Keys:
    return location_keys(read_part(part, storage)["location"])
