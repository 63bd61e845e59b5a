"""Blocks of Avro files -> Arrow record batches, by DataFusion's Avro reader.

DataFusion is ten to twenty times as fast as fastavro, but trusts its input: it reads a file that is cut within its last block as
one that ends there, and never returns from a block with more bytes than its records use. So blocks are checked and decompressed
here, and DataFusion is given copies of some of them, of one file or of several of one schema, as a file of a single block that
ends for certain. If it fails, nothing is concluded about the file: the caller reads it with fastavro, entry by entry, which
gives the entries or the exact error. Avro has no checksums, so both decoders accept a changed byte that still decodes.

A release of DataFusion that always failed would only cost time, so files that fastavro reads are counted, and the first causes a
warning. Each process counts its own; Spark tasks report theirs to the driver.
"""

import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from tempfile import NamedTemporaryFile
from typing import Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa

from icekeep.events import SILENT, Listener, Warned
from icekeep.formats.machine import datafusion_package
from icekeep.spec.avro import AvroHeader, encode_long, read_blocks, without_logical_types, write_header
from icekeep.spec.types import MIB

BATCH_RECORDS = 1 << 13
_BATCH_BYTES = 64 * MIB
_SYNC = b"icekeep: a block"
_OF_SCHEMAS = (pa.ArrowException, KeyError, TypeError, ValueError)
_MORE_THAN_ANY = 1 << 40
"""DataFusion stops at the end of a block's bytes, but hangs at the end of its count if bytes are left."""


class NotReadError(Exception):
    """DataFusion failed, or its result is in doubt; the file may be sound."""


class ManifestDecoder(StrEnum):
    DATAFUSION = "datafusion"
    FASTAVRO = "fastavro"


def chosen_decoder() -> tuple[ManifestDecoder, str]:
    """The fastest installed decoder, and the reason as text."""
    try:
        datafusion = datafusion_package()
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "datafusion"
        reason = "is not installed" if is_missing else f"cannot be imported ({error})"
        return ManifestDecoder.FASTAVRO, f"package datafusion {reason}"
    return ManifestDecoder.DATAFUSION, f"package datafusion {datafusion.__version__} is installed"


class Layout(msgspec.Struct, frozen=True):
    """An Avro schema without logical types, as JSON, and the fields to decode; skipping the others halves the time."""

    schema: bytes
    names: tuple[str, ...]


class DecodedBlocks(NamedTuple):
    """Some columns of the records of some blocks, and the record count and decompressed payload of each block."""

    batch: pa.RecordBatch
    blocks: list[tuple[int, bytes]]


def read_batches(
    data: bytes, header: AvroHeader, layout: Layout, batch_records: int = BATCH_RECORDS
) -> Iterator[DecodedBlocks]:
    """Some columns of every record of a file, in order, without logical types: days, microseconds, bytes.

    A batch ends with the block that brings it to `batch_records`. `NotReadError` may come at any batch; those before it are
    right.
    """
    with doubtful([BaseException]):
        group: list[tuple[int, bytes]] = []
        count = size_bytes = 0
        for records, payload in _payloads(data, header):
            group.append((records, payload))
            count, size_bytes = count + records, size_bytes + len(payload)
            if count >= batch_records or size_bytes >= _BATCH_BYTES:
                yield _decode(layout, group)
                group, count, size_bytes = [], 0, 0
        if size_bytes or count:
            yield _decode(layout, group)


def read_together(files: Iterable[tuple[bytes, AvroHeader]], layout: Layout) -> tuple[DecodedBlocks, list[int]]:
    """The same of several small files, not all of them empty, as one batch, and the record count of each."""
    with doubtful([BaseException]):
        per_file = [[*_payloads(data, header)] for data, header in files]
        lengths = [sum(count for count, _ in blocks) for blocks in per_file]
        return _decode(layout, [block for blocks in per_file for block in blocks]), lengths


def flat_schema(schema: Any, inlined: str) -> tuple[bytes, dict[str, str], dict[str, str]]:
    """A record's Avro schema with the fields of its field `inlined` in that one's place: the encoded bytes are the same.

    DataFusion skips unrequested columns at the top level only. Returned with it are the new names of the record's own fields
    and of the inlined ones, which may have had the same names.
    """
    fields, own, inner_names = [], {}, {}
    for index, field in enumerate(schema["fields"]):
        if field["name"] != inlined:
            own[field["name"]] = f"a{index}"
            fields.append({**field, "name": f"a{index}"})
            continue
        if not isinstance(field["type"], dict):
            raise NotReadError(f"field {inlined!r} may be null")
        for inner_index, inner in enumerate(field["type"]["fields"]):
            inner_names[inner["name"]] = f"b{inner_index}"
            fields.append({**inner, "name": f"b{inner_index}"})
    plain = _without_empty_records(without_logical_types({**schema, "fields": fields}))
    return msgspec.json.encode(plain), own, inner_names


