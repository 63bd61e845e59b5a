"""Names and types of the columns of entries: said once, for Arrow batches in tasks and for DataFrames.

Columns carry the spec's names. Maps go from field id to a count, a size or a bound's bytes. What a manifest leaves to be
inherited is filled in.

Batches of records as a manifest stores them -> batches of entries: `spec.manifests.decode` for whole columns.

Only what is plainly right is accepted. Everything else is left to that module, which knows what to say about it.

Manifests and manifest lists that had to be read by fastavro, entry by entry, ten to twenty times slower: counted and told.

DataFusion's reader is the fast way. Where it fails, or what it gives is in doubt, the slow way gives the entries or the exact
error; a release of it that always failed would show in nothing but time. Each process counts for itself, and what a Spark
task counts comes to the driver with the task's report (`spark.tasks.run_tasks`).

One manifest -> Arrow record batches of its entries, in order.

What an entry means is said once, in `spec.manifests.decode`; here the same is worked out for whole batches that DataFusion
decoded, found by field id through the file's own schema. Whatever looks wrong there, or is beyond DataFusion, is read
again by fastavro, entry by entry: that gives the entries, or the exact error.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.commit.manifests import refuse_encrypted_manifest
from icekeep.errors import InvalidTableError
from icekeep.events import SILENT, Listener, Warned
from icekeep.formats.machine import datafusion_package
from icekeep.planning.decoder import (
    BATCH_RECORDS,
    Layout,
    NotReadError,
    flat_schema,
    partition_array,
    partition_arrow_type,
    partition_of_stored,
    read_batches,
    read_together,
)
from icekeep.planning.memory import Columns, KnownColumns, copied
from icekeep.spec.manifests.read import open_manifest, read_manifest, record_field, stored_fields
from icekeep.spec.manifests.structs import (
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
from icekeep.spec.types import StructType
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

`sole_path` is what `reach.sole_path` finds in the bounds of a position delete file without `referenced_data_file`, as
UTF-8; null where there is none.
"""


_REQUIRED = ("status", "file_path", "file_format", "record_count", "file_size_in_bytes")
_STATUSES = [int(status) for status in Status]
_CONTENTS = [int(content) for content in FileContent]
_MAX_LONG = (1 << 63) - 1


