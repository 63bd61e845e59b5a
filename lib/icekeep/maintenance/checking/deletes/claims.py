"""What entries say of a delete file, each different saying once, and how its faults are told."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import msgspec

from icekeep.maintenance.checking.entries.meeting import Meeting
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.spec.manifests.structs import FileContent

ENTRY_COLUMNS = (
    "spec_id",
    "content",
    "file_path",
    "file_format",
    "record_count",
    "file_size_in_bytes",
    "lower_bounds",
    "upper_bounds",
    "key_metadata",
    "equality_ids",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
)
"""What is read of an entry."""

Row = Mapping[str, Any]
"""`ENTRY_COLUMNS` without the bounds, `first_path` and `last_path` in their place, and `manifest`, its number."""

_SAID = (
    "content",
    "file_format",
    "record_count",
    "first_path",
    "last_path",
    "equality_ids",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
)


class Claim(msgspec.Struct, frozen=True):
    """What entries of some manifests say alike of a file, or of one vector in it; `row` is the first of them."""

    row: Row
    manifests: tuple[int, ...]

    @property
    def path(self) -> str:
        """Of the file."""
        return str(self.row["file_path"])


def claims_of(rows: Iterable[Row]) -> list[Claim]:
    """What the entries of one file say of it, in an order that does not depend on how they came."""
    alike: defaultdict[Hashable, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["manifest"], row["content_offset"] or 0)):
        alike[tuple(_hashable(row[name]) for name in _SAID)].append(row)
    return [Claim(some[0], tuple(row["manifest"] for row in some)) for some in alike.values()]


def _hashable(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value


def is_vector(row: Row) -> bool:
    """Whether an entry is of a deletion vector."""
    return bool(row["content"] == FileContent.POSITION_DELETES and row["file_format"].lower() == "puffin")


class Telling(msgspec.Struct, frozen=True):
    """What faults are told with; can be pickled.

    Attributes:
        manifest_paths: by number.
        whole: classes of which every fault is kept.
    """

    meeting: Meeting
    manifest_paths: tuple[str, ...]
    whole: frozenset[int]

    def fault(self, tally: Tally, number: int, claim: Claim, detail: str, **facts: Any) -> None:
        """Tell a fault of a file; `recorded` and `found` are among its facts, if only as `None`."""
        row = claim.row
        offset = row["content_offset"] if is_vector(row) else None
        tally.add(
            Fault(
                number=number,
                where=claim.path,
                detail=detail,
                snapshot_id=self.meeting.oldest(self.meeting.holding(claim.manifests)),
                facts={
                    "manifest": self.manifest_paths[row["manifest"]],
                    "file_path": claim.path,
                    "content": row["content"],
                    "content_offset": offset,
                    "spec_id": row["spec_id"],
                    "recorded": None,
                    "found": None,
                    **facts,
                },
            )
        )
