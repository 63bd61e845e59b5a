"""What others did to a branch since a snapshot, and whether it matters to a change that was worked out on that snapshot.

Snapshots say what they did, and list what they added and removed; both are read, newest first. A history with a hole
answers nothing, which is a conflict. Snapshots that say `replace` keep all rows, so they add no data that matters.

Questions to manifests about single live files: of a large table a reader puts them to many manifests at once, in Spark tasks.

A change asks by these, and not by going through all entries: what it gets is as much as it asked for.

What a change would take out of a table, without a commit: the change is applied, and what it writes stays in memory.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cached_property

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt, Change, CommitFiles
from icekeep.commit.file_sets import digest_of_all, entry_digest
from icekeep.commit.filtering import EntryReader, Matching, identity, without_history
from icekeep.commit.live_files import live_among
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError
from icekeep.runtime import new_snapshot_id
from icekeep.spec.collections import growing
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import (
    PartitionKey,
    PathDigest,
    only_data_file,
    partition_key,
    path_digest,
    reaching_deletes,
    sequence_number,
)
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.updates import AddSnapshot
from icekeep.storage.overlay import RehearsalStorage


class Isolation(Enum):
    """What a writer asks of others that commit meanwhile, over the rows that it read.

    `SNAPSHOT`: they deleted none of them. `SERIALIZABLE`: nor did they add any.
    """

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


_ADDS_DATA = ("append", "overwrite")
_REMOVES_DATA = ("overwrite", "replace", "delete")
_ADDS_DELETES = ("overwrite", "delete")


class Since:
    """The snapshots of a branch since one of its ancestors; `None`: since the table was made.

    `rows` in the methods is a filter bound to the base's schema. What their bounds and partitions cannot rule out, matches.
    """

    def __init__(
        self, base: TableMetadata, head: Snapshot | None, starting_snapshot_id: int | None, reader: ManifestReader
    ) -> None:
        self._base, self._head, self._start, self._reader = base, head, starting_snapshot_id, reader

    @cached_property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Newest first, without the starting one.

        Raises:
            ConflictError: the starting snapshot is no ancestor of the branch, or those between are not all there.
        """
        found: list[Snapshot] = []
        parent = None if self._head is None else self._head.snapshot_id
        for snapshot in self._base.ancestors(parent):
            if snapshot.snapshot_id == self._start:
                return tuple(found)
            found.append(snapshot)
            parent = snapshot.parent_snapshot_id
        if parent == self._start:
            # The first snapshot was met, or the start itself expired and nothing after it did.
            return tuple(found)
        last = f"snapshot {found[-1].snapshot_id}" if found else "an empty branch"
        start = "the first snapshot" if self._start is None else f"snapshot {self._start}"
        raise ConflictError(
            f"what happened between {start} and {last} is not known: snapshots expired, or the branch was moved; start again"
        )

    def check_known(self) -> None:
        """Raises `ConflictError` where it is not known what happened: see `snapshots`."""
        len(self.snapshots)

    def check_start(self) -> None:
        """Raises `ConflictError` where the starting snapshot is no ancestor of the branch, or expired."""
        self.check_known()
        if self._start is not None and self._start not in self._base.snapshots_by_id:
            raise ConflictError(f"snapshot {self._start}, which was read, expired meanwhile; start again")

    def is_newer(self, entry: ManifestEntry) -> bool:
        """Whether a file was added after the start, however old its rows are; false where there is no start."""
        number = entry.file_sequence_number
        return self._start is not None and number is not None and number > self.sequence_number

    @property
    def sequence_number(self) -> int:
        """The sequence number of the starting snapshot; 0 where there is none."""
        start = None if self._start is None else self._base.snapshots_by_id.get(self._start)
        return 0 if start is None else start.sequence_number

    def added_data_files(self, rows: Expression = ALWAYS_TRUE) -> Iterator[ManifestEntry]:
        """Data files that may hold a row of the filter and were not there at the start."""
        return self._changed(_ADDS_DATA, ManifestContent.DATA, Status.ADDED, rows)

    def removed_data_files(self, rows: Expression = ALWAYS_TRUE) -> Iterator[ManifestEntry]:
        """Data files that may hold a row of the filter and are gone, also where others hold their rows now."""
        return self._changed(_REMOVES_DATA, ManifestContent.DATA, Status.DELETED, rows)

    def added_delete_files(self, rows: Expression = ALWAYS_TRUE) -> Iterator[ManifestEntry]:
        """Delete files that may reach a row of the filter, by partition alone: what bounds say of deletes is not of the rows."""
        return self._changed(_ADDS_DELETES, ManifestContent.DELETES, Status.ADDED, rows)

    def _changed(
        self, operations: tuple[str, ...], content: ManifestContent, status: Status, rows: Expression
    ) -> Iterator[ManifestEntry]:
        matching = Matching(self._base, rows)
        for snapshot in self.snapshots:
            # A snapshot that does not say what it did may have done anything.
            if snapshot.operation is not None and snapshot.operation not in operations:
                continue
            for manifest in self._reader.manifests(snapshot):
                if manifest.content is not content or not self._is_own(manifest, snapshot):
                    continue
                # Whatever its partition summaries say: where they are wrong, a conflict would be missed.
                for entry in self._reader.entries(manifest, self._base):
                    if entry.status is status and entry.snapshot_id == snapshot.snapshot_id and matching.entry(entry):
                        yield entry

    @staticmethod
    def _is_own(manifest: ManifestFile, snapshot: Snapshot) -> bool:
        return manifest.added_snapshot_id in (None, snapshot.snapshot_id)


