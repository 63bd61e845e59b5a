"""Policies outside the configuration file: what properties of a table, or policies that its catalog stores, say of its jobs.

Anyone who may write a table sets its properties. So these may say how well the table is kept and how long its history is, and
switch jobs off; they may not say where files are deleted, nor take away a check that guards files: `OWNERS_SETTINGS` is all
they may say.
"""

from collections.abc import Mapping

import msgspec

from icekeep.policies.values import ENABLED, MODE, WHEN, Mode
from icekeep.spec.readers import CONSUMER

PREFIX = "icekeep."
OWNERS_SETTINGS: Mapping[str, frozenset[str]] = {
    "expire_rows": frozenset({"where", "edge", "branch"}),
    "compact": frozenset({"strategy", "sort_order", "where", "options", "branch", "verify"}),
    "rewrite_position_deletes": frozenset({"where", "options", "branch", "convert_equality_deletes"}),
    "rewrite_manifests": frozenset({"spec_id", "sort_by", "where", "workload", "options", "branch"}),
    "compute_partition_stats": frozenset({"snapshot_id", "count_rows"}),
    "compute_table_stats": frozenset({"snapshot_id", "column"}),
    "expire_snapshots": frozenset({"older_than", "retain_last", "clean_expired_metadata"}),
    "remove_orphan_files": frozenset({"older_than"}),
    "check": frozenset({"deep", "all_of", "ref"}),
}
"""By job what may be said outside the configuration file; all else stands there alone."""

_OWN_KEYS = frozenset({"icekeep.order", "icekeep.commit-id"})
"""Properties and summaries of icekeep's own that say nothing of policies."""


class OutsideSetting(msgspec.Struct, frozen=True):
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
    """Something that is said and is not understood, or not done.

    Attributes:
        job: whose; `None` where it is said of all jobs, or it is not clear of which.
        source: where it stands.
        holds: whether the job, or without one all, must wait until it is set right; else it is passed over.
    """

    job: str | None
    source: str
    problem: str
    holds: bool = True


class OutsideSettings(msgspec.Struct, frozen=True):
    """What is said outside the configuration file."""

    settings: tuple[OutsideSetting, ...] = ()
    problems: tuple[Problem, ...] = ()


def settings_of_properties(properties: Mapping[str, str]) -> OutsideSettings:
    """What the properties of a table say: `icekeep.enabled`, `icekeep.mode`, `icekeep.JOB.KEY`.

    >>> settings_of_properties({"icekeep.compact.enabled": "false"}).settings
    (OutsideSetting(job='compact', key='enabled', text='false', source='table property icekeep.compact.enabled'),)
    """
    settings, problems = [], []
    for name in sorted(properties):
        plain = name.strip().casefold()
        # Of one that is spelled otherwise, too, it is said so: it may be an owner's wish to be left alone.
        if not plain.startswith(PREFIX) or name in _OWN_KEYS or name.startswith(CONSUMER):
            continue
        source = f"table property {name}"
        if not name.startswith(PREFIX):
            problems.append(Problem(None, source, f"write it as {plain}: case and spaces count"))
            continue
        first, _, rest = name.removeprefix(PREFIX).partition(".")
        if name == f"{PREFIX}{MODE}" and properties[name].strip().lower() != Mode.OBSERVE.value:
            problems.append(
                Problem(None, source, "only `observe` can be set here; what is to run, the configuration says")
            )
        elif name.removeprefix(PREFIX) in (ENABLED, MODE):
            settings.append(OutsideSetting(None, first, properties[name], source))
        elif first not in OWNERS_SETTINGS:
            known = f"icekeep.enabled, icekeep.mode, and those of a job: icekeep.{next(iter(OWNERS_SETTINGS))}.enabled"
            problems.append(Problem(None, source, f"there is no such property; there is {known}"))
        elif (problem := refused(first, rest)) is not None:
            problems.append(Problem(first, source, problem))
        else:
            settings.append(OutsideSetting(first, rest, properties[name], source))
    return OutsideSettings(tuple(settings), tuple(problems))


def refused(job: str, key: str) -> str | None:
    """Why a key of a job may not be said outside the configuration file; `None` where it may."""
    setting = key.partition(".")[0]
    allowed = OWNERS_SETTINGS[job]
    if setting in allowed or setting in (ENABLED, WHEN):
        return None
    return f"{setting!r} cannot be set here, only in the configuration file; there is {', '.join(sorted(allowed))}"
