"""The policies of the configuration, and the layers that change them: `defaults`, `policies`, `namespaces`, `tables`.

Entries of the file in, frozen values out, every wrong key named. A policy's settings become the arguments of the jobs' own
command line, so that there is one way to tell a job something.
"""

import re
from collections.abc import Collection, Mapping
from functools import partial

from icekeep.errors import ConfigError, UsageError
from icekeep.names import FULL_NAME, name_of_form
from icekeep.operations.configuration.documents import Entry
from icekeep.operations.configuration.layers import layer_of
from icekeep.operations.configuration.shape import NAME
from icekeep.operations.jobs import POLICY_JOBS
from icekeep.policies.resolution import SCHEDULE_FORM, JobRule, layered
from icekeep.policies.values import SUBMIT_OVER, Layer, LayerKind, Policy, Rules, parse_glob

_FIELDS = {"retry_delay": "retry_delay_ms", "timeout": "timeout_ms", SUBMIT_OVER: "submit_over_bytes"}
_SPARK_CONF = "spark_conf."
_SCHEDULE = "schedule"


def read_rules(
    document: Entry, catalogs: Collection[str] = (), wrong_schedules: dict[str, ConfigError] | None = None
) -> Rules:
    """What a file says of tables; raises `ConfigError` where a key is not what it must be.

    Whether a table's catalog exists is not asked: it may be configured elsewhere, in Spark's configuration for example.

    Args:
        catalogs: those of the file.
        wrong_schedules: takes by policy the error of its schedule, which it then has none of; `None`: that is raised.
    """
    given = document.mapping()
    wrong: dict[str, ConfigError] | None = None if wrong_schedules is None else {}
    defaults = Layer(kind=LayerKind.DEFAULTS)
    if "defaults" in given:
        defaults = layer_of(given["defaults"], LayerKind.DEFAULTS, wrong_schedules=wrong)
    policies: dict[str, Policy] = {}
    for item in given["policies"].each() if "policies" in given else ():
        policy = _policy(item, defaults, frozenset(catalogs), wrong)
        if policy.name in policies:
            raise item.mapping()["name"].wrong(f"{policy.name!r} is the name of an earlier policy")
        policies[policy.name] = policy
    if wrong and wrong_schedules is not None:
        decides = {name: name if _SCHEDULE in policy.layer.keys else "" for name, policy in policies.items()}
        wrong_schedules |= {name: wrong[one] for name, one in decides.items() if one in wrong}
    return Rules(
        defaults=defaults,
        policies=tuple(policies.values()),
        job_names=POLICY_JOBS,
        namespaces=_layers(
            document.below("namespaces"), LayerKind.NAMESPACE, "CATALOG", "CATALOG or CATALOG.NAMESPACE"
        ),
        tables=_layers(document.below("tables"), LayerKind.TABLE, FULL_NAME, FULL_NAME),
    )


def _policy(
    entry: Entry, defaults: Layer, catalogs: frozenset[str], wrong_schedules: dict[str, ConfigError] | None
) -> Policy:
    given = entry.mapping()
    name = given["name"].parsed(_name)
    if _SCHEDULE not in {*defaults.keys, *given}:
        raise entry.missing(_SCHEDULE, SCHEDULE_FORM)
    layer = layer_of(entry, LayerKind.POLICY, name, wrong_schedules)
    if not layer.jobs:
        raise given["jobs"].wrong(f"is empty; name at least one of {', '.join(POLICY_JOBS)}")
    if not {"tables", "match"} & given.keys():
        raise entry.missing("tables")
    tables = _tables(given["tables"]) if "tables" in given else ()
    match, excepted = (
        tuple(item.parsed(parse_glob) for item in given[key].each()) if key in given else ()
        for key in ("match", "except")
    )
    for table in tables:
        for glob in excepted:
            if glob.matches(table):
                raise given["except"].wrong(f"{glob.text!r} takes table {table!r} out, which `tables` lists")
    both = {value.key: value.innermost.value for value in layered((defaults, layer), None)}
    fields = {_FIELDS.get(key, key): value for key, value in both.items()}
    known = {key: value for key, value in fields.items() if key in Policy.__struct_fields__}
    conf = {key.removeprefix(_SPARK_CONF): value for key, value in both.items() if key.startswith(_SPARK_CONF)}
    calls = [
        JobRule(job=job, policy=name, others=(), values=layered((defaults, layer), job)).call
        for job in POLICY_JOBS
        if job in layer.jobs
    ]
    return Policy(
        name=name,
        tables=tables,
        calls=tuple(calls),
        layer=layer,
        match=match,
        excepted=excepted,
        catalogs=catalogs,
        spark_conf=tuple(conf.items()),
        **known,
    )


def _layers(given: Mapping[str, Entry], kind: LayerKind, form: str, shown: str) -> dict[str, Layer]:
    layers: dict[str, Layer] = {}
    for written, below in given.items():
        name = below.parsed(partial(require_full_name, form=form, shown=shown), written)
        if name in layers:
            raise below.wrong(f"{name!r} is there twice, with other quotes")
        layers[name] = layer_of(below, kind, name)
    return layers


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text):
        raise UsageError(f"{text!r} cannot be a name: give letters, digits, dashes and underscores")
    return text


def _tables(entry: Entry) -> tuple[str, ...]:
    tables: set[str] = set()
    for item in entry.each():
        name = item.parsed(require_full_name)
        if name in tables:
            raise item.wrong(f"table {name!r} is listed twice")
        tables.add(name)
    return tuple(sorted(tables))


def require_full_name(text: str, form: str = FULL_NAME, shown: str = FULL_NAME) -> str:
    """A name in the one spelling that it is compared in."""
    name = name_of_form(text, form)
    if "*" in text and name != text:
        raise UsageError(f"{text!r} is not a full name; a pattern stands under `match` of a policy")
    if name is None:
        raise UsageError(f"{text!r} is not a full name; give {shown}")
    return name
