"""A table that is watched while a verb commits to it, or whose commit is only rehearsed.

Both wrap the table's catalog, so that a verb runs as it always does, with all its checks. In a rehearsal the next metadata
is made in memory from the table as it is now, what the commit writes stays in memory, and nothing reaches the store.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import msgspec

from icekeep.catalog.base import (
    Catalog,
    Committed,
    Conflict,
    Description,
    Identifier,
    OperatorRules,
    Pointer,
    SwapOutcome,
    Table,
)
from icekeep.catalog.metadata_files import encode, next_metadata
from icekeep.errors import IcekeepBug
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import AddSnapshot, Requirement, Update
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import RehearsalStorage


class Swap(msgspec.Struct, frozen=True):
    """A swap that was asked for: the table that it was about, as it was just before, and the updates."""

    base: Table
    updates: tuple[Update, ...]
    was_refused: bool = False

    @property
    def added_ids(self) -> frozenset[int]:
        """The snapshots that it was to add."""
        return frozenset(u.snapshot.snapshot_id for u in self.updates if isinstance(u, AddSnapshot))

    def is_in(self, table: Table) -> bool:
        """Whether it landed, as a commit tells that ended with `table`; a refusal may have been the answer to a second try."""
        return not self.was_refused or any(added in table.metadata.snapshots_by_id for added in self.added_ids)


class WatchedCatalog:
    """Passes on what a commit asks of a catalog; `last_swap` is what it asked for at last, `None` if for nothing."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.last_swap: Swap | None = None

    def watched(self, table: Table) -> Table:
        """The same table, whose commits go through here."""
        return msgspec.structs.replace(table, catalog=self)

    @property
    def name(self) -> str:
        return self._catalog.name

    @property
    def runtime(self) -> Runtime:
        return self._catalog.runtime

    @property
    def identity(self) -> str:
        return self._catalog.identity

    @property
    def compares_metadata(self) -> bool:
        return self._catalog.compares_metadata

    @property
    def restores_snapshots(self) -> bool:
        return self._catalog.restores_snapshots

    @property
    def drop_frees_metadata_names(self) -> bool:
        return self._catalog.drop_frees_metadata_names

    @property
    def garbage_collector(self) -> str | None:
        return self._catalog.garbage_collector

    @property
    def warehouse(self) -> str | None:
        return self._catalog.warehouse

    @property
    def reclaim_roots(self) -> tuple[str, ...]:
        return self._catalog.reclaim_roots

    @property
    def rewrite_roots(self) -> tuple[str, ...]:
        return self._catalog.rewrite_roots

    @property
    def rules(self) -> OperatorRules:
        return self._catalog.rules

    def find(self, identifier: Identifier | str) -> Pointer:
        return self._catalog.find(identifier)

    def describe(self, identifier: Identifier) -> Description | None:
        return self._catalog.describe(identifier)

    def load(self, identifier: Identifier | str) -> Table:
        return self.watched(self._catalog.load(identifier))

    def locked(self, table: Table) -> AbstractContextManager[None]:
        return self._catalog.locked(table)

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        self.last_swap = Swap(table, tuple(updates))
        outcome = self._swap(msgspec.structs.replace(table, catalog=self._catalog), requirements, updates)
        if isinstance(outcome, Conflict):
            self.last_swap = msgspec.structs.replace(self.last_swap, was_refused=True)
        return Committed(self.watched(outcome.table)) if isinstance(outcome, Committed) else outcome

    def default_location(self, identifier: Identifier) -> str:
        return self._catalog.default_location(identifier)

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        return self._catalog.list_tables(namespace)

    def list_namespaces(self) -> list[Identifier]:
        return self._catalog.list_namespaces()

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        self._refuse("create")

    def reattach(self, table: Table) -> SwapOutcome:
        self._refuse("reattach")

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        self._refuse("drop")

    @property
    def storage(self) -> Storage:
        return self._catalog.storage

    def register_table(self, identifier: Identifier, metadata_location: str) -> Table:
        self._refuse("register_table")

    def rename(self, old: Identifier, new: Identifier) -> None:
        self._refuse("rename")

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        self._refuse("create_namespace")

    def drop_namespace(self, namespace: Identifier) -> None:
        self._refuse("drop_namespace")

    def _swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        return self._catalog.swap(table, requirements, updates)

    def _refuse(self, operation: str) -> NoReturn:
        raise IcekeepBug(f"a commit to a table asked its catalog to {operation}")


class Rehearsal(WatchedCatalog):
    """Answers a swap as the catalog would, but for what only the real one can know, and changes nothing."""

    def __init__(self, catalog: Catalog, storage: Storage) -> None:
        super().__init__(catalog)
        self._storage = RehearsalStorage(storage)

    def watched(self, table: Table) -> Table:
        return msgspec.structs.replace(super().watched(table), storage=self._storage)

    def locked(self, table: Table) -> AbstractContextManager[None]:
        return nullcontext()

    def find(self, identifier: Identifier | str) -> Pointer:
        # Each table may have a storage of its own, with credentials of its own.
        found = super().find(identifier)
        return msgspec.structs.replace(found, storage=RehearsalStorage(found.storage))

    def _swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        new = next_metadata(table, requirements, updates, self.runtime.now_ms())
        if isinstance(new, Conflict):
            return new
        # A real swap writes it, which a property of the table may prevent.
        encode(new)
        return Committed(msgspec.structs.replace(table, metadata=new))
