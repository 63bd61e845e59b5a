"""Arrow data in the columns of a schema, and arrays taken apart and put together for that.

`project` matches by field id, for data read from the table's files (spec, "Column Projection"); `cast_to_schema` matches by name,
for a caller's data. Both promote types as "Schema Evolution" allows and no further: a value changes its representation, never its
meaning, and a cast that would round, truncate or overflow is refused. `described_as` changes no memory.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, UnsupportedError, UsageError
from icekeep.formats.arrow.schema import (
    arrow_field,
    arrow_schema,
    arrow_type,
    child_fields,
    field_id,
    has_ids,
    is_list,
    join_names,
    with_children,
)
from icekeep.spec.schema import Schema, initial_value, write_value
from icekeep.spec.types import (
    STRING,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
)
from icekeep.spec.types import UUID as UUID_TYPE
from icekeep.spec.types import child_fields as iceberg_children

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""A truth value for each row."""

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def where_true(truths: Column) -> Mask:
    """The mask of truth values; null is false."""
    return pc.fill_null(truths, False).to_numpy(zero_copy_only=False)


def offsets(lists: pa.Array) -> pa.Array:
    """Where each list or map begins and ends among its `elements`."""
    # A slice of offsets cannot be combined with a mask of nulls; a difference is a new array.
    return pc.subtract(lists.offsets, lists.offsets[0])


def elements(lists: pa.Array, values: pa.Array | None = None) -> pa.Array:
    """The elements between the first and the last offset of lists, or of maps given their `keys` or `items`."""
    # `flatten` fails on UUIDs.
    values = lists.values if values is None else values
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return values.slice(start, end - start)


def arrays_below(column: pa.Array) -> list[pa.Array]:
    """The fields of structs, null where the structs are, the `elements` of lists, or the keys and items of maps."""
    type_ = column.type
    if pa.types.is_struct(type_):
        return list(column.flatten())
    if pa.types.is_map(type_):
        return [elements(column, column.keys), elements(column, column.items)]
    return [elements(column)] if type_.num_fields else []


def nested_array(type_: pa.DataType, children: Sequence[pa.Array], like: pa.Array) -> pa.Array:
    """Structs, lists or maps of new children (see `arrays_below`), with the nulls and lengths of another array."""
    mask = like.is_null() if like.null_count else None
    if pa.types.is_struct(type_):
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    array_class: Any = pa.MapArray if pa.types.is_map(type_) else pa.ListArray
    return array_class.from_arrays(offsets(like), *children, type=type_, mask=mask)


