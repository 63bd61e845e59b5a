"""PyIceberg makes the same schemas and partition specs of the same changes, one at a time, over many generated tables.

Where it is less strict, or wrong, the case is named: only those may differ.
"""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update.schema import UpdateSchema as ForeignUpdateSchema
from pyiceberg.table.update.spec import UpdateSpec as ForeignUpdateSpec

from icekeep.errors import IcekeepError
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    MakeOptional,
    MoveAfter,
    MoveBefore,
    MoveFirst,
    PartitionChange,
    RemovePartitionField,
    RenameColumn,
    RenamePartitionField,
    RequireColumn,
    SchemaChange,
    SetIdentifierFields,
    UpdateColumnDoc,
    UpdateColumnType,
    evolve_schema,
    evolve_spec,
)
from icekeep.spec.metadata import TableMetadata, metadata_to_json, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED, last_assigned_field_id
from icekeep.spec.schema import Schema, schema_from_json, schema_to_json, validate_schema
from icekeep.spec.transforms import Void
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
    decimal,
    type_to_json,
    walk,
)
from kit.cases import cases
from kit.strategies import schemas

POINT = StructType((NestedField(field_id=1, name="x", type=INT), NestedField(field_id=2, name="y", type=FLOAT)))
RICH = Schema(
    fields=(
        NestedField(field_id=1, name="a", type=INT, required=True),
        NestedField(field_id=2, name="d", type=decimal(9, 2)),
        NestedField(field_id=3, name="s", type=StructType((
            NestedField(field_id=6, name="f", type=FLOAT),
            NestedField(field_id=7, name="a", type=INT, required=True),
            NestedField(field_id=8, name="t", type=StructType((NestedField(field_id=9, name="i", type=INT),))),
        )), required=True),
        NestedField(field_id=4, name="l", type=ListType(element_id=10, element=StructType((
            NestedField(field_id=11, name="x", type=INT), NestedField(field_id=12, name="y", type=DATE),
        )))),
        NestedField(field_id=5, name="m", type=MapType(
            key_id=13, key=STRING, value_id=14, value=ListType(element_id=15, element=FLOAT, element_required=True),
        )),
    ),
    identifier_field_ids=(1,),
)  # fmt: skip
ADDED_TYPES: list[Type] = [
    INT, STRING, DATE, decimal(9, 2), POINT, ListType(element_id=1, element=POINT),
    MapType(key_id=1, key=STRING, value_id=2, value=POINT),
]  # fmt: skip
PROMOTED_TYPES: list[Type] = [LONG, DOUBLE, INT, decimal(12, 2), decimal(38, 4), TIMESTAMP]

# What we refuse and PyIceberg does not: rules of the spec and of Java that it does not check.
STRICTER = (
    "cannot identify rows",
    "identifies rows",
    "would have no fields",
    "the last column of a table",
    "keys of a map",
    "it is a part of a",
    "a decimal's precision may grow, its scale stays",
)


STRICTER_SPECS = ("redundant", "was removed already", "has the name of a column", "there is a partition field")


def attempted(evolve: Any, base: TableMetadata, change: Any) -> Any:
    """What comes of one change, or the error that refuses it."""
    try:
        return evolve(base, [change])
    except IcekeepError as error:
        return error


def table(schema: Schema, version: int = 2) -> TableMetadata:
    return new_table_metadata(
        schema=schema,
        spec=UNPARTITIONED,
        location="s3://b/t",
        table_uuid="9c12d441-03fe-4693-9a96-a0705ddf69c1",
        now_ms=0,
        format_version=version,
    )


def foreign(update: type[Any], base: TableMetadata) -> Any:
    return update(SimpleNamespace(table_metadata=TableMetadataUtil.parse_raw(json.dumps(metadata_to_json(base)))))


def foreign_type(type_: Type) -> Any:
    form = {"type": "struct", "fields": [{"id": 999, "name": "c", "required": False, "type": type_to_json(type_)}]}
    return ForeignSchema.model_validate_json(json.dumps(form)).fields[0].field_type


def path(name: str | None) -> tuple[str, ...]:
    return () if name is None else tuple(name.split("."))


