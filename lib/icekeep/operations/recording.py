"""Runs written down: where those of a catalog go, and one run from its beginning to whatever end it comes to."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from signal import Signals
from typing import TYPE_CHECKING, Any

import msgspec

from icekeep.catalog.base import parse_identifier
from icekeep.errors import ConfigError, IcekeepError, one_line
from icekeep.events import RunEnded, RunStarted, Warned
from icekeep.names import catalog_of
from icekeep.operations.configuration.catalogs import Catalogs
from icekeep.operations.configuration.file import RUNS, CatalogSettings, RunsSettings, resolve_references
from icekeep.operations.console.values import plain_values
from icekeep.operations.jobs import resolve
from icekeep.operations.outcomes import Outcome, Position, RunState, run_failure
from icekeep.operations.run_context import RunContext
from icekeep.runs import application_id
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spelling import named_or_known
from icekeep.storage.locations import parse_location

if TYPE_CHECKING:
    from icekeep.run_records.keeping import RunKeeper
    from icekeep.run_records.store import RunRecords

# Imported when a run is written down: help and mistakes need no database.
_RECORDS = "icekeep.run_records.store:RunRecords"
_KEEPER = "icekeep.run_records.keeping:RunKeeper"
_NEW_RECORD = "icekeep.run_records.keeping:new_record"
_APPEND = "icekeep.run_records.iceberg_table:append_with_lost"

_LOG = logging.getLogger(__name__)

_URI = f"{RUNS}.uri"
_BEGINNING, _END = "beginning", "end"
_SUFFIX = ".icekeep-runs.db"
_NAMED_WAREHOUSES = frozenset({"rest"})
"""What the configuration of these calls a warehouse is a name that the server knows."""


def records_of(
    runs: RunsSettings,
    catalog: CatalogSettings,
    environ: Mapping[str, str],
    *,
    is_read: bool = False,
    runtime: Runtime = SYSTEM,
) -> "RunRecords | None":
    """Where the runs on a catalog's tables are written down; `None`: nowhere.

    Args:
        is_read: whether it is only read, and need not be writable.
    """
    if not runs.is_enabled:
        return None
    uri = runs.uri
    if uri is not None:
        return _records(resolve_references(_URI, uri, environ), runtime)
    path = beside_warehouse(catalog, environ)
    if path is None:
        return None
    # No directory is made for it.
    can_write = os.access(path if os.path.exists(path) else os.path.dirname(path), os.W_OK) and not os.path.isdir(path)
    return _records(f"sqlite:///{path}", runtime) if can_write or (is_read and os.path.isfile(path)) else None


def beside_warehouse(catalog: CatalogSettings, environ: Mapping[str, str]) -> str | None:
    """The file beside a catalog's warehouse, where that is a directory of this machine.

    It is beside and not in it, since what lies in it is taken for namespaces and tables.
    """
    if catalog.properties.get("type", "").lower() in _NAMED_WAREHOUSES:
        return None
    try:
        warehouse = catalog.resolved(environ).get("warehouse", "")
        given = warehouse if ":" in warehouse.partition("/")[0] else os.path.abspath(warehouse)
        scheme, _, path = parse_location(given)
    except IcekeepError:
        return None
    is_local = bool(warehouse) and scheme == "file" and path.strip("/")
    return f"{path.rstrip('/')}{_SUFFIX}" if is_local else None


def require_catalog(runs: RunsSettings, catalogs: Catalogs) -> None:
    """Refuse a table of runs in a catalog that nobody knows; raises `ConfigError`."""
    name = catalog_of(runs.table or "")
    if runs.is_enabled and name and catalogs.find(name) is None:
        raise ConfigError(f"{RUNS}.table", f"there is no catalog {name!r}; {named_or_known(name, catalogs.all())}")


def cpu_pace_of(
    job: str, table: str, runs: RunsSettings, catalog: CatalogSettings, environ: Mapping[str, str], runtime: Runtime
) -> float:
    """How much more processor time than rates say the last runs of a job took on a table; 1 where nothing is on record.

    A record out of reach is no reason to fail or to warn here: the run that follows warns of it.
    """
    try:
        records = records_of(runs, catalog, environ, is_read=True, runtime=runtime)
        return 1.0 if records is None else records.pace_of(table, job, runtime.now_ms()).cpu
    except IcekeepError:
        _LOG.debug("the estimate of %s goes by rates alone", table, exc_info=True)
        return 1.0


class Recording:
    """One run that is being written down, and told of.

    Attributes:
        keeper: what writes; `None` where nothing does.
    """

    def __init__(self, state: RunState, keeper: "RunKeeper | None", context: RunContext) -> None:
        self._state, self.keeper = state, keeper
        self._listener, self._runtime = context.listener, context.runtime
        self._is_part = context.shared is not None

    @property
    def looks(self) -> "RunRecords | None":
        """Where the run keeps its looks at catalogs, and finds those of other runs."""
        return None if self.keeper is None else self.keeper.records

    def override_arguments(self, arguments: Mapping[str, Any], *, is_read_only: bool) -> None:
        """Before the work: it is done with other arguments than were given, or changes nothing and so is not written down."""
        self._state.arguments = arguments
        if is_read_only:
            self._state.is_read_only, self.keeper = True, None

    def table_loaded(self, before: Position) -> None:
        """It is known where the table is, and the work begins."""
        self._state.before, self._state.location = before, before.table_location
        self.start()

    def start(self) -> None:
        """The work begins on a table that cannot be loaded, or on many."""
        self._report_start()
        before = self._state.before
        if self.keeper is not None:
            self.keeper.begin(
                arguments=self._arguments(),
                snapshot_id_before=before and before.snapshot_id,
                metadata_location_before=before and before.metadata_location,
            )

    def finish(self, outcome: Outcome) -> None:
        """It came to an outcome."""
        values = msgspec.structs.asdict(outcome)
        moved = {name: values[name] for name in values if name.endswith("_after") and values[name] is not msgspec.UNSET}
        self._report_end(
            outcome.status,
            outcome.exit_status,
            result=outcome.result,
            snapshot_id=moved.get("snapshot_id_after"),
            metadata_location=moved.get("metadata_location_after"),
        )
        self._end(
            status=outcome.status,
            exit_status=outcome.exit_status,
            ended_ms=outcome.ended_ms,
            result=plain_values(outcome.result),
            **moved,
            **self._processor_time(outcome),
        )

    def fail(self, failure: BaseException, signal: Signals | None) -> None:
        """It came to an error."""
        ended = run_failure(failure, signal, self._state, is_part=self._is_part)
        self._report_start()
        self._report_end(
            ended.status, ended.exit_status, error_kind=ended.error.kind, error_message=ended.error.message
        )
        self._end(
            status=ended.status,
            exit_status=ended.exit_status,
            error_kind=ended.error.kind,
            error_message=ended.error.message,
            arguments=self._arguments(),
        )

    def _processor_time(self, outcome: Outcome) -> Mapping[str, int]:
        """What a job estimated and took that says both, from which its next runs learn; the estimate by rates alone."""
        run, estimated = self._state.run, getattr(outcome.result, "estimated", None)
        if run is None or estimated is None or outcome.dry_run:
            return {}
        return {"estimated_cpu_ms": round(estimated.cpu_ms / run.cpu_pace), "cpu_ms": outcome.result.cpu_ms}

    def _arguments(self) -> Mapping[str, Any]:
        """As they are written down; with the hash of the plan that it was given, where it was."""
        run = self._state.run
        plan = {} if run is None or run.plan is None else {"plan": run.plan}
        return {**plain_values(self._state.arguments), **plan}

    def _report_start(self) -> None:
        state, before = self._state, self._state.before or Position()
        # A run over many tables may be written down in several places.
        if _BEGINNING in state.reported:
            return
        state.reported.add(_BEGINNING)
        assert state.run is not None
        started = RunStarted(
            run_id=state.run.run_id,
            job=state.run.job,
            started_ms=state.started_ms,
            table=state.table or "",
            policy=state.run.policy,
            parent_id=state.run.parent_id,
            is_one_of_many=self._is_part,
            only_tells=state.is_read_only,
            arguments=state.arguments,
            table_location=before.table_location,
            metadata_location=before.metadata_location,
            snapshot_id=before.snapshot_id,
        )
        self._listener.on(started)

    def _report_end(self, status: str, exit_status: int, **known: Any) -> None:
        if _END in self._state.reported:
            return
        self._state.reported.add(_END)
        assert self._state.run is not None
        run_id, now_ms = self._state.run.run_id, self._runtime.now_ms()
        self._listener.on(RunEnded(run_id=run_id, status=status, exit_status=exit_status, ended_ms=now_ms, **known))

    def _end(self, **known: Any) -> None:
        if self.keeper is not None:
            self.keeper.end(app_id=self.keeper.record.app_id or self._state.app_id or application_id(), **known)


class RecordDestination(msgspec.Struct, frozen=True):
    """Where a run is written down: as the configuration says for a catalog, and how the catalog of a table is opened."""

    runs: RunsSettings
    catalog: CatalogSettings
    open_catalog: Callable[[str], Any]


@contextmanager
def recorded(state: RunState, place: RecordDestination | None, context: RunContext) -> Iterator[Recording]:
    """Write down how the block ends that raises; who returns says so by `finish`.

    Args:
        place: `None` for a run that is not written down, such as a rehearsal.
        context: whose runtime, listener and interrupts the run has.
    """
    recording = Recording(state, None if place is None else _keeper(state, place, context), context)
    try:
        yield recording
    except BaseException as failure:
        recording.fail(failure, context.interrupts.signal)
        raise


def _keeper(state: RunState, place: RecordDestination, context: RunContext) -> "RunKeeper | None":
    assert state.run is not None
    runs, listener = place.runs, context.listener
    records = None
    try:
        records = records_of(runs, place.catalog, os.environ, runtime=context.runtime)
        also = None if runs.table is None or not runs.is_enabled else _appending(runs.table, place, records)
        if records is None and also is None:
            return None
        record = resolve(_NEW_RECORD)(state.run, state.table or "", state.started_ms)
        keeper: RunKeeper = resolve(_KEEPER)(
            records, record, context.runtime, listener, keep_ms=runs.keep_ms, also=also
        )
    except Exception as error:  # noqa: BLE001 - the run's work does not hang on it
        listener.on(Warned(f"run {state.run.run_id} is not written down: {one_line(error)}"))
        return None
    return keeper


def _appending(name: str, place: RecordDestination, records: "RunRecords | None") -> Callable[[Any], None]:
    """What appends an ended run to an Iceberg table; the parts of a run of `maintain` are appended with that, in one commit."""

    def append(record: Any) -> None:
        if record.parent_id is not None and records is not None:
            return
        catalog_name, *identifier = parse_identifier(name)
        resolve(_APPEND)(place.open_catalog(catalog_name), tuple(identifier), record, records)

    return append


def _records(uri: str, runtime: Runtime) -> "RunRecords":
    records: RunRecords = getattr(resolve(_RECORDS), "at")(uri, runtime)  # noqa: B009
    return records
