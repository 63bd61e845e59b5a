"""Files of plans, which `--plan-out` writes and `apply` reads (`docs/plans.md`).

They are JSON lines, read from the first to the last with one line in memory:

    {"format": "icekeep-plan", "version": 1, "icekeep": "0.1.0", "job": "compact", "table": "lake.db.events", ...}
    {"do": "rewrite", "kind": "data file", "name": "...", "group": 0, "size_bytes": 4242, "state": "..."}
    {"totals": {"lines_count": 1, ...}}
    {"hash": "..."}

The last line has the hash of all bytes before it. It holds off accidents and shows which plan it is, and is no signature: what
a plan says is never trusted by those who carry it out.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.summary import run_of
from icekeep.decoding import from_json
from icekeep.errors import NotFoundError, UsageError, argument
from icekeep.events import SILENT, Listener
from icekeep.health.prices import Prices
from icekeep.maintenance import drop
from icekeep.maintenance.saved_plans import AlreadyApplied, ExactPlan, GivenPlan, PlanLine
from icekeep.operations.console.output import require_new_file, written_at_once
from icekeep.operations.jobs import resolve
from icekeep.operations.outcomes import AppliedBefore, PlanTotals, PlanWritten
from icekeep.rendered import Rendered
from icekeep.settings import Job, SettingKind
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.times import moment_ms, whole_days
from icekeep.version import ICEKEEP_VERSION

FORMAT = "icekeep-plan"
VERSION = 2
"""Raised when a file can no longer be read by those who know the version before."""

_DIGEST_BYTES = 16
_LAST = re.compile(rb'\{"hash":"([0-9a-f]{32})"\}\n')
_LINE_MAX_BYTES = 1 << 24
_ENCODER = msgspec.json.Encoder()


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class PlanHead(_Record, frozen=True, kw_only=True):
    """The first line.

    Attributes:
        icekeep: the version that wrote it.
        table: its name, with that of the catalog in the configuration.
        location, metadata_location, snapshot_id: of the table as it was, the last that of the head of `branch`.
        created_ms: when the plan was made, epoch milliseconds; times in `arguments` are moments.
        arguments: of the job, by the keywords of its function.
        approve: the hash of what the job does, if it has one.
        notes: what is done beside the lines.
        catalog: the catalog's kind and address, whatever a configuration calls it.
        decided_by: what of the table's metadata decides of the outcome, beside the lines. Files of version 1 have neither.
    """

    format: str
    version: int
    icekeep: str
    job: str
    table: str
    table_uuid: str | None
    location: str
    metadata_location: str
    branch: str
    snapshot_id: int | None
    created_ms: int
    arguments: dict[str, Any]
    approve: str | None
    notes: tuple[str, ...]
    catalog: str | None = None
    decided_by: dict[str, str] | None = None


class _Totals(_Record, frozen=True, kw_only=True):
    totals: PlanTotals


class _Version(msgspec.Struct):
    format: str
    version: int
    icekeep: str = ""


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read once, as a whole, and found to be what was written."""

    path: str
    head: PlanHead
    totals: PlanTotals
    hash: str

    def lines(self) -> Iterator[PlanLine]:
        """All that is done; read anew.

        Raises:
            UsageError: a line is none, or the file is not the one that was read.
        """
        left = self.totals.lines_count
        hashing = blake2b(digest_size=_DIGEST_BYTES)
        for number, line in enumerate(_raw_lines(self.path)):
            if not _LAST.fullmatch(line):
                hashing.update(line)
            if not 1 <= number <= left:
                continue
            try:
                yield from_json(line, PlanLine)
            except msgspec.MsgspecError as error:
                raise UsageError(f"line {number + 1} of plan {self.path!r} cannot be read: {error}") from None
        if hashing.hexdigest() != self.hash:
            raise _changed(self.path)


def write_plan_file(path: str, head: PlanHead, lines: Iterable[PlanLine], totals: "Totals") -> PlanFile:
    """Write a plan to a new file at once: a reader sees the whole of it or nothing.

    Args:
        totals: adds up the lines as they go by.

    Raises:
        UsageError: the file cannot be written, or is there already: somebody may have approved it.
    """
    require_new_file(path, "plan")
    hashing = blake2b(digest_size=_DIGEST_BYTES)
    with written_at_once(path, "plan", is_new=True) as stream:

        def write(record: object) -> None:
            line = _ENCODER.encode(record) + b"\n"
            hashing.update(line)
            stream.write(line)

        write(head)
        for line in lines:
            totals.add(line)
            write(line)
        total = totals.total()
        write(_Totals(totals=total))
        digest = hashing.hexdigest()
        stream.write(_ENCODER.encode({"hash": digest}) + b"\n")
    return PlanFile(path=path, head=head, totals=total, hash=digest)


