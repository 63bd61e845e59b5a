"""Hypothesis strategies: types, values and schemas, and the parts of a table from data files to whole metadata.

All of it is metadata that nothing is behind; real files are in `reclaim_histories`, and real rows in `row_histories`.
"""

from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from itertools import count
from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from icekeep.spec.manifests.structs import DataFile, FieldSummary, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import (
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
)
from icekeep.spec.sorting import UNSORTED, NullOrder, SortDirection, SortField, SortOrder
from icekeep.spec.transforms import Bucket, Identity, Truncate, UnknownTransform, Void
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UUID,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    fixed,
)

PLAIN_TYPES = (
    BOOLEAN, INT, LONG, FLOAT, DOUBLE, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS, TIMESTAMPTZ_NS,
    STRING, UUID, BINARY,
)  # fmt: skip
"""The primitive types without parameters that have values."""

NANOSECOND_TYPES = (TIMESTAMP_NS, TIMESTAMPTZ_NS)

_PYTHON_YEARS_DAYS = (-719_162, 2_932_896)
_MICROS_PER_DAY = 86_400_000_000
_PLAIN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "date": st.integers(-(2**31), 2**31 - 1),
    "time": st.integers(0, _MICROS_PER_DAY - 1),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), st.integers(-(2**63), 2**63 - 1)),
    "string": st.text(),
    "uuid": st.uuids(),
    "binary": st.binary(),
}


def decimal_types() -> st.SearchStrategy[DecimalType]:
    return st.integers(1, 38).flatmap(lambda precision: st.integers(0, precision).map(lambda s: decimal(precision, s)))


def fixed_types() -> st.SearchStrategy[FixedType]:
    return st.integers(1, 20).map(fixed)


def primitive_types() -> st.SearchStrategy[PrimitiveType]:
    """Every primitive type that has values."""
    return st.one_of(st.sampled_from(PLAIN_TYPES), decimal_types(), fixed_types())


def values_of(type_: Type) -> st.SearchStrategy[Any]:
    """Values of a type, never null, in the form of `icekeep.spec.values`, NaN and infinities among them."""
    match type_:
        case DecimalType(_, precision, scale):
            digits = st.integers(-(10**precision) + 1, 10**precision - 1)
            return digits.map(lambda number: Decimal(number).scaleb(-scale, Context(prec=50)))
        case FixedType(_, length):
            return st.binary(min_size=length, max_size=length)
        case PrimitiveType(name):
            return _PLAIN_VALUES[name]
        case ListType():
            return st.lists(values_of(type_.element), max_size=3).map(tuple)
        case MapType():
            return st.lists(st.tuples(values_of(type_.key), values_of(type_.value)), max_size=3).map(tuple)
        case StructType():
            return st.fixed_dictionaries({field.field_id: values_of(field.type) for field in type_.fields})
    raise AssertionError(type_)


def values_in_python_years(type_: PrimitiveType) -> st.SearchStrategy[Any]:
    """Values; dates and timestamps of the years 1 to 9999 only, which `datetime` and so PyIceberg can hold."""
    first, last = _PYTHON_YEARS_DAYS
    if type_ == DATE:
        return st.integers(first, last)
    if type_ in (TIMESTAMP, TIMESTAMPTZ):
        return st.integers(first * _MICROS_PER_DAY, (last + 1) * _MICROS_PER_DAY - 1)
    return values_of(type_)


@st.composite
def typed_values(
    draw: st.DrawFn,
    types: st.SearchStrategy[Any] | None = None,
    values: Callable[[Any], st.SearchStrategy[Any]] = values_of,
) -> tuple[Any, Any]:
    """A type and a value of it, of a primitive type unless told otherwise."""
    type_ = draw(primitive_types() if types is None else types)
    return type_, draw(values(type_))


