"""What every command ends with, as a document, an outcome or an error; and the exit statuses that go with them.

`SCHEMA_VERSION` stands in each document. It is raised where a field goes, gets another name, another type or another meaning, or
where a value that was always there may be null. Fields that are added, new words for `status`, and new commands leave it as it
is, so a reader passes over what it does not know. `icekeep schema` prints the schema.
"""

import logging
import re
import shlex
from collections.abc import Mapping
from signal import Signals
from typing import Any

import msgspec

from icekeep import errors
from icekeep.catalog.base import Table
from icekeep.errors import (
    IcekeepError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    one_line,
    refused_threads,
)
from icekeep.maintenance.plans import PlanTotals
from icekeep.operations.arguments import flags_by_argument
from icekeep.operations.runbooks import INTERRUPTED as INTERRUPTED_KIND
from icekeep.operations.runbooks import UNEXPECTED, address_of
from icekeep.rendered import Rendered
from icekeep.runs import FAILED, INTERRUPTED, REFUSED, Run, new_run
from icekeep.runtime import Runtime
from icekeep.spec.snapshots import MAIN
from icekeep.version import ICEKEEP_VERSION

_OURS = re.compile(r"icekeep\.errors\.([A-Za-z]+): (\S.*)")


def our_error(failure: BaseException) -> IcekeepError | None:
    """The error of ours that a failure is, comes to, or carries from an executor; `None` if there is none."""
    if isinstance(failure, IcekeepError):
        return failure
    if (refused := refused_threads(failure)) is not None:
        return refused
    for name, message in reversed(_OURS.findall(str(failure))):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, IcekeepError):
            # Each class has a constructor of its own; the text is the finished message.
            error = kind.__new__(kind)
            IcekeepError.__init__(error, message.strip())
            return error
    return None


_LOG = logging.getLogger(__name__)

SCHEMA_VERSION = 2

DONE, FAILURE, PARTIAL = 0, 1, 3
_BY_SIGINT = 130
_EXIT_STATUSES = {
    "partial": PARTIAL,
    "faulty": PARTIAL,
    "wrong": UsageError.exit_status,
    "unavailable": UnavailableError.exit_status,
    INTERRUPTED: _BY_SIGINT,
}
"""Of those that a result can have; all others are of work that is done."""


class PlanWritten(Rendered, frozen=True, kw_only=True):
    """A plan that lies in a file; bytes and milliseconds are what carrying it out takes, as far as that is known.

    Attributes:
        hash: names the plan: it stands in the snapshots that carry it out.
        notes: what is done beside what the file names.
    """

    path: str
    hash: str
    totals: PlanTotals
    notes: tuple[str, ...] = ()


class AppliedBefore(msgspec.Struct, frozen=True, kw_only=True):
    """In place of a job's result: nothing of the plan is left to be done, and how that shows.

    Attributes:
        applied_before: that, for people.
        snapshot_id, run_id: the newest of the snapshots by which it was carried out, and the run that made it; `None` where it
            shows in another way.
    """

    applied_before: str
    snapshot_id: int | None = None
    run_id: str | None = None
    status: str = "done"


