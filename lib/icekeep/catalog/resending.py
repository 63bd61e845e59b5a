"""A change whose answer was lost, settled by sending the very same again: a compare and swap, or a request that has a key.

It moves a pointer from the metadata that it is based on to a file whose name nobody else can choose. If the first
request did not land by the time that the second does, it never will: the pointer is elsewhere then. If it did, the
second finds the pointer at our file, or at metadata that names it in its log. So no request that is late can do harm,
and the answer to any of them shows the outcome of all. How often and how long the catalog is asked is set by
`commit.status-check.*`.
"""

from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from icekeep.catalog.base import Committed, Conflict, SwapOutcome, Table, Unknown
from icekeep.catalog.metadata_files import delete_refused
from icekeep.errors import IcekeepError, PropertyError, UnavailableError
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


Sent = Conflict | Unknown | None
"""What one sending is known to have done: `None` is that the swap landed, by this one or by one before."""


def replaced(table: Table, new: Table, send: Callable[[], Sent]) -> SwapOutcome:
    """Move the pointer from `table` to `new`, whose metadata file is written; ask again until it is known whether that landed.

    The metadata file of `new` is deleted where it is proved that no pointer will ever name it.

    Args:
        send: one request, always the same; an error of ours proves that it did not land, and will not.

    Returns:
        What is known; unknown where the table's retries (`commit.status-check.*`) are used up. A conflict says that no request
        has landed, and none will where it is final.

    Raises:
        IcekeepError: as the first `send` did.
    """
    try:
        outcome = send()
    except IcekeepError:
        delete_refused(new.storage, new.metadata_location)
        raise
    if isinstance(outcome, Unknown):
        outcome = _settled(outcome, send, table, new)
    if isinstance(outcome, Conflict) and outcome.is_final:
        delete_refused(new.storage, new.metadata_location)
    return Committed(new) if outcome is None else outcome


def _settled(lost: Unknown, send: Callable[[], Sent], table: Table, new: Table) -> Sent:
    """What became of a request whose answer was lost, by sending it again.

    Answers that prove nothing are followed by another request as often as `commit.status-check.num-retries` says, and at
    least once; that nobody is reached in between is waited for as long as `commit.status-check.total-timeout-ms` says. A
    process that is abandoned sends nothing again. Errors of later requests prove nothing about those before.
    """
    checks = StatusChecks.of(table.metadata, is_lenient=True)
    left_count = checks.num_retries
    for _ in resends(checks, new.runtime):
        try:
            again = send()
            found = _met(again, table, new.metadata_location) if isinstance(again, Conflict) else again
        except UnavailableError:
            continue
        except IcekeepError:
            break
        if not isinstance(found, Unknown):
            return found
        left_count -= 1
        if left_count <= 0:
            break
    return lost


def resends(checks: StatusChecks, runtime: Runtime) -> Iterator[None]:
    """The times at which a request may be sent again, each after a pause; a process that is abandoned sends nothing again."""
    for number in checks.turns(runtime):
        if runtime.is_abandoned():
            return
        # Number 0 is the request that was sent.
        if number:
            yield


def has_landed(now: Table, base_location: str, location: str) -> bool | None:
    """Whether a table's history holds `location`; `None` where it cannot tell, since it does not reach back to the base."""
    history = [*(entry.metadata_file for entry in now.metadata.metadata_log), now.metadata_location]
    if location in history:
        return True
    return None if base_location not in history else False


def _met(conflict: Conflict, table: Table, location: str) -> Sent:
    """What a conflict of a request that was sent again means: it may be with the request before."""
    now = table.catalog.load(table.identifier)
    landed = has_landed(now, table.metadata_location, location)
    if landed:
        return None
    if landed is False and now.metadata_location != table.metadata_location:
        return Conflict(conflict.reason, is_final=True)
    # Nobody moved the pointer: something else was in the way, such as a lock.
    return Unknown(conflict.reason, location)
