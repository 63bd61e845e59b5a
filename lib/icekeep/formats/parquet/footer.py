"""Thrift's compact protocol, walked in place (thrift, "Compact protocol encoding"): footers and page headers of Parquet.

A struct is opened one level deep and each of its values knows where it lies, so that a few numbers can be replaced while
everything else is copied as it is. Bytes may be damaged or hostile: whatever they say, the work is bounded by their number
and ends in `Damaged`.

The schema of a Parquet file as its footer says it: its leaves, and whether its columns are those of a table's schema.

Columns are compared by field id, as they are read: names, their order, comments and whether a column is required do not
matter, ids and types do, at every level.

The footer of a Parquet file, as far as moving its row groups to another file needs it (Parquet, "File Format").

Read with one request, or two where it is long, and walked without a library: what is not asked for is not decoded, and what
says where something lies in the file is known by its place, so that it can be replaced.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, Schema
from icekeep.spec.types import BINARY as BINARY_of_types
from icekeep.spec.types import (
    BOOLEAN,
    DATE,
    FLOAT,
    INT,
    LONG,
    MAX_NESTING,
    MIB,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
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
from icekeep.spec.types import DOUBLE as DOUBLE_of_types
from icekeep.spec.types import UUID as UUID_of_types
from icekeep.storage.base import Storage

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)

_INTEGERS = (I16, I32, I64)
_WIDTHS = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8, UUID: 16}
_MAX_DEPTH = 64
_MAX_VARINT_BYTES = 10
_LONG_LIST = 15


class Damaged(ValueError):
    """Bytes are not what the protocol, or the struct that they shall be, asks for."""


class Span(NamedTuple):
    """A value in its bytes, and its kind."""

    kind: int
    start: int
    end: int


class Integer(NamedTuple):
    """A whole number, and the bytes that say it."""

    value: int
    start: int
    end: int


class Struct:
    """A struct in place: its values by field id; what lies in them is opened when it is asked for.

    Raises `Damaged` where the bytes are no struct, and, when asked for a field of another kind than it has.
    """

    __slots__ = ("_data", "_spans", "_structs", "end", "start")

    def __init__(self, data: bytes, start: int = 0, depth: int = 0) -> None:
        """`depth` says in how many structs this one lies that were opened with it."""
        self._data = data
        self.start = start
        self._structs: dict[int, Struct] = {}
        self._spans, self.end = _spans(data, start, depth, self._structs)

    @property
    def field_ids(self) -> set[int]:
        """Of the fields that are there."""
        return set(self._spans)

    @property
    def kinds(self) -> Mapping[int, int]:
        """The kinds of all values, by field id."""
        return {field_id: span.kind for field_id, span in self._spans.items()}

    def span(self, field_id: int) -> Span | None:
        """Where a field's value lies."""
        return self._spans.get(field_id)

    def raw(self, field_id: int) -> bytes | None:
        """The bytes of a field's value as they are, without the field's head."""
        span = self._spans.get(field_id)
        return None if span is None else self._data[span.start : span.end]

    def integer(self, field_id: int) -> Integer | None:
        """A field of 16, 32 or 64 bits."""
        span = self._of_kind(field_id, *_INTEGERS)
        if span is None:
            return None
        value, end = integer_at(self._data, span.start)
        return Integer(value, span.start, end)

    def required_integer(self, field_id: int) -> Integer:
        """As `integer`, of a field that must be there."""
        found = self.integer(field_id)
        if found is None:
            raise Damaged(f"field {field_id} is not there")
        return found

    def value(self, field_id: int, default: int = 0) -> int:
        """The number of a field of 16, 32 or 64 bits."""
        span = self._of_kind(field_id, *_INTEGERS)
        return default if span is None else integer_at(self._data, span.start)[0]

    def byte(self, field_id: int) -> int:
        """The number of a field of 8 bits, 0 where it is not there."""
        span = self._of_kind(field_id, BYTE)
        return 0 if span is None else self._data[span.start]

    def boolean(self, field_id: int) -> bool:
        """Whether a field is true; false where it is not there."""
        span = self._of_kind(field_id, TRUE, FALSE)
        return span is not None and span.kind == TRUE

    def struct(self, field_id: int) -> "Struct | None":
        """The struct in a field."""
        self._of_kind(field_id, STRUCT)
        return self._structs.get(field_id)

    def structs(self, field_id: int) -> list["Struct"]:
        """The structs in a list, none where the field is not there."""
        span = self._of_kind(field_id, LIST)
        return [] if span is None else structs_at(self._data, span.start)

    def binary(self, field_id: int) -> bytes | None:
        """The bytes or the text of a field, without their length."""
        span = self._of_kind(field_id, BINARY)
        return None if span is None else self._data[varint_at(self._data, span.start)[1] : span.end]

    def booleans(self, field_id: int) -> list[bool]:
        """The truth values of a list, none where the field is not there."""
        return [self._data[place.start] == TRUE for place in self._elements(field_id, TRUE, FALSE)]

    def integers(self, field_id: int) -> list[int]:
        """The numbers of a list, none where the field is not there."""
        return [integer_at(self._data, place.start)[0] for place in self._elements(field_id, *_INTEGERS)]

    def binaries(self, field_id: int) -> list[bytes]:
        """The bytes or texts of a list, none where the field is not there."""
        places = self._elements(field_id, BINARY)
        return [self._data[varint_at(self._data, place.start)[1] : place.end] for place in places]

    def _elements(self, field_id: int, *kinds: int) -> list[Span]:
        """Where the elements of a list lie."""
        span = self._of_kind(field_id, LIST)
        if span is None:
            return []
        count, kind, position = _list_head(self._data, span.start)
        if count and kind not in kinds:
            raise Damaged(f"field {field_id} is a list of kind {kind}")
        found: list[Span] = []
        for _ in range(count):
            end = _after(self._data, position, _kind_in_list(kind), 0)
            found.append(Span(kind, position, end))
            position = end
        return found

    def _of_kind(self, field_id: int, *kinds: int) -> Span | None:
        span = self._spans.get(field_id)
        if span is not None and span.kind not in kinds:
            raise Damaged(f"field {field_id} is of kind {span.kind}")
        return span


