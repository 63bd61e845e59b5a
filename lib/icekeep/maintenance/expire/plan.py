"""What an expiration would take out of the metadata, and which files nothing would lead to any more; nothing is changed.

The same as it is shown, as it is saved in lines, and as it is compared with lines that were saved before.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.filesystem import VERSION_AGE_KEPT_MS, VERSIONS_KEPT
from icekeep.catalog.metadata_files import deletes_old_metadata, file_version, left_the_log
from icekeep.commit.changes.snapshots import removals
from icekeep.errors import OptionError, SafetyError, UsageError, and_more
from icekeep.maintenance.delete.garbage import Garbage, garbage_of
from icekeep.maintenance.delete.plan_file import ClassifiedGarbage, PlanDraft
from icekeep.maintenance.delete.reachable import (
    FilesOfKind,
    ReachableLists,
    read_expired,
    read_reached,
    statistics_files,
)
from icekeep.maintenance.delete.run import DeletionRun
from icekeep.maintenance.expire.holdings import RefHoldings
from icekeep.maintenance.plans import REFERENCE, SCHEMA, SNAPSHOT, SPEC, PlanLine, SavedPlan
from icekeep.maintenance.preconditions import AlreadyApplied, definition, first_of, moved
from icekeep.rendered import Rendered
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import spec_to_json
from icekeep.spec.readers import KeptForReader, ReaderSeen
from icekeep.spec.retention import Expired, KeptForWriter
from icekeep.spec.schema import schema_to_json
from icekeep.spec.times import format_time
from icekeep.spec.updates import apply_updates, log_previous


class CleanupLevel(StrEnum):
    """Which files of expired snapshots go, as Java's `CleanupLevel`: none, all but data and delete files, or all."""

    NONE = "none"
    METADATA = "metadata"
    ALL = "all"


def cleanup_level(text: str) -> CleanupLevel:
    """The level of a name, in whatever case; raises `OptionError` where there is no such level."""
    name = text.strip().lower()
    if name not in [*CleanupLevel]:
        raise OptionError("clean", given=text, expected="none, metadata or all")
    return CleanupLevel(name)


class ExpiredSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that would go; `timestamp_ms` is epoch milliseconds."""

    snapshot_id: int
    timestamp_ms: int
    operation: str | None


class ExpireSnapshotsPlan(Rendered, frozen=True, kw_only=True):
    """What one run would remove from the metadata, and which files nothing would lead to any more.

    Attributes:
        deleted_files_count: files that would be deleted, or go to the trash; 0 where they wait for a grace.
        deleted_bytes_count: their size, as far as sizes are known; manifest lists are not counted.
        left_files_count: files that a later run deletes, after the grace.
        kept_outside_files_count: files that would go, were they not outside the table's places.
        files_by_kind: all that goes, in this run or after the grace.
        files: the locations of the first thousand.
        refs: what each reference keeps alive after it; empty where that is not known.
        kept_for_writers: snapshots that stay only because a writer's progress is in them or before them.
        kept_for_readers: snapshots that stay only because a reader has not read all after them.
        readers: that are known, by properties, tags and checkpoints, and how far each has come.
        unreadable_files: files of expired snapshots that cannot be read; what only they lead to stays.
        hash: what `--approve` takes for exactly this.
        finished_files_count: files of unfinished plans of earlier runs, which this run would delete as well. `hash` covers
            nothing that earlier runs left, and a run with `approve` leaves it alone.
        emptied_trash_files_count: files in the trash whose days there are over, which would be deleted for good.
        kept_again_files_count: files that plans of earlier runs were to delete, and that are in use again or kept by another
            plan.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        unlisted_reason: why the catalog does not know where other tables are; empty if it does.
    """

    expired_snapshots_count: int
    retained_snapshots_count: int
    removed_schemas_count: int
    removed_specs_count: int
    deleted_files_count: int
    deleted_bytes_count: int
    is_in_trash: bool
    left_files_count: int
    kept_outside_files_count: int
    untotalled_snapshots_count: int
    expired_ref_names: tuple[str, ...]
    snapshots: tuple[ExpiredSnapshot, ...]
    files_by_kind: tuple[FilesOfKind, ...]
    refs: tuple[RefHoldings, ...]
    kept_for_writers: tuple[KeptForWriter, ...]
    kept_for_readers: tuple[KeptForReader, ...]
    readers: tuple[ReaderSeen, ...]
    unreadable_files: tuple[str, ...]
    files: tuple[str, ...]
    hash: str
    finished_files_count: int = 0
    emptied_trash_files_count: int = 0
    kept_again_files_count: int = 0
    swept_files_count: int = 0
    unlisted_reason: str = ""
    unreadable_tables: tuple[str, ...] = ()


REST_IS_ORPHANED = "no later expiration finds it, but `icekeep remove_orphan_files` does"
"""What to do about files to which only unreadable files of expired snapshots lead."""


def garbage_between(
    before: TableMetadata, run: DeletionRun, clean: CleanupLevel, after: TableMetadata | None = None
) -> tuple[Garbage, ReachableLists]:
    """What the snapshots of `before` lead to that are gone, and nothing that is there after; and what was read to prove it.

    Args:
        run: on the table, the newest that is known.
        clean: what it leaves is no garbage of this run.
        after: what the table's metadata will be, where it has not come to that yet.

    Raises:
        SafetyError: not everything that is retained can be read.
    """
    table, storage = run.table, run.table.storage
    metadata = table.metadata if after is None else after
    retained = read_reached(
        metadata,
        table.metadata_location,
        storage,
        run.spark,
        trust_manifest_list=run.request.trust_manifest_list,
        roots=run.locations.roots,
    )
    expired = read_expired(
        before,
        [snapshot for snapshot in before.snapshots if snapshot.snapshot_id not in metadata.snapshots_by_id],
        storage,
        run.spark,
        statistics=statistics_files(before),
        metadata_files=old_metadata_files(before, metadata, table.metadata_location, run.now_ms),
        retained=retained.seen,
    )
    garbage = garbage_of(expired, retained, run.spark)
    if clean is not CleanupLevel.ALL:
        garbage = msgspec.structs.replace(garbage, content=None)
    if clean is CleanupLevel.NONE:
        garbage = msgspec.structs.replace(garbage, named=garbage.named.slice(0, 0), unreadable=())
    return garbage, retained.seen


def after_expiration(table: Table, expired: Expired, now_ms: int) -> TableMetadata:
    """The metadata that would follow if `expired` left the table as it is."""
    metadata = table.metadata
    after = apply_updates(metadata, removals(expired), now_ms=now_ms)
    return log_previous(after, table.metadata_location, metadata.last_updated_ms)


def expiration_draft(draft: PlanDraft, expired: Expired, run: str = "") -> PlanDraft:
    """What a plan says beside its files, of what expires."""
    return msgspec.structs.replace(
        draft,
        run=run,
        snapshot_ids=tuple(sorted(expired.snapshot_ids)),
        ref_names=tuple(sorted(expired.ref_names)),
        schema_ids=tuple(sorted(expired.schema_ids)),
        spec_ids=tuple(sorted(expired.spec_ids)),
        keeps_before=bool(expired.snapshot_ids),
    )


def expiration_plan(
    metadata: TableMetadata,
    expired: Expired,
    found: ClassifiedGarbage,
    draft: PlanDraft,
    plan_hash: str,
    *,
    untotalled_count: int,
    refs: tuple[RefHoldings, ...],
) -> ExpireSnapshotsPlan:
    """What is removed, for people and machines."""
    files_count = sum(f.files_count for f in found.files)
    goes_now = not draft.grace_ms
    return ExpireSnapshotsPlan(
        expired_snapshots_count=len(expired.snapshot_ids),
        retained_snapshots_count=len(metadata.snapshots) - len(expired.snapshot_ids),
        removed_schemas_count=len(expired.schema_ids),
        removed_specs_count=len(expired.spec_ids),
        deleted_files_count=files_count if goes_now else 0,
        deleted_bytes_count=sum(f.bytes for f in found.files) if goes_now else 0,
        is_in_trash=bool(draft.trash_ms and files_count and goes_now),
        left_files_count=0 if goes_now else files_count,
        kept_outside_files_count=found.outside_count,
        untotalled_snapshots_count=untotalled_count,
        expired_ref_names=tuple(sorted(expired.ref_names)),
        snapshots=tuple(
            ExpiredSnapshot(snapshot_id=s.snapshot_id, timestamp_ms=s.timestamp_ms, operation=s.operation)
            for s in metadata.snapshots
            if s.snapshot_id in expired.snapshot_ids
        ),
        files_by_kind=found.files,
        refs=refs,
        kept_for_writers=expired.kept,
        kept_for_readers=expired.kept_for_readers,
        readers=expired.readers,
        unreadable_files=found.unreadable,
        files=found.sample,
        hash=plan_hash,
    )


def old_metadata_files(
    before: TableMetadata, after: TableMetadata, after_location: str, now_ms: int
) -> tuple[str, ...]:
    """Metadata files in the log of `before` and not in that of `after`.

    Younger ones than three days stay, as for orphan removal. So do the newest hundred where the number in a name is all
    that tells versions apart: a slow writer might make such a version a second time, and believe that it committed.

    Where `write.metadata.delete-after-commit.enabled` is set the commit itself deletes them.
    """
    if deletes_old_metadata(after):
        return ()
    newest = file_version(after_location)

    def may_go(location: str, timestamp_ms: int) -> bool:
        name = location.rsplit("/", 1)[-1]
        is_found_by_number = name.startswith("v") and file_version(location) > newest - VERSIONS_KEPT
        return timestamp_ms <= now_ms - VERSION_AGE_KEPT_MS and not is_found_by_number

    left = left_the_log(before, after, after_location)
    return tuple(entry.metadata_file for entry in left if may_go(entry.metadata_file, entry.timestamp_ms))


def expired_lines(metadata: TableMetadata, expired: Expired) -> Iterator[PlanLine]:
    """The lines of what leaves the metadata."""
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


def expired_as_saved(saved: SavedPlan, metadata: TableMetadata, select: Callable[[], Expired]) -> Expired:
    """What leaves the metadata by a saved plan, all of which must be there, and may still go.

    Args:
        select: says what may go now.

    Raises:
        SafetyError: it is not so.
        AlreadyApplied: none of it is there.
    """
    lines = [line for line in saved.lines() if line.kind in (SNAPSHOT, REFERENCE, SCHEMA, SPEC)]
    if not lines:
        return Expired(frozenset(), frozenset())
    ids = {int(line.name) for line in lines if line.kind == SNAPSHOT}
    refs = {line.name: int(line.state) for line in lines if line.kind == REFERENCE}
    defined = {kind: {int(one.name): one.state for one in lines if one.kind == kind} for kind in (SPEC, SCHEMA)}
    now = _definitions(metadata)
    gone = [str(one) for one in sorted(ids - metadata.snapshots_by_id.keys())]
    gone += sorted(refs.keys() - metadata.refs.keys())
    gone += [f"{kind} {number}" for kind, some in defined.items() for number in sorted(some.keys() - now[kind].keys())]
    if len(gone) == len(lines):
        raise AlreadyApplied(
            "nothing of what was to expire is in the table any more: it was carried out before, or somebody else expired it"
        )
    if gone:
        raise moved(saved, metadata, f"{len(gone):,} of what was to expire are gone, such as {first_of(gone)}")
    others = [f"reference {name!r}" for name, i in refs.items() if metadata.refs[name].snapshot_id != i]
    if others:
        raise moved(saved, metadata, f"{others[0]}, which was to go, is now at another snapshot")
    others = [f"{kind} {i}" for kind, some in defined.items() for i, state in some.items() if now[kind][i] != state]
    if others:
        raise moved(saved, metadata, f"{others[0]}, which was to go, has another definition now")
    try:
        selected = select()
    except (UsageError, SafetyError) as error:
        raise moved(saved, metadata, error.message) from error
    kept = sorted(ids - selected.snapshot_ids)
    if kept:
        raise moved(saved, metadata, _kept_text(kept, metadata), snapshot_ids=kept)
    kept_refs = sorted(refs.keys() - selected.ref_names)
    if kept_refs:
        raise moved(saved, metadata, f"reference {kept_refs[0]!r}, which was to go, must stay now")
    schema_ids, spec_ids = frozenset(defined[SCHEMA]), frozenset(defined[SPEC])
    used = [f"{SPEC} {one}" for one in sorted(spec_ids - selected.spec_ids)]
    used += [f"{SCHEMA} {one}" for one in sorted(schema_ids - selected.schema_ids)]
    if used:
        raise moved(saved, metadata, f"{used[0]}, which was to go, is in use now")
    return msgspec.structs.replace(
        selected, snapshot_ids=frozenset(ids), ref_names=frozenset(refs), schema_ids=schema_ids, spec_ids=spec_ids
    )


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
    return f"{len(kept):,} snapshots that were to expire must stay now, such as {first_of([*map(str, kept)])}"
