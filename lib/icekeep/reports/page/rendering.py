"""The page's templates filled in. All that comes from catalogs and tables is foreign text: it is escaped, and made visible."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pkgutil import get_data
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from icekeep.errors import printable
from icekeep.maintenance.check.faults import CLASSES
from icekeep.reports.colours import COLOURS
from icekeep.reports.page.charts import ages_chart, scores_chart, sizes_chart
from icekeep.reports.page.views import catalog_totals, job_totals, table_views
from icekeep.reports.since import figure_changed
from icekeep.reports.values import ReportResult
from icekeep.spec.times import about_span, format_time
from icekeep.spec.types import format_bytes

DETAILED_TABLES = 500
"""How many tables, the worst, have a part of their own, so that a browser can open the page; all are in the overview."""

_NOT_KNOWN = "not known"
_CODE = re.compile(r"`([^`]+)`")
_AFTER_A_PART = re.compile(r"([._/=-])(?=\w)")


class Filled(msgspec.Struct, frozen=True):
    """A page as HTML in ASCII, and the content security policy that it has."""

    html: str
    policy: str


def rendered(report: ReportResult, *, detailed_count: int = DETAILED_TABLES) -> str:
    """The page, as ASCII.

    Args:
        detailed_count: how many tables have a part of their own.
    """
    return filled_report(report, detailed_count=detailed_count).html


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
        .render(**values, live=live, style=Markup(style), script=Markup(script), policy=policy)
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
def _environment(currency: str | None) -> Environment:
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
    return value if not isinstance(value, str) or isinstance(value, Markup) else printable(value)


def _breakable(text: str) -> Markup:
    """A long name that may be broken after its parts, as telephones are narrow."""
    return Markup(_AFTER_A_PART.sub(r"\1<wbr>", str(escape(_visible(text)))))


def _coded(text: str) -> Markup:
    """A sentence in Markdown, of which only code is marked."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def _digest(text: str) -> str:
    """How the page's policy names the only style and the only script that it has."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    """A file beside this one, also where the package lies in a zip."""
    data = get_data(__package__ or "", f"templates/{name}")
    assert data is not None
    return data.decode()
