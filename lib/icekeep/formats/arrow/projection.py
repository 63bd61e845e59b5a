"""Field ids in the Arrow schema of a file: where they come from, and where a name mapping gives them.

Whatever the format calls it (`PARQUET:field_id`, `iceberg.id`, `element-id`), the id of a field stands in the metadata of
its Arrow field under `arrow.schema.FIELD_ID_KEY`, at every level.

Which Arrow types may become which, and how values move (spec, "Schema Evolution").

A value changes its representation, never what it says: a cast that would round, cut or overflow is refused.

Arrow data of one schema into the columns of another.

`project` matches by field id, for data read from the table's files (spec, "Column Projection"); `cast_to_schema`
matches by name, for data that a caller hands in. Both promote types as "Schema Evolution" allows and nothing further: a
value changes its representation, never what it says.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError, UsageError
from icekeep.formats.arrow.schema import (
    FIELD_ID_KEY,
    arrow_field,
    arrow_schema,
    arrow_type,
    constant_array,
    elements,
    field_id,
    null_mask,
    offsets,
    without_nulls,
)
from icekeep.spec.schema import NameMapping, Schema, find_mapped_field, initial_value, write_value
from icekeep.spec.types import STRING, TIMESTAMP, TIMESTAMPTZ, UNKNOWN, ListType, MapType, NestedField, StructType, Type
from icekeep.spec.types import child_fields as child_fields_of_types

STORED_AS_KEY = b"icekeep:stored-as"
"""Says, in the metadata of an Arrow field, that its values mean more than the Arrow type can tell."""

INSTANT = b"instant"
"""A timestamp that counts from the epoch in UTC whatever the file says of a time zone: the table says whether it has one.

Presto and ClickHouse mark columns of type `timestamp` as adjusted to UTC, and INT96 has no mark at all.
"""

MICROSECONDS = b"microseconds"
"""A timestamp in nanoseconds of which only whole microseconds count, as ORC's."""

Metadata = Mapping[bytes, bytes]


def has_ids(schema: pa.Schema) -> bool:
    """Whether any field at any level has an id."""
    return any(_has_id(field) for field in schema)


def all_have_ids(schema: pa.Schema) -> bool:
    """Whether each field at each level has an id."""
    fields = [*schema]
    for field in fields:
        fields += [child for _, child in child_fields(field.type)]
    return all(field_id(field) is not None for field in fields)


def field_ids(schema: pa.Schema) -> set[int]:
    """The ids of all fields at every level."""
    fields = [*schema]
    for field in fields:
        fields += [child for _, child in child_fields(field.type)]
    return {id_ for id_ in map(field_id, fields) if id_ is not None}


def with_mapped_ids(schema: pa.Schema, mapping: NameMapping, without: Collection[int] = ()) -> pa.Schema:
    """The schema of a file with the ids that a name mapping gives to fields without one (spec, "Column Projection").

    An id that a field of the file has is given to no other. Below a field with an id, the names are those that the mapping has
    for that id, whatever the field is called. A field that the mapping does not name gets no id.

    Args:
        schema: of the file.
        mapping: whose names for what lies in lists and maps are `element`, `key` and `value`, whatever the file's are.
        without: ids that no field shall get.
    """
    taken = {*field_ids(schema), *without}
    below: dict[tuple[str, ...], NameMapping] = {(): mapping}

    def mapped(field: pa.Field, path: tuple[str, ...]) -> Metadata:
        named, id_, metadata = below[path[:-1]], field_id(field), field.metadata or {}
        found = (
            find_mapped_field(named, path[-1])
            if id_ is None
            else next((one for one in named if one.field_id == id_), None)
        )
        below[path] = () if found is None else found.fields
        if id_ is not None or found is None or found.field_id is None or found.field_id in taken:
            return metadata
        return {**metadata, FIELD_ID_KEY: str(found.field_id).encode()}

    return map_fields(schema, mapped)


def map_fields(
    schema: pa.Schema, metadata: Callable[[pa.Field, tuple[str, ...]], Metadata], *, nullable: bool = False
) -> pa.Schema:
    """The schema with the metadata of each field made anew, parents before their children.

    Args:
        schema: of the file.
        metadata: makes the metadata of a field from the field and its path, in which what lies in lists and maps is
            called `element`, `key` and `value`.
        nullable: whether all fields shall be nullable, but for the keys of maps.
    """
    return pa.schema([_mapped(field, (field.name,), metadata, nullable) for field in schema])


