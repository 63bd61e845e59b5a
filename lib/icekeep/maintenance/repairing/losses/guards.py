"""What stands in the way of mends, found among all that the check has told: where it is, less is done, or nothing."""

from collections.abc import Collection

from icekeep.commit.summary import FILE_TOTALS, live_counts
from icekeep.errors import SafetyError
from icekeep.maintenance.checking.faults import Tally
from icekeep.maintenance.checking.manifest_classes import DOUBLED_FILE, DOUBLED_MANIFEST, MANIFEST_UNREADABLE
from icekeep.maintenance.repairing.facts import manifests_of
from icekeep.maintenance.repairing.heads import Head
from icekeep.spec.manifests.structs import ManifestContent

_SEQUENCE_NUMBER = 208

GUARDS = frozenset((DOUBLED_FILE, DOUBLED_MANIFEST, _SEQUENCE_NUMBER))
"""Where these are, nothing else is mended in the same manifests; all of them have to be known."""

_MISLEADING = (MANIFEST_UNREADABLE, 204, 206, 207, 208, 210, 211, 217, 218)
"""Where these are, it is not known which data files there are, or how old, and so not which deletes reach none."""

_COUNTS = (204, 205)
_HAS_ROW_IDS = 3


def guard(head: Head, tally: Tally) -> None:
    """Note of a head what its mends have to go by."""
    head.untouchable |= head.doubled_manifests
    for fault in tally.faults(DOUBLED_FILE):
        # Of a file that is live in very many places not all are told.
        is_told = fault.facts["entries_count"] == len(fault.facts["entries"])
        if manifests := manifests_of(fault) & head.paths if is_told else head.paths:
            head.untouchable |= manifests
            head.standing.add((fault.number, fault.where))
    for fault in tally.faults(DOUBLED_MANIFEST):
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
