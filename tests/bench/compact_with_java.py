"""Iceberg Java in `.venv-java` compacts copies of a table by its procedure `rewrite_data_files`, in a warm session."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession

from bench import compacting, rival


def main() -> None:
    request, answer = rival.request(), rival.answering()
    builder = SparkSession.builder.appName("iceberg-java")
    for key, value in request["spark"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()

    def run(table: str) -> dict[str, Any]:
        arguments = {"table": f"'{table}'", **{key: f"'{value}'" for key, value in request["arguments"].items()}}
        named = ", ".join(f"{key} => {value}" for key, value in arguments.items())
        options = f"options => {sql_map(request['options'])}"
        [row] = spark.sql(f"CALL {request['catalog']}.system.rewrite_data_files({named}, {options})").collect()
        return row.asDict()

    answer(compacting.measured(request, run))
    spark.stop()


def sql_map(values: Mapping[str, str]) -> str:
    """A map of texts as Spark's SQL writes it."""
    quoted = ", ".join(f"'{text}'" for pair in values.items() for text in pair)
    return f"map({quoted})"


if __name__ == "__main__":
    main()
