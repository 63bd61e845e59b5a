"""The last look at the catalog, before each call that deletes: a proof was made once, and the table goes on.

Snapshots come back (`restore`, a rollback, another catalog), files are adopted, tables are registered again. What is in use
by now stays; where the plan itself does not hold any more, nothing of it goes.
"""

from collections.abc import Sequence
from typing import Protocol

from icekeep.catalog.base import Table
from icekeep.errors import NotFoundError, SafetyError
from icekeep.maintenance.deletion.path_set import NO_PATHS, PathSet
from icekeep.maintenance.deletion.reachable import Seen, reached_paths, read_reached
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import is_true

_STAYS = "what was not deleted yet stays"


def is_gc_enabled(metadata: TableMetadata) -> bool:
    """Whether the property `gc.enabled` lets files of a table be deleted; a misspelt one does not."""
    return is_true(metadata.properties, "gc.enabled", True)


class Look(Protocol):
    """Asked on the driver, as often as it takes."""

    def __call__(self) -> PathSet:
        """Files that stay: in use by now, though they were not when the plan was proved, or kept by others.

        Raises:
            SafetyError: nothing more of the plan may be deleted.
        """


class TableLook:
    """Looks at a table that lives: what came into its metadata since the proof, and whether it is the same table."""

    def __init__(
        self, proved: Table, seen: Seen, spark: SparkSource, *, trust_manifest_list: bool, roots: Sequence[str] = ()
    ) -> None:
        """Begin with the table as it was when everything that it retains was read.

        Args:
            seen: what was read then.
            roots: directories of files that may go (`Territory.roots`).
        """
        self._table, self._seen, self._roots = proved, seen, roots
        self._spark, self._trust_manifest_list = spark, trust_manifest_list
        self._in_use = NO_PATHS

    @property
    def table(self) -> Table:
        """The table as it was seen last."""
        return self._table

    def __call__(self) -> PathSet:
        catalog, identifier = self._table.catalog, self._table.identifier
        try:
            if catalog.find(identifier).metadata_location != self._table.metadata_location:
                self._follow(catalog.load(identifier))
        except NotFoundError as error:
            raise SafetyError(
                f"table {self._table.name!r} was dropped while its files were deleted; the others stay: {error.message}"
            ) from error
        return self._in_use

    def _follow(self, now: Table) -> None:
        metadata = now.metadata
        if metadata.table_uuid != self._table.metadata.table_uuid:
            raise SafetyError(f"{now.name!r} is another table by now; {_STAYS}")
        if not is_gc_enabled(metadata):
            raise SafetyError(f"table {now.name!r} has gc.enabled=false by now; {_STAYS}")
        newly = read_reached(
            metadata,
            now.metadata_location,
            now.storage,
            self._spark,
            trust_manifest_list=self._trust_manifest_list,
            since=self._seen,
            stays=_STAYS,
            roots=self._roots,
        )
        self._in_use |= reached_paths(newly, stays=_STAYS).paths
        self._table, self._seen = now, newly.seen


class DroppedLook:
    """Looks at a table that its catalog has forgotten: that it has not come back under its name."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __call__(self) -> PathSet:
        try:
            self._table.catalog.find(self._table.identifier)
        except NotFoundError:
            return NO_PATHS
        raise SafetyError(
            f"table {self._table.name!r} is in the catalog again; what was not deleted yet of the one that was purged stays"
        )
