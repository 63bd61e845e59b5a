"""What `icekeep history` prints for people: two tables that fit a terminal, of a result that has some forty numbers a commit.

Changes are signed, `+3 -1`, and what did not change is left out: `-` is no change, `?` is not known. Machines get each number by
itself.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from icekeep.maintenance.history import CommitEntry, CommitHistoryResult
from icekeep.spec.times import format_moment
from icekeep.spec.types import DAY_MS, SECOND_MS, format_bytes

_UNKNOWN = "?"
_FIGURES = (
    *("data_files", "records", "delete_files"),
    *("since", "other", "bytes", "files", "in_all", "deletes", "manifests", "metadata"),
)
_UNITS = (("d", DAY_MS), ("h", 3600 * SECOND_MS), ("min", 60 * SECOND_MS))


def history_shown(result: CommitHistoryResult) -> Mapping[str, Any]:
    """The values and rows that are printed of a history."""
    shown: dict[str, Any] = {
        "of": "all snapshots" if result.ref is None else result.ref,
        "older_commits": result.left_out_count,
        "metadata_files_since": result.metadata_files_after_count,
    }
    shown["commits"] = _aligned([_change(entry, has_refs=result.ref is None) for entry in result.commits])
    shown["after_each"] = _aligned([_after(entry) for entry in result.commits if not entry.is_expired])
    if any(entry.note for entry in result.commits):
        shown["notes"] = [{"snapshot_id": e.snapshot_id, "note": e.note} for e in result.commits if e.note is not None]
    if result.not_read:
        shown["not_read"] = list(result.not_read)
    return shown


def _change(entry: CommitEntry, *, has_refs: bool) -> dict[str, Any]:
    """Who did what when. Of an expired commit nothing else is known than when it was."""
    row: dict[str, Any] = {
        "snapshot_id": entry.snapshot_id,
        "committed_at": format_moment(entry.timestamp_ms),
        "operation": "expired" if entry.is_expired else entry.operation,
        "made_by": _maker(entry),
    }
    if has_refs:
        row["refs"] = ", ".join(entry.refs)
    added, removed = entry.added, entry.removed
    known = not entry.is_expired
    row["data_files"] = _signed(added.data_files_count, removed.data_files_count) if known else "-"
    row["records"] = _signed(added.record_count, removed.record_count) if known else "-"
    row["delete_files"] = _signed(added.delete_files_count, removed.delete_files_count) if known else "-"
    return row


def _maker(entry: CommitEntry) -> str | None:
    """The engine, or our job: what they call the run itself is long, and stands in the JSON."""
    if entry.job is not None:
        return f"icekeep {entry.job}"
    return None if entry.made_by is None else entry.made_by.partition(",")[0]


def _after(entry: CommitEntry) -> dict[str, Any]:
    """How many bytes it took, and what there is in all after it."""
    manifests = entry.manifests
    return {
        "snapshot_id": entry.snapshot_id,
        "since": "-" if entry.since_previous_ms is None else _span(entry.since_previous_ms),
        "other": _count(entry.metadata_files_between_count),
        "bytes": _signed(entry.added.bytes, entry.removed.bytes, format_bytes),
        "files": _count(entry.after.data_files_count),
        "in_all": _size(entry.after.bytes),
        "deletes": _count(entry.after.delete_files_count),
        "manifests": f"{_count(manifests.manifests_count)} ({_signed(manifests.created_count, manifests.replaced_count)})",
        "metadata": _size(manifests.metadata_bytes),
    }


def _aligned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with figures, and their names, to the right."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in _FIGURES if rows and name in rows[0]}
    return [
        {
            name.rjust(widths.get(name, 0)): value.rjust(widths[name]) if name in widths else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _signed(added: int | None, removed: int | None, form: Any = "{:,}".format) -> str:
    """What came and what went.

    >>> _signed(3, 0), _signed(1095, 12), _signed(0, 0), _signed(2, None)
    ('+3', '+1,095 -12', '-', '+2 -?')
    """
    parts: Iterable[tuple[str, int | None]] = (("+", added), ("-", removed))
    shown = [f"{sign}{_UNKNOWN if count is None else form(count)}" for sign, count in parts if count != 0]
    return _UNKNOWN if added is removed is None else " ".join(shown) or "-"


def _count(count: int | None) -> str:
    return _UNKNOWN if count is None else f"{count:,}"


def _size(size: int | None) -> str:
    return _UNKNOWN if size is None else format_bytes(size)


def _span(span_ms: int) -> str:
    """About how long, in the largest unit that it has one of.

    >>> _span(450), _span(5_400_000), _span(86_400_000)
    ('0.5 s', '1.5 h', '1.0 d')
    """
    unit, unit_ms = next((some for some in _UNITS if abs(span_ms) >= some[1]), ("s", SECOND_MS))
    return f"{span_ms / unit_ms:,.1f} {unit}"
