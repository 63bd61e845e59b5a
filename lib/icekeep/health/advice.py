"""What each job would do now, what that costs and what it brings: by the job's own plan where files are few, else by sums.

Plans are asked with a session that cannot be started: what would need one is worked out from sums in its place.
Expiration and orphan removal are estimated without reading old manifests and without a listing. Conditions of policies
get their numbers here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NoReturn, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.commit.summary import SOURCE_SNAPSHOT_ID
from icekeep.errors import IcekeepError, TryAgainError, shown_command
from icekeep.health.files import DATA_COLUMNS, MIN_INPUT_FILES, DataFold, DeleteFold, GroupSums, ancestors_of
from icekeep.health.prices import Prices
from icekeep.health.values import FaultsCount, JobAdvice, MetadataHealth, MeteredStorage, TableHealth, number_of
from icekeep.maintenance.check.lists import Listed
from icekeep.maintenance.compact.job import CompactionRun, CompactRequest
from icekeep.maintenance.compact.options import RATES_BYTES_A_SECOND, CompactionEstimate, RewriteMethod, Work, estimate
from icekeep.maintenance.compact.plan import RewritePlan, group_files
from icekeep.maintenance.delete.options import ExpirationOptions
from icekeep.maintenance.delete.reachable import refuse_if_gc_is_disabled
from icekeep.maintenance.deletes.job import check_arguments
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions
from icekeep.maintenance.deletes.plan import DeletesPlan, preview
from icekeep.maintenance.deletes.plan import plan as plan_position_deletes
from icekeep.maintenance.jobs import ENTRY_CPU_MS, FILE_CPU_MS
from icekeep.maintenance.manifests.candidates import candidates
from icekeep.maintenance.manifests.rules import RewriteManifestsRequest, checked_rules
from icekeep.maintenance.orphans.options import eligible_before_ms
from icekeep.maintenance.rewrite.options import FileSizes, expected_output_files
from icekeep.planning.entries import entries_schema
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.session import Engine, Limits
from icekeep.policies.windows import Facts
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_newer, own_path
from icekeep.spec.retention import Expired, select_expired
from icekeep.spec.snapshots import MAIN
from icekeep.spelling import counted, counted_doing

_NAMES_A_LISTING = 1000
"""How many names an object store lists with one request."""


class Expiring(msgspec.Struct, frozen=True, kw_only=True):
    """What would go; sizes in bytes.

    Attributes:
        error: why it cannot be told; then there is nothing else.
        manifests_count, manifests_bytes: of manifests that only expired snapshots have.
        lists_count, lists_bytes: of their manifest lists.
        files_count, files_bytes: data and delete files that no snapshot has then, by the summaries of commits; at most, as
            another branch or tag may still have them. `None` where a summary does not say.
        read_manifests_count, read_bytes: what is read to prove it.
    """

    expired: Expired = Expired(frozenset(), frozenset())
    error: str = ""
    manifests_count: int = 0
    manifests_bytes: int = 0
    lists_count: int = 0
    lists_bytes: int = 0
    files_count: int | None = 0
    files_bytes: int | None = 0
    read_manifests_count: int = 0
    read_bytes: int = 0


def expiring(table: Table, listed: Listed, storage: MeteredStorage) -> Expiring:
    """What the table's own retention lets go now; raises `IcekeepError` where `expire_snapshots` would refuse."""
    metadata = table.metadata
    refuse_if_gc_is_disabled(table)
    now_ms = table.runtime.now_ms()
    expired = select_expired(metadata, ExpirationOptions().policy(table.catalog.rules), now_ms)
    if expired.is_empty:
        return Expiring()
    kept, gone = set[int](), set[int]()
    for snapshot_id, members in listed.members.items():
        (gone if snapshot_id in expired.snapshot_ids else kept).update(members)
    only = [listed.manifests[number] for number in gone - kept]
    lists = [s.manifest_list for s in metadata.snapshots if s.snapshot_id in expired.snapshot_ids and s.manifest_list]
    counts = _removed(metadata, expired)
    return Expiring(
        expired=expired,
        manifests_count=len(only),
        manifests_bytes=sum(m.manifest_length for m in only),
        lists_count=len(lists),
        lists_bytes=sum(storage.size_of(one) or 0 for one in lists),
        files_count=counts["files"],
        files_bytes=counts["bytes"],
        read_manifests_count=len(gone | kept),
        read_bytes=sum(m.manifest_length for m in listed.manifests) + sum(storage.size_of(one) or 0 for one in lists),
    )


