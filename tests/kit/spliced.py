"""Files that are rewritten by splicing, and checks of what their footers and indexes say against their values."""

import contextlib
import io
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.formats.parquet.thrift import LIST, STRUCT, Struct, list_bytes, struct_bytes
from icekeep.formats.rewrite import copy_pages as splicing
from icekeep.formats.rewrite import run as rewriting
from icekeep.formats.rewrite.copy_pages import PagesFile
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

METRICS = ("record_count", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def piece_of(storage: Any, location: str, data: bytes) -> FilePiece:
    """A file of some bytes as a task reads it."""
    storage.create(location, data)
    row_count = pq.ParquetFile(io.BytesIO(data)).metadata.num_rows
    return FilePiece(location=location, record_count=row_count, size_bytes=len(data))


def task_for(pieces: Sequence[FilePiece], schema: Schema, location: str = "memory:/new", **facts: Any) -> RewriteTask:
    given = {"target_file_size_bytes": 2**29, "properties": {}, "operation_id": "op"}
    given |= {"specs": {UNPARTITIONED.spec_id: UNPARTITIONED}, "spec_id": UNPARTITIONED.spec_id}
    return RewriteTask(pieces=tuple(pieces), schema=schema, table_location=location, **{**given, **facts})


@contextlib.contextmanager
def without_floors() -> Iterator[None]:
    """Splicing, however little there is to gain."""
    with mock.patch.multiple(splicing, MIN_SHARE=0.0, MIN_PAGE_BYTES=0):
        yield


def spliced(
    storage: Storage, pieces: Sequence[FilePiece], schema: Schema, location: str = "memory:/spliced", **facts: Any
) -> tuple[tuple[DataFile, ...], set[int]]:
    """The new files, and the ids of all columns that were moved into any of their row groups."""
    moved: set[int] = set()
    add = PagesFile.add

    def remembered(self: PagesFile, *args: Any) -> None:
        moved.update(args[2])
        add(self, *args)

    with without_floors(), mock.patch.object(PagesFile, "add", remembered):
        files = rewriting.rewrite(task_for(pieces, schema, location, **facts), storage).files
    return files, moved


def encoded(
    storage: Storage, pieces: Sequence[FilePiece], schema: Schema, location: str = "memory:/encoded", **facts: Any
) -> tuple[DataFile, ...]:
    """The files of the same task without splicing."""
    with mock.patch.object(rewriting, "rewrite_by_pages", return_value=None):
        return rewriting.rewrite(task_for(pieces, schema, location, **facts), storage).files


def metrics_of(files: Sequence[DataFile]) -> list[list[Any]]:
    """What manifests say of files' values; sizes may differ between two ways to encode them."""
    return [[getattr(file, name) for name in METRICS] for file in files]


def stored(storage: Storage, files: Sequence[DataFile]) -> pa.Table:
    """All that files store, with the checksums of pages checked."""
    streams = [io.BytesIO(storage.read(file.file_path)) for file in files]
    return pa.concat_tables([pq.ParquetFile(s, page_checksum_verification=True).read() for s in streams])


def check_file(storage: Storage, file: DataFile) -> int:
    """Hold all that the footer and the indexes say of columns without repetition against values; returns how many pages
    were looked at.
    """
    data = storage.read(file.file_path)
    reader = pq.ParquetFile(io.BytesIO(data))
    footer = Struct(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
    end = 4
    pages = 0
    assert footer.value(3) == file.record_count
    assert file.split_offsets == tuple(group.value(5) for group in footer.structs(4))
    for number, group in enumerate(footer.structs(4)):
        columns = group.structs(1)
        metas = [chunk.struct(3) for chunk in columns]
        assert (group.value(7), group.spans.get(7) is not None) == (number, True)
        assert group.value(2) == sum(meta.value(6) for meta in metas)
        assert group.value(6) == sum(meta.value(7) for meta in metas)
        for position, (chunk, meta) in enumerate(zip(columns, metas, strict=True)):
            start = meta.value(11) or meta.value(9)
            assert start >= end
            end = start + meta.value(7)
            leaf = reader.schema.column(position)
            if leaf.max_repetition_level == 0 and "." not in leaf.path:
                values = reader.read_row_group(number, columns=[leaf.path]).column(0)
                pages += _check_chunk(data, chunk, meta, values, reader.metadata.row_group(number).column(position))
    return pages


def chunks_found_in(storage: Storage, source: str, target: str) -> set[str]:
    """The columns of a file all of whose chunks another file has byte for byte."""
    data, whole = storage.read(source), storage.read(target)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    chunks = [
        metadata.row_group(n).column(m) for n in range(metadata.num_row_groups) for m in range(metadata.num_columns)
    ]
    missing = {
        chunk.path_in_schema
        for chunk in chunks
        if data[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] not in whole
    }
    return {chunk.path_in_schema for chunk in chunks} - missing


def with_garbage(data: bytes, names: Collection[str], kept: range) -> bytes:
    """The bytes of a file of one row group in which, of some columns, no page is one but those that have rows of `kept`."""
    out = bytearray(data)
    footer = Struct(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
    (group,) = footer.structs(4)
    for chunk in group.structs(1):
        meta = chunk.struct(3)
        if b".".join(meta.binaries(3)).decode() not in names:
            continue
        places = Struct(data, chunk.value(4)).structs(1)
        rows = [place.value(3) for place in places] + [group.value(3)]
        for place, (start, stop) in zip(places, itertools.pairwise(rows), strict=True):
            if stop <= kept.start or start >= kept.stop:
                out[place.value(1) : place.value(1) + place.value(2)] = b"\xff" * place.value(2)
    return bytes(out)


def footer_in(data: bytes) -> bytes:
    """The footer of a file in memory."""
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def _check_chunk(data: bytes, chunk: Struct, meta: Struct, values: pa.ChunkedArray, described: Any) -> int:
    assert meta.value(5) == len(values) == described.num_values
    places = Struct(data, chunk.value(4)).structs(1)
    position, first_row, plain_bytes, encodings = meta.value(9), 0, 0, set()
    if meta.value(11):
        head = Struct(data, meta.value(11))
        plain_bytes += head.end - meta.value(11) + head.value(2)
    for place in places:
        head = Struct(data, place.value(1))
        about = head.struct(5) or head.struct(8)
        assert (place.value(1), place.value(3)) == (position, first_row)
        assert place.value(2) == head.end - position + head.value(3)
        plain_bytes += head.end - position + head.value(2)
        encodings.add(about.value(2) if head.struct(5) else about.value(4))
        position += place.value(2)
        first_row += about.value(1)
    assert position == (meta.value(11) or meta.value(9)) + meta.value(7)
    assert plain_bytes == meta.value(6)
    assert first_row == len(values)
    assert encodings <= set(meta.integers(2))
    if statistics := meta.struct(12):
        assert statistics.value(3) == values.null_count
        if values.null_count == len(values):
            assert statistics.spans.get(5) is statistics.spans.get(6) is None
    if chunk.value(6):
        _check_bounds(Struct(data, chunk.value(6)), places, values, described)
    return len(places)


def _check_bounds(index: Struct, places: list[Struct], values: pa.ChunkedArray, described: Any) -> None:
    """Every page's bounds hold its values, as plain numbers or bytes."""
    nulls, least, greatest, counts = index.booleans(1), index.binaries(2), index.binaries(3), index.integers(5)
    assert {len(nulls), len(least), len(greatest)} == {len(places)}
    rows = [place.value(3) for place in places] + [len(values)]
    known = []
    for n, (start, stop) in enumerate(itertools.pairwise(rows)):
        page = values.slice(start, stop - start)
        assert nulls[n] == (page.null_count == len(page))
        if counts:
            assert counts[n] == page.null_count
        if not nulls[n] and (key := _key(described, values.type)):
            found = [plain for plain in map(_plain, page.to_pylist()) if plain is not None]
            assert key(least[n]) <= min(found)
            assert max(found) <= key(greatest[n])
            known.append((key(least[n]), key(greatest[n])))
    pairs = list(itertools.pairwise(known))
    if index.value(4) == 1:
        assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairs)
    if index.value(4) == 2:
        assert all(a[0] >= b[0] and a[1] >= b[1] for a, b in pairs)


def _key(described: Any, type_: pa.DataType) -> Any:
    if type_ in (pa.int32(), pa.int64()):
        return lambda raw: int.from_bytes(raw, "little", signed=True)
    return (lambda raw: raw) if type_ in (pa.string(), pa.binary()) and described.num_values else None


def _plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


Edits = Mapping[int, tuple[int, bytes] | None]
"""By field id, the kind and the bytes of a value that is put in place of what is there; null takes a field away."""


def with_edits(
    data: bytes,
    column: int = 0,
    *,
    footer: Edits | None = None,
    group: Edits | None = None,
    chunk: Edits | None = None,
    meta: Edits | None = None,
    statistics: Edits | None = None,
) -> bytes:
    """The bytes of a file of one row group whose footer says something else, of one of its columns where that is meant."""
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    whole = Struct(data[end:-8])
    (old_group,) = whole.structs(4)
    old_chunks = old_group.structs(1)
    old_meta = old_chunks[column].struct(3)
    assert old_meta is not None
    old_statistics = old_meta.struct(12)
    if old_statistics is not None:
        meta = {12: (STRUCT, _edited(old_statistics, statistics)), **(meta or {})}
    chunks = [_edited(one, {}) for one in old_chunks]
    chunks[column] = _edited(old_chunks[column], {3: (STRUCT, _edited(old_meta, meta)), **(chunk or {})})
    new_group = _edited(old_group, {1: (LIST, list_bytes(STRUCT, chunks)), **(group or {})})
    new = _edited(whole, {4: (LIST, list_bytes(STRUCT, [new_group])), **(footer or {})})
    return data[:end] + new + len(new).to_bytes(4, "little") + b"PAR1"


def _edited(struct: Struct, edits: Edits | None) -> bytes:
    fields: dict[int, tuple[int, bytes] | None] = {
        id_: (span.kind, struct.raw(id_) or b"") for id_, span in struct.spans.items()
    }
    fields |= edits or {}
    return struct_bytes([(id_, *value) for id_, value in sorted(fields.items()) if value is not None])
