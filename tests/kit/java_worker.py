"""Runs in `.venv-java`: a Spark of its own with Iceberg's runtime, which answers requests as JSON lines on its pipes.

Started by `kit.java`. It ends when its standard input does, and Spark's JVM with it.
"""

import datetime
import decimal
import json
import os
import queue
import shutil
import sys
import threading
import traceback
from typing import Any, TextIO

from pyspark.sql import Row, SparkSession

TRIGGER = {"processingTime": "0 seconds"}
HOME = os.path.dirname(os.path.abspath(__file__))


class Worker:
    """Spark sessions on one JVM; a catalog's name may be given to another catalog, which takes a new session."""

    def __init__(self, jars: str, directory: str) -> None:
        settings = {
            "spark.master": "local[1]",
            "spark.driver.extraClassPath": jars,
            "spark.driver.memory": "2g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": directory,
            "spark.sql.warehouse.dir": f"{directory}/spark-warehouse",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.session.timeZone": "UTC",
            # Its queries are over a handful of rows: none is worth compiling.
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        }
        builder = SparkSession.builder.appName("iceberg-java")
        for key, value in settings.items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        self.catalogs: dict[str, dict[str, str]] = {}
        jvm = self.spark._jvm  # type: ignore[attr-defined]
        sources = self.spark.sparkContext._gateway.new_array(jvm.java.io.File, 1)
        sources[0] = jvm.java.io.File(f"{HOME}/java_judge")
        parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader = jvm.org.codehaus.janino.JavaSourceClassLoader(parent, sources, "UTF-8")
        loader.setTargetVersion(8)
        loader.setDebuggingInfo(True, True, True)
        self.judge = loader.loadClass("Judge").getDeclaredConstructor(None).newInstance(None)

    def versions(self) -> dict[str, str]:
        iceberg = self.spark._jvm.org.apache.iceberg.IcebergBuild  # type: ignore[attr-defined]
        return {"spark": self.spark.version, "iceberg": iceberg.version()}

    def ask(self, operation: str, request: Any) -> Any:
        return json.loads(self.judge.ask(operation, json.dumps(request)))

    def ask_each(self, operation: str, requests: list[Any]) -> Any:
        return json.loads(self.judge.askEach(operation, json.dumps(requests)))

    def stream(self, table: str, checkpoint: str, output: str, files: int, now: bool) -> list[int]:
        """Have a stream read all that there is of a table into Parquet; all `id`s that it has ever read.

        At most some files a batch; `now` by the trigger that ends by itself.
        """
        reading = self.spark.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", str(files))
        writing = reading.load(table).writeStream.format("parquet").option("path", output)
        query = (
            writing.option("checkpointLocation", checkpoint)
            .trigger(**({"availableNow": True} if now else TRIGGER))
            .start()
        )
        try:
            if now:
                query.awaitTermination()
            else:
                query.processAllAvailable()
        finally:
            query.stop()
        return sorted(row.id for row in self.spark.read.parquet(output).select("id").collect())

    def open(self, name: str, properties: dict[str, str]) -> None:
        if name in self.catalogs:
            self.spark = self.spark.newSession()
        self.catalogs[name] = properties
        for catalog, settings in self.catalogs.items():
            self.spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
            self.spark.conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")
            for key, value in settings.items():
                self.spark.conf.set(f"spark.sql.catalog.{catalog}.{key}", value)
        answer = self.ask("Tables.open", {"name": name, "properties": properties})
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message']}")

    def sql(self, text: str) -> list[dict[str, Any]]:
        rows = self.spark.sql(text).collect()
        return [{name: tagged(value) for name, value in zip(row.__fields__, row, strict=True)} for row in rows]


def tagged(value: Any) -> Any:
    """A value that Spark gave as JSON; what JSON has not is `{kind: text}`. `kit.rows` reads it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": repr(value)}
        case bytes() | bytearray():
            return {"bytes": bytes(value).hex()}
        case decimal.Decimal():
            return {"decimal": str(value)}
        case datetime.datetime():
            return {"timestamp": value.isoformat()}
        case datetime.date():
            return {"date": value.isoformat()}
        case Row():
            return {"struct": [[name, tagged(field)] for name, field in zip(value.__fields__, value, strict=True)]}
        case dict():
            return {"map": [[tagged(key), tagged(item)] for key, item in value.items()]}
        case list() | tuple():
            return [tagged(item) for item in value]
    raise TypeError(f"Spark gave a {type(value).__name__}, which has no form here")


def serve(worker: Worker, requests: "queue.Queue[str]", answers: TextIO) -> None:
    while True:
        request = json.loads(requests.get())
        try:
            answer = {"answer": getattr(worker, request["method"])(*request["arguments"])}
        except Exception as error:  # noqa: BLE001 - the other side decides
            traceback.print_exc()
            java = getattr(error, "java_exception", None)
            kind = java.getClass().getName() if java is not None else type(error).__name__
            answer = {"error": getattr(error, "_error_class", None) or kind, "message": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def read_requests(requests: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    # Whoever asked is gone, perhaps in the middle of a request; the JVM ends when its pipe from here does.
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    os._exit(0)


def main() -> None:
    # Spark's JVM writes where it likes: only this copy of standard output carries answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=read_requests, args=(requests,), daemon=True).start()
    worker = Worker(sys.argv[1], sys.argv[2])
    serve(worker, requests, answers)


if __name__ == "__main__":
    main()