def expire_advice(table: Table, found: Expiring) -> JobAdvice:
    """What expiration would do."""
    job = "expire_snapshots"
    if found.error:
        return JobAdvice(job=job, has_work=False, reason=f"it refuses: {found.error}")
    expired, count = found.expired, len(found.expired.snapshot_ids)
    total = len(table.metadata.snapshots)
    if expired.is_empty:
        kept = "the only snapshot" if total == 1 else f"all {total:,} snapshots"
        return JobAdvice(job=job, has_work=False, is_exact=True, reason=f"retention keeps {kept}")
    refs = f" and {counted(len(expired.ref_names), 'references')}" if expired.ref_names else ""
    are = "is" if count == 1 and not refs else "are"
    freed_count = (found.files_count or 0) + found.manifests_count + found.lists_count
    freed = None if found.files_bytes is None else found.files_bytes + found.manifests_bytes + found.lists_bytes
    return JobAdvice(
        job=job,
        has_work=True,
        reason=f"{count:,} of {counted(total, 'snapshots')}{refs} {are} older than the table keeps them",
        gain=f"about {counted_doing(freed_count, 'files', 'are')} freed"
        if freed is not None
        else "files are freed that summaries do not count",
        files_count=freed_count,
        freed_bytes=freed,
        read_bytes=found.read_bytes,
        requests_count=found.read_manifests_count + total + freed_count,
        cpu_ms=round(freed_count * FILE_CPU_MS),
    )


