"""Rewrites of manifests, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes import rewrites as rewrite_manifests
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.manifests import manifest_key
from simulation.replacing import replaced

_dangling = rewrite_manifests.dangling


def lists_manifests_that_are_gone() -> AbstractContextManager[Any]:
    """Lists new manifests as they are also where those that they replace are no longer in the table."""

    def lenient(self: RewriteManifests, here: Any) -> Any:
        return [m for m in self.replaced if manifest_key(m) in here]

    stack = ExitStack()
    stack.enter_context(replaced(rewrite_manifests, "_check_counts", lambda *arguments: None))
    stack.enter_context(replaced(RewriteManifests, "_replaced", lenient))
    return stack


def leaves_what_it_had_no_use_for() -> AbstractContextManager[Any]:
    """Leaves new manifests in storage that it did not list in the end."""
    return replaced(Attempt, "leave_out", lambda self, manifests: None)


def finds_dangling_deletes_once() -> AbstractContextManager[Any]:
    """Leaves out in later attempts the delete files that reached nothing in the first one's base."""
    found: dict[Any, Any] = {}

    def dangling(deletes: Any, data: Any, added: Any, base: Any, attempt: Any, **given: Any) -> Any:
        if attempt.snapshot_id not in found:
            found[attempt.snapshot_id] = _dangling(deletes, data, added, base, attempt, **given)
        return found[attempt.snapshot_id]

    return replaced(rewrite_manifests, "dangling", dangling)
