"""Change a table's schema, for those who have no other engine."""

from collections.abc import Iterable

from icekeep.catalog.base import Table
from icekeep.commit.changes.update_schema import UpdateSchema
from icekeep.commit.retry import commit
from icekeep.spec.evolution.schema_changes import SchemaChange


def update_schema(table: Table, changes: Iterable[SchemaChange]) -> Table:
    """Apply changes to the current schema, in order, and commit them as one; returns the table after it.

        update_schema(table, [AddColumn("note", "string"), RenameColumn("ts", "at"), MoveFirst("at")])

    No data file changes. If another writer commits meanwhile, the changes are applied to the schema that is there then.

    Args:
        changes: values of `icekeep.spec.evolution.schema_changes`.

    Raises:
        UsageError: the spec, the table's format version, partition spec or sort order do not allow a change.
        NotFoundError: a column is not there.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    return commit(table, UpdateSchema(tuple(changes))).table
