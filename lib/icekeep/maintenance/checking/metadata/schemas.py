"""Schemas, partition specs and sort orders: ids, and whether each fits the columns that it is made for."""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.maintenance.checking.metadata.findings import Findings
from icekeep.maintenance.checking.metadata.reading import Document
from icekeep.maintenance.checking.metadata_classes import LATER_FEATURE
from icekeep.spec.partitioning import PartitionField, PartitionSpec, last_assigned_field_id, validate_spec
from icekeep.spec.schema import Schema, check_format_version, validate_schema
from icekeep.spec.sorting import SortOrder, validate_sort_order
from icekeep.spec.transforms import Identity, Truncate, Void
from icekeep.spec.types import Type, child_fields, walk

_DOUBLED_ID = 103
_CURRENT_SCHEMA_MISSING = 104
_DEFAULT_SPEC_MISSING = 105
_DEFAULT_ORDER_MISSING = 106
_PARTITION_SOURCE_MISSING = 107
_LAST_COLUMN_ID_TOO_LOW = 108
_LAST_PARTITION_ID_TOO_LOW = 109
_PARTITION_FIELD_DOUBLED = 110
_FIELD_ID_DOUBLED = 111
_SORT_SOURCE_MISSING = 112
_IDENTIFIER_WRONG = 113


def check_schemas(document: Document, findings: Findings) -> None:
    """Faults of schemas: doubled and missing ids, columns that are not told apart, identifiers, what the version lacks."""
    ids = [schema.schema_id for schema in document.schemas]
    report_doubled("schema", ids, findings)
    _check_named("schemas", document.current_schema_id, ids, _CURRENT_SCHEMA_MISSING, document, findings)
    for schema in document.schemas:
        _check_schema(schema, findings)
        try:
            check_format_version(schema, document.version)
        except InvalidTableError as error:
            findings.add(LATER_FEATURE, error.message, where=_name(schema), facts={"schema_id": schema.schema_id})
    highest = max((schema.highest_field_id for schema in document.schemas), default=0)
    if document.last_column_id is not None and document.last_column_id < highest:
        findings.add(
            _LAST_COLUMN_ID_TOO_LOW,
            f"last-column-id is {document.last_column_id}, and a schema has the field id {highest}",
            facts={"recorded": document.last_column_id, "least": highest},
        )


def check_specs(document: Document, findings: Findings) -> None:
    """Faults of partition specs: doubled and missing ids, fields that are not told apart, columns that they lack."""
    specs = document.partition_specs
    report_doubled("partition spec", [spec.spec_id for spec in specs], findings)
    ids = [spec.spec_id for spec in specs]
    _check_named("partition-specs", document.default_spec_id, ids, _DEFAULT_SPEC_MISSING, document, findings)
    for spec in specs:
        _check_doubled_fields(spec, findings)
        _check_sources(spec, document, findings)
        _check_arguments(_spec_name(spec), spec.fields, document, findings)
    if document.version > 1:
        _check_across_specs(specs, findings)
    highest = last_assigned_field_id(specs)
    has_fields = any(spec.fields for spec in specs)
    if has_fields and document.last_partition_id is not None and document.last_partition_id < highest:
        findings.add(
            _LAST_PARTITION_ID_TOO_LOW,
            f"last-partition-id is {document.last_partition_id}, and a partition field has the id {highest}",
            facts={"recorded": document.last_partition_id, "least": highest},
        )


def check_sort_orders(document: Document, findings: Findings) -> None:
    """Faults of sort orders: doubled and missing ids, and columns that the default order lacks."""
    ids = [order.order_id for order in document.sort_orders]
    report_doubled("sort order", ids, findings)
    _check_named("sort-orders", document.default_sort_order_id, ids, _DEFAULT_ORDER_MISSING, document, findings)
    for order in document.sort_orders:
        if order.order_id == document.default_sort_order_id:
            _check_sort_columns(order, document.schema, findings)
        _check_arguments(f"sort order {order.order_id}", order.fields, document, findings)


def report_doubled(what: str, ids: Iterable[int], findings: Findings) -> None:
    """Faults 103 of a list whose items are told apart by id."""
    for one, times in Counter(ids).items():
        if times > 1:
            findings.add(_DOUBLED_ID, f"{times} have this id", where=f"{what} {one}", facts={"what": what, "id": one})


def _check_named(
    key: str, named: int | None, ids: Iterable[int], number: int, document: Document, findings: Findings
) -> None:
    # What is not there may be the one that could not be read, and that is told.
    known = sorted(set(ids))
    if named is None or named in known or key in document.broken:
        return
    there = ", ".join(map(str, known)) or "none"
    findings.add(number, f"{named} is not among the {key}, which are {there}", facts={"named": named})


def _check_schema(schema: Schema, findings: Findings) -> None:
    try:
        validate_schema(schema)
    except InvalidTableError as error:
        doubled = [*_doubled_fields(schema)]
        for problem in doubled:
            findings.add(_FIELD_ID_DOUBLED, problem, where=_name(schema), facts={"schema_id": schema.schema_id})
        if not doubled and not _check_identifiers(schema, findings):
            findings.unreadable(error.message, _name(schema))


