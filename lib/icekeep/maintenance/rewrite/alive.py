"""Which runs are alive on a table, and what dead ones have left under its `.icekeep/`.

A run writes a small file below `.icekeep/runs/<run>/` every few minutes, its beat. `sweep_runs` leaves all that a run keeps
below `.icekeep/` while it beats, and orphan removal leaves new files with the name of a living run in theirs (`living_runs`),
however old they are: a run of three days has files of three days that no snapshot names yet. A run that was killed beats no
more and its last beat ages. Ages are those of files by the store's own clock, so that a machine with a wrong one can neither
kill a run nor keep a dead one alive. Storage overwrites nothing, so each beat is a file of its own, and the one before stays
for another round: a listing that runs meanwhile sees one of them at least.

A run removes at its end what it kept below `.icekeep/`; a killed one cannot. Two runs may be alive at once on one table, so a
directory goes only when its run must be dead: when it wrote nothing for a day, no beat either. A plan of deletion that has a
head is not left over: it waits to be carried out, or says what is in the trash. Files in the trash never go with the rest.
Where their plan is gone, a move that was taken for a failed one came too late: the table may lead to them. Data files and
manifests of dead runs are not looked for: no metadata names them, so they are orphans like any others.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.catalog.filesystem import DROPPED_PREFIX
from icekeep.errors import (
    OutcomeUnknownError,
    SafetyError,
    one_line,
    reason_of,
)
from icekeep.events import Listener, Warned
from icekeep.maintenance.delete.lease import earlier_clock_ms
from icekeep.maintenance.delete.plan_file import FILES, HEAD
from icekeep.runtime import Runtime
from icekeep.spec.properties import own_directory
from icekeep.spec.types import DAY_MS, HOUR_MS, MINUTE_MS
from icekeep.spelling import counted
from icekeep.storage.base import DeleteStatus, Storage, head_many

_LOG = logging.getLogger(__name__)

_BEAT = "alive-"
"""What the names of the files begin with."""

EVERY_MS = 5 * MINUTE_MS

LOOK_AFTER_MS = 23 * HOUR_MS
"""Orphan removal, icekeep's and Spark's, leaves files younger than 24 hours; the hour is for clocks that differ."""

_GOODBYE_SECONDS = 10.0
_NAMED = 3


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says to a person who finds it; times are epoch milliseconds by the clock of the run's machine."""

    run: str
    job: str
    began_ms: int
    beat_ms: int


class Heartbeat:
    """The beats of one run: entered before it writes its first file, it beats in a thread of its own until it is left.

    Args:
        run_id: in the names of all new files of the run.
        job: its name, for people.
    """

    def __init__(
        self, table: Table, run_id: str, job: str, runtime: Runtime, listener: Listener, *, every_ms: int = EVERY_MS
    ) -> None:
        self._table, self.run_id, self._job, self._every_ms = table, run_id, job, every_ms
        self._runtime, self._listener = runtime, listener
        self._began_ms, self._began_monotonic_ms = runtime.now_ms(), runtime.monotonic_ms()
        self._written: list[str] = []
        self._count = 0
        self._has_warned = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=f"heartbeat {run_id}", daemon=True)
        self.with_each_beat: Callable[[], object] = lambda: None
        """Done with each beat."""

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._over.set()
        # A beat that hangs in its store is left to age.
        self._thread.join(_GOODBYE_SECONDS)
        # Its files must not be taken for garbage before a commit can land whose outcome is unknown: the last beats age.
        if not isinstance(error, OutcomeUnknownError):
            self.end()

    def _go_on(self) -> None:
        while not self._over.wait(self._every_ms / 1000):
            self.beat()

    def beat(self) -> None:
        """Write the next beat, and do what goes with it; a failure is warned of once, and fails nothing."""
        try:
            self._write()
            self.with_each_beat()
        except Exception as error:  # noqa: BLE001 - the run's work does not hang on it
            if not self._has_warned:
                self._has_warned = True
                self._listener.on(
                    Warned(
                        f"run {self.run_id} of {self._job} cannot say that it is alive: {one_line(error)}; jobs that clean up "
                        "may take it for dead after a day"
                    )
                )

    def end(self) -> None:
        """Remove the beats; what cannot be removed ages."""
        with suppress(Exception):
            self._table.storage.delete_many(self._written)
        self._written = []

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
        location = own_directory(self._table.metadata, f"runs/{self.run_id}/{_BEAT}{self._count:06d}.json")
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


DEAD_AFTER_MS = DAY_MS
"""Longer than a store, or the network to it, is ever away: what is taken for dead by mistake loses a day's work."""

_RUNS, _TRASH = "runs", "trash"
_DIRECTORIES = (_RUNS, "plans", "purges", _TRASH)


