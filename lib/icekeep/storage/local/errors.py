"""What the system's errors mean for files on this machine."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError, UnavailableError, UsageError

ABSENT = (errno.ENOENT, errno.ENOTDIR)
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_A_FILE = (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EXDEV)


def translate_os_error(error: OSError, action: str, location: str) -> IcekeepError:
    """The error of ours that says what to do about a system's error; `action` is a verb ("read")."""
    if error.errno in ABSENT:
        return MissingFileError(f"cannot {action} {location!r}: there is no such file", location=location)
    message = f"cannot {action} {location!r}: {reason(error)}"
    if error.errno in DENIED:
        return UsageError(f"{message}; run as a user who may, or name another location", location=location)
    if error.errno in _NOT_A_FILE:
        return InvalidTableError(message, location=location)
    return UnavailableError(message, location=location)


@contextmanager
def translated(action: str, location: str) -> Iterator[None]:
    """Raise what the system refuses as errors of ours; `FileExistsError` stays, since callers act on it."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise translate_os_error(error, action, location) from error


def reason(error: OSError) -> str:
    """What the system says, as a part of a line of ours."""
    return (error.strerror or type(error).__name__).lower()
