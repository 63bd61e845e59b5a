"""The options of Iceberg's `rewrite_data_files`, its result, and an estimate of what a rewrite takes.

Options have Iceberg's names and defaults; `stitch` is ours. An estimate is for choosing the hour and the size of the cluster: it
is made from bytes, and from rates that `make bench-compaction` measures; the result says what it was instead.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from icekeep.maintenance.jobs import JobResult
from icekeep.maintenance.options import NotNegative, Positive
from icekeep.maintenance.rewrite.options import RewriteOptions
from icekeep.spec.types import MAX_INT, MIB

StitchChoice = Literal["auto", "never", "always"]


class RewriteDataFilesOptions(RewriteOptions, frozen=True, kw_only=True):
    """What to rewrite and how; sizes in bytes. `None` means that the default depends on the table or another option.

    `compression-factor` and `shuffle-partitions-per-file` go with any order of rows, `var-length-contribution` and
    `max-output-size` with z-order; given with another strategy they are refused, as Iceberg does. Ours is `stitch`: whether
    whole row groups, or data pages of small files, are copied byte for byte.

    Attributes:
        delete_file_threshold: a data file that this many deletes reach, or more, is rewritten.
        delete_ratio_threshold: a data file is rewritten of whose rows this part is deleted, or a larger one.
        max_files_to_rewrite: how many files one run rewrites, at most; the others are for the next run.
        output_spec_id: the partition spec of new files; by default the current one.
        use_starting_sequence_number: new files keep the sequence number of the snapshot that the run began with, so that
            equality deletes which come meanwhile still reach their rows.
        remove_dangling_deletes: also remove delete files that no longer reach any data file, in the same commit.
        compression_factor: of a sort: how many bytes come of one of the old ones, as the user expects it; 1 by default.
        shuffle_partitions_per_file: of a sort: into how many parts the rows of one new file are shuffled; 1 by default.
        var_length_contribution: of a z-order: how many bytes a text or binary column contributes; 8 by default.
        max_output_size: of a z-order: how many bytes of the interleaved key are compared; all by default.
        cache_delete_files: accepted for compatibility with Iceberg's calls, without effect.
        stitch: `auto` copies row groups and pages where that is allowed and worth it, `never` re-encodes all rows, `always`
            refuses files that it cannot copy.
    """

    delete_file_threshold: Positive = field(name="delete-file-threshold", default=MAX_INT)
    delete_ratio_threshold: Annotated[float, Meta(gt=0, le=1)] = field(name="delete-ratio-threshold", default=0.3)
    max_files_to_rewrite: Positive | None = field(name="max-files-to-rewrite", default=None)
    output_spec_id: NotNegative | None = field(name="output-spec-id", default=None)
    use_starting_sequence_number: bool = field(name="use-starting-sequence-number", default=True)
    remove_dangling_deletes: bool = field(name="remove-dangling-deletes", default=False)
    compression_factor: Annotated[float, Meta(gt=0, le=1_000_000_000)] | None = field(
        name="compression-factor", default=None
    )
    shuffle_partitions_per_file: Positive | None = field(name="shuffle-partitions-per-file", default=None)
    var_length_contribution: Positive | None = field(name="var-length-contribution", default=None)
    max_output_size: Positive | None = field(name="max-output-size", default=None)
    cache_delete_files: bool = field(name="cache-delete-files", default=False)
    stitch: StitchChoice = field(name="stitch", default="auto")


class RewriteMethod(StrEnum):
    """How the rows of a group reach their new files."""

    STITCH = "stitch"
    """Whole row groups are copied byte for byte."""

    REENCODE = "re-encode"
    """Rows are read and written, in the order that they have; columns of small Parquet files may be moved page by page."""

    SORT = "sort"
    """Rows are read, ordered within tasks, and written."""

    SHUFFLE = "shuffle"
    """Rows are read, sent to the task of their range by Spark, ordered there, and written."""


RATES_BYTES_A_SECOND = {
    RewriteMethod.STITCH: 1_000 * MIB,
    RewriteMethod.REENCODE: 45 * MIB,
    RewriteMethod.SORT: 21 * MIB,
    RewriteMethod.SHUFFLE: 11 * MIB,
}
"""Input of one core, compressed Parquet of mixed columns."""

_TASK_MS = 60
_GROUP_MS = 120


class Work(msgspec.Struct, frozen=True):
    """Some input, and how many tasks rewrite it in one way."""

    method: RewriteMethod
    bytes: int
    tasks_count: int


class CompactionEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan will take, milliseconds and bytes.

    Attributes:
        elapsed_ms: on the slots that the Spark application has now, if it has them to itself.
        cpu_ms: of all tasks together, what one pays for.
        read_bytes, written_bytes: from and to storage; how much rows shrink when they are rewritten is not known.
        requests_count: of storage, at least: one for each file that is opened or made.
    """

    elapsed_ms: int = 0
    cpu_ms: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    requests_count: int = 0


