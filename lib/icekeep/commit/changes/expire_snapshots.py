"""Remove the snapshots and references that a retention policy does not keep; no file is deleted here."""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import Expired, RetentionPolicy, select_expired, unused_schema_ids, unused_spec_ids
from icekeep.spec.updates import RemovePartitionSpecs, RemoveSchemas, RemoveSnapshotRef, RemoveSnapshots, Update


class ExpireSnapshots(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and the moment that ages are measured against (epoch ms), the same for every attempt.

    `clean_expired_metadata` also removes schemas and partition specs that nothing uses any more.
    """

    policy: RetentionPolicy
    now_ms: int
    clean_expired_metadata: bool = False

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """The policy is evaluated on this base alone, so that a reference made meanwhile keeps what it names."""
        expired = select_expired(base, self.policy, self.now_ms)
        updates: list[Update] = [RemoveSnapshotRef(name) for name in sorted(expired.ref_names)]
        if expired.snapshot_ids:
            updates.append(RemoveSnapshots(tuple(sorted(expired.snapshot_ids))))
        if self.clean_expired_metadata:
            updates += self._unused_metadata(base, expired, attempt)
        return tuple(updates)

    def _unused_metadata(self, base: TableMetadata, expired: Expired, attempt: Attempt) -> list[Update]:
        updates: list[Update] = []
        if len(base.partition_specs) > 1:
            retained = [s for s in base.snapshots if s.snapshot_id not in expired.snapshot_ids]
            used = {m.partition_spec_id for s in retained for m in attempt.reader.manifests(s)}
            if spec_ids := unused_spec_ids(base, used):
                updates.append(RemovePartitionSpecs(spec_ids))
        if schema_ids := unused_schema_ids(base, expired.snapshot_ids):
            updates.append(RemoveSchemas(schema_ids))
        return updates
