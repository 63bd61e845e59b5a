"""Listings of object stores: all below a prefix, page by page, or by ranges of names, each of which another task may list.

A listing goes on where it was when credentials end, or where the client cannot tell a name. A store's names are sorted,
and are divided into ranges without listing them all: a listing that starts behind a name gives what comes next, so the
names that begin with `ab` are passed over by one request. In this way the characters are found by which names differ
first, each of them makes a range, and ranges are divided again until there are enough, whether names differ in a
directory or within one directory's files.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import obstore
from obstore.exceptions import InvalidPathError

from icekeep.errors import MissingFileError, UnsupportedError
from icekeep.storage.base import REQUESTS_AT_ONCE, FileInfo, ListingShare
from icekeep.storage.objects.errors import STORE_ERRORS, translated
from icekeep.storage.objects.requests import ObjectBuckets, looked_at
from icekeep.storage.objects.stores import Stores, has_empty_parts

MARKER = ".icekeep-directory"


PAGE_NAMES = 1000


class ListedPage(NamedTuple):
    """Some objects of a listing, as the client describes them."""

    objects: Sequence[Any]
    is_last: bool


def listed_pages(stores: Stores, prefix: str, after: str = "") -> Iterator[ListedPage]:
    """The objects below a prefix, about a thousand at a time.

    The client takes the slash off the end of names; a marker that has one may come twice. Names with empty parts, which it
    cannot tell, are asked for by another one.

    Args:
        prefix: without a slash at its end; nothing for the bucket itself.
        after: only names behind this one; for stores that list in order.
    """
    if stores.raw_page is not None and (has_empty_parts(prefix) or has_empty_parts(after)):
        yield from _raw_pages(stores.raw_page, prefix, after)
        return
    last, has_begun = after, False

    def begun() -> Iterator[Sequence[Any]]:
        return iter(obstore.list(stores.patient, prefix or None, offset=last or None, chunk_size=PAGE_NAMES))

    pages = begun()

    def next_page() -> Sequence[Any] | None:
        nonlocal pages
        try:
            return next(pages, None)
        except STORE_ERRORS as error:
            # Where names come in no order, nothing tells what is left.
            pages = begun() if stores.lists_in_order or not has_begun else _broken(error)
            raise

    while True:
        try:
            page = stores.ask(next_page)
        except InvalidPathError:
            if stores.raw_page is None:
                raise
            yield from _raw_pages(stores.raw_page, prefix, last)
            return
        if page is None:
            return
        has_begun = True
        last = max((last, *(meta["path"] for meta in page))) if stores.lists_in_order else ""
        yield ListedPage(page, len(page) < PAGE_NAMES)


def _raw_pages(
    raw_page: Callable[[str, str, int], tuple[Sequence[Any], str]], prefix: str, after: str
) -> Iterator[ListedPage]:
    start = f"{prefix}/" if prefix else ""
    while True:
        objects, after = raw_page(start, after, PAGE_NAMES)
        yield ListedPage(objects, is_last=not after)
        if not after:
            return


def _broken(error: Exception) -> Iterator[Sequence[Any]]:
    def fail() -> Sequence[Any]:
        raise error

    return iter(fail, ())


HIGHEST = "\U0010ffff"
"""No name has a character behind it."""


class SortedNames(NamedTuple):
    """Names in order; `is_all`: none come behind them."""

    names: Sequence[str]
    is_all: bool


Look = Callable[[str], SortedNames]
"""The next names behind one, some of them; those behind an empty one are the first."""


class NameRange(msgspec.Struct, frozen=True, kw_only=True):
    """The names behind `after`, up to and with `until`; an empty `until` is no end.

    Attributes:
        first: those of its names that were seen, from the first on.
        is_seen: these are all, or it cannot be divided.
        shared_count: so many characters are known to be the same in all its names.
    """

    after: str = ""
    until: str = ""
    first: Sequence[str] = ()
    is_seen: bool = False
    shared_count: int = 0


def name_ranges(look: Look, prefix: str, count: int, at_once: int, merged_names_max: int) -> list[NameRange]:
    """Ranges that together hold every possible name once, in order: about `count` or more if there are names enough.

    Args:
        prefix: what all names begin with.
        at_once: how many ranges are divided side by side.
        merged_names_max: neighbours of which all names were seen are one range if they have no more names than that.
    """
    ranges = [_clipped(NameRange(shared_count=len(prefix)), look(""))]
    with ThreadPoolExecutor(at_once) as pool:
        while len(ranges) < count and not all(some.is_seen for some in ranges):
            ranges = [*chain.from_iterable(pool.map(lambda some: _divided(some, look), ranges))]
    return _merged(ranges, merged_names_max)


def _divided(whole: NameRange, look: Look) -> list[NameRange]:
    """A range for each character by which the names of one differ first."""
    if whole.is_seen:
        return [whole]
    if len(whole.first) < 2:
        whole = _clipped(whole, look(whole.after))
        if whole.is_seen:
            return [whole]
    shared_count = _shared_count(whole, look)
    divided = []
    rest = whole
    while True:
        end = _end(rest.first[0], shared_count + 1)
        behind = _behind(end, rest, look)
        if not behind.first or end <= rest.after:
            break
        seen = [name for name in rest.first if name <= end]
        divided.append(
            msgspec.structs.replace(
                rest, until=end, first=seen, is_seen=len(seen) < len(rest.first), shared_count=shared_count + 1
            )
        )
        rest = behind
    rest = msgspec.structs.replace(rest, shared_count=shared_count + 1, is_seen=rest.is_seen or not divided)
    return [*divided, rest]


def _shared_count(some: NameRange, look: Look) -> int:
    """How many characters are the same in all names of a range.

    What begins otherwise than the first name comes behind it, so one look tells whether all share a number of characters;
    no more than those that were seen share.
    """
    first, last = some.first[0], some.first[-1]
    most = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    low, high = some.shared_count, most + 1
    number = low + 1
    while high - low > 1:
        if _behind(_end(first, number), some, look).first:
            high = number
        else:
            low = number
        number = (low + high) // 2
    return low


def _behind(end: str, some: NameRange, look: Look) -> NameRange:
    """The rest of a range behind a name."""
    seen = [name for name in some.first if name > end]
    if seen or some.is_seen:
        return msgspec.structs.replace(some, after=end, first=seen)
    return _clipped(msgspec.structs.replace(some, after=end), look(end))


def _end(name: str, length: int) -> str:
    """What no name that begins with the same characters comes behind; the name itself if it has no more."""
    return name[:length] + HIGHEST if len(name) >= length else name


def _clipped(some: NameRange, names: SortedNames) -> NameRange:
    """A range with the first of its names."""
    inside = [name for name in names.names if name > some.after and (name <= some.until or not some.until)]
    is_seen = names.is_all or (bool(some.until) and any(name > some.until for name in names.names))
    return msgspec.structs.replace(some, first=inside, is_seen=is_seen)


def _merged(ranges: Sequence[NameRange], names_max: int) -> list[NameRange]:
    merged: list[NameRange] = []
    for some in ranges:
        last = merged[-1] if merged else None
        if last and last.is_seen and some.is_seen and len(last.first) + len(some.first) <= names_max:
            first = [*last.first, *some.first]
            merged[-1] = msgspec.structs.replace(last, until=some.until, first=first)
        else:
            merged.append(some)
    return merged


_NAME_CHARACTERS = 1024
_START = datetime.fromtimestamp(0, UTC)


class ObjectListing(ObjectBuckets):
    """The part of the storage on object stores that lists."""

    def head(self, location: str) -> FileInfo | None:
        target = self._target(location)
        try:
            with translated("look at", location):
                meta = looked_at(target)
        except MissingFileError:
            return None
        return FileInfo(location, meta["size"], epoch_ms(meta["last_modified"]))

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        """As `Storage.shares`, by ranges of names, so that a directory with millions of files is divided as well.

        A look for a place to divide at is one request, as for a thousand names. A store whose listings are in no order has
        one share.
        """
        stores, prefix = self._directory(prefix_location)
        if count < 2 or not stores.lists_in_order:
            return [ListingShare(prefix_location)]

        start = f"{prefix}/" if prefix else ""

        def look(after: str) -> SortedNames:
            return _next_names(stores, start, after)

        with translated("list", prefix_location):
            ranges = name_ranges(look, start, count, REQUESTS_AT_ONCE, PAGE_NAMES)
        return [ListingShare(prefix_location, after=some.after, until=some.until) for some in ranges]

    def list(self, prefix_location: str) -> Iterator[FileInfo]:
        return self.list_share(ListingShare(prefix_location))

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        """As `Storage.list_share`.

        Raises:
            UnsupportedError: the store lists in another order than that of the bytes of names, as some do that walk
                directories: what lies between two names cannot be asked of it.
        """
        stores, prefix = self._directory(share.prefix)
        base = share.prefix.rstrip("/")
        start = f"{prefix}/" if prefix else ""
        # The client takes the slash off the end of names: an empty object may be the marker of a directory.
        empty: set[str] = set()
        with translated("list", share.prefix):
            for key, size_bytes, modified in _objects(stores, prefix, _named_so(share, start)):
                name = key.removeprefix(start)
                if key == prefix or name.rpartition("/")[2] == MARKER or name in empty:
                    continue
                if not share.is_deep and "/" in name:
                    continue
                info = FileInfo(f"{base}/{name}", size_bytes, epoch_ms(modified))
                if size_bytes == 0:
                    empty.add(name)
                    if self.head(info.location) is None:
                        continue
                yield info


def epoch_ms(time: datetime) -> int:
    """A time of the client's, in milliseconds."""
    return (time - _START) // timedelta(milliseconds=1)


