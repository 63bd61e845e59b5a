"""Iceberg Java, the reference, as a judge, and other programs as processes that answer each line with one line.

One long-lived process with a Spark of its own opens the catalogs that we do. `make java-env` makes what it needs. Its tables are
named `catalog.namespace.table`.
"""

import atexit
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from icekeep.spec.filters.expressions import Expression
from icekeep.spec.partitioning import PartitionSpec, spec_to_json
from icekeep.spec.schema import Schema, schema_from_json, schema_to_json
from icekeep.spec.types import StructType
from kit.rows import filter_tree, from_wire, multiset, sql_literal, untagged
from kit.shell import ROOT

TIMEOUT_S = 300
_LOG_LENGTH = 4000


class NoAnswerError(AssertionError):
    """A process has ended, or says nothing; how its log ends is told."""


class LineProcess:
    """A process, started at once; `close` ends it, and so does the end of this one.

    Attributes:
        home: the directory that it works in, which goes with it. Its standard error is the file `log` there.
    """

    def __init__(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Args:
        name: what errors call it.
        command: in it `{home}` stands for the directory.
        environment: all variables that it has.
        """
        self._name = name
        self.home = Path(tempfile.mkdtemp(prefix="icekeep-process-"))
        with (self.home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(part).replace("{home}", str(self.home)) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.home,
                env=dict(environment),
            )
        atexit.register(self.close)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, line: str) -> str:
        """Its answer to a line; raises what `answer` raises."""
        assert self._process.stdin is not None
        # Where it has ended, the answer that does not come tells it.
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """The next line that it says.

        Raises:
            NoAnswerError: it has ended, or has said nothing for `TIMEOUT_S`; then it is killed.
        """
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            # An answer is one line written at once: when it begins, the rest is on its way.
            speaks = bool(selector.select(TIMEOUT_S))
        line = self._process.stdout.readline() if speaks else b""
        if not line:
            self._process.kill()
            self._process.wait()
            why = "ended" if speaks else f"has not answered in {TIMEOUT_S} s"
            raise NoAnswerError(f"{self._name} {why}; its log ends:\n{self._log_tail()}")
        return line.decode().strip()

    def close(self) -> None:
        """End the process by closing its standard input, and remove what it left."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _log_tail(self) -> str:
        """Without the lines of Java's stack traces."""
        log = self.home / "log"
        # A process may remove its directory when it ends.
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-_LOG_LENGTH:]


