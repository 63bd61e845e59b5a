"""Where links are not followed: below a table's places while its files are deleted or moved, and below icekeep's own directories.

Whoever may write below a table's location may make a link there, to a directory of another table or of the machine. A place may
be reached through links: an operator has made them. What lies below it is opened name by name, each without following a link, and
a file is deleted or moved by the directory that was opened: no link that is made meanwhile leads elsewhere.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from icekeep.errors import IcekeepError
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.storage.local.errors import translated
from icekeep.storage.locations import canonical, local_path

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
