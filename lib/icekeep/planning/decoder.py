"""Records of an Avro container file as Arrow record batches, by DataFusion's Avro reader.

DataFusion is fast and trusting: it takes a file that is cut within its last block for one that ends there, and never
returns from a block that holds more bytes than its records use. So blocks are checked and unpacked here, and DataFusion is
given copies of some of them as one block that is sure to end. Where it fails, nothing is said about the file: who asked
reads it in the slow way. Avro has no checksums: a byte that was changed where any byte makes sense passes here as there.

Partition tuples in Arrow: from what manifests store, to spec values, and to the bytes that joins compare.

In Arrow a partition is a struct with a field for each field of its spec, named by its field id (`"1000"`), of the type
that `formats.arrow.schema.arrow_type` gives; a UUID is Arrow's extension type.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.arrow.schema import arrow_type
from icekeep.formats.deletes.apply import comparable_bits
from icekeep.formats.machine import datafusion_package
from icekeep.spec.avro import AvroHeader, from_avro, read_blocks, shown_text, without_logical_types, write_header
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import MIB, OPAQUE, STRING, NestedField, PrimitiveType, StructType
from icekeep.spec.values import INTEGER_WIDTHS

BATCH_RECORDS = 1 << 13
_BATCH_BYTES = 64 * MIB
_SYNC = b"icekeep: a block"
_MORE_THAN_ANY = 1 << 40
"""DataFusion stops at the end of a block's bytes by itself; at the end of its count, with bytes left, it hangs."""


class NotReadError(Exception):
    """DataFusion failed, or what it gave is in doubt; whether the file is sound is not known."""


class Layout(msgspec.Struct, frozen=True):
    """How records are laid out, for DataFusion: an Avro schema without logical types, as JSON; and the fields to decode.

    The others are skipped, which takes half the time.
    """

    schema: bytes
    names: tuple[str, ...]


class DecodedBlocks(NamedTuple):
    """Some columns of the records of some blocks, and of each block how many records it counts and its bytes, unpacked."""

    batch: pa.RecordBatch
    blocks: list[tuple[int, bytes]]


def read_batches(
    data: bytes, header: AvroHeader, layout: Layout, batch_records: int = BATCH_RECORDS
) -> Iterator[DecodedBlocks]:
    """Some columns of every record of a file, in order: days, microseconds, bytes where Avro has logical types.

    Batches end where blocks do, once they have `batch_records` or more.

    Raises:
        NotReadError: at any batch; those before it are right.
    """
    with _doubted():
        groups = _grouped(_payloads(data, header), batch_records)
    while True:
        with _doubted():
            group = next(groups, None)
            decoded = None if group is None else DecodedBlocks(_decoded(layout, group), group)
        if decoded is None:
            return
        yield decoded


def read_together(files: Iterable[tuple[bytes, AvroHeader]], layout: Layout) -> tuple[DecodedBlocks, list[int]]:
    """The same of several small files as one batch, and how many records each of them counts.

    Raises:
        NotReadError: one of them needs a closer look, or together they have no record.
    """
    with _doubted():
        lengths, all_blocks = [], []
        for data, header in files:
            blocks = [*_payloads(data, header)]
            lengths.append(sum(count for count, _ in blocks))
            all_blocks += blocks
        return DecodedBlocks(_decoded(layout, all_blocks), all_blocks), lengths


def flat_schema(schema: Any, inlined: str) -> tuple[bytes, dict[str, str], dict[str, str]]:
    """A record's Avro schema with the fields of one of its records in that one's place: the bytes are the same.

    DataFusion skips columns that nobody asks for at the top level only. Returned with it are the new names of the record's
    own fields, and of those that were put in, which may have had the same names.

    Raises:
        NotReadError: the record may be null, so that it is not just its fields.
    """
    fields, own, put_in = [], {}, {}
    for index, field in enumerate(schema["fields"]):
        if field["name"] != inlined:
            own[field["name"]] = f"a{index}"
            fields.append({**field, "name": f"a{index}"})
            continue
        if not isinstance(field["type"], dict):
            raise NotReadError(f"field {inlined!r} may be null")
        for below_place, below in enumerate(field["type"]["fields"]):
            put_in[below["name"]] = f"b{below_place}"
            fields.append({**below, "name": f"b{below_place}"})
    plain = _without_empty_records(without_logical_types({**schema, "fields": fields}))
    return msgspec.json.encode(plain), own, put_in


def _payloads(data: bytes, header: AvroHeader) -> Iterator[tuple[int, bytes]]:
    """Each block's count of records and its bytes, unpacked; fails where a block does not end on the sync marker."""
    if not data.endswith(header.sync):
        raise NotReadError("it does not end on its sync marker")
    return read_blocks(data, header, _inflater())


