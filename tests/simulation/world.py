"""The simulated world: one disk and one catalog for all writers, and who is told of what becomes of them."""

import uuid
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from icekeep.catalog.base import Identifier
from icekeep.catalog.metadata_files import HINT, file_version, parse_version_name, read_table
from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import DeleteStatus
from simulation.credentials import Credentials
from simulation.doing import Violation
from simulation.faults import Faults
from simulation.scheduler import Scheduler

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
