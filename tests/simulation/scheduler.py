"""One actor runs at a time, and a seeded chance says which, so a seed replays a run exactly; jobs run in one thread.

Each actor is a thread that waits for its baton. Whoever runs hands it on at every call to the world (`pause`), or keeps it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError
from icekeep.maintenance.delete import reachable
from icekeep.maintenance.orphans import listing
from icekeep.maintenance.orphans import metadata as metadata_files
from icekeep.maintenance.restore import files as needs
from icekeep.planning import commit_readers, entries
from icekeep.planning.manifest_lists import ListedManifests
from icekeep.planning.spark import tasks
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.storage import base as many
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import location_keys


class Ended(BaseException):
    """The run is over, since something was found; no code may go on."""


class Actor:
    """Somebody who runs when it is its turn, and not before `wake_ms`."""

    def __init__(self, name: str, work: Callable[["Actor"], None]) -> None:
        self.name = name
        self.wake_ms = 0
        self.finished = False
        self.baton = threading.Lock()
        self.baton.acquire()
        self.work = work


class Scheduler:
    """Time and turns. `restlessness` is how often a turn passes on where the one who has it could go on.

    Each call takes up to `call_ms`, and no two are made at a time.
    """

    def __init__(self, random: Random, now_ms: int, restlessness: float, call_ms: int = 19) -> None:
        self.random = random
        self.now_ms = now_ms
        self.failure: BaseException | None = None
        self.turns_count = 0
        self._restlessness, self._call_ms = restlessness, call_ms
        self._actors: list[Actor] = []
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def run(self, works: dict[str, Callable[[Actor], None]]) -> None:
        """Let all actors work to their end; raises the first failure."""
        self._actors = [Actor(name, work) for name, work in works.items()]
        threads = [threading.Thread(target=self._live, args=(actor,), daemon=True) for actor in self._actors]
        self._over = threading.Lock()
        self._over.acquire()
        for thread in threads:
            thread.start()
        self._choose(None).baton.release()
        self._over.acquire()
        for thread in threads:
            thread.join()
        with suppress(Ended):
            while self._due and self.failure is None:
                self.now_ms = max(self.now_ms, min(event[0] for event in self._due))
                self._happen()
        if self.failure is not None:
            raise self.failure

    def at(self, moment_ms: int, happen: Callable[[], None]) -> None:
        """Let something happen when its time has come, whoever runs then."""
        self._due.append((moment_ms, len(self._due) + self.turns_count * 1000, happen))

    def pause(self, actor: Actor, wait_ms: int = 0) -> None:
        """Let time pass and perhaps others act."""
        self._stop_if_over()
        self.turns_count += 1
        self.now_ms += self.random.randint(1, self._call_ms)
        actor.wake_ms = self.now_ms + wait_ms
        chosen = actor
        if wait_ms or self.random.random() < self._restlessness:
            chosen = self._choose(actor)
        if self._due:
            self._happen()
        if chosen is not actor:
            chosen.baton.release()
            actor.baton.acquire()
        self._stop_if_over()

    def fail(self, failure: BaseException) -> None:
        """End the run with what was found; nothing of the library can catch it away."""
        if self.failure is None:
            self.failure = failure
        raise Ended

    def _stop_if_over(self) -> None:
        if self.failure is not None:
            raise Ended

    def _live(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if self.failure is None:
                actor.work(actor)
        except Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever ends an actor is a finding
            self.failure = self.failure or error
        actor.finished = True
        if all(other.finished for other in self._actors):
            self._over.release()
        else:
            self._choose(None).baton.release()

    def _choose(self, running: Actor | None) -> Actor:
        waiting = [a for a in self._actors if not a.finished]
        awake = [a for a in waiting if a.wake_ms <= self.now_ms]
        if not awake:
            self.now_ms = min(a.wake_ms for a in waiting)
            awake = [a for a in waiting if a.wake_ms <= self.now_ms]
        return awake[0] if len(awake) == 1 else self.random.choice(awake)

    def _happen(self) -> None:
        for event in sorted(event[:2] for event in self._due if event[0] <= self.now_ms):
            at = next(n for n, other in enumerate(self._due) if other[:2] == event)
            self._due.pop(at)[2]()


_TOTALS = {"total-data-files": ManifestContent.DATA, "total-delete-files": ManifestContent.DELETES}


class SerialPool:
    """As much of a pool of threads as the jobs use: everything is done when it is asked for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """The number of threads does not matter."""

    def __enter__(self) -> "SerialPool":
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is left to be done."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - as a thread would end
            done.set_exception(error)
        return done

    def shutdown(self, **how: Any) -> None:
        """Nothing is left to be done."""

    def map(self, work: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return map(work, *items)


@contextmanager
def serially() -> Iterator[None]:
    """Whoever runs has the turn: nothing runs beside it."""
    with ExitStack() as stack:
        for module in (many, listing, metadata_files, entries, tasks):
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", SerialPool))
        for module in (reachable, needs, commit_readers):
            stack.enter_context(patch.object(module, "listed_manifests", _listed_manifests))
        yield


def _listed_manifests(
    storage: Storage,
    spark: Any,
    snapshots: Sequence[Snapshot],
    *,
    check: bool,
    trust: bool = False,
    without: Any = None,
) -> ListedManifests:
    """Stands in for the function of that name: the same, one list after another."""
    reader = ManifestReader(storage)
    found: dict[str, ManifestFile] = {}
    unreadable = []
    for snapshot in snapshots:
        try:
            manifests = reader.manifests(snapshot)
        except InvalidTableError:
            if check:
                raise
            unreadable.append(snapshot.manifest_list or "")
            continue
        for total, content in _TOTALS.items():
            listed = sum(m.live_files_count or 0 for m in manifests if m.content is content)
            assert not check or snapshot.summary is None or snapshot.summary.get(total, str(listed)) == str(listed)
        found.update((m.manifest_path, m) for m in manifests)
    known = set() if without is None else set(without.tolist())
    keys = location_keys(pa.array(found, pa.string()))
    left = [m for key, m in zip(keys.tolist(), found.values(), strict=True) if key not in known]
    return ListedManifests(
        manifests=tuple(left), keys=np.unique(keys), untotalled_count=0, unreadable=tuple(unreadable)
    )
