"""A report on many tables, what changed since an earlier one, and what the terminal shows of both.

The earlier report's JSON document is compared with the new one table by table. People see a line a table, or of one
table all that fits a screen.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from icekeep.decoding import from_json
from icekeep.errors import UsageError, first_line, shown_command
from icekeep.health.values import FaultsCount, JobAdvice, TableHealth
from icekeep.maintenance.history import GrowthPoint, TableTotals
from icekeep.names import catalog_of
from icekeep.rendered import Details, Rendered
from icekeep.spec.times import format_time
from icekeep.spec.types import format_bytes
from icekeep.spelling import counted


class NotRead(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose health is not known, or a namespace or catalog whose tables cannot be listed.

    Attributes:
        name: `catalog.namespace.table`, or with `*` in the place of what is not known.
        kind: of the error, as machines know it; `unexpected` for one that nobody has thought of.
        faults: what `check` finds in metadata that does not load.
    """

    name: str
    kind: str
    reason: str
    faults: tuple[FaultsCount, ...] = ()


class MaintenanceRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a maintenance job, of whatever engine, and how large the table was before and after it.

    Known from the snapshots that it made, from the record of runs, or from both; `None` is "not known".

    Attributes:
        run_id: of the run of icekeep that made it, where the summary names one.
        made_by: the engine, as snapshots say.
        status: how it ended, as the record of runs says.
        timestamp_ms: when it ended, or was last seen, epoch milliseconds; without a record when it made its last commit.
        elapsed_ms: how long it took, as its record says.
        snapshots_count: commits of it that the table still has.
        snapshot_id: the last of them.
        error: why it failed.
        figures: what its result counts, without zeros; of a record alone.
    """

    job: str
    run_id: str | None = None
    made_by: str | None = None
    policy: str | None = None
    status: str | None = None
    timestamp_ms: int
    elapsed_ms: int | None = None
    snapshots_count: int = 0
    snapshot_id: int | None = None
    before: TableTotals | None = None
    after: TableTotals | None = None
    error: str | None = None
    figures: Mapping[str, Any] = {}


class TableHistory(msgspec.Struct, frozen=True, kw_only=True):
    """How a table came to be what it is.

    Attributes:
        growth: of `main`, the oldest commit first; of a long history commits at even distances. Empty where it was not read.
        commits_count: how many commits `growth` stands for.
        runs: of maintenance, the newest first.
        left_out_runs_count: older ones that are not listed.
        not_read: why nothing is known, in one line.
    """

    table: str
    growth: tuple[GrowthPoint, ...] = ()
    commits_count: int = 0
    runs: tuple[MaintenanceRun, ...] = ()
    left_out_runs_count: int = 0
    not_read: str | None = None


class TableFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a table that two reports are compared by.

    Attributes:
        score: 0 to 100 (healthy).
        bytes, data_files_count: of live data files.
        small_files_count: those that `compact` takes.
        delete_files_count: live ones, including deletion vectors.
        faults_count: in metadata and manifest lists.
    """

    score: float
    bytes: int
    data_files_count: int
    small_files_count: int
    delete_files_count: int
    snapshots_count: int
    faults_count: int


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """A table in an earlier report and in this one.

    Attributes:
        state: `same` or `changed`; `new` where the earlier report does not have it, `gone` where this one does not; `not_read`
            where one of the two could not read it.
        before: in the earlier report; `None` where it has no figures of the table.
        after: in this report; `None` where it has none.
    """

    table: str
    state: str
    before: TableFigures | None
    after: TableFigures | None