def read_plan_file(path: str) -> PlanFile:
    """Read a file as a whole, and hold it against its hash.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is no plan, was cut off or changed, or is of a newer icekeep.
    """
    raw = _raw_lines(path)
    first = next(raw, b"")
    _refuse_foreign(first, path)
    hashing = blake2b(digest_size=_DIGEST_BYTES)
    before, last, count = b"", first, 1
    for line in raw:
        hashing.update(last)
        before, last = last, line
        count += 1
    end = _LAST.fullmatch(last)
    if end is None:
        raise UsageError(f"plan {path!r} is cut off, or something was added at its end; write it anew with --plan-out")
    digest = end[1].decode()
    if digest != hashing.hexdigest():
        raise _changed(path)
    try:
        head = from_json(first, PlanHead)
        totals = from_json(before, _Totals).totals
    except msgspec.MsgspecError as error:
        raise UsageError(f"plan {path!r} cannot be read: {error}") from None
    if totals.lines_count != count - 3:
        raise _changed(path)
    return PlanFile(path=path, head=head, totals=totals, hash=digest)


class Totals:
    """What lines sum up to; a job says what they take."""

    def __init__(self, costs: Mapping[str, Any]) -> None:
        """Args:
        costs: the other fields of `PlanTotals`.
        """
        self._costs = costs
        self._lines_count = self._files_count = self._files_bytes = 0

    def add(self, line: PlanLine) -> None:
        self._lines_count += 1
        if line.is_of_a_file:
            self._files_count += 1
            self._files_bytes += line.size_bytes or 0

    def total(self) -> PlanTotals:
        return PlanTotals(
            lines_count=self._lines_count, files_count=self._files_count, files_bytes=self._files_bytes, **self._costs
        )


