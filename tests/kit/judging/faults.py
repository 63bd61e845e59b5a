"""What each judge is known not to read, or to read wrongly, in the version that the lock file has: the one list of it.

`interop/test_judges.py` sees each judge fail just so at the table that the list names. An upgrade that mends one turns its test
red: take the line away then. `interop/panel.py` writes the same into `docs/judges.md`.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pyarrow.parquet as pq

from icekeep.spec.types import TIME, UUID, DecimalType, FixedType, ListType, StructType, Type
from icekeep.storage.locations import local_path
from kit.judging.kinds import Kind, has_default, is_float, is_gone, is_young, was_promoted

VERSIONS = {
    "DuckDB": "1.5.5",
    "ClickHouse": "26.9.2.1",
    "iceberg-rust": "0.11.0",
    "polars": "2.1.0",
    "PyIceberg": "0.12.0",
    "iceberg-go": "v0.7.0",
}
"""The judges, and which versions the list is of."""


class Fault(NamedTuple):
    """One thing that a judge does not do.

    Attributes:
        what: it does instead, for people.
        concerns: whether a table is of the kind where it may happen.
        example: the name of a table in `examples` at which it happens.
        says: a pattern of the error that it ends in; empty where it gives wrong rows and no error.
        missing, added: the numbers of the example's rows that it does not give, and that it should not.
    """

    judge: str
    what: str
    concerns: Callable[[Kind], bool]
    example: str
    says: str = ""
    missing: tuple[int, ...] = ()
    added: tuple[int, ...] = ()

    def explains(self, error: str) -> bool:
        """Whether an error is this one; empty where there was none, but wrong rows."""
        return bool(re.search(self.says, error)) if self.says else not error


def _not_parquet(kind: Kind) -> bool:
    return bool(kind.formats() - {"Parquet"})


def _has_avro(kind: Kind) -> bool:
    return "Avro" in kind.formats()


def _has_equality_deletes(kind: Kind) -> bool:
    return bool(kind.equality_deletes)


def _has_null_keys(kind: Kind) -> bool:
    return kind.has_null_keys()


def _has_null_partitions(kind: Kind) -> bool:
    return bool(kind.equality_deletes) and kind.has_null_partitions()


def _has_default(kind: Kind) -> bool:
    return any(field.initial_default is not None for field in kind.metadata.schema.fields)


def _has_changed_since(kind: Kind) -> bool:
    head = kind.metadata.current_snapshot
    return head is not None and head.schema_id != kind.metadata.current_schema_id


def _has_types(*types: Type | type[Type]) -> Callable[[Kind], bool]:
    """Whether a column, or what is nested in one, is of one of these types, or kinds of types."""
    return lambda kind: any(field.type == one or type(field.type) is one for field in kind.fields for one in types)


def _has_lists_of_structs(kind: Kind) -> bool:
    return any(isinstance(f.type, ListType) and isinstance(f.type.element, StructType) for f in kind.fields)


def _has_changed_structs(kind: Kind) -> bool:
    structs = [field.field_id for field in kind.fields if isinstance(field.type, StructType)]
    schemas = [schema.fields_by_id for schema in kind.metadata.schemas]
    return any(was_promoted([schema.get(struct) for schema in schemas]) for struct in structs)


def _has_structs_of_required(kind: Kind) -> bool:
    structs = [field.type for field in kind.fields if isinstance(field.type, StructType)]
    return any(field.required for struct in structs for field in struct.fields)


def _has_deletes_in_specs(kind: Kind) -> bool:
    return len(kind.specs) > 1 and len(kind.data_files) < len(kind.entries)


def _has_nested_keys(kind: Kind) -> bool:
    return bool(kind.keys - {field.field_id for schema in kind.metadata.schemas for field in schema.fields})


def _has_names_that_avro_has_not(kind: Kind) -> bool:
    return _has_avro(kind) and any(not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", field.name) for field in kind.fields)


def _sources(kind: Kind, transform: str) -> list[Type]:
    """The types of the columns that some transform partitions by."""
    metadata = kind.metadata
    return [
        metadata.schema_of(source).fields_by_id[source].type
        for spec in metadata.partition_specs
        for field in spec.fields
        for source in field.source_ids
        if str(field.transform).startswith(transform)
    ]


def _truncates_long_decimals(kind: Kind) -> bool:
    return any(isinstance(type_, DecimalType) and type_.precision > 18 for type_ in _sources(kind, "truncate"))


def _has_two_uuid_partitions_of_java(kind: Kind) -> bool:
    sources = [*_sources(kind, "identity"), *_sources(kind, "void")]
    return "Iceberg Java" in kind.writers and sources.count(UUID) > 1


def _has_names_of_java(kind: Kind) -> bool:
    names = [field.name for spec in kind.metadata.partition_specs for field in spec.fields]
    return "Iceberg Java" in kind.writers and any(not name.isascii() for name in names)


def _splits_bytes(kind: Kind) -> bool:
    paths = [local_path(file.file_path) for file in kind.data_files if file.file_format.upper() == "PARQUET"]
    groups = [group for path in paths for group in _row_groups(pq.read_metadata(path))]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    return any("BYTE_STREAM_SPLIT" in column.encodings for column in columns)


def _row_groups(metadata: pq.FileMetaData) -> list[pq.RowGroupMetaData]:
    return [metadata.row_group(n) for n in range(metadata.num_row_groups)]


def _has_files_outside(kind: Kind) -> bool:
    home = local_path(kind.metadata.location)
    return any(not local_path(entry.data_file.file_path).startswith(f"{home}/") for entry in kind.entries)


def _has_uuid_partitions(kind: Kind) -> bool:
    return UUID in _sources(kind, "identity")


def _has_deletes_in_promoted_partitions(kind: Kind) -> bool:
    return bool(kind.equality_deletes) and kind.is_partitioned_by(was_promoted)


def _names_void_field(kind: Kind) -> bool:
    metadata = kind.metadata
    names = {field.name for schema in metadata.schemas for field in schema.fields}
    return any(
        str(field.transform) == "void" and field.name in names
        for spec in metadata.partition_specs
        for field in spec.fields
    )


OF_JAVA = "a partition field whose name has a letter beyond ASCII, in manifests of Iceberg Java"
TWO_UUIDS_OF_JAVA = "two partition fields of UUIDs, in manifests of Iceberg Java"
"""These examples are Iceberg Java's; what icekeep writes there has not this fault."""

