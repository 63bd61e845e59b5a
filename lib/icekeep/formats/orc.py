"""ORC data files: Iceberg's attributes on types, read and written in stripes (spec, Appendix A "ORC").

pyarrow maps the metadata of Arrow fields to attributes of ORC types in both directions, at every level. It reads all timestamps
in nanoseconds, so only those of the years 1677 to 2262; the writer refuses others, since a file that cannot be read could never
be compacted. It also refuses fractions of a second before 1970, which pyarrow stores so that Java's readers return a second
earlier.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.projection import MICROSECONDS, STORED_AS_KEY, arrays_below, nested_array
from icekeep.formats.arrow.schema import FIELD_ID_KEY, Metadata, child_fields, field_id, map_fields
from icekeep.formats.base import FileMetrics, FileReader, MetricsCollector, NewFile, value_width
from icekeep.formats.machine import PartSize
from icekeep.formats.options import OrcOptions
from icekeep.spec.avro import read_varint
from icekeep.storage.base import Storage

_ID, _REQUIRED, _UNIT = b"iceberg.id", b"iceberg.required", b"iceberg.timestamp-unit"
_LONG_TYPE, _BINARY_TYPE, _LENGTH = b"iceberg.long-type", b"iceberg.binary-type", b"iceberg.length"

_FIRST_RATIO = 0.5
"""The assumed ratio of sizes in the file and in memory until a stripe shows it."""

_MAGIC_BYTES = 3
_NANOS = 1_000_000_000
_DICTIONARY_THRESHOLD = 0.8

_TAIL_FOOTER = 2
_FOOTER_STRIPES, _STRIPE_OFFSET, _STRIPE_DATA, _STRIPE_ROWS = 3, 1, 3, 5
_FOOTER_TYPES, _TYPE_KIND, _TYPE_PRECISION, _TYPE_SCALE = 4, 1, 5, 6
_DECIMAL = 14
"""Tags of ORC's protobuf messages `FileTail`, `Footer`, `StripeInformation` and `Type`, and a kind of type."""