def check_no_new_data(since: Since, rows: Expression) -> None:
    """Raises `ConflictError` if data files that may match the filter were added."""
    _check_none(since.added_data_files(rows), "data file {path!r}, which may hold rows that the change read, was added")


def check_no_lost_data(since: Since, rows: Expression) -> None:
    """Raises `ConflictError` if data files that may match the filter were removed."""
    _check_none(since.removed_data_files(rows), "data file {path!r}, which may hold rows of the change, was removed")


def check_no_new_deletes(since: Since, rows: Expression) -> None:
    """Raises `ConflictError` if delete files that may reach rows of the filter were added."""
    _check_none(since.added_delete_files(rows), "delete file {path!r}, which may delete rows of the change, was added")


def check_no_new_deletes_for(
    since: Since, data: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry], base: TableMetadata
) -> None:
    """Raises `ConflictError` if a live delete file that is newer than the start reaches one of some data files.

    `deletes` are the live delete files of the base. The start must be an ancestor, or the deletes that it had may be gone.
    """
    since.check_known()
    start = since.sequence_number
    newer = (delete for delete in deletes if sequence_number(delete) > start)
    for path, reaching in reaching_deletes(data, newer, base.specs_by_id).items():
        if reaching:
            raise ConflictError(
                f"delete file {reaching[0].data_file.file_path!r} now reaches data file {path!r}, which is to be replaced"
            )


def _check_none(entries: Iterator[ManifestEntry], problem: str) -> None:
    entry = next(entries, None)
    if entry is not None:
        text = problem.format(path=entry.data_file.file_path)
        raise ConflictError(f"{text} meanwhile; read again and repeat the change")


def live_at(
    paths: Iterable[str], manifests: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt
) -> dict[str, ManifestEntry]:
    """The live entries of the data files at some paths, by path, as far as there are any."""
    question = _LiveAt(without_history(base), frozenset(map(path_digest, paths)))
    found: dict[str, ManifestEntry] = {}
    for some in growing(manifests):
        if len(found) == len(question.paths):
            break
        found |= {entry.data_file.file_path: entry for each in attempt.gathered(some, question) for entry in each}
    return found


def any_live_at(
    paths: Iterable[str], manifests: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt
) -> str | None:
    """One of some paths at which there is a live data file; `None` if there is none at any."""
    question = _LiveAt(without_history(base), frozenset(map(path_digest, paths)))
    live = (entry for each in attempt.gathered(manifests, question) for entry in each)
    return next((entry.data_file.file_path for entry in live), None)


