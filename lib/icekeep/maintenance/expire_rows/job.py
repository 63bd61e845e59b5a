"""The job `expire_rows`: rows of a filter go, such as those above an age.

manifests -> sums of what expires -> one commit: data files all of whose rows match, evaluated on whatever the table is then,
with the delete files that reach nothing any more; and, where that is asked for, what takes out the expired rows of the files at
the edge

The moment of `now` in the filter is that of the run's begin, or of the saved plan. A commit removes by the filter, not by a list
that grows with the table. Where it finds fewer files than were planned, since others replaced some, the job plans again. So it
does where others changed a file that was read: these are named as they were read. Rows that others add meanwhile need not go.
"""

import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.commit.attempt import Attempt, Change, removed_deletes
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.file_sets import Digest, entry_digest
from icekeep.commit.live_files import require_format_version
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ConflictError, SafetyError, UnsupportedError, UsageError, argument, table_at
from icekeep.events import StepFinished, StepStarted, Warned
from icekeep.formats.deletes.read import hold_own_path
from icekeep.formats.deletes.rewrite import delete_format, delete_granularity
from icekeep.formats.options import write_options
from icekeep.formats.rewrite.matched_rows import TakenOut
from icekeep.maintenance.deletes.equality_plan import data_entry
from icekeep.maintenance.expire_rows import JOB
from icekeep.maintenance.expire_rows.edge import STEP, TakenRows, discard, take_out_rows
from icekeep.maintenance.expire_rows.plan import (
    COPIES,
    DELETES,
    EDGE_VERBS,
    KEEP,
    ExpireRowsPlan,
    ExpirySums,
    FileSums,
    SavedExpiry,
    edge_files,
    expiry_sums,
    file_lines,
    files_found,
    filter_columns,
    has_same_fields,
    saved_expiry,
    shown_partitions,
)
from icekeep.maintenance.jobs import CommittingRequest, JobResult, takes
from icekeep.maintenance.plans import REMOVE, ExactPlan, PlanCost, PlanLine
from icekeep.maintenance.preconditions import NOTE_OF_REMOVALS, delete_file_line, of_data_files, of_delete_files
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.maintenance.rewrite.run import RewriteRun, retry_with_replan, run_name
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.entries import entries_count
from icekeep.planning.scan.plan import Scan, bound_filter, open_scan
from icekeep.planning.spark.session import limits_of
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import format_expression, parse_where
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update
from icekeep.spelling import counted, counted_doing
from icekeep.tables.refs import head_to_commit_to

_LOG = logging.getLogger(__name__)


class ExpireRowsRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `expire_rows`, which says what each means."""

    where: str | Expression = ALWAYS_TRUE
    edge: str = KEEP
    allow_all_rows: bool = False
    branch: str = MAIN


class ExpireRowsResult(JobResult, frozen=True, kw_only=True):
    """What a run did; sizes in bytes.

    Attributes:
        where: the filter, with moments in place of ages.
        removed_data_files_count: that went as a whole, since metadata shows that all their rows match.
        removed_records_count: rows of these, as their entries count them; some may have been deleted already.
        removed_delete_files_count: that reach none of the data files that are left.
        removed_bytes_count: of all these files, as the summary of the snapshot counts them: of a deletion vector its whole file.
        edge_data_files_count: files at the edge, of which some rows may match: those that `keep` leaves in the table, and whose
            rows `deletes` and `rewrite` have read.
        edge_records_count: rows of these.
        edge_bytes_count: of these files.
        deleted_records_count: rows of files at the edge that were taken out, one by one or with their file.
        emptied_data_files_count: files at the edge that went as a whole, since no other row was left in them.
        added_delete_files_count: with positions of expired rows; vectors, each counted.
        replaced_delete_files_count: vectors, and position delete files of one data file, whose positions new vectors hold too.
        rewritten_data_files_count: files at the edge, whose other rows are in new files.
        added_data_files_count: these new files.
        added_bytes_count: of all new files.
        attempts_count: how often it was planned; more than once where others changed what was to be replaced.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        peak_task_bytes: the most memory that the Python process of a task had.
    """

    work = ("removed_data_files_count", "deleted_records_count")

    status: str = "done"
    where: str = ""
    removed_data_files_count: int = 0
    removed_records_count: int = 0
    removed_delete_files_count: int = 0
    removed_bytes_count: int = 0
    edge_data_files_count: int = 0
    edge_records_count: int = 0
    edge_bytes_count: int = 0
    deleted_records_count: int = 0
    emptied_data_files_count: int = 0
    added_delete_files_count: int = 0
    replaced_delete_files_count: int = 0
    rewritten_data_files_count: int = 0
    added_data_files_count: int = 0
    added_bytes_count: int = 0
    attempts_count: int = 1
    swept_files_count: int = 0
    elapsed_ms: int = 0
    run_id: str | None = None
    peak_task_bytes: int = 0


@takes(ExpireRowsRequest, asks=JOB.asks)
def expire_rows(table: Table, request: ExpireRowsRequest) -> ExpireRowsResult:
    """Delete the rows of a filter: whole data files where metadata shows that all their rows match, in one commit.

    Older snapshots, other branches and tags keep the rows readable, and no file is deleted: `expire_snapshots` frees the bytes
    once no snapshot needs them. Where others changed what is being replaced, so that the commit is refused, it is planned again,
    as often as `commit.retry.num-retries` says.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for
            tables of up to two million entries, where manifests of at most 20,000 of them change and little is at the edge.
        where: the rows that expire, such as `ts < now - 90d`; as text or an unbound expression. `now` is the moment at which the
            run begins.
        edge: of files of which only some rows may match: `keep` leaves them until all rows do; `deletes` reads them and deletes
            the rows by position, with vectors in format version 3; `rewrite` copies the other rows into new files.
        allow_all_rows: go on although the filter is true of every row there can be.
        branch: whose rows expire, and where that is committed; no other branch moves.
        saved: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        ExpressionError, NotFoundError, UsageError: an argument is wrong, such as a tag in place of a branch, or a property of the
            table; nothing was done.
        SafetyError: the filter is true of every row, or a column of it is another one than when the run began; the table was
            dropped and made again meanwhile, or moved; or the saved plan does not hold any more.
        UnsupportedError: the table is encrypted, or has no deletes of positions (format version 1); nothing was done.
        JobFailedError: a file at the edge could not be read; the table is as it was, and new files are removed.
        ConflictError: others kept changing what was to be replaced, however often it was planned again.
        OutcomeUnknownError: the commit may or may not have landed; its files are kept.
    """
    expiration = _Expiration(table, request)
    swept_count = 0
    if request.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep=run_name(table), listener=request.listener)
    result = retry_with_replan(
        table,
        expiration.run,
        what=lambda: "expired rows",
        listener=request.listener,
        only_once=request.saved is not None,
    )
    return msgspec.structs.replace(result, swept_files_count=swept_count)


@takes(ExpireRowsRequest)
def plan_expire_rows(table: Table, request: ExpireRowsRequest) -> ExpireRowsPlan:
    """Say what `expire_rows` with the same arguments would do; raises as it does, and reads and writes no data."""
    return _Expiration(table, request).shown(table)[0]


@takes(ExpireRowsRequest, "expire_rows")
def exact_expire_rows(table: Table, request: ExpireRowsRequest) -> ExactPlan:
    """What `expire_rows` with the same arguments would do, with all files; raises as it does, and writes nothing."""
    return _Expiration(table, request).exact(table)


@takes(ExpireRowsRequest)
def check_arguments(metadata: TableMetadata, request: ExpireRowsRequest) -> None:
    """Hold the arguments against the table, before anything is read; raises as `expire_rows` does."""
    if request.edge not in (KEEP, DELETES, COPIES):
        raise UsageError(
            f"{argument('edge')} is {request.edge!r}; give {KEEP}, {DELETES} or {COPIES}", given=request.edge
        )
    # Whatever the moment is, the filter is true of every row or not.
    if bound_filter(request.where, metadata, metadata.schema, 0) is ALWAYS_TRUE and not request.allow_all_rows:
        raise SafetyError(
            f"the filter is true of every row, so that {table_at(metadata.location)} would be emptied; nothing was changed; give "
            f'{argument("where")}, such as "ts < now - 90d", or, where all rows are to go, {argument("allow_all_rows")}'
        )
    if request.edge == DELETES:
        if metadata.format_version < 2:
            raise UnsupportedError(
                f"{table_at(metadata.location)} has format version 1, which has no deletes of rows; nothing was changed; use "
                f"{argument('edge')} {COPIES} or {KEEP}"
            )
        delete_format(metadata.properties)
        delete_granularity(metadata.properties)
    if request.edge != KEEP:
        write_options(metadata.properties, metadata.schema)


class _SameColumns(msgspec.Struct, frozen=True):
    """A change that is applied only where a filter is bound to the fields that it was planned with.

    Deletes of positions must have the form that the format version takes, so it must be the same.
    """

    change: RowDelta
    bound: Expression
    format_version: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.change.added_deletes:
            require_format_version(base, self.format_version)
        if bind(self.change.rows, base.schema, base.partition_specs) != self.bound:
            raise ConflictError("the columns of the filter were changed since it was planned which rows expire")
        return self.change.apply(base, attempt)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan found in one version of the table; with a saved plan only what that has too.

    Attributes:
        saved: `None` where there is no saved plan.
    """

    scan: Scan
    sums: ExpirySums
    saved: SavedExpiry | None = None

    @property
    def expired(self) -> FileSums:
        return self.sums.total(self.sums.expired)

    @property
    def edge(self) -> FileSums:
        return self.sums.total(self.sums.edge)

    @property
    def only(self) -> frozenset[Digest] | None:
        return None if self.saved is None else self.saved.expired


