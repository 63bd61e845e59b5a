"""A small real table in memory for the contracts of jobs: cheap to copy, and every call to store and catalog can be spoilt.

Fleets are catalogs of such tables, with something in the place of jobs that notes what was asked of it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from icekeep.catalog.base import Identifier, SwapOutcome, Table, Unknown
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import NotFoundError, OutcomeUnknownError, UnavailableError
from icekeep.events import SILENT, Listener
from icekeep.fleet.job import Fleet
from icekeep.fleet.overview import ScanSettings, Scope
from icekeep.fleet.values import Assignment, JobOutcome
from icekeep.maintenance.delete.locations import forget_locations
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.configuration.policy_tables import resolve_table
from icekeep.planning.memory import Memory
from icekeep.policies.values import Rules
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunRecord
from icekeep.spec.updates import Requirement, Update
from icekeep.tables.read import read_table
from icekeep.tables.verbs import append, create_table
from kit.lake import SCHEMA, events, multiset
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime, no_spark
from kit.storage import HookedStorage, MemoryStorage

EVENTS = ("db", "events")
ROWS_A_FILE = 5
Call = tuple[str, str]


class Killed(BaseException):
    """The process is dead: whatever it still tries to do fails too."""


class HookedCatalog(MemoryCatalog):
    """Its calls go through the hooks of its storage, so that they are counted, and fail, as the store's do."""

    def load(self, identifier: Identifier | str) -> Table:
        return self._hooked("load", lambda: super(HookedCatalog, self).load(identifier))

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        return self._swapped("swap", table, lambda: super(HookedCatalog, self).swap(table, requirements, updates))

    def reattach(self, table: Table) -> SwapOutcome:
        return self._swapped("reattach", table, lambda: super(HookedCatalog, self).reattach(table))

    def _swapped(self, operation: str, table: Table, call: Callable[[], SwapOutcome]) -> SwapOutcome:
        before = self._locations.get(table.identifier)
        try:
            return self._hooked(operation, call)
        except UnavailableError as error:
            # An error of a swap would prove that nothing landed.
            if (now := self._locations.get(table.identifier, "")) == before:
                raise
            return Unknown(error.message, now)

    def drop(self, identifier: Identifier, **meant: Any) -> str:
        try:
            return self._hooked("drop", lambda: super(HookedCatalog, self).drop(identifier, **meant))
        except UnavailableError as error:
            raise (error if identifier in self._locations else OutcomeUnknownError(error.message)) from None

    def _hooked(self, operation: str, call: Callable[[], Any]) -> Any:
        hooked: Any = self.storage
        hooked.before(operation, "the catalog")
        answer = call()
        hooked.after(operation, "the catalog")
        return answer


class World:
    """A catalog with one table; its clock moves only where a test says so, or the job sleeps."""

    def __init__(self, format_version: int, partition_by: Sequence[tuple[str, str]] = (), **properties: str) -> None:
        self.runtime = FakeRuntime()
        self.memory = MemoryStorage(self.runtime)
        self.storage = HookedStorage(self.memory)
        self.catalog = HookedCatalog(self.storage, self.runtime)
        self.catalog.create_namespace(EVENTS[:-1])
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()}
        create_table(
            self.catalog, EVENTS, SCHEMA, partition_by=partition_by, format_version=format_version, properties=named
        )

    @property
    def table(self) -> Table:
        return self.catalog.load(EVENTS)

    def append(self, *numbers: int, month: int = 1, rows: int = ROWS_A_FILE) -> Table:
        """A commit with a file for each number, whose rows no other number has."""
        table = append(self.table, [events(number, rows, month) for number in numbers])
        self.runtime.pass_ms(1000)
        return table

    def copy(self) -> "World":
        """Another world of the same state, which knows nothing of this one."""
        forget_locations()
        return deepcopy(self)

    def state(self) -> tuple[dict[str, bytes], str | None]:
        """All files and what the catalog points to: equal where nothing has changed."""
        return {location: data for location, (data, _) in self.memory.files.items()}, self.pointer()

    def pointer(self) -> str | None:
        """The location of the table's metadata; `None` for a table that was dropped."""
        try:
            return self.catalog.find(EVENTS).metadata_location
        except NotFoundError:
            return None

    def rows(self, ref: str = "main") -> Counter[str]:
        return multiset(read_table(self.table, ref=ref))

    def lost_files(self) -> set[str]:
        """Files that some snapshot of the table leads to, and that are not there."""
        table = self.table
        return {location for location in reached_files(table) if location not in self.memory.files}


def reached_files(table: Table) -> Iterator[str]:
    """Every file that a snapshot leads to."""
    reader = ManifestReader(table.storage)
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list or ""
        for manifest in reader.manifests(snapshot):
            yield manifest.manifest_path
            if manifest.manifest_path not in seen:
                yield from (e.data_file.file_path for e in reader.entries(manifest, table.metadata) if e.is_live)
            seen.add(manifest.manifest_path)


class Fault:
    """Spoils a run at its n-th call of storage or catalog, once `armed`; without a number it only counts.

    Ways: `killed` before the call, after which no call gets through; `lost`, where the call is done and its answer does not
    arrive; `away`, where neither this call nor any later one gets through; `foreign`, where these fail with an
    error that is none of ours; `torn`, the same of a call that deletes, which has deleted its file all the same.
    """

    WAYS = ("killed", "lost", "away")

    def __init__(self, world: World, number: int | None = None, way: str = "killed") -> None:
        self.calls: list[Call] = []
        self._number, self._way = number, way
        self._world = world
        self._lost: Call | None = None

    def __enter__(self) -> "Fault":
        self._world.storage.before, self._world.storage.after = self._before, self._after
        return self

    def __exit__(self, *_: object) -> None:
        self._world.storage.before = self._world.storage.after = lambda operation, location: None

    def _before(self, operation: str, location: str) -> None:
        self.calls.append((operation, location))
        if self._number is None or len(self.calls) <= self._number:
            return
        if self._way == "killed":
            raise Killed
        if self._way == "torn" and len(self.calls) == self._number + 1:
            assert operation == "delete_many"
            self._world.memory.delete_many([location])
        if self._way in ("foreign", "torn"):
            raise RuntimeError(f"{location}: the JVM is gone")
        if self._way == "away":
            raise UnavailableError(f"{location}: out of reach")
        if len(self.calls) == self._number + 1:
            self._lost = (operation, location)

    def _after(self, operation: str, location: str) -> None:
        # A swap makes calls of its own before its answer.
        if self._lost == (operation, location):
            self._lost = None
            raise UnavailableError(f"{location}: no answer")


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
