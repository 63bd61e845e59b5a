"""Metadata files that an expiration takes along: those that fell out of the metadata log with it, and are old."""

from icekeep.catalog.filesystem import VERSION_AGE_KEPT_MS, VERSIONS_KEPT
from icekeep.catalog.metadata_files import deletes_old_metadata, file_version, left_the_log
from icekeep.spec.metadata import TableMetadata


def old_metadata_files(
    before: TableMetadata, after: TableMetadata, after_location: str, now_ms: int
) -> tuple[str, ...]:
    """Metadata files in the log of `before` and not in that of `after`.

    Younger ones than three days stay, as for orphan removal. So do the newest hundred where the number in a name is all
    that tells versions apart: a slow writer might make such a version a second time, and believe that it committed.

    Where `write.metadata.delete-after-commit.enabled` is set the commit itself deletes them.
    """
    if deletes_old_metadata(after):
        return ()
    newest = file_version(after_location)

    def may_go(location: str, timestamp_ms: int) -> bool:
        name = location.rsplit("/", 1)[-1]
        is_found_by_number = name.startswith("v") and file_version(location) > newest - VERSIONS_KEPT
        return timestamp_ms <= now_ms - VERSION_AGE_KEPT_MS and not is_found_by_number

    left = left_the_log(before, after, after_location)
    return tuple(entry.metadata_file for entry in left if may_go(entry.metadata_file, entry.timestamp_ms))
