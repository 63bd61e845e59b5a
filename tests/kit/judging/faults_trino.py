"""What Trino does not read rightly."""

from icekeep.spec.types import DOUBLE, FLOAT
from kit.judging.concerns import has_defaults, has_nested_keys, sources, splits_bytes
from kit.judging.fault import Fault
from kit.judging.kinds import Kind, has_default, is_gone


def has_float_partitions(kind: Kind) -> bool:
    return any(type_ in (FLOAT, DOUBLE) for type_ in sources(kind, "identity"))


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
