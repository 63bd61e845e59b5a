"""The partition statistics file (spec, "Partition Statistics File"): rows of one partition each, written and read.

Partition tuples are those of the unified partition type: the fields of all specs of a table, ascending by field id. A file is
read by field ids, so that one which was written before the table got another spec, or another format version, is read as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.errors import InvalidTableError, UnsupportedError, table_at
from icekeep.formats.arrow.schema import arrow_field, arrow_schema, field_id
from icekeep.formats.options import WriteOptions
from icekeep.formats.reader import SourceFile, open_reader, read_file
from icekeep.formats.writer import DataFileWriter
from icekeep.planning.manifests import distinct_partitions, partition_array
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import UnknownTransform, Void
from icekeep.spec.types import INT, LONG, NestedField, StructType
from icekeep.spec.values import sort_key
from icekeep.storage.base import Storage

COUNTS = {
    "data_record_count": NestedField(field_id=3, name="data_record_count", type=LONG, required=True),
    "data_file_count": NestedField(field_id=4, name="data_file_count", type=INT, required=True),
    "total_data_file_size_in_bytes": NestedField(
        field_id=5, name="total_data_file_size_in_bytes", type=LONG, required=True
    ),
    "position_delete_record_count": NestedField(field_id=6, name="position_delete_record_count", type=LONG),
    "position_delete_file_count": NestedField(field_id=7, name="position_delete_file_count", type=INT),
    "equality_delete_record_count": NestedField(field_id=8, name="equality_delete_record_count", type=LONG),
    "equality_delete_file_count": NestedField(field_id=9, name="equality_delete_file_count", type=INT),
    "dv_count": NestedField(field_id=13, name="dv_count", type=INT),
}
"""What is counted, by name."""

_PARTITION_ID = 1
_SPEC_ID = NestedField(field_id=2, name="spec_id", type=INT, required=True)
_REST = (
    NestedField(field_id=10, name="total_record_count", type=LONG),
    NestedField(field_id=11, name="last_updated_at", type=LONG),
    NestedField(field_id=12, name="last_updated_snapshot_id", type=LONG),
)
_VECTORS_SINCE = 3


class PartitionStats(msgspec.Struct, kw_only=True):
    """A row.

    Attributes:
        partition: a tuple of the unified partition type, as spec values.
        counts: in the order of `COUNTS`.
        total_record_count: rows that deletes leave; `None` where that is not known.
        last_updated_at: of the snapshot that changed the partition last, in epoch milliseconds; `None` where none is known.
        last_updated_snapshot_id: its id.
    """

    spec_id: int
    partition: tuple[Any, ...]
    counts: list[int]
    total_record_count: int | None = None
    last_updated_at: int | None = None
    last_updated_snapshot_id: int | None = None

    def update_snapshot(self, at: int | None, snapshot_id: int | None) -> None:
        """Note that a snapshot changed the partition, if that is later than the last change that is known."""
        if at is not None and (self.last_updated_at is None or self.last_updated_at < at):
            self.last_updated_at, self.last_updated_snapshot_id = at, snapshot_id


def unified_partition_type(metadata: TableMetadata) -> StructType:
    """The fields of all specs of a table, ascending by id, with the names of the newest; a void field has the type of the others.

    Raises:
        UnsupportedError: a spec has a transform that is not known.
        InvalidTableError: the type of a field cannot be known.
    """
    fields: dict[int, NestedField] = {}
    void: set[int] = set()
    for spec_id in sorted(metadata.specs_by_id, reverse=True):
        spec = metadata.specs_by_id[spec_id]
        for field, typed in zip(spec.fields, metadata.partition_type(spec_id).fields, strict=True):
            if isinstance(field.transform, UnknownTransform):
                raise UnsupportedError(
                    f"partition field {field.name!r} of {table_at(metadata.location)} has the transform "
                    f"'{field.transform}', which is not known: its partitions cannot be counted",
                    transform=str(field.transform),
                )
            known = fields.get(field.field_id)
            if known is None:
                fields[field.field_id] = typed
                void |= {field.field_id} if isinstance(field.transform, Void) else set()
            elif field.field_id in void and not isinstance(field.transform, Void):
                fields[field.field_id] = msgspec.structs.replace(known, type=typed.type)
                void.remove(field.field_id)
    return StructType(tuple(fields[field_id] for field_id in sorted(fields)))


def statistics_schema(partition: StructType, format_version: int) -> Schema:
    """The columns of the file; `dv_count` and the counts of deletes are required since format version 3."""
    is_v3 = format_version >= _VECTORS_SINCE
    counts = [
        msgspec.structs.replace(field, required=field.required or is_v3)
        for field in COUNTS.values()
        if is_v3 or field.name != "dv_count"
    ]
    vectors = [field for field in counts if field.name == "dv_count"]
    counts = [field for field in counts if field.name != "dv_count"]
    whole = NestedField(field_id=_PARTITION_ID, name="partition", type=partition, required=True)
    return Schema(fields=(whole, _SPEC_ID, *counts, *_REST, *vectors))


def write_partition_stats(
    storage: Storage, location: str, rows: Iterable[PartitionStats], partition: StructType, format_version: int
) -> int:
    """Write rows as one Parquet file, sorted by partition with nulls first; returns its size in bytes.

    If anything fails no file is left.
    """
    types = [field.type for field in partition.fields]
    rows = sorted(rows, key=lambda row: (sort_key(types, row.partition), row.spec_id))
    schema = statistics_schema(partition, format_version)
    stored = partition_array((row.partition for row in rows), partition)
    fields = [arrow_field(field) for field in partition.fields]
    columns: dict[str, Any] = {
        "partition": pa.StructArray.from_arrays(stored.flatten(), fields=fields),
        "spec_id": [row.spec_id for row in rows],
        **{name: [row.counts[number] for row in rows] for number, name in enumerate(COUNTS)},
        **{field.name: [getattr(row, field.name) for row in rows] for field in _REST},
    }
    arrow = arrow_schema(schema)
    arrays = [
        columns[field.name] if field.name == "partition" else pa.array(columns[field.name], field.type)
        for field in arrow
    ]
    # A file of some columns is small, whatever the table's own files are.
    with DataFileWriter(storage, schema, WriteOptions(target_file_size_bytes=1 << 40), lambda: location) as writer:
        writer.write(pa.Table.from_arrays(arrays, schema=arrow))
        [file] = writer.close()
    return file.file_size_in_bytes


def read_partition_stats(
    storage: Storage, location: str, partition: StructType, specs: Mapping[int, StructType]
) -> list[PartitionStats]:
    """The rows of a file, whichever engine wrote it.

    Args:
        partition: the unified partition type.
        specs: the partition type of each spec.

    Raises:
        InvalidTableError: the file is damaged, or lacks a count, or a field of the spec of one of its rows.
        MissingFileError: there is none.
        UnsupportedError: its name says no format of data files.
    """
    file_format = location.rpartition(".")[2].upper()
    # All is optional: a file of format version 2 has no vectors.
    optional = [
        msgspec.structs.replace(field, required=False) for field in statistics_schema(partition, _VECTORS_SINCE).fields
    ]
    source = SourceFile(location=location, file_format=file_format, noun="partition statistics file")
    with open_reader(storage, location, file_format, source.noun) as reader:
        whole = [field for field in reader.schema if field_id(field) == _PARTITION_ID]
        stored = {field_id(field) for one in whole if pa.types.is_struct(one.type) for field in one.type}
    found: list[PartitionStats] = []
    for table in read_file(storage, source, Schema(fields=tuple(optional))):
        found += _rows(table.combine_chunks(), location)
    for spec_id in {row.spec_id for row in found}:
        lacking = (
            [field.name for field in specs[spec_id].fields if field.field_id not in stored]
            if spec_id in specs
            else ["all"]
        )
        if lacking:
            # Iceberg Java leaves out fields whose column was dropped: it is not known which partitions its rows are of.
            raise InvalidTableError(
                f"partition statistics file {location!r} lacks partition field {lacking[0]!r} of spec {spec_id}",
                location=location,
            )
    return found


def _rows(table: pa.Table, location: str) -> Iterable[PartitionStats]:
    if not table.num_rows:
        return
    partition = table["partition"].combine_chunks()
    if isinstance(partition, pa.ChunkedArray):
        partition = pa.concat_arrays(partition.chunks)
    required = ["spec_id", *(name for name, field in COUNTS.items() if field.required)]
    for name in required:
        if table[name].null_count:
            raise InvalidTableError(
                f"partition statistics file {location!r} lacks {name} of a partition", location=location
            )
    tuples, codes = distinct_partitions(partition)
    counts: Sequence[np.ndarray] = [table[name].fill_null(0).to_numpy() for name in COUNTS]
    rest = [table[name].to_pylist() for name in ("last_updated_at", "last_updated_snapshot_id")]
    spec_ids = table["spec_id"].to_pylist()
    for number, (code, spec_id, at, snapshot_id) in enumerate(zip(codes.tolist(), spec_ids, *rest, strict=True)):
        yield PartitionStats(
            spec_id=spec_id,
            partition=tuples[code],
            counts=[int(column[number]) for column in counts],
            last_updated_at=at,
            last_updated_snapshot_id=snapshot_id,
        )