def _named_so(share: ListingShare, start: str) -> ListingShare:
    """A share of the same names between two names: those that begin alike come one after another."""
    if not share.starts_with:
        return share
    first = start + share.starts_with
    last = first + HIGHEST * _NAME_CHARACTERS
    until = min(share.until, last) if share.until else last
    return msgspec.structs.replace(share, after=max(share.after, first), until=until)


def _objects(stores: Stores, prefix: str, share: ListingShare) -> Iterator[tuple[str, int, datetime]]:
    """The objects of a share, whatever else the store may list."""
    after, until = share.after, share.until
    is_part, in_order = bool(after or until), stores.lists_in_order
    last = after
    for page in listed_pages(stores, prefix, after if in_order else ""):
        for meta in page.objects:
            key, size_bytes = meta["path"], meta["size"]
            if in_order and is_part:
                # One that is empty may have lost the slash at its end.
                if key <= last and size_bytes:
                    raise _out_of_order(share.prefix)
                if until and key > until:
                    return
                last = max(key, last)
            if after < key and (key <= until or not until):
                yield key, size_bytes, meta["last_modified"]


def _next_names(stores: Stores, start: str, after: str) -> SortedNames:
    for page in listed_pages(stores, start.rstrip("/"), after):
        # A marker that lost the slash at its end may be out of its place, or be the directory itself.
        names = sorted(
            {meta["path"] for meta in page.objects if meta["path"] > after and meta["path"].startswith(start)}
        )
        if names:
            return SortedNames(names, page.is_last)
    return SortedNames([], is_all=True)


def _out_of_order(prefix_location: str) -> UnsupportedError:
    return UnsupportedError(
        f"cannot list {prefix_location!r} in parts: the store does not list names in the order of their bytes; list it as a "
        "whole",
        location=prefix_location,
    )
