"""Blocks of Avro files -> Arrow record batches, by DataFusion's Avro reader, or the news that it failed.

DataFusion is ten to twenty times as fast as fastavro, and trusting: it takes a file that is cut within its last block for one
that ends there, and never returns from a block that holds more bytes than its records use. So blocks are checked and unpacked
here, and DataFusion is given copies of some of them, of one file or of several of one schema, as a file of a single block that
is sure to end. Where it fails, nothing is concluded about the file: the caller reads it by fastavro, entry by entry, which
gives the entries or the exact error. Avro has no checksums: a byte that was changed where any byte makes sense passes here as
there.

A release of DataFusion that always failed would show in nothing but time, so each file that is read in the slow way is counted
and the first is told. Each process counts for itself; what a Spark task counts comes to the driver with the task's report.
"""

import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from icekeep.events import SILENT, Listener, Warned
from icekeep.formats.machine import datafusion_package
from icekeep.spec.avro import AvroHeader, encode_long, read_blocks, without_logical_types, write_header
from icekeep.spec.types import MIB

BATCH_RECORDS = 1 << 13
_BATCH_BYTES = 64 * MIB
_SYNC = b"icekeep: a block"
_MORE_THAN_ANY = 1 << 40
"""DataFusion stops at the end of a block's bytes by itself; at the end of its count, with bytes left, it hangs."""


class NotReadError(Exception):
    """DataFusion failed, or what it gave is in doubt; whether the file is sound is not known."""


class ManifestDecoder(StrEnum):
    """What decodes the Avro files that manifests are."""

    DATAFUSION = "datafusion"
    FASTAVRO = "fastavro"


def chosen_decoder() -> tuple[ManifestDecoder, str]:
    """The fastest decoder that is installed here, and the reason in words."""
    try:
        datafusion = datafusion_package()
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "datafusion"
        reason = "is not installed" if is_missing else f"cannot be imported ({error})"
        return ManifestDecoder.FASTAVRO, f"package datafusion {reason}"
    return ManifestDecoder.DATAFUSION, f"package datafusion {datafusion.__version__} is installed"


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

    Batches end where blocks do, once they have `batch_records` or more. `NotReadError` may come at any batch; those before it
    are right.
    """
    with _doubt():
        group: list[tuple[int, bytes]] = []
        count = size_bytes = 0
        for records, payload in _payloads(data, header):
            group.append((records, payload))
            count, size_bytes = count + records, size_bytes + len(payload)
            if count >= batch_records or size_bytes >= _BATCH_BYTES:
                yield _decoded(layout, group)
                group, count, size_bytes = [], 0, 0
        if size_bytes or count:
            yield _decoded(layout, group)


def read_together(files: Iterable[tuple[bytes, AvroHeader]], layout: Layout) -> tuple[DecodedBlocks, list[int]]:
    """The same of several small files, not all of them empty, as one batch, and how many records each of them counts."""
    with _doubt():
        per_file = [[*_payloads(data, header)] for data, header in files]
        lengths = [sum(count for count, _ in blocks) for blocks in per_file]
        return _decoded(layout, [block for blocks in per_file for block in blocks]), lengths


def flat_schema(schema: Any, inlined: str) -> tuple[bytes, dict[str, str], dict[str, str]]:
    """A record's Avro schema with the fields of one of its records in that one's place: the bytes are the same.

    DataFusion skips columns that nobody asks for at the top level only. Returned with it are the new names of the record's
    own fields, and of those that were put in, which may have had the same names.
    """
    fields, own, put_in = [], {}, {}
    for index, field in enumerate(schema["fields"]):
        if field["name"] != inlined:
            own[field["name"]] = f"a{index}"
            fields.append({**field, "name": f"a{index}"})
            continue
        if not isinstance(field["type"], dict):
            raise NotReadError(f"field {inlined!r} may be null")
        for inner_index, inner in enumerate(field["type"]["fields"]):
            put_in[inner["name"]] = f"b{inner_index}"
            fields.append({**inner, "name": f"b{inner_index}"})
    plain = _without_empty_records(without_logical_types({**schema, "fields": fields}))
    return msgspec.json.encode(plain), own, put_in


def is_empty_record(schema: Any) -> bool:
    """Whether a schema is of a record without fields, which takes no bytes: the partition of a table that has none."""
    return isinstance(schema, dict) and schema.get("type") == "record" and not schema["fields"]


def _without_empty_records(schema: Any) -> Any:
    """The same Avro schema without fields that hold records without fields, which Arrow lacks."""
    if isinstance(schema, list):
        return [_without_empty_records(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _without_empty_records(item) for key, item in schema.items()}
    if changed.get("type") == "record":
        changed["fields"] = [field for field in changed["fields"] if not is_empty_record(field["type"])]
    return changed


def _payloads(data: bytes, header: AvroHeader) -> Iterator[tuple[int, bytes]]:
    """Each block's count of records and its bytes, unpacked; fails where a block does not end on the sync marker."""
    if not data.endswith(header.sync):
        raise NotReadError("it does not end on its sync marker")
    try:
        # Intel's is twice as fast as zlib's: unpacking is a third of the work.
        from isal import isal_zlib
    except ImportError:
        return read_blocks(data, header, zlib.decompressobj)
    return read_blocks(data, header, isal_zlib.decompressobj)


