"""Snapshots, references and logs of table metadata (spec, "Snapshots", "Snapshot References", Appendix C)."""

from collections.abc import Mapping
from typing import Any, Literal

from icekeep.spec.views import View

MAIN = "main"


class Snapshot(View, frozen=True):
    """The state of a table at some time: all the files that one manifest list leads to.

    `manifests` (v1 only) lists manifest locations in place of a manifest list. `timestamp_ms` is epoch milliseconds.
    """

    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    sequence_number: int = 0
    manifest_list: str | None = None
    manifests: tuple[str, ...] | None = None
    summary: Mapping[str, str] | None = None
    schema_id: int | None = None
    first_row_id: int | None = None
    added_rows: int | None = None
    key_id: str | None = None

    @property
    def operation(self) -> str | None:
        """`append`, `replace`, `overwrite` or `delete`; `None` where the summary is missing (v1)."""
        return (self.summary or {}).get("operation")


class SnapshotRef(View, frozen=True):
    """A branch or a tag with its own retention (spec, "Snapshot Retention Policy"); `None` means the table's default."""

    snapshot_id: int
    type: Literal["branch", "tag"]
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None

    @property
    def is_branch(self) -> bool:
        return self.type == "branch"


class SnapshotLogEntry(View, frozen=True):
    """From `timestamp_ms` on, `snapshot_id` was the current snapshot."""

    timestamp_ms: int
    snapshot_id: int


class MetadataLogEntry(View, frozen=True):
    """A metadata file that was current until a later one replaced it."""

    timestamp_ms: int
    metadata_file: str


class StatisticsFile(View, frozen=True):
    """A Puffin file with statistics of one snapshot (spec, "Table Statistics"); blob metadata is kept as it is."""

    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int
    file_footer_size_in_bytes: int
    key_metadata: str | None = None
    blob_metadata: list[Any] = []


class PartitionStatisticsFile(View, frozen=True):
    """A file with statistics by partition of one snapshot (spec, "Partition Statistics")."""

    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int
