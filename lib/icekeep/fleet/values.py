"""What is said of a run over many tables: values with the names of their JSON."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from icekeep.catalog.base import Catalog, Identifier
from icekeep.policies.values import JobCall
from icekeep.rendered import Rendered
from icekeep.reports.values import NotRead


class JobStatus(StrEnum):
    """What became of a job on a table.

    What the job's own outcome says (`done`, `partial`, `faulty`), or one of these.
    """

    DUE = "due"
    """A dry run: it would be done."""

    OBSERVED = "observed"
    """Only its plan was made, as `mode: observe` says."""

    NOT_DUE = "not_due"
    HELD = "held"
    CLOSED = "closed"
    POSTPONED = "postponed"

    ELSEWHERE = "elsewhere"
    """Another run works on the table, or has done this job since this run looked at it, or before it, where the record of runs
    could be read only later."""

    NOT_BEGUN = "not_begun"
    """It was due, and the budget did not hold it, or the run was interrupted before."""

    FAILED = "failed"
    REFUSED = "refused"
    """A check that guards data refused, or the table has what icekeep does not handle."""

    INTERRUPTED = "interrupted"


IDLE = frozenset({JobStatus.NOT_DUE, JobStatus.HELD, JobStatus.CLOSED, JobStatus.POSTPONED, JobStatus.ELSEWHERE})
"""Of a job that this run had no reason to begin."""


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one run of a job ended.

    Attributes:
        status: that of its outcome, or `failed`.
        exit_status: that of the job's own command.
        result: its result or plan; `None` where it failed.
        requests_count: what it asked of storage.
        held_by: why it was not begun after all, as the table says by now; `None` where it was.
    """

    status: str
    exit_status: int = 0
    run_id: str | None = None
    error_kind: str | None = None
    error_message: str | None = None
    result: Any = None
    requests_count: int = 0
    held_by: str | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one table, as it is handed to whoever runs it.

    Attributes:
        table_uuid: that of the table that was looked at; `None` where it could not be read.
        estimated_ms: what it is expected to take, by rates alone.
        cpu_pace: how much more processor time than rates say its last runs took.
    """

    catalog: Catalog
    identifier: Identifier
    table: str
    call: JobCall
    policy: str
    observes: bool
    table_uuid: str | None = None
    estimated_ms: int | None = None
    cpu_pace: float = 1.0


class RunCall(Protocol):
    """What runs a job; an error of the job is told in what it returns, only an interrupt is raised."""

    def __call__(self, assignment: Assignment) -> JobOutcome:
        """Run it to its end."""


class JobDone(Rendered, frozen=True, kw_only=True):
    """A job that a policy names for a table, and what became of it.

    Attributes:
        policy: the one that decides of it.
        arguments: of its command line.
        why: in one line: why it was due, or why not, or what went wrong.
        run_id: of its own run; `None` where it was not begun.
        exit_status: that of the job's own command; `None` where it was not begun.
        estimate_ms, estimate_bytes: what it was thought to take.
        requests_count: that it made of storage, in this process; what Spark's tasks and the catalog ask is not counted.
        figures: the numbers of its result or plan that are not 0, by their names there.
    """

    job: str
    policy: str
    status: str
    why: str
    arguments: tuple[str, ...] = ()
    run_id: str | None = None
    error_kind: str | None = None
    exit_status: int | None = None
    elapsed_ms: int = 0
    estimate_ms: int = 0
    estimate_bytes: int = 0
    requests_count: int = 0
    figures: Mapping[str, int] = {}


class TableDone(Rendered, frozen=True, kw_only=True):
    """A table that policies reach.

    Attributes:
        rank: its place in the order of work, from 1; 0 where no job was due.
        score: of its health; `None` where nobody looked at it, or could.
        priority: benefit for cost of its due jobs, and the nights that they have waited; the highest comes first.
        not_read: why its health is not known.
        problems: what its properties, or its catalog, say of jobs that is not understood or not taken.
    """

    table: str
    rank: int = 0
    score: float | None = None
    priority: float = 0.0
    jobs: tuple[JobDone, ...] = ()
    not_read: str | None = None
    problems: tuple[str, ...] = ()


class Failing(Rendered, frozen=True, kw_only=True):
    """A job that has failed on a table three times in a row or more, or was interrupted after long work so often.

    What comes several times in one night counts once.

    Attributes:
        why: what it said last, or that it needs more time.
        cut_offs_in_a_row: how often it was interrupted after half an hour of work or more since it last ended well.
    """

    table: str
    job: str
    failures_in_a_row: int
    why: str
    cut_offs_in_a_row: int = 0


class MaintainResult(Rendered, frozen=True, kw_only=True):
    """A run over all tables of the policies.

    Attributes:
        status: `done`; `partial` where a job failed, was refused, did only a part or was not begun, a table could not be read, or
            something is `failing`; `interrupted`. For a dry run `planned`, or `partial` where something could
            not be read.
        dry_run: whether this was a dry run.
        tables_count: those that the policies reach; `other_tables_count`: those that no policy reaches.
        due_jobs_count: all that were due; the counts that follow say what happened to them, up to
            `elsewhere_jobs_count`.
        postponed_jobs_count: those that wait since they failed; `held_jobs_count`: that are switched off;
            `closed_jobs_count`: whose windows are closed.
        failing: what has failed three times in a row or more, or was interrupted so often after long work, what came of this run
            among it.
        notes: what the operator should know of the run as a whole.
        requests_count: requests that the jobs sent to storage.
        looked_requests_count, looked_read_bytes: what the look at all tables took of storage.
        looked_ms: how long it took.
        tables: in the order of work, then those that had nothing due, by name.
    """

    status: str
    run_id: str
    dry_run: bool = False
    catalogs: tuple[str, ...] = ()
    tables_count: int = 0
    other_tables_count: int = 0
    due_jobs_count: int = 0
    done_jobs_count: int = 0
    observed_jobs_count: int = 0
    failed_jobs_count: int = 0
    refused_jobs_count: int = 0
    interrupted_jobs_count: int = 0
    not_begun_jobs_count: int = 0
    elsewhere_jobs_count: int = 0
    postponed_jobs_count: int = 0
    held_jobs_count: int = 0
    closed_jobs_count: int = 0
    failing: tuple[Failing, ...] = ()
    not_read: tuple[NotRead, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[TableDone, ...] = ()
    requests_count: int = 0
    looked_requests_count: int = 0
    looked_read_bytes: int = 0
    looked_ms: int = 0
    elapsed_ms: int = 0


class DueJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is due; `observes`: only its plan is wanted."""

    job: str
    policy: str
    arguments: tuple[str, ...]
    observes: bool
    why: str
    estimate_ms: int
    estimate_bytes: int


class DueTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table with jobs that are due, in the order in which they run."""

    table: str
    priority: float
    estimate_ms: int
    estimate_bytes: int
    jobs: tuple[DueJob, ...]


class DueList(msgspec.Struct, frozen=True, kw_only=True):
    """The tables that have something due, in the order of work; `status`: `partial` where tables could not be read."""

    status: str
    tables: tuple[DueTable, ...]
    not_read: tuple[NotRead, ...] = ()
    notes: tuple[str, ...] = ()


class MatchedTable(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the job on one table.

    Attributes:
        status: that of the job's own outcome, or `failed`, `refused`, `interrupted`, or `not_begun` after an interrupt.
        exit_status: that of the job's own command; `None` where it was not begun.
        run_id: of its own run; `None` where it was not begun, or failed before.
        error_kind, error_message: what went wrong; `None` where nothing did.
        figures: the numbers of its result or plan that are not 0, by their names there.
    """

    table: str
    status: str
    exit_status: int | None = None
    run_id: str | None = None
    error_kind: str | None = None
    error_message: str | None = None
    elapsed_ms: int = 0
    figures: Mapping[str, int] = {}


class MatchedTables(msgspec.Struct, frozen=True, kw_only=True):
    """A job on all tables of a pattern, in the order of their names.

    Attributes:
        status: `partial` where the job failed on a table, was refused or ended as `partial` or `faulty`, or where something could
            not be read; `interrupted`; else `done` or, for a dry run, `planned`.
        tables_count: those that the pattern matches, but for tables that were dropped meanwhile.
        failed_tables_count: those on which the job failed or was refused.
        not_read: namespaces and catalogs that cannot be listed.
    """

    status: str
    tables_count: int
    failed_tables_count: int
    not_read: tuple[NotRead, ...]
    tables: tuple[MatchedTable, ...]
    elapsed_ms: int
