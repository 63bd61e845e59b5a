"""What rewrites of manifests do where others have changed them, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

from msgspec.structs import replace

from icekeep.commit import following
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes import rewrite_manifests
from icekeep.commit.changes.rewrite_manifests import RewriteManifests
from icekeep.commit.following import Followed
from simulation.replacing import replaced

_moves, _followed, _write_manifests = following._moves, rewrite_manifests.followed, Attempt.write_manifests
_dangling = rewrite_manifests.dangling


def lists_manifests_that_are_gone() -> AbstractContextManager[Any]:
    """Lists new manifests as they are also where those that they replace are no longer in the table."""

    def lenient(self: RewriteManifests, current: Any, attempt: Any) -> Followed:
        there = {m.manifest_path for m in current}
        return Followed(tuple(m for m in self.replaced if m.manifest_path in there), self.added)

    return _uncounted(RewriteManifests, "_followed", lenient)


def keeps_what_others_removed() -> AbstractContextManager[Any]:
    """Lists new manifests as they are, files that others have removed included."""
    return _uncounted(following, "_without", lambda added, removed, attempt: added)


def lists_carried_files_twice() -> AbstractContextManager[Any]:
    """Keeps manifests that have come and list files which new ones list too."""

    def moves(*arguments: Any) -> Any:
        return replace(_moves(*arguments), carriers=(), mixed=())

    return _uncounted(following, "_moves", moves)


def forgets_what_is_beside() -> AbstractContextManager[Any]:
    """Leaves out manifests that have come, whatever other files they list."""
    return _uncounted(following, "_beside", lambda *arguments: ())


def follows_the_first_base() -> AbstractContextManager[Any]:
    """Lists in later attempts what the first one has found."""
    found: dict[Any, Any] = {}

    def followed(replaced: Any, added: Any, *others: Any) -> Any:
        key = tuple(m.manifest_path for m in added)
        if key not in found:
            found[key] = _followed(replaced, added, *others)
        return found[key]

    return _uncounted(rewrite_manifests, "followed", followed)


def reuses_a_manifest_that_lacks_other_files() -> AbstractContextManager[Any]:
    """Takes a new manifest that an earlier attempt has written again, whatever files that one lacks."""

    def write(self: Any, key: Any, *others: Any) -> Any:
        return _write_manifests(self, key[:2] if isinstance(key, tuple) and key[0] == "without" else key, *others)

    return _uncounted(Attempt, "write_manifests", write)


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


def _uncounted(of: Any, name: str, broken: Any) -> AbstractContextManager[Any]:
    """With something broken, and nobody who counts the files."""
    stack = ExitStack()
    stack.enter_context(replaced(rewrite_manifests, "_check_counts", lambda *arguments: None))
    stack.enter_context(replaced(of, name, broken))
    return stack