def environment_without(*prefixes: str, **more: str) -> dict[str, str]:
    """The variables of this process but for those that begin so, and some more."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(prefixes)}, **more}


PYTHON = ROOT / ".venv-java" / "bin" / "python"
JARS = ROOT / ".java-env"
WORKER = Path(__file__).with_name("java_worker.py")
_OTHERS = ("PYSPARK_", "SPARK_", "PYTHON")


class JavaError(Exception):
    """What Java or Spark threw: `kind` is the class's name, or Spark's name of the error."""

    def __init__(self, kind: str, message: str, trace: str = "") -> None:
        super().__init__(f"{kind}: {message}{f' at {trace[:500]}' if trace else ''}")
        self.kind = kind
        self.message = message
        self.trace = trace


class IcebergJava:
    """The judge; `close` ends its process, and so does the end of this one."""

    def __init__(self) -> None:
        if not PYTHON.exists() or not JARS.exists():
            raise FileNotFoundError("there is no .venv-java or no .java-env; run `make java-env` first")
        jars = os.pathsep.join(str(jar) for jar in sorted(JARS.glob("*.jar")))
        command = (PYTHON, WORKER, jars, "{home}")
        self._process = LineProcess("Iceberg Java", command, environment_without(*_OTHERS, TZ="UTC"))

    def close(self) -> None:
        """End the process and Spark's, and remove what they left."""
        self._process.close()

    def versions(self) -> dict[str, str]:
        """Of `spark` and `iceberg`."""
        return self._call("versions")

    def open_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        """Open one of our catalogs under its own name, by the properties that we open it with.

        A name may be given again, to another catalog: the one before is forgotten.
        """
        self._call("open", name, java_properties(properties))

    def sql(self, text: str) -> list[dict[str, Any]]:
        """Run a statement in Spark; rows are dicts of Python values, timestamps without a zone in UTC."""
        rows = self._call("sql", text)
        return [{name: untagged(value) for name, value in row.items()} for row in rows]

    def stream(self, table: str, checkpoint: str, output: str, *, files: int = 1000, now: bool = False) -> list[int]:
        """Have a streaming query read a table until nothing is left; returns the `id`s of all rows that it has ever read.

        Args:
            files: at most this many a batch.
            now: by Spark's trigger `availableNow`, which ends by itself.
        """
        ids: list[int] = self._call("stream", table, checkpoint, output, files, now)
        return ids

    def call(self, catalog: str, procedure: str, **arguments: Any) -> list[dict[str, Any]]:
        """Call one of Iceberg's procedures, such as `rewrite_data_files`."""
        named = ", ".join(f"{name} => {sql_literal(value)}" for name, value in arguments.items())
        return self.sql(f"CALL {catalog}.system.{procedure}({named})")

    def create_table(
        self,
        table: str,
        schema: Schema,
        spec: PartitionSpec | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Create a table, and its namespace where it is missing; returns its metadata's JSON."""
        spec_json = None if spec is None else spec_to_json(spec)
        request = {"schema": schema_to_json(schema), "spec": spec_json, "properties": dict(properties or {})}
        return json.loads(self.ask("Tables.create", table=table.split("."), **request))

    def append(self, table: str, rows: Sequence[Any], *, files: int = 1, file_format: str = "parquet") -> None:
        """Write rows (each a list of values as `java_values.to_wire` has them), up to `files` files a partition."""
        self.ask("Tables.append", table=table.split("."), rows=list(rows), files=files, format=file_format)

    def rows(
        self, table: str, snapshot_id: int | None = None, where: tuple[Expression, Schema] | None = None
    ) -> Counter[str]:
        """The rows of a table with how often they occur, as `java_values.multiset` has them; all types, exactly."""
        tree = True if where is None else filter_tree(*where)
        return multiset(self.read(table, tree, snapshot_id)["rows"])

    def read(
        self, table: str, tree: Any = True, snapshot_id: int | None = None, after_snapshot_id: int | None = None
    ) -> dict[str, Any]:
        """The `rows` that match a `java_values.filter_tree`, as lists of values as `to_wire` has them, and their `schema`.

        With `after_snapshot_id` only rows that were appended after it, up to `snapshot_id`.
        """
        versions = {"snapshot_id": snapshot_id, "after_snapshot_id": after_snapshot_id}
        return self.ask("Tables.rows", table=table.split("."), filter=tree, **versions)

    def inspect(self, table: str, name: str) -> list[dict[str, Any]]:
        """The rows of a metadata table, such as `entries`: dicts of values as `spec/values.py` has them."""
        answer = self.ask("Tables.inspect", table=table.split("."), name=name)
        struct = schema_from_json(answer["schema"]).as_struct()
        return [from_wire(struct, row) for row in answer["rows"]]

    def partition_stats(self, table: str, snapshot_id: int) -> tuple[StructType, list[list[Any]]]:
        """The type of partitions, and the rows of a snapshot's partition statistics, as Java reads them.

        A row has the partition, its spec, the counts of records, files and bytes of data, of records and files of position
        deletes and of equality deletes, of vectors and of rows, and time and id of the last update.
        """
        answer = self.ask("Tables.partitionStats", table=table.split("."), snapshot_id=snapshot_id)
        struct = schema_from_json(answer["schema"]).as_struct()
        return struct, [[from_wire(struct, row[0]), *row[1:]] for row in answer["rows"]]

    def metadata(self, table: str) -> dict[str, Any]:
        """The table's metadata as Java has read it, written to JSON by Java."""
        return json.loads(self.ask("Tables.metadata", table=table.split(".")))

    def read_metadata(self, text: str | bytes) -> dict[str, Any]:
        """Metadata from its JSON text through Java's reader and writer; raises `JavaError` where Java refuses it."""
        return json.loads(self.ask("Judge.readMetadata", json=text if isinstance(text, str) else text.decode()))

    def plan_files(
        self, table: str, where: tuple[Expression, Schema] | None = None, snapshot_id: int | None = None
    ) -> list[dict[str, Any]]:
        """The files of a scan: `file_path`, `delete_paths` and, as text, the `residual`."""
        tree = True if where is None else filter_tree(*where)
        return self.ask("Tables.plan", table=table.split("."), filter=tree, snapshot_id=snapshot_id)

    def ask(self, operation: str, **request: Any) -> Any:
        """The answer of a method in `java_judge`, such as `Judge.toBytes`; raises `JavaError` where it threw."""
        return _checked(self._call("ask", operation, request))

    def ask_each(self, operation: str, requests: Iterable[Mapping[str, Any]]) -> list[Any]:
        """The answers of a method to many requests in one round trip; where it threw, the `JavaError`."""
        return [_answer(answer) for answer in self._call("ask_each", operation, [dict(r) for r in requests])]

    def _call(self, method: str, *arguments: Any) -> Any:
        return _checked(json.loads(self._process.ask(json.dumps({"method": method, "arguments": arguments}))))


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of Iceberg's Spark and Java catalogs for a catalog of ours; those of Hadoop, `hadoop.*`, are handed on."""
    hadoop = {key: value for key, value in properties.items() if key.startswith("hadoop.")}
    if properties["type"] == "filesystem":
        return {"type": "hadoop", "warehouse": properties["warehouse"], **hadoop}
    if properties["type"] == "rest":
        return {"type": "rest", "uri": properties["uri"], **hadoop}
    url = make_url(properties["uri"])
    java = {"type": "jdbc", "warehouse": properties["warehouse"], "jdbc.schema-version": "V1", **hadoop}
    if url.get_backend_name() == "sqlite":
        return {**java, "uri": f"jdbc:sqlite:{url.database}"}
    return {
        **java,
        "uri": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
        "jdbc.user": str(url.username),
        "jdbc.password": str(url.password),
    }


def _checked(answer: Any) -> Any:
    value = _answer(answer)
    if isinstance(value, JavaError):
        raise value
    return value


def _answer(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        return JavaError(answer["error"], answer["message"], answer.get("trace", ""))
    return answer["answer"]


TALKING = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-Xlog:disable", "-Xlog:all=warning:stderr")
"""With one compiler a JVM has 48 MB for what it compiles. Flink, which makes classes for each job, fills that in nine minutes,
and says so on stdout."""


HADOOP = ROOT / ".java-env" / "hdfs"


class JavaProcess(LineProcess):
    """Started, and waited for until it has said its first line, `ready`.

    Args:
        name: what it is called where it does not start.
        source: run as it is, with Hadoop's jars.
        arguments: `{home}` stands for the directory.
        jars: more of them, as a class path.
        environment: all variables that it has; by default those of this process but for Hadoop's.
    """

    def __init__(
        self,
        name: str,
        source: Path,
        *arguments: str,
        jars: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not HADOOP.exists():
            raise FileNotFoundError("there is no .java-env/hdfs; run `make java-env` first")
        options = ("-Xmx512m", *TALKING, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        command = ("java", *options, "-cp", f"{HADOOP}/*:{jars}", source, *arguments)
        super().__init__(name, command, environment_without("HADOOP_") if environment is None else environment)
        self.ready = self.answer()

    def tell(self, request: str) -> None:
        """Let it obey a line."""
        assert self.ask(request) == "done"

    def pause(self) -> None:
        """Let it do nothing, while its connections stand, until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)
        # On a busy machine its threads run on for a while, and may answer still.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """End a pause."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process, also where it pauses, and remove what it left."""
        self.go_on()
        super().close()


REST_WORKER = Path(__file__).with_name("java_rest_server.py")


class JavaRestServer:
    """Ends with `close`; its tables lie below `directory`, or another `warehouse`. Of Iceberg 1.12, or 1.10 if it `is_old`.

    One that `keeps_keys` knows by Java's own code what became of requests that have a key.
    """

    def __init__(self, directory: Path, *, warehouse: str = "", is_old: bool = False, keeps_keys: bool = False) -> None:
        if not PYTHON.exists() or not JARS.exists():
            raise FileNotFoundError("there is no .venv-java or no .java-env; run `make java-env` first")
        self.directory = directory
        iceberg = (JARS / "rest-1.10" if is_old else JARS).glob("iceberg-*.jar")
        jars = os.pathsep.join(map(str, [*iceberg, *JARS.glob("sqlite-*.jar")]))
        keys = ["keeps-keys"] if keeps_keys else []
        command = (PYTHON, REST_WORKER, jars, directory, warehouse or f"file://{directory}/warehouse", *keys)
        environment = environment_without("PYSPARK_", "SPARK_", "PYTHON", TZ="UTC")
        self._process = LineProcess("Iceberg Java's REST server", command, environment)
        port = self._process.answer()
        self.uri = f"http://127.0.0.1:{port}"

    @property
    def properties(self) -> dict[str, str]:
        """What our catalog is opened with."""
        return {"type": "rest", "uri": self.uri}

    def close(self) -> None:
        """End the process and Java with it."""
        self._process.close()
