import pyarrow as pa
import pytest

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.arrays import leaf_path, leaf_schema, leaf_values
from icekeep.formats.arrow.projection import project
from icekeep.spec.types import DOUBLE, INT, LONG, STRING, UUID, ListType, MapType, NestedField, StructType
from kit.cases import for_each
from kit.columns import column, schema_of, table_of

INNER = StructType((column(4, "x", DOUBLE), column(5, "id", UUID, required=True)))
SCHEMA = schema_of(
    column(1, "n", LONG, required=True),
    column(2, "outer", StructType((column(3, "inner", INNER), column(6, "label", STRING))), required=True),
    column(7, "list", ListType(element_id=8, element=StructType((column(9, "y", INT),)))),
    column(10, "map", MapType(key_id=11, key=STRING, value_id=12, value=LONG)),
)


def test_structs_are_cut_down_to_the_leaves_and_everything_is_optional():
    assert leaf_schema([5, 1, 6], [SCHEMA]) == schema_of(
        column(
            2,
            "outer",
            StructType((column(3, "inner", StructType((column(5, "id", UUID),))), column(6, "label", STRING))),
        ),
        column(1, "n", LONG),
    )


def test_the_first_schema_that_has_a_field_says_its_type():
    older, newer = schema_of(column(1, "n", INT), column(20, "gone", STRING)), schema_of(column(1, "n", LONG))
    assert leaf_schema([1, 20], [newer, older]) == schema_of(column(1, "n", LONG), column(20, "gone", STRING))


def test_what_is_added_later_keeps_its_initial_default():
    field = NestedField(field_id=1, name="n", type=LONG, required=True, initial_default=7)
    (leaf,) = leaf_schema([1], [schema_of(field)]).fields
    assert (leaf.initial_default, leaf.required) == (7, False)


@for_each("field_id", [2, 3, 7, 8, 9, 10, 11, 12])
def test_what_is_no_single_value_of_a_row_is_no_leaf(field_id):
    with pytest.raises(InvalidTableError, match=f"\\(id {field_id}\\) is no single value of a row"):
        leaf_path(field_id, [SCHEMA])


def test_an_id_that_no_schema_has_is_an_invalid_table():
    with pytest.raises(InvalidTableError, match="no schema of the table has a column with id 99"):
        leaf_path(99, [SCHEMA])


def test_a_leaf_below_a_null_struct_is_null():
    leaves = leaf_schema([4, 6], [SCHEMA])
    outer = [{"inner": {"x": 1.5, "id": b"1" * 16}, "label": "a"}, {"inner": None, "label": "b"}]
    rows = [{"n": 1, "outer": one, "list": None, "map": None} for one in outer]
    table = project(table_of(SCHEMA, rows), leaves)
    assert leaf_values(table, leaves, 4).to_pylist() == [1.5, None]
    assert leaf_values(table, leaves, 6).to_pylist() == ["a", "b"]


def test_leaves_of_a_struct_may_have_one_name_where_one_was_dropped():
    older = schema_of(column(1, "s", StructType((column(2, "x", STRING),))))
    newer = schema_of(column(1, "s", StructType((column(3, "x", LONG),))))
    leaves = leaf_schema([2, 3], [newer, older])
    table = project(table_of(older, [{"s": {"x": "a"}}, {"s": None}]), leaves)
    assert leaf_values(table, leaves, 2).to_pylist() == ["a", None]
    assert leaf_values(table, leaves, 3).to_pylist() == [None, None]
    assert leaf_values(table, leaves, 3).type == pa.int64()
