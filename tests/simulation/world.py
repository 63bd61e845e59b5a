"""The simulated world: one disk and one catalog for all, and for each writer a way to them on which calls go wrong."""

import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, BinaryIO, TypeVar

from icekeep.catalog.base import Committed, Conflict, Identifier, SwapOutcome, Table, Unknown, no_such_table
from icekeep.catalog.metadata_files import dropped_from_log, encode, file_version, next_metadata, read_table
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from icekeep.spec.layout import metadata_directory
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.requirements import AssertRefSnapshotId, Requirement
from icekeep.spec.updates import RemoveSnapshotRef, RemoveSnapshots, Update
from icekeep.storage.base import Capabilities, DeleteOutcome, DeleteStatus, FileInfo
from simulation.faults import SWAP, Fault, Faults
from simulation.scheduler import Actor, Scheduler

T = TypeVar("T")
EVENTS: Identifier = ("db", "events")
START_MS = 1_700_000_000_000
_STALLS_MS = (1, 200, 5_000, 60_000)
_AFTER = {Fault.FAILED_AFTER, Fault.CRASHED_AFTER, Fault.INTERRUPTED_AFTER}
_CRASHES = {Fault.CRASHED_BEFORE, Fault.CRASHED_AFTER}
_INTERRUPTS = {Fault.INTERRUPTED_BEFORE, Fault.INTERRUPTED_AFTER}


class Crashed(BaseException):
    """The writer's process is gone; whatever still unwinds in it has no effect on the world."""


