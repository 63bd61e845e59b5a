"""What changed since an earlier report: its JSON document is held against a new report, table by table."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from icekeep.decoding import from_json
from icekeep.errors import UsageError, first_line
from icekeep.health.values import FaultsCount, TableHealth
from icekeep.names import catalog_of
from icekeep.reports.values import ReportResult, ReportSince, TableChange, TableFigures
from icekeep.spec.types import format_bytes

_WRITTEN = "`icekeep report --output json` prints one, --result-file writes one"

_SHOWN: Mapping[str, Callable[[Any], str]] = {"score": "{:.1f}".format, "bytes": format_bytes}


class _Data(msgspec.Struct):
    data_files_bytes: int
    data_files_count: int
    small_files_together_count: int


class _Deletes(msgspec.Struct):
    position_delete_files_count: int
    equality_delete_files_count: int
    deletion_vectors_count: int

    @property
    def files_count(self) -> int:
        """As that of `DeletesHealth`, which JSON does not have."""
        return self.position_delete_files_count + self.equality_delete_files_count + self.deletion_vectors_count


class _Snapshots(msgspec.Struct):
    snapshots_count: int


class _Table(msgspec.Struct):
    table: str
    score: float
    data: _Data
    deletes: _Deletes
    snapshots: _Snapshots
    faults: tuple[FaultsCount, ...]


class _NotRead(msgspec.Struct):
    name: str


class _Report(msgspec.Struct):
    timestamp_ms: int
    tables: tuple[_Table, ...]
    not_read: tuple[_NotRead, ...]


class _Document(msgspec.Struct):
    """What is needed of a document; whatever else it has, also of a later version, is passed over."""

    result: _Report


class EarlierReport(msgspec.Struct, frozen=True):
    """What an earlier report said.

    Attributes:
        timestamp_ms: when it was made, epoch milliseconds.
        figures: of each table that it could read.
        not_read: names of those that it could not, with `*` in the place of what it did not know.
    """

    timestamp_ms: int
    figures: dict[str, TableFigures]
    not_read: frozenset[str]


def read_earlier(path: str) -> EarlierReport:
    """The report in a file.

    Raises:
        UsageError: there is no such file, or it holds something else.
    """
    try:
        found = from_json(Path(path).read_bytes(), _Document).result
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise UsageError(f"cannot read earlier report {path!r}: {reason}; {_WRITTEN}", path=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path!r} is not the JSON of a report: {first_line(error)}; {_WRITTEN}", path=path) from error
    return EarlierReport(
        timestamp_ms=found.timestamp_ms,
        figures={one.table: _figures(one) for one in found.tables},
        not_read=frozenset(one.name for one in found.not_read),
    )


def with_changes(report: ReportResult, earlier: EarlierReport, *, is_whole: bool) -> ReportResult:
    """A report with what changed since an earlier one.

    Args:
        is_whole: whether the report is about all tables of its catalogs, so that a table that it does not name is gone.
    """
    unread = {one.name for one in report.not_read}
    after = {one.table: _figures(one) for one in report.tables}
    names = [*after, *sorted(name for name in unread if name in earlier.figures)]
    if is_whole:
        missing = earlier.figures.keys() - {*names}
        names += sorted(n for n in missing if catalog_of(n) in report.catalogs or _is_among(n, unread))
    changes = (_change(name, earlier.figures.get(name), after.get(name), earlier.not_read, unread) for name in names)
    return msgspec.structs.replace(report, since=ReportSince(timestamp_ms=earlier.timestamp_ms, tables=tuple(changes)))


def figure_changed(one: TableChange, name: str, arrow: str = "->") -> str:
    """A figure before and after, as people read it; once where it is as before, or where only one report has it."""
    values = [getattr(side, name) for side in (one.before, one.after) if side is not None]
    show = _SHOWN.get(name, "{:,}".format)
    first, last = show(values[0]), show(values[-1])
    if values[0] == values[-1]:
        return last
    if first == last:
        # Bytes that differ by little.
        more = values[-1] - values[0]
        return f"{last} ({'+' if more > 0 else '-'}{show(abs(more))})"
    return f"{first} {arrow} {last}"


def _change(
    name: str,
    before: TableFigures | None,
    after: TableFigures | None,
    not_read_before: Collection[str],
    not_read_after: Collection[str],
) -> TableChange:
    if before is not None and after is not None:
        state = "same" if before == after else "changed"
    elif after is None:
        state = "not_read" if _is_among(name, not_read_after) else "gone"
    else:
        state = "not_read" if _is_among(name, not_read_before) else "new"
    return TableChange(table=name, state=state, before=before, after=after)


def _is_among(name: str, unread: Collection[str]) -> bool:
    return name in unread or any(one.endswith(".*") and name.startswith(one[:-1]) for one in unread)


def _figures(one: _Table | TableHealth) -> TableFigures:
    return TableFigures(
        score=one.score,
        bytes=one.data.data_files_bytes,
        data_files_count=one.data.data_files_count,
        small_files_count=one.data.small_files_together_count,
        delete_files_count=one.deletes.files_count,
        snapshots_count=one.snapshots.snapshots_count,
        faults_count=sum(fault.faults_count for fault in one.faults),
    )
