"""Whole row groups of Parquet files stitched into one file, byte for byte: no page is decoded.

Everything between the magic and the footer of a file is copied as one range, so that all file offsets move by one distance, the
shift. Only offset indexes, which have the offsets of pages, are rewritten. `examine` allows it for files of which a reader cannot
distinguish the copy from one that was decoded and encoded again; `proof` proves the copy.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import msgspec

from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, UnsupportedError
from icekeep.formats.base import FileMetrics
from icekeep.formats.options import ParquetOptions, WriteOptions
from icekeep.formats.parquet.footer import (
    CODECS,
    LINEAGE_IDS,
    MAGIC,
    TAIL_BYTES,
    CannotMove,
    Footer,
    bytes_at,
    footer_errors,
    read_footer,
)
from icekeep.formats.parquet.pages import footer_bytes, moved_offset_index, offset_indexes
from icekeep.formats.parquet.thrift import Damaged, Integer, Struct, with_integers
from icekeep.formats.rewrite.task import FilePiece
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import MetricsMode, metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB, PrimitiveType
from icekeep.spec.values import are_crossed, lower_bound, upper_bound, value_from_bytes
from icekeep.storage.base import Storage
from icekeep.storage.local.links import copy_range

STITCH_FLOOR_BYTES = 32 * MIB
"""Smaller row groups are better merged: a scan of many takes 1.6 times as long."""

MAX_ROW_GROUPS = 32_767
"""The ordinal of a row group has 16 bits."""

MAX_STITCHED_FOOTER_BYTES = 64 * MIB
"""The footers of all files that are stitched into one."""

_MAX_OFFSET_INDEX_BYTES = 64 * MIB
_PAGE_HEAD_BYTES = 4 * 1024


class StitchRules(msgspec.Struct, frozen=True, kw_only=True):
    """What files of a table must be like to be stitched: `floor_bytes` is the least average size of compressed row groups."""

    schema: Schema
    options: WriteOptions
    floor_bytes: int = STITCH_FLOOR_BYTES


class Stitchable(msgspec.Struct, frozen=True, kw_only=True):
    """A file that can be stitched with others of equal `key`, up to `MAX_ROW_GROUPS` and `MAX_STITCHED_FOOTER_BYTES` in all."""

    key: bytes
    row_groups_count: int
    footer_bytes: int


class NotStitchable(msgspec.Struct, frozen=True):
    """A file that must be decoded and encoded again; `reason` is one of a few clauses without the file's name."""

    reason: str


def examine(piece: FilePiece, rules: StitchRules, storage: Storage) -> Stitchable | NotStitchable:
    """Whether a file can be stitched, found by `piece`, then by one or two ranged reads of its footer.

    The caller checks whether rows must be sorted or change their partition, whether the entry has key metadata, and the format
    version. Raises as `read_footer`, but for a file that must be encoded again.
    """
    encoding, size_bytes = rules.options.encoding, piece.size_bytes
    too_small = f"its row groups are smaller than {rules.floor_bytes:,} bytes"
    if piece.file_format.upper() != "PARQUET" or not isinstance(encoding, ParquetOptions):
        return NotStitchable("the format is not Parquet")
    for is_other, reason in (
        (piece.deletes, "deletes reach it"),
        (piece.split is not None, "it is read in parts"),
        (not piece.record_count, "it has no rows"),
        (size_bytes < rules.floor_bytes, too_small),
    ):
        if is_other:
            return NotStitchable(reason)
    try:
        footer = read_footer(storage, piece.location, size_bytes)
        with footer_errors(piece.location):
            problem = _unsafe(footer, piece.first_row_id) or _unwanted(footer, encoding, rules.schema)
    except UnsupportedError as error:
        if "reason" not in error.facts:
            raise
        return NotStitchable(error.facts["reason"])
    groups = footer.full_groups
    if problem or sum(group.compressed_bytes for group in groups) < rules.floor_bytes * max(1, len(groups)):
        return NotStitchable(problem or too_small)
    # All that the footers of stitched files must have in common.
    version, *fields = footer.common_fields
    digest = hashlib.sha256(version.to_bytes(8, "little", signed=True))
    for field in fields:
        digest.update(b"-" if field is None else len(field).to_bytes(8, "little") + field)
    return Stitchable(key=digest.digest(), row_groups_count=len(groups), footer_bytes=len(footer.data))


def _unsafe(footer: Footer, first_row_id: int | None) -> str | None:
    """Why the file's rows would be read differently in another file."""
    if any(leaf.is_int96 for leaf in footer.stored.leaves):
        return "it has timestamps of 96 bits"
    if first_row_id is not None and not all(map(footer.has_no_nulls, LINEAGE_IDS)):
        return "its rows inherit their row ids"
    if first_row_id is None and any(leaf.field_id in LINEAGE_IDS for leaf in footer.stored.leaves):
        # Readers ignore them in this file, but not in one that has a first row id.
        return "it stores row ids that its manifest does not know of"
    return None


