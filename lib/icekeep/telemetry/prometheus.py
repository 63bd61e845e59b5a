"""Figures of runs for Prometheus, by its own client: a file for node_exporter's textfile collector, and the Pushgateway.

A file holds the last run of each job on each table, whichever process wrote it: what was there of others stays. What a failed
run does not know, such as when a run went well, stays too.
"""

import fcntl
import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from icekeep.errors import ConfigError, UsageError, require_package
from icekeep.events import Event, RunStarted
from icekeep.secrets import remember, server_address
from icekeep.spec.types import DAY_MS, MINUTE_MS
from icekeep.telemetry.figures import LAST_END, LAST_SUCCESS, OF_TABLE, RUN_METRICS, Figure, Metric, Tallies

_WRITE_EVERY_MS = MINUTE_MS
"""Where many runs end in one process, the file is written so often."""

_FORGET_MS = 100 * DAY_MS
"""A job that has not run for so long is left out of the file: longer than a quarter, which is the longest of schedules."""

_PUSH_SECONDS = 4


class MetricsFile:
    """The sink that keeps a file up to date.

    Args:
        write: writes a text to a path at once.
    """

    def __init__(self, path: str, write: Callable[[str, str], None]) -> None:
        require_package("prometheus_client", "telemetry")
        self._path, self._write = Path(path), write
        self._tallies = Tallies(self._take)
        self._pending: dict[tuple[str, str], Sequence[Figure]] = {}
        self._written_ms = 0

    def on(self, event: Event, at_ms: int) -> None:
        self._tallies.on(event, at_ms)

    def close(self) -> None:
        if self._pending:
            if not self._path.parent.is_dir():
                raise UsageError(f"there is no directory {str(self._path.parent)!r}", path=str(self._path))
            with _locked(self._path.with_name(f".{self._path.name}.lock")):
                earlier = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
                self._write(str(self._path), with_runs(earlier, self._pending))
            self._pending = {}

    def _take(self, started: RunStarted, figures: Sequence[Figure], at_ms: int) -> None:
        self._pending[started.table, started.job] = figures
        if started.parent_id is None or at_ms - self._written_ms >= _WRITE_EVERY_MS:
            self._written_ms = at_ms
            self.close()


class Pushed:
    """The sink that sends the figures of each run to a Pushgateway, beside what it has of earlier ones.

    The group is that of the job and the table, so that a run replaces the last one of the same; it never replaces the time of
    the last success with none (`POST`).

    Args:
        url: of the gateway; a user and a password in it become a header, which no redirect takes elsewhere.
        labels: more of the group, the same for all runs.

    Raises:
        ConfigError: it is no address of a server.
        UsageError: the package `prometheus-client` is not installed.
    """

    def __init__(self, url: str, labels: Mapping[str, str]) -> None:
        require_package("prometheus_client", "telemetry")
        remember({"url": url})
        self._url, self._login = _url_and_header(url)
        self._labels = dict(labels)
        self._tallies = Tallies(self._push)

    def on(self, event: Event, at_ms: int) -> None:
        self._tallies.on(event, at_ms)

    def close(self) -> None:
        """Nothing is held back."""

    def _push(self, started: RunStarted, figures: Sequence[Figure], _at_ms: int) -> None:
        from prometheus_client.exposition import pushadd_to_gateway

        def handler(url: str, method: str, timeout: float | None, headers: Any, data: bytes) -> Callable[[], None]:
            request = Request(url, data, {**dict(headers), **self._login}, method=method)
            opener = build_opener(_NoRedirects)
            return lambda: opener.open(request, timeout=timeout).close()

        group = dict(zip(OF_TABLE, figures[0].labels, strict=False))
        pushadd_to_gateway(
            self._url,
            started.job,
            _registry(figures),
            {**self._labels, **group},
            timeout=_PUSH_SECONDS,
            handler=handler,
        )


def exposition(figures: Iterable[Figure]) -> str:
    """Figures in Prometheus' text format.

    Raises:
        UsageError: the package `prometheus-client` is not installed.
    """
    require_package("prometheus_client", "telemetry")
    from prometheus_client import generate_latest

    return str(generate_latest(_registry(figures)).decode())


def with_runs(earlier: str, runs: Mapping[tuple[str, str], Sequence[Figure]]) -> str:
    """A file with the figures of runs, by table and job, in place of those that it had of the same; raises as `exposition`."""
    newest_ms = max((f.value for figures in runs.values() for f in figures if f.metric is LAST_END), default=0) * 1000
    kept = [figure for figure in _earlier(earlier) if _stays(figure, runs)]
    ends = {_run_of(f): f.value * 1000 for f in kept if f.metric is LAST_END}
    fresh = [f for f in kept if newest_ms - ends.get(_run_of(f), newest_ms) < _FORGET_MS]
    return exposition([*fresh, *(figure for figures in runs.values() for figure in figures)])


def _stays(figure: Figure, runs: Mapping[tuple[str, str], Sequence[Figure]]) -> bool:
    now = runs.get(_run_of(figure))
    if now is None:
        return True
    return figure.metric is LAST_SUCCESS and not any(f.metric is LAST_SUCCESS for f in now)


def _run_of(figure: Figure) -> tuple[str, str]:
    """The table and the job of a figure."""
    labels = dict(zip(figure.metric.labels, figure.labels, strict=True))
    return labels.get("table", ""), labels.get("job", "")


def _earlier(text: str) -> Iterator[Figure]:
    """What a file has of metrics that are known; of another one, or one that cannot be read, nothing."""
    from prometheus_client.parser import text_string_to_metric_families

    known = {one.name: one for one in RUN_METRICS}
    try:
        families = [*text_string_to_metric_families(text)]
    except ValueError:
        return
    for family in families:
        metric = known.get(family.name)
        for sample in family.samples if metric is not None else ():
            if metric is not None and sample.labels.keys() == {*metric.labels}:
                yield Figure(metric, tuple(sample.labels[name] for name in metric.labels), sample.value)


def _registry(figures: Iterable[Figure]) -> Any:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(figures))
    return registry


class _Collector:
    """What a registry asks; each metric comes once, with all its values, in the order in which it was first seen."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._by_metric: dict[Metric, list[Figure]] = {}
        for figure in figures:
            self._by_metric.setdefault(figure.metric, []).append(figure)

    def collect(self) -> Iterator[Any]:
        """All metrics."""
        from prometheus_client.core import GaugeMetricFamily

        for metric, figures in self._by_metric.items():
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for figure in figures:
                family.add_metric(figure.labels, float(figure.value))
            yield family


class _NoRedirects(HTTPRedirectHandler):
    """An answer that sends elsewhere is an error."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _url_and_header(url: str) -> tuple[str, dict[str, str]]:
    """An address without the user and the password in it, and the header that these make."""
    parts = server_address(url if "://" in url else f"http://{url}", ("http", "https"))
    if parts is None:
        # The text may hold a password, so it is not repeated.
        raise ConfigError("metrics.pushgateway", "is no address of a server; give http://HOST:PORT or https://HOST")
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
    if parts.username is None:
        return bare, {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return bare, {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from reading and writing the file at the same time; two would lose what one of them adds."""
    # No link is followed: what lies at its end is another's.
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