def _inflater() -> Callable[..., Any]:
    """Intel's, twice as fast as zlib's where it is installed: unpacking is a third of the work."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompressobj
    found: Callable[..., Any] = isal_zlib.decompressobj
    return found


def _grouped(payloads: Iterator[tuple[int, bytes]], batch_records: int) -> Iterator[list[tuple[int, bytes]]]:
    group: list[tuple[int, bytes]] = []
    count = size_bytes = 0
    for records, payload in payloads:
        count, size_bytes = count + records, size_bytes + len(payload)
        group.append((records, payload))
        if count >= batch_records or size_bytes >= _BATCH_BYTES:
            yield group
            group, count, size_bytes = [], 0, 0
    if count or size_bytes:
        yield group


def _decoded(layout: Layout, blocks: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    count = sum(records for records, _ in blocks)
    if not count:
        raise NotReadError("a block has bytes and no records")
    head = write_header({"avro.schema": layout.schema, "avro.codec": b"null"}, _SYNC)
    payloads = [payload for _, payload in blocks]
    size_bytes = sum(map(len, payloads))
    with NamedTemporaryFile(prefix="icekeep-", suffix=".avro") as file:
        file.writelines((head, _long(_MORE_THAN_ANY), _long(size_bytes), *payloads, _SYNC))
        file.flush()
        return _read_whole(file.name, layout.names, count)


def _read_whole(path: str, names: Sequence[str], count: int) -> pa.RecordBatch:
    """The records of a file of one block, if they are `count` and use up its bytes."""
    datafusion = datafusion_package()
    config = datafusion.SessionConfig().with_target_partitions(1).with_batch_size(count)
    context = datafusion.SessionContext(config)
    # Most often one batch, since it may have as many rows; DataFusion does not promise it.
    batches = [batch.to_pyarrow() for batch in context.read_avro(path).select(*names).execute_stream()]
    if sum(batch.num_rows for batch in batches) != count:
        raise NotReadError(f"its blocks hold other than the {count} records that they count")
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _without_empty_records(schema: Any) -> Any:
    """The same Avro schema without fields that hold records without fields: they take no bytes, and Arrow lacks them."""
    if isinstance(schema, list):
        return [_without_empty_records(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _without_empty_records(item) for key, item in schema.items()}
    if changed.get("type") == "record":
        changed["fields"] = [field for field in changed["fields"] if not is_empty_record(field["type"])]
    return changed


def is_empty_record(schema: Any) -> bool:
    """Whether a schema is of a record without fields, which takes no bytes: the partition of a table that has none."""
    return isinstance(schema, dict) and schema.get("type") == "record" and not schema["fields"]


@contextmanager
def _doubted() -> Iterator[None]:
    try:
        yield
    except NotReadError:
        raise
    except BaseException as error:
        # A panic in Rust is no Exception, and its class cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise NotReadError(str(error)) from error
        raise


def _long(number: int) -> bytes:
    """A number that is not negative as Avro writes it."""
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_MAX_CODE = 1 << 62

_SHOWN = (STRING.name, OPAQUE.name)


def partition_arrow_type(partition: StructType) -> pa.StructType:
    """The Arrow type of a partition type's tuples."""
    return pa.struct([pa.field(str(field.field_id), arrow_type(field.type)) for field in partition.fields])


def partition_array(tuples: Iterable[tuple[Any, ...]], partition: StructType) -> pa.StructArray:
    """Tuples of spec values in Arrow.

    A value of a text field that is not text, and what an unknown transform makes, is shown as Python would show it.

    Raises:
        pyarrow.ArrowException, OverflowError, ValueError: a value does not fit its type.
    """
    rows = [*tuples]
    columns = zip(*rows, strict=True) if rows else ((),) * len(partition.fields)
    arrays = [_array(values, field) for values, field in zip(columns, partition.fields, strict=False)]
    return _struct(arrays, len(rows), partition)


def partition_of_stored(
    stored: pa.StructArray | None, names: list[str], partition: StructType, length: int
) -> pa.Array:
    """The partitions of records that were read without logical types.

    Args:
        stored: the records' partitions; null if the spec has no fields.
        names: where the partition's fields are in `stored`.
        partition: the partition type of the manifest's spec.
        length: of the records.

    Raises:
        NotReadError: a value is stored as something else.
    """
    if stored is None or not names:
        return _struct([], length, partition)
    pairs = zip(names, partition.fields, strict=True)
    return _struct([_of_stored(stored.field(name), field) for name, field in pairs], length, partition)


