"""Options that Iceberg's `rewrite_data_files` and `rewrite_position_delete_files` have in common, and the sizes by them.

Which files are too small or too large, and how many come of a group, is Iceberg's rule (`SizeBasedFileRewritePlanner`). Pure.
"""

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

import msgspec
from msgspec import field

from icekeep.errors import OptionError
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


WELL_SIZED = (0.75, 1.8)
"""From the first to the second of these, of the target, a file or a manifest is neither too small nor to be split."""

_SPLIT_OVERHEAD_BYTES = 5 * 1024


class FileSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that planning goes by, in bytes.

    A file below `min_bytes` or above `max_bytes` is a candidate. `write_max_bytes` is where a writer begins a new file: a
    little above the target, so that the last rows of a group do not make a tiny file.
    """

    target_bytes: int
    min_bytes: int
    max_bytes: int

    @property
    def write_max_bytes(self) -> int:
        return int(self.target_bytes + 0.5 * (self.max_bytes - self.target_bytes))


def file_sizes(options: RewriteOptions, table_target_bytes: int) -> FileSizes:
    """Work out the sizes: 0.75 and 1.8 times the target where the options do not say."""
    target = options.target_file_size_bytes or table_target_bytes
    least = int(target * WELL_SIZED[0]) if options.min_file_size_bytes is None else options.min_file_size_bytes
    most = int(target * WELL_SIZED[1]) if options.max_file_size_bytes is None else options.max_file_size_bytes
    if least >= target:
        raise OptionError("min-file-size-bytes", given=least, expected=f"less than target-file-size-bytes ({target})")
    if most <= target:
        raise OptionError("max-file-size-bytes", given=most, expected=f"more than target-file-size-bytes ({target})")
    return FileSizes(target_bytes=target, min_bytes=least, max_bytes=most)


def expected_output_files(input_bytes: int, sizes: FileSizes, compression_factor: float = 1.0) -> int:
    """How many files a group becomes: a remainder too small for a file of its own is spread over the others.

    Args:
        compression_factor: new bytes for one of the old ones.
    """
    input_bytes = int(input_bytes * compression_factor) if compression_factor != 1.0 else input_bytes
    if input_bytes < sizes.target_bytes:
        return 1
    whole, rest = divmod(input_bytes, sizes.target_bytes)
    if rest == 0:
        return whole
    if rest > sizes.min_bytes:
        return whole + 1
    return whole if input_bytes / whole < _spread_bytes(sizes) else whole + 1


def is_worth_rewriting(files_count: int, input_bytes: int, min_input_files: int, sizes: FileSizes) -> bool:
    """Iceberg's rule for files of a bad size: there are enough of them, or they are larger than a file may be."""
    is_enough = files_count >= min_input_files or input_bytes > sizes.target_bytes
    return (files_count > 1 and is_enough) or input_bytes > sizes.max_bytes


def comes_out_otherwise(files_count: int, expected_count: int, *, has_large: bool, is_moved: bool) -> bool:
    """Whether files move to another spec, one is too large, or fewer come out: else each run would only do the same again."""
    return is_moved or has_large or expected_count < files_count


def are_merged(files_count: int, input_bytes: int, min_input_files: int, sizes: FileSizes) -> bool:
    """Whether files, none of which is too large, are put together: there are enough of them, and fewer come of them."""
    is_enough = files_count >= min_input_files or input_bytes > sizes.target_bytes
    return files_count > 1 and is_enough and expected_output_files(input_bytes, sizes) < files_count


def least_output_bytes(files_count: int, sizes: FileSizes) -> float:
    """How small one of the new files of a group may be, so that neither all of them nor some would become fewer.

    A file of `min_bytes` is no candidate again. Smaller ones are, but `expected_output_files` of them are as many.
    """
    return min(sizes.min_bytes, _spread_bytes(sizes) * (files_count - 1) / files_count)


def _spread_bytes(sizes: FileSizes) -> float:
    """Below this average size, files take in a remainder too small for a file of its own."""
    return min(1.1 * sizes.target_bytes, sizes.write_max_bytes)


def input_split_bytes(input_bytes: int, sizes: FileSizes) -> int:
    """How many bytes of input one task takes, so that each task makes about one file."""
    size = input_bytes // expected_output_files(input_bytes, sizes) + _SPLIT_OVERHEAD_BYTES
    return min(max(size, sizes.target_bytes), sizes.write_max_bytes)
