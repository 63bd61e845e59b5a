"""The function `report_page`: the page's templates filled in with the report and with sums, bands of scores and charts.

Jinja is imported when it is called: `icekeep[report]` brings it. All that comes from catalogs and tables
is foreign text: it is escaped, and made visible.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from html import escape
from pkgutil import get_data
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from icekeep.errors import printable, require_package
from icekeep.health.values import JobAdvice, RefHealth, TableHealth
from icekeep.maintenance.check.faults import CLASSES
from icekeep.reports.histories import GROWING_TABLES
from icekeep.reports.page.charts import Chart, ages_chart, growth_charts, runs_chart, scores_chart, sizes_chart
from icekeep.reports.svg import COLOURS, MarkupText
from icekeep.reports.values import MaintenanceRun, ReportResult, TableHistory, figure_changed
from icekeep.spec.times import about_span, format_time
from icekeep.spec.types import format_bytes

if TYPE_CHECKING:
    from jinja2 import Environment


def report_page(report: ReportResult) -> str:
    """A report as one HTML page, for people: an overview, and of each table what is wrong, what each job would do, and charts.

    It loads nothing from anywhere, and is plain ASCII, so that it can be written in any encoding. Growth and the runs of
    maintenance are in it where the report has histories: `report(catalog, histories=True)`.

    Raises:
        UsageError: the package `jinja2` is not installed.
    """
    require_packages()
    return filled_report(report).html


def require_packages() -> None:
    """Raise `UsageError` where the package is missing that the page needs."""
    require_package("jinja2", "report")


ROWS_SHOWN, FEW_ROWS_SHOWN = 20, 5
"""So many references, and so many runs, are shown of a table with plots, and of one without."""


class DueWork(msgspec.Struct, frozen=True, kw_only=True):
    """What some jobs would do together; one that cannot say what it frees counts as none. `cost` is `None` without prices."""

    files_count: int
    freed_bytes: int
    replaced_bytes: int
    read_bytes: int
    written_bytes: int
    requests_count: int
    cpu_ms: int
    cost: float | None

    @classmethod
    def of(cls, jobs: Sequence[JobAdvice], currency: str | None) -> "DueWork":
        """Of jobs that have something to do."""
        names = (name for name in cls.__struct_fields__ if name != "cost")
        sums = {name: sum(getattr(job, name) or 0 for job in jobs) for name in names}
        return cls(**sums, cost=None if currency is None else sum(job.cost or 0.0 for job in jobs))


class TableView(msgspec.Struct, frozen=True, kw_only=True):
    """A table on the page.

    Attributes:
        number: where its part is linked to.
        share: its bytes, of those of the largest table, 0 to 100.
        refs: the references that alone keep the most.
        shown_runs: the newest.
    """

    number: int
    health: TableHealth
    history: TableHistory
    band: str
    share: float
    work: DueWork
    is_detailed: bool
    refs: tuple[RefHealth, ...] = ()
    shown_runs: tuple[MaintenanceRun, ...] = ()
    sizes: Chart | None = None
    growth: tuple[Chart, ...] = ()
    runs: Chart | None = None


class JobTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One job over all tables on which it has something to do; `share`: these, of those of the job with the most, 0 to 100."""

    job: str
    tables_count: int
    share: float
    work: DueWork


class CatalogTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all tables that were read."""

    bytes: int
    data_files_count: int
    small_files_count: int
    record_count: int
    delete_files_count: int
    faults_count: int
    daily_bytes: int
    jobs_count: int
    to_do_tables_count: int
    cost: float | None


def table_views(report: ReportResult, detailed_count: int) -> list[TableView]:
    """The tables in the report's order, of which the first have details."""
    histories = {one.table: one for one in report.histories}
    by_size = sorted(report.tables, key=lambda one: -one.data.data_files_bytes)
    growing = {one.table for one in by_size[:GROWING_TABLES]}
    most = by_size[0].data.data_files_bytes if by_size else 0
    views = []
    for number, health in enumerate(report.tables, 1):
        view = TableView(
            number=number,
            health=health,
            history=histories.get(health.table, TableHistory(table=health.table)),
            band=health.band,
            share=round(100 * health.data.data_files_bytes / most, 1) if most else 0.0,
            work=DueWork.of(health.to_do, report.currency),
            is_detailed=number <= detailed_count,
        )
        views.append(_with_details(view, is_growing=health.table in growing) if view.is_detailed else view)
    return views


def job_totals(tables: Iterable[TableHealth], currency: str | None) -> list[JobTotal]:
    """What each job that has something to do somewhere would do in all, in the order in which jobs run."""
    to_do: dict[str, list[JobAdvice]] = {}
    for table in tables:
        for job in table.jobs:
            to_do.setdefault(job.job, []).extend([job] if job.has_work else [])
    most = max(map(len, to_do.values()), default=0)
    return [
        JobTotal(
            job=name,
            tables_count=len(jobs),
            share=round(100 * len(jobs) / most, 1),
            work=DueWork.of(jobs, currency),
        )
        for name, jobs in to_do.items()
        if jobs
    ]


def catalog_totals(report: ReportResult) -> CatalogTotals:
    """Sums over all that was read."""
    tables = report.tables
    to_do = [job for table in tables for job in table.to_do]
    return CatalogTotals(
        bytes=sum(one.data.data_files_bytes for one in tables),
        data_files_count=sum(one.data.data_files_count for one in tables),
        small_files_count=sum(one.data.small_files_together_count for one in tables),
        record_count=sum(one.data.record_count for one in tables),
        delete_files_count=sum(one.deletes.files_count for one in tables),
        faults_count=sum(one.faults_count for one in tables),
        daily_bytes=sum(one.growth.daily_bytes or 0 for one in tables if one.growth is not None),
        jobs_count=len(to_do),
        to_do_tables_count=sum(bool(table.to_do) for table in tables),
        cost=DueWork.of(to_do, report.currency).cost,
    )


