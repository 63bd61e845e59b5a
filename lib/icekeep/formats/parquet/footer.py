"""The footer of a Parquet file, as far as copying its row groups needs it (Parquet, "File Format"), and its schema.

It is read without a library, so that file offsets can be replaced where they are. Columns are compared with a table's by field id
and type, at every level; names, order, comments and whether a column is required do not matter.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.parquet.thrift import Damaged, Integer, Struct, structs_at
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, Schema
from icekeep.spec.types import (
    MAX_NESTING,
    MIB,
    UNKNOWN,
    UUID,
    DecimalType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
    fixed,
    with_child_fields,
)
from icekeep.storage.base import Storage

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
TAIL_BYTES = 8
"""After the footer: its length and the magic."""

MAX_FOOTER_BYTES = 64 * MIB
"""Readers refuse structures of more than 100 MB."""

CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}
"""Parquet's codec numbers by the names in writer options."""

LINEAGE_IDS = frozenset((ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id))

_FIRST_READ_BYTES = 64 * 1024

_FILE_FIELDS, _ROW_GROUP_FIELDS, _CHUNK_FIELDS, _COLUMN_FIELDS = (set(range(1, n + 1)) for n in (9, 7, 9, 17))
_ENCRYPTION_FIELDS = {8, 9}
"""Of both a footer and a column chunk."""

DATA_PAGE, DATA_PAGE_V2 = 0, 3
_DICTIONARY_ENCODINGS = {2, 8}

_INT32, _INT64, _INT96, _BYTE_ARRAY, _FIXED = 1, 2, 3, 6, 7
_REQUIRED, _REPEATED = 0, 2
_MICROS, _NANOS = 2, 3

Annotation = tuple[str | int, ...]
"""The name of a node's logical type, and its parameters."""

_TYPES: dict[tuple[int, Annotation], str] = {
    (0, ()): "boolean",
    (_INT32, ()): "int",
    (_INT32, ("integer", 32, True)): "int",
    (_INT32, ("date",)): "date",
    (_INT64, ()): "long",
    (_INT64, ("integer", 64, True)): "long",
    (_INT64, ("time", _MICROS)): "time",
    (_INT64, ("timestamp", _MICROS, False)): "timestamp",
    (_INT64, ("timestamp", _MICROS, True)): "timestamptz",
    (_INT64, ("timestamp", _NANOS, False)): "timestamp_ns",
    (_INT64, ("timestamp", _NANOS, True)): "timestamptz_ns",
    (4, ()): "float",
    (5, ()): "double",
    (_BYTE_ARRAY, ()): "binary",
    (_BYTE_ARRAY, ("string",)): "string",
}
_DECIMALS = (_INT32, _INT64, _BYTE_ARRAY, _FIXED)
_CONVERTED: dict[int, Annotation] = {
    0: ("string",), 1: ("map",), 2: ("map",), 3: ("list",), 6: ("date",), 8: ("time", _MICROS),
    10: ("timestamp", _MICROS, True), 17: ("integer", 32, True), 18: ("integer", 64, True),
}  # fmt: skip
"""The logical types of `ConvertedType`, as far as Iceberg has them."""

_LOGICAL: dict[int, str] = {
    1: "string", 2: "map", 3: "list", 5: "decimal", 6: "date", 7: "time", 8: "timestamp", 10: "integer", 14: "uuid",
}  # fmt: skip


class CannotMove(Exception):
    """Row groups of a file cannot be moved; the message is the reason."""


class Leaf(msgspec.Struct, frozen=True):
    """A column with values.

    Attributes:
        is_required: neither it nor a field around it may be null.
        is_int96: it is stored as a timestamp of 96 bits, whose order Parquet does not define.
    """

    field_id: int | None
    is_required: bool
    is_int96: bool


class StoredSchema(msgspec.Struct, frozen=True):
    """The schema of a file: its leaves in order, and its columns; null if one has no field id or no type of Iceberg's."""

    leaves: tuple[Leaf, ...]
    columns: StructType | None

    def holds(self, schema: Schema) -> bool:
        """Whether the file has exactly the stored columns of a schema; those of row lineage are ignored."""
        if self.columns is None:
            return False
        own = tuple(field for field in self.columns.fields if field.field_id not in LINEAGE_IDS)
        return StructType(own) == _bare(schema.as_struct())


