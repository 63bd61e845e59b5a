"""What is known of the table before its data files are read, and goes to each task."""

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, first_line
from icekeep.maintenance.checking.entries.reading import decode_task
from icekeep.maintenance.checking.subject import Listed, Subject
from icekeep.planning.entries import DecodeTask
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import NameMapping, Schema, name_mapping_of
from icekeep.spec.sorting import SortOrder
from icekeep.spec.types import StructType

ENTRY_COLUMNS = (
    "spec_id",
    "partition",
    "file_path",
    "file_format",
    "record_count",
    "file_size_in_bytes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
    "key_metadata",
    "split_offsets",
    "sort_order_id",
)
"""What is read of entries."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and its manifests by number.

    Attributes:
        since: the oldest snapshot that has a manifest; `ages` its place among the snapshots, `schema_ids` its schema.
        whole: of which classes each fault is kept.
    """

    decode: DecodeTask
    manifest_paths: tuple[str, ...]
    since: tuple[int, ...]
    ages: NDArray[np.int32]
    schema_ids: NDArray[np.int32]
    schemas: Mapping[int, Schema]
    specs: Mapping[int, PartitionSpec]
    partitions: Mapping[int, StructType]
    sort_orders: Mapping[int, SortOrder]
    name_mapping: NameMapping | None
    whole: frozenset[int]


def known_of(subject: Subject, listed: Listed) -> Known:
    """What tasks must know; a name mapping that cannot be read is a gap."""
    table, metadata = subject.table, subject.table.metadata
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(subject.snapshots)}
    by_snapshot = {snapshot.snapshot_id: snapshot.schema_id for snapshot in subject.snapshots}
    data = [manifest for manifest in listed.manifests if manifest.content is ManifestContent.DATA]

    def schema_id(snapshot_id: int) -> int:
        found = by_snapshot.get(snapshot_id)
        return metadata.current_schema_id if found is None or found not in metadata.schemas_by_id else found

    try:
        mapping = name_mapping_of(metadata.properties)
    except InvalidTableError as error:
        subject.tally.gap("columns of data files without field ids", first_line(error))
        mapping = ()
    spec_ids = {manifest.partition_spec_id for manifest in data}
    return Known(
        decode=decode_task(table, data, ENTRY_COLUMNS),
        manifest_paths=tuple(manifest.manifest_path for manifest in listed.manifests),
        since=listed.since,
        ages=np.array([places.get(one, 0) for one in listed.since], np.int32),
        schema_ids=np.array([schema_id(one) for one in listed.since], np.int32),
        schemas=metadata.schemas_by_id,
        specs=metadata.specs_by_id,
        partitions={number: metadata.partition_type(number) for number in spec_ids},
        sort_orders={order.order_id: order for order in metadata.sort_orders},
        name_mapping=mapping,
        whole=subject.tally.whole,
    )
