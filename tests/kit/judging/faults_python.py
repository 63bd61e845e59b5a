"""What PyIceberg and polars do not read rightly."""

from icekeep.spec.types import TIME, UUID, FixedType
from kit.judging.concerns import (
    has_avro,
    has_equality_deletes,
    has_lists_of_structs,
    has_named_type_twice_of_java,
    has_types,
    has_vectors_given_up,
    not_parquet,
    splits_bytes,
)
from kit.judging.fault import Fault
from kit.judging.of_java import TWO_UUIDS_OF_JAVA

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
