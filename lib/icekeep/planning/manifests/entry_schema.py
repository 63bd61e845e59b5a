"""Names and types of the columns of entries: said once, for Arrow batches in tasks and for DataFrames.

Columns carry the spec's names. Maps go from field id to a count, a size or a bound's bytes. What a manifest leaves to be
inherited is filled in.
"""

import pyarrow as pa

_COUNTS = pa.map_(pa.int32(), pa.field("value", pa.int64(), nullable=False))
_BOUNDS = pa.map_(pa.int32(), pa.field("value", pa.binary(), nullable=False))

METRICS = pa.schema(
    [
        pa.field("column_sizes", _COUNTS),
        pa.field("value_counts", _COUNTS),
        pa.field("null_value_counts", _COUNTS),
        pa.field("nan_value_counts", _COUNTS),
        pa.field("lower_bounds", _BOUNDS),
        pa.field("upper_bounds", _BOUNDS),
    ]
)
"""What is known of a file's columns; wide, so that it is decoded only where somebody asks."""

STORED = pa.schema(
    [
        pa.field("status", pa.int32(), nullable=False),
        pa.field("snapshot_id", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("file_sequence_number", pa.int64()),
        pa.field("content", pa.int32(), nullable=False),
        pa.field("file_path", pa.string(), nullable=False),
        pa.field("file_format", pa.string(), nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("file_size_in_bytes", pa.int64(), nullable=False),
        *METRICS,
        pa.field("key_metadata", pa.binary()),
        pa.field("split_offsets", pa.list_(pa.int64())),
        pa.field("equality_ids", pa.list_(pa.int32())),
        pa.field("sort_order_id", pa.int32()),
        pa.field("first_row_id", pa.int64()),
        pa.field("referenced_data_file", pa.string()),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size_in_bytes", pa.int64()),
    ]
)
"""Columns of an entry that do not depend on the partition spec of its manifest.

A batch that is decoded may have `partition` beside them: a struct with the fields of the manifest's spec, each named by its
field id (`"1000"`), of the Arrow type that `formats.arrow.schema` gives to the partition field's type.
"""

ENTRIES = pa.schema(
    [
        pa.field("manifest_path", pa.string(), nullable=False),
        pa.field("spec_id", pa.int32(), nullable=False),
        pa.field("partition", pa.binary(), nullable=False),
        *STORED,
    ]
)
"""Columns of entries of several specs in one DataFrame.

`partition` is the partition tuple as bytes (`PartitionCodec`): equal tuples of one spec have equal bytes. `manifest_path` is
where the entry was read.
"""

_OF_DELETES = (
    "content",
    "file_path",
    "file_format",
    "spec_id",
    "partition",
    "sequence_number",
    "record_count",
    "file_size_in_bytes",
    "equality_ids",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
    "key_metadata",
)

MATCHED_COLUMNS = frozenset({*_OF_DELETES, "lower_bounds", "upper_bounds"})
"""Columns of `ENTRIES` that are asked of delete files where it is worked out which data files they reach."""

SOLE_PATH = pa.field("sole_path", pa.binary())

REACHING_DELETES = pa.list_(
    pa.field("element", pa.struct([*map(ENTRIES.field, _OF_DELETES), SOLE_PATH]), nullable=False)
)
"""The column `deletes` of a plan: what a reader must apply to a data file, in a fixed order.

`sole_path` is what `applicability.sole_path` finds in the bounds of a position delete file without `referenced_data_file`, as
UTF-8; null where there is none.
"""