def structs_at(data: bytes, position: int) -> list[Struct]:
    """The structs of the list that begins at a position."""
    found: list[Struct] = []

    def opened(start: int) -> int:
        found.append(Struct(data, start))
        return found[-1].end

    walk_structs(data, position, opened)
    return found


def walk_struct(data: bytes, position: int, opened: Mapping[int, tuple[int, Callable[[int], int]]]) -> int:
    """Go through a struct once, whatever lies in it; returns where it ends.

    Args:
        opened: by field id, the kind that a field must have, and what goes through the value that begins at a position in
            place of this function, and returns where it ends.
    """
    field_id = 0
    try:
        while head := data[position]:
            position += 1
            if head >> 4:
                field_id += head >> 4
            else:
                field_id, position = integer_at(data, position)
            kind, walk = opened.get(field_id, (head & 15, None))
            if kind != head & 15:
                raise Damaged(f"field {field_id} is of kind {head & 15}")
            position = _after(data, position, kind, 0) if walk is None else walk(position)
    except IndexError:
        raise _cut_short() from None
    return position + 1


def walk_structs(data: bytes, position: int, walk: Callable[[int], int]) -> int:
    """Go through a list of structs once, `walk` through each of them; returns where the list ends."""
    count, kind, position = _list_head(data, position)
    if count and kind != STRUCT:
        raise Damaged(f"a list of structs has elements of kind {kind}")
    for _ in range(count):
        position = walk(position)
    return position


def integer_at(data: bytes, position: int) -> tuple[int, int]:
    """A whole number with sign, and where it ends."""
    number, end = varint_at(data, position)
    return (number >> 1) ^ -(number & 1), end


