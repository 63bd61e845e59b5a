"""What others do in the middle of a job of ours: they commit when files were rewritten, and before its first swap of metadata."""

from collections.abc import Callable
from typing import Any

from icekeep.catalog.base import SwapOutcome, Table
from icekeep.catalog.wrappers import CatalogWrapper
from icekeep.events import Event, StepAdvanced, StepStarted
from icekeep.maintenance.compact.execute import STEP


def rewrites_files(event: Event) -> bool:
    """Whether a compaction says that it begins to rewrite data files, or has rewritten some more."""
    return isinstance(event, StepStarted | StepAdvanced) and event.step == STEP


class Beside(CatalogWrapper):
    """The catalog and the listener of one job, by which others commit in the middle of it.

    Attributes:
        table: to be given to the job.
        landed_count: how many commits of others came between.
    """

    def __init__(self, table: Table, commit: Callable[[], object]) -> None:
        super().__init__(table.catalog)
        self._commit = commit
        self._is_first = True
        self.table = self.over(table)
        self.landed_count = 0

    def on(self, event: Event) -> None:
        if rewrites_files(event):
            self._land()

    def swap(self, table: Table, requirements: Any, updates: Any) -> SwapOutcome:
        if self._is_first:
            self._is_first = False
            self._land()
        return super().swap(table, requirements, updates)

    def _land(self) -> None:
        self._commit()
        self.landed_count += 1
