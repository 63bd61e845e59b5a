"""What becomes of a table in a benchmark of expiration: its snapshots one by one, and its data files by their numbers."""

import hashlib
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.types import LONG, STRING, TIMESTAMPTZ
from icekeep.spec.values import value_to_bytes

Writer = Literal["append", "fast-append", "rewrites"]

CYCLE = 10
"""Where a table is rewritten, each tenth snapshot replaces files that the nine before it have added."""
_REWRITTEN_SHARE = 10
"""So many files become one."""

_FILES_A_DAY = 1000
_FIRST_DAY = 19_000
ROWS_A_FILE = 5000
DAY_S = 24 * 60 * 60
FILE_BYTES, _FILE_BYTES_SPREAD = 1 << 20, 1 << 16


class History(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What becomes of a table.

    Attributes:
        writer: `append` merges manifests at a hundred, as the property `commit.manifest.min-count-to-merge` has it;
            `fast-append` leaves them as they are; `rewrites` compacts in between what was appended.
        files: data files that the table ever had.
        garbage_percent: how many of them only old snapshots have.
        orphans: files in the data directories that no snapshot ever had, beside the others.
    """

    writer: Writer
    snapshots: int
    files: int
    garbage_percent: int = 0
    orphans: int = 0

    read: ClassVar[tuple[str, ...]] = ()
    is_restored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.files < self.snapshots:
            raise ValueError(f"{self.files} files are not enough for {self.snapshots} snapshots")
        if (self.garbage_percent > 0) is not (self.writer == "rewrites"):
            raise ValueError("files become garbage where a table is rewritten, and only there")
        if self.writer == "rewrites" and self.snapshots % CYCLE:
            raise ValueError(f"each {CYCLE}th snapshot rewrites: give as many snapshots")

    @property
    def name(self) -> str:
        numbers = f"{self.snapshots}-snapshots-{self.files}-files"
        garbage = f"-{self.garbage_percent}-percent-garbage" if self.garbage_percent else ""
        return f"expiration-{self.writer}-{numbers}{garbage}{f'-{self.orphans}-orphans' if self.orphans else ''}"

    @property
    def small(self) -> "History":
        return replace(self, snapshots=100, files=1000, orphans=min(10, self.orphans))

    @property
    def garbage_files(self) -> int:
        return sum(step.removed for step in self.steps())

    @property
    def days(self) -> int:
        """Partitions of a table."""
        return max(1, self.files // _FILES_A_DAY)

    def steps(self) -> "Iterator[Step]":
        """What each snapshot does, oldest first."""
        if self.writer != "rewrites":
            bounds = [number * self.files // self.snapshots for number in range(self.snapshots + 1)]
            yield from (Step(added=end - begin) for begin, end in pairwise(bounds))
            return
        cycles, appends = self.snapshots // CYCLE, CYCLE - 1
        garbage = self.files * self.garbage_percent // 100
        removed = [(c + 1) * garbage // cycles - c * garbage // cycles for c in range(cycles)]
        rewritten = [max(1, count // _REWRITTEN_SHARE) for count in removed]
        appended = self.files - sum(rewritten)
        bounds = [number * appended // (cycles * appends) for number in range(cycles * appends + 1)]
        for cycle in range(cycles):
            own = bounds[cycle * appends : (cycle + 1) * appends + 1]
            yield from (Step(added=end - begin) for begin, end in pairwise(own))
            yield Step(added=rewritten[cycle], removed=min(removed[cycle], own[-1] - own[0]))


class Step(msgspec.Struct, frozen=True):
    """One snapshot: how many files it adds, and how many of those that its cycle appended it replaces by them."""

    added: int
    removed: int = 0


class HistoryFiles:
    """The data files of a history by their numbers, oldest first, each day's in a directory of its own."""

    def __init__(self, history: History, directory: str) -> None:
        self.directory = directory
        self._history = history
        self._bounds = {
            "nulls": dict.fromkeys(range(1, 5), 0),
            "counts": dict.fromkeys(range(1, 5), ROWS_A_FILE),
        }

    def path(self, number: int) -> str:
        return f"{self.directory}/at_day={_day_text(self._day(number))}/{self._name(number)}"

    def orphan_path(self, number: int) -> str:
        """Of a file that no snapshot has; they are spread over all days."""
        day = _FIRST_DAY + number % self._history.days
        return f"{self.directory}/at_day={_day_text(day)}/{self._name(self._history.files + number)}"

    def size_bytes(self, number: int) -> int:
        return FILE_BYTES + number * 7919 % _FILE_BYTES_SPREAD

    def data_file(self, number: int) -> DataFile:
        """What a manifest says of a file."""
        day = self._day(number)
        first_us = day * DAY_S * 1_000_000
        bounds = [
            {
                1: value_to_bytes(LONG, first),
                2: value_to_bytes(TIMESTAMPTZ, first_us + at),
                3: value_to_bytes(STRING, account),
            }
            for first, at, account in (
                (number * ROWS_A_FILE, 0, f"account-{number * 31 % 1000:06}"),
                ((number + 1) * ROWS_A_FILE - 1, DAY_S * 1_000_000 - 1, f"account-{900_000 + number * 17 % 1000}"),
            )
        ]
        return DataFile(
            file_path=self.path(number),
            file_format="PARQUET",
            spec_id=0,
            partition=(day,),
            record_count=ROWS_A_FILE,
            file_size_in_bytes=self.size_bytes(number),
            value_counts=self._bounds["counts"],
            null_value_counts=self._bounds["nulls"],
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            split_offsets=(4,),
            sort_order_id=0,
        )

    def _day(self, number: int) -> int:
        return _FIRST_DAY + number * self._history.days // self._history.files

    def _name(self, number: int) -> str:
        unique = uuid.UUID(bytes=hashlib.md5(str(number).encode(), usedforsecurity=False).digest())
        return f"{number % 200:05}-{number}-{unique}-00001.parquet"


def _day_text(days: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(days * DAY_S))
