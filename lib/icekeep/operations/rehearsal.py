"""A table that is watched while a command commits to it, or whose commit is only rehearsed.

Both wrap the table's catalog, so that a command runs as it always does, with all its checks. In a rehearsal the next metadata
is made in memory from the table as it is now, what the commit writes stays in memory, and nothing reaches the store.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import msgspec

from icekeep.catalog.base import Catalog, Committed, Conflict, Identifier, Pointer, SwapOutcome, Table
from icekeep.catalog.metadata_files import encode, next_metadata
from icekeep.catalog.wrappers import CatalogWrapper
from icekeep.errors import IcekeepBug
from icekeep.spec.updates import AddSnapshot, Requirement, Update
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import Overlay


class Swap(msgspec.Struct, frozen=True):
    """A swap that was asked for: the table that it was about, as it was just before, and the updates."""

    base: Table
    updates: tuple[Update, ...]
    was_refused: bool = False

    @property
    def added_ids(self) -> frozenset[int]:
        return frozenset(u.snapshot.snapshot_id for u in self.updates if isinstance(u, AddSnapshot))

    def is_in(self, table: Table) -> bool:
        """Whether it landed, as a commit tells that ended with `table`; a refusal may have been the answer to a second try."""
        return not self.was_refused or any(added in table.metadata.snapshots_by_id for added in self.added_ids)


def _refused(operation: str) -> Callable[..., NoReturn]:
    """What a commit to a table has no reason to ask of its catalog."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise IcekeepBug(f"a commit to a table asked its catalog to {operation}")

    return refuse


class WatchedCatalog(CatalogWrapper):
    """Passes on what a commit asks of a catalog; `last_swap` is what it asked for at last, `None` if for nothing."""

    create = _refused("create")
    reattach = _refused("reattach")
    drop = _refused("drop")
    register_table = _refused("register_table")
    rename = _refused("rename")
    create_namespace = _refused("create_namespace")
    drop_namespace = _refused("drop_namespace")

    def __init__(self, inner: Catalog) -> None:
        super().__init__(inner)
        self.last_swap: Swap | None = None

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        self.last_swap = Swap(table, tuple(updates))
        outcome = self._swap(table, requirements, updates)
        if isinstance(outcome, Conflict):
            self.last_swap = msgspec.structs.replace(self.last_swap, was_refused=True)
        return outcome

    def _swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        return super().swap(table, requirements, updates)


class Rehearsal(WatchedCatalog):
    """Answers a swap as the catalog would, but for what only the real one can know, and changes nothing."""

    def __init__(self, inner: Catalog, storage: Storage) -> None:
        super().__init__(inner)
        self._written = Overlay(storage)

    def over(self, table: Table) -> Table:
        return msgspec.structs.replace(table, catalog=self, storage=self._written)

    def locked(self, table: Table) -> AbstractContextManager[None]:
        return nullcontext()

    def find(self, identifier: Identifier | str) -> Pointer:
        # Each table may have a storage of its own, with credentials of its own.
        found = self.inner.find(identifier)
        return msgspec.structs.replace(found, storage=Overlay(found.storage))

    def _swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        new = next_metadata(self.plain(table), requirements, updates, self.inner.runtime.now_ms())
        if isinstance(new, Conflict):
            return new
        # A real swap writes it, which a property of the table may prevent.
        encode(new)
        return Committed(self.over(msgspec.structs.replace(table, metadata=new)))
