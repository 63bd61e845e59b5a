"""Rows in the types of Spark and back: the same rows."""

import pyarrow as pa
import pytest
from hypothesis import given

from icekeep.formats.arrow.projection import KEPT_DICTIONARY, project
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.arrow.spark_types import crossed, crossing_types, returned
from icekeep.spec.types import DATE, DOUBLE, FLOAT, LONG, STRING, TIME, TIMESTAMP_NS, UUID, StructType, fixed
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, parquet_bytes, rows, schema_of, table_of


def there_and_back(table: pa.Table, schema) -> pa.Table:
    over = crossed(table)
    assert over.schema.equals(pa.schema(crossing_types(schema)))
    tables = [returned(batch.columns, schema) for batch in over.to_batches()]
    return project(pa.concat_tables(tables), schema)


@pytest.mark.slow
@cases(50)
@given(rows(EVERY_TYPE))
def test_rows_of_every_type_come_back_as_they_were(data):
    table = table_of(EVERY_TYPE, data)
    found = there_and_back(table, EVERY_TYPE)
    found.validate(full=True)
    assert found.schema.equals(table.schema, check_metadata=True)
    assert repr(found.to_pylist()) == repr(table.to_pylist())


def test_only_types_cross_of_which_the_jvm_keeps_every_bit():
    types = [DATE, TIME, TIMESTAMP_NS, FLOAT, DOUBLE, UUID, fixed(3)]
    schema = schema_of(*(column(n, f"c.{n}", type_) for n, type_ in enumerate(types, start=1)))
    nested = schema_of(column(1, "s", StructType((column(2, "a b", UUID, required=True),))))
    assert [field.type for field in crossing_types(schema)] == [
        pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int64(), pa.binary(), pa.binary(),
    ]  # fmt: skip
    assert crossing_types(nested) == [pa.field("c0", pa.struct([pa.field("f0", pa.binary())]))]


def test_a_not_a_number_keeps_its_bits():
    schema = schema_of(column(1, "x", DOUBLE))
    bits = [0x7FF8_0000_0000_0001, -1, 0x7FF0_0000_0000_0001]
    table = pa.table([pa.array(bits, pa.int64()).view(pa.float64())], schema=arrow_schema(schema))
    found = there_and_back(table, schema).column(0).combine_chunks()
    assert found.view(pa.int64()).to_pylist() == bits


def test_dictionaries_and_slices_cross_as_their_values():
    schema = schema_of(column(1, "kind", STRING), column(2, "n", LONG))
    table = table_of(schema, [{"kind": kind, "n": n} for n, kind in enumerate(["a", None, "b", "a"])])
    kept = table.set_column(0, table.schema.field(0).with_type(KEPT_DICTIONARY), table["kind"].cast(KEPT_DICTIONARY))
    assert there_and_back(kept, schema).equals(table)
    assert there_and_back(table.slice(1, 2), schema).to_pylist() == table.to_pylist()[1:3]


def test_below_a_null_struct_a_required_field_has_what_the_writer_takes():
    point = StructType((column(2, "x", LONG, required=True),))
    schema = schema_of(column(1, "point", point))
    # As Spark gives it: null below null.
    nulls = pa.StructArray.from_arrays([pa.array([None, 1])], ["f0"], mask=pa.array([True, False]))
    found = project(returned([nulls], schema), schema)
    assert found.to_pylist() == [{"point": None}, {"point": {"x": 1}}]
    assert parquet_bytes(found)