class Disk:
    """Files by location, as they really are. `deleted(location)` is told before a file goes, `written` after one came."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[Any, int]] = {}
        self.owners: dict[str, Any] = {}
        self.deleted: Callable[[str], None] = lambda location: None

    def read(self, location: str, length_bytes: int | None = None) -> Any:
        if location not in self.files:
            raise MissingFileError(f"cannot read {location!r}: there is no such file", location=location)
        data = self.files[location][0]
        if length_bytes is not None and len(data) != length_bytes:
            raise InvalidTableError(f"file {location!r} is {len(data)} bytes long where metadata says {length_bytes}")
        return data

    def create(self, location: str, data: Any, now_ms: int, owner: Any) -> None:
        if location in self.files:
            raise FileExistsError(location)
        self.files[location] = (data, now_ms)
        self.owners[location] = owner

    def delete(self, location: str) -> DeleteStatus:
        if location not in self.files:
            return DeleteStatus.MISSING
        self.deleted(location)
        del self.files[location]
        return DeleteStatus.DELETED


class World:
    """What all share. `landed(owner, previous, new)` is told of each metadata that becomes current.

    `applies_updates`: the catalog applies updates to whatever is current if their requirements hold, as REST servers do;
    else it swaps a pointer if it is where the writer saw it.
    """

    def __init__(self, random: Random, scheduler: Scheduler, faults: Faults, *, applies_updates: bool) -> None:
        self.random, self.scheduler, self.faults = random, scheduler, faults
        self.applies_updates = applies_updates
        self.disk = Disk()
        self.pointer = ""
        self.published: set[str] = set()
        self.landed: Callable[[Any, str, TableMetadata], None] = lambda owner, location, new: None
        self.trace: list[tuple[str, str, str, str]] = []
        self.conflicts_count = 0

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def publish(self, owner: Any, location: str, new: TableMetadata) -> None:
        """Move the pointer."""
        try:
            self.landed(owner, location, new)
        except Exception as error:  # noqa: BLE001 - the library must not take what the model met for its own
            self.scheduler.fail(error)
        self.pointer = location
        self.published.add(location)


class Client:
    """One writer's process: its clock, its calls to storage and the catalog, and whether it is still alive.

    It is a `Runtime`. `owner` is the operation that is being run; what is written and what lands is told to be its.
    """

    def __init__(self, world: World, actor: Actor, skew_ms: int = 0) -> None:
        self.world, self.actor = world, actor
        self.owner: Any = None
        self.is_down = False
        self.faults_met = 0
        self.storage = SimulatedStorage(self)
        self.catalog = SimulatedCatalog(self)
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self.world.scheduler.now_ms + self._skew_ms

    def monotonic_ms(self) -> int:
        return self.world.scheduler.now_ms - START_MS

    def sleep_ms(self, duration_ms: int) -> None:
        self._alive()
        self.world.scheduler.pause(self.actor, duration_ms)

    def uniform(self, low: float, high: float) -> float:
        return self.world.random.uniform(low, high)

    def new_uuid(self) -> uuid.UUID:
        return self.world.new_uuid()

    def draw(self, operation: str, location: str) -> Fault:
        """Let others act, and learn what becomes of a call; a stall is over when this returns."""
        self._alive()
        fault = self.world.faults.next(operation)
        self.world.trace.append((self.actor.name, operation, location, fault.name))
        wait_ms = 0
        if fault is not Fault.NONE:
            if fault is Fault.STALLED:
                wait_ms = self.world.random.choice(_STALLS_MS)
            else:
                self.faults_met += 1
        self.world.scheduler.pause(self.actor, wait_ms)
        return fault

    def call(self, operation: str, location: str, effect: Callable[[], T], lost: type[IcekeepError]) -> T:
        """One call to the world; `lost` is what an answer that did not arrive is told as."""
        fault = self.draw(operation, location)
        if fault in (Fault.NONE, Fault.STALLED):
            return effect()
        if fault in _AFTER:
            effect()
        self.end_if(fault)
        cls = lost if fault is Fault.FAILED_AFTER else UnavailableError
        raise cls(f"simulated: {operation} of {location!r} {fault.value}")

    def end_if(self, fault: Fault) -> None:
        """Crash, or be interrupted, if the fault is that."""
        if fault in _CRASHES:
            self.is_down = True
            raise Crashed
        if fault in _INTERRUPTS:
            raise KeyboardInterrupt

    def _alive(self) -> None:
        if self.is_down:
            raise Crashed


class SimulatedStorage:
    """The `Storage` of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._disk = client.world.disk

    def open(self, location: str) -> BinaryIO:
        return io.BytesIO(self.read(location))

    def read(self, location: str, length_bytes: int | None = None) -> Any:
        return self._client.call("read", location, lambda: self._disk.read(location, length_bytes), UnavailableError)

    @contextmanager
    def write(self, location: str) -> Iterator[Any]:
        stream = _Stream()
        yield stream
        self._client.call("write", location, lambda: self._create(location, stream.content()), UnavailableError)

    def create(self, location: str, data: Any) -> None:
        self._client.call("create", location, lambda: self._create(location, data), OutcomeUnknownError)

    def move(self, source: str, target: str) -> None:
        def effect() -> None:
            self._create(target, self._disk.read(source))
            self._disk.delete(source)

        self._client.call("move", source, effect, UnavailableError)

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return [self._delete(location) for location in locations]

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        def effect() -> list[FileInfo]:
            prefix = prefix_location.rstrip("/") + "/"
            return [FileInfo(k, len(d), ms) for k, (d, ms) in self._disk.files.items() if k.startswith(prefix)]

        return iter(self._client.call("list", prefix_location, effect, UnavailableError))

    def head(self, location: str) -> FileInfo | None:
        def effect() -> FileInfo | None:
            found = self._disk.files.get(location)
            return None if found is None else FileInfo(location, len(found[0]), found[1])

        return self._client.call("head", location, effect, UnavailableError)

    def capabilities(self, location: str) -> Capabilities:
        return Capabilities(exclusive_create=True, move=True)

    def _create(self, location: str, data: Any) -> None:
        self._disk.create(location, data, self._client.world.scheduler.now_ms, self._client.owner)

    def _delete(self, location: str) -> DeleteOutcome:
        try:
            status = self._client.call("delete", location, lambda: self._disk.delete(location), UnavailableError)
        except IcekeepError as error:
            return DeleteOutcome(location, DeleteStatus.FAILED, error.message)
        return DeleteOutcome(location, status)


