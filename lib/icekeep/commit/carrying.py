"""Positions that others delete in a data file while it is rewritten: what is asked of them, and who lets them follow the rows.

A rewrite drops the rows that were deleted when it read them. What came since is not lost and no conflict: the rows lie in
new files, at positions that the rewrite knows, so deletes of the new positions go into the very snapshot that replaces the
files. A change only finds which deletes those are; to read and write them it needs a `DeleteCarrier`, as it needs a
`ManifestReader` for manifests.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.metadata import TableMetadata


class ChangedDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """What deletes positions of one replaced data file in a base, where it is not what the rewrite applied.

    Attributes:
        deletes: the live position delete files, or the vector, that must be looked at.
        lacks_positions: of those that were applied one is not live any more: these must hold all positions that it held.
        lacks_keys: an equality delete file that was applied is not: these must hold every row that the rewrite dropped.
    """

    deletes: tuple[ManifestEntry, ...]
    lacks_positions: bool = False
    lacks_keys: bool = False


class Carried(msgspec.Struct, frozen=True):
    """Deletes of rows of the new files, and the data files for which that cannot be done, each with why."""

    deletes: tuple[DataFile, ...] = ()
    refusals: Mapping[str, str] = {}


class DeleteCarrier(Protocol):
    """Knows where each row of the replaced files went; asked by every attempt of a commit, each with its own base."""

    def carried(
        self, changed: Mapping[str, ChangedDeletes], base: TableMetadata, noted: Callable[[str], None]
    ) -> Carried:
        """Write the deletes that came since the rewrite read, as deletes of the rows where they are now.

        Args:
            changed: by the path of a replaced data file.
            base: whose format version says what kind of delete files these are.
            noted: is given each location once it is written, so that what no snapshot names is removed.
        """
