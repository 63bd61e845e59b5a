"""Bytes from one open file to the end of another, by the operating system where both are files of this machine."""

import errno
import os
from typing import BinaryIO

from icekeep.errors import InvalidTableError
from icekeep.spec.types import MIB
from icekeep.storage.local.errors import translated

PIECE_BYTES = 8 * MIB
"""What is in memory at a time where bytes go through this process."""

_NOT_HERE = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF, errno.ETXTBSY)
"""Answers of a system that does not copy between these two files by itself; it has copied nothing then."""


def copy_range(
    source: BinaryIO, source_location: str, target: BinaryIO, target_location: str, start: int, length: int
) -> None:
    """Append `length` bytes of a file, from byte `start` on, to one that is being written.

    Args:
        source: as `Storage.open` gives it.
        target: as `Storage.write` gives it.

    Raises:
        InvalidTableError: the source ends before that.
        UnavailableError: the target cannot take the bytes.
    """
    end = start + length
    start += _copied_by_system(source, target, target_location, start, length)
    source.seek(start)
    while start < end:
        piece = source.read(min(PIECE_BYTES, end - start))
        if not piece:
            raise InvalidTableError(
                f"file {source_location!r} ends at byte {start}, before byte {end}", location=source_location
            )
        target.write(piece)
        start += len(piece)


def _copied_by_system(source: BinaryIO, target: BinaryIO, target_location: str, start: int, length: int) -> int:
    """How many bytes the system has copied; the rest, which may be all of them, is left to the caller."""
    from_descriptor, to_descriptor = _descriptor(source), _descriptor(target)
    if from_descriptor is None or to_descriptor is None or not hasattr(os, "copy_file_range"):
        return 0
    target.flush()
    copied = 0
    with translated("write", target_location):
        while copied < length:
            try:
                count = os.copy_file_range(from_descriptor, to_descriptor, length - copied, start + copied)
            except OSError as error:
                if error.errno in _NOT_HERE:
                    break
                raise
            if count == 0:
                break
            copied += count
    return copied


def _descriptor(stream: BinaryIO) -> int | None:
    """The system's number of a stream's file; none where the stream is no file of this machine."""
    try:
        return stream.fileno()
    except (AttributeError, OSError):
        return None
