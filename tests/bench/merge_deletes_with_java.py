"""Iceberg Java in `.venv-java` merges position deletes by its procedure `rewrite_position_delete_files`, in a warm session."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession

from bench import compacting, rival
from bench.compact_with_java import sql_map


def main() -> None:
    request, answer = rival.request(), rival.answering()
    builder = SparkSession.builder.appName("iceberg-java")
    for key, value in request["spark"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()

    def run(table: str) -> dict[str, Any]:
        procedure = f"{request['catalog']}.system.rewrite_position_delete_files"
        arguments = f"table => '{table}', options => {sql_map(request['options'])}"
        [row] = spark.sql(f"CALL {procedure}({arguments})").collect()
        return row.asDict()

    answer(compacting.measured(request, run))
    spark.stop()


if __name__ == "__main__":
    main()