class ColumnChunk(msgspec.Struct, frozen=True):
    """A column chunk.

    Attributes:
        start, compressed_bytes: of its pages with their headers.
        positions: file offsets in its metadata.
        offset_index: the offset and the length of its offset index, as the footer has them.
        null_count: of its statistics.
        page_encodings: the encoded list `encoding_stats`.
    """

    codec: int
    start: int
    compressed_bytes: int
    positions: tuple[Integer, ...]
    offset_index: tuple[Integer, Integer] | None
    null_count: int | None
    has_bloom_filter: bool
    has_dictionary: bool
    page_encodings: bytes | None

    def data_pages(self) -> list[tuple[int, int]]:
        """The encodings of data pages and the number of pages of each, as far as the footer has them."""
        counts = [] if self.page_encodings is None else structs_at(self.page_encodings, 0)
        return [(one.value(2), one.value(3)) for one in counts if one.value(1) in (DATA_PAGE, DATA_PAGE_V2)]

    @property
    def is_all_in_dictionary(self) -> bool:
        """Whether its dictionary certainly has every value: some writers then omit the bloom filter."""
        encodings = {encoding for encoding, count in self.data_pages() if count}
        return bool(encodings) and encodings <= _DICTIONARY_ENCODINGS


class RowGroup(msgspec.Struct, frozen=True):
    """A row group; `data_start` and `data_end` are the bounds of its metadata in the footer, `start` that of its first page."""

    data_start: int
    data_end: int
    row_count: int
    chunks: tuple[ColumnChunk, ...]
    start: int
    compressed_bytes: int
    file_offset: Integer | None
    ordinal: Integer | None


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """The footer of a file that is not encrypted and has all its columns in itself.

    Attributes:
        data: its bytes, at `start` of the file.
        common_fields: all that row groups share: the version, and the encoded schema, key-values, writer and column orders. The
            writer is part of it because it decides how statistics are read.
        full_groups: the row groups that have rows; writers leave the offsets of an empty one undefined, and it is never copied.
    """

    data: bytes
    start: int
    row_count: int
    common_fields: tuple[int, bytes, bytes | None, bytes | None, bytes | None]
    stored: StoredSchema
    row_groups: tuple[RowGroup, ...]
    full_groups: tuple[RowGroup, ...]
    codecs: frozenset[int]

    def chunks_of(self, field_id: int) -> Sequence[ColumnChunk] | None:
        """The chunks of the first column with a field id, one per row group; null if there is no such column."""
        for position, leaf in enumerate(self.stored.leaves):
            if leaf.field_id == field_id:
                return [group.chunks[position] for group in self.row_groups]
        return None

    def has_no_nulls(self, field_id: int) -> bool:
        """Whether the file stores a column and it certainly has a value in every row."""
        if any(leaf.field_id == field_id and leaf.is_required for leaf in self.stored.leaves):
            return True
        chunks = self.chunks_of(field_id)
        return chunks is not None and all(chunk.null_count == 0 for chunk in chunks)


def read_footer(storage: Storage, location: str, size_bytes: int) -> Footer:
    """Read the footer of a file that has `size_bytes` by its metadata; it is one request, or two if the footer is long.

    Raises `InvalidTableError` if the file has another length or is damaged, and `UnsupportedError` with the fact `reason` if it
    is encrypted, has columns in other files, or its footer is too large or has unknown fields.
    """
    with storage.open(location) as stream, footer_errors(location):
        tail = bytes_at(stream, max(0, size_bytes - _FIRST_READ_BYTES), min(size_bytes, _FIRST_READ_BYTES))
        length = footer_length(tail, size_bytes)
        if length + TAIL_BYTES <= len(tail):
            data = tail[-TAIL_BYTES - length : -TAIL_BYTES]
        else:
            data = bytes_at(stream, size_bytes - TAIL_BYTES - length, length)
        return _footer(data, size_bytes - TAIL_BYTES - len(data))


def footer_length(tail: bytes, size_bytes: int) -> int:
    """The length of a file's footer, from its last bytes; raises `CannotMove` and `Damaged`."""
    if tail[-4:] == ENCRYPTED_MAGIC:
        raise CannotMove("the footer is encrypted")
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != MAGIC or length + TAIL_BYTES + len(MAGIC) > size_bytes:
        raise Damaged(f"it is no Parquet file of {size_bytes} bytes")
    if length > MAX_FOOTER_BYTES:
        raise CannotMove("the footer is too large")
    return length


@contextmanager
def footer_errors(location: str) -> Iterator[None]:
    """Raise `Damaged` and `CannotMove` as errors that name the file."""
    try:
        yield
    except Damaged as error:
        raise InvalidTableError(f"data file {location!r} is damaged: {error}", location=location) from error
    except CannotMove as error:
        raise UnsupportedError(
            f"the row groups of data file {location!r} cannot be moved: {error}", location=location, reason=str(error)
        ) from error


def bytes_at(stream: BinaryIO, position: int, length: int) -> bytes:
    """Some bytes of a file; raises `Damaged` if it ends before them."""
    stream.seek(position)
    data = stream.read(length)
    if len(data) != length:
        raise Damaged(f"it ends before byte {position + length}")
    return data


