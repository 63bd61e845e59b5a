"""Runs of manifests -> new manifests: on the driver where entries are few, in Spark tasks where they are many."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from icekeep.catalog.base import Table
from icekeep.maintenance.manifests.candidates import ManifestCandidates, ManifestGroup, ManifestRun
from icekeep.maintenance.manifests.forecast import expected_manifests
from icekeep.maintenance.manifests.held_records import foreseen_here, rewritten_here
from icekeep.maintenance.manifests.partition_overlap import sampled
from icekeep.maintenance.manifests.shuffled_records import rewritten_in_tasks
from icekeep.maintenance.manifests.survey import Survey, survey
from icekeep.maintenance.manifests.writing import RunWriter
from icekeep.maintenance.runs.written_files import WrittenFiles
from icekeep.planning.entries import ReadBy, chosen_reading
from icekeep.planning.spark.session import Limits, SparkSource, limits_of, started
from icekeep.planning.transcode import RecordsTask
from icekeep.spec.manifests.structs import ManifestFile

_Made: TypeAlias = tuple[Sequence[ManifestFile], Sequence[bytes]]
"""Manifests, and a sample of their partitions."""


class RewrittenManifests(msgspec.Struct, frozen=True):
    """The manifests that were written for a group, and a sample of the partitions of their files."""

    group: ManifestGroup
    added: tuple[ManifestFile, ...] = ()
    partitions: tuple[bytes, ...] = ()


def rewritten(
    table: Table, chosen: ManifestCandidates, spark: SparkSource, run_id: str, written: WrittenFiles
) -> list[RewrittenManifests]:
    """Write new manifests for all runs, one run after another; `run_id` is in their names.

    Args:
        written: hears of the files of tasks.

    Raises:
        IcekeepError: a manifest cannot be read or written; all that was written is removed.
    """
    done: list[RewrittenManifests] = []
    try:
        _do(table, chosen, limits_of(spark), lambda work: work.rewritten(spark, written), done, run_id)
    except BaseException:
        discard(done, written)
        raise
    return done


def discard(done: Sequence[RewrittenManifests], written: WrittenFiles) -> None:
    """Remove manifests that this run wrote and that no snapshot lists."""
    written.discard(manifest.manifest_path for one in done for manifest in one.added)


def foreseen(table: Table, chosen: ManifestCandidates, spark: SparkSource) -> list[RewrittenManifests]:
    """What `rewritten` would write, without paths; of many entries it is what a survey lets expect.

    Raises:
        IcekeepError: a manifest cannot be read.
    """
    done: list[RewrittenManifests] = []
    _do(table, chosen, limits_of(spark), lambda work: work.foreseen(spark), done)
    return done


def _do(
    table: Table,
    chosen: ManifestCandidates,
    limits: Limits,
    do: Callable[["_Work"], _Made],
    done: list[RewrittenManifests],
    run_id: str = "",
) -> None:
    """Do something with every run; what came of it is in `done` even if the next one fails."""
    for group in chosen.groups:
        done.append(RewrittenManifests(group))
        for run in group.runs:
            added, partitions = do(_Work.of(table, group, run, chosen.target_bytes, limits, run_id))
            one = done[-1]
            done[-1] = RewrittenManifests(group, (*one.added, *added), tuple(sampled([*one.partitions, *partitions])))


class _Work(msgspec.Struct, frozen=True):
    """One run, and where it is done."""

    group: ManifestGroup
    run: ManifestRun
    by: ReadBy
    task: RecordsTask
    writer: RunWriter

    @classmethod
    def of(
        cls, table: Table, group: ManifestGroup, run: ManifestRun, target_bytes: int, limits: Limits, run_id: str = ""
    ) -> "_Work":
        reading = chosen_reading(run.manifests, limits.folded_entries_count)
        task = RecordsTask.of(run.manifests, run.target, table.storage, reading.decoder)
        writer = RunWriter.of(
            table.metadata, group.spec_id, group.content, run.target, target_bytes, table.storage, run_id
        )
        return cls(group, run, reading.by, task, writer)

    def rewritten(self, spark: SparkSource, written: WrittenFiles) -> _Made:
        if self.by is ReadBy.DRIVER:
            return rewritten_here(self.task, self.writer)
        found = self._survey(spark)
        writer = msgspec.structs.replace(self.writer, storage=written.telling(self.writer.storage))
        added = rewritten_in_tasks(self.task, writer, found, self.run.expected_count, started(spark))
        written.hear(manifest.manifest_path for manifest in added)
        return added, found.partitions

    def foreseen(self, spark: SparkSource) -> _Made:
        if self.by is ReadBy.DRIVER:
            return foreseen_here(self.task, self.writer)
        found = self._survey(spark)
        return expected_manifests(self.group, self.run, found.weights()), found.partitions

    def _survey(self, spark: SparkSource) -> Survey:
        return survey(self.run.manifests, self.group.spec_id, self.run.target, self.task.storage, spark)
