"""Runs of manifests -> new manifests, on the driver where entries are few, in Spark tasks where they are many; and their gain.

What a rewrite gains is how many manifests a filter opens before and after.
"""

from collections.abc import Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.maintenance.manifests.candidates import ManifestCandidates, ManifestGroup, ManifestRun, expected_manifests
from icekeep.maintenance.manifests.ranges import overlap
from icekeep.maintenance.manifests.records import RunWriter, rewritten_here, rewritten_in_tasks
from icekeep.maintenance.manifests.rules import RewriteRules, manifests_opened
from icekeep.maintenance.manifests.survey import sampled, survey
from icekeep.maintenance.rewrite.run import WrittenFiles, undoing
from icekeep.planning.entries import ReadBy, chosen_reading
from icekeep.planning.spark.session import Limits, SparkSource, limits_of, started
from icekeep.planning.transcode import RecordsTask
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.manifests.write import PartitionCodec


class RewrittenManifests(msgspec.Struct, frozen=True):
    """The manifests that were written for a group, and a sample of the partitions of their files."""

    group: ManifestGroup
    added: tuple[ManifestFile, ...] = ()
    partitions: tuple[bytes, ...] = ()

    def followed_by(self, added: Sequence[ManifestFile], partitions: Sequence[bytes]) -> "RewrittenManifests":
        """With the manifests of another run of the group."""
        sample = tuple(sampled([*self.partitions, *partitions]))
        return RewrittenManifests(self.group, (*self.added, *added), sample)

    @property
    def entries_count(self) -> int:
        """The live entries of the manifests that are rewritten, as their list says."""
        return sum(m.live_files_count or 0 for m in self.group.rewritten)

    @property
    def listed(self) -> list[ManifestFile]:
        """The manifests of the group with live files once it is rewritten."""
        gone = {manifest.manifest_path for manifest in self.group.rewritten}
        return [*self.added, *(m for m in self.group.listed if m.manifest_path not in gone)]


def rewritten(
    table: Table,
    chosen: ManifestCandidates,
    spark: SparkSource,
    run_id: str = "",
    written: WrittenFiles | None = None,
) -> list[RewrittenManifests]:
    """Write new manifests for all runs, one run after another; `run_id` is in their names.

    Args:
        written: takes in the files of tasks. Without it nothing is written, and the manifests have no paths; of many entries
            they are what a survey lets expect.
    """
    done: list[RewrittenManifests] = []
    with undoing(lambda: discard(done, written)):
        for group in chosen.groups:
            done.append(RewrittenManifests(group))
            for run in group.runs:
                writing = ManifestsWriting.of(table, group, run, chosen.target_bytes, limits_of(spark), run_id)
                done[-1] = done[-1].followed_by(*writing.done(spark, written))
    return done


def discard(done: Sequence[RewrittenManifests], written: WrittenFiles | None) -> None:
    """Remove manifests that this run wrote and that no snapshot lists."""
    if written is not None:
        written.discard(manifest.manifest_path for one in done for manifest in one.added)


class ManifestsWriting(msgspec.Struct, frozen=True):
    """How one run is read and written; its answers are manifests and a sample of their partitions."""

    group: ManifestGroup
    run: ManifestRun
    by: ReadBy
    task: RecordsTask
    writer: RunWriter

    @classmethod
    def of(
        cls, table: Table, group: ManifestGroup, run: ManifestRun, target_bytes: int, limits: Limits, run_id: str = ""
    ) -> "ManifestsWriting":
        reading = chosen_reading(run.manifests, limits.folded_entries_count)
        task = RecordsTask.of(run.manifests, run.target, table.storage, reading.decoder)
        writer = RunWriter.of(
            table.metadata, group.spec_id, group.content, run.target, target_bytes, table.storage, run_id
        )
        return cls(group, run, reading.by, task, writer)

    def done(self, spark: SparkSource, written: WrittenFiles | None) -> tuple[Sequence[ManifestFile], Sequence[bytes]]:
        """Carry it out, or foresee what would come of it."""
        if self.by is ReadBy.DRIVER:
            return rewritten_here(self.task, self.writer, foresees=written is None)
        found = survey(self.run.manifests, self.group.spec_id, self.run.target, self.task.storage, spark)
        if written is None:
            return expected_manifests(self.group, self.run, found.weights()), found.partitions
        writer = msgspec.structs.replace(self.writer, storage=written.naming(self.writer.storage))
        added = rewritten_in_tasks(self.task, writer, found, self.run.expected_count, started(spark))
        written.report(manifest.manifest_path for manifest in added)
        return added, found.partitions


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
    partition = table.metadata.partition_type(group.spec_id)
    partitions = [*map(PartitionCodec(partition).decode, done.partitions)]
    before, after = (overlap(some, partitions, partition.fields) for some in (group.listed, done.listed))
    return GroupGain(
        spec_id=group.spec_id,
        content=group.content.name.lower(),
        manifests_count=len(group.rewritten) + len(group.empty),
        added_manifests_count=len(done.added),
        rewritten_bytes_count=sum(m.manifest_length for m in (*group.rewritten, *group.empty)),
        added_bytes_count=sum(m.manifest_length for m in done.added),
        entries_count=done.entries_count,
        mean_opened_before_count=round(before.mean_manifests, 2),
        mean_opened_after_count=round(after.mean_manifests, 2),
        max_opened_before_count=before.max_manifests,
        max_opened_after_count=after.max_manifests,
        mean_opened_before_bytes=before.mean_bytes,
        mean_opened_after_bytes=after.mean_bytes,
    )


def filter_gains(
    table: Table, rules: RewriteRules, listed: Sequence[ManifestFile], done: Sequence[RewrittenManifests], now_ms: int
) -> tuple[FilterGain, ...]:
    """What the filters of the workload gain."""
    gone = {m.manifest_path for one in done for m in one.group.rewritten}
    after = [m for one in done for m in one.added] + [m for m in listed if m.manifest_path not in gone]
    counts = (manifests_opened(rules.workload, some, table.metadata, now_ms) for some in (listed, after))
    return tuple(
        FilterGain(filter=text, opened_before_count=before, opened_after_count=later)
        for text, before, later in zip(rules.workload, *counts, strict=True)
    )
