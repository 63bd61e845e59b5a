"""Proof that row groups were copied as they are: bytes prove bytes, and nothing is decoded.

A file that was put together of whole row groups holds the rows of its sources if any reader must read both alike: the same
schema and key-values, row groups that are described in the same words except for their places, behind these the same bytes, and
offset indexes that say the same of the same pages. Sources are read again, as is the new file.
"""

from collections.abc import Sequence
from typing import Any, BinaryIO

from icekeep.errors import InvalidTableError
from icekeep.formats.base import translated
from icekeep.formats.parquet.footer import MAGIC, Footer, RowGroup, footer_errors, read_footer
from icekeep.formats.parquet.footer_schema import LINEAGE_IDS
from icekeep.formats.parquet.row_group_shift import offset_indexes
from icekeep.formats.parquet.thrift import Struct
from icekeep.formats.rewrite.task import FilePiece
from icekeep.formats.rewrite.verify import not_as_written, of_new_file
from icekeep.formats.row_hash.multiset import RowSum
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage

_NEAR_BYTES, _FAR_BYTES = MIB, 8 * MIB
"""What is compared at one time: of local files as much as the processor's cache holds, of others few requests."""

_CHUNK_PLACES, _COLUMN_PLACES = (2, 6), (9, 10, 11, 14)
"""Fields that say where something is: it lies so much further on in a copy. Zero is what some writers write for "not there"."""

_OWN_OF_GROUP, _OWN_OF_CHUNK = (1, 5, 7), (2, 3, 4, 5, 6)
"""Fields that are compared by themselves, or are written anew: ordinals, and the places of offset indexes."""


def rows_of_copy(pieces: Sequence[FilePiece], new: DataFile, storage: Storage) -> RowSum:
    """How many rows a file holds that was put together of whole files, in their order, once that is proved.

    The sum has no digest: the rows are those of the files, and none was looked at.

    Raises:
        IcekeepBug: the new file is not there, or is not what its sources make.
        MissingFileError, InvalidTableError, UnsupportedError: a source is not there, is damaged, or cannot be copied.
        UnavailableError: storage is out of reach.
    """
    with of_new_file(new):
        written = read_footer(storage, new.file_path, new.file_size_in_bytes)
    with storage.open(new.file_path) as target:
        copied = _Copied(target, written, new)
        for piece in pieces:
            old = read_footer(storage, piece.location, piece.size_bytes)
            with storage.open(piece.location) as stream:
                copied.take(piece, stream, old)
        copied.finish(pieces)
    return RowSum(new.record_count)


class _Copied:
    """A new file, compared with its sources one after the other."""

    def __init__(self, stream: BinaryIO, written: Footer, new: DataFile) -> None:
        self._stream, self._written, self._new = stream, written, new
        self._group = 0
        self._piece_bytes = _NEAR_BYTES if _is_near(stream) else _FAR_BYTES

    def take(self, piece: FilePiece, stream: BinaryIO, old: Footer) -> None:
        """The row groups that come next are those of a file."""
        groups = [group for group in old.row_groups if group.row_count]
        if not groups:
            return
        if _said_once(self._written) != _said_once(old):
            raise self._differs(f"other columns than {piece.location!r}")
        if not _keeps_lineage(piece, old):
            raise self._differs(f"other row ids than {piece.location!r}")
        copies = self._written.row_groups[self._group : self._group + len(groups)]
        self._group += len(groups)
        shift = copies[0].start - groups[0].start if copies else 0
        with of_new_file(self._new), footer_errors(self._new.file_path):
            found = [_described(self._written, group, shift) for group in copies]
        with footer_errors(piece.location):
            expected = [_described(old, group, 0) for group in groups]
        if found != expected:
            raise self._differs(f"other row groups than {piece.location!r}")
        with of_new_file(self._new), footer_errors(self._new.file_path):
            found_pages = _pages(self._stream, copies, shift)
        with footer_errors(piece.location):
            expected_pages = _pages(stream, groups, 0)
        if found_pages != expected_pages:
            raise self._differs(f"other offset indexes than {piece.location!r}")
        self._compare(piece, stream, shift, old.start)

    def finish(self, pieces: Sequence[FilePiece]) -> None:
        """There are no other rows."""
        expected = sum(piece.record_count for piece in pieces)
        if self._group != len(self._written.row_groups) or self._written.row_count != expected:
            raise self._differs(f"{self._written.row_count} rows where {expected} live ones went in")
        if self._new.record_count != expected:
            raise self._differs(f"{expected} rows where {self._new.record_count} were written")

    def _compare(self, piece: FilePiece, stream: BinaryIO, shift: int, end: int) -> None:
        """All bytes of a file between its magic and its footer lie in the new file, so much further on."""
        start = len(MAGIC)
        stream.seek(start)
        self._stream.seek(start + shift)
        old, new = bytearray(self._piece_bytes), bytearray(self._piece_bytes)
        while start < end:
            if end - start < len(old):
                old, new = bytearray(end - start), bytearray(end - start)
            _fill(stream, old, piece.location)
            with of_new_file(self._new):
                _fill(self._stream, new, self._new.file_path)
            if old != new:
                raise self._differs(f"other bytes than {piece.location!r}")
            start += len(old)

    def _differs(self, what: str) -> Exception:
        return not_as_written(what, [self._new])