def storage_types(schema: pa.Schema, stored: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    """The schema with each type that has no fields below it replaced by another, at every level."""
    return pa.schema([_restored(field, stored) for field in schema])


def child_fields(type_: pa.DataType) -> list[tuple[str, pa.Field]]:
    """The fields directly below an Arrow type, with Iceberg's names for those in lists and maps."""
    if pa.types.is_struct(type_):
        return [(field.name, field) for field in type_]
    if is_list(type_):
        return [("element", type_.value_field)]
    if pa.types.is_map(type_):
        return [("key", type_.key_field), ("value", type_.item_field)]
    return []


def is_list(type_: pa.DataType) -> bool:
    """Whether values are lists, of any of Arrow's kinds that data files are read as."""
    return pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)


def _mapped(
    field: pa.Field,
    path: tuple[str, ...],
    metadata: Callable[[pa.Field, tuple[str, ...]], Metadata],
    nullable: bool,
) -> pa.Field:
    own = metadata(field, path)
    children = [_mapped(child, (*path, name), metadata, nullable) for name, child in child_fields(field.type)]
    if pa.types.is_map(field.type):
        children[0] = children[0].with_nullable(False)
    return pa.field(field.name, _with_children(field.type, children), nullable or field.nullable, own)


def _restored(field: pa.Field, stored: Callable[[pa.DataType], pa.DataType]) -> pa.Field:
    children = [_restored(child, stored) for _, child in child_fields(field.type)]
    return field.with_type(_with_children(field.type, children) if children else stored(field.type))


def _with_children(type_: pa.DataType, children: list[pa.Field]) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct(children)
    if pa.types.is_map(type_):
        return pa.map_(*children)
    if pa.types.is_large_list(type_):
        return pa.large_list(children[0])
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(children[0], type_.list_size)
    return pa.list_(children[0]) if pa.types.is_list(type_) else type_


def _has_id(field: pa.Field) -> bool:
    return field_id(field) is not None or any(_has_id(child) for _, child in child_fields(field.type))


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
"""How files store values whose type nothing but the table tells: text that older writers did not mark, ORC's bytes and
times."""


def promoted(
    array: pa.Array, source: pa.Field, type_: Type, error: Callable[[str], IcekeepError], *, from_file: bool
) -> pa.Array:
    """An array of a primitive type in the Arrow type of an Iceberg type.

    Args:
        array: values, not encoded as a dictionary.
        source: the field that describes them.
        type_: that is wanted.
        error: makes the error for what is wrong with the column.
        from_file: whether the data is a file's, in which values may be stored as others than a caller may give.
    """
    target = arrow_type(type_)
    if pa.types.is_null(array.type) or pa.types.is_null(target):
        return pa.nulls(len(array), target)
    if from_file:
        array = _as_stored(array, source, type_)
    if array.type == target:
        return array
    if not (_promotes(array.type, target) or (from_file and _is_stored_as(array.type, target))):
        raise error(f"holds '{array.type}', which cannot become '{type_}'")
    try:
        if target == pa.uuid():
            array = array.cast(pa.binary(16))
        return array.cast(target)
    except pa.ArrowInvalid as problem:
        line = " ".join(str(problem).split())
        raise error(f"has a value that is not exact as '{type_}': {line}") from problem


