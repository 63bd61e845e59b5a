"""Change how a table is partitioned, for those who have no other engine."""

from collections.abc import Iterable

from icekeep.catalog.base import Table
from icekeep.commit.changes.update_spec import UpdateSpec
from icekeep.commit.retry import commit
from icekeep.spec.evolution.partition_evolution import PartitionChange


def update_spec(table: Table, changes: Iterable[PartitionChange]) -> Table:
    """Apply changes to the default partition spec, in order, and commit them as one; returns the table after it.

        update_spec(table, [RemovePartitionField("ts_month"), AddPartitionField("ts", "day", name="day")])

    Only new files are partitioned so; others keep the spec that they were written with until they are rewritten.

    Args:
        changes: values of `icekeep.spec.evolution.partition_evolution`.

    Raises:
        UsageError: a change does not fit the schema or the other fields.
        NotFoundError: a column or a partition field is not there.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    return commit(table, UpdateSpec(tuple(changes))).table
