"""Decoded delete files that the files of one task share, within a budget of memory."""

from collections.abc import Hashable
from typing import Any

from icekeep.spec.applicability import PathDigest
from icekeep.spec.units import MIB

DEFAULT_BUDGET_BYTES = 64 * MIB


class DeleteCache:
    """Keeps what was read of delete files for the data files that come next.

    What does not fit the budget is not kept: the one who reads it again streams it again. Room is made only at the cost of
    delete files that the present data file has no use for; with more deletes than room, each data file would otherwise
    push out what the next one begins with.

    Attributes:
        proven: the `own_path_digest` that an entry has which says the truth, of each position delete file that was read whole and
            all of whose rows are of one data file.
    """

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._entries: dict[Hashable, tuple[Any, int]] = {}
        self._used: dict[Hashable, None] = {}
        self._idle: dict[Hashable, None] = {}
        self.held_bytes = 0
        self.proven: set[PathDigest] = set()

    def begin_file(self) -> None:
        """The next data file begins: what is not asked for again may go."""
        self._idle |= self._used
        self._used.clear()

    def make_room(self, size_bytes: int) -> bool:
        """Whether a new entry of a size can be kept; what had to go for it is gone."""
        while self._idle and self.held_bytes + size_bytes > self._budget_bytes:
            key = next(iter(self._idle))
            del self._idle[key]
            self.held_bytes -= self._entries.pop(key)[1]
        return self.held_bytes + size_bytes <= self._budget_bytes

    def get(self, key: Hashable) -> Any:
        """What is kept under a key, None if there is nothing."""
        if key not in self._entries:
            return None
        self._idle.pop(key, None)
        self._used[key] = None
        return self._entries[key][0]

    def keep(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Keep a value if there is room for it."""
        if key not in self._entries and self.make_room(size_bytes):
            self._entries[key] = (value, size_bytes)
            self._used[key] = None
            self.held_bytes += size_bytes
