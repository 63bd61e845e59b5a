"""Snapshots and the references to them: ids, parents, sequence numbers, times, and what each must say of itself."""

from collections.abc import Iterator, Mapping

from icekeep.maintenance.checking.metadata.findings import Findings
from icekeep.maintenance.checking.metadata.reading import Document
from icekeep.maintenance.checking.metadata.schemas import report_doubled
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef
from icekeep.spec.types import MINUTE_MS

SKEW_MS = MINUTE_MS
"""Clocks of machines that commit to one table may differ by so much, for Iceberg Java."""

_LAST_SEQUENCE_NUMBER_TOO_LOW = 102
_CURRENT_SNAPSHOT_MISSING = 114
_REFERENCE_TO_MISSING = 115
_MAIN_NOT_CURRENT = 116
_REFERENCE_LIMIT_WRONG = 117
_CIRCLE = 118
_SEQUENCE_NUMBERS_NOT_RISING = 119
_NO_MANIFESTS = 120
_SCHEMA_MISSING = 131
_TIME_RUNS_BACKWARDS = 132
_OPERATION_MISSING = 133

_OPERATIONS = ("append", "replace", "overwrite", "delete")


def check_snapshots(document: Document, findings: Findings) -> None:
    """Faults of snapshots, one by one and among each other."""
    report_doubled("snapshot", [snapshot.snapshot_id for snapshot in document.snapshots], findings)
    current = document.current_snapshot_id
    is_known = current is None or current in document.snapshots_by_id
    if not is_known and "snapshots" not in document.broken:
        findings.add(_CURRENT_SNAPSHOT_MISSING, f"current-snapshot-id {current} is not among the snapshots")
    for snapshot in document.snapshots:
        _check_manifests(snapshot, document, findings)
        _check_schema(snapshot, document, findings)
        _check_operation(snapshot, document, findings)
        _check_times(snapshot, document, findings)
    if document.version > 1:
        _check_last_sequence_number(document, findings)
        _check_rising(document, findings)
    for circle in _circles(document.snapshots_by_id):
        where = f"snapshot {circle[0]}"
        findings.add(
            _CIRCLE, f"its ancestors are {', '.join(map(str, circle))} again", where=where, snapshot_id=circle[0]
        )


def check_references(document: Document, findings: Findings) -> None:
    """Faults of branches and tags."""
    for name, ref in document.refs.items():
        where = f"ref {name!r}"
        if ref.snapshot_id not in document.snapshots_by_id and "snapshots" not in document.broken:
            findings.add(
                _REFERENCE_TO_MISSING,
                f"it names snapshot {ref.snapshot_id}, which is not there",
                where=where,
                facts={"ref": name, "named": ref.snapshot_id},
            )
        for problem in _limit_problems(ref):
            findings.add(_REFERENCE_LIMIT_WRONG, problem, where=where, facts={"ref": name})
    main = document.refs.get(MAIN)
    if main is None:
        return
    if not main.is_branch:
        findings.add(_MAIN_NOT_CURRENT, "it is a tag; it must be a branch", where=f"ref {MAIN!r}")
    if main.snapshot_id != document.current_snapshot_id:
        findings.add(
            _MAIN_NOT_CURRENT,
            f"it names snapshot {main.snapshot_id}, and current-snapshot-id is {document.current_snapshot_id}",
            where=f"ref {MAIN!r}",
            facts={"recorded": document.current_snapshot_id, "found": main.snapshot_id},
        )


def _check_manifests(snapshot: Snapshot, document: Document, findings: Findings) -> None:
    if snapshot.manifest_list:
        return
    if snapshot.manifests is None:
        problem = "it names no manifest list"
    elif not _may_be_of_version_1(snapshot, document):
        problem = "it names manifests in place of a manifest list, which only version 1 has"
    else:
        return
    _add(_NO_MANIFESTS, problem, snapshot, findings)


def _check_schema(snapshot: Snapshot, document: Document, findings: Findings) -> None:
    schema_id = snapshot.schema_id
    if schema_id is None or "schemas" in document.broken:
        return
    if schema_id not in document.schema_ids:
        _add(_SCHEMA_MISSING, f"its schema-id {schema_id} is not among the schemas", snapshot, findings)


def _check_operation(snapshot: Snapshot, document: Document, findings: Findings) -> None:
    if snapshot.operation in _OPERATIONS or (snapshot.operation is None and _may_be_of_version_1(snapshot, document)):
        return
    problem = "its summary says no operation"
    if snapshot.operation is not None:
        problem = f"its operation is {snapshot.operation!r}, which the spec does not know"
    _add(_OPERATION_MISSING, problem, snapshot, findings)


