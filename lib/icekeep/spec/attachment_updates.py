"""Updates of what hangs on a table beside its snapshots: statistics files and encryption keys."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import Update, UpdateContext, effect


class SetStatistics(Update, frozen=True, tag="set-statistics"):
    """Set the statistics file of a snapshot, in place of the one that it has."""

    statistics: StatisticsFile


class RemoveStatistics(Update, frozen=True, tag="remove-statistics"):
    """Remove the statistics file of a snapshot; none is fine."""

    snapshot_id: int


class SetPartitionStatistics(Update, frozen=True, tag="set-partition-statistics"):
    """Set the partition statistics file of a snapshot, in place of the one that it has."""

    partition_statistics: PartitionStatisticsFile


class RemovePartitionStatistics(Update, frozen=True, tag="remove-partition-statistics"):
    """Remove the partition statistics file of a snapshot; none is fine."""

    snapshot_id: int


class AddEncryptionKey(Update, frozen=True, tag="add-encryption-key"):
    """Add an encrypted key, as the JSON object of the spec; one that is there stays as it is."""

    encryption_key: Mapping[str, Any]


class RemoveEncryptionKey(Update, frozen=True, tag="remove-encryption-key"):
    """Remove an encrypted key; none is fine."""

    key_id: str


@effect.register
def _(update: SetStatistics, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    new = update.statistics
    others = [known for known in metadata.statistics if known.snapshot_id != new.snapshot_id]
    return replace(metadata, statistics=(*others, new))


@effect.register
def _(update: RemoveStatistics, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    kept = tuple(known for known in metadata.statistics if known.snapshot_id != update.snapshot_id)
    return replace(metadata, statistics=kept)


@effect.register
def _(update: SetPartitionStatistics, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    new = update.partition_statistics
    others = [known for known in metadata.partition_statistics if known.snapshot_id != new.snapshot_id]
    return replace(metadata, partition_statistics=(*others, new))


@effect.register
def _(update: RemovePartitionStatistics, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    kept = tuple(known for known in metadata.partition_statistics if known.snapshot_id != update.snapshot_id)
    return replace(metadata, partition_statistics=kept)


@effect.register
def _(update: AddEncryptionKey, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    key_id = update.encryption_key.get("key-id")
    if not isinstance(key_id, str):
        raise InvalidTableError(
            f"an encryption key has the key-id {key_id!r}; it must be text", section="Encryption Keys"
        )
    if any(_key_id(known) == key_id for known in metadata.encryption_keys):
        return metadata
    return replace(metadata, encryption_keys=(*metadata.encryption_keys, update.encryption_key))


@effect.register
def _(update: RemoveEncryptionKey, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    kept = tuple(known for known in metadata.encryption_keys if _key_id(known) != update.key_id)
    return replace(metadata, encryption_keys=kept)


def _key_id(key: Any) -> Any:
    return key.get("key-id") if isinstance(key, Mapping) else None
