"""Trials whose rivals work on the table itself, which is made what it was before each run.

Metadata names files by their whole paths, so that a copy elsewhere would not do.
"""

import time
from pathlib import Path
from typing import Any

from bench.rival.process import copied
from bench.runner.rivals import Rival
from bench.runner.trial import BENCH, SMALL, Trial, target
from bench.tables.kept import Kept

_DAY_MS = 24 * 60 * 60 * 1000


class InPlaceTrial(Trial):
    def targets(self, rival: Rival) -> dict[str, Any]:
        listing = ["left", str(self.table.path), str(self.listing(rival.name))]
        return {
            "table": target(BENCH, self.table.name, _restoring(self.table), listing, path=self.table.path),
            "small": target(SMALL, self.small.name, _restoring(self.small), path=self.small.path),
        }

    def listing(self, rival: str) -> Path:
        """Where the names of the files that a rival's last run left are."""
        return self.directory / f"left-by-{rival}.txt"

    def close(self) -> None:
        copied(_restoring(self.table))


def _restoring(table: Kept) -> list[str]:
    return ["restore", str(table.path), str(table.pristine)]


def days_ago_ms(days: int) -> int:
    return time.time_ns() // 1_000_000 - days * _DAY_MS
