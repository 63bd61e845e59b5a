"""The judges. Six share no code with Iceberg Java; Trino shares with it how tables are planned, and not how files are read."""

from pathlib import Path

from kit.judging.by_trino import TrinoJudge
from kit.judging.judge import ENVIRONMENT, Judge
from kit.trino import Trino

WORKERS = Path(__file__).with_name("workers")


def all_judges(trino: Trino) -> list[Judge]:
    """Those of the panel, none started yet.

    Args:
        trino: the server that one of them asks, and that others may ask too.
    """
    return [
        _by_python("DuckDB", "duckdb"),
        # Its lists, maps and structs are never null.
        _by_python("ClickHouse", "clickhouse", has_null_lists=False),
        _by_python("iceberg-rust", "rust"),
        _by_python("polars", "polars"),
        _by_python("PyIceberg", "pyiceberg"),
        Judge("iceberg-go", (ENVIRONMENT / "bin" / "iceberg-go-judge",)),
        TrinoJudge(trino),
    ]


def _by_python(name: str, worker: str, *, has_null_lists: bool = True) -> Judge:
    command = (ENVIRONMENT / "bin" / "python", WORKERS / f"{worker}_worker.py")
    return Judge(name, command, has_null_lists=has_null_lists)
