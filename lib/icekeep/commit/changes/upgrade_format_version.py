"""Raise a table's format version."""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.errors import UsageError
from icekeep.spec.definition_updates import AssignUuid, UpgradeFormatVersion
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, TableMetadata
from icekeep.spec.updates import Update


class UpgradeTable(msgspec.Struct, frozen=True):
    """The format version that a table is to have, and the uuid that it gets if it has none (format version 1)."""

    format_version: int
    new_uuid: str

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        new, old = self.format_version, base.format_version
        if not old <= new <= SUPPORTED_FORMAT_VERSION:
            raise UsageError(
                f"the table has format version {old}; it cannot become {new}, only {old} to {SUPPORTED_FORMAT_VERSION}"
            )
        if new == old:
            return ()
        uuid = () if base.table_uuid is not None else (AssignUuid(self.new_uuid),)
        return *uuid, UpgradeFormatVersion(new)
