"""Thrift's compact protocol, read in place (Thrift, "Compact protocol encoding"): footers, page headers and indexes of Parquet.

The position of every value is kept, so that a few numbers can be replaced while everything else is copied as it is. Bytes may
be damaged or hostile: the work is bounded by their number, and anything wrong with them raises `Damaged`.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from icekeep.spec.avro import encode_long, encode_varint

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)

_INTEGERS, _BOOLEANS = (I16, I32, I64), (TRUE, FALSE)
_WIDTHS = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8, UUID: 16}
_MAX_DEPTH = 64
_MAX_VARINT_BYTES = 10
_LONG_LIST = 15

_ELEMENT_KINDS = (0, BYTE, BYTE, *range(BYTE, 16))
"""The kind whose width an element of each kind has: a boolean takes no byte as a field, but one as an element."""

_CUT_SHORT, _TOO_DEEP = "it is cut short", f"values are nested more than {_MAX_DEPTH} levels deep"


class Damaged(ValueError):
    """Bytes break the protocol, or the definition of the struct they should be."""


class Span(NamedTuple):
    """Where the bytes of a value are, and its kind."""

    kind: int
    start: int
    end: int


class Integer(NamedTuple):
    """A number, and where the bytes that encode it are."""

    value: int
    start: int
    end: int


class Struct:
    """A struct in place; `spans` are its values by field id. Lists and binaries are decoded on access.

    The constructor raises `Damaged` for bytes that are no struct, the accessors for a field of another kind.
    """

    __slots__ = ("_data", "_structs", "end", "spans", "start")
    end: int

    def __init__(self, data: bytes, start: int = 0, depth: int = 0) -> None:
        """`depth` is the number of structs around this one."""
        if depth > _MAX_DEPTH:
            raise Damaged(_TOO_DEEP)
        self._data, self.start = data, start
        self.spans: dict[int, Span] = {}
        self._structs: dict[int, Struct] = {}
        spans, position, field_id = self.spans, start, 0
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
                    self._structs[field_id] = below = Struct(data, position, depth + 1)
                    end = below.end
                else:
                    end = _skip(data, position, kind, depth)
                # `Span(kind, position, end)` in half the time.
                spans[field_id] = tuple.__new__(Span, (kind, position, end))
                position = end
        except IndexError:
            raise Damaged(_CUT_SHORT) from None
        self.end = position + 1

    def raw(self, field_id: int) -> bytes | None:
        """The encoded value of a field, without the field's header."""
        span = self.spans.get(field_id)
        return None if span is None else self._data[span.start : span.end]

    def integer(self, field_id: int) -> Integer | None:
        span = self._span(field_id, *_INTEGERS)
        return None if span is None else Integer(integer_at(self._data, span.start)[0], span.start, span.end)

    def required_integer(self, field_id: int) -> Integer:
        if (number := self.integer(field_id)) is None:
            raise Damaged(f"field {field_id} is not there")
        return number

    def value(self, field_id: int, default: int = 0) -> int:
        span = self._span(field_id, *_INTEGERS)
        return default if span is None else integer_at(self._data, span.start)[0]

    def byte(self, field_id: int) -> int:
        span = self._span(field_id, BYTE)
        return 0 if span is None else self._data[span.start]

    def boolean(self, field_id: int) -> bool:
        span = self._span(field_id, *_BOOLEANS)
        return span is not None and span.kind == TRUE

    def struct(self, field_id: int) -> "Struct | None":
        self._span(field_id, STRUCT)
        return self._structs.get(field_id)

    def required_struct(self, field_id: int) -> "Struct":
        if (struct := self.struct(field_id)) is None:
            raise Damaged(f"field {field_id} is not there")
        return struct

    def structs(self, field_id: int) -> list["Struct"]:
        """The structs of a list; like the other lists, empty where the field is missing."""
        span = self._span(field_id, LIST)
        return [] if span is None else structs_at(self._data, span.start)

    def binary(self, field_id: int) -> bytes | None:
        """The bytes or the text of a field, without their length."""
        span = self._span(field_id, BINARY)
        return None if span is None else self._data[varint_at(self._data, span.start)[1] : span.end]

    def booleans(self, field_id: int) -> list[bool]:
        return [self._data[start] == TRUE for start, _ in self._elements(field_id, *_BOOLEANS)]

    def integers(self, field_id: int) -> list[int]:
        return [integer_at(self._data, start)[0] for start, _ in self._elements(field_id, *_INTEGERS)]

    def binaries(self, field_id: int) -> list[bytes]:
        return [self._data[varint_at(self._data, start)[1] : end] for start, end in self._elements(field_id, BINARY)]

    def _elements(self, field_id: int, *kinds: int) -> list[tuple[int, int]]:
        """The bounds of each element of a list."""
        span = self._span(field_id, LIST)
        if span is None:
            return []
        count, kind, position = _list_head(self._data, span.start, *kinds)
        ends = [position]
        for _ in range(count):
            ends.append(_skip(self._data, ends[-1], _ELEMENT_KINDS[kind], 0))
        return [*pairwise(ends)]

    def _span(self, field_id: int, *kinds: int) -> Span | None:
        span = self.spans.get(field_id)
        if span is not None and span.kind not in kinds:
            raise Damaged(f"field {field_id} is of kind {span.kind}")
        return span


