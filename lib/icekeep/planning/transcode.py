"""Manifests -> the records of their live entries as existing ones, each with its sort key and what the new manifest counts.

The records fit into any new manifest: they are shuffled, sorted and written unchanged. Most of a record is copied byte for byte,
whichever engine wrote it. Only the status and inherited fields are encoded again, in columns.

Avro records have no lengths. But the length of a value follows from the decoded value if its writer used the shortest encoding,
as all do: then the lengths of all records add up to that of their block. No other encoding is shorter, so a block with the right
sum holds records of exactly these lengths, and is cut without being parsed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepError, NotFoundError, UnsupportedError, UsageError, argument
from icekeep.planning.decoder import DecodedBlocks, Layout, ManifestDecoder, NotReadError, doubtful, is_empty_record
from icekeep.planning.entries import ManifestsTask
from icekeep.planning.manifests import (
    EntryLayout,
    EntryRun,
    ManifestBatchReader,
    batch_of_entries,
    bundles,
    distinct_partitions,
    map_positions,
)
from icekeep.spec.avro import BLOCK_BYTES, Packer, avro_schema, without_logical_types
from icekeep.spec.manifests.read import stored_fields
from icekeep.spec.manifests.structs import DATA_FILE_FIELD_ID, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, PartitionCodec, manifest_packer
from icekeep.spec.schema import Schema, meant_column
from icekeep.spec.transforms import Identity
from icekeep.spec.types import StructType, Type
from icekeep.spec.values import java_order, sort_key, value_from_bytes
from icekeep.storage.base import Storage

Numbers: TypeAlias = NDArray[np.int64]

_FIXED_LENGTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_STATUS, _CONTENT, _BLOCK_SIZE = 0, 134, 105
_EXISTING, _NULL, _VALUE = b"\0", b"\0", b"\2"
_ABSENT = {_CONTENT: b"\0", _BLOCK_SIZE: b"\x80\x80\x80\x40"}
"""The values of required fields that manifests of another version do not have: data, 64 MB."""

INHERITED = {1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number", 142: "first_row_id"}
"""Fields, by id, that a stored entry may inherit: they are encoded from columns of these names."""

_MAX_BYTES = (1 << 31) - 1
_ISAL_LEVEL = 3


class _Copied(NamedTuple):
    """Neighbouring fields of the stored record, by the indices of the first and the last."""

    first: int
    last: int


_Piece: TypeAlias = _Copied | bytes | str
"""Copied fields, bytes that are the same in all records, or the name of an inherited column."""


class RecordLayout(EntryLayout):
    """Converts records of one Avro schema to records of another."""

    def __init__(self, stored_json: bytes, encoder: EntryEncoder, columns: Collection[str] = ()) -> None:
        """From the schema of manifests, as JSON, to that of `encoder`; raises `NotReadError` if records must be decoded."""
        super().__init__(stored_json, encoder.partition, columns)
        with doubtful():
            flat = msgspec.json.decode(self.layout.schema)["fields"]
            self._types = [field["type"] for field in flat]
            self.layout = Layout(self.layout.schema, tuple(field["name"] for field in flat))
            stored = _flattened(msgspec.json.decode(stored_json))
            target = _flattened(avro_schema(encoder.struct, "manifest_entry"))
            self._pieces = _pieces(stored, target)
            targets = dict(target)
            pairs = zip(self.layout.names, stored, strict=True)
            self._narrowed = [name for name, (field_id, type_) in pairs if _narrows(type_, targets.get(field_id))]

    def records(self, decoded: DecodedBlocks, inherited: pa.RecordBatch, rows: Numbers) -> pa.BinaryArray:
        """The entries `rows` of some blocks as records; `inherited` has the filled in columns of `INHERITED` of all entries.

        Raises `NotReadError` if a block does not use the shortest encoding.
        """
        stored, blocks = decoded
        with doubtful():
            for name in self._narrowed:
                stored[name].values.cast(pa.int32())
        lengths = [encoded_lengths(t, stored[name]) for t, name in zip(self._types, self.layout.names, strict=True)]
        payload = pa.py_buffer(b"".join(data for _, data in blocks))
        if payload.size > _MAX_BYTES:
            raise NotReadError("its blocks are more than Arrow's offsets reach")
        total = np.sum(lengths, axis=0)
        ends = np.concatenate(([0], np.cumsum(total)))
        counts = np.cumsum([count for count, _ in blocks])
        if counts[-1] != len(total) or (ends[counts] != np.cumsum([len(data) for _, data in blocks])).any():
            raise NotReadError("a block has another length than its records should have")
        starts = [ends[:-1]]
        for length in lengths:
            starts.append(starts[-1] + length)
        parts: list[Any] = []
        for piece in self._pieces:
            match piece:
                case _Copied(first, last):
                    # Every second value between all starts and ends.
                    offsets = np.empty(2 * len(total), np.int32)
                    offsets[0::2], offsets[1::2] = starts[first], starts[last + 1]
                    buffers = [None, pa.py_buffer(offsets), payload]
                    values = pa.Array.from_buffers(pa.binary(), max(0, len(offsets) - 1), buffers)
                    parts.append(values.take(pa.array(rows * 2)))
                case bytes():
                    parts.append(pa.scalar(piece, pa.binary()))
                case _:
                    parts.append(optional_longs(inherited[piece].take(pa.array(rows))))
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _flattened(entry: Any) -> list[tuple[int, Any]]:
    """Ids and plain schemas of the fields of an entry, with those of its file in their place, in encoded order."""
    fields: list[dict[str, Any]] = []
    for field in without_logical_types(entry)["fields"]:
        if field["field-id"] == DATA_FILE_FIELD_ID:
            fields += stored_fields(field["type"]).values()
        else:
            fields.append(field)
    return [(field["field-id"], field["type"]) for field in fields if not is_empty_record(field["type"])]


def _pieces(stored: Sequence[tuple[int, Any]], target: Iterable[tuple[int, Any]]) -> list[_Piece]:
    """The pieces of the target's fields, in their order; neighbours are joined."""
    joined_pieces: list[_Piece] = []
    for piece in _single_pieces(stored, target):
        match joined_pieces[-1:], piece:
            case [[bytes() as before], bytes()]:
                joined_pieces[-1] = before + piece
            case [[_Copied(first, last)], _Copied(index, _)] if last + 1 == index:
                joined_pieces[-1] = _Copied(first, index)
            case _:
                joined_pieces.append(piece)
    return joined_pieces


