"""Changes that interfere, a listener that remembers, and a `ManifestReader` that shares work out as Spark does."""

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.file_sets import ReadFile, StoredFileSet, store_part
from icekeep.commit.manifests import FilteredShare, FilterManifests, Gathering, ManifestReader
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ConflictError, IcekeepError
from icekeep.events import Event, Warned
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import AddSnapshot, Update
from kit.memory_catalog import after
from kit.tables import orphans
from kit.tables import stored as stored_locations


class SharingReader(ManifestReader):
    """Every manifest is a share; `asked` keeps the locations of those that were."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.asked: list[str] = []

    def filtered(
        self, manifests: Sequence[ManifestFile], work: FilterManifests, locations: Iterator[str]
    ) -> list[FilteredShare]:
        self.asked += [m.manifest_path for m in manifests]
        return [self._share(manifest, work, next(locations)) for manifest in manifests]

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[Any]) -> list[Any]:
        return [self._sent(self._sent(work).run(m, ManifestReader(self.storage))) for m in manifests]

    def _share(self, manifest: ManifestFile, work: FilterManifests, location: str) -> FilteredShare:
        names = (f"{location.removesuffix('.avro')}-{number}.avro" for number in range(1000))
        sent = self._sent(work)
        share = sent.run([manifest], ManifestReader(self.storage), names)
        return self._sent(share)

    def _sent(self, value: Any) -> Any:
        """A value as it arrives in another process; a store in memory is the same in all."""
        kept: list[Any] = []

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> int | None:
                if hasattr(value, "delete_many"):
                    kept.append(value)
                    return len(kept) - 1
                return None

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: Any) -> Any:
                return kept[number]

        stream = io.BytesIO()
        Pickler(stream).dump(value)
        return Unpickler(io.BytesIO(stream.getvalue())).load()


def stored(table: Table, removed: Sequence[ManifestEntry], change: RewriteFiles) -> StoredFileSet:
    """The files that a change removes as a set in storage, as they are listed in the table, or in a manifest of nobody."""
    reader = ManifestReader(getattr(table.storage, "inner", table.storage))
    listed = {
        entry.data_file.file_path: manifest.manifest_path
        for snapshot in table.metadata.snapshots
        for manifest in reader.manifests(snapshot)
        for entry in reader.entries(manifest, table.metadata)
        if entry.is_live
    }
    files = [
        ReadFile(
            entry,
            listed.get(entry.data_file.file_path, "memory://nowhere"),
            change.applied_deletes.get(entry.data_file.file_path, frozenset()),
        )
        for entry in removed
    ]
    directory = f"{table.metadata.location}/.icekeep/runs/{table.catalog.runtime.new_uuid()}"  # type: ignore[attr-defined]
    return store_file_set(files, table.storage, directory)


def store_file_set(files: Iterable[ReadFile], storage: Any, directory: str) -> StoredFileSet:
    """Write files as a set in storage, as the tasks of a job do it."""
    by_manifest: dict[str, list[ReadFile]] = {}
    for file in files:
        by_manifest.setdefault(file.manifest_path, []).append(file)
    parts = [store_part(some, storage, directory, number) for number, some in enumerate(by_manifest.values())]
    return StoredFileSet.of(directory, parts)


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
