"""Whole row groups of Parquet files put into one file, byte for byte: no page is decoded.

All that lies between a file's magic and its footer is copied as one range, so that whatever the footer says of places in the
file moves by one distance. Only offset indexes, which name the places of pages, are written anew. It is allowed where a reader
cannot tell the new file from one that was decoded and encoded again; `examine` says of each file whether it is.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.formats.parquet.footer import (
    CODECS,
    MAGIC,
    TAIL_BYTES,
    ColumnChunk,
    Footer,
    bytes_at,
    footer_errors,
    read_footer,
)
from icekeep.formats.parquet.footer_schema import LINEAGE_IDS
from icekeep.formats.parquet.row_group_shift import MovedFile, footer_bytes, moved_offset_indexes, moved_row_group
from icekeep.formats.parquet.thrift import Damaged, Struct
from icekeep.formats.rewrite.stitched_metrics import stitched_metrics
from icekeep.formats.rewrite.task import FilePiece
from icekeep.formats.write_options import ParquetOptions, WriteOptions
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metrics_modes import MetricsMode, metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage
from icekeep.storage.copying import copy_range

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
