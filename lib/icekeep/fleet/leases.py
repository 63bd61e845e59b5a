"""What runs tell each other by the record of runs: who works on a table, and what became of jobs there.

No safety rests on it: two runs on one table commit beside each other as any two writers do. So where the record is out of reach
that is told once, and the run goes on as if it were alone.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from icekeep.errors import IcekeepError
from icekeep.events import Listener, Warned
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import BEAT_EVERY_MS, RUNNING, SILENT_MS, LastRuns, Paces, RunFilter
from icekeep.runtime import Runtime

T = TypeVar("T")

LEASE_MS = SILENT_MS
"""A run that does not prolong its leases for so long has died."""


class Leases:
    """The leases of one run; without a record it gets each that it asks for."""

    def __init__(self, records: RunRecords | None, holder: str, runtime: Runtime, listener: Listener) -> None:
        self._records, self._holder, self._runtime, self._listener = records, holder, runtime, listener
        self._has_warned = threading.Event()

    def take(self, table: str) -> str | None:
        """Take the lease of a table; `None` where that is ours now, else the run that has it and lives."""
        records, now_ms = self._records, self._runtime.now_ms()
        if records is None:
            return None
        until_ms = now_ms + LEASE_MS

        def work() -> str:
            holder = records.take_lease(table, self._holder, until_ms, now_ms)
            if holder != self._holder and self._has_ended(records, holder, now_ms):
                records.drop_lease(table, holder)
                holder = records.take_lease(table, self._holder, until_ms, now_ms)
            return holder

        holder = self._guarded(work, self._holder)
        return None if holder == self._holder else holder

    def drop(self, table: str) -> None:
        """Give it back."""
        if (records := self._records) is not None:
            self._guarded(lambda: records.drop_lease(table, self._holder), None)

    def last_of(self, tables: Collection[str]) -> Mapping[tuple[str, str], LastRuns] | None:
        """What is known of the last runs of each job, by table and job; `None` where the record is out of reach."""
        if (records := self._records) is None or not tables:
            return {}
        now_ms = self._runtime.now_ms()
        return self._guarded(lambda: records.last_of(tables, now_ms), None)

    def paces(self) -> Paces:
        """How much longer than rates say jobs took lately; nothing is known where the record is out of reach."""
        if (records := self._records) is None:
            return Paces()
        now_ms = self._runtime.now_ms()
        return self._guarded(lambda: records.paces(now_ms), Paces())

    @contextmanager
    def prolonged(self) -> Iterator[None]:
        """Prolong what the run has while the block lasts."""
        over = threading.Event()

        def beat(records: RunRecords) -> None:
            while not over.wait(BEAT_EVERY_MS / 1000):
                self._guarded(partial(records.renew_leases, self._holder, self._runtime.now_ms() + LEASE_MS), None)

        thread: threading.Thread | None = None
        if self._records is not None:
            thread = threading.Thread(target=beat, args=(self._records,), name="leases", daemon=True)
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread is not None:
                thread.join()

    def _has_ended(self, records: RunRecords, holder: str, now_ms: int) -> bool:
        """Whether a run is known to be over: its record says so, or its process on this machine is gone."""
        return any(
            one.status != RUNNING or one.is_unfinished(now_ms)
            for one in records.select(RunFilter(run_id=holder), now_ms)
            if one.run_id == holder
        )

    def _guarded(self, work: Callable[[], T], otherwise: T) -> T:
        try:
            return work()
        except IcekeepError as error:
            if not self._has_warned.is_set():
                self._has_warned.set()
                self._listener.on(
                    Warned(
                        f"{error.message}; the run goes on, and does not know what other runs do, nor what earlier ones did"
                    )
                )
            return otherwise
