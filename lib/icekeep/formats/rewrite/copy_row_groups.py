"""What a manifest says of a file that several others were put together to: the sum of what it says of these.

Whole row groups of Parquet files put into one file, byte for byte: no page is decoded.

All that lies between a file's magic and its footer is copied as one range, so that whatever the footer says of places in the
file moves by one distance. Only offset indexes, which name the places of pages, are written anew. It is allowed where a reader
cannot tell the new file from one that was decoded and encoded again; `examine` says of each file whether it is.

Proof that row groups were copied as they are: bytes prove bytes, and nothing is decoded.

A file that was put together of whole row groups holds the rows of its sources if any reader must read both alike: the same
schema and key-values, row groups that are described in the same words except for their places, behind these the same bytes, and
offset indexes that say the same of the same pages. Sources are read again, as is the new file.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec

from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, UnsupportedError
from icekeep.formats.base import FileMetrics, translated
from icekeep.formats.options import ParquetOptions, WriteOptions
from icekeep.formats.parquet.footer import (
    CODECS,
    LINEAGE_IDS,
    MAGIC,
    TAIL_BYTES,
    ColumnChunk,
    Damaged,
    Footer,
    RowGroup,
    Struct,
    bytes_at,
    footer_errors,
    read_footer,
)
from icekeep.formats.parquet.pages import MovedFile, footer_bytes, moved_offset_indexes, moved_row_group, offset_indexes
from icekeep.formats.rewrite.task import FilePiece
from icekeep.formats.rewrite.verify import not_as_written, of_new_file
from icekeep.formats.row_hash import RowSum
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import MetricsMode, metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB, PrimitiveType
from icekeep.spec.values import are_crossed, lower_bound, upper_bound, value_from_bytes
from icekeep.storage.base import Storage
from icekeep.storage.copying import copy_range

_Metric = Callable[[DataFile], Mapping[int, Any] | None]


def stitched_metrics(
    files: Sequence[DataFile], schema: Schema, modes: Mapping[int, MetricsMode], split_offsets: tuple[int, ...]
) -> FileMetrics:
    """The metrics of all the files' rows together.

    A count is known where all files tell it, a bound where all files tell it that have values of the column. What the modes
    do not keep is dropped and bounds are cut to their lengths; what the files lack stays unknown, since no value is looked at.

    Args:
        files: as their manifest entries describe them, with the types of `schema`.
        modes: what to keep of each column, by field id.
        split_offsets: of the new file.
    """
    counted = [field_id for field_id, mode in modes.items() if mode.counts]
    sizes = _sums(files, lambda file: file.column_sizes, counted)
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for field_id, mode in modes.items():
        type_ = schema.fields_by_id[field_id].type
        # A crossed pair says nothing of its file; put together with others it would not show any more.
        if mode.bounds and isinstance(type_, PrimitiveType) and not _any_crossed(files, field_id, type_):
            least = _bounds(files, lambda file: file.lower_bounds, field_id, type_)
            greatest = _bounds(files, lambda file: file.upper_bounds, field_id, type_)
            if least:
                lower[field_id] = lower_bound(type_, min(least), mode.length)
            if greatest and (bound := upper_bound(type_, max(greatest), mode.length)) is not None:
                upper[field_id] = bound
    return FileMetrics(
        record_count=sum(file.record_count for file in files),
        column_sizes=sizes or None,
        value_counts=_sums(files, lambda file: file.value_counts, counted),
        null_value_counts=_sums(files, lambda file: file.null_value_counts, counted),
        nan_value_counts=_sums(files, lambda file: file.nan_value_counts, counted),
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=split_offsets,
    )


def _sums(files: Sequence[DataFile], metric: _Metric, field_ids: Iterable[int]) -> dict[int, int]:
    """The sums of a metric, of the columns for which every file tells it."""
    sums: dict[int, int] = {}
    for field_id in field_ids:
        counts = [(metric(file) or {}).get(field_id) for file in files]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            sums[field_id] = sum(known)
    return sums


def _bounds(files: Sequence[DataFile], metric: _Metric, field_id: int, type_: PrimitiveType) -> list[Any]:
    """The files' bounds of a column as values; none where one is missing or says nothing."""
    bounds: list[Any] = []
    for file in files:
        bound = (metric(file) or {}).get(field_id)
        if bound is None:
            if not _has_no_values(file, field_id):
                return []
            continue
        value = _value(type_, bound)
        if value is None or value != value:
            return []
        bounds.append(value)
    return bounds