def structs_at(data: bytes, position: int) -> list[Struct]:
    count, _, position = _list_head(data, position, STRUCT)
    structs: list[Struct] = []
    for _ in range(count):
        structs.append(Struct(data, position))
        position = structs[-1].end
    return structs


def varint_at(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned number and its end: `spec.avro.read_varint` with the checks inside, since footers have thousands of numbers."""
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
        raise Damaged(_CUT_SHORT) from None
    if number >> 64:
        raise Damaged("a number has more than 64 bits")
    return number, position


def integer_at(data: bytes, position: int) -> tuple[int, int]:
    """A signed number (zigzag) and its end."""
    number, end = varint_at(data, position)
    return (number >> 1) ^ -(number & 1), end


def binary_bytes(value: bytes) -> bytes:
    """The encoding of bytes or text; numbers with a sign are encoded as Avro's longs are (`encode_long`)."""
    return encode_varint(len(value)) + value


def list_bytes(kind: int, elements: Sequence[bytes]) -> bytes:
    """The encoding of a list of encoded elements of one kind."""
    count = len(elements)
    short = count < _LONG_LIST
    head = bytes([count << 4 | kind]) if short else bytes([_LONG_LIST << 4 | kind]) + encode_varint(count)
    return head + b"".join(elements)


def struct_bytes(fields: Iterable[tuple[int, int, bytes | int | None]]) -> bytes:
    """The encoding of a struct of fields, ascending by id: id, kind, and the value, a number or encoded; null: no field."""
    out = bytearray()
    previous_id = 0
    for field_id, kind, value in fields:
        if value is None:
            continue
        step = field_id - previous_id
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + encode_long(field_id)
        out += encode_long(value) if isinstance(value, int) else value
        previous_id = field_id
    return bytes(out) + b"\0"


def with_integers(data: bytes, start: int, end: int, changes: Iterable[tuple[Integer, int]]) -> bytes:
    """A range of bytes with some of the numbers in it replaced."""
    parts: list[bytes] = []
    for old, value in sorted(changes, key=lambda change: change[0].start):
        parts += [data[start : old.start], encode_long(value)]
        start = old.end
    return b"".join([*parts, data[start:end]])


def _skip(data: bytes, position: int, kind: int, depth: int) -> int:
    """The end of a value; raises `IndexError` or `Damaged` for one that goes beyond the bytes."""
    if I16 <= kind <= I64:
        end = position
        while data[end] > 127:
            end += 1
        if end - position >= _MAX_VARINT_BYTES:
            raise Damaged("a number has too many bytes")
        return end + 1
    if kind in (STRUCT, LIST, SET, MAP):
        if depth >= _MAX_DEPTH:
            raise Damaged(_TOO_DEEP)
        return _skip_nested(data, position, kind, depth + 1)
    if kind == BINARY:
        length, position = varint_at(data, position)
    elif kind in _WIDTHS:
        length = _WIDTHS[kind]
    else:
        raise Damaged(f"there is no kind {kind} of values")
    if position + length > len(data):
        raise Damaged(_CUT_SHORT)
    return position + length


def _skip_nested(data: bytes, position: int, kind: int, depth: int) -> int:
    if kind == STRUCT:
        while head := data[position]:
            position += 1
            if head < 16:
                _, position = varint_at(data, position)
            position = _skip(data, position, head & 15, depth)
        return position + 1
    if kind == MAP:
        count, position = varint_at(data, position)
        if not count:
            return position
        if count > len(data) - position:
            raise Damaged(_CUT_SHORT)
        key_kind, value_kind = _ELEMENT_KINDS[data[position] >> 4], _ELEMENT_KINDS[data[position] & 15]
        position += 1
        for _ in range(count):
            position = _skip(data, _skip(data, position, key_kind, depth), value_kind, depth)
        return position
    count, kind, position = _list_head(data, position)
    kind = _ELEMENT_KINDS[kind]
    for _ in range(count):
        position = _skip(data, position, kind, depth)
    return position


def _list_head(data: bytes, position: int, *kinds: int) -> tuple[int, int, int]:
    """The length of a list, the kind of its elements, which may have to be one of some, and the start of the first."""
    try:
        head = data[position]
        count, position = (head >> 4, position + 1) if head >> 4 < _LONG_LIST else varint_at(data, position + 1)
    except IndexError:
        raise Damaged(_CUT_SHORT) from None
    # Every element takes at least one byte.
    if count > len(data) - position:
        raise Damaged(_CUT_SHORT)
    kind = head & 15
    if count and kinds and kind not in kinds:
        raise Damaged(f"a list has elements of kind {kind}")
    return count, kind, position
