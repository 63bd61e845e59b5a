"""Spark with Iceberg Java's reader reads tables whole: how long that takes, and whether they hold the same rows."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession

from bench import rival


def main() -> None:
    request, answer = rival.request(), rival.answering()
    builder = SparkSession.builder.appName("scan")
    for key, value in request["spark"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    sums, seconds = {}, {name: [] for name in request["tables"]}
    for name in request["tables"]:
        columns = ", ".join(spark.table(name).columns)
        query = f"SELECT count(*), coalesce(sum(CAST(xxhash64({columns}) AS DECIMAL(20, 0))), 0) FROM {name}"
        sums[name] = [int(value) for value in spark.sql(query).first()]
    # By turns, so that what the machine does meanwhile falls upon all alike.
    for _ in range(request["repeat"]):
        for name in request["tables"]:
            began = time.perf_counter()
            spark.table(name).write.format("noop").mode("overwrite").save()
            seconds[name].append(time.perf_counter() - began)
    answer({name: {"sums": sums[name], "seconds": min(seconds[name])} for name in request["tables"]})
    spark.stop()


if __name__ == "__main__":
    main()
