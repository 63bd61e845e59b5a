"""What a repair is going to do, and what it leaves as it is, as values."""

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.changes.repair_entries import AddedCopy, RepairedEntry
from icekeep.maintenance.check.faults import CLASSES, Fault
from icekeep.rendered import Rendered
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.storage.base import FileInfo

_DIGEST_BYTES = 16

NOT_FOUND = "it was not found any more when it was measured again"


class CannotRepairError(Exception):
    """A fault stays; the text says why. Without a text the branch does not have what the fault is of."""


def not_accepted(what: str, locations: Sequence[str], more: str = "") -> CannotRepairError:
    """A loss that nobody has accepted: the flag to give for it, as a shell takes it, and what would be lost."""
    return CannotRepairError(f"only done with --accept-loss {shlex.quote(','.join(locations))}{more}: {what}")


class RepairScope(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair is asked for: kinds of faults, and the locations that may be lost."""

    numbers: frozenset[int]
    accepted: frozenset[str] = frozenset()


class RepairedFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fix.

    Attributes:
        fault_id, name: the kind of the fault.
        branch: on which; empty where it is of the whole table.
        where: the file, or the part of the metadata.
        action: what is written, in a sentence.
        is_put_back: whether the file is put back where it was, with no commit.
        lost_files: what readers lose by it: files that are gone from the branch.
        lost_records_count: the records of these, deleted ones among them; or rows that readers saw twice, or saw by one of two
            vectors; or what lost commits added. `None` where that is not known.
    """

    fault_id: int
    name: str
    branch: str
    where: str
    action: str
    is_put_back: bool = False
    lost_files: tuple[str, ...] = ()
    lost_records_count: int | None = 0


class UnrepairedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that stays, and why.

    Attributes:
        is_only_older: no branch has it at its head, and it goes as its snapshots expire.
    """

    fault_id: int
    name: str
    where: str
    reason: str
    snapshot_id: int | None = None
    is_only_older: bool = False


def unrepaired(fault: Fault, reason: str, *, is_only_older: bool = False) -> UnrepairedFault:
    """A fault that stays."""
    return UnrepairedFault(
        fault_id=int(fault.number),
        name=CLASSES[fault.number].name,
        where=fault.where,
        reason=reason,
        snapshot_id=fault.snapshot_id,
        is_only_older=is_only_older,
    )


class RepairPlan(Rendered, frozen=True, kw_only=True):
    """What would be done.

    Attributes:
        not_mended: faults that stay.
        lost_records_count: of all fixes together, as `RepairedFault` has it.
        hash: what `approve` takes for exactly this.
    """

    mends: tuple[RepairedFault, ...] = ()
    not_mended: tuple[UnrepairedFault, ...] = ()
    lost_records_count: int | None = 0
    hash: str = ""


class TrashedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that comes back from the trash of a run."""

    location: str
    trash: str
    run: str
    size_bytes: int


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """What one fix does, in a sentence, what is lost by it, and the files that come back from the trash for it, in order."""

    action: str
    lost_files: tuple[str, ...] = ()
    lost_records_count: int = 0
    returns: tuple[TrashedFile, ...] = ()


class VectorMerge(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of one data file that are to become one, and how many positions they have together."""

    data_file: str
    entries: tuple[RepairedEntry, ...]
    cardinality: int


class OldFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file of an older snapshot, of which a copy is to be made.

    Attributes:
        entry: as that snapshot has it.
        deletes: the delete files and the vector that delete positions of it there, perhaps of other files as well.
        deleted_count: how many of its rows they delete.
    """

    entry: ManifestEntry
    deletes: tuple[ManifestEntry, ...] = ()
    deleted_count: int = 0


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """Lost files, all that one rewrite made in a partition, and the files that it made them of.

    Attributes:
        schema_id: of the columns in which these were compared.
    """

    schema_id: int
    lost: tuple[ManifestEntry, ...]
    old: tuple[OldFile, ...]


class NewFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that an attempt has written, and the entries that go for them.

    Attributes:
        locations: of all files; none is removed once the commit has landed.
    """

    locations: tuple[str, ...]
    entries: tuple[RepairedEntry, ...] = ()
    deletes: tuple[AddedDeletes, ...] = ()
    copies: tuple[AddedCopy, ...] = ()


class BranchWork(msgspec.Struct, kw_only=True):
    """What is to be written on one branch; filled fault by fault.

    Attributes:
        entries: by location of the manifest and index in it.
        rows, once, recounts_totals: as for `RepairEntries`.
        replacements: by the first of the lost files, where copies of older files come in their place.
        gone: locations of files that must be missing still when their entries go.
        broken: those that cannot be read, and must be as they were.
        drops_dangling: whether delete files that reach nothing are taken out.
    """

    branch: str
    snapshot_id: int
    format_version: int
    entries: dict[tuple[str, int], RepairedEntry] = {}
    rows: set[str] = set()
    once: set[str] = set()
    merges: list[VectorMerge] = []
    replacements: dict[str, Replacement] = {}
    gone: set[str] = set()
    broken: dict[str, FileInfo] = {}
    recounts_totals: bool = False
    drops_dangling: bool = False
    faults: set[int] = set()

    @property
    def writes_entries(self) -> bool:
        """Whether a commit rewrites manifests, or totals."""
        return bool(self.entries or self.rows or self.once or self.merges or self.recounts_totals)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.writes_entries and not self.drops_dangling

    @property
    def merged(self) -> set[tuple[str, int]]:
        """The entries of vectors that become one, as `entries` has them."""
        return {(one.manifest, one.index) for merge in self.merges for one in merge.entries}

    def manifests(self) -> set[str]:
        """The locations of the manifests that are rewritten."""
        return {path for path, _ in (*self.entries, *self.merged)} | self.rows | self.once


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and how it is carried out.

    Attributes:
        parts: hashes of all that is done, one by one.
        counters: of the metadata, to be raised.
        statistics, partition_statistics: snapshots that are to have none.
        returns: files that come back from the trash before anything is committed.
    """

    plan: RepairPlan
    parts: frozenset[str] = frozenset()
    works: tuple[BranchWork, ...] = ()
    counters: frozenset[str] = frozenset()
    statistics: frozenset[int] = frozenset()
    partition_statistics: frozenset[int] = frozenset()
    returns: tuple[TrashedFile, ...] = ()


def parts_of(repaired: Iterable[RepairedFault], works: Iterable[BranchWork]) -> frozenset[str]:
    """The hashes of all that is done: the same for the same fixes of the same entries, whatever else others commit."""
    parts: list[Any] = [*repaired]
    for work in works:
        parts += [[work.branch, path, index, one.file, one.is_deleted] for (path, index), one in work.entries.items()]
        names = (sorted(work.rows), sorted(work.once), sorted({*work.gone, *work.broken}))
        parts += [[work.branch, *some] for some in names]
        parts += [[work.branch, merge.data_file, merge.cardinality] for merge in work.merges]
        parts += [[work.branch, one] for one in work.replacements.values()]
    return frozenset(_hashed(part) for part in parts)


def lost_records(repaired: Iterable[RepairedFault]) -> int | None:
    """The records that are lost by all of them; `None` where that is not known of one."""
    counts = [one.lost_records_count for one in repaired]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def hash_of(table_uuid: str | None, parts: Iterable[str], snapshot_properties: Sequence[tuple[str, str]] = ()) -> str:
    """The hash of a whole plan, and of what the user writes into the summaries of its snapshots."""
    return _hashed([table_uuid, *sorted(parts), *sorted(snapshot_properties)])


def _hashed(value: Any) -> str:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=_DIGEST_BYTES).hexdigest()
