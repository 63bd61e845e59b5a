"""What every change is: a value that remembers what it wants and can be applied to any base."""

from typing import Protocol

from icekeep.commit.attempt import Attempt
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Update


class Change(Protocol):
    """Something to be different in a table."""

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Work out, from this base alone, the updates that make the change; none if there is nothing to change.

        May be called again with a newer base. Writes nothing but manifests and manifest lists, through `attempt`.

        Raises:
            ConflictError: the base has changed so that the change may not be applied.
        """