class ReportSince(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since an earlier report.

    Attributes:
        timestamp_ms: when the earlier report was made, epoch milliseconds.
        tables: in the order of this report, then those that only the earlier one has figures of.
    """

    timestamp_ms: int
    tables: tuple[TableChange, ...]

    @property
    def changed(self) -> tuple[TableChange, ...]:
        """The tables whose figures are not those of the earlier report."""
        return tuple(one for one in self.tables if one.state != "same")


class ReportResult(Rendered, frozen=True, kw_only=True):
    """The health of tables, the worst first.

    Attributes:
        status: `partial` where a table could not be read, else `done`.
        catalogs: the names of those that were looked at.
        currency: of all costs; `None` without prices.
        tables_count: that were looked at, those that could not be read among them.
        histories: of the tables, where they were asked for.
        requests_count, read_bytes: what it took of storage, beside the loading of tables and their histories.
        timestamp_ms: when it was done, epoch milliseconds.
        since: what changed since an earlier report; `None` where none was given.
    """

    status: str
    catalogs: tuple[str, ...]
    currency: str | None = None
    tables_count: int = 0
    not_read: tuple[NotRead, ...] = ()
    tables: tuple[TableHealth, ...] = ()
    histories: tuple[TableHistory, ...] = ()
    requests_count: int = 0
    read_bytes: int = 0
    elapsed_ms: int = 0
    timestamp_ms: int = 0
    since: ReportSince | None = None


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


_BAR = 30
_WITH_REASONS = 3
"""Of more tables than these a terminal shows no reasons, unless asked to."""


def report_shown(report: ReportResult) -> Mapping[str, Any]:
    """The values and rows that are printed of a report."""
    shown: dict[str, Any] = {
        "tables_count": report.tables_count,
        "requests_count": report.requests_count,
        "read_bytes": report.read_bytes,
        "elapsed_ms": report.elapsed_ms,
    }
    if report.not_read:
        shown["not_read"] = [f"{one.name}: {one.reason}{_faults(one.faults)}" for one in report.not_read]
    if report.since is not None:
        shown |= _since(report.since)
    if len(report.tables) == 1 and not report.not_read:
        return {**shown, **health_shown(report.tables[0], report.currency)}
    if report.tables:
        shown["tables"] = [_row(one) for one in report.tables]
        several = list if len(report.tables) <= _WITH_REASONS else Details
        shown["why"] = several(line for one in report.tables for line in _reasons(one))
        shown["to_do"] = several(
            {"table": one.table, **_job(job, report.currency)} for one in report.tables for job in one.to_do
        )
        shown["next"] = _next(report)
    return {name: value for name, value in shown.items() if value != []}


def _since(since: ReportSince) -> dict[str, Any]:
    changed = since.changed
    counts = f"{len(changed):,} of {counted(len(since.tables), 'tables')} changed"
    rows = {"changes": [_shown_change(one) for one in changed]} if changed else {}
    return {"since": f"{format_time(since.timestamp_ms)}: {counts}", **rows}


def _shown_change(one: TableChange) -> dict[str, Any]:
    figures = {name: figure_changed(one, name) for name in TableFigures.__struct_fields__}
    return {"table": one.table, "state": one.state.replace("_", " "), **figures}


def _row(one: TableHealth) -> dict[str, Any]:
    return {
        "table": one.table,
        "score": f"{one.score:.0f}",
        "bytes": one.data.data_files_bytes,
        "data_files": one.data.data_files_count,
        "small": one.data.small_files_together_count,
        "delete_files": one.deletes.files_count,
        "deleted": f"{one.deletes.deleted_ratio:.1%}",
        "manifests": one.metadata.manifests_count,
        "snapshots": one.snapshots.snapshots_count,
        "faults": one.faults_count,
        "to_do": ", ".join(job.job for job in one.to_do),
    }


def _next(report: ReportResult) -> str:
    worst = next((one for one in report.tables if one.to_do), None)
    if worst is None:
        return "nothing"
    return f"`{shown_command('report', '--table', worst.table)}` says why, and what each job would do"


def _reasons(one: TableHealth) -> list[str]:
    return [f"{one.table} {part.name} (-{part.lost:.0f}): {part.reason}" for part in one.score_parts]


def _job(job: JobAdvice, currency: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "job": job.job,
        "why": job.reason,
        "brings": job.gain,
        "read_bytes": job.read_bytes,
        "written_bytes": job.written_bytes,
        "requests": job.requests_count,
        "core_s": "< 0.1" if 0 < job.cpu_ms < 100 else f"{job.cpu_ms / 1000:,.1f}",
    }
    if currency is not None and job.cost is not None:
        told["cost"] = f"{job.cost:,.4f} {currency}"
    return told


def _has_work(job: JobAdvice) -> bool | str:
    return job.has_work if job.done_by is None else f"{job.done_by} does it"


def health_shown(one: TableHealth, currency: str | None = None) -> Mapping[str, Any]:
    """The values and rows that are printed of one table; without a currency no job has a cost."""
    shown: dict[str, Any] = {"table": one.table, "score": f"{one.score:.1f} of 100", "location": one.location}
    for part in ("snapshots", "metadata", "data", "deletes", "partitions"):
        values = getattr(one, part)
        shown[part] = {name: getattr(values, name) for name in values.__struct_fields__ if name != "histogram"}
    for part in ("growth", "own_files"):
        values = getattr(one, part)
        if values is not None:
            shown[part] = {name: getattr(values, name) for name in values.__struct_fields__}
    shown["why"] = [f"{part.name} (-{part.lost:.0f}): {part.reason}" for part in one.score_parts]
    shown["sizes_of_data_files"] = _bars(one)
    shown["faults"] = [f"{f.fault_id} {f.name}: {f.faults_count:,}" for f in one.faults]
    shown["refs"] = [
        {
            "ref": ref.ref,
            "type": ref.type,
            "snapshots": ref.snapshots_count,
            "only_snapshots": ref.only_snapshots_count,
            "bytes": ref.bytes,
            "only_bytes": ref.only_bytes,
        }
        for ref in one.refs
    ]
    shown["jobs"] = [{**_job(job, currency), "has_work": _has_work(job)} for job in one.jobs]
    shown["last_maintenance"] = [
        {"job": seen.job, "when": format_time(seen.timestamp_ms), "made_by": seen.made_by}
        for seen in one.last_maintenance
    ]
    shown["streams"] = [
        {"writer": seen.writer, "snapshots": seen.snapshots_count, "last": format_time(seen.timestamp_ms)}
        for seen in one.streams
    ]
    shown["not_measured"] = list(one.not_measured)
    return {name: value for name, value in shown.items() if value not in ([], {})}


def _bars(one: TableHealth) -> list[dict[str, Any]]:
    most = max((bucket.files_count for bucket in one.data.histogram), default=1)
    return [
        {
            "from_bytes": bucket.least_bytes,
            "files": bucket.files_count,
            "": "#" * max(1, round(_BAR * bucket.files_count / most)),
        }
        for bucket in one.data.histogram
    ]


def _faults(faults: tuple[Any, ...]) -> str:
    told = ", ".join(f"{one.fault_id} {one.name}" for one in faults)
    return f" (faults: {told}; `icekeep check` tells more)" if told else ""
