"""Manifests -> Arrow record batches of their entries, in order: the one way in which plans read manifests.

Columns have the spec's names, and are declared here once, for batches in tasks and for DataFrames. Maps go from field id to a
count, a size or a bound's bytes. Inherited values are filled in. A partition is a struct with a field for each field of its
spec, named by its field id (`"1000"`), of the type that `formats.arrow.schema.arrow_type` gives; a UUID is Arrow's extension
type. In `ENTRIES`, which has entries of several specs, it is the tuple as bytes.

`spec.manifests.read` defines what an entry means; here the same is done for whole batches that DataFusion decoded, their fields
looked up by field id in the file's own schema. Whatever looks wrong, or is beyond DataFusion, is read again by
`spec.manifests.read`, entry by entry, which gives the entries, or the exact error.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.commit.manifests import refuse_encrypted_manifest
from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.schema import arrow_type
from icekeep.formats.deletes.apply import comparable_bits
from icekeep.planning.decoder import (
    BATCH_RECORDS,
    DecodedBlocks,
    Layout,
    ManifestDecoder,
    NotReadError,
    doubtful,
    flat_schema,
    note_slow_read,
    read_batches,
    read_together,
)
from icekeep.planning.memory import Columns, RememberedStorage, copied
from icekeep.spec.avro import AvroHeader, from_avro, shown_text
from icekeep.spec.manifests.read import open_manifest, read_manifest, record_field, stored_fields
from icekeep.spec.manifests.structs import (
    COUNTS,
    DATA_FILE_FIELD_ID,
    DATA_FILE_FIELDS,
    ENTRY_FIELDS,
    PARTITION_FIELD_ID,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
)
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import MAX_LONG, OPAQUE, STRING, NestedField, PrimitiveType, StructType
from icekeep.spec.values import INTEGER_WIDTHS
from icekeep.storage.base import Storage

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
"""Metrics of a file's columns; wide, so that they are decoded only on request."""

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
"""Columns of an entry that do not depend on the partition spec of its manifest; a decoded batch may also have `partition`."""

ENTRIES = pa.schema(
    [
        pa.field("manifest_path", pa.string(), nullable=False),
        pa.field("spec_id", pa.int32(), nullable=False),
        pa.field("partition", pa.binary(), nullable=False),
        *STORED,
    ]
)
"""Columns of entries of several specs in one DataFrame; `partition` is the tuple as bytes (`PartitionCodec`)."""

