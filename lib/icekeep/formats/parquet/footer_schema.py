"""The schema of a Parquet file as its footer says it: its leaves, and whether its columns are those of a table's schema.

Columns are compared by field id, as they are read: names, their order, comments and whether a column is required do not
matter, ids and types do, at every level.
"""

from collections.abc import Iterator

import msgspec

from icekeep.formats.parquet.thrift import Damaged, Struct, structs_at
from icekeep.spec.metadata_columns import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    MAX_NESTING,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    UUID,
    DecimalType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
    fixed,
    with_child_fields,
)

LINEAGE_IDS = frozenset((ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id))

_INT32, _INT64, _INT96, _BYTE_ARRAY, _FIXED = 1, 2, 3, 6, 7
_REQUIRED, _REPEATED = 0, 2
_MICROS, _NANOS = 2, 3

Annotation = tuple[str | int, ...]
"""What a node means beyond how it is stored: the name of a logical type, and its parameters."""

_TYPES: dict[tuple[int, Annotation], PrimitiveType] = {
    (0, ()): BOOLEAN,
    (_INT32, ()): INT,
    (_INT32, ("integer", 32, True)): INT,
    (_INT32, ("date",)): DATE,
    (_INT64, ()): LONG,
    (_INT64, ("integer", 64, True)): LONG,
    (_INT64, ("time", _MICROS)): TIME,
    (_INT64, ("timestamp", _MICROS, False)): TIMESTAMP,
    (_INT64, ("timestamp", _MICROS, True)): TIMESTAMPTZ,
    (_INT64, ("timestamp", _NANOS, False)): TIMESTAMP_NS,
    (_INT64, ("timestamp", _NANOS, True)): TIMESTAMPTZ_NS,
    (4, ()): FLOAT,
    (5, ()): DOUBLE,
    (_BYTE_ARRAY, ()): BINARY,
    (_BYTE_ARRAY, ("string",)): STRING,
}
_DECIMALS = (_INT32, _INT64, _BYTE_ARRAY, _FIXED)
_CONVERTED: dict[int, Annotation] = {
    0: ("string",),
    1: ("map",),
    2: ("map",),
    3: ("list",),
    6: ("date",),
    8: ("time", _MICROS),
    10: ("timestamp", _MICROS, True),
    17: ("integer", 32, True),
    18: ("integer", 64, True),
}
"""What the older annotation says, where it says something that a column of a table may be."""

_LOGICAL: dict[int, str] = {
    1: "string", 2: "map", 3: "list", 5: "decimal", 6: "date", 7: "time", 8: "timestamp", 10: "integer", 14: "uuid",
}  # fmt: skip


class Leaf(msgspec.Struct, frozen=True):
    """A column that holds values, in the order in which row groups have them.

    Attributes:
        is_required: it and all that it lies in have no nulls.
        is_int96: it is stored as a timestamp of 96 bits, whose order Parquet does not define.
    """

    field_id: int | None
    is_required: bool
    is_int96: bool


class StoredSchema(msgspec.Struct, frozen=True):
    """The columns of a file; `columns` is null where one of them is nothing that a table's column can be, or has no id."""

    leaves: tuple[Leaf, ...]
    columns: StructType | None

    def holds(self, schema: Schema) -> bool:
        """Whether the file has the columns of a schema that files store, and none beside them but those of row lineage."""
        if self.columns is None:
            return False
        own = tuple(field for field in self.columns.fields if field.field_id not in LINEAGE_IDS)
        return StructType(own) == _bare(schema.as_struct())


def read_schema(data: bytes) -> StoredSchema:
    """Read the list of schema elements of a footer; raises `Damaged` where it is none."""
    nodes = iter(structs_at(data, 0))
    root = next(nodes, None)
    if root is None:
        raise Damaged("its schema is empty")
    leaves: list[Leaf] = []
    fields = [_node(nodes, leaves, True, 1) for _ in range(_child_count(root))]
    if next(nodes, None) is not None:
        raise Damaged("its schema has more fields than it says")
    known = [field for field in fields if field is not None]
    return StoredSchema(tuple(leaves), _struct(known) if len(known) == len(fields) else None)


