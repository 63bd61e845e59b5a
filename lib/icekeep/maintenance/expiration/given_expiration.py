"""A plan that was written before -> what of it expires, or a refusal."""

from collections.abc import Callable, Iterator, Mapping

from icekeep.errors import SafetyError, UsageError, and_more
from icekeep.maintenance.deciding import definition
from icekeep.maintenance.exact_plans import (
    REFERENCE,
    SCHEMA,
    SNAPSHOT,
    SPEC,
    AlreadyApplied,
    GivenPlan,
    PlanLine,
    moved,
    some_of,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import spec_to_json
from icekeep.spec.retention import Expired
from icekeep.spec.schema import schema_to_json
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
    for kind, number in [
        *((SPEC, i) for i in sorted(expired.spec_ids)),
        *((SCHEMA, i) for i in sorted(expired.schema_ids)),
    ]:
        yield PlanLine(do="remove", kind=kind, name=str(number), state=_definitions(metadata)[kind][number])


def given_expired(given: GivenPlan, metadata: TableMetadata, select: Callable[[], Expired]) -> Expired:
    """What leaves the metadata by a plan, all of which must be there, and may still go.

    Args:
        select: says what may go now.

    Raises:
        SafetyError: it is not so.
        AlreadyApplied: none of it is there.
    """
    lines = [line for line in given.lines() if line.kind in (SNAPSHOT, REFERENCE, SCHEMA, SPEC)]
    ids = {int(line.name) for line in lines if line.kind == SNAPSHOT}
    refs = {line.name: int(line.state) for line in lines if line.kind == REFERENCE}
    defined = {kind: {int(one.name): one.state for one in lines if one.kind == kind} for kind in (SPEC, SCHEMA)}
    now = _definitions(metadata)
    gone = [str(one) for one in sorted(ids - metadata.snapshots_by_id.keys())]
    gone += sorted(refs.keys() - metadata.refs.keys())
    gone += [f"{kind} {number}" for kind, some in defined.items() for number in sorted(some.keys() - now[kind].keys())]
    if lines and len(gone) == len(lines):
        raise AlreadyApplied(
            "nothing of what was to expire is in the table any more: it was carried out before, or somebody else expired it"
        )
    if gone:
        raise moved(given, metadata, f"{len(gone):,} of what was to expire are gone, such as {some_of(gone)}")
    others = [f"reference {name!r}" for name, i in refs.items() if metadata.refs[name].snapshot_id != i]
    if others:
        raise moved(given, metadata, f"{others[0]}, which was to go, is now at another snapshot")
    others = [f"{kind} {i}" for kind, some in defined.items() for i, state in some.items() if now[kind][i] != state]
    if others:
        raise moved(given, metadata, f"{others[0]}, which was to go, has another definition now")
    if not lines:
        return Expired(frozenset(), frozenset())
    try:
        selected = select()
    except (UsageError, SafetyError) as error:
        raise moved(given, metadata, error.message) from error
    kept = sorted(ids - selected.snapshot_ids)
    if kept:
        raise moved(given, metadata, _kept_text(kept, metadata), snapshot_ids=kept)
    kept_refs = sorted(refs.keys() - selected.ref_names)
    if kept_refs:
        raise moved(given, metadata, f"reference {kept_refs[0]!r}, which was to go, must stay now")
    schema_ids, spec_ids = frozenset(defined[SCHEMA]), frozenset(defined[SPEC])
    used = [f"{SPEC} {one}" for one in sorted(spec_ids - selected.spec_ids)]
    used += [f"{SCHEMA} {one}" for one in sorted(schema_ids - selected.schema_ids)]
    if used:
        raise moved(given, metadata, f"{used[0]}, which was to go, is in use now")
    return Expired(frozenset(ids), frozenset(refs), selected.kept, schema_ids, spec_ids)


def _definitions(metadata: TableMetadata) -> Mapping[str, Mapping[int, str]]:
    """What each partition spec and schema is, in a few characters: an id may be given to another one."""
    return {
        SPEC: {one.spec_id: definition(one.spec_id, spec_to_json(one)) for one in metadata.partition_specs},
        SCHEMA: {one.schema_id: definition(one.schema_id, schema_to_json(one)) for one in metadata.schemas},
    }


def _kept_text(kept: list[int], metadata: TableMetadata) -> str:
    """Why snapshots stay that were to expire, as far as a reference tells."""
    named = [
        f"snapshot {one}, which {'branch' if ref.is_branch else 'tag'} {name!r} names now"
        for one in kept
        for name, ref in sorted(metadata.refs.items())
        if ref.snapshot_id == one
    ]
    if named:
        return f"{named[0]}{and_more(kept)} must stay"
    return f"{len(kept):,} snapshots that were to expire must stay now, such as {some_of([*map(str, kept)])}"
