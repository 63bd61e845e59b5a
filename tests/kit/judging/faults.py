"""What each judge is known not to read, or to read wrongly, in the version that the lock file has: the one list of it.

`interop/test_judges.py` has a table for each, at which the judge fails just so. An upgrade that mends one turns its test red:
take the line away then. `docs/judges.md` says the same in words, by `interop/panel.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

from kit.judging.kinds import Kind


class Fault(NamedTuple):
    """One thing that a judge does not do.

    Attributes:
        name: by which its test finds it.
        what: for people.
        says: a part of the error that it ends in; empty where it gives wrong rows and no error.
        concerns: whether a table is of the kind where it may happen.
    """

    judge: str
    name: str
    what: str
    says: str
    concerns: Callable[[Kind], bool]


def _not_parquet(kind: Kind) -> bool:
    return bool(kind.formats() - {"Parquet"})


def _has_avro(kind: Kind) -> bool:
    return "Avro" in kind.formats()


def _escaped(kind: Kind) -> bool:
    return any("%" in entry.data_file.file_path for entry in kind.entries)


VERSIONS = {
    "DuckDB": "1.5.5",
    "ClickHouse": "26.9.2.1",
    "iceberg-rust": "0.11.0",
    "polars": "2.1.0",
    "PyIceberg": "0.12.0",
    "iceberg-go": "v0.7.0",
}

FAULTS = (
    Fault("DuckDB", "duckdb-formats", "reads Parquet alone", "only supports 'parquet' currently", _not_parquet),
    Fault(
        "DuckDB",
        "duckdb-null-keys",
        "drops rows with a null in a column by which others are deleted",
        "",
        lambda kind: bool(kind.equality_deletes) and kind.has_null_keys(),
    ),
    Fault(
        "DuckDB",
        "duckdb-zero-keys",
        "takes -0.0 for 0.0 where rows are deleted by their values",
        "",
        lambda kind: kind.has_float_keys(),
    ),
    Fault("iceberg-rust", "rust-formats", "reads Parquet alone", "Invalid Parquet file. Corrupt footer", _not_parquet),
    Fault("polars", "polars-formats", "reads Parquet alone", "non-parquet format", _not_parquet),
    Fault(
        "polars",
        "polars-equality",
        "reads no table with equality deletes",
        "does not yet support equality deletes",
        lambda kind: bool(kind.equality_deletes),
    ),
    Fault("PyIceberg", "pyiceberg-avro", "reads no Avro", "Unsupported file format: FileFormat.AVRO", _has_avro),
    Fault(
        "PyIceberg",
        "pyiceberg-avro-deletes",
        "reads no deletes in Avro",
        "Delete file format not supported: FileFormat.AVRO",
        _has_avro,
    ),
    Fault(
        "PyIceberg",
        "pyiceberg-equality",
        "reads no table with equality deletes",
        "does not yet support equality deletes",
        lambda kind: bool(kind.equality_deletes),
    ),
    Fault("iceberg-go", "go-formats", "reads Parquet alone", "only parquet format is implemented", _not_parquet),
    Fault(
        "iceberg-go",
        "go-escaped-paths",
        "does not find local files with a percent sign in their names",
        "no such file or directory",
        _escaped,
    ),
    Fault(
        "ClickHouse",
        "clickhouse-vectors",
        "reads no deletion vectors",
        "Position deletes are supported only for parquet format",
        lambda kind: kind.has_vectors,
    ),
    Fault(
        "ClickHouse",
        "clickhouse-deletes-formats",
        "applies no position deletes to ORC or Avro",
        "Position deletes are only supported for data files of Parquet format",
        lambda kind: bool(kind.position_deletes or kind.has_vectors) and _not_parquet(kind),
    ),
    Fault(
        "ClickHouse",
        "clickhouse-null-keys",
        "drops rows with a null in the one column by which others are deleted",
        "",
        lambda kind: kind.has_null_keys(),
    ),
)


def faults_of(judge: str, kind: Kind) -> list[Fault]:
    """Those of a judge that a table may show."""
    return [fault for fault in FAULTS if fault.judge == judge and fault.concerns(kind)]