def _single_pieces(stored: Sequence[tuple[int, Any]], target: Iterable[tuple[int, Any]]) -> Iterator[_Piece]:
    indices = {field_id: index for index, (field_id, _) in enumerate(stored)}
    for field_id, type_ in target:
        index = indices.get(field_id)
        if field_id == _STATUS:
            yield _EXISTING
        elif field_id in INHERITED:
            yield INHERITED[field_id]
        elif index is not None:
            if not _is_alike(stored[index][1], type_):
                if not isinstance(type_, list) or not _is_alike(stored[index][1], type_[1]):
                    raise NotReadError("a field is stored in another type than it is written in")
                yield _VALUE
            yield _Copied(index, index)
        elif field_id in _ABSENT or isinstance(type_, list):
            yield _ABSENT.get(field_id, _NULL)
        else:
            raise NotReadError(f"it lacks the field with id {field_id}")


def _is_alike(stored: Any, target: Any) -> bool:
    """Whether values of both Avro schemas have the same bytes and the same meaning."""
    if isinstance(stored, list) or isinstance(target, list):
        both = isinstance(stored, list) and isinstance(target, list) and len(stored) == len(target)
        return both and all(_is_alike(a, b) for a, b in zip(stored, target, strict=True))
    kinds = [schema["type"] if isinstance(schema, dict) else schema for schema in (stored, target)]
    if kinds[0] != kinds[1]:
        return kinds == ["int", "long"]
    match kinds[0] if isinstance(stored, dict) and isinstance(target, dict) else None:
        case "fixed":
            return bool(stored["size"] == target["size"])
        case "array":
            return _is_alike(stored["items"], target["items"]) or _narrows(stored, target)
        case "record":
            pairs = [*zip(stored["fields"], target["fields"], strict=False)]
            are_alike = all(a["field-id"] == b["field-id"] and _is_alike(a["type"], b["type"]) for a, b in pairs)
            return are_alike and len(stored["fields"]) == len(target["fields"])
    return True


def _narrows(stored: Any, target: Any) -> bool:
    """Whether an array of longs becomes one of ints, as PyIceberg stores equality ids: the same bytes, if they fit."""
    arrays = [schema[1] if isinstance(schema, list) else schema for schema in (stored, target)]
    if not all(isinstance(array, dict) and array["type"] == "array" for array in arrays):
        return False
    return [array["items"] for array in arrays] == ["long", "int"]


