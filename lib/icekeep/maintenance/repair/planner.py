"""Faults that the check found -> what is done about each, measured again on the heads of the branches.

`REPAIRS` says of each kind of fault how it is fixed. A fix finds the places that have the fault, proves by the check's own rules
that it is there still, and adds to the work of the branch what is written; else it raises `CannotRepairError`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import FILE_TOTALS, live_counts
from icekeep.errors import SafetyError, UsageError
from icekeep.events import Listener
from icekeep.maintenance.check.faults import CLASSES, REACHING_NOTHING, Fault, FaultId, Tally
from icekeep.maintenance.check.job import examined
from icekeep.maintenance.repair.entries import (
    IN_ENTRY,
    IN_FILE,
    can_recount,
    fix_dangling,
    fix_entries,
    fix_row,
    fix_totals,
)
from icekeep.maintenance.repair.heads import Head, heads_of, manifests_of, paths_of
from icekeep.maintenance.repair.lists import fix_list, fix_manifest
from icekeep.maintenance.repair.losses import (
    fix_doubled_file,
    fix_doubled_manifest,
    fix_missing,
    fix_two_vectors,
    fix_unreadable,
)
from icekeep.maintenance.repair.plan import (
    NOT_FOUND,
    CannotRepairError,
    Fix,
    Planned,
    RepairedFault,
    RepairPlan,
    RepairScope,
    TrashedFile,
    UnrepairedFault,
    hash_of,
    lost_records,
    parts_of,
    unrepaired,
)
from icekeep.maintenance.repair.reattach import NEEDS_EARLIER
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import low_counters

COUNTERS: Mapping[int, str] = {
    FaultId.LAST_COLUMN_ID_TOO_LOW: "last_column_id",
    FaultId.LAST_PARTITION_ID_TOO_LOW: "last_partition_id",
    FaultId.NEXT_ROW_ID_TOO_LOW: "next_row_id",
}
IN_METADATA = frozenset((*COUNTERS, FaultId.STATISTICS_OF_MISSING_SNAPSHOT, FaultId.STATISTICS_FILE_MISSING))

MAX_REPAIRS = 10_000
"""At most this many faults are repaired at a time."""

CONTENT = 400
"""Kinds of faults with greater numbers are those of what files hold."""


class RepairTarget(Enum):
    """What a fix is asked for.

    Attributes:
        FAULT: each fault, on each branch that can be read.
        BRANCH: a branch as a whole, once, whichever snapshots have the fault.
        LIST: each fault, on the branches that cannot be read.
    """

    FAULT = "fault"
    BRANCH = "branch"
    LIST = "list"


class Repair(msgspec.Struct, frozen=True):
    """How faults of one kind are fixed.

    Attributes:
        fix: plans it; raises `CannotRepairError` where nothing can be done, or the fault is not found any more.
        rank: the order of kinds. Rows come first: manifests whose rows are wrong are read by what they hold from then on.
            Dangling deletes and totals are of what is left after all else.
        names_files: whether it asks the head for entries of the files that the faults name.
    """

    fix: Callable[[Head, Fault], list[Fix]]
    rank: int = 3
    target: RepairTarget = RepairTarget.FAULT
    names_files: bool = True


_ROW = Repair(fix_row, rank=0, names_files=False)
_TOTALS = Repair(fix_totals, rank=5, target=RepairTarget.BRANCH, names_files=False)

REPAIRS: Mapping[int, Repair] = {
    FaultId.MANIFEST_LIST_UNREADABLE: Repair(fix_list, target=RepairTarget.LIST, names_files=False),
    FaultId.MANIFEST_UNREADABLE: Repair(fix_manifest, names_files=False),
    FaultId.MANIFEST_LENGTH_WRONG: _ROW,
    FaultId.FILE_COUNTS_WRONG: _ROW,
    FaultId.ROW_COUNTS_WRONG: _ROW,
    FaultId.PARTITION_SUMMARY_WRONG: _ROW,
    FaultId.MIN_SEQUENCE_NUMBER_WRONG: _ROW,
    FaultId.DOUBLED_MANIFEST: Repair(fix_doubled_manifest, rank=1),
    FaultId.DOUBLED_FILE: Repair(fix_doubled_file, rank=2),
    FaultId.TWO_VECTORS: Repair(fix_two_vectors),
    FaultId.DATA_FILE_MISSING: Repair(fix_missing),
    FaultId.DELETE_FILE_MISSING: Repair(fix_missing),
    FaultId.DATA_FILE_UNREADABLE: Repair(fix_unreadable),
    FaultId.DELETE_FILE_UNREADABLE: Repair(fix_unreadable),
    FaultId.VECTOR_UNREADABLE: Repair(fix_unreadable),
    **dict.fromkeys(IN_ENTRY | IN_FILE, Repair(fix_entries)),
    **dict.fromkeys(REACHING_NOTHING, Repair(fix_dangling, rank=4, target=RepairTarget.BRANCH, names_files=False)),
    FaultId.TOTALS_WRONG: _TOTALS,
    FaultId.SIZE_TOTAL_WRONG: _TOTALS,
}

REPAIRED: frozenset[int] = frozenset((*IN_METADATA, *NEEDS_EARLIER, *REPAIRS))
"""The kinds of faults for which there is a repair."""

GUARDS = frozenset((FaultId.DOUBLED_FILE, FaultId.DOUBLED_MANIFEST, FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG))
"""Where these are, nothing else is fixed in the same manifests; all of them have to be known."""

_MISLEADING = (
    FaultId.MANIFEST_UNREADABLE,
    FaultId.FILE_COUNTS_WRONG,
    FaultId.PARTITION_SUMMARY_WRONG,
    FaultId.MIN_SEQUENCE_NUMBER_WRONG,
    FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG,
    FaultId.MANIFEST_SPEC_MISSING,
    FaultId.MANIFEST_CONTENT_WRONG,
    FaultId.ENTRY_NUMBER_MISSING,
    FaultId.ENTRY_NUMBER_WRONG,
)
"""Where these are, it is not known which data files there are, or how old, and so not which deletes reach none."""

_COUNTS = (FaultId.FILE_COUNTS_WRONG, FaultId.ROW_COUNTS_WRONG)
_HAS_ROW_IDS = 3


def no_repair(number: int) -> str:
    """Why a kind of faults is never repaired here."""
    if number in NEEDS_EARLIER:
        return (
            "the metadata file contradicts other files only, or the catalog writes metadata itself: which is right cannot be "
            "told here; look at the metadata files, and register a sound one by hand: `icekeep drop` without --purge, then "
            "`icekeep register`"
        )
    return f"there is no repair of this kind; {CLASSES[number].mend}"


def planned(table: Table, scope: RepairScope, spark: SparkSource, listener: Listener) -> Planned:
    """Check a table, and plan what can be done about the faults that are to be repaired.

    Raises:
        UsageError: there are more faults than are repaired at a time.
        SafetyError: what is to be written was not checked.
    """
    tally = Tally(scope.numbers | GUARDS)
    examined(table, spark, tally, listener, deep=any(number > CONTENT for number in scope.numbers))
    count = sum(tally.counts.get(number, 0) for number in scope.numbers | GUARDS)
    if count > MAX_REPAIRS:
        raise UsageError(
            f"table {table.name!r} has {count:,} of these faults, and {MAX_REPAIRS:,} are repaired at a time; repair some kinds "
            "first"
        )
    return _Planner(table, scope, tally, SparkManifestReader(spark, table.storage)).planned()


class _Planner:
    def __init__(self, table: Table, scope: RepairScope, tally: Tally, reader: ManifestReader) -> None:
        self._table, self._scope, self._tally = table, scope, tally
        self._heads = [*heads_of(table, reader, scope)]
        self._metadata = MetadataWork()
        self._returns: dict[str, TrashedFile] = {}
        self._repaired: list[RepairedFault] = []
        self._stay: list[UnrepairedFault] = []

    def planned(self) -> Planned:
        for head in self._heads:
            head.barred = why_no_snapshots(self._table, self._scope.numbers)
            head.missing_data_files = self._tally.faults(FaultId.DATA_FILE_MISSING)
            guard(head, self._tally)
        numbers = sorted(self._scope.numbers, key=lambda number: (self._rank(number), number))
        rows = [number for number in numbers if self._rank(number) == _ROW.rank]
        for number in rows:
            self._repair(number)
        named = [number for number in numbers if number in REPAIRS and REPAIRS[number].names_files]
        faults = [fault for number in named for fault in self._tally.faults(number)]
        paths = {path for fault in faults for path in paths_of(fault)}
        manifests = {path for fault in faults for path in manifests_of(fault)}
        for head in self._heads:
            head.look_for(paths, manifests)
        for number in numbers[len(rows) :]:
            self._repair(number)
        for head in self._heads:
            if head.work.writes_entries and not head.work.recounts_totals:
                head.work.recounts_totals = can_recount(head)
        works = tuple(head.work for head in self._heads if not head.work.is_empty)
        refuse_unchecked(self._heads, self._tally)
        refuse_wrong_row_ids(self._heads, self._tally)
        repaired, parts = tuple(self._repaired), parts_of(self._repaired, works)
        own = () if self._table.run is None else self._table.run.snapshot_properties
        plan = RepairPlan(
            mends=repaired,
            not_mended=tuple(self._stay),
            lost_records_count=lost_records(repaired),
            hash=hash_of(self._table.metadata.table_uuid, parts, own),
        )
        return Planned(
            plan=plan,
            parts=parts,
            works=works,
            counters=frozenset(self._metadata.counters),
            statistics=frozenset(self._metadata.statistics),
            partition_statistics=frozenset(self._metadata.partition_statistics),
            returns=tuple(self._returns.values()),
        )

    def _rank(self, number: int) -> int:
        return REPAIRS[number].rank if number in REPAIRS else 3

    def _repair(self, number: int) -> None:
        faults, repair = self._tally.faults(number), REPAIRS.get(number)
        if repair is not None and repair.target is RepairTarget.BRANCH:
            if faults:
                self._on_branches(faults, repair)
            return
        for fault in faults:
            if number in IN_METADATA:
                self._try(fault, [(None, partial(fix_metadata, self._table, fault, self._metadata))])
            elif repair is None:
                self._stay.append(unrepaired(fault, no_repair(number)))
            elif repair.target is RepairTarget.LIST:
                # A branch without a list cannot be read, as all other fixes need.
                heads = [head for head in self._heads if head.problem is not None]
                self._try(fault, [(head, partial(repair.fix, head, fault)) for head in heads])
            else:
                self._try(fault, [(head, partial(_fix_readable, repair, head, fault)) for head in self._heads])

    def _on_branches(self, faults: Sequence[Fault], repair: Repair) -> None:
        before, reasons = len(self._repaired), list[UnrepairedFault]()
        for head in self._heads:
            here = msgspec.structs.replace(faults[0], where=f"snapshot {head.snapshot.snapshot_id}")
            try:
                fixes = _fix_readable(repair, head, here)
            except CannotRepairError as error:
                if str(error) != NOT_FOUND:
                    reasons.append(unrepaired(here, self._on(head, str(error))))
                continue
            self._note(head, here, fixes)
        if len(self._repaired) > before:
            self._stay += reasons
        elif reasons:
            self._stay += [unrepaired(fault, reasons[0].reason) for fault in faults]
        else:
            self._stay += [_only_older(fault) for fault in faults]

    def _try(self, fault: Fault, tries: Iterable[tuple[Head | None, Callable[[], list[Fix]]]]) -> None:
        """Try a fault on each branch; where none can do anything it stays, and why is said."""
        reasons: dict[str, None] = {}
        is_done = False
        for head, fix in tries:
            try:
                fixes = fix()
            except CannotRepairError as error:
                if str(error) not in ("", NOT_FOUND):
                    reasons[self._on(head, str(error))] = None
                continue
            is_done = is_done or bool(fixes)
            self._note(head, fault, fixes)
        self._stay += [unrepaired(fault, reason) for reason in reasons]
        if not is_done and not reasons:
            is_of_head = fault.snapshot_id in {head.snapshot.snapshot_id for head in self._heads}
            self._stay.append(unrepaired(fault, NOT_FOUND) if is_of_head else _only_older(fault))

    def _on(self, head: Head | None, reason: str) -> str:
        return f"branch {head.branch!r}: {reason}" if head is not None and len(self._heads) > 1 else reason

    def _note(self, head: Head | None, fault: Fault, fixes: Sequence[Fix]) -> None:
        for fix in fixes:
            if head is not None:
                head.work.faults.add(fault.number)
            self._returns |= {one.location: one for one in fix.returns}
            self._repaired.append(
                RepairedFault(
                    fault_id=int(fault.number),
                    name=CLASSES[fault.number].name,
                    branch="" if head is None else head.branch,
                    where=fault.where,
                    action=fix.action,
                    is_put_back=bool(fix.returns),
                    lost_files=fix.lost_files,
                    lost_records_count=fix.lost_records_count,
                )
            )


def _fix_readable(repair: Repair, head: Head, fault: Fault) -> list[Fix]:
    if head.problem is not None:
        raise CannotRepairError(
            f"the head of branch {head.branch!r} cannot be read, repair fault {FaultId.MANIFEST_LIST_UNREADABLE} first: "
            f"{head.problem}"
        )
    if head.barred is not None:
        raise CannotRepairError(head.barred)
    return repair.fix(head, fault)


def _only_older(fault: Fault) -> UnrepairedFault:
    """A fault that no branch has at its head."""
    if fault.snapshot_id is None:
        return unrepaired(fault, NOT_FOUND)
    reason = f"no branch has it at its head, only snapshot {fault.snapshot_id} or a tag; it goes with its expiration"
    return unrepaired(fault, reason, is_only_older=True)


class MetadataWork(msgspec.Struct):
    """What is changed in the metadata alone; as `Planned` has it."""

    counters: set[str] = set()
    statistics: set[int] = set()
    partition_statistics: set[int] = set()


def fix_metadata(table: Table, fault: Fault, work: MetadataWork) -> list[Fix]:
    """Plan what is to be changed; raises `CannotRepairError` where nothing can or need be changed."""
    if fault.number not in COUNTERS:
        return [_fix_statistics(table, fault, work)]
    name = COUNTERS[fault.number]
    least = low_counters(table.metadata).get(name)
    shown = name.replace("_", "-")
    if least is None:
        raise CannotRepairError(NOT_FOUND)
    if not table.catalog.compares_metadata:
        raise CannotRepairError(f"catalog {table.catalog.name!r} applies its own updates, and none raises {shown}")
    work.counters.add(name)
    return [Fix(action=f"{shown} {least} in place of {getattr(table.metadata, name)}")]


def _fix_statistics(table: Table, fault: Fault, work: MetadataWork) -> Fix:
    """The entries of one kind of one snapshot go, which is what an update can say."""
    metadata = table.metadata
    is_partition = "partition" in str(fault.facts["kind"])
    files: tuple[StatisticsFile | PartitionStatisticsFile, ...] = (
        metadata.partition_statistics if is_partition else metadata.statistics
    )
    path = fault.facts.get("statistics_path", fault.facts.get("file_path"))
    # Several snapshots may name one file.
    snapshot_id = fault.facts.get("snapshot_id", fault.snapshot_id)
    found = next((one for one in files if (one.snapshot_id, one.statistics_path) == (snapshot_id, path)), None)
    if found is None:
        raise CannotRepairError(NOT_FOUND)
    if fault.number == FaultId.STATISTICS_FILE_MISSING:
        info = table.storage.head(found.statistics_path)
        if info is not None and info.size_bytes == found.file_size_in_bytes:
            raise CannotRepairError(NOT_FOUND)
    (work.partition_statistics if is_partition else work.statistics).add(found.snapshot_id)
    return Fix(action=f"snapshot {found.snapshot_id} has no {fault.facts['kind']} any more; planners go without")


def why_no_snapshots(table: Table, numbers: Collection[int]) -> str | None:
    """Why no snapshot may be added once these kinds of faults are fixed; `None` where one may.

    Each takes its row ids from the counter: where that is too low they are those of other rows.
    """
    number = FaultId.NEXT_ROW_ID_TOO_LOW
    is_low = COUNTERS[number] in low_counters(table.metadata)
    if not is_low or (number in numbers and table.catalog.compares_metadata):
        return None
    return f"next-row-id is too low, and a new snapshot would give out row ids twice: repair fault {number} first"


def guard(head: Head, tally: Tally) -> None:
    """Note of a head what its fixes have to go by, from all that the check has found."""
    head.untouchable |= head.doubled_manifests
    for fault in tally.faults(FaultId.DOUBLED_FILE):
        # Of a file that is live in very many places not all are listed.
        is_whole = fault.facts["entries_count"] == len(fault.facts["entries"])
        if manifests := manifests_of(fault) & head.paths if is_whole else head.paths:
            head.untouchable |= manifests
            head.standing.add((fault.number, fault.where))
    for fault in tally.faults(FaultId.DOUBLED_MANIFEST):
        if fault.where in head.doubled_manifests:
            head.standing.add((fault.number, fault.where))
    for fault in tally.faults(FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG):
        head.misnumbered |= manifests_of(fault) & head.paths
    for number in _MISLEADING:
        faults = tally.faults(number)
        # Where there are very many not all are kept.
        is_whole = len(faults) == tally.counts.get(number, 0)
        if not is_whole or any((manifests_of(one) or {one.where}) & head.paths for one in faults):
            head.misleading.add(number)
    if not head.misleading:
        counts = live_counts(head.rows)
        listed = {name: counts[content] for content, name in FILE_TOTALS.items()}
        head.barred = head.barred or head.why_cut_short(listed)


def refuse_unchecked(heads: Collection[Head], tally: Tally) -> None:
    """Raise `SafetyError` where something is to be rewritten that nobody could check."""
    rewritten = {path for head in heads for path in head.work.manifests()}
    lists = {head.snapshot.manifest_list for head in heads if not head.work.is_empty}
    gaps = tally.gaps()
    if (rewritten or lists) and tally.gaps_count > len(gaps):
        raise SafetyError("too much of the table could not be checked to repair anything; see `icekeep check`")
    for gap in gaps:
        if gap.what in rewritten or gap.what in lists:
            raise SafetyError(f"{gap.what!r} would be rewritten, and was not checked: {gap.why}; nothing was changed")


def refuse_wrong_row_ids(heads: Collection[Head], tally: Tally) -> None:
    """Raise `SafetyError` for commits that number rows by wrong counts: each gives row ids to manifests that have none yet."""
    faults = [fault for number in _COUNTS for fault in tally.faults(number)]
    is_whole = len(faults) == sum(tally.counts.get(number, 0) for number in _COUNTS)
    wrong = {path for fault in faults for path in manifests_of(fault)}
    for head in heads:
        if head.work.format_version < _HAS_ROW_IDS or head.work.is_empty:
            continue
        unnumbered = {
            row.manifest_path for row in head.rows if row.first_row_id is None and row.content is ManifestContent.DATA
        }
        stays = unnumbered - head.work.manifests()
        if stays & wrong or (stays and not is_whole):
            raise SafetyError(
                f"a commit to branch {head.branch!r} would number rows by counts that are wrong, of manifest "
                f"{min(stays & wrong or stays)!r}: repair faults 204 and 205 first; nothing was changed"
            )
