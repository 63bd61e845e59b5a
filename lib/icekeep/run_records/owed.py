"""Ends of runs that could not be written down, kept by this process until its record of runs takes them.

The record may be locked for some seconds, or left alone for minutes (`outages.py`), while jobs of a night end one after the
other. A run without an end would count as one that died.
"""

import threading
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

_MOST = 10_000
"""So many are kept, of which each may have a result of a quarter of a megabyte; of more the oldest are given up."""

_RUN_ID = "run_id"


class Owed:
    """Rows that one database is owed, by the ids of their runs, for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, Mapping[str, Any]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep these, unless there is a newer one of the same run."""
        with self._lock:
            for row in rows:
                self._rows.setdefault(row[_RUN_ID], row)
            while len(self._rows) > _MOST:
                del self._rows[next(iter(self._rows))]

    def drop(self, run_id: str) -> None:
        """Give up what is kept of a run, which is written anew."""
        with self._lock:
            self._rows.pop(run_id, None)

    def take(self) -> list[Mapping[str, Any]]:
        """All of them, which are the caller's from now on."""
        with self._lock:
            rows, self._rows = [*self._rows.values()], {}
        return rows


@cache
def owed_to(address: str) -> Owed:
    """What the database at an address is owed by this process."""
    return Owed()
