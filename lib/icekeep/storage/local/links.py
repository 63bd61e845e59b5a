"""Files of this machine opened, moved and deleted without following links, and what the system's errors mean.

Anyone who may write below a table's location may make a link there, to a directory of another table or of the machine.
The location itself may be reached through links: an operator has made them. What lies below it is opened name by name,
each without following a link, and a file is deleted or moved by the directory that was opened: no link that is made
meanwhile leads elsewhere. Many files are renamed at once, each directory that gets names being flushed once.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import BinaryIO, NamedTuple

from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.spec.types import MIB
from icekeep.storage.base import MoveOutcome, MoveStatus
from icekeep.storage.locations import canonical, local_path

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


_OWN = f"/{OWN_DIRECTORY}/"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REFUSAL = (
    "a symbolic link leads there, and icekeep follows none below a table's location; replace the link with a directory"
)

_PLACES: ContextVar[tuple[str, ...] | None] = ContextVar("places", default=None)


@contextmanager
def confined_to(places: Sequence[str]) -> Iterator[None]:
    """Let this thread delete and move files of this machine only below some locations while the block lasts, and behind no link.

    What is in other stores is not asked. icekeep's own directories count as places.
    """
    token = _PLACES.set(tuple(path for path in map(local_place, places) if path is not None))
    try:
        yield
    finally:
        _PLACES.reset(token)


def is_behind_link(directory: str, places: Sequence[str]) -> bool:
    """Whether a link leads to a directory of this machine, between it and the deepest of some locations above it.

    Raises:
        IcekeepError: the machine does not tell.
    """
    path = local_place(directory)
    if path is None:
        return False
    with confined_to(places), translated("look at", directory):
        try:
            with opened(f"{path}/"):
                return False
        except OSError as error:
            if error.errno == errno.ELOOP:
                return True
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise


@contextmanager
def opened(path: str, make: Callable[[str, int], None] | None = None) -> Iterator[int | None]:
    """A descriptor of the directory of a file, reached without links below its place; `None` for a path that has no place.

    Args:
        path: of the file; a directory's own ends with a slash.
        make: makes a directory of a name in one that is open; else it must be there.

    Raises:
        OSError: as of `os.open`; `ELOOP` where a link is in the way, `EACCES` for what lies in none of the places.
    """
    found = _taken_apart(path)
    if found is None:
        yield None
        return
    place, names = found
    descriptor = os.open(place, _DIRECTORY)
    try:
        for name in names:
            inner = _entered(descriptor, name, path, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def place_of(path: str) -> str | None:
    """The directory below which no link is followed to a file; `None` where all are."""
    found = _taken_apart(path)
    return None if found is None else found[0]


def real_location(location: str) -> str:
    """Where a location of this machine really is, links above it and itself followed; any other as it is."""
    path = local_place(location)
    return location if path is None else f"file://{os.path.realpath(path)}"


def local_place(location: str) -> str | None:
    """The path of a location of this machine, as places are compared; `None` for any other, and for what is no location."""
    try:
        return _plain(local_path(location))
    except IcekeepError:
        return None


def unlink(path: str) -> None:
    """Remove a file's name; raises `OSError` as `os.unlink` and `opened` do."""
    with opened(path) as directory:
        if directory is None:
            os.unlink(path)
        else:
            os.unlink(os.path.basename(path), dir_fd=directory)


def link(source: str, target: str) -> None:
    """Give a file a second name; raises `OSError` as `os.link` and `opened` do."""
    with opened(source) as old, opened(target) as new:
        os.link(
            source if old is None else os.path.basename(source),
            target if new is None else os.path.basename(target),
            src_dir_fd=old,
            dst_dir_fd=new,
            follow_symlinks=False,
        )


def _entered(descriptor: int, name: str, path: str, make: Callable[[str, int], None] | None) -> int:
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
    except FileNotFoundError:
        if make is None:
            raise
        make(name, descriptor)
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                raise OSError(errno.ELOOP, _REFUSAL, path) from None
        raise


