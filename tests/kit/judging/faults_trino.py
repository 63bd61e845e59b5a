"""What Trino does not read rightly."""

from icekeep.spec.types import DOUBLE, FLOAT, TIMESTAMP, TIMESTAMPTZ, FixedType
from kit.judging.concerns import has_avro, has_defaults, has_nested_keys, has_types, sources, splits_bytes
from kit.judging.fault import Fault
from kit.judging.kinds import Kind, has_default, is_float, is_gone
from kit.judging.of_java import TIMES_OF_JAVA


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
