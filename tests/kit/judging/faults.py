"""What each judge is known not to read, or to read wrongly, in the version that the lock file has: the one list of it.

`interop/test_judges.py` sees each judge fail just so at the table that the list names. An upgrade that mends one turns its test
red: take the line away then. `interop/panel.py` writes the same into `docs/judges.md`.
"""

from collections.abc import Iterable

from kit.judging.fault import Fault
from kit.judging.faults_clickhouse import CLICKHOUSE
from kit.judging.faults_duckdb import DUCKDB
from kit.judging.faults_go import GO
from kit.judging.faults_python import PYTHON
from kit.judging.faults_rust import RUST
from kit.judging.faults_trino import TRINO
from kit.judging.kinds import Kind

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