def page_range(column: Struct) -> tuple[int, int]:
    """The start and the length of a chunk's pages, from its `ColumnMetaData`."""
    data_start, dictionary_start = column.required_integer(9).value, column.value(11)
    start = dictionary_start if 0 < dictionary_start < data_start else data_start
    return start, column.required_integer(7).value


def _footer(data: bytes, start: int) -> Footer:
    struct = Struct(data)
    _require_fields(struct, _FILE_FIELDS, _ENCRYPTION_FIELDS)
    # Only a signature may follow it.
    if struct.end != len(data):
        raise Damaged("its footer has bytes behind its end")
    schema = struct.raw(2)
    if schema is None:
        raise Damaged("its footer has no schema")
    stored = read_schema(schema)
    row_groups = tuple(_row_group(group, len(stored.leaves), start) for group in struct.structs(4))
    row_count = struct.required_integer(3).value
    if row_count != sum(group.row_count for group in row_groups):
        raise Damaged("its row groups have not as many rows as the file")
    return Footer(
        data=data,
        start=start,
        row_count=row_count,
        common_fields=(struct.value(1), schema, struct.raw(5), struct.raw(6), struct.raw(7)),
        stored=stored,
        row_groups=row_groups,
        full_groups=tuple(group for group in row_groups if group.row_count),
        codecs=frozenset(chunk.codec for group in row_groups for chunk in group.chunks),
    )


def _row_group(struct: Struct, leaves_count: int, file_end: int) -> RowGroup:
    _require_fields(struct, _ROW_GROUP_FIELDS)
    columns = struct.structs(1)
    row_count = struct.required_integer(3).value
    if len(columns) != leaves_count or row_count < 0:
        raise Damaged(f"a row group has {row_count} rows and {len(columns)} columns, its schema has {leaves_count}")
    chunks = tuple(_chunk(column, file_end if row_count else None) for column in columns)
    start, size_bytes = chunks[0].start if chunks else 0, sum(chunk.compressed_bytes for chunk in chunks)
    offset, ordinal = struct.integer(5), struct.integer(7)
    return RowGroup(struct.start, struct.end, row_count, chunks, start, size_bytes, offset, ordinal)


def _chunk(struct: Struct, file_end: int | None) -> ColumnChunk:
    """`file_end` is null for a row group without rows, whose offsets are undefined."""
    if 1 in struct.spans:
        raise CannotMove("columns are in another file")
    _require_fields(struct, _CHUNK_FIELDS, _ENCRYPTION_FIELDS)
    column = struct.struct(3)
    if column is None:
        raise Damaged("a column chunk is not described")
    _require_fields(column, _COLUMN_FIELDS)
    start, compressed_bytes = page_range(column)
    offset, length = struct.integer(4), struct.integer(5)
    if (offset is None) != (length is None):
        raise Damaged("an offset index has a place without a length, or the other way round")
    if file_end is not None:
        ranges = [(start, compressed_bytes, "a column chunk")]
        for holder, field_id, what in (
            (struct, 4, "an offset index"),
            (struct, 6, "a column index"),
            (column, 14, "a bloom filter"),
        ):
            # Some writers write zero for "not there".
            if place := holder.value(field_id):
                ranges.append((place, holder.value(field_id + 1), what))
        for first, size, what in ranges:
            if first < len(MAGIC) or size < 0 or first + size > file_end:
                raise Damaged(f"{what} lies at bytes {first} to {first + size}, outside of the file's data")
    statistics = column.struct(12)
    places = (struct.integer(2), struct.integer(6), *(column.integer(n) for n in (9, 10, 11, 14)))
    return ColumnChunk(
        codec=column.required_integer(4).value,
        start=start,
        compressed_bytes=compressed_bytes,
        positions=tuple(place for place in places if place is not None and place.value),
        offset_index=(offset, length) if offset and length and offset.value else None,
        null_count=None if statistics is None or 3 not in statistics.spans else statistics.value(3),
        has_bloom_filter=bool(column.value(14)),
        has_dictionary=bool(column.value(11)),
        page_encodings=column.raw(13),
    )


def _require_fields(struct: Struct, allowed: set[int], encryption: Set[int] = frozenset()) -> None:
    if struct.spans.keys() & encryption:
        raise CannotMove("columns are encrypted, or the footer is signed")
    if not struct.spans.keys() <= allowed:
        raise CannotMove("the footer has fields that icekeep does not know")


def read_schema(data: bytes) -> StoredSchema:
    """Read the encoded list of a footer's schema elements; raises `Damaged`."""
    nodes = iter(structs_at(data, 0))
    root = next(nodes, None)
    if root is None:
        raise Damaged("its schema is empty")
    leaves: list[Leaf] = []
    fields = [_field(nodes, leaves, True, 1) for _ in range(root.value(5))]
    if next(nodes, None) is not None:
        raise Damaged("its schema has more fields than it says")
    valid = [field for field in fields if field is not None]
    return StoredSchema(tuple(leaves), _struct(valid) if len(valid) == len(fields) else None)


