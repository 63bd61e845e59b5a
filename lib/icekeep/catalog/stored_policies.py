"""Policies that a catalog stores for those who maintain its tables; it runs nothing by them itself. Polaris does so."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from icekeep.catalog.base import Identifier


class StoredPolicy(msgspec.Struct, frozen=True):
    """One that holds for a table; `content` is as it was written, JSON as a rule, and `None` where there is none."""

    type: str
    name: str
    content: str | None = None
    is_inherited: bool = False


@runtime_checkable
class StoresPolicies(Protocol):
    """A catalog whose server may have policies."""

    def stored_policies(self, identifier: Identifier) -> Sequence[StoredPolicy]:
        """Those that hold for a table, inherited ones too, one of each type; none where the server stores no policies.

        Raises:
            NotFoundError: the catalog has no such table.
            UnavailableError: the server is out of reach.
        """