def _said_once(footer: Footer) -> tuple[Any, ...]:
    """All that a footer says once for all row groups, and by whom, since statistics are read by that."""
    return footer.version, footer.schema, footer.key_values, footer.created_by, footer.column_orders


def _described(footer: Footer, group: RowGroup, shift: int) -> tuple[Any, ...]:
    """All that a footer says of a row group, its places moved back by the shift."""
    struct = Struct(footer.data, group.data_start)
    chunks = []
    for chunk in struct.structs(1):
        column = chunk.struct(3)
        assert column is not None
        described = _words(column, _COLUMN_PLACES), _places(column, _COLUMN_PLACES, shift)
        chunks.append((_words(chunk, _OWN_OF_CHUNK), _places(chunk, _CHUNK_PLACES, shift), *described))
    # Where a row group begins is not always said rightly by old writers (PARQUET-2078): its columns say it.
    return _words(struct, _OWN_OF_GROUP), chunks


def _pages(stream: BinaryIO, groups: Sequence[RowGroup], shift: int) -> list[tuple[Any, ...] | None]:
    """All that offset indexes say of the pages of each column chunk, their places moved back by the shift.

    Who looks for few rows reads the pages that lie there, and no others.
    """
    stored = offset_indexes(stream, groups)
    found: list[tuple[Any, ...] | None] = []
    for chunk in (chunk for group in groups for chunk in group.chunks):
        if chunk.offset_index is None:
            found.append(None)
            continue
        data = stored[chunk.offset_index.offset.value]
        index = Struct(data)
        pages = [(_words(page, (1,)), page.required_integer(1).value - shift) for page in index.structs(1)]
        found.append((_words(index, (1,)), pages, index.end == len(data)))
    return found


def _words(struct: Struct, others: Sequence[int]) -> dict[int, Any]:
    return {id_: (kind, struct.raw(id_)) for id_, kind in struct.kinds.items() if id_ not in others}


def _places(struct: Struct, field_ids: Sequence[int], shift: int) -> list[int | None]:
    found = [struct.integer(id_) for id_ in field_ids]
    return [None if place is None else place.value and place.value - shift for place in found]


def _keeps_lineage(piece: FilePiece, old: Footer) -> bool:
    """Whether rows have the row ids in another file that they have in this one: they store all of them, or have none."""
    stored = [leaf for leaf in old.stored.leaves if leaf.field_id in LINEAGE_IDS]
    if piece.first_row_id is None:
        return not stored
    whole = [leaf for leaf in stored if leaf.is_required or _is_without_nulls(old, leaf.field_id)]
    return len(whole) == len(LINEAGE_IDS)


def _is_without_nulls(old: Footer, field_id: int | None) -> bool:
    chunks = None if field_id is None else old.chunks_of(field_id)
    return chunks is not None and all(chunk.null_count == 0 for chunk in chunks)


def _fill(stream: Any, buffer: bytearray, location: str) -> None:
    with translated(location), memoryview(buffer) as view:
        filled = 0
        while filled < len(buffer):
            count = stream.readinto(view[filled:])
            if not count:
                raise InvalidTableError("it ends before its data does")
            filled += count


def _is_near(stream: BinaryIO) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError):
        return False
    return True
