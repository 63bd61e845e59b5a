"""Asking again what became of a commit whose answer was lost: how often and how long, by `commit.status-check.*`."""

from collections.abc import Iterator
from itertools import count

import msgspec

from icekeep.errors import PropertyError
from icekeep.runtime import Runtime, patience_ms
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import retry_number

_LONGEST_LEAST_WAIT_MS = 1000


class StatusChecks(msgspec.Struct, frozen=True):
    """The table properties `commit.status-check.*`, with Iceberg's defaults.

    Attributes:
        num_retries: how many answers that show nothing are followed by another question.
        total_timeout_ms: for how long there are questions, where a catalog that is out of reach answers none.
    """

    num_retries: int = 3
    min_wait_ms: int = 1000
    max_wait_ms: int = 60_000
    total_timeout_ms: int = 1_800_000

    @classmethod
    def of(cls, metadata: TableMetadata, *, is_lenient: bool = False) -> "StatusChecks":
        """Read the properties; a wrong value raises `PropertyError`, or counts as none where that `is_lenient`."""

        def number(name: str) -> int:
            default = int(getattr(defaults, name))
            try:
                return retry_number(metadata.properties, f"commit.status-check.{name.replace('_', '-')}", default)
            except PropertyError:
                if not is_lenient:
                    raise
                return default

        defaults = cls()
        return cls(*map(number, cls.__struct_fields__))

    def turns(self, runtime: Runtime) -> Iterator[int]:
        """The numbers of questions, from 0 on, with the waits slept between them; ends when the time is over.

        Who is being stopped has some seconds.
        """
        began_ms = runtime.monotonic_ms()
        for number in count():
            yield number
            left_ms = patience_ms(runtime, self.total_timeout_ms) - (runtime.monotonic_ms() - began_ms)
            if left_ms < 0:
                return
            wait_ms = min(self.min_wait_ms * 2**number, self.max_wait_ms)
            # Waits of nothing would be a storm of questions to a catalog that is out of reach.
            wait_ms = max(wait_ms, min(2**number, _LONGEST_LEAST_WAIT_MS))
            runtime.sleep_ms(min(wait_ms, left_ms + 1) if runtime.is_stopping() else wait_ms)
