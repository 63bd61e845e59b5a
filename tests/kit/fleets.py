"""A catalog of small tables in memory, policies as text, and in the place of jobs something that notes what was asked of it."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from icekeep.catalog.base import Identifier
from icekeep.events import SILENT, Listener
from icekeep.fleet.job import Fleet
from icekeep.fleet.overview import ScanSettings, Scope
from icekeep.fleet.values import Assignment, JobOutcome
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.configuration.policy_tables import resolve_table
from icekeep.planning.memory import Memory
from icekeep.policies.values import Rules
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunRecord
from icekeep.tables.verbs import append, create_table
from kit.job_world import World
from kit.lake import SCHEMA, events
from kit.no_spark import no_spark

POLICY = """
policies:
  - name: nightly
    schedule: "0 2 * * *"
    match: local.**
    jobs: {compact: , rewrite_manifests: , expire_snapshots: }
"""
ALL = Scope()
JOBS = ("compact", "rewrite_manifests", "expire_snapshots")


def world_of(files_by_name: Mapping[str, int], **properties: Mapping[str, str]) -> World:
    """A catalog with tables in namespace `db`, each of so many files; `properties` by table."""
    world = World(2)
    world.catalog.drop(("db", "events"))
    for name, count in files_by_name.items():
        table = create_table(world.catalog, ("db", name), SCHEMA, properties=properties.get(name, {}))
        for number in range(count):
            table = append(table, [events(number, 5)])
    return world


def spoil(world: World, identifier: Identifier) -> None:
    """Cut a table's metadata file short."""
    location = world.catalog.find(identifier).metadata_location
    data, at = world.memory.files[location]
    world.memory.files[location] = (data[:40], at)


class Jobs:
    """Runs jobs by doing nothing; `answers` says otherwise by table and job: how it ended, what is raised, or what is done."""

    def __init__(self, answers: Mapping[tuple[str, str], Any] = {}, records: RunRecords | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.assignments: list[Assignment] = []
        self.most_at_once = 0
        self._answers, self._records = answers, records
        self._running: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, assignment: Assignment) -> JobOutcome:
        name = assignment.table.removeprefix("local.db.")
        key = (name, assignment.call.job)
        with self._lock:
            assert name not in self._running, f"two jobs of {name} at once"
            self._running.append(name)
            self.most_at_once = max(self.most_at_once, len(self._running))
            self.calls.append(key)
            self.assignments.append(assignment)
        try:
            answer = self._answers.get(key, JobOutcome(status="done"))
            if callable(answer):
                answer = answer(assignment)
            if isinstance(answer, BaseException):
                raise answer
            self._note(assignment, answer)
            return answer
        finally:
            with self._lock:
                self._running.remove(name)

    def of(self, name: str) -> list[str]:
        """The jobs that were run on a table, in order."""
        return [job for table, job in self.calls if table == name]

    def _note(self, assignment: Assignment, ran: JobOutcome) -> None:
        if self._records is None:
            return
        now_ms = assignment.catalog.runtime.now_ms()
        self._records.end(
            RunRecord(
                run_id=f"{assignment.call.job}-{assignment.catalog.runtime.new_uuid()}",
                job=assignment.call.job,
                table=assignment.table,
                policy=assignment.policy,
                status=ran.status,
                exit_status=ran.exit_status,
                error_message=ran.error_message,
                started_ms=now_ms,
                ended_ms=now_ms,
                seen_ms=now_ms,
            )
        )


def fleet_of(
    world: World,
    jobs: Callable[[Assignment], JobOutcome],
    *,
    policy: str = POLICY,
    run_id: str = "maintain-1",
    records: RunRecords | None = None,
    scope: Scope = ALL,
    listener: Listener = SILENT,
    **more: Any,
) -> Fleet:
    """A run over that catalog."""
    rules = parse_config(policy).rules
    return Fleet(
        run_id=run_id,
        catalogs=((world.catalog, records),),
        settings=ScanSettings(
            rules=rules,
            scope=scope,
            resolve=partial(_resolve, rules),
            memory=Memory(),
            spark=no_spark,
            listener=listener,
        ),
        run_call=jobs,
        runtime=world.runtime,
        stop=threading.Event(),
        **more,
    )


def _resolve(rules: Rules, *told: Any) -> Any:
    found = resolve_table(rules, *told)
    return found.rules, found.problems


def statuses(result: Any) -> dict[str, dict[str, str]]:
    """By table and job what became of it."""
    return {
        table.table.removeprefix("local.db."): {job.job: str(job.status) for job in table.jobs}
        for table in result.tables
    }


def whys(result: Any) -> dict[tuple[str, str], str]:
    """By table and job why."""
    return {(t.table.removeprefix("local.db."), job.job): job.why for t in result.tables for job in t.jobs}


def ends_with(exit_status: int, message: str = "it broke", kind: str = "job_failed") -> JobOutcome:
    """A job that failed."""
    return JobOutcome(status="failed", exit_status=exit_status, error_kind=kind, error_message=message)
