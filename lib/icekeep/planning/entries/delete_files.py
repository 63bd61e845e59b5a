"""Rows of delete files as values."""

from collections.abc import Mapping
from typing import Any

from icekeep.spec.manifests.structs import DataFile, FileContent


def delete_file(row: Mapping[str, Any], partition: tuple[Any, ...]) -> DataFile:
    """The delete file of a row of `entry_schema.REACHING_DELETES`, as far as applying it asks for.

    Args:
        row: its fields; those that may be null may be missing.
        partition: what the bytes in the row stand for.
    """
    ids, key = row.get("equality_ids"), row.get("key_metadata")
    return DataFile(
        content=FileContent(row["content"]),
        file_path=row["file_path"],
        file_format=row["file_format"],
        spec_id=row["spec_id"],
        partition=partition,
        record_count=row["record_count"],
        file_size_in_bytes=row["file_size_in_bytes"],
        equality_ids=None if ids is None else tuple(ids),
        referenced_data_file=row.get("referenced_data_file"),
        content_offset=row.get("content_offset"),
        content_size_in_bytes=row.get("content_size_in_bytes"),
        key_metadata=None if key is None else bytes(key),
    )
