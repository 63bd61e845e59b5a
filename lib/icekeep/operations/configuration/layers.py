"""Layers of policies (`policies/values.py`) from entries of the configuration file, and from texts that stand elsewhere.

Both are read to the same values by the settings of the jobs, so that what a property of a table says is what the file says.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from icekeep.errors import ConfigError, UsageError
from icekeep.maintenance.options import parse_options
from icekeep.operations.configuration.documents import Entry
from icekeep.operations.configuration.setting_values import read_setting, setting_arguments
from icekeep.operations.configuration.shape import DEPLOY_MODES, KEYS_OF_ALL_JOBS
from icekeep.operations.jobs import JOBS, POLICY_JOBS, resolve
from icekeep.policies.resolution import parse_schedule
from icekeep.policies.table_properties import OutsideSetting, OutsideSettings, Problem
from icekeep.policies.values import ENABLED, WHEN, Layer, LayerKind, Mode, PolicyValue
from icekeep.policies.windows import (
    DAY_MINUTES,
    DAYS,
    Window,
    parse_clock,
    parse_condition,
    parse_day,
    parse_zone,
)
from icekeep.settings import Setting
from icekeep.settings import SettingKind as SettingKind
from icekeep.spec.times import span_ms
from icekeep.spec.types import parse_bytes

_MAPPINGS = (SettingKind.OPTIONS, SettingKind.PAIRS)
_WORDS = {"true": True, "false": False}


def layer_of(
    entry: Entry, kind: LayerKind, name: str = "", wrong_schedules: dict[str, ConfigError] | None = None
) -> Layer:
    """What an entry of the file says; raises `ConfigError` where it says something wrong.

    Args:
        wrong_schedules: takes the error of its schedule by its name, which is none then; `None`: that is raised.
    """
    given, jobs = entry.mapping(), entry.below("jobs")
    keys: dict[str, PolicyValue] = {}
    for key, below in ((key, given[key]) for key in KEYS_OF_ALL_JOBS if key in given):
        if key == "spark_conf":
            keys |= {f"{key}.{one}": _policy_value(item, item.scalar()) for one, item in below.mapping().items()}
        elif key == "schedule":
            keys[key] = _policy_value(below, _schedule(below, name, wrong_schedules))
        else:
            keys[key] = _policy_value(below, _READERS.get(key, Entry.plain)(below))
    return Layer(
        kind=kind, name=name, keys=keys, jobs={job: _job(job, jobs[job]) for job in POLICY_JOBS if job in jobs}
    )


def layer_of_settings(outside: OutsideSettings, kind: LayerKind, name: str = "") -> tuple[Layer, tuple[Problem, ...]]:
    """Settings from outside the file, as a layer, and what of them is not understood; that holds its job, or all."""
    keys: dict[str, PolicyValue] = {}
    jobs: dict[str, dict[str, PolicyValue]] = {}
    problems = list(outside.problems)
    for one in outside.settings:
        try:
            value, order = _value(one)
        except UsageError as error:
            problems.append(Problem(one.job, one.source, error.message))
            continue
        into = keys if one.job is None else jobs.setdefault(one.job, {})
        into[one.key] = PolicyValue(one.text, value, one.source, order)
    holding = [problem for problem in problems if problem.holds]
    layer = Layer(
        kind=kind,
        name=name,
        keys=keys,
        jobs=jobs,
        is_doubtful=any(problem.job is None for problem in holding),
        doubtful_jobs=frozenset(problem.job for problem in holding if problem.job is not None),
    )
    return layer, tuple(problems)


def _job(job: str, entry: Entry) -> dict[str, PolicyValue]:
    """What is said of a job. One without settings may stand there without a value."""
    if entry.kind == "null":
        return {}
    given, found = entry.mapping(), {}
    if ENABLED in given:
        found[ENABLED] = _policy_value(given[ENABLED], given[ENABLED].plain())
    for key, below in entry.below(WHEN).items():
        found[f"{WHEN}.{key}"] = _policy_value(below, below.parsed(partial(parse_condition, key)))
    for order, setting in enumerate(JOBS[job].settings):
        if setting.name in given:
            found |= _setting(setting, order, given[setting.name])
    return found


def _setting(setting: Setting, order: int, entry: Entry) -> dict[str, PolicyValue]:
    arguments = read_setting(setting, entry)
    if setting.kind not in _MAPPINGS:
        return {setting.name: _policy_value(entry, arguments, order)}
    below = entry.mapping().items()
    return {
        f"{setting.name}.{key}": _policy_value(item, (argument,), order)
        for (key, item), argument in zip(below, arguments, strict=True)
    }


def _value(given: OutsideSetting) -> tuple[Any, int]:
    """What a text means, and where its setting stands; raises `UsageError`."""
    first, _, rest = given.key.partition(".")
    if given.key == ENABLED:
        if given.text.strip().lower() not in _WORDS:
            raise UsageError(f"{given.text!r} is neither true nor false")
        return _WORDS[given.text.strip().lower()], 0
    if given.job is None:
        return Mode(given.text.strip().lower()), 0
    if first == WHEN:
        return parse_condition(rest, given.text), 0
    if first == ENABLED:
        raise UsageError(f"{first!r} has nothing below it")
    settings = JOBS[given.job].settings
    order, setting = next((n, one) for n, one in enumerate(settings) if one.name == first)
    if bool(rest) != (setting.kind in _MAPPINGS):
        raise UsageError(f"give {first}.NAME" if not rest else f"{first!r} has nothing below it")
    named = JOBS[given.job].options
    if setting.kind is SettingKind.OPTIONS and named is not None:
        options: Any = resolve(named)
        parse_options(options, {rest: given.text.strip()})
    return setting_arguments(setting, given.text.strip(), rest), order


def _policy_value(entry: Entry, value: Any, order: int = 0) -> PolicyValue:
    if isinstance(value, Window):
        text = str(value)
    elif value is None:
        text = "null"
    else:
        text = ", ".join(str(item.value) for item in entry.each())
    source = f"{entry.place.rpartition(', line ')[0]}: {entry.key_path}"
    return PolicyValue(text, value, source, order)


def _files(entry: Entry) -> tuple[str, ...]:
    """One file, or a list of them, each as spark-submit takes it."""
    for item in entry.each():
        if not item.scalar().strip():
            raise item.wrong("is empty")
        if "," in item.scalar():
            raise item.wrong("holds a comma; give several files as a list")
    return tuple(item.scalar() for item in entry.each())


def _size(entry: Entry) -> int | None:
    size: int | None = parse_bytes(entry.scalar()) if entry.kind == "str" else entry.plain()
    if size is None and entry.kind != "null":
        raise entry.wrong("should be a whole number of bytes, or a size such as 2GiB")
    return size


def _schedule(entry: Entry, name: str, wrong: dict[str, ConfigError] | None) -> str | None:
    if entry.kind == "null":
        return None
    try:
        if entry.kind != "str":
            raise entry.wrong_type("text")
        return entry.parsed(parse_schedule)
    except ConfigError as error:
        if wrong is None:
            raise
        wrong[name] = error
        return None


def _window(entry: Entry) -> Window:
    given = entry.mapping()
    minutes = {key: given[key].parsed(parse_clock) for key in ("from", "to") if key in given}
    if minutes.get("from") == DAY_MINUTES or minutes.get("to") == 0:
        raise entry.wrong("opens at 24:00 or closes at 00:00; write midnight as `from: 00:00` or `to: 24:00`")
    if len({*minutes.values()}) < len(minutes):
        raise entry.wrong("opens and closes at the same time of the day; give two, or leave both out for the whole day")
    days = {item.parsed(parse_day) for item in given["days"].each()} if "days" in given else range(len(DAYS))
    zone = given["zone"].parsed(parse_zone) if "zone" in given else "UTC"
    return Window(
        from_minute=minutes.get("from", 0),
        to_minute=minutes.get("to", DAY_MINUTES),
        days=tuple(sorted(days)),
        zone=zone,
    )


_READERS: Mapping[str, Callable[[Entry], Any]] = {
    "mode": lambda entry: Mode(entry.word([mode.value for mode in Mode])),
    "window": _window,
    "retry_delay": lambda entry: entry.parsed(span_ms),
    "timeout": lambda entry: entry.parsed(span_ms),
    "deploy_mode": lambda entry: entry.word(DEPLOY_MODES),
    "py_files": _files,
    "archives": _files,
    "files": _files,
    "submit_over": _size,
}
"""Of keys of a layer; what others say is their value."""
