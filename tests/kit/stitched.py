"""Parquet files as pieces and entries, and files put together of their row groups."""

import io
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.formats.base import count_nans
from icekeep.formats.options import WriteOptions
from icekeep.formats.parquet.footer import read_footer
from icekeep.formats.parquet.metrics import file_metrics
from icekeep.formats.parquet.thrift import Struct
from icekeep.formats.rewrite.copy_row_groups import NotStitchable, Stitchable, StitchRules, examine, stitch
from icekeep.formats.rewrite.task import FilePiece
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.types import INT, LONG, STRING, ListType, MapType, StructType
from icekeep.storage.base import Storage
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.data_files import options_for

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
    """All that several files store."""
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
