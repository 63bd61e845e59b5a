"""Flink as an engine that writes and reads beside icekeep: one long-lived process with a cluster of its own in it.

`make flink-env` makes what it needs; `java_flink` is the program. A job reads rows that a test gives it and commits when the
test says so, with a checkpoint. Tables are named `catalog.namespace.table`. `FlinkTable` has a job that writes, and a
plain model of its rows: the last row of each key.
"""

import datetime
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from icekeep.catalog.base import Identifier, Table
from icekeep.spec.schema import Schema
from icekeep.spec.types import BINARY, BOOLEAN, DATE, DOUBLE, INT, LONG, STRING, TIMESTAMP, TIMESTAMPTZ, decimal
from icekeep.tables.verbs import create_table
from kit.cases import Choices
from kit.columns import column
from kit.java import TALKING, JavaError, LineProcess, environment_without, java_properties
from kit.lake import Lake
from kit.rows import row_texts, scanned_rows, untagged
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


COLUMNS = (
    column(1, "id", LONG, required=True),
    column(2, "kind", STRING, required=True),
    column(3, "number", INT),
    column(4, "score", DOUBLE),
    column(5, "amount", decimal(20, 3)),
    column(6, "day", DATE),
    column(7, "at", TIMESTAMP),
    column(8, "seen", TIMESTAMPTZ),
    column(9, "note", STRING),
    column(10, "raw", BINARY),
    column(11, "flag", BOOLEAN),
)
NAMES = [field.name for field in COLUMNS]
KINDS = ("a", "b", "ä/c")
PATIENT = {"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "20"}
_NUMBERS = count(1)

KeyedRow = tuple[Any, ...]


def row(id_: int, number: int) -> KeyedRow:
    """The row of a key after so many changes: its kind follows from the key, and never changes."""
    one = 3 * id_ + number
    start = datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=one, microseconds=one)
    return (
        id_,
        KINDS[id_ % len(KINDS)],
        None if one % 5 == 4 else number,
        (float("nan"), -0.0, 0.5 * one, None)[one % 4],
        None if one % 7 == 3 else Decimal(one).scaleb(-3),
        start.date(),
        start,
        None if one % 6 == 2 else start,
        ("x" * (one % 9), None)[one % 2],
        bytes([one % 256, 0]),
        (True, False, None)[one % 3],
    )


class FlinkTable:
    """A table and the job that writes it.

    Attributes:
        rows: the model's, by key; those of a table without a key by a number of their own.
    """

    def __init__(
        self,
        flink: Flink,
        lake: Lake,
        *,
        has_key: bool = True,
        partition_by: Iterable[tuple[str, str]] = (),
        version: int = 2,
        file_format: str = "parquet",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        has_key: rows are upserted by `id`, and by `kind` where the table is partitioned by that; or else appended.
        settings: of Flink's SQL for the job.
        """
        self.flink, self.lake, self._settings = flink, lake, settings
        self.identifier: Identifier = ("db", f"flink{next(_NUMBERS)}")
        partition_by = tuple(partition_by)
        key = (1, 2) if ("kind", "identity") in partition_by else (1,)
        properties = {**PATIENT, "write.format.default": file_format}
        create_table(
            lake.catalog,
            self.identifier,
            Schema(fields=COLUMNS, identifier_field_ids=key if has_key else ()),
            partition_by=partition_by,
            properties={**properties, "write.upsert.enabled": "true"} if has_key else properties,
            format_version=version,
        )
        self.has_key = has_key
        self.rows: dict[int, KeyedRow] = {}
        self._changes_count = 0
        self._lot = Choices(version)
        self.job = self.start()

    @property
    def name(self) -> str:
        """In Flink and Java."""
        return ".".join(("local", *self.identifier))

    @property
    def table(self) -> Table:
        """As it is now."""
        return self.lake.catalog.load(self.identifier)

    def start(self, start: Checkpoint | None = None) -> Job:
        """Start the job, from a checkpoint of the one before."""
        changes = "upsert" if self.has_key else "insert"
        self.job = self.flink.start(self.name, self.name, changes, start=start, settings=self._settings)
        return self.job

    def started(self, start: Checkpoint) -> Checkpoint:
        """Start the job from a checkpoint, and let it make the next: only then the later of the sinks has looked for the last."""
        self.start(start)
        return self.commit()

    def change(self) -> None:
        """Give the job rows, and note what they come to: new ones, later ones of old keys and of keys of the same commit, and
        deletes, also of what is there no more.
        """
        self._changes_count += 1
        number = self._changes_count
        new = range(1000 * number, 1000 * number + 6)
        if not self.has_key:
            self._note([("+I", row(id_, number)) for id_ in new])
            return
        old = self._some(5)
        told = [("+I", row(id_, number)) for id_ in (*new, *old)]
        again = self._lot.sample([*new, *old], 4)
        told += [("+U", row(id_, number + 50)) for id_ in again]
        gone = [*self._some(2), again[0], 999]
        self._note([*told, *(("-D", row(id_, number)) for id_ in gone)])
        # What was deleted a moment ago comes back.
        self._note([("+I", row(again[0], number + 70))])

    def commit(self) -> Checkpoint:
        """Change rows, and let the job commit them."""
        self.change()
        return self.job.checkpoint()

    def expected(self) -> Counter[str]:
        """The rows of the model, as texts."""
        return texts(self.rows.values())

    def by_us(self) -> Counter[str]:
        """The rows by icekeep's scan."""
        return scanned_rows(self.table)

    def by_flink(self) -> Counter[str]:
        """The rows by a batch query of Flink's."""
        return texts(self.flink.select(f"SELECT {', '.join(map(quoted, NAMES))} FROM {quoted(self.name)}"))

    def checked(self, when: str) -> None:
        """The rows are those of the model, for us and for Flink."""
        assert self.by_us() == self.expected(), when
        assert self.by_flink() == self.expected(), when

    def _some(self, number: int) -> list[int]:
        return self._lot.sample(sorted(self.rows), min(number, len(self.rows)))

    def _note(self, changes: Iterable[tuple[str, KeyedRow]]) -> None:
        changes = list(changes)
        self.job.feed((kind, *values) for kind, values in changes)
        for kind, values in changes:
            if kind == "-D":
                self.rows.pop(values[0], None)
            else:
                self.rows[values[0]] = values


def texts(rows: Iterable[KeyedRow]) -> Counter[str]:
    """Rows in the form of `row_texts`."""
    return row_texts(Schema(fields=COLUMNS), (dict(zip(NAMES, one, strict=True)) for one in rows))
