"""Position and equality delete files as they are written, read back, and read by PyIceberg; and the cache of what was read."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError, PropertyError, UnsupportedError, UsageError
from icekeep.formats.arrow.projection import leaf_schema
from icekeep.formats.arrow.schema import arrow_schema, field_id
from icekeep.formats.deletes.apply import LivePiece, LiveRowsReader
from icekeep.formats.deletes.read import (
    DeleteCache,
    hold_own_path,
    read_all_position_deletes,
    read_equality_keys,
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
from icekeep.spec.schema import (
    DELETE_FILE_PATH,
    DELETE_FILE_POS,
    DELETE_FILE_ROW_ID,
    deleted_row_column,
    parse_name_mapping,
)
from icekeep.spec.types import DOUBLE, INT, LONG, STRING, UNKNOWN, ListType, MapType, NestedField, StructType
from icekeep.spec.values import value_from_bytes
from icekeep.storage.open import open_storage
from kit.cases import for_each
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.data_files import read_table, write_files
from kit.foreign_files import read_data_with_pyiceberg
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import data_file

FORMATS = ["PARQUET", "ORC", "AVRO"]
POSITIONS = schema_of(DELETE_FILE_PATH, DELETE_FILE_POS)
LONG_PATH = "s3://bucket/" + "x" * 300 + "ö/a.parquet"
COLUMNS = schema_of(
    column(1, "id", LONG, required=True), column(2, "category", STRING), column(3, "name", STRING, required=True)
)


@pytest.fixture
def storage():
    return MemoryStorage()


def positions_of(storage, positions, file_format="PARQUET", location="memory:/t/p", **facts):
    return write_position_deletes(storage, location, file_format, positions, **{"spec_id": 0, **facts})


def equality_of(storage, rows, ids, schema=COLUMNS, file_format="PARQUET", location="memory:/t/e", **facts):
    table = rows if isinstance(rows, pa.Table) else table_of(schema, rows)
    return write_equality_deletes(storage, location, file_format, table, ids, schema, **{"spec_id": 0, **facts})


def at(location, **facts):
    """The entry of a position delete file of another writer."""
    file = data_file("")
    return replace(file, content=FileContent.POSITION_DELETES, file_path=location, **facts)


# Position delete files


@pytest.mark.parametrize("file_format", FORMATS)
def test_positions_are_sorted_and_deduplicated(storage, file_format):
    given = [("memory:/b", 2), ("memory:/a", 10), ("memory:/b", 0), ("memory:/a", 9), ("memory:/b", 2)]
    file = positions_of(storage, given, file_format)
    rows = read_table(storage, file.file_path, POSITIONS, file_format=file_format).to_pylist()
    assert [(row["file_path"], row["pos"]) for row in rows] == sorted(set(given))
    assert file.record_count == 4


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_entry_of_a_position_delete_file_is_as_the_spec_says(storage, file_format):
    given = [(LONG_PATH, 5), (LONG_PATH, 1), ("s3://bucket/a", 7)]
    file = positions_of(storage, given, file_format, spec_id=3, partition=("x",))
    assert (file.content, file.spec_id, file.partition) == (FileContent.POSITION_DELETES, 3, ("x",))
    assert file.file_format == file_format
    assert file.sort_order_id is None
    assert file.equality_ids is None
    assert file.referenced_data_file is None
    assert file.file_size_in_bytes == len(storage.read(file.file_path))
    path_id, pos_id = DELETE_FILE_PATH.field_id, DELETE_FILE_POS.field_id
    assert file.lower_bounds[path_id] == b"s3://bucket/a"
    assert file.upper_bounds[path_id] == LONG_PATH.encode()
    bounds = [value_from_bytes(LONG, b[pos_id]) for b in (file.lower_bounds, file.upper_bounds)]
    assert bounds == [1, 7]


def test_a_file_for_one_data_file_says_which(storage):
    assert positions_of(storage, [(LONG_PATH, 5), (LONG_PATH, 1)]).referenced_data_file == LONG_PATH


def test_columns_carry_the_reserved_ids(storage):
    file = positions_of(storage, [("memory:/a", 1)])
    stored = pq.ParquetFile(storage.open(file.file_path)).schema_arrow
    assert {f.name: field_id(f) for f in stored} == {"file_path": 2147483546, "pos": 2147483545}
    assert not any(f.nullable for f in stored)


@pytest.mark.parametrize("file_format", FORMATS)
def test_deleted_rows_are_stored_and_sorted_with_positions(storage, file_format):
    row_type = StructType((column(1, "id", LONG, required=True), column(2, "kind", STRING)))
    rows = [{"id": 1, "kind": "a"}, {"id": 2, "kind": None}]
    table = pa.table({"file_path": ["memory:/b", "memory:/a"], "pos": [0, 4], "row": rows})
    file = positions_of(storage, table, file_format, row_type=row_type)
    schema = schema_of(*POSITIONS.fields, deleted_row_column(row_type))
    assert read_table(storage, file.file_path, schema, file_format=file_format).to_pylist() == [
        {"file_path": "memory:/a", "pos": 4, "row": {"id": 2, "kind": None}},
        {"file_path": "memory:/b", "pos": 0, "row": {"id": 1, "kind": "a"}},
    ]
    assert value_from_bytes(LONG, file.upper_bounds[1]) == 2
    assert file.null_value_counts[2] == 1
    assert DELETE_FILE_ROW_ID not in file.lower_bounds


def test_a_deleted_row_must_be_stored_for_each_position_or_none(storage):
    row_type = StructType((column(1, "id", LONG),))
    table = pa.table({"file_path": ["a", "b"], "pos": [0, 4], "row": [{"id": 1}, None]})
    with pytest.raises(UsageError, match="column 'row' is required and has 1 nulls"):
        positions_of(storage, table, row_type=row_type)
    with pytest.raises(UsageError, match="'row' is not in the schema"):
        positions_of(storage, table)
    assert not storage.files


@pytest.mark.parametrize(
    ("positions", "reason"), [([], "without positions"), ([("a", 3), ("a", -1)], "no row at position -1")]
)
def test_positions_that_delete_nothing_are_not_written(storage, positions, reason):
    with pytest.raises(IcekeepBug, match=reason):
        positions_of(storage, positions)
    assert not storage.files


def test_a_name_that_is_taken_is_refused(storage):
    positions_of(storage, [("a", 1)])
    with pytest.raises(FileExistsError):
        positions_of(storage, [("a", 1)])


def test_delete_file_properties_override_data_file_ones(storage):
    properties = {
        "write.parquet.compression-codec": "zstd",
        "write.delete.parquet.compression-codec": "gzip",
        "write.format.default": "orc",
        "write.delete.format.default": "avro",
    }
    file = positions_of(storage, [("a", 1)], properties=properties)
    assert pq.ParquetFile(storage.open(file.file_path)).metadata.row_group(0).column(0).compression == "GZIP"


@pytest.mark.parametrize("key", ["write.parquet.compression-codec", "write.delete.parquet.compression-codec"])
def test_a_wrong_value_is_told_by_the_property_that_has_it(storage, key):
    with pytest.raises(PropertyError, match=f"^table property '{key}' is 'x'; set 'zstd', ") as raised:
        positions_of(storage, [("a", 1)], properties={key: "x"})
    assert raised.value.facts["property"] == key


PATHS = ["memory:/a", "memory:/a/", "memory:///a", "MEMORY:/a", "memory:/ab", "memory:/%61"]


@pytest.mark.parametrize("file_format", FORMATS)
@given(st.lists(st.tuples(st.sampled_from(PATHS), st.integers(0, 9)), min_size=1))
def test_positions_of_a_path_round_trip(file_format, positions):
    """Paths are compared as written, without normalization."""
    storage = MemoryStorage()
    file = positions_of(storage, positions, file_format)
    every = read_all_position_deletes(storage, file, 10_000)
    assert set(every) == {path for path, _ in positions}
    for path in PATHS:
        wanted = sorted({p for other, p in positions if other == path})
        assert read_position_deletes(storage, file, path).tolist() == wanted
        assert every.get(path, np.empty(0)).tolist() == wanted


def test_unsorted_foreign_positions_are_returned_sorted(storage):
    table = pa.Table.from_arrays(
        [pa.array(["b", "a", "b", "a", "b"]), pa.array([5, 1, 2, 0, 5])], schema=arrow_schema(POSITIONS)
    )
    with storage.write("memory:/t/p") as stream:
        pq.write_table(table, stream, row_group_size=2)
    file = at("memory:/t/p", record_count=5)
    assert read_position_deletes(storage, file, "b").tolist() == [2, 5]
    assert {p: n.tolist() for p, n in read_all_position_deletes(storage, file, 100).items()} == {
        "a": [0, 1],
        "b": [2, 5],
    }


def test_more_positions_than_the_limit_are_not_gathered(storage):
    file = positions_of(storage, [("a", n) for n in range(10)])
    assert read_all_position_deletes(storage, file, 79) is None
    assert len(read_all_position_deletes(storage, file, 80)["a"]) == 10


@pytest.mark.parametrize("file_format", FORMATS)
def test_own_path_is_proven_by_reading_rows(storage, file_format):
    """Bounds that name one data file are believed only if every row of the file names it."""

    def foreign(name, *pairs, says="a"):
        bounds = {DELETE_FILE_PATH.field_id: says.encode()}
        file = positions_of(storage, pairs, file_format, location=f"memory:/t/{name}")
        return replace(file, referenced_data_file=None, lower_bounds=bounds, upper_bounds=bounds)

    whole = foreign("whole", ("a", 3), ("a", 7))
    several, cut = foreign("several", ("a", 3), ("b", 1)), foreign("cut", ("ab", 3))
    short = replace(foreign("short", ("a", 1)), record_count=2)
    missing, locked = replace(whole, file_path="memory:/t/missing"), replace(whole, key_metadata=b"key")
    wide = replace(whole, upper_bounds={DELETE_FILE_PATH.field_id: b"b"})
    assert hold_own_path(storage, [several, whole, cut, short, missing, locked, wide]) == [whole]


def foreign_deletes(storage, ids, location="memory:/t/p"):
    """A file of another writer, whose columns have some field ids, or none."""
    fields = [
        pa.field(name, type_, metadata=None if id_ is None else {"PARQUET:field_id": str(id_)})
        for (name, type_), id_ in zip((("file_path", pa.string()), ("pos", pa.int64())), ids, strict=True)
    ]
    storage.create(location, parquet_bytes(pa.table([["a", "b"], [3, 4]], schema=pa.schema(fields))))
    return at(location, record_count=2)


@for_each("ids", [(None, None), (DELETE_FILE_PATH.field_id, None), (None, DELETE_FILE_POS.field_id)])
def test_position_deletes_without_ids_use_spec_names(ids):
    storage = MemoryStorage()
    file = foreign_deletes(storage, ids)
    assert read_position_deletes(storage, file, "b").tolist() == [4]
    assert {p: n.tolist() for p, n in read_all_position_deletes(storage, file, 100).items()} == {"a": [3], "b": [4]}


def test_position_deletes_with_other_ids_are_refused(storage):
    file = foreign_deletes(storage, (2147483646, 2147483645))
    problem = "delete file 'memory:/t/p': column 'file_path' has field id 2147483646, .* must have 2147483546"
    with pytest.raises(InvalidTableError, match=problem):
        read_position_deletes(storage, file, "b")


def test_equality_deletes_without_ids_use_name_mapping(storage):
    storage.create("memory:/t/e", parquet_bytes(pa.table({"n": [7]})))
    file = replace(at("memory:/t/e"), content=FileContent.EQUALITY_DELETES, equality_ids=(1,), record_count=1)
    columns = schema_of(column(1, "n", LONG))
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["n"]}]')
    (table,) = read_equality_keys(storage, file, columns, name_mapping=mapping)
    assert table.to_pylist() == [{"n": 7}]
    for wrong, problem in (
        (None, "it has no field ids and the table has no name mapping"),
        (
            parse_name_mapping("[]"),
            "column 'n' has no field id in the file, and the table's name mapping has no id for",
        ),
        (parse_name_mapping('[{"field-id": 2, "names": ["n"]}]'), "it has no column with id 1"),
    ):
        with pytest.raises((InvalidTableError, UnsupportedError), match=f"delete file 'memory:/t/e': {problem}"):
            list(read_equality_keys(storage, file, columns, name_mapping=wrong))


def test_row_groups_whose_statistics_are_crossed_are_read(storage):
    first, last = "memory:/a", "memory:/z"
    table = pa.Table.from_arrays([pa.array([first, last]), pa.array([3, 4])], schema=arrow_schema(POSITIONS))
    written = io.BytesIO()
    pq.write_table(table, written)
    data = written.getvalue()
    length = 8 + int.from_bytes(data[-8:-4], "little")
    pages, footer = data[:-length], data[-length:]
    swapped = footer.replace(first.encode(), b"?" * len(first)).replace(last.encode(), first.encode())
    with storage.write("memory:/t/p") as stream:
        stream.write(pages + swapped.replace(b"?" * len(first), last.encode()))
    bounds = pq.ParquetFile(pa.BufferReader(storage.read("memory:/t/p"))).metadata.row_group(0).column(0).statistics
    assert (bounds.min, bounds.max) == (last, first)
    file = at("memory:/t/p", record_count=2)
    assert [read_position_deletes(storage, file, path).tolist() for path in (first, last)] == [[3], [4]]


@pytest.mark.slow
def test_row_groups_that_cannot_name_a_path_are_not_read(storage):
    paths = [f"memory:/data/{n:04d}-{'x' * 200}" for n in range(200)]
    columns = [pa.array([p for p in paths for _ in range(500)]), pa.array([*range(500)] * 200)]
    with storage.write("memory:/t/p") as stream:
        table = pa.Table.from_arrays(columns, schema=arrow_schema(POSITIONS))
        # Large enough not to be read at once.
        pq.write_table(table, stream, row_group_size=5000, compression="none", use_dictionary=False)
    file = at("memory:/t/p", record_count=100_000)
    read = []
    counting = HookedStorage(storage)
    counting.open = lambda location: _Counting(storage.read(location), read)
    assert read_position_deletes(counting, file, paths[70]).tolist() == [*range(500)]
    footer, *chunks = read
    assert 0 < sum(chunks) < len(storage.read(file.file_path)) / 10
    read.clear()
    assert read_position_deletes(counting, file, "memory:/elsewhere").tolist() == []
    assert read == [footer]


def test_a_position_below_zero_is_an_invalid_table(storage):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array([-1])], schema=arrow_schema(POSITIONS))
    with storage.write("memory:/t/p") as stream:
        pq.write_table(table, stream)
    with pytest.raises(InvalidTableError, match="'memory:/t/p' deletes a row at a position below 0"):
        read_position_deletes(storage, at("memory:/t/p", record_count=1), "a")


def test_unreadable_delete_file_is_named(storage):
    encrypted = at("memory:/t/p", key_metadata=b"k")
    with pytest.raises(UnsupportedError, match="'memory:/t/p' is encrypted"):
        read_position_deletes(storage, encrypted, "a")
    with pytest.raises(UnsupportedError, match="'memory:/t/p' is encrypted"):
        list(read_equality_keys(storage, encrypted, COLUMNS))
    with pytest.raises(MissingFileError, match="memory:/t/p"):
        read_position_deletes(storage, at("memory:/t/p"), "a")
    storage.create("memory:/t/p", b"PAR1 and no more")
    with pytest.raises(InvalidTableError, match="'memory:/t/p' is damaged"):
        read_position_deletes(storage, at("memory:/t/p"), "a")


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC"])
def test_pyiceberg_applies_the_positions_that_we_write(tmp_path, file_format):
    storage, schema = open_storage({}), schema_of(column(1, "n", LONG))
    directory = tmp_path.as_uri()
    (file,) = write_files(storage, schema, [table_of(schema, [{"n": n} for n in range(10)])], directory=directory)
    first = positions_of(storage, [(file.file_path, 3), (f"{directory}/other", 0)], file_format, f"{directory}/p1")
    second = positions_of(storage, [(file.file_path, 9), (file.file_path, 0)], file_format, f"{directory}/p2")
    rows = read_data_with_pyiceberg([file], schema, directory, [first, second])
    assert rows.column("n").to_pylist() == [1, 2, 4, 5, 6, 7, 8]


# Equality delete files


@pytest.mark.parametrize("file_format", FORMATS)
def test_equality_delete_entry_follows_the_spec(storage, file_format):
    rows = [{"id": 3, "category": None, "name": "Grizzly"}]
    file = equality_of(storage, rows, [1], file_format=file_format, spec_id=2, partition=(5,), sort_order_id=4)
    assert (file.content, file.equality_ids, file.sort_order_id) == (FileContent.EQUALITY_DELETES, (1,), 4)
    assert (file.spec_id, file.partition, file.record_count) == (2, (5,), 1)
    assert file.referenced_data_file is None
    assert file.null_value_counts[2] == 1
    assert value_from_bytes(STRING, file.lower_bounds[3]) == "Grizzly"
    assert equality_of(storage, rows, [1], location="memory:/t/e2").sort_order_id == 0
    assert read_table(storage, file.file_path, COLUMNS, file_format=file_format).to_pylist() == rows


def test_the_order_of_ids_is_kept_and_each_is_there_once(storage):
    assert equality_of(storage, [{"id": 3, "name": "x"}], [3, 1, 3]).equality_ids == (3, 1)


NESTED = schema_of(
    column(1, "n", LONG),
    column(2, "s", StructType((column(3, "x", DOUBLE),))),
    column(4, "l", ListType(element_id=5, element=INT)),
    column(6, "m", MapType(key_id=7, key=STRING, value_id=8, value=LONG)),
    column(9, "u", UNKNOWN),
)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([], "would delete every row"),
        ([1, 99], "no schema of the table has a column with id 99"),
        ([2], "column 's'"),
        ([4], "column 'l'"),
        ([5], "in a list or a map"),
        ([7], "in a list or a map"),
        ([8], "in a list or a map"),
        ([9], "of type 'unknown'"),
    ],
)
def test_columns_that_cannot_be_compared_are_not_written(storage, ids, reason):
    with pytest.raises(IcekeepBug, match=reason):
        equality_of(storage, [{"n": 1}], ids, NESTED)
    assert not storage.files


def test_empty_or_mismatched_equality_deletes_are_a_bug(storage):
    with pytest.raises(IcekeepBug, match="without rows"):
        equality_of(storage, [], [1])
    with pytest.raises(IcekeepBug, match="the schema has"):
        equality_of(storage, pa.table({"id": [1]}), [1])
    assert not storage.files


@pytest.mark.parametrize("file_format", FORMATS)
def test_keys_below_structs_and_of_floats_come_back(storage, file_format):
    rows = [{"n": 1, "s": {"x": -0.0}}, {"n": 2, "s": None}]
    file = equality_of(storage, rows, [3], NESTED, file_format)
    (table,) = read_equality_keys(storage, file, leaf_schema([3], [NESTED]))
    assert str(table.column("s").to_pylist()) == "[{'x': -0.0}, None]"
    assert table.column_names == ["s"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_delete_keys_are_promoted_and_defaulted(storage, file_format):
    old = schema_of(column(1, "n", INT))
    file = equality_of(storage, [{"n": 7}], [1], old, file_format)
    added = NestedField(field_id=2, name="added", type=STRING, initial_default="x")
    new = schema_of(column(1, "n", LONG), added, column(3, "absent", LONG))
    (table,) = read_equality_keys(storage, file, leaf_schema([1, 2, 3], [new]))
    assert table.to_pylist() == [{"n": 7, "added": "x", "absent": None}]
    assert table.schema.field("n").type == pa.int64()


def test_keys_come_in_batches(storage):
    schema = schema_of(column(1, "n", LONG))
    file = equality_of(storage, [{"n": n} for n in range(1000)], [1], schema)
    tables = list(read_equality_keys(storage, file, schema, batch_rows=300))
    assert [table.num_rows for table in tables] == [300, 300, 300, 100]
    assert pa.concat_tables(tables).column("n").to_pylist() == [*range(1000)]


class _Counting(io.BytesIO):
    """A stream that counts what is read of it."""

    def __init__(self, data, read):
        super().__init__(data)
        self._read = read

    def read(self, size=-1):
        data = super().read(size)
        self._read.append(len(data))
        return data


def test_what_fits_is_kept_and_counted():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 6)
    cache.keep("b", "B", 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", "B", None)
    assert cache.held_bytes == 10


def test_what_does_not_fit_is_not_kept():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 11)
    assert cache.get("a") is None
    assert cache.held_bytes == 0


def test_what_the_present_data_file_used_does_not_go_for_others():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 6)
    assert not cache.make_room(5)
    cache.keep("b", "B", 5)
    assert (cache.get("a"), cache.get("b")) == ("A", None)


def test_what_the_present_data_file_has_no_use_for_makes_room():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 6)
    cache.keep("b", "B", 4)
    cache.begin_file()
    assert cache.get("b") == "B"
    assert cache.make_room(6)
    cache.keep("c", "C", 6)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, "B", "C")
    assert cache.held_bytes == 10


def test_a_second_value_of_one_key_is_not_counted_twice():
    cache = DeleteCache(budget_bytes=10)
    cache.keep("a", "A", 6)
    cache.keep("a", "A", 3)
    assert cache.held_bytes == 6


def test_full_cache_is_not_scanned_per_file():
    """20,000 small delete files cost 20,000 looks each."""

    class Counted(str):
        looks = 0

        def __hash__(self):
            Counted.looks += 1
            return super().__hash__()

    cache = DeleteCache(budget_bytes=1000)
    for number in range(1000):
        cache.keep(Counted(number), number, 1)
    cache.begin_file()
    used = [cache.get(Counted(number)) for number in range(1000)]
    assert used == [*range(1000)]
    Counted.looks = 0
    assert not any(cache.make_room(1) for _ in range(1000))
    assert Counted.looks == 0
    cache.begin_file()
    Counted.looks = 0
    assert all(cache.make_room(1) for _ in range(1000))
    assert Counted.looks < 10


SCHEMA = schema_of(column(1, "id", LONG), column(2, "kind", STRING))
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
def test_truncated_avro_delete_file_is_invalid(kind, way):
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
def test_equality_delete_file_missing_a_column_is_invalid(file_format, way):
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


def test_row_groups_are_chosen_by_path_field_id():
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
