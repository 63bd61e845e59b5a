"""What kind of table a judge is given, and of which kinds its faults are: what `Fault.concerns` is made of."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

import pyarrow.parquet as pq

from icekeep.catalog.base import Table
from icekeep.commit.summary import JOB_KEY, made_by
from icekeep.formats.puffin import footer_of
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
    DOUBLE,
    FLOAT,
    UUID,
    DecimalType,
    FixedType,
    ListType,
    NestedField,
    StructType,
    Type,
    walk,
)
from icekeep.storage.locations import local_path
from kit.naive_scan import live_entries

_FORMATS = {"parquet": "Parquet", "orc": "ORC", "avro": "Avro", "puffin": "Puffin"}


class Kind:
    """The kind of a table's main branch as it is now."""

    def __init__(self, table: Table) -> None:
        self.metadata = table.metadata
        self.entries: list[ManifestEntry] = live_entries(table)

    @cached_property
    def data_files(self) -> list[DataFile]:
        return [entry.data_file for entry in self.entries if entry.data_file.content is FileContent.DATA]

    @cached_property
    def equality_deletes(self) -> list[DataFile]:
        return [entry.data_file for entry in self.entries if entry.data_file.content is FileContent.EQUALITY_DELETES]

    @cached_property
    def position_deletes(self) -> list[DataFile]:
        """Files of position deletes; a deletion vector is none."""
        found = (entry.data_file for entry in self.entries if entry.data_file.content is FileContent.POSITION_DELETES)
        return [file for file in found if file.content_offset is None]

    @cached_property
    def has_vectors(self) -> bool:
        return any(entry.data_file.content_offset is not None for entry in self.entries)

    @cached_property
    def formats(self) -> set[str]:
        """Of all files but deletion vectors."""
        return {_FORMATS[entry.data_file.file_format.lower()] for entry in self.entries} - {"Puffin"}

    @cached_property
    def keys(self) -> set[int]:
        """The ids of columns by whose values rows are deleted."""
        return {field_id for file in self.equality_deletes for field_id in file.equality_ids or ()}

    def has_null_keys(self) -> bool:
        """Whether a row may have a null where an equality delete has a key."""
        return any((file.null_value_counts or {}).get(key) != 0 for file in self.data_files for key in self.keys)

    def has_keys(self, are_so: Callable[[Sequence[NestedField | None]], bool]) -> bool:
        """Whether a column by which rows are deleted is so in the table's schemas, oldest first; `None` where it is missing."""
        return any(are_so([_field(schema, key) for schema in self.metadata.schemas]) for key in self.keys)

    def is_partitioned_by(self, are_so: Callable[[Sequence[NestedField | None]], bool]) -> bool:
        """The same of the columns that partitions follow from."""
        sources = {source for spec in self.metadata.partition_specs for f in spec.fields for source in f.source_ids}
        return any(are_so([_field(schema, source) for schema in self.metadata.schemas]) for source in sources)

    def has_null_partitions(self) -> bool:
        """Whether files of deletes, or the files that they reach, lie in partitions with a null."""
        return any(None in entry.data_file.partition for entry in self.entries)

    @cached_property
    def fields(self) -> list[NestedField]:
        """All columns there are, and all that is nested in them."""
        return [*walk(self.metadata.schema.as_struct())]

    @cached_property
    def specs(self) -> set[int]:
        """The partition specs that the files are written in."""
        return {entry.data_file.spec_id for entry in self.entries}

    @cached_property
    def writers(self) -> set[str]:
        """The software that made the snapshots which are kept."""
        return {_writer(made_by(snapshot.summary)) for snapshot in self.metadata.snapshots}

    @cached_property
    def jobs(self) -> set[str]:
        """Those of icekeep that the snapshots name, and expiration, where parents of snapshots are gone."""
        metadata = self.metadata
        named = {(snapshot.summary or {}).get(JOB_KEY, "") for snapshot in metadata.snapshots} - {""}
        parents = {snapshot.parent_snapshot_id for snapshot in metadata.snapshots} - {None}
        return named | ({"expire_snapshots"} if parents - metadata.snapshots_by_id.keys() else set())

    def labels(self) -> list[str]:
        """All that is told of it when judges' readings are counted."""
        metadata = self.metadata
        has = {
            "position deletes": self.position_deletes,
            "equality deletes": self.equality_deletes,
            "deletion vectors": self.has_vectors,
            "columns changed": len(metadata.schemas) > 1,
            "partition fields changed": len(metadata.partition_specs) > 1,
            "partitions": any(spec.fields for spec in metadata.partition_specs),
        }
        return [
            f"format version {metadata.format_version}",
            *sorted(self.formats),
            *(name for name, is_so in has.items() if is_so),
            *(f"written by {writer}" for writer in sorted(self.writers)),
            *(f"after {job}" for job in sorted(self.jobs)),
        ]


def was_promoted(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column has had more than one type."""
    return len({field.type for field in fields if field is not None}) > 1


def is_young(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column was not there from the first."""
    return fields[0] is None


def is_gone(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column is there no more."""
    return fields[-1] is None


def has_default(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column has a value in rows that are older than it."""
    return any(field is not None and field.initial_default is not None for field in fields)


def is_float(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column's numbers have a negative zero."""
    return any(field is not None and field.type in (FLOAT, DOUBLE) for field in fields)


def _field(schema: Schema, field_id: int) -> NestedField | None:
    return schema.fields_by_id.get(field_id)


def _writer(maker: str | None) -> str:
    if maker is None:
        return "PyIceberg"
    return next((name for name in ("icekeep", "Trino") if maker.startswith(name)), "Iceberg Java")


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
