"""Arrow data of one schema in the columns of another.

`project` matches by field id, for data read from the table's files (spec, "Column Projection"); `cast_to_schema` matches by name,
for a caller's data. Both promote types as "Schema Evolution" allows and no further: a value changes its representation, never its
meaning, and a cast that would round, truncate or overflow is refused.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError, UsageError
from icekeep.formats.arrow.arrays import constant_array, elements, nested_array, without_nulls
from icekeep.formats.arrow.schema import (
    arrow_schema,
    arrow_type,
    child_fields,
    field_id,
    has_ids,
    is_list,
    join_names,
)
from icekeep.spec.schema import Schema, initial_value, write_value
from icekeep.spec.types import STRING, TIMESTAMP, TIMESTAMPTZ, UNKNOWN, ListType, MapType, NestedField, StructType, Type
from icekeep.spec.types import child_fields as iceberg_children

STORED_AS_KEY = b"icekeep:stored-as"
"""The key, in the metadata of an Arrow field, for what the Arrow type cannot express."""

INSTANT = b"instant"
"""A timestamp that counts from the epoch in UTC, whatever the file says of a time zone: the table's type decides.

Presto and ClickHouse mark columns of type `timestamp` as adjusted to UTC, and INT96 has no mark at all.
"""

MICROSECONDS = b"microseconds"
"""A timestamp in nanoseconds of which only whole microseconds count, as in ORC."""

KEPT_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
"""The Arrow type of a string column whose dictionary encoding is kept."""

_EXACT = {
    (pa.float32(), pa.float64()),
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.uuid()),
    (pa.date32(), pa.timestamp("us")),
    (pa.date32(), pa.timestamp("ns")),
}

_STORED = {
    (pa.binary(), pa.string()),
    (pa.binary(), pa.uuid()),
    (pa.int64(), pa.time64("us")),
}
"""Stored types that only the table's type explains: strings that older writers did not mark, and ORC's bytes and times."""


def projected_columns(file_schema: pa.Schema, schema: Schema) -> list[str]:
    """Names of the top-level columns of a file that `project` needs, in the file's order.

    Raises `UnsupportedError` where the file carries no field ids.
    """
    _validate_ids(file_schema)
    ids = {field.field_id for field in schema.fields}
    return [field.name for field in file_schema if field_id(field) in ids]


def unidentified(
    stored: Iterable[pa.Field], fields: Sequence[NestedField], constants: Collection[int] = ()
) -> dict[int, str]:
    """Full names, by field id, of the table's fields whose id the file lacks while a field without id has their name.

    Read by id they are null, and a rewrite would keep the nulls.

    Args:
        stored: columns of a file, with their own ids and those of the table's name mapping.
        fields: columns of the table.
        constants: ids of columns whose value the partition gives.
    """

    def visit(
        stored: Sequence[tuple[str, pa.Field]], fields: Sequence[NestedField], parent: str
    ) -> Iterator[tuple[int, str]]:
        by_id = {field_id(field): field for _, field in stored}
        without_id = {name for name, field in stored if field_id(field) is None}
        for field in fields:
            path = join_names(parent, field.name)
            if field.field_id in by_id:
                yield from visit(child_fields(by_id[field.field_id].type), iceberg_children(field.type), path)
            elif field.name in without_id and field.field_id not in constants and field.type != UNKNOWN:
                yield field.field_id, path

    return dict(visit([(field.name, field) for field in stored], fields, ""))


def refuse_unidentified(stored: pa.Schema, schema: Schema, constants: Collection[int] = ()) -> None:
    """Raise `UnsupportedError` for the first of the `unidentified` columns."""
    for path in unidentified(stored, schema.fields, constants).values():
        raise _without_id(path)


def project(data: pa.Table, schema: Schema, constants: Mapping[int, Any] | None = None) -> pa.Table:
    """Project data read from a file to a table's schema, by field id.

    A column that the data lacks takes its constant, else its `initial-default`, else null; one of type `unknown` is always null;
    a column that the schema lacks is dropped. A top-level string column that was read as a dictionary (`KEPT_DICTIONARY`)
    remains one, since decoding and encoding it again is much of the work of a rewrite; every other dictionary is decoded.
    Columns that fit already are not copied.

    Args:
        data: a table or a record batch whose fields carry the file's ids; the result is of the same kind.
        schema: the columns of the result.
        constants: values by field id of columns that the file may lack because the partition gives them (identity transforms),
            in the form of `spec.values`.

    Raises:
        UnsupportedError: the file carries no field ids.
        InvalidTableError: a required column without a default is absent or has nulls, or a column's type cannot become
            the table's.
    """
    _validate_ids(data.schema)
    return _Projection(constants or {}).table(data, schema)


def cast_to_schema(data: pa.Table, schema: Schema) -> pa.Table:
    """Convert a caller's data to a table's schema, by name at every level.

    A missing column takes its `write-default`, else null where it is optional. Types convert where no value can change: the
    promotions of the spec, smaller whole numbers, other units of time where every value is exact, large types, dictionaries.

    Raises:
        UsageError: a required column has nulls, or is missing and has no default; a column is not in the schema, appears twice,
            or cannot become the schema's type without changing a value. The column is named.
    """
    return _Projection(None).table(data, schema)


def is_same(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether types are equal, with the ids and nullability below them; names of a map's entries do not count."""
    if pa.types.is_map(source) and pa.types.is_map(target):
        pairs = [(source.key_field, target.key_field), (source.item_field, target.item_field)]
    elif source.num_fields and source.id == target.id and source.num_fields == target.num_fields:
        pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
    else:
        return source.equals(target, check_metadata=True)
    return all(
        s.name == t.name and s.nullable == t.nullable and field_id(s) == field_id(t) and is_same(s.type, t.type)
        for s, t in pairs
    )


