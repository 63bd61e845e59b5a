"""What is told of commits: values with the names of their JSON. `None` is always "not known", never "none"."""

from collections.abc import Sequence

import msgspec

from icekeep.rendered import Rendered


class FilesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit added, or what it removed.

    Attributes:
        record_count: rows of the data files.
        position_deletes_count: rows of position delete files and of deletion vectors.
        equality_deletes_count: rows of equality delete files.
        bytes: of data files and delete files together, as summaries have them.
    """

    data_files_count: int | None = None
    record_count: int | None = None
    position_delete_files_count: int | None = None
    equality_delete_files_count: int | None = None
    deletion_vectors_count: int | None = None
    position_deletes_count: int | None = None
    equality_deletes_count: int | None = None
    bytes: int | None = None

    @property
    def delete_files_count(self) -> int | None:
        """Delete files of every kind, including deletion vectors."""
        return total((self.position_delete_files_count, self.equality_delete_files_count, self.deletion_vectors_count))


class TableTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How large a table is after a commit; `bytes` are those of data files and delete files together."""

    data_files_count: int | None = None
    record_count: int | None = None
    delete_files_count: int | None = None
    position_deletes_count: int | None = None
    equality_deletes_count: int | None = None
    bytes: int | None = None


class ManifestsAfter(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a snapshot below its table's metadata file.

    Attributes:
        manifest_list_bytes: of the manifest list; `None` also where there is none (v1).
        metadata_bytes: of the manifest list and all manifests.
        created_count: manifests that the commit wrote, of `created_bytes`.
        kept_count: manifests of earlier commits.
        replaced_count: manifests of its parent that it does not list any more.
    """

    manifests_count: int | None = None
    manifests_bytes: int | None = None
    manifest_list_bytes: int | None = None
    metadata_bytes: int | None = None
    created_count: int | None = None
    created_bytes: int | None = None
    kept_count: int | None = None
    replaced_count: int | None = None


class CommitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One commit.

    Attributes:
        timestamp_ms: when it was made, epoch milliseconds; of an expired one, when it became current.
        since_previous_ms: since its parent was made.
        operation: as its summary says.
        made_by: the engine, as far as the summary says.
        job: the job of icekeep that made it, where it was one.
        is_expired: its snapshot is gone, and only the snapshot log has it: nothing else is known of it.
        refs: the branches and tags whose history has it; none for a staged snapshot.
        metadata_files_between_count: metadata files between the commit before it, on whatever branch, and this one: commits that
            made no snapshot, and such whose snapshots are gone. `None` where the metadata log does not reach back.
        note: why numbers are not known that should be.
    """

    snapshot_id: int
    parent_snapshot_id: int | None = None
    timestamp_ms: int
    since_previous_ms: int | None = None
    operation: str | None = None
    made_by: str | None = None
    job: str | None = None
    is_expired: bool = False
    refs: tuple[str, ...] = ()
    added: FilesChanged = FilesChanged()
    removed: FilesChanged = FilesChanged()
    after: TableTotals = TableTotals()
    manifests: ManifestsAfter = ManifestsAfter()
    metadata_files_between_count: int | None = None
    note: str | None = None


class GrowthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """How large a table was from `timestamp_ms` (epoch milliseconds) on."""

    timestamp_ms: int
    snapshot_id: int
    data_files_count: int | None
    bytes: int | None
    delete_files_count: int | None
    metadata_bytes: int | None


class CommitHistoryResult(Rendered, frozen=True, kw_only=True):
    """The commits of a branch or tag, or of a whole table.

    Attributes:
        ref: whose commits; `None`: all of the table.
        commits: the newest first.
        growth: the commits of `ref`, or of `main`, the oldest first, as the points of a plot.
        metadata_files_after_count: metadata files since the newest snapshot of the table: commits that made none.
        left_out_count: older commits that the limit left out.
        not_read: manifest lists and manifests that could not be read; what they would show is `None`.
    """

    metadata_location: str
    ref: str | None
    commits: tuple[CommitEntry, ...]
    growth: tuple[GrowthPoint, ...]
    metadata_files_after_count: int | None
    left_out_count: int
    not_read: tuple[str, ...]


def total(counts: Sequence[int | None]) -> int | None:
    """A sum; one that is not known makes it so."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
