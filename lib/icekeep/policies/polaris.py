"""What is said of a table outside the configuration file, as text: by its own properties, or by what its catalog has stored.

Whoever may write a table sets its properties. So these may say how well the table is kept and how long its past, and switch jobs
off; they may not say where files are deleted, nor take a check away that guards files: `OWNERS_SETTINGS` is all they may say.

Policies that Polaris stores, translated into what our jobs are told.

Of each type only one holds for a table, the innermost of catalog, namespace and table: the server chooses. The formats are
Polaris' own schemas of 2025-02-03 (`schemas/policies/system/TYPE`). What a format leaves to free keys (`config`) is taken where
it is known what it means, and told where not. What contradicts itself holds its job.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import StoredPolicy
from icekeep.policies.values import ENABLED, MODE, WHEN, Mode
from icekeep.spec.times import format_time

PREFIX = "icekeep."
OWNERS_SETTINGS: Mapping[str, frozenset[str]] = {
    "compact": frozenset({"strategy", "sort_order", "where", "options", "branch", "verify"}),
    "rewrite_position_deletes": frozenset({"where", "options", "branch", "convert_equality_deletes"}),
    "rewrite_manifests": frozenset({"spec_id", "sort_by", "where", "workload", "options", "branch"}),
    "expire_snapshots": frozenset({"older_than", "retain_last", "clean_expired_metadata"}),
    "remove_orphan_files": frozenset({"older_than"}),
    "check": frozenset({"deep", "all_of", "ref"}),
}
"""By job what may be said outside the configuration file; all else stands there alone."""

_OWN_KEYS = frozenset({"icekeep.order", "icekeep.commit-id"})
"""Properties and summaries of icekeep's own that say nothing of policies."""


class PolarisSetting(msgspec.Struct, frozen=True):
    """A key and what is said of it.

    Attributes:
        job: `None` where it is said of all jobs.
        key: `enabled`, `mode`, `when.CONDITION`, a setting, or `SETTING.NAME` of an option.
        source: where it stands.
    """

    job: str | None
    key: str
    text: str
    source: str


class Problem(msgspec.Struct, frozen=True):
    """Something that was told and is not understood, or not done.

    Attributes:
        job: whose; `None` where it is said of all jobs, or it is not clear of which.
        source: where it stands.
        holds: whether the job, or without one all, must wait until it is set right; else it is passed over.
    """

    job: str | None
    source: str
    problem: str
    holds: bool = True


class Heard(msgspec.Struct, frozen=True):
    """What was told, taken apart."""

    told: tuple[PolarisSetting, ...] = ()
    problems: tuple[Problem, ...] = ()


def told_by_properties(properties: Mapping[str, str]) -> Heard:
    """What the properties of a table say: `icekeep.enabled`, `icekeep.mode`, `icekeep.JOB.KEY`.

    >>> told_by_properties({"icekeep.compact.enabled": "false"}).told
    (Told(job='compact', key='enabled', text='false', source='table property icekeep.compact.enabled'),)
    """
    told, problems = [], []
    for name in sorted(properties):
        if not _is_for_us(name) or name in _OWN_KEYS:
            continue
        source = f"table property {name}"
        if not name.startswith(PREFIX):
            problems.append(Problem(None, source, f"write it as {_plain(name)}: case and spaces count"))
            continue
        first, _, rest = name.removeprefix(PREFIX).partition(".")
        if name == f"{PREFIX}{MODE}" and properties[name].strip().lower() != Mode.OBSERVE.value:
            problems.append(
                Problem(None, source, "only `observe` can be set here; what is to run, the configuration says")
            )
        elif name.removeprefix(PREFIX) in (ENABLED, MODE):
            told.append(PolarisSetting(None, first, properties[name], source))
        elif first not in OWNERS_SETTINGS:
            problems.append(Problem(None, source, f"there is no such property; there is icekeep.enabled, {_jobs()}"))
        elif (problem := refused(first, rest)) is not None:
            problems.append(Problem(first, source, problem))
        else:
            told.append(PolarisSetting(first, rest, properties[name], source))
    return Heard(tuple(told), tuple(problems))


def refused(job: str, key: str) -> str | None:
    """Why a key of a job may not be said outside the configuration file; `None` where it may."""
    setting = key.partition(".")[0]
    allowed = OWNERS_SETTINGS[job]
    if setting in allowed or setting in (ENABLED, WHEN):
        return None
    return f"{setting!r} cannot be set here, only in the configuration file; there is {', '.join(sorted(allowed))}"


def _is_for_us(name: str) -> bool:
    """Whether a property is meant for icekeep, however it is spelled: it may be an owner's wish to be left alone."""
    return name.startswith(PREFIX) or _plain(name).startswith(PREFIX)


def _plain(name: str) -> str:
    return name.strip().casefold()


def _jobs() -> str:
    return f"icekeep.mode, and those of a job: icekeep.{next(iter(OWNERS_SETTINGS))}.enabled"


_VERSION = "2025-02-03"
_JOBS = {
    "system.data-compaction": "compact",
    "system.metadata-compaction": "rewrite_manifests",
    "system.snapshot-expiry": "expire_snapshots",
    "system.orphan-file-removal": "remove_orphan_files",
}
_NOT_CONTENT = frozenset({"version", "enable", "config"})
_DIGITS = re.compile(r"[0-9]{1,19}")
_SECONDS_MAX = 100_000_000_000
"""A number above this is milliseconds."""


