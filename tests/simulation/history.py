"""One history: a table, its writers, what they do and what goes wrong, all from one seed."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from icekeep.catalog import filesystem
from icekeep.catalog.metadata_files import encode
from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, MissingFileError, OutcomeUnknownError
from icekeep.events import SILENT
from icekeep.maintenance.delete.options import ReclaimOptions
from icekeep.maintenance.delete.pending import finish_pending
from icekeep.maintenance.delete.run import DeletionRequest, DeletionRun
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.spec.metadata import new_table_metadata
from kit.runtime import no_spark, with_runtime
from kit.tables import BY_KIND, COLUMNS, UNPARTITIONED
from simulation.client import Client, Crashed
from simulation.file_operations import Operation
from simulation.model import Model
from simulation.operations import LIKED_ALONE, OPERATIONS, Make
from simulation.scheduler import Actor, Scheduler, serially
from simulation.snapshot_operations import ExpireAndReclaim, ExpireAndWait, RemoveOrphans, Restore, RestoreBeside
from simulation.world import (
    CATALOGS,
    DIRECTORY,
    EVENTS,
    FINDINGS,
    LOCATION,
    NOT_ICEKEEPS,
    NOTICED,
    START_MS,
    Credentials,
    Fault,
    Faults,
    NoFaults,
    RandomFaults,
    Told,
    Violation,
    World,
)

_DAYS_MS = 24 * 3600 * 1000
_BESIDE_ORPHANS: tuple[Make, ...] = (RemoveOrphans, RemoveOrphans, ExpireAndWait, ExpireAndWait, RestoreBeside)
"""Where orphans are removed these are strewn in, and so is whatever of them a history likes."""


@dataclass
class Tally:
    """What histories were made of."""

    histories: int = 0
    steps: int = 0
    calls: int = 0
    commits: int = 0
    checks: int = 0
    conflicts: int = 0
    told: Counter[Told] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)
    operations: Counter[tuple[str, Told]] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Take another one in."""
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
            else:
                getattr(self, name).update(value)


