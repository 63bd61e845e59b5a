"""Options of Iceberg's `rewrite_position_delete_files`, under its own names, with its defaults; and properties of the table.

What a conversion of equality deletes did.

The output columns of Iceberg's `rewrite_position_delete_files`, and what an operator wants to know besides.

Options of the conversion, under the names that Iceberg's Spark writer has for the same.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import field

from icekeep.formats.deletes.rewrite import Granularity, delete_granularity
from icekeep.maintenance.jobs import JobResult
from icekeep.maintenance.options import Options
from icekeep.maintenance.rewrite.options import FileSizes, RewriteOptions, file_sizes
from icekeep.spec.properties import whole_number
from icekeep.spec.types import MIB

_TARGET = "write.delete.target-file-size-bytes"
_TARGET_DEFAULT = 64 * MIB


class RewritePositionDeletesOptions(RewriteOptions, frozen=True, kw_only=True):
    """On tables of format version 3 sizes and `min-input-files` choose nothing: each position delete file becomes vectors."""


def delete_file_sizes(options: RewritePositionDeletesOptions, properties: Mapping[str, str]) -> FileSizes:
    """The sizes that planning goes by; the target is `write.delete.target-file-size-bytes` where no option says it.

    Raises:
        OptionError: not `min < target < max`.
        PropertyError: the property is no size.
    """
    target = whole_number(properties, _TARGET, _TARGET_DEFAULT, least=1)
    return file_sizes(options, target)


class ConvertEqualityDeletesResult(JobResult, frozen=True, kw_only=True):
    """What a run did; sizes in bytes.

    Attributes:
        converted_equality_delete_files_count: that went out of the table and had data files to reach.
        removed_dangling_equality_delete_files_count: that went and reached none.
        left_equality_delete_files_count: that stayed, as `where` left them out, or a data file that they reach.
        converted_bytes_count: of all that went.
        removed_position_delete_files_count: vectors, and position delete files of one data file, that new vectors took in.
        added_delete_files_count: position delete files, or vectors.
        deleted_positions_count: rows that equality deletes removed, and the new deletes do.
        read_data_files_count: that were looked through, in the last attempt.
        attempts_count: how often it was planned; more than once where others changed what the deletes reach.
        peak_task_bytes: the most memory that the Python process of a task had.
    """

    work = ("converted_equality_delete_files_count", "removed_dangling_equality_delete_files_count")

    status: str = "done"
    converted_equality_delete_files_count: int = 0
    removed_dangling_equality_delete_files_count: int = 0
    left_equality_delete_files_count: int = 0
    removed_position_delete_files_count: int = 0
    added_delete_files_count: int = 0
    converted_bytes_count: int = 0
    added_bytes_count: int = 0
    deleted_positions_count: int = 0
    read_data_files_count: int = 0
    read_records_count: int = 0
    attempts_count: int = 1
    elapsed_ms: int = 0
    run_id: str | None = None
    peak_task_bytes: int = 0


class RewritePositionDeletesResult(JobResult, frozen=True, kw_only=True):
    """What a run did; sizes in bytes, of a deletion vector those of its blob.

    Attributes:
        status: `partial` when some groups were committed and some were not.
        rewritten_delete_files_count: whose rows are in the added ones now.
        added_delete_files_count: delete files, or vectors, each counted.
        failed_delete_files_count: of the groups that no commit replaced.
        removed_dangling_delete_files_count: that reached no data file and were removed whole, including deletion vectors; they
            are not among the rewritten ones.
        removed_dangling_bytes_count: the size of these.
        removed_dangling_positions_count: rows of rewritten files that were dropped, since their data file is not live, or
            too new for the delete file.
        replaced_positions_count: rows of rewritten files that were dropped since a deletion vector stands for them.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        conversion: what became of equality deletes; `None` where it was not asked for.
    """

    work = (
        "rewritten_delete_files_count",
        "removed_dangling_delete_files_count",
        "conversion",
    )

    status: str = "done"
    rewritten_delete_files_count: int = 0
    added_delete_files_count: int = 0
    rewritten_bytes_count: int = 0
    added_bytes_count: int = 0
    failed_delete_files_count: int = 0
    removed_dangling_delete_files_count: int = 0
    removed_dangling_bytes_count: int = 0
    removed_dangling_positions_count: int = 0
    replaced_positions_count: int = 0
    swept_files_count: int = 0
    commits_count: int = 0
    failed_commits_count: int = 0
    elapsed_ms: int = 0
    run_id: str | None = None
    conversion: ConvertEqualityDeletesResult | None = None

    def followed_by(self, later: "RewritePositionDeletesResult") -> "RewritePositionDeletesResult":
        """The counts of both together."""
        names = [name for name in self.__struct_fields__ if name.endswith("_count")]
        return msgspec.structs.replace(self, **{name: getattr(self, name) + getattr(later, name) for name in names})


class ConvertEqualityDeletesOptions(Options, frozen=True, kw_only=True):
    """How positions are written; `None`: as the table's property `write.delete.granularity` says, `file` by default.

    Deletion vectors are always for one data file.
    """

    delete_granularity: Literal["file", "partition"] | None = field(name="delete-granularity", default=None)


def chosen_granularity(options: ConvertEqualityDeletesOptions, properties: Mapping[str, str]) -> Granularity:
    """What position delete files are for, as Iceberg's Spark writer decides it; raises as `delete_granularity`."""
    if options.delete_granularity is not None:
        return options.delete_granularity
    return delete_granularity(properties)
