"""What stands in the way of mends, found among all that the check has told: where it is, less is done, or nothing.

Mends of the table's metadata: counters that are too low, statistics of what is not there.

Faults that were found -> what is done about each, measured again on the heads of the branches.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import FILE_TOTALS, live_counts
from icekeep.errors import SafetyError, UsageError
from icekeep.events import Listener
from icekeep.maintenance.check.faults import CLASSES, REACHING_NOTHING, Fault, FaultId, Tally
from icekeep.maintenance.check.job import examined
from icekeep.maintenance.repair.delete_files import PUFFIN, UNSORTED, Puffins, mend_order
from icekeep.maintenance.repair.entries import (
    BROKEN,
    ENTRIES,
    ROWS,
    TOTALS,
    can_count_anew,
    count_anew,
    drop_dangling,
    mend_broken,
    mend_file,
    mend_row,
)
from icekeep.maintenance.repair.heads import Head, heads_of
from icekeep.maintenance.repair.lists import ListMend, Trash, mend_list, mend_manifest
from icekeep.maintenance.repair.losses import LOSSES, Lost, mend_loss
from icekeep.maintenance.repair.metadata import (
    NEEDS_EARLIER,
    NOT_FOUND,
    CannotMendError,
    manifests_of,
    no_repair,
    only_older,
    paths_of,
)
from icekeep.maintenance.repair.older_files import Sources
from icekeep.maintenance.repair.plan import (
    MAX_MENDS,
    Mend,
    NewList,
    NotMended,
    Planned,
    RepairPlan,
    RepairScope,
    TrashedFile,
    hash_of,
    lost_records,
    parts_of,
    staying,
)
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import low_counters

_SEQUENCE_NUMBER = 208

GUARDS = frozenset((FaultId.DOUBLED_FILE, FaultId.DOUBLED_MANIFEST, _SEQUENCE_NUMBER))
"""Where these are, nothing else is mended in the same manifests; all of them have to be known."""

_MISLEADING = (FaultId.MANIFEST_UNREADABLE, 204, 206, 207, 208, 210, 211, 217, 218)
"""Where these are, it is not known which data files there are, or how old, and so not which deletes reach none."""

_COUNTS = (204, 205)
_HAS_ROW_IDS = 3


def guard(head: Head, tally: Tally) -> None:
    """Note of a head what its mends have to go by."""
    head.untouchable |= head.doubled_manifests
    for fault in tally.faults(FaultId.DOUBLED_FILE):
        # Of a file that is live in very many places not all are told.
        is_told = fault.facts["entries_count"] == len(fault.facts["entries"])
        if manifests := manifests_of(fault) & head.paths if is_told else head.paths:
            head.untouchable |= manifests
            head.standing.add((fault.number, fault.where))
    for fault in tally.faults(FaultId.DOUBLED_MANIFEST):
        if fault.where in head.doubled_manifests:
            head.standing.add((fault.number, fault.where))
    for fault in tally.faults(_SEQUENCE_NUMBER):
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
    """Raise `SafetyError` where something is to be written anew that nobody could check."""
    written = {path for head in heads for path in head.work.manifests()}
    lists = {head.snapshot.manifest_list for head in heads if not head.work.is_empty}
    gaps = tally.gaps()
    if (written or lists) and tally.gaps_count > len(gaps):
        raise SafetyError("too much of the table could not be checked to repair anything; see `icekeep check`")
    for gap in gaps:
        if gap.what in written or gap.what in lists:
            raise SafetyError(
                f"{gap.what!r} would be written anew, and was not checked: {gap.why}; nothing was changed"
            )


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
                f"{min(stays & wrong or stays)!r}: mend faults 204 and 205 first; nothing was changed"
            )


COUNTERS = {108: "last_column_id", 109: "last_partition_id", FaultId.NEXT_ROW_ID_TOO_LOW: "next_row_id"}
_STATISTICS = frozenset((124, FaultId.STATISTICS_FILE_MISSING))
METADATA = frozenset(COUNTERS) | _STATISTICS


class MetadataWork(msgspec.Struct):
    """What is changed in the metadata alone; as `Planned` has it."""

    counters: set[str] = set()
    statistics: set[int] = set()
    partition_statistics: set[int] = set()


def mend_metadata(table: Table, fault: Fault, work: MetadataWork) -> Mend:
    """Plan what is to be changed; raises `CannotMendError` where nothing can be, or need not be."""
    action = _counter(table, fault, work) if fault.number in COUNTERS else _statistics(table, fault, work)
    return Mend(fault_id=fault.number, name=CLASSES[fault.number].name, branch="", where=fault.where, action=action)


def why_no_snapshots(table: Table, numbers: Collection[int]) -> str | None:
    """Why no snapshot may be added once these kinds of faults are mended; `None` where one may.

    Each takes its row ids from the counter: where that is too low they are those of other rows.
    """
    is_low = any(one.name == COUNTERS[FaultId.NEXT_ROW_ID_TOO_LOW] for one in low_counters(table.metadata))
    if not is_low or (FaultId.NEXT_ROW_ID_TOO_LOW in numbers and table.catalog.compares_metadata):
        return None
    first = FaultId.NEXT_ROW_ID_TOO_LOW
    return f"next-row-id is too low, and a new snapshot would give out row ids twice: mend fault {first} first"


def _counter(table: Table, fault: Fault, work: MetadataWork) -> str:
    name = COUNTERS[fault.number]
    least = {one.name: one.least for one in low_counters(table.metadata)}.get(name)
    if least is None:
        raise CannotMendError(NOT_FOUND)
    if not table.catalog.compares_metadata:
        raise CannotMendError(f"catalog {table.catalog.name!r} applies its own updates, and none raises {_shown(name)}")
    work.counters.add(name)
    return f"{_shown(name)} {least} in place of {getattr(table.metadata, name)}"


def _statistics(table: Table, fault: Fault, work: MetadataWork) -> str:
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
        raise CannotMendError(NOT_FOUND)
    if fault.number == FaultId.STATISTICS_FILE_MISSING:
        info = table.storage.head(found.statistics_path)
        if info is not None and info.size_bytes == found.file_size_in_bytes:
            raise CannotMendError(NOT_FOUND)
    (work.partition_statistics if is_partition else work.statistics).add(found.snapshot_id)
    return f"snapshot {found.snapshot_id} has no {fault.facts['kind']} any more; planners go without"


def _shown(name: str) -> str:
    return name.replace("_", "-")


CONTENT = 400
"""Kinds of faults with greater numbers are those of what files hold."""

MENDED = (
    METADATA
    | NEEDS_EARLIER
    | ROWS
    | ENTRIES
    | LOSSES
    | BROKEN
    | PUFFIN
    | UNSORTED
    | TOTALS
    | REACHING_NOTHING
    | {FaultId.MANIFEST_LIST_UNREADABLE, FaultId.MANIFEST_UNREADABLE}
)
"""The kinds of faults for which there is a repair."""


def planned(table: Table, asked: RepairScope, spark: SparkSource, listener: Listener) -> Planned:
    """Check a table, and plan what can be done about the faults that were asked for.

    Raises:
        UsageError: there are more faults than are mended at a time.
        SafetyError: what is to be written was not checked.
    """
    tally = Tally(asked.numbers | GUARDS)
    examined(table, spark, tally, listener, deep=any(number > CONTENT for number in asked.numbers))
    count = sum(tally.counts.get(number, 0) for number in asked.numbers | GUARDS)
    if count > MAX_MENDS:
        raise UsageError(
            f"table {table.name!r} has {count:,} of these faults, and {MAX_MENDS:,} are mended at a time; mend some kinds first"
        )
    return _Planner(table, asked, tally, SparkManifestReader(spark, table.storage)).planned()


class _Planner:
    def __init__(self, table: Table, asked: RepairScope, tally: Tally, reader: ManifestReader) -> None:
        self._table, self._asked, self._tally, self._reader = table, asked, tally, reader
        self._heads = heads_of(table, reader)
        for head in self._heads:
            head.barred = why_no_snapshots(table, asked.numbers)
        self._metadata = MetadataWork()
        self._trash, self._returns = Trash(table), dict[str, TrashedFile]()
        self._sources = Sources(table, self._reader, tally.faults(FaultId.DATA_FILE_MISSING), self._is_in_trash)
        self._puffins, self._lists = Puffins(), dict[str, NewList]()
        self._mends: list[Mend] = []
        self._stay: list[NotMended] = []

    def planned(self) -> Planned:
        for head in self._heads:
            guard(head, self._tally)
        # Rows come first: manifests whose rows are wrong are read by what they hold from then on.
        numbers = sorted(self._asked.numbers, key=_rank)
        for number in numbers:
            if number in ROWS:
                self._class(number)
        self._look_for_files()
        for number in numbers:
            if number not in ROWS:
                self._class(number)
        for head in self._heads:
            if head.work.writes_entries and not head.work.recounts_totals:
                head.work.recounts_totals = can_count_anew(head, self._reader)
        works = tuple(head.work for head in self._heads if not head.work.is_empty)
        refuse_unchecked(self._heads, self._tally)
        refuse_wrong_row_ids(self._heads, self._tally)
        mends, parts = tuple(self._mends), parts_of(self._mends, works, self._lists.values())
        own = () if self._table.run is None else self._table.run.snapshot_properties
        plan = RepairPlan(
            mends=mends,
            not_mended=tuple(self._stay),
            lost_records_count=lost_records(mends),
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
            lists=tuple(self._lists.values()),
        )

    def _look_for_files(self) -> None:
        faults = [
            fault
            for number in self._asked.numbers & (ENTRIES | LOSSES | BROKEN | UNSORTED)
            for fault in self._tally.faults(number)
        ]
        paths = {path for fault in faults for path in paths_of(fault)}
        manifests = {path for fault in faults for path in manifests_of(fault)}
        for head in self._heads:
            head.look_for(paths, manifests)

    def _class(self, number: int) -> None:
        faults = self._tally.faults(number)
        if number in TOTALS:
            self._of_heads(faults, lambda head: count_anew(head, self._reader, number))
        elif number in REACHING_NOTHING:
            self._of_heads(faults, lambda head: drop_dangling(head, self._reader))
        else:
            for fault in faults:
                self._fault(fault)

    def _fault(self, fault: Fault) -> None:
        number = fault.number
        if number in METADATA:
            self._answered(fault, [("", partial(self._of_metadata, fault))])
            return
        if number == FaultId.MANIFEST_LIST_UNREADABLE:
            # Whoever has no list cannot be read, as all other mends need.
            heads = [head for head in self._heads if head.problem is not None]
            self._answered(fault, [(head.branch, partial(self._list, head, fault)) for head in heads])
            return
        ways = (
            (ENTRIES, self._file),
            (LOSSES, self._loss),
            (BROKEN, self._broken),
            (ROWS, self._row),
            (PUFFIN, self._puffin),
            (UNSORTED, self._sort),
            ({FaultId.MANIFEST_UNREADABLE}, self._manifest),
        )
        way = next((act for numbers, act in ways if number in numbers), None)
        if way is None:
            self._stay.append(staying(fault, no_repair(number)))
        else:
            self._by_head(fault, way)

    def _of_metadata(self, fault: Fault) -> list[Mend]:
        return [mend_metadata(self._table, fault, self._metadata)]

    def _row(self, head: Head, fault: Fault) -> list[Mend]:
        return [self._mend(head, fault, mend_row(head, fault))]

    def _sort(self, head: Head, fault: Fault) -> list[Mend]:
        return [self._mend(head, fault, mend_order(head, fault))]

    def _puffin(self, head: Head, fault: Fault) -> list[Mend]:
        return [self._mend(head, fault, self._puffins.mend(head, fault))]

    def _list(self, head: Head, fault: Fault) -> list[Mend]:
        return self._taken(head, fault, mend_list(head, fault, self._trash, self._reader))

    def _manifest(self, head: Head, fault: Fault) -> list[Mend]:
        return self._taken(head, fault, mend_manifest(head, fault, self._trash))

    def _taken(self, head: Head, fault: Fault, found: ListMend) -> list[Mend]:
        self._returns.update({one.location: one for one in found.returns})
        if found.new is not None:
            self._lists[found.new.location] = found.new
        return [msgspec.structs.replace(self._mend(head, fault, found.action), is_put_back=True)]

    def _file(self, head: Head, fault: Fault) -> list[Mend]:
        found = mend_file(head, fault, self._asked.numbers)
        return [self._mend(head, fault, text) for _, text in found]

    def _loss(self, head: Head, fault: Fault) -> list[Mend]:
        if fault.number in (FaultId.DATA_FILE_MISSING, FaultId.DELETE_FILE_MISSING):
            found = self._trash.find(head, fault)
            if found is not None:
                self._returns[found.location] = found
                mend = self._mend(head, fault, f"the file comes back from the trash of run {found.run!r}")
                return [msgspec.structs.replace(mend, is_put_back=True)]
        why = ""
        if fault.number == FaultId.DATA_FILE_MISSING:
            try:
                return [self._mend(head, fault, self._sources.mend(head, fault))]
            except CannotMendError as error:
                why = str(error)
        try:
            lost = mend_loss(head, fault, self._asked.accepted)
        except CannotMendError as error:
            told = str(error)
            is_whole = told in ("", NOT_FOUND, why) or not why
            raise CannotMendError(
                told if is_whole else f"{told}; and it cannot come back from older files: {why}"
            ) from error
        return [self._lost(head, fault, lost)]

    def _broken(self, head: Head, fault: Fault) -> list[Mend]:
        return [self._lost(head, fault, mend_broken(head, fault, self._asked.accepted))]

    def _lost(self, head: Head, fault: Fault, lost: Lost) -> Mend:
        mend = self._mend(head, fault, lost.action)
        return msgspec.structs.replace(mend, lost_files=lost.files, lost_records_count=lost.records_count)

    def _is_in_trash(self, head: Head, fault: Fault) -> bool:
        return self._trash.find(head, fault) is not None

    def _of_heads(self, faults: Sequence[Fault], act: Callable[[Head], str]) -> None:
        """What a head has as a whole is mended there once, whichever snapshots tell of it."""
        if not faults:
            return
        before = len(self._mends)
        reasons: list[NotMended] = []
        for head in self._heads:
            here = msgspec.structs.replace(faults[0], where=f"snapshot {head.snapshot.snapshot_id}")
            try:
                _refuse_barred(head)
                action = act(head)
            except CannotMendError as error:
                if (why := str(error)) != NOT_FOUND:
                    reasons.append(staying(here, f"branch {head.branch!r}: {why}" if len(self._heads) > 1 else why))
                continue
            self._mends.append(self._mend(head, here, action))
        if len(self._mends) > before:
            self._stay += reasons
        else:
            told = reasons[0].reason if reasons else None
            self._stay += [_left(fault) if told is None else staying(fault, told) for fault in faults]

    def _by_head(self, fault: Fault, act: Callable[[Head, Fault], list[Mend]]) -> None:
        self._answered(fault, [(head.branch, partial(_tried, act, head, fault)) for head in self._heads])

    def _answered(self, fault: Fault, tries: Sequence[tuple[str, Callable[[], list[Mend]]]]) -> None:
        """Try a fault on each branch; where none can do anything it stays, and why is said."""
        reasons: dict[tuple[str, str], None] = {}
        is_done = False
        for branch, act in tries:
            try:
                found = act()
            except CannotMendError as error:
                reasons[branch, str(error)] = None
                continue
            is_done = is_done or bool(found)
            self._mends += found
        told = [(branch, why) for branch, why in reasons if why and why != NOT_FOUND]
        for branch, why in told:
            on = f"branch {branch!r}: " if len(self._heads) > 1 and branch else ""
            self._stay.append(staying(fault, f"{on}{why}"))
        if not is_done and not told:
            is_of_head = fault.snapshot_id in {head.snapshot.snapshot_id for head in self._heads}
            self._stay.append(staying(fault, NOT_FOUND) if is_of_head else _left(fault))

    def _mend(self, head: Head, fault: Fault, action: object) -> Mend:
        head.work.faults.add(fault.number)
        return Mend(
            fault_id=fault.number,
            name=CLASSES[fault.number].name,
            branch=head.branch,
            where=fault.where,
            action=str(action),
        )


def _rank(number: int) -> tuple[int, int]:
    """Totals and dangling deletes are of what is left after all else."""
    ranks: dict[int, int] = {
        **dict.fromkeys(ROWS, 0),
        FaultId.DOUBLED_MANIFEST: 1,
        FaultId.DOUBLED_FILE: 2,
        **dict.fromkeys(REACHING_NOTHING, 4),
        **dict.fromkeys(TOTALS, 5),
    }
    return ranks.get(number, 3), number


def _left(fault: Fault) -> NotMended:
    """A fault that no branch has."""
    return staying(fault, only_older(fault), is_only_older=fault.snapshot_id is not None)


def _tried(act: Callable[[Head, Fault], list[Mend]], head: Head, fault: Fault) -> list[Mend]:
    _refuse_barred(head)
    return act(head, fault)


def _refuse_barred(head: Head) -> None:
    if head.problem is not None:
        raise CannotMendError(
            f"the head of branch {head.branch!r} cannot be read, mend fault {FaultId.MANIFEST_LIST_UNREADABLE} first: "
            f"{head.problem}"
        )
    if head.barred is not None:
        raise CannotMendError(head.barred)
