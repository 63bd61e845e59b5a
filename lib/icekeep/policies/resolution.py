"""What is in force for one table: which policy decides of each job, and which layer of each value.

Of the policies that reach the table and name a job, the first in the file decides, and it alone: no value of a later one is
mixed in. Layers never add a job that no policy names, but they can switch one off, or on again where an outer one has switched it
off; but what the file switches off for a namespace or a table itself, no property of the table switches on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icekeep.policies.triggers import Trigger
from icekeep.policies.values import ENABLED, MODE, WHEN, WINDOW, JobCall, Kind, Layer, Mode, Policy, Rules, Said
from icekeep.policies.windows import Window


class Effective(msgspec.Struct, frozen=True):
    """A value that is in force; `overridden` are those of outer layers that it is in place of, the innermost first."""

    key: str
    said: Said
    overridden: tuple[Said, ...] = ()


class JobRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force for a job on a table.

    Attributes:
        policy: the one that decides.
        others: later policies that name the job too, in the order of the file; nothing of them is in force.
        common: what is said of all jobs.
        values: what is said of this one.
        held_by: why it may not run, whatever its trigger and window say; `None` where it may.
    """

    job: str
    policy: str
    others: tuple[str, ...]
    common: tuple[Effective, ...] = ()
    values: tuple[Effective, ...] = ()
    held_by: str | None = None

    @property
    def call(self) -> JobCall:
        """The job with the arguments of its command line, those of one setting in the order in which they were said."""
        given = sorted(
            (value.said for value in self.values if isinstance(value.said.value, tuple)), key=lambda said: said.order
        )
        return JobCall(self.job, tuple(argument for said in given for argument in said.value))

    @property
    def mode(self) -> Mode:
        """Whether it works or only observes."""
        mode: Mode = self._value(MODE, Mode.RUN)
        return mode

    @property
    def window(self) -> Window | None:
        """When it may begin; `None` at any time."""
        window: Window | None = self._value(WINDOW, None)
        return window

    @property
    def trigger(self) -> Trigger:
        """Under which conditions it is worth running."""
        prefix = f"{WHEN}."
        conditions = {
            value.key.removeprefix(prefix): value.said.value for value in self.values if value.key.startswith(prefix)
        }
        known = {name: conditions.get(name.removesuffix("_ms")) for name in Trigger.__struct_fields__}
        return Trigger(**known)

    def _value(self, key: str, default: Any) -> Any:
        return next((value.said.value for value in self.common if value.key == key), default)


class TableRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force for a table.

    Attributes:
        policies: those that reach it, in the order of the file.
        jobs: those that one of them names, in the order in which they run.
        unasked: by job what layers say of jobs that none of them names; nothing of it is in force.
    """

    table: str
    policies: tuple[str, ...]
    jobs: tuple[JobRule, ...]
    unasked: Mapping[str, tuple[Said, ...]] = {}


def rules_for(rules: Rules, table: str, *, stored: Layer | None = None, properties: Layer | None = None) -> TableRules:
    """What is in force for a table.

    Args:
        table: its full name.
        stored: what its catalog has stored for it, `None` for nothing.
        properties: what its own properties say, `None` for nothing.
    """
    reaching = [policy for policy in rules.policies if policy.reaches(table)]
    inner = tuple(layer for layer in (stored, *rules.layers_of(table), properties) if layer is not None)
    jobs = []
    for job in rules.job_names:
        naming = [policy for policy in reaching if job in policy.layer.jobs]
        if naming:
            jobs.append(_job_rule(job, naming, (rules.defaults, naming[0].layer, *inner)))
    asked = {rule.job for rule in jobs}
    unasked = {
        job: tuple(said for layer in inner for said in layer.said_of(job).values())
        for job in rules.job_names
        if job not in asked and any(layer.said_of(job) for layer in inner)
    }
    names = tuple(policy.name for policy in reaching)
    return TableRules(table=table, policies=names, jobs=tuple(jobs), unasked=unasked if reaching else {})


def layered(layers: Sequence[Layer], job: str | None) -> tuple[Effective, ...]:
    """The values that are in force where layers lie one within the other, the outermost first, of a job or of all (`None`)."""
    said: dict[str, list[Said]] = {}
    for layer in layers:
        for key, one in layer.said_of(job).items():
            said.setdefault(key, []).append(one)
    return tuple(Effective(key, some[-1], tuple(some[-2::-1])) for key, some in said.items())


def _job_rule(job: str, naming: Sequence[Policy], layers: Sequence[Layer]) -> JobRule:
    of_all, of_job = layered(layers, None), layered(layers, job)
    return JobRule(
        job=job,
        policy=naming[0].name,
        others=tuple(policy.name for policy in naming[1:]),
        common=of_all,
        values=of_job,
        held_by=_held_by(job, layers),
    )


def _held_by(job: str, layers: Sequence[Layer]) -> str | None:
    for layer in layers:
        if layer.is_doubtful or job in layer.doubtful_jobs:
            whose = {Kind.PROPERTIES: "the table's properties", Kind.STORED: "the catalog's stored policies"}
            return f"{whose.get(layer.kind, layer.name)} cannot be read"
    for layers_heard in (layers, _without_the_owner(layers)):
        values = (*layered(layers_heard, None), *layered(layers_heard, job))
        for value in values:
            if value.key == ENABLED and not value.said.value:
                return f"switched off by {value.said.source}"
    return None


def _without_the_owner(layers: Sequence[Layer]) -> Sequence[Layer]:
    """Layers of the file that are about places alone: whoever may write a table has no word against them."""
    return [layer for layer in layers if layer.kind in (Kind.NAMESPACE, Kind.TABLE)]
