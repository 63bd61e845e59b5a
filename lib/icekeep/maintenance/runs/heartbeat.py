"""A run says that it is alive, for as long as it is: a file below `.icekeep/runs/<run>/`, written anew every few minutes.

Whoever cleans up goes by it. `sweep_runs` leaves all that a run keeps below `.icekeep/` while it beats, and orphan removal
leaves new files with the name of a living run in theirs (`living_runs`), however old they are: a run of three days has files
of three days that no snapshot names yet. A run that was killed, or lost its machine, beats no more and its last beat ages.

Ages are those of files by the store's own clock, so that a machine with a wrong one can neither kill a run nor keep a dead one
alive; the times in a beat are for people. Storage overwrites nothing, so each beat is a file of its own, and the one before
stays for another round: a listing that runs meanwhile sees one of them at least.

Other engines know nothing of beats. So a commit of a run that is older than what orphan removal lets be looks first whether
its new files are still there (`Heartbeat.looking`), and the snapshot that a run reads is held by a tag (`start_tag.py`).
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.log_context import log_context
from icekeep.commit.attempt import Attempt, Change
from icekeep.errors import OutcomeUnknownError, SafetyError, one_line
from icekeep.events import Listener, Warned
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory
from icekeep.spec.types import HOUR_MS, MINUTE_MS
from icekeep.spec.updates import Update
from icekeep.storage.many import head_many

_LOG = logging.getLogger(__name__)

BEAT = "alive-"
"""So begin the names of the files."""

EVERY_MS = 5 * MINUTE_MS

LOOK_AFTER_MS = 23 * HOUR_MS
"""Orphan removal, ours and Spark's, leaves what is younger than 24 hours; the hour is for clocks that differ."""

_GOODBYE_SECONDS = 10.0
_NAMED = 3


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says to a person who finds it; times are epoch milliseconds by the clock of the run's machine."""

    run: str
    job: str
    began_ms: int
    beat_ms: int


class Heartbeat:
    """The beats of one run; `run_id` is in the names of all its new files."""

    def __init__(self, table: Table, run_id: str, job: str, runtime: Runtime, listener: Listener) -> None:
        self._table, self.run_id, self._job = table, run_id, job
        self._runtime, self._listener = runtime, listener
        self._began_ms, self._began_monotonic_ms = runtime.now_ms(), runtime.monotonic_ms()
        self._written: list[str] = []
        self._count = 0
        self._has_warned = False
        self._also: Callable[[], None] = lambda: None

    def beat(self) -> None:
        """Write the next beat, and do what goes with it; a failure is warned of once, and fails nothing."""
        try:
            self._write()
            self._also()
        except Exception as error:  # noqa: BLE001 - the run's work does not hang on it
            if not self._has_warned:
                self._has_warned = True
                self._listener.on(
                    Warned(
                        f"run {self.run_id} of {self._job} cannot say that it is alive: {one_line(error)}; jobs that clean up "
                        "may take it for dead after a day"
                    )
                )

    def with_each_beat(self, act: Callable[[], None]) -> None:
        """Do something with each beat from now on."""
        self._also = act

    def end(self) -> None:
        """Remove the beats; what stays of them ages."""
        with suppress(Exception):
            self._table.storage.delete_many(self._written)
        self._written = []

    def looking(self, change: Change, locations: Sequence[str]) -> Change:
        """The change, applied only where new files of an old run are still there; they are looked at with each attempt."""
        return _Looking(change, tuple(locations), self)

    def check_there(self, locations: Sequence[str]) -> None:
        """Look whether new files are there, if the run is old enough for somebody to have taken them for garbage.

        Raises:
            SafetyError: some are not.
        """
        spans = self._runtime.now_ms() - self._began_ms, self._runtime.monotonic_ms() - self._began_monotonic_ms
        if max(spans) < LOOK_AFTER_MS:
            return
        found = head_many([*locations], self._table.storage)
        lost = [location for location, file in zip(locations, found, strict=True) if file is None]
        if lost:
            raise SafetyError(
                f"{len(lost)} of {len(locations)} new files of {self._table.name!r} are gone before their commit, "
                f"{', '.join(map(repr, lost[:_NAMED]))}: an orphan removal took them in the {max(spans) / HOUR_MS:.0f} hours "
                "that the run took; they are not committed; let orphan removals leave younger files than that, and run it again",
                locations=lost[:100],
            )

    def _write(self) -> None:
        self._count += 1
        location = own_directory(self._table.metadata, f"runs/{self.run_id}/{BEAT}{self._count:06d}.json")
        beat = Beat(run=self.run_id, job=self._job, began_ms=self._began_ms, beat_ms=self._runtime.now_ms())
        # Before it is tried: what failed may be there all the same.
        self._written.append(location)
        try:
            self._table.storage.create(location, msgspec.json.encode(beat))
        except FileExistsError:
            # Another process works under the id of this run, and its beat says that it is alive.
            self._written.remove(location)
            raise
        context = log_context(self._table)
        _LOG.debug("%s: run %s of %s is alive: %s", self._table.name, self.run_id, self._job, location, extra=context)
        spare, self._written = self._written[:-2], self._written[-2:]
        self._table.storage.delete_many(spare)


class _Looking(msgspec.Struct, frozen=True):
    """A change that looks, at the end of each attempt, whether the files that it adds are there."""

    change: Change
    locations: tuple[str, ...]
    heartbeat: Heartbeat

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        updates = self.change.apply(base, attempt)
        if updates:
            self.heartbeat.check_there(self.locations)
        return updates


@contextmanager
def beating(
    table: Table, run_id: str, job: str, runtime: Runtime, listener: Listener, *, every_ms: int = EVERY_MS
) -> Iterator[Heartbeat]:
    """Say that a run is alive while the block lasts, from a thread of its own; begins before the run writes its first file.

    Args:
        run_id: in the names of all new files of the run.
        job: its name, for people.
    """
    heartbeat = Heartbeat(table, run_id, job, runtime, listener)
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(every_ms / 1000):
            heartbeat.beat()

    heartbeat.beat()
    thread = threading.Thread(target=go_on, name=f"heartbeat {run_id}", daemon=True)
    thread.start()
    may_land = False
    try:
        yield heartbeat
    except OutcomeUnknownError:
        # Its files must not be taken for garbage before the commit can land: the last beats are left to age.
        may_land = True
        raise
    finally:
        over.set()
        # A beat that hangs in its store is left to age.
        thread.join(_GOODBYE_SECONDS)
        if not may_land:
            heartbeat.end()