def apply_foreign(change: SchemaChange, update: ForeignUpdateSchema) -> None:  # noqa: C901 - one line a change
    match change:
        case AddColumn(name, type_, parent, required, doc):
            update.add_column((*path(parent), name), foreign_type(type_), doc=doc, required=required)
        case DropColumn(name):
            update.delete_column(name)
        case RenameColumn(name, new_name):
            update.rename_column(name, new_name)
        case MoveFirst(name):
            update.move_first(name)
        case MoveBefore(name, other):
            update.move_before(name, other)
        case MoveAfter(name, other):
            update.move_after(name, other)
        case MakeOptional(name):
            update.make_column_optional(name)
        case RequireColumn(name, allow):
            update._allow_incompatible_changes = allow
            update.update_column(name, required=True)
        case UpdateColumnType(name, type_):
            update.update_column(name, field_type=foreign_type(type_))
        case UpdateColumnDoc(name, doc):
            update.update_column(name, doc=doc or "")
        case SetIdentifierFields(names):
            update.set_identifier_fields(*names)


def theirs(change: SchemaChange, base: TableMetadata) -> Schema | Exception:
    try:
        update = foreign(ForeignUpdateSchema, base)
        apply_foreign(change, update)
        return schema_from_json(json.loads(update._apply().model_dump_json()))
    except Exception as error:  # noqa: BLE001 - whatever it raises, it refuses
        return error


@st.composite
def schema_changes(draw: st.DrawFn, schema: Schema) -> SchemaChange:
    top = [field.name for field in schema.fields]
    names = st.sampled_from([*schema.ids_by_name, *schema.ids_by_name, *top, "nope"])
    fresh = st.sampled_from(["b", "c", "g", "h", *top[:2]])
    numbers = [n for n, i in schema.ids_by_name.items() if schema.fields_by_id[i].type in (INT, FLOAT, decimal(9, 2))]
    kinds = [
        st.builds(AddColumn, fresh, st.sampled_from(ADDED_TYPES), st.none() | names, doc=st.none() | st.just("d")),
        st.builds(AddColumn, fresh, st.just(INT), required=st.just(True)),
        st.builds(DropColumn, names),
        st.builds(RenameColumn, names, fresh),
        st.builds(MoveFirst, names),
        st.builds(MoveBefore, names, names),
        st.builds(MoveAfter, names, names),
        st.builds(MakeOptional, names),
        st.builds(RequireColumn, names, st.booleans()),
        st.builds(UpdateColumnType, st.sampled_from(numbers or ["nope"]), st.sampled_from(PROMOTED_TYPES)),
        st.builds(UpdateColumnType, names, st.sampled_from(PROMOTED_TYPES)),
        st.builds(MoveBefore, st.sampled_from(top or ["nope"]), st.sampled_from(top or ["nope"])),
        st.builds(UpdateColumnDoc, names, st.text(min_size=1, max_size=3)),
        st.builds(SetIdentifierFields, st.lists(names, max_size=2).map(tuple)),
    ]
    return draw(st.one_of(kinds))


def is_their_fault(change: SchemaChange, base: TableMetadata) -> bool:
    """Whether PyIceberg refuses or does otherwise what Java and we do."""
    match change:
        case RenameColumn(name, new_name):
            # A name that stays is taken, and an identifier field below a renamed struct is looked for by its old name.
            return name.rpartition(".")[2] == new_name or any(
                base.schema.names_by_id[i].startswith(f"{name}.") for i in base.schema.identifier_field_ids
            )
        case UpdateColumnType(name, type_):
            # It knows no promotions of version 3.
            return base.schema.field(name).type in (type_, DATE)
    return False


def committed(base: TableMetadata, schema: Schema, last_column_id: int) -> TableMetadata:
    schemas_ = base.schemas if schema.schema_id in base.schemas_by_id else (*base.schemas, schema)
    return replace(base, schemas=schemas_, current_schema_id=schema.schema_id, last_column_id=last_column_id)


@pytest.mark.slow
@cases(80)
@given(st.data(), st.just(RICH) | schemas())
def test_schemas_evolve_as_in_pyiceberg_and_ids_are_kept(data: st.DataObject, start: Schema):
    base = table(replace(start, schema_id=0), version=3)
    given_out: dict[int, set[str]] = {}
    for _ in range(data.draw(st.integers(1, 10))):
        change = data.draw(schema_changes(base.schema))
        expected = theirs(change, base)
        ours = attempted(evolve_schema, base, change)
        if isinstance(ours, IcekeepError):
            assert isinstance(expected, Exception) or any(reason in str(ours) for reason in STRICTER), (change, ours)
            continue
        if not is_their_fault(change, base):
            assert isinstance(expected, Schema), (change, expected)
            assert ours.schema.fields == expected.fields, change
            assert set(ours.schema.identifier_field_ids) == set(expected.identifier_field_ids)
        added = ours.schema.fields_by_id.keys() - base.schema.fields_by_id.keys()
        assert all(field_id > base.last_column_id for field_id in added), "an id was used again"
        assert ours.last_column_id >= max(base.last_column_id, ours.schema.highest_field_id)
        base = committed(base, ours.schema, ours.last_column_id)
        for schema in base.schemas:
            assert schema_from_json(json.loads(json.dumps(schema_to_json(schema)))) == schema
            validate_schema(schema)
    for schema in base.schemas:
        for field in walk(schema.as_struct()):
            parent = schema.parents_by_id.get(field.field_id)
            given_out.setdefault(field.field_id, set()).add(str(None if parent is None else parent.field_id))
    assert all(len(parents) == 1 for parents in given_out.values()), "a field moved to another struct"


