"""What makes of a copy the next one: updates for one commit, and the proof that nobody else has changed the copy since.

A copy says in its table properties of which table and version it is, with a hash of what was written. A commit of anybody else
changes what the hash is of.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from icekeep.commit.attempt import Attempt
from icekeep.errors import ConflictError, IcekeepError, UnsupportedError
from icekeep.spec.metadata import TableMetadata, format_metadata
from icekeep.spec.updates import (
    AddPartitionSpec,
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    RemovePartitionSpecs,
    RemovePartitionStatistics,
    RemoveProperties,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RemoveStatistics,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetPartitionStatistics,
    SetProperties,
    SetSnapshotRef,
    SetStatistics,
    Update,
    UpgradeFormatVersion,
    apply_updates,
)

OWN_PROPERTIES = "icekeep-copy."
"""What the names of the properties begin with that a copy has beside those of its source: not as policies' settings do."""

SOURCE_UUID = OWN_PROPERTIES + "source-uuid"
SOURCE_VERSION = OWN_PROPERTIES + "source-version"
SOURCE_PREFIX = OWN_PROPERTIES + "source-prefix"
TARGET_PREFIX = OWN_PROPERTIES + "target-prefix"
STATE = OWN_PROPERTIES + "state"


def state_of(metadata: TableMetadata) -> str:
    """A hash of what a commit may change of a copy, without what catalogs write down by themselves: times and logs."""
    own = {key: value for key, value in metadata.properties.items() if not key.startswith(OWN_PROPERTIES)}
    plain = replace(metadata, properties=own, metadata_log=(), snapshot_log=(), last_updated_ms=0, extra={})
    document = msgspec.json.decode(format_metadata(plain))
    return blake2b(msgspec.json.encode(document, order="sorted"), digest_size=16).hexdigest()


class Increment(msgspec.Struct, frozen=True):
    """A change: a copy becomes what is wanted, if nobody else has changed it."""

    wanted: TableMetadata

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if base.properties.get(SOURCE_VERSION) == self.wanted.properties[SOURCE_VERSION]:
            return ()
        if base.properties.get(STATE) != state_of(base):
            raise ConflictError("others have changed the copy meanwhile; it was left as it is")
        return increment_updates(base, self.wanted)


def increment_updates(base: TableMetadata, wanted: TableMetadata) -> tuple[Update, ...]:
    """The updates that make the wanted metadata of a copy, but for what a catalog writes by itself.

    Raises:
        UnsupportedError: no commit can do that: such as snapshots that had expired when the copy was made, and are back.
    """
    updates = [*_definitions(base, wanted), *_snapshots(base, wanted), *_statistics(base, wanted)]
    try:
        made = apply_updates(base, updates, now_ms=base.last_updated_ms)
    except IcekeepError as error:
        raise _not_by_commit(error.message) from error
    if problem := next((name for name in _KEPT if getattr(made, name) != getattr(wanted, name)), None):
        raise _not_by_commit(f"its {problem.replace('_', ' ')} would be other ones")
    # The counters of the copy are those that its own commits have led to.
    properties = {**wanted.properties, STATE: state_of(replace(made, properties=wanted.properties))}
    gone = tuple(sorted(base.properties.keys() - properties.keys()))
    return (*updates, SetProperties(properties), *([RemoveProperties(gone)] if gone else ()))


_KEPT = (
    "format_version",
    "location",
    "current_schema_id",
    "default_spec_id",
    "default_sort_order_id",
    "current_snapshot_id",
    "snapshots_by_id",
    "schemas_by_id",
    "specs_by_id",
    "refs",
)


def _not_by_commit(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"the copy cannot be updated by an increment: {why}; make a new copy, to another name or location"
    )


def _definitions(base: TableMetadata, wanted: TableMetadata) -> Iterator[Update]:
    if wanted.format_version != base.format_version:
        yield UpgradeFormatVersion(wanted.format_version)
    yield from (AddSchema(one) for one in wanted.schemas if one.schema_id not in base.schemas_by_id)
    if wanted.current_schema_id != base.current_schema_id:
        yield SetCurrentSchema(wanted.current_schema_id)
    yield from (AddPartitionSpec(one) for one in wanted.partition_specs if one.spec_id not in base.specs_by_id)
    if wanted.default_spec_id != base.default_spec_id:
        yield SetDefaultSpec(wanted.default_spec_id)
    known = {order.order_id for order in base.sort_orders}
    yield from (AddSortOrder(one) for one in wanted.sort_orders if one.order_id not in known)
    if wanted.default_sort_order_id != base.default_sort_order_id:
        yield SetDefaultSortOrder(wanted.default_sort_order_id)


def _snapshots(base: TableMetadata, wanted: TableMetadata) -> Iterator[Update]:
    new = [one for one in wanted.snapshots if one.snapshot_id not in base.snapshots_by_id]
    for snapshot in sorted(new, key=lambda one: (one.sequence_number, one.timestamp_ms)):
        yield AddSnapshot(snapshot)
    for name, ref in wanted.refs.items():
        if base.refs.get(name) != ref:
            yield SetSnapshotRef(name, ref)
    for name in base.refs:
        if name not in wanted.refs:
            yield RemoveSnapshotRef(name)
    if gone := tuple(one.snapshot_id for one in base.snapshots if one.snapshot_id not in wanted.snapshots_by_id):
        yield RemoveSnapshots(gone)
    if old := tuple(id_ for id_ in base.schemas_by_id if id_ not in wanted.schemas_by_id):
        yield RemoveSchemas(old)
    if old := tuple(id_ for id_ in base.specs_by_id if id_ not in wanted.specs_by_id):
        yield RemovePartitionSpecs(old)


def _statistics(base: TableMetadata, wanted: TableMetadata) -> Iterator[Update]:
    def by_id(files: Sequence[Any]) -> Mapping[int, Any]:
        return {file.snapshot_id: file for file in files}

    for name, put, remove in (
        ("statistics", SetStatistics, RemoveStatistics),
        ("partition_statistics", SetPartitionStatistics, RemovePartitionStatistics),
    ):
        old, new = by_id(getattr(base, name)), by_id(getattr(wanted, name))
        yield from (put(file) for id_, file in new.items() if old.get(id_) != file)
        # Those of a snapshot that goes, go with it.
        yield from (remove(id_) for id_ in old if id_ not in new and id_ in wanted.snapshots_by_id)