def distinct_partitions(partition: pa.StructArray) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """The different tuples of a column of partitions as spec values, in the order of their rows, and each row's.

    Floating point values are compared by their bits, as in `reach.partition_key`: each NaN is the same one, and
    -0.0 is not 0.0.
    """
    columns = [comparable_bits(partition.field(i)) for i in range(partition.type.num_fields)]
    codes, first_rows = _codes(columns, len(partition))
    values = [_spec_values(column, partition.type.field(i).type, first_rows) for i, column in enumerate(columns)]
    tuples = [*zip(*values, strict=True)] if values else [()] * len(first_rows)
    return tuples, codes


def partition_keys(partition: pa.StructArray, codec: PartitionCodec) -> pa.Array:
    """Partition tuples as bytes: equal where the spec says that partitions are, each different one encoded once."""
    tuples, codes = distinct_partitions(partition)
    return pa.array([codec.encode(values) for values in tuples], pa.binary()).take(pa.array(codes))


def _struct(arrays: list[pa.Array], length: int, partition: StructType) -> pa.StructArray:
    type_ = partition_arrow_type(partition)
    if not arrays:
        return pa.Array.from_buffers(type_, length, [None], null_count=0)
    return pa.StructArray.from_arrays(arrays, fields=[*type_])


def _array(values: Iterable[Any], field: NestedField) -> pa.Array:
    if _name(field) in _SHOWN:
        values = [_text(value) for value in values]
    if _name(field) == "uuid":
        storage = pa.array([None if value is None else value.bytes for value in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(pa.uuid(), storage)
    return pa.array(values, arrow_type(field.type))


def _text(value: Any) -> str | None:
    return None if value is None else shown_text(value)


def _of_stored(raw: pa.Array, field: NestedField) -> pa.Array:
    target, kind, name = arrow_type(field.type), raw.type, _name(field)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    if raw.null_count == len(raw):
        return pa.nulls(len(raw), target)
    if kind.equals(target):
        return raw
    if name in _SHOWN:
        return _by_value(raw, field, _text)
    if name == "decimal" and is_bytes:
        return _by_value(raw, field, from_avro(field.type))
    if name == "uuid" and is_bytes:
        return pa.ExtensionArray.from_storage(target, _fixed(raw, 16))
    if pa.types.is_fixed_size_binary(target) and is_bytes:
        return _fixed(raw, target.byte_width)
    if pa.types.is_binary(target) and is_bytes:
        return raw.cast(target)
    if pa.types.is_floating(target) and pa.types.is_floating(kind):
        return raw.cast(target, safe=False)
    if pa.types.is_integer(kind) and name in INTEGER_WIDTHS:
        return raw.cast(pa.int32() if target.bit_width == 32 else pa.int64()).cast(target)
    raise NotReadError(f"a value of type {field.type} is stored as {kind}")


def _name(field: NestedField) -> str:
    return field.type.name if isinstance(field.type, PrimitiveType) else ""


def _fixed(raw: pa.Array, width: int) -> pa.Array:
    if pc.any(pc.not_equal(pc.binary_length(raw), width)).as_py():
        raise NotReadError(f"a value of {width} bytes is stored in another length")
    return raw.cast(pa.binary()).cast(pa.binary(width))


def _by_value(raw: pa.Array, field: NestedField, convert: Callable[[Any], Any]) -> pa.Array:
    """Each different value converted once."""
    coded = raw.dictionary_encode()
    values = [None if value is None else convert(value) for value in coded.dictionary.to_pylist()]
    return _array(values, field).take(coded.indices)


def _codes(columns: list[pa.Array], length: int) -> tuple[np.ndarray, np.ndarray]:
    """A number for each row, equal for equal rows and counted in the order of the rows, and the first row of each."""
    codes, many = np.zeros(length, dtype=np.int64), 1
    for column in columns:
        found = column.dictionary_encode(null_encoding="encode")
        if many * max(1, len(found.dictionary)) > _MAX_CODE:
            codes, many = _compact(codes)
        codes = codes * len(found.dictionary) + found.indices.to_numpy(zero_copy_only=False)
        many *= max(1, len(found.dictionary))
    codes, many = _compact(codes)
    first_rows = np.zeros(many, dtype=np.int64)
    first_rows[codes[::-1]] = np.arange(length - 1, -1, -1)
    return codes, first_rows


def _compact(codes: np.ndarray) -> tuple[np.ndarray, int]:
    found = pa.array(codes).dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)


def _spec_values(column: pa.Array, type_: pa.DataType, rows: np.ndarray) -> list[Any]:
    values = column.take(pa.array(rows))
    if pa.types.is_floating(type_):
        values = values.view(type_)
    elif type_.equals(pa.uuid()):
        values = pa.ExtensionArray.from_storage(type_, values)
    elif pa.types.is_temporal(type_):
        values = values.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    return values.to_pylist()
