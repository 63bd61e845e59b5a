"""What will be done with position delete files, as values: groups of them, those that go as they are, and a preview."""

import msgspec

from icekeep.commit.file_sets import Digest, ReadFile, entry_digest
from icekeep.maintenance.equality_deletes.plan import ConvertEqualityDeletesPlan
from icekeep.maintenance.position_deletes.live_files import LivePart
from icekeep.rendered import Rendered
from icekeep.spec.snapshots import MAIN


class DeleteGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Position delete files of one partition that are rewritten together; one unit of failure and of partial progress.

    Attributes:
        partition: its directory, for people and for the locations of new files.
        files: in the order of the paths that they name.
        live: the live data files that they may name; those of the partition are shared by its groups.
        tasks_count: how many tasks share the paths.
        seems_dangling: both bounds of each file are one path, of which there is no live data file that it reaches: where its rows
            show that this is so, nothing is written in its place.
    """

    number: int
    spec_id: int
    partition: str
    files: tuple[ReadFile, ...]
    live: tuple[LivePart, ...]
    tasks_count: int
    seems_dangling: bool = False

    @property
    def files_count(self) -> int:
        return len(self.files)

    @property
    def bytes(self) -> int:
        return sum(read.entry.data_file.file_size_in_bytes for read in self.files)

    @property
    def record_count(self) -> int:
        return sum(read.entry.data_file.record_count for read in self.files)

    @property
    def digests(self) -> frozenset[Digest]:
        """Equal for a group of the same files, as they were read."""
        return frozenset(entry_digest(read.entry) for read in self.files)


class DeletesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does with the position deletes of a branch.

    Attributes:
        snapshot_id: that was planned on; `None` for a branch without one.
        candidate_files_count: position delete files that ask to be rewritten, each by itself.
        dangling: delete files and vectors that reach no live data file, and need not be read to know it.
    """

    branch: str = MAIN
    snapshot_id: int | None = None
    target_file_size_bytes: int
    candidate_files_count: int = 0
    groups: tuple[DeleteGroup, ...] = ()
    dangling: tuple[ReadFile, ...] = ()

    @property
    def has_stored(self) -> bool:
        """Whether planning has put anything into storage."""
        return any(part.location is not None for group in self.groups for part in group.live)


class DeleteGroupPreview(msgspec.Struct, frozen=True, kw_only=True):
    """One group; sizes in bytes."""

    partition: str
    files_count: int
    bytes: int
    record_count: int


class RewritePositionDeletesPlan(Rendered, frozen=True, kw_only=True):
    """What a run with the same arguments would do now; see `DeletesPlan` for the fields of that name.

    Attributes:
        becomes: `vectors` or `position delete files`.
        removed_dangling_bytes_count: of vectors those of their blobs.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        conversion: of equality deletes; `None` where it was not asked for.
    """

    branch: str
    snapshot_id: int | None
    becomes: str
    target_file_size_bytes: int
    candidate_files_count: int
    rewritten_delete_files_count: int
    rewritten_bytes_count: int
    removed_dangling_delete_files_count: int
    removed_dangling_bytes_count: int
    groups: tuple[DeleteGroupPreview, ...]
    swept_files_count: int = 0
    conversion: ConvertEqualityDeletesPlan | None = None


def becomes_of(format_version: int) -> str:
    """What position delete files of a format version become."""
    return "vectors" if format_version > 2 else "position delete files"


def preview(plan: DeletesPlan, format_version: int) -> RewritePositionDeletesPlan:
    """A plan for people; what seems to be dangling counts as that."""
    groups = [group for group in plan.groups if not group.seems_dangling]
    dangling = [read for group in plan.groups if group.seems_dangling for read in group.files]
    dangling += plan.dangling
    return RewritePositionDeletesPlan(
        branch=plan.branch,
        snapshot_id=plan.snapshot_id,
        becomes=becomes_of(format_version),
        target_file_size_bytes=plan.target_file_size_bytes,
        candidate_files_count=plan.candidate_files_count,
        rewritten_delete_files_count=sum(group.files_count for group in groups),
        rewritten_bytes_count=sum(group.bytes for group in groups),
        removed_dangling_delete_files_count=len(dangling),
        removed_dangling_bytes_count=sum(read.entry.data_file.own_bytes for read in dangling),
        groups=tuple(
            DeleteGroupPreview(
                partition=group.partition,
                files_count=group.files_count,
                bytes=group.bytes,
                record_count=group.record_count,
            )
            for group in groups
        ),
    )
