"""Iceberg Java in `.venv-java` rewrites manifests by its procedure, or merges them in an append.

Alone it is a warm session; under spark-submit, where the session is configured already, it rewrites once.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession

from bench import manifests_running, rival
from bench.manifests_running import REWRITE


def main() -> None:
    request, answer = rival.request(), rival.answering()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName("iceberg-java")
    for key, value in ({} if submitted else request["spark"]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    ours = spark._jvm.bench  # type: ignore[attr-defined]
    session, name = spark._jsparkSession, request["name"]

    def rewrite(catalog: str) -> dict[str, Any]:
        [row] = spark.sql(f"CALL {catalog}.system.rewrite_manifests(table => '{name}')").collect()
        return dict(row.asDict())

    def prepare(catalog: str) -> Callable[[], dict[str, Any]]:
        if request["job"] == REWRITE:
            return lambda: rewrite(catalog)
        table, file = ours.Planning.load(session, f"{catalog}.{name}"), request["file"]

        def append() -> dict[str, Any]:
            ours.Appending.append(table, file["path"], file["partition"], file["bytes"], file["records"])
            return {}

        return append

    def planner(filter_name: str) -> dict[str, Any]:
        full_name, sql = f"{request['table']['catalog']}.{name}", request["filters"][filter_name]["sql"]

        def plan(table: Any) -> tuple[int, int]:
            files, size_bytes = ours.Planning.plan(session, table, full_name, sql)
            return files, size_bytes

        return manifests_running.planned(lambda: ours.Planning.load(session, full_name), plan)

    if submitted:
        answer({"result": rewrite(request["table"]["catalog"])})
        return
    spark.range(1).count()
    answer(manifests_running.answer_of(request, prepare, planner))
    spark.stop()


if __name__ == "__main__":
    main()
