"""A night over many tables, from a seed: runs of `maintain` side by side, jobs that fail, one run that is killed and begun again.

What decides, hands out, leases and tells is icekeep's; tables, jobs and the record of runs are models, so that a night of two
hundred tables takes a second. What jobs do to tables is simulated elsewhere (`run.py`).
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

from icekeep.catalog.base import Identifier, Table
from icekeep.errors import UnavailableError
from icekeep.events import Event
from icekeep.fleet import overview as looking
from icekeep.fleet.job import Fleet, FleetRun
from icekeep.fleet.overview import LEASE_MS
from icekeep.fleet.values import Assignment, JobOutcome, MaintainResult
from icekeep.health.values import (
    DataHealth,
    DeletesHealth,
    JobAdvice,
    MetadataHealth,
    PartitionsHealth,
    SnapshotsHealth,
    TableHealth,
)
from icekeep.run_records import values
from icekeep.run_records.values import SILENT_MS, LastRuns, Paces, RunFilter, RunRecord
from icekeep.spec.types import HOUR_MS, MINUTE_MS
from kit.catalogs import simple_metadata
from kit.job_world import fleet_of
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage
from simulation.scheduler import Actor, Scheduler

JOBS = ("compact", "rewrite_manifests", "expire_snapshots", "remove_orphan_files")
POLICY = """
policies:
  - name: nightly
    schedule: "0 2 * * *"
    match: local.**
    jobs:
      compact: {when: {small_files_over: 10}}
      rewrite_manifests: {when: {manifests_over: 10}}
      expire_snapshots: {when: {snapshots_over: 10}}
      remove_orphan_files: {when: {age_over: 3d}}
"""
_FAULTS = {
    "fails": JobOutcome(status="failed", exit_status=1, error_kind="job_failed", error_message="it broke"),
    "conflicts": JobOutcome(status="failed", exit_status=75, error_kind="conflict", error_message="another writer won"),
    "refuses": JobOutcome(status="failed", exit_status=4, error_kind="safety", error_message="it may not"),
    "unknown": JobOutcome(
        status="failed", exit_status=5, error_kind="outcome_unknown", error_message="it may have landed"
    ),
}


class Violation(Exception):
    """What must not be."""


class Dead(BaseException):
    """The process is gone: nothing that it still asks for happens."""


class Lake:
    """Tables, and which jobs each needs; what jobs have done in this night."""

    def __init__(self, random: Random, tables_count: int) -> None:
        self.needs: dict[str, set[str]] = {}
        self.broken: dict[tuple[str, str], JobOutcome] = {}
        self.done: Counter[tuple[str, str]] = Counter()
        self.tried: Counter[tuple[str, str]] = Counter()
        self.running: dict[str, str] = {}
        runtime = FakeRuntime()
        self.catalog = MemoryCatalog(MemoryStorage(runtime), runtime)
        self.catalog.create_namespace(("db",))
        for number in range(tables_count):
            name = f"local.db.t{number:03d}"
            metadata = simple_metadata(f"memory:///wh/db/t{number:03d}")
            self.catalog.create(("db", f"t{number:03d}"), metadata)
            is_sick = random.random() < 0.25
            self.needs[name] = {job for job in JOBS[:3] if is_sick and random.random() < 0.7}
            for job in JOBS:
                if random.random() < 0.04:
                    self.broken[name, job] = _FAULTS[random.choice([*_FAULTS])]

    def health(self, name: str, random: Random) -> TableHealth:
        """What a look tells: an exact plan of each job that is needed."""
        needs = self.needs[name]

        def count(job: str) -> int:
            return 30 if job in needs else 3

        return TableHealth(
            table=name,
            table_uuid=None,
            format="v2",
            location="",
            snapshot_id=1,
            score=50.0,
            score_parts=(),
            snapshots=SnapshotsHealth(snapshots_count=count("expire_snapshots")),
            refs=(),
            metadata=MetadataHealth(manifests_count=count("rewrite_manifests")),
            data=DataHealth(target_file_bytes=1, small_files_together_count=count("compact")),
            deletes=DeletesHealth(),
            partitions=PartitionsHealth(),
            jobs=tuple(
                JobAdvice(
                    job=job,
                    has_work=True,
                    reason="",
                    spared_opens_count=random.randint(1, 1000),
                    read_bytes=random.randint(1, 1 << 30),
                    cpu_ms=random.randint(1, 100_000),
                )
                for job in JOBS
                if job in needs
            ),
        )


class ModelRecords:
    """The record of runs, as plainly as can be."""

    def __init__(self) -> None:
        self.runs: dict[str, RunRecord] = {}
        self.leases: dict[str, tuple[str, int]] = {}

    def put(self, record: RunRecord) -> None:
        self.runs[record.run_id] = record

    def last_of(self, tables: Collection[str], now_ms: int) -> dict[tuple[str, str], LastRuns]:
        found: dict[tuple[str, str], LastRuns] = {}
        for one in sorted(self.runs.values(), key=lambda one: one.ended_ms or one.seen_ms):
            key, last = (one.table, one.job), found.get((one.table, one.job), LastRuns())
            if one.table not in tables:
                continue
            if one.exit_status in (0, 3):
                found[key] = msgspec.structs.replace(last, last_ok_ms=one.ended_ms, failures_in_a_row=0, night_ms=None)
            elif one.exit_status not in (None, 75) or (one.exit_status is None and one.seen_ms < now_ms - SILENT_MS):
                found[key] = last.and_failed(one.ended_ms or one.seen_ms, one.error_message)
        return found

    def select(self, wanted: RunFilter, now_ms: int) -> list[RunRecord]:
        return [one for one in self.runs.values() if one.run_id == wanted.run_id]

    def paces(self, now_ms: int) -> Paces:
        return Paces()

    def take_lease(self, table: str, holder: str, until_ms: int, now_ms: int) -> str:
        has, until = self.leases.get(table, ("", 0))
        if has == holder or until <= now_ms:
            self.leases[table] = holder, until_ms
        return self.leases[table][0]

    def renew_leases(self, holder: str, until_ms: int) -> None:
        for table, (has, _) in self.leases.items():
            if has == holder:
                self.leases[table] = has, until_ms

    def drop_lease(self, table: str, holder: str) -> None:
        if self.leases.get(table, ("", 0))[0] == holder:
            del self.leases[table]


class Reached:
    """The record as one run reaches it: each call takes its turn, may fail, and does nothing for a run that is dead."""

    def __init__(self, run: "Run", records: ModelRecords, fails: float) -> None:
        self._run, self._records, self._fails = run, records, fails

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._records, name)

        def call(*arguments: Any) -> Any:
            self._run.turn()
            if self._run.simulation.random.random() < self._fails:
                raise UnavailableError("the record is out of reach")
            return act(*arguments)

        return call


class Clock:
    """The time of the night; identifiers by number."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now_ms(self) -> int:
        return self._scheduler.now_ms

    monotonic_ms = now_ms


