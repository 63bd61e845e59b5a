"""Policies that Polaris stores, translated into settings of our jobs.

Of each type only one holds for a table, the innermost of catalog, namespace and table: the server chooses. The formats are
Polaris' own schemas of 2025-02-03 (`schemas/policies/system/TYPE`). What a format leaves to free keys (`config`) is used where
its meaning is known, and reported where not. A policy that contradicts itself holds its job.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from icekeep.catalog.base import StoredPolicy
from icekeep.policies.table_properties import OutsideSetting, OutsideSettings, Problem
from icekeep.policies.values import ENABLED
from icekeep.spec.times import format_time

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


def settings_of_polaris(policies: Iterable[StoredPolicy]) -> OutsideSettings:
    """What stored policies say of our jobs. One that cannot be read holds its job; one of another type is passed over.

    >>> week = StoredPolicy("system.snapshot-expiry", "week", '{"enable": true, "config": {"max_snapshot_age_days": 7}}')
    >>> [(one.job, one.key, one.text) for one in settings_of_polaris([week]).settings]
    [('expire_snapshots', 'enabled', 'true'), ('expire_snapshots', 'older_than', '7d')]
    """
    settings: list[OutsideSetting] = []
    problems: list[Problem] = []
    jobs: set[str] = set()
    for policy in policies:
        source = f"stored policy {policy.name!r}" + (" (inherited)" if policy.is_inherited else "")
        job = _JOBS.get(policy.type)
        if job is None:
            problems.append(Problem(None, source, f"type {policy.type!r} is none of a job's", holds=False))
            continue
        if job in jobs:
            problems.append(Problem(job, source, f"is a second one of type {policy.type!r}; only one can hold"))
            continue
        jobs.add(job)
        content = _content(policy.content)
        if isinstance(content, str):
            problems.append(Problem(job, source, content))
            continue
        translated = _translated(job, content, source)
        settings += translated.settings
        problems += translated.problems
    return OutsideSettings(tuple(settings), tuple(problems))


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


def _translated(job: str, content: Mapping[str, Any], source: str) -> OutsideSettings:
    settings = {ENABLED: OutsideSetting(job, ENABLED, str(content["enable"]).lower(), source)}
    problems = []
    own = [(key, value) for key, value in content.items() if key not in _NOT_CONTENT]
    for key, value in (*content.get("config", {}).items(), *own):
        translate = _KEYS[job].get(key)
        if translate is None:
            is_a_wish = key.casefold() in ("enable", "enabled")
            problems.append(Problem(job, source, f"{key!r} is not taken", holds=is_a_wish))
            continue
        try:
            one = OutsideSetting(job, *translate(value), source)
        except (TypeError, ValueError, OverflowError):
            problems.append(Problem(job, source, f"{key!r} has a value that it cannot take"))
            continue
        if settings.setdefault(one.key, one).text != one.text:
            problems.append(Problem(job, source, f"{key!r} contradicts another key: both say {one.key}"))
    return OutsideSettings(tuple(settings.values()), tuple(problems))


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
"""By job, and key of Polaris, what it is here. `location` and `locations` are missing on purpose."""
