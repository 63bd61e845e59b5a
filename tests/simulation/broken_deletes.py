"""What puts delete files in the place of others, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace

from icekeep.commit.changes.deletes import ConvertDeletes, RewriteDeletes
from simulation.replacing import replaced


def converts_what_it_looked_through() -> AbstractContextManager[Any]:
    """Removes equality deletes though they reach data files that came since, or its own are gone."""
    return replaced(ConvertDeletes, "_check_reached", lambda self, manifests, base, attempt: None)


def converts_past_new_positions() -> AbstractContextManager[Any]:
    """Adds vectors whatever vectors others have added meanwhile."""
    return replaced(ConvertDeletes, "_check_position_deletes", lambda self, manifests, base, attempt: None)


def numbers_merged_deletes_anew() -> AbstractContextManager[Any]:
    """Gives merged delete files the number of the commit, as if they were new."""
    manifests = RewriteDeletes._added_manifests

    def added_manifests(self: RewriteDeletes, attempt: Any, summary: Any) -> Any:
        late = tuple(replace(added, sequence_number=attempt.base.next_sequence_number) for added in self.added)
        return manifests(replace(self, added=late), attempt, summary)

    return replaced(RewriteDeletes, "_added_manifests", added_manifests)


def upgrades_unseen() -> AbstractContextManager[Any]:
    """Writes position delete files for a table that takes vectors by now."""
    return replaced(RewriteDeletes, "_check_base", lambda self, base: None)
