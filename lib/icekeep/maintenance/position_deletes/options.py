"""Options of Iceberg's `rewrite_position_delete_files`, under its own names, with its defaults; and properties of the table."""

from collections.abc import Mapping

from msgspec import field

from icekeep.maintenance.compaction.options import (
    FileSizes,
    JobOrder,
    NotNegative,
    Positive,
    RewriteDataFilesOptions,
    file_sizes,
)
from icekeep.maintenance.options import Options
from icekeep.spec.table_properties import whole_number
from icekeep.spec.units import GIB, MAX_LONG, MIB

_TARGET = "write.delete.target-file-size-bytes"
_TARGET_DEFAULT = 64 * MIB


class RewritePositionDeletesOptions(Options, frozen=True, kw_only=True):
    """What to rewrite and how; sizes in bytes. `None` means that the default depends on the table or another option.

    On tables of format version 3 sizes and `min-input-files` choose nothing: each position delete file becomes vectors.
    """

    target_file_size_bytes: Positive | None = field(name="target-file-size-bytes", default=None)
    min_file_size_bytes: NotNegative | None = field(name="min-file-size-bytes", default=None)
    max_file_size_bytes: Positive | None = field(name="max-file-size-bytes", default=None)
    min_input_files: Positive = field(name="min-input-files", default=5)
    rewrite_all: bool = field(name="rewrite-all", default=False)
    max_file_group_size_bytes: Positive = field(name="max-file-group-size-bytes", default=100 * GIB)
    max_file_group_input_files: Positive = field(name="max-file-group-input-files", default=MAX_LONG)
    rewrite_job_order: JobOrder = field(name="rewrite-job-order", default="none")
    max_concurrent_file_group_rewrites: Positive = field(name="max-concurrent-file-group-rewrites", default=5)
    partial_progress_enabled: bool = field(name="partial-progress.enabled", default=False)
    partial_progress_max_commits: Positive = field(name="partial-progress.max-commits", default=10)
    partial_progress_max_failed_commits: NotNegative | None = field(
        name="partial-progress.max-failed-commits", default=None
    )


def delete_file_sizes(options: RewritePositionDeletesOptions, properties: Mapping[str, str]) -> FileSizes:
    """The sizes that planning goes by; the target is `write.delete.target-file-size-bytes` where no option says it.

    Raises:
        OptionError: not `min < target < max`.
        PropertyError: the property is no size.
    """
    target = whole_number(properties, _TARGET, _TARGET_DEFAULT, least=1)
    given = RewriteDataFilesOptions(
        target_file_size_bytes=options.target_file_size_bytes,
        min_file_size_bytes=options.min_file_size_bytes,
        max_file_size_bytes=options.max_file_size_bytes,
    )
    return file_sizes(given, target)
