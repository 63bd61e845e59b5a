"""A world for the command line in which nothing is real but the command line: jobs, tables and Spark that only remember.

`cli.main` and `JobRun` name what they run by import strings; those of `JOBS` and `SEAMS` lead here. What commands print is held
against the schema that `icekeep schema` prints.
"""

import json
import os
import signal
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
from jsonschema import Draft202012Validator

from icekeep.catalog.base import Identifier
from icekeep.errors import InvalidTableError, SafetyError, UsageError, shown_command
from icekeep.events import Listener, StepAdvanced, StepStarted, Warned
from icekeep.operations.commands.document_schema import schema
from icekeep.operations.configuration.catalogs import TableReference
from icekeep.operations.configuration.file import CatalogSettings
from icekeep.operations.jobs import JOBS as REAL
from icekeep.operations.jobs import Seams
from icekeep.runs import Run, note_application
from icekeep.runtime import Runtime
from icekeep.settings import Job
from icekeep.spec.metadata import TableMetadata
from kit.metadata import MetadataBuilder


def _fake(name: str, run: str, **more: Any) -> Job:
    """A job that is told what the real one is told."""
    return Job(name=name, summary="", settings=REAL[name].settings, run=run, **more)


JOBS = {
    job.name: job
    for job in (
        _fake("plan_scan", "kit.fake_jobs:plan_scan", takes_listener=False),
        _fake(
            "compact",
            "kit.fake_jobs:compact",
            plan="kit.fake_jobs:plan_compact",
            options="kit.fake_jobs:FakeOptions",
            check="kit.fake_jobs:check_compaction",
        ),
        _fake("rewrite_manifests", "kit.absent:rewrite_manifests", plan="kit.fake_jobs:missing_package"),
        _fake(
            "expire_snapshots",
            "kit.fake_jobs:expire_snapshots",
            plan="kit.fake_jobs:plan_expire_snapshots",
        ),
    )
}
SEAMS = Seams(
    load_table="kit.fake_jobs:load_table",
    build_session="kit.fake_jobs:build_session",
    stop_session="kit.fake_jobs:stop_session",
    cancel_jobs="kit.fake_jobs:cancel_jobs",
    live_properties="kit.fake_jobs:live_properties",
)

APPLICATION = "local-1"
"""The Spark application that `build_session` starts."""

HISTORY: list[str] = []
"""What happened, in order; a test clears it first."""
CALLS: list["Call"] = []
FAILURES: list[BaseException] = []
"""What the next job raises."""


class Call(NamedTuple):
    """A job's function that was called, with its keyword arguments."""

    function: str
    table: str
    arguments: dict[str, Any]


class FakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a job that has one."""

    min_input_files: int = msgspec.field(name="min-input-files", default=5)


class Group(msgspec.Struct, frozen=True):
    """A row of a plan."""

    partition: str
    bytes: int
    files: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """What a dry run shows."""

    snapshot_id: int
    rewritten_bytes_count: int
    groups: tuple[Group, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    status: str = "done"
    rewritten_data_files_count: int = 0


class FakeTable(NamedTuple):
    """As much of a table as the command line looks at."""

    name: str
    metadata: Any
    metadata_location: str = "/wh/1.metadata.json"
    run: Run | None = None

    def for_run(self, run: Run | None) -> "FakeTable":
        return self._replace(run=run)

    def refresh(self) -> "FakeTable":
        return self._replace(metadata_location="/wh/2.metadata.json")


def forget() -> None:
    """Begin anew."""
    for memory in (HISTORY, CALLS, FAILURES):
        memory.clear()


def load_table(reference: TableReference, *, runtime: Runtime) -> FakeTable:
    HISTORY.append(f"load {reference.full_name}")
    return FakeTable(reference.name, MetadataBuilder().commits(2).tag("audit", at=1).build())


def load_broken_table(reference: TableReference, *, runtime: Runtime) -> FakeTable:
    """A table whose metadata does not load."""
    HISTORY.append(f"load {reference.full_name}")
    raise InvalidTableError("it is no metadata")


def open_catalog(settings: CatalogSettings, *, runtime: Runtime) -> str:
    HISTORY.append(f"open {settings.name}")
    return settings.name


def plan_on_broken(
    catalog: str, identifier: Identifier, error: Exception, *, spark: Callable[[], str], run: Run, **arguments: Any
) -> Result:
    spark()
    return _called("plan_on_broken", FakeTable(f"{catalog}.{'.'.join(identifier)}", error), arguments)


def run_on_broken(
    catalog: str, identifier: Identifier, error: Exception, *, spark: Callable[[], str], run: Run, **arguments: Any
) -> Result:
    _called("run_on_broken", FakeTable(f"{catalog}.{'.'.join(identifier)}", error), arguments)
    return Result(status="partial")


def build_session(app_name: str) -> str:
    HISTORY.append(f"start {app_name}")
    note_application(APPLICATION)
    return "spark"


def stop_session(spark: str) -> None:
    HISTORY.append("stop")
    note_application(None)


def cancel_jobs(spark: str) -> None:
    HISTORY.append("cancel")


def live_properties() -> dict[str, str]:
    HISTORY.append("ask the JVM")
    return {"spark.sql.catalog.lake.type": "hadoop", "spark.sql.catalog.lake.warehouse": "/wh"}


def plan_scan(table: FakeTable, spark: Callable[[], str], **arguments: Any) -> Result:
    spark()
    return _called("plan_scan", table, arguments)


def asking_twice(table: FakeTable, spark: Callable[[], str], **arguments: Any) -> Result:
    assert spark() == spark() == "spark"
    return _called("asking_twice", table, arguments)


def asking_never(table: FakeTable, spark: Callable[[], str], **arguments: Any) -> Result:
    return _called("asking_never", table, arguments)


def check_compaction(metadata: TableMetadata, **arguments: Any) -> None:
    if arguments.get("strategy") == "guess":
        raise UsageError("there is no strategy 'guess'")


def plan_compact(table: FakeTable, spark: Callable[[], str], **arguments: Any) -> Plan:
    spark()
    _called("plan_compact", table, arguments)
    return Plan(7, 3_000_000, (Group("day=1", 2_000_000, ("a", "b")), Group("day=2", 1_000_000, ())))


def compact(table: FakeTable, spark: Callable[[], str], *, listener: Listener, **arguments: Any) -> Result:
    spark()
    listener.on(StepStarted("rewriting", total=2, unit="files"))
    listener.on(StepAdvanced("rewriting"))
    return _called("compact", table, arguments)


def not_shown(*_: Any) -> Any:
    """What makes of a result what people read, and fails."""
    raise RuntimeError("cannot be shown")


def compact_in_part(table: FakeTable, spark: Callable[[], str], *, listener: Listener, **arguments: Any) -> Result:
    spark()
    return Result(status="partial", rewritten_data_files_count=1)


def compact_and_warn(table: FakeTable, spark: Callable[[], str], *, listener: Listener, **arguments: Any) -> Result:
    listener.on(Warned(f"run `{shown_command('restore', '--table', 'local.db.t', '--run', 'r-1')}` again"))
    return compact(table, spark, listener=listener, **arguments)


def plan_expire_snapshots(table: FakeTable, spark: Callable[[], str], **arguments: Any) -> Result:
    spark()
    return _called("plan_expire_snapshots", table, arguments)


def expire_snapshots(table: FakeTable, spark: Callable[[], str], *, listener: Listener, **arguments: Any) -> Result:
    spark()
    return _called("expire_snapshots", table, arguments)


def terminated(table: FakeTable, spark: Callable[[], str], **arguments: Any) -> Result:
    """Gets a SIGTERM in the middle of its work, and another while it cleans up."""
    spark()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        HISTORY.append("not reached")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        HISTORY.append("clean up")
    return Result()


def terminated_and_confused(table: FakeTable, spark: Callable[[], str], **arguments: Any) -> Result:
    """Fails in its clean-up after a SIGTERM, as calls to a dying JVM do."""
    spark()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        raise ConnectionError("Answer from Java side is empty")


def terminated_and_refused(table: FakeTable, spark: Callable[[], str], **arguments: Any) -> Result:
    """Has something more important to say than that it was interrupted."""
    spark()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        raise SafetyError("a check refused")


def _called(function: str, table: FakeTable, arguments: dict[str, Any]) -> Result:
    HISTORY.append(function)
    CALLS.append(Call(function, table.name, arguments))
    if FAILURES:
        raise FAILURES.pop()
    return Result(rewritten_data_files_count=12)


def problems(document: Any) -> list[str]:
    """Where a document does not fit its schema; here a field that the schema does not know is a problem too."""
    return _problems(_validator(document["job"] if "result" in document else None, "error" in document), document)


def problems_of_result(job: str, result: Any) -> list[str]:
    """The same of what a job or command has as `result`."""
    return _problems(_result_validator(job), result)


@cache
def _validator(job: str | None, is_error: bool) -> Draft202012Validator:
    whole = _strict(schema(job=job).document)
    return Draft202012Validator({**whole["anyOf"][-1 if is_error else 0], "$defs": whole["$defs"]})


@cache
def _result_validator(job: str) -> Draft202012Validator:
    whole = _strict(schema(job=job).document)
    return Draft202012Validator({**whole["anyOf"][0]["properties"]["result"], "$defs": whole["$defs"]})


def _problems(validator: Draft202012Validator, value: Any) -> list[str]:
    # Through JSON and back: what is held against the schema is what a reader gets.
    found = validator.iter_errors(json.loads(json.dumps(value)))
    return [f"{error.json_path}: {error.message[:300]}" for error in found]


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **strict} if isinstance(schema.get("properties"), dict) else strict