class StoredColumns:
    """What depends on the Avro schema of manifests, on their partition type and on the columns that are wanted."""

    def __init__(self, schema_json: bytes, partition: StructType, wanted: Collection[str]) -> None:
        """Prepare for manifests with a schema, given as JSON; `wanted` are names of `STORED`, and "partition".

        Raises:
            NotReadError: records of this schema need a closer look.
        """
        try:
            self._prepare(msgspec.json.decode(schema_json), partition, wanted)
        except (KeyError, TypeError, ValueError) as error:
            raise NotReadError(str(error)) from error

    def _prepare(self, schema: Any, partition: StructType, wanted: Collection[str]) -> None:
        data_file, file_schema = record_field(schema, DATA_FILE_FIELD_ID)
        _, partition_schema = record_field(file_schema, PARTITION_FIELD_ID)
        stored_partition = stored_fields(partition_schema)
        if any(field.field_id not in stored_partition for field in partition.fields):
            raise NotReadError("it lacks a partition field")
        self._partition = partition
        self._partition_names = [stored_partition[f.field_id]["name"] for f in partition.fields]
        self._has_partition = "partition" in wanted
        # Beside what is wanted, what tells whether an entry is right.
        self._wanted = {*wanted, *_REQUIRED, "content", "sequence_number"}
        needed = self._wanted if self._partition_names else self._wanted - {"partition"}
        flat, entry, file = flat_schema(schema, data_file)
        known = [(f, stored_fields(schema), entry) for f in ENTRY_FIELDS]
        known += [(f, stored_fields(file_schema), file) for f in DATA_FILE_FIELDS]
        self._names = {
            f.name: names[stored[f.field_id]["name"]]
            for f, stored, names in known
            if f.field_id in stored and f.name in needed
        }
        self.layout = Layout(flat, tuple(self._names.values()))

    def of(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The wanted columns as entries store them, and those that must be there; raises `NotReadError`."""
        stored = {name: batch[flat_name] for name, flat_name in self._names.items()}
        columns = {
            field.name: _column(stored.get(field.name), field, batch.num_rows)
            for field in STORED
            if field.name in self._wanted
        }
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


class StoredEntries:
    """Makes entries of what manifests of one schema, spec and content store, with what they leave to be inherited."""

    def __init__(self, columns: StoredColumns, manifests: Sequence[ManifestFile], wanted: pa.Schema) -> None:
        """Prepare for the batches of some manifests, in their order; `wanted` are the columns to make."""
        self._columns_of, self._manifests, self._schema = columns, manifests, wanted
        self._next_row_ids = [manifest.first_row_id for manifest in manifests]
        self._counts = np.zeros((len(manifests), len(Status)), dtype=np.int64)

    def of(self, batch: pa.RecordBatch, lengths: Sequence[int]) -> pa.RecordBatch:
        """The wanted columns of the entries that are stored as `batch`, `lengths` of them in each of the manifests.

        Raises:
            NotReadError: something about them needs a closer look.
        """
        try:
            columns = self._columns(batch, lengths)
            return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise NotReadError(str(error)) from error

    def _columns(self, batch: pa.RecordBatch, lengths: Sequence[int]) -> dict[str, pa.Array]:
        columns = self._columns_of.of(batch)
        manifest_numbers = np.repeat(np.arange(len(lengths)), lengths)
        status = columns["status"].to_numpy()
        self._check_kinds(manifest_numbers, status, columns["content"].to_numpy())
        self._inherit(columns, pa.array(manifest_numbers), pa.array(status == Status.ADDED))
        if "first_row_id" in columns:
            columns["first_row_id"] = self._row_ids(columns, status != Status.DELETED, lengths)
        if "manifest_path" in self._schema.names:
            columns["manifest_path"] = self._of_manifests(pa.array(manifest_numbers), "manifest_path", pa.string())
        return columns

    def _of_manifests(self, manifest_numbers: pa.Array, name: str, type_: pa.DataType) -> pa.Array:
        """For each entry what the row of its manifest says."""
        return pa.array([getattr(manifest, name) for manifest in self._manifests], type_).take(manifest_numbers)

    def _check_kinds(self, manifest_numbers: np.ndarray, status: np.ndarray, content: np.ndarray) -> None:
        if not np.isin(status, _STATUSES).all() or not np.isin(content, _CONTENTS).all():
            raise NotReadError("an entry has a status or content that the spec does not know")
        if ((content == FileContent.DATA) != (self._manifests[0].content is ManifestContent.DATA)).any():
            raise NotReadError("a file is not of the kind that the manifest tracks")
        counted = np.bincount(manifest_numbers * len(Status) + status, minlength=self._counts.size)
        self._counts += counted.reshape(self._counts.shape)

    def _inherit(self, columns: dict[str, pa.Array], manifest_numbers: pa.Array, is_added: pa.Array) -> None:
        """Fill in what entries leave null (spec, "Sequence Number Inheritance")."""
        number = self._of_manifests(manifest_numbers, "sequence_number", pa.int64())
        inherits = pc.or_(is_added, pc.equal(number, 0))
        unnumbered = pc.and_not(pc.is_null(columns["sequence_number"]), inherits)
        if pc.any(unnumbered).as_py():
            raise NotReadError("an entry that is not added has no sequence number")
        columns["sequence_number"] = pc.coalesce(columns["sequence_number"], number)
        if "snapshot_id" in columns:
            added_by = self._of_manifests(manifest_numbers, "added_snapshot_id", pa.int64())
            columns["snapshot_id"] = pc.coalesce(columns["snapshot_id"], added_by)
        if "file_sequence_number" in columns:
            inherited = pc.if_else(inherits, number, pa.scalar(None, pa.int64()))
            columns["file_sequence_number"] = pc.coalesce(columns["file_sequence_number"], inherited)

    def _row_ids(self, columns: dict[str, pa.Array], is_live: np.ndarray, lengths: Sequence[int]) -> pa.Array:
        """First row ids as `row_lineage.RowIdInheritance` gives them, manifest by manifest."""
        stored = columns["first_row_id"]
        if self._manifests[0].content is not ManifestContent.DATA:
            return pa.nulls(len(stored), pa.int64())
        records, parts, start = columns["record_count"].to_numpy(), [], 0
        for number, length in enumerate(lengths):
            end = start + length
            parts.append(self._row_ids_of(number, stored.slice(start, length), is_live[start:end], records[start:end]))
            start = end
        return pa.concat_arrays(parts)

    def _row_ids_of(self, number: int, stored: pa.Array, is_live: np.ndarray, records: np.ndarray) -> pa.Array:
        next_id = self._next_row_ids[number]
        if next_id is None:
            return pa.nulls(len(stored), pa.int64())
        inherits = is_live & stored.is_null().to_numpy(zero_copy_only=False)
        rows = np.where(inherits, records, 0)
        if len(rows) and (rows.min() < 0 or int(rows.max()) * len(rows) + next_id > _MAX_LONG):
            raise NotReadError("row ids may be out of range")
        after = next_id + np.cumsum(rows)
        self._next_row_ids[number] = int(after[-1]) if len(rows) else next_id
        return pc.if_else(pa.array(inherits), pa.array(after - rows), stored)

    def check_counts(self) -> None:
        """See, after the last entry, that there were as many as the manifest list says; raises as `of`."""
        for manifest, counts in zip(self._manifests, self._counts.tolist(), strict=True):
            recorded = {
                Status.ADDED: manifest.added_files_count,
                Status.EXISTING: manifest.existing_files_count,
                Status.DELETED: manifest.deleted_files_count,
            }
            if any(count not in (None, counts[status]) for status, count in recorded.items()):
                raise NotReadError("it holds other counts of entries than its manifest list says")


def _column(raw: pa.Array | None, field: pa.Field, length: int) -> pa.Array:
    if raw is None:
        return pa.nulls(length, field.type)
    if pa.types.is_map(field.type):
        return _map(raw, field.type)
    if pa.types.is_integer(field.type) and not pa.types.is_integer(raw.type):
        raise NotReadError(f"field {field.name!r} is stored as {raw.type}")
    return raw.cast(field.type)


def _map(pairs: pa.ListArray, type_: pa.MapType) -> pa.MapArray:
    """A list of pairs seen as a map: both are laid out alike."""
    records = pairs.values
    keys, values = (records.field(i).cast(part) for i, part in enumerate((type_.key_type, type_.item_type)))
    if records.null_count or keys.null_count or values.null_count:
        raise NotReadError("a map has a key or a value that is null")
    _require_different(keys.to_numpy(), pairs.offsets.to_numpy())
    entries = pa.StructArray.from_arrays([keys, values], fields=[type_.key_field, type_.item_field])
    return pa.Array.from_buffers(
        type_, len(pairs), pairs.buffers()[:2], null_count=pairs.null_count, offset=pairs.offset, children=[entries]
    )


def _require_different(keys: np.ndarray, offsets: np.ndarray) -> None:
    """See that no map has a key twice; writers mostly keep them in order."""
    rises = np.diff(keys) > 0
    starts = offsets[(offsets > 0) & (offsets < len(keys))]
    rises[starts - 1] = True
    if rises.all():
        return
    rows = np.searchsorted(offsets, np.arange(len(keys)), side="right")
    pairs = (rows.astype(np.int64) << 32) + keys
    if len(np.unique(pairs)) < len(pairs):
        raise NotReadError("a map has a key twice")


class SlowReads(msgspec.Struct, frozen=True):
    """How many files were read in the slow way; `example` is one line about one of them."""

    count: int = 0
    example: str = ""

    def __add__(self, other: "SlowReads") -> "SlowReads":
        return SlowReads(self.count + other.count, self.example or other.example)


class _Tally:
    """What this process has counted, and who is told of the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: Listener = SILENT
        self._has_told = False
        self.all = SlowReads()

    def add(self, some: SlowReads) -> None:
        if not some.count:
            return
        with self._lock:
            self.all += some
            tells, self._has_told = not self._has_told, True
            listener = self._listener
        if tells:
            listener.on(Warned(f"{some.example}; such files are read about ten times slower"))

    def listen(self, listener: Listener) -> Listener:
        with self._lock:
            before, self._listener, self._has_told = self._listener, listener, False
        return before


_TALLY = _Tally()


def note_slow_read(location: str, reason: Exception | str) -> None:
    """Count a file that is read in the slow way; the first is told to the listener of `warning_of_slow_reads`."""
    add_slow_reads(SlowReads(1, f"{location!r} is read by fastavro, as DataFusion's reader fails: {_line(reason)}"))


def add_slow_reads(some: SlowReads) -> None:
    """Take in what another process has counted."""
    _TALLY.add(some)


def slow_reads() -> SlowReads:
    """All that this process has counted; the difference of two counts is what was read between them."""
    return _TALLY.all


def slow_reads_since(count: int) -> SlowReads:
    """What this process has read in the slow way since it had counted so many."""
    found = slow_reads()
    return SlowReads(found.count - count, found.example) if found.count > count else SlowReads()


@contextmanager
def warning_of_slow_reads(listener: Listener) -> Iterator[None]:
    """Tell a listener of the first file that is read in the slow way while the block lasts."""
    before = _TALLY.listen(listener)
    try:
        yield
    finally:
        _TALLY.listen(before)


def _line(reason: Exception | str) -> str:
    return " ".join(str(reason).split()) or "it does not say why"


_ENTRY_ATTRIBUTES = frozenset(ManifestEntry.__struct_fields__)


class ManifestDecoder(StrEnum):
    """What decodes the Avro files that manifests are."""

    DATAFUSION = "datafusion"
    FASTAVRO = "fastavro"


def chosen_decoder() -> tuple[ManifestDecoder, str]:
    """The fastest decoder that is installed here, and the reason in words."""
    try:
        datafusion = datafusion_package()
    except ModuleNotFoundError as error:
        if error.name != "datafusion":
            return ManifestDecoder.FASTAVRO, f"package datafusion cannot be imported ({error})"
        return ManifestDecoder.FASTAVRO, "package datafusion is not installed"
    except ImportError as error:
        return ManifestDecoder.FASTAVRO, f"package datafusion cannot be imported ({error})"
    return ManifestDecoder.DATAFUSION, f"package datafusion {datafusion.__version__} is installed"


def batch_schema(columns: Collection[str], partition: StructType) -> pa.Schema:
    """The wanted columns: the path of the manifest, then those of `STORED`, and last the partition."""
    fields = [field for field in (ENTRIES.field("manifest_path"), *STORED) if field.name in columns]
    if "partition" in columns:
        fields.append(pa.field("partition", partition_arrow_type(partition), nullable=False))
    return pa.schema(fields)


def read_manifest_batches(
    manifest: ManifestFile,
    partition: StructType,
    storage: Storage,
    columns: Collection[str],
    *,
    decoder: ManifestDecoder,
    batch_records: int = BATCH_RECORDS,
    slow: Callable[[str, Exception], None] = note_slow_read,
) -> Iterator[pa.RecordBatch]:
    """Every entry of a manifest, deleted ones too, with inherited ids and numbers filled in.

    A file that is not whole may show only after its last entry: nothing may be concluded from batches before that.

    Args:
        manifest: its row of the manifest list.
        partition: the partition type of its spec.
        storage: where it is.
        columns: which columns of `entry_schema.STORED` are wanted, "manifest_path" and "partition".
        decoder: fastavro serves as well where DataFusion cannot.
        batch_records: a batch has about so many entries.
        slow: is told the location, and why, where fastavro serves instead.

    Raises:
        InvalidTableError: as `spec.manifests.decode.read_manifest`; or a number is beyond what its column can hold.
        MissingFileError: there is no such manifest.
        UnsupportedError: the manifest is encrypted.
    """
    location = manifest.manifest_path
    refuse_encrypted_manifest(manifest)
    data = storage.read(location)
    schema = batch_schema(columns, partition)
    read_count, reason = 0, None
    if decoder is ManifestDecoder.DATAFUSION:
        try:
            header, _ = open_manifest(data, manifest)
            known = StoredColumns(header.metadata["avro.schema"], partition, columns)
            stored = StoredEntries(known, [manifest], schema)
            for batch, _ in read_batches(data, header, known.layout, batch_records):
                found = stored.of(batch, [batch.num_rows])
                yield found
                read_count += found.num_rows
            stored.check_counts()
            return
        except NotReadError as error:
            reason = error
    _, entries = read_manifest(data, manifest, partition)
    rest = islice(entries, read_count, None)
    while chunk := [*islice(rest, batch_records)]:
        yield batch_of_entries(chunk, schema, partition, location)
    if reason is not None:
        # It is whole, so it was not the file that DataFusion failed on.
        slow(location, reason)


def read_manifests(
    manifests: Sequence[ManifestFile],
    partition: StructType,
    storage: Storage,
    columns: Collection[str],
    *,
    decoder: ManifestDecoder,
    slow: Callable[[str, Exception], None] = note_slow_read,
) -> Iterator[pa.RecordBatch]:
    """The same of several manifests of one spec and content, in order; small ones are decoded together.

    What there is to do for each batch, whatever its size, is as much as for hundreds of entries.
    """
    # Of thousands of manifests most have the same schema, to the letter.
    known: dict[bytes, StoredColumns] = {}
    for bundle in bundles(manifests):
        batch = None
        if len(bundle) > 1 and decoder is ManifestDecoder.DATAFUSION:
            batch = _read_together(bundle, partition, storage, columns, known)
        if batch is not None:
            yield batch
            continue
        for manifest in bundle:
            yield from read_manifest_batches(manifest, partition, storage, columns, decoder=decoder, slow=slow)


def read_through(
    known: KnownColumns,
    manifests: Sequence[ManifestFile],
    partition: StructType,
    storage: Storage,
    columns: Columns,
    *,
    decoder: ManifestDecoder,
    slow: Callable[[str, Exception], None] = note_slow_read,
) -> Iterator[pa.RecordBatch]:
    """As `read_manifests`, but what is known is not read, and what is read is known from then on.

    What had to be read in the slow way is read so each time, and told.
    """
    told: list[str] = []

    def slow_here(location: str, error: Exception) -> None:
        told.append(location)
        slow(location, error)

    for stretch in known.stretches(manifests, partition, columns):
        if stretch.batches is not None:
            yield from stretch.batches
            continue
        for bundle in bundles(stretch.manifests):
            held = []
            for whole in read_manifests(bundle, partition, storage, columns, decoder=decoder, slow=slow_here):
                batch = copied(whole, columns)
                held.append(batch)
                yield batch
            if held and not told:
                _keep(known, bundle, partition, columns, held)
            told.clear()


def _keep(
    known: KnownColumns,
    bundle: Sequence[ManifestFile],
    partition: StructType,
    columns: Columns,
    batches: list[pa.RecordBatch],
) -> None:
    """Keep what was read of manifests, all to the end; of those that go together their lists say how many entries they have."""
    if len(bundle) == 1:
        lengths = [sum(batch.num_rows for batch in batches)]
    else:
        lengths = [(one.live_files_count or 0) + (one.deleted_files_count or 0) for one in bundle]
        batches = batches if len(batches) == 1 else [pa.concat_batches(batches)]
    known.keep(bundle, lengths, partition, columns, batches)


def bundles(manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Neighbours that together are about a batch; each that does not say how many entries it has, or is encrypted, alone."""
    bundle: list[ManifestFile] = []
    room = BATCH_RECORDS
    for manifest in manifests:
        counts = (manifest.live_files_count, manifest.deleted_files_count)
        count = BATCH_RECORDS if None in counts or manifest.key_metadata is not None else sum(c or 0 for c in counts)
        if bundle and count > room:
            yield bundle
            bundle, room = [], BATCH_RECORDS
        bundle.append(manifest)
        room -= count
    if bundle:
        yield bundle


def _read_together(
    bundle: Sequence[ManifestFile],
    partition: StructType,
    storage: Storage,
    columns: Collection[str],
    known: dict[bytes, StoredColumns],
) -> pa.RecordBatch | None:
    """The entries of small manifests as one batch; `None` where that is not possible, or one of them needs a closer look."""
    files = []
    for manifest in bundle:
        data = storage.read(manifest.manifest_path)
        files.append((data, open_manifest(data, manifest)[0]))
    first, *others = {header.metadata["avro.schema"] for _, header in files}
    if others:
        return None
    try:
        if first not in known:
            known[first] = StoredColumns(first, partition, columns)
        stored = StoredEntries(known[first], bundle, batch_schema(columns, partition))
        (batch, _), lengths = read_together(files, known[first].layout)
        found = stored.of(batch, lengths)
        stored.check_counts()
    except NotReadError:
        # One by one they give their entries, or the error that is theirs.
        return None
    return found


def batch_of_entries(
    entries: list[ManifestEntry], schema: pa.Schema, partition: StructType, location: str
) -> pa.RecordBatch:
    """Entries of one manifest as a batch of `batch_schema`; raises `InvalidTableError` where a value fits no column."""
    try:
        arrays = [_reader_column(entries, field, partition, location) for field in schema]
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InvalidTableError(f"cannot read {location!r}: {reason}", location=location) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _reader_column(entries: list[ManifestEntry], field: pa.Field, partition: StructType, location: str) -> pa.Array:
    if field.name == "manifest_path":
        return pa.repeat(location, len(entries))
    if field.name == "partition":
        return partition_array((entry.data_file.partition for entry in entries), partition)
    if field.name in _ENTRY_ATTRIBUTES:
        values: list[Any] = [getattr(entry, field.name) for entry in entries]
    else:
        values = [getattr(entry.data_file, field.name) for entry in entries]
    if pa.types.is_map(field.type):
        # A null says as much about a column as no entry for it.
        values = [None if v is None else [pair for pair in v.items() if pair[1] is not None] for v in values]
    return pa.array(values, field.type)