HELD = "held"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """In place of the result of a job that a policy asks for: it was not begun, and why."""

    held_by: str
    status: str = HELD


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a job or command has to say. Times are epoch milliseconds.

    Attributes:
        schema_version: of this document.
        table: left out where it is about none.
        run_id: which run it was; snapshots, files and the record of runs have the same.
        parent_id, policy: the run of `maintain` that this is a part of, and whose job it is; left out where it is neither.
        version: of icekeep.
        arguments: that were given, by name; times are epoch milliseconds already.
        status: `done`, `partial` or, for a dry run, `planned`, or one of its own.
        snapshot_id_before, snapshot_id_after: the head of the branch that was worked on, null where there is none. Left out, as
            the next two, where nothing can have changed.
        metadata_location_before, metadata_location_after: of the table, null where it is not there.
        refusal: of a dry run, why the catalog would refuse the run itself; left out where it would not.
        plan: the file that the plan was written to; left out where none was.
    """

    schema_version: int = SCHEMA_VERSION
    job: str
    table: str | msgspec.UnsetType = msgspec.UNSET
    run_id: str
    parent_id: str | msgspec.UnsetType = msgspec.UNSET
    policy: str | msgspec.UnsetType = msgspec.UNSET
    version: str
    arguments: Mapping[str, Any]
    started_ms: int
    ended_ms: int
    dry_run: bool
    status: str
    snapshot_id_before: int | msgspec.UnsetType | None = msgspec.UNSET
    snapshot_id_after: int | msgspec.UnsetType | None = msgspec.UNSET
    metadata_location_before: str | msgspec.UnsetType | None = msgspec.UNSET
    metadata_location_after: str | msgspec.UnsetType | None = msgspec.UNSET
    refusal: str | msgspec.UnsetType = msgspec.UNSET
    plan: PlanWritten | msgspec.UnsetType = msgspec.UNSET
    result: Any

    @property
    def exit_status(self) -> int:
        return _EXIT_STATUSES.get(self.status, DONE)


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: `kind` is a stable name, `message` one line, `help` the command that says what to do.

    `facts` are the values in the message, left out where there are none.
    """

    kind: str
    message: str
    help: str
    facts: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a command has to say that failed. What is not known yet where it fails is left out, or null."""

    schema_version: int = SCHEMA_VERSION
    job: str | None
    table: str | msgspec.UnsetType = msgspec.UNSET
    run_id: str | msgspec.UnsetType = msgspec.UNSET
    parent_id: str | msgspec.UnsetType = msgspec.UNSET
    policy: str | msgspec.UnsetType = msgspec.UNSET
    version: str
    started_ms: int | msgspec.UnsetType = msgspec.UNSET
    ended_ms: int
    exit_status: int
    error: ErrorInfo


class Position(msgspec.Struct, frozen=True):
    """Where a table is: the head of a branch, or what a tag names, its metadata and all else; `None` where there is none."""

    snapshot_id: int | None = None
    metadata_location: str | None = None
    table_location: str | None = None


class RunState(msgspec.Struct):
    """What is known of a run so far, for whoever tells how it ends.

    Attributes:
        location: of the table, by which errors name it; `None` before it is loaded.
        app_id: the Spark application that it started; it has ended when the run is written down.
        is_read_only: whether it changes nothing, and only reports the state or what it would do.
        changes_by_commits: whether all that it changes in a table it changes by commits, which are counted in `commits_count` as
            they land: an interrupt during one is an unknown outcome.
        refusal: of a dry run, why the catalog would refuse the run itself.
        reported: which of its beginning and its end listeners have heard of.
    """

    run: Run | None = None
    table: str | None = None
    location: str | None = None
    arguments: Mapping[str, Any] = {}
    started_ms: int = 0
    before: Position | None = None
    app_id: str | None = None
    is_read_only: bool = False
    changes_by_commits: bool = False
    commits_count: int = 0
    refusal: str | None = None
    reported: set[str] = msgspec.field(default_factory=set)

    def start(self, job: str, arguments: Mapping[str, Any], runtime: Runtime, run: Run | None = None) -> Run:
        """The run begins; it is made here unless somebody has made it already."""
        self.run = run or new_run(job, runtime)
        self.arguments, self.started_ms = arguments, runtime.now_ms()
        _LOG.info("run %s begins, by icekeep %s", self.run.run_id, ICEKEEP_VERSION)
        return self.run

    def outcome(
        self, status: str, result: Any, runtime: Runtime, *, is_dry_run: bool = False, after: Position | None = None
    ) -> Outcome:
        assert self.run is not None
        moved: dict[str, Any] = {}
        if after is not None and self.before is not None:
            moved = {
                "snapshot_id_before": self.before.snapshot_id,
                "snapshot_id_after": after.snapshot_id,
                "metadata_location_before": self.before.metadata_location,
                "metadata_location_after": after.metadata_location,
            }
        return Outcome(
            job=self.run.job,
            version=ICEKEEP_VERSION,
            arguments=self.arguments,
            started_ms=self.started_ms,
            ended_ms=runtime.now_ms(),
            dry_run=is_dry_run,
            status=status,
            refusal=self.refusal or msgspec.UNSET,
            result=result,
            **self._names(self.run),
            **moved,
        )

    def error_document(self, job: str | None, ended: "FailedRun", runtime: Runtime) -> ErrorDocument:
        """The document of one that has failed, as which `job` was asked for."""
        return ErrorDocument(
            job=job,
            version=ICEKEEP_VERSION,
            started_ms=msgspec.UNSET if self.run is None else self.started_ms,
            ended_ms=runtime.now_ms(),
            exit_status=ended.exit_status,
            error=ended.error,
            **({} if self.run is None else self._names(self.run)),
        )

    def interrupt_note(self) -> str:
        """What an interrupt leaves of the run, as the end of a sentence; empty where that is not known."""
        if self.commits_count:
            stay = (
                "1 commit has landed and stays"
                if self.commits_count == 1
                else f"{self.commits_count:,} commits have landed and stay"
            )
            return f"; {stay}, run it again for the rest"
        if not self.changes_by_commits:
            return ""
        return "; nothing was changed" if self.is_read_only else "; nothing was committed, the table is as it was"

    def worded(self, error: IcekeepError) -> str:
        """The message of an error as the command line has it: with flags for arguments, and the table's name."""
        words = {} if self.run is None else flags_by_argument(self.run.job)
        if self.table is not None:
            words["NAME"] = shlex.quote(self.table)
            words[f"the table at {self.location!r}"] = f"table {self.table!r}"
        return error.worded(words)

    def _names(self, run: Run) -> dict[str, Any]:
        named = {"table": self.table, "run_id": run.run_id, "parent_id": run.parent_id, "policy": run.policy}
        return {key: value for key, value in named.items() if value is not None}


