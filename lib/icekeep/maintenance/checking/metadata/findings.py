"""The faults of one metadata file, on their way to a tally."""

from collections.abc import Mapping
from typing import Any

from icekeep.maintenance.checking.classes import CLASSES
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.maintenance.checking.metadata_classes import METADATA_UNREADABLE

NO_FACTS: Mapping[str, Any] = {}


class Findings:
    """Takes the faults of a metadata file, and knows whether one of them is more than a notice.

    Args:
        location: of the metadata file.
    """

    def __init__(self, location: str, tally: Tally) -> None:
        self.location = location
        self.has_faults = False
        self._tally = tally

    def add(
        self,
        number: int,
        detail: str,
        *,
        where: str = "",
        snapshot_id: int | None = None,
        facts: Mapping[str, Any] = NO_FACTS,
    ) -> None:
        """Note a fault; `where` is a part of the metadata, or empty for its top, which is the file itself."""
        self.has_faults = self.has_faults or not CLASSES[number].is_notice
        where = where or self.location
        self._tally.add(Fault(number=number, where=where, detail=detail, snapshot_id=snapshot_id, facts=facts))

    def unreadable(self, detail: str, where: str = "") -> None:
        """Note that something is not of the form that the spec describes."""
        self.add(METADATA_UNREADABLE, detail, where=where)

    def gap(self, why: str) -> None:
        """Note that the metadata could not be checked."""
        self._tally.gap(f"metadata {self.location!r}", why)
