"""What iceberg-go does not read rightly."""

from icekeep.spec.types import DATE, TIME, TIMESTAMP, TIMESTAMP_NS, TIMESTAMPTZ, TIMESTAMPTZ_NS
from kit.judging.concerns import has_names_of_java, not_parquet
from kit.judging.fault import Fault
from kit.judging.kinds import is_gone, is_young, was_promoted
from kit.judging.of_java import OF_JAVA

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