class FailedRun(msgspec.Struct, frozen=True):
    """How a run ended that raised something: with which status, and which error, as a document has it.

    Attributes:
        line: what people read of the error.
    """

    status: str
    exit_status: int
    error: ErrorInfo
    line: str


_MORE_THAN_INTERRUPTED = (OutcomeUnknownError, SafetyError, UnsupportedError)
"""What a job ends with for a reason of its own, whoever ends it."""


def run_failure(failure: BaseException, signal: Signals | None, state: RunState, *, is_part: bool = False) -> FailedRun:
    """What a failure of a run means.

    Args:
        signal: the one that was taken meanwhile.
        state: the run, whose table an error line names.
        is_part: of a job in a thread of a run over many tables: a signal, which only the main thread gets, reaches it as the
            failure of the Spark jobs that are cancelled.
    """
    ours = our_error(failure)
    # What else fails while an interrupt unwinds is a consequence of it, unless it is known to be more than that.
    is_more = ours is not None and (not is_part or isinstance(ours, _MORE_THAN_INTERRUPTED))
    if isinstance(failure, SystemExit | KeyboardInterrupt) or (signal is not None and not is_more):
        name = "SIGINT" if signal is None else signal.name
        exit_status = _BY_SIGINT if signal is None else 128 + signal
        message = f"interrupted by {name}{state.interrupt_note()}" + (
            f": {state.worded(ours)}" if ours is not None else ""
        )
        error = ErrorInfo(kind=INTERRUPTED_KIND, message=message, help=address_of(INTERRUPTED_KIND))
        return FailedRun(INTERRUPTED, exit_status, error, message)
    if ours is None:
        message = one_line(failure)
        error = ErrorInfo(kind=UNEXPECTED, message=message, help=address_of(UNEXPECTED))
        return FailedRun(FAILED, FAILURE, error, f"unexpected error: {message}; please report it, --verbose shows more")
    status = REFUSED if ours.exit_status == SafetyError.exit_status else FAILED
    message = state.worded(ours)
    error = ErrorInfo(kind=ours.kind, message=message, help=address_of(ours.kind), facts=ours.facts or msgspec.UNSET)
    return FailedRun(status, ours.exit_status, error, message)


def position_of(table: Table, ref: str | None = None) -> Position:
    """Where a table is by now; `ref` is the branch that is worked on, or the tag, by default `main`."""
    metadata = table.metadata
    if ref is None or ref == MAIN:
        return Position(metadata.current_snapshot_id, table.metadata_location, metadata.location)
    named = metadata.refs.get(ref)
    return Position(None if named is None else named.snapshot_id, table.metadata_location, metadata.location)