class _Stream:
    def __init__(self) -> None:
        self._parts: list[Any] = []

    def write(self, data: Any) -> int:
        self._parts.append(data)
        return len(data)

    def content(self) -> Any:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class SimulatedCatalog:
    """The `Catalog` of one client: as much of it as commits use."""

    name = "simulated"

    def __init__(self, client: Client) -> None:
        self._client = client
        self._world = client.world

    def load(self, identifier: Identifier | str) -> Table:
        location = self._client.call("load", "", lambda: self._world.pointer, UnavailableError)
        if not location:
            raise no_such_table(self, EVENTS)
        return read_table(self, EVENTS, location, self._client.storage)

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        return [EVENTS]

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        how = self._applied if self._world.applies_updates else self._pointed
        outcome = how(table, requirements, updates)
        self._world.conflicts_count += isinstance(outcome, Conflict)
        return outcome

    def _pointed(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        """As catalogs do it that know nothing but where the current metadata lies."""
        client = self._client
        new = next_metadata(table, requirements, updates, client.now_ms())
        if isinstance(new, Conflict):
            return new
        location = self._new_location(table.metadata_location, new)
        with client.storage.write(location) as stream:
            stream.write(encode(new))
        owner = client.owner

        def move() -> SwapOutcome:
            if self._world.pointer != table.metadata_location:
                return Conflict(f"another writer committed {self._world.pointer!r}")
            self._world.publish(owner, location, new)
            return Committed(Table(table.identifier, new, location, client.storage, self))

        outcome = self._asked(move, location)
        if isinstance(outcome, Conflict) and location not in self._world.published:
            client.storage.delete_many([location])
        if isinstance(outcome, Committed):
            client.storage.delete_many([entry.metadata_file for entry in dropped_from_log(table.metadata, new)])
        return outcome

    def _applied(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        """As a REST server does it: on what is current, and on the server's clock."""
        world, owner = self._world, self._client.owner

        def apply() -> SwapOutcome:
            data = world.disk.read(world.pointer)
            current = read_table(self, EVENTS, world.pointer, _Direct(data))
            if _drops_unasserted_ref(current.metadata, requirements, updates):
                return Conflict("simulated: a new ref holds a snapshot that was to be removed")
            try:
                new = next_metadata(current, requirements, updates, world.scheduler.now_ms)
            except (InvalidTableError, NotFoundError) as error:
                return Conflict(error.message)
            if isinstance(new, Conflict):
                return new
            location = self._new_location(world.pointer, new)
            world.disk.create(location, encode(new), world.scheduler.now_ms, owner)
            world.publish(owner, location, new)
            return Committed(Table(table.identifier, new, location, self._client.storage, self))

        return self._asked(apply, "")

    def _asked(self, effect: Callable[[], SwapOutcome], location: str) -> SwapOutcome:
        """The answer to one request that moves the pointer; what it is told may be less than what happened."""
        client, world = self._client, self._world
        fault = client.draw(SWAP, location)
        if fault in (Fault.NONE, Fault.STALLED):
            return effect()
        if fault is Fault.BUSY:
            return Conflict("simulated: the catalog is busy")
        if fault is Fault.FAILED_BEFORE:
            raise UnavailableError("simulated: the catalog refuses for now")
        if fault is Fault.LATE:
            world.scheduler.at(world.scheduler.now_ms + world.random.randrange(1, 30_000), effect)
        if fault in (*_AFTER, Fault.LOST_ANSWER, Fault.MET_ITSELF):
            outcome = effect()
            if fault is Fault.MET_ITSELF:
                client.owner.hidden = isinstance(outcome, Committed)
                return Conflict("simulated: the request was sent twice, and the second met the first")
        client.end_if(fault)
        if fault is Fault.FAILED_AFTER:
            raise OutcomeUnknownError("simulated: the answer was lost", metadata_location=location)
        return Unknown(f"simulated: {fault.value}", location)

    def _new_location(self, base_location: str, new: TableMetadata) -> str:
        return f"{metadata_directory(new)}/{file_version(base_location) + 1:05d}-{self._world.new_uuid()}.metadata.json"


def _drops_unasserted_ref(
    current: TableMetadata, requirements: Sequence[Requirement], updates: Sequence[Update]
) -> bool:
    """A good server refuses this (H4): nobody can require that a ref which he does not know of stays."""
    gone = {number for update in updates if isinstance(update, RemoveSnapshots) for number in update.snapshot_ids}
    asserted = {r.ref for r in requirements if isinstance(r, AssertRefSnapshotId)}
    dropped = {update.ref_name for update in updates if isinstance(update, RemoveSnapshotRef)}
    new = current.refs.keys() - asserted - dropped
    return bool(requirements) and any(current.refs[name].snapshot_id in gone for name in new)


class _Direct:
    """A storage of one file, that a server reads for itself."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def read(self, location: str, length_bytes: int | None = None) -> Any:
        return self._data
