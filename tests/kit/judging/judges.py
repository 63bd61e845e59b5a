"""The judges, none of which shares code with Iceberg Java."""

from pathlib import Path

from kit.judging.judge import ENVIRONMENT, Judge

WORKERS = Path(__file__).with_name("workers")


def all_judges() -> list[Judge]:
    """Those of the panel, none started yet."""
    python = ENVIRONMENT / "bin" / "python"
    return [
        *(
            Judge(name, (python, WORKERS / f"{worker}_worker.py"))
            for name, worker in (
                ("DuckDB", "duckdb"),
                ("ClickHouse", "clickhouse"),
                ("iceberg-rust", "rust"),
                ("polars", "polars"),
                ("PyIceberg", "pyiceberg"),
            )
        ),
        Judge("iceberg-go", (ENVIRONMENT / "bin" / "iceberg-go-judge",)),
    ]
