"""Change how a table is sorted, for those who have no other engine."""

from collections.abc import Iterable

from icekeep.catalog.base import Table
from icekeep.commit.changes.update_sort_order import UpdateSortOrder
from icekeep.commit.retry import commit
from icekeep.spec.sorting import SortKey


def update_sort_order(table: Table, keys: Iterable[SortKey | str]) -> Table:
    """Replace the default sort order and commit; returns the table after it. Without keys the table is not sorted.

        update_sort_order(table, ["country", SortKey("ts", "day", "desc")])

    Only files that are written or sorted from now on are in this order.

    Args:
        keys: what to sort by, the first one first; a text is a column in its own order, nulls first.

    Raises:
        UsageError: a transform does not take its column, or is unknown.
        NotFoundError: a column is not there.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    change = UpdateSortOrder(tuple(SortKey(key) if isinstance(key, str) else key for key in keys))
    return commit(table, change).table
