"""What iceberg-rust does not read rightly."""

from kit.judging.concerns import (
    has_changed_since,
    has_changed_structs,
    has_deletes_in_promoted_partitions,
    has_names_of_java,
    has_nested_keys,
    has_uuid_partitions,
    names_void_field,
    not_parquet,
)
from kit.judging.fault import Fault
from kit.judging.kinds import has_default, is_gone, was_promoted
from kit.judging.of_java import OF_JAVA

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
