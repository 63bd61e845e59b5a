"""Listings of object stores: all below a prefix, or by ranges of names, each of which another task may list."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from icekeep.errors import UnsupportedError
from icekeep.storage.base import FileInfo, ListingShare
from icekeep.storage.many import REQUESTS_AT_ONCE
from icekeep.storage.objects.directories import MARKER
from icekeep.storage.objects.errors import translated
from icekeep.storage.objects.pages import PAGE_NAMES, listed_pages
from icekeep.storage.objects.ranges import HIGHEST, Names, name_ranges
from icekeep.storage.objects.stores import Stores

_NAME_CHARACTERS = 1024
_START = datetime.fromtimestamp(0, UTC)


class ObjectListing(ABC):
    """The part of the storage on object stores that lists."""

    @abstractmethod
    def head(self, location: str) -> FileInfo | None:
        """As `Storage.head`."""

    @abstractmethod
    def _directory(self, location: str) -> tuple[Stores, str]:
        """A bucket's clients, and a prefix without a slash at its end: nothing for the bucket itself."""

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        """As `Storage.shares`, by ranges of names, so that a directory with millions of files is divided as well.

        A look for a place to divide at is one request, as for a thousand names. A store whose listings are in no order has
        one share.
        """
        stores, prefix = self._directory(prefix_location)
        if count < 2 or not stores.lists_in_order:
            return [ListingShare(prefix_location)]

        start = f"{prefix}/" if prefix else ""

        def look(after: str) -> Names:
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


def _next_names(stores: Stores, start: str, after: str) -> Names:
    for page in listed_pages(stores, start.rstrip("/"), after):
        # A marker that lost the slash at its end may be out of its place, or be the directory itself.
        names = sorted(
            {meta["path"] for meta in page.objects if meta["path"] > after and meta["path"].startswith(start)}
        )
        if names:
            return Names(names, page.is_last)
    return Names([], is_all=True)


def _out_of_order(prefix_location: str) -> UnsupportedError:
    return UnsupportedError(
        f"cannot list {prefix_location!r} in parts: the store does not list names in the order of their bytes; list it as a "
        "whole",
        location=prefix_location,
    )
