"""Proof that a catalog can be committed to: a table of this run's own is created, committed to and dropped.

Its name says whose it is, and holds a number that this run has drawn, so that nothing of others is touched: whatever has that
name is this run's. If the process is killed it stays, as `icekeep_doctor_<number>`.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import cast

import pyarrow as pa

from icekeep.catalog.base import Catalog, Committed, Identifier, Table, Unknown, format_identifier
from icekeep.errors import IcekeepError, NotFoundError, OutcomeUnknownError, UnavailableError, UsageError
from icekeep.operations.doctor.findings import Notes, NotTried
from icekeep.operations.doctor.own_files import absent, remove_empty, remove_own
from icekeep.spec.evolution import AddColumn
from icekeep.spec.updates import AssertCurrentSchemaId, SetProperties
from icekeep.storage.base import DeleteStatus, DirectoryStorage
from icekeep.tables.verbs import create_table, update_schema

NAME_PREFIX = "icekeep_doctor_"

_COLUMNS = pa.schema([pa.field("id", pa.int64())])
_NOT_FOR_LONG = {
    "commit.retry.num-retries": "1",
    "commit.retry.total-timeout-ms": "10000",
    "commit.status-check.num-retries": "2",
    "commit.status-check.total-timeout-ms": "10000",
}
"""Whoever waits for an answer need not wait for half an hour, as a commit does that hours of work went into."""


def look_at_commits(
    notes: Notes, about: str, catalog: Catalog, namespace: Identifier, on_table: Callable[[Table], None] | None
) -> None:
    """Create a table, let `on_table` look at it, commit to it, try to commit to what it was before, and drop it.

    Args:
        on_table: given where what reaches files comes with a table.
    """
    trial = _Trial(catalog, namespace, catalog.warehouse if on_table is None else None)
    try:
        if notes.look(about, "create table", trial.create) and trial.table is not None:
            if on_table is not None:
                on_table(trial.table)
            if notes.look(about, "commit", trial.commit):
                notes.look(about, "commit on an old version", trial.commit_late)
    finally:
        if trial.may_be_there:
            notes.look(about, "drop table", trial.remove)
        trial.leave()


class _Trial:
    """The table.

    Attributes:
        table: as it was created, `None` before.
        may_be_there: whether the catalog may have it.
    """

    def __init__(self, catalog: Catalog, namespace: Identifier, above: str | None) -> None:
        """Args:
        above: the directory of tables, where the catalog's own storage reaches it.
        """
        self.table: Table | None = None
        self.may_be_there = False
        self._catalog, self._storage = catalog, cast(DirectoryStorage, catalog.storage)
        self._above = above
        self._name = f"{NAME_PREFIX}{catalog.runtime.new_uuid().hex}"
        self._identifier = (*namespace, self._name)
        self._location = ""
        self._made: tuple[str, ...] = ()

    def create(self) -> str:
        self._location = self._catalog.default_location(self._identifier).rstrip("/")
        if self._above is not None:
            self._made = absent(self._storage, self._location.rpartition("/")[0], self._above)
        self.may_be_there = True
        try:
            self.table = create_table(
                self._catalog, self._identifier, _COLUMNS, location=self._location, properties=_NOT_FOR_LONG
            )
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            self.may_be_there = False
            raise
        return f"{self.table.name} at {self.table.metadata.location}"

    def commit(self) -> str:
        assert self.table is not None
        update_schema(self.table, [AddColumn("added", "string")])
        return "a column was added"

    def commit_late(self) -> str:
        """Do what the slower of two writers would do, who must be refused."""
        assert self.table is not None
        schema_id = self.table.metadata.current_schema_id
        late = SetProperties({"late": "true"})
        outcome = self._catalog.swap(self.table, [AssertCurrentSchemaId(schema_id)], [late])
        if isinstance(outcome, Committed):
            raise UsageError(
                "a commit on a version of the table that was not current any more was taken: commits of others are lost in this "
                "catalog; use another one"
            )
        if isinstance(outcome, Unknown):
            raise UnavailableError(f"its outcome is unknown: {outcome.cause}")
        return "it is refused"

    def remove(self) -> str:
        """Drop the table, if there is one, and remove its files."""
        try:
            return self._removed()
        except IcekeepError as error:
            name = format_identifier(self._identifier)
            raise UsageError(
                f"table {name!r} of this run may be left behind: {error.message}; look for it, and drop it with icekeep drop "
                "--purge"
            ) from error

    def leave(self) -> None:
        """Remove what a table that was not created has left, and directories that were made for it."""
        with suppress(IcekeepError):
            if self._above is not None and self._is_named() and not self.may_be_there:
                remove_own(self._storage, self._location, self._name)
        remove_empty(self._storage, self._made)

    def _removed(self) -> str:
        try:
            table = self._catalog.load(self._identifier)
        except NotFoundError:
            raise NotTried("there is none") from None
        known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        self._storage, self._location = cast(DirectoryStorage, table.storage), table.metadata.location.rstrip("/")
        known.add(self._catalog.drop(self._identifier, table_uuid=table.metadata.table_uuid))
        if self._is_named():
            remove_own(self._storage, self._location, self._name)
            return "all that this run created is removed"
        # A server may put tables where it likes: only what metadata names is this table's for certain.
        failed = [
            one for one in self._storage.delete_many(sorted(filter(None, known))) if one.status is DeleteStatus.FAILED
        ]
        if failed:
            raise UnavailableError(f"{failed[0].location!r} cannot be deleted ({failed[0].reason})")
        return f"its metadata files are deleted; what else lies below {self._location!r} is left alone"

    def _is_named(self) -> bool:
        """Whether the table's directory has its name, so that all in it is this run's."""
        return self._name in self._location.rpartition("/")[2]