class History:
    """A world with a new table in it, and the run of its writers."""

    def __init__(
        self,
        seed: int,
        faults: Faults | None = None,
        *,
        share: float | None = None,
        catalog: str | None = None,
        likes: tuple[Make, ...] = (),
        with_orphans: bool = False,
        with_credentials: bool = False,
        restlessness: float | None = None,
    ) -> None:
        """What is not said is drawn, such as the scheduler's `restlessness`; `likes` are operations to choose far more often.

        `with_orphans`: orphans are removed too; nothing but real bytes will do then. `with_credentials`: those
        of the store hold for a while.
        """
        self.random = random = Random(f"history {seed}")
        drawn = random.choices(CATALOGS, [53, 35, 12])[0]
        catalog = catalog or drawn
        # A commit into a directory takes three times the calls.
        calls = 3 if catalog == DIRECTORY else 1
        drawn_restlessness = random.choice([0.1, 0.4, 0.8, 1.0]) / calls
        self.scheduler = Scheduler(random, START_MS, restlessness or drawn_restlessness)
        if share is None:
            share = random.choice([0.0, 0.01, 0.03, 0.08])
        self.faults = faults or RandomFaults(random, share / calls)
        self.world = World(random, self.scheduler, self.faults, catalog=catalog)
        self.world.seen[f"histories on a catalog of the kind {catalog!r}"] = 1
        self.model = Model(self.world)
        self.operations: list[Operation] = []
        # Of its own, so that what else happens in a history does not depend on it.
        outages = Random(f"outages {seed}")
        if share and faults is None and outages.random() < 0.3:
            self.world.outages = outages
        self._restores = Random(f"restores {seed}") if outages.random() < 0.3 else None
        self._orphans = Random(f"orphans {seed}") if with_orphans else None
        self._strewn = [*_BESIDE_ORPHANS, *4 * [make for make in likes if make in _BESIDE_ORPHANS]]
        self.world.credentials = Credentials(Random(f"credentials {seed}")) if with_credentials else None
        self._at_work: set[Actor] = set()
        self._is_waiting = False
        self._skewed = random.random() < 0.5
        # Who takes days for a commit must not be beside somebody who removes orphans.
        self.world.drags = random.random() < 0.5 and not with_orphans
        # Each history likes some operations and leaves out others: so rare ones meet each other too.
        self._weights = [
            weight * random.choice([0, 1, 1, 5]) + (40 if make in likes else 0) for make, weight in OPERATIONS.items()
        ]
        self._weights[0] += 10
        self._weights += [40 if make in likes else 0 for make in LIKED_ALONE]
        self.make_table(random.choice([1, 2, 2, 3, 3]))

    def make_table(self, format_version: int) -> None:
        """The table, empty, as a catalog creates it."""
        random, in_directory = self.random, self.world.catalog == DIRECTORY
        properties = {"commit.retry.num-retries": random.choice(["1", "4", "10"])}
        if random.random() < (0.6 if in_directory else 0.3):
            properties |= {
                "write.metadata.previous-versions-max": random.choice(["1", "3"]),
                "write.metadata.delete-after-commit.enabled": "true",
            }
        if random.random() < 0.5:
            properties |= {
                "commit.manifest.min-count-to-merge": random.choice(["2", "3"]),
                "commit.manifest.target-size-bytes": random.choice(["300", "1000", "8388608"]),
            }
        metadata = new_table_metadata(
            schema=COLUMNS,
            spec=random.choice([UNPARTITIONED, BY_KIND]),
            location=LOCATION,
            table_uuid=str(self.world.new_uuid()),
            now_ms=START_MS,
            properties=properties,
            format_version=format_version,
        )
        name = "v1" if in_directory else f"00000-{self.world.new_uuid()}"
        location = f"{LOCATION}/metadata/{name}.metadata.json"
        self.world.disk.create(location, encode(metadata), START_MS, None)
        self.world.publish(None, location, metadata)

    def run(self) -> Tally:
        """Two to five writers for 20 to 60 operations; raises `Violation` where an invariant does not hold."""
        self._left = self.random.randint(20, 60)
        names = [f"writer {n}" for n in range(self.random.randint(2, 5))]
        self.work(dict.fromkeys(names, self._write))
        return self.tally()

    def work(self, works: dict[str, Callable[[Actor], None]]) -> None:
        """Let actors work to their end and check what is left."""
        with (
            serially(),
            patch.object(filesystem, "VERSIONS_KEPT", self.world.versions_kept),
        ):
            self.scheduler.run(works)
            self.scheduler.run({"judge": self._judge})

    def _judge(self, actor: Actor) -> None:
        """The end: nothing goes wrong any more, and whoever comes now finds what was committed."""
        fired, self.world.faults, self.world.drags = self.world.faults, NoFaults(), False
        self.world.outages = None
        table = self.client(actor).catalog.load(EVENTS)
        is_head = table.metadata_location == self.world.pointer
        self.model.require(is_head, "X1", f"{table.metadata_location!r} is loaded, not {self.world.pointer!r}")
        self._finish_earlier(actor)
        self.world.faults = fired
        self.model.finish()

    def _finish_earlier(self, actor: Actor) -> None:
        """Days later: what runs had planned is deleted, the trash emptied, and nothing is left of runs that died."""
        client = Client(self.world, actor)
        # As many days as a grace and then the trash may take.
        for _ in range(3 if self._orphans is None else 6):
            self.scheduler.now_ms += 2 * _DAYS_MS
            table = client.catalog.load(EVENTS)
            request = DeletionRequest(options=ReclaimOptions())
            table = with_runtime(table, client)
            done = finish_pending(DeletionRun.of(table, no_spark, request, SILENT, client.now_ms()))
            self.world.seen["files that the trash was emptied of"] += done.emptied_count
            sweep_runs(table, client, keep="", listener=SILENT)
        left = [location for location in self.world.disk.files if "/.icekeep/" in location]
        self.model.require(not left, "X3", f"{left} are left where nobody looks for orphans")
        if self._orphans is not None:
            table = client.catalog.load(EVENTS)
            # Metadata that some commit could not swap may be further on than what is current.
            dead = {"ignore-metadata-of": table.metadata.table_uuid}
            remove_orphan_files(with_runtime(table, client), no_spark, trash=0, force=True, options=dead)
            self.model.check_nothing_else_is_left()

    def tally(self) -> Tally:
        """What it was made of."""
        return Tally(
            histories=1,
            steps=len(self.operations),
            calls=len(self.world.trace),
            commits=self.model.commits_count,
            checks=self.model.checks_count,
            conflicts=self.world.conflicts_count,
            told=Counter(operation.told for operation in self.operations),
            faults=self.faults.fired,
            operations=Counter((type(operation).__name__, operation.told) for operation in self.operations),
            seen=self.world.seen,
        )

    def digest(self) -> str:
        """A fingerprint of all that happened, in order."""
        told = [(operation.name, operation.told.name) for operation in self.operations]
        return hashlib.md5(repr((self.world.trace, told, self.world.pointer)).encode()).hexdigest()

    def story(self) -> list[str]:
        """Every call and what became of it, then what each writer was told."""
        calls = [f"{who:10} {call:8} {fault:20} {location}" for who, call, location, fault in self.world.trace]
        return [*calls, *(f"{operation.name}: {operation.told.value}" for operation in self.operations)]

    def client(self, actor: Actor) -> Client:
        """A writer's process."""
        skew_ms = self.random.randrange(-600_000, 600_000) if self._skewed else 0
        return Client(self.world, actor, skew_ms)

    def _write(self, actor: Actor) -> None:
        client = self.client(actor)
        while self._left > 0:
            self._left -= 1
            (make,) = self.random.choices([*OPERATIONS, *LIKED_ALONE], self._weights)
            if self._restores is not None and self._restores.random() < 0.1:
                make = Restore
            if self._orphans is not None and self._orphans.random() < 0.3:
                make = self._orphans.choice(self._strewn)
            if self.world.catalog == DIRECTORY:
                self._pass_time()
            while self._is_waiting:
                self.scheduler.pause(actor, _DAYS_MS)
            self._at_work.add(actor)
            self.perform(client, make)
            self._at_work.remove(actor)

    def _pass_days_without_work(self, actor: Actor) -> None:
        """Wait until all others are done with what they do, and two days more; nobody begins anything then."""
        self._is_waiting = True
        while self._at_work - {actor}:
            self.scheduler.pause(actor, 60_000)
        self.scheduler.pause(actor, 2 * _DAYS_MS)
        self._is_waiting = False

    def _pass_time(self) -> None:
        """What is hard on a catalog in a directory: days go by while somebody is in the middle of a commit; spoiled hints."""
        if self.random.random() < 0.05:
            self.world.spoil_hint()
        if self.world.drags and self.random.random() < 0.2:
            self.world.seen["times that days went by"] += 1
            self.scheduler.now_ms += 2 * _DAYS_MS

    def perform(self, client: Client, make: Callable[..., Operation]) -> Operation:
        """Run one operation; the writer is told, or is gone and starts again."""
        operation = make(len(self.operations), self.random, self.model)
        if operation.waits:
            self._pass_days_without_work(client.actor)
        self.operations.append(operation)
        client.owner, client.is_down, client.faults_met = operation, False, 0
        operation.began_ms = self.scheduler.now_ms
        told = self._told(partial(operation.run, client), operation)
        operation.met_faults = client.faults_met > 0
        operation.told = told
        self.model.told(operation)
        return operation

    def _told(self, run: Callable[[], bool], operation: Operation) -> Told:
        try:
            return Told.COMMITTED if run() else Told.UNCHANGED
        except OutcomeUnknownError as error:
            cause = error.__cause__
            if isinstance(cause, FINDINGS) or (isinstance(cause, Exception) and not isinstance(cause, IcekeepError)):
                # What the loop calls in doubt since an interrupt met it was no interrupt. Where an attempt that was refused may
                # land still, it ends so by any error of icekeep's.
                self._broken(operation, cause)
            return Told.UNKNOWN
        except Crashed:
            return Told.CRASHED
        except KeyboardInterrupt:
            return Told.INTERRUPTED
        except IcekeepBug as error:
            self._broken(operation, error)
        except InvalidTableError as error:
            if not isinstance(error, MissingFileError):
                self._broken(operation, error)
        except IcekeepError:
            pass
        except Exception as error:  # noqa: BLE001 - an error that is not icekeep's is a finding
            self._broken(operation, error)
        # What the job did after its commit may have failed; that the snapshots are gone is then not undone.
        after_commit = isinstance(operation, ExpireAndReclaim | Restore) and operation.landings
        return Told.UNKNOWN if after_commit else Told.FAILED

    def _broken(self, operation: Operation, error: BaseException) -> Any:
        found_by_library = isinstance(error, FINDINGS)
        violation = Violation(
            NOTICED if found_by_library else NOT_ICEKEEPS,
            f"{operation.name} ended with {type(error).__name__}: {error}",
        )
        violation.__cause__ = error
        self.scheduler.fail(violation)
