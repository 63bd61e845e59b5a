"""The last look at the catalog, before each call that deletes: a proof was made once, and the table goes on.

Snapshots come back (`restore`, a rollback, another catalog), files are adopted, tables are registered again. What is in use
by now stays; where the plan itself does not hold any more, nothing of it goes.
"""

from typing import Protocol

import numpy as np

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, NotFoundError, SafetyError
from icekeep.maintenance.deletion.reachability import (
    Keys,
    live_path_keys,
    path_keys_of,
    statistics_files,
    unproved,
)
from icekeep.planning.manifests.lists import listed_manifests
from icekeep.planning.spark.source import SparkSource
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.table_properties import is_true

_NONE = np.empty(0, np.int64)
_STAYS = "what was not deleted yet stays"


def is_gc_enabled(metadata: TableMetadata) -> bool:
    """Whether the property `gc.enabled` lets files of a table be deleted; a misspelt one does not."""
    return is_true(metadata.properties, "gc.enabled", True)


class Look(Protocol):
    """Asked on the driver, as often as it takes."""

    def __call__(self) -> Keys:
        """Path keys of files that stay: in use by now, though they were not when the plan was proved, or kept by others.

        Raises:
            SafetyError: nothing more of the plan may be deleted.
        """


class TableLook:
    """Looks at a table that lives: what came into its metadata since the proof, and whether it is the same table."""

    def __init__(self, proved: Table, manifest_keys: Keys, spark: SparkSource, *, trust_totals: bool) -> None:
        """Begin with the table as it was when everything that it retains was read.

        Args:
            manifest_keys: `location_keys` of the manifests that were read then.
        """
        self._seen = proved
        self._snapshot_ids = frozenset(proved.metadata.snapshots_by_id)
        self._manifest_keys = manifest_keys
        self._spark, self._trust_totals = spark, trust_totals
        self._in_use = _NONE

    @property
    def table(self) -> Table:
        """The table as it was seen last."""
        return self._seen

    def __call__(self) -> Keys:
        catalog, identifier = self._seen.catalog, self._seen.identifier
        try:
            if catalog.find(identifier).metadata_location != self._seen.metadata_location:
                self._follow(catalog.load(identifier))
        except NotFoundError as error:
            raise SafetyError(
                f"table {self._seen.name!r} was dropped while its files were deleted; the others stay: {error.message}"
            ) from error
        return self._in_use

    def _follow(self, now: Table) -> None:
        before, metadata = self._seen.metadata, now.metadata
        if metadata.table_uuid != before.table_uuid:
            raise SafetyError(f"{now.name!r} is another table by now; {_STAYS}")
        if not is_gc_enabled(metadata):
            raise SafetyError(f"table {now.name!r} has gc.enabled=false by now; {_STAYS}")
        newer = [s for s in metadata.snapshots if s.snapshot_id not in self._snapshot_ids]
        try:
            listed = listed_manifests(
                now.storage, self._spark, newer, check=True, trust=self._trust_totals, without=self._manifest_keys
            )
        except IcekeepError as error:
            raise unproved(error, _STAYS) from error
        names = [
            now.metadata_location,
            *(entry.metadata_file for entry in metadata.metadata_log),
            *statistics_files(metadata),
            *(s.manifest_list for s in newer if s.manifest_list),
            *(manifest.manifest_path for manifest in listed.manifests),
        ]
        live = live_path_keys(metadata, listed.manifests, now.storage, stays=_STAYS)
        self._in_use = np.unique(np.concatenate([self._in_use, path_keys_of(names), live]))
        self._manifest_keys = np.union1d(self._manifest_keys, listed.keys)
        self._snapshot_ids |= frozenset(metadata.snapshots_by_id)
        self._seen = now


class DroppedLook:
    """Looks at a table that its catalog has forgotten: that it has not come back under its name."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __call__(self) -> Keys:
        try:
            self._table.catalog.find(self._table.identifier)
        except NotFoundError:
            return _NONE
        raise SafetyError(
            f"table {self._table.name!r} is in the catalog again; what was not deleted yet of the one that was purged stays"
        )
