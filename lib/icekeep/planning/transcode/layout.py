"""How many bytes each value of a decoded column took as Avro: so the records of a block are found without parsing it.

Avro gives records no lengths. But what a value takes follows from the value, if its writer encoded it in the shortest way,
which all do: then the lengths of all records of a block add up to the block's. No other way to write a value is shorter, so
a block whose sum is right holds records of just these lengths.

Entries as they are stored -> the same entries as existing ones, as encoded records that any new manifest can take.

Most of a record is copied byte for byte: all that the table's other engines have written, whatever it is. Only what an
existing entry must say and the stored one leaves to be inherited is encoded anew, in columns.

Encoded entries that lie one after another -> blocks of a manifest, cut and packed as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.planning.decoder import Layout, NotReadError, flat_schema, is_empty_record
from icekeep.spec.avro import Packer, avro_schema, without_logical_types
from icekeep.spec.manifests.read import record_field, stored_fields
from icekeep.spec.manifests.structs import DATA_FILE_FIELD_ID
from icekeep.spec.manifests.write import manifest_packer
from icekeep.spec.types import StructType

Lengths: TypeAlias = NDArray[np.int64]

_FIXED_LENGTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LONGEST_VARINT = 10


def encoded_lengths(schema: Any, column: pa.Array) -> Lengths:
    """The bytes of each value of a column that was decoded from Avro of a schema.

    Args:
        schema: decoded JSON, without references to named types.
        column: as DataFusion decodes it: no dictionaries, no logical types.

    Raises:
        NotReadError: values of such a schema cannot be measured.
    """
    if isinstance(schema, list):
        return _of_union(schema, column)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return encoded_lengths(kind, column)
    if kind in _FIXED_LENGTHS:
        return np.full(len(column), _FIXED_LENGTHS[kind], np.int64)
    measure = _MEASURES.get(kind)
    if measure is None:
        raise NotReadError(f"values of Avro's type {kind!r} are not measured")
    return measure(schema, column)


def varint_lengths(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The bytes of numbers as Avro writes them: seven bits a byte, the sign in the lowest bit."""
    folded = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    lengths = np.ones(len(folded), np.uint8)
    most = int(folded.max()) if len(folded) else 0
    for more in range(1, _LONGEST_VARINT):
        if most < 1 << (7 * more):
            break
        lengths += folded >= np.uint64(1 << (7 * more))
    return lengths


