"""Options of Iceberg's `rewrite_data_files`, under its own names, with its defaults, and one of ours."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from icekeep.errors import OptionError
from icekeep.maintenance.options import Options
from icekeep.spec.units import GIB, MAX_INT, MAX_LONG

Positive = Annotated[int, Meta(gt=0)]
NotNegative = Annotated[int, Meta(ge=0)]
JobOrder = Literal["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"]
StitchChoice = Literal["auto", "never", "always"]


class RewriteDataFilesOptions(Options, frozen=True, kw_only=True):
    """What to rewrite and how; sizes in bytes. `None` means that the default depends on the table or another option.

    `compression-factor` and `shuffle-partitions-per-file` go with any order of rows, `var-length-contribution` and
    `max-output-size` with z-order; given with another strategy they are refused, as Iceberg does. Ours is `stitch`: whether
    whole row groups, or data pages of small files, are copied byte for byte.
    """

    target_file_size_bytes: Positive | None = field(name="target-file-size-bytes", default=None)
    min_file_size_bytes: NotNegative | None = field(name="min-file-size-bytes", default=None)
    max_file_size_bytes: Positive | None = field(name="max-file-size-bytes", default=None)
    min_input_files: Positive = field(name="min-input-files", default=5)
    rewrite_all: bool = field(name="rewrite-all", default=False)
    max_file_group_size_bytes: Positive = field(name="max-file-group-size-bytes", default=100 * GIB)
    max_file_group_input_files: Positive = field(name="max-file-group-input-files", default=MAX_LONG)
    delete_file_threshold: NotNegative = field(name="delete-file-threshold", default=MAX_INT)
    delete_ratio_threshold: Annotated[float, Meta(gt=0, le=1)] = field(name="delete-ratio-threshold", default=0.3)
    max_files_to_rewrite: Positive | None = field(name="max-files-to-rewrite", default=None)
    rewrite_job_order: JobOrder = field(name="rewrite-job-order", default="none")
    output_spec_id: NotNegative | None = field(name="output-spec-id", default=None)
    max_concurrent_file_group_rewrites: Positive = field(name="max-concurrent-file-group-rewrites", default=5)
    partial_progress_enabled: bool = field(name="partial-progress.enabled", default=False)
    partial_progress_max_commits: Positive = field(name="partial-progress.max-commits", default=10)
    partial_progress_max_failed_commits: NotNegative | None = field(
        name="partial-progress.max-failed-commits", default=None
    )
    use_starting_sequence_number: bool = field(name="use-starting-sequence-number", default=True)
    remove_dangling_deletes: bool = field(name="remove-dangling-deletes", default=False)
    compression_factor: Annotated[float, Meta(gt=0, le=1_000_000_000)] | None = field(
        name="compression-factor", default=None
    )
    shuffle_partitions_per_file: Positive | None = field(name="shuffle-partitions-per-file", default=None)
    var_length_contribution: Positive | None = field(name="var-length-contribution", default=None)
    max_output_size: Positive | None = field(name="max-output-size", default=None)
    stitch: StitchChoice = field(name="stitch", default="auto")


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


def file_sizes(options: RewriteDataFilesOptions, table_target_bytes: int) -> FileSizes:
    """Work out the sizes: 0.75 and 1.8 times the target where the options do not say.

    Raises:
        OptionError: not `min < target < max`.
    """
    target = options.target_file_size_bytes or table_target_bytes
    least = int(target * 0.75) if options.min_file_size_bytes is None else options.min_file_size_bytes
    most = int(target * 1.8) if options.max_file_size_bytes is None else options.max_file_size_bytes
    if least >= target:
        raise OptionError("min-file-size-bytes", given=least, expected=f"less than target-file-size-bytes ({target})")
    if most <= target:
        raise OptionError("max-file-size-bytes", given=most, expected=f"more than target-file-size-bytes ({target})")
    return FileSizes(target_bytes=target, min_bytes=least, max_bytes=most)