class OrcReader(FileReader):
    """An ORC file; its parts are stripes, whose statistics pyarrow does not expose."""

    def __init__(self, stream: BinaryIO) -> None:
        self._file = orc.ORCFile(stream)
        for type_ in _footer_messages(self._file, _FOOTER_TYPES):
            # pyarrow would abort the process.
            precision, scale = type_.get(_TYPE_PRECISION, 0), type_.get(_TYPE_SCALE, 0)
            if type_.get(_TYPE_KIND) == _DECIMAL and not 0 <= scale <= 38 >= precision:
                raise InvalidTableError(f"its ORC footer is damaged: decimal({precision}, {scale}) is not a type")
        self._stripes = stripes_of(self._file)
        self.schema = map_fields(self._file.schema, _metadata_of_file)

    def row_count(self) -> int | None:
        return int(self._file.nrows)

    def part_offsets(self) -> Sequence[int]:
        return [stripe.offset for stripe in self._stripes]

    def largest_part(self, columns: Collection[str] | None = None) -> PartSize | None:
        """The stripe with the greatest lower bound of its memory, which is all that the footer gives."""
        row_bytes = sum(value_width(field.type) for field in self.schema if columns is None or field.name in columns)
        is_whole = columns is None or len(columns) == len(self.schema)
        sizes = [max(s.row_count * row_bytes, s.data_bytes if is_whole else 0) for s in self._stripes]
        if not sizes:
            return None
        number = sizes.index(max(sizes))
        # pyarrow reads whole stripes.
        size_bytes, row_count = sizes[number], self._stripes[number].row_count
        return PartSize(number=number, row_count=row_count, size_bytes=size_bytes, held_bytes=size_bytes)

    def tables(
        self,
        columns: Sequence[str],
        parts: Sequence[int] | None,
        kept_dictionaries: Sequence[str],
        batch_rows: int | None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """A table for each stripe, or several of at most `batch_rows` that share its memory."""
        # pyarrow takes a dot for a path into a struct, and a stripe read without columns has no rows.
        selected = list(columns) if columns and not any("." in name for name in columns) else None
        for position in range(len(self._stripes)) if parts is None else parts:
            if position >= len(self._stripes):
                raise InvalidTableError(f"there is no stripe {position}, only {len(self._stripes)}")
            try:
                table = pa.Table.from_batches([self._file.read_stripe(position, columns=selected)])
            except pa.ArrowInvalid as error:
                if "timestamp" not in str(error):
                    raise
                line = " ".join(str(error).split())
                raise UnsupportedError(f"it holds a timestamp that is not of the years 1677 to 2262: {line}") from error
            expected = self._stripes[position].row_count
            if table.num_rows != expected:
                raise InvalidTableError(f"stripe {position} has {table.num_rows} rows where the footer says {expected}")
            first = sum(stripe.row_count for stripe in self._stripes[:position])
            step = batch_rows or max(1, table.num_rows)
            for start in range(0, max(1, table.num_rows), step):
                yield first + start, table.slice(start, step)


class Stripe(NamedTuple):
    offset: int
    data_bytes: int
    row_count: int


def stripes_of(file: orc.ORCFile) -> list[Stripe]:
    """The stripes of a file, from its footer: pyarrow itself exposes only their number."""
    tags = (_STRIPE_OFFSET, _STRIPE_DATA, _STRIPE_ROWS)
    return [Stripe(*(info.get(tag, 0) for tag in tags)) for info in _footer_messages(file, _FOOTER_STRIPES)]


def _footer_messages(file: orc.ORCFile, tag: int) -> list[dict[int, Any]]:
    """The footer's messages of one kind; raises `InvalidTableError` where the footer is damaged."""
    try:
        footer = dict(_protobuf(file.reader.serialized_file_tail()))[_TAIL_FOOTER]
        return [dict(_protobuf(value)) for number, value in _protobuf(footer) if number == tag]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidTableError("its ORC footer is damaged") from error


class OrcWriter(NewFile):
    """An ORC file that is being written; pyarrow decides where a stripe ends."""

    def __init__(
        self, storage: Storage, location: str, schema: pa.Schema, options: OrcOptions, collector: MetricsCollector
    ) -> None:
        self._schema, self._collector, self._stripe_size_bytes = (
            orc_schema(schema),
            collector,
            options.stripe_size_bytes,
        )
        self._arrow_bytes = self._flushed_bytes = self._flushed_arrow_bytes = 0
        begin = partial(
            orc.ORCWriter,
            compression=options.compression,
            compression_strategy=options.compression_strategy,
            stripe_size=options.stripe_size_bytes,
            batch_size=options.batch_rows,
            bloom_filter_columns=column_numbers(self._schema, options.bloom_filter_columns),
            bloom_filter_fpp=options.bloom_filter_fpp,
            dictionary_key_size_threshold=_DICTIONARY_THRESHOLD,
        )
        super().__init__(storage, location, begin)

    @property
    def written_bytes(self) -> float:
        """The bytes in the file, and an estimate of those that wait for the end of their stripe: at most a stripe."""
        flushed = self._flushed_arrow_bytes
        ratio = self._flushed_bytes / flushed if flushed else _FIRST_RATIO
        return self._stream.tell() + min((self._arrow_bytes - flushed) * ratio, self._stripe_size_bytes)

    def write(self, table: pa.Table) -> None:
        self._collector.add(table)
        try:
            stored = table.cast(self._schema)
        except pa.ArrowInvalid as error:
            raise UnsupportedError(
                f"cannot write {self._location!r}: {' '.join(str(error).split())}; ORC files are written with timestamps of"
                " the years 1677 to 2262 only, set the table property 'write.format.default' to 'parquet'"
            ) from error
        columns = [_sink_nulls(column, field.type) for column, field in zip(stored.columns, self._schema, strict=True)]
        if any(_has_fraction_before_1970(column) for column in columns):
            raise UnsupportedError(
                f"cannot write {self._location!r}: a timestamp before 1970 has a fraction of a second, which other engines"
                " would read wrongly from ORC; set the table property 'write.format.default' to 'parquet'"
            )
        self._writer.write(pa.Table.from_arrays(columns, schema=self._schema))
        self._arrow_bytes += table.nbytes
        if self._stream.tell() > self._flushed_bytes + _MAGIC_BYTES:
            self._flushed_bytes, self._flushed_arrow_bytes = self._stream.tell(), self._arrow_bytes

    def finish(self) -> tuple[int, FileMetrics]:
        size_bytes = self.end()
        # pyarrow's writer does not return the offsets of the stripes.
        with self._storage.open(self._location) as stream:
            offsets = tuple(stripe.offset for stripe in stripes_of(orc.ORCFile(stream)))
        return size_bytes, self._collector.metrics(split_offsets=offsets)


def _has_fraction_before_1970(column: Any) -> bool:
    if isinstance(column, pa.ChunkedArray):
        return any(map(_has_fraction_before_1970, column.chunks))
    if pa.types.is_timestamp(column.type):
        ticks = column.cast(pa.int64())
        fractions = pc.not_equal(ticks, pc.multiply(pc.divide(ticks, _NANOS), _NANOS))
        return bool(pc.any(pc.and_(pc.less(ticks, 0), fractions)).as_py())
    return any(map(_has_fraction_before_1970, arrays_below(column)))


def _sink_nulls(column: Any, type_: pa.DataType) -> Any:
    """A nested column in which all below a null struct is null, and no level is a slice.

    Otherwise pyarrow's ORC writer loses rows of structs in structs: it mistakes the values below a null for those of the next
    row, and in a slice the null of one row for another's. In `type_` all fields are nullable but the keys of maps.
    """
    if not type_.num_fields:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_sink_nulls(chunk, type_) for chunk in column.chunks], type_)
    children = []
    for array, (_, field) in zip(arrays_below(column), child_fields(type_), strict=True):
        copied = array.take(pa.array(np.arange(len(array)))) if array.offset else array
        children.append(_sink_nulls(copied, field.type))
    return nested_array(type_, children, column)