class Run:
    """One process that runs `maintain` with some workers."""

    def __init__(self, simulation: "Simulation", number: int, workers: int) -> None:
        self.simulation, self.workers = simulation, workers
        self.run_id = f"maintain-{number}"
        self.is_dead = self.is_over = False
        self.night: FleetRun | None = None
        self.left = workers
        self.result: MaintainResult | None = None
        self._actors: dict[int, Actor] = {}

    def turn(self, wait_ms: int = 0) -> None:
        """Let others act; the process may be killed meanwhile."""
        self.simulation.scheduler.pause(self._actors[threading.get_ident()], wait_ms)
        if self.is_dead:
            raise Dead

    def on(self, event: Event) -> None:
        """Nobody reads what it tells."""

    def actor(self, work: Callable[[], None]) -> Callable[[Actor], None]:
        def live(actor: Actor) -> None:
            self._actors[threading.get_ident()] = actor
            try:
                work()
            except Dead:
                return

        return live

    def begin(self, delay_ms: int) -> None:
        """Look at all tables."""
        self.turn(delay_ms)
        now_ms = self.simulation.scheduler.now_ms
        record = RunRecord(run_id=self.run_id, job="maintain", process=self.run_id, started_ms=now_ms, seen_ms=now_ms)
        self.simulation.records.put(record)
        self.night = FleetRun(self.simulation.fleet(self))

    def work(self) -> None:
        """What each worker does."""
        while self.night is None:
            self.turn(SECONDS_MS)
        self.night.works._work()
        self.left -= 1
        if not self.left:
            self.result = self.night.result(is_interrupted=False)
            self.is_over = True
            ended = msgspec.structs.replace(self.simulation.records.runs[self.run_id], status="done", exit_status=0)
            self.simulation.records.put(ended)

    def beat(self) -> None:
        """Prolong leases, and say that the run is alive, as threads of their own do."""
        records, scheduler = self.simulation.records, self.simulation.scheduler
        while not self.is_over:
            self.turn(MINUTE_MS)
            records.renew_leases(self.run_id, scheduler.now_ms + LEASE_MS)
            if self.run_id in records.runs:
                records.put(msgspec.structs.replace(records.runs[self.run_id], seen_ms=scheduler.now_ms))

    def run_call(self, assignment: Assignment) -> JobOutcome:
        """A job: it is written down, takes its time, and has its effect in the end, unless it fails."""
        simulation, (name, job) = self.simulation, (assignment.table, assignment.call.job)
        number = simulation.lake.tried.total()
        simulation.lake.tried[name, job] += 1
        begun_ms = simulation.scheduler.now_ms
        record = RunRecord(
            run_id=f"{job}-{number}",
            job=job,
            table=name,
            policy="nightly",
            process=self.run_id,
            started_ms=begun_ms,
            seen_ms=begun_ms,
        )
        simulation.records.put(record)
        simulation.occupied(name, self.run_id)
        for _ in range(simulation.random.randint(1, 4)):
            self.turn(simulation.random.randint(1, MINUTE_MS))
            record = msgspec.structs.replace(record, seen_ms=simulation.scheduler.now_ms)
            simulation.records.put(record)
        ran = simulation.lake.broken.get((name, job), JobOutcome(status="done", run_id=record.run_id))
        simulation.effect(name, job, ran)
        simulation.lake.running.pop(name, None)
        now_ms = simulation.scheduler.now_ms
        simulation.records.put(
            msgspec.structs.replace(
                record,
                status=ran.status,
                exit_status=ran.exit_status,
                error_message=ran.error_message,
                ended_ms=now_ms,
                seen_ms=now_ms,
            )
        )
        return ran


