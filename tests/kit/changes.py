"""Changes that interfere, and a listener that remembers: for tests of commits."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ConflictError, IcekeepError
from icekeep.events import Event, Warned
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import AddSnapshot, Update
from kit.memory_catalog import after
from kit.sharing import SharingReader, stored
from kit.tables import orphans
from kit.tables import stored as stored_locations


class Recorder:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    @property
    def warnings(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Warned)]


class Applying:
    """Another change, with something that happens at the end of an attempt (`attempt_1=...`); keeps the bases it sees."""

    def __init__(self, change: Any, **acts: Callable[[], object]) -> None:
        self.change = change
        self.bases: list[TableMetadata] = []
        self._acts = acts

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        self.bases.append(base)
        updates = self.change.apply(base, attempt)
        self._acts.get(f"attempt_{len(self.bases)}", lambda: None)()
        return updates


class Staged(msgspec.Struct, frozen=True):
    """A change whose snapshot no reference is set to, as engines make it that stage what they write."""

    change: Any

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        return tuple(update for update in self.change.apply(base, attempt) if isinstance(update, AddSnapshot))


def thrown(error: BaseException) -> Callable[..., object]:
    """A function that raises."""

    def throw(*_: object, **__: object) -> None:
        raise error

    return throw


class Way:
    """How `run` commits: `shared` has manifests filtered in shares, `stored` names the files of a rewrite by a stored set."""

    shared = False
    stored = False


def run(table: Any, change: Any, **options: Any) -> CommitResult:
    """Commit with the clock of the table's catalog, in the way that `Way` says."""
    if Way.shared:
        options = {"reader": SharingReader(table.storage), **options}
    if Way.stored and isinstance(change, RewriteFiles) and isinstance(change.removed, tuple):
        files = stored(table, change.removed, change)
        change = replace(change, removed=files, applied_deletes={})
    return commit(table, change, **{"runtime": table.catalog.runtime, **options})


def meanwhile(table: Any, *acts: Callable[[], object]) -> None:
    """Let others act right before each of the next swaps."""
    table.catalog.follow(*map(after, acts))


def refused(table: Any, change: Any, match: str | None = None, error: type[IcekeepError] = ConflictError) -> Any:
    """The error of a commit that must fail and leave nothing of its own."""
    before = stored_locations(table.catalog)
    with pytest.raises(error, match=match) as raised:
        run(table, change)
    assert not orphans(table.catalog) - before
    return raised.value