def is_same(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether types are equal with the ids and nullability below them; what a map names its entries does not matter."""
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


def _as_stored(array: pa.Array, source: pa.Field, type_: Type) -> pa.Array:
    """What the file means by values whose Arrow type does not say it all."""
    stored_as = (source.metadata or {}).get(STORED_AS_KEY)
    if stored_as == INSTANT and pa.types.is_timestamp(array.type) and pa.types.is_timestamp(arrow_type(type_)):
        # A cast would make another number of a wall clock's time.
        return array.view(pa.timestamp(array.type.unit, arrow_type(type_).tz))
    if stored_as == MICROSECONDS and type_ in (TIMESTAMP, TIMESTAMPTZ):
        nanoseconds = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        microseconds = pa.array(np.floor_divide(nanoseconds, 1000), mask=array.is_null().to_numpy(zero_copy_only=False))
        return microseconds.cast(pa.timestamp("us", array.type.tz))
    return array


def _promotes(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a type may become another; a cast that finds a value which is not exact still fails later."""
    if pa.types.is_integer(source) and pa.types.is_signed_integer(target):
        return source.bit_width < target.bit_width
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        return source.scale == target.scale and source.precision <= target.precision
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if pa.types.is_time(source) and pa.types.is_time(target):
        return True
    return (source, target) in _EXACT


def _is_stored_as(source: pa.DataType, target: pa.DataType) -> bool:
    return (source, target) in _STORED or (pa.types.is_binary(source) and pa.types.is_fixed_size_binary(target))


KEPT_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
"""What pyarrow reads a dictionary-encoded string column as when it is asked to keep the encoding."""


def projected_columns(file_schema: pa.Schema, schema: Schema) -> list[str]:
    """Names of the top-level columns of a file that `project` needs, in the file's order: read only these.

    Raises:
        UnsupportedError: the file carries no field ids.
    """
    _validate_ids(file_schema)
    wanted = {field.field_id for field in schema.fields}
    return [field.name for field in file_schema if field_id(field) in wanted]


def unidentified(
    stored: Iterable[pa.Field], wanted: Sequence[NestedField], constants: Collection[int] = ()
) -> dict[int, str]:
    """Fields at any level that a file has by their name only: read by id they are null, and a rewrite would keep the nulls.

    Args:
        stored: columns of a file, with the ids that they and the table's name mapping give.
        wanted: columns of the table.
        constants: ids of columns that the partition says.

    Returns:
        The full names in the table by field id, of fields whose id no field of the file has while one without id has their name.
    """
    named = [(field.name, field) for field in stored]
    return dict(_unidentified(named, wanted, constants, ""))


def refuse_unidentified(stored: pa.Schema, schema: Schema, constants: Collection[int] = ()) -> None:
    """Raise `UnsupportedError` for the first column that `unidentified` finds."""
    for path in unidentified(stored, schema.fields, constants).values():
        raise _without_id(path)


def project(data: pa.Table, schema: Schema, constants: Mapping[int, Any] | None = None) -> pa.Table:
    """Give data read from a file the columns, order, names and types of a table's schema, going by field id.

    A column that the data lacks takes its constant, else its `initial-default`, else null; one of type `unknown` is null
    whatever is there; a column that the schema lacks is dropped. A top-level string column that was read as a dictionary
    (`KEPT_DICTIONARY`) stays one, since decoding it only to encode it again is much of the work of a rewrite; every other
    dictionary is decoded. Columns that fit already are not copied.

    Args:
        data: a table or a record batch whose fields carry the file's ids; the answer is of the same kind.
        schema: the columns that are wanted.
        constants: values by field id of columns that may be absent from the file because the partition says them
            (identity transforms), in the representation of `spec`.

    Raises:
        UnsupportedError: the file carries no field ids.
        InvalidTableError: a required column without a default is absent or has nulls, or a column's type cannot become
            the table's.
    """
    _validate_ids(data.schema)
    return _select(data, schema, arrow_schema(schema), _ByFieldId(constants or {}))


def cast_to_schema(data: pa.Table, schema: Schema) -> pa.Table:
    """Give a caller's data the columns, order and types of a table's schema, going by name at every level.

    A missing column takes its `write-default`; an optional one without becomes null. Types convert where no value can
    change: the promotions of the spec, smaller whole numbers, other units of time where every value is exact, large types,
    dictionaries.

    Raises:
        UsageError: a required column has nulls, or is missing and has no default; a column is not in the schema or there
            twice, or cannot become the schema's type without changing a value. The column is named.
    """
    matching = _ByName()
    matching.validate(list(data.schema), schema.fields, "")
    return _select(data, schema, arrow_schema(schema), matching)


class _Matching(Protocol):
    """How fields of the data are found, and what it means when one is not as it must be."""

    def key(self, field: pa.Field) -> int | str | None:
        """What a field of the data is known by."""

    def wanted_key(self, wanted: NestedField) -> int | str:
        """What the field that fits must be known by."""

    def validate(self, fields: Sequence[pa.Field], wanted: Sequence[NestedField], path: str) -> None:
        """Raise if the fields of a struct cannot be those of the wanted struct."""

    def validate_child(self, field: pa.Field, wanted: NestedField, path: str) -> None:
        """Raise if `field` is not the list element, map key or map value that is wanted."""

    def absent_value(self, wanted: NestedField) -> Any:
        """The value of a field that the data lacks, null where there is none."""

    def error(self, path: str, problem: str) -> IcekeepError:
        """The error for a column that is not as it must be."""


class _ByFieldId(msgspec.Struct, frozen=True):
    constants: Mapping[int, Any]

    def key(self, field: pa.Field) -> int | str | None:
        return field_id(field)

    def wanted_key(self, wanted: NestedField) -> int | str:
        return wanted.field_id

    def validate(self, fields: Sequence[pa.Field], wanted: Sequence[NestedField], path: str) -> None:
        """Fields that nobody wants were dropped from the schema."""

    def validate_child(self, field: pa.Field, wanted: NestedField, path: str) -> None:
        found = field_id(field)
        if found is None:
            raise _without_id(path)
        if found != wanted.field_id:
            raise self.error(path, f"has field id {found} in a data file; the schema says {wanted.field_id}")

    def absent_value(self, wanted: NestedField) -> Any:
        if wanted.field_id in self.constants:
            return self.constants[wanted.field_id]
        return None if wanted.initial_default is None else initial_value(wanted)

    def error(self, path: str, problem: str) -> IcekeepError:
        return InvalidTableError(f"column {path!r} {problem}", column=path, section="Column Projection")


class _ByName(msgspec.Struct, frozen=True):
    def key(self, field: pa.Field) -> int | str | None:
        return str(field.name)

    def wanted_key(self, wanted: NestedField) -> int | str:
        return wanted.name

    def validate(self, fields: Sequence[pa.Field], wanted: Sequence[NestedField], path: str) -> None:
        known = {field.name for field in wanted}
        seen: set[str] = set()
        for field in fields:
            if field.name not in known:
                raise self.error(
                    _join(path, field.name), f"is not in the schema; its columns are {', '.join(sorted(known))}"
                )
            if field.name in seen:
                raise self.error(_join(path, field.name), "is there twice in the data")
            seen.add(field.name)

    def validate_child(self, field: pa.Field, wanted: NestedField, path: str) -> None:
        """Every writer names the inner fields of lists and maps as it likes."""

    def absent_value(self, wanted: NestedField) -> Any:
        return None if wanted.write_default is None else write_value(wanted)

    def error(self, path: str, problem: str) -> IcekeepError:
        return UsageError(f"column {path!r} {problem}", column=path)


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


def _unidentified(
    stored: Sequence[tuple[str, pa.Field]], wanted: Sequence[NestedField], constants: Collection[int], path: str
) -> Iterator[tuple[int, str]]:
    by_id = {field_id(field): field for _, field in stored}
    without_id = {name for name, field in stored if field_id(field) is None}
    for field in wanted:
        found, full_name = by_id.get(field.field_id), _join(path, field.name)
        if found is not None:
            yield from _unidentified(child_fields(found.type), child_fields_of_types(field.type), constants, full_name)
        elif field.name in without_id and field.field_id not in constants and field.type != UNKNOWN:
            yield field.field_id, full_name


def _select(data: pa.Table, schema: Schema, target: pa.Schema, matching: _Matching) -> pa.Table:
    sources = list(data.schema)
    positions = _positions(sources, schema.fields, "", matching)
    fields, columns = [], []
    for wanted, target_field in zip(schema.fields, target, strict=True):
        position = positions.get(matching.wanted_key(wanted))
        if position is None:
            column = _absent(wanted, wanted.name, data.num_rows, matching)
        else:
            column, target_field = _column(data.column(position), sources[position], wanted, target_field, matching)
            _validate_no_nulls(column.null_count, wanted, wanted.name, matching)
        columns.append(column)
        fields.append(target_field)
    return type(data).from_arrays(columns, schema=pa.schema(fields))


def _positions(
    sources: Sequence[pa.Field], wanted: Sequence[NestedField], path: str, matching: _Matching
) -> dict[int | str | None, int]:
    keys = [matching.key(source) for source in sources]
    positions = {key: position for position, key in enumerate(keys)}
    if len(positions) < len(keys):
        for field in wanted:
            same = [s.name for s, key in zip(sources, keys, strict=True) if key == matching.wanted_key(field)]
            if len(same) > 1:
                raise matching.error(
                    _join(path, field.name), f"is there twice in the file, as {same[0]!r} and {same[1]!r}"
                )
    return positions


def _column(
    column: Any, source: pa.Field, wanted: NestedField, target: pa.Field, matching: _Matching
) -> tuple[Any, pa.Field]:
    """A top-level column in its target type, and the field that describes it."""
    if isinstance(matching, _ByFieldId):
        if is_same(source.type, target.type):
            return column, target
        if wanted.type == STRING and source.type == KEPT_DICTIONARY:
            return column, target.with_type(KEPT_DICTIONARY)
    if isinstance(column, pa.ChunkedArray):
        chunks = [_convert(chunk, source, wanted.type, wanted.name, matching) for chunk in column.chunks]
        return pa.chunked_array(chunks, type=target.type), target
    return _convert(column, source, wanted.type, wanted.name, matching), target


def _convert(array: pa.Array, source: pa.Field, type_: Type, path: str, matching: _Matching) -> pa.Array:
    """Values in their target type. `source` describes them, as their own type may lack the ids below it."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), arrow_type(type_))
    match type_:
        case StructType():
            return _struct(array, source, type_, path, matching)
        case ListType():
            return _list(array, source, type_, path, matching)
        case MapType():
            return _map(array, source, type_, path, matching)
    error = partial(matching.error, path)
    return promoted(array, source, type_, error, from_file=isinstance(matching, _ByFieldId))


def _struct(array: pa.Array, source: pa.Field, type_: StructType, path: str, matching: _Matching) -> pa.Array:
    if not pa.types.is_struct(array.type):
        raise matching.error(path, f"holds '{array.type}', which cannot become '{type_}'")
    sources = list(source.type)
    matching.validate(sources, type_.fields, path)
    positions = _positions(sources, type_.fields, path, matching)
    children = []
    for wanted in type_.fields:
        child_path = _join(path, wanted.name)
        position = positions.get(matching.wanted_key(wanted))
        if position is None:
            children.append(_absent(wanted, child_path, len(array), matching))
            continue
        child = _convert(array.field(position), sources[position], wanted.type, child_path, matching)
        if wanted.required and child.null_count:
            nulls = pc.and_(array.is_valid(), child.is_null())
            _validate_no_nulls(pc.sum(nulls).as_py() or 0, wanted, child_path, matching)
            child = without_nulls(child)
        children.append(child)
    mask = null_mask(array)
    return pa.StructArray.from_arrays(children, fields=[arrow_field(f) for f in type_.fields], mask=mask)


def _list(array: pa.Array, source: pa.Field, type_: ListType, path: str, matching: _Matching) -> pa.Array:
    if not is_list(array.type):
        raise matching.error(path, f"holds '{array.type}', which cannot become '{type_}'")
    lists = _compact(array.cast(pa.list_(array.type.value_field)))
    (wanted,) = child_fields_of_types(type_)
    children = _child(elements(lists), source.type.value_field, wanted, path, matching)
    mask = null_mask(array)
    return pa.ListArray.from_arrays(offsets(lists), children, type=arrow_type(type_), mask=mask)


def _map(array: pa.Array, source: pa.Field, type_: MapType, path: str, matching: _Matching) -> pa.Array:
    if not pa.types.is_map(array.type):
        raise matching.error(path, f"holds '{array.type}', which cannot become '{type_}'")
    # Arrow's list functions do not take maps, and a map is a list of its entries.
    entry = pa.struct([array.type.key_field, array.type.item_field])
    lists = _compact(array.cast(pa.list_(pa.field("entries", entry, nullable=False))))
    entries = elements(lists)
    key, value = child_fields_of_types(type_)
    keys = _child(entries.field(0), source.type.key_field, key, path, matching)
    values = _child(entries.field(1), source.type.item_field, value, path, matching)
    mask = null_mask(array)
    return pa.MapArray.from_arrays(offsets(lists), keys, values, type=arrow_type(type_), mask=mask)


def _child(array: pa.Array, source: pa.Field, wanted: NestedField, path: str, matching: _Matching) -> pa.Array:
    """List elements, map keys or map values in their target type."""
    child_path = _join(path, wanted.name)
    matching.validate_child(source, wanted, child_path)
    converted = _convert(array, source, wanted.type, child_path, matching)
    _validate_no_nulls(converted.null_count, wanted, child_path, matching)
    return converted


def _compact(lists: pa.Array) -> pa.Array:
    """The lists without elements that only null lists point at: those are no data, and may be anything."""
    visible_count = pc.sum(pc.list_value_length(lists)).as_py() or 0
    return lists if visible_count == len(elements(lists)) else lists.take(pa.array(range(len(lists)), pa.int64()))


def _absent(wanted: NestedField, path: str, length: int, matching: _Matching) -> pa.Array:
    value = matching.absent_value(wanted)
    if value is None and wanted.required:
        raise matching.error(path, "is required and missing from the data")
    return constant_array(wanted.type, value, length)


def _validate_no_nulls(null_count: int, wanted: NestedField, path: str, matching: _Matching) -> None:
    if wanted.required and null_count:
        raise matching.error(path, f"is required and has {null_count} nulls")


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
