"""Names and types of the columns of entry DataFrames: said once.

Columns carry the spec's names. `partition` is the partition tuple as bytes (`PartitionCodec`): equal tuples of one spec have
equal bytes. `manifest_path` is where the entry was read. `pruned` says which step dropped the entry, null if none did.
"""

import pyarrow as pa

ENTRIES = pa.schema(
    [
        pa.field("manifest_path", pa.string(), nullable=False),
        pa.field("status", pa.int32(), nullable=False),
        pa.field("snapshot_id", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("file_sequence_number", pa.int64()),
        pa.field("content", pa.int32(), nullable=False),
        pa.field("file_path", pa.string(), nullable=False),
        pa.field("file_format", pa.string(), nullable=False),
        pa.field("spec_id", pa.int32(), nullable=False),
        pa.field("partition", pa.binary(), nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("file_size_in_bytes", pa.int64(), nullable=False),
        pa.field("split_offsets", pa.list_(pa.int64())),
        pa.field("sort_order_id", pa.int32()),
        pa.field("first_row_id", pa.int64()),
        pa.field("key_metadata", pa.binary()),
        pa.field("pruned", pa.string()),
    ]
)

PRUNED_BY_PARTITION = "partition"
PRUNED_BY_METRICS = "metrics"
