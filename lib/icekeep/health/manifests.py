"""Manifests by what manifest lists say of them, and how they lie across one another."""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.health.files import PartitionId
from icekeep.health.metered import MeteredStorage
from icekeep.health.values import MetadataHealth
from icekeep.maintenance.check.lists import Listed
from icekeep.maintenance.manifests.candidates import expected_manifests_count
from icekeep.maintenance.manifests.survey import Overlap, overlap, sampled
from icekeep.maintenance.rewrite.options import WELL_SIZED
from icekeep.planning.entries import data_manifests, delete_manifests
from icekeep.planning.scan.plan import SizeDistribution
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import is_true

_NUMBER = re.compile(r"(?:v(\d+)|(\d+)-[^/]*)\.(?:[a-z]+\.)?metadata\.json(?:\.[a-z]+)?")
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"


def metadata_health(
    metadata: TableMetadata, location: str, listed: Listed, head: Sequence[ManifestFile], storage: MeteredStorage
) -> MetadataHealth:
    """The figures but for the overlap.

    Args:
        head: the manifests of the current snapshot.

    Raises:
        PropertyError: the size of manifests is no number.
    """
    lists = {one.manifest_list for one in metadata.snapshots if one.manifest_list is not None}
    lengths = SizeDistribution()
    lengths.add(np.array([m.manifest_length for m in head], np.int64))
    target = manifest_target_bytes(metadata)
    groups = (data_manifests(head), delete_manifests(head))
    return MetadataHealth(
        metadata_bytes=storage.size_of(location),
        metadata_log_files_count=len(metadata.metadata_log),
        lost_metadata_files_count=lost_metadata_files(metadata, location),
        manifest_lists_count=len(lists),
        manifest_lists_bytes=sum(storage.size_of(one) or 0 for one in lists),
        all_manifests_count=len(listed.manifests),
        all_manifests_bytes=sum(m.manifest_length for m in listed.manifests),
        manifests_count=len(head),
        manifests_bytes=sum(m.manifest_length for m in head),
        delete_manifests_count=len(groups[1]),
        small_manifests_count=sum(m.manifest_length < WELL_SIZED[0] * target for m in head),
        ideal_manifests_count=sum(_ideal_count(some, target) for some in groups),
        median_manifest_bytes=lengths.quantile(0.5),
        largest_manifest_bytes=lengths.greatest,
    )


def with_overlap(
    health: MetadataHealth, metadata: TableMetadata, head: Sequence[ManifestFile], partitions: Iterable[PartitionId]
) -> MetadataHealth:
    """The same with how many data manifests a filter on one of some partitions opens."""
    by_spec: dict[int, list[bytes]] = {}
    for spec_id, key in partitions:
        by_spec.setdefault(spec_id, []).append(key)
    found = [
        one
        for spec_id, keys in by_spec.items()
        if not metadata.specs_by_id[spec_id].is_unpartitioned
        for one in [_overlap_of(spec_id, keys, metadata, data_manifests(head))]
    ]
    count = sum(one.partitions_count for one in found)
    if not count:
        return health
    return msgspec.structs.replace(
        health,
        mean_overlap=round(sum(one.mean_manifests * one.partitions_count for one in found) / count, 2),
        max_overlap_count=max(one.max_manifests for one in found),
    )


def lost_metadata_files(metadata: TableMetadata, location: str) -> int:
    """How many metadata files left the log without being deleted, if nobody removed them since.

    The name of the current file has the number of metadata files that were before it. A table that was registered, or that a
    catalog without such numbers had before, has more of them than this knows of, or fewer.
    """
    number = metadata_number(location)
    if number is None or is_true(metadata.properties, _DELETE_AFTER_COMMIT, False):
        return 0
    return max(0, number - len(metadata.metadata_log))


def metadata_number(location: str) -> int | None:
    """How many metadata files of a table were before one, by its name; `None` where that has no number, or is of another file.

    >>> metadata_number("/wh/t/metadata/v1.metadata.json"), metadata_number("/wh/t/metadata/00002-a.gz.metadata.json")
    (0, 2)
    """
    match = _NUMBER.fullmatch(location.rpartition("/")[2])
    if match is None:
        return None
    return int(match[1]) - 1 if match[1] is not None else int(match[2])


def _overlap_of(spec_id: int, keys: Sequence[bytes], metadata: TableMetadata, data: Sequence[ManifestFile]) -> Overlap:
    partition = metadata.partition_type(spec_id)
    codec = PartitionCodec(partition)
    values = [codec.decode(key) for key in sampled(keys)]
    return overlap([m for m in data if m.partition_spec_id == spec_id], values, partition.fields)


def _ideal_count(manifests: Sequence[ManifestFile], target_bytes: int) -> int:
    """Manifests of one spec are never put together with those of another."""
    by_spec: dict[int, int] = {}
    for one in manifests:
        by_spec[one.partition_spec_id] = by_spec.get(one.partition_spec_id, 0) + one.manifest_length
    return sum(expected_manifests_count(size, target_bytes) for size in by_spec.values())


def masks_of(heads: Mapping[int, Sequence[ManifestFile]]) -> dict[str, int]:
    """By the path of a manifest the heads that list it, bit n for the nth."""
    masks: dict[str, int] = {}
    for number, manifests in enumerate(heads.values()):
        for manifest in manifests:
            masks[manifest.manifest_path] = masks.get(manifest.manifest_path, 0) | (1 << number)
    return masks
