"""Iceberg Java in `.venv-java`: `planFiles` in a planning mode, or a query over the metadata table `files`.

Alone it is a warm session; under spark-submit, where the session is configured already, it plans once.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession

from bench import rival


def main() -> None:
    request, answer = rival.request(), rival.answering()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName("iceberg-java")
    for key, value in ({} if submitted else request["spark"]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    name = f"{request['catalog']}.{request['table']}"
    planning = spark._jvm.bench.Planning  # type: ignore[attr-defined]
    session = spark._jsparkSession

    def plan(table: Any) -> tuple[int, int]:
        files, size_bytes = planning.plan(session, table, name, request["sql"])
        return files, size_bytes

    def query(_: Any) -> tuple[int, int]:
        text = f"SELECT count(*), coalesce(sum(file_size_in_bytes), 0) FROM {name}.files WHERE {request['files_sql']}"
        [row] = spark.sql(text).collect()
        return row[0], row[1]

    if submitted:
        files, size_bytes = plan(planning.load(session, name))
        answer({"data_files_count": files, "data_files_bytes": size_bytes})
        return
    spark.range(1).count()
    load = (lambda: None) if request["over_files"] else (lambda: planning.load(session, name))
    figures = rival.measured(load, query if request["over_files"] else plan, request["repeat"])
    answer({**figures, **rival.memory(spark)})
    spark.stop()


if __name__ == "__main__":
    main()