def deletes_newer_than(
    number: int, manifests: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt
) -> Iterator[ManifestEntry]:
    """The live delete files with greater data sequence numbers; looked for once they are asked for."""
    for each in attempt.gathered(manifests, _NewerThan(without_history(base), number)):
        yield from each


def position_deletes_of(
    data: Iterable[DataFile], manifests: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt
) -> Iterator[ManifestEntry]:
    """The live vectors and position delete files that may be for some data files, by path or partition."""
    files = list(data)
    question = _PositionDeletesOf(
        without_history(base),
        frozenset(path_digest(file.file_path) for file in files),
        frozenset(map(partition_key, files)),
    )
    return (entry for each in attempt.gathered(manifests, question) for entry in each)


class _LiveAt(msgspec.Struct, frozen=True):
    base: TableMetadata
    paths: frozenset[PathDigest]

    @property
    def key(self) -> Hashable:
        return "live at", digest_of_all(self.paths)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[ManifestEntry]:
        return [e for e in _live(manifest, self.base, reader) if path_digest(e.data_file.file_path) in self.paths]


class _NewerThan(msgspec.Struct, frozen=True):
    base: TableMetadata
    number: int

    @property
    def key(self) -> Hashable:
        return "newer than", self.number

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[ManifestEntry]:
        return [entry for entry in _live(manifest, self.base, reader) if sequence_number(entry) > self.number]


class _PositionDeletesOf(msgspec.Struct, frozen=True):
    base: TableMetadata
    paths: frozenset[PathDigest]
    partitions: frozenset[PartitionKey]

    @property
    def key(self) -> Hashable:
        return "position deletes of", digest_of_all(self.paths), digest_of_all(self.partitions)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[ManifestEntry]:
        return [entry for entry in _live(manifest, self.base, reader) if self._may_be_for_them(entry.data_file)]

    def _may_be_for_them(self, delete: DataFile) -> bool:
        if delete.content is not FileContent.POSITION_DELETES:
            return False
        only = only_data_file(delete)
        return partition_key(delete) in self.partitions if only is None else path_digest(only) in self.paths


def _live(manifest: ManifestFile, base: TableMetadata, reader: EntryReader) -> Iterator[ManifestEntry]:
    return (entry for entry in reader.entries(manifest, base) if entry.is_live)


class Removed(msgspec.Struct, frozen=True):
    """A manifest, and the entries of those of its live delete files that go."""

    manifest: ManifestFile
    entries: tuple[ManifestEntry, ...]


def removed_deletes(change: Callable[[], Change], table: Table, branch: str) -> list[Removed]:
    """The delete files that a change would remove from a branch of a table as it is; nothing is written.

    Args:
        change: makes the change; not called for a branch without delete files.

    Raises:
        ConflictError: the change cannot be applied to the table.
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read.
    """
    base, runtime, storage = table.metadata, table.runtime, RehearsalStorage(table.storage)
    reader, head = ManifestReader(storage), base.head(branch)
    before = () if head is None else live_among(reader.manifests(head)).deletes
    if not before:
        return []
    files = CommitFiles(storage, str(runtime.new_uuid()))
    attempt = Attempt(base, 1, new_snapshot_id(runtime, base.snapshots_by_id), files, reader, runtime)
    added = [update.snapshot for update in change().apply(base, attempt) if isinstance(update, AddSnapshot)]
    if not added:
        return []
    after = {identity(one): one for one in live_among(reader.manifests(added[-1])).deletes}
    stay = {identity(one) for one in before}
    new = (entry for key, one in after.items() if key not in stay for entry in reader.entries(one, base))
    kept = {entry_digest(entry) for entry in new if entry.is_live}
    removed = []
    for manifest in before:
        if identity(manifest) not in after:
            live = (entry for entry in reader.entries(manifest, base) if entry.is_live)
            removed.append(Removed(manifest, tuple(entry for entry in live if entry_digest(entry) not in kept)))
    return removed