def is_empty_record(schema: Any) -> bool:
    """Whether a schema is of a record without fields, which takes no bytes: the partition of an unpartitioned table."""
    return isinstance(schema, dict) and schema.get("type") == "record" and not schema["fields"]


def _without_empty_records(schema: Any) -> Any:
    """The same Avro schema without fields of empty records, which Arrow does not support."""
    if isinstance(schema, list):
        return [_without_empty_records(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _without_empty_records(item) for key, item in schema.items()}
    if changed.get("type") == "record":
        changed["fields"] = [field for field in changed["fields"] if not is_empty_record(field["type"])]
    return changed


def _payloads(data: bytes, header: AvroHeader) -> Iterator[tuple[int, bytes]]:
    if not data.endswith(header.sync):
        raise NotReadError("it does not end on its sync marker")
    try:
        # Intel's inflate is twice as fast as zlib's, and a third of the work.
        from isal import isal_zlib
    except ImportError:
        return read_blocks(data, header, zlib.decompressobj)
    return read_blocks(data, header, isal_zlib.decompressobj)


def _decode(layout: Layout, blocks: list[tuple[int, bytes]]) -> DecodedBlocks:
    count = sum(records for records, _ in blocks)
    if not count:
        raise NotReadError("a block has bytes and no records")
    head = write_header({"avro.schema": layout.schema, "avro.codec": b"null"}, _SYNC)
    payloads = [payload for _, payload in blocks]
    size_bytes = sum(map(len, payloads))
    with NamedTemporaryFile(prefix="icekeep-", suffix=".avro") as file:
        file.writelines((head, encode_long(_MORE_THAN_ANY), encode_long(size_bytes), *payloads, _SYNC))
        file.flush()
        return DecodedBlocks(_read_whole(file.name, layout.names, count), blocks)


def _read_whole(path: str, names: Sequence[str], count: int) -> pa.RecordBatch:
    """The `count` records of a file of one block."""
    datafusion = datafusion_package()
    config = datafusion.SessionConfig().with_target_partitions(1).with_batch_size(count)
    context = datafusion.SessionContext(config)
    # Mostly a single batch, since the batch size allows it; DataFusion does not guarantee it.
    batches = [batch.to_pyarrow() for batch in context.read_avro(path).select(*names).execute_stream()]
    if sum(batch.num_rows for batch in batches) != count:
        raise NotReadError(f"its blocks hold other than the {count} records that they count")
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


@contextmanager
def doubtful(errors: Sequence[type[BaseException]] = _OF_SCHEMAS) -> Iterator[None]:
    """Raise `NotReadError` for some errors, by default those of code that takes schemas and columns apart."""
    try:
        yield
    except NotReadError:
        raise
    except tuple(errors) as error:
        # A panic in Rust is no Exception, and its class cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise NotReadError(str(error)) from error
        raise


class SlowReads(msgspec.Struct, frozen=True):
    """The number of files that fastavro had to read, and one line about one of them."""

    count: int = 0
    example: str = ""


class _Counter:
    """The slow reads of this process; the newest listener gets a warning of the first one after it was added."""

    lock = threading.Lock()
    listeners: ClassVar[list[Listener]] = [SILENT]
    has_warned = False
    total = SlowReads()


def note_slow_read(location: str, reason: Exception | str) -> None:
    """Count a file that fastavro reads; the first is reported to the listener of `warning_of_slow_reads`."""
    line = " ".join(str(reason).split()) or "it does not say why"
    add_slow_reads(SlowReads(1, f"{location!r} is read by fastavro, as DataFusion's reader fails: {line}"))


def add_slow_reads(reads: SlowReads) -> None:
    if not reads.count:
        return
    with _Counter.lock:
        total = _Counter.total
        _Counter.total = SlowReads(total.count + reads.count, total.example or reads.example)
        is_first, _Counter.has_warned = not _Counter.has_warned, True
        listener = _Counter.listeners[-1]
    if is_first:
        listener.on(Warned(f"{reads.example}; such files are read about ten times slower"))


def slow_reads(since: int = 0) -> SlowReads:
    """The slow reads of this process, without the first `since` of them."""
    total = _Counter.total
    return SlowReads(total.count - since, total.example) if total.count > since else SlowReads()


@contextmanager
def warning_of_slow_reads(listener: Listener) -> Iterator[None]:
    """Warn a listener of the first slow read within the block."""
    with _Counter.lock:
        _Counter.listeners.append(listener)
        _Counter.has_warned = False
    try:
        yield
    finally:
        # Blocks of several threads may overlap without being nested.
        with _Counter.lock:
            _Counter.listeners.remove(listener)
            _Counter.has_warned = False