def _node(nodes: Iterator[Struct], leaves: list[Leaf], required: bool, depth: int) -> NestedField | None:
    """The next field with all below it; null where a table can have no such field, or where one lacks an id."""
    node = next(nodes, None)
    if node is None or depth > 3 * MAX_NESTING:
        raise Damaged("its schema has fewer fields than it says" if node is None else "its schema is nested too deep")
    field_id = node.value(9) if node.span(9) is not None else None
    repetition = node.value(3)
    required = required and repetition == _REQUIRED
    if node.span(1) is not None:
        leaves.append(Leaf(field_id, required, node.value(1) == _INT96))
        type_: Type | None = _primitive(node)
    else:
        type_ = _group(node, nodes, leaves, required, depth)
    if type_ is None or field_id is None or repetition == _REPEATED:
        return None
    return NestedField(field_id=field_id, name="", type=type_)


def _group(node: Struct, nodes: Iterator[Struct], leaves: list[Leaf], required: bool, depth: int) -> Type | None:
    annotation = _annotation(node)
    is_map = annotation == ("map",)
    if is_map or annotation == ("list",):
        return _container(is_map, node, nodes, leaves, depth)
    children = [_node(nodes, leaves, required, depth + 1) for _ in range(_child_count(node))]
    known = [child for child in children if child is not None]
    return _struct(known) if annotation == () and known and len(known) == len(children) else None


def _container(is_map: bool, node: Struct, nodes: Iterator[Struct], leaves: list[Leaf], depth: int) -> Type | None:
    """A list or a map in the form of three levels, the one in the middle repeated; null in any other."""
    below: list[NestedField | None] = []
    regular = _child_count(node) == 1
    for _ in range(_child_count(node)):
        middle = next(nodes, None)
        if middle is None:
            raise Damaged("its schema has fewer fields than it says")
        regular = regular and middle.span(1) is None and middle.value(3) == _REPEATED
        if middle.span(1) is not None:
            leaves.append(Leaf(None, False, middle.value(1) == _INT96))
        below += [_node(nodes, leaves, False, depth + 2) for _ in range(_child_count(middle))]
    children = [child for child in below if child is not None]
    if not regular or len(children) != len(below) or len(children) != (2 if is_map else 1):
        return None
    if is_map:
        key, value = children
        return MapType(key_id=key.field_id, key=key.type, value_id=value.field_id, value=value.type)
    return ListType(element_id=children[0].field_id, element=children[0].type)


def _primitive(node: Struct) -> PrimitiveType | None:
    physical, annotation = node.value(1), _annotation(node)
    if annotation[:1] == ("decimal",):
        _, precision, scale = annotation
        return DecimalType("decimal", int(precision), int(scale)) if physical in _DECIMALS else None
    if physical == _FIXED:
        length = node.value(2)
        if annotation == ("uuid",) and length == 16:
            return UUID
        return fixed(length) if annotation == () else None
    return _TYPES.get((physical, annotation))


def _annotation(node: Struct) -> Annotation:
    logical = node.struct(10)
    if logical is None:
        if node.span(6) is None:
            return ()
        converted = node.value(6)
        return ("decimal", node.value(8), node.value(7)) if converted == 5 else _CONVERTED.get(converted, ("other",))
    (kind,) = logical.field_ids if len(logical.field_ids) == 1 else (0,)
    name = _LOGICAL.get(kind, "other")
    parameters = logical.struct(kind) if name != "other" else None
    if parameters is None:
        return ("other",)
    match name:
        case "decimal":
            return name, parameters.value(2), parameters.value(1)
        case "time":
            return name, _unit(parameters)
        case "timestamp":
            return name, _unit(parameters), parameters.boolean(1)
        case "integer":
            return name, parameters.byte(1), parameters.boolean(2)
    return (name,)


def _unit(parameters: Struct) -> int:
    unit = parameters.struct(2)
    return next(iter(unit.field_ids), 0) if unit is not None else 0


def _child_count(node: Struct) -> int:
    return node.value(5)


def _bare(type_: Type) -> Type:
    """A type as `read_schema` makes it of a file: what files do not store is left out, and so is all but ids and types."""
    if isinstance(type_, PrimitiveType):
        return type_
    fields = tuple(
        NestedField(field_id=field.field_id, name="", type=_bare(field.type))
        for field in child_fields(type_)
        if field.type != UNKNOWN
    )
    if isinstance(type_, StructType):
        return _struct(fields)
    bare = msgspec.structs.replace(type_, extra={})
    return with_child_fields(bare, fields) if len(fields) == len(child_fields(type_)) else bare


def _struct(fields: tuple[NestedField, ...] | list[NestedField]) -> StructType:
    return StructType(tuple(sorted(fields, key=lambda field: field.field_id)))
