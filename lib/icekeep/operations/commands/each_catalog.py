"""Several catalogs, of which one that is out of reach does not stop the others."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from icekeep.errors import IcekeepError, first_line
from icekeep.operations.configuration.file import CatalogSettings
from icekeep.reports.values import NotRead

R = TypeVar("R")


def of_each_catalog(
    chosen: Sequence[CatalogSettings], work: Callable[[CatalogSettings], R]
) -> tuple[list[R], list[NotRead]]:
    """What `work` makes of each, and those of which it cannot; of the only one its error is raised."""
    found: list[R] = []
    not_read: list[NotRead] = []
    for settings in chosen:
        try:
            found.append(work(settings))
        except IcekeepError as error:
            if len(chosen) == 1:
                raise
            not_read.append(NotRead(name=f"{settings.name}.*", kind=error.kind, reason=first_line(error)))
    return found, not_read
