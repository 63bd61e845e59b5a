"""What puts delete files in the place of others, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager
from typing import Any

from icekeep.commit.changes import deletes
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
    add_numbered = deletes.add_numbered

    def numbered_anew(files: Any, attempt: Any, *rest: Any, **given: Any) -> Any:
        late = ((file, attempt.base.next_sequence_number) for file, _ in files)
        return add_numbered(late, attempt, *rest, **given)

    return replaced(deletes, "add_numbered", numbered_anew)


def upgrades_unseen() -> AbstractContextManager[Any]:
    """Writes position delete files for a table that takes vectors by now."""
    return replaced(RewriteDeletes, "_check_base", lambda self, base: None)
