"""What others did to a branch since a snapshot, and whether it conflicts with a change that was planned on that snapshot.

The operation of each snapshot is read, and the files that it added and removed, newest first. A gap in the history is a
conflict. A `replace` keeps all rows, so it adds no data that could conflict.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

from icekeep.commit.attempt import Attempt, Gatherer
from icekeep.commit.file_sets import digest_of_all
from icekeep.commit.manifests import LiveFilesQuestion, ManifestReader
from icekeep.errors import ConflictError
from icekeep.spec.collections import growing
from icekeep.spec.filters.evaluators import (
    file_may_match,
    file_must_match,
    manifest_may_match,
    partition_matches,
    project_inclusive,
    residual,
)
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import PartitionKey, PathDigest, only_data_file, partition_key, path_digest, sequence_number
from icekeep.spec.snapshots import Snapshot


class Isolation(Enum):
    """What others may not have done meanwhile to the rows that a writer read: delete them, or also add to them."""

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


class FileChange(NamedTuple):
    """A kind of change by others: the operations of snapshots that make it, and the error text for a file so changed."""

    operations: tuple[str, ...]
    content: ManifestContent
    status: Status
    problem: str


ADDED_DATA = FileChange(
    ("append", "overwrite"),
    ManifestContent.DATA,
    Status.ADDED,
    "data file {path!r}, which may hold rows that the change read, was added",
)
REMOVED_DATA = FileChange(
    ("overwrite", "replace", "delete"),
    ManifestContent.DATA,
    Status.DELETED,
    "data file {path!r}, which may hold rows of the change, was removed",
)
"""Also where the rows of a removed file are in other files."""

ADDED_DELETES = FileChange(
    ("overwrite", "delete"),
    ManifestContent.DELETES,
    Status.ADDED,
    "delete file {path!r}, which may delete rows of the change, was added",
)
"""Matched to a filter by partition alone: the bounds of a delete file are not those of the rows that it deletes."""


class Matching:
    """Which manifests and files may hold rows of a filter, which is bound to the current schema."""

    def __init__(self, base: TableMetadata, rows: Expression) -> None:
        self._base, self._rows = base, rows
        self._projections: dict[int, Expression] = {}
        self._residuals: dict[PartitionKey, Expression] = {}

    def manifest(self, manifest: ManifestFile) -> bool:
        """By partition summaries."""
        if self._rows is ALWAYS_TRUE or manifest.partitions is None:
            return True
        fields = self._base.partition_type(manifest.partition_spec_id).fields
        return manifest_may_match(self._projected(manifest.partition_spec_id), fields, manifest.partitions)

    def entry(self, entry: ManifestEntry) -> bool:
        """By partition, and for a data file by its bounds."""
        file = entry.data_file
        if self._rows is ALWAYS_TRUE:
            return True
        fields = self._base.partition_type(file.spec_id).fields
        if not partition_matches(self._projected(file.spec_id), fields, file.partition):
            return False
        return file.content is not FileContent.DATA or file_may_match(self.residual(file), file)

    def holds_only(self, file: DataFile) -> bool:
        return file_must_match(self.residual(file), file)

    def residual(self, file: DataFile) -> Expression:
        """The residual of the filter in a file's partition; `ALWAYS_TRUE` where all its rows match."""
        key = partition_key(file)
        if key not in self._residuals:
            spec = self._base.specs_by_id[file.spec_id]
            self._residuals[key] = residual(self._rows, spec, self._base.schema, file.partition)
        return self._residuals[key]

    def _projected(self, spec_id: int) -> Expression:
        if spec_id not in self._projections:
            spec = self._base.specs_by_id[spec_id]
            self._projections[spec_id] = project_inclusive(self._rows, spec, self._base.schema)
        return self._projections[spec_id]