SECONDS_MS = 1_000


class Simulation:
    """A night of some runs.

    Attributes:
        fails: how often a call to the record of runs fails, 0 to 1. Where it may, two runs may do the same.
    """

    def __init__(self, seed: int, *, tables_count: int = 200, runs_count: int = 3, fails: float = 0.0) -> None:
        self.random = Random(seed)
        self.lake = Lake(self.random, tables_count)
        self.records = ModelRecords()
        self.scheduler = Scheduler(self.random, 1_700_000_000_000, 0.3)
        self.fails = fails
        self.runs = [Run(self, number, self.random.randint(1, 3)) for number in range(runs_count)]
        self.again = Run(self, runs_count, 2)
        self.asked = {(name, job) for name, needs in self.lake.needs.items() for job in (*needs, JOBS[3])}

    def play(self) -> None:
        """Let the night pass: the first run is killed at some time, and begun again a minute later."""
        works: dict[str, Callable[[Actor], None]] = {}
        for run in (*self.runs, self.again):
            delay_ms = self.random.randint(0, 10 * MINUTE_MS)
            begin = self._begin_again if run is self.again else lambda run=run, delay=delay_ms: run.begin(delay)
            works[f"{run.run_id} looks"] = run.actor(begin)
            works |= {f"{run.run_id} {number}": run.actor(run.work) for number in range(run.workers)}
            works[f"{run.run_id} beats"] = run.actor(run.beat)
        self.scheduler.at(self.scheduler.now_ms + self.random.randint(1, 2 * HOUR_MS), self._kill)
        ended = {run.run_id: run for run in (*self.runs, self.again)}
        with (
            patch.object(looking, "look_over", self._look_over),
            patch.object(values, "has_ended", lambda process: process in ended and ended[process].is_dead),
        ):
            self.scheduler.run(works)
        self._check()

    def fleet(self, run: Run) -> Fleet:
        world: Any = type("World", (), {"catalog": self.lake.catalog, "runtime": Clock(self.scheduler)})()
        self.lake.catalog.runtime = world.runtime
        reached: Any = Reached(run, self.records, self.fails)
        return fleet_of(world, run.run_call, policy=POLICY, run_id=run.run_id, records=reached, listener=run)

    def occupied(self, name: str, run_id: str) -> None:
        """A job begins on a table: nobody who lives may be at it."""
        other = self.lake.running.get(name)
        living = {run.run_id for run in (*self.runs, self.again) if not run.is_dead}
        if other in living and not self.fails:
            self.scheduler.fail(Violation(f"{run_id} begins on {name} beside {other}"))
        self.lake.running[name] = run_id

    def effect(self, name: str, job: str, ran: JobOutcome) -> None:
        if ran.exit_status:
            return
        self.lake.needs[name].discard(job)
        self.lake.done[name, job] += 1
        if self.lake.done[name, job] > 1 and not self.fails:
            self.scheduler.fail(Violation(f"{job} was done twice on {name}"))

    def _kill(self) -> None:
        self.runs[0].is_dead = True

    def _begin_again(self) -> None:
        while not self.runs[0].is_dead and not self.runs[0].is_over:
            self.again.turn(MINUTE_MS)
        self.again.turn(MINUTE_MS)
        self.again.begin(0)

    def _look_over(
        self,
        catalog: Any,
        chosen: list[Identifier],
        *_: Any,
        prepare: Callable[[Table], Table | None],
        listener: Any,
        **__: Any,
    ) -> list[TableHealth | None]:
        run, found = listener, []
        for identifier in chosen:
            run.turn()
            table = prepare(catalog.load(identifier))
            found.append(None if table is None else self.lake.health(f"local.{table.name}", self.random))
        return found

    def _check(self) -> None:
        results = [run.result for run in (*self.runs, self.again) if run.result is not None]
        for result in results:
            named = {table.table: {job.job for job in table.jobs} for table in result.tables}
            if named != {name: {*JOBS} for name in self.lake.needs}:
                raise Violation("a run does not name every table and job")
            if any(job.status == "due" for table in result.tables for job in table.jobs):
                raise Violation("a run does not tell what became of a job")
        if self.again.result is None:
            raise Violation("the run that was begun again did not end")
        told = {
            (t.table, j.job) for result in results for t in result.tables for j in t.jobs if j.status == "not_begun"
        }
        for key in self.asked:
            # After an unknown outcome what follows on the table waits for somebody to look, and a run says so.
            if not self.lake.done[key] and key not in self.lake.broken and key not in told:
                raise Violation(f"{key} was lost")
