"""What DuckDB does not read rightly."""

from kit.judging.concerns import (
    has_names_of_java,
    has_nested_keys,
    has_null_keys,
    has_null_partitions,
    has_old_snapshot,
    not_parquet,
    splits_bytes,
)
from kit.judging.fault import Fault
from kit.judging.kinds import has_default, is_float, is_gone, was_promoted
from kit.judging.of_java import OF_JAVA

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