class _Expiration:
    """One run, or its plan: its arguments, understood."""

    def __init__(self, table: Table, request: ExpireRowsRequest) -> None:
        check_arguments(table.metadata, **_arguments(request))
        head_to_commit_to(table.metadata, request.branch)
        self._request, self._spark, self._listener = request, request.spark, request.listener
        where = request.where
        self._rows = parse_where(where, table.runtime.now_ms()) if isinstance(where, str) else where
        self._first = bind(self._rows, table.metadata.schema, table.metadata.partition_specs)

    def find(self, table: Table) -> _Found:
        """Look at the metadata of the table as it is held."""
        scan = open_scan(table, where=self._rows, ref=self._request.branch, for_commit=True)
        if not has_same_fields(self._first, scan.where):
            raise SafetyError(
                f"a column of the filter is another one now than when the run on {table.name!r} began; nothing was changed; run "
                "it again"
            )
        saved = None
        if self._request.saved is not None:
            saved = saved_expiry(self._request.saved, scan, self._spark, self._decided(scan))
        found = _Found(scan=scan, sums=expiry_sums(scan, self._spark), saved=saved)
        return found if saved is None else self._limited(found, saved)

    def _limited(self, found: _Found, saved: SavedExpiry) -> _Found:
        """Only what a saved plan has too; of files at the edge all of them where it leaves them."""
        sums = ExpirySums()
        for expired, digests in ((True, saved.expired), (False, saved.edge)):
            into = sums.expired if expired else sums.edge
            if not expired and self._request.edge == KEEP:
                into.update(found.sums.edge)
                continue
            codecs = PartitionCodecs(found.scan.table.metadata.partition_types)
            for row in files_found(found.scan, self._spark, expired=expired) if digests else ():
                if entry_digest(data_entry(row, codecs)) in digests:
                    key = row["spec_id"], bytes(row["partition"])
                    one = FileSums(1, row["record_count"], row["file_size_in_bytes"])
                    into[key] = into.get(key, FileSums()).plus(one)
        return msgspec.structs.replace(found, sums=sums)

    def _decided(self, scan: Scan) -> dict[str, str]:
        """What of the table's metadata decides which files are meant, and how new ones are written."""
        metadata = scan.table.metadata
        columns = filter_columns(scan.where, metadata)
        if self._request.edge == DELETES:
            return columns | of_delete_files(metadata)
        return columns | of_data_files(metadata) if self._request.edge == COPIES else columns

    def _change(self, found: _Found, taken: TakenRows) -> RowDelta:
        snapshot = found.scan.version.snapshot
        return RowDelta(
            rows=self._rows,
            least_count=found.expired.files_count,
            only=found.only,
            proof=hold_own_path,
            added=taken.all_of("added"),
            added_deletes=taken.all_of("added_deletes"),
            removed=taken.removed,
            removed_deletes=taken.all_of("replaced"),
            named=frozenset(taken.all_of("named")),
            starting_snapshot_id=snapshot.snapshot_id if taken.outcomes and snapshot is not None else None,
            branch=self._request.branch,
        )

    def shown(self, table: Table) -> tuple[ExpireRowsPlan, _Found, list[ManifestEntry] | None]:
        """The plan for people, what it is made of, and the delete files that go; `None` where that is not known."""
        found = self.find(table)
        swept_count = 0
        if self._request.saved is None:
            swept_count = sweep_runs(table, table.runtime, keep="", listener=self._listener, is_plan=True)
        expired, edge = found.expired, found.edge
        deletes: list[ManifestEntry] | None = []
        if expired.files_count:
            deletes = None
            if entries_count(found.scan.listed) <= limits_of(self._spark).entries_count:
                removed = removed_deletes(lambda: self._change(found, TakenRows()), table, self._request.branch)
                deletes = [entry for one in removed for entry in one.entries]
        snapshot, (count, partitions) = found.scan.version.snapshot, shown_partitions(found.sums, table.metadata)
        plan = ExpireRowsPlan(
            branch=self._request.branch,
            snapshot_id=None if snapshot is None else snapshot.snapshot_id,
            where=format_expression(self._rows),
            edge=self._request.edge,
            removed_data_files_count=expired.files_count,
            removed_records_count=expired.records_count,
            removed_delete_files_count=None if deletes is None else len(deletes),
            removed_bytes_count=expired.bytes + sum(one.data_file.file_size_in_bytes for one in deletes or ()),
            edge_data_files_count=edge.files_count,
            edge_records_count=edge.records_count,
            edge_bytes_count=edge.bytes,
            swept_files_count=swept_count,
            partitions_count=count,
            partitions=partitions,
        )
        return plan, found, deletes

    def exact(self, table: Table) -> ExactPlan:
        """The plan with all files."""
        shown, found, deletes = self.shown(table)

        def lines() -> Iterator[PlanLine]:
            yield from file_lines(table, files_found(found.scan, self._spark, expired=True), REMOVE)
            for entry in deletes or ():
                yield delete_file_line(entry, REMOVE)
            if (verb := EDGE_VERBS.get(self._request.edge)) is not None:
                yield from file_lines(table, files_found(found.scan, self._spark, expired=False), verb)

        reads = 0 if self._request.edge == KEEP else shown.edge_bytes_count
        return ExactPlan(
            shown=shown,
            branch=shown.branch,
            snapshot_id=shown.snapshot_id,
            lines=lines(),
            decided_by=self._decided(found.scan),
            cost=PlanCost(
                read_bytes=reads,
                written_bytes=reads if self._request.edge == COPIES else 0,
                requests_count=shown.edge_data_files_count if reads else 0,
            ),
            notes=() if deletes is not None else (NOTE_OF_REMOVALS,),
        )

    def run(self, table: Table, number: int) -> ExpireRowsResult:
        """Plan and commit, as the plan of a number."""
        found = self.find(table)
        expired, edge = found.expired, found.edge
        result = ExpireRowsResult(
            where=format_expression(self._rows),
            edge_data_files_count=edge.files_count,
            edge_records_count=edge.records_count,
            edge_bytes_count=edge.bytes,
            attempts_count=number,
        )
        snapshot, keeps = found.scan.version.snapshot, self._request.edge == KEEP
        _LOG.info(
            "%s: %d data files expire as a whole, %d are at the edge (%s)",
            table.name,
            expired.files_count,
            edge.files_count,
            self._request.edge,
            extra=log_context(table),
        )
        if keeps and edge.files_count:
            self._listener.on(
                Warned(
                    f"{counted_doing(edge.files_count, 'data files', 'are')} left at the edge of the filter, since not all of "
                    f"their rows match, as far as metadata tells; {argument('edge')} says what else is possible"
                )
            )
        if snapshot is None or not (expired.files_count or (edge.files_count and not keeps)):
            return result
        if keeps or not edge.files_count:
            landed = self._committed(table, found, TakenRows(), None)
            return _counted(result, landed, TakenRows())
        run_id = run_name(table, number)
        with RewriteRun(table, "expire_rows", run_id, self._listener) as run:
            self._listener.on(StepStarted(STEP, edge.files_count, "data files"))
            files = self._edge_files(found)
            taken = take_out_rows(run, snapshot, files, found.scan.where, TakenOut(self._request.edge), self._spark)
            self._listener.on(StepFinished(STEP, f"{counted(taken.matched_count, 'rows')} expired"))
            if not expired.files_count and not taken.matched_count:
                return result
            landed = self._committed(table, found, taken, run)
        return _counted(result, landed, taken)

    def _edge_files(self, found: _Found) -> list[dict[str, Any]]:
        files, saved = edge_files(found.scan, self._spark), found.saved
        if saved is None:
            return files
        codecs = PartitionCodecs(found.scan.table.metadata.partition_types)
        return [row for row in files if entry_digest(data_entry(row, codecs)) in saved.edge]

    def _committed(self, table: Table, found: _Found, taken: TakenRows, run: RewriteRun | None) -> CommitResult:
        change: Change = _SameColumns(
            self._change(found, taken), found.scan.where, found.scan.table.metadata.format_version
        )
        reader = SparkManifestReader(self._spark, table.storage)
        if run is not None:
            return run.commit(change, taken.locations, lambda: discard(run, taken.outcomes), reader)
        return commit(table, change, reader=reader, runtime=table.runtime, listener=self._listener)


