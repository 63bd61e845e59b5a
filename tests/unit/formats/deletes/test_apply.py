"""Rows of a data file that its deletes leave: the spec's examples, and a set of Python's tuples as the oracle."""

import io
import struct
from contextlib import contextmanager
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.formats.arrow.projection import leaf_schema, project
from icekeep.formats.deletes import apply as equality_match
from icekeep.formats.deletes import apply as merge_on_read
from icekeep.formats.deletes.apply import (
    EqualityRun,
    LivePiece,
    LiveRowsReader,
    SharedDeletes,
    key_columns,
    rows_deleted,
)
from icekeep.formats.deletes.read import DeleteCache, write_equality_deletes, write_position_deletes
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.formats.reader import SourceFile
from icekeep.spec.collections import Part, PositionSet
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.schema import (
    DELETED,
    FILE,
    LAST_UPDATED_SEQUENCE_NUMBER,
    POS,
    ROW_ID,
    parse_name_mapping,
    partition_column,
)
from icekeep.spec.types import (
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMPTZ,
    UNKNOWN,
    UUID,
    ListType,
    NestedField,
    PrimitiveType,
    StructType,
    decimal,
    fixed,
)
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, column, parquet_bytes, schema_of, table_of, values
from kit.data_files import options_for, write_files
from kit.storage import HookedStorage, MemoryStorage

pytestmark = pytest.mark.slow

FORMATS = ["PARQUET", "ORC", "AVRO"]
NAN = float("nan")
ANIMALS = schema_of(column(1, "id", LONG), column(2, "category", STRING), column(3, "name", STRING))
_ROWS = [(1, "marsupial", "Koala"), (2, "toy", "Teddy"), (3, None, "Grizzly"), (4, None, "Polar")]
ROWS = [dict(zip(("id", "category", "name"), row, strict=True)) for row in _ROWS]


class Files:
    """A data file in a store of its own, and deletes beside it."""

    def __init__(self, schema, rows, file_format="PARQUET", row_group_rows=None):
        self.storage, self.schema, self._format, self._count = MemoryStorage(), schema, file_format, 0
        table = rows if isinstance(rows, pa.Table) else table_of(schema, rows)
        if row_group_rows is None:
            (file,) = write_files(self.storage, schema, [table], options_for(file_format))
            self.location = file.file_path
        else:
            self.location = "memory:/t/001.parquet"
            self.storage.create(self.location, parquet_bytes(table, row_group_rows))

    def positions(self, *positions, **facts):
        pairs = [(self.location, p) if isinstance(p, int) else p for p in positions]
        return write_position_deletes(self.storage, self._new(), self._format, pairs, spec_id=0, **facts)

    def vector(self, *positions):
        target = VectorTarget(location=self.location, spec_id=0)
        (file,) = write_deletion_vectors(self.storage, self._new(), [(target, BitMap64(positions))])
        return file

    def equality(self, ids, rows, schema=None, **facts):
        schema = schema or self.schema
        table = rows if isinstance(rows, pa.Table) else table_of(schema, rows)
        return write_equality_deletes(self.storage, self._new(), self._format, table, ids, schema, spec_id=0, **facts)

    def read(self, schema, deletes, storage=None, **facts):
        source = SourceFile(location=self.location, file_format=self._format, **facts.pop("source", {}))
        facts.setdefault("table_schemas", [self.schema])
        piece = LivePiece(source=source, deletes=deletes, split=facts.pop("split", None))
        residual = facts.pop("residual", ALWAYS_TRUE)
        return list(LiveRowsReader(storage or self.storage, schema, **facts).read([piece], residual=residual))

    def rows(self, schema, deletes, **facts):
        return [row for table in self.read(schema, deletes, **facts) for row in table.to_pylist()]

    def _new(self):
        self._count += 1
        return f"memory:/t/deletes-{self._count}"


def test_equality_deletes_without_ids_use_name_mapping():
    files = Files(ANIMALS, ROWS)
    file = files.equality([1], [{"id": 3}], schema_of(column(1, "id", LONG)))
    files.storage.create("memory:/t/bare", parquet_bytes(pa.table({"id": [3]})))
    bare = replace(file, file_path="memory:/t/bare")
    source = {"name_mapping": parse_name_mapping('[{"field-id": 1, "names": ["id"]}]')}
    assert names(files, [bare], source=source) == ["Koala", "Teddy", "Polar"]
    with pytest.raises(UnsupportedError, match="delete file 'memory:/t/bare': it has no field ids"):
        names(files, [bare])


def names(files, deletes, **facts):
    return [row["name"] for row in files.rows(ANIMALS, deletes, **facts)]


# The spec's examples


@for_each("file_format", FORMATS)
@for_each(
    ("ids", "deletes", "left"),
    [
        ([1], [{"id": 3}], ["Koala", "Teddy", "Polar"]),
        ([1], [{"id": 3, "category": None, "name": "Grizzly"}], ["Koala", "Teddy", "Polar"]),
        ([1, 2], [{"id": 4, "category": None, "name": "Polar"}], ["Koala", "Teddy", "Grizzly"]),
        ([2], [{"category": None}], ["Koala", "Teddy"]),
        ([1, 2], [{"id": 1, "category": None}, {"id": 3, "category": "toy"}], ["Koala", "Teddy", "Grizzly", "Polar"]),
    ],
)
def test_equality_deletes_match_as_the_spec_shows(file_format, ids, deletes, left):
    files = Files(ANIMALS, ROWS, file_format)
    assert names(files, [files.equality(ids, deletes)]) == left


