"""Listings page by page, which go on where they were when credentials end in between."""

from collections.abc import Iterator, Sequence
from typing import Any

import obstore

from icekeep.storage.object_errors import STORE_ERRORS
from icekeep.storage.object_stores import Stores

PAGE_NAMES = 1000


def listed_pages(stores: Stores, prefix: str, after: str = "") -> Iterator[Sequence[Any]]:
    """What the client says of the objects below a prefix, a thousand at a time.

    The client takes the slash off the end of names; a marker that has one may come twice.

    Args:
        after: only names behind this one; for stores that list in order.
    """
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

    while (page := stores.ask(next_page)) is not None:
        has_begun = True
        last = max((last, *(meta["path"] for meta in page))) if stores.lists_in_order else ""
        yield page


def _broken(error: Exception) -> Iterator[Sequence[Any]]:
    def fail() -> Sequence[Any]:
        raise error

    return iter(fail, ())
