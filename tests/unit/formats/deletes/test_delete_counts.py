"""Deletes are applied whole or not at all: what a delete file lacks would bring deleted rows back, and compaction keeps them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.apply import LivePiece, LiveRowsReader
from icekeep.formats.deletes.read import (
    read_all_position_deletes,
    read_position_deletes,
    write_equality_deletes,
    write_position_deletes,
)
from icekeep.formats.deletes.rewrite import equality_positions
from icekeep.formats.parquet.reader import ParquetReader
from icekeep.formats.reader import SourceFile
from icekeep.formats.rewrite.run import rewrite
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.spec.avro import read_header
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS
from icekeep.spec.types import LONG, STRING
from kit.cases import for_each
from kit.columns import column, schema_of, table_of
from kit.data_files import write_files
from kit.storage import MemoryStorage
from kit.tables import data_file

FORMATS = ["PARQUET", "ORC", "AVRO"]
SCHEMA = schema_of(column(1, "id", LONG), column(2, "kind", STRING))
POSITIONS = schema_of(DELETE_FILE_PATH, DELETE_FILE_POS)
DELETED = 20_000
"""Enough for an Avro file of several blocks."""


class Lake:
    """A data file, and a delete file that removes all its rows but the last."""

    def __init__(self):
        self.storage = MemoryStorage()
        rows = pa.table(
            [pa.array(range(DELETED + 1), pa.int64()), pa.nulls(DELETED + 1, pa.string())], schema=arrow_schema(SCHEMA)
        )
        (self.data,) = write_files(self.storage, SCHEMA, [rows])

    def deletes(self, kind, file_format, count=DELETED, location="memory:/t/deletes"):
        if kind == "position":
            pairs = [(self.data.file_path, n) for n in range(count)]
            return write_position_deletes(self.storage, location, file_format, pairs, spec_id=0)
        rows = table_of(SCHEMA, [{"id": n, "kind": None} for n in range(count)])
        return write_equality_deletes(self.storage, location, file_format, rows, [1], SCHEMA, spec_id=0)

    def scanned(self, delete):
        piece = LivePiece(source=self._source(), deletes=[delete])
        return [id_ for rows in LiveRowsReader(self.storage, SCHEMA).read([piece]) for id_ in rows["id"].to_pylist()]

    def compacted(self, delete):
        piece = FilePiece(
            location=self.data.file_path,
            record_count=self.data.record_count,
            size_bytes=self.data.file_size_in_bytes,
            deletes=PositionSet([0]),
        )
        task = RewriteTask(
            pieces=(piece,),
            delete_files=(delete,),
            schema=SCHEMA,
            specs={0: UNPARTITIONED},
            spec_id=0,
            table_location="memory:/t",
            properties={},
            target_file_size_bytes=2**29,
            operation_id="run",
        )
        return sum(file.record_count for file in rewrite(task, self.storage).files)

    def converted(self, delete):
        """As the conversion of equality deletes finds rows; what it merges with old positions is read as a scan does."""
        piece = LivePiece(source=self._source(), deletes=[delete], record_count=self.data.record_count)
        return [len(found) for found in equality_positions(self.storage, [piece], [SCHEMA])]

    def _source(self):
        return SourceFile(location=self.data.file_path)

    def cut_at_a_block(self, location):
        """Remove the last block of an Avro file, which then ends on its sync marker as a whole one does."""
        data = self.storage.read(location)
        sync = read_header(data, location).sync
        end = data.rindex(sync, 0, len(data) - len(sync)) + len(sync)
        assert data.count(sync) > 2
        self.storage.delete_many([location])
        self.storage.create(location, data[:end])

    def replaced(self, location, other):
        data = self.storage.read(other)
        self.storage.delete_many([location])
        self.storage.create(location, data)


@pytest.mark.slow
@for_each("way", ["scanned", "compacted", "converted"])
@for_each("kind", ["position", "equality"])
def test_an_avro_delete_file_that_was_cut_between_two_blocks_is_invalid(kind, way):
    """It reads as a whole, shorter file."""
    lake = Lake()
    delete = lake.deletes(kind, "AVRO")
    lake.cut_at_a_block(delete.file_path)
    before = set(lake.storage.files)
    with pytest.raises(InvalidTableError, match=rf"'memory:/t/deletes' has \d+ rows where its manifest says {DELETED}"):
        getattr(lake, way)(delete)
    assert set(lake.storage.files) == before


@pytest.mark.slow
@for_each("way", ["scanned", "compacted", "converted"])
@for_each("count", [10, DELETED + 1])
@for_each("file_format", FORMATS)
@for_each("kind", ["position", "equality"])
def test_a_delete_file_that_was_replaced_is_invalid(kind, file_format, count, way):
    """By one with fewer rows or more."""
    lake = Lake()
    delete = lake.deletes(kind, file_format)
    lake.replaced(delete.file_path, lake.deletes(kind, file_format, count, "memory:/t/other").file_path)
    before = set(lake.storage.files)
    with pytest.raises(InvalidTableError, match=f"'memory:/t/deletes' has .*rows where its manifest says {DELETED}"):
        getattr(lake, way)(delete)
    assert set(lake.storage.files) == before


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_position_delete_file_is_counted_however_it_is_read(file_format):
    """For one data file, for all of them, and where the one that is asked for is not named."""
    lake = Lake()
    delete = replace(lake.deletes("position", file_format, 10), record_count=11, referenced_data_file=None)
    with pytest.raises(InvalidTableError, match="has 10 rows where its manifest says 11"):
        read_all_position_deletes(lake.storage, delete, 1 << 20)
    for path in (lake.data.file_path, "a", "z"):
        with pytest.raises(InvalidTableError, match="has 10 rows where its manifest says 11"):
            read_position_deletes(lake.storage, delete, path)


@for_each("way", ["scanned", "compacted", "converted"])
@for_each("file_format", FORMATS)
def test_an_equality_delete_file_without_a_column_that_it_deletes_by_is_invalid(file_format, way):
    """Read as nulls, it would delete every row whose kind is null."""
    lake = Lake()
    id_only = schema_of(SCHEMA.fields[0])
    rows = table_of(id_only, [{"id": 3}])
    delete = write_equality_deletes(lake.storage, "memory:/t/deletes", file_format, rows, [1], id_only, spec_id=0)
    with pytest.raises(InvalidTableError, match=r"'memory:/t/deletes'.* has no column with id 2, .*\(equality_ids\)"):
        getattr(lake, way)(replace(delete, equality_ids=(1, 2)))


def test_a_row_group_whose_upper_bound_was_cut_is_read():
    """Some writers cut the bound and do not increment it, so that paths which begin with it lie above it."""
    storage = MemoryStorage()
    table = pa.Table.from_arrays(
        [pa.array(["s3://b/a-long", "s3://b/c-long", "s3://b/e-long"]), pa.array([1, 2, 3])],
        schema=arrow_schema(POSITIONS),
    )
    with storage.write("memory:/t/p") as stream:
        pq.write_table(table, stream, row_group_size=1)
    reader = ParquetReader(storage.open("memory:/t/p"))
    column_id = DELETE_FILE_PATH.field_id
    cut = [("s3://b/a-lo", "s3://b/a-lo"), ("s3://b/c-lo", "s3://b/c-lo"), ("s3://b/e-lo", "s3://b/e-lo")]
    reader._file = _WithBounds(reader._file, cut)

    def parts(path, end=None):
        return reader.parts_that_may_hold(column_id, path, end or f"{path}\0")

    assert [parts(f"s3://b/{letter}-long") for letter in "abcdef"] == [[0], [], [1], [], [2], []]
    assert parts("s3://b/a-long", "s3://b/c-z") == [0, 1]
    assert parts("s3://b/b", "s3://b/c") == []
    assert reader.parts_that_may_hold(column_id, None, "s3://b/d") == [0, 1]
    assert reader.parts_that_may_hold(column_id, "s3://b/c-lp", None) == [2]


def test_row_groups_are_chosen_by_the_field_id_of_the_path_column():
    """Whatever the column is called."""
    storage = MemoryStorage()
    path, position = arrow_schema(POSITIONS)
    names = pa.schema([position.with_name("file_path"), path.with_name("target")])
    table = pa.Table.from_arrays([pa.array([1, 2]), pa.array(["a", "b"])], schema=names)
    with storage.write("memory:/t/p") as stream:
        pq.write_table(table, stream, row_group_size=1)
    reader = ParquetReader(storage.open("memory:/t/p"))
    assert reader.parts_that_may_hold(DELETE_FILE_PATH.field_id, "b", "b\0") == [1]
    assert reader.parts_that_may_hold(999, "b", "b\0") is None
    file = replace(data_file("", 2), content=FileContent.POSITION_DELETES, file_path="memory:/t/p")
    assert read_position_deletes(storage, file, "b").tolist() == [2]


class _WithBounds:
    """A Parquet file whose row groups say other bounds of their first column."""

    def __init__(self, file, bounds):
        self._file, self._bounds = file, bounds

    def __getattr__(self, name):
        return getattr(self._file, name)

    @property
    def metadata(self):
        return _Metadata(self._file.metadata, self._bounds)


class _Metadata(_WithBounds):
    def row_group(self, number):
        return _Group(self._file.row_group(number), self._bounds[number])


class _Group(_WithBounds):
    def column(self, number):
        return _Chunk(self._file.column(number), self._bounds)


class _Chunk(_WithBounds):
    @property
    def statistics(self):
        return _Statistics(*(bound.encode() for bound in self._bounds))


class _Statistics:
    has_min_max = True

    def __init__(self, min_raw, max_raw):
        self.min_raw, self.max_raw = min_raw, max_raw
