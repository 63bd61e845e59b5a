"""Iceberg Java, the reference, as a judge: one long-lived process with a Spark of its own opens the catalogs that we do.

`make java-env` makes what it needs. Its tables are named `catalog.namespace.table`.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from icekeep.spec.filters.expressions import Expression
from icekeep.spec.partitioning import PartitionSpec, spec_to_json
from icekeep.spec.schema import Schema, schema_from_json, schema_to_json
from kit.java_values import filter_tree, from_wire, multiset, sql_literal, untagged
from kit.line_process import LineProcess, environment_without
from kit.shell import ROOT

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