def _unwanted(footer: Footer, encoding: ParquetOptions, schema: Schema) -> str | None:
    if not footer.stored.holds(schema):
        return "its columns are not those of the table's schema"
    if footer.codecs != {CODECS[encoding.compression]}:
        return "its codec is not the table's"
    for name, is_asked_for in encoding.columns.bloom_filters.items():
        chunks = (footer.chunks_of(schema.ids_by_name[name]) or ()) if name in schema.ids_by_name else ()
        if is_asked_for and not all(chunk.has_bloom_filter or chunk.is_all_in_dictionary for chunk in chunks):
            return "it lacks bloom filters that the table asks for"
    return None


def stitch(
    files: Sequence[DataFile],
    storage: Storage,
    location: str,
    *,
    schema: Schema,
    modes: Mapping[int, MetricsMode] | None = None,
    sort_order_id: int | None = 0,
) -> DataFile:
    """Write the row groups of files of one partition into one, in order; if anything fails, no file is left.

    The new file is durable, and its footer and the first page of each of its row groups have been read back. The files have the
    metrics of their manifest entries; no delete may reach them, and `examine` must have returned the same key for all. `modes`
    are by field id; null for those of a table without properties. Raises `UnsupportedError` if the files cannot be stitched:
    encode them again.
    """
    footers = [_checked_footer(file, storage) for file in files]
    if len({footer.common_fields for footer in footers}) > 1:
        raise UnsupportedError("files whose footers differ in more than their row groups cannot be put into one")
    groups_count = sum(len(footer.full_groups) for footer in footers)
    if groups_count > MAX_ROW_GROUPS:
        raise UnsupportedError(f"{groups_count} row groups cannot be put into one file, only {MAX_ROW_GROUPS}")
    if sum(len(footer.data) for footer in footers) > MAX_STITCHED_FOOTER_BYTES:
        raise UnsupportedError("the footer of the files, put into one, would be too large")
    if not groups_count:
        raise IcekeepBug("there are no rows to put into one file")
    with storage.write(location) as stream:
        size_bytes = _write(files, footers, storage, stream, location)
    try:
        written = _read_back(storage, location, size_bytes, footers)
        metrics = stitched_metrics(
            files,
            schema,
            metrics_modes({}, schema) if modes is None else modes,
            tuple(sorted(group.start for group in written.row_groups)),
        )
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


def _write(
    files: Sequence[DataFile], footers: Sequence[Footer], storage: Storage, stream: BinaryIO, location: str
) -> int:
    """Write data, then all offset indexes, then the footer; returns the size in bytes."""
    stream.write(MAGIC)
    end = len(MAGIC)
    moved: list[tuple[Footer, int, dict[int, bytes]]] = []
    for file, footer in zip(files, footers, strict=True):
        shift, length = end - len(MAGIC), footer.start - len(MAGIC)
        with storage.open(file.file_path) as source, footer_errors(file.file_path):
            if source.read(len(MAGIC)) != MAGIC:
                raise Damaged("it does not begin as a Parquet file does")
            _check_first_pages(source, footer)
            copy_range(source, file.file_path, stream, location, len(MAGIC), length)
            indexed = (chunk.offset_index for group in footer.full_groups for chunk in group.chunks)
            if sum(index[1].value for index in indexed if index) > _MAX_OFFSET_INDEX_BYTES:
                raise CannotMove("its offset indexes are too large")
            stored = offset_indexes(source, footer).items()
            moved.append((footer, shift, {place: moved_offset_index(data, shift) for place, data in stored}))
        end += length
    row_groups: list[bytes] = []
    indexes: list[bytes] = []
    for footer, shift, of_file in moved:
        for group in footer.full_groups:
            changes: list[tuple[Integer, int]] = []
            for chunk in group.chunks:
                changes += [(position, position.value + shift) for position in chunk.positions]
                if chunk.offset_index is not None:
                    place, size = chunk.offset_index
                    indexes.append(of_file[place.value])
                    changes += [(place, end), (size, len(indexes[-1]))]
                    end += len(indexes[-1])
            if group.file_offset is not None:
                # Set and not shifted: old writers have a wrong offset here (PARQUET-2078).
                changes.append((group.file_offset, group.start + shift))
            if group.ordinal is not None:
                changes.append((group.ordinal, len(row_groups)))
            row_groups.append(with_integers(footer.data, group.data_start, group.data_end, changes))
    stream.write(b"".join(indexes))
    new_footer = footer_bytes(footers[0], sum(footer.row_count for footer in footers), row_groups)
    stream.write(new_footer + len(new_footer).to_bytes(4, "little") + MAGIC)
    return end + len(new_footer) + TAIL_BYTES


