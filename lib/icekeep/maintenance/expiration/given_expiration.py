"""A plan that was written before -> what of it expires, or a refusal."""

from collections.abc import Iterator

from icekeep.errors import SafetyError, UsageError, and_more
from icekeep.maintenance.exact_plans import (
    REFERENCE,
    SNAPSHOT,
    AlreadyApplied,
    GivenPlan,
    PlanLine,
    moved,
    some_of,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import Expired, RetentionPolicy, select_expired
from icekeep.spec.times import format_time


def expired_lines(metadata: TableMetadata, expired: Expired) -> Iterator[PlanLine]:
    """What leaves the metadata."""
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id in expired.snapshot_ids:
            yield PlanLine(
                do="expire",
                kind=SNAPSHOT,
                name=str(snapshot.snapshot_id),
                says={"committed_at": format_time(snapshot.timestamp_ms), "operation": snapshot.operation},
            )
    for name in sorted(expired.ref_names):
        yield PlanLine(do="remove", kind=REFERENCE, name=name, state=str(metadata.refs[name].snapshot_id))


def given_expired(given: GivenPlan, metadata: TableMetadata, policy: RetentionPolicy, now_ms: int) -> Expired:
    """The snapshots and references of a plan, all of which must be there, and expire by the policy still.

    Raises:
        SafetyError: it is not so.
        AlreadyApplied: none of them is there.
    """
    lines = [line for line in given.lines() if line.kind in (SNAPSHOT, REFERENCE)]
    ids = {int(line.name) for line in lines if line.kind == SNAPSHOT}
    refs = {line.name: int(line.state) for line in lines if line.kind == REFERENCE}
    gone = [str(one) for one in sorted(ids - metadata.snapshots_by_id.keys())] + sorted(
        refs.keys() - metadata.refs.keys()
    )
    if lines and len(gone) == len(lines):
        raise AlreadyApplied(
            f"none of the {len(ids):,} snapshots that were to expire is in the table any more: it was carried out before, or "
            "somebody else expired them"
        )
    if gone:
        raise moved(given, metadata, f"{len(gone):,} of what was to expire are gone, such as {some_of(gone)}")
    others = [name for name, snapshot_id in refs.items() if metadata.refs[name].snapshot_id != snapshot_id]
    if others:
        raise moved(given, metadata, f"reference {others[0]!r}, which was to go, is at another snapshot by now")
    if not lines:
        return Expired(frozenset(), frozenset())
    try:
        selected = select_expired(metadata, policy, now_ms)
    except (UsageError, SafetyError) as error:
        raise moved(given, metadata, error.message) from error
    kept = sorted(ids - selected.snapshot_ids)
    if kept:
        raise moved(given, metadata, _kept_text(kept, metadata), snapshot_ids=kept)
    kept_refs = sorted(refs.keys() - selected.ref_names)
    if kept_refs:
        raise moved(given, metadata, f"reference {kept_refs[0]!r}, which was to go, must stay by now")
    return Expired(frozenset(ids), frozenset(refs), selected.kept)


def _kept_text(kept: list[int], metadata: TableMetadata) -> str:
    """Why snapshots stay that were to expire, as far as a reference tells."""
    named = [
        f"snapshot {one}, which {'branch' if ref.is_branch else 'tag'} {name!r} names by now"
        for one in kept
        for name, ref in sorted(metadata.refs.items())
        if ref.snapshot_id == one
    ]
    if named:
        return f"{named[0]}{and_more(kept)} must stay"
    return f"{len(kept):,} snapshots that were to expire must stay by now, such as {some_of([*map(str, kept)])}"
