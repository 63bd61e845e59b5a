"""Take back snapshots that had expired, each under a tag of its own; their files must be back in their places."""

from collections.abc import Iterable, Sequence

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.manage_refs import ref_exists
from icekeep.commit.used_specs import used_spec_ids
from icekeep.errors import InvalidTableError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.restoring_update import RestoreSnapshots, missing
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot, SnapshotRef
from icekeep.spec.units import MAX_LONG
from icekeep.spec.updates import SetSnapshotRef, Update

FOREVER_MS = MAX_LONG
"""An age that no reference reaches: a tag without one would have the table's default."""


class RestoreExpired(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots to be taken back as they were in the metadata `before` they expired.

    Those that are there stay as they are, with no tag: they did not expire, or others have taken them back.

    Attributes:
        keep_for_ms: how long from now on the tags keep them; `None`: until they are dropped.
    """

    before: TableMetadata
    snapshot_ids: tuple[int, ...]
    keep_for_ms: int | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        snapshots = tuple(missing(self._snapshots(), base.snapshots, "snapshot", "snapshot_id"))
        if not snapshots:
            return ()
        tags = tuple(self._tag(snapshot, base, attempt.now_ms) for snapshot in snapshots)
        specs = self._specs(snapshots, base, attempt)
        ids = {s.snapshot_id for s in snapshots}
        restored = RestoreSnapshots(
            snapshots=snapshots,
            schemas=self._schemas(snapshots, specs, base),
            partition_specs=specs,
            statistics=tuple(file for file in self.before.statistics if file.snapshot_id in ids),
            partition_statistics=tuple(file for file in self.before.partition_statistics if file.snapshot_id in ids),
        )
        return restored, *tags

    def check(self, base: TableMetadata) -> None:
        """Raise what `apply` would raise on this base, as far as it can be told while files are not in their places."""
        for snapshot in missing(self._snapshots(), base.snapshots, "snapshot", "snapshot_id"):
            self._tag(snapshot, base, 0)

    def _tag(self, snapshot: Snapshot, base: TableMetadata, now_ms: int) -> SetSnapshotRef:
        name = restored_tag(snapshot.snapshot_id)
        if (taken := base.refs.get(name)) is not None:
            raise ref_exists(name, taken)
        age_ms = FOREVER_MS
        if self.keep_for_ms is not None:
            # The age of a reference is that of its snapshot.
            age_ms = min(FOREVER_MS, max(0, now_ms - snapshot.timestamp_ms) + self.keep_for_ms)
        return SetSnapshotRef(name, SnapshotRef(snapshot_id=snapshot.snapshot_id, type="tag", max_ref_age_ms=age_ms))

    def _snapshots(self) -> list[Snapshot]:
        wanted = {*self.snapshot_ids}
        if unknown := wanted - self.before.snapshots_by_id.keys():
            raise InvalidTableError(
                f"snapshot {min(unknown)} cannot be restored: the metadata from before it expired does not have it"
            )
        return [s for s in self.before.snapshots if s.snapshot_id in wanted]

    def _specs(self, snapshots: Sequence[Snapshot], base: TableMetadata, attempt: Attempt) -> tuple[PartitionSpec, ...]:
        """The partition specs of their manifests that the base has not, or has with another content."""
        differing = [s for s in self.before.partition_specs if base.specs_by_id.get(s.spec_id) != s]
        used = used_spec_ids((s.spec_id for s in differing), snapshots, attempt.reader)
        return tuple(s for s in differing if s.spec_id in used)

    def _schemas(
        self, snapshots: Iterable[Snapshot], specs: Iterable[PartitionSpec], base: TableMetadata
    ) -> tuple[Schema, ...]:
        """Their own schemas, and those that alone know the columns of the partition specs that come back."""
        needed = {s.schema_id for s in snapshots}
        sources = {field.source_id for spec in specs for field in spec.fields}
        known = {field_id for schema in base.schemas for field_id in schema.fields_by_id}
        needed.update(self.before.schema_of(source).schema_id for source in sources - known)
        return tuple(
            s for s in self.before.schemas if s.schema_id in needed and base.schemas_by_id.get(s.schema_id) != s
        )


def restored_tag(snapshot_id: int) -> str:
    """The name of the tag under which a snapshot comes back."""
    return f"restored-{snapshot_id}"