def _validate_ids(file_schema: pa.Schema) -> None:
    if len(file_schema) and not has_ids(file_schema):
        raise UnsupportedError(
            "it has no field ids and the table has no name mapping; set the table property 'schema.name-mapping.default'"
        )


def _without_id(path: str) -> UnsupportedError:
    return UnsupportedError(
        f"column {path!r} has no field id in the file, and the table's name mapping has no id for its name; add it to the table "
        "property 'schema.name-mapping.default'",
        column=path,
    )


class _Projection(msgspec.Struct, frozen=True):
    """Converts columns that are matched by field id in a table's files, by name in a caller's data.

    `constants` are those of `project`; with None, columns are matched by name.
    """

    constants: Mapping[int, Any] | None

    def table(self, data: pa.Table, schema: Schema) -> pa.Table:
        sources = list(data.schema)
        fields, columns = [], []
        positions = self._positions(sources, schema.fields, "")
        for field, target, position in zip(schema.fields, arrow_schema(schema), positions, strict=True):
            if position is None:
                column = self._absent(field, field.name, data.num_rows)
            else:
                column, source = data.column(position), sources[position]
                if self.constants is not None and is_same(source.type, target.type):
                    pass
                elif self.constants is not None and field.type == STRING and source.type == KEPT_DICTIONARY:
                    target = target.with_type(KEPT_DICTIONARY)
                elif isinstance(column, pa.ChunkedArray):
                    chunks = [self._converted(chunk, source, field.type, field.name) for chunk in column.chunks]
                    column = pa.chunked_array(chunks, type=target.type)
                else:
                    column = self._converted(column, source, field.type, field.name)
                self._validate_no_nulls(column.null_count, field, field.name)
            columns.append(column)
            fields.append(target)
        return type(data).from_arrays(columns, schema=pa.schema(fields))

    def _positions(self, sources: Sequence[pa.Field], fields: Sequence[NestedField], parent: str) -> list[int | None]:
        """The position of each field of the schema among the source's columns, or the fields of a struct."""
        keys: list[Any]
        targets: list[Any]
        if self.constants is None:
            keys, targets = [source.name for source in sources], [field.name for field in fields]
            for position, name in enumerate(keys):
                path = join_names(parent, name)
                if name not in targets:
                    raise self._error(path, f"is not in the schema; its columns are {', '.join(sorted(targets))}")
                if name in keys[:position]:
                    raise self._error(path, "is there twice in the data")
        else:
            keys, targets = [field_id(source) for source in sources], [field.field_id for field in fields]
            for field in fields if len(set(keys)) < len(keys) else ():
                same = [source.name for source, key in zip(sources, keys, strict=True) if key == field.field_id]
                if len(same) > 1:
                    path = join_names(parent, field.name)
                    raise self._error(path, f"is there twice in the file, as {same[0]!r} and {same[1]!r}")
        positions = {key: position for position, key in enumerate(keys)}
        return [positions.get(target) for target in targets]

    def _converted(self, array: pa.Array, source: pa.Field, type_: Type, path: str) -> pa.Array:
        """Convert values to a type. `source` describes them: their own type may lack the ids below it."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), arrow_type(type_))
        match type_:
            case StructType() if pa.types.is_struct(array.type):
                return self._struct(array, source, type_, path)
            case ListType() if is_list(array.type):
                lists = _compact(array.cast(pa.list_(array.type.value_field)))
                return self._lists(lists, [elements(lists)], source, type_, path)
            case MapType() if pa.types.is_map(array.type):
                # Arrow's list functions do not take maps, and a map is a list of its entries.
                entry = pa.struct([array.type.key_field, array.type.item_field])
                lists = _compact(array.cast(pa.list_(pa.field("entries", entry, nullable=False))))
                entries = elements(lists)
                return self._lists(lists, [entries.field(0), entries.field(1)], source, type_, path)
            case StructType() | ListType() | MapType():
                raise self._error(path, f"holds '{array.type}', which cannot become '{type_}'")
        return self._promoted(array, source, type_, path)

    def _struct(self, array: pa.Array, source: pa.Field, type_: StructType, path: str) -> pa.Array:
        sources = list(source.type)
        children = []
        for field, position in zip(type_.fields, self._positions(sources, type_.fields, path), strict=True):
            child_path = join_names(path, field.name)
            if position is None:
                children.append(self._absent(field, child_path, len(array)))
                continue
            child = self._converted(array.field(position), sources[position], field.type, child_path)
            if field.required and child.null_count:
                nulls = pc.and_(array.is_valid(), child.is_null())
                self._validate_no_nulls(pc.sum(nulls).as_py() or 0, field, child_path)
                child = without_nulls(child)
            children.append(child)
        return nested_array(arrow_type(type_), children, array)

    def _lists(
        self, lists: pa.Array, values: Sequence[pa.Array], source: pa.Field, type_: ListType | MapType, path: str
    ) -> pa.Array:
        """Lists or maps of the converted values: their ids must be those of the schema, their names need not."""
        children = []
        for array, (_, child_source), field in zip(
            values, child_fields(source.type), iceberg_children(type_), strict=True
        ):
            child_path = join_names(path, field.name)
            if self.constants is not None and (id_ := field_id(child_source)) != field.field_id:
                if id_ is None:
                    raise _without_id(child_path)
                raise self._error(child_path, f"has field id {id_} in a data file; the schema says {field.field_id}")
            converted = self._converted(array, child_source, field.type, child_path)
            self._validate_no_nulls(converted.null_count, field, child_path)
            children.append(converted)
        return nested_array(arrow_type(type_), children, lists)

    def _promoted(self, array: pa.Array, source: pa.Field, type_: Type, path: str) -> pa.Array:
        target = arrow_type(type_)
        if pa.types.is_null(target):
            return pa.nulls(len(array), target)
        is_stored = False
        if self.constants is not None:
            array = _as_stored(array, source, type_)
            is_stored = (array.type, target) in _STORED or (
                pa.types.is_binary(array.type) and pa.types.is_fixed_size_binary(target)
            )
        if array.type == target:
            return array
        if not is_stored and not _promotes(array.type, target):
            raise self._error(path, f"holds '{array.type}', which cannot become '{type_}'")
        try:
            if target == pa.uuid():
                array = array.cast(pa.binary(16))
            return array.cast(target)
        except pa.ArrowInvalid as problem:
            line = " ".join(str(problem).split())
            raise self._error(path, f"has a value that is not exact as '{type_}': {line}") from problem

    def _absent(self, field: NestedField, path: str, length: int) -> pa.Array:
        if self.constants is None:
            value = None if field.write_default is None else write_value(field)
        elif field.field_id in self.constants:
            value = self.constants[field.field_id]
        else:
            value = None if field.initial_default is None else initial_value(field)
        if value is None and field.required:
            raise self._error(path, "is required and missing from the data")
        return constant_array(field.type, value, length)

    def _validate_no_nulls(self, null_count: int, field: NestedField, path: str) -> None:
        if field.required and null_count:
            raise self._error(path, f"is required and has {null_count} nulls")

    def _error(self, path: str, problem: str) -> IcekeepError:
        if self.constants is None:
            return UsageError(f"column {path!r} {problem}", column=path)
        return InvalidTableError(f"column {path!r} {problem}", column=path, section="Column Projection")


def _compact(lists: pa.Array) -> pa.Array:
    """The lists without elements that only null lists point at: those are arbitrary."""
    visible_count = pc.sum(pc.list_value_length(lists)).as_py() or 0
    return lists if visible_count == len(elements(lists)) else lists.take(pa.array(range(len(lists)), pa.int64()))


def _as_stored(array: pa.Array, source: pa.Field, type_: Type) -> pa.Array:
    stored_as = (source.metadata or {}).get(STORED_AS_KEY)
    if stored_as == INSTANT and pa.types.is_timestamp(array.type) and pa.types.is_timestamp(arrow_type(type_)):
        # A cast would change the numbers.
        return array.view(pa.timestamp(array.type.unit, arrow_type(type_).tz))
    if stored_as == MICROSECONDS and type_ in (TIMESTAMP, TIMESTAMPTZ):
        nanoseconds = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        microseconds = pa.array(np.floor_divide(nanoseconds, 1000), mask=array.is_null().to_numpy(zero_copy_only=False))
        return microseconds.cast(pa.timestamp("us", array.type.tz))
    return array


def _promotes(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a type may be promoted to another; the cast still fails at a value that is not exact."""
    if pa.types.is_integer(source) and pa.types.is_signed_integer(target):
        return source.bit_width < target.bit_width
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        return source.scale == target.scale and source.precision <= target.precision
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if pa.types.is_time(source) and pa.types.is_time(target):
        return True
    return (source, target) in _EXACT
