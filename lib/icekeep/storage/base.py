"""What icekeep asks of a store of bytes: one protocol of operations over locations.

A location is text (`file:///a/b`, `s3://bucket/key`); `locations.py` compares and joins them. Files are immutable:
nothing here overwrites one. Backends translate their own exceptions, so that callers see icekeep's errors and, for a
name that is taken, `FileExistsError`. A storage is a small value that can be pickled: it travels to Spark tasks.

Where a store has no call for many things, `answer_each` and its kin make several calls at a time; a tree of directories
is listed in shares (`directory_shares`).
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from enum import Enum
from typing import BinaryIO, Protocol, TypeVar

import msgspec

from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError, UnavailableError, UnsupportedError


class FileInfo(msgspec.Struct, frozen=True):
    """A file as its store describes it; `modified_ms` is the store's clock, epoch milliseconds."""

    location: str
    size_bytes: int
    modified_ms: int


class Capabilities(msgspec.Struct, frozen=True):
    """What has been proved about the store that holds a location.

    Attributes:
        exclusive_create: of several writers that create one name, exactly one succeeds and its bytes stay.
        move: files can be moved within the store, never over an existing one.
    """

    exclusive_create: bool
    move: bool


class DeleteStatus(Enum):
    """What became of a file that was to be deleted.

    `MISSING` is said only where the store tells that there was no file. Object stores answer a request for a thousand
    names with success whether there was something or not: `DELETED` there means that nothing is left under the name.
    """

    DELETED = "deleted"
    MISSING = "missing"
    FAILED = "failed"


class DeleteOutcome(msgspec.Struct, frozen=True):
    """The answer for one location; `reason` says why the status is `FAILED`, and then the file may still exist.

    Attributes:
        is_kept_as_version: the file was deleted, and its bytes are known to stay as an older version until a rule of the bucket
            lets them go.
    """

    location: str
    status: DeleteStatus
    reason: str = ""
    is_kept_as_version: bool = False


class MoveStatus(Enum):
    """What became of a file that was to be moved.

    `IMPOSSIBLE` is said where no move can lead from the one place to the other, however often it is tried: they are in
    different stores, buckets, mounts or encryption zones, or the store cannot move a file of this size.
    """

    MOVED = "moved"
    MISSING = "missing"
    TAKEN = "taken"
    IMPOSSIBLE = "impossible"
    FAILED = "failed"


class MoveOutcome(msgspec.Struct, frozen=True):
    """The answer for one move; `MISSING`: there is no file at the source, `TAKEN`: another file is at the target.

    `reason` says why the status is `FAILED` or `IMPOSSIBLE`. Then the file is at the source still; after `FAILED` perhaps at
    the target as well, and to move it again finishes that.
    """

    source: str
    status: MoveStatus
    reason: str = ""


class ListingShare(msgspec.Struct, frozen=True):
    """Some of the files below a directory, which the storage that made the share lists on any machine.

    Attributes:
        prefix: the location of the directory; locations of files begin with it as it is spelled.
        after: object stores only: names in the bucket that come behind this one in the order of their bytes.
        until: as `after`: names up to this one, itself among them; empty for all that come.
        is_deep: at every depth, and not only the files right in the directory.
        starts_with: only names below the directory that begin so, and go on; a store that cannot ask for that lists others too.
    """

    prefix: str
    after: str = ""
    until: str = ""
    is_deep: bool = True
    starts_with: str = ""


def whole(data: bytes, location: str, stored_bytes: int, length_bytes: int | None) -> bytes:
    """What was read from a file, if that is all of it: as much as its store has, and as metadata promises if it does.

    Raises:
        UnavailableError: the store has more or fewer bytes than came. Nothing says that the file is broken: a read that
            was cut off, or a file that is being written, may be read again.
        InvalidTableError: the file is complete, and not the one that metadata means.
    """
    if len(data) != stored_bytes:
        raise UnavailableError(
            f"cannot read {location!r}: {len(data)} bytes came, and the store says that it has {stored_bytes}",
            location=location,
        )
    if length_bytes is not None and len(data) != length_bytes:
        raise InvalidTableError(
            f"file {location!r} is {len(data)} bytes long where metadata says {length_bytes}",
            location=location,
            length_bytes=len(data),
            expected_bytes=length_bytes,
        )
    return data


