"""The simulated world: one disk and one catalog for all writers, what goes wrong at their calls, and what each is told."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from icekeep.catalog.base import Identifier
from icekeep.catalog.metadata_files import HINT, file_version, parse_version_name, read_table
from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, MissingFileError
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import DeleteStatus
from icekeep.storage.vended import VendedProperties
from simulation.scheduler import Scheduler

if TYPE_CHECKING:
    from simulation.model import Model

KINDS = ("a", "b", "c")
"""What the column `kind` of a table holds, by which some tables are partitioned."""


def kind_of(row: int) -> str:
    """The kind of a row."""
    return KINDS[row // 10 % len(KINDS)]


def kinds_of(rows: Iterable[int]) -> list[str]:
    """The kinds of rows, sorted."""
    return sorted(set(map(kind_of, rows)))


FINDINGS = (IcekeepBug, InvalidTableError)
NOTICED = "E1"
"""What the library itself finds: that the table is damaged, or the library broken."""

NOT_ICEKEEPS = "E2"
"""An error that is none of icekeep's, such as a `TypeError`."""


class Violation(AssertionError):
    """An invariant does not hold; `invariant` is its letter and number, as `model` has them."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant, self.message = invariant, message

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        return type(self), (self.invariant, self.message)


class Told(Enum):
    """What a writer was told of its operation."""

    NOTHING = "nothing yet"
    COMMITTED = "committed"
    UNCHANGED = "nothing to change"
    FAILED = "proven not to have landed"
    UNKNOWN = "unknown"
    CRASHED = "the writer crashed"
    INTERRUPTED = "the writer was interrupted"


class Effect(NamedTuple):
    """What an operation does to the live files of one branch, and to its rows beside that.

    `deleted_rows` go by delete files. A compaction leaves the rows as they are (`same_rows`), and where others have deleted
    some of what it replaces it may bring some of the delete files of `may_carry`, for files that it adds. Added files are
    given `sequence_number`, or that of `numbers` where they have one, or the snapshot's.
    """

    branch: str
    removed: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    sequence_number: int | None = None
    same_rows: bool = False
    deleted_rows: frozenset[int] = frozenset()
    may_carry: frozenset[str] = frozenset()
    numbers: Mapping[str, int] = {}


class Doing(Protocol):
    """An operation as the model sees it."""

    name: str
    told: Told
    landings: int
    met_faults: bool
    unrecognised: bool
    outrun: bool
    began_ms: int
    moves_refs: frozenset[str]
    changes: frozenset[str]
    expires: bool
    restores: bool
    left: frozenset[str]

    def effect(self, model: "Model", before: TableMetadata, after: TableMetadata) -> Effect | None:
        """What may differ, of a landing on top of `before`."""

    def check(self, model: "Model", before: TableMetadata, after: TableMetadata) -> None:
        """What else must hold of it."""

    def deletes(self, model: "Model", location: str) -> None:
        """What must hold of a file that it is about to delete, beside what holds of all."""


class Fault(Enum):
    """What becomes of one call to storage or the catalog."""

    NONE = "none"
    STALLED = "stalled"
    FAILED_BEFORE = "failed before it took effect"
    FAILED_AFTER = "failed after it took effect"
    CRASHED_BEFORE = "last before a crash, without effect"
    CRASHED_AFTER = "last before a crash"
    INTERRUPTED_BEFORE = "interrupted before it took effect"
    INTERRUPTED_AFTER = "interrupted after it took effect"
    # Of the calls that commit alone: the swap of a pointer, the creation of a version.
    LOST_ANSWER = "answer lost"
    LOST_REQUEST = "request lost"
    LATE = "lands later"
    MET_ITSELF = "landed and reported as a conflict"
    BUSY = "refused though nobody was faster"


ANYWHERE = (
    Fault.STALLED,
    Fault.FAILED_BEFORE,
    Fault.FAILED_AFTER,
    Fault.CRASHED_BEFORE,
    Fault.CRASHED_AFTER,
    Fault.INTERRUPTED_BEFORE,
    Fault.INTERRUPTED_AFTER,
)
AT_SWAPS = (*ANYWHERE, Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.LATE, Fault.MET_ITSELF, Fault.BUSY)
AT_CREATES = (*ANYWHERE, Fault.LOST_REQUEST, Fault.LATE, Fault.MET_ITSELF)
SWAP = "swap"
CREATE_VERSION = "create version"
AT = {SWAP: AT_SWAPS, CREATE_VERSION: AT_CREATES}
"""What can go wrong at the calls that commit; at all others it is `ANYWHERE`."""


class Faults(Protocol):
    """Decides call by call; `fired` counts what it decided."""

    fired: Counter[Fault]

    def next(self, operation: str) -> Fault:
        """What becomes of this call."""


class NoFaults:
    """Nothing goes wrong."""

    def __init__(self) -> None:
        self.fired: Counter[Fault] = Counter()

    def next(self, operation: str) -> Fault:
        return Fault.NONE


class RandomFaults:
    """A share of all calls, and a greater one of those that commit, where most is at stake."""

    def __init__(self, random: Random, share: float) -> None:
        self.fired: Counter[Fault] = Counter()
        self._random = random
        self._shares = {operation: min(1.0, share * 6) for operation in AT}
        self._share = share

    def next(self, operation: str) -> Fault:
        if not self._share or self._random.random() >= self._shares.get(operation, self._share):
            return Fault.NONE
        fault = self._random.choice(AT.get(operation, ANYWHERE))
        self.fired[fault] += 1
        return fault


class FaultAt:
    """One fault, at the `number`th call; `calls` names all calls that were made."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.fired: Counter[Fault] = Counter()
        self.calls: list[str] = []
        self._number, self._fault = number, fault

    def next(self, operation: str) -> Fault:
        self.calls.append(operation)
        if len(self.calls) - 1 != self._number:
            return Fault.NONE
        self.fired[self._fault] += 1
        return self._fault


