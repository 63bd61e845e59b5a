"""Mends for which new files are written: who makes them, and the change that has them."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.changes.repair_entries import AddedCopy, RepairedEntry, RepairEntries
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Update


class NewFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were written, and the entries that go for them.

    Attributes:
        locations: of all files; none is removed once the commit has landed.
    """

    locations: tuple[str, ...]
    entries: tuple[RepairedEntry, ...] = ()
    deletes: tuple[AddedDeletes, ...] = ()
    copies: tuple[AddedCopy, ...] = ()


class Maker(Protocol):
    """Writes new files by the first attempt that gets so far; later ones have the same."""

    def made(self, base: TableMetadata, attempt: Attempt) -> NewFiles:
        """The files, for this base.

        Raises:
            ConflictError: what they were to be made of, or for, is not as it was read.
        """


class WithNewFiles(msgspec.Struct, frozen=True):
    """A change with what makers add to it."""

    change: RepairEntries
    makers: Sequence[Maker]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Raises as `Maker.made` and `RepairEntries.apply`."""
        change = self.change
        for maker in self.makers:
            new = maker.made(base, attempt)
            attempt.name_delete_files(new.locations)
            change = replace(
                change,
                entries=(*change.entries, *new.entries),
                added=(*change.added, *new.deletes),
                copies=(*change.copies, *new.copies),
            )
        return change.apply(base, attempt)
