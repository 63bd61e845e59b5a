"""What each judge is known not to read, or to read wrongly, in the version that the lock file has: the one list of it.

`interop/test_judges.py` sees each judge fail just so at the table that the list names. An upgrade that mends one turns its test
red: take the line away then. `interop/panel.py` writes the same into `docs/judges.md`.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from icekeep.spec.types import (
    DATE,
    DOUBLE,
    FLOAT,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UUID,
    FixedType,
)
from kit.judging.concerns import (
    Kind,
    has_avro,
    has_changed_since,
    has_changed_structs,
    has_default,
    has_defaults,
    has_deletes_in_promoted_partitions,
    has_deletes_in_specs,
    has_equality_deletes,
    has_files_outside,
    has_lists_of_structs,
    has_named_type_twice_of_java,
    has_names_of_java,
    has_names_that_avro_has_not,
    has_nested_keys,
    has_null_keys,
    has_null_partitions,
    has_old_snapshot,
    has_partition_names_that_avro_has_not,
    has_structs_of_required,
    has_types,
    has_uuid_partitions,
    has_vectors_given_up,
    is_float,
    is_gone,
    is_young,
    names_void_field,
    not_parquet,
    sources,
    splits_bytes,
    truncates_long_decimals,
    was_promoted,
)


class Fault(NamedTuple):
    """One thing that a judge does not do.

    Attributes:
        what: it does instead, for people.
        concerns: whether a table is of the kind where it may happen.
        example: the name of a table in `examples` at which it happens.
        says: a pattern of the error that it ends in; empty where it gives wrong rows and no error.
        missing, added: the numbers of the example's rows that it does not give, and that it should not.
        issue: where its makers, or those of a library that it reads by, know of it: a repository on GitHub and a number.
    """

    judge: str
    what: str
    concerns: Callable[[Kind], bool]
    example: str
    says: str = ""
    missing: tuple[int, ...] = ()
    added: tuple[int, ...] = ()
    issue: str = ""

    def explains(self, error: str) -> bool:
        """Whether an error is this one; empty where there was none, but wrong rows."""
        return bool(re.search(self.says, error)) if self.says else not error


OF_JAVA = "a partition field whose name has a letter beyond ASCII, in manifests of Iceberg Java"
TWO_UUIDS_OF_JAVA = "two partition fields of UUIDs, in manifests of Iceberg Java"
TWO_DECIMALS_OF_JAVA = "two partition fields of decimals, in manifests of Iceberg Java"
TIMES_OF_JAVA = "a time before 1970 with a part of a second, in ORC of Iceberg Java"
ALL_OF_JAVA = (OF_JAVA, TWO_UUIDS_OF_JAVA, TWO_DECIMALS_OF_JAVA, TIMES_OF_JAVA)


CLICKHOUSE = (
    Fault(
        "ClickHouse",
        "fails at required UUIDs in ORC",
        lambda kind: "ORC" in kind.formats and has_types(UUID)(kind),
        "required UUIDs in ORC",
        says="Cannot parse uuid|UnicodeDecodeError",
    ),
    Fault(
        "ClickHouse",
        "does not find files that are not below the table's location",
        has_files_outside,
        "outside",
        says="FILE_DOESNT_EXIST",
    ),
    Fault(
        "ClickHouse",
        "fails at equality deletes by a field of a struct",
        has_nested_keys,
        "nested keys",
        says="Not found column [^ ]+ in block",
    ),
    Fault(
        "ClickHouse",
        "does not find columns in Avro whose names Avro cannot have",
        has_names_that_avro_has_not,
        "a name in Avro",
        says="not found in Avro schema",
    ),
    Fault(
        "ClickHouse",
        "has null for UUIDs in ORC",
        lambda kind: "ORC" in kind.formats and has_types(UUID)(kind),
        "types in ORC",
        missing=(1,),
        added=(1,),
    ),
    Fault(
        "ClickHouse",
        "reads no UUIDs in Avro",
        lambda kind: has_avro(kind) and has_types(UUID)(kind),
        "UUIDs in Avro",
        says="Cannot parse UUID from type Fixed",
    ),
    Fault(
        "ClickHouse",
        "fails where partitions are of decimals of more than 18 digits, truncated",
        truncates_long_decimals,
        "truncated decimals",
        says="icebergTruncate",
    ),
    Fault(
        "ClickHouse",
        "reads no table that is partitioned by UUIDs",
        has_uuid_partitions,
        "partitions of UUIDs",
        says="Cannot parse uuid|UnicodeDecodeError",
    ),
    Fault(
        "ClickHouse",
        "has zeros in required fields of a struct that is null",
        has_structs_of_required,
        "nested, required",
        missing=(1,),
        added=(1,),
    ),
    Fault(
        "ClickHouse",
        "has whole seconds of times of day",
        has_types(TIME),
        "nested",
        missing=(2,),
        added=(2,),
        issue="ClickHouse/ClickHouse#88063",
    ),
    Fault(
        "ClickHouse",
        "reads no deletion vectors",
        lambda kind: kind.has_vectors,
        "vector",
        says="Position deletes are supported only for parquet format",
        issue="ClickHouse/ClickHouse#110781",
    ),
    Fault(
        "ClickHouse",
        "reads no position deletes of or in ORC or Avro",
        lambda kind: bool(kind.position_deletes or kind.has_vectors) and not_parquet(kind),
        "positions in ORC",
        says="Position deletes are (only supported for data files of Parquet|supported only for parquet)",
    ),
    Fault(
        "ClickHouse",
        "drops rows with a null in the one column by which others are deleted",
        has_null_keys,
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
        has_defaults,
        "a default",
        missing=(1, 2, 3, 4, 5),
        added=(1, 2, 3, 4, 5),
    ),
    Fault(
        "ClickHouse",
        "does not apply all equality deletes where they are of several partition specs",
        has_deletes_in_specs,
        "keys in many specs",
        added=(4, 4),
    ),
    Fault(
        "ClickHouse",
        "fails where deletes are of several partition specs",
        has_deletes_in_specs,
        "a history with deletes in two specs",
        says="deletes objects are not sorted",
    ),
)


DUCKDB = (
    Fault("DuckDB", "reads Parquet alone", not_parquet, "ORC", says="only supports 'parquet'"),
    Fault(
        "DuckDB",
        "crashes at manifests of Iceberg Java where the name of a partition field has a letter beyond ASCII",
        has_names_of_java,
        OF_JAVA,
        says="DuckDB ended",
    ),
    Fault(
        "DuckDB",
        "drops rows with a null in a column by which others are deleted",
        has_null_keys,
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
        has_null_partitions,
        "keys in a null partition",
        says="Comparison on NULL values",
    ),
    Fault(
        "DuckDB",
        "applies equality deletes to other partitions than theirs",
        lambda kind: any(file.partition for file in kind.equality_deletes),
        "keys of one partition",
        missing=(3, 5),
        issue="duckdb/duckdb-iceberg#1240",
    ),
    Fault(
        "DuckDB",
        "crashes where a column is gone by which files are partitioned",
        lambda kind: kind.is_partitioned_by(is_gone),
        "a partition's column dropped",
        says="DuckDB ended",
    ),
    Fault(
        "DuckDB",
        "reads no Parquet whose whole numbers or bytes are split by streams",
        splits_bytes,
        "bytes split by streams",
        says="BYTE_STREAM_SPLIT encoding is only supported for FLOAT or DOUBLE",
    ),
    Fault(
        "DuckDB",
        "reads no table whose format version was raised since its last snapshot",
        has_old_snapshot,
        "raised since",
        says="required field 'sequence_number' is NULL",
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
        says="DuckDB ended",
    ),
    Fault(
        "DuckDB",
        "crashes at equality deletes by a field of a struct",
        has_nested_keys,
        "nested keys",
        says="DuckDB ended",
    ),
    Fault(
        "DuckDB",
        "reads no manifests whose codec is zstd",
        lambda kind: kind.metadata.properties.get("write.manifest.compression-codec") == "zstd",
        "zstd manifests",
        says="File header contains an unknown codec",
    ),
)


_OF_TIME = (DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS, TIMESTAMPTZ_NS)

GO = (
    Fault("iceberg-go", "reads Parquet alone", not_parquet, "ORC", says="only parquet format is implemented"),
    Fault(
        "iceberg-go",
        "reads no manifests of Iceberg Java where the name of a partition field has a letter beyond ASCII",
        has_names_of_java,
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
        "fails at a default of a date or a time, which metadata has as text",
        lambda kind: any(field.initial_default is not None and field.type in _OF_TIME for field in kind.fields),
        "a default of a date",
        says="unsupported write-default value type string for numeric",
    ),
    Fault(
        "iceberg-go",
        "fails at equality deletes by a column that a data file has not",
        lambda kind: kind.has_keys(lambda fields: is_young(fields) or is_gone(fields)),
        "keys of a young column",
        says=r"equality field ID \d+ \(.+\) not found",
    ),
    Fault(
        "iceberg-go",
        "does not delete rows by a column whose type was promoted since they were written",
        lambda kind: kind.has_keys(was_promoted),
        "keys of a promoted column",
        added=(1, 3),
    ),
)


_OF_PYICEBERG = (
    Fault(
        "PyIceberg",
        "reads no manifests of Iceberg Java with two partition fields of one type that is UUID, decimal or fixed",
        has_named_type_twice_of_java,
        TWO_UUIDS_OF_JAVA,
        says=r"Type not recognized: (uuid_fixed|decimal_\d+_\d+|fixed_\d+)",
    ),
    Fault(
        "PyIceberg",
        "applies all vectors of a Puffin file, also those that the table has no more",
        has_vectors_given_up,
        "a vector given up",
        missing=(1,),
        issue="apache/iceberg-python#3478",
    ),
    Fault(
        "PyIceberg",
        "fails at a damaged vector of a Puffin file, also one that the table has no more",
        has_vectors_given_up,
        "a damaged vector given up",
        says="Keys must be sorted in ascending order",
        issue="apache/iceberg-python#3478",
    ),
    Fault(
        "PyIceberg",
        "refuses equality deletes",
        has_equality_deletes,
        "keys without nulls",
        says="does not yet support equality deletes",
    ),
)
"""What polars does not read rightly either, as it takes manifests and deletes from PyIceberg."""

PYTHON = (
    *_OF_PYICEBERG,
    Fault(
        "PyIceberg",
        "reads no times, UUIDs and bytes of fixed length in ORC",
        lambda kind: "ORC" in kind.formats and has_types(TIME, UUID, FixedType)(kind),
        "types in ORC",
        says=r"ResolveError: Cannot promote (long to time|an binary to (uuid|fixed))",
    ),
    Fault(
        "PyIceberg",
        "fails at a column of UUIDs without rows",
        lambda kind: not kind.data_files and has_types(UUID)(kind),
        "no rows",
        says="ArrowNotImplementedError: extension",
    ),
    Fault(
        "PyIceberg",
        "has an empty list for a null list of structs",
        has_lists_of_structs,
        "nested",
        missing=(1,),
        added=(1,),
        issue="apache/iceberg-python#3833",
    ),
    Fault("PyIceberg", "reads no Avro", has_avro, "Avro", says="Unsupported file format: FileFormat.AVRO"),
    Fault(
        "PyIceberg",
        "reads no deletes in Avro",
        has_avro,
        "positions in an Avro file",
        says="Delete file format not supported: FileFormat.AVRO",
    ),
    *(fault._replace(judge="polars") for fault in _OF_PYICEBERG),
    Fault(
        "polars",
        "reads no Parquet whose bytes of fixed length are split by streams",
        splits_bytes,
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
        "polars",
        "fails where a Puffin file holds a vector that another took the place of",
        has_vectors_given_up,
        "a vector replaced",
        says="multiple deletion vectors associated with one data file",
        issue="apache/iceberg-python#3478",
    ),
    Fault(
        "polars",
        "reads Parquet alone",
        not_parquet,
        "ORC",
        says="non-parquet format|unsupported deletion file format",
    ),
)


RUST = (
    Fault("iceberg-rust", "reads Parquet alone", not_parquet, "ORC", says="Invalid Parquet file. Corrupt footer"),
    Fault(
        "iceberg-rust",
        "reads no manifests of Iceberg Java where the name of a partition field has a letter beyond ASCII",
        has_names_of_java,
        OF_JAVA,
        says="Invalid field name",
    ),
    Fault(
        "iceberg-rust",
        "reads no manifests of Iceberg Java with two partition fields of one type that is UUID, decimal or fixed",
        has_named_type_twice_of_java,
        TWO_DECIMALS_OF_JAVA,
        says="Unresolved schema reference: (uuid_fixed|decimal_|fixed_)",
    ),
    Fault(
        "iceberg-rust",
        "reads no manifests of format version 3 where Avro cannot have the name of a partition field",
        has_partition_names_that_avro_has_not,
        "a partition's name in Avro",
        says="Unable to convert raw literal .* field .+ is not exist",
        issue="apache/iceberg-rust#2536",
    ),
    Fault(
        "iceberg-rust",
        "refuses a void partition field with the name of a column",
        names_void_field,
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
        has_deletes_in_promoted_partitions,
        "keys in a promoted partition",
        added=(1, 3),
    ),
    Fault(
        "iceberg-rust",
        "fails at equality deletes by a field of a struct",
        has_nested_keys,
        "nested keys",
        says="Unexpected => field not found",
    ),
    Fault(
        "iceberg-rust",
        "reads no table that is partitioned by UUIDs",
        has_uuid_partitions,
        "partitions of UUIDs",
        says="Failure in conversion with avro",
        issue="apache/iceberg-rust#2913",
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
        has_changed_structs,
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
        has_changed_since,
        "a column renamed since",
        says=r"Column .+ not found in table. Schema|not of the table's columns",
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


def has_float_partitions(kind: Kind) -> bool:
    return any(type_ in (FLOAT, DOUBLE) for type_ in sources(kind, "identity"))


def has_fixed_partitions(kind: Kind) -> bool:
    specs = [kind.metadata.partition_type(spec.spec_id) for spec in kind.metadata.partition_specs]
    return any(isinstance(field.type, FixedType) for spec in specs for field in spec.fields)


TRINO = (
    Fault("Trino", "reads no deletion vectors", lambda kind: kind.has_vectors, "vector", says="PUFFIN file format"),
    Fault(
        "Trino",
        "has null where a column has a default",
        has_defaults,
        "a default",
        missing=(1, 2, 3, 4, 5),
        added=(1, 2, 3, 4, 5),
    ),
    Fault(
        "Trino",
        "does not delete rows by the default of a column that is younger than they are",
        lambda kind: kind.has_keys(has_default),
        "keys of a default",
        added=(1, 2, 3, 4, 5),
    ),
    Fault(
        "Trino",
        "drops all rows where some are deleted by a field of a struct",
        has_nested_keys,
        "nested keys",
        missing=(1, 3),
    ),
    Fault(
        "Trino",
        "fails in ORC where rows are deleted by a field of a struct",
        lambda kind: "ORC" in kind.formats and has_nested_keys(kind),
        "nested keys in ORC",
        says="Multiple entries with same key",
        issue="trinodb/trino#29763",
    ),
    Fault(
        "Trino",
        "deletes other rows of an Avro file that it reads in several splits, as it counts from the beginning of each",
        lambda kind: has_avro(kind) and bool(kind.position_deletes),
        "positions in Avro that is split",
        added=(4,),
    ),
    Fault(
        "Trino",
        "does not delete rows of NaN by a file that has other numbers too (Iceberg Java, which plans, asks its bounds alone)",
        lambda kind: kind.has_keys(is_float),
        "keys of NaN beside another",
        added=(3,),
    ),
    Fault(
        "Trino",
        "reads no bytes of fixed length in Avro",
        lambda kind: has_avro(kind) and has_types(FixedType)(kind),
        "bytes of fixed length in Avro",
        says=r"\[B cannot be cast to class java.nio.ByteBuffer",
    ),
    Fault(
        "Trino",
        "reads no manifests with a partition of bytes of fixed length",
        has_fixed_partitions,
        "partitions of bytes of fixed length",
        says="Malformed data. Length is negative",
    ),
    Fault(
        "Trino",
        "has times of ORC before 1970 that have a part of a second a second too early",
        lambda kind: "ORC" in kind.formats and has_types(TIMESTAMP, TIMESTAMPTZ)(kind),
        TIMES_OF_JAVA,
        missing=(1,),
        added=(1,),
        issue="trinodb/trino#22511",
    ),
    Fault(
        "Trino",
        "fails where a column is gone by which rows were deleted",
        lambda kind: kind.has_keys(is_gone),
        "keys of a dropped column",
        says='NestedField.*because "field" is null',
    ),
    Fault(
        "Trino",
        "fails where a column is gone by which files are partitioned",
        lambda kind: kind.is_partitioned_by(is_gone),
        "a partition's column dropped",
        says="Type cannot be null",
    ),
    Fault(
        "Trino",
        "has 0.0 for -0.0 in a column that files were partitioned by",
        has_float_partitions,
        "a void field of a column's name",
        missing=(2,),
        added=(2,),
    ),
    Fault(
        "Trino",
        "reads no Parquet whose whole numbers are split by streams",
        splits_bytes,
        "bytes split by streams",
        says="Wrong encoding BYTE_STREAM_SPLIT",
    ),
)


VERSIONS = {
    "DuckDB": "1.5.5",
    "ClickHouse": "26.9.2.1",
    "iceberg-rust": "0.11.0",
    "polars": "2.1.0",
    "PyIceberg": "0.12.0",
    "iceberg-go": "v0.7.0",
    "Trino": "476",
}
"""The judges, and which versions the list is of."""

FAULTS: tuple[Fault, ...] = (*DUCKDB, *CLICKHOUSE, *RUST, *PYTHON, *GO, *TRINO)


def faults_of(judge: str, kind: Kind) -> list[Fault]:
    """Those of a judge that a table may show."""
    return [fault for fault in FAULTS if fault.judge == judge and fault.concerns(kind)]


def explained(faults: Iterable[Fault], error: str) -> Fault | None:
    """The fault that an error is of; of wrong rows where it is empty."""
    return next((fault for fault in faults if fault.explains(error)), None)
