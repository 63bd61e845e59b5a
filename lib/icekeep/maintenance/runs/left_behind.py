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
from icekeep.errors import IcekeepError
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.clock import earlier_clock_ms
from icekeep.maintenance.deletion.plans import FILES, HEAD
from icekeep.maintenance.runs.heartbeat import BEAT
from icekeep.runtime import Runtime
from icekeep.spec.layout import own_directory
from icekeep.spec.units import DAY_MS
from icekeep.storage.base import DeleteStatus, FileInfo

_LOG = logging.getLogger(__name__)

DEAD_AFTER_MS = DAY_MS
"""Longer than a store, or the network to it, is ever away: what is taken for dead by mistake loses a day's work."""

_DIRECTORIES = ("runs", "plans", "trash")


def sweep_runs(table: Table, runtime: Runtime, *, keep: str, listener: Listener) -> int:
    """Remove the files of runs that wrote none for a day, by the store's clock and by ours.

    Empty directories stay, where a store has any. Nothing is raised: a run can do its work beside what another has left.

    Args:
        keep: the name of the run that asks; its files stay, whatever their age.

    Returns:
        How many files are gone; the listener is warned of those that could not be removed or looked for.
    """
    try:
        left, strays = _left_by_the_dead(table, runtime, keep)
        _LOG.info("%s: dead runs have left %d files below %s", table.name, len(left), own_directory(table.metadata, ""))
        outcomes = table.storage.delete_many(left)
    except IcekeepError as error:
        listener.on(Warned(f"what runs that died have left below {table.metadata.location!r} stays: {error.message}"))
        return 0
    if strays:
        listener.on(
            Warned(
                f"{len(strays)} files in the trash belong to no plan, {strays[0]!r} among them: they stay. If readers of the "
                f"table miss one, move it back (its path is that without `.icekeep/trash/<run>/{FILES}/`), else delete it"
            )
        )
    for outcome in outcomes:
        if outcome.status is DeleteStatus.FAILED:
            listener.on(Warned(f"could not delete {outcome.location!r}, left by a run that died: {outcome.reason}"))
    return sum(outcome.status is DeleteStatus.DELETED for outcome in outcomes)


def living_runs(table: Table, runtime: Runtime) -> frozenset[str]:
    """The runs that are at work on a table: files with one of these names in theirs are not garbage, whatever their age.

    Asked before the table is loaded: a run that is over by then has committed its files or removed them, and one that began
    since has files that are younger.

    Raises:
        IcekeepError: the store cannot be asked, so nobody knows.
    """
    newest_ms: dict[str, int] = {}
    for run, file in _files(table, ("runs",)):
        if file.location.rpartition("/")[2].startswith(BEAT):
            newest_ms[run] = max(file.modified_ms, newest_ms.get(run, 0))
    return frozenset(newest_ms.keys() - _dead(newest_ms, table, runtime))


def _left_by_the_dead(table: Table, runtime: Runtime, keep: str) -> tuple[list[str], list[str]]:
    """What goes, and the files in the trash to which no plan leads."""
    runs: dict[str, list[FileInfo]] = {}
    waiting = {keep}
    for run, file in _files(table):
        runs.setdefault(run, []).append(file)
        if file.location.endswith(f"/{run}/{HEAD}") or run.startswith(DROPPED_PREFIX):
            waiting.add(run)
    for run in waiting:
        runs.pop(run, None)
    trash = own_directory(table.metadata, "trash")
    written = {run: [file for file in files if not _is_in_trash(file, trash, run)] for run, files in runs.items()}
    newest_ms = {run: max(file.modified_ms for file in files) for run, files in written.items() if files}
    left = [file.location for run in _dead(newest_ms, table, runtime) for file in written[run]]
    return left, [file.location for run, files in runs.items() if run not in newest_ms for file in files]


def _is_in_trash(file: FileInfo, trash: str, run: str) -> bool:
    return file.location.startswith(f"{trash}/{run}/{FILES}/")


def _dead(newest_ms: Mapping[str, int], table: Table, runtime: Runtime) -> list[str]:
    """The runs whose newest file is too old by the earlier of our clock and the store's; the store is asked only if need be."""
    now_ms = runtime.now_ms()
    if not any(_is_dead(modified_ms, now_ms) for modified_ms in newest_ms.values()):
        return []
    now_ms = earlier_clock_ms(table, runtime)
    return [run for run, modified_ms in newest_ms.items() if _is_dead(modified_ms, now_ms)]


def _is_dead(newest_ms: int, now_ms: int) -> bool:
    return now_ms - newest_ms > DEAD_AFTER_MS


def _files(table: Table, above: Iterable[str] = _DIRECTORIES) -> Iterator[tuple[str, FileInfo]]:
    """Every file in a directory of a run, with the run's name; files beside the directories are of other jobs."""
    for name in above:
        directory = own_directory(table.metadata, name)
        for file in table.storage.list(directory):
            run, slash, _ = file.location[len(directory) :].lstrip("/").partition("/")
            if slash:
                yield run, file
