"""Raise a table's format version, for those who have no other engine."""

from icekeep.catalog.base import Table
from icekeep.commit.changes.upgrade_format_version import UpgradeTable
from icekeep.commit.retry import commit


def upgrade_format_version(table: Table, format_version: int) -> Table:
    """Give a table a newer format version and commit; returns the table after it. There is no way back.

    No file changes: readers of the new version read what was written by the old one. Readers that know only the old
    version cannot open the table any more.

    Raises:
        UsageError: the version is older than the table's, or newer than the newest that is known.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    return commit(table, UpgradeTable(format_version, str(table.runtime.new_uuid()))).table
