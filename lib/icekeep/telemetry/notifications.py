"""Messages to people who are at no terminal, by the library `apprise`: one address names a chat, a mailbox or a webhook.

An address is a secret as a whole (`icekeep.secrets`). Its parts are cut out of what libraries log and raise.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from icekeep.errors import TryAgainError, UnavailableError, UsageError, brought_by
from icekeep.events import Event
from icekeep.secrets import remember, without_secrets

LIBRARY = "apprise"
FORM = "SERVICE://..."
"""Of an address, as errors show it."""

SUCCESS, PARTIAL, FAILURE, RETRY, INTERRUPTED = "success", "partial", "failure", "retry", "interrupted"
OUTCOMES = (SUCCESS, PARTIAL, FAILURE, RETRY, INTERRUPTED)
"""How a command may have ended, as the configuration names it under `when`."""

_BY_STATUS = {0: SUCCESS, 3: PARTIAL, TryAgainError.exit_status: RETRY, 130: INTERRUPTED, 143: INTERRUPTED}


def outcome_of_status(exit_status: int) -> str:
    """Which of `OUTCOMES` an exit status is.

    >>> outcome_of_status(4), outcome_of_status(75)
    ('failure', 'retry')
    """
    return _BY_STATUS.get(exit_status, FAILURE)


class Message(msgspec.Struct, frozen=True):
    """What is sent; `kind` is `success`, `warning` or `failure`, which services show by a colour or a sign."""

    title: str
    body: str
    kind: str


class Notification:
    """The sink that sends one message, at the end; it ignores all events before.

    Args:
        url: the address, with all references filled in.

    Raises:
        UsageError: `apprise` is not installed, or does not know the address.
    """

    def __init__(self, url: str, message: Message) -> None:
        self._receiver, self._message = checked_receiver(url), message

    def on(self, event: Event, at_ms: int) -> None:
        """Ignored: the message says it all."""

    def close(self) -> None:
        """Send it; raises `UnavailableError` where it is not taken."""
        message = self._message
        with _reasons() as said:
            is_taken = self._receiver.notify(title=message.title, body=message.body, notify_type=message.kind)
        if not is_taken:
            raise UnavailableError(said[-1].rstrip(".") if said else "the service did not take the message")


def checked_receiver(url: str) -> Any:
    """The service behind an address, as one of `apprise`'s own; nothing is sent.

    It is called by itself: `apprise.Apprise` would send in threads that the process waits for when it ends.

    Raises:
        UsageError: `apprise` is not installed, or does not know the address.
    """
    try:
        import apprise
    except ImportError as error:
        raise UsageError(f"{LIBRARY} is not installed; {brought_by('notify', LIBRARY)}") from error
    remember({"notifications[].url": url})
    asset = apprise.AppriseAsset(app_id="icekeep", app_desc="icekeep", app_url="")
    with _reasons():
        service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        raise UsageError(
            f"{LIBRARY} does not know this kind of address; docs/notifications.md says how that of each service is written"
        )
    # Some take the message for HTML, and would run its lines together.
    service.notify_format = apprise.NotifyFormat.TEXT
    return service


@contextmanager
def _reasons() -> Iterator[list[str]]:
    """What `apprise` logs in this thread while the block lasts: it raises nothing, and says there alone what went wrong."""
    said: list[str] = []
    thread = threading.get_ident()

    class RecentWarnings(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                said.append(without_secrets(" ".join(record.getMessage().split())))

    logger, kept = logging.getLogger(LIBRARY), RecentWarnings()
    # Its debug lines hold addresses.
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(kept)
    try:
        yield said
    finally:
        logger.removeHandler(kept)
