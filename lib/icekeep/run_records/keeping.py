"""One run, written down while it works: begun, alive, ended.

No run fails for its record, or waits for it longer than some seconds: what goes wrong is warned of once, and what is known at the
end is tried once more.
"""

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from icekeep.errors import IcekeepError, TryAgainError, one_line
from icekeep.events import Listener, Warned
from icekeep.processes import process_name
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import BEAT_EVERY_MS, RunRecord
from icekeep.runs import Run
from icekeep.runtime import Runtime
from icekeep.spec.types import DAY_MS
from icekeep.version import ICEKEEP_VERSION

_LOG = logging.getLogger(__name__)

_GOODBYE_SECONDS = 1.0

EndedElsewhere = Callable[[RunRecord], None]
"""Where ended runs go beside the database."""


def new_record(run: Run, table: str, started_ms: int) -> RunRecord:
    """A run that begins in this process."""
    return RunRecord(
        run_id=run.run_id,
        parent_id=run.parent_id,
        job=run.job,
        table=table,
        policy=run.policy,
        started_ms=started_ms,
        seen_ms=started_ms,
        host=socket.gethostname(),
        process=process_name(),
        version=ICEKEEP_VERSION,
        app_id=run.app_id,
        estimated_ms=run.estimated_ms,
    )


class RunKeeper:
    """Writes one run down; without a database it does nothing.

    Args:
        records: where; `None` for nowhere.
        keep_ms: runs that began longer ago are forgotten when this one ends, if the record has no hole since.
        also: is given the run when it has ended.
    """

    def __init__(
        self,
        records: RunRecords | None,
        record: RunRecord,
        runtime: Runtime,
        listener: Listener,
        *,
        keep_ms: int = 400 * DAY_MS,
        also: EndedElsewhere | None = None,
    ) -> None:
        self._records, self.record = records, record
        self._runtime, self._listener = runtime, listener
        self._keep_ms, self._also = keep_ms, also
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_hopeless = self._has_warned = False

    def begin(self, **known: Any) -> None:
        """Write it down, and from now on that it is alive; `known` are fields of the record."""
        self.record = msgspec.structs.replace(self.record, **known)
        if self._records is None:
            return
        if self._tried(lambda records: records.begin(self.record)):
            name = f"record of {self.record.run_id}"
            self._thread = threading.Thread(target=self._go_on, name=name, daemon=True)
            self._thread.start()

    def end(self, **known: Any) -> None:
        """Write down how it ended; `known` are fields of the record."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_GOODBYE_SECONDS)
        now_ms = self._runtime.now_ms()
        self.record = msgspec.structs.replace(self.record, **{"ended_ms": now_ms, "seen_ms": now_ms, **known})
        is_written = (
            self._records is not None and not self._is_hopeless and self._tried(lambda one: one.end(self.record))
        )
        # What is old goes with a run of many or of one alone, not with each of many.
        if is_written and self.record.parent_id is None:
            self._tried(lambda records: records.forget(now_ms - self._keep_ms, now_ms))
        if self._also is not None:
            self._guarded(self._also, self.record)

    def _go_on(self) -> None:
        while not self._over.wait(BEAT_EVERY_MS / 1000):
            self._tried(lambda records: records.beat(self.record.run_id, self._runtime.now_ms()))

    def _tried(self, act: Callable[[RunRecords], None]) -> bool:
        assert self._records is not None
        return self._guarded(act, self._records)

    def _guarded(self, act: Callable[[Any], None], subject: Any) -> bool:
        """Whether something was done; the first failure is warned of."""
        try:
            act(subject)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run's work does not hang on it
            self._is_hopeless = self._is_hopeless or not isinstance(error, TryAgainError)
            # Of a database that is left alone the one who waited for it has said why.
            is_told = self._has_warned or (isinstance(error, IcekeepError) and "is_left_alone" in error.facts)
            if is_told or not isinstance(error, IcekeepError):
                _LOG.debug("the record of run %s failed", self.record.run_id, exc_info=True)
            if not is_told:
                self._has_warned = True
                self._listener.on(Warned(f"run {self.record.run_id} is not written down: {one_line(error)}"))
            return False
        return True
