"""A store: put, read, put again, list, delete, each tried on a file below `.icekeep/doctor/`, and its clock."""

from collections.abc import Callable
from contextlib import suppress

import msgspec

from icekeep.errors import IcekeepError, MissingFileError, UsageError
from icekeep.operations.doctor.clocks import STORE_GRAIN_MS, ahead_ms, checked_clock
from icekeep.operations.doctor.findings import Notes
from icekeep.operations.doctor.own_files import absent, remove_empty, remove_own
from icekeep.runtime import Runtime
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.storage.base import DeleteStatus, DirectoryStorage

_DATA = b"icekeep doctor\n"
_OTHER_DATA = b"another file\n"


class StorePlace(msgspec.Struct, frozen=True):
    """A location, and what reaches it."""

    storage: DirectoryStorage
    location: str


def look_at_store(notes: Notes, place: StorePlace, runtime: Runtime) -> bool:
    """Try what jobs do with a store, in a directory of this run's own, which is removed. Returns whether it can be reached."""
    about, storage = f"store {place.location}", place.storage
    base = place.location.rstrip("/")
    trial = _Trial(storage, f"{base}/{OWN_DIRECTORY}/doctor", runtime)
    # A store that is not there is asked by something that does not go on for minutes, as a put does.
    if not notes.look(about, "reached", trial.reach):
        return False
    made = absent(storage, f"{base}/{OWN_DIRECTORY}/doctor", f"{base}/{OWN_DIRECTORY}", base)
    is_put = False
    try:
        is_put = notes.look(about, "put", trial.put)
        for check, look in trial.after_put.items() if is_put else ():
            notes.look(about, check, look)
    finally:
        if is_put:
            notes.look(about, "delete", trial.remove)
        else:
            # It is hardly there, and why it could not be made is said already.
            with suppress(IcekeepError):
                trial.remove()
        remove_empty(storage, made)
    return True


class _Trial:
    """One file, and what is done with it."""

    def __init__(self, storage: DirectoryStorage, directory: str, runtime: Runtime) -> None:
        self._storage, self._runtime = storage, runtime
        self._drawn = str(runtime.new_uuid())
        self._directory = f"{directory}/{self._drawn}"
        self._location = f"{self._directory}/file"
        self._began_ms = self._ended_ms = 0
        self._is_anothers = False
        self.after_put: dict[str, Callable[[], str]] = {
            "read": self._read,
            "conditional put": self._put_again,
            "list": self._list,
            "clock": self._clock,
        }

    def reach(self) -> str:
        """Read a file that is not there; the answer to a mere look would not tell that there is no such bucket."""
        began_ms = self._runtime.monotonic_ms()
        try:
            self._storage.read(self._location)
        except MissingFileError:
            return f"it answers, in {self._runtime.monotonic_ms() - began_ms:,} ms"
        raise UsageError(f"it has a file {self._location!r}, which nobody created")

    def put(self) -> str:
        """Make the file."""
        self._began_ms = self._runtime.now_ms()
        try:
            self._storage.create(self._location, _DATA)
        except FileExistsError:
            self._is_anothers = True
            raise
        self._ended_ms = self._runtime.now_ms()
        return "a file can be created"

    def remove(self) -> str:
        """Delete the file, and all else of this run; nothing where somebody else has the name."""
        if self._is_anothers:
            return "not removed: another process made the file"
        (outcome,) = self._storage.delete_many([self._location])
        if outcome.status is DeleteStatus.FAILED:
            raise UsageError(f"{self._location!r} cannot be deleted, and is left behind: {outcome.reason}")
        if self._storage.head(self._location) is not None:
            raise UsageError(f"{self._location!r} is still there after it was deleted; remove it by hand")
        remove_own(self._storage, self._directory, self._drawn)
        return "all that this run created is removed"

    def _put_again(self) -> str:
        try:
            self._storage.create(self._location, _OTHER_DATA)
        except FileExistsError:
            return "a second file of the same name is refused"
        raise UsageError(
            "the store put a second file over the first of the same name: two runs could claim the same work, and in a "
            "filesystem catalog two writers commit the same version; use a store, or a release of it, that honours If-None-Match"
        )

    def _read(self) -> str:
        found = self._storage.read(self._location)
        if found != _DATA:
            raise UsageError(f"{len(found)} bytes came back that are not the {len(_DATA)} that were put")
        return "what was put is read"

    def _list(self) -> str:
        listed = [file.location.rpartition("/")[2] for file in self._storage.list(self._directory)]
        if listed != ["file"]:
            raise UsageError(
                f"a listing shows {listed} where there is one file called 'file': orphan removal and deletion go by listings"
            )
        return "a new file is listed at once"

    def _clock(self) -> str:
        seen = self._storage.head(self._location)
        if seen is None:
            raise UsageError(f"it does not list {self._location!r}, which was just created")
        difference_ms = ahead_ms(seen.modified_ms, self._began_ms, self._ended_ms, STORE_GRAIN_MS)
        return checked_clock("the store", difference_ms)
