"""What came with version 3 beside columns: row ids of snapshots, and encryption keys (spec, "Row Lineage", "Encryption Keys")."""

from icekeep.maintenance.checking.metadata.findings import Findings
from icekeep.maintenance.checking.metadata.reading import Document
from icekeep.maintenance.checking.metadata_classes import LATER_FEATURE, NEXT_ROW_ID_TOO_LOW
from icekeep.spec.snapshots import Snapshot

_ROW_IDS_OVERLAP = 129
_FIRST_ROW_ID_MISSING = 130


def check_lineage(document: Document, findings: Findings) -> None:
    """Faults of row ids; before version 3 that there are any, or encryption keys."""
    if document.version < 3:
        _check_absent(document, findings)
        return
    _check_present(document, findings)
    numbered = [(snapshot, *_row_ids(snapshot)) for snapshot in document.snapshots if snapshot.first_row_id is not None]
    _check_next_row_id(document, max((end for _, _, end in numbered), default=0), findings)
    last: tuple[Snapshot, int] | None = None
    for snapshot, first, end in sorted(numbered, key=lambda one: one[1:]):
        if end == first:
            continue
        if last is not None and first < last[1]:
            other, other_end = last
            findings.add(
                _ROW_IDS_OVERLAP,
                f"its row ids begin at {first}, and those of snapshot {other.snapshot_id} go on up to {other_end - 1}",
                where=f"snapshot {snapshot.snapshot_id}",
                snapshot_id=snapshot.snapshot_id,
                facts={"others": [other.snapshot_id]},
            )
        if last is None or end > last[1]:
            last = (snapshot, end)


def _row_ids(snapshot: Snapshot) -> tuple[int, int]:
    """The first row id that a snapshot assigns, and the first behind the last."""
    first = snapshot.first_row_id or 0
    return first, first + (snapshot.added_rows or 0)


def _check_next_row_id(document: Document, least: int, findings: Findings) -> None:
    recorded = document.next_row_id
    if recorded is not None and recorded < least:
        findings.add(
            NEXT_ROW_ID_TOO_LOW,
            f"next-row-id is {recorded}, and snapshots assigned the row ids up to {least - 1}",
            facts={"recorded": recorded, "least": least},
        )


def _check_present(document: Document, findings: Findings) -> None:
    """Snapshots that were made before the upgrade to version 3 have no row ids; all that came later do."""
    numbered = [s.sequence_number for s in document.snapshots if s.first_row_id is not None]
    upgraded = min(numbered, default=None)
    for snapshot in document.snapshots:
        if snapshot.first_row_id is None:
            is_older = upgraded is None or snapshot.sequence_number < upgraded
            missing = None if is_older else "first-row-id"
        else:
            missing = "added-rows" if snapshot.added_rows is None else None
        if missing is not None:
            findings.add(
                _FIRST_ROW_ID_MISSING,
                f"it has no {missing}",
                where=f"snapshot {snapshot.snapshot_id}",
                snapshot_id=snapshot.snapshot_id,
            )


def _check_absent(document: Document, findings: Findings) -> None:
    # A zero says nothing that version 2 does not say.
    if document.next_row_id:
        findings.add(LATER_FEATURE, f"next-row-id is {document.next_row_id}; only version 3 numbers rows")
    if document.encryption_keys:
        findings.add(LATER_FEATURE, "there are encryption-keys; only version 3 has them")
    for snapshot in document.snapshots:
        for key, value in (("first-row-id", snapshot.first_row_id), ("key-id", snapshot.key_id)):
            if value is not None:
                findings.add(
                    LATER_FEATURE,
                    f"it has {key}, which only version 3 has",
                    where=f"snapshot {snapshot.snapshot_id}",
                    snapshot_id=snapshot.snapshot_id,
                )
