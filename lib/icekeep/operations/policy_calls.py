"""A job that is called in the name of a policy (`--policy`): what the policy says now of the job on the table.

The caller may have decided hours ago, or by the file alone, as schedulers do. The table's owner, its catalog and the file are
asked again, as `maintain` asks them: a job that is switched off does nothing, one that is only to be observed is a dry run, and
it is done by the settings that are in force. Conditions (`when`) are not asked: only a look at the table's health could answer.

A caller that gives settings, such as a longer retention, a branch or the hash of an approved plan, means them: unless the policy
says the same, nothing is begun.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import NotFoundError, UsageError
from icekeep.operations.arguments import MAPPINGS, Command
from icekeep.operations.configuration.file import Configuration
from icekeep.operations.configuration.policy_tables import require_file, resolve_table
from icekeep.operations.configuration.setting_values import parse_option, parse_setting
from icekeep.operations.outcomes import Held
from icekeep.policies.resolution import held_by_now
from icekeep.policies.values import JobCall, Mode
from icekeep.settings import Job, SettingKind
from icekeep.spec.types import MINUTE_MS
from icekeep.spelling import named_or_known


def require_policy(config: Configuration, name: str) -> None:
    """Raise `NotFoundError` where the configuration has no policy of a name, or `ConfigError` where its schedule is wrong."""
    path = require_file(config)
    names = [policy.name for policy in config.policies]
    if name not in names:
        raise NotFoundError(f"there is no policy {name!r} in {path}; {named_or_known(name, names)}", policy=name)
    if name in config.wrong_schedules:
        raise config.wrong_schedules[name]


def call_values(call: JobCall, job: Job, now_ms: int) -> dict[str, Any]:
    """What a policy says of its job, as values by the function's keywords; ages are counted from `now_ms`.

    The configuration, or the table's properties, were read by the same settings, which say each value as `--NAME=TEXT`.
    """
    settings = {setting.flag: setting for setting in job.settings}
    values: dict[str, Any] = {}
    for word in call.arguments:
        flag, _, text = word.partition("=")
        setting = settings[flag]
        if setting.kind in MAPPINGS:
            name, value = parse_option(text)
            pairs = values.setdefault(setting.argument, {})
            if name in pairs:
                raise UsageError(f"argument {setting.flag}: {name!r} is given twice; give it once")
            pairs[name] = value
        else:
            is_switch = setting.kind is SettingKind.SWITCH
            values[setting.argument] = True if is_switch else parse_setting(setting, text, now_ms)
    return values


def policy_command(command: Command, job: Job, config: Configuration, table: Table, read_ms: int) -> Command | Held:
    """The command of a job as its policy wants it of a table now, or why it may not begin.

    Args:
        read_ms: when the command was read; what the policy says of ages is counted from then, as what the command says is.
    """
    policy = command.policy
    assert policy is not None
    found = resolve_table(config.rules, table.catalog, table.identifier, table.metadata.properties).rules
    held_by = held_by_now(found, job.name, policy, table.runtime.now_ms())
    if held_by is not None:
        return Held(held_by=held_by)
    rule = next(one for one in found.jobs if one.job == job.name)
    arguments = call_values(rule.call, job, read_ms)
    given, wanted = _by_setting(command.arguments, job), _by_setting(arguments, job)
    more = [flag for flag in given if flag not in wanted]
    if more:
        raise UsageError(
            f"policy {policy!r} does not say {', '.join(more)} of {job.name} on {table.name}; leave that out, or --policy, "
            "without which the job is done as you say"
        )
    others = [flag for flag in given if _differs(given[flag], wanted[flag])]
    if others:
        said = " ".join(rule.call.arguments)
        return Held(held_by=f"policy {policy!r} wants {said} of it now, and another {', '.join(others)} was asked for")
    observes = rule.mode is Mode.OBSERVE
    return msgspec.structs.replace(command, arguments=arguments, dry_run=command.dry_run or observes)


def _by_setting(arguments: Mapping[str, Any], job: Job) -> dict[str, tuple[SettingKind, Any]]:
    """What each setting says, by its flag; of a setting that has names below it, such as an option, each by itself."""
    found: dict[str, tuple[SettingKind, Any]] = {}
    for setting in job.settings:
        value = arguments.get(setting.argument)
        if isinstance(value, Mapping):
            found |= {f"{setting.flag} {name}": (setting.kind, one) for name, one in value.items()}
        elif value is not None:
            found[setting.flag] = setting.kind, value
    return found


def _differs(one: tuple[SettingKind, Any], other: tuple[SettingKind, Any]) -> bool:
    (kind, given), (_, wanted) = one, other
    if kind is SettingKind.TIME and isinstance(given, int) and isinstance(wanted, int):
        # An age is one moment now, and another a moment later.
        return abs(given - wanted) > MINUTE_MS
    return bool(given != wanted)