def integer_bytes(number: int) -> bytes:
    """A whole number with sign, as a field or an element of 16, 32 or 64 bits."""
    return _varint_bytes((number << 1) ^ (number >> 63))


def struct_bytes(fields: Iterable[tuple[int, int, bytes]]) -> bytes:
    """A struct of fields in ascending order: id, kind and the value's bytes."""
    out = bytearray()
    previous_id = 0
    for field_id, kind, value in fields:
        step = field_id - previous_id
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + integer_bytes(field_id)
        out += value
        previous_id = field_id
    return bytes(out) + b"\0"


def binary_bytes(value: bytes) -> bytes:
    """Bytes or text as a field or an element."""
    return _varint_bytes(len(value)) + value


def struct_list_bytes(structs: list[bytes]) -> bytes:
    """A list of structs that are bytes already."""
    return list_bytes(STRUCT, structs)


def list_bytes(kind: int, elements: list[bytes]) -> bytes:
    """A list of elements of one kind that are bytes already."""
    count = len(elements)
    short = count < _LONG_LIST
    head = bytes([count << 4 | kind]) if short else bytes([_LONG_LIST << 4 | kind]) + _varint_bytes(count)
    return head + b"".join(elements)


def with_integers(data: bytes, start: int, end: int, changes: Iterable[tuple[Integer, int]]) -> bytes:
    """A range of bytes with some of its numbers replaced."""
    parts: list[bytes] = []
    for old, value in sorted(changes, key=lambda change: change[0].start):
        parts += [data[start : old.start], integer_bytes(value)]
        start = old.end
    return b"".join([*parts, data[start:end]])


def _spans(data: bytes, position: int, depth: int, structs: dict[int, Struct]) -> tuple[dict[int, Span], int]:
    """Where the fields of a struct lie; those that are structs are opened on the way, into `structs`."""
    spans: dict[int, Span] = {}
    field_id = 0
    if depth > _MAX_DEPTH:
        raise _nested_too_deep()
    try:
        while head := data[position]:
            position += 1
            if head >> 4:
                field_id += head >> 4
            else:
                field_id, position = integer_at(data, position)
            kind = head & 15
            if field_id in spans:
                raise Damaged(f"field {field_id} is there twice")
            if kind == STRUCT:
                structs[field_id] = Struct(data, position, depth + 1)
                end = structs[field_id].end
            else:
                end = _after(data, position, kind, depth)
            # As `Span(kind, position, end)`, in half the time.
            spans[field_id] = tuple.__new__(Span, (kind, position, end))
            position = end
    except IndexError:
        raise _cut_short() from None
    return spans, position + 1


def _after(data: bytes, position: int, kind: int, depth: int) -> int:
    """Where a value ends; raises `IndexError` or `Damaged` where that is beyond the bytes."""
    if I16 <= kind <= I64:
        end = position
        while data[end] > 127:
            end += 1
        if end - position >= _MAX_VARINT_BYTES:
            raise Damaged("a number has too many bytes")
        return end + 1
    if kind == BINARY:
        length, position = varint_at(data, position)
        return _within(data, position + length)
    if kind == STRUCT:
        return _after_struct(data, position, depth + 1)
    if kind in (LIST, SET):
        return _after_list(data, position, depth + 1)
    if kind == MAP:
        return _after_map(data, position, depth + 1)
    if kind not in _WIDTHS:
        raise Damaged(f"there is no kind {kind} of values")
    return _within(data, position + _WIDTHS[kind])