def orc_schema(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema that pyarrow writes as ORC, with Iceberg's attributes, from that of a table."""

    def attributes(field: pa.Field, _: object) -> Metadata:
        id_ = field_id(field)
        return {
            _REQUIRED: b"false" if field.nullable else b"true",
            **({} if id_ is None else {_ID: str(id_).encode()}),
            **_stored(field.type)[1],
        }

    return map_fields(schema, attributes, nullable=True, leaf_type=lambda type_: _stored(type_)[0])


def column_numbers(schema: pa.Schema, names: Collection[str]) -> list[int]:
    """ORC's column numbers of full names: each type of the file has one, parents before children."""

    def paths(name: str, type_: pa.DataType) -> list[str]:
        return [name, *(path for child, field in child_fields(type_) for path in paths(f"{name}.{child}", field.type))]

    every = [path for field in schema for path in paths(field.name, field.type)]
    return [number for number, path in enumerate(every, 1) if path in names]


def _stored(type_: pa.DataType) -> tuple[pa.DataType, Metadata]:
    """The stored type of a leaf, and the attributes that distinguish it from others with that type."""
    if pa.types.is_int64(type_):
        return type_, {_LONG_TYPE: b"LONG"}
    if pa.types.is_time64(type_):
        return pa.int64(), {_LONG_TYPE: b"TIME"}
    if pa.types.is_timestamp(type_):
        # What does not fit nanoseconds fails in this cast, and not when the file is read.
        return pa.timestamp("ns", type_.tz), {_UNIT: b"NANOS" if type_.unit == "ns" else b"MICROS"}
    if type_ == pa.uuid():
        return pa.binary(), {_BINARY_TYPE: b"UUID"}
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary(), {_BINARY_TYPE: b"FIXED", _LENGTH: str(type_.byte_width).encode()}
    if pa.types.is_binary(type_):
        return type_, {_BINARY_TYPE: b"BINARY"}
    return type_.value_type if pa.types.is_dictionary(type_) else type_, {}


def _metadata_of_file(field: pa.Field, _: object) -> Metadata:
    attributes = field.metadata or {}
    out: dict[bytes, bytes] = {}
    if (id_ := attributes.get(_ID)) is not None and id_.isdigit():
        out[FIELD_ID_KEY] = id_
    if pa.types.is_timestamp(field.type) and attributes.get(_UNIT, b"MICROS") != b"NANOS":
        out[STORED_AS_KEY] = MICROSECONDS
    return out


def _protobuf(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: varints as numbers, all others as bytes."""
    position = 0
    while position < len(data):
        key, position = read_varint(data, position)
        kind = key & 7
        if kind == 0:
            number, position = read_varint(data, position)
            yield key >> 3, number
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, position = read_varint(data, position)
        if position + length > len(data):
            raise IndexError
        yield key >> 3, data[position : position + length]
        position += length