def _raw_lines(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as stream:
            while line := stream.readline(_LINE_MAX_BYTES):
                yield line
    except FileNotFoundError:
        raise NotFoundError(f"there is no plan {path!r}", path=path) from None
    except OSError as error:
        raise UsageError(f"cannot read plan {path!r}: {(error.strerror or '').lower()}", path=path) from error


def _refuse_foreign(first: bytes, path: str) -> None:
    try:
        said = from_json(first, _Version)
    except msgspec.MsgspecError:
        said = _Version(format="", version=0)
    if said.format != FORMAT:
        raise UsageError(f"{path!r} is no plan of icekeep; `--plan-out` of a job writes one")
    if said.version > VERSION:
        raise UsageError(
            f"plan {path!r} was written by a newer icekeep ({said.icekeep or 'unknown'}): it has format version "
            f"{said.version}, and this one reads up to {VERSION}; apply it with that version"
        )


def _changed(path: str) -> UsageError:
    return UsageError(
        f"plan {path!r} was changed since it was written: its hash differs; write it anew with --plan-out"
    )


_SPARK_RUN = "icekeep.planning.spark.jobs:spark_run"


class PlanSource(msgspec.Struct, frozen=True, kw_only=True):
    """Of what, and when, a plan is made.

    Attributes:
        name: of the table, with that of its catalog in the configuration.
        arguments: of the job, absolute.
    """

    job: str
    name: str
    table: Table
    created_ms: int
    arguments: Mapping[str, Any]


def write_exact(
    path: str, exact: ExactPlan, source: PlanSource, prices: Prices | None, listener: Listener = SILENT
) -> PlanWritten:
    """Write a job's plan to a file, all of it or nothing; raises `UsageError` where it cannot be written."""
    cost = exact.cost
    costs: dict[str, Any] = msgspec.structs.asdict(cost)
    if prices is not None:
        costs |= {"cost": round(prices.cost(**costs), 6), "currency": prices.currency}
    head = PlanHead(
        format=FORMAT,
        version=VERSION,
        icekeep=ICEKEEP_VERSION,
        job=source.job,
        table=source.name,
        table_uuid=source.table.metadata.table_uuid,
        location=source.table.metadata.location,
        metadata_location=source.table.metadata_location,
        branch=exact.branch,
        snapshot_id=exact.snapshot_id,
        created_ms=source.created_ms,
        arguments=dict(source.arguments),
        approve=exact.approve,
        notes=exact.notes,
        catalog=source.table.catalog.identity,
        decided_by=dict(exact.decided_by),
    )
    try:
        # Lines that are in Spark come from there by jobs of the same run.
        with resolve(_SPARK_RUN)(source.job, source.name, listener):
            written = write_plan_file(path, head, exact.lines, Totals(costs))
    finally:
        if exact.close is not None:
            exact.close()
    return PlanWritten(path=path, hash=written.hash, totals=written.totals, notes=exact.notes)


def given_of(file: PlanFile) -> GivenPlan:
    head = file.head
    return GivenPlan(
        hash=file.hash,
        created_ms=head.created_ms,
        table_uuid=head.table_uuid,
        location=head.location,
        metadata_location=head.metadata_location,
        snapshot_id=head.snapshot_id,
        branch=head.branch,
        approve=head.approve,
        lines=file.lines,
        catalog=head.catalog,
        decided_by=head.decided_by,
    )


def absolute_arguments(job: Job, arguments: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Arguments as a file has them: ages are moments, and a filter is text, read as of when the plan was made."""
    if arguments.get("approve") is not None:
        raise UsageError(
            f"{argument('approve')} is the hash of a plan, and a new plan is asked for; leave one of them out"
        )
    kinds = {setting.argument: setting.kind for setting in job.settings}
    found = {name: _plain(name, value, kinds.get(name), now_ms) for name, value in arguments.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plain(name: str, value: Any, kind: SettingKind | None, now_ms: int) -> Any:
    if value is None or value is ALWAYS_TRUE:
        return None
    if kind is SettingKind.TIME:
        return moment_ms(value, now_ms)
    if kind is SettingKind.DAYS:
        return whole_days(value)
    if kind in (SettingKind.FILTER, SettingKind.MANIFEST_FILTER) and not isinstance(value, str):
        raise UsageError(f"{argument(name)} is an expression, and a plan's file holds text: give it as text")
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
    except TypeError as error:
        raise UsageError(f"{argument(name)} cannot be written to a plan's file: {error}") from None
    if kind is SettingKind.OPTIONS and isinstance(plain, dict):
        return {key: one for key, one in plain.items() if one is not None}
    return plain


class ApplyResult(Rendered, frozen=True, kw_only=True):
    """What came of a plan.

    Attributes:
        status: that of the job; `planned` where the plan was only held against the table, `done` where there was nothing to do.
        job: whose plan it is.
        plan_hash: of the file.
        applied_before: how it shows that the plan was carried out before, for people; `None` where it was not.
        applied_snapshot_id, applied_run_id: the newest of the snapshots by which it was, and the run that made it; `None` where
            no snapshot of the table says so.
        result: of the job; its plan, where nothing was to be changed; `None` where the plan was carried out before.
    """

    status: str
    job: str
    plan_hash: str
    applied_before: str | None = None
    applied_snapshot_id: int | None = None
    applied_run_id: str | None = None
    result: Any = None


def applied_before(found: AlreadyApplied) -> AppliedBefore:
    """What a job found that was given a plan of which nothing is left."""
    if not found.snapshots:
        return AppliedBefore(applied_before=str(found))
    newest = max(found.snapshots, key=lambda one: one.sequence_number)
    return AppliedBefore(
        applied_before=str(found), snapshot_id=newest.snapshot_id, run_id=run_of(newest.summary) or None
    )


def dropped_before(job: str, given: GivenPlan, missing: NotFoundError, identity: Callable[[], str]) -> AppliedBefore:
    """That the table is gone which a plan drops.

    Args:
        identity: gives that of the catalog that has no such table.
    """
    if job != drop.JOB.name:
        raise missing
    asked = identity()
    if given.catalog != asked:
        made_in = "a catalog that it does not name" if given.catalog is None else repr(given.catalog)
        raise NotFoundError(
            f"{missing.message}, which is {asked!r}; the plan was made in {made_in}: name that catalog with --catalog, or "
            "make a new plan",
            catalog=asked,
        )
    return AppliedBefore(
        applied_before=f"{missing.message}: it was carried out before, or somebody else dropped the table"
    )
