"""What no job reads yet, refused in one line before anything is planned or read."""

from typing import Any, Protocol

from icekeep.errors import UnsupportedError
from icekeep.spec.metadata import TableMetadata


class Row(Protocol):
    """A row of a DataFrame, or a dict."""

    def __getitem__(self, column: str, /) -> Any: ...


def refuse_encrypted(metadata: TableMetadata, job: str) -> None:
    """Refuse a table that a job could not read, before anything is planned; raises `UnsupportedError`."""
    if metadata.is_encrypted:
        raise UnsupportedError(
            f"{job} refuses the table at {metadata.location!r}: it is encrypted, which is not supported yet"
        )


def refuse_encrypted_file(file: Row) -> None:
    """Refuse a planned data file that nobody here could read; raises `UnsupportedError`."""
    if file["key_metadata"] is not None:
        raise UnsupportedError(f"data file {file['file_path']!r} is encrypted, which is not supported yet")