def _with_details(view: TableView, *, is_growing: bool) -> TableView:
    health, history = view.health, view.history
    rows = ROWS_SHOWN if is_growing else FEW_ROWS_SHOWN
    alone = sorted(health.refs, key=lambda ref: (-(ref.only_bytes or 0), ref.ref))
    return msgspec.structs.replace(
        view,
        refs=tuple(alone[:rows]),
        shown_runs=history.runs[:rows],
        sizes=sizes_chart([health.data]),
        growth=growth_charts(history.growth, history.runs) if is_growing else (),
        runs=runs_chart(history.runs[:rows]),
    )


DETAILED_TABLES = 500
"""How many tables, the worst, have a part of their own, so that a browser can open the page; all are in the overview."""

_NOT_KNOWN = "not known"
_CODE = re.compile(r"`([^`]+)`")
_AFTER_A_PART = re.compile(r"([._/=-])(?=\w)")


class Filled(msgspec.Struct, frozen=True):
    """A page as HTML in ASCII, and the content security policy that it has."""

    html: str
    policy: str


def filled_report(
    report: ReportResult, *, detailed_count: int = DETAILED_TABLES, live: Mapping[str, Any] | None = None
) -> Filled:
    """The page of a report.

    Args:
        live: for a page that a server keeps up to date: what `live.html` takes.
    """
    views = table_views(report, detailed_count)
    values = {
        "report": report,
        "views": views,
        "detailed": [view for view in views if view.is_detailed],
        "totals": catalog_totals(report),
        "jobs": job_totals(report.tables, report.currency),
        "to_do_views": [view for view in views if view.health.to_do],
        "charts": _charts(report),
        "growing_count": sum(bool(view.growth) for view in views),
    }
    return _filled("page.html", report.currency, values, "page.js", live)


def filled_runs(runs: Sequence[Mapping[str, Any]], live: Mapping[str, Any], **said: Any) -> Filled:
    """The page of runs that a server keeps up to date.

    Args:
        runs: rows, the newest first, as `icekeep runs` prints them.
        said: the other values that `runs.html` takes.
    """
    return _filled("runs.html", None, {"runs": runs, **said}, "", live)


def _filled(
    template: str, currency: str | None, values: Mapping[str, Any], script_name: str, live: Mapping[str, Any] | None
) -> Filled:
    style, script = COLOURS + _part("page.css"), _part(script_name) if script_name else ""
    more = ""
    if live is not None:
        style, script, more = style + _part("live.css"), script + _part("live.js"), "; connect-src 'self'"
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:{more}"
    page = (
        _environment(currency)
        .get_template(template)
        .render(**values, live=live, style=MarkupText(style), script=MarkupText(script), policy=policy)
    )
    return Filled(page.encode("ascii", "xmlcharrefreplace").decode("ascii"), policy)


def _charts(report: ReportResult) -> Sequence[Any]:
    if not report.tables:
        return ()
    charts = (
        scores_chart(report.tables),
        sizes_chart([one.data for one in report.tables]),
        ages_chart(report.tables, report.timestamp_ms),
    )
    return [chart for chart in charts if chart is not None]


@lru_cache(maxsize=4)
def _environment(currency: str | None) -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        finalize=_visible,
        loader=FunctionLoader(_part),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "count": _or_not_known(lambda value: f"{value:,}"),
        "bytes": _or_not_known(format_bytes),
        "time": _or_not_known(lambda value: format_time(value)[: len("2026-01-31T12:00")].replace("T", " ")),
        "span": _or_not_known(lambda value: about_span(value) if value >= 100 else "under 0.1 s" if value else "0 s"),
        "percent": _or_not_known(lambda value: f"{value:.1%}"),
        "decimal": _or_not_known(lambda value: f"{value:,.1f}" if value >= 0.05 or not value else f"{value:.2g}"),
        "cost": _or_not_known(lambda value: f"{value:,.4f} {currency or ''}".rstrip()),
        "breakable": _breakable,
        "coded": _coded,
        "query": lambda text: quote(_visible(text), safe=""),
        "words": lambda name: str(name).replace("_", " "),
    }
    environment.globals["fault_classes"] = CLASSES
    environment.globals["shown"] = {name: environment.filters[name] for name in ("count", "bytes")}
    environment.globals["figure_changed"] = figure_changed
    return environment


def _or_not_known(show: Any) -> Any:
    return lambda value: _NOT_KNOWN if value is None else show(value)


def _visible(value: Any) -> Any:
    """Text of others without characters that a page cannot have, or that would turn a line around."""
    return value if not isinstance(value, str) or hasattr(value, "__html__") else printable(value)


def _breakable(text: str) -> MarkupText:
    """A long name that may be broken after its parts, as telephones are narrow."""
    return MarkupText(_AFTER_A_PART.sub(r"\1<wbr>", escape(_visible(text))))


def _coded(text: str) -> MarkupText:
    """A sentence in Markdown, of which only code is marked."""
    return MarkupText(_CODE.sub(r"<code>\1</code>", escape(text)))


def _digest(text: str) -> str:
    """How the page's policy names the only style and the only script that it has."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    """A file beside this one, also where the package lies in a zip."""
    data = get_data(__package__ or "", f"templates/{name}")
    assert data is not None
    return data.decode()
