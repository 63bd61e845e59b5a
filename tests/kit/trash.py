"""Runs that have removed files, made step by step without the jobs: a commit, a plan on disk, and the files in the trash."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.snapshots import ExpireSnapshots
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.delete.plan_file import (
    BEFORE,
    DeletionPlan,
    plan_hash,
    plans_directory,
    read_part,
    trash_directory,
    trash_location,
    write_head,
    write_part,
)
from icekeep.maintenance.delete.reachable import CONTENT_KINDS, FileKind, GarbageFile, garbage_table
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.metadata import TableMetadata, format_metadata
from icekeep.spec.retention import RetentionPolicy
from icekeep.storage.base import Storage

ALL_BUT_HEADS = RetentionPolicy(older_than_ms=2**62, retain_last=1)
DAY_MS = 86_400_000


def files_of(metadata: TableMetadata, storage: Storage) -> dict[str, GarbageFile]:
    """Every file that the snapshots of some metadata lead to, by location."""
    reader = ManifestReader(storage)
    found = [GarbageFile(FileKind.STATISTICS, s.statistics_path, s.file_size_in_bytes) for s in metadata.statistics]
    for snapshot in metadata.snapshots:
        assert snapshot.manifest_list is not None
        found.append(GarbageFile(FileKind.MANIFEST_LIST, snapshot.manifest_list))
        for manifest in reader.manifests(snapshot):
            found.append(GarbageFile(FileKind.MANIFEST, manifest.manifest_path, manifest.manifest_length))
            for entry in reader.entries(manifest, metadata):
                if entry.is_live:
                    file = entry.data_file
                    found.append(GarbageFile(CONTENT_KINDS[file.content], file.file_path, file.file_size_in_bytes))
    return {file.location: file for file in found}


def written_plan(
    table: Table,
    files: Sequence[GarbageFile],
    *,
    run: str = "run-1",
    job: str = "expire_snapshots",
    snapshot_ids: Sequence[int] = (),
    before: TableMetadata | None = None,
    trash: bool = True,
    runtime: Runtime = SYSTEM,
    per_part: int = 3,
) -> DeletionPlan:
    """A plan on disk, in several parts, whose files are still in their places."""
    storage, metadata = table.storage, table.metadata
    directory = f"{trash_directory(metadata) if trash else plans_directory(metadata)}/{run}"
    parts = tuple(
        write_part(garbage_table(files[start : start + per_part]), f"{directory}/files-{start:05d}.jsonl", storage)
        for start in range(0, len(files), per_part)
    )
    if before is not None:
        storage.create(f"{directory}/{BEFORE}", format_metadata(before))
    plan = DeletionPlan(
        job=job,
        run=run,
        directory=directory,
        table=table.name,
        table_uuid=metadata.table_uuid,
        table_location=metadata.location,
        metadata_location=table.metadata_location,
        created_ms=runtime.now_ms(),
        not_before_ms=runtime.now_ms(),
        trash_until_ms=runtime.now_ms() + 3 * DAY_MS if trash else None,
        snapshot_ids=tuple(snapshot_ids),
        ref_names=(),
        outside_count=0,
        parts=parts,
        hash=plan_hash(job, metadata.table_uuid, (sorted(snapshot_ids),), (part.digest for part in parts)),
    )
    write_head(plan, storage)
    return plan


def moves_of(plan: DeletionPlan, storage: Storage) -> list[tuple[str, str]]:
    """Where each file of a plan belongs, and where it is in the trash."""
    places = [place for part in plan.parts for place in read_part(part, storage)["location"].to_pylist()]
    return [(place, trash_location(plan, place)) for place in places]


def in_trash(plan: DeletionPlan, storage: Storage) -> DeletionPlan:
    """The plan with all its files moved to the trash, and marked as finished."""
    for place, trash in moves_of(plan, storage):
        storage.move(place, trash)
    storage.create(f"{plan.directory}/done.json", b"{}")
    return plan


def expired(
    table: Table,
    *,
    policy: RetentionPolicy = ALL_BUT_HEADS,
    clean_expired_metadata: bool = False,
    runtime: Runtime = SYSTEM,
    sizes: Mapping[str, int] | None = None,
    trash: bool = True,
    **options: str,
) -> tuple[Table, DeletionPlan]:
    """The table after a run that expired snapshots, and the run's plan, carried out where it goes by the trash."""
    change = ExpireSnapshots(policy=policy, now_ms=runtime.now_ms(), clean_expired_metadata=clean_expired_metadata)
    after = commit(table, change, runtime=runtime).table
    gone = files_of(table.metadata, table.storage)
    for location in files_of(after.metadata, table.storage):
        gone.pop(location, None)
    files = [replace(f, size_bytes=(sizes or {}).get(f.location, f.size_bytes)) for f in gone.values()]
    ids = [i for i in table.metadata.snapshots_by_id if i not in after.metadata.snapshots_by_id]
    plan = written_plan(after, files, snapshot_ids=ids, before=table.metadata, trash=trash, runtime=runtime, **options)
    return after, in_trash(plan, table.storage) if trash else plan
