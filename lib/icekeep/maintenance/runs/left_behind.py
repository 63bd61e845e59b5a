"""What runs that died have left under a table's `.icekeep/`, removed by the next run.

A run keeps what it must not lose while it works in directories with its name, and removes it at its end; a killed one cannot.
Two runs may be alive at once on one table, so a directory goes only when its run must be dead: when nothing was written by it
for a day, no beat either (`heartbeat.py`): a living run writes one every few minutes. Where a run could write none for a day,
it fails for want of a file and commits nothing.

A plan of deletion that has a head is not left over: it waits to be carried out, or says what is in the trash. Files
in the trash never go with the rest. Where their plan is gone, a move came too late that was taken for one that failed: the table
may lead to them.

Data files and manifests of dead runs are not looked for: no metadata names them, so they are orphans like any others.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping

from icekeep.catalog.base import Table
from icekeep.catalog.dropped_versions import DROPPED_PREFIX
from icekeep.catalog.log_context import log_context
from icekeep.errors import reason_of
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.clock import earlier_clock_ms
from icekeep.maintenance.deletion.plans import FILES, HEAD
from icekeep.maintenance.runs.heartbeat import BEAT
from icekeep.runtime import Runtime
from icekeep.spec.properties import own_directory
from icekeep.spec.types import DAY_MS
from icekeep.spelling import counted
from icekeep.storage.base import DeleteStatus, FileInfo, Storage

_LOG = logging.getLogger(__name__)

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
    for run, file in _beats(table):
        newest_ms[run] = max(file.modified_ms, newest_ms.get(run, 0))
    return frozenset(newest_ms.keys() - _dead(newest_ms, table, runtime, is_plan=is_plan))


class _Left:
    """What a run has left that no plan keeps; of its files in the trash, which may be millions, no more than one name."""

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


def _left_by_the_dead(
    table: Table, runtime: Runtime, keep: str, *, is_plan: bool = False
) -> tuple[list[str], int, str]:
    """What goes, how many files are in the trash to which no plan leads, and the first of these.

    Of a run that keeps its plan no more is looked at than the head of that.
    """
    storage = table.storage
    directories: dict[str, list[str]] = {}
    for above in (own_directory(table.metadata, name) for name in _DIRECTORIES):
        for run in storage.child_names(above):
            directories.setdefault(run, []).append(f"{above}/{run}")
    runs: dict[str, _Left] = {}
    for run, own in directories.items():
        if run == keep or run.startswith(DROPPED_PREFIX) or _have_head(own, storage):
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


def _have_head(directories: Iterable[str], storage: Storage) -> bool:
    return any(storage.head(f"{directory}/{HEAD}") is not None for directory in directories)


def _dead(newest_ms: Mapping[str, int], table: Table, runtime: Runtime, *, is_plan: bool = False) -> list[str]:
    """The runs whose newest file is too old by the earlier of our clock and the store's; the store is asked only if need be."""
    now_ms = runtime.now_ms()
    if not is_plan and any(_is_dead(modified_ms, now_ms) for modified_ms in newest_ms.values()):
        now_ms = earlier_clock_ms(table, runtime)
    return [run for run, modified_ms in newest_ms.items() if _is_dead(modified_ms, now_ms)]


def _is_dead(newest_ms: int, now_ms: int) -> bool:
    return now_ms - newest_ms > DEAD_AFTER_MS


def _beats(table: Table) -> Iterator[tuple[str, FileInfo]]:
    """The beats of all runs, each with the run's name."""
    directory = own_directory(table.metadata, _RUNS)
    for file in table.storage.list(directory):
        run, slash, name = file.location[len(directory) :].lstrip("/").partition("/")
        if slash and name.rpartition("/")[2].startswith(BEAT):
            yield run, file
