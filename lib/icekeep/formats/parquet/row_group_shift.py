"""Row groups as the footer of another file describes them: their places moved, and nothing else changed.

What lies between a file's magic and its footer is copied as one range, so everything in it moves by one distance, the shift.
"""

from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from icekeep.formats.parquet.footer import CannotMove, Footer, OffsetIndexPlace, RowGroup, bytes_at
from icekeep.formats.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    Damaged,
    Integer,
    Struct,
    integer_bytes,
    struct_bytes,
    struct_list_bytes,
    with_integers,
)
from icekeep.spec.units import MIB

_OFFSET_INDEX_FIELDS = {1, 2}
_MAX_OFFSET_INDEX_BYTES = 64 * MIB


class MovedFile(msgspec.Struct, frozen=True):
    """A file whose data is in its new place.

    Attributes:
        shift: how many bytes further on that is.
        offset_indexes: with their places moved, by the byte at which they lie in the old file.
    """

    footer: Footer
    shift: int
    offset_indexes: dict[int, bytes]

    def offset_indexes_of(self, group: RowGroup) -> list[bytes]:
        """Of the columns that have one, in order; none of an empty row group, which is left out."""
        places = (chunk.offset_index for chunk in group.chunks) if group.row_count else ()
        return [self.offset_indexes[place.offset.value] for place in places if place is not None]


def moved_row_group(group: RowGroup, file: MovedFile, ordinal: int, indexes_start: int) -> bytes:
    """A row group's description with its places moved, its offset indexes from `indexes_start` on."""
    changes: list[tuple[Integer, int]] = []
    for chunk in group.chunks:
        changes += [(position, position.value + file.shift) for position in chunk.positions]
        if chunk.offset_index is not None:
            length = len(file.offset_indexes[chunk.offset_index.offset.value])
            changes += [(chunk.offset_index.offset, indexes_start), (chunk.offset_index.length, length)]
            indexes_start += length
    if group.file_offset is not None:
        # Not moved but set: old writers said a wrong place here (PARQUET-2078).
        changes.append((group.file_offset, group.start + file.shift))
    if group.ordinal is not None:
        changes.append((group.ordinal, ordinal))
    return with_integers(file.footer.data, group.data_start, group.data_end, changes)


def moved_offset_indexes(source: BinaryIO, footer: Footer, shift: int) -> dict[int, bytes]:
    """The offset indexes of a file with the places of its pages moved, by the byte at which they lie in the file.

    Raises `CannotMove` where one is damaged, or has what we do not know.
    """
    if sum(place.length.value for place in _places_of(footer.row_groups)) > _MAX_OFFSET_INDEX_BYTES:
        raise CannotMove("its offset indexes are too large")
    stored = offset_indexes(source, footer.row_groups)
    return {offset: moved_offset_index(data, shift) for offset, data in stored.items()}


def offset_indexes(source: BinaryIO, row_groups: Sequence[RowGroup]) -> dict[int, bytes]:
    """The offset indexes of some row groups of a file as they are, by the byte at which they lie in the file.

    Raises `Damaged` where the file ends before one of them.
    """
    places = sorted((place.offset.value, place.length.value) for place in _places_of(row_groups))
    if not places:
        return {}
    # They lie side by side in most files: one range brings them all.
    start, end = places[0][0], max(offset + length for offset, length in places)
    together = end - start <= 2 * sum(length for _, length in places) + MIB
    data = bytes_at(source, start, end - start) if together else b""
    return {
        offset: data[offset - start : offset - start + length] if together else bytes_at(source, offset, length)
        for offset, length in places
    }


def _places_of(row_groups: Sequence[RowGroup]) -> list[OffsetIndexPlace]:
    """Where the offset indexes lie of row groups that have rows."""
    chunks = (chunk for group in row_groups if group.row_count for chunk in group.chunks)
    return [chunk.offset_index for chunk in chunks if chunk.offset_index is not None]


def footer_bytes(first: Footer, row_count: int, row_groups: list[bytes]) -> bytes:
    """A footer of row groups that are bytes already, which says all else as `first` does."""
    fields = [
        (1, I32, integer_bytes(first.version)),
        (2, LIST, first.schema),
        (3, I64, integer_bytes(row_count)),
        (4, LIST, struct_list_bytes(row_groups)),
    ]
    for field_id, kind, value in (
        (5, LIST, first.key_values),
        (6, BINARY, first.created_by),
        (7, LIST, first.column_orders),
    ):
        if value is not None:
            fields.append((field_id, kind, value))
    return struct_bytes(fields)


def moved_offset_index(data: bytes, shift: int) -> bytes:
    """An offset index with the places of its pages moved (Parquet, `OffsetIndex`)."""
    try:
        index = Struct(data)
        places = [page.required_integer(1) for page in index.structs(1)]
    except Damaged as error:
        # Whoever reads all rows does without it, so the file may still be encoded again.
        raise CannotMove("an offset index is damaged") from error
    if index.end != len(data) or not index.field_ids <= _OFFSET_INDEX_FIELDS:
        raise CannotMove("an offset index has fields that icekeep does not know")
    return with_integers(data, 0, len(data), [(place, place.value + shift) for place in places])
