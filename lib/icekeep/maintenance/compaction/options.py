"""Options of Iceberg's `rewrite_data_files`, under its own names, with its defaults, and one of ours."""

from typing import Annotated, Literal

from msgspec import Meta, field

from icekeep.maintenance.groups.options import RewriteOptions
from icekeep.maintenance.options import NotNegative, Positive
from icekeep.spec.types import MAX_INT

StitchChoice = Literal["auto", "never", "always"]


class RewriteDataFilesOptions(RewriteOptions, frozen=True, kw_only=True):
    """What to rewrite and how; sizes in bytes. `None` means that the default depends on the table or another option.

    `compression-factor` and `shuffle-partitions-per-file` go with any order of rows, `var-length-contribution` and
    `max-output-size` with z-order; given with another strategy they are refused, as Iceberg does. Ours is `stitch`: whether
    whole row groups, or data pages of small files, are copied byte for byte.

    Attributes:
        delete_file_threshold: a data file that this many deletes reach, or more, is rewritten.
        delete_ratio_threshold: a data file is rewritten of whose rows so large a part is deleted, or a larger one.
        max_files_to_rewrite: how many files one run rewrites, at most; the others are for the next run.
        output_spec_id: the partition spec of new files; by default the current one.
        use_starting_sequence_number: new files keep the sequence number of the snapshot that the run began with, so that
            equality deletes which come meanwhile still reach their rows.
        remove_dangling_deletes: also take delete files out that reach no data file any more, in the same commit.
        compression_factor: of a sort: how many bytes come of one of the old ones, as the user expects it; 1 by default.
        shuffle_partitions_per_file: of a sort: into how many parts the rows of one new file are shuffled; 1 by default.
        var_length_contribution: of a z-order: how many bytes a text or binary column contributes; 8 by default.
        max_output_size: of a z-order: how many bytes of the interleaved key are compared; all by default.
        cache_delete_files: taken for the sake of Iceberg's calls, without effect.
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