def _any_crossed(files: Sequence[DataFile], field_id: int, type_: PrimitiveType) -> bool:
    pairs = (((file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)) for file in files)
    return any(are_crossed(*(_value(type_, bound) for bound in pair)) for pair in pairs if pair[0] != pair[1])


def _value(type_: PrimitiveType, bound: bytes | None) -> Any:
    """A bound as a value; null where it is none, of a type without order: readers can make nothing of it either."""
    try:
        return None if bound is None else value_from_bytes(type_, bound)
    except IcekeepError:
        return None


def _has_no_values(file: DataFile, field_id: int) -> bool:
    """Whether all values of a column are known to be null or NaN, which bounds do not count."""
    values, nulls, nans = (
        (counts or {}).get(field_id) for counts in (file.value_counts, file.null_value_counts, file.nan_value_counts)
    )
    return values is not None and nulls is not None and nulls + (nans or 0) == values


STITCH_FLOOR_BYTES = 32 * MIB
"""Smaller row groups are better merged: a scan of many takes 1.6 times as long."""

MAX_ROW_GROUPS = 32_767
"""Row groups are numbered with 16 bits."""

MAX_STITCHED_FOOTER_BYTES = 64 * MIB
"""Of the footers of all files that are put into one."""

_PAGE_HEAD_BYTES = 4 * 1024


class StitchRules(msgspec.Struct, frozen=True, kw_only=True):
    """What stitched files of a table must be like.

    Attributes:
        schema: of the table as it is now.
        options: how the table's files are written: stitched ones have that format and codec.
        floor_bytes: the least size of a file's row groups on average, as compressed.
    """

    schema: Schema
    options: WriteOptions
    floor_bytes: int = STITCH_FLOOR_BYTES


class Stitchable(msgspec.Struct, frozen=True, kw_only=True):
    """A file that can be stitched.

    Files with equal keys can be put into one, up to `MAX_ROW_GROUPS` and `MAX_STITCHED_FOOTER_BYTES` in all.
    """

    key: bytes
    row_groups_count: int
    footer_bytes: int


class NotStitchable(msgspec.Struct, frozen=True):
    """A file that must be decoded and encoded again; `reason` is a clause without the file's name, one of a few."""

    reason: str


def examine(piece: FilePiece, rules: StitchRules, storage: Storage) -> Stitchable | NotStitchable:
    """Say whether a file can be stitched: what is known without its footer first, then by one or two ranged reads.

    Not looked at, since the caller knows: whether the rows must be sorted or go to other partitions, whether the entry has
    key metadata, and the format version. A `piece` says all else.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it has another length than its entry says, or a damaged footer.
        UnsupportedError: the storage does not serve its location.
    """
    if reason := _reason_before_reading(piece, rules):
        return NotStitchable(reason)
    try:
        footer = read_footer(storage, piece.location, piece.size_bytes)
        with footer_errors(piece.location):
            reason = _unsafe(footer, piece.first_row_id) or _unwanted(footer, rules)
    except UnsupportedError as error:
        if "reason" not in error.facts:
            raise
        return NotStitchable(error.facts["reason"])
    if reason:
        return NotStitchable(reason)
    groups_count = sum(1 for group in footer.row_groups if group.row_count)
    return Stitchable(key=_key(footer), row_groups_count=groups_count, footer_bytes=len(footer.data))


def stitch(
    files: Sequence[DataFile],
    storage: Storage,
    location: str,
    *,
    schema: Schema,
    modes: Mapping[int, MetricsMode] | None = None,
    sort_order_id: int | None = 0,
) -> DataFile:
    """Put files into one, in order, and return what a manifest says of it; if anything fails, there is none.

    The new file is durable, and its footer and the first page of each of its row groups have been read back.

    Args:
        files: of one partition, as their manifest entries describe them, metrics included; no delete may reach them, and
            `examine` must have given all of them one key.
        location: of the new file.
        schema: of the table as it is now.
        modes: what to keep of each column, by field id; `None` means what a table without properties keeps.
        sort_order_id: of the new file.

    Raises:
        MissingFileError: a file of the table is not there.
        InvalidTableError: a file is damaged, or is not what its entry says.
        UnsupportedError: the files cannot be put into one; encode them again.
        FileExistsError: the name is taken.
    """
    footers = [_checked_footer(file, storage) for file in files]
    _validate_together(footers)
    with storage.write(location) as stream:
        size_bytes = _write(files, footers, storage, stream, location)
    try:
        written = _verified(storage, location, size_bytes, footers)
        kept = metrics_modes({}, schema) if modes is None else modes
        offsets = tuple(sorted(group.start for group in written.row_groups))
        metrics = stitched_metrics(files, schema, kept, offsets)
    except BaseException:
        storage.delete_many([location])
        raise
    return DataFile(
        file_path=location,
        file_format="PARQUET",
        spec_id=files[0].spec_id,
        partition=files[0].partition,
        file_size_in_bytes=size_bytes,
        sort_order_id=sort_order_id,
        **msgspec.structs.asdict(metrics),
    )


