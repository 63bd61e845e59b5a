"""Thrift's compact protocol, walked in place (thrift, "Compact protocol encoding"): footers and page headers of Parquet.

A struct is opened one level deep and each of its values knows where it lies, so that a few numbers can be replaced while
everything else is copied as it is. Bytes may be damaged or hostile: whatever they say, the work is bounded by their number
and ends in `Damaged`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

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