def _decoded(layout: Layout, blocks: list[tuple[int, bytes]]) -> DecodedBlocks:
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
    """The records of a file of one block, if they are `count` and use up its bytes."""
    datafusion = datafusion_package()
    config = datafusion.SessionConfig().with_target_partitions(1).with_batch_size(count)
    context = datafusion.SessionContext(config)
    # Most often one batch, since it may have as many rows; DataFusion does not promise it.
    batches = [batch.to_pyarrow() for batch in context.read_avro(path).select(*names).execute_stream()]
    if sum(batch.num_rows for batch in batches) != count:
        raise NotReadError(f"its blocks hold other than the {count} records that they count")
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


@contextmanager
def _doubt() -> Iterator[None]:
    try:
        yield
    except NotReadError:
        raise
    except BaseException as error:
        # A panic in Rust is no Exception, and its class cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise NotReadError(str(error)) from error
        raise


@contextmanager
def doubtful() -> Iterator[None]:
    """What does not fit while schemas and columns are taken apart takes a closer look."""
    try:
        yield
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise NotReadError(str(error)) from error


class SlowReads(msgspec.Struct, frozen=True):
    """How many files were read in the slow way; `example` is one line about one of them."""

    count: int = 0
    example: str = ""

    def __add__(self, other: "SlowReads") -> "SlowReads":
        return SlowReads(self.count + other.count, self.example or other.example)


class _Counter:
    """Process-wide counter of slow reads; the newest listener is told of the first one after it came."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listeners: list[Listener] = [SILENT]
        self.has_told = False
        self.total = SlowReads()


_COUNTER = _Counter()


def note_slow_read(location: str, reason: Exception | str) -> None:
    """Count a file that is read in the slow way; the first is told to the listener of `warning_of_slow_reads`."""
    line = " ".join(str(reason).split()) or "it does not say why"
    add_slow_reads(SlowReads(1, f"{location!r} is read by fastavro, as DataFusion's reader fails: {line}"))


def add_slow_reads(reads: SlowReads) -> None:
    """Take in what another process has counted."""
    if not reads.count:
        return
    with _COUNTER.lock:
        _COUNTER.total += reads
        is_first, _COUNTER.has_told = not _COUNTER.has_told, True
        listener = _COUNTER.listeners[-1]
    if is_first:
        listener.on(Warned(f"{reads.example}; such files are read about ten times slower"))


def slow_reads() -> SlowReads:
    """All that this process has counted; the difference of two counts is what was read between them."""
    return _COUNTER.total


def slow_reads_since(count: int) -> SlowReads:
    """What this process has read in the slow way since it had counted `count` files."""
    total = slow_reads()
    return SlowReads(total.count - count, total.example) if total.count > count else SlowReads()


@contextmanager
def warning_of_slow_reads(listener: Listener) -> Iterator[None]:
    """Tell a listener of the first file that is read in the slow way while the block lasts."""
    with _COUNTER.lock:
        _COUNTER.listeners.append(listener)
        _COUNTER.has_told = False
    try:
        yield
    finally:
        # Blocks of several threads may overlap without being nested.
        with _COUNTER.lock:
            _COUNTER.listeners.remove(listener)
            _COUNTER.has_told = False
