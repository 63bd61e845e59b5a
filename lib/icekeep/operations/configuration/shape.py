"""The shape of the configuration file: its keys, and the types of their values as far as each can be judged by itself.

The loader checks a file against it (`documents.checked`), and the schema for editors is made of it (`editor_schema.py`). What a
text says, such as a schedule or a pattern, is read by the modules that use it.
"""

from types import GenericAlias
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from icekeep.health.prices import Prices
from icekeep.operations.console.looks import FORMATS
from icekeep.operations.jobs import JOBS, POLICY_JOBS
from icekeep.policies.values import Mode
from icekeep.policies.windows import CONDITIONS, SPANS
from icekeep.settings import Setting, SettingKind
from icekeep.spec.times import AGE
from icekeep.telemetry.notifications import OUTCOMES

NAME = r"[A-Za-z0-9_-]{1,100}"
"""Of a catalog or a policy."""
LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
DEPLOY_MODES = ("client", "cluster")

Text = Annotated[str, Meta(pattern=r"\S")]
Number = Annotated[int, Meta(ge=0)]


def _some(kind: Any) -> Any:
    """A list of one at least."""
    several: Any = GenericAlias(list, kind)
    return Annotated[several, Meta(min_length=1)]


def _shown(**schema: Any) -> Meta:
    """What only editors check: the loader says better what is wrong."""
    return Meta(extra_json_schema=schema)


def _word(*known: str) -> Any:
    return Annotated[Text, _shown(enum=[*known])]


Texts = _some(Text)
OneOrMore = str | Texts
"""Not `Text | Texts`: msgspec 0.22 spoils its memory over a union of a list and a text with a pattern."""

Span = Annotated[str, Meta(title="a span such as 30m, 36h or 7d"), _shown(pattern=rf"^\s*(?:{AGE.pattern})\s*$")]
Size = Annotated[
    Number | Annotated[str, _shown(pattern=r"^\s*[0-9]+(\.[0-9]+)?\s*[kKmMgGtTpP]?([iI]?[bB])?\s*$")] | None,
    Meta(title="a whole number of bytes, or a size such as 2GiB"),
]

# Of these the text counts that was written, whatever YAML takes it for: it takes 22:00 for a number.
Scalar = Annotated[Any, _shown(type=["string", "number", "boolean"])]
Moment = Annotated[Any, _shown(type=["string", "integer"])]
Clock = Annotated[Any, _shown(type=["string", "integer"], pattern=r"^\s*[0-9]{1,2}:[0-5][0-9]\s*$")]
Limit = Annotated[Any, _shown(type=["string", "number"], minimum=0, pattern=r"^\s*[0-9]+(\.[0-9]+)?\s*$")]
Schedule = Annotated[Any, _shown(type=["string", "null"], pattern=r"\S")]


def _keys(name: str, summary: str, required: tuple[str, ...] = (), /, **types: Any) -> Any:
    """The type of a mapping that has these keys and no other."""
    fields = [(key, kind) if key in required else (key, kind | UnsetType, UNSET) for key, kind in types.items()]
    return msgspec.defstruct(
        name, fields, namespace={"__doc__": summary}, module=__name__, kw_only=True, forbid_unknown_fields=True
    )


def _names(pattern: str, below: Any) -> Any:
    kind: Any = GenericAlias(dict, (str, below))
    return Annotated[kind, _shown(propertyNames={"pattern": f"^(?:{pattern})$"})]


RunsKeys = _keys("RunsKeys", "Where runs are written down.", uri=Text, enabled=bool, keep=Span, table=Text)
LogKeys = _keys("LogKeys", "How log lines look.", format=_word(*FORMATS))
MetricsKeys = _keys(
    "MetricsKeys", "Where metrics of each run go.", file=Text, pushgateway=Text, labels=_names(LABEL, Scalar)
)
NotificationKeys = _keys(
    "NotificationKeys",
    "Who is sent a message when a command has ended.",
    ("url",),
    url=Text,
    when=_some(_word(*OUTCOMES)),
    jobs=Texts,
)
WindowKeys = _keys("WindowKeys", "When jobs may begin.", **{"from": Clock, "to": Clock, "days": Texts, "zone": Text})


_KINDS = {
    SettingKind.SWITCH: bool,
    SettingKind.OPTIONS: dict[str, Scalar],
    SettingKind.PAIRS: dict[str, Scalar],
    SettingKind.IDS: _some(Number),
    SettingKind.NAMES: Texts,
    SettingKind.LOCATIONS: Texts,
    SettingKind.TIME: Moment,
    SettingKind.DAYS: Moment,
    SettingKind.NUMBER_OR_ALL: Moment,
    SettingKind.AGE: Span,
}


def _setting(setting: Setting) -> Any:
    is_number = setting.kind is SettingKind.NUMBER
    kind = Annotated[int, Meta(ge=setting.minimum)] if is_number else _KINDS.get(setting.kind, Text)
    return Annotated[kind, Meta(description=setting.help)]


ConditionKeys = _keys(
    "ConditionKeys",
    "When the job is worth running.",
    **{name: Span if name in SPANS else Limit for name in CONDITIONS},
)
JobsKeys = _keys(
    "JobsKeys",
    "What is said of each job; one without settings may stand there without a value.",
    **{
        job: None
        | _keys(
            f"{job}_keys",
            JOBS[job].summary,
            enabled=bool,
            when=ConditionKeys,
            **{setting.name: _setting(setting) for setting in JOBS[job].settings},
        )
        for job in POLICY_JOBS
    },
)

_LAYER = {"enabled": bool, "mode": _word(*(mode.value for mode in Mode)), "window": WindowKeys, "jobs": JobsKeys}
_SCHEDULING = {
    "schedule": Schedule,
    "retries": Number,
    "retry_delay": Span,
    "timeout": Span,
    "pool": Text,
    "connection": Text,
    "deploy_mode": _word(*DEPLOY_MODES),
    "py_files": str | list[Text],
    "archives": str | list[Text],
    "files": str | list[Text],
    "submit_over": Size,
    "spark_conf": dict[str, Scalar],
}
LayerKeys = _keys("LayerKeys", "What is said of the jobs of some tables.", **_LAYER)
DefaultKeys = _keys("DefaultKeys", "What is said of the jobs of all policies.", **_LAYER, **_SCHEDULING)
PolicyKeys = _keys(
    "PolicyKeys",
    "Jobs on tables on a schedule.",
    ("name", "jobs"),
    name=Annotated[str, _shown(pattern=f"^(?:{NAME})$")],
    tables=Texts,
    match=OneOrMore,
    **{"except": OneOrMore},
    **_LAYER,
    **_SCHEDULING,
)
ConfigurationKeys = _keys(
    "ConfigurationKeys",
    "The configuration of icekeep.",
    catalogs=_names(NAME, dict[str, Scalar]),
    prices=Prices,
    runs=RunsKeys,
    log=LogKeys,
    metrics=MetricsKeys,
    notifications=GenericAlias(list, NotificationKeys),
    defaults=DefaultKeys,
    policies=GenericAlias(list, PolicyKeys),
    namespaces=GenericAlias(dict, (str, LayerKeys)),
    tables=GenericAlias(dict, (str, LayerKeys)),
)

KEYS_OF_ALL_JOBS = (*(key for key in _LAYER if key != "jobs"), *_SCHEDULING)
"""The keys of a policy that are of all its jobs, in the order in which people are told of them."""