def test_a_column_that_was_dropped_is_still_used():
    files = Files(ANIMALS, ROWS)
    now = replace(schema_of(*ANIMALS.fields[::2]), schema_id=1)
    deletes = [files.equality([2], [{"category": "toy"}])]
    found = files.rows(now, deletes, table_schemas=[now, ANIMALS])
    assert found == [{"id": n, "name": name} for n, name in ((1, "Koala"), (3, "Grizzly"), (4, "Polar"))]


@pytest.mark.parametrize("file_format", FORMATS)
def test_added_delete_column_is_null_or_default_in_old_files(file_format):
    files = Files(ANIMALS, ROWS, file_format)
    now = schema_of(
        *ANIMALS.fields,
        column(4, "added", LONG),
        NestedField(field_id=5, name="kind", type=STRING, initial_default="animal"),
    )
    key = schema_of(ANIMALS.fields[0], *now.fields[3:])
    rows = [
        {"id": 1, "added": None, "kind": "animal"},
        {"id": 2, "added": 0, "kind": "animal"},
        {"id": 3, "added": None, "kind": None},
    ]
    assert names(files, [files.equality([1, 4, 5], rows, key)], table_schemas=[now]) == ["Teddy", "Grizzly", "Polar"]


def test_delete_keys_match_across_type_promotion():
    now = schema_of(column(1, "n", LONG), column(2, "x", DOUBLE), column(3, "d", decimal(18, 2)))
    before = schema_of(column(1, "n", INT), column(2, "x", FLOAT), column(3, "d", decimal(9, 2)))
    values = [{"n": n, "x": n / 10, "d": n} for n in range(5)]
    deletes = [{"n": n, "x": n / 10, "d": n} for n in (1, 3)]
    for older, newer in ((before, now), (now, before), (before, before)):
        files = Files(older, values)
        made = [files.equality([1, 3], deletes, newer), files.equality([2], deletes[:1], newer)]
        wanted = [0, 2, 4]
        assert [row["n"] for row in files.rows(now, made, table_schemas=[now])] == wanted


def test_cached_deletes_are_kept_per_type():
    """Keys of a delete file that were cached in one type are not used for a promoted one."""
    before, now = schema_of(column(1, "x", FLOAT)), schema_of(column(1, "x", DOUBLE))
    files, cache = Files(before, [{"x": 1.5}, {"x": 2.5}]), DeleteCache()
    deletes = [files.equality([1], [{"x": 1.5}])]
    assert files.rows(before, deletes, cache=cache) == [{"x": 2.5}]
    assert files.rows(now, deletes, cache=cache) == [{"x": 2.5}]


def test_newest_schema_gives_type_of_dropped_column():
    before = replace(schema_of(column(1, "n", INT), column(2, "k", INT)), schema_id=0)
    later = replace(schema_of(column(1, "n", INT), column(2, "k", LONG)), schema_id=1)
    now = replace(schema_of(column(1, "n", INT)), schema_id=2)
    files = Files(before, [{"n": 1, "k": 1}, {"n": 2, "k": 2}])
    deletes = [files.equality([2], [{"k": 2}, {"k": 2**40}], schema_of(column(2, "k", LONG)))]
    for schemas in ([before, later, now], [now, later, before]):
        assert files.rows(now, deletes, table_schemas=schemas) == [{"n": 1}]


def test_struct_keys_are_found_by_id_despite_projection():
    inner = StructType((column(3, "x", DOUBLE), column(4, "label", STRING)))
    schema = schema_of(column(1, "n", LONG), column(2, "s", inner))
    rows = [{"n": 1, "s": {"x": NAN, "label": "a"}}, {"n": 2, "s": None}, {"n": 3, "s": {"x": 1.0, "label": "c"}}]
    files = Files(schema, rows)
    deletes = [files.equality([3], [{"s": {"x": NAN}}]), files.equality([4], [{"s": None}])]
    labels = schema_of(column(2, "s", StructType((column(4, "label", STRING),))))
    assert files.rows(labels, deletes) == [{"s": {"label": "c"}}]
    assert files.rows(schema_of(schema.fields[0]), deletes) == [{"n": 3}]
    assert files.rows(schema, deletes) == [rows[2]]


def test_a_partition_field_of_the_same_id_is_no_column():
    schema = schema_of(column(1, "n", LONG), column(1000, "k", LONG))
    files = Files(schema, [{"n": 1, "k": 5}, {"n": 2, "k": 6}])
    wanted = schema_of(partition_column([StructType((column(1000, "n_bucket", INT),))]), column(1, "n", LONG))
    facts = {"source": {"partition": {1000: 5}}}
    found = files.rows(wanted, [files.equality([1000], [{"k": 5}])], **facts)
    assert found == [{"_partition": {"n_bucket": 5}, "n": 2}]


# Positions and vectors


