"""What storage has below a table's directories, as marks: keys of locations with sizes."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.checking.entries.keys import keys_of, paired
from icekeep.maintenance.deletion.territory import table_roots
from icekeep.spec.properties import metadata_directory
from icekeep.storage.base import FileInfo, ListingShare, Storage
from icekeep.storage.location_keys import Keys
from icekeep.storage.many import REQUESTS_AT_ONCE, answer_each

_BATCH_ROWS = 10_000


def listing_shares(table: Table, count: int) -> list[ListingShare]:
    """The listing of the directories that a table's files lie in, in about `count` shares; none where it may not be listed."""
    beside = metadata_directory(table.metadata).rstrip("/")
    roots = [root for root in table_roots(table.metadata) if root.rstrip("/") != beside]
    shares: list[ListingShare] = []
    for root in roots:
        try:
            shares += table.storage.shares(root, max(1, count // len(roots)))
        except (InvalidTableError, UnsupportedError, UsageError):
            # Its files are looked for one by one then.
            continue
    return shares


def listed_batches(share: ListingShare, storage: Storage) -> Iterator[tuple[Keys, Keys]]:
    """Keys of the files of a share, and their marks; as far as the share may be listed.

    Raises:
        UnavailableError: the store is out of reach.
    """
    infos = storage.list_share(share)
    while True:
        try:
            some: list[FileInfo] = [*islice(infos, _BATCH_ROWS)]
        except (InvalidTableError, UnsupportedError, UsageError):
            return
        if not some:
            return
        keys, there = keys_of(pa.array([info.location for info in some], pa.string()))
        sizes = np.array([info.size_bytes for info in some], np.int64)
        yield keys[there], paired(keys[there], sizes[there])


def look_up(locations: Sequence[str], storage: Storage) -> list[FileInfo | str | None]:
    """What there is at some locations, as `Storage.head` tells it; a text says why nobody can tell.

    Raises:
        UnavailableError: the store is out of reach.
    """

    def head(location: str) -> FileInfo | str | None:
        try:
            return storage.head(location)
        except (InvalidTableError, UnsupportedError, UsageError) as error:
            return first_line(error)

    return answer_each(head, locations, lambda location: location, REQUESTS_AT_ONCE)
