"""The output columns of Iceberg's `rewrite_data_files`, and what an operator wants to know besides."""

import msgspec


class RewriteDataFilesResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did; sizes in bytes. `status` is `partial` when some groups were committed and some failed."""

    status: str = "done"
    rewritten_data_files_count: int = 0
    added_data_files_count: int = 0
    rewritten_bytes_count: int = 0
    failed_data_files_count: int = 0
    removed_delete_files_count: int = 0
    added_bytes_count: int = 0
    commits_count: int = 0
