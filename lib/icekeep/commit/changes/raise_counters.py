"""Raise the counters by which a table gives out ids to what they must be at least."""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.spec.mending_update import RaiseCounters, low_counters
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Update


class RaiseLowCounters(msgspec.Struct, frozen=True):
    """Counters to be raised, by their attributes of `TableMetadata`; by how much is worked out from each base."""

    names: frozenset[str]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        low = {one.name: one.least for one in low_counters(base) if one.name in self.names}
        return (RaiseCounters(**low),) if low else ()
