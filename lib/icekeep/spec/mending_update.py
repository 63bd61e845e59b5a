"""The update that raises the counters of ids where they have fallen behind what they count.

It is ours: the REST protocol has no action for it, since a server works its counters out by itself.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import last_assigned_field_id
from icekeep.spec.updates import Update, UpdateContext, effect


class RaiseCounters(Update, frozen=True, kw_only=True, tag="raise-counters"):
    """Raise counters to some values; null: that one stays. None is ever lowered."""

    last_column_id: int | None = None
    last_partition_id: int | None = None
    next_row_id: int | None = None


class LowCounter(NamedTuple):
    """A counter, by its attribute of `TableMetadata`, and the least value that it may have."""

    name: str
    least: int


def low_counters(metadata: TableMetadata) -> Iterator[LowCounter]:
    """The counters that are below what the table has."""
    wanted = [
        LowCounter("last_column_id", max((schema.highest_field_id for schema in metadata.schemas), default=0)),
        LowCounter("last_partition_id", last_assigned_field_id(metadata.partition_specs)),
    ]
    if metadata.next_row_id is not None:
        ends = ((s.first_row_id or 0) + (s.added_rows or 0) for s in metadata.snapshots if s.first_row_id is not None)
        wanted.append(LowCounter("next_row_id", max(ends, default=0)))
    return (one for one in wanted if getattr(metadata, one.name) < one.least)


@effect.register
def _(update: RaiseCounters, metadata: TableMetadata, context: UpdateContext) -> TableMetadata:
    wanted = {name: getattr(update, name) for name in update.__struct_fields__}
    return replace(
        metadata,
        **{
            name: max(value, getattr(metadata, name) or 0)
            for name, value in wanted.items()
            # Only version 3 counts rows.
            if value is not None and getattr(metadata, name) is not None
        },
    )
