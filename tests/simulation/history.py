"""One history: a table, its writers, what they do and what goes wrong, all from one seed."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from icekeep.catalog.metadata_files import encode
from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, MissingFileError, OutcomeUnknownError
from icekeep.maintenance.expiration import execute
from icekeep.spec.metadata import new_table_metadata
from kit.tables import COLUMNS, UNPARTITIONED
from simulation import reaching
from simulation.faults import Fault, Faults, RandomFaults
from simulation.metadata_operations import ExpireAndReclaim
from simulation.model import Model, Told, Violation
from simulation.operation import Operation
from simulation.operations import OPERATIONS
from simulation.scheduler import Actor, Scheduler
from simulation.world import START_MS, Client, Crashed, World

LOCATION = "memory://lake/wh/db/events"


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

    def add(self, other: "Tally") -> None:
        """Take another one in."""
        for name, value in vars(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
            else:
                getattr(self, name).update(value)


class History:
    """A world with a new table in it, and the run of its writers."""

    def __init__(self, seed: int, faults: Faults | None = None, *, share: float | None = None) -> None:
        self.random = random = Random(f"history {seed}")
        self.scheduler = Scheduler(random, START_MS, random.choice([0.1, 0.4, 0.8, 1.0]))
        if share is None:
            share = random.choice([0.0, 0.01, 0.03, 0.08])
        self.faults = faults or RandomFaults(random, share)
        applies_updates = random.random() < 0.4
        self.world = World(random, self.scheduler, self.faults, applies_updates=applies_updates)
        self.model = Model(self.world)
        self.operations: list[Operation] = []
        self._skewed = random.random() < 0.5
        # Each history likes some operations and leaves out others: so rare ones meet each other too.
        self._weights = [weight * random.choice([0, 1, 1, 5]) for weight in OPERATIONS.values()]
        self._weights[0] += 10
        self.make_table(random.choice([1, 2, 2, 3, 3]))

    def make_table(self, format_version: int) -> None:
        """The table, empty, as a catalog creates it."""
        properties = {"commit.retry.num-retries": self.random.choice(["1", "4", "10"])}
        if self.random.random() < 0.3:
            properties |= {
                "write.metadata.previous-versions-max": "3",
                "write.metadata.delete-after-commit.enabled": "true",
            }
        metadata = new_table_metadata(
            schema=COLUMNS,
            spec=UNPARTITIONED,
            location=LOCATION,
            table_uuid=str(self.world.new_uuid()),
            now_ms=START_MS,
            properties=properties,
            format_version=format_version,
        )
        location = f"{LOCATION}/metadata/00000-{self.world.new_uuid()}.metadata.json"
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
        original, execute.unreachable = execute.unreachable, reaching.unreachable
        try:
            self.scheduler.run(works)
            self.scheduler.run({"judge": lambda actor: self.model.finish()})
        finally:
            execute.unreachable = original

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
            (make,) = self.random.choices([*OPERATIONS], self._weights)
            self.perform(client, make)

    def perform(self, client: Client, make: Callable[..., Operation]) -> Operation:
        """Run one operation; the writer is told, or is gone and starts again."""
        operation = make(len(self.operations), self.random, self.model)
        self.operations.append(operation)
        client.owner, client.is_down, client.faults_met = operation, False, 0
        told = self._told(partial(operation.run, client), operation)
        operation.met_faults = client.faults_met > 0
        operation.told = told
        self.model.told(operation)
        return operation

    def _told(self, run: Callable[[], bool], operation: Operation) -> Told:
        try:
            return Told.COMMITTED if run() else Told.UNCHANGED
        except OutcomeUnknownError as error:
            if isinstance(error.__cause__, Exception):
                # What the loop calls in doubt since an interrupt met it was no interrupt.
                self._broken(operation, error.__cause__)
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
        after_commit = isinstance(operation, ExpireAndReclaim) and operation.landings
        return Told.UNKNOWN if after_commit else Told.FAILED

    def _broken(self, operation: Operation, error: BaseException) -> Any:
        violation = Violation(f"{operation.name} ended with {type(error).__name__}: {error}")
        violation.__cause__ = error
        self.scheduler.fail(violation)
