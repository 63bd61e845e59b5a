"""The policies of the configuration, and the layers that change them: `defaults`, `policies`, `namespaces`, `tables`.

Entries of the file in, frozen values out, every wrong key named. A policy's settings become the arguments of the jobs' own
command line, so that there is one way to tell a job something.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from icekeep.decoding import from_plain
from icekeep.errors import UsageError
from icekeep.names import FULL_NAME, name_of_form
from icekeep.operations.configuration.documents import Entry
from icekeep.operations.configuration.layers import KEYS, layer_of, source_of, span_of
from icekeep.operations.jobs import POLICY_JOBS
from icekeep.policies.resolution import SCHEDULE_FORM, JobRule, layered, parse_schedule
from icekeep.policies.values import SUBMIT_OVER, Glob, JobCall, Layer, LayerKind, Policy, PolicyValue, Rules, parse_glob

RULES_KEYS = frozenset({"defaults", "policies", "namespaces", "tables"})
"""Keys of the file that say what is done to tables."""

POLICY_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_SPARK_CONF = "spark_conf"
_FIELDS = {"retry_delay": "retry_delay_ms", "timeout": "timeout_ms", SUBMIT_OVER: "submit_over_bytes"}
DEPLOY_MODES = ("client", "cluster")


def read_rules(given: Mapping[str, Entry], catalogs: Collection[str] = ()) -> Rules:
    """What the keys `RULES_KEYS` of a file say; raises `ConfigError` where one is not what it must be.

    Whether a table's catalog exists is not asked: it may be configured elsewhere, in Spark's configuration for example.

    Args:
        catalogs: those of the file.
    """
    defaults = Layer(kind=LayerKind.DEFAULTS)
    if "defaults" in given:
        entry = given["defaults"]
        defaults = layer_of(entry, LayerKind.DEFAULTS, extra_keys=SCHEDULE_KEYS, more=_scheduling(entry))
    return Rules(
        defaults=defaults,
        policies=_policies(given["policies"], defaults, frozenset(catalogs)) if "policies" in given else (),
        job_names=POLICY_JOBS,
        namespaces=_layers(given["namespaces"], LayerKind.NAMESPACE, "CATALOG") if "namespaces" in given else {},
        tables=_layers(given["tables"], LayerKind.TABLE, FULL_NAME) if "tables" in given else {},
    )


def _policies(entry: Entry, defaults: Layer, catalogs: frozenset[str]) -> tuple[Policy, ...]:
    policies: dict[str, Policy] = {}
    for item in entry.sequence():
        policy = _policy(item, defaults, catalogs)
        if policy.name in policies:
            raise item.required("name").wrong(f"{policy.name!r} is the name of an earlier policy")
        policies[policy.name] = policy
    return tuple(policies.values())


def _policy(entry: Entry, defaults: Layer, catalogs: frozenset[str]) -> Policy:
    given = entry.mapping(POLICY_KEYS)
    name = _name(entry.required("name"))
    if "schedule" not in defaults.keys:
        entry.required("schedule", SCHEDULE_FORM)
    layer = layer_of(
        entry, LayerKind.POLICY, name=name, extra_keys=POLICY_KEYS, more=_scheduling(entry), jobs=entry.required("jobs")
    )
    if not layer.jobs:
        raise given["jobs"].wrong(f"is empty; name at least one of {', '.join(POLICY_JOBS)}")
    tables = _tables(entry.required("tables")) if "tables" in given or "match" not in given else ()
    excepted = _globs(given["except"]) if "except" in given else ()
    for table in tables:
        for glob in excepted:
            if glob.matches(table):
                raise given["except"].wrong(f"{glob.text!r} takes table {table!r} out, which `tables` lists")
    both = {value.key: value.said.value for value in layered((defaults, layer), None)}
    of_schedule = {_FIELDS.get(key, key): both[key] for key in SCHEDULE_KEYS & both.keys()}
    conf = {key: value for key, value in both.items() if key.startswith(f"{_SPARK_CONF}.")}
    return from_plain(
        {
            "name": name,
            "tables": tables,
            "calls": _calls(layer, defaults),
            "layer": layer,
            "match": _globs(given["match"]) if "match" in given else (),
            "excepted": excepted,
            "catalogs": catalogs,
            "spark_conf": tuple((key.removeprefix(f"{_SPARK_CONF}."), value) for key, value in conf.items()),
            **of_schedule,
        },
        Policy,
    )


def _calls(layer: Layer, defaults: Layer) -> tuple[JobCall, ...]:
    named = [job for job in POLICY_JOBS if job in layer.jobs]
    return tuple(
        JobRule(job=job, policy=layer.name, others=(), values=layered((defaults, layer), job)).call for job in named
    )


def _scheduling(entry: Entry) -> dict[str, PolicyValue]:
    given = {key: below for key, below in entry.mapping().items() if key in SCHEDULE_KEYS}
    values: dict[str, tuple[Entry, Any]] = {}
    for key, read in _READERS.items():
        if key in given:
            values[key] = (given[key], read(given[key]))
    if _SPARK_CONF in given:
        for key, below in given[_SPARK_CONF].mapping().items():
            values[f"{_SPARK_CONF}.{key}"] = (below, below.scalar())
    return {key: PolicyValue(_shown(below), value, source_of(below)) for key, (below, value) in values.items()}


def _shown(entry: Entry) -> str:
    if entry.kind == "sequence":
        return ", ".join(str(item.value) for item in entry.sequence())
    return "null" if entry.is_null else str(entry.value)


def _layers(entry: Entry, kind: LayerKind, form: str) -> dict[str, Layer]:
    layers: dict[str, Layer] = {}
    for given, below in entry.mapping().items():
        name = name_of_form(given, form)
        if "*" in given and name != given:
            raise below.wrong(f"{given!r} is not a full name; a pattern stands under `match` of a policy alone")
        if name is None:
            more = "" if kind is LayerKind.TABLE else ", or CATALOG.NAMESPACE"
            raise below.wrong(f"{given!r} is no full name; give {form}{more}")
        if name in layers:
            raise below.wrong(f"{name!r} is there twice, with other quotes")
        layers[name] = layer_of(below, kind, name=name)
    return layers


def _name(entry: Entry) -> str:
    name = entry.text()
    if not POLICY_NAME.fullmatch(name):
        raise entry.wrong(f"{name!r} cannot be a name: give letters, digits, dashes and underscores")
    return name


def _schedule(entry: Entry) -> str | None:
    if entry.is_null:
        return None
    text = entry.text()
    try:
        return parse_schedule(text)
    except UsageError as error:
        raise entry.wrong(error.message) from None


def _deploy_mode(entry: Entry) -> str:
    if entry.text() not in DEPLOY_MODES:
        raise entry.wrong(f"{entry.text()!r} is no deploy mode; give {' or '.join(DEPLOY_MODES)}")
    return entry.text()


def _files(entry: Entry) -> tuple[str, ...]:
    """One file, or a list of them, each as spark-submit takes it."""
    items = entry.sequence() if entry.kind == "sequence" else (entry,)
    for item in items:
        if "," in item.text():
            raise item.wrong("holds a comma; give several files as a list")
    return tuple(item.text() for item in items)


def _tables(entry: Entry) -> tuple[str, ...]:
    tables: set[str] = set()
    for item in entry.sequence():
        given = item.text()
        name = name_of_form(given, FULL_NAME)
        if "*" in given and name != given:
            raise item.wrong(f"{given!r} is not a full name; a pattern stands under `match`")
        if name is None:
            raise item.wrong(f"{given!r} is not a full name; give {FULL_NAME}")
        if name in tables:
            raise item.wrong(f"table {name!r} is listed twice")
        tables.add(name)
    if not tables:
        raise entry.wrong("is empty; list at least one table")
    return tuple(sorted(tables))


def _globs(entry: Entry) -> tuple[Glob, ...]:
    """One pattern, or a list of them."""
    items = entry.sequence() if entry.kind == "sequence" else (entry,)
    if not items:
        raise entry.wrong("is empty; give a pattern, such as CATALOG.NAMESPACE.*")
    globs = []
    for item in items:
        text = item.text()
        try:
            globs.append(parse_glob(text))
        except UsageError as error:
            raise item.wrong(error.message) from None
    return tuple(globs)


_READERS: Mapping[str, Any] = {
    "schedule": _schedule,
    "retries": lambda entry: entry.whole_number(minimum=0),
    "retry_delay": span_of,
    "timeout": span_of,
    "pool": Entry.text,
    "connection": Entry.text,
    "deploy_mode": _deploy_mode,
    "py_files": _files,
    "archives": _files,
    "files": _files,
    SUBMIT_OVER: lambda entry: None if entry.is_null else entry.size(),
}
SCHEDULE_KEYS = frozenset({*_READERS, _SPARK_CONF})
POLICY_KEYS = KEYS | SCHEDULE_KEYS | {"name", "tables", "match", "except"}