def plain_values(column: Any) -> Any:
    """Values without dictionaries: whole numbers for dates and times, as in `spec.values`, and 16 bytes for UUIDs."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    type_ = column.type
    if pa.types.is_date32(type_):
        return column.cast(pa.int32())
    if pa.types.is_time64(type_) or pa.types.is_timestamp(type_):
        return column.cast(pa.int64())
    return column.cast(pa.binary(16)) if type_ == pa.uuid() else column


def column_values(array: pa.Array, type_: PrimitiveType) -> list[Any]:
    """The values of an array in the form of `spec.values`."""
    values = plain_values(array).to_pylist()
    return [None if value is None else UUID(bytes=value) for value in values] if type_ == UUID_TYPE else values


def leaf_schema(field_ids: Iterable[int], schemas: Sequence[Schema]) -> Schema:
    """The schema that reads single leaves: structs keep these fields only, and every field is optional.

    A leaf that is read for a comparison may be absent or null, whatever the schema requires. The first schema that has a field
    gives its type. Raises what `leaf_path` raises.
    """

    def merged(paths: Iterable[Sequence[NestedField]]) -> tuple[NestedField, ...]:
        by_id: dict[int, tuple[NestedField, list[Sequence[NestedField]]]] = {}
        for field, *below in paths:
            by_id.setdefault(field.field_id, (field, []))[1].append(below)
        return tuple(
            msgspec.structs.replace(
                field,
                required=False,
                type=StructType(merged(below)) if isinstance(field.type, StructType) else field.type,
            )
            for field, below in by_id.values()
        )

    return Schema(fields=merged(leaf_path(id_, schemas) for id_ in field_ids))


def leaf_path(field_id: int, schemas: Sequence[Schema]) -> tuple[NestedField, ...]:
    """The fields from the column down to the leaf with an id, in the first schema that has it.

    Raises `InvalidTableError` if no schema has it, or it is no primitive, or lies in a list or a map.
    """
    schema = next((schema for schema in schemas if field_id in schema.fields_by_id), None)
    if schema is None:
        raise InvalidTableError(f"no schema of the table has a column with id {field_id}")
    path = [schema.fields_by_id[field_id]]
    while (parent := schema.parents_by_id.get(path[0].field_id)) is not None:
        path.insert(0, parent)
    *structs, leaf = path
    if isinstance(leaf.type, PrimitiveType) and all(isinstance(field.type, StructType) for field in structs):
        return tuple(path)
    raise InvalidTableError(
        f"column {schema.names_by_id[field_id]!r} (id {field_id}) is no single value of a row: it is nested, or lies in"
        " a list or a map"
    )


def leaf_values(table: pa.Table, schema: Schema, field_id: int) -> pa.ChunkedArray:
    """The values of a leaf of a table in the columns of `schema`, null where a struct around it is null."""
    siblings, positions = schema.fields, []
    for field in leaf_path(field_id, [schema]):
        positions.append(next(n for n, other in enumerate(siblings) if other.field_id == field.field_id))
        siblings = field.type.fields if isinstance(field.type, StructType) else ()
    column: Any = table.column(positions[0])
    return pc.struct_field(column, positions[1:]) if len(positions) > 1 else column


def constant_array(type_: Type, value: Any, length: int) -> pa.Array:
    """One value `length` times; a struct is a dict by field id, as in `spec.values`."""
    target = arrow_type(type_)
    if value is None and not isinstance(type_, StructType):
        return pa.nulls(length, target)
    if isinstance(type_, StructType) and value is not None:
        children = [constant_array(f.type, value.get(f.field_id), length) for f in type_.fields]
        if not children:
            return pa.array([{}] * length, target)
        return pa.StructArray.from_arrays(children, fields=[arrow_field(f) for f in type_.fields])
    if isinstance(type_, PrimitiveType):
        return pa.repeat(pa.scalar(value, target), length)
    array = pa.array([_builder_value(type_, value)], _builder_type(target)).cast(target)
    return array.take(pa.array(np.zeros(length, dtype=np.int64)))


def _builder_value(type_: Type, value: Any) -> Any:
    """A value as Arrow's builders take it: structs by name, bytes for a UUID."""
    match type_:
        case _ if value is None:
            return None
        case StructType():
            return {f.name: _builder_value(f.type, value.get(f.field_id)) for f in type_.fields}
        case ListType():
            return [_builder_value(type_.element, item) for item in value]
        case MapType():
            return [(_builder_value(type_.key, key), _builder_value(type_.value, item)) for key, item in value]
    return value.bytes if isinstance(value, UUID) else value


def _builder_type(type_: pa.DataType) -> pa.DataType:
    """The type with 16 bytes for a UUID at every level: Arrow cannot build UUIDs from Python values."""
    children = [field.with_type(_builder_type(field.type)) for _, field in child_fields(type_)]
    if children:
        return with_children(type_, children)
    return pa.binary(16) if type_ == pa.uuid() else type_


def without_nulls(array: pa.Array) -> pa.Array:
    """The array with arbitrary values in place of nulls, for a required field below a null struct.

    pyarrow refuses to write nulls in a required field, even where no reader can see them.
    """
    # Arrow's builders fill the fields of a null struct with values.
    below = pa.array([None], pa.struct([pa.field("", _builder_type(array.type), nullable=False)]))
    indices = pc.if_else(array.is_valid(), pa.array(np.arange(len(array))), len(array))
    return pa.concat_arrays([array, below.field(0).cast(array.type)]).take(indices)


