"""Entries as they are stored -> the same entries as existing ones, as encoded records that any new manifest can take.

Most of a record is copied byte for byte: all that the table's other engines have written, whatever it is. Only what an
existing entry must say and the stored one leaves to be inherited is encoded again, in columns.

Avro gives records no lengths. But what a value takes follows from the decoded value, if its writer encoded it in the shortest
way, which all do: then the lengths of all records of a block add up to the block's. No other way to write a value is shorter,
so a block whose sum is right holds records of just these lengths, and is cut without being parsed.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.planning.decoder import DecodedBlocks, Layout, NotReadError, doubtful, is_empty_record
from icekeep.planning.manifests import EntryLayout
from icekeep.spec.avro import BLOCK_BYTES, Packer, avro_schema, without_logical_types
from icekeep.spec.manifests.read import stored_fields
from icekeep.spec.manifests.structs import DATA_FILE_FIELD_ID
from icekeep.spec.manifests.write import EntryEncoder, manifest_packer

Numbers: TypeAlias = NDArray[np.int64]

_FIXED_LENGTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_STATUS, _CONTENT, _BLOCK_SIZE = 0, 134, 105
_EXISTING, _NULL, _VALUE = b"\0", b"\0", b"\2"
_ABSENT = {_CONTENT: b"\0", _BLOCK_SIZE: b"\x80\x80\x80\x40"}
"""What a required field says that a manifest of an earlier or later version does not store: data, 64 MB."""

INHERITED = {1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number", 142: "first_row_id"}
"""Fields that a stored entry may leave to be inherited, by field id: they are taken from columns of these names."""

_MAX_BYTES = (1 << 31) - 1
_ISAL_LEVEL = 3


class _Copied(NamedTuple):
    """Neighbouring fields of the stored record, by their indices: from one up to another, which is included."""

    first: int
    last: int


_Piece: TypeAlias = _Copied | bytes | str
"""Fields that are copied, bytes that each record has, or the name of an inherited column."""


class RecordLayout(EntryLayout):
    """How records of one Avro schema become records of another; what depends on the schemas alone is worked out once."""

    def __init__(self, stored_json: bytes, encoder: EntryEncoder, columns: Collection[str] = ()) -> None:
        """Prepare for manifests with a schema, given as JSON, whose entries go where those of `encoder` go.

        Raises `NotReadError` where records cannot be taken apart: they must be decoded and encoded.
        """
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
        """The entries `rows` of some blocks as records; `inherited` has the columns of `INHERITED`, filled in, of all entries.

        Raises `NotReadError` where a block is not encoded in the shortest way.
        """
        stored, blocks = decoded
        with doubtful():
            for name in self._narrowed:
                stored[name].values.cast(pa.int32())
        lengths = [encoded_lengths(t, stored[name]) for t, name in zip(self._types, self.layout.names, strict=True)]
        payload = pa.py_buffer(b"".join(data for _, data in blocks))
        if payload.size > _MAX_BYTES:
            raise NotReadError("its blocks are more than Arrow's offsets reach")
        starts = [_record_starts(lengths, blocks)]
        for length in lengths:
            starts.append(starts[-1] + length)
        parts: list[Any] = []
        for piece in self._pieces:
            match piece:
                case _Copied(first, last):
                    parts.append(_cut(payload, starts[first], starts[last + 1], rows))
                case bytes():
                    parts.append(pa.scalar(piece, pa.binary()))
                case _:
                    parts.append(optional_longs(inherited[piece].take(pa.array(rows))))
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _record_starts(lengths: Sequence[Numbers], blocks: Sequence[tuple[int, bytes]]) -> Numbers:
    """Where each record begins, if the blocks are as long as all their records should be."""
    total = np.sum(lengths, axis=0)
    ends = np.concatenate(([0], np.cumsum(total)))
    counts = np.cumsum([count for count, _ in blocks])
    sizes = np.cumsum([len(data) for _, data in blocks])
    if counts[-1] != len(total) or (ends[counts] != sizes).any():
        raise NotReadError("a block has another length than its records should have")
    return ends[:-1]


def _cut(payload: pa.Buffer, starts: Numbers, ends: Numbers, rows: Numbers) -> pa.BinaryArray:
    """Pieces of the payload, one for each of some rows: every second part between all their ends."""
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    parts = pa.Array.from_buffers(pa.binary(), max(0, len(offsets) - 1), [None, pa.py_buffer(offsets), payload])
    return parts.take(pa.array(rows * 2))


def _flattened(entry: Any) -> list[tuple[int, Any]]:
    """The fields of an entry's record with those of its file in its place: ids and plain schemas, in the order of bytes."""
    fields: list[dict[str, Any]] = []
    for field in without_logical_types(entry)["fields"]:
        if field["field-id"] == DATA_FILE_FIELD_ID:
            fields += stored_fields(field["type"]).values()
        else:
            fields.append(field)
    return [(field["field-id"], field["type"]) for field in fields if not is_empty_record(field["type"])]


