"""The function `report_page`. What draws it, Jinja and pygal, is imported when it is called: `icekeep[report]` brings both."""

from importlib.util import find_spec

from icekeep.errors import UsageError, brought_by
from icekeep.reports.values import ReportResult

__all__ = ["report_page", "require_packages"]

_PACKAGES = ("jinja2", "pygal")


def report_page(report: ReportResult) -> str:
    """A report as one HTML page, for people: an overview, and of each table what is wrong, what each job would do, and charts.

    It loads nothing from anywhere, and is plain ASCII, so that it can be written in any encoding. Growth and the runs of
    maintenance are in it where the report has histories: `report(catalog, histories=True)`.

    Raises:
        UsageError: the packages `jinja2` and `pygal` are not installed.
    """
    require_packages()
    from icekeep.reports.page.rendering import rendered

    return rendered(report)


def require_packages() -> None:
    """Raise `UsageError` where a package is missing that the page needs."""
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise UsageError(f"package {name!r} is not installed; {brought_by('report')}", module=name)
