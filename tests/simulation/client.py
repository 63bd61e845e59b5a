"""One writer's process in the simulated world: storage and catalogs on which calls go wrong."""

import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from icekeep.catalog.base import (
    Committed,
    Conflict,
    Identifier,
    OperatorRules,
    Pointer,
    SwapOutcome,
    Table,
    Unknown,
    no_such_table,
)
from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.catalog.metadata_files import (
    dropped_from_log,
    encode,
    file_version,
    next_metadata,
    read_current,
    read_table,
)
from icekeep.errors import IcekeepError, InvalidTableError, NotFoundError, OutcomeUnknownError, UnavailableError
from icekeep.runtime import is_interrupted
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import metadata_directory
from icekeep.spec.updates import (
    AddSnapshot,
    AssertRefSnapshotId,
    RemoveSnapshotRef,
    RemoveSnapshots,
    Requirement,
    Update,
)
from icekeep.storage.base import (
    Capabilities,
    DeleteOutcome,
    DeleteStatus,
    FileInfo,
    ListingShare,
    MoveOutcome,
    moved_one_by_one,
)
from simulation.scheduler import Actor
from simulation.world import CREATE_VERSION, DIRECTORY, EVENTS, START_MS, SWAP, WAREHOUSE, Direct, Fault, Wallet, World

if TYPE_CHECKING:
    from simulation.client import Client

AFTER = {Fault.FAILED_AFTER, Fault.CRASHED_AFTER, Fault.INTERRUPTED_AFTER}


class SimulatedStorage:
    """The storage of one client: files, and directories where a file lies below them."""

    def __init__(self, client: "Client") -> None:
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
        if self._client.world.is_version(location):
            self._create_version(location, data)
            return
        self._client.call("create", location, lambda: self._create(location, data), OutcomeUnknownError)

    def move(self, source: str, target: str) -> None:
        def effect() -> None:
            self._disk.move(source, target, self._client.owner)

        self._client.call("move", source, effect, UnavailableError)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        return moved_one_by_one(self.move, moves)

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        return [self._delete(location) for location in locations]

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        return [ListingShare(prefix_location)]

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        return self.list(share.prefix)

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        def effect() -> Sequence[FileInfo]:
            prefix = prefix_location.rstrip("/") + "/"
            return [FileInfo(k, _length(d), ms) for k, (d, ms) in self._disk.files.items() if k.startswith(prefix)]

        return iter(self._client.call("list", prefix_location, effect, UnavailableError))

    def head(self, location: str) -> FileInfo | None:
        def effect() -> FileInfo | None:
            found = self._disk.files.get(location)
            return None if found is None else FileInfo(location, _length(found[0]), found[1])

        return self._client.call("head", location, effect, UnavailableError)

    def capabilities(self, location: str) -> Capabilities:
        return self._client.call(
            "prove", location, lambda: Capabilities(exclusive_create=True, move=True), UnavailableError
        )

    def directory_exists(self, location: str) -> bool:
        return bool(self.child_names(location))

    def make_directory(self, location: str) -> None:
        raise NotImplementedError("no writer makes directories")

    def remove_directory(self, location: str) -> None:
        raise NotImplementedError("no writer removes directories")

    def child_directories(self, location: str) -> Sequence[str]:
        return sorted({name for name, deeper in self._children(location) if deeper and not name.startswith(".")})

    def child_names(self, location: str) -> Sequence[str]:
        return sorted({name for name, _ in self._children(location)})

    def _children(self, location: str) -> Sequence[tuple[str, bool]]:
        def effect() -> Sequence[tuple[str, bool]]:
            prefix = location.rstrip("/") + "/"
            below = (path[len(prefix) :].partition("/") for path in self._disk.files if path.startswith(prefix))
            return [(name, bool(slash)) for name, slash, _ in below]

        return self._client.call("look into", location, effect, UnavailableError)

    def _create_version(self, location: str, data: Any) -> None:
        """The commit of a catalog in a directory; what its writer is told may be less than what happened."""
        client, world = self._client, self._client.world
        owner, fault = client.owner, client.draw(CREATE_VERSION, location)
        if fault in (Fault.NONE, Fault.STALLED):
            world.create_version(owner, location, data)
            return

        def unheard() -> None:
            with suppress(FileExistsError):
                world.create_version(owner, location, data)

        if fault is Fault.LATE:
            world.scheduler.at(world.scheduler.now_ms + world.random.randrange(1, 30_000), unheard)
        if fault is Fault.MET_ITSELF:
            world.create_version(owner, location, data)
            owner.hidden = True
            raise FileExistsError(location)
        if fault in AFTER:
            unheard()
        client.end_if(fault)
        cls = UnavailableError if fault is Fault.FAILED_BEFORE else OutcomeUnknownError
        raise cls(f"simulated: creation of {location!r} {fault.value}")

    def _create(self, location: str, data: Any) -> None:
        self._disk.create(location, data, self._client.world.scheduler.now_ms, self._client.owner)

    def _delete(self, location: str) -> DeleteOutcome:
        try:
            status = self._client.call(
                "delete", location, lambda: self._disk.delete(location, self._client.owner), UnavailableError
            )
        except IcekeepError as error:
            return DeleteOutcome(location, DeleteStatus.FAILED, error.message)
        return DeleteOutcome(location, status)


def _length(data: Any) -> int:
    """How long a file is; metadata that is not encoded has no length, and needs none."""
    return len(data) if hasattr(data, "__len__") else 1