class Storage(Protocol):
    """Bytes by location.

    Every operation raises `UnsupportedError` for a location that the backend does not serve, `UnavailableError` when
    the store fails for now (full, out of reach), and `UsageError` when it denies access.
    """

    def open(self, location: str) -> BinaryIO:
        """Open a file for seekable reading; remote backends read only the ranges that are asked for.

        Raises:
            MissingFileError: there is no such file.
        """

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        """Read a whole small file.

        `length_bytes` is the length that metadata promises; a file of another length is truncated or not the one meant.

        Raises:
            MissingFileError: there is no such file.
            UnavailableError: fewer bytes came than the store says that the file has.
            InvalidTableError: the file is not `length_bytes` long.
        """

    def write(self, location: str) -> AbstractContextManager[BinaryIO]:
        """Stream a new file; directories above it are made as needed.

        The file is complete and durable when the block ends cleanly, and gone when it raises: then what has the name is
        another's, and the caller deletes nothing there.

        Raises:
            FileExistsError: the name is taken, which some stores say only when the block ends; what is there is untouched.
        """

    def create(self, location: str, data: bytes) -> None:
        """Create a small file durably, all of it or nothing: the primitive that commits stand on.

        Raises:
            FileExistsError: the name is taken by something that this call did not write; nothing was created.
            OutcomeUnknownError: the file may or may not have been created; any other error of icekeep's proves that
                it was not.
        """

    def move(self, source: str, target: str) -> None:
        """Give a file another name in the same store, never over an existing one; may be repeated after a crash.

        Raises:
            MissingFileError: there is no file at `source`.
            FileExistsError: `target` is taken by another file; nothing was changed.
        """

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        """Move files, each from its source to its target as `move` does and as durably, for less than one by one.

        One answer a move, in order, and no exception for any of them. What a crash left half done is finished when the
        same moves are given again.
        """

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        """Delete files, never directories; one answer a location, in order, and no exception for any of them."""

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        """Divide the listing of a directory: the shares together list what `list` lists, each file in one of them.

        There are about `count` of them or more, where there is enough to list; there may be many small ones.
        """

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        """Stream one share's files, as `list` does all."""

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        """Stream the files below a directory, at any depth and in no order; nothing if there is no such directory.

        Locations begin with `prefix_location` as it is spelled. Links below the directory are neither listed nor
        followed. A part that cannot be listed raises: a listing that ends is complete. Files that come or go meanwhile
        may be in it or not; all others are in it once.
        """

    def child_names(self, location: str) -> Sequence[str]:
        """Names of everything right in a directory, sorted; none if it is not there."""

    def head(self, location: str) -> FileInfo | None:
        """Describe a file; `None` if there is none."""

    def capabilities(self, location: str) -> Capabilities:
        """Prove what the store of `location` can do, by trying it in the nearest directory that exists."""

    # Directories, which a catalog in a directory takes for namespaces. A store that knows only keys has one where a key lies
    # below it, and keeps an empty one by a marker that neither `list` nor `child_names` shows.

    def directory_exists(self, location: str) -> bool:
        """Whether there is a directory, or a link to one."""

    def make_directory(self, location: str) -> None:
        """Make a directory and those above it; one that exists is fine."""

    def remove_directory(self, location: str) -> None:
        """Remove an empty directory; raises `UnavailableError` for one that is not empty."""

    def child_directories(self, location: str) -> Sequence[str]:
        """Names of the directories right in a directory, sorted, without hidden ones and links; none if it is not there."""


def directory_shares(
    prefix_location: str, count: int, subdirectories: Callable[[str], Iterable[str]]
) -> list[ListingShare]:
    """Shares of a listing, by walking directories level by level until there are `count` or no more to walk.

    A directory that was walked through is a share of the files right in it; one that was not is a share at every depth.

    Args:
        subdirectories: locations of the directories right in a directory, without links; none if it is not there.
    """
    walked: list[ListingShare] = []
    waiting = deque([prefix_location])
    while waiting and len(walked) + len(waiting) < count:
        location = waiting.popleft()
        walked.append(ListingShare(location, is_deep=False))
        waiting.extend(sorted(subdirectories(location)))
    return [*walked, *(ListingShare(location) for location in waiting)]


REQUESTS_AT_ONCE = 16
"""So many requests of one process wait for a store or a catalog at a time."""

LOCAL_REQUESTS_AT_ONCE = 2
"""The same of the disks of this machine: there is no waiting to be done, and more would only fight over the interpreter."""

_HEADS_A_TURN = range(8, 101)
"""How many locations a thread asks for in a row: few enough that all threads have some, and enough to pay for a thread."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def answer_each(
    act: Callable[[_Asked], _Answer], asked: Sequence[_Asked], key: Callable[[_Asked], Hashable], at_once: int
) -> list[_Answer]:
    """The answers of `act`, in order; what has one key is asked one after the other, as if all were."""
    positions_by_key: dict[Hashable, list[int]] = {}
    for position, one in enumerate(asked):
        positions_by_key.setdefault(key(one), []).append(position)
    groups = list(positions_by_key.values())

    def answers_to(positions: Sequence[int]) -> list[_Answer]:
        return [act(asked[position]) for position in positions]

    threads = min(at_once, len(groups))
    if threads < 2:
        return [act(one) for one in asked]
    answers: dict[int, _Answer] = {}
    with ThreadPoolExecutor(threads) as pool:
        for positions, some in zip(groups, pool.map(answers_to, groups), strict=True):
            answers.update(zip(positions, some, strict=True))
    return [answers[position] for position in range(len(asked))]


def head_many(locations: Sequence[str], storage: Storage) -> list[FileInfo | None]:
    """What there is at some locations, in their order, as `Storage.head` tells it."""
    share = -(-len(locations) // REQUESTS_AT_ONCE)
    count = min(max(share, _HEADS_A_TURN[0]), _HEADS_A_TURN[-1])
    turns = [locations[start : start + count] for start in range(0, len(locations), count)]
    answers = answer_each(lambda turn: [storage.head(name) for name in turn], turns, id, REQUESTS_AT_ONCE)
    return [found for some in answers for found in some]


def moved_one_by_one(
    move: Callable[[str, str], None], moves: Iterable[tuple[str, str]], at_once: int = 1
) -> list[MoveOutcome]:
    """What `Storage.move_many` answers, by a storage's `move`."""

    def act(names: tuple[str, str]) -> MoveOutcome:
        source, target = names
        try:
            move(source, target)
        except FileExistsError:
            return MoveOutcome(source, MoveStatus.TAKEN)
        except MissingFileError:
            return MoveOutcome(source, MoveStatus.MISSING)
        except UnsupportedError as error:
            return MoveOutcome(source, MoveStatus.IMPOSSIBLE, error.message)
        except IcekeepError as error:
            return MoveOutcome(source, MoveStatus.FAILED, error.message)
        return MoveOutcome(source, MoveStatus.MOVED)

    return answer_each(act, list(moves), lambda names: names[0], at_once)
