"""Leaves of rows; Arrow memory under another description: only what is laid out alike, whatever other engines hand back."""

import pyarrow as pa
import pytest

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.arrow.projection import described_as, leaf_path, leaf_schema, leaf_values, project
from icekeep.formats.sort import external as sort_merge
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


NESTED = pa.struct([pa.field("f0", pa.list_(pa.field("element", pa.map_(pa.string(), pa.binary()))))])
LARGE = pa.struct([pa.field("f0", pa.large_list(pa.field("element", pa.map_(pa.large_string(), pa.large_binary()))))])
TEXTS = ["", None, "a text that is too long for a view of twelve bytes", "ö"]
DEEP = [{"f0": [[("key", b"value"), ("k", None)], None]}, None, {"f0": None}, {"f0": []}]


@pytest.mark.parametrize("given", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_of_every_layout_come_as_the_texts_that_they_are(given):
    """64-bit offsets were taken for 32-bit ones."""
    batch = pa.record_batch([pa.array(TEXTS, given)], names=["a"])
    found = described_as(batch, pa.schema([pa.field("b", pa.string())]))
    found.validate(full=True)
    assert found.to_pydict() == {"b": TEXTS}
    assert found.schema == pa.schema([pa.field("b", pa.string())])


@pytest.mark.parametrize("given", [NESTED, LARGE])
def test_nested_columns_of_every_layout_come_as_they_are(given):
    batch = pa.record_batch([pa.array(DEEP, given)], names=["a"])
    found = described_as(batch, pa.schema([pa.field("b", NESTED)]))
    found.validate(full=True)
    assert found.column(0).to_pylist() == DEEP
    assert described_as(batch.slice(2, 2), found.schema).column(0).to_pylist() == DEEP[2:]


def test_what_is_laid_out_alike_is_not_copied():
    values = pa.array(["a", "b"], pa.string())
    found = described_as(pa.record_batch([values, pa.array([1, 2])], names=["a", "b"]), pa.schema([
        pa.field("x", pa.string(), metadata={b"k": b"v"}), pa.field("y", pa.timestamp("us", "UTC"))
    ]))  # fmt: skip
    assert found.column(0).buffers()[2].address == values.buffers()[2].address
    assert found.column(1).cast(pa.int64()).to_pylist() == [1, 2]


@for_each(
    ("given", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.string(), pa.binary()),
        (pa.string(), pa.int32()),
        (pa.binary(), pa.binary(2)),
        (pa.binary(3), pa.binary(2)),
        (pa.bool_(), pa.int8()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.struct([pa.field("a", pa.int32())]), pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32())])),
    ],
)
def test_another_layout_is_a_bug_and_not_read(given, wanted):
    """Nothing but the row count would show it."""
    batch = pa.record_batch([pa.nulls(1, given)], names=["a"])
    with pytest.raises(IcekeepBug, match="cannot be described as"):
        described_as(batch, pa.schema([pa.field("a", wanted)]))
    with pytest.raises(IcekeepBug, match="1 Arrow columns cannot be described as 0"):
        described_as(batch, pa.schema([]))


def test_rows_come_back_from_a_datafusion_that_hands_out_views(tmp_path, monkeypatch):
    """What it merges is looked at as well."""
    import datafusion

    schema = pa.schema([pa.field("text", pa.string()), pa.field("key", pa.binary())])
    tables = [pa.Table.from_arrays([TEXTS, [b"a", b"c", b"e", b"g"]], schema=schema) for _ in range(2)]
    for number, table in enumerate(tables):
        sort_merge.write_sorted_file(tmp_path / f"{number}.arrow", iter([table]))
    to_pyarrow = datafusion.RecordBatch.to_pyarrow

    def in_views(batch):
        return to_pyarrow(batch).cast(pa.schema([pa.field("c0", pa.string_view()), pa.field("c1", pa.binary_view())]))

    monkeypatch.setattr(datafusion.RecordBatch, "to_pyarrow", in_views)
    found = pa.concat_tables(sort_merge.merged_files(tmp_path, 2, schema))
    assert found.schema == schema
    assert found["text"].to_pylist() == [text for text in TEXTS for _ in range(2)]