def _field(nodes: Iterator[Struct], leaves: list[Leaf], required: bool, depth: int) -> NestedField | None:
    """The next field with all fields in it; null if Iceberg has no such field, or one has no id."""
    node = next(nodes, None)
    if node is None or depth > 3 * MAX_NESTING:
        raise Damaged("its schema has fewer fields than it says" if node is None else "its schema is nested too deep")
    field_id = node.value(9) if 9 in node.spans else None
    repetition = node.value(3)
    required = required and repetition == _REQUIRED
    annotation = _annotation(node)
    type_: Type | None
    if 1 in node.spans:
        leaves.append(Leaf(field_id, required, node.value(1) == _INT96))
        type_ = _primitive(node, annotation)
    elif annotation in (("map",), ("list",)):
        type_ = _container(annotation == ("map",), node, nodes, leaves, depth)
    else:
        children = [_field(nodes, leaves, required, depth + 1) for _ in range(node.value(5))]
        valid = [child for child in children if child is not None]
        type_ = _struct(valid) if annotation == () and valid and len(valid) == len(children) else None
    if type_ is None or field_id is None or repetition == _REPEATED:
        return None
    return NestedField(field_id=field_id, name="", type=type_)


def _container(is_map: bool, node: Struct, nodes: Iterator[Struct], leaves: list[Leaf], depth: int) -> Type | None:
    """A list or a map of three levels, the middle one repeated; null for any other form."""
    below: list[NestedField | None] = []
    regular = node.value(5) == 1
    for _ in range(node.value(5)):
        middle = next(nodes, None)
        if middle is None:
            raise Damaged("its schema has fewer fields than it says")
        regular = regular and 1 not in middle.spans and middle.value(3) == _REPEATED
        if 1 in middle.spans:
            leaves.append(Leaf(None, False, middle.value(1) == _INT96))
        below += [_field(nodes, leaves, False, depth + 2) for _ in range(middle.value(5))]
    children = [child for child in below if child is not None]
    if not regular or len(children) != len(below) or len(children) != (2 if is_map else 1):
        return None
    if is_map:
        key, value = children
        return MapType(key_id=key.field_id, key=key.type, value_id=value.field_id, value=value.type)
    return ListType(element_id=children[0].field_id, element=children[0].type)


def _primitive(node: Struct, annotation: Annotation) -> PrimitiveType | None:
    physical = node.value(1)
    if annotation[:1] == ("decimal",):
        _, precision, scale = annotation
        return DecimalType("decimal", int(precision), int(scale)) if physical in _DECIMALS else None
    if physical == _FIXED:
        length = node.value(2)
        if annotation == ("uuid",) and length == 16:
            return UUID
        return fixed(length) if annotation == () else None
    name = _TYPES.get((physical, annotation))
    return None if name is None else PrimitiveType(name)


def _annotation(node: Struct) -> Annotation:
    logical = node.struct(10)
    if logical is None:
        if 6 not in node.spans:
            return ()
        converted = node.value(6)
        return ("decimal", node.value(8), node.value(7)) if converted == 5 else _CONVERTED.get(converted, ("other",))
    kind = next(iter(logical.spans)) if len(logical.spans) == 1 else 0
    name = _LOGICAL.get(kind, "other")
    parameters = logical.struct(kind) if name != "other" else None
    if parameters is None:
        return ("other",)
    match name:
        case "decimal":
            return name, parameters.value(2), parameters.value(1)
        case "integer":
            return name, parameters.byte(1), parameters.boolean(2)
        case "time" | "timestamp":
            unit = parameters.struct(2)
            ticks = next(iter(unit.spans), 0) if unit is not None else 0
            return (name, ticks) if name == "time" else (name, ticks, parameters.boolean(1))
    return (name,)


def _bare(type_: Type) -> Type:
    """A type as `read_schema` returns it: only ids and types, without fields that files do not store."""
    if isinstance(type_, PrimitiveType):
        return type_
    is_struct = isinstance(type_, StructType)
    fields = tuple(
        NestedField(field_id=field.field_id, name="" if is_struct else field.name, type=_bare(field.type))
        for field in child_fields(type_)
        if field.type != UNKNOWN
    )
    if is_struct:
        return _struct(fields)
    bare = msgspec.structs.replace(type_, extra={})
    return with_child_fields(bare, fields) if len(fields) == len(child_fields(type_)) else bare


def _struct(fields: Sequence[NestedField]) -> StructType:
    return StructType(tuple(sorted(fields, key=lambda field: field.field_id)))
