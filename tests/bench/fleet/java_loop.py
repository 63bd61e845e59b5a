"""Iceberg Java's procedures over many tables, one after the other; run by the Python of `make java-env`."""

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

told = json.loads(Path(sys.argv[1]).read_text())
properties = told["catalog"]
where = "spark.sql.catalog.local"
server = urlsplit(properties["uri"])
at_server = f"jdbc:postgresql://{server.hostname}:{server.port}{server.path}"
uri = at_server if server.hostname else properties["uri"].replace("sqlite:///", "jdbc:sqlite:")
builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", ",".join(str(jar) for jar in Path(told["jars"]).glob("*.jar")))
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config(where, "org.apache.iceberg.spark.SparkCatalog")
    .config(f"{where}.catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog")
    .config(f"{where}.uri", uri)
    .config(f"{where}.jdbc.user", server.username or "")
    .config(f"{where}.jdbc.password", server.password or "")
    .config(f"{where}.warehouse", properties["warehouse"])
)
spark = builder.getOrCreate()
spark.range(1).count()
calls = failed = 0
began = time.perf_counter()
for name in told["names"]:
    for call in told["calls"]:
        text = call.format(table=name, now=datetime.now().isoformat(" ", "milliseconds"))
        calls += 1
        try:
            spark.sql(f"CALL local.system.{text}").collect()
        except Exception as error:  # noqa: BLE001 - counted; the loop goes on
            failed += 1
            print(f"{name} {call[:30]}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
print(json.dumps({"seconds": time.perf_counter() - began, "calls": calls, "failed": failed}))
spark.stop()
