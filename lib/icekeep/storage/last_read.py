"""The file that was opened last to be read: where work fails by an error that names none, it is most likely at that."""

import threading


class _LastRead(threading.local):
    location: str | None = None


_HERE = _LastRead()


def note_read(location: str) -> None:
    """Take note of a file that is opened."""
    _HERE.location = location


def forget_reads() -> None:
    """Begin anew, with other work."""
    _HERE.location = None


def last_read() -> str | None:
    """The file that this thread has opened last."""
    return _HERE.location
