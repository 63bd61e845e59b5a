"""Flink as an engine that writes and reads beside icekeep: one long-lived process with a cluster of its own in it.

`make flink-env` makes what it needs; `java_flink` is the program. A job reads rows that a test gives it and commits when the
test says so, with a checkpoint. Tables are named `catalog.namespace.table`.
"""

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from kit.java import JavaError, java_properties
from kit.java_values import untagged
from kit.jvm_options import TALKING
from kit.line_process import LineProcess, environment_without
from kit.shell import ROOT

ENVIRONMENT = ROOT / ".flink-env"
OPENED = tuple(
    f"--add-opens=java.base/java.{name}=ALL-UNNAMED"
    for name in ("io", "lang", "lang.reflect", "net", "nio", "text", "time", "util", "util.concurrent")
)
"""What Flink's own scripts open to it on Java 17."""

V2_SINK = {"table.exec.iceberg.use-v2-sink": "true"}
"""Settings of a job that writes through `IcebergSink`, the later of the two sinks."""

Row = Sequence[Any]


class Checkpoint(NamedTuple):
    """A checkpoint or savepoint that a job can start from."""

    path: str


class Flink:
    """The process; `close` ends it, and so does the end of this one."""

    def __init__(self) -> None:
        if not (ENVIRONMENT / ".ready").exists():
            raise FileNotFoundError("there is no .flink-env; run `make flink-env` first")
        # Its jobs are of a handful of rows.
        options = ["-Xmx1g", *TALKING, "-XX:+UseSerialGC", *OPENED]
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        classes = f"{ENVIRONMENT}/classes:{ENVIRONMENT}/*"
        command = ("java", *options, logging, "-cp", classes, "Main", "{home}")
        self._process = LineProcess("Flink", command, environment_without(TZ="UTC"))

    def close(self) -> None:
        """End the process, and remove what it left."""
        self._process.close()

    def versions(self) -> dict[str, str]:
        """Of `flink` and `iceberg`."""
        return self._ask("versions")

    def open_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        """Open one of our catalogs under its own name; a name may be given again, to another catalog.

        Commits to one of kind `sql` can be held (`Job.checkpoint`).
        """
        java = {"type": "iceberg", "cache-enabled": "false", **_flink_properties(java_properties(properties))}
        self._ask("open", catalog=name, properties=java)

    def sql(self, text: str) -> None:
        """Run a statement that makes or drops something."""
        self._ask("sql", text=text)

    def select(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a query in batch mode, as Python values, in no order."""
        return _rows(self._ask("select", text=text))

    def follow(self, name: str, text: str) -> "Follower":
        """Start a query in streaming mode."""
        self._ask("follow", name=name, text=text)
        return Follower(self, name)

    def start(
        self,
        name: str,
        table: str,
        changes: str = "upsert",
        *,
        start: Checkpoint | None = None,
        options: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> "Job":
        """Start a job that writes a table; under the name of an earlier one it reads the same rows, from a checkpoint of that.

        Args:
            changes: what it is given: `insert`, `upsert` or `all`.
            options: of Iceberg's sink.
            settings: of Flink's SQL.
        """
        listed = ", ".join(f"'{key}'='{value}'" for key, value in (options or {}).items())
        hint = f" /*+ OPTIONS({listed}) */" if listed else ""
        where = start.path if start else ""
        asked = {
            "table": quoted(table),
            "changes": changes,
            "hint": hint,
            "settings": dict(settings or {}),
            "from": where,
        }
        return Job(self, name, self._ask("start", job=name, **asked))

    def _ask(self, method: str, **request: Any) -> Any:
        answer = json.loads(self._process.ask(json.dumps({"method": method, **request})))
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"], answer["trace"])
        return answer["answer"]


class Job:
    """A job that writes a table.

    Attributes:
        job_id: as the summaries of its snapshots have it.
    """

    def __init__(self, flink: Flink, name: str, job_id: str) -> None:
        self._flink, self.name, self.job_id = flink, name, job_id

    def feed(self, rows: Iterable[Row]) -> None:
        """Give it rows, each behind its kind as Flink writes it for short: `+I`, `-U`, `+U` or `-D`."""
        self._flink._ask("feed", job=self.name, rows=[list(map(_told, row)) for row in rows])

    def checkpoint(self, until: str = "committed") -> Checkpoint:
        """Let it make a checkpoint of what it was given, and wait until that is `committed`; or the commit is `held` right
        before it swaps the table's metadata; or for `nothing`.
        """
        return Checkpoint(self._flink._ask("checkpoint", job=self.name, until=until))

    def release(self) -> None:
        """Let the commit go that is held, and wait until it has landed."""
        self._flink._ask("release", job=self.name)

    def stop(self, directory: Path) -> Checkpoint:
        """End it in order, with a savepoint; what it was given is committed."""
        return Checkpoint(self._flink._ask("stop", job=self.name, directory=directory.as_uri()))

    def cancel(self) -> Checkpoint:
        """End it at once, and say which checkpoint was its last; a commit that is held is never made."""
        return Checkpoint(self._flink._ask("cancel", job=self.name))


class Follower:
    """A query that goes on."""

    def __init__(self, flink: Flink, name: str) -> None:
        self._flink, self._name = flink, name

    def rows(self, last: Any, *, end: bool = False) -> list[tuple[Any, ...]]:
        """The rows that came since, when one has come whose first value is `last`; and end the query."""
        return _rows(self._flink._ask("followed", name=self._name, last=last, end=end))


def quoted(table: str) -> str:
    """A table's name in Flink's SQL, in which `local` is a word of its own."""
    return ".".join(f"`{part}`" for part in table.split("."))


def _told(value: Any) -> Any:
    """A value as JSON, from which Flink's side makes one of the column's type."""
    match value:
        case bytes():
            return value.hex()
        case datetime.date():
            return value.isoformat()
        case float():
            return "NaN" if math.isnan(value) else str(value)
        case Decimal():
            return str(value)
    return value


def _rows(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(untagged(value) for value in row) for row in rows]


def _flink_properties(properties: Mapping[str, str]) -> dict[str, str]:
    kind = properties["type"]
    rest = {key: value for key, value in properties.items() if key != "type"}
    return {**rest, "catalog-impl": "HeldCatalog"} if kind == "jdbc" else {**rest, "catalog-type": kind}