@pytest.mark.parametrize("file_format", FORMATS)
def test_positions_delete_only_rows_of_their_file(file_format):
    files = Files(ANIMALS, ROWS, file_format)
    deletes = [files.positions(("memory:/other", 0), 1, 4, 2**40), files.positions(3, 1)]
    for cache in (None, DeleteCache()):
        assert names(files, deletes, cache=cache) == ["Koala", "Grizzly"]


def test_deletes_of_all_kinds_add_up_or_mark_rows():
    """Vectors and equality deletes add up, and _deleted marks the rows where that column is read."""
    files = Files(ANIMALS, ROWS, row_group_rows=3)
    deletes = [files.vector(0), files.equality([1], [{"id": 2}]), files.equality([3], [{"name": "Polar"}])]
    assert names(files, deletes) == ["Grizzly"]
    wanted = schema_of(FILE, DELETED, ANIMALS.fields[0], POS)
    assert files.rows(wanted, deletes) == [
        {"_file": files.location, "_deleted": n != 3, "id": n, "_pos": n - 1} for n in (1, 2, 3, 4)
    ]
    assert [row["_deleted"] for row in files.rows(wanted, [])] == [False] * 4


def test_positions_and_row_ids_are_those_of_the_file():
    files = Files(ANIMALS, ROWS, row_group_rows=2)
    wanted = schema_of(POS, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    source = {"first_row_id": 100, "data_sequence_number": 7}
    deletes = [files.positions(2), files.equality([1], [{"id": 1}])]
    assert files.rows(wanted, deletes, source=source) == [
        {"_pos": n, "_row_id": 100 + n, "_last_updated_sequence_number": 7} for n in (1, 3)
    ]


def test_only_wanted_columns_are_returned_in_order():
    files = Files(ANIMALS, ROWS)
    wanted = schema_of(ANIMALS.fields[2], ANIMALS.fields[0])
    tables = files.read(wanted, [files.equality([1, 2], [{"id": 4}])], residual=bound("category IS NULL"))
    assert [table.to_pydict() for table in tables] == [{"name": ["Grizzly"], "id": [3]}]
    assert tables[0].schema.names == ["name", "id"]


# The filter


def bound(text, schema=ANIMALS):
    return bind(parse_where(text), schema)


@for_each(
    ("where", "left"),
    [
        ("id >= 2", ["Teddy", "Polar"]),
        ("category IS NULL OR name = 'Koala'", ["Koala", "Polar"]),
        ("name = 'Grizzly'", []),
        ("id < 0", []),
    ],
)
def test_rows_that_the_filter_does_not_match_are_left_out(where, left):
    files = Files(ANIMALS, ROWS)
    deletes = [files.equality([1], [{"id": 3}])]
    assert names(files, deletes, residual=bound(where)) == left
    wanted = schema_of(ANIMALS.fields[2], DELETED)
    marked = files.rows(wanted, deletes, residual=bound("id >= 2"))
    assert [(row["name"], row["_deleted"]) for row in marked] == [("Teddy", False), ("Grizzly", True), ("Polar", False)]


def test_filter_column_need_not_be_projected():
    files = Files(ANIMALS, ROWS)
    found = files.rows(schema_of(ANIMALS.fields[0], POS), [], residual=bound("name LIKE 'P%'"))
    assert found == [{"id": 4, "_pos": 3}]


# Splits

ONE = schema_of(column(1, "n", LONG))


def _many(file_format):
    if file_format == "AVRO":
        return Files(ONE, [{"n": n} for n in range(20)], "AVRO")
    scattered = (np.arange(36_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    table = pa.Table.from_arrays([pa.array(scattered)], schema=table_of(ONE, []).schema)
    if file_format == "PARQUET":
        return Files(ONE, table, row_group_rows=4000)
    files = Files.__new__(Files)
    files.storage, files.schema, files._format, files._count = MemoryStorage(), ONE, "ORC", 0
    tables = [table.slice(start, 2000) for start in range(0, table.num_rows, 2000)]
    (file,) = write_files(files.storage, ONE, tables, options_for("ORC", stripe_size_bytes=4096))
    assert len(file.split_offsets) > 3
    files.location = file.file_path
    return files


MANY = {file_format: _many(file_format) for file_format in FORMATS}


@pytest.mark.parametrize("file_format", FORMATS)
@given(data=st.data())
@cases(15)
def test_splits_share_the_rows_of_a_file_out_wherever_it_is_cut(file_format, data):
    files = MANY[file_format]
    size = len(files.storage.read(files.location))
    cuts = data.draw(st.lists(st.integers(0, size), max_size=6))
    end = size + data.draw(st.integers(0, 1000))
    borders = [0, *sorted(cuts), end]
    rows = [p for start, stop in pairwise(borders) for p in _split_positions(files, start, stop)]
    assert rows == _split_positions(files, 0, size)
    assert len(rows) == (20 if file_format == "AVRO" else 36_000)


def _split_positions(files, start, stop):
    tables = files.read(schema_of(POS), [], split=(start, stop - start))
    return [p for table in tables for p in table.column(0).to_pylist()]


def test_deletes_of_a_split_are_those_of_its_rows():
    files = MANY["PARQUET"]
    size = len(files.storage.read(files.location))
    deletes = [files.positions(0, 5, 35_999)]
    halves = [files.read(schema_of(POS), deletes, split=split) for split in ((0, size // 2), (size // 2, size))]
    positions = [[p for t in half for p in t.column(0).to_pylist()] for half in halves]
    assert positions[0] + positions[1] == [n for n in range(36_000) if n not in (0, 5, 35_999)]
    assert positions[0][0] == 1
    assert positions[1]


# The oracle

KEYS = {
    2: (STRING, [None, "", "a", "b"]),
    3: (DOUBLE, [None, NAN, 0.0, -0.0, 1.5]),
    4: (decimal(9, 2), [None, 0, 1]),
    5: (BINARY, [None, b"", b"\x00"]),
    6: (DATE, [None, 0, -1]),
    7: (TIMESTAMPTZ, [None, 0, 10**6]),
    8: (fixed(2), [None, b"ab", b"\x00\x00"]),
    9: (INT, [None, 0, 1]),
    12: (FLOAT, [None, NAN, 0.0, -0.0]),
}
STRUCT = StructType((column(12, "x", FLOAT),))
GENERATED = schema_of(
    column(1, "n", LONG),
    *(column(i, f"c{i}", type_) for i, (type_, _) in KEYS.items() if i != 12),
    column(11, "s", STRUCT),
)


@st.composite
def generated_rows(draw, max_size):
    fields = {f"c{i}": st.sampled_from(pool) for i, (_, pool) in KEYS.items() if i != 12}
    inner = st.none() | st.fixed_dictionaries({"x": st.sampled_from(KEYS[12][1])})
    return draw(st.lists(st.fixed_dictionaries({**fields, "s": inner}), min_size=1, max_size=max_size))


def key_of(row, ids):
    def bits(value):
        if isinstance(value, float):
            return "nan" if value != value else struct.pack("<d", value)
        return value

    return tuple(bits((row["s"] or {}).get("x") if i == 12 else row[f"c{i}"]) for i in ids)


@pytest.mark.parametrize("file_format", FORMATS)
@given(data=st.data())
def test_what_is_left_is_what_a_set_of_tuples_leaves(file_format, data):
    rows = [{**row, "n": n} for n, row in enumerate(data.draw(generated_rows(12)))]
    group_rows = data.draw(st.integers(1, 6)) if file_format == "PARQUET" else None
    files = Files(GENERATED, rows, file_format, group_rows)
    dead, deletes = set(), []
    for ids in data.draw(
        st.lists(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=3, unique=True), min_size=1, max_size=3)
    ):
        for _ in range(data.draw(st.integers(1, 2))):
            keys = data.draw(generated_rows(4)) if data.draw(st.booleans()) else [data.draw(st.sampled_from(rows))]
            deletes.append(files.equality(ids, [{"n": None, **key} for key in keys]))
            wanted = {key_of(key, ids) for key in keys}
            dead |= {row["n"] for row in rows if key_of(row, ids) in wanted}
    positions = st.lists(st.integers(0, 15), min_size=1)
    if data.draw(st.booleans()):
        gone = data.draw(positions)
        deletes.append(files.vector(*gone))
        dead |= {*gone}
    else:
        for gone in data.draw(st.lists(positions, max_size=2)):
            deletes.append(files.positions(*gone, ("memory:/other", 3)))
            dead |= {*gone}
    cache = DeleteCache(data.draw(st.sampled_from([0, 60, 10**6])))
    piece_rows, batch_rows = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    with (
        mock.patch.object(merge_on_read, "PIECE_ROWS", piece_rows),
        mock.patch.object(equality_match, "BATCH_ROWS", batch_rows),
    ):
        wanted = schema_of(column(1, "n", LONG), POS)
        for _ in range(2):
            found = files.rows(wanted, deletes, cache=cache)
            assert found == [{"n": row["n"], "_pos": row["n"]} for row in rows if row["n"] not in dead]
        marked = files.rows(schema_of(DELETED), deletes, cache=cache)
    assert [row["_deleted"] for row in marked] == [row["n"] in dead for row in rows]


# Memory


class Watched(io.BytesIO):
    """A stream that notes what Arrow holds whenever it is read."""

    def __init__(self, data, held):
        super().__init__(data)
        self._held = held

    def read(self, size=-1):
        self._held.append(pa.total_allocated_bytes())
        return super().read(size)


@contextmanager
def watched(storage):
    held, before = [], pa.total_allocated_bytes()
    watching = HookedStorage(storage)
    watching.open = lambda location: Watched(storage.read(location), held)
    yield watching, lambda: max(held) - before


def scattered(count, start=0):
    numbers = (np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    return pa.Table.from_arrays([pa.array(numbers)], schema=table_of(ONE, []).schema)


def test_memory_is_independent_of_equality_delete_count():
    """13: other engines hold every key of every delete file that reaches a data file."""
    files = Files(ONE, scattered(50_000))
    small_groups = {"write.delete.parquet.row-group-size-bytes": "262144"}
    peaks = {}
    for count in (400_000, 1_600_000):
        one = files.equality([1], scattered(count, 25_000), properties=small_groups)
        cache = DeleteCache(budget_bytes=1_000_000)
        with watched(files.storage) as (storage, peak), mock.patch.object(equality_match, "BATCH_ROWS", 100_000):
            tables = files.read(ONE, [one], storage, cache=cache)
        peaks[count] = peak()
        assert sum(table.num_rows for table in tables) == 25_000
        assert cache.held_bytes <= 1_000_000
    assert peaks[1_600_000] < peaks[400_000] * 1.2 + 200_000
    assert peaks[1_600_000] < 1_600_000 * 8 / 2


def test_equality_delete_files_are_read_once_per_task():
    """13: 585 equality delete files."""
    files = Files(ONE, [{"n": n} for n in range(1000)], row_group_rows=100)
    deletes = [files.equality([1], [{"n": n}]) for n in range(585)]
    storage, cache = HookedStorage(files.storage), DeleteCache()
    for _ in range(3):
        assert [row["n"] for row in files.rows(ONE, deletes, storage=storage, cache=cache)] == [*range(585, 1000)]
    assert storage.fired["open"] == 585 + 3
    assert cache.held_bytes < 100_000


def test_shared_position_deletes_are_read_once_per_task():
    files = Files(ANIMALS, ROWS)
    shared = files.positions(1, ("memory:/other", 0), ("memory:/third", 2))
    own = files.positions(3)
    storage, cache = HookedStorage(files.storage), DeleteCache()
    for _ in range(3):
        assert names(files, [shared, own], storage=storage, cache=cache) == ["Koala", "Grizzly"]
    # What names one data file is of no use to another.
    assert storage.fired["open"] == 1 + 3 + 3


def test_what_does_not_fit_the_cache_is_read_again():
    files = Files(ANIMALS, ROWS)
    deletes = [files.positions(1, ("memory:/other", 0)), files.equality([1], [{"id": 1}])]
    storage, cache = HookedStorage(files.storage), DeleteCache(budget_bytes=10)
    for _ in range(2):
        assert names(files, deletes, storage=storage, cache=cache) == ["Grizzly", "Polar"]
    assert storage.fired["open"] == 2 * 3
    assert cache.held_bytes <= 10


def test_a_count_that_is_too_small_does_not_fill_the_cache():
    files = Files(ANIMALS, ROWS)
    lying = replace(files.positions(1, 3, ("memory:/other", 0)), record_count=1)
    cache = DeleteCache(budget_bytes=20)
    with pytest.raises(InvalidTableError, match="has 3 rows where its manifest says 1"):
        names(files, [lying], cache=cache)
    assert cache.held_bytes == 0


# What is wrong


def test_deletes_that_cannot_be_applied_are_named():
    files = Files(ANIMALS, ROWS)
    file = files.equality([1], [{"id": 1}])
    for ids, reason in (((99,), "no schema of the table has a column with id 99"), ((), "has no equality_ids")):
        with pytest.raises(InvalidTableError, match=f"'{file.file_path}'.* {reason}"):
            files.read(ANIMALS, [replace(file, equality_ids=ids)])
    listed = schema_of(*ANIMALS.fields, column(4, "l", ListType(element_id=5, element=UUID)))
    with pytest.raises(InvalidTableError, match=r"cannot be applied: column 'l\.element'"):
        files.read(ANIMALS, [replace(file, equality_ids=(5,))], table_schemas=[listed])
    for delete in (file, files.positions(1)):
        with pytest.raises(UnsupportedError, match=f"'{delete.file_path}' is encrypted"):
            files.read(ANIMALS, [replace(delete, key_metadata=b"k")])


def test_two_vectors_for_one_data_file_are_an_invalid_table():
    files = Files(ANIMALS, ROWS)
    with pytest.raises(InvalidTableError, match="has 2 deletion vectors"):
        files.read(ANIMALS, [files.vector(1), files.vector(2)])


def test_deletes_that_were_planned_wrongly_are_a_bug():
    files = Files(ANIMALS, ROWS)
    with pytest.raises(IcekeepBug, match="was planned for"):
        files.read(ANIMALS, [replace(files.vector(1), referenced_data_file="memory:/other")])
    (data,) = write_files(files.storage, ANIMALS, [table_of(ANIMALS, ROWS)], directory="memory:/u")
    with pytest.raises(IcekeepBug, match="is a data file"):
        files.read(ANIMALS, [data])


def test_an_encrypted_vector_is_refused():
    files = Files(ANIMALS, ROWS)
    with pytest.raises(UnsupportedError, match="is encrypted"):
        files.read(ANIMALS, [replace(files.vector(1), key_metadata=b"k")])


# One reader for many files


def letters(tables):
    return "".join(row["name"][0] for table in tables for row in table.to_pylist())


def test_reader_applies_deletes_per_piece_and_counts_rows():
    files = Files(ANIMALS, ROWS * 3, row_group_rows=5)
    reader = LiveRowsReader(files.storage, ANIMALS, table_schemas=[ANIMALS], kept_dictionaries={2, 3})
    no_toys, no_grizzlies = (files.equality([3], [{"name": name}]) for name in ("Teddy", "Grizzly"))
    no_categories = files.equality([2], [{"category": None}])
    deletes = [
        [],
        [files.positions(0, 3)],
        [no_toys],
        [no_toys, files.vector(11)],
        [no_toys],
        [no_toys],
        [no_grizzlies],
        [no_categories],
        [no_toys, no_categories],
        [files.positions(2), no_categories],
        [],
    ]
    source = SourceFile(location=files.location)
    pieces = [LivePiece(source=source, deletes=some, record_count=12) for some in deletes]
    assert letters(reader.read(pieces)) == (
        "KTGPKTGPKTGP" "TGKTGPKTGP" "KGPKGPKGP" "KGPKGPKG" "KGPKGPKGP" "KGPKGPKGP" "KTPKTPKTP"
        "KTKTKT" "KKK" "KTKTKT" "KTGPKTGPKTGP"
    )  # fmt: skip
    assert reader.read_count == 12 * len(deletes)


def test_small_files_with_same_deletes_are_read_together():
    files = Files(ANIMALS, ROWS)
    reader = LiveRowsReader(files.storage, ANIMALS, kept_dictionaries={2, 3})
    piece = LivePiece(source=SourceFile(location=files.location), deletes=[files.equality([1], [{"id": 2}])])
    (table,) = reader.read([piece] * 50)
    assert letters([table]) == "KGP" * 50


@given(st.lists(st.lists(st.integers(0, 9), max_size=10), max_size=8), st.sampled_from([True, False]))
def test_delete_list_parts_equal_plain_lists(parts, are_nested):
    files = Files(ANIMALS, ROWS)
    whole = [
        *(
            files.equality([1 + n % 2], [{"id": n} if n % 2 == 0 else {"category": ROWS[n // 2]["category"]}])
            for n in range(6)
        ),
        *(files.positions(n) for n in range(4)),
    ]
    if are_nested:
        parts = [[*range(min([*some, 6]), 6), *(n for n in some if n > 5)] for some in parts]
    source = SourceFile(location=files.location)
    pieces = [LivePiece(source=source, deletes=Part(whole, PositionSet(some))) for some in parts]
    plain = [LivePiece(source=source, deletes=[*piece.deletes]) for piece in pieces]
    found = letters(LiveRowsReader(files.storage, ANIMALS).read(pieces))
    assert found == letters(LiveRowsReader(files.storage, ANIMALS).read(plain))
    assert found == "".join(letters(LiveRowsReader(files.storage, ANIMALS).read([piece])) for piece in plain)


def test_files_sharing_a_delete_list_suffix_are_combined():
    """Files reached by ever newer deletes of one list are looked up together, not one by one."""
    files = Files(ANIMALS, ROWS)
    whole = [files.equality([1], [{"id": n}]) for n in (1, 2, 3, 4)]
    source = SourceFile(location=files.location)
    looked_up = []

    def counted(*arguments, inner=merge_on_read.rows_deleted):
        looked_up.append(arguments[0].num_rows)
        return inner(*arguments)

    # All go to the end of the list but for the last two.
    pieces = [
        LivePiece(source=source, deletes=Part(whole, PositionSet(some)))
        for some in ([2, 3], range(4), [3], range(1, 4), [0, 1], [0, 2])
    ]
    with mock.patch.object(merge_on_read, "rows_deleted", counted):
        rows = letters(LiveRowsReader(files.storage, ANIMALS).read(pieces))
    assert looked_up == [16, 4, 4]
    assert rows == "KT" "" "KTG" "K" "GP" "TP"  # fmt: skip


def test_runs_of_several_lists_and_plain_lists_are_not_mixed_up():
    files = Files(ANIMALS, ROWS)
    one, two, three = (files.equality([1], [{"id": n}]) for n in (1, 2, 3))
    source = SourceFile(location=files.location)
    deletes = [
        Part([one, two, three], PositionSet(range(3))),
        Part([three, one, two, three], PositionSet(range(1, 4))),
        Part([three, one, two, three], PositionSet([3])),
        [one, two, three],
        Part([one, two, three], PositionSet([1, 2])),
    ]
    pieces = [LivePiece(source=source, deletes=some) for some in deletes]
    assert letters(LiveRowsReader(files.storage, ANIMALS).read(pieces)) == "PPKTPPKP"


def test_the_kinds_of_a_run_are_told_apart_once():
    files = Files(ANIMALS, ROWS)
    whole = [*(files.equality([1], [{"id": n}]) for n in range(50)), files.positions(0), files.positions(1)]
    kinds = SharedDeletes()
    first, second = (kinds.by_kind(Part(whole, PositionSet([*range(10, 50), last]))) for last in (50, 51))
    assert first.by_equality is second.by_equality
    assert (first.by_position, second.by_position) == ([whole[50]], [whole[51]])
    assert first.run == EqualityRun(first.run.places, 10, 50)
    backwards = kinds.by_kind(Part(whole[::-1], PositionSet(range(10))))
    assert (len(backwards.by_position), [len(some) for some in backwards.by_equality.values()]) == (2, [8])
    assert backwards.run is None


@pytest.mark.parametrize(("name", "limit"), [("PIECE_ROWS", 9), ("PIECE_BYTES", 300)])
def test_no_more_rows_are_put_together_than_fit_a_piece(monkeypatch, name, limit):
    monkeypatch.setattr(merge_on_read, name, limit)
    files = Files(ANIMALS, ROWS)
    piece = LivePiece(source=SourceFile(location=files.location), deletes=[files.equality([1], [{"id": 2}])])
    tables = list(LiveRowsReader(files.storage, ANIMALS).read([piece] * 7))
    assert 3 <= len(tables) < 7
    assert letters(tables) == "KGP" * 7


def test_files_with_other_string_encodings_are_not_combined():
    files = [Files(ANIMALS, ROWS, file_format) for file_format in ("PARQUET", "ORC", "PARQUET")]
    storage = files[0].storage
    deletes = [files[0].equality([1], [{"id": 2}])]
    pieces = []
    for number, one in enumerate(files):
        storage.create(f"memory:/t/copy-{number}", one.storage.read(one.location))
        source = SourceFile(location=f"memory:/t/copy-{number}", file_format=("PARQUET", "ORC", "PARQUET")[number])
        pieces.append(LivePiece(source=source, deletes=deletes))
    reader = LiveRowsReader(storage, ANIMALS, kept_dictionaries={2, 3})
    assert letters(reader.read(pieces)) == "KGP" * 3


def test_a_piece_with_other_rows_than_it_must_have_is_an_error():
    files = Files(ANIMALS, ROWS)
    piece = LivePiece(source=SourceFile(location=files.location), deletes=[files.positions(0)], record_count=3)
    with pytest.raises(InvalidTableError, match="has 4 rows where its manifest says 3"):
        list(LiveRowsReader(files.storage, ANIMALS).read([piece]))


def test_strings_stay_dictionaries_unless_deletes_compare_them():
    files = Files(ANIMALS, ROWS * 20)
    reader = LiveRowsReader(files.storage, ANIMALS, table_schemas=[ANIMALS], kept_dictionaries={2, 3})
    source = SourceFile(location=files.location)

    def kept(*deletes):
        (table,) = reader.read([LivePiece(source=source, deletes=deletes)])
        return [field.name for field in table.schema if pa.types.is_dictionary(field.type)]

    assert kept() == ["category", "name"]
    assert kept(files.positions(1)) == ["category", "name"]
    assert kept(files.equality([3], [{"name": "Teddy"}])) == ["category"]


def test_equality_deletes_are_applied_in_bounded_batches():
    """The limit of rows alone lets through as much as a million long texts."""
    rows = [{"id": n, "category": "x", "name": str(n) * 50} for n in range(1000)]
    files = Files(ANIMALS, table_of(ANIMALS, rows), row_group_rows=1000)
    piece = LivePiece(source=SourceFile(location=files.location), deletes=[files.equality([1], [{"id": 7}])])
    reader = LiveRowsReader(files.storage, ANIMALS, piece_bytes=20_000)
    tables = list(reader.read([piece]))
    assert len(tables) > 5
    assert max(table.nbytes for table in tables) < 40_000
    assert [id_ for table in tables for id_ in table["id"].to_pylist()] == [n for n in range(1000) if n != 7]
    assert [table.num_rows for table in LiveRowsReader(files.storage, ANIMALS).read([piece])] == [999]


def test_a_reader_takes_batches_where_it_is_told_to():
    files = Files(ANIMALS, ROWS * 3)
    piece = LivePiece(source=SourceFile(location=files.location), deletes=[files.positions(4)])
    tables = list(LiveRowsReader(files.storage, ANIMALS).read([piece], batch_rows=lambda _: 5))
    assert [table.num_rows for table in tables] == [4, 5, 2]


OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
PRIMITIVES = [f for f in EVERY_TYPE.fields if isinstance(f.type, PrimitiveType)]


def keys(schema, ids, rows):
    leaves = leaf_schema(ids, [schema])
    return key_columns(project(table_of(schema, rows), leaves), leaves, ids)


def deleted(schema, rows, deletes, ids=None):
    ids = [field.field_id for field in schema.fields] if ids is None else ids
    return rows_deleted(keys(schema, ids, rows), [keys(schema, ids, deletes)]).tolist()


def one(type_, rows, deletes):
    schema = schema_of(column(1, "c", type_))
    return deleted(schema, [{"c": value} for value in rows], [{"c": value} for value in deletes])


@pytest.mark.parametrize("type_", [FLOAT, DOUBLE])
def test_every_nan_is_one_value_and_each_zero_its_own(type_):
    rows = [NAN, OTHER_NAN, -NAN, 0.0, -0.0, None, 1.5]
    assert one(type_, rows, [NAN]) == [True, True, True, False, False, False, False]
    assert one(type_, rows, [OTHER_NAN]) == [True, True, True, False, False, False, False]
    assert one(type_, rows, [0.0]) == [False, False, False, True, False, False, False]
    assert one(type_, rows, [-0.0]) == [False, False, False, False, True, False, False]


def test_a_column_of_unknown_type_is_null_in_rows_and_deletes():
    assert one(UNKNOWN, [None, None], [None]) == [True, True]


@pytest.mark.parametrize("field", PRIMITIVES, ids=lambda f: f.name)
@given(data=st.data())
def test_every_type_is_equal_to_itself_and_not_to_others(field, data):
    several = st.lists(st.none() | values(field.type), min_size=1, max_size=6)
    rows, deletes = data.draw(several), data.draw(several)
    deletes += data.draw(st.lists(st.sampled_from(rows)))
    wanted = {plain(value) for value in deletes}
    assert one(field.type, rows, deletes) == [plain(value) in wanted for value in rows]


def plain(value):
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("<d", value)
    return value


_POOLS = {
    1: st.sampled_from([None, 0, 1, 2**40]),
    2: st.sampled_from([None, "", "a", "b"]),
    3: st.sampled_from([None, NAN, 0.0, -0.0, 1.5]),
}
_SCHEMA = schema_of(column(1, "c1", LONG), column(2, "c2", STRING), column(3, "c3", DOUBLE))


@st.composite
def rows_of(draw, max_size):
    row = st.fixed_dictionaries({f"c{n}": pool for n, pool in _POOLS.items()})
    return draw(st.lists(row, max_size=max_size))


@given(
    rows_of(12),
    st.lists(rows_of(8), max_size=4),
    st.lists(st.integers(1, 3), min_size=1, unique=True),
    st.integers(1, 9),
)
def test_equality_match_agrees_with_set_of_tuples(rows, deletes, ids, batch_rows):
    tables = [keys(_SCHEMA, ids, part) for part in deletes]
    with mock.patch.object(equality_match, "BATCH_ROWS", batch_rows):
        found = rows_deleted(keys(_SCHEMA, ids, rows), tables).tolist()
    wanted = {tuple(plain(row[f"c{i}"]) for i in ids) for part in deletes for row in part}
    assert found == [tuple(plain(row[f"c{i}"]) for i in ids) in wanted for row in rows]


def test_many_columns_do_not_overflow():
    names = [f"c{n}" for n in range(1, 13)]
    schema = schema_of(*(column(n, name, LONG) for n, name in enumerate(names, 1)))
    rows = [dict.fromkeys(names, n) for n in range(2000)]
    others = [{**row, "c12": -1} for row in rows]
    assert not any(deleted(schema, rows, others))
    assert all(deleted(schema, rows, rows))


@given(
    st.lists(st.tuples(rows_of(1), st.integers(0, 5)), max_size=12),
    st.lists(rows_of(8), max_size=5),
    st.lists(st.integers(1, 3), min_size=1, unique=True),
    st.integers(1, 9),
)
def test_row_is_matched_only_by_later_deletes(rows, deletes, ids, batch_rows):
    rows = [(row, since) for some, since in rows for row in some]
    tables = [keys(_SCHEMA, ids, part) for part in deletes]
    numbered = [t.append_column("n", pa.array([n] * t.num_rows, pa.int64())) for n, t in enumerate(tables)]
    with mock.patch.object(equality_match, "BATCH_ROWS", batch_rows):
        found = rows_deleted(
            keys(_SCHEMA, ids, [row for row, _ in rows]), numbered, np.array([n for _, n in rows], np.int64)
        )
    wanted = [any(rows_deleted(keys(_SCHEMA, ids, [row]), tables[since:])) for row, since in rows]
    assert found.tolist() == wanted


def test_small_deletes_are_batched_and_large_ones_split():
    schema = schema_of(column(1, "a", LONG))
    rows = keys(schema, [1], [{"a": n} for n in range(40)])
    sizes = []

    def matches(rows, batch, since, inner=equality_match._matches):
        sizes.append(batch.num_rows)
        return inner(rows, batch, since)

    with mock.patch.object(equality_match, "BATCH_ROWS", 10), mock.patch.object(equality_match, "_matches", matches):
        small = [rows.slice(n, 1) for n in range(30)]
        assert rows_deleted(rows, small).tolist() == [True] * 30 + [False] * 10
        assert sizes == [10, 10, 10]
        sizes.clear()
        assert rows_deleted(rows, [rows.slice(0, 35)]).tolist() == [True] * 35 + [False] * 5
        assert sizes == [10, 10, 10, 5]


def test_long_keys_make_small_batches():
    schema = schema_of(column(1, "a", STRING))
    rows = keys(schema, [1], [{"a": str(n) * 1000} for n in range(10)])
    sizes = []

    def matches(rows, batch, since, inner=equality_match._matches):
        sizes.append(batch.num_rows)
        return inner(rows, batch, since)

    with mock.patch.object(equality_match, "BATCH_BYTES", 3500), mock.patch.object(equality_match, "_matches", matches):
        assert all(rows_deleted(rows, [rows.slice(0, 1), rows.slice(1, 7), rows.slice(8)]))
    assert sum(sizes) == 10
    assert max(sizes) == 3
    assert len(sizes) <= 5


def test_deletes_are_not_read_on_when_no_row_is_left():
    schema = schema_of(column(1, "a", LONG))
    rows = keys(schema, [1], [{"a": 1}])

    def deletes():
        yield rows
        yield rows
        raise AssertionError("read on")

    with mock.patch.object(equality_match, "BATCH_ROWS", 1):
        assert rows_deleted(rows, deletes()).tolist() == [True]


def test_key_columns_of_several_chunks_are_compared():
    rows = pa.table({"1": pa.chunked_array([[1, 2], [3]])})
    assert rows_deleted(rows, [pa.table({"1": pa.chunked_array([[3], [1]])})]).tolist() == [True, False, True]
