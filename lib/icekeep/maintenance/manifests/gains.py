"""What a rewrite changes for readers: how many manifests a filter opens before and after, and how long that takes."""

from collections.abc import Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.maintenance.manifests.execute import RewrittenManifests
from icekeep.maintenance.manifests.partition_overlap import overlap
from icekeep.maintenance.manifests.planning_time import planning_time_ms
from icekeep.maintenance.manifests.rules import RewriteRules
from icekeep.maintenance.manifests.workload import manifests_opened
from icekeep.planning.spark.session import SparkSource
from icekeep.runtime import Runtime
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.manifests.write import PartitionCodec


class GroupGain(msgspec.Struct, frozen=True, kw_only=True):
    """One partition spec's manifests of data or of delete files; sizes in bytes.

    Attributes:
        manifests_count, rewritten_bytes_count: of the manifests that are rewritten.
        added_manifests_count, added_bytes_count: of those that come of them.
        mean_opened_before_count, mean_opened_after_count: how many manifests, of all of the spec, a filter on one partition
            opens, in the mean; `max_opened_*` is the most, and `mean_opened_*_bytes` their bytes in the mean. A thousand
            partitions are looked at, at most.
    """

    spec_id: int
    content: str
    manifests_count: int
    added_manifests_count: int
    rewritten_bytes_count: int
    added_bytes_count: int
    entries_count: int
    mean_opened_before_count: float
    mean_opened_after_count: float
    max_opened_before_count: int
    max_opened_after_count: int
    mean_opened_before_bytes: int
    mean_opened_after_bytes: int


class FilterGain(msgspec.Struct, frozen=True, kw_only=True):
    """How many data manifests a filter of the workload opens."""

    filter: str
    opened_before_count: int
    opened_after_count: int


def group_gain(table: Table, done: RewrittenManifests) -> GroupGain:
    """What the rewrite of a group gains."""
    group = done.group
    fields = table.metadata.partition_type(group.spec_id).fields
    codec = PartitionCodec(table.metadata.partition_type(group.spec_id))
    partitions = [codec.decode(key) for key in done.partitions]
    before, after = (overlap(some, partitions, fields) for some in (group.listed, listed_after(done)))
    return GroupGain(
        spec_id=group.spec_id,
        content=group.content.name.lower(),
        manifests_count=len(group.rewritten) + len(group.empty),
        added_manifests_count=len(done.added),
        rewritten_bytes_count=sum(m.manifest_length for m in (*group.rewritten, *group.empty)),
        added_bytes_count=sum(m.manifest_length for m in done.added),
        entries_count=entries_count(done),
        mean_opened_before_count=round(before.mean_manifests, 2),
        mean_opened_after_count=round(after.mean_manifests, 2),
        max_opened_before_count=before.max_manifests,
        max_opened_after_count=after.max_manifests,
        mean_opened_before_bytes=before.mean_bytes,
        mean_opened_after_bytes=after.mean_bytes,
    )


def entries_count(done: RewrittenManifests) -> int:
    """The live entries of the manifests that are rewritten, as their list says."""
    return sum(m.live_files_count or 0 for m in done.group.rewritten)


def listed_after(done: RewrittenManifests) -> list[ManifestFile]:
    """The manifests of a group with live files once it is rewritten."""
    gone = {manifest.manifest_path for manifest in done.group.rewritten}
    return [*done.added, *(m for m in done.group.listed if m.manifest_path not in gone)]


def filter_gains(
    table: Table, rules: RewriteRules, listed: Sequence[ManifestFile], done: Sequence[RewrittenManifests], now_ms: int
) -> tuple[FilterGain, ...]:
    """What the filters of the workload gain.

    Raises:
        ExpressionError, NotFoundError: a filter does not fit the table's schema.
    """
    gone = {m.manifest_path for one in done for m in one.group.rewritten}
    after = [m for one in done for m in one.added] + [m for m in listed if m.manifest_path not in gone]
    counts = (manifests_opened(rules.workload, some, table.metadata, now_ms) for some in (listed, after))
    return tuple(
        FilterGain(filter=text, opened_before_count=before, opened_after_count=later)
        for text, before, later in zip(rules.workload, *counts, strict=True)
    )


def measured_ms(
    table: Table, done: RewrittenManifests, manifests: Sequence[ManifestFile], spark: SparkSource, runtime: Runtime
) -> int | None:
    """How long planning of a filter on one partition of a group takes with some manifests; `None` where nothing is known.

    It is the partition in the middle of the sample, the same one whichever the manifests.
    """
    if not done.partitions:
        return None
    spec_id = done.group.spec_id
    partition = table.metadata.partition_type(spec_id)
    values = PartitionCodec(partition).decode(sorted(done.partitions)[len(done.partitions) // 2])
    return planning_time_ms(manifests, spec_id, partition, values, table.storage, spark, runtime)


def largest(done: Sequence[RewrittenManifests]) -> RewrittenManifests | None:
    """The group of which most bytes are rewritten."""
    rewritten = [one for one in done if one.added]
    return max(rewritten, key=lambda one: sum(m.manifest_length for m in one.group.rewritten), default=None)
