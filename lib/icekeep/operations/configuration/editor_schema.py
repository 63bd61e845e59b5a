"""The JSON schema of the configuration file, for editors: made from the keys and settings that the loader goes by.

It says of a file what can be said of each value by itself: keys, types, forms, words. Whatever fails here is refused by the
loader (but for `yes` and `no`, which only YAML 1.1 takes for booleans); what the loader holds against other values, such as
names that are given twice, it does not say.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from icekeep.catalog.open import CATALOG_TYPES
from icekeep.health.prices import Prices
from icekeep.operations.configuration import file as receivers
from icekeep.operations.configuration import file as runs
from icekeep.operations.configuration import layers
from icekeep.operations.configuration.file import CATALOG_NAME, CURRENCY, KEYS
from icekeep.operations.configuration.policies import DEPLOY_MODES, POLICY_KEYS, POLICY_NAME, SCHEDULE_KEYS
from icekeep.operations.console.looks import FORMATS
from icekeep.operations.jobs import JOBS, POLICY_JOBS, resolve
from icekeep.policies.values import KEYS_OF_JOBS, Mode
from icekeep.policies.windows import CONDITIONS, SPANS
from icekeep.settings import Setting, SettingKind
from icekeep.spec.times import AGE
from icekeep.telemetry.notifications import OUTCOMES

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Schema = {"type": "string", "pattern": r"\S"}
_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_BOOLEAN: Schema = {"type": "boolean"}
_SPAN: Schema = {"type": "string", "pattern": rf"^\s*(?:{AGE.pattern})\s*$"}
_CLOCK: Schema = {"anyOf": [{"type": "string", "pattern": r"^\s*[0-9]{1,2}:[0-5][0-9]\s*$"}, {"type": "integer"}]}
"""22:00 is a number for readers of YAML 1.1."""
_SIZE: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[kKmMgGtTpP]?([iI]?[bB])?\s*$"},
    ]
}


def configuration_schema() -> Schema:
    readers: Mapping[str, Schema] = {
        "catalogs": _named(_catalog(), CATALOG_NAME),
        "prices": _prices(),
        runs.RUNS: _keys(runs.RUNS_KEYS, {"uri": _TEXT, "enabled": _BOOLEAN, "keep": _SPAN, "table": _TEXT}),
        receivers.LOG: _keys(receivers.LOG_KEYS, {"format": {"enum": [*FORMATS]}}),
        receivers.METRICS: _keys(
            receivers.METRICS_KEYS, {"file": _TEXT, "pushgateway": _TEXT, "labels": _named(_SCALAR, receivers.LABEL)}
        ),
        receivers.NOTIFICATIONS: {"type": "array", "items": _notification()},
        "defaults": _keys(layers.KEYS | SCHEDULE_KEYS, _POLICY),
        "policies": {"type": "array", "items": _policy()},
        "namespaces": _named(_keys(layers.KEYS, _POLICY)),
        "tables": _named(_keys(layers.KEYS, _POLICY)),
    }
    schedule_is_common = {"required": ["defaults"], "properties": {"defaults": {"required": ["schedule"]}}}
    return {
        "$schema": _DIALECT,
        "title": "The configuration of icekeep",
        **_keys(KEYS, readers),
        "type": ["object", "null"],
        "if": {"type": "object", "not": schedule_is_common},
        "then": {"properties": {"policies": {"items": {"required": ["schedule"]}}}},
        "$defs": {"jobs": _keys(POLICY_JOBS, {job: _job(job) for job in POLICY_JOBS})},
    }


def _keys(known: Collection[str], schemas: Mapping[str, Schema]) -> Schema:
    """An object with these keys and no other. A key that has no schema is a mistake here, and raises `KeyError`."""
    return {"type": "object", "properties": {key: schemas[key] for key in sorted(known)}, "additionalProperties": False}


def _named(schema: Schema, name: re.Pattern[str] | None = None) -> Schema:
    """An object with names, perhaps of a pattern, and the same below each."""
    names = {} if name is None else {"propertyNames": {"pattern": f"^(?:{name.pattern})$"}}
    return {"type": "object", **names, "additionalProperties": schema}


def _one_or_several(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


def _catalog() -> Schema:
    """Which types there are is known when a catalog is opened; those of icekeep are offered."""
    return {
        "type": "object",
        "properties": {"type": {"anyOf": [{"enum": [*CATALOG_TYPES]}, _TEXT]}},
        "required": ["type"],
        "additionalProperties": _SCALAR,
    }


def _prices() -> Schema:
    price = {"type": "number", "minimum": 0}
    return _keys(Prices.__struct_fields__, {**dict.fromkeys(Prices.__struct_fields__, price), CURRENCY: _TEXT})


def _notification() -> Schema:
    known = {
        "url": _TEXT,
        "when": {"type": "array", "items": {"enum": [*OUTCOMES]}, "minItems": 1},
        "jobs": {"type": "array", "items": {"enum": [*receivers.notifying_jobs()]}, "minItems": 1},
    }
    return {**_keys(receivers.NOTIFICATION_KEYS, known), "required": ["url"]}


def _policy() -> Schema:
    return {
        **_keys(POLICY_KEYS, _POLICY),
        "required": ["name", "jobs"],
        "anyOf": [{"required": ["tables"]}, {"required": ["match"]}],
    }


def _job(job: str) -> Schema:
    """What can be said of a job; one without settings may stand there without a value."""
    of_all = {
        "enabled": _BOOLEAN,
        "when": _keys(CONDITIONS, {one: _SPAN if one in SPANS else _condition() for one in CONDITIONS}),
    }
    settings = {setting.name: _setting(job, setting) for setting in JOBS[job].settings}
    known = _keys([*KEYS_OF_JOBS, *settings], {**of_all, **settings})
    return {**known, "type": ["object", "null"], "description": JOBS[job].summary}


def _condition() -> Schema:
    return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*$"}]}


def _setting(job: str, setting: Setting) -> Schema:
    """The value of a setting, as `setting_values.read_setting` takes it."""
    whole = {"type": "integer", "minimum": setting.minimum}
    match setting.kind:
        case SettingKind.SWITCH:
            schema = _BOOLEAN
        case SettingKind.OPTIONS:
            schema = {
                "type": "object",
                "properties": dict.fromkeys(_options(job), _SCALAR),
                "additionalProperties": _SCALAR,
            }
        case SettingKind.PAIRS:
            schema = {"type": "object", "additionalProperties": _SCALAR}
        case SettingKind.NUMBER:
            schema = whole
        case SettingKind.IDS:
            schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
        case SettingKind.NAMES | SettingKind.LOCATIONS:
            schema = {"type": "array", "items": _TEXT, "minItems": 1}
        case SettingKind.TIME | SettingKind.DAYS | SettingKind.NUMBER_OR_ALL:
            schema = {"type": ["string", "integer"]}
        case SettingKind.AGE:
            schema = _SPAN
        case SettingKind.TEXT | SettingKind.NAME | SettingKind.FILTER | SettingKind.MANIFEST_FILTER:
            schema = _TEXT
    return {**schema, "description": setting.help}


def _options(job: str) -> list[str]:
    options: Any = JOBS[job].options and resolve(JOBS[job].options or "")
    return [one.encode_name for one in msgspec.structs.fields(options)] if options else []


_POLICY: Mapping[str, Schema] = {
    "name": {"type": "string", "pattern": f"^(?:{POLICY_NAME.pattern})$"},
    "tables": {"type": "array", "items": _TEXT, "minItems": 1},
    "match": _one_or_several(_TEXT),
    "except": _one_or_several(_TEXT),
    "jobs": {"$ref": "#/$defs/jobs"},
    "enabled": _BOOLEAN,
    "mode": {"enum": [mode.value for mode in Mode]},
    "window": _keys(
        layers.WINDOW_KEYS,
        {"from": _CLOCK, "to": _CLOCK, "days": {"type": "array", "items": _TEXT, "minItems": 1}, "zone": _TEXT},
    ),
    "schedule": {"anyOf": [_TEXT, {"type": "null"}]},
    "retries": {"type": "integer", "minimum": 0},
    "retry_delay": _SPAN,
    "timeout": _SPAN,
    "pool": _TEXT,
    "connection": _TEXT,
    "deploy_mode": {"enum": [*DEPLOY_MODES]},
    "spark_conf": {"type": "object", "additionalProperties": _SCALAR},
    "py_files": _one_or_several(_TEXT),
    "archives": _one_or_several(_TEXT),
    "files": _one_or_several(_TEXT),
    "submit_over": {"anyOf": [*_SIZE["anyOf"], {"type": "null"}]},
}
"""Every key of a policy; layers take some of them."""