COLUMNS = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG),
        NestedField(field_id=2, name="ts", type=TIMESTAMP),
        NestedField(field_id=3, name="kind", type=STRING),
        NestedField(field_id=4, name="place", type=StructType((NestedField(field_id=5, name="code", type=STRING),))),
    )
)


@st.composite
def partition_changes(draw: st.DrawFn, base: TableMetadata) -> PartitionChange:
    terms = [
        ("id", "bucket[4]"),
        ("id", "bucket[8]"),
        ("id", "identity"),
        ("ts", "day"),
        ("ts", "hour"),
        ("ts", "month"),
    ]
    terms += [("kind", "truncate[2]"), ("place.code", "identity"), ("kind", "day"), ("nope", "identity")]
    names = [field.name for field in base.spec.fields] or ["nope"]
    fresh = st.sampled_from(["p", "q", "kind", "id", *names])
    return draw(
        st.one_of(
            st.builds(lambda term, name: AddPartitionField(*term, name), st.sampled_from(terms), st.none() | fresh),
            st.builds(RemovePartitionField, st.sampled_from([*names, "nope"])),
            st.builds(RenamePartitionField, st.sampled_from([*names, "nope"]), fresh),
        )
    )


def their_spec(change: PartitionChange, base: TableMetadata) -> list[tuple[str, int, str]] | Exception:
    try:
        update = foreign(ForeignUpdateSpec, base)
        match change:
            case AddPartitionField(column, transform, name):
                update.add_field(column, transform, name)
            case RemovePartitionField(name):
                update.remove_field(name)
            case RenamePartitionField(name, new_name):
                update.rename_field(name, new_name)
        return [(f.name, f.field_id, str(f.transform)) for f in update._apply().fields]
    except Exception as error:  # noqa: BLE001 - whatever it raises, it refuses
        return error


def has_void(base: TableMetadata) -> bool:
    return any(isinstance(field.transform, Void) for field in base.spec.fields)


@pytest.mark.slow
@cases(80)
@given(st.data(), st.sampled_from([1, 2]))
def test_specs_evolve_as_in_pyiceberg_and_field_ids_keep_their_meaning(data: st.DataObject, version: int):
    base = table(COLUMNS, version)
    for _ in range(data.draw(st.integers(1, 8))):
        change = data.draw(partition_changes(base))
        expected = their_spec(change, base)
        spec = attempted(evolve_spec, base, change)
        if isinstance(spec, IcekeepError):
            assert isinstance(expected, Exception) or any(r in str(spec) for r in STRICTER_SPECS), (change, spec)
            continue
        names: dict[int, set[str]] = {}
        for field in (field for known in base.partition_specs for field in known.fields):
            names.setdefault(field.field_id, set()).add(field.name)
        renamed = any(len(several) > 1 for several in names.values())
        # It renames the new field in place of a void one, and takes the oldest name of a field that had several.
        is_their_fault = has_void(base) or (isinstance(change, AddPartitionField) and renamed)
        if not is_their_fault:
            assert [(f.name, f.field_id, str(f.transform)) for f in spec.fields] == expected, change
        specs = base.partition_specs if spec.spec_id in base.specs_by_id else (*base.partition_specs, spec)
        base = replace(
            base,
            partition_specs=specs,
            default_spec_id=spec.spec_id,
            last_partition_id=max(base.last_partition_id, last_assigned_field_id(specs)),
        )
    meanings: dict[int, set[tuple[int, str]]] = {}
    for spec in base.partition_specs:
        for field in spec.fields:
            if not isinstance(field.transform, Void):
                meanings.setdefault(field.field_id, set()).add((field.source_id, str(field.transform)))
    assert all(len(meaning) == 1 for meaning in meanings.values())
