"""Files put together of pages and row groups of others, and checks of their footers, indexes and values against these.

`check_moves` is an oracle of places, not of values: a row's values are its old file and position.
"""

import contextlib
import io
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeep.formats.base import count_nans
from icekeep.formats.deletes.read import write_equality_deletes, write_position_deletes
from icekeep.formats.options import WriteOptions
from icekeep.formats.parquet.footer import read_footer
from icekeep.formats.parquet.metrics import file_metrics
from icekeep.formats.parquet.thrift import LIST, STRUCT, Struct, list_bytes, struct_bytes
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.formats.reader import open_reader
from icekeep.formats.rewrite import copy_pages as splicing
from icekeep.formats.rewrite import run as rewriting
from icekeep.formats.rewrite.copy_pages import PagesFile
from icekeep.formats.rewrite.copy_row_groups import NotStitchable, Stitchable, StitchRules, examine, stitch
from icekeep.formats.rewrite.task import FilePiece, RewriteOutcome, RewriteTask
from icekeep.formats.row_moves import dropped_positions, new_positions
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import UNPARTITIONED, build_spec
from icekeep.spec.properties import metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.types import INT, LONG, STRING, ListType, MapType, StructType
from icekeep.storage.base import Storage
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.data_files import options_for, read_table, write_files

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


STITCHED = "memory:/t/stitched.parquet"

SCHEMA = schema_of(
    column(1, "n", LONG), column(2, "s", STRING), column(3, "l", ListType(element_id=4, element=INT)),
    column(5, "p", StructType((column(6, "x", INT), column(7, "t", STRING)))),
    column(8, "m", MapType(key_id=9, key=STRING, value_id=10, value=LONG)),
)  # fmt: skip
PLAIN = schema_of(column(1, "n", LONG), column(2, "s", STRING))
INDEXED = {"write_page_index": True, "data_page_size": 512, "write_page_checksum": True, "max_rows_per_page": 40}
FILTERS = {"bloom_filter_options": {"s": {"ndv": 500}}}


def rules_for(schema: Schema, compression: str = "zstd", floor_bytes: int = 1) -> StitchRules:
    options: WriteOptions = options_for(compression=compression)
    return StitchRules(schema=schema, options=options, floor_bytes=floor_bytes)


def put_table(
    storage: Any, location: str, table: pa.Table, row_group_rows: int | None = None, **options: Any
) -> DataFile:
    """A file as pyarrow writes it, without metrics; zstd unless `options` say otherwise."""
    return put_bytes(storage, location, parquet_bytes(table, row_group_rows, **{"compression": "zstd", **options}))


def put_bytes(storage: Any, location: str, data: bytes, record_count: int | None = None) -> DataFile:
    """A file of some bytes; its rows are counted unless their number is given."""
    storage.create(location, data)
    if record_count is None:
        record_count = pq.ParquetFile(io.BytesIO(data)).metadata.num_rows
    return DataFile(
        file_path=location, file_format="PARQUET", spec_id=0, record_count=record_count, file_size_in_bytes=len(data)
    )


def with_metrics(storage: Any, file: DataFile, schema: Schema, **properties: str) -> DataFile:
    """The file's entry with all metrics that its values have."""
    source = pq.ParquetFile(io.BytesIO(storage.read(file.file_path)))
    modes = metrics_modes({name.replace("__", "."): value for name, value in properties.items()}, schema)
    metrics = file_metrics(source.metadata, schema, modes, count_nans(source.read(), schema))
    known = {name: getattr(metrics, name) for name in metrics.__struct_fields__}
    return DataFile(
        file_path=file.file_path, file_format="PARQUET", spec_id=0, file_size_in_bytes=file.file_size_in_bytes, **known
    )


def answer_for(storage: Storage, file: DataFile, rules: StitchRules, **facts: Any) -> Stitchable | NotStitchable:
    """What `examine` says of a file; `facts` are fields of its piece."""
    known = {"location": file.file_path, "record_count": file.record_count, "size_bytes": file.file_size_in_bytes}
    piece = FilePiece(**{**known, **facts})
    return examine(piece, rules, storage)


def reason_for(storage: Storage, file: DataFile, rules: StitchRules, **facts: Any) -> str:
    answer = answer_for(storage, file, rules, **facts)
    assert isinstance(answer, NotStitchable), answer
    return answer.reason


def stitched(
    storage: Storage, files: Sequence[DataFile], schema: Schema, location: str = STITCHED, **facts: Any
) -> DataFile:
    """The files put together, all of one key."""
    rules = rules_for(schema, facts.pop("compression", "zstd"))
    answers = [answer_for(storage, file, rules) for file in files if file.record_count]
    assert len({answer.key for answer in answers if isinstance(answer, Stitchable)}) == 1, answers
    return stitch(files, storage, location, schema=schema, **facts)