def _taken_apart(path: str) -> tuple[str, list[str]] | None:
    """The place of a file, and the names of the directories below that; `None` where links to it are followed."""
    directory = _plain(path if path.endswith("/") else os.path.dirname(path))
    place, own, _ = f"{directory}/".partition(_OWN)
    if not own:
        places = _PLACES.get()
        if places is None:
            return None
        around = [one for one in places if f"{directory}/".startswith(f"{one.rstrip('/')}/")]
        if not around:
            raise OSError(errno.EACCES, "it lies outside the table's location and reclaim.roots", path)
        place = max(around, key=len)
    return place or "/", [name for name in directory[len(place) :].split("/") if name]


def _plain(path: str) -> str:
    """A path without doubled slashes and dots, as places are compared."""
    return canonical(path).removeprefix("file://")


_NO_SECOND_NAME = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What the system says to a hard link between two mounts, or in a file system that has none."""


class MoveSteps(NamedTuple):
    """What a storage does for one name or one directory, by paths; they raise the system's errors."""

    make_directory: Callable[[str], None]
    link: Callable[[str, str], None]
    flush_directory: Callable[[str], None]


class _Move(NamedTuple):
    position: int
    source: str
    source_path: str
    target_path: str


def move_together(moves: Iterable[tuple[str, str]], steps: MoveSteps) -> list[MoveOutcome]:
    """Make all the new names, flush their directories, and only then take the old names away.

    A file has at least one name at every moment, and both where a crash comes between; the same moves finish it then.
    """
    answers: dict[int, MoveOutcome] = {}
    for some in _once_each(moves, answers):
        for directory, linked in _linked(some, steps, answers).items():
            try:
                steps.flush_directory(directory)
            except OSError as error:
                answers.update((move.position, _failed(move, error)) for move in linked)
                continue
            for move in linked:
                answers[move.position] = _without_old_name(move)
    return [answers[position] for position in range(len(answers))]


def _once_each(moves: Iterable[tuple[str, str]], answers: dict[int, MoveOutcome]) -> list[list[_Move]]:
    """Moves, those of one source in different rounds: the first that succeeds leaves nothing to the next."""
    rounds: list[list[_Move]] = []
    times: dict[str, int] = {}
    for position, (source, target) in enumerate(moves):
        try:
            move = _Move(position, source, local_path(source), local_path(target))
        except UnsupportedError as error:
            answers[position] = MoveOutcome(source, MoveStatus.IMPOSSIBLE, error.message)
            continue
        except IcekeepError as error:
            answers[position] = MoveOutcome(source, MoveStatus.FAILED, error.message)
            continue
        number = times.get(move.source_path, 0)
        times[move.source_path] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(move)
    return rounds


def _linked(moves: Sequence[_Move], steps: MoveSteps, answers: dict[int, MoveOutcome]) -> dict[str, list[_Move]]:
    """The moves whose files have their new names now, by the directories of these."""
    linked: dict[str, list[_Move]] = {}
    for move in moves:
        directory = os.path.dirname(move.target_path)
        try:
            if directory not in linked:
                steps.make_directory(directory)
            steps.link(move.source_path, move.target_path)
        except FileExistsError:
            answers[move.position] = MoveOutcome(move.source, MoveStatus.TAKEN)
        except OSError as error:
            is_missing = error.errno in ABSENT and not os.path.lexists(move.source_path)
            answers[move.position] = (
                MoveOutcome(move.source, MoveStatus.MISSING) if is_missing else _unnamed(move, error)
            )
        else:
            linked.setdefault(directory, []).append(move)
    return linked


def _without_old_name(move: _Move) -> MoveOutcome:
    try:
        unlink(move.source_path)
    except FileNotFoundError:
        # Whoever took it away meanwhile, the file has its new name.
        pass
    except OSError as error:
        return _failed(move, error)
    return MoveOutcome(move.source, MoveStatus.MOVED)


def _unnamed(move: _Move, error: OSError) -> MoveOutcome:
    reason = translate_os_error(error, "move", move.source).message
    is_impossible = error.errno in _NO_SECOND_NAME and not os.path.isdir(move.source_path)
    return MoveOutcome(move.source, MoveStatus.IMPOSSIBLE if is_impossible else MoveStatus.FAILED, reason)


def _failed(move: _Move, error: OSError) -> MoveOutcome:
    return MoveOutcome(move.source, MoveStatus.FAILED, translate_os_error(error, "move", move.source).message)


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