DUCKDB = (
    Fault("DuckDB", "reads Parquet alone", _not_parquet, "ORC", says="only supports 'parquet'"),
    Fault(
        "DuckDB",
        "crashes at manifests of Iceberg Java where the name of a partition field has a letter beyond ASCII",
        _has_names_of_java,
        OF_JAVA,
        says="it ended",
    ),
    Fault(
        "DuckDB",
        "drops rows with a null in a column by which others are deleted",
        _has_null_keys,
        "keys of one column",
        missing=(3, 4),
    ),
    Fault(
        "DuckDB",
        "takes 0.0 for -0.0 where rows are deleted by their values",
        lambda kind: kind.has_keys(is_float),
        "zero keys",
        missing=(1,),
    ),
    Fault(
        "DuckDB",
        "fails at equality deletes where a partition is null",
        _has_null_partitions,
        "keys in a null partition",
        says="Comparison on NULL values",
    ),
    Fault(
        "DuckDB",
        "applies equality deletes to other partitions than theirs",
        lambda kind: any(file.partition for file in kind.equality_deletes),
        "keys of one partition",
        missing=(3, 5),
    ),
    Fault(
        "DuckDB",
        "crashes where a column is gone by which files are partitioned",
        lambda kind: kind.is_partitioned_by(is_gone),
        "a partition's column dropped",
        says="it ended",
    ),
    Fault(
        "DuckDB",
        "reads no Parquet whose whole numbers or bytes are split by streams",
        _splits_bytes,
        "bytes split by streams",
        says="BYTE_STREAM_SPLIT encoding is only supported for FLOAT or DOUBLE",
    ),
    Fault(
        "DuckDB",
        "does not delete rows by the default of a column that is younger than they are",
        lambda kind: kind.has_keys(has_default),
        "keys of a default",
        added=(1, 2, 3, 4, 5),
    ),
    Fault(
        "DuckDB",
        "fails where the type of a column was promoted since rows were deleted by it",
        lambda kind: kind.has_keys(was_promoted),
        "keys promoted since",
        says=r"INTERNAL Error: Expected .* but found",
    ),
    Fault(
        "DuckDB",
        "crashes where a column is gone by which rows were deleted",
        lambda kind: kind.has_keys(is_gone),
        "keys of a dropped column",
        says="it ended",
    ),
    Fault(
        "DuckDB",
        "crashes at equality deletes by a field of a struct",
        _has_nested_keys,
        "nested keys",
        says="it ended",
    ),
    Fault(
        "DuckDB",
        "reads no manifests whose codec is zstd",
        lambda kind: kind.metadata.properties.get("write.manifest.compression-codec") == "zstd",
        "zstd manifests",
        says="File header contains an unknown codec",
    ),
)