def told_by_polaris(policies: Iterable[StoredPolicy]) -> Heard:
    """What stored policies say of our jobs. One that cannot be read holds its job; one of another type is passed over.

    >>> week = StoredPolicy("system.snapshot-expiry", "week", '{"enable": true, "config": {"max_snapshot_age_days": 7}}')
    >>> [(one.job, one.key, one.text) for one in told_by_polaris([week]).told]
    [('expire_snapshots', 'enabled', 'true'), ('expire_snapshots', 'older_than', '7d')]
    """
    told: list[PolarisSetting] = []
    problems: list[Problem] = []
    heard_of: set[str] = set()
    for policy in policies:
        source = f"stored policy {policy.name!r}" + (" (inherited)" if policy.is_inherited else "")
        job = _JOBS.get(policy.type)
        if job is None:
            problems.append(Problem(None, source, f"type {policy.type!r} is none of a job's", holds=False))
            continue
        if job in heard_of:
            problems.append(Problem(job, source, f"is a second one of type {policy.type!r}; only one can hold"))
            continue
        heard_of.add(job)
        content = _content(policy.content)
        if isinstance(content, str):
            problems.append(Problem(job, source, content))
            continue
        heard = _translated(job, content, source)
        told += heard.told
        problems += heard.problems
    return Heard(tuple(told), tuple(problems))


def _content(text: str | None) -> Mapping[str, Any] | str:
    """What a policy says, or why it cannot be read."""
    try:
        content = json.loads(text or "", object_pairs_hook=_object)
    except _SaidTwiceError as error:
        return f"its content says {error.args[0]!r} twice"
    except (ValueError, RecursionError):
        return "its content is no JSON"
    if not isinstance(content, dict) or not isinstance(content.get("enable"), bool):
        return "its content does not say `enable`, true or false"
    if content.get("version", _VERSION) != _VERSION:
        return f"its content is of version {content['version']!r}; only {_VERSION} is known"
    if not isinstance(content.get("config", {}), dict):
        return "its `config` is no object"
    return content


class _SaidTwiceError(Exception):
    """A key that an object has twice: what the writer meant is not known."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _SaidTwiceError(key)
        found[key] = value
    return found


def _translated(job: str, content: Mapping[str, Any], source: str) -> Heard:
    told = {ENABLED: PolarisSetting(job, ENABLED, str(content["enable"]).lower(), source)}
    problems = []
    own = [(key, value) for key, value in content.items() if key not in _NOT_CONTENT]
    for key, value in (*content.get("config", {}).items(), *own):
        translate = _KEYS[job].get(key)
        if translate is None:
            is_a_wish = key.casefold() in ("enable", "enabled")
            problems.append(Problem(job, source, f"{key!r} is not taken", holds=is_a_wish))
            continue
        try:
            one = PolarisSetting(job, *translate(value), source)
        except (TypeError, ValueError, OverflowError):
            problems.append(Problem(job, source, f"{key!r} has a value that it cannot take"))
            continue
        if told.setdefault(one.key, one).text != one.text:
            problems.append(Problem(job, source, f"{key!r} contradicts another key: both say {one.key}"))
    return Heard(tuple(told.values()), tuple(problems))


def _number(value: Any) -> int:
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value):
            raise ValueError(value)
    elif isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value or value < 0:
        raise ValueError(value)
    return int(value)


def _as(key: str) -> Callable[[Any], tuple[str, str]]:
    return lambda value: (key, str(_number(value)))


def _days(value: Any) -> tuple[str, str]:
    return "older_than", f"{_number(value)}d"


def _moment(value: Any) -> tuple[str, str]:
    """A moment, which the schema has in seconds."""
    number = _number(value)
    return "older_than", format_time(number if number > _SECONDS_MAX else number * 1000)


def _strategy(value: Any) -> tuple[str, str]:
    known = {"bin-pack": "binpack", "binpack": "binpack", "sort": "sort"}
    if not isinstance(value, str) or value.lower() not in known:
        raise ValueError(value)
    return "strategy", known[value.lower()]


_KEYS: Mapping[str, Mapping[str, Callable[[Any], tuple[str, str]]]] = {
    "compact": {
        "target_file_size_bytes": _as("options.target-file-size-bytes"),
        "compaction_strategy": _strategy,
        **{
            name: _as(f"options.{name}")
            for name in (
                "max-concurrent-file-group-rewrites",
                "min-input-files",
                "min-file-size-bytes",
                "max-file-size-bytes",
                "max-file-group-size-bytes",
                "delete-file-threshold",
                "partial-progress.max-commits",
            )
        },
    },
    "rewrite_manifests": {"spec_id": _as("spec_id")},
    "expire_snapshots": {"min_snapshot_to_keep": _as("retain_last"), "max_snapshot_age_days": _days},
    "remove_orphan_files": {"max_orphan_file_age_in_days": _days, "older_than": _moment},
}
"""By job, and key of Polaris, what it is here. `location` and `locations` are missing on purpose: see `texts.py`."""
