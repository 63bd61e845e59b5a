"""Snapshots, references and logs of table metadata (spec, "Snapshots", "Snapshot References", Appendix C).

Keys of a snapshot's summary that are somebody's: those that a user may give have to be of none of them (spec, Appendix F).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from icekeep.errors import UsageError
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


RESERVED = "Iceberg, an engine or icekeep writes itself"

_RESERVED = re.compile(
    r"(added|removed|deleted|total|changed|replaced|manifests|entries|partition|partitions|engine|published|source)[-.].*"
    r"|(icekeep|spark|flink|trino|presto|kafka|wap|iceberg)[-._].*"
    r"|operation|app-id|replace-partitions|trino_query_id|presto_query_id"
)


def is_reserved(key: str) -> bool:
    """Whether a key, or all that a pattern with `*` at the end stands for, are written by somebody else.

    >>> is_reserved("ticket"), is_reserved("total-records"), is_reserved("icekeep.*")
    (False, True, True)
    """
    return _RESERVED.fullmatch(key) is not None


def checked_properties(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A user's own keys and values, in the order in which they were given.

    Raises:
        UsageError: a key is reserved, or not a text without control characters, or a value is no text.
    """
    for key, value in given.items():
        if not isinstance(key, str) or not key.strip() or not key.isprintable() or "*" in key:
            raise UsageError(f"{key!r} cannot be a key of a snapshot's summary: give printable text without `*`")
        if not isinstance(value, str):
            raise UsageError(f"the value of {key!r} in a snapshot's summary is {value!r}; give a text")
        if is_reserved(key):
            raise UsageError(
                f"{key!r} cannot be a key of your own in a snapshot's summary: it is one that {RESERVED}; choose another"
            )
    return tuple(given.items())


def carried(summary: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The entries of a summary whose keys match, each as it is or by what it begins with before a `*`; no reserved ones."""
    patterns = tuple(patterns)
    return {key: value for key, value in summary.items() if matching(key, patterns) is not None}


def matching(key: str, patterns: Iterable[str]) -> str | None:
    """The first of some patterns that a key matches; `None` for a reserved one."""
    if is_reserved(key):
        return None
    return next((p for p in patterns if key == p or (p.endswith("*") and key.startswith(p[:-1]))), None)