def _counted(result: ExpireRowsResult, landed: CommitResult, taken: TakenRows) -> ExpireRowsResult:
    """A result with the figures of a commit; those of files at the edge are none of whole files."""
    summary = landed.summary
    if not landed.changed:
        return result
    removed, replaced, emptied = taken.removed, taken.all_of("replaced"), taken.all_of("emptied")
    added, added_deletes = taken.all_of("added"), taken.all_of("added_deletes")
    return msgspec.structs.replace(
        result,
        removed_data_files_count=int(summary.get("deleted-data-files", "0")) - len(removed),
        removed_records_count=int(summary.get("deleted-records", "0")) - sum(e.data_file.record_count for e in removed),
        removed_delete_files_count=int(summary.get("removed-delete-files", "0")) - len(replaced),
        removed_bytes_count=int(summary.get("removed-files-size", "0"))
        - sum(e.data_file.file_size_in_bytes for e in (*removed, *replaced)),
        deleted_records_count=taken.matched_count,
        emptied_data_files_count=len(emptied),
        added_delete_files_count=len(added_deletes),
        replaced_delete_files_count=len(replaced),
        rewritten_data_files_count=len(taken.all_of("rewritten")),
        added_data_files_count=len(added),
        added_bytes_count=sum(file.own_bytes for file in (*added, *added_deletes)),
        peak_task_bytes=taken.peak_bytes,
    )


def _arguments(request: ExpireRowsRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in ("where", "edge", "allow_all_rows", "branch")}