def value_offsets(column: pa.Array) -> NDArray[np.int64]:
    """Where the values of a column of bytes, text or lists begin, and where the last one ends."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column) + 1, np.int64)
    found = np.frombuffer(data, "<i4", count=column.offset + len(column) + 1)[column.offset :]
    return found.astype(np.int64)


def _of_union(branches: list[Any], column: pa.Array) -> Lengths:
    others = [branch for branch in branches if branch != "null"]
    if len(branches) != 2 or len(others) != 1:
        raise NotReadError("a field may be of several types")
    lengths = encoded_lengths(others[0], column)
    if column.null_count:
        lengths = np.where(np.asarray(column.is_valid()), lengths, 0)
    return lengths + 1


def _of_numbers(_: Any, column: pa.Array) -> Lengths:
    if not pa.types.is_integer(column.type):
        raise NotReadError(f"whole numbers were decoded as {column.type}")
    return varint_lengths(_numbers(column)).astype(np.int64)


def _of_bytes(_: Any, column: pa.Array) -> Lengths:
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise NotReadError(f"bytes were decoded as {column.type}")
    sizes: Lengths = np.diff(value_offsets(column))
    return sizes + varint_lengths(sizes)


def _of_fixed(schema: Any, column: pa.Array) -> Lengths:
    return np.full(len(column), int(schema["size"]), np.int64)


def _of_record(schema: Any, column: pa.Array) -> Lengths:
    total = np.zeros(len(column), np.int64)
    fields = [field for field in schema["fields"] if not is_empty_record(field["type"])]
    if not pa.types.is_struct(column.type) or column.type.num_fields != len(fields):
        raise NotReadError(f"a record was decoded as {column.type}")
    for index, field in enumerate(fields):
        total += encoded_lengths(field["type"], column.field(index))
    return total


def _of_array(schema: Any, column: pa.Array) -> Lengths:
    """One block with a count before it, and the end; nothing but the end where there is no item."""
    if not pa.types.is_list(column.type):
        raise NotReadError(f"an array was decoded as {column.type}")
    offsets = value_offsets(column)
    counts = np.diff(offsets)
    items = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(counts) else column.values
    ends = np.concatenate(([0], np.cumsum(encoded_lengths(schema["items"], items))))
    firsts = offsets - (offsets[0] if len(counts) else 0)
    return np.where(counts > 0, varint_lengths(counts), 0) + (ends[firsts[1:]] - ends[firsts[:-1]]) + 1


_MEASURES: dict[str, Callable[[Any, pa.Array], Lengths]] = {
    "int": _of_numbers,
    "long": _of_numbers,
    "bytes": _of_bytes,
    "string": _of_bytes,
    "fixed": _of_fixed,
    "record": _of_record,
    "array": _of_array,
}


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    """The numbers where they lie; what stands in the place of a null is anything."""
    width = column.type.bit_width // 8
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), np.int64)
    found = np.frombuffer(data, f"<i{width}", count=column.offset + len(column))[column.offset :]
    return found.astype(np.int64)


_STATUS, _CONTENT, _BLOCK_SIZE = 0, 134, 105
_EXISTING = b"\0"
_ABSENT = {_CONTENT: b"\0", _BLOCK_SIZE: b"\x80\x80\x80\x40"}
"""What a required field says that a manifest of an earlier or later version does not store: data, 64 MB."""

INHERITED = {1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number", 142: "first_row_id"}
"""Fields that a stored entry may leave to be inherited, by field id: they are told as columns of these names."""

_NULL, _VALUE = b"\0", b"\2"
_MAX_BYTES = (1 << 31) - 1


class _Copied(NamedTuple):
    """Neighbouring fields of the stored record, by their indices: from one up to another, which is included."""

    first: int
    last: int


_Piece: TypeAlias = _Copied | bytes | str


class RecordLayout:
    """How records of one Avro schema become records of another; what depends on the schemas alone is worked out once."""

    def __init__(self, stored_json: bytes, target: StructType) -> None:
        """Prepare for manifests with a schema, given as JSON, whose entries go into manifests of the struct `target`.

        Raises:
            NotReadError: the records cannot be taken apart; they must be decoded and encoded.
        """
        try:
            stored = msgspec.json.decode(stored_json)
            data_file, _ = record_field(stored, DATA_FILE_FIELD_ID)
            flat, _, _ = flat_schema(stored, data_file)
            fields = msgspec.json.decode(flat)["fields"]
            self._types = [field["type"] for field in fields]
            self._names = [field["name"] for field in fields]
            self.layout = Layout(flat, tuple(self._names))
            own, wanted = _flattened(stored), _flattened(avro_schema(target, "manifest_entry"))
            self._pieces = _pieces(own, wanted)
            types = dict(wanted)
            pairs = zip(self._names, own, strict=True)
            self._narrowed = [name for name, (field_id, type_) in pairs if _narrows(type_, types.get(field_id))]
        except (KeyError, TypeError, ValueError) as error:
            raise NotReadError(str(error)) from error

    def records(
        self,
        stored: pa.RecordBatch,
        blocks: Sequence[tuple[int, bytes]],
        inherited: pa.RecordBatch,
        rows: NDArray[np.int64],
    ) -> pa.BinaryArray:
        """Some of the entries of some blocks as records.

        Args:
            stored: the columns `layout.names` of all entries.
            blocks: how many records each counts, and its bytes.
            inherited: the columns of `INHERITED`, of all entries, with what was inherited filled in.
            rows: which entries.

        Raises:
            NotReadError: a block is not encoded in the shortest way.
        """
        for name in self._narrowed:
            _require_ints(stored[name])
        lengths = [encoded_lengths(t, stored[name]) for t, name in zip(self._types, self._names, strict=True)]
        starts = _record_starts(lengths, blocks)
        payload = pa.py_buffer(b"".join(data for _, data in blocks))
        if payload.size > _MAX_BYTES:
            raise NotReadError("its blocks are more than Arrow's offsets reach")
        before = [starts]
        for length in lengths:
            before.append(before[-1] + length)
        parts: list[Any] = []
        for piece in self._pieces:
            if isinstance(piece, _Copied):
                parts.append(_cut(payload, before[piece.first], before[piece.last + 1], rows))
            elif isinstance(piece, bytes):
                parts.append(pa.scalar(piece, pa.binary()))
            else:
                parts.append(optional_longs(inherited[piece].take(pa.array(rows))))
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def optional_longs(numbers: pa.Array) -> pa.BinaryArray:
    """Numbers as Avro writes them where they may be null."""
    valid = np.asarray(numbers.is_valid())
    values = np.asarray(numbers.fill_null(0), np.int64)
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
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


def _record_starts(lengths: Sequence[Lengths], blocks: Sequence[tuple[int, bytes]]) -> Lengths:
    """Where each record begins, if the blocks are as long as all their records should be."""
    total = np.sum(lengths, axis=0)
    ends = np.concatenate(([0], np.cumsum(total)))
    counts = np.cumsum([count for count, _ in blocks])
    sizes = np.cumsum([len(data) for _, data in blocks])
    if counts[-1] != len(total) or (ends[counts] != sizes).any():
        raise NotReadError("a block has another length than its records should have")
    return ends[:-1]


def _cut(payload: pa.Buffer, starts: Lengths, ends: Lengths, rows: NDArray[np.int64]) -> pa.BinaryArray:
    """Pieces of the payload, one for each of some rows: every second part between all their ends."""
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    parts = pa.Array.from_buffers(pa.binary(), max(0, len(offsets) - 1), [None, pa.py_buffer(offsets), payload])
    return parts.take(pa.array(rows * 2))


def _flattened(entry: Any) -> list[tuple[int, Any]]:
    """The fields of an entry's record with those of its file in its place: ids and plain schemas, in the order of bytes."""
    fields: list[tuple[int, Any]] = []
    for field in without_logical_types(entry)["fields"]:
        if field["field-id"] == DATA_FILE_FIELD_ID:
            stored_fields(field["type"])
            fields += [(below["field-id"], below["type"]) for below in field["type"]["fields"]]
        else:
            fields.append((field["field-id"], field["type"]))
    return [(field_id, type_) for field_id, type_ in fields if not is_empty_record(type_)]