def _reason_before_reading(piece: FilePiece, rules: StitchRules) -> str | None:
    encoding = rules.options.encoding
    if piece.file_format.upper() != "PARQUET" or not isinstance(encoding, ParquetOptions):
        return "the format is not Parquet"
    if piece.deletes:
        return "deletes reach it"
    if piece.split is not None:
        return "it is read in parts"
    if not piece.record_count:
        return "it has no rows"
    if piece.size_bytes < rules.floor_bytes:
        return _too_small(rules)
    return None


def _unsafe(footer: Footer, first_row_id: int | None) -> str | None:
    """Why the file's rows would not mean the same in another file."""
    if any(leaf.is_int96 for leaf in footer.stored.leaves):
        return "it has timestamps of 96 bits"
    if first_row_id is not None and not all(_is_without_nulls(footer, field_id) for field_id in LINEAGE_IDS):
        return "its rows inherit their row ids"
    if first_row_id is None and any(leaf.field_id in LINEAGE_IDS for leaf in footer.stored.leaves):
        # They count for nothing there, and would in a file that has a first row id.
        return "it stores row ids that its manifest does not know of"
    return None


def _unwanted(footer: Footer, rules: StitchRules) -> str | None:
    """Why the file is not what the table would write now."""
    encoding = rules.options.encoding
    if not footer.stored.holds(rules.schema):
        return "its columns are not those of the table's schema"
    if not isinstance(encoding, ParquetOptions) or footer.codecs != {CODECS[encoding.compression]}:
        return "its codec is not the table's"
    if not all(_has_bloom_filters(footer, field_id) for field_id in _wanted_bloom_filters(encoding, rules.schema)):
        return "it lacks bloom filters that the table asks for"
    sizes = [group.compressed_bytes for group in footer.row_groups if group.row_count]
    if not sizes or sum(sizes) < rules.floor_bytes * len(sizes):
        return _too_small(rules)
    return None


def _wanted_bloom_filters(encoding: ParquetOptions, schema: Schema) -> list[int]:
    """Field ids of the columns that shall have one."""
    wanted = [name for name, is_wanted in encoding.columns.bloom_filters.items() if is_wanted]
    return [schema.ids_by_name[name] for name in wanted if name in schema.ids_by_name]


def _has_bloom_filters(footer: Footer, field_id: int) -> bool:
    chunks = footer.chunks_of(field_id) or ()
    return all(chunk.has_bloom_filter or chunk.is_all_in_dictionary for chunk in chunks)


def _too_small(rules: StitchRules) -> str:
    return f"its row groups are smaller than {rules.floor_bytes:,} bytes"


def _is_without_nulls(footer: Footer, field_id: int) -> bool:
    """Whether the file stores a column that certainly has a value in every row."""
    required = any(leaf.field_id == field_id and leaf.is_required for leaf in footer.stored.leaves)
    chunks = footer.chunks_of(field_id)
    return required or (chunks is not None and all(chunk.null_count == 0 for chunk in chunks))


def _key(footer: Footer) -> bytes:
    """A digest of all that a file says once for all its row groups, and of who wrote it: statistics are read by that."""
    digest = hashlib.sha256(footer.version.to_bytes(8, "little", signed=True))
    for field in (footer.schema, footer.key_values, footer.created_by, footer.column_orders):
        digest.update(b"-" if field is None else len(field).to_bytes(8, "little") + field)
    return digest.digest()


def _checked_footer(file: DataFile, storage: Storage) -> Footer:
    footer = read_footer(storage, file.file_path, file.file_size_in_bytes)
    if footer.row_count != file.record_count:
        raise InvalidTableError(
            f"data file {file.file_path!r} has {footer.row_count} rows where its manifest says {file.record_count}",
            location=file.file_path,
        )
    reason = "it is encrypted" if file.key_metadata is not None else _unsafe(footer, file.first_row_id)
    if reason:
        raise UnsupportedError(
            f"the row groups of data file {file.file_path!r} cannot be moved: {reason}",
            location=file.file_path,
            reason=reason,
        )
    return footer