if TYPE_CHECKING:
    from simulation.client import Client

T = TypeVar("T")
_TOKEN, _END = "s3.session-token", "s3.session-token-expires-at-ms"


class RefusedError(IcekeepError):
    """A store took no request with these credentials: whoever works beside a catalog that answers never sees it."""


class Credentials:
    """What the catalog hands out: for how long they hold, and whether it says so."""

    def __init__(self, random: Random) -> None:
        self.life_ms = random.choice([20_000, 60_000, 3_600_000])
        self._tells_end = random.random() < 0.5
        self._random = random
        self._ends_ms: dict[str, int] = {}

    def handed_out(self, now_ms: int) -> dict[str, str]:
        """New ones."""
        token = f"{self._random.getrandbits(64):016x}"
        self._ends_ms[token] = now_ms + self.life_ms
        return {_TOKEN: token} | ({_END: str(now_ms + self.life_ms)} if self._tells_end else {})

    def check(self, properties: Mapping[str, str], now_ms: int) -> None:
        """Raise `RefusedError` where they have ended."""
        if now_ms >= self._ends_ms[properties[_TOKEN]]:
            raise RefusedError("simulated: these credentials have ended")


class Wallet:
    """The credentials of one client, as a storage has them."""

    def __init__(self, client: "Client", credentials: Credentials) -> None:
        self._credentials, self._client = credentials, client
        first = credentials.handed_out(client.world.scheduler.now_ms)
        self._vended = VendedProperties(first, _Renewal(self), client)

    def ask(self, request: Callable[[], T]) -> T:
        """Make a request with what holds now."""

        def authorized() -> T:
            self._credentials.check(self._vended.current(), self._client.world.scheduler.now_ms)
            return request()

        try:
            return self._vended.ask(authorized, lambda error: isinstance(error, RefusedError))
        except RefusedError as error:
            self._client.world.refused(self._client.owner, error)
            raise

    def renewed(self) -> dict[str, str]:
        """One call to the catalog, that may fail as every other."""
        world = self._client.world
        world.seen["renewals of credentials"] += 1
        return self._client.request("renew", "", lambda: self._credentials.handed_out(world.scheduler.now_ms))


class _Renewal:
    def __init__(self, wallet: Wallet) -> None:
        self._wallet = wallet
        # Each process has its own, and no later one has the same.
        self.key = object()

    def properties(self) -> Mapping[str, str]:
        return self._wallet.renewed()


EVENTS: Identifier = ("db", "events")
WAREHOUSE = "memory://lake/wh"
LOCATION = f"{WAREHOUSE}/db/events"
START_MS = 1_700_000_000_000
POINTER, UPDATES, DIRECTORY = "pointer", "updates", "directory"
CATALOGS = (POINTER, UPDATES, DIRECTORY)
"""A catalog that swaps a pointer if it is where the writer saw it, as SQL does; one that applies updates to whatever is
current if their requirements hold, as REST servers do; icekeep's own in a directory, on the simulated disk.
"""

SEEN = (
    *(f"histories on a catalog of the kind {kind!r}" for kind in CATALOGS),
    "appends that merged manifests",
    "creations of a version that took days",
    "dangling delete files removed",
    "expirations that left files for later",
    "files of earlier plans that were deleted",
    "files brought back",
    "files removed as orphans",
    "files that are no orphans since a plan names them",
    "files that the trash was emptied of",
    "hints spoiled",
    "looks at a starting snapshot that is held",
    "retained snapshots with files of another spec than the current one",
    "renewals of credentials",
    "rewrites of manifests refused since others had changed them",
    "rewrites refused since rows that they left out are back",
    "rewrites that carried deletes over in a later attempt",
    "rewrites that carried deletes over",
    "snapshots published as they are",
    "snapshots replayed",
    "snapshots restored",
    "times that days went by",
    "times that everything was out of reach",
    "versions created behind the head",
)
"""What `World.seen` counts."""