def _pieces(stored: Sequence[tuple[int, Any]], target: Iterable[tuple[int, Any]]) -> list[_Piece]:
    """What the target's fields are made of, in their order."""
    indices = {field_id: index for index, (field_id, _) in enumerate(stored)}
    pieces: list[_Piece] = []
    for field_id, wanted in target:
        if field_id == _STATUS:
            _add(pieces, _EXISTING)
        elif field_id in INHERITED:
            _add(pieces, INHERITED[field_id])
        elif field_id in indices:
            _copy(pieces, indices[field_id], stored[indices[field_id]][1], wanted)
        elif field_id in _ABSENT:
            _add(pieces, _ABSENT[field_id])
        elif isinstance(wanted, list):
            _add(pieces, _NULL)
        else:
            raise NotReadError(f"it lacks the field with id {field_id}")
    return pieces


def _copy(pieces: list[_Piece], index: int, stored: Any, wanted: Any) -> None:
    if not _alike(stored, wanted):
        if not isinstance(wanted, list) or not _alike(stored, wanted[1]):
            raise NotReadError("a field is stored in another type than it is written in")
        _add(pieces, _VALUE)
    last = pieces[-1] if pieces else None
    if isinstance(last, _Copied) and last.last + 1 == index:
        pieces[-1] = _Copied(last.first, index)
    else:
        pieces.append(_Copied(index, index))


