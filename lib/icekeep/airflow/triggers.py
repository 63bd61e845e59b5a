"""What waits in a triggerer for the end of a job that runs on a cluster, so that no worker does."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from icekeep.airflow.versions import BaseTrigger, TriggerEvent
from icekeep.airflow.yarn import ResourceManager
from icekeep.runtime import SYSTEM

ENDED, TIMED_OUT, UNREACHABLE = "ended", "timed_out", "unreachable"

UNREACHABLE_COUNT_MAX = 60
"""How often in a row YARN may give no answer, or not know the application: ten minutes at least, more than a restart of a
ResourceManager takes."""


class ApplicationTrigger(BaseTrigger):
    """Looks at an application of YARN until it has ended. It holds nothing: another triggerer goes on where one was restarted.

    Its event is `{"waiting": ..., "reason": ..., "report": ..., "said": ...}`: what was given as `waiting`; `ended`, `timed_out`
    or `unreachable`; what YARN said of an application that has ended; why YARN could not be reached.

    Args:
        address: of the ResourceManager, see `icekeep.airflow.yarn`.
        application: its id.
        poll_s: seconds between two looks.
        until_ms: when the waiting ends, epoch milliseconds; `None` for never.
        waiting: what the task needs to go on, JSON.
    """

    def __init__(
        self, *, address: str, application: str, poll_s: float, until_ms: int | None, waiting: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.address, self.application, self.poll_s = address, application, poll_s
        self.until_ms, self.waiting = until_ms, waiting

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where it is, and with what it is made."""
        names = ("address", "application", "poll_s", "until_ms", "waiting")
        return f"{__name__}.ApplicationTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[Any]:
        """Wait, and give the one event."""
        manager, unanswered_count = ResourceManager(self.address), 0
        while True:
            try:
                report = await asyncio.to_thread(manager.report, self.application)
            except OSError as error:
                unanswered_count += 1
                self.log.warning("YARN at %s cannot be asked of %s: %s", self.address, self.application, error)
                if unanswered_count >= UNREACHABLE_COUNT_MAX:
                    yield self._event(UNREACHABLE, said=str(error))
                    return
            else:
                # A ResourceManager that has just come back may not know its applications yet.
                unanswered_count = 0 if report.state else unanswered_count + 1
                if report.has_ended and (report.state or unanswered_count >= UNREACHABLE_COUNT_MAX):
                    yield self._event(ENDED, report=[*report])
                    return
            if self.until_ms is not None and SYSTEM.now_ms() >= self.until_ms:
                yield self._event(TIMED_OUT)
                return
            await asyncio.sleep(self.poll_s)

    async def on_kill(self) -> None:
        """Somebody has cleared the task, or set its state by hand: the job ends as it would with a task in a worker."""
        try:
            await asyncio.to_thread(ResourceManager(self.address).kill, self.application)
        except OSError as error:
            self.log.warning("application %s cannot be ended by YARN at %s: %s", self.application, self.address, error)

    def _event(self, reason: str, **more: Any) -> Any:
        return TriggerEvent({"waiting": self.waiting, "reason": reason, **more})