class _Stream:
    """As much of a file as writers of metadata need, and Arrow's writers of delete files."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._length = 0

    def write(self, data: Any) -> int:
        self._parts.append(data)
        self._length += len(data)
        return len(data)

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """What is written is kept when the block ends."""

    def content(self) -> Any:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class DirectoryCatalog(FilesystemCatalog):
    """icekeep's own catalog in a directory, on the disk of one client."""

    def __init__(self, client: "Client") -> None:
        super().__init__("simulated", {"warehouse": WAREHOUSE}, client.storage, client)
        self._world = client.world

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        outcome = super().swap(table, requirements, updates)
        self._world.conflicts_count += isinstance(outcome, Conflict)
        return outcome


class SimulatedCatalog:
    """The `Catalog` of one client: as much of it as commits use."""

    name = identity = "simulated"
    warehouse = WAREHOUSE
    drop_frees_metadata_names = False
    garbage_collector: str | None = None
    reclaim_roots: tuple[str, ...] = ()
    rewrite_roots: tuple[str, ...] = ()
    rules = OperatorRules()

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._world = client.world

    @property
    def compares_metadata(self) -> bool:
        return not self._world.applies_updates

    @property
    def restores_snapshots(self) -> bool:
        return not self._world.applies_updates

    def load(self, identifier: Identifier | str) -> Table:
        return read_current(self, EVENTS)

    def find(self, identifier: Identifier | str) -> Pointer:
        location = self._client.request("load", "", lambda: self._world.pointer)
        if not location:
            raise no_such_table(self, EVENTS)
        return Pointer(location, self._client.storage)

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        return [EVENTS]

    def list_namespaces(self) -> list[Identifier]:
        return [EVENTS[:-1]]

    def locked(self, table: Table) -> AbstractContextManager[None]:
        return nullcontext()

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
            current = read_table(self, EVENTS, world.pointer, Direct(data))
            if _drops_unasserted_ref(current.metadata, requirements, updates):
                return Conflict("simulated: a new ref holds a snapshot that was to be removed")
            try:
                new = next_metadata(current, requirements, updates, world.scheduler.now_ms)
            except (InvalidTableError, NotFoundError) as error:
                owner.outrun |= _is_outrun(table.metadata, current.metadata, updates)
                return Conflict(error.message)
            if isinstance(new, Conflict):
                # Whoever sent the request cannot know that it did not go twice.
                return Conflict(new.reason)
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
        if fault in (*AFTER, Fault.LOST_ANSWER, Fault.MET_ITSELF):
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


def _is_outrun(base: TableMetadata, current: TableMetadata, updates: Sequence[Update]) -> bool:
    """Whether a snapshot is refused for nothing but the format version, to which the table was raised since it was made."""
    if current.format_version == base.format_version:
        return False
    added = [update.snapshot for update in updates if isinstance(update, AddSnapshot)]
    # One of version 1 has no sequence number, by which it would be known to be refused for ever.
    return any(base.format_version == 1 or one.sequence_number > current.last_sequence_number for one in added)


def _drops_unasserted_ref(
    current: TableMetadata, requirements: Sequence[Requirement], updates: Sequence[Update]
) -> bool:
    """A good server refuses this (H4): nobody can require that a ref which he does not know of stays."""
    gone = {number for update in updates if isinstance(update, RemoveSnapshots) for number in update.snapshot_ids}
    asserted = {r.ref for r in requirements if isinstance(r, AssertRefSnapshotId)}
    dropped = {update.ref_name for update in updates if isinstance(update, RemoveSnapshotRef)}
    new = current.refs.keys() - asserted - dropped
    return bool(requirements) and any(current.refs[name].snapshot_id in gone for name in new)


T = TypeVar("T")
_STALLS_MS = (1, 200, 5_000, 60_000)
_LONG_STALL_MS = 10 * 24 * 3600 * 1000
_CRASHES = {Fault.CRASHED_BEFORE, Fault.CRASHED_AFTER}
_INTERRUPTS = {Fault.INTERRUPTED_BEFORE, Fault.INTERRUPTED_AFTER}


class Crashed(BaseException):
    """The writer's process is gone; whatever still unwinds in it has no effect on the world."""


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
        in_directory = world.catalog == DIRECTORY
        self.catalog = DirectoryCatalog(self) if in_directory else SimulatedCatalog(self)
        self._skew_ms = skew_ms
        self._wallet = None if world.credentials is None else Wallet(self, world.credentials)

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

    def is_abandoned(self) -> bool:
        return False

    def is_stopping(self) -> bool:
        return is_interrupted()

    def draw(self, operation: str, location: str) -> Fault:
        """Let others act, and learn what becomes of a call; a stall is over when this returns."""
        self._alive()
        world, wait_ms = self.world, 0
        if operation == CREATE_VERSION and world.drags and world.random.random() < 0.05:
            world.seen["creations of a version that took days"] += 1
            fault, wait_ms = Fault.STALLED, _LONG_STALL_MS
        elif world.is_out_of_reach():
            fault = Fault.FAILED_BEFORE
        else:
            fault = world.faults.next(operation)
        if fault is Fault.STALLED:
            wait_ms = wait_ms or world.random.choice(_STALLS_MS)
        elif fault is not Fault.NONE:
            self.faults_met += 1
        world.trace.append((self.actor.name, operation, location, fault.name))
        world.scheduler.pause(self.actor, wait_ms)
        return fault

    def call(self, operation: str, location: str, effect: Callable[[], T], lost: type[IcekeepError]) -> T:
        """One call to the store; `lost` is what an answer that did not arrive is told as."""
        request = partial(self.request, operation, location, effect, lost)
        return request() if self._wallet is None else self._wallet.ask(request)

    def request(
        self, operation: str, location: str, effect: Callable[[], T], lost: type[IcekeepError] = UnavailableError
    ) -> T:
        """One call to the store or the catalog, by whomever."""
        fault = self.draw(operation, location)
        if fault in (Fault.NONE, Fault.STALLED):
            return effect()
        if fault in AFTER:
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