class Disk:
    """Files by location, as they really are. `deleted(location, owner)` is told before a file goes, and by whom."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[Any, int]] = {}
        self.owners: dict[str, Any] = {}
        self.deleted: Callable[[str, Any], None] = lambda location, owner: None

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

    def move(self, source: str, target: str, owner: Any) -> None:
        """A file that is moved is as old as before.

        A restore that took a plan from its run says that a call may be under way: what such a call moves to the trash later, the
        operator takes back when he is told to, which is done here at once.
        """
        if self._is_restored(target):
            self.read(source)
            return
        data, modified_ms = self.read(source), self.files[source][1]
        self.create(target, data, modified_ms, owner)
        self.delete(source, owner)

    def _is_restored(self, trash: str) -> bool:
        directory, files, _ = trash.partition("/files/")
        mark = f"{directory}/done.json"
        return bool(files) and mark in self.files and b'"restored":true' in self.files[mark][0]

    def delete(self, location: str, owner: Any) -> DeleteStatus:
        if location not in self.files:
            return DeleteStatus.MISSING
        self.deleted(location, owner)
        del self.files[location]
        return DeleteStatus.DELETED


class World:
    """What all share. `landed(owner, location, new)` is told of each metadata that becomes current, `went_astray` of each
    version that was created behind the head. `versions_kept`: how many a catalog in a directory keeps in any case;
    `drags`: there a commit may take days. `outages` decides when store and catalog are out of reach, null for never;
    `credentials` are those of the store, null where it asks for none; `removing_orphans` are the
    operations that are at it. `seen` counts what came about, by what it is called in a
    report.
    """

    def __init__(self, random: Random, scheduler: Scheduler, faults: Faults, *, catalog: str) -> None:
        self.random, self.scheduler, self.faults = random, scheduler, faults
        self.catalog = catalog
        self.seen: Counter[str] = Counter()
        self.versions_kept = random.randint(2, 5)
        self.drags = False
        self.outages: Random | None = None
        self.credentials: Credentials | None = None
        self.removing_orphans: set[Any] = set()
        self._back_ms = 0
        self.disk = Disk()
        self.pointer = ""
        self.published: set[str] = set()
        self.landed: Callable[[Any, str, TableMetadata], None] = lambda owner, location, new: None
        self.went_astray: Callable[[Any, str], None] = lambda owner, location: None
        self.trace: list[tuple[str, str, str, str]] = []
        self.conflicts_count = 0

    @property
    def applies_updates(self) -> bool:
        """Whether the catalog applies updates to metadata that its writer has not seen."""
        return self.catalog == UPDATES

    def is_out_of_reach(self) -> bool:
        """Whether nothing answers now: for seconds, as while a database fails over, or for minutes."""
        now_ms = self.scheduler.now_ms
        if self.outages is not None and now_ms >= self._back_ms and self.outages.random() < 0.002:
            self._back_ms = now_ms + self.outages.choice([2_000, 20_000, 20_000, 300_000])
            self.seen["times that everything was out of reach"] += 1
        return self.outages is not None and now_ms < self._back_ms

    def refused(self, owner: Any, error: Exception) -> None:
        """A store refused the credentials of a job although the catalog hands out new ones."""
        self.scheduler.fail(Violation("V1", f"{getattr(owner, 'name', 'somebody')}: {error}"))

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

    def is_version(self, location: str) -> bool:
        """Whether a file would be a commit: a version in the table's directory, where that is the catalog."""
        directory, _, name = location.rpartition("/")
        is_metadata = self.catalog == DIRECTORY and directory == f"{LOCATION}/metadata"
        return is_metadata and parse_version_name(name) is not None

    def create_version(self, owner: Any, location: str, data: Any) -> None:
        """Create a version; it is the head from then on, unless there is a newer one."""
        self.disk.create(location, data, self.scheduler.now_ms, owner)
        if file_version(location) > file_version(self.pointer):
            new = read_table(self, EVENTS, location, Direct(data)).metadata  # type: ignore[arg-type]
            self.publish(owner, location, new)
        else:
            self.seen["versions created behind the head"] += 1
            self.went_astray(owner, location)

    def spoil_hint(self) -> None:
        """Do to the hint what other engines, and crashes of theirs, may do to it."""
        location = f"{LOCATION}/metadata/{HINT}"
        newest = file_version(self.pointer)
        text = self.random.choice([None, "", "garbage", "0", "1", str(max(newest - 1, 1)), str(newest + 7), "9" * 40])
        self.disk.files.pop(location, None)
        self.seen["hints spoiled"] += 1
        if text is not None:
            self.disk.create(location, text.encode(), self.scheduler.now_ms, None)


class Direct:
    """A storage of one file, that a server reads for itself."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def read(self, location: str, length_bytes: int | None = None) -> Any:
        return self._data
