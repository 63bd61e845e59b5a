"""Iceberg Java in `.venv-java` expires snapshots or removes orphan files by its procedures.

Alone it is a warm session; under spark-submit, where the session is configured already, it does it once.
"""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession

from bench import expiration_running, rival
from bench.expiration_running import EXPIRE, ORPHANS_DRY_RUN


def main() -> None:
    request, answer = rival.request(), rival.answering()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName("iceberg-java")
    for key, value in ({} if submitted else request["spark"]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    call = procedure(request)

    def job(catalog: str) -> Any:
        return spark.sql(f"CALL {catalog}.system.{call}").collect()

    def said(rows: Any) -> dict[str, Any]:
        if request["job"] == EXPIRE:
            return dict(rows[0].asDict())
        return expiration_running.orphans_said(len(rows), (row["orphan_file_location"] for row in rows))

    if submitted:
        answer({"result": said(job(request["table"]["catalog"]))})
        return
    found = expiration_running.measured(request, job, said)
    [row] = spark.sql(f"SELECT count(*) AS rows FROM {request['table']['catalog']}.{request['name']}").collect()
    answer({**found, "rows": row["rows"]})
    spark.stop()


def procedure(request: dict[str, Any]) -> str:
    """The call of a procedure without its catalog."""
    moment = datetime.fromtimestamp(request["older_than_ms"] / 1000, UTC)
    arguments = {"table": f"'{request['name']}'", "older_than": f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}'"}
    if request["job"] == EXPIRE:
        arguments["retain_last"] = "1"
    else:
        arguments["dry_run"] = str(request["job"] == ORPHANS_DRY_RUN).lower()
    named = ", ".join(f"{name} => {value}" for name, value in arguments.items())
    return f"{'expire_snapshots' if request['job'] == EXPIRE else 'remove_orphan_files'}({named})"


if __name__ == "__main__":
    main()
