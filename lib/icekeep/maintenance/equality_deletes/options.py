"""Options of the conversion, under the names that Iceberg's Spark writer has for the same."""

from collections.abc import Mapping
from typing import Literal

from msgspec import field

from icekeep.formats.deletes.positions import Granularity, delete_granularity
from icekeep.maintenance.options import Options


class ConvertEqualityDeletesOptions(Options, frozen=True, kw_only=True):
    """How positions are written; `None`: as the table's property `write.delete.granularity` says, `file` by default.

    Deletion vectors are always for one data file.
    """

    delete_granularity: Literal["file", "partition"] | None = field(name="delete-granularity", default=None)


def chosen_granularity(options: ConvertEqualityDeletesOptions, properties: Mapping[str, str]) -> Granularity:
    """What position delete files are for, as Iceberg's Spark writer decides it; raises as `delete_granularity`."""
    if options.delete_granularity is not None:
        return options.delete_granularity
    return delete_granularity(properties)