CLICKHOUSE = (
    Fault(
        "ClickHouse",
        "fails at required UUIDs in ORC",
        lambda kind: "ORC" in kind.formats() and _has_types(UUID)(kind),
        "required UUIDs in ORC",
        says="Cannot parse uuid|UnicodeDecodeError",
    ),
    Fault(
        "ClickHouse",
        "does not find files that are not below the table's location",
        _has_files_outside,
        "outside",
        says="FILE_DOESNT_EXIST",
    ),
    Fault(
        "ClickHouse",
        "fails at equality deletes by a field of a struct",
        _has_nested_keys,
        "nested keys",
        says="Not found column [^ ]+ in block",
    ),
    Fault(
        "ClickHouse",
        "does not find columns in Avro whose names Avro cannot have",
        _has_names_that_avro_has_not,
        "a name in Avro",
        says="not found in Avro schema",
    ),
    Fault(
        "ClickHouse",
        "has null for UUIDs in ORC",
        lambda kind: "ORC" in kind.formats() and _has_types(UUID)(kind),
        "types in ORC",
        missing=(1,),
        added=(1,),
    ),
    Fault(
        "ClickHouse",
        "reads no UUIDs in Avro",
        lambda kind: _has_avro(kind) and _has_types(UUID)(kind),
        "UUIDs in Avro",
        says="Cannot parse UUID from type Fixed",
    ),
    Fault(
        "ClickHouse",
        "fails where partitions are of decimals of more than 18 digits, truncated",
        _truncates_long_decimals,
        "truncated decimals",
        says="icebergTruncate",
    ),
    Fault(
        "ClickHouse",
        "reads no table that is partitioned by UUIDs",
        _has_uuid_partitions,
        "partitions of UUIDs",
        says="Cannot parse uuid|UnicodeDecodeError",
    ),
    Fault(
        "ClickHouse",
        "has zeros in required fields of a struct that is null",
        _has_structs_of_required,
        "nested, required",
        missing=(1,),
        added=(1,),
    ),
    Fault(
        "ClickHouse",
        "has whole seconds of times of day",
        _has_types(TIME),
        "nested",
        missing=(2,),
        added=(2,),
    ),
    Fault(
        "ClickHouse",
        "reads no deletion vectors",
        lambda kind: kind.has_vectors,
        "vector",
        says="Position deletes are supported only for parquet format",
    ),
    Fault(
        "ClickHouse",
        "reads no position deletes of or in ORC or Avro",
        lambda kind: bool(kind.position_deletes or kind.has_vectors) and _not_parquet(kind),
        "positions in ORC",
        says="Position deletes are (only supported for data files of Parquet|supported only for parquet)",
    ),
    Fault(
        "ClickHouse",
        "drops rows with a null in the one column by which others are deleted",
        _has_null_keys,
        "keys of one column",
        missing=(3, 4),
    ),
    Fault(
        "ClickHouse",
        "fails at equality deletes by a column that is younger than a data file",
        lambda kind: kind.has_keys(is_young),
        "keys of a young column",
        says=r"Field with source id \d+ in schema version \d+ is unknown",
    ),
    Fault(
        "ClickHouse",
        "has null where a column has a default",
        _has_default,
        "a default",
        missing=(1, 2, 3, 4, 5),
        added=(1, 2, 3, 4, 5),
    ),
    Fault(
        "ClickHouse",
        "does not apply all equality deletes where they are of several partition specs",
        _has_deletes_in_specs,
        "keys in many specs",
        added=(4, 4),
    ),
    Fault(
        "ClickHouse",
        "fails where deletes are of several partition specs",
        _has_deletes_in_specs,
        "a history with deletes in two specs",
        says="deletes objects are not sorted",
    ),
)

