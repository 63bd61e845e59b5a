"""The totals in the summaries of snapshots, against the sums of their manifests' entries."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.checking.manifests.manifests import CheckedManifests
from icekeep.maintenance.checking.manifests.sums import SUMS
from icekeep.maintenance.checking.subject import Subject
from icekeep.spec.snapshots import Snapshot

_TOTALS: Mapping[str, tuple[str, ...]] = {
    "total-data-files": ("data_files",),
    "total-records": ("records",),
    "total-delete-files": ("delete_files",),
    "total-position-deletes": ("position_deletes",),
    "total-equality-deletes": ("equality_deletes",),
}
_BYTES: Mapping[str, tuple[str, ...]] = {"total-files-size": ("bytes", "own_bytes")}
"""Engines count of a deletion vector its file or its blob."""

_ADDED: Mapping[str, tuple[str, ...]] = {
    "added-data-files": ("added_data_files",),
    "added-records": ("added_records",),
    "added-delete-files": ("added_delete_files",),
    "added-position-deletes": ("added_position_deletes",),
    "added-equality-deletes": ("added_equality_deletes",),
}

_MAX_DIGITS = 19

_Sums = Mapping[str, int]


def check_totals(subject: Subject, checked: CheckedManifests) -> None:
    """Hold summaries against what was counted; a snapshot of which something was not read is passed over."""
    rows = [[getattr(one, name) for name in SUMS] for one in checked.counted]
    largest = max((abs(number) for row in rows for number in row), default=0)
    # What damaged manifests count may be more than 64 bits hold.
    columns = np.array(rows, np.int64 if largest * len(rows) < 1 << 62 else object)
    columns = columns.reshape(len(checked.counted), len(SUMS))
    members = checked.listed.members
    written: dict[int | None, BitMap] = {}
    for index, manifest in enumerate(checked.listed.manifests):
        written.setdefault(manifest.added_snapshot_id, BitMap()).add(index)
    wrong: dict[int, dict[str, int | None]] = {}
    for snapshot in subject.snapshots:
        if snapshot.snapshot_id not in members or snapshot.snapshot_id in checked.listed.unread:
            continue
        indices = members[snapshot.snapshot_id]
        sums = _summed(columns, indices)
        _check(subject, snapshot, sums, wrong)
        own = indices & written.get(snapshot.snapshot_id, BitMap())
        _tell(subject, snapshot, _differences(snapshot, _summed(columns, own), _ADDED), number=232)


def _check(subject: Subject, snapshot: Snapshot, sums: _Sums, wrong: dict[int, dict[str, int | None]]) -> None:
    """A total that a snapshot only carries on is told for the one that made it wrong."""
    for number, names in ((215, _TOTALS), (233, _BYTES)):
        found = _differences(snapshot, sums, names)
        wrong.setdefault(snapshot.snapshot_id, {}).update(found)
        before = {} if snapshot.parent_snapshot_id is None else wrong.get(snapshot.parent_snapshot_id, {})
        _tell(subject, snapshot, {k: v for k, v in found.items() if k not in before or before[k] != v}, number=number)


def _differences(snapshot: Snapshot, sums: _Sums, names: Mapping[str, tuple[str, ...]]) -> dict[str, int | None]:
    """By key of the summary how much it says too much, `None` where it says no number; keys that it lacks are not wrong."""
    summary = snapshot.summary or {}
    found: dict[str, int | None] = {}
    for key, ways in names.items():
        said = summary.get(key)
        if said is None:
            continue
        number = int(said) if said.isdecimal() and len(said) <= _MAX_DIGITS else None
        if number is None:
            found[key] = None
        elif number not in [sums[way] for way in ways]:
            found[key] = number - sums[ways[0]]
    return found


def _tell(subject: Subject, snapshot: Snapshot, found: Mapping[str, int | None], *, number: int) -> None:
    if not found:
        return
    summary = snapshot.summary or {}
    wrongs = [
        f"{key} {summary[key][:_MAX_DIGITS]!r} is {'no number' if by is None else f'wrong by {by}'}"
        for key, by in sorted(found.items())
    ]
    said = ", ".join(wrongs)
    hint = (
        "; the manifest list may be cut short" if number == 215 and any((by or 0) > 0 for by in found.values()) else ""
    )
    subject.tally.add(
        Fault(
            number=number,
            where=f"snapshot {snapshot.snapshot_id}",
            detail=f"{said}{hint}",
            snapshot_id=snapshot.snapshot_id,
            facts={"totals": {key: {"recorded": summary[key], "difference": by} for key, by in found.items()}},
        )
    )


def _summed(columns: NDArray[np.int64], indices: BitMap | Iterable[int]) -> _Sums:
    at = np.fromiter(indices, np.int64)
    return dict(zip(SUMS, columns[at].sum(axis=0).tolist(), strict=True))
