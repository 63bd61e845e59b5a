"""Records of an Avro container file as Arrow record batches, by DataFusion's Avro reader.

DataFusion is fast and trusting: it takes a file that is cut within its last block for one that ends there, and never
returns from a block that holds more bytes than its records use. So blocks are checked and unpacked here, and DataFusion is
given copies of some of them as one block that is sure to end. Where it fails, nothing is said about the file: who asked
reads it in the slow way. Avro has no checksums: a byte that was changed where any byte makes sense passes here as there.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from icekeep.formats.datafusion_package import datafusion_package
from icekeep.spec.avro import AvroHeader, read_blocks, without_logical_types, write_header
from icekeep.spec.units import MIB

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