RUST = (
    Fault("iceberg-rust", "reads Parquet alone", _not_parquet, "ORC", says="Invalid Parquet file. Corrupt footer"),
    Fault(
        "iceberg-rust",
        "reads no manifests of Iceberg Java where the name of a partition field has a letter beyond ASCII",
        _has_names_of_java,
        OF_JAVA,
        says="Invalid field name",
    ),
    Fault(
        "iceberg-rust",
        "refuses a void partition field with the name of a column",
        _names_void_field,
        "a void field of a column's name",
        says="conflicts with schema field and is not an identity transform",
    ),
    Fault(
        "iceberg-rust",
        "does not delete rows by the default of a column that is younger than they are",
        lambda kind: kind.has_keys(has_default),
        "keys of a default",
        added=(1, 2, 3, 4, 5),
    ),
    Fault(
        "iceberg-rust",
        "fails where a column is gone by which rows were deleted",
        lambda kind: kind.has_keys(is_gone),
        "keys of a dropped column, rows since",
        says="Unexpected => field not found",
    ),
    Fault(
        "iceberg-rust",
        "does not apply equality deletes where the type of a partition's column was promoted",
        _has_deletes_in_promoted_partitions,
        "keys in a promoted partition",
        added=(1, 3),
    ),
    Fault(
        "iceberg-rust",
        "fails at equality deletes by a field of a struct",
        _has_nested_keys,
        "nested keys",
        says="Unexpected => field not found",
    ),
    Fault(
        "iceberg-rust",
        "reads no table that is partitioned by UUIDs",
        _has_uuid_partitions,
        "partitions of UUIDs",
        says="Failure in conversion with avro",
    ),
    Fault(
        "iceberg-rust",
        "fails where a column is gone by which files are partitioned",
        lambda kind: kind.is_partitioned_by(is_gone),
        "a partition's column dropped",
        says=r"No column with source column id \d+ in schema",
    ),
    Fault(
        "iceberg-rust",
        "fails at rows that are older than a field of a struct",
        _has_changed_structs,
        "a field added to a struct, rows since",
        says="Incorrect number of arrays for StructArray fields",
    ),
    Fault(
        "iceberg-rust",
        "drops all values of an older file where a key is too large for the type that the column had",
        lambda kind: kind.has_keys(was_promoted),
        "keys too large for older files",
        missing=(1, 3, 5),
    ),
    Fault(
        "iceberg-rust",
        "takes a column for one of its name that is gone, where rows are deleted by it",
        lambda kind: kind.has_keys(is_gone),
        "keys of a column dropped and added",
        missing=(5,),
        added=(5,),
    ),
    Fault(
        "iceberg-rust",
        "fails where columns were named or added since the last snapshot",
        _has_changed_since,
        "a column renamed since",
        says=r"Column \w+ not found in table. Schema|not of the table's columns",
    ),
    Fault(
        "iceberg-rust",
        "has null for lists of files without field ids",
        lambda kind: "schema.name-mapping.default" in kind.metadata.properties,
        "imported",
        missing=(1,),
        added=(1,),
    ),
)

