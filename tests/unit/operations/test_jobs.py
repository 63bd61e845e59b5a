"""The list of all jobs."""

import inspect
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

from contracts.job_contract import JobContract
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.commands.maintain import FleetOptions
from icekeep.operations.configuration.setting_values import parse_setting
from icekeep.operations.jobs import JOBS, resolve
from icekeep.settings import Job, SettingKind
from kit.cases import for_each


@for_each("job", JOBS.values(), ids=lambda job: job.name)
def test_every_job_has_a_test_that_inherits_the_contract_of_jobs(job: Job) -> None:
    package = job.run.partition(":")[0].removeprefix("icekeep.").rpartition(".")[0]
    tests = vars(import_module(f"unit.{package}.test_job_contract")).values()
    assert [
        one for one in tests if isinstance(one, type) and issubclass(one, JobContract) and vars(one).get("job") is job
    ]


TYPES = {
    SettingKind.SWITCH: bool,
    SettingKind.NUMBER: int,
    SettingKind.NUMBER_OR_ALL: int | str,
    SettingKind.AGE: int,
    SettingKind.TIME: int,
    SettingKind.DAYS: int,
    SettingKind.IDS: Sequence[int],
    SettingKind.NAMES: Sequence[str],
    SettingKind.LOCATIONS: Sequence[str],
    SettingKind.PAIRS: Mapping[str, str],
}
"""What the argument of a setting is, perhaps beside `None`; of the other kinds it can be text, and of options a mapping."""


@for_each(
    ("name", "settings", "function"),
    [
        *((job.name, job.settings, job.run) for job in JOBS.values()),
        *((words, spec.settings + spec.one_of, spec.run) for words, spec in COMMANDS.items()),
    ],
)
def test_settings_say_the_names_types_and_defaults_of_arguments(name, settings, function):
    called = FleetOptions if name == "maintain" else resolve(function)
    parameters = {p.name: p for p in inspect.signature(called).parameters.values() if p.kind is not p.VAR_KEYWORD}
    if name in JOBS and name != "plan_scan":
        assert {one.argument for one in settings} == parameters.keys() - {"table", "spark", "listener", "saved"}
    for setting in settings if name != "plan_scan" else ():
        parameter = parameters[setting.argument]
        taken = {parameter.annotation, *get_args(parameter.annotation)}
        expected = TYPES.get(setting.kind, Mapping[str, Any] if setting.kind is SettingKind.OPTIONS else str)
        assert {expected, *get_args(expected)} & taken or expected in taken, (setting.name, parameter.annotation)
        said = re.search(r"\(default: ([^)]*)\)", setting.help)
        if isinstance(parameter.default, int | str) and parameter.default not in (False, ""):
            default = getattr(parameter.default, "value", parameter.default)
            assert said is not None, setting.name
            assert parse_setting(setting, said[1], 0) == default, setting.name
