"""The judges, none of which shares code with Iceberg Java."""

from pathlib import Path

from kit.judging.judge import ENVIRONMENT, Judge

WORKERS = Path(__file__).with_name("workers")


def all_judges() -> list[Judge]:
    """Those of the panel, none started yet."""
    return [
        _by_python("DuckDB", "duckdb"),
        # Its lists, maps and structs are never null.
        _by_python("ClickHouse", "clickhouse", has_null_lists=False),
        _by_python("iceberg-rust", "rust"),
        _by_python("polars", "polars"),
        _by_python("PyIceberg", "pyiceberg"),
        Judge("iceberg-go", (ENVIRONMENT / "bin" / "iceberg-go-judge",)),
    ]


def _by_python(name: str, worker: str, *, has_null_lists: bool = True) -> Judge:
    command = (ENVIRONMENT / "bin" / "python", WORKERS / f"{worker}_worker.py")
    return Judge(name, command, has_null_lists=has_null_lists)
