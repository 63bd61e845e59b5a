"""Who makes a change: a run, with one name that stands in snapshots, results, logs, files and the record of runs.

A table carries the run that works on it (`Table.run`), so that all who commit to it know. Jobs work in threads, which a context
variable would not reach.
"""

import msgspec

from icekeep.runtime import Runtime

GOOD_EXIT_STATUSES = (0, 3)
"""Of a run that did its work, be it in part or with faults found."""


RUNNING = "running"
"""The status of a run that has begun, and that nobody has seen the end of."""

FAILED = "failed"
REFUSED = "refused"
"""A check that guards data refused, or the table has what icekeep does not handle (exit status 4)."""

INTERRUPTED = "interrupted"
UNFINISHED = "unfinished"
"""How a run is shown that said nothing of its end: its process was killed, or its machine is gone. It is never written down."""

STATUSES = ("done", "partial", "sound", "faulty", FAILED, REFUSED, INTERRUPTED, RUNNING, UNFINISHED)
"""Every status that a run is shown with; `sound` and `faulty` are what `check` found."""


class Run(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """One run of a job or a command: what it writes has its name, so it is of one call.

    Attributes:
        run_id: `<job>-<uuid4>`; no two runs have the same.
        job: its name, as its command is called.
        policy: whose job it is; `None` where somebody asked for it.
        parent_id: the run of `maintain` that it is a part of.
        plan: the hash of the plan that it carries out, where it was given one.
        app_id: the application that it is a part of, where that is not the Spark application of this process.
        snapshot_properties: keys of its user in the summaries of its snapshots.
        cpu_pace: how much more processor time earlier runs took on the table than rates say; its estimates are multiplied by it.
        estimated_ms: from beginning to end, by rates alone; `None` where nobody has estimated it.
    """

    run_id: str
    job: str
    policy: str | None = None
    parent_id: str | None = None
    plan: str | None = None
    app_id: str | None = None
    snapshot_properties: tuple[tuple[str, str], ...] = ()
    cpu_pace: float = 1.0
    estimated_ms: int | None = None


def new_run(job: str, runtime: Runtime, *, policy: str | None = None, parent_id: str | None = None) -> Run:
    """A run that begins."""
    return Run(run_id=f"{job.replace(' ', '_')}-{runtime.new_uuid()}", job=job, policy=policy, parent_id=parent_id)


class _Application:
    """The Spark application of this process, of which there is one at most; the lower rooms know no Spark."""

    id: str | None = None


def note_application(app_id: str | None) -> None:
    """Say which Spark application runs in this process by now; `None`: none any more."""
    _Application.id = app_id


def application_id() -> str | None:
    """The Spark application that runs in this process."""
    return _Application.id
