"""Remove the snapshots and references that a retention policy does not keep; no file is deleted here."""

from collections.abc import Hashable, Sequence
from itertools import chain

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.filtering import EntryReader, Gatherer, LastingKey, identity, without_history
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.used_specs import used_spec_ids
from icekeep.errors import ConflictError
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import (
    Expired,
    RetentionPolicy,
    columns_of_schemas,
    select_expired,
    unused_schema_ids,
    unused_spec_ids,
)
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.updates import RemovePartitionSpecs, RemoveSchemas, RemoveSnapshotRef, RemoveSnapshots, Update


class ExpireSnapshots(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and the moment that ages are measured against (epoch ms), the same for every attempt.

    Attributes:
        clean_expired_metadata: schemas and partition specs that neither snapshots nor their files use any more are removed as
            well.
        expected: what was planned: that goes and no more, as far as it is still there; where the policy keeps any of it by
            now, it is a conflict. `None`: whatever the policy expires.
    """

    policy: RetentionPolicy
    now_ms: int
    clean_expired_metadata: bool = False
    expected: Expired | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """The policy is evaluated on this base alone, so that a reference made meanwhile keeps what it names."""
        expired = select_expired(base, self.policy, self.now_ms)
        if self.expected is not None:
            expired = _as_planned(base, expired, self.expected)
        if self.clean_expired_metadata:
            found = _with_unused(base, expired, attempt.reader, attempt)
            expired = found if self.expected is None else _unused_as_planned(base, found, self.expected)
        return removals(expired)

    def expired(self, base: TableMetadata, reader: ManifestReader) -> Expired:
        """What would go if the change were applied to a base; `expected` does not count."""
        expired = select_expired(base, self.policy, self.now_ms)
        return _with_unused(base, expired, reader, reader) if self.clean_expired_metadata else expired


def removals(expired: Expired) -> tuple[Update, ...]:
    """The updates that take what expires out of the metadata."""
    updates: list[Update] = [RemoveSnapshotRef(name) for name in sorted(expired.ref_names)]
    if expired.snapshot_ids:
        updates.append(RemoveSnapshots(tuple(sorted(expired.snapshot_ids))))
    if expired.spec_ids:
        updates.append(RemovePartitionSpecs(tuple(sorted(expired.spec_ids))))
    if expired.schema_ids:
        updates.append(RemoveSchemas(tuple(sorted(expired.schema_ids))))
    return tuple(updates)


def _with_unused(base: TableMetadata, expired: Expired, reader: ManifestReader, asks: Gatherer) -> Expired:
    """The same, and the schemas and partition specs that nothing uses without it."""
    retained = _retained(base, expired)
    others = {s.spec_id for s in base.partition_specs} - {base.default_spec_id}
    used = used_spec_ids(others, retained, reader)
    spec_ids = unused_spec_ids(base, used)
    if spec_ids:
        # A manifest list may be wrong about them, and without its spec nobody can read a manifest's partitions.
        spec_ids = unused_spec_ids(base, used | _written_spec_ids(retained, reader, asks))
    schema_ids = unused_schema_ids(base, expired.snapshot_ids, spec_ids)
    if columns := columns_of_schemas(base, schema_ids):
        compared = _compared_ids(base, columns, retained, reader, asks)
        schema_ids = unused_schema_ids(base, expired.snapshot_ids, spec_ids, compared)
    return msgspec.structs.replace(expired, schema_ids=frozenset(schema_ids), spec_ids=frozenset(spec_ids))


class _ComparedIds(msgspec.Struct, frozen=True):
    """Which of some columns the live equality deletes of a manifest compare."""

    base: TableMetadata
    columns: frozenset[int]

    @property
    def key(self) -> Hashable:
        return "compared", self.columns

    def run(self, manifest: ManifestFile, reader: EntryReader) -> frozenset[int]:
        live = (entry.data_file.equality_ids or () for entry in reader.entries(manifest, self.base) if entry.is_live)
        return self.columns.intersection(chain.from_iterable(live))


def _compared_ids(
    base: TableMetadata,
    columns: frozenset[int],
    retained: Sequence[Snapshot],
    reader: ManifestReader,
    asks: Gatherer,
) -> frozenset[int]:
    """Which of some columns equality deletes of the snapshots compare: all delete manifests are read, whatever their lists say
    of counts.
    """
    manifests = {
        identity(manifest): manifest
        for snapshot in retained
        for manifest in reader.manifests(snapshot)
        if manifest.content is ManifestContent.DELETES
    }
    found = asks.gathered([*manifests.values()], _ComparedIds(without_history(base), columns))
    return frozenset().union(*found)


class _WrittenSpec(msgspec.Struct, frozen=True):
    """The partition spec that a manifest names itself; `None` where it names none."""

    @property
    def key(self) -> Hashable:
        return LastingKey("written spec")

    def run(self, manifest: ManifestFile, reader: EntryReader) -> int | None:
        return reader.header(manifest).partition_spec_id


def _written_spec_ids(retained: Sequence[Snapshot], reader: ManifestReader, asks: Gatherer) -> set[int]:
    """The partition specs that the manifests of the snapshots name themselves."""
    manifests = {identity(manifest): manifest for snapshot in retained for manifest in reader.manifests(snapshot)}
    return {number for number in asks.gathered([*manifests.values()], _WrittenSpec()) if number is not None}


def _retained(base: TableMetadata, expired: Expired) -> list[Snapshot]:
    """The snapshots that stay: heads first, whose manifests are most often of every spec that is in use at all."""
    heads = {ref.snapshot_id for ref in base.refs.values()}
    retained = [s for s in reversed(base.snapshots) if s.snapshot_id not in expired.snapshot_ids]
    return sorted(retained, key=lambda s: s.snapshot_id not in heads)


def _as_planned(base: TableMetadata, expired: Expired, expected: Expired) -> Expired:
    """What was planned, without what others have removed."""
    planned = Expired(
        expected.snapshot_ids & base.snapshots_by_id.keys(), expected.ref_names & base.refs.keys(), expired.kept
    )
    kept_count = len(planned.snapshot_ids - expired.snapshot_ids) + len(planned.ref_names - expired.ref_names)
    if kept_count:
        raise ConflictError(
            f"the table at {base.location!r} has changed: {kept_count} of the snapshots and references that were to expire must "
            "stay",
            kept_count=kept_count,
        )
    return planned


def _unused_as_planned(base: TableMetadata, found: Expired, expected: Expired) -> Expired:
    """What was planned of schemas and specs, without what others have removed; raises where any of it is in use."""
    schema_ids = expected.schema_ids & base.schemas_by_id.keys()
    spec_ids = expected.spec_ids & base.specs_by_id.keys()
    used_count = len(schema_ids - found.schema_ids) + len(spec_ids - found.spec_ids)
    if used_count:
        raise ConflictError(
            f"the table at {base.location!r} has changed: {used_count} of the schemas and partition specs that were to go "
            f"{'is' if used_count == 1 else 'are'} in use",
            used_count=used_count,
        )
    return msgspec.structs.replace(found, schema_ids=schema_ids, spec_ids=spec_ids)