PYTHON = (
    Fault(
        "polars",
        "reads no Parquet whose bytes of fixed length are split by streams",
        _splits_bytes,
        "bytes split by streams",
        says='"ByteStreamSplit"-encoded',
    ),
    Fault(
        "polars",
        "refuses files of position deletes that do not name the one data file that they are for",
        lambda kind: bool(kind.position_deletes),
        "positions of two files",
        says="position delete file not limited to one data file",
    ),
    Fault(
        "PyIceberg",
        "reads no manifests of Iceberg Java with two partition fields of UUIDs",
        _has_two_uuid_partitions_of_java,
        TWO_UUIDS_OF_JAVA,
        says="Type not recognized: uuid_fixed",
    ),
    Fault(
        "PyIceberg",
        "reads no times, UUIDs and bytes of fixed length in ORC",
        lambda kind: "ORC" in kind.formats() and _has_types(TIME, UUID, FixedType)(kind),
        "types in ORC",
        says=r"ResolveError: Cannot promote (long to time|an binary to (uuid|fixed))",
    ),
    Fault(
        "PyIceberg",
        "applies all vectors of a Puffin file, also those that the table has no more",
        lambda kind: kind.has_vectors,
        "a vector given up",
        missing=(1,),
    ),
    Fault(
        "PyIceberg",
        "fails at a column of UUIDs without rows",
        lambda kind: not kind.data_files and _has_types(UUID)(kind),
        "no rows",
        says="ArrowNotImplementedError: extension",
    ),
    Fault(
        "PyIceberg",
        "has an empty list for a null list of structs",
        _has_lists_of_structs,
        "nested",
        missing=(1,),
        added=(1,),
    ),
    Fault(
        "polars",
        "reads Parquet alone",
        _not_parquet,
        "ORC",
        says="non-parquet format|unsupported deletion file format|uuid_fixed",
    ),
    Fault(
        "polars",
        "refuses equality deletes",
        _has_equality_deletes,
        "keys without nulls",
        says="does not yet support equality deletes",
    ),
    Fault("PyIceberg", "reads no Avro", _has_avro, "Avro", says="Unsupported file format: FileFormat.AVRO"),
    Fault(
        "PyIceberg",
        "reads no deletes in Avro",
        _has_avro,
        "positions in an Avro file",
        says="Delete file format not supported: FileFormat.AVRO",
    ),
    Fault(
        "PyIceberg",
        "refuses equality deletes",
        _has_equality_deletes,
        "keys without nulls",
        says="does not yet support equality deletes",
    ),
)

GO = (
    Fault("iceberg-go", "reads Parquet alone", _not_parquet, "ORC", says="only parquet format is implemented"),
    Fault(
        "iceberg-go",
        "reads no manifests of Iceberg Java where the name of a partition field has a letter beyond ASCII",
        _has_names_of_java,
        OF_JAVA,
        says="invalid field name",
    ),
    Fault(
        "iceberg-go",
        "does not find local files with a percent sign in their names",
        lambda kind: any("%" in entry.data_file.file_path for entry in kind.entries),
        "an escaped path",
        says="no such file or directory",
    ),
    Fault(
        "iceberg-go",
        "fails at equality deletes by a column that a data file has not",
        lambda kind: kind.has_keys(lambda fields: is_young(fields) or is_gone(fields)),
        "keys of a young column",
        says=r"equality field ID \d+ \(\w+\) not found",
    ),
    Fault(
        "iceberg-go",
        "does not delete rows by a column whose type was promoted since they were written",
        lambda kind: kind.has_keys(was_promoted),
        "keys of a promoted column",
        added=(1, 3),
    ),
)

FAULTS: tuple[Fault, ...] = (*DUCKDB, *CLICKHOUSE, *RUST, *PYTHON, *GO)


def faults_of(judge: str, kind: Kind) -> list[Fault]:
    """Those of a judge that a table may show."""
    return [fault for fault in FAULTS if fault.judge == judge and fault.concerns(kind)]


def explained(faults: Iterable[Fault], error: str) -> Fault | None:
    """The fault that an error is of; of wrong rows where it is empty."""
    return next((fault for fault in faults if fault.explains(error)), None)
