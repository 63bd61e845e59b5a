"""Set and remove table properties."""

from collections.abc import Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import RemoveProperties, SetProperties, Update


class ChangeProperties(msgspec.Struct, frozen=True, kw_only=True):
    """Properties to set, and names of properties to remove."""

    updates: Mapping[str, str] = {}
    removals: tuple[str, ...] = ()

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        changed = {k: v for k, v in self.updates.items() if base.properties.get(k) != v}
        removed = tuple(name for name in self.removals if name in base.properties)
        updates: list[Update] = []
        if changed:
            updates.append(SetProperties(changed))
        if removed:
            updates.append(RemoveProperties(removed))
        return tuple(updates)
