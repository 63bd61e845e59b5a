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

_Sums = Mapping[str, int]


def check_totals(subject: Subject, checked: CheckedManifests) -> None:
    """Hold summaries against what was counted; a snapshot of which something was not read is passed over."""
    columns = np.array([[getattr(one, name) for name in SUMS] for one in checked.counted], np.int64)
    columns = columns.reshape(len(checked.counted), len(SUMS))
    members = checked.listed.members
    written: dict[int | None, BitMap] = {}
    for index, manifest in enumerate(checked.listed.manifests):
        written.setdefault(manifest.added_snapshot_id, BitMap()).add(index)
    wrong: dict[int, dict[str, int]] = {}
    for snapshot in subject.snapshots:
        if snapshot.snapshot_id not in members or snapshot.snapshot_id in checked.unread:
            continue
        indices = members[snapshot.snapshot_id]
        sums = _summed(columns, indices)
        _check(subject, snapshot, sums, wrong)
        own = indices & written.get(snapshot.snapshot_id, BitMap())
        _tell(subject, snapshot, _differences(snapshot, _summed(columns, own), _ADDED), sums=None, number=232)


def _check(subject: Subject, snapshot: Snapshot, sums: _Sums, wrong: dict[int, dict[str, int]]) -> None:
    """A total that a snapshot only carries on is told for the one that made it wrong."""
    for number, names in ((215, _TOTALS), (233, _BYTES)):
        found = _differences(snapshot, sums, names)
        wrong.setdefault(snapshot.snapshot_id, {}).update(found)
        before = {} if snapshot.parent_snapshot_id is None else wrong.get(snapshot.parent_snapshot_id, {})
        _tell(subject, snapshot, {k: v for k, v in found.items() if before.get(k) != v}, sums=sums, number=number)


def _differences(snapshot: Snapshot, sums: _Sums, names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """By key of the summary how much it says too much; keys that it lacks are not wrong."""
    summary, found = snapshot.summary or {}, {}
    for key, ways in names.items():
        said = summary.get(key)
        if said is None:
            continue
        number = int(said) if said.isdecimal() else None
        if number is None or number not in [sums[way] for way in ways]:
            found[key] = (0 if number is None else number) - sums[ways[0]]
    return found


def _tell(subject: Subject, snapshot: Snapshot, found: Mapping[str, int], *, sums: _Sums | None, number: int) -> None:
    if not found:
        return
    summary = snapshot.summary or {}
    said = ", ".join(f"{key} {summary[key]!r} is wrong by {by}" for key, by in sorted(found.items()))
    hint = "; the manifest list may be cut short" if sums is not None and number == 215 else ""
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