def _pieces(stored: Sequence[tuple[int, Any]], target: Iterable[tuple[int, Any]]) -> list[_Piece]:
    """What the target's fields are made of, in their order; neighbours are joined."""
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
    for field_id, wanted in target:
        index = indices.get(field_id)
        if field_id == _STATUS:
            yield _EXISTING
        elif field_id in INHERITED:
            yield INHERITED[field_id]
        elif index is not None:
            if not _alike(stored[index][1], wanted):
                if not isinstance(wanted, list) or not _alike(stored[index][1], wanted[1]):
                    raise NotReadError("a field is stored in another type than it is written in")
                yield _VALUE
            yield _Copied(index, index)
        elif field_id in _ABSENT or isinstance(wanted, list):
            yield _ABSENT.get(field_id, _NULL)
        else:
            raise NotReadError(f"it lacks the field with id {field_id}")


def _alike(stored: Any, wanted: Any) -> bool:
    """Whether values of both Avro schemas have the same bytes and mean the same."""
    if isinstance(stored, list) or isinstance(wanted, list):
        both = isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted)
        return both and all(_alike(one, other) for one, other in zip(stored, wanted, strict=True))
    kinds = [schema["type"] if isinstance(schema, dict) else schema for schema in (stored, wanted)]
    if kinds[0] != kinds[1]:
        return kinds == ["int", "long"]
    match kinds[0] if isinstance(stored, dict) and isinstance(wanted, dict) else None:
        case "fixed":
            return bool(stored["size"] == wanted["size"])
        case "array":
            return _alike(stored["items"], wanted["items"]) or _narrows(stored, wanted)
        case "record":
            pairs = [*zip(stored["fields"], wanted["fields"], strict=False)]
            are_alike = all(a["field-id"] == b["field-id"] and _alike(a["type"], b["type"]) for a, b in pairs)
            return are_alike and len(stored["fields"]) == len(wanted["fields"])
    return True


def _narrows(stored: Any, wanted: Any) -> bool:
    """Whether an array of longs is to be one of ints, as PyIceberg stores equality ids: the same bytes, if they fit."""
    arrays = [schema[1] if isinstance(schema, list) else schema for schema in (stored, wanted)]
    if not all(isinstance(array, dict) and array["type"] == "array" for array in arrays):
        return False
    return [array["items"] for array in arrays] == ["long", "int"]