def _add(pieces: list[_Piece], piece: bytes | str) -> None:
    if isinstance(piece, bytes) and pieces and isinstance(last := pieces[-1], bytes):
        pieces[-1] = last + piece
    else:
        pieces.append(piece)


def _alike(stored: Any, wanted: Any) -> bool:
    """Whether values of both Avro schemas have the same bytes and mean the same."""
    if isinstance(stored, list) or isinstance(wanted, list):
        both = isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted)
        return both and all(_alike(one, other) for one, other in zip(stored, wanted, strict=True))
    if not isinstance(stored, dict) or not isinstance(wanted, dict):
        kinds = [schema["type"] if isinstance(schema, dict) else schema for schema in (stored, wanted)]
        return kinds[0] == kinds[1] or kinds == ["int", "long"]
    if stored["type"] != wanted["type"]:
        return [stored["type"], wanted["type"]] == ["int", "long"]
    match stored["type"]:
        case "fixed":
            return bool(stored["size"] == wanted["size"])
        case "array":
            return _alike(stored["items"], wanted["items"]) or _narrows(stored, wanted)
        case "record":
            return _alike_fields(stored, wanted)
    return True


def _narrows(stored: Any, wanted: Any) -> bool:
    """Whether an array of longs is to be one of ints, as PyIceberg stores equality ids: the same bytes, if they fit."""
    arrays = [schema[1] if isinstance(schema, list) else schema for schema in (stored, wanted)]
    if not all(isinstance(array, dict) and array["type"] == "array" for array in arrays):
        return False
    return [array["items"] for array in arrays] == ["long", "int"]


def _require_ints(arrays: pa.ListArray) -> None:
    try:
        arrays.values.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise NotReadError(str(error)) from error


def _alike_fields(stored: Any, wanted: Any) -> bool:
    pairs = [*zip(stored["fields"], wanted["fields"], strict=False)]
    if len(stored["fields"]) != len(wanted["fields"]):
        return False
    return all(a["field-id"] == b["field-id"] and _alike(a["type"], b["type"]) for a, b in pairs)


BLOCK_BYTES = 64 << 10
"""A block ends at the first record that reaches it."""

_ISAL_LEVEL = 3


class RecordBlock(NamedTuple):
    """Some records, and what their manifest sums up; `partitions` are the different ones of their files, as bytes."""

    payload: bytes
    files_count: int
    rows_count: int
    min_sequence_number: int
    partitions: list[bytes]


def record_blocks(records: pa.RecordBatch) -> Iterator[RecordBlock]:
    """The blocks that a batch of `records.RECORDS` makes, in order."""
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


def record_lengths(records: pa.BinaryArray) -> NDArray[np.int64]:
    """The bytes of each record."""
    lengths: NDArray[np.int64] = np.diff(value_offsets(records))
    return lengths


def joined(records: pa.BinaryArray) -> bytes:
    """Records one after another."""
    offsets = value_offsets(records)
    return bytes(memoryview(records.buffers()[2])[int(offsets[0]) : int(offsets[-1])]) if len(records) else b""


def fast_packer(codec: str, level: int | None) -> Packer:
    """What packs blocks: Intel's deflate, eight times as fast as zlib's, where it is installed and no level is asked for.

    Args:
        codec, level: properties `write.manifest.compression-codec` and `write.manifest.compression-level`.

    Raises:
        UnsupportedError: there is no such codec or level.
    """
    name, pack = manifest_packer(codec, level)
    if name != "deflate" or level is not None:
        return pack
    try:
        from isal import isal_zlib
    except ImportError:
        return pack
    return lambda payload: bytes(isal_zlib.compress(payload, _ISAL_LEVEL, wbits=-15))
