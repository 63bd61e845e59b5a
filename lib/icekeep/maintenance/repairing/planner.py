"""Faults that were found -> what is done about each, measured again on the heads of the branches."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import UsageError
from icekeep.events import Listener
from icekeep.maintenance.checking.classes import CLASSES
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.maintenance.checking.file_classes import DATA_FILE_MISSING, DELETE_FILE_MISSING
from icekeep.maintenance.checking.job import examined
from icekeep.maintenance.checking.manifest_classes import (
    DOUBLED_FILE,
    DOUBLED_MANIFEST,
    LIST_UNREADABLE,
    MANIFEST_UNREADABLE,
    REACHING_NOTHING,
)
from icekeep.maintenance.repairing.delete_files.puffin_mends import PUFFIN, Puffins
from icekeep.maintenance.repairing.delete_files.sorting import UNSORTED, mend_order
from icekeep.maintenance.repairing.entries.entry_mends import (
    ENTRIES,
    ROWS,
    TOTALS,
    can_count_anew,
    count_anew,
    drop_dangling,
    mend_file,
    mend_row,
)
from icekeep.maintenance.repairing.facts import manifests_of, paths_of
from icekeep.maintenance.repairing.heads import Head, heads_of
from icekeep.maintenance.repairing.lists.list_mends import ListMend, mend_list, mend_manifest
from icekeep.maintenance.repairing.losses.broken_mends import BROKEN, mend_broken
from icekeep.maintenance.repairing.losses.guards import GUARDS, guard, refuse_unchecked, refuse_wrong_row_ids
from icekeep.maintenance.repairing.losses.loss_mends import LOSSES, Lost, mend_loss
from icekeep.maintenance.repairing.metadata_files.metadata_mends import (
    METADATA,
    MetadataWork,
    mend_metadata,
    why_no_snapshots,
)
from icekeep.maintenance.repairing.older_files.source_mends import Sources
from icekeep.maintenance.repairing.plan import (
    MAX_MENDS,
    Asked,
    Mend,
    NewList,
    NotMended,
    Planned,
    RepairPlan,
    TrashedFile,
    hash_of,
    lost_records,
    parts_of,
    staying,
)
from icekeep.maintenance.repairing.reasons import NEEDS_EARLIER, NOT_FOUND, CannotMendError, no_repair, only_older
from icekeep.maintenance.repairing.trash import Trash
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.session import SparkSource

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
    | {LIST_UNREADABLE, MANIFEST_UNREADABLE}
)
"""The kinds of faults for which there is a repair."""


def planned(table: Table, asked: Asked, spark: SparkSource, listener: Listener) -> Planned:
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
    def __init__(self, table: Table, asked: Asked, tally: Tally, reader: ManifestReader) -> None:
        self._table, self._asked, self._tally, self._reader = table, asked, tally, reader
        self._heads = heads_of(table, reader)
        for head in self._heads:
            head.barred = why_no_snapshots(table, asked.numbers)
        self._metadata = MetadataWork()
        self._trash, self._returns = Trash(table), dict[str, TrashedFile]()
        self._sources = Sources(table, self._reader, tally.faults(DATA_FILE_MISSING), self._is_in_trash)
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
        if number == LIST_UNREADABLE:
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
            ({MANIFEST_UNREADABLE}, self._manifest),
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
        if fault.number in (DATA_FILE_MISSING, DELETE_FILE_MISSING):
            found = self._trash.find(head, fault)
            if found is not None:
                self._returns[found.location] = found
                mend = self._mend(head, fault, f"the file comes back from the trash of run {found.run!r}")
                return [msgspec.structs.replace(mend, is_put_back=True)]
        why = ""
        if fault.number == DATA_FILE_MISSING:
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
    ranks = {
        **dict.fromkeys(ROWS, 0),
        DOUBLED_MANIFEST: 1,
        DOUBLED_FILE: 2,
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
            f"the head of branch {head.branch!r} cannot be read, mend fault {LIST_UNREADABLE} first: {head.problem}"
        )
    if head.barred is not None:
        raise CannotMendError(head.barred)