def encoded_lengths(schema: Any, column: pa.Array) -> Numbers:
    """The encoded length in bytes of each value of a column as DataFusion decodes it, without dictionaries or logical types.

    The Avro schema must have no references to named types.
    """
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(schema) != 2 or len(branches) != 1:
            raise NotReadError("a field may be of several types")
        lengths = encoded_lengths(branches[0], column)
        return (np.where(np.asarray(column.is_valid()), lengths, 0) if column.null_count else lengths) + 1
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return encoded_lengths(kind, column)
    match kind:
        case "null" | "boolean" | "float" | "double" | "fixed":
            return np.full(len(column), schema["size"] if kind == "fixed" else _FIXED_LENGTHS[kind], np.int64)
        case "int" | "long" if pa.types.is_integer(column.type):
            return varint_lengths(_stored_numbers(column, column.type.bit_width // 8)).astype(np.int64)
        case "bytes" | "string" if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            sizes: Numbers = np.diff(value_offsets(column))
            return sizes + varint_lengths(sizes)
        case "record" if pa.types.is_struct(column.type):
            fields = [field for field in schema["fields"] if not is_empty_record(field["type"])]
            if column.type.num_fields == len(fields):
                parts = (encoded_lengths(field["type"], column.field(i)) for i, field in enumerate(fields))
                return sum(parts, np.zeros(len(column), np.int64))
        case "array" if pa.types.is_list(column.type):
            # One block with its count, unless it is empty, and an end marker.
            offsets = value_offsets(column)
            counts = np.diff(offsets)
            items = (
                column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(counts) else column.values
            )
            ends = np.concatenate(([0], np.cumsum(encoded_lengths(schema["items"], items))))
            firsts = offsets - (offsets[0] if len(counts) else 0)
            return np.where(counts > 0, varint_lengths(counts), 0) + (ends[firsts[1:]] - ends[firsts[:-1]]) + 1
    raise NotReadError(f"values of Avro's type {kind!r} that were decoded as {column.type} are not measured")


def varint_lengths(numbers: Numbers) -> NDArray[np.uint8]:
    """The lengths in bytes of numbers in Avro's encoding: seven bits a byte, the sign in the lowest bit."""
    folded = _folded(numbers)
    lengths = np.ones(len(folded), np.uint8)
    most = int(folded.max()) if len(folded) else 0
    for more in range(1, 10):
        if most < 1 << (7 * more):
            break
        lengths += folded >= np.uint64(1 << (7 * more))
    return lengths


def optional_longs(numbers: pa.Array) -> pa.BinaryArray:
    """Avro's encoding of optional numbers."""
    valid = np.asarray(numbers.is_valid())
    values = np.asarray(numbers.fill_null(0), np.int64)
    rest = _folded(values)
    lengths = np.where(valid, varint_lengths(values), 0)
    width = int(lengths.max()) if len(lengths) else 0
    digits = np.empty((len(values), width + 1), np.uint8)
    digits[:, 0] = np.where(valid, _VALUE[0], _NULL[0])
    for position in range(1, width + 1):
        more = np.where(position < lengths, 0x80, 0)
        digits[:, position] = (rest & np.uint64(0x7F)) | more.astype(np.uint64)
        rest = rest >> np.uint64(7)
    kept = np.arange(width + 1) <= lengths[:, None]
    offsets = np.concatenate(([0], np.cumsum(lengths + 1))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits[kept].tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _folded(numbers: Numbers) -> NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def value_offsets(column: pa.Array) -> Numbers:
    """The offsets of the values of a column of bytes, text or lists, and the end of the last one."""
    return _stored_numbers(column, 4, 1) if len(column) else np.zeros(1, np.int64)


def _stored_numbers(column: pa.Array, width: int, more: int = 0) -> Numbers:
    """The numbers of `width` bytes in a column's second buffer, one for each slot and `more`; null slots hold any."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column) + more, np.int64)
    stored = np.frombuffer(data, f"<i{width}", count=column.offset + len(column) + more)
    return stored[column.offset :].astype(np.int64)


class RecordBlock(NamedTuple):
    """Some records, the sums that their manifest needs, and the distinct partitions of their files, as bytes."""

    payload: bytes
    files_count: int
    rows_count: int
    min_sequence_number: int
    partitions: list[bytes]


def record_blocks(records: pa.RecordBatch) -> Iterator[RecordBlock]:
    """A batch of `RECORDS` as blocks of a manifest, in order and not yet compressed."""
    if not records.num_rows:
        return
    offsets, data = value_offsets(records["record"]), memoryview(records["record"].buffers()[2])
    size_bytes = int(offsets[-1] - offsets[0])
    ends = int(offsets[0]) + np.arange(1, size_bytes // BLOCK_BYTES + 1) * BLOCK_BYTES
    stops = np.unique(np.append(np.searchsorted(offsets, ends), records.num_rows))
    starts = np.append(0, stops[:-1])
    rows = np.add.reduceat(records["record_count"].to_numpy(), starts)
    least = np.minimum.reduceat(records["sequence_number"].to_numpy(), starts)
    for start, stop, count, number in zip(starts.tolist(), stops.tolist(), rows.tolist(), least.tolist(), strict=True):
        partitions = records["partition"].slice(start, stop - start).unique().to_pylist()
        yield RecordBlock(bytes(data[offsets[start] : offsets[stop]]), stop - start, count, number, partitions)


def joined(records: pa.BinaryArray) -> bytes:
    offsets = value_offsets(records)
    return bytes(memoryview(records.buffers()[2])[int(offsets[0]) : int(offsets[-1])]) if len(records) else b""


def fast_packer(codec: str, level: int | None) -> Packer:
    """As `manifest_packer`, but with Intel's deflate, eight times as fast as zlib's, if installed and no level is set."""
    name, pack = manifest_packer(codec, level)
    if name != "deflate" or level is not None:
        return pack
    try:
        from isal import isal_zlib
    except ImportError:
        return pack
    return lambda payload: bytes(isal_zlib.compress(payload, _ISAL_LEVEL, wbits=-15))


class PartitionPart(msgspec.Struct, frozen=True):
    """Cluster by the partition field at an index of its spec."""

    index: int
    type: Type


class BoundPart(msgspec.Struct, frozen=True):
    """Cluster by the lower bound of a column."""

    field_id: int
    type: Type


SortPart: TypeAlias = PartitionPart | BoundPart


def sort_parts(names: Sequence[str] | None, partition: StructType, schema: Schema) -> tuple[SortPart, ...]:
    """The parts that names of partition fields, or else of columns, stand for; all partition fields if null."""
    of_fields = tuple(PartitionPart(index, field.type) for index, field in enumerate(partition.fields))
    if names is None:
        return of_fields
    if not names:
        raise UsageError(
            f"{argument('sort_by')} is empty; name partition fields or columns, or leave it out for all partition fields"
        )
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise UsageError(f"{argument('sort_by')} names {twice[0]!r} twice")
    by_name: dict[str, SortPart] = {field.name: part for field, part in zip(partition.fields, of_fields, strict=True)}
    for name in names:
        if name in by_name:
            continue
        try:
            column = schema.field(name)
        except NotFoundError:
            fields = [field.name for field in partition.fields]
            meant = meant_column(name, [*schema.ids_by_name, *fields], fields, "the partition fields")
            raise NotFoundError(
                f"{argument('sort_by')}: there is neither a partition field nor a column {name!r}; {meant}", name=name
            ) from None
        if not Identity().accepts(column.type):
            raise UnsupportedError(
                f"{argument('sort_by')}: column {name!r} is of type {column.type}, whose values have no order"
            )
        by_name[name] = BoundPart(column.field_id, column.type)
    return tuple(by_name[name] for name in names)


def needs_bounds(parts: Sequence[SortPart]) -> bool:
    """Whether entries are clustered by more than their partitions, so that the summaries in a manifest list do not suffice."""
    return any(isinstance(part, BoundPart) for part in parts)


def entry_keys(
    partitions: Sequence[tuple[Any, ...]],
    codes: NDArray[np.int64],
    lower_bounds: pa.MapArray | None,
    parts: Sequence[SortPart],
) -> pa.Array:
    """The sort keys of entries; `codes` are indices into `partitions`, `lower_bounds` is null if no part needs it."""
    keys = []
    for part in parts:
        if isinstance(part, PartitionPart):
            distinct = [cluster_key(part.type, values[part.index]) for values in partitions]
            keys.append(pa.array(distinct, pa.binary()).take(pa.array(codes)))
        else:
            assert lower_bounds is not None
            positions = map_positions(lower_bounds, part.field_id)
            bounds = lower_bounds.items.take(pa.array(positions, mask=positions < 0))
            coded = bounds.dictionary_encode(null_encoding="encode")
            distinct = []
            for bound in coded.dictionary.to_pylist():
                try:
                    distinct.append(
                        cluster_key(part.type, None if bound is None else value_from_bytes(part.type, bound))
                    )
                except IcekeepError:
                    # The bytes are no value of the type, or beyond the range of its order: the key is that of null.
                    distinct.append(cluster_key(part.type, None))
            keys.append(pa.array(distinct, pa.binary()).take(coded.indices))
    if len(keys) == 1:
        return keys[0]
    return pc.binary_join_element_wise(
        pa.repeat(pa.scalar(b"", pa.binary()), len(codes)), *keys, pa.scalar(b"", pa.binary())
    )


def cluster_key(type_: Type, value: Any) -> bytes:
    """A value as bytes in the order of partition summaries: UUIDs in Java's order, all else as `values.sort_key`."""
    return sort_key([type_], [UUID(int=java_order(value)) if isinstance(value, UUID) else value])


RECORDS = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("place", pa.int64(), nullable=False),
        pa.field("partition", pa.binary(), nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("record", pa.binary(), nullable=False),
    ]
)
"""Live entries, sorted by `key`, then `place`, their old position; the other columns are summed up in the new manifest."""

PLACES_A_MANIFEST = 1 << 32


class RecordTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests that records are made for.

    Attributes:
        partition: the partition type of the spec.
        sort: the order of the entries; empty if it does not change.
    """

    partition: StructType
    format_version: int
    sort: tuple[SortPart, ...] = ()

    @property
    def encoder(self) -> EntryEncoder:
        return EntryEncoder(self.partition, self.format_version)


class RecordsTask(ManifestsTask, frozen=True, kw_only=True):
    """Manifests of one spec and content; `numbers` are their positions among all of a run, by path."""

    numbers: Mapping[str, int]
    target: RecordTarget
    storage: Storage
    decoder: ManifestDecoder

    @classmethod
    def of(
        cls, manifests: Sequence[ManifestFile], target: RecordTarget, storage: Storage, decoder: ManifestDecoder
    ) -> "RecordsTask":
        """All manifests of a run, numbered in their order."""
        numbers = {manifest.manifest_path: number for number, manifest in enumerate(manifests)}
        return cls(manifests=tuple(manifests), numbers=numbers, target=target, storage=storage, decoder=decoder)


def live_records(task: RecordsTask) -> Iterator[pa.RecordBatch]:
    """Batches of `RECORDS`, in the order of manifests and entries; raises as `manifests.read_manifests`."""
    reader = _RecordReader(task)
    for bundle in bundles(task.manifests):
        yield from (batch for batch in reader.read(bundle) if batch.num_rows)


class _RecordReader(ManifestBatchReader):
    def __init__(self, task: RecordsTask) -> None:
        columns = {"status", "record_count", "partition", *INHERITED.values()}
        if needs_bounds(task.target.sort):
            columns.add("lower_bounds")
        super().__init__(task.target.partition, task.storage, columns, task.decoder)
        self._numbers, self._sort = task.numbers, task.target.sort
        self._encoder, self._codec = task.target.encoder, PartitionCodec(task.target.partition)

    def layout(self, schema_json: bytes) -> RecordLayout:
        return RecordLayout(schema_json, self._encoder, self.schema.names)

    def of_decoded(
        self, entries: pa.RecordBatch, decoded: DecodedBlocks, layout: EntryLayout, runs: Sequence[EntryRun]
    ) -> pa.RecordBatch:
        assert isinstance(layout, RecordLayout)
        live = np.flatnonzero(entries["status"].to_numpy() != Status.DELETED)
        records = layout.records(decoded, entries, live)
        return self._batch(entries.take(pa.array(live)), self._places(runs)[live], records)

    def of_entries(self, entries: list[ManifestEntry], run: EntryRun) -> pa.RecordBatch:
        rows, live = [], []
        for row, entry in enumerate(entries):
            if entry.is_live:
                rows.append(row)
                live.append(msgspec.structs.replace(entry, status=Status.EXISTING))
        batch = batch_of_entries(live, self.schema, self.partition, run.manifest.manifest_path)
        records = pa.array([self._encoder.encode(entry) for entry in live], pa.binary())
        return self._batch(batch, self._places([run])[np.array(rows, np.int64)], records)

    def _places(self, runs: Sequence[EntryRun]) -> NDArray[np.int64]:
        firsts = [self._numbers[run.manifest.manifest_path] * PLACES_A_MANIFEST + run.first for run in runs]
        return np.concatenate([first + np.arange(run.length) for first, run in zip(firsts, runs, strict=True)])

    def _batch(self, entries: pa.RecordBatch, places: NDArray[np.int64], records: pa.Array) -> pa.RecordBatch:
        tuples, codes = distinct_partitions(entries["partition"])
        bounds = entries["lower_bounds"] if "lower_bounds" in self.schema.names else None
        keys = entry_keys(tuples, codes, bounds, self._sort)
        partitions = pa.array([self._codec.encode(values) for values in tuples], pa.binary()).take(pa.array(codes))
        return pa.RecordBatch.from_arrays(
            [keys, pa.array(places), partitions, entries["record_count"], entries["sequence_number"], records],
            schema=RECORDS,
        )
