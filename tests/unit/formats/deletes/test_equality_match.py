import struct
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.arrow.projection import leaf_schema, project
from icekeep.formats.deletes import apply as equality_match
from icekeep.formats.deletes.apply import key_columns, rows_deleted
from icekeep.spec.types import DOUBLE, FLOAT, LONG, STRING, UNKNOWN, PrimitiveType, StructType
from kit.columns import EVERY_TYPE, column, schema_of, table_of, values

NAN = float("nan")
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


def test_null_deletes_null_and_nothing_else():
    assert one(LONG, [0, None, 1], [None]) == [False, True, False]
    assert one(STRING, ["", None], [None]) == [False, True]
    assert one(STRING, ["", None], [""]) == [True, False]


@pytest.mark.parametrize("type_", [FLOAT, DOUBLE])
def test_every_nan_is_one_value_and_each_zero_its_own(type_):
    rows = [NAN, OTHER_NAN, -NAN, 0.0, -0.0, None, 1.5]
    assert one(type_, rows, [NAN]) == [True, True, True, False, False, False, False]
    assert one(type_, rows, [OTHER_NAN]) == [True, True, True, False, False, False, False]
    assert one(type_, rows, [0.0]) == [False, False, False, True, False, False, False]
    assert one(type_, rows, [-0.0]) == [False, False, False, False, True, False, False]


def test_all_columns_of_one_delete_must_be_equal():
    schema = schema_of(column(1, "a", LONG), column(2, "b", STRING), column(3, "c", DOUBLE))
    rows = [dict(zip("abc", row, strict=True)) for row in [(1, "x", 1.0), (1, "y", 2.0), (2, "x", 2.0), (2, None, NAN)]]
    crossed = [
        dict(zip("abc", row, strict=True)) for row in [(1, "x", 2.0), (1, "y", 1.0), (2, "y", 2.0), (1, None, NAN)]
    ]
    assert deleted(schema, rows, crossed) == [False, False, False, False]
    assert deleted(schema, rows, rows[1:]) == [False, True, True, True]


def test_a_column_of_unknown_type_is_null_in_rows_and_deletes():
    assert one(UNKNOWN, [None, None], [None]) == [True, True]


def test_no_deletes_delete_nothing():
    schema = schema_of(column(1, "a", LONG))
    rows = keys(schema, [1], [{"a": 1}])
    assert rows_deleted(rows, []).tolist() == [False]
    assert rows_deleted(rows, [rows.slice(0, 0)]).tolist() == [False]


@pytest.mark.slow
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
def test_any_columns_in_batches_of_any_size_as_a_set_of_tuples_says(rows, deletes, ids, batch_rows):
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
def test_a_row_is_deleted_by_those_that_come_since_a_number_of_its_own(rows, deletes, ids, batch_rows):
    rows = [(row, since) for some, since in rows for row in some]
    tables = [keys(_SCHEMA, ids, part) for part in deletes]
    numbered = [t.append_column("n", pa.array([n] * t.num_rows, pa.int64())) for n, t in enumerate(tables)]
    with mock.patch.object(equality_match, "BATCH_ROWS", batch_rows):
        found = rows_deleted(
            keys(_SCHEMA, ids, [row for row, _ in rows]), numbered, np.array([n for _, n in rows], np.int64)
        )
    wanted = [any(rows_deleted(keys(_SCHEMA, ids, [row]), tables[since:])) for row, since in rows]
    assert found.tolist() == wanted


def test_small_deletes_are_looked_up_together_and_large_ones_in_pieces():
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


def test_a_leaf_of_a_struct_is_compared_as_null_where_the_struct_is():
    schema = schema_of(column(1, "s", StructType((column(2, "x", LONG),))))
    rows = [{"s": {"x": 1}}, {"s": {"x": None}}, {"s": None}]
    assert deleted(schema, rows, [{"s": None}], [2]) == [False, True, True]
    assert deleted(schema, rows, [{"s": {"x": 1}}], [2]) == [True, False, False]


def test_key_columns_of_several_chunks_are_compared():
    rows = pa.table({"1": pa.chunked_array([[1, 2], [3]])})
    assert rows_deleted(rows, [pa.table({"1": pa.chunked_array([[3], [1]])})]).tolist() == [True, False, True]