def encoded_lengths(schema: Any, column: pa.Array) -> Numbers:
    """The bytes of each value of a column that was decoded from Avro of a schema without references to named types.

    The column is as DataFusion decodes it: no dictionaries, no logical types.
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
            return varint_lengths(_numbers(column)).astype(np.int64)
        case "bytes" | "string" if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            sizes: Numbers = np.diff(value_offsets(column))
            return sizes + varint_lengths(sizes)
        case "record" if pa.types.is_struct(column.type):
            fields = [field for field in schema["fields"] if not is_empty_record(field["type"])]
            if column.type.num_fields == len(fields):
                parts = (encoded_lengths(field["type"], column.field(i)) for i, field in enumerate(fields))
                return sum(parts, np.zeros(len(column), np.int64))
        case "array" if pa.types.is_list(column.type):
            return _array_lengths(schema, column)
    raise NotReadError(f"values of Avro's type {kind!r} that were decoded as {column.type} are not measured")


def _array_lengths(schema: Any, column: pa.ListArray) -> Numbers:
    """One block with a count before it, and the end; nothing but the end where there is no item."""
    offsets = value_offsets(column)
    counts = np.diff(offsets)
    items = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(counts) else column.values
    ends = np.concatenate(([0], np.cumsum(encoded_lengths(schema["items"], items))))
    firsts = offsets - (offsets[0] if len(counts) else 0)
    return np.where(counts > 0, varint_lengths(counts), 0) + (ends[firsts[1:]] - ends[firsts[:-1]]) + 1


def varint_lengths(numbers: Numbers) -> NDArray[np.uint8]:
    """The bytes of numbers as Avro writes them: seven bits a byte, the sign in the lowest bit."""
    folded = _folded(numbers)
    lengths = np.ones(len(folded), np.uint8)
    most = int(folded.max()) if len(folded) else 0
    for more in range(1, 10):
        if most < 1 << (7 * more):
            break
        lengths += folded >= np.uint64(1 << (7 * more))
    return lengths


def optional_longs(numbers: pa.Array) -> pa.BinaryArray:
    """Numbers as Avro writes them where they may be null."""
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
    """Numbers with their signs in their lowest bits."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _numbers(column: pa.Array) -> Numbers:
    """The numbers where they lie; null slots hold arbitrary ones."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), np.int64)
    stored = np.frombuffer(data, f"<i{column.type.bit_width // 8}", count=column.offset + len(column))
    return stored[column.offset :].astype(np.int64)


def value_offsets(column: pa.Array) -> Numbers:
    """Where the values of a column of bytes, text or lists begin, and where the last one ends."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column) + 1, np.int64)
    stored = np.frombuffer(data, "<i4", count=column.offset + len(column) + 1)
    return stored[column.offset :].astype(np.int64)


class RecordBlock(NamedTuple):
    """Some records, and what their manifest sums up; `partitions` are the different ones of their files, as bytes."""

    payload: bytes
    files_count: int
    rows_count: int
    min_sequence_number: int
    partitions: list[bytes]


def record_blocks(records: pa.RecordBatch) -> Iterator[RecordBlock]:
    """The blocks of a manifest that a batch of `records.RECORDS` makes, in order, cut and to be packed as they are."""
    if not records.num_rows:
        return
    offsets, data = value_offsets(records["record"]), memoryview(records["record"].buffers()[2])
    size_bytes = int(offsets[-1] - offsets[0])
    wanted = int(offsets[0]) + np.arange(1, size_bytes // BLOCK_BYTES + 1) * BLOCK_BYTES
    stops = np.unique(np.append(np.searchsorted(offsets, wanted), records.num_rows))
    starts = np.append(0, stops[:-1])
    rows = np.add.reduceat(records["record_count"].to_numpy(), starts)
    least = np.minimum.reduceat(records["sequence_number"].to_numpy(), starts)
    for start, stop, count, number in zip(starts.tolist(), stops.tolist(), rows.tolist(), least.tolist(), strict=True):
        partitions = records["partition"].slice(start, stop - start).unique().to_pylist()
        yield RecordBlock(bytes(data[offsets[start] : offsets[stop]]), stop - start, count, number, partitions)


def joined(records: pa.BinaryArray) -> bytes:
    """Records one after another."""
    offsets = value_offsets(records)
    return bytes(memoryview(records.buffers()[2])[int(offsets[0]) : int(offsets[-1])]) if len(records) else b""


def fast_packer(codec: str, level: int | None) -> Packer:
    """What packs blocks: Intel's deflate, eight times as fast as zlib's, where it is installed and no level is asked for.

    Codec and level are the properties `write.manifest.compression-codec` and `write.manifest.compression-level`.
    """
    name, pack = manifest_packer(codec, level)
    if name != "deflate" or level is not None:
        return pack
    try:
        from isal import isal_zlib
    except ImportError:
        return pack
    return lambda payload: bytes(isal_zlib.compress(payload, _ISAL_LEVEL, wbits=-15))