def orphan_advice(table: Table, metadata: MetadataHealth, entries_count: int) -> JobAdvice:
    """What orphan removal would find: only metadata files that left the log are known of without a listing."""
    refuse_if_gc_is_disabled(table)
    lost = _lost_and_old(table, metadata.lost_metadata_files_count)
    known_count = entries_count + metadata.all_manifests_count + metadata.manifest_lists_count
    listed_count = known_count + metadata.metadata_log_files_count + 1 + metadata.lost_metadata_files_count
    reason, gain = "no orphan is known of; only a listing tells of those that failed writes leave", ""
    if lost:
        were = "was" if lost == 1 else "were"
        reason = (
            f"up to {counted(lost, 'metadata files')} left the log and {were} not deleted, unless somebody did so since"
        )
        gain = f"about {lost * (metadata.metadata_bytes or 0):,} bytes of old metadata are freed"
    return JobAdvice(
        job="remove_orphan_files",
        has_work=lost > 0,
        reason=reason,
        gain=gain,
        files_count=lost,
        freed_bytes=lost * metadata.metadata_bytes if metadata.metadata_bytes is not None else None,
        requests_count=-(-listed_count // _NAMES_A_LISTING) + lost,
        cpu_ms=round(listed_count * FILE_CPU_MS),
    )


def _lost_and_old(table: Table, lost_count: int) -> int:
    """How many of the metadata files that left the log can be old enough to go: commits of the last days made others."""
    limit_ms = eligible_before_ms(None, table.runtime.now_ms())
    made_count = sum(snapshot.timestamp_ms >= limit_ms for snapshot in table.metadata.snapshots)
    # One is the current file.
    there_count = 1 + sum(entry.timestamp_ms >= limit_ms for entry in table.metadata.metadata_log)
    return max(0, lost_count - max(0, made_count - there_count))


def _removed(metadata: TableMetadata, expired: Expired) -> Mapping[str, int | None]:
    """What no snapshot has any more: what commits removed whose parents expire, and what those added that led to nothing.

    Of a snapshot that nothing kept comes from, such as one that was rolled back, all that it added goes. What it removed
    does not go by that: where it came from, it may still be live.
    """
    totals: dict[str, int | None] = {"files": 0, "bytes": 0}
    kept = (s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in expired.snapshot_ids)
    led_on = ancestors_of(metadata, kept)
    published = {number_of(snapshot.summary, SOURCE_SNAPSHOT_ID) for snapshot in metadata.snapshots}
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id in led_on:
            if snapshot.parent_snapshot_id not in expired.snapshot_ids:
                continue
            counters = _REMOVED
        elif snapshot.snapshot_id in published:
            continue
        else:
            counters = _ADDED
        summary = snapshot.summary
        if summary is None or "operation" not in summary:
            return {"files": None, "bytes": None}
        for name, keys in counters.items():
            totals[name] = (totals[name] or 0) + sum(number_of(summary, key) or 0 for key in keys)
    return totals


_REMOVED = {"files": ("deleted-data-files", "removed-delete-files"), "bytes": ("removed-files-size",)}
_ADDED = {"files": ("added-data-files", "added-delete-files"), "bytes": ("added-files-size",)}


_AMOUNTS = ("freed_bytes", "replaced_bytes", "read_bytes", "written_bytes", "requests_count", "cpu_ms")


class NeedsSpark(Exception):
    """Raised in the place of a session, where a plan would be made by Spark."""


Compaction: TypeAlias = Callable[[], RewritePlan]
"""The plan of a compaction, made once."""


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of a table, by which jobs are judged; `table` reads through a storage that remembers.

    Attributes:
        groups: files that `compact` may put together, by sums alone.
    """

    table: Table
    limits: Limits
    sizes: FileSizes
    groups: Sequence[GroupSums]
    data: DataFold
    deletes: DeleteFold
    metadata: MetadataHealth
    expiring: Expiring
    entries_count: int
    prices: Prices | None

    @property
    def engine(self) -> Engine:
        """A source for plans, without a session."""
        return Engine(spark=_refuse, limits=self.limits)

    def require_few(self) -> None:
        """Raise `NeedsSpark` where a plan would hold many entries before it comes to that."""
        if self.entries_count > self.limits.entries_count:
            raise NeedsSpark


def advice(known: TableFacts) -> tuple[JobAdvice, ...]:
    """What each job of a policy would do, in the order in which they should run.

    Raises:
        TryAgainError: storage is out of reach.
    """
    compaction = cache(partial(_planned_compaction, known))
    judges: dict[str, Callable[[TableFacts], JobAdvice]] = {
        "compact": lambda known: _compact(known, compaction),
        "rewrite_position_deletes": lambda known: _rewrite_position_deletes(known, compaction),
        "rewrite_manifests": _rewrite_manifests,
        "expire_snapshots": lambda known: expire_advice(known.table, known.expiring),
        "remove_orphan_files": lambda known: orphan_advice(known.table, known.metadata, known.entries_count),
    }
    return tuple(finished(_judged(job, judge, known), known.table, known.prices) for job, judge in judges.items())


def fault_advice(faults: Sequence[FaultsCount], known: TableFacts) -> tuple[JobAdvice, ...]:
    """What comes before all jobs where a table has faults: to look at them. Nothing where it has none."""
    if not faults:
        return ()
    count = sum(one.faults_count for one in faults)
    named = ", ".join(f"{one.fault_id} {one.name}" for one in faults)
    found = JobAdvice(
        job="check",
        has_work=True,
        is_exact=True,
        reason=f"{counted(count, 'faults')} in metadata and manifest lists: {named}",
        gain="says where they are, and whether `icekeep repair` takes them out",
    )
    return (finished(found, known.table, known.prices),)


def _judged(job: str, judge: Callable[[TableFacts], JobAdvice], known: TableFacts) -> JobAdvice:
    try:
        return judge(known)
    except TryAgainError:
        raise
    except IcekeepError as error:
        return JobAdvice(job=job, has_work=False, reason=f"it refuses: {error.message}")


def finished(one: JobAdvice, table: Table, prices: Prices | None) -> JobAdvice:
    """With what does it, and what that costs."""
    command = shown_command(one.job, "--table", table.full_name) if one.has_work else ""
    # Plans believe entries that state a size below 0.
    one = msgspec.structs.replace(one, **{name: 0 for name in _AMOUNTS if (getattr(one, name) or 0) < 0})
    cost = None
    if prices is not None:
        amount = prices.cost(
            cpu_ms=one.cpu_ms,
            read_bytes=one.read_bytes,
            written_bytes=one.written_bytes,
            requests_count=one.requests_count,
        )
        cost = round(amount, 6)
    return msgspec.structs.replace(one, command=command, cost=cost)


def _planned_compaction(known: TableFacts) -> RewritePlan:
    """Raises `NeedsSpark` where a plan would be made by Spark, and `IcekeepError` as the job."""
    known.require_few()
    return CompactionRun(known.table, CompactRequest(known.engine), known.table.runtime).plan(None)


def _compact(known: TableFacts, compaction: Compaction) -> JobAdvice:
    try:
        planned = compaction()
    except NeedsSpark:
        return _compact_by_sums(known)
    works = [Work(RewriteMethod.REENCODE, group.bytes, group.expected_files_count) for group in planned.groups]
    files_count, new_count = planned.rewritten_data_files_count, planned.expected_files_count
    deletes_count = sum(group.delete_files_count for group in planned.groups)
    cost = estimate(
        works,
        slots=1,
        groups_count=len(works),
        files_count=files_count + deletes_count,
        new_files_count=new_count,
        delete_bytes=sum(group.delete_bytes for group in planned.groups),
    )
    return _compaction(files_count, new_count, deletes_count, planned.candidate_files_count, cost, is_exact=True)


def _compact_by_sums(known: TableFacts) -> JobAdvice:
    """By sizes alone, partition by partition: deletes are not looked at, and groups of more than 100 GB not divided."""
    files_count = new_count = asking_count = 0
    works = []
    for group in known.groups:
        sums = group.sums
        asking_count += sums.asking_count
        if group.is_rewritten(known.sizes):
            expected = expected_output_files(sums.asking_bytes, known.sizes)
            files_count += sums.asking_count
            new_count += expected
            works.append(Work(RewriteMethod.REENCODE, sums.asking_bytes, expected))
    cost = estimate(
        works, slots=1, groups_count=len(works), files_count=files_count, new_files_count=new_count, delete_bytes=0
    )
    found = _compaction(files_count, new_count, 0, asking_count, cost, is_exact=False)
    if known.deletes.files_count:
        found = msgspec.structs.replace(
            found, reason=f"{found.reason}; whether deletes ask for more can only be told with Spark"
        )
    return found


def _compaction(
    files_count: int, new_count: int, deletes_count: int, asking_count: int, cost: CompactionEstimate, *, is_exact: bool
) -> JobAdvice:
    if files_count:
        has = "has" if files_count == 1 else "have"
        more = f", too large or {has} many deletes" if is_exact else " or too large"
        reason = f"{counted_doing(files_count, 'data files', 'are')} too small{more}"
    elif asking_count:
        reason = (
            f"{counted_doing(asking_count, 'data files', 'ask')} for it, but no partition would come out with fewer "
            f"(it takes {MIN_INPUT_FILES} of them)"
        )
    else:
        reason = "sizes of data files are right" + (", and few of their rows are deleted" if is_exact else "")
    applied = f", {counted_doing(deletes_count, 'delete files', 'are')} applied" if deletes_count else ""
    return JobAdvice(
        job="compact",
        has_work=files_count > 0,
        is_exact=is_exact,
        reason=reason,
        gain=f"a scan opens {counted(files_count - new_count, 'files')} fewer{applied}" if files_count else "",
        files_count=files_count,
        spared_opens_count=files_count - new_count + deletes_count,
        replaced_bytes=cost.written_bytes,
        read_bytes=cost.read_bytes,
        written_bytes=cost.written_bytes,
        requests_count=cost.requests_count,
        cpu_ms=cost.cpu_ms,
    )


def _rewrite_position_deletes(known: TableFacts, compaction: Compaction) -> JobAdvice:
    job, positions = "rewrite_position_deletes", known.deletes.positions
    if not positions.files_count and not known.deletes.vectors.files_count:
        return JobAdvice(job=job, has_work=False, is_exact=True, reason="there are no position deletes")
    dangling_count, dangling_bytes, taken_count, is_exact = 0, 0, 0, True
    try:
        known.require_few()
        plan = _planned_position_deletes(known)
    except NeedsSpark:
        is_exact = False
        is_worth_it = known.table.metadata.format_version > 2 or positions.files_count >= MIN_INPUT_FILES
        count, size = (positions.files_count, positions.bytes) if is_worth_it else (0, 0)
    else:
        planned = preview(plan, known.table.metadata.format_version)
        count, size = planned.rewritten_delete_files_count, planned.rewritten_bytes_count
        dangling_count, dangling_bytes = (
            planned.removed_dangling_delete_files_count,
            planned.removed_dangling_bytes_count,
        )
        taken_count = _taken_count(plan, known, compaction) if count else 0
    becomes = "vectors" if known.table.metadata.format_version > 2 else "fewer files"
    unknown = "which reach nothing can only be told with Spark"
    reason, gain = "position delete files are large enough, and none is dangling", ""
    if count or dangling_count:
        changed = f"{counted(count, 'position delete files')} {'can' if is_exact else 'may'} become {becomes}"
        dangling = f"{counted_doing(dangling_count, 'delete files', 'reach')} nothing" if is_exact else unknown
        reason = ", ".join(filter(None, (changed if count else "", dangling if dangling_count or not is_exact else "")))
        gain = (
            f"readers open up to {counted(count, 'small files')} fewer for each data file"
            if count
            else (f"{counted_doing(dangling_count, 'delete files', 'are')} not planned and read any more")
        )
    elif not is_exact:
        reason = f"there are too few position delete files to become {becomes}; {unknown}"
    if taken_count:
        reason = f"{reason}; compact, which comes first, takes {taken_count:,} of them out"
    return JobAdvice(
        job=job,
        has_work=bool(count or dangling_count),
        done_by="compact" if taken_count == count > 0 and not dangling_count else None,
        is_exact=is_exact,
        reason=reason,
        gain=gain,
        files_count=count + dangling_count,
        spared_opens_count=count + dangling_count,
        replaced_bytes=size + dangling_bytes,
        read_bytes=size,
        written_bytes=size,
        requests_count=2 * count,
        cpu_ms=size * 1000 // RATES_BYTES_A_SECOND[RewriteMethod.REENCODE] + _entries_cpu_ms(known.entries_count),
    )


def _planned_position_deletes(known: TableFacts) -> DeletesPlan:
    """Raises `NeedsSpark` where a plan would be made by Spark, and `IcekeepError` as the job."""
    table = known.table
    check_arguments(table.metadata)
    return plan_position_deletes(
        open_scan(table, for_commit=True), known.engine, RewritePositionDeletesOptions(), branch=MAIN
    )


def _taken_count(plan: DeletesPlan, known: TableFacts, compaction: Compaction) -> int:
    """How many of the delete files of a plan go with a compaction that comes first, as `commit.live_files.LeftBehind` says."""
    try:
        first = compaction()
    except (NeedsSpark, IcekeepError):
        return 0
    groups = (group_files(group, known.table.storage) for group in first.groups if group.has_files)
    replaced = {file.file_path.encode() for group in groups for file in group.files}
    if not replaced:
        return 0
    data = known.data.rows(entries_schema(DATA_COLUMNS))
    left = data.filter(pc.invert(pc.is_in(data["file_path"].cast(pa.binary()), pa.array(replaced, pa.binary()))))
    # New files keep the sequence number of the snapshot that they are planned on.
    of_others = pc.min(left["sequence_number"]).as_py()
    least = first.sequence_number if of_others is None else min(first.sequence_number, of_others)
    entries = (read.entry for group in plan.groups if not group.seems_dangling for read in group.files)
    return sum(own_path(entry.data_file) in replaced or not is_newer(entry, least) for entry in entries)


def _rewrite_manifests(known: TableFacts) -> JobAdvice:
    table = known.table
    try:
        rules = checked_rules(table.metadata, RewriteManifestsRequest(known.engine))
        chosen = candidates(table, rules, known.engine, table.runtime.now_ms())
    except NeedsSpark:
        return JobAdvice(job="rewrite_manifests", has_work=False, reason="whether it gains can only be told with Spark")
    replaced = chosen.replaced
    expected = sum(run.expected_count for group in chosen.groups for run in group.runs)
    size = sum(m.manifest_length for m in replaced)
    entries_count = sum((m.live_files_count or 0) + (m.deleted_files_count or 0) for m in replaced)
    empty_count = sum(len(group.empty) for group in chosen.groups)
    rewritten_count = len(replaced) - empty_count
    # Planning does not open those without live files.
    spared_count = max(0, rewritten_count - expected)
    reason = "manifests are of the right size and do not lie across one another"
    if replaced:
        reason = ", ".join(_told((rewritten_count, "are", "small or overlap"), (empty_count, "hold", "no live file")))
    elif known.metadata.manifests_count < 2:
        reason = "there is one manifest" if known.metadata.manifests_count else "there are no manifests"
    return JobAdvice(
        job="rewrite_manifests",
        has_work=bool(spared_count),
        is_exact=True,
        reason=reason,
        gain=", ".join(
            _told(
                (rewritten_count, "become", f"about {expected:,}, so planning opens fewer"),
                (empty_count, "leave", "the list"),
            )
        ),
        files_count=len(replaced),
        spared_opens_count=spared_count,
        replaced_bytes=size,
        read_bytes=size,
        written_bytes=size,
        requests_count=len(replaced) + expected + 2 if replaced else 0,
        cpu_ms=_entries_cpu_ms(entries_count),
    )


def _told(*some: tuple[int, str, str]) -> Iterator[str]:
    """What is said of some manifests, by their count, a verb and what follows it; nothing of none."""
    for count, verb, text in some:
        if count:
            yield f"{counted_doing(count, 'manifests', verb)} {text}"


def _entries_cpu_ms(count: int) -> int:
    return round(count * ENTRY_CPU_MS)


def _refuse() -> NoReturn:
    raise NeedsSpark


_SWEEPING = frozenset({"expire_snapshots", "remove_orphan_files"})
"""Jobs that also finish what earlier runs left, of which a table's health says nothing."""


def facts_of(health: TableHealth, job: str, last_run_ms: int | None = None, *, arguments: Sequence[str] = ()) -> Facts:
    """What a job's conditions are held against.

    Args:
        arguments: of the job's command line: what it would do is known of the default ones alone.
        last_run_ms: when the job last ended well, where a record of runs tells, epoch milliseconds. Else its newest snapshot
            stands for it; expiration and orphan removal leave none.
    """
    seen = max((one.timestamp_ms for one in health.last_maintenance if one.job == job), default=None)
    return Facts(
        small_files=health.data.small_files_together_count,
        delete_ratio=health.deletes.deleted_ratio,
        manifests=health.metadata.manifests_count,
        overlap=health.metadata.mean_overlap,
        snapshots=health.snapshots.snapshots_count - _named_count(health),
        last_run_ms=seen if last_run_ms is None else last_run_ms,
        idle="" if arguments or job in _SWEEPING else _idle(health, job),
    )


def _named_count(health: TableHealth) -> int:
    """The snapshots that no expiration can remove, since a tag or a branch beside `main` names them."""
    return len({ref.snapshot_id for ref in health.refs if ref.ref != MAIN})


def _idle(health: TableHealth, job: str) -> str:
    """Why a job would do nothing, by its own plan."""
    return next((one.reason for one in health.jobs if one.job == job and one.is_exact and not one.has_work), "")