def _after_struct(data: bytes, position: int, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise _nested_too_deep()
    while head := data[position]:
        position += 1
        if head < 16:
            _, position = varint_at(data, position)
        position = _after(data, position, head & 15, depth)
    return position + 1


def _after_list(data: bytes, position: int, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise _nested_too_deep()
    count, kind, position = _list_head(data, position)
    kind = _kind_in_list(kind)
    for _ in range(count):
        position = _after(data, position, kind, depth)
    return position


def _after_map(data: bytes, position: int, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise _nested_too_deep()
    count, position = varint_at(data, position)
    if not count:
        return position
    if count > len(data) - position:
        raise _cut_short()
    kinds = data[position]
    key_kind, value_kind = _kind_in_list(kinds >> 4), _kind_in_list(kinds & 15)
    position += 1
    for _ in range(count):
        position = _after(data, _after(data, position, key_kind, depth), value_kind, depth)
    return position


def _kind_in_list(kind: int) -> int:
    """What is true or false takes no byte as a field, but one as an element."""
    return BYTE if kind in (TRUE, FALSE) else kind


def _list_head(data: bytes, position: int) -> tuple[int, int, int]:
    """How many elements a list has, of which kind, and where they begin."""
    try:
        head = data[position]
        count, position = (head >> 4, position + 1) if head >> 4 < _LONG_LIST else varint_at(data, position + 1)
    except IndexError:
        raise _cut_short() from None
    # Every element takes a byte at least.
    if count > len(data) - position:
        raise _cut_short()
    return count, head & 15, position


def varint_at(data: bytes, position: int) -> tuple[int, int]:
    """A whole number without sign, and where it ends."""
    number = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift >= 7 * _MAX_VARINT_BYTES:
                raise Damaged("a number has too many bytes")
    except IndexError:
        raise _cut_short() from None
    if number >> 64:
        raise Damaged("a number has more than 64 bits")
    return number, position


def _varint_bytes(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _within(data: bytes, position: int) -> int:
    if position > len(data):
        raise _cut_short()
    return position


def _nested_too_deep() -> Damaged:
    return Damaged(f"values are nested more than {_MAX_DEPTH} levels deep")


def _cut_short() -> Damaged:
    return Damaged("it is cut short")


LINEAGE_IDS = frozenset((ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id))

_INT32, _INT64, _INT96, _BYTE_ARRAY, _FIXED = 1, 2, 3, 6, 7
_REQUIRED, _REPEATED = 0, 2
_MICROS, _NANOS = 2, 3

Annotation = tuple[str | int, ...]
"""What a node means beyond how it is stored: the name of a logical type, and its parameters."""

_TYPES: dict[tuple[int, Annotation], PrimitiveType] = {
    (0, ()): BOOLEAN,
    (_INT32, ()): INT,
    (_INT32, ("integer", 32, True)): INT,
    (_INT32, ("date",)): DATE,
    (_INT64, ()): LONG,
    (_INT64, ("integer", 64, True)): LONG,
    (_INT64, ("time", _MICROS)): TIME,
    (_INT64, ("timestamp", _MICROS, False)): TIMESTAMP,
    (_INT64, ("timestamp", _MICROS, True)): TIMESTAMPTZ,
    (_INT64, ("timestamp", _NANOS, False)): TIMESTAMP_NS,
    (_INT64, ("timestamp", _NANOS, True)): TIMESTAMPTZ_NS,
    (4, ()): FLOAT,
    (5, ()): DOUBLE_of_types,
    (_BYTE_ARRAY, ()): BINARY_of_types,
    (_BYTE_ARRAY, ("string",)): STRING,
}
_DECIMALS = (_INT32, _INT64, _BYTE_ARRAY, _FIXED)
_CONVERTED: dict[int, Annotation] = {
    0: ("string",),
    1: ("map",),
    2: ("map",),
    3: ("list",),
    6: ("date",),
    8: ("time", _MICROS),
    10: ("timestamp", _MICROS, True),
    17: ("integer", 32, True),
    18: ("integer", 64, True),
}
"""What the older annotation says, where it says something that a column of a table may be."""

_LOGICAL: dict[int, str] = {
    1: "string", 2: "map", 3: "list", 5: "decimal", 6: "date", 7: "time", 8: "timestamp", 10: "integer", 14: "uuid",
}  # fmt: skip


class Leaf(msgspec.Struct, frozen=True):
    """A column that holds values, in the order in which row groups have them.

    Attributes:
        is_required: it and all that it lies in have no nulls.
        is_int96: it is stored as a timestamp of 96 bits, whose order Parquet does not define.
    """

    field_id: int | None
    is_required: bool
    is_int96: bool


class StoredSchema(msgspec.Struct, frozen=True):
    """The columns of a file; `columns` is null where one of them is nothing that a table's column can be, or has no id."""

    leaves: tuple[Leaf, ...]
    columns: StructType | None

    def holds(self, schema: Schema) -> bool:
        """Whether the file has the columns of a schema that files store, and none beside them but those of row lineage."""
        if self.columns is None:
            return False
        own = tuple(field for field in self.columns.fields if field.field_id not in LINEAGE_IDS)
        return StructType(own) == _bare(schema.as_struct())


def read_schema(data: bytes) -> StoredSchema:
    """Read the list of schema elements of a footer; raises `Damaged` where it is none."""
    nodes = iter(structs_at(data, 0))
    root = next(nodes, None)
    if root is None:
        raise Damaged("its schema is empty")
    leaves: list[Leaf] = []
    fields = [_node(nodes, leaves, True, 1) for _ in range(_child_count(root))]
    if next(nodes, None) is not None:
        raise Damaged("its schema has more fields than it says")
    known = [field for field in fields if field is not None]
    return StoredSchema(tuple(leaves), _struct(known) if len(known) == len(fields) else None)


def _node(nodes: Iterator[Struct], leaves: list[Leaf], required: bool, depth: int) -> NestedField | None:
    """The next field with all below it; null where a table can have no such field, or where one lacks an id."""
    node = next(nodes, None)
    if node is None or depth > 3 * MAX_NESTING:
        raise Damaged("its schema has fewer fields than it says" if node is None else "its schema is nested too deep")
    field_id = node.value(9) if node.span(9) is not None else None
    repetition = node.value(3)
    required = required and repetition == _REQUIRED
    if node.span(1) is not None:
        leaves.append(Leaf(field_id, required, node.value(1) == _INT96))
        type_: Type | None = _primitive(node)
    else:
        type_ = _group(node, nodes, leaves, required, depth)
    if type_ is None or field_id is None or repetition == _REPEATED:
        return None
    return NestedField(field_id=field_id, name="", type=type_)


def _group(node: Struct, nodes: Iterator[Struct], leaves: list[Leaf], required: bool, depth: int) -> Type | None:
    annotation = _annotation(node)
    is_map = annotation == ("map",)
    if is_map or annotation == ("list",):
        return _container(is_map, node, nodes, leaves, depth)
    children = [_node(nodes, leaves, required, depth + 1) for _ in range(_child_count(node))]
    known = [child for child in children if child is not None]
    return _struct(known) if annotation == () and known and len(known) == len(children) else None


def _container(is_map: bool, node: Struct, nodes: Iterator[Struct], leaves: list[Leaf], depth: int) -> Type | None:
    """A list or a map in the form of three levels, the one in the middle repeated; null in any other."""
    below: list[NestedField | None] = []
    regular = _child_count(node) == 1
    for _ in range(_child_count(node)):
        middle = next(nodes, None)
        if middle is None:
            raise Damaged("its schema has fewer fields than it says")
        regular = regular and middle.span(1) is None and middle.value(3) == _REPEATED
        if middle.span(1) is not None:
            leaves.append(Leaf(None, False, middle.value(1) == _INT96))
        below += [_node(nodes, leaves, False, depth + 2) for _ in range(_child_count(middle))]
    children = [child for child in below if child is not None]
    if not regular or len(children) != len(below) or len(children) != (2 if is_map else 1):
        return None
    if is_map:
        key, value = children
        return MapType(key_id=key.field_id, key=key.type, value_id=value.field_id, value=value.type)
    return ListType(element_id=children[0].field_id, element=children[0].type)


def _primitive(node: Struct) -> PrimitiveType | None:
    physical, annotation = node.value(1), _annotation(node)
    if annotation[:1] == ("decimal",):
        _, precision, scale = annotation
        return DecimalType("decimal", int(precision), int(scale)) if physical in _DECIMALS else None
    if physical == _FIXED:
        length = node.value(2)
        if annotation == ("uuid",) and length == 16:
            return UUID_of_types
        return fixed(length) if annotation == () else None
    return _TYPES.get((physical, annotation))


def _annotation(node: Struct) -> Annotation:
    logical = node.struct(10)
    if logical is None:
        if node.span(6) is None:
            return ()
        converted = node.value(6)
        return ("decimal", node.value(8), node.value(7)) if converted == 5 else _CONVERTED.get(converted, ("other",))
    (kind,) = logical.field_ids if len(logical.field_ids) == 1 else (0,)
    name = _LOGICAL.get(kind, "other")
    parameters = logical.struct(kind) if name != "other" else None
    if parameters is None:
        return ("other",)
    match name:
        case "decimal":
            return name, parameters.value(2), parameters.value(1)
        case "time":
            return name, _unit(parameters)
        case "timestamp":
            return name, _unit(parameters), parameters.boolean(1)
        case "integer":
            return name, parameters.byte(1), parameters.boolean(2)
    return (name,)


def _unit(parameters: Struct) -> int:
    unit = parameters.struct(2)
    return next(iter(unit.field_ids), 0) if unit is not None else 0


def _child_count(node: Struct) -> int:
    return node.value(5)


def _bare(type_: Type) -> Type:
    """A type as `read_schema` makes it of a file: what files do not store is left out, and so is all but ids and types."""
    if isinstance(type_, PrimitiveType):
        return type_
    fields = tuple(
        NestedField(field_id=field.field_id, name="", type=_bare(field.type))
        for field in child_fields(type_)
        if field.type != UNKNOWN
    )
    if isinstance(type_, StructType):
        return _struct(fields)
    bare = msgspec.structs.replace(type_, extra={})
    return with_child_fields(bare, fields) if len(fields) == len(child_fields(type_)) else bare


def _struct(fields: tuple[NestedField, ...] | list[NestedField]) -> StructType:
    return StructType(tuple(sorted(fields, key=lambda field: field.field_id)))


MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
TAIL_BYTES = 8
"""Behind the footer: its length and the magic."""

MAX_FOOTER_BYTES = 64 * MIB
"""Readers refuse structures of more than 100 MB."""

CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}
"""Parquet's numbers of codecs, by the names that writers' options have."""

_FIRST_READ_BYTES = 64 * 1024

_DATA_PAGES = {0, 3}
_DICTIONARY_ENCODINGS = {2, 8}

_FILE_FIELDS, _ROW_GROUP_FIELDS, _CHUNK_FIELDS, _COLUMN_FIELDS = (set(range(1, n + 1)) for n in (9, 7, 9, 17))


class OffsetIndexPlace(msgspec.Struct, frozen=True):
    """Where the footer says that a column chunk's offset index lies, and how long it is."""

    offset: Integer
    length: Integer


class ColumnChunk(msgspec.Struct, frozen=True):
    """The values of one column in one row group.

    Attributes:
        codec: Parquet's number of it.
        start: the first byte of its first page.
        compressed_bytes: of its pages, their heads among them.
        positions: numbers in the footer that say where in the file something of the chunk lies.
        null_count: by its statistics; `None` where they do not say.
        page_encodings: the bytes of the list that says how many pages have which encoding.
    """

    codec: int
    start: int
    compressed_bytes: int
    positions: tuple[Integer, ...]
    offset_index: OffsetIndexPlace | None
    null_count: int | None
    has_bloom_filter: bool
    page_encodings: bytes | None

    @property
    def is_all_in_dictionary(self) -> bool:
        """Whether its dictionary certainly has every value: some writers leave a bloom filter out then."""
        pages = [] if self.page_encodings is None else structs_at(self.page_encodings, 0)
        encodings = {page.value(2) for page in pages if page.value(1) in _DATA_PAGES and page.value(3)}
        return bool(encodings) and encodings <= _DICTIONARY_ENCODINGS


class RowGroup(msgspec.Struct, frozen=True):
    """A row group; `data_start` and `data_end` are where the footer's bytes describe it."""

    data_start: int
    data_end: int
    row_count: int
    chunks: tuple[ColumnChunk, ...]
    file_offset: Integer | None
    ordinal: Integer | None

    @property
    def compressed_bytes(self) -> int:
        """Of all its pages."""
        return sum(chunk.compressed_bytes for chunk in self.chunks)

    @property
    def start(self) -> int:
        """The first byte of its first column."""
        return self.chunks[0].start if self.chunks else 0


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """A footer in plain text of a file whose columns are in plain text and in the file itself.

    Attributes:
        data: its bytes; `start` is where they begin in the file.
        schema, key_values, created_by, column_orders: the bytes of these fields as they are, null where they are missing.
    """

    data: bytes
    start: int
    version: int
    row_count: int
    schema: bytes
    key_values: bytes | None
    created_by: bytes | None
    column_orders: bytes | None
    stored: StoredSchema
    row_groups: tuple[RowGroup, ...]

    @property
    def codecs(self) -> set[int]:
        """Parquet's numbers of the codecs of all column chunks."""
        return {chunk.codec for group in self.row_groups for chunk in group.chunks}

    def chunks_of(self, field_id: int) -> Sequence[ColumnChunk] | None:
        """The chunks of the first column with a field id, one a row group; null where there is no such column."""
        for position, leaf in enumerate(self.stored.leaves):
            if leaf.field_id == field_id:
                return [group.chunks[position] for group in self.row_groups]
        return None


def read_footer(storage: Storage, location: str, size_bytes: int) -> Footer:
    """Read the footer of a file that is as long as metadata says.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it has another length, or is damaged.
        UnsupportedError: it is encrypted, in part or as a whole, has columns in other files, or a footer that is too large or
            has fields that we do not know; the fact `reason` says which.
    """
    with storage.open(location) as stream, footer_errors(location):
        data = _footer_bytes(stream, size_bytes)
        return _footer(data, size_bytes - TAIL_BYTES - len(data))


@contextmanager
def footer_errors(location: str) -> Iterator[None]:
    """Say of which file `Damaged` bytes or what we do not handle were."""
    try:
        yield
    except Damaged as error:
        raise InvalidTableError(f"data file {location!r} is damaged: {error}", location=location) from error
    except CannotMove as error:
        raise UnsupportedError(
            f"the row groups of data file {location!r} cannot be moved: {error}", location=location, reason=str(error)
        ) from error


class CannotMove(Exception):
    """Row groups of a file cannot be moved; the message is the reason."""


def _footer_bytes(stream: BinaryIO, size_bytes: int) -> bytes:
    tail = bytes_at(stream, max(0, size_bytes - _FIRST_READ_BYTES), min(size_bytes, _FIRST_READ_BYTES))
    if tail[-4:] == ENCRYPTED_MAGIC:
        raise CannotMove("the footer is encrypted")
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != MAGIC or length + TAIL_BYTES + len(MAGIC) > size_bytes:
        raise Damaged(f"it is no Parquet file of {size_bytes} bytes")
    if length > MAX_FOOTER_BYTES:
        raise CannotMove("the footer is too large")
    if length + TAIL_BYTES <= len(tail):
        return tail[-TAIL_BYTES - length : -TAIL_BYTES]
    return bytes_at(stream, size_bytes - TAIL_BYTES - length, length)


def bytes_at(stream: BinaryIO, position: int, length: int) -> bytes:
    """Some bytes of a file; raises `Damaged` where it does not have them all."""
    stream.seek(position)
    data = stream.read(length)
    if len(data) != length:
        raise Damaged(f"it ends before byte {position + length}")
    return data


def _footer(data: bytes, start: int) -> Footer:
    struct = Struct(data)
    _require_plain(struct)
    # Only a signature may follow it.
    if struct.end != len(data):
        raise Damaged("its footer has bytes behind its end")
    _require_known(struct, _FILE_FIELDS)
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
        version=struct.value(1),
        row_count=row_count,
        schema=schema,
        key_values=struct.raw(5),
        created_by=struct.raw(6),
        column_orders=struct.raw(7),
        stored=stored,
        row_groups=row_groups,
    )


def _row_group(struct: Struct, leaves_count: int, file_end: int) -> RowGroup:
    _require_known(struct, _ROW_GROUP_FIELDS)
    columns = struct.structs(1)
    row_count = struct.required_integer(3).value
    if len(columns) != leaves_count or row_count < 0:
        raise Damaged(f"a row group has {row_count} rows and {len(columns)} columns, its schema has {leaves_count}")
    # Writers leave what an empty row group says of its place undefined.
    chunks = tuple(_chunk(column, file_end if row_count else None) for column in columns)
    return RowGroup(struct.start, struct.end, row_count, chunks, struct.integer(5), struct.integer(7))


def _chunk(struct: Struct, file_end: int | None) -> ColumnChunk:
    _require_known(struct, _CHUNK_FIELDS)
    if struct.span(1) is not None:
        raise CannotMove("columns are in another file")
    _require_plain(struct)
    column = struct.struct(3)
    if column is None:
        raise Damaged("a column chunk is not described")
    _require_known(column, _COLUMN_FIELDS)
    start, compressed_bytes = _page_range(column)
    if file_end is not None:
        _require_inside(start, compressed_bytes, file_end, "a column chunk")
        _require_indexes_inside(struct, column, file_end)
    statistics = column.struct(12)
    return ColumnChunk(
        codec=column.required_integer(4).value,
        start=start,
        compressed_bytes=compressed_bytes,
        positions=tuple(
            place
            for place in (struct.integer(2), struct.integer(6), *(column.integer(n) for n in (9, 10, 11, 14)))
            # Zero is what some writers write for "not there".
            if place is not None and place.value
        ),
        offset_index=_offset_index(struct),
        null_count=None if statistics is None or statistics.span(3) is None else statistics.value(3),
        has_bloom_filter=bool(column.value(14)),
        page_encodings=column.raw(13),
    )


def _page_range(column: Struct) -> tuple[int, int]:
    """Where the pages of a chunk begin, and how many bytes they take."""
    data_start, dictionary_start = column.required_integer(9).value, column.value(11)
    start = dictionary_start if 0 < dictionary_start < data_start else data_start
    return start, column.required_integer(7).value


def _offset_index(struct: Struct) -> OffsetIndexPlace | None:
    offset, length = struct.integer(4), struct.integer(5)
    if (offset is None) != (length is None):
        raise Damaged("an offset index has a place without a length, or the other way round")
    return None if offset is None or length is None or not offset.value else OffsetIndexPlace(offset, length)


def _require_indexes_inside(struct: Struct, column: Struct, file_end: int) -> None:
    for kind, holder, offset, length in (
        ("an offset index", struct, 4, 5),
        ("a column index", struct, 6, 7),
        ("a bloom filter", column, 14, 15),
    ):
        if holder.value(offset):
            _require_inside(holder.value(offset), holder.value(length), file_end, kind)


def _require_inside(start: int, length: int, file_end: int, what: str) -> None:
    if start < len(MAGIC) or length < 0 or start + length > file_end:
        raise Damaged(f"{what} lies at bytes {start} to {start + length}, outside of the file's data")


def _require_plain(struct: Struct) -> None:
    """Of a footer and of a column chunk alike, fields 8 and 9 say how it is encrypted."""
    if struct.field_ids & {8, 9}:
        raise CannotMove("columns are encrypted, or the footer is signed")


def _require_known(struct: Struct, known: set[int]) -> None:
    if not struct.field_ids <= known:
        raise CannotMove("the footer has fields that icekeep does not know")