def _read_back(storage: Storage, location: str, size_bytes: int, footers: Sequence[Footer]) -> Footer:
    """The footer of the new file; raises `IcekeepBug` unless it has the row groups of all the others."""
    try:
        written = read_footer(storage, location, size_bytes)
        with storage.open(location) as stream, footer_errors(location):
            _check_first_pages(stream, written)
    except (InvalidTableError, UnsupportedError) as error:
        raise IcekeepBug(f"a file that was put together cannot be read: {error.message}", location=location) from error
    old_counts = [group.row_count for footer in footers for group in footer.full_groups]
    if (
        written.common_fields != footers[0].common_fields
        or [group.row_count for group in written.row_groups] != old_counts
    ):
        raise IcekeepBug(f"file {location!r} does not have the row groups that were put into it", location=location)
    return written


def _check_first_pages(stream: BinaryIO, footer: Footer) -> None:
    """Raise `Damaged` unless each row group begins with the header of a page that fits into its column chunk."""
    for chunk in (group.chunks[0] for group in footer.full_groups if group.chunks):
        length = _PAGE_HEAD_BYTES
        while True:
            data = bytes_at(stream, chunk.start, min(length, chunk.compressed_bytes))
            try:
                head = Struct(data)
                break
            except Damaged:
                # A header may have bounds of any length.
                if length >= chunk.compressed_bytes:
                    raise
            length *= 16
        if not 0 <= head.required_integer(3).value <= chunk.compressed_bytes:
            raise Damaged("a page is longer than its column chunk")


def stitched_metrics(
    files: Sequence[DataFile], schema: Schema, modes: Mapping[int, MetricsMode], split_offsets: tuple[int, ...]
) -> FileMetrics:
    """The metrics of the rows of all files, from those of their entries; `modes` are by field id.

    A count is known if all files have it, a bound if all files with values of the column have it. What the modes do not keep is
    dropped, and bounds are cut to their lengths.
    """
    sums: dict[str, dict[int, int]] = {}
    for metric in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"):
        maps = [getattr(file, metric) or {} for file in files]
        counted = (id_ for id_, mode in modes.items() if mode.counts and all(id_ in one for one in maps))
        sums[metric] = {id_: sum(one[id_] for one in maps) for id_ in counted}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for field_id, mode in modes.items():
        type_ = schema.fields_by_id[field_id].type
        if not mode.bounds or not isinstance(type_, PrimitiveType):
            continue
        bounds = _bounds(files, field_id, type_)
        if bounds is None:
            continue
        least, greatest = bounds
        if least:
            lower[field_id] = lower_bound(type_, min(least), mode.length)
        if greatest and (bound := upper_bound(type_, max(greatest), mode.length)) is not None:
            upper[field_id] = bound
    return FileMetrics(
        record_count=sum(file.record_count for file in files),
        column_sizes=sums["column_sizes"] or None,
        value_counts=sums["value_counts"],
        null_value_counts=sums["null_value_counts"],
        nan_value_counts=sums["nan_value_counts"],
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=split_offsets,
    )


def _bounds(
    files: Sequence[DataFile], field_id: int, type_: PrimitiveType
) -> tuple[list[Any] | None, list[Any] | None] | None:
    """The files' lower and upper bounds of a column as values; a side is null if one is missing or not comparable.

    Null if the bounds of a file are crossed: such a pair means nothing, which would no longer show in the bounds of all files.
    """
    sides: list[list[Any] | None] = [[], []]
    for file in files:
        raw = [(bounds or {}).get(field_id) for bounds in (file.lower_bounds, file.upper_bounds)]
        values = [_value(type_, bound) for bound in raw]
        if raw[0] != raw[1] and are_crossed(*values):
            return None
        # Bounds ignore nulls and NaNs.
        metrics = file.value_counts, file.null_value_counts, file.nan_value_counts
        count, nulls, nans = ((counts or {}).get(field_id) for counts in metrics)
        has_values = count is None or nulls is None or nulls + (nans or 0) != count
        for number, (bound, value) in enumerate(zip(raw, values, strict=True)):
            side = sides[number]
            if bound is None and not has_values:
                continue
            if value is None or value != value:
                sides[number] = None
            elif side is not None:
                side.append(value)
    return sides[0], sides[1]


def _value(type_: PrimitiveType, bound: bytes | None) -> Any:
    """A bound as a value; null for bytes that are no value of the type, which readers ignore too."""
    try:
        return None if bound is None else value_from_bytes(type_, bound)
    except IcekeepError:
        return None
