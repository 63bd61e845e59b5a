"""A job that is called in the name of a policy (`--policy`): what is wanted of it on the table by now.

Who calls it may have decided hours ago, or by the file alone, as schedulers do. The table's owner, its catalog and the file are
asked again, as `maintain` asks them: so a job that is switched off by now does nothing, one that is only to be observed is a
dry run, and the settings that are in force hold. Conditions (`when`) are not asked: only a look at the table's health could
answer.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import NotFoundError
from icekeep.events import Listener, Warned, tell
from icekeep.operations.arguments import Command, parse_command
from icekeep.operations.configuration.file import Config
from icekeep.operations.configuration.policy_tables import require_file, resolve_table
from icekeep.policies.resolution import JobRule
from icekeep.policies.scheduling import held_by_now
from icekeep.policies.values import Mode
from icekeep.settings import Job, Kind
from icekeep.spec.units import MINUTE_MS

HELD = "held"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """In place of the result of a job that a policy asks for: it was not begun, and why."""

    held_by: str
    status: str = HELD


def require_policy(config: Config, name: str) -> None:
    """Raise `NotFoundError` where the configuration has no policy of a name, or there is none."""
    path = require_file(config)
    names = [policy.name for policy in config.policies]
    if name not in names:
        raise NotFoundError(
            f"there is no policy {name!r} in {path}; there is {', '.join(names) or 'none'}", policy=name
        )


def wanted_now(command: Command, job: Job, config: Config, table: Table, listener: Listener) -> Command | Held:
    """The command of a job as its policy wants it of a table by now, or why it may not begin.

    Raises:
        UsageError: the policy gives the job a setting that it cannot take.
        UnavailableError: the catalog, which stores policies, is out of reach.
    """
    policy, now_ms = command.policy, table.runtime.now_ms()
    assert policy is not None
    found = resolve_table(config.rules, table.catalog, table.identifier, table.metadata.properties).rules
    held_by = held_by_now(found, job.name, policy, now_ms)
    if held_by is not None:
        return Held(held_by=held_by)
    rule = next(one for one in found.jobs if one.job == job.name)
    arguments = _arguments(rule, now_ms)
    differ = [name for name in {**command.arguments, **arguments} if _differs(name, command.arguments, arguments, job)]
    if differ:
        wanted = " ".join(rule.call.arguments) or "no settings"
        tell(listener, Warned(f"policy {policy!r} wants {wanted} of {job.name} on this table by now: so it is done"))
    observes = rule.mode is Mode.OBSERVE
    return msgspec.structs.replace(
        command, arguments=arguments if differ else command.arguments, dry_run=command.dry_run or observes
    )


def _arguments(rule: JobRule, now_ms: int) -> dict[str, Any]:
    return parse_command([f"--table={rule.job}", *rule.call.arguments], rule.job, now_ms, "").arguments


def _differs(name: str, told: Mapping[str, Any], wanted: Mapping[str, Any], job: Job) -> bool:
    one, other = told.get(name), wanted.get(name)
    is_time = any(setting.argument == name and setting.kind is Kind.TIME for setting in job.settings)
    if is_time and isinstance(one, int) and isinstance(other, int):
        # An age is a moment by now, and another one a moment later.
        return abs(one - other) > MINUTE_MS
    return bool(one != other)