def plain_type(type_: pa.DataType, *, widths_only: bool = False) -> pa.DataType:
    """A type of the same layout in memory without extension types; fields are numbered, nullable and have no metadata.

    With `widths_only`, all types that have the same buffers become one: numbers, dates and times differ by their width alone.
    """
    below = partial(plain_type, widths_only=widths_only)
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f"f{n}", below(field.type)) for n, field in enumerate(type_)])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", below(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(below(type_.key_type), below(type_.item_type))
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    if widths_only and (pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_temporal(type_)):
        return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(type_.bit_width, type_)
    return type_


def described_as(data: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same memory, described by another schema whose types have the same layout; nothing is copied.

    Engines may return strings, bytes and lists in Arrow's large or view layouts; such columns are converted first.
    Raises `IcekeepBug` where a column has another layout than its type in the schema, or the number of columns differs.
    """
    if data.num_columns != len(schema):
        raise IcekeepBug(f"{data.num_columns} Arrow columns cannot be described as {len(schema)}")
    columns = []
    for column, field in zip(data.columns, schema, strict=True):
        layout = plain_type(field.type, widths_only=True)
        if plain_type(column.type, widths_only=True) != layout:
            usual = _in_usual_layout(column.type)
            if plain_type(usual, widths_only=True) != layout:
                raise IcekeepBug(
                    f"an Arrow column of {column.type} cannot be described as {field.type}: its layout in memory differs"
                )
            try:
                column = column.cast(usual)
            except pa.ArrowException as error:
                raise IcekeepBug(f"an Arrow column of {column.type} cannot be converted to {usual}: {error}") from error
        columns.append(column)
    if any(column is not given for column, given in zip(columns, data.columns, strict=True)):
        data = pa.RecordBatch.from_arrays(columns, names=schema.names)
    _, array = data.__arrow_c_array__()
    importing: Any = pa.RecordBatch
    return importing._import_from_c_capsule(schema.__arrow_c_schema__(), array)


_USUAL_LAYOUTS = {
    **dict.fromkeys((pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), pa.binary()),
}


def _in_usual_layout(type_: pa.DataType) -> pa.DataType:
    """The type with 32-bit offsets, as in `arrow_type`, in place of 64-bit offsets and views."""
    is_view = pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)
    if is_view or pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(type_.value_field.with_type(_in_usual_layout(type_.value_type)))
    children = [field.with_type(_in_usual_layout(field.type)) for _, field in child_fields(type_)]
    if pa.types.is_map(type_):
        return pa.map_(*children)
    return pa.struct(children) if pa.types.is_struct(type_) else _USUAL_LAYOUTS.get(type_, type_)


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

    Read by id they are null, and a rewrite would keep the nulls. The `stored` columns have their own ids and those of the table's
    name mapping; `constants` are ids of columns whose value the partition gives.
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
    for path in unidentified(stored, schema.fields, constants).values():
        raise _without_id(path)


def project(data: pa.Table, schema: Schema, constants: Mapping[int, Any] | None = None) -> pa.Table:
    """Project data read from a file to a table's schema, by field id.

    A column that the data lacks takes its constant, else its `initial-default`, else null; one of type `unknown` is always null;
    a column that the schema lacks is dropped. A top-level string column that was read as a dictionary (`KEPT_DICTIONARY`)
    remains one, since decoding and encoding it again is much of the work of a rewrite; every other dictionary is decoded.
    Columns that fit already are not copied. The constants, by field id and in the form of `spec.values`, are of columns that the
    file may lack because the partition gives them (identity transforms). The result is a table or a record batch, as the data.

    Raises `UnsupportedError` if the file carries no field ids, and `InvalidTableError` if a required column without a default is
    absent or has nulls, or a column's type cannot become the table's.
    """
    _validate_ids(data.schema)
    return _Projection(constants or {}).table(data, schema)


def cast_to_schema(data: pa.Table, schema: Schema) -> pa.Table:
    """Convert a caller's data to a table's schema, by name at every level.

    A missing column takes its `write-default`, else null where it is optional. Types convert where no value can change: the
    promotions of the spec, smaller whole numbers, other units of time where every value is exact, large types, dictionaries.
    Raises `UsageError` that names a column: a required one with nulls, or missing without a default; one that is not in the
    schema, appears twice, or cannot become the schema's type without changing a value.
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
    """Converts columns that are matched by field id in a table's files; with no `constants`, by name in a caller's data."""

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
