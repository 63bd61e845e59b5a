"""The keys `log`, `metrics` and `notifications` of the configuration: who hears of a run, and how."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from icekeep.operations.configuration.documents import Entry
from icekeep.operations.console.looks import FORMATS
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.verbs import tells_of_runs
from icekeep.spelling import did_you_mean, near_words
from icekeep.telemetry.figures import OF_RUN
from icekeep.telemetry.notifications import FAILURE, FORM, OUTCOMES, PARTIAL, is_address, shown_address

LOG, METRICS, NOTIFICATIONS = "log", "metrics", "notifications"
NOTIFICATION_KEYS = frozenset({"url", "when", "jobs"})
LOG_KEYS, METRICS_KEYS = frozenset({"format"}), frozenset({"file", "pushgateway", "labels"})
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class NotificationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who is sent a message when a command has ended.

    Attributes:
        key_path: where it stands in the file.
        url: the address, with references to environment variables as they are written.
        when: how the command has ended, of `OUTCOMES`.
        jobs: names of jobs and commands; `None` for all.
    """

    key_path: str
    url: str
    when: frozenset[str] = frozenset({FAILURE, PARTIAL})
    jobs: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"NotificationSettings({shown_address(self.url)!r})"


class TellingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of log lines and metrics.

    Attributes:
        log_format: `None` where the file does not say.
        metrics_file: that is kept for node_exporter's textfile collector.
        pushgateway: the address of a Pushgateway, with references to environment variables as they are written.
        labels: of all that is pushed, beside those of the run.
        notifications: who is sent messages, in the order of the file.
    """

    log_format: str | None = None
    metrics_file: str | None = None
    pushgateway: str | None = None
    labels: Mapping[str, str] = {}
    notifications: tuple[NotificationSettings, ...] = ()

    def __repr__(self) -> str:
        # The address may hold a password.
        return f"TellingSettings({self.log_format!r}, has_pushgateway={self.pushgateway is not None})"


def read_telling(given: Mapping[str, Entry]) -> TellingSettings:
    """What the entries `log`, `metrics` and `notifications` say; raises `ConfigError` where one is not what it must be."""
    log = given[LOG].mapping(LOG_KEYS) if LOG in given else {}
    metrics = given[METRICS].mapping(METRICS_KEYS) if METRICS in given else {}
    return TellingSettings(
        log_format=_format(log["format"]) if "format" in log else None,
        metrics_file=metrics["file"].text() if "file" in metrics else None,
        pushgateway=metrics["pushgateway"].text() if "pushgateway" in metrics else None,
        labels=_labels(metrics["labels"]) if "labels" in metrics else {},
        notifications=tuple(map(_notification, given[NOTIFICATIONS].sequence())) if NOTIFICATIONS in given else (),
    )


def _notification(entry: Entry) -> NotificationSettings:
    given = entry.mapping(NOTIFICATION_KEYS)
    address = entry.required("url")
    url = address.text()
    if not url.startswith("${") and not is_address(url):
        # It may hold a token, so it is not repeated.
        raise address.wrong(f"is not an address; give {FORM}, or a reference to a variable that holds one")
    words: dict[str, frozenset[str]] = {}
    if "when" in given:
        words["when"] = _words(given["when"], OUTCOMES)
    if "jobs" in given:
        words["jobs"] = _words(given["jobs"], notifying_jobs())
    return NotificationSettings(key_path=address.key_path, url=url, **words)


def _words(entry: Entry, known: Collection[str]) -> frozenset[str]:
    """A list of known words, of one at least."""
    found, listed = set(), ", ".join(known)
    for item in entry.sequence():
        word = item.text()
        if word not in known:
            near = near_words(word, known)
            raise item.wrong(f"is {word!r}; {did_you_mean(near) if near else f'there is {listed}'}")
        found.add(word)
    if not found:
        raise entry.wrong(f"is empty, so that nothing would be sent; give one or more of {listed}")
    return frozenset(found)


def notifying_jobs() -> tuple[str, ...]:
    """The jobs and commands of which messages are sent."""
    # The table of commands imports the configuration.
    verbs: Any = resolve("icekeep.operations.verbs:VERBS")
    return (*JOBS, *(name for name, verb in verbs.items() if tells_of_runs(verb)))


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