def _doubled_fields(schema: Schema) -> Iterator[str]:
    for field_id, times in Counter(field.field_id for field in walk(schema.as_struct())).items():
        if times > 1:
            yield f"{times} fields have the id {field_id}"
    for name, times in Counter(_full_names(schema.as_struct())).items():
        if times > 1:
            yield f"{times} fields have the name {name!r}"


def _full_names(type_: Type, prefix: str = "") -> Iterator[str]:
    for field in child_fields(type_):
        yield prefix + field.name
        yield from _full_names(field.type, f"{prefix}{field.name}.")


def _check_identifiers(schema: Schema, findings: Findings) -> bool:
    """Tell of identifier fields that are none; whether that is all that is wrong with the schema."""
    try:
        validate_schema(replace(schema, identifier_field_ids=()))
    except InvalidTableError:
        return False
    for field_id in schema.identifier_field_ids:
        try:
            validate_schema(replace(schema, identifier_field_ids=(field_id,)))
        except InvalidTableError as error:
            findings.add(
                _IDENTIFIER_WRONG,
                error.message,
                where=_name(schema),
                facts={"schema_id": schema.schema_id, "field_id": field_id},
            )
    return True


def _check_doubled_fields(spec: PartitionSpec, findings: Findings) -> None:
    where = _spec_name(spec)
    for field_id, times in Counter(field.field_id for field in spec.fields).items():
        if times > 1:
            findings.add(_PARTITION_FIELD_DOUBLED, f"{times} fields have the id {field_id}", where=where)
    for name, times in Counter(field.name for field in spec.fields).items():
        if times > 1:
            findings.add(_PARTITION_FIELD_DOUBLED, f"{times} fields have the name {name!r}", where=where)


def _check_across_specs(specs: Iterable[PartitionSpec], findings: Findings) -> None:
    """One id, one meaning; but a field that was dropped from a table of version 1 is void from then on."""
    known: dict[int, tuple[PartitionSpec, PartitionField]] = {}
    for spec in specs:
        for field in spec.fields:
            other_spec, other = known.setdefault(field.field_id, (spec, field))
            if other_spec is spec or _mean_the_same(field, other):
                # What a void field was before tells more of what may stand under its id.
                if isinstance(other.transform, Void):
                    known[field.field_id] = (spec, field)
                continue
            findings.add(
                _PARTITION_FIELD_DOUBLED,
                f"field {field.field_id} is {_shown(field)}, and in partition spec {other_spec.spec_id} {_shown(other)}",
                where=_spec_name(spec),
                facts={"field_id": field.field_id, "spec_ids": [other_spec.spec_id, spec.spec_id]},
            )


def _mean_the_same(one: PartitionField, other: PartitionField) -> bool:
    has_void = isinstance(one.transform, Void) or isinstance(other.transform, Void)
    return one.source_ids == other.source_ids and (has_void or one.transform == other.transform)


def _check_sources(spec: PartitionSpec, document: Document, findings: Findings) -> None:
    is_default = spec.spec_id == document.default_spec_id
    for field in spec.fields:
        problem = _misfit(spec, field, document.schema) if is_default else _loss(field, document)
        if problem is not None:
            findings.add(
                _PARTITION_SOURCE_MISSING,
                problem,
                where=_spec_name(spec),
                facts={"spec_id": spec.spec_id, "field_id": field.field_id, "source_id": field.source_id},
            )


def _misfit(spec: PartitionSpec, field: PartitionField, schema: Schema | None) -> str | None:
    """Why a field of the default spec does not fit the current schema."""
    if schema is None:
        return None
    try:
        validate_spec(replace(spec, fields=(field,)), schema)
    except InvalidTableError as error:
        return error.message
    return None


def _loss(field: PartitionField, document: Document) -> str | None:
    """Why values of an older spec's field cannot be read: other transforms have one type whatever the column was."""
    if "schemas" in document.broken or not isinstance(field.transform, Identity | Truncate):
        return None
    if any(field.source_id in schema.fields_by_id for schema in document.schemas):
        return None
    return f"the source column {field.source_id} of field {field.name!r} is in no schema"


def _check_sort_columns(order: SortOrder, schema: Schema | None, findings: Findings) -> None:
    if schema is None:
        return
    for field in order.fields:
        try:
            validate_sort_order(replace(order, fields=(field,)), schema)
        except InvalidTableError as error:
            findings.add(
                _SORT_SOURCE_MISSING,
                error.message,
                where=f"sort order {order.order_id}",
                facts={"order_id": order.order_id, "source_id": field.source_id},
            )


def _check_arguments(where: str, fields: Iterable[object], document: Document, findings: Findings) -> None:
    """Transforms of several columns came with version 3."""
    if document.version >= 3:
        return
    for field in fields:
        source_ids = getattr(field, "extra", {}).get("source-ids")
        if source_ids is not None:
            findings.add(
                LATER_FEATURE,
                f"a transform has the source columns {source_ids}; only version 3 has transforms of several",
                where=where,
            )


def _shown(field: PartitionField) -> str:
    return f"{str(field.transform)!r} of column {field.source_id}"


def _name(schema: Schema) -> str:
    return f"schema {schema.schema_id}"


def _spec_name(spec: PartitionSpec) -> str:
    return f"partition spec {spec.spec_id}"