def sweep_runs(table: Table, runtime: Runtime, *, keep: str, listener: Listener, is_plan: bool = False) -> int:
    """Remove the files of runs that wrote none for a day, by the store's clock and by ours.

    Empty directories stay, where a store has any. Nothing is raised: a run can do its work beside what another has left.

    Args:
        keep: the name of the run that asks; its files stay, whatever their age.
        is_plan: nothing is removed, and nothing written to ask the store for its clock.

    Returns:
        How many files are gone, or would go; the listener is warned of those that could not be removed or looked for.
    """
    try:
        left, strays_count, stray = _left_by_the_dead(table, runtime, keep, is_plan=is_plan)
        directory = own_directory(table.metadata, "")
        context = log_context(table)
        _LOG.info("%s: dead runs have left %d files below %s", table.name, len(left), directory, extra=context)
        outcomes = [] if is_plan else table.storage.delete_many(left)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run's own work does not hang on it
        listener.on(
            Warned(f"what runs that died have left below {table.metadata.location!r} stays: {reason_of(error)}")
        )
        return 0
    if strays_count:
        listener.on(
            Warned(
                f"{counted(strays_count, 'files')} in the trash {'belongs' if strays_count == 1 else 'belong'} to no plan, "
                f"{stray!r} among them: they stay. If readers of the "
                f"table miss one, move it back (its path is that without `.icekeep/trash/<run>/{FILES}/`), else delete it"
            )
        )
    for outcome in outcomes:
        if outcome.status is DeleteStatus.FAILED:
            listener.on(Warned(f"could not delete {outcome.location!r}, left by a run that died: {outcome.reason}"))
    return len(left) if is_plan else sum(outcome.status is DeleteStatus.DELETED for outcome in outcomes)


def living_runs(table: Table, runtime: Runtime, *, is_plan: bool = False) -> frozenset[str]:
    """The runs that are at work on a table: files with one of these names in theirs are not garbage, whatever their age.

    Asked before the table is loaded: a run that is over by then has committed its files or removed them, and one that began
    since has files that are younger.

    Args:
        is_plan: nothing is deleted by it, and nothing written: only our clock is asked.

    Raises:
        IcekeepError: the store cannot be asked, so nobody knows.
    """
    newest_ms: dict[str, int] = {}
    directory = own_directory(table.metadata, _RUNS)
    for file in table.storage.list(directory):
        run, slash, name = file.location[len(directory) :].lstrip("/").partition("/")
        if slash and name.rpartition("/")[2].startswith(_BEAT):
            newest_ms[run] = max(file.modified_ms, newest_ms.get(run, 0))
    return frozenset(newest_ms.keys() - _dead(newest_ms, table, runtime, is_plan=is_plan))


class _Left:
    """What a run has left that no plan keeps; of its files in the trash, which may be millions, only one name."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.newest_ms = self.trashed_count = 0
        self.trashed = ""
        self.has_head = False

    def add(self, directory: str, storage: Storage) -> None:
        """Take in the files in one of the run's directories."""
        trash = f"{directory}/{FILES}/" if directory.rsplit("/", 2)[-2] == _TRASH else None
        for file in storage.list(directory):
            self.has_head = self.has_head or file.location == f"{directory}/{HEAD}"
            if trash is not None and file.location.startswith(trash):
                self.trashed_count += 1
                self.trashed = self.trashed or file.location
            else:
                self.files.append(file.location)
                self.newest_ms = max(self.newest_ms, file.modified_ms)


def _left_by_the_dead(table: Table, runtime: Runtime, keep: str, *, is_plan: bool) -> tuple[list[str], int, str]:
    """What goes, how many files are in the trash to which no plan leads, and the first of these.

    Of a run that keeps its plan only the head of that is looked at.
    """
    storage = table.storage
    directories: dict[str, list[str]] = {}
    for above in (own_directory(table.metadata, name) for name in _DIRECTORIES):
        for run in storage.child_names(above):
            directories.setdefault(run, []).append(f"{above}/{run}")
    runs: dict[str, _Left] = {}
    for run, own in directories.items():
        if run == keep or run.startswith(DROPPED_PREFIX):
            continue
        if any(storage.head(f"{directory}/{HEAD}") is not None for directory in own):
            continue
        left = _Left()
        for directory in own:
            left.add(directory, storage)
        # It may have been written just now.
        if not left.has_head:
            runs[run] = left
    dead = _dead({run: left.newest_ms for run, left in runs.items() if left.files}, table, runtime, is_plan=is_plan)
    strays = [left for left in runs.values() if left.trashed_count and not left.files]
    count = sum(left.trashed_count for left in strays)
    return [location for run in dead for location in runs[run].files], count, strays[0].trashed if strays else ""


def _dead(newest_ms: Mapping[str, int], table: Table, runtime: Runtime, *, is_plan: bool) -> list[str]:
    """The runs whose newest file is too old by the earlier of our clock and the store's; the store is asked only if need be."""
    horizon_ms = runtime.now_ms() - DEAD_AFTER_MS
    if not is_plan and any(modified_ms < horizon_ms for modified_ms in newest_ms.values()):
        horizon_ms = earlier_clock_ms(table, runtime) - DEAD_AFTER_MS
    return [run for run, modified_ms in newest_ms.items() if modified_ms < horizon_ms]
