"""What a conversion of equality deletes did."""

from icekeep.maintenance.job_results import JobResult


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
