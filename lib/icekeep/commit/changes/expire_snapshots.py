"""Remove the snapshots and references that a retention policy does not keep; no file is deleted here."""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.used_specs import used_spec_ids
from icekeep.errors import ConflictError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import Expired, RetentionPolicy, select_expired, unused_schema_ids, unused_spec_ids
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.updates import RemovePartitionSpecs, RemoveSchemas, RemoveSnapshotRef, RemoveSnapshots, Update


class ExpireSnapshots(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and the moment that ages are measured against (epoch ms), the same for every attempt.

    Attributes:
        clean_expired_metadata: schemas and partition specs that nothing uses any more are removed as well.
        expected: what was approved; where the policy expires anything else on the base, it is a conflict. Null: whatever
            the policy expires.
    """

    policy: RetentionPolicy
    now_ms: int
    clean_expired_metadata: bool = False
    expected: Expired | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """The policy is evaluated on this base alone, so that a reference made meanwhile keeps what it names."""
        expired = select_expired(base, self.policy, self.now_ms)
        if self.expected is not None:
            _check_expected(base, expired, self.expected)
        updates: list[Update] = [RemoveSnapshotRef(name) for name in sorted(expired.ref_names)]
        if expired.snapshot_ids:
            updates.append(RemoveSnapshots(tuple(sorted(expired.snapshot_ids))))
        if self.clean_expired_metadata:
            updates += self._unused_metadata(base, expired, attempt)
        return tuple(updates)

    def _unused_metadata(self, base: TableMetadata, expired: Expired, attempt: Attempt) -> list[Update]:
        updates: list[Update] = []
        others = {s.spec_id for s in base.partition_specs} - {base.default_spec_id}
        used = used_spec_ids(others, _retained(base, expired), attempt.reader)
        if spec_ids := unused_spec_ids(base, used):
            updates.append(RemovePartitionSpecs(spec_ids))
        if schema_ids := unused_schema_ids(base, expired.snapshot_ids):
            updates.append(RemoveSchemas(schema_ids))
        return updates


def _retained(base: TableMetadata, expired: Expired) -> list[Snapshot]:
    """The snapshots that stay: heads first, whose manifests are most often of every spec that is in use at all."""
    heads = {ref.snapshot_id for ref in base.refs.values()}
    retained = [s for s in reversed(base.snapshots) if s.snapshot_id not in expired.snapshot_ids]
    return sorted(retained, key=lambda s: s.snapshot_id not in heads)


def _check_expected(base: TableMetadata, expired: Expired, expected: Expired) -> None:
    if (expired.snapshot_ids, expired.ref_names) == (expected.snapshot_ids, expected.ref_names):
        return
    more = len(expired.snapshot_ids - expected.snapshot_ids) + len(expired.ref_names - expected.ref_names)
    fewer = len(expected.snapshot_ids - expired.snapshot_ids) + len(expected.ref_names - expired.ref_names)
    raise ConflictError(
        f"the table at {base.location!r} has changed: {more} snapshots and references would expire that were not approved, and "
        f"{fewer} that were would not; plan again",
        more_count=more,
        fewer_count=fewer,
    )
