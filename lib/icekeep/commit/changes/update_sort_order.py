"""Change how a table is sorted."""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.spec.definition_updates import LAST_ADDED, AddSortOrder, SetDefaultSortOrder
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.sorting import SortKey, build_sort_order
from icekeep.spec.updates import Update


class UpdateSortOrder(msgspec.Struct, frozen=True):
    """The keys that new files are sorted by, in place of those that are now; without keys they are not sorted."""

    keys: tuple[SortKey, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        new = build_sort_order(base.schema, self.keys)
        for known in base.sort_orders:
            if known.fields == new.fields:
                is_default = known.order_id == base.default_sort_order_id
                return () if is_default else (SetDefaultSortOrder(known.order_id),)
        return AddSortOrder(new), SetDefaultSortOrder(LAST_ADDED)