_DELETE_COLUMNS = (
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

MATCHED_COLUMNS = frozenset({*_DELETE_COLUMNS, "lower_bounds", "upper_bounds"})
"""Columns of `ENTRIES` of delete files that decide which data files they apply to."""

SOLE_PATH = pa.field("sole_path", pa.binary())

REACHING_DELETES = pa.list_(
    pa.field("element", pa.struct([*map(ENTRIES.field, _DELETE_COLUMNS), SOLE_PATH]), nullable=False)
)
"""The column `deletes` of a plan: the deletes that a reader must apply to a data file, in a fixed order.

`sole_path`, in UTF-8 or null, is that of `reach.sole_path`: from the bounds of a position delete file without
`referenced_data_file`.
"""

_MAX_CODE = 1 << 62
_SHOWN = (STRING.name, OPAQUE.name)
"""Types that are text in Arrow; a value of another type, such as that of an unknown transform, is shown as text."""

_REQUIRED = ("status", "file_path", "file_format", "record_count", "file_size_in_bytes")


def batch_schema(columns: Collection[str], partition: StructType) -> pa.Schema:
    """The requested columns: the path of the manifest, then those of `STORED`, and last the partition."""
    fields = [field for field in (ENTRIES.field("manifest_path"), *STORED) if field.name in columns]
    if "partition" in columns:
        fields.append(pa.field("partition", partition_arrow_type(partition), nullable=False))
    return pa.schema(fields)


def read_manifests(
    manifests: Sequence[ManifestFile],
    partition: StructType,
    storage: Storage,
    columns: Collection[str],
    *,
    decoder: ManifestDecoder,
    slow: Callable[[str, Exception], None] = note_slow_read,
    batch_records: int = BATCH_RECORDS,
) -> Iterator[pa.RecordBatch]:
    """Every entry of manifests of one spec and content, deleted ones too, in order; small manifests are decoded together.

    Nothing may be concluded from batches before the last one, since damage may show only after the last entry.

    Args:
        columns: of `STORED`, "manifest_path" and "partition".
        slow: called with the location of a manifest that fastavro must read, and the reason.
        batch_records: a batch of a large manifest has about this many entries.
    """
    reader = ManifestBatchReader(partition, storage, columns, decoder, slow=slow, batch_records=batch_records)
    for bundle in bundles(manifests):
        yield from reader.read(bundle)


def read_through(
    remembered: RememberedStorage,
    manifests: Sequence[ManifestFile],
    partition: StructType,
    storage: Storage,
    columns: Columns,
    *,
    decoder: ManifestDecoder,
    slow: Callable[[str, Exception], None] = note_slow_read,
) -> Iterator[pa.RecordBatch]:
    """As `read_manifests`, through a memory; manifests that fastavro must read are not kept, so that each read reports them."""
    slow_locations: list[str] = []

    def slow_here(location: str, error: Exception) -> None:
        slow_locations.append(location)
        slow(location, error)

    reader = ManifestBatchReader(partition, storage, columns, decoder, slow=slow_here)
    memory, catalog = remembered.memory, remembered.catalog
    for stretch in memory.stretches(catalog, manifests, partition, columns):
        if stretch.batches is not None:
            yield from stretch.batches
            continue
        for bundle in bundles(stretch.manifests):
            held = []
            for decoded in reader.read(bundle):
                # Any buffer of a batch keeps alive all that DataFusion decoded together, which is eleven times as large.
                arrays = [copied(decoded[name], columns[name]) for name in decoded.schema.names]
                batch = pa.RecordBatch.from_arrays(arrays, schema=decoded.schema)
                held.append(batch)
                yield batch
            if held and not slow_locations:
                if len(bundle) == 1:
                    lengths = [sum(batch.num_rows for batch in held)]
                else:
                    lengths = [manifest.entries_count or 0 for manifest in bundle]
                    held = held if len(held) == 1 else [pa.concat_batches(held)]
                memory.keep(catalog, bundle, lengths, partition, columns, held)
            slow_locations.clear()


def bundles(manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Neighbours of about a batch together; manifests that are encrypted, or whose entries are not counted, are alone.

    The fixed cost of a batch is that of hundreds of entries.
    """
    bundle: list[ManifestFile] = []
    room = BATCH_RECORDS
    for manifest in manifests:
        count = None if manifest.key_metadata is not None else manifest.entries_count
        count = BATCH_RECORDS if count is None else count
        if bundle and count > room:
            yield bundle
            bundle, room = [], BATCH_RECORDS
        bundle.append(manifest)
        room -= count
    if bundle:
        yield bundle


class EntryRun(NamedTuple):
    """`length` consecutive entries of a manifest from number `first` on."""

    manifest: ManifestFile
    first: int
    length: int


class ManifestBatchReader:
    """Reads manifests of one spec and content as batches of `schema`.

    A subclass may make other batches in `of_decoded` and `of_entries`, which must agree for equal entries.
    """

    def __init__(
        self,
        partition: StructType,
        storage: Storage,
        columns: Collection[str],
        decoder: ManifestDecoder,
        *,
        slow: Callable[[str, Exception], None] = note_slow_read,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        self.partition, self.schema = partition, batch_schema(columns, partition)
        self._storage, self._decoder, self._slow, self._batch_records = storage, decoder, slow, batch_records
        # Most manifests of a table have the same schema, byte for byte.
        self._layouts: dict[bytes, EntryLayout | NotReadError] = {}

    def read(self, bundle: Sequence[ManifestFile]) -> Iterator[pa.RecordBatch]:
        """Decode some neighbours, together if possible."""
        files = []
        for manifest in bundle:
            refuse_encrypted_manifest(manifest)
            data = self._storage.read(manifest.manifest_path)
            files.append((data, open_manifest(data, manifest)[0]))
        if len(bundle) > 1 and self._decoder is ManifestDecoder.DATAFUSION:
            try:
                batch = self._together(bundle, files)
                files.clear()
                yield batch
                return
            except NotReadError:
                # One by one they give their entries, or their own error.
                pass
        for manifest, (data, header) in zip(bundle, files, strict=True):
            yield from self._alone(manifest, data, header)

    def layout(self, schema_json: bytes) -> "EntryLayout":
        """The layout of records of an Avro schema; raises `NotReadError` if fastavro must decode them."""
        return EntryLayout(schema_json, self.partition, self.schema.names)

    def of_decoded(
        self, entries: pa.RecordBatch, decoded: DecodedBlocks, layout: "EntryLayout", runs: Sequence[EntryRun]
    ) -> pa.RecordBatch:
        """The result for entries that DataFusion decoded; raises `NotReadError` if fastavro must decode them."""
        return entries

    def of_entries(self, entries: list[ManifestEntry], run: EntryRun) -> pa.RecordBatch:
        return batch_of_entries(entries, self.schema, self.partition, run.manifest.manifest_path)

    def _layout(self, header: AvroHeader) -> "EntryLayout":
        schema_json = header.metadata["avro.schema"]
        if schema_json not in self._layouts:
            try:
                self._layouts[schema_json] = self.layout(schema_json)
            except NotReadError as error:
                self._layouts[schema_json] = error
        layout = self._layouts[schema_json]
        if isinstance(layout, NotReadError):
            raise NotReadError(str(layout)) from layout
        return layout

    def _together(self, bundle: Sequence[ManifestFile], files: Sequence[tuple[bytes, AvroHeader]]) -> pa.RecordBatch:
        layouts = [self._layout(header) for _, header in files]
        if any(layout is not layouts[0] for layout in layouts):
            raise NotReadError("they are of several schemas")
        decoded, lengths = read_together(files, layouts[0].layout)
        inheritance = _Inheritance(bundle)
        entries = self._entries(decoded, layouts[0], inheritance, lengths)
        runs = [EntryRun(manifest, 0, length) for manifest, length in zip(bundle, lengths, strict=True)]
        batch = self.of_decoded(entries, decoded, layouts[0], runs)
        inheritance.check_counts()
        return batch

    def _alone(self, manifest: ManifestFile, data: bytes, header: AvroHeader) -> Iterator[pa.RecordBatch]:
        read_count, reason = 0, None
        if self._decoder is ManifestDecoder.DATAFUSION:
            try:
                layout, inheritance = self._layout(header), _Inheritance([manifest])
                for decoded in read_batches(data, header, layout.layout, self._batch_records):
                    count = decoded.batch.num_rows
                    entries = self._entries(decoded, layout, inheritance, [count])
                    yield self.of_decoded(entries, decoded, layout, [EntryRun(manifest, read_count, count)])
                    read_count += count
                inheritance.check_counts()
                return
            except NotReadError as error:
                reason = error
        rest = islice(read_manifest(data, manifest, self.partition)[1], read_count, None)
        while chunk := [*islice(rest, self._batch_records)]:
            yield self.of_entries(chunk, EntryRun(manifest, read_count, len(chunk)))
            read_count += len(chunk)
        if reason is not None:
            # The file is sound, so DataFusion's reader is at fault.
            self._slow(manifest.manifest_path, reason)

    def _entries(
        self, decoded: DecodedBlocks, layout: "EntryLayout", inheritance: "_Inheritance", lengths: Sequence[int]
    ) -> pa.RecordBatch:
        """The entries of decoded records, `lengths` of them in each of the manifests."""
        with doubtful():
            columns = layout.columns(decoded.batch)
            inheritance.fill_in(columns, lengths, with_path="manifest_path" in self.schema.names)
            return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


class EntryLayout:
    """Where the columns of entries are in records of one Avro schema; DataFusion decodes `layout`."""

    def __init__(self, schema_json: bytes, partition: StructType, columns: Collection[str]) -> None:
        """Raises `NotReadError` if fastavro must decode records of the schema, which is given as JSON."""
        # The columns that tell whether an entry is sound are needed, too.
        self._columns = {*columns, *_REQUIRED, "content", "sequence_number"}
        self._partition, self._has_partition = partition, "partition" in columns
        with doubtful():
            schema = msgspec.json.decode(schema_json)
            data_file, file_schema = record_field(schema, DATA_FILE_FIELD_ID)
            _, partition_schema = record_field(file_schema, PARTITION_FIELD_ID)
            stored_partition = stored_fields(partition_schema)
            if any(field.field_id not in stored_partition for field in partition.fields):
                raise NotReadError("it lacks a partition field")
            self._partition_names = [stored_partition[f.field_id]["name"] for f in partition.fields]
            needed = self._columns if self._partition_names else self._columns - {"partition"}
            flat, entry_names, file_names = flat_schema(schema, data_file)
            fields = [(f, stored_fields(schema), entry_names) for f in ENTRY_FIELDS]
            fields += [(f, stored_fields(file_schema), file_names) for f in DATA_FILE_FIELDS]
            self._names = {
                f.name: flat_names[stored[f.field_id]["name"]]
                for f, stored, flat_names in fields
                if f.field_id in stored and f.name in needed
            }
            self.layout = Layout(flat, tuple(self._names.values()))

    def columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The requested and the required columns as entries store them; raises `NotReadError` if one is unsound."""
        stored = {name: batch[flat_name] for name, flat_name in self._names.items()}
        columns = {}
        for field in (field for field in STORED if field.name in self._columns):
            raw = stored.get(field.name)
            if raw is None:
                columns[field.name] = pa.nulls(batch.num_rows, field.type)
            elif pa.types.is_map(field.type):
                columns[field.name] = _map_of_pairs(raw, field.type)
            elif pa.types.is_integer(field.type) and not pa.types.is_integer(raw.type):
                raise NotReadError(f"field {field.name!r} is stored as {raw.type}")
            else:
                columns[field.name] = raw.cast(field.type)
        for name in _REQUIRED:
            if columns[name].null_count:
                raise NotReadError(f"an entry lacks {name!r}")
        columns["content"] = pc.fill_null(columns["content"], 0)
        if self._has_partition:
            raw = stored.get("partition")
            if raw is not None and raw.null_count:
                raise NotReadError("an entry has no partition")
            columns["partition"] = partition_of_stored(raw, self._partition_names, self._partition, batch.num_rows)
        return columns


class _Inheritance:
    """Fills in what the entries of some manifests, in order, inherit from the rows of these; counts the entries."""

    def __init__(self, manifests: Sequence[ManifestFile]) -> None:
        self._manifests = manifests
        self._next_row_ids = [manifest.first_row_id for manifest in manifests]
        self._counts = np.zeros((len(manifests), len(Status)), dtype=np.int64)

    def fill_in(self, columns: dict[str, pa.Array], lengths: Sequence[int], *, with_path: bool) -> None:
        """Complete the columns of the next entries, `lengths` of them in each manifest; raises `NotReadError` if unsound."""
        numbers = np.repeat(np.arange(len(lengths)), lengths)
        status, content = columns["status"].to_numpy(), columns["content"].to_numpy()
        if not np.isin(status, [*Status]).all() or not np.isin(content, [*FileContent]).all():
            raise NotReadError("an entry has a status or content that the spec does not know")
        if ((content == FileContent.DATA) != (self._manifests[0].content is ManifestContent.DATA)).any():
            raise NotReadError("a file is not of the kind that the manifest tracks")
        counted = np.bincount(numbers * len(Status) + status, minlength=self._counts.size)
        self._counts += counted.reshape(self._counts.shape)
        self._fill_in_numbers(columns, pa.array(numbers), pa.array(status == Status.ADDED))
        if "first_row_id" in columns:
            columns["first_row_id"] = self._row_ids(columns, status != Status.DELETED, lengths)
        if with_path:
            columns["manifest_path"] = self._of_manifests(pa.array(numbers), "manifest_path", pa.string())

    def check_counts(self) -> None:
        """Raise `NotReadError` if, after the last entry, the manifest list counts other entries."""
        for manifest, counts in zip(self._manifests, self._counts.tolist(), strict=True):
            if any(getattr(manifest, name) not in (None, counts[status]) for status, (name, _) in COUNTS.items()):
                raise NotReadError("it holds other counts of entries than its manifest list says")

    def _of_manifests(self, numbers: pa.Array, name: str, type_: pa.DataType) -> pa.Array:
        return pa.array([getattr(manifest, name) for manifest in self._manifests], type_).take(numbers)

    def _fill_in_numbers(self, columns: dict[str, pa.Array], numbers: pa.Array, is_added: pa.Array) -> None:
        """Spec, "Sequence Number Inheritance"."""
        sequence_number = self._of_manifests(numbers, "sequence_number", pa.int64())
        inherits = pc.or_(is_added, pc.equal(sequence_number, 0))
        if pc.any(pc.and_not(pc.is_null(columns["sequence_number"]), inherits)).as_py():
            raise NotReadError("an entry that is not added has no sequence number")
        columns["sequence_number"] = pc.coalesce(columns["sequence_number"], sequence_number)
        if "snapshot_id" in columns:
            added_by = self._of_manifests(numbers, "added_snapshot_id", pa.int64())
            columns["snapshot_id"] = pc.coalesce(columns["snapshot_id"], added_by)
        if "file_sequence_number" in columns:
            inherited = pc.if_else(inherits, sequence_number, pa.scalar(None, pa.int64()))
            columns["file_sequence_number"] = pc.coalesce(columns["file_sequence_number"], inherited)

    def _row_ids(self, columns: dict[str, pa.Array], is_live: np.ndarray, lengths: Sequence[int]) -> pa.Array:
        """First row ids as `structs.RowIdInheritance` gives them, manifest by manifest."""
        stored, records = columns["first_row_id"], columns["record_count"].to_numpy()
        if self._manifests[0].content is not ManifestContent.DATA:
            return pa.nulls(len(stored), pa.int64())
        inherits = is_live & stored.is_null().to_numpy(zero_copy_only=False)
        parts, start = [], 0
        for number, length in enumerate(lengths):
            part, start = slice(start, start + length), start + length
            next_id = self._next_row_ids[number]
            if next_id is None:
                parts.append(pa.nulls(length, pa.int64()))
                continue
            rows = np.where(inherits[part], records[part], 0)
            if length and (rows.min() < 0 or int(rows.max()) * length + next_id > MAX_LONG):
                raise NotReadError("row ids may be out of range")
            after = next_id + np.cumsum(rows)
            self._next_row_ids[number] = int(after[-1]) if length else next_id
            parts.append(pc.if_else(pa.array(inherits[part]), pa.array(after - rows), stored[part]))
        return pa.concat_arrays(parts)


def _map_of_pairs(pairs: pa.ListArray, type_: pa.MapType) -> pa.MapArray:
    """View a list of pairs as a map, which has the same layout."""
    records = pairs.values
    keys, values = (records.field(i).cast(part) for i, part in enumerate((type_.key_type, type_.item_type)))
    if records.null_count or keys.null_count or values.null_count:
        raise NotReadError("a map has a key or a value that is null")
    numbers, offsets = keys.to_numpy(), pairs.offsets.to_numpy()
    # Most writers sort the keys of a map.
    rises = np.diff(numbers) > 0
    starts = offsets[(offsets > 0) & (offsets < len(numbers))]
    rises[starts - 1] = True
    if not rises.all():
        rows = np.searchsorted(offsets, np.arange(len(numbers)), side="right")
        distinct = np.unique((rows.astype(np.int64) << 32) + numbers)
        if len(distinct) < len(numbers):
            raise NotReadError("a map has a key twice")
    entries = pa.StructArray.from_arrays([keys, values], fields=[type_.key_field, type_.item_field])
    return pa.Array.from_buffers(
        type_, len(pairs), pairs.buffers()[:2], null_count=pairs.null_count, offset=pairs.offset, children=[entries]
    )


def map_positions(maps: pa.MapArray, key: int) -> np.ndarray:
    """The index of a key's item in `maps.items` for each map, the last if it is repeated, -1 if there is none."""
    offsets = maps.offsets.to_numpy()
    first, after = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    places = np.flatnonzero(maps.keys.to_numpy()[first:after] == key) + first
    positions = np.full(len(maps), -1, np.int64)
    positions[np.searchsorted(offsets, places, side="right") - 1] = places
    return np.where(np.asarray(maps.is_valid()), positions, -1) if maps.null_count else positions


def batch_of_entries(
    entries: list[ManifestEntry], schema: pa.Schema, partition: StructType, location: str
) -> pa.RecordBatch:
    """Entries of one manifest as a batch of `batch_schema`; raises `InvalidTableError` if a value does not fit its column."""
    arrays = []
    try:
        for field in schema:
            if field.name == "manifest_path":
                arrays.append(pa.repeat(location, len(entries)))
                continue
            if field.name == "partition":
                arrays.append(partition_array((entry.data_file.partition for entry in entries), partition))
                continue
            is_of_entry = field.name in ManifestEntry.__struct_fields__
            values: list[Any] = [getattr(e if is_of_entry else e.data_file, field.name) for e in entries]
            if pa.types.is_map(field.type):
                # A null metric means the same as a missing one.
                values = [None if v is None else [pair for pair in v.items() if pair[1] is not None] for v in values]
            arrays.append(pa.array(values, field.type))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InvalidTableError(f"cannot read {location!r}: {reason}", location=location) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def partition_arrow_type(partition: StructType) -> pa.StructType:
    return pa.struct([pa.field(str(field.field_id), _value_type(field)) for field in partition.fields])


def _value_type(field: NestedField) -> pa.DataType:
    """Decimals have the most digits that there are: `truncate` takes -99.9 to -100.0, which has one more than its type."""
    type_ = arrow_type(field.type)
    return pa.decimal128(38, type_.scale) if pa.types.is_decimal(type_) else type_


def partition_array(tuples: Iterable[tuple[Any, ...]], partition: StructType) -> pa.StructArray:
    """Tuples of spec values in Arrow; raises ArrowException, OverflowError or ValueError if one does not fit its type."""
    rows = [*tuples]
    columns = zip(*rows, strict=True) if rows else ((),) * len(partition.fields)
    arrays = [_array(values, field) for values, field in zip(columns, partition.fields, strict=False)]
    return _struct(arrays, len(rows), partition)


def partition_of_stored(
    stored: pa.StructArray | None, names: list[str], partition: StructType, length: int
) -> pa.Array:
    """The partitions of records that were read without logical types, whose fields have `names` in `stored`.

    `stored` is null if the spec has no fields; raises `NotReadError` if a value is stored as another type.
    """
    if stored is None:
        return _struct([], length, partition)
    pairs = zip(names, partition.fields, strict=True)
    return _struct([_of_stored(stored.field(name), field) for name, field in pairs], length, partition)


def distinct_partitions(partition: pa.StructArray) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """The distinct tuples of a column of partitions as spec values, in the order of their rows, and the index of each row's.

    Floating point values are compared by their bits, as in `spec.reach.partition_key`: all NaN are equal, and -0.0 is not 0.0.
    """
    codes, distinct = np.zeros(len(partition), dtype=np.int64), 1
    columns = [comparable_bits(partition.field(i)) for i in range(partition.type.num_fields)]
    for column in columns:
        coded = column.dictionary_encode(null_encoding="encode")
        if distinct * max(1, len(coded.dictionary)) > _MAX_CODE:
            codes, distinct = _compact(codes)
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
        distinct *= max(1, len(coded.dictionary))
    codes, distinct = _compact(codes)
    first_rows = np.zeros(distinct, dtype=np.int64)
    first_rows[codes[::-1]] = np.arange(len(partition) - 1, -1, -1)
    values = []
    for column, field in zip(columns, partition.type, strict=True):
        firsts = column.take(pa.array(first_rows))
        if pa.types.is_floating(field.type):
            firsts = firsts.view(field.type)
        elif field.type.equals(pa.uuid()):
            firsts = pa.ExtensionArray.from_storage(field.type, firsts)
        elif pa.types.is_temporal(field.type):
            firsts = firsts.view(pa.int32() if field.type.bit_width == 32 else pa.int64())
        values.append(firsts.to_pylist())
    return [*zip(*values, strict=True)] if values else [()] * distinct, codes


def partition_keys(partition: pa.StructArray, codec: PartitionCodec) -> pa.Array:
    """Partition tuples as bytes, each distinct one encoded once."""
    tuples, codes = distinct_partitions(partition)
    return pa.array([codec.encode(values) for values in tuples], pa.binary()).take(pa.array(codes))


def _struct(arrays: list[pa.Array], length: int, partition: StructType) -> pa.StructArray:
    type_ = partition_arrow_type(partition)
    if not arrays:
        return pa.Array.from_buffers(type_, length, [None], null_count=0)
    return pa.StructArray.from_arrays(arrays, fields=[*type_])


def _array(values: Iterable[Any], field: NestedField) -> pa.Array:
    name = field.type.name if isinstance(field.type, PrimitiveType) else ""
    if name in _SHOWN:
        values = [shown_text(value) for value in values]
    if name == "uuid":
        storage = pa.array([None if value is None else value.bytes for value in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(pa.uuid(), storage)
    return pa.array(values, _value_type(field))


def _of_stored(raw: pa.Array, field: NestedField) -> pa.Array:
    target, kind = _value_type(field), raw.type
    name = field.type.name if isinstance(field.type, PrimitiveType) else ""
    is_bytes = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    if raw.null_count == len(raw):
        return pa.nulls(len(raw), target)
    if kind.equals(target):
        return raw
    if name in _SHOWN or (name == "decimal" and is_bytes):
        convert = shown_text if name in _SHOWN else from_avro(field.type)
        coded = raw.dictionary_encode()
        values = [None if value is None else convert(value) for value in coded.dictionary.to_pylist()]
        return _array(values, field).take(coded.indices)
    if is_bytes and (name == "uuid" or pa.types.is_fixed_size_binary(target)):
        width = 16 if name == "uuid" else target.byte_width
        if pc.any(pc.not_equal(pc.binary_length(raw), width)).as_py():
            raise NotReadError(f"a value of {width} bytes is stored in another length")
        fixed = raw.cast(pa.binary()).cast(pa.binary(width))
        return pa.ExtensionArray.from_storage(target, fixed) if name == "uuid" else fixed
    if pa.types.is_binary(target) and is_bytes:
        return raw.cast(target)
    if pa.types.is_floating(target) and pa.types.is_floating(kind):
        return raw.cast(target, safe=False)
    if pa.types.is_integer(kind) and name in INTEGER_WIDTHS:
        return raw.cast(pa.int32() if target.bit_width == 32 else pa.int64()).cast(target)
    raise NotReadError(f"a value of type {field.type} is stored as {kind}")


def _compact(codes: np.ndarray) -> tuple[np.ndarray, int]:
    """The codes renumbered in the order of their rows, and the number of distinct ones."""
    coded = pa.array(codes).dictionary_encode()
    return coded.indices.to_numpy().astype(np.int64), len(coded.dictionary)