def estimate(
    works: Iterable[Work],
    *,
    slots: int,
    groups_count: int,
    files_count: int,
    new_files_count: int,
    delete_bytes: int,
    pace: float = 1.0,
) -> CompactionEstimate:
    """Add up what pieces of work take.

    Args:
        slots: how many tasks run at once.
        files_count: that are read, delete files among them.
        delete_bytes: of the delete files that are applied.
        pace: how much more processor time than the rates say earlier runs took.
    """
    pieces = [*works]
    by_rates_ms = sum(
        work.bytes * 1000 // RATES_BYTES_A_SECOND[work.method] + work.tasks_count * _TASK_MS for work in pieces
    )
    cpu_ms = round(by_rates_ms * pace)
    tasks = sum(work.tasks_count for work in pieces)
    total = sum(work.bytes for work in pieces)
    return CompactionEstimate(
        elapsed_ms=cpu_ms // max(1, min(slots, tasks)) + groups_count * _GROUP_MS,
        cpu_ms=cpu_ms,
        read_bytes=total + delete_bytes,
        written_bytes=total,
        requests_count=files_count + new_files_count,
    )


class RewriteDataFilesResult(JobResult, frozen=True, kw_only=True):
    """What a run did; sizes in bytes.

    Attributes:
        status: `partial` when some groups were committed and some were not.
        failed_data_files_count: of the groups that no commit replaced.
        removed_delete_files_count: that the commits took out of the table: those of one replaced file alone, those that
            became too old, and with `remove-dangling-deletes` all that reach no file any more.
        deleted_records_count: rows that deletes had marked, and that are in no file now.
        stitched_data_files_count: how many of the added files were put together from whole row groups.
        carried_delete_files_count: that were added for positions which others deleted while their files were rewritten.
        planned_anew_files_count: of the groups that could not be committed as they were rewritten, and were planned again.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        overlap_depth_before: how many files a point of the first sort key lies in, on average over the partitions that were
            looked at; `None` for binpack.
        estimated: what the plan had said; `elapsed_ms` and `cpu_ms` are what it took, the latter of all tasks together.
        peak_task_bytes: the most memory that the Python process of a task had.
    """

    work = (
        "rewritten_data_files_count",
        "removed_delete_files_count",
    )

    status: str = "done"
    rewritten_data_files_count: int = 0
    added_data_files_count: int = 0
    rewritten_bytes_count: int = 0
    failed_data_files_count: int = 0
    removed_delete_files_count: int = 0
    added_bytes_count: int = 0
    commits_count: int = 0
    failed_commits_count: int = 0
    deleted_records_count: int = 0
    stitched_data_files_count: int = 0
    carried_delete_files_count: int = 0
    planned_anew_files_count: int = 0
    swept_files_count: int = 0
    overlap_depth_before: float | None = None
    estimated: CompactionEstimate = CompactionEstimate()
    elapsed_ms: int = 0
    run_id: str | None = None
    cpu_ms: int = 0
    peak_task_bytes: int = 0

    def followed_by(self, later: "RewriteDataFilesResult") -> "RewriteDataFilesResult":
        """Add the result of the plan that retried what this one deferred."""
        summed = {
            name: getattr(self, name) + getattr(later, name)
            for name in self.__struct_fields__
            if name.endswith(("_count", "cpu_ms"))
        }
        return msgspec.structs.replace(
            self,
            **summed,
            status="partial" if "partial" in (self.status, later.status) else "done",
            peak_task_bytes=max(self.peak_task_bytes, later.peak_task_bytes),
        )
