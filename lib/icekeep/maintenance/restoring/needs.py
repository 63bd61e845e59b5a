"""What the snapshots of a run need beside the files that the run removed: later runs may have removed that.

A file that an older and a younger snapshot share is not in the plan of the run that expired the older one. It goes with the
younger one, and may be in another trash, or nowhere. That it is in its place proves nothing: the run that expired the younger
one may be about to delete it. So each file that is needed must be in the plan, or live in a snapshot that the table has at the
commit. Data and delete files may also lie outside the table's own places, where no run deletes them, as imported files do.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import SafetyError
from icekeep.maintenance.deletion.comparing import held_against
from icekeep.maintenance.deletion.named_files import paths_of_others
from icekeep.maintenance.deletion.path_set import among
from icekeep.maintenance.deletion.plans import DeletionPlan, PlanPart, read_part, trash_location
from icekeep.maintenance.deletion.reachable import Reached, fails_closed
from icekeep.maintenance.deletion.territory import Territory, named_roots, table_roots
from icekeep.planning.entries import DecodedEntries, EntryFilter, Fold, SpecFilter, folded
from icekeep.planning.manifest_lists import ListedManifests, listed_manifests
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys, Locations, location_keys, path_keys
from icekeep.storage.locations import canonical
from icekeep.storage.many import head_many

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
            "removed, or are "
            f"about to remove, {missing[0]!r} among them; restore later runs first, the newest before the others (`icekeep "
            "restore --table NAME --list`); where there is none the files are gone; no snapshot was restored",
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
        named = [s.manifest_list for s in snapshots if s.manifest_list is not None]
        in_plan = {*self._which_are_planned(named)}
        lost = [location for location in named if location not in in_plan and canonical(location) not in held_lists]
        unreadable = {*lost}
        readable = [s for s in snapshots if s.manifest_list not in unreadable]
        held = self._listed(self._base.snapshots)
        others = self._listed(self._found(readable), without=held.keys).manifests
        whole = {*self._which_are_planned([m.manifest_path for m in others])}
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
        places = Territory(roots=(*table_roots(self._base), *named_roots(self._table)))
        is_ours = places.mask(pa.array(files, pa.string()))
        named = paths_of_others(self._plan, self._table).mask(files)
        there = head_many(files, self._storage)
        return [
            path
            for path, *may_go, found in zip(files, is_ours, named, there, strict=True)
            if any(may_go) or found is None
        ]

    def _which_are_planned(self, locations: list[str]) -> list[str]:
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
