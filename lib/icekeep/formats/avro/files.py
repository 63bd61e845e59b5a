"""Avro data files, read and written in blocks (spec, Appendix A "Avro").

Records pass through Python here, as no library reads Avro into Arrow with field ids: far slower than the columnar formats.
Values are decoded and encoded without Avro's logical types, as in `spec.avro`.
"""

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

import fastavro
import msgspec
import pyarrow as pa
from fastavro.write import Writer

from icekeep.errors import IcekeepError, InvalidTableError
from icekeep.formats.avro.values import arrow_array, avro_values, node_of_schema
from icekeep.formats.base import FileMetrics, PartSize
from icekeep.formats.column_metrics import MetricsCollector
from icekeep.formats.write_options import AvroOptions
from icekeep.spec.avro import (
    SYNC_BYTES,
    AvroHeader,
    avro_names,
    avro_schema,
    read_header,
    sync_marker,
    without_logical_types,
    write_header,
)
from icekeep.spec.schema import Schema
from icekeep.spec.types import PrimitiveType
from icekeep.storage.base import Storage

_HEAD_BYTES = 64 * 1024
_BLOCK_BYTES = 64 * 1024
_RECORDS = 16_384
"""Records that are Python's values at one time, if a block has not more."""


class AvroReader:
    """An Avro file; it has no parts that could be read alone."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._header = _header(stream)
        self._node = node_of_schema(self._header.schema)
        self.schema = pa.schema(list(self._node.field.type))

    def row_count(self) -> int | None:
        """Not known before the last block."""
        return None

    def part_count(self) -> int:
        """The file is its only part."""
        return 1

    def part_offsets(self) -> Sequence[int]:
        """One part, which is the file."""
        return [0]

    def parts_that_may_hold(self, column_id: int, first: str | None, end: str | None) -> Sequence[int] | None:
        """Not known: Avro has no statistics."""
        return None

    def part_metrics(self, columns: pa.Schema, types: Mapping[int, PrimitiveType]) -> None:
        """Not known, for the same reason."""

    def largest_part(self, columns: Collection[str] | None = None) -> PartSize | None:
        """Not known."""
        return None

    def held_bytes(self, part: int, columns: Collection[str] | None = None) -> int:
        """Nothing that is known."""
        return 0

    def tables(
        self,
        columns: Sequence[str],
        parts: Sequence[int] | None,
        kept_dictionaries: Sequence[str],
        batch_rows: int | None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Tables of whole blocks."""
        if parts is not None:
            if any(part != 0 for part in parts):
                raise InvalidTableError("an Avro file has no parts that could be read alone")
            if not parts:
                return
        wanted = [
            (stored_name, child)
            for stored_name, child in zip(self._node.stored_names, self._node.children, strict=True)
            if child.field.name in columns
        ]
        schema = pa.schema([child.field for _, child in wanted] or [pa.field("", pa.null())])
        first = 0
        for records in _batches(self._stream, self._header):
            arrays = [arrow_array([record[name] for record in records], child) for name, child in wanted]
            yield first, pa.Table.from_arrays(arrays or [pa.nulls(len(records))], schema=schema)
            first += len(records)


class AvroWriter:
    """An Avro file that is being written."""

    def __init__(
        self, storage: Storage, location: str, schema: Schema, options: AvroOptions, collector: MetricsCollector
    ) -> None:
        self._schema = schema
        self._collector = collector
        stored = avro_schema(schema.as_struct(), "table")
        # From the location, which no other file has: no randomness is needed.
        sync = sync_marker(location.encode())
        header = {"avro.schema": msgspec.json.encode(stored), "avro.codec": options.codec.encode()}
        self._encoded = io.BytesIO()
        self._encoder = Writer(
            self._encoded,
            without_logical_types(stored),
            codec=options.codec,
            sync_interval=_BLOCK_BYTES,
            sync_marker=sync,
            compression_level=options.level,
        )
        with ExitStack() as stack:
            self._stream = stack.enter_context(storage.write(location))
            # fastavro's header would name the types without their logical types and ids.
            self._take()
            self._stream.write(write_header(header, sync))
            self._stack = stack.pop_all()
        self.is_made = False

    @property
    def written_bytes(self) -> float:
        return self._stream.tell()

    def write(self, table: pa.Table) -> None:
        """Encode rows; what does not fill a block waits."""
        self._collector.add(table)
        names = avro_names(self._schema.fields)
        for batch in table.to_batches(max_chunksize=_RECORDS):
            fields = zip(batch.columns, self._schema.fields, strict=True)
            values = [avro_values(column, field.type) for column, field in fields]
            for row in zip(*values, strict=True):
                self._encoder.write(dict(zip(names, row, strict=True)))
            self._stream.write(self._take())

    def finish(self) -> tuple[int, FileMetrics]:
        """Write the last block."""
        self._encoder.flush()
        self._stream.write(self._take())
        size_bytes = self._stream.tell()
        self._stack.close()
        self.is_made = True
        return size_bytes, self._collector.metrics()

    def abandon(self, error: BaseException) -> None:
        """Give the file up."""
        with suppress(IcekeepError, OSError, ValueError):
            self._stack.__exit__(type(error), error, None)

    def _take(self) -> bytes:
        data = self._encoded.getvalue()
        self._encoded.seek(0)
        self._encoded.truncate()
        return data


class _Rest:
    """A stream that begins with other bytes: as much of one as fastavro's reader asks for."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = io.BytesIO(head)
        self._stream = stream

    def tell(self) -> int:
        return self._head.tell() + self._stream.tell()

    def read(self, size: int) -> bytes:
        data = self._head.read(size)
        return data + self._stream.read(size - len(data)) if len(data) < size else data


def _header(stream: BinaryIO) -> AvroHeader:
    """The header of an open file, which must also end as one; raises `InvalidTableError`."""
    end = stream.seek(0, io.SEEK_END)
    size = _HEAD_BYTES
    while True:
        stream.seek(0)
        data = stream.read(size)
        try:
            header = read_header(data, "")
            break
        except InvalidTableError as error:
            if size >= end:
                raise InvalidTableError("it is not an Avro file, or its header is damaged") from error
            size *= 4
    stream.seek(max(0, end - SYNC_BYTES))
    if stream.read(SYNC_BYTES) != header.sync:
        raise InvalidTableError("it does not end on its sync marker: it was cut short")
    return header


def _batches(stream: BinaryIO, header: AvroHeader) -> Iterator[list[dict[str, Any]]]:
    """The records of whole blocks, many at a time; raises `InvalidTableError` for a damaged one."""
    plain = {**header.metadata, "avro.schema": msgspec.json.encode(without_logical_types(header.schema))}
    stream.seek(header.length_bytes)
    records: list[dict[str, Any]] = []
    try:
        for block in fastavro.block_reader(_Rest(write_header(plain, header.sync), stream)):
            records += block
            # A block that counts fewer records than it holds would lose the others in silence.
            if block.num_records < 0 or block.bytes_.read(1):
                raise ValueError(f"a block has more than the {block.num_records} records that it counts")
            if len(records) >= _RECORDS:
                yield records
                records = []
    except (IcekeepError, OSError):
        raise
    # fastavro and its codecs have no common error: whatever they raise, the file is not what it must be.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidTableError(f"it is damaged: {reason}") from error
    if records:
        yield records
