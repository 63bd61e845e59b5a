"""Of which kinds of tables the faults of judges are: what `Fault.concerns` is made of."""

import re
from collections import Counter
from collections.abc import Callable

import pyarrow.parquet as pq

from icekeep.formats.puffin import footer_of
from icekeep.spec.types import UUID, DecimalType, FixedType, ListType, StructType, Type
from icekeep.storage.locations import local_path
from kit.judging.kinds import Kind, was_promoted


def not_parquet(kind: Kind) -> bool:
    return bool(kind.formats - {"Parquet"})


def has_avro(kind: Kind) -> bool:
    return "Avro" in kind.formats


def has_equality_deletes(kind: Kind) -> bool:
    return bool(kind.equality_deletes)


def has_null_keys(kind: Kind) -> bool:
    return kind.has_null_keys()


def has_null_partitions(kind: Kind) -> bool:
    return bool(kind.equality_deletes) and kind.has_null_partitions()


def has_defaults(kind: Kind) -> bool:
    """Whether rows that are older than a column, or than a field that is nested in one, have a value there."""
    return any(field.initial_default is not None for field in kind.fields)


def has_changed_since(kind: Kind) -> bool:
    head = kind.metadata.current_snapshot
    return head is not None and head.schema_id != kind.metadata.current_schema_id


def has_types(*types: Type | type[Type]) -> Callable[[Kind], bool]:
    """Whether a column, or what is nested in one, is of one of these types, or kinds of types."""
    return lambda kind: any(field.type == one or type(field.type) is one for field in kind.fields for one in types)


def has_lists_of_structs(kind: Kind) -> bool:
    return any(isinstance(f.type, ListType) and isinstance(f.type.element, StructType) for f in kind.fields)


def has_changed_structs(kind: Kind) -> bool:
    structs = [field.field_id for field in kind.fields if isinstance(field.type, StructType)]
    schemas = [schema.fields_by_id for schema in kind.metadata.schemas]
    return any(was_promoted([schema.get(struct) for schema in schemas]) for struct in structs)


def has_structs_of_required(kind: Kind) -> bool:
    structs = [field.type for field in kind.fields if isinstance(field.type, StructType)]
    return any(field.required for struct in structs for field in struct.fields)


def has_deletes_in_specs(kind: Kind) -> bool:
    return len(kind.specs) > 1 and len(kind.data_files) < len(kind.entries)


def has_nested_keys(kind: Kind) -> bool:
    return bool(kind.keys - {field.field_id for schema in kind.metadata.schemas for field in schema.fields})


def has_names_that_avro_has_not(kind: Kind) -> bool:
    return has_avro(kind) and any(not _is_name_in_avro(field.name) for field in kind.fields)


def has_partition_names_that_avro_has_not(kind: Kind) -> bool:
    """In format version 3, where iceberg-rust takes partitions from manifests by name."""
    names = [field.name for spec in kind.metadata.partition_specs for field in spec.fields]
    return kind.metadata.format_version == 3 and any(not _is_name_in_avro(name) for name in names)


def _is_name_in_avro(name: str) -> bool:
    return re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) is not None


def sources(kind: Kind, transform: str) -> list[Type]:
    """The types of the columns that some transform partitions by."""
    metadata = kind.metadata
    return [
        metadata.schema_of(source).fields_by_id[source].type
        for spec in metadata.partition_specs
        for field in spec.fields
        for source in field.source_ids
        if str(field.transform).startswith(transform)
    ]


def truncates_long_decimals(kind: Kind) -> bool:
    return any(isinstance(type_, DecimalType) and type_.precision > 18 for type_ in sources(kind, "truncate"))


def has_named_type_twice_of_java(kind: Kind) -> bool:
    """Whether two partition fields have one type that has a name in Avro: Java tells what the second is by the name alone."""
    specs = [kind.metadata.partition_type(spec.spec_id).fields for spec in kind.metadata.partition_specs]
    counts = [Counter(field.type for field in fields if _has_name_in_avro(field.type)) for fields in specs]
    return "Iceberg Java" in kind.writers and any(count > 1 for types in counts for count in types.values())


def _has_name_in_avro(type_: Type) -> bool:
    return type_ == UUID or isinstance(type_, DecimalType | FixedType)


def has_old_snapshot(kind: Kind) -> bool:
    """Whether the last snapshot is of format version 1 in a table that is of a later one: it has no sequence number."""
    head = kind.metadata.current_snapshot
    return kind.metadata.format_version > 1 and head is not None and not head.sequence_number


def has_names_of_java(kind: Kind) -> bool:
    names = [field.name for spec in kind.metadata.partition_specs for field in spec.fields]
    return "Iceberg Java" in kind.writers and any(not name.isascii() for name in names)


def splits_bytes(kind: Kind) -> bool:
    paths = [local_path(file.file_path) for file in kind.data_files if file.file_format.upper() == "PARQUET"]
    groups = [group for path in paths for group in _row_groups(pq.read_metadata(path))]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    return any("BYTE_STREAM_SPLIT" in column.encodings for column in columns)


def _row_groups(metadata: pq.FileMetaData) -> list[pq.RowGroupMetaData]:
    return [metadata.row_group(n) for n in range(metadata.num_row_groups)]


def has_vectors_given_up(kind: Kind) -> bool:
    """Whether a Puffin file holds more vectors than the table has of it: what PyIceberg reads, whole, and polars by it."""
    files = [entry.data_file for entry in kind.entries if entry.data_file.content_offset is not None]
    live = Counter(file.file_path for file in files)
    return any(_blobs_count(path) > count for path, count in live.items())


def _blobs_count(path: str) -> int:
    with open(local_path(path), "rb") as stream:
        return len(footer_of(stream, path).blobs)


def has_files_outside(kind: Kind) -> bool:
    home = local_path(kind.metadata.location)
    return any(not local_path(entry.data_file.file_path).startswith(f"{home}/") for entry in kind.entries)


def has_uuid_partitions(kind: Kind) -> bool:
    return UUID in sources(kind, "identity")


def has_deletes_in_promoted_partitions(kind: Kind) -> bool:
    return bool(kind.equality_deletes) and kind.is_partitioned_by(was_promoted)


def names_void_field(kind: Kind) -> bool:
    metadata = kind.metadata
    names = {field.name for schema in metadata.schemas for field in schema.fields}
    return any(
        str(field.transform) == "void" and field.name in names
        for spec in metadata.partition_specs
        for field in spec.fields
    )
