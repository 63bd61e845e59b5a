"""Which manifests are rewritten, and into how many. Small; this is what `--dry-run` shows."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.manifests import StorageManifestReader
from icekeep.errors import NotFoundError
from icekeep.planning.scan import refuse_delete_files, refuse_encrypted
from icekeep.spec.manifests.inspection import lacks_counts
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.snapshots import MAIN
from icekeep.tables.refs import head_to_commit_to

_THREADS = 16


class RewriteManifestsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests of one spec that become about `expected_manifests_count` others; none if there is nothing to gain.

    They are those of `snapshot_id`, the head of `branch`. `left_alone_manifests_count` are not rewritten, since they have
    fields that are not known, which rewriting would lose.
    """

    branch: str = MAIN
    snapshot_id: int | None
    spec_id: int
    target_size_bytes: int
    manifests_count: int = 0
    manifests_bytes: int = 0
    entries_count: int = 0
    expected_manifests_count: int = 0
    left_alone_manifests_count: int = 0
    manifests: tuple[ManifestFile, ...] = ()


def plan_rewrite_manifests(
    table: Table, spark: SparkSession | None = None, *, spec_id: int | None = None, branch: str = MAIN
) -> RewriteManifestsPlan:
    """Choose the data manifests of a spec that hold no live file, and the others if fewer could hold their entries.

    Property `commit.manifest.target-size-bytes` (8 MB). Only the heads of manifests are read that are to be rewritten, and
    those whole that a list of version 1 gives no counts of.

    Raises:
        NotFoundError: the table has no such spec or branch.
        UsageError: the branch is a tag.
        UnsupportedError: the table has delete files or is encrypted.
    """
    metadata = table.metadata
    refuse_encrypted(metadata, "rewrite_manifests")
    spec_id = metadata.default_spec_id if spec_id is None else spec_id
    if spec_id not in metadata.specs_by_id:
        specs = ", ".join(map(str, sorted(metadata.specs_by_id)))
        raise NotFoundError(f"table {table.name!r} has no partition spec {spec_id}; it has {specs}", spec_id=spec_id)
    snapshot = head_to_commit_to(metadata, branch)
    reader = StorageManifestReader(table.storage)
    listed = [] if snapshot is None else reader.manifests(snapshot)
    listed = [reader.completed(m, metadata) if lacks_counts(m) else m for m in listed]
    refuse_delete_files(metadata, [m for m in listed if m.may_have_live_files], "rewrite_manifests")
    target_bytes = manifest_target_bytes(metadata)
    of_spec = [m for m in listed if m.partition_spec_id == spec_id and m.content is ManifestContent.DATA]
    live, left_alone = _worth_it([m for m in of_spec if m.may_have_live_files], target_bytes), 0
    if live:
        known = _without_unknown_fields(live, reader)
        live, left_alone = _worth_it(known, target_bytes), len(live) - len(known)
    chosen = live + [m for m in of_spec if not m.may_have_live_files]
    return RewriteManifestsPlan(
        branch=branch,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        spec_id=spec_id,
        target_size_bytes=target_bytes,
        manifests_count=len(chosen),
        manifests_bytes=sum(m.manifest_length for m in chosen),
        entries_count=sum(m.live_files_count or 0 for m in live),
        expected_manifests_count=_expected_count(live, target_bytes),
        left_alone_manifests_count=left_alone,
        manifests=tuple(chosen),
    )


def _worth_it(manifests: list[ManifestFile], target_bytes: int) -> list[ManifestFile]:
    """The manifests, or none of them where fewer could not hold their entries."""
    return [] if len(manifests) <= max(1, _expected_count(manifests, target_bytes)) else manifests


def _expected_count(manifests: Sequence[ManifestFile], target_bytes: int) -> int:
    return -(-sum(m.manifest_length for m in manifests) // target_bytes)


def _without_unknown_fields(manifests: list[ManifestFile], reader: StorageManifestReader) -> list[ManifestFile]:
    with ThreadPoolExecutor(_THREADS) as pool:
        headers = pool.map(reader.header, manifests)
        return [m for m, header in zip(manifests, headers, strict=True) if not header.unknown_field_ids]
