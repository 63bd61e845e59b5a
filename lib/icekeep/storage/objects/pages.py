"""Listings page by page, which go on where they were when credentials end in between, or the client cannot tell a name."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import obstore
from obstore.exceptions import InvalidPathError

from icekeep.storage.objects.errors import STORE_ERRORS
from icekeep.storage.objects.roots import has_empty_parts
from icekeep.storage.objects.stores import Stores

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