def _validate_together(footers: Sequence[Footer]) -> None:
    if len({_key(footer) for footer in footers}) > 1:
        raise UnsupportedError("files whose footers differ in more than their row groups cannot be put into one")
    groups_count = sum(1 for footer in footers for group in footer.row_groups if group.row_count)
    if groups_count > MAX_ROW_GROUPS:
        raise UnsupportedError(f"{groups_count} row groups cannot be put into one file, only {MAX_ROW_GROUPS}")
    if sum(len(footer.data) for footer in footers) > MAX_STITCHED_FOOTER_BYTES:
        raise UnsupportedError("the footer of the files, put into one, would be too large")
    if not groups_count:
        raise IcekeepBug("there are no rows to put into one file")


def _write(
    files: Sequence[DataFile], footers: Sequence[Footer], storage: Storage, stream: BinaryIO, location: str
) -> int:
    """Write the file; returns its size in bytes."""
    stream.write(MAGIC)
    end = len(MAGIC)
    moved: list[MovedFile] = []
    for file, footer in zip(files, footers, strict=True):
        shift = end - len(MAGIC)
        with storage.open(file.file_path) as source, footer_errors(file.file_path):
            if source.read(len(MAGIC)) != MAGIC:
                raise Damaged("it does not begin as a Parquet file does")
            _check_pages(source, footer)
            copy_range(source, file.file_path, stream, location, len(MAGIC), footer.start - len(MAGIC))
            moved.append(MovedFile(footer, shift, moved_offset_indexes(source, footer, shift)))
        end += footer.start - len(MAGIC)
    row_groups: list[bytes] = []
    for moved_file in moved:
        for group in moved_file.footer.row_groups:
            if group.row_count:
                row_groups.append(moved_row_group(group, moved_file, len(row_groups), end))
                end += sum(map(len, moved_file.offset_indexes_of(group)))
    for moved_file in moved:
        for group in moved_file.footer.row_groups:
            stream.write(b"".join(moved_file.offset_indexes_of(group)))
    new_footer = footer_bytes(footers[0], sum(footer.row_count for footer in footers), row_groups)
    stream.write(new_footer + len(new_footer).to_bytes(4, "little") + MAGIC)
    return end + len(new_footer) + TAIL_BYTES


def _verified(storage: Storage, location: str, size_bytes: int, footers: Sequence[Footer]) -> Footer:
    """The footer of the new file as it was read back; raises `IcekeepBug` if it is not as it was meant."""
    try:
        written = read_footer(storage, location, size_bytes)
        with storage.open(location) as stream, footer_errors(location):
            _check_pages(stream, written)
    except (InvalidTableError, UnsupportedError) as error:
        raise IcekeepBug(f"a file that was put together cannot be read: {error.message}", location=location) from error
    old_counts = [group.row_count for footer in footers for group in footer.row_groups if group.row_count]
    if _key(written) != _key(footers[0]) or [group.row_count for group in written.row_groups] != old_counts:
        raise IcekeepBug(f"file {location!r} does not have the row groups that were put into it", location=location)
    return written


def _check_pages(stream: BinaryIO, footer: Footer) -> None:
    """Raise `Damaged` unless each row group begins with the head of a page that fits into its column chunk."""
    for group in footer.row_groups:
        if not group.row_count or not group.chunks:
            continue
        chunk = group.chunks[0]
        # The head of a page: its kind, and its size before and after compression.
        if not 0 <= _page_head(stream, chunk).required_integer(3).value <= chunk.compressed_bytes:
            raise Damaged("a page is longer than its column chunk")


def _page_head(stream: BinaryIO, chunk: ColumnChunk) -> Struct:
    """The head of a chunk's first page; it may hold bounds of any length."""
    length = _PAGE_HEAD_BYTES
    while True:
        data = bytes_at(stream, chunk.start, min(length, chunk.compressed_bytes))
        try:
            return Struct(data)
        except Damaged:
            if length >= chunk.compressed_bytes:
                raise
        length *= 16


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
    whole = [leaf for leaf in stored if leaf.is_required or _copied_bytes_is_without_nulls(old, leaf.field_id)]
    return len(whole) == len(LINEAGE_IDS)


def _copied_bytes_is_without_nulls(old: Footer, field_id: int | None) -> bool:
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
