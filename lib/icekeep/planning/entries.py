"""Entries of manifests as DataFrames: the one seam that chooses how manifests are read."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from icekeep.catalog.base import Table
from icekeep.planning.columns import ENTRIES
from icekeep.planning.decode import DecodeTask, EntryFilter, decode
from icekeep.planning.tasks import dataframe_from_tasks, dealt, parallelism
from icekeep.spec.manifests.structs import ManifestFile

_TASK_BYTES = 32 << 20


def entries(table: Table, spark: SparkSession, manifests: Sequence[ManifestFile], wanted: EntryFilter) -> DataFrame:
    """The wanted entries of some manifests, with the columns of `columns.ENTRIES`.

    Manifests are dealt to tasks by their lengths, which the manifest list knows; storage is not asked.
    """
    total_bytes = sum(m.manifest_length for m in manifests)
    hands = max(parallelism(spark), total_bytes // _TASK_BYTES)
    piles = dealt(manifests, lambda m: m.manifest_length, min(hands, max(1, len(manifests))))
    tasks = [DecodeTask(tuple(pile), wanted, table.storage) for pile in piles]
    return dataframe_from_tasks(spark, tasks, decode, ENTRIES)