def nested_types() -> st.SearchStrategy[Type]:
    """Structs, lists and maps, up to two levels deep, with field ids from 1."""
    return _types(depth=2).filter(lambda type_: not isinstance(type_, PrimitiveType))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Schemas that are valid: unique ids and names, some identifier fields, nested columns among the others."""
    ids = count(draw(st.integers(1, 1000)))
    fields = draw(_fields(ids, depth=2))
    identifiable = [
        f.field_id
        for f in fields
        if f.required and isinstance(f.type, PrimitiveType) and f.type.name not in ("float", "double")
    ]
    identifiers = draw(st.lists(st.sampled_from(identifiable), unique=True)) if identifiable else []
    return Schema(fields=fields, schema_id=draw(st.integers(0, 50)), identifier_field_ids=tuple(identifiers))


@st.composite
def _types(draw: st.DrawFn, ids: Iterator[int] | None = None, depth: int = 0) -> Type:
    ids = count(1) if ids is None else ids
    kind = draw(st.sampled_from(["primitive", "struct", "list", "map"] if depth else ["primitive"]))
    if kind == "struct":
        return StructType(draw(_fields(ids, depth - 1, fewest=1)))
    if kind == "list":
        return ListType(
            element_id=next(ids), element=draw(_types(ids, depth - 1)), element_required=draw(st.booleans())
        )
    if kind == "map":
        return MapType(
            key_id=next(ids),
            key=draw(_types(ids)),
            value_id=next(ids),
            value=draw(_types(ids, depth - 1)),
            value_required=draw(st.booleans()),
        )
    return draw(primitive_types())


@st.composite
def _fields(draw: st.DrawFn, ids: Iterator[int], depth: int, fewest: int = 0) -> tuple[NestedField, ...]:
    # A dot in a name could make two full names of columns the same, which is not a schema.
    names = draw(
        st.lists(
            st.text(st.characters(exclude_characters=".", codec="utf-8"), min_size=1),
            min_size=fewest,
            max_size=4,
            unique=True,
        )
    )
    return tuple(
        NestedField(
            field_id=next(ids),
            name=name,
            type=draw(_types(ids, depth)),
            required=draw(st.booleans()),
            doc=draw(st.none() | st.text()),
        )
        for name in names
    )


def json_values() -> st.SearchStrategy[Any]:
    """Any JSON value that survives a decoder and an encoder: finite floats, text without lone surrogates."""
    plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    leaves = plain | _names()
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names(), inner, max_size=3)
    )


def partition_types(types: st.SearchStrategy[PrimitiveType] | None = None) -> st.SearchStrategy[StructType]:
    """Partition types: optional primitive fields with ids from 1000 and names that Avro may not allow."""

    def struct(drawn: list[tuple[str, PrimitiveType]]) -> StructType:
        return StructType(
            tuple(NestedField(field_id=1000 + i, name=name, type=type_) for i, (name, type_) in enumerate(drawn))
        )

    names = _names(min_size=1) | st.sampled_from(["a b", "a_x20b", "1x", "_1x", "é", "ts_day"])
    fields = st.tuples(names, primitive_types() if types is None else types)
    return st.lists(fields, max_size=4, unique_by=lambda field: field[0]).map(struct)


def partition_tuples(partition: StructType) -> st.SearchStrategy[tuple[Any, ...]]:
    """Tuples of a partition type; any value may be null."""
    return st.tuples(*(st.none() | values_of(field.type) for field in partition.fields))


def data_files(partition: StructType, spec_id: int = 0) -> st.SearchStrategy[DataFile]:
    """Data files of a spec with any of the metrics that format version 2 stores; the rows of a few can be added up."""
    counts = st.none() | st.dictionaries(_INTS, _LONGS, max_size=3)
    bounds = st.none() | st.dictionaries(_INTS, st.binary(max_size=20), max_size=3)
    return st.builds(
        DataFile,
        file_path=_names(min_size=1),
        file_format=st.sampled_from(["PARQUET", "AVRO", "ORC"]),
        spec_id=st.just(spec_id),
        record_count=st.integers(0, 2**60),
        file_size_in_bytes=_LONGS,
        partition=partition_tuples(partition),
        column_sizes=counts,
        value_counts=counts,
        null_value_counts=counts,
        nan_value_counts=counts,
        lower_bounds=bounds,
        upper_bounds=bounds,
        key_metadata=st.none() | st.binary(max_size=8),
        split_offsets=st.none() | st.lists(_LONGS, max_size=3).map(tuple),
        sort_order_id=st.none() | _INTS,
    )


def manifest_entries(partition: StructType, spec_id: int = 0) -> st.SearchStrategy[ManifestEntry]:
    """Entries that say everything themselves, so that nothing is inherited."""
    return st.builds(
        ManifestEntry,
        status=st.sampled_from(Status),
        data_file=data_files(partition, spec_id),
        snapshot_id=_LONGS,
        sequence_number=_LONGS,
        file_sequence_number=_LONGS,
    )


def manifest_files() -> st.SearchStrategy[ManifestFile]:
    """Rows of a manifest list, their sequence numbers assigned."""
    summaries = st.builds(
        FieldSummary,
        contains_null=st.booleans(),
        contains_nan=st.none() | st.booleans(),
        lower_bound=st.none() | st.binary(max_size=16),
        upper_bound=st.none() | st.binary(max_size=16),
    )
    counts = dict.fromkeys(("added_files_count", "existing_files_count", "deleted_files_count"), _INTS)
    rows = dict.fromkeys(("added_rows_count", "existing_rows_count", "deleted_rows_count"), _LONGS)
    return st.builds(
        ManifestFile,
        manifest_path=_names(min_size=1),
        manifest_length=_LONGS,
        partition_spec_id=_INTS,
        added_snapshot_id=_LONGS,
        content=st.sampled_from(ManifestContent),
        sequence_number=_LONGS,
        min_sequence_number=_LONGS,
        **counts,
        **rows,
        partitions=st.none() | st.lists(summaries, max_size=3).map(tuple),
        key_metadata=st.none() | st.binary(max_size=8),
    )


def histories(horizon_ms: int = 20) -> st.SearchStrategy[dict[str, Any]]:
    """The keys `snapshots`, `refs` and `current-snapshot-id` of a document: a forest of snapshots, branches and tags.

    Times lie between 0 and `horizon_ms` and need not follow ancestry; parents may have expired.
    """
    # Plain numbers, of which 0 stands for "none": a strategy for each key would be ten times slower.
    limit = st.integers(0, horizon_ms)
    snapshots = st.lists(st.tuples(limit, st.integers(0, 12)), min_size=1, max_size=9)
    refs = st.lists(
        st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 5), limit, limit), min_size=1, max_size=4
    )
    return st.builds(_history, snapshots, refs)


def _history(snapshots: list[tuple[int, int]], refs: list[tuple[bool, int, int, int, int]]) -> dict[str, Any]:
    made = []
    for number, (timestamp_ms, parent) in enumerate(snapshots, start=1):
        made.append({"snapshot-id": number, "sequence-number": number, "timestamp-ms": timestamp_ms})
        if parent > 0 and number > 1:
            # Most often the snapshot before, so that there are long histories; 1000 has expired.
            made[-1]["parent-snapshot-id"] = (
                number - 1 if parent > 4 else 1000 if parent > 3 else (parent % number) or 1
            )
    named = {}
    for name, (is_tag, head, *limits) in zip(("main", "a", "b", "c"), refs, strict=False):
        keys = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
        kind = "tag" if is_tag and name != "main" else "branch"
        known = {key: limit for key, limit in zip(keys, limits, strict=True) if limit}
        named[name] = {"snapshot-id": len(made) - head % len(made), "type": kind, **known}
    return {"snapshots": made, "refs": named, "current-snapshot-id": named["main"]["snapshot-id"]}


@st.composite
def table_metadata(draw: st.DrawFn) -> TableMetadata:
    """Valid metadata of any version: several schemas and specs, sort orders, a history, statistics, logs."""
    version = draw(st.sampled_from([1, 2, 3]))
    current = draw(schemas())
    older = [structs.replace(s, schema_id=100 + i) for i, s in enumerate(draw(st.lists(schemas(), max_size=2)))]
    specs = tuple(structs.replace(draw(_specs(current)), spec_id=i) for i in range(draw(st.integers(1, 2))))
    order = SortOrder(order_id=1, fields=tuple(draw(st.lists(_sort_fields(), min_size=1, max_size=2))))
    snapshots, refs = draw(_snapshots_and_refs(version))
    ids = [s.snapshot_id for s in snapshots]
    return TableMetadata(
        format_version=version,
        table_uuid=None if version == 1 and draw(st.booleans()) else str(draw(st.uuids())),
        location=draw(_names()),
        last_sequence_number=draw(st.integers(len(snapshots), 2**63 - 1)) if version > 1 else 0,
        last_updated_ms=draw(_LONGS),
        last_column_id=draw(_INTS),
        schemas=(*older, current),
        current_schema_id=current.schema_id,
        partition_specs=specs,
        default_spec_id=specs[-1].spec_id,
        last_partition_id=draw(_INTS),
        sort_orders=(UNSORTED, order),
        default_sort_order_id=0,
        properties=draw(_STRING_MAPS),
        current_snapshot_id=refs["main"].snapshot_id if refs else None,
        snapshots=snapshots,
        snapshot_log=tuple(SnapshotLogEntry(timestamp_ms=draw(_LONGS), snapshot_id=i) for i in ids),
        metadata_log=tuple(draw(st.lists(_METADATA_LOG_ENTRIES, max_size=2))),
        refs=refs,
        statistics=tuple(draw(_statistics(i)) for i in ids[:1]),
        partition_statistics=tuple(draw(_partition_statistics(i)) for i in ids[:1]),
        next_row_id=draw(_LONGS) if version == 3 else None,
    )


_INTS = st.integers(0, 2**31 - 1)
_LONGS = st.integers(0, 2**63 - 1)


def _names(min_size: int = 0) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), min_size=min_size, max_size=12)


_STRING_MAPS = st.dictionaries(_names(), _names(), max_size=3)
_METADATA_LOG_ENTRIES = st.builds(MetadataLogEntry, timestamp_ms=_LONGS, metadata_file=_names())


_BLOBS = st.fixed_dictionaries(
    {
        "type": st.just("apache-datasketches-theta-v1"),
        "snapshot-id": _LONGS,
        "sequence-number": _LONGS,
        "fields": st.lists(_INTS, max_size=2),
    },
    optional={"properties": _STRING_MAPS},
)


def _statistics(snapshot_id: int) -> st.SearchStrategy[StatisticsFile]:
    return st.builds(
        StatisticsFile,
        snapshot_id=st.just(snapshot_id),
        statistics_path=_names(),
        file_size_in_bytes=_LONGS,
        file_footer_size_in_bytes=_LONGS,
        key_metadata=st.none() | _names(),
        blob_metadata=st.lists(_BLOBS, max_size=1),
    )


def _partition_statistics(snapshot_id: int) -> st.SearchStrategy[PartitionStatisticsFile]:
    return st.builds(
        PartitionStatisticsFile,
        snapshot_id=st.just(snapshot_id),
        statistics_path=_names(),
        file_size_in_bytes=_LONGS,
    )


@st.composite
def _specs(draw: st.DrawFn, schema: Schema) -> PartitionSpec:
    transforms = [Identity(), Bucket(16), Truncate(4), Void(), UnknownTransform("zorder[3]")]
    usable = [
        (field.field_id, transform)
        for field in schema.fields
        for transform in transforms
        if isinstance(field.type, PrimitiveType) and transform.accepts(field.type)
    ]
    chosen = draw(st.lists(st.sampled_from(usable), max_size=3)) if usable else []
    return PartitionSpec(
        spec_id=0,
        fields=tuple(
            PartitionField(source_id=source_id, field_id=1000 + i, name=f"field {i}", transform=transform)
            for i, (source_id, transform) in enumerate(chosen)
        ),
    )


def _sort_fields() -> st.SearchStrategy[SortField]:
    return st.builds(
        SortField,
        source_id=_INTS,
        transform=st.sampled_from([Identity(), Bucket(4), Truncate(2)]),
        direction=st.sampled_from(SortDirection),
        null_order=st.sampled_from(NullOrder),
    )


@st.composite
def _snapshots_and_refs(draw: st.DrawFn, version: int) -> tuple[tuple[Snapshot, ...], dict[str, SnapshotRef]]:
    ids = draw(st.lists(st.integers(1, 2**63 - 1), unique=True, max_size=4))
    snapshots = tuple(
        Snapshot(
            snapshot_id=snapshot_id,
            timestamp_ms=draw(_LONGS),
            parent_snapshot_id=ids[number - 1] if number else None,
            sequence_number=number if version > 1 else 0,
            manifest_list=draw(_names()),
            summary={"operation": "append", **draw(_STRING_MAPS)},
            schema_id=draw(st.none() | _INTS),
            first_row_id=draw(_LONGS) if version == 3 else None,
            added_rows=draw(_LONGS) if version == 3 else None,
        )
        for number, snapshot_id in enumerate(ids)
    )
    if not ids:
        return (), {}
    limits = st.none() | st.integers(1, 2**63 - 1)
    refs = {
        name: SnapshotRef(
            snapshot_id=draw(st.sampled_from(ids)),
            type="branch",
            min_snapshots_to_keep=draw(limits),
            max_snapshot_age_ms=draw(limits),
        )
        for name in {"main", *draw(st.lists(_names(min_size=1), max_size=2))}
    }
    tag = SnapshotRef(snapshot_id=ids[0], type="tag", max_ref_age_ms=draw(limits))
    return snapshots, {**refs, "a tag": tag}