class Since:
    """The snapshots of a branch since one of its ancestors; `None`: since the table was created."""

    def __init__(
        self, base: TableMetadata, head: Snapshot | None, starting_snapshot_id: int | None, reader: ManifestReader
    ) -> None:
        self._base, self._head, self._start, self._reader = base, head, starting_snapshot_id, reader
        start = None if starting_snapshot_id is None else base.snapshots_by_id.get(starting_snapshot_id)
        self.sequence_number = 0 if start is None else start.sequence_number
        """Of the starting snapshot; 0 where there is none."""

    @cached_property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Newest first, without the starting one; `ConflictError` where that is no ancestor, or one between has expired."""
        newer: list[Snapshot] = []
        parent = None if self._head is None else self._head.snapshot_id
        for snapshot in self._base.ancestors(parent):
            if snapshot.snapshot_id == self._start:
                return tuple(newer)
            newer.append(snapshot)
            parent = snapshot.parent_snapshot_id
        if parent == self._start:
            # The first snapshot was met, or the start itself expired and nothing after it did.
            return tuple(newer)
        last = f"snapshot {newer[-1].snapshot_id}" if newer else "an empty branch"
        start = "the first snapshot" if self._start is None else f"snapshot {self._start}"
        raise ConflictError(
            f"what happened between {start} and {last} is not known: snapshots expired, or the branch was moved; start again"
        )

    def check_start(self) -> None:
        """Raises `ConflictError` where the starting snapshot is no ancestor of the branch, or expired."""
        _ = self.snapshots
        if self._start is not None and self._start not in self._base.snapshots_by_id:
            raise ConflictError(f"snapshot {self._start}, which was read, expired meanwhile; start again")

    def is_newer(self, entry: ManifestEntry) -> bool:
        """Whether a file was added after the starting snapshot, by its file sequence number; false without one."""
        number = entry.file_sequence_number
        return self._start is not None and number is not None and number > self.sequence_number

    def changed_files(self, change: FileChange, rows: Expression = ALWAYS_TRUE) -> Iterator[ManifestEntry]:
        """Files with such a change that may match a filter; `rows` is bound to the base's schema."""
        matching = Matching(self._base, rows)
        for snapshot in self.snapshots:
            # A snapshot without an operation may have done anything.
            if snapshot.operation is not None and snapshot.operation not in change.operations:
                continue
            for manifest in self._reader.manifests(snapshot):
                is_own = manifest.added_snapshot_id in (None, snapshot.snapshot_id)
                if manifest.content is not change.content or not is_own:
                    continue
                # Partition summaries are not asked: where they are wrong, a conflict would be missed.
                for entry in self._reader.entries(manifest, self._base):
                    is_own = entry.status is change.status and entry.snapshot_id == snapshot.snapshot_id
                    if is_own and matching.entry(entry):
                        yield entry

    def check_none(self, change: FileChange, rows: Expression) -> None:
        """Raises `ConflictError` if `changed_files` has any."""
        entry = next(self.changed_files(change, rows), None)
        if entry is not None:
            problem = change.problem.format(path=entry.data_file.file_path)
            raise ConflictError(f"{problem} meanwhile; read again and repeat the change")

    def check_not_reached(self, data: Iterable[ManifestEntry], deletes: Sequence[ManifestFile], asks: Gatherer) -> None:
        """Raises `ConflictError` if a live delete file that is newer than the starting snapshot reaches one of the data files.

        That snapshot must be an ancestor, or deletes that were live in it may be gone.
        """
        _ = self.snapshots
        start = self.sequence_number
        question = LiveFilesQuestion.of(self._base, ("newer than", start), partial(_newer_than, start))
        newer = chain.from_iterable(asks.gathered(deletes, question))
        for path, reaching in reaching_deletes(data, newer, self._base.specs_by_id).items():
            if reaching:
                raise ConflictError(
                    f"delete file {reaching[0].data_file.file_path!r} now reaches data file {path!r}, which is to be replaced"
                )


def _newer_than(number: int, live: Iterator[ManifestEntry]) -> list[ManifestEntry]:
    return [entry for entry in live if sequence_number(entry) > number]


def live_at(
    paths: Iterable[str], manifests: Sequence[ManifestFile], attempt: Attempt, *, at_once: bool = False
) -> dict[str, ManifestEntry]:
    """The live entries of the data files at these paths, by path.

    Growing batches of manifests are asked until each path has one; with `at_once` all, for paths that are rarely live.
    """
    digests = frozenset(map(path_digest, paths))
    key, answer = ("live at", digest_of_all(digests)), partial(_at_paths, digests)
    entries: dict[str, ManifestEntry] = {}
    for some in [manifests] if at_once else growing(manifests):
        if len(entries) == len(digests):
            break
        for live in attempt.ask_live_files(some, key, answer):
            entries |= {entry.data_file.file_path: entry for entry in live}
    return entries


def _at_paths(paths: frozenset[PathDigest], live: Iterator[ManifestEntry]) -> list[ManifestEntry]:
    return [entry for entry in live if path_digest(entry.data_file.file_path) in paths]


def position_deletes_of(
    data: Iterable[DataFile], manifests: Sequence[ManifestFile], attempt: Attempt
) -> Iterator[ManifestEntry]:
    """The live vectors and position delete files that may apply to these data files, by path or partition."""
    files = list(data)
    paths = frozenset(path_digest(file.file_path) for file in files)
    partitions = frozenset(map(partition_key, files))
    key = "position deletes of", digest_of_all(paths), digest_of_all(partitions)
    return chain.from_iterable(attempt.ask_live_files(manifests, key, partial(_positions_for, paths, partitions)))


def _positions_for(
    paths: frozenset[PathDigest], partitions: frozenset[PartitionKey], live: Iterator[ManifestEntry]
) -> list[ManifestEntry]:
    deletes = []
    for entry in live:
        if entry.data_file.content is FileContent.POSITION_DELETES:
            only = only_data_file(entry.data_file)
            if partition_key(entry.data_file) in partitions if only is None else path_digest(only) in paths:
                deletes.append(entry)
    return deletes
