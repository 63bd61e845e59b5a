"""The states of tables that judges are asked about: each table as it is now, and as it was before."""

from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.errors import IcekeepError
from kit.cases import scaled
from kit.soundness import newest_metadata

BEFORE = 4
"""At how many snapshots before the present one a table is judged; `--cases` above 1 multiplies it."""


def states_below(directory: Path, seen: set[str]) -> Iterator[Table]:
    """Each table below a directory now, and at some of its snapshots before, the newest first.

    What does not load is passed over: that is for the test to see, or it made it so.

    Args:
        seen: metadata files that were judged before; those that come now are added.
    """
    catalog = open_catalog("judged", {"type": "sql", "uri": "sqlite:///:memory:", "warehouse": directory.as_uri()})
    catalog.create_namespace(("db",))
    numbers = count()

    def loaded(location: str) -> Table | None:
        try:
            return catalog.register_table(("db", f"t{next(numbers)}"), location)
        except (IcekeepError, OSError):
            return None

    for path in newest_metadata(directory):
        # Of a table that was judged as it is now, the states before were too.
        if path.as_uri() in seen or (table := loaded(path.as_uri())) is None:
            continue
        log = [entry.metadata_file for entry in reversed(table.metadata.metadata_log)]
        earlier = filter(None, map(loaded, log))
        for state in islice(_by_snapshot(chain((table,), earlier)), 1 + scaled(BEFORE, least=BEFORE)):
            if state.metadata_location not in seen:
                seen.add(state.metadata_location)
                yield state


def _by_snapshot(states: Iterator[Table]) -> Iterator[Table]:
    """Those whose snapshot is not that of one before."""
    known: set[int | None] = set()
    for state in states:
        if (snapshot := state.metadata.current_snapshot_id) not in known:
            known.add(snapshot)
            yield state
