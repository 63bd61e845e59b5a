"""Rows on their way through Spark: in types that it has, with the same bits, so that nothing is lost or changed there.

Times and dates are numbers of their width, floating-point numbers too, since the JVM knows one NaN only; bytes of one
length are binary. Names are ours: Spark takes columns whose names differ in case only for one.
"""

from collections.abc import Sequence

import pyarrow as pa

from icekeep.formats.arrow.plain_types import described_as, plain_type, with_leaves
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.spec.schema import Schema


def crossing_types(schema: Schema) -> list[pa.Field]:
    """The columns that rows of a schema cross in, all of which may be null.

    Raises:
        UnsupportedError: a column has a type whose values we cannot interpret.
    """
    return [pa.field(f"c{n}", _crossing(field.type)) for n, field in enumerate(arrow_schema(schema))]


def crossed(rows: pa.Table) -> pa.Table:
    """Rows as Spark takes them; dictionaries are decoded."""
    decoded = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in rows.schema]
    rows = rows.cast(pa.schema([field.with_type(type_) for field, type_ in zip(rows.schema, decoded, strict=True)]))
    same_bits = pa.schema([pa.field(f"c{n}", _same_bits(field.type)) for n, field in enumerate(rows.schema)])
    crossing = pa.schema([pa.field(f"c{n}", _crossing(field.type)) for n, field in enumerate(rows.schema)])
    batches = [described_as(batch, same_bits) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, schema=same_bits).cast(crossing)


def returned(columns: Sequence[pa.Array], schema: Schema) -> pa.Table:
    """What came back from Spark, in the columns of a schema, but that everything may be null.

    What lies below a null struct is null here, also where the schema requires a value: `project` puts one there.
    """
    target = pa.schema([_optional(field) for field in arrow_schema(schema)])
    same_bits = pa.schema([pa.field(f"c{n}", _same_bits(field.type)) for n, field in enumerate(target)])
    crossing = pa.schema([pa.field(f"c{n}", _crossing(field.type)) for n, field in enumerate(target)])
    # What Spark calls the fields of lists and maps is its own affair.
    batch = described_as(pa.RecordBatch.from_arrays(columns, names=crossing.names), crossing).cast(same_bits)
    return pa.Table.from_batches([described_as(batch, target)])


def _optional(field: pa.Field) -> pa.Field:
    """The field and all below it, null or not, with the same names and ids."""
    type_ = field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_optional(child) for child in type_])
    elif pa.types.is_list(type_):
        type_ = pa.list_(_optional(type_.value_field))
    elif pa.types.is_map(type_):
        type_ = pa.map_(_optional(type_.key_field).with_nullable(False), _optional(type_.item_field))
    return field.with_type(type_).with_nullable(True)


def _same_bits(type_: pa.DataType) -> pa.DataType:
    return with_leaves(plain_type(type_), _number)


def _crossing(type_: pa.DataType) -> pa.DataType:
    return with_leaves(_same_bits(type_), _binary)


def _number(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(type_) or pa.types.is_float32(type_):
        return pa.int32()
    if pa.types.is_time64(type_) or pa.types.is_timestamp(type_) or pa.types.is_float64(type_):
        return pa.int64()
    return type_


def _binary(type_: pa.DataType) -> pa.DataType:
    return pa.binary() if pa.types.is_fixed_size_binary(type_) and not pa.types.is_decimal(type_) else type_
