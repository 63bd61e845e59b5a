"""What the configuration says under `log` and `metrics`: how a run is told of, and to whom."""

import re
from collections.abc import Mapping

import msgspec

from icekeep.operations.configuration.documents import Entry
from icekeep.operations.console.looks import FORMATS
from icekeep.telemetry.metrics import OF_RUN

LOG, METRICS = "log", "metrics"
LOG_KEYS, METRICS_KEYS = frozenset({"format"}), frozenset({"file", "pushgateway", "labels"})
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class TellingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of log lines and metrics.

    Attributes:
        log_format: `None` where the file does not say.
        metrics_file: that is kept for node_exporter's textfile collector.
        pushgateway: the address of a Pushgateway, with references to environment variables as they are written.
        labels: of all that is pushed, beside those of the run.
    """

    log_format: str | None = None
    metrics_file: str | None = None
    pushgateway: str | None = None
    labels: Mapping[str, str] = {}

    def __repr__(self) -> str:
        # The address may hold a password.
        return f"TellingSettings({self.log_format!r}, has_pushgateway={self.pushgateway is not None})"


def read_telling(given: Mapping[str, Entry]) -> TellingSettings:
    """What the entries `log` and `metrics` say; raises `ConfigError` where one is not what it must be."""
    log = given[LOG].mapping(LOG_KEYS) if LOG in given else {}
    metrics = given[METRICS].mapping(METRICS_KEYS) if METRICS in given else {}
    return TellingSettings(
        log_format=_format(log["format"]) if "format" in log else None,
        metrics_file=metrics["file"].text() if "file" in metrics else None,
        pushgateway=metrics["pushgateway"].text() if "pushgateway" in metrics else None,
        labels=_labels(metrics["labels"]) if "labels" in metrics else {},
    )


def _format(entry: Entry) -> str:
    name = entry.text()
    if name not in FORMATS:
        raise entry.wrong(f"is {name!r}; give {' or '.join(FORMATS)}")
    return name


def _labels(entry: Entry) -> dict[str, str]:
    """Names and values; those that runs have themselves are not free."""
    labels = {}
    for name, below in entry.mapping().items():
        if not LABEL.fullmatch(name) or name.startswith("__"):
            raise below.wrong("is no name of a label: it holds letters, digits and underscores")
        if name in OF_RUN:
            raise below.wrong("is a label that icekeep sets itself")
        labels[name] = below.scalar()
    return labels
