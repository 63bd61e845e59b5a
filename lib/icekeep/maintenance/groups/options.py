"""Options that Iceberg's `rewrite_data_files` and `rewrite_position_delete_files` have in common, with their defaults."""

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from msgspec import field

from icekeep.maintenance.options import NotNegative, Options, Positive
from icekeep.spec.types import GIB, MAX_LONG

T = TypeVar("T")

JobOrder = Literal["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"]


class RewriteOptions(Options, frozen=True, kw_only=True):
    """Sizes in bytes; `None` means that the default depends on the table or another option.

    Attributes:
        target_file_size_bytes: how large new files are to be; by default as the table's properties say.
        min_file_size_bytes: smaller files are rewritten; by default 0.75 of the target.
        max_file_size_bytes: larger files are rewritten; by default 1.8 times the target.
        min_input_files: of how many badly sized files a group is worth a rewrite; fewer are where they hold more than the target.
        rewrite_all: rewrite every file, also those that planning would leave alone.
        max_file_group_size_bytes: how much one group may hold.
        max_file_group_input_files: how many files one group may hold.
        rewrite_job_order: which groups are rewritten first, by their bytes or by their files.
        max_concurrent_file_group_rewrites: how many groups are rewritten at a time, each by a Spark job of its own; without it
            all groups are tasks of one Spark job.
        partial_progress_enabled: commit groups as they are done, in several commits, and keep what has landed where others fail.
        partial_progress_max_commits: into how many commits partial progress is divided, at most.
        partial_progress_max_failed_commits: how many of these may fail; more are an error or, where one has landed, a warning.
            By default as many as there may be commits.
    """

    target_file_size_bytes: Positive | None = field(name="target-file-size-bytes", default=None)
    min_file_size_bytes: NotNegative | None = field(name="min-file-size-bytes", default=None)
    max_file_size_bytes: Positive | None = field(name="max-file-size-bytes", default=None)
    min_input_files: Positive = field(name="min-input-files", default=5)
    rewrite_all: bool = field(name="rewrite-all", default=False)
    max_file_group_size_bytes: Positive = field(name="max-file-group-size-bytes", default=100 * GIB)
    max_file_group_input_files: Positive = field(name="max-file-group-input-files", default=MAX_LONG)
    rewrite_job_order: JobOrder = field(name="rewrite-job-order", default="none")
    max_concurrent_file_group_rewrites: Positive | None = field(name="max-concurrent-file-group-rewrites", default=None)
    partial_progress_enabled: bool = field(name="partial-progress.enabled", default=False)
    partial_progress_max_commits: Positive = field(name="partial-progress.max-commits", default=10)
    partial_progress_max_failed_commits: NotNegative | None = field(
        name="partial-progress.max-failed-commits", default=None
    )


def in_job_order(
    groups: Iterable[T], order: JobOrder, bytes_of: Callable[[T], int], files_count_of: Callable[[T], int]
) -> list[T]:
    """Groups in the order of the option `rewrite-job-order`; equal ones stay in the order of planning."""
    what, _, direction = order.partition("-")
    if what == "none":
        return list(groups)
    return sorted(groups, key=bytes_of if what == "bytes" else files_count_of, reverse=direction == "desc")