def some_rows(start: int, count: int, schema: Schema = SCHEMA) -> pa.Table:
    """Rows with the numbers from `start` on, with nulls and texts that repeat; three rows in turn have one text."""
    data = [
        {
            "n": n if n % 7 else None,
            "s": f"text {n // 3 * 7919 % 100_003}",
            "l": [n, None][: n % 3] if n % 5 else None,
            "p": {"x": n, "t": None} if n % 4 else None,
            "m": [(str(key), n) for key in range(n % 3)],
        }
        for n in range(start, start + count)
    ]
    return table_of(schema, data)


def some_files(
    storage: Any,
    count: int = 3,
    row_group_rows: int = 100,
    schema: Schema = SCHEMA,
    directory: str = "memory:/t",
    **options: Any,
) -> list[DataFile]:
    """Files `in-0.parquet` ... of 250 rows each, by default in row groups of 100, 100 and 50."""
    return [
        put_table(storage, f"{directory}/in-{n}.parquet", some_rows(250 * n, 250, schema), row_group_rows, **options)
        for n in range(count)
    ]


def read_stored(storage: Any, file: DataFile) -> pa.Table:
    """All that a file stores, with the checksums of its pages checked."""
    stream = io.BytesIO(storage.read(file.file_path))
    return pq.ParquetFile(stream, page_checksum_verification=True).read()


def rows_of(storage: Any, files: Sequence[DataFile]) -> pa.Table:
    return pa.concat_tables([read_stored(storage, file) for file in files])


def metadata_of(storage: Any, file: DataFile) -> pq.FileMetaData:
    """The footer as pyarrow reads it."""
    return pq.ParquetFile(io.BytesIO(storage.read(file.file_path))).metadata


def chunk_places(storage: Any, file: DataFile) -> list[tuple[int, list[Struct]]]:
    """For each row group its place, and its columns' structs."""
    footer = read_footer(storage, file.file_path, file.file_size_in_bytes)
    return [(group.value(5), group.structs(1)) for group in Struct(footer.data).structs(4)]


def ordinals(storage: Any, file: DataFile) -> list[int]:
    """The numbers that row groups say of themselves."""
    footer = read_footer(storage, file.file_path, file.file_size_in_bytes)
    return [group.value(7) for group in Struct(footer.data).structs(4)]


def check_offset_indexes(storage: Any, file: DataFile) -> None:
    """Every page that an offset index names is one of that size."""
    data = storage.read(file.file_path)
    for _, columns in chunk_places(storage, file):
        for chunk in columns:
            for page in Struct(data, chunk.value(4)).structs(1):
                head = Struct(data, page.value(1))
                assert page.value(2) == head.end - page.value(1) + head.value(3)


def local_file(path: str) -> DataFile:
    """The entry of a file on disk that another writer made, without metrics."""
    return DataFile(
        file_path=path, file_format="PARQUET", spec_id=0, record_count=pq.read_metadata(path).num_rows,
        file_size_in_bytes=os.path.getsize(path),
    )  # fmt: skip


MOVING = schema_of(
    column(1, "file", STRING), column(2, "at", LONG), column(3, "key", LONG), column(4, "third", INT)
)  # fmt: skip
BY_THIRD = build_spec(MOVING, [("third", "identity", None)], spec_id=1)

KEYS = 17


class OldFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file, and what deletes say of it.

    Attributes:
        named: positions that a position delete file or a vector names, perhaps beyond the end.
        has_vector: whether a vector names them.
        keys: rows of these keys are deleted.
    """

    file: DataFile
    named: frozenset[int] = frozenset()
    has_vector: bool = False
    keys: frozenset[int] = frozenset()

    @property
    def path(self) -> str:
        return self.file.file_path

    @property
    def applied(self) -> set[int]:
        return {position for position in self.named if position < self.file.record_count}

    @property
    def dropped(self) -> set[int]:
        return self.applied | {n for n in range(self.file.record_count) if key_of(self.path, n) in self.keys}


def key_of(path: str, position: int) -> int:
    return (position * 7 + sum(path.encode())) % KEYS


def moving_rows(path: str, row_count: int, schema: Schema = MOVING) -> pa.Table:
    rows = [{"file": path, "at": n, "key": key_of(path, n), "third": n % 3} for n in range(row_count)]
    return table_of(schema, rows)


def old_file(
    storage: Storage,
    number: int,
    row_count: int,
    file_format: str = "PARQUET",
    directory: str = "memory:/t/old",
    schema: Schema = MOVING,
    **facts: Any,
) -> DataFile:
    """A data file of some rows; `facts` are of its encoding."""
    directory = f"{directory}/{number:03d}"
    path = f"{directory}/001.{file_format.lower()}"
    rows = moving_rows(path, row_count, schema)
    (file,) = write_files(storage, schema, [rows], options_for(file_format, **facts), directory=directory)
    assert file.file_path == path
    return file


def deleting(
    storage: Storage, files: Sequence[OldFile], directory: str = "memory:/t/deletes"
) -> tuple[list[DataFile], list[FilePiece]]:
    """The delete files of some data files, and these whole as pieces of a task that is given the deletes."""
    deletes: list[DataFile] = []
    reaching: dict[str, list[int]] = {file.path: [] for file in files}
    plain = [file for file in files if file.named and not file.has_vector]
    if plain:
        pairs = [(file.path, position) for file in plain for position in sorted(file.named)]
        pairs.append(("memory:/t/of-another-group.parquet", 0))
        deletes.append(write_position_deletes(storage, f"{directory}/all.parquet", "PARQUET", pairs, spec_id=0))
        for file in plain:
            reaching[file.path].append(0)
    vectors = [(VectorTarget(location=f.path, spec_id=0), BitMap64(f.named)) for f in files if f.named and f.has_vector]
    for vector in write_deletion_vectors(storage, f"{directory}/all.puffin", vectors) if vectors else ():
        reaching[str(vector.referenced_data_file)].append(len(deletes))
        deletes.append(vector)
    for number, keys in enumerate(sorted({file.keys for file in files if file.keys}, key=sorted)):
        rows = table_of(MOVING, [{"key": key} for key in sorted(keys)]).select(["key"])
        key = schema_of(column(3, "key", LONG))
        location = f"{directory}/keys-{number}.parquet"
        written = write_equality_deletes(storage, location, "PARQUET", rows, [3], key, spec_id=0)
        for file in files:
            if file.keys == keys:
                reaching[file.path].append(len(deletes))
        deletes.append(written)
    pieces = [
        FilePiece(
            location=file.path,
            file_format=file.file.file_format,
            record_count=file.file.record_count,
            size_bytes=file.file.file_size_in_bytes,
            deletes=PositionSet(reaching[file.path]),
        )
        for file in files
    ]
    return deletes, pieces


def cut(storage: Storage, piece: FilePiece, cuts: Iterable[int]) -> list[FilePiece]:
    """A file in pieces that end before the row groups or stripes of some numbers; one of them may be empty."""
    with open_reader(storage, piece.location, piece.file_format) as reader:
        offsets = list(reader.part_offsets())
    if piece.file_format == "AVRO":
        return [piece]
    borders = [0, *sorted(offsets[number % len(offsets)] for number in cuts), piece.size_bytes]
    return [
        msgspec.structs.replace(piece, split=(start, end - start), size_bytes=end - start)
        for start, end in pairwise(borders)
    ]


def moving_task(
    pieces: Sequence[FilePiece], deletes: Sequence[DataFile] = (), location: str = "memory:/t", **facts: Any
) -> RewriteTask:
    given: dict[str, Any] = {"target_file_size_bytes": 2**29, "properties": {}, "operation_id": "op", "spec_id": 0}
    given["moves_directory"] = f"{location}/.icekeep/runs/run"
    return RewriteTask(
        pieces=tuple(pieces),
        delete_files=tuple(deletes),
        schema=MOVING,
        specs={0: UNPARTITIONED, 1: BY_THIRD},
        table_location=location,
        **{**given, **facts},
    )


def check_moves(storage: Storage, outcomes: Sequence[RewriteOutcome], files: Sequence[OldFile]) -> None:
    """Each live row lies where the moves say, dropped ones are nowhere, and the moves say which these are."""
    paths = [file.path for file in files]
    dropped, applied = (
        dropped_positions(outcomes, storage, paths),
        dropped_positions(outcomes, storage, paths, by_position=True),
    )
    assert {path: set(positions) for path, positions in dropped.items()} == {f.path: f.dropped for f in files}
    assert {path: set(positions) for path, positions in applied.items()} == {f.path: f.applied for f in files}
    written = {
        file.file_path: [(row["file"], row["at"]) for row in read_table(storage, file.file_path, MOVING).to_pylist()]
        for outcome in outcomes
        for file in outcome.files
    }
    everything = [(file.path, position) for file in files for position in range(file.file.record_count)]
    live = [(file.path, n) for file in files for n in range(file.file.record_count) if n not in file.dropped]
    assert sorted(row for rows in written.values() for row in rows) == sorted(live)
    # A row is known by the bits of its number: where all rows with any one bit are told rightly, each of them is.
    for bit in range(-1, len(everything).bit_length()):
        some = {row for number, row in enumerate(everything) if bit < 0 or number >> bit & 1}
        wanted = {file.path: BitMap64([at for path, at in some if path == file.path]) for file in files}
        for file in files:
            # Writers may name rows that are not there.
            wanted[file.path].update([file.file.record_count, 1 << 40])
        found = new_positions(outcomes, storage, wanted)
        rows = [written[path][position] for path, positions in found.items() for position in positions]
        assert sorted(rows) == sorted(some & set(live))
