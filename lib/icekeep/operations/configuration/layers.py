"""Layers of policies (`policies/values.py`) from entries of the configuration file, and from texts that stand elsewhere.

Both are read to the same values by the settings of the jobs, so that what a property of a table says is what the file says.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from icekeep.errors import UsageError
from icekeep.maintenance.options import parse_options
from icekeep.operations.configuration.documents import Entry
from icekeep.operations.configuration.setting_values import read_setting, setting_arguments
from icekeep.operations.jobs import JOBS, POLICY_JOBS, resolve
from icekeep.policies.table_properties import OutsideSetting, OutsideSettings, Problem
from icekeep.policies.values import ENABLED, KEYS_OF_JOBS, MODE, WHEN, WINDOW, Layer, LayerKind, Mode, PolicyValue
from icekeep.policies.windows import (
    CONDITIONS,
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

V = TypeVar("V")

KEYS = frozenset({ENABLED, MODE, WINDOW, "jobs"})
"""What each layer of the file may say."""

WINDOW_KEYS = frozenset({"from", "to", "days", "zone"})

_MAPPINGS = (SettingKind.OPTIONS, SettingKind.PAIRS)
_WORDS = {"true": True, "false": False}


def layer_of(
    entry: Entry,
    kind: LayerKind,
    *,
    name: str = "",
    extra_keys: Collection[str] = (),
    more: Mapping[str, PolicyValue] | None = None,
    jobs: Entry | None = None,
) -> Layer:
    """What an entry of the file says; raises `ConfigError` where it says something wrong.

    Args:
        extra_keys: keys that it may have beside `KEYS`; `more` is what they say.
        jobs: its entry of jobs, where it must have one.
    """
    given = entry.mapping(KEYS | {*extra_keys})
    readers = {ENABLED: Entry.boolean, MODE: _mode, WINDOW: _window}
    keys = {key: _policy_value(given[key], read(given[key])) for key, read in readers.items() if key in given}
    below = given.get("jobs") if jobs is None else jobs
    return Layer(kind=kind, name=name, keys={**keys, **(more or {})}, jobs={} if below is None else _jobs(below))


def layer_of_settings(outside: OutsideSettings, kind: LayerKind, name: str = "") -> tuple[Layer, tuple[Problem, ...]]:
    """Settings from outside the file, as a layer, and what of them is not understood; that holds its job, or all."""
    keys: dict[str, PolicyValue] = {}
    jobs: dict[str, dict[str, PolicyValue]] = {}
    problems = list(outside.problems)
    for one in outside.told:
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


def source_of(entry: Entry) -> str:
    """Where an entry stands, as people are told: the file and the key."""
    return f"{entry.place.rpartition(', line ')[0]}: {entry.key_path}"


def span_of(entry: Entry) -> int:
    return _parsed(entry, entry.text("a span such as 30m, 36h or 7d"), span_ms)


def _jobs(entry: Entry) -> dict[str, dict[str, PolicyValue]]:
    given = entry.mapping(POLICY_JOBS)
    return {job: _job(job, given[job]) for job in POLICY_JOBS if job in given}


def _job(job: str, entry: Entry) -> dict[str, PolicyValue]:
    """What is said of a job. One without settings may stand there without a value."""
    if entry.is_null:
        return {}
    given, settings = entry.mapping(), {setting.name: setting for setting in JOBS[job].settings}
    for key, below in given.items():
        if key not in settings and key not in KEYS_OF_JOBS:
            known = f"{', '.join(sorted(settings))}; and beside them {', '.join(KEYS_OF_JOBS)}"
            raise below.unknown(key, [*settings, *KEYS_OF_JOBS], known)
    found: dict[str, PolicyValue] = {}
    if ENABLED in given:
        found[ENABLED] = _policy_value(given[ENABLED], given[ENABLED].boolean())
    if WHEN in given:
        for key, below in given[WHEN].mapping(CONDITIONS).items():
            found[f"{WHEN}.{key}"] = _policy_value(below, _condition(key, below))
    for order, setting in enumerate(settings.values()):
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
    return PolicyValue(_text(entry, value), value, source_of(entry), order)


def _text(entry: Entry, value: Any) -> str:
    if isinstance(value, Window):
        return str(value)
    if isinstance(entry.value, tuple):
        return ", ".join(str(item.value) for item in entry.value)
    return str(entry.value)


def _condition(name: str, entry: Entry) -> int | float:
    return _parsed(entry, entry.scalar(), partial(parse_condition, name))


def _mode(entry: Entry) -> Mode:
    text = entry.text()
    known = [mode.value for mode in Mode]
    if text not in known:
        raise entry.wrong(f"{text!r} is no mode; there is {', '.join(known)}")
    return Mode(text)


def _window(entry: Entry) -> Window:
    given = entry.mapping(WINDOW_KEYS)
    minutes = {key: _parsed(given[key], given[key].scalar(), parse_clock) for key in ("from", "to") if key in given}
    if minutes.get("from") == DAY_MINUTES or minutes.get("to") == 0:
        raise entry.wrong("opens at 24:00 or closes at 00:00; write midnight as `from: 00:00` or `to: 24:00`")
    if len({*minutes.values()}) < len(minutes):
        raise entry.wrong("opens and closes at the same time of the day; give two, or leave both out for the whole day")
    days = tuple(range(len(DAYS)))
    if "days" in given:
        days = tuple(sorted({_parsed(item, item.text(), parse_day) for item in given["days"].sequence()}))
        if not days:
            raise given["days"].wrong(f"is empty; there is {', '.join(DAYS)}")
    zone = _parsed(given["zone"], given["zone"].text(), parse_zone) if "zone" in given else "UTC"
    return Window(from_minute=minutes.get("from", 0), to_minute=minutes.get("to", DAY_MINUTES), days=days, zone=zone)


def _parsed(entry: Entry, text: str, parse: Callable[[str], V]) -> V:
    try:
        return parse(text)
    except UsageError as error:
        raise entry.wrong(error.message) from None
