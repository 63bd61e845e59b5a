"""What is to be done to which tables and when: the `policies` of the configuration.

Pure: entries of the file in, frozen values out, every wrong key named. A policy's settings become the arguments of the
jobs' own command line, so that there is one way to tell a job something.
"""

import re
from collections.abc import Mapping

import msgspec

from icekeep.errors import UsageError
from icekeep.operations.documents import Entry
from icekeep.operations.jobs import JOBS, POLICY_JOBS
from icekeep.operations.settings import read_setting
from icekeep.spec.times import parse_span

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PRESETS = frozenset({"@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly"})
_CRON_FIELD = re.compile(r"[A-Za-z0-9*/,#-]+")
_KEYS = frozenset(
    {"name", "schedule", "tables", "jobs", "retries", "retry_delay", "timeout", "pool", "connection", "spark_conf"}
)


class JobCall(msgspec.Struct, frozen=True):
    """A job and the arguments of its command line, besides the table."""

    job: str
    arguments: tuple[str, ...]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs on tables on a schedule.

    Attributes:
        schedule: cron in UTC, null to run only when somebody asks.
        tables: full names, `catalog.namespace.table`, sorted.
        calls: in the order in which they run on a table.
        retries: how often the scheduler tries a task again that ended with status 1, 3 or 75.
        timeout_ms: how long one task may take, `None` for as long as it wants.
        pool: the scheduler's pool that limits how many tasks run at once.
        connection: the scheduler's name of the Spark cluster.
    """

    name: str
    schedule: str | None
    tables: tuple[str, ...]
    calls: tuple[JobCall, ...]
    retries: int = 2
    retry_delay_ms: int = 300_000
    timeout_ms: int | None = None
    pool: str | None = None
    connection: str = "spark_default"
    spark_conf: tuple[tuple[str, str], ...] = ()


def read_policies(entry: Entry) -> tuple[Policy, ...]:
    """The policies of a file; raises `ConfigError` where one is not what it must be.

    Whether a table's catalog exists is not asked: it may be configured elsewhere, in Spark's configuration for example.
    """
    policies: dict[str, Policy] = {}
    for item in entry.sequence():
        policy = _policy(item)
        if policy.name in policies:
            raise item.required("name").wrong(f"{policy.name!r} is the name of an earlier policy")
        policies[policy.name] = policy
    return tuple(policies.values())


def _policy(entry: Entry) -> Policy:
    given = entry.mapping(_KEYS)
    optional: dict[str, object] = {}
    if "retries" in given:
        optional["retries"] = given["retries"].whole_number(minimum=0)
    if "retry_delay" in given:
        optional["retry_delay_ms"] = _span(given["retry_delay"])
    if "timeout" in given:
        optional["timeout_ms"] = _span(given["timeout"])
    optional |= {key: given[key].text() for key in ("pool", "connection") if key in given}
    if "spark_conf" in given:
        optional["spark_conf"] = tuple((key, below.scalar()) for key, below in given["spark_conf"].mapping().items())
    return msgspec.convert(
        {
            "name": _name(entry.required("name")),
            "schedule": _schedule(entry.required("schedule")),
            "tables": _tables(entry.required("tables")),
            "calls": _calls(entry.required("jobs")),
            **optional,
        },
        Policy,
    )


def _name(entry: Entry) -> str:
    name = entry.text()
    if not _NAME.fullmatch(name):
        raise entry.wrong(f"{name!r} cannot be a name: give letters, digits, dashes and underscores")
    return name


def _schedule(entry: Entry) -> str | None:
    if entry.is_null:
        return None
    text = entry.text().strip()
    fields = text.split()
    if text not in _PRESETS and not (len(fields) == 5 and all(_CRON_FIELD.fullmatch(field) for field in fields)):
        raise entry.wrong(
            f"{text!r} is not cron; give five fields ('0 2 * * *'), one of {', '.join(sorted(_PRESETS))}, or null"
        )
    return text


def _tables(entry: Entry) -> tuple[str, ...]:
    tables: set[str] = set()
    for item in entry.sequence():
        name = item.text()
        parts = name.split(".")
        if len(parts) < 3 or not all(part and part == part.strip() and part.isprintable() for part in parts):
            raise item.wrong(f"{name!r} is not a full name; give CATALOG.NAMESPACE.TABLE")
        if name in tables:
            raise item.wrong(f"table {name!r} is listed twice")
        tables.add(name)
    if not tables:
        raise entry.wrong("is empty; list at least one table")
    return tuple(sorted(tables))


def _calls(entry: Entry) -> tuple[JobCall, ...]:
    given: Mapping[str, Entry] = entry.mapping(POLICY_JOBS)
    if not given:
        raise entry.wrong(f"is empty; name at least one of {', '.join(POLICY_JOBS)}")
    return tuple(JobCall(job, _arguments(job, given[job])) for job in POLICY_JOBS if job in given)


def _arguments(job: str, entry: Entry) -> tuple[str, ...]:
    """A job without settings may stand there without a value."""
    if entry.is_null:
        return ()
    settings = {setting.name: setting for setting in JOBS[job].settings}
    given = entry.mapping(settings.keys())
    return tuple(argument for key in settings if key in given for argument in read_setting(settings[key], given[key]))


def _span(entry: Entry) -> int:
    text = entry.text()
    try:
        return parse_span(text)
    except UsageError as error:
        raise entry.wrong(error.message) from None