def _may_be_of_version_1(snapshot: Snapshot, document: Document) -> bool:
    """Whether a snapshot may have been made before the table was upgraded to version 2."""
    return document.version == 1 or snapshot.sequence_number == 0


def _check_times(snapshot: Snapshot, document: Document, findings: Findings) -> None:
    parent = _parent(snapshot, document.snapshots_by_id)
    if parent is not None and snapshot.timestamp_ms < parent.timestamp_ms - SKEW_MS:
        behind_ms = parent.timestamp_ms - snapshot.timestamp_ms
        _add(
            _TIME_RUNS_BACKWARDS,
            f"its timestamp-ms is {behind_ms} ms before that of its parent {parent.snapshot_id}",
            snapshot,
            findings,
        )
    last_ms = document.last_updated_ms
    if last_ms is not None and snapshot.timestamp_ms > last_ms + SKEW_MS:
        ahead_ms = snapshot.timestamp_ms - last_ms
        _add(_TIME_RUNS_BACKWARDS, f"its timestamp-ms is {ahead_ms} ms after last-updated-ms", snapshot, findings)


def _check_last_sequence_number(document: Document, findings: Findings) -> None:
    highest = max((snapshot.sequence_number for snapshot in document.snapshots), default=0)
    recorded = document.last_sequence_number
    if recorded is not None and recorded < highest:
        findings.add(
            _LAST_SEQUENCE_NUMBER_TOO_LOW,
            f"last-sequence-number is {recorded}, and a snapshot has {highest}",
            facts={"recorded": recorded, "least": highest},
        )


def _check_rising(document: Document, findings: Findings) -> None:
    """Sequence numbers rise from parent to child, and none is there twice; snapshots of version 1 have all 0."""
    first: dict[int, Snapshot] = {}
    for snapshot in document.snapshots:
        other = first.setdefault(snapshot.sequence_number, snapshot)
        if snapshot.sequence_number > 0 and other.snapshot_id != snapshot.snapshot_id:
            _add(
                _SEQUENCE_NUMBERS_NOT_RISING,
                f"its sequence number {snapshot.sequence_number} is that of snapshot {other.snapshot_id} too",
                snapshot,
                findings,
            )
    for snapshot in document.snapshots:
        parent = _parent(snapshot, document.snapshots_by_id)
        if parent is not None and snapshot.sequence_number < parent.sequence_number:
            _add(
                _SEQUENCE_NUMBERS_NOT_RISING,
                f"its sequence number {snapshot.sequence_number} is below {parent.sequence_number}, that of its parent"
                f" {parent.snapshot_id}",
                snapshot,
                findings,
            )


def _parent(snapshot: Snapshot, by_id: Mapping[int, Snapshot]) -> Snapshot | None:
    parent_id = snapshot.parent_snapshot_id
    return None if parent_id is None else by_id.get(parent_id)


def _circles(by_id: Mapping[int, Snapshot]) -> Iterator[list[int]]:
    """The circles that parents make, each once, from the least of its ids on."""
    done: set[int] = set()
    for start in sorted(by_id):
        way: dict[int, int] = {}
        current: int | None = start
        while current is not None and current in by_id and current not in done and current not in way:
            way[current] = len(way)
            current = by_id[current].parent_snapshot_id
        if current in way:
            circle = [*way][way[current] :]
            least = circle.index(min(circle))
            yield [*circle[least:], *circle[:least]]
        done.update(way)


def _limit_problems(ref: SnapshotRef) -> Iterator[str]:
    limits = {
        "min-snapshots-to-keep": ref.min_snapshots_to_keep,
        "max-snapshot-age-ms": ref.max_snapshot_age_ms,
        "max-ref-age-ms": ref.max_ref_age_ms,
    }
    for key, limit in limits.items():
        if limit is not None and limit < 1:
            yield f"its {key} is {limit}; it must be above zero"
        elif limit is not None and not ref.is_branch and key != "max-ref-age-ms":
            yield f"it has {key}, which is for branches, and is a tag"


def _add(number: int, problem: str, snapshot: Snapshot, findings: Findings) -> None:
    findings.add(number, problem, where=f"snapshot {snapshot.snapshot_id}", snapshot_id=snapshot.snapshot_id)
