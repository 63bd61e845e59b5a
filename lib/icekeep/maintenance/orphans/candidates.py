"""Which files nothing leads to and are old enough.

clock -> neighbours -> listing -> metadata, loaded anew -> everything that it leads to -> compared by path -> sorted
"""

from collections import Counter
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.catalog.dropped_versions import dropped_heads
from icekeep.catalog.metadata_files import is_metadata_file
from icekeep.catalog.version_files import parse_version_name
from icekeep.errors import SafetyError
from icekeep.events import Listener, StepFinished, StepStarted, Warned
from icekeep.maintenance.deletion.clock import safe_now_ms
from icekeep.maintenance.deletion.file_kinds import GARBAGE
from icekeep.maintenance.deletion.neighbours import neighbours
from icekeep.maintenance.deletion.reachable import NOTHING_SEEN, Reached, Seen, fails_closed
from icekeep.maintenance.deletion.territory import Territory, territory
from icekeep.maintenance.orphans.checks import (
    OrphanShare,
    checked_root,
    refuse,
    refuse_foreign,
    refuse_mismatches,
    refuse_neighbours,
    refuse_outside,
    refuse_unknown_names,
    refuse_unmatched,
)
from icekeep.maintenance.orphans.comparing import Compared, Mismatch, any_below, compare, listed_count
from icekeep.maintenance.orphans.hidden import hidden_names
from icekeep.maintenance.orphans.kept_rows import RowKeeper
from icekeep.maintenance.orphans.listing import (
    LISTED,
    Listing,
    Rows,
    arrow_rows,
    expected_files_count,
    keyed_rows,
    list_files,
)
from icekeep.maintenance.orphans.metadata_files import SORTED, MetadataFileSorter, Sort
from icekeep.maintenance.orphans.options import PrefixMismatchMode, Search, eligible_before_ms
from icekeep.maintenance.orphans.reachable import former_statistics, reached_by
from icekeep.maintenance.orphans.views import list_given
from icekeep.maintenance.orphans.waiting import without_waiting
from icekeep.maintenance.runs.left_behind import living_runs
from icekeep.planning.spark.session import F, SparkSource, limits_of
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import metadata_directory
from icekeep.spelling import counted
from icekeep.storage.base import ListingShare
from icekeep.storage.location_keys import Spelling
from icekeep.storage.locations import canonical

_FINDING = "finding files that no metadata leads to"
_GOING = (Sort.ORPHAN.value, Sort.METADATA.value)
_NAMED_STRANGERS = 10


class KeptFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that no metadata leads to, or that were not looked at, and that stay; how many for each reason.

    Attributes:
        young_count: not older than `older_than`.
        hidden_count: hidden names, directories and icekeep's own files: not looked at.
        outside_count: in a list of files that was given, but not under the location.
        mismatched_count: metadata leads to them under another scheme or authority (mode `IGNORE`).
        versions_count: metadata files that may be the current version for a catalog that finds them by name.
        unborn_count: metadata of tables that were to be this one and never had a snapshot (`ignore-metadata-of` lets it go).
        adopted_count: metadata led to them when it was read again right before the deletion.
        former_statistics_count: statistics that were taken off the table, and that metadata in its log still names, for a
            rollback of the catalog; they are among `reachable_files_count`.
        waiting_count: plans of other runs name them: they wait for their time, or `restore` is bringing them back.
    """

    young_count: int = 0
    hidden_count: int = 0
    outside_count: int = 0
    mismatched_count: int = 0
    versions_count: int = 0
    unborn_count: int = 0
    adopted_count: int = 0
    former_statistics_count: int = 0
    waiting_count: int = 0


class OrphanCandidates(msgspec.Struct, frozen=True, kw_only=True):
    """What may go, and what was seen on the way to it.

    Attributes:
        table: as it was when `reached` was read, after the listing.
        files: rows of `metadata_files.SORTED`, those that may go; there are `files_count`.
        share: of the listed files.
        reached: what was held against the listing.
        root: the directory that was listed.
        now_ms: the earlier of the clocks when the run began.
        accepted: tables that cannot be loaded and were accepted by name.
    """

    table: Table
    territory: Territory
    files: Rows
    files_count: int
    share: OrphanShare
    listed_count: int
    named_count: int
    kept: KeptFiles
    mismatches: tuple[Mismatch, ...]
    unlisted_reason: str
    reached: Reached
    root: str
    now_ms: int
    accepted: tuple[str, ...] = ()

    @property
    def garbage(self) -> Rows:
        """The files as rows of `file_kinds.GARBAGE`."""
        return (
            self.files.select(GARBAGE.names) if isinstance(self.files, pa.Table) else self.files.select(*GARBAGE.names)
        )


def find_candidates(
    table: Table,
    spark: SparkSource,
    search: Search,
    listener: Listener,
    runtime: Runtime,
    keeper: RowKeeper,
    *,
    is_plan: bool = False,
) -> OrphanCandidates:
    """Find what may go; nothing is changed.

    Args:
        keeper: keeps rows that tasks find, for as long as anybody looks at the candidates.
        is_plan: nobody goes on to delete it: nothing is written, so that only our clock is asked.

    Raises:
        UsageError: the search asks for files that are too young, for a list that cannot be read, or for no location.
        SafetyError: not everything that the table leads to can be read, or something stands against judging files by it.
        UnsupportedError: the table is encrypted.
        TryAgainError: the catalog or the store is out of reach.
    """
    refuse(table)
    root = checked_root(table.metadata, search)
    refuse_outside(table, root, search)
    refuse_unknown_names(table, root)
    now_ms = runtime.now_ms() if is_plan else safe_now_ms(table, runtime)
    before_ms = eligible_before_ms(search.older_than, now_ms)
    found = neighbours(
        table,
        roots=search.options.roots,
        looked_at=root,
        accepted=search.accept_unreadable,
        dead_uuids=search.options.ignored_uuids,
        listener=listener,
    )
    refuse_neighbours(table, found)
    places = territory(table, search.options.roots, found.other_roots)
    listener.on(StepStarted(_FINDING))
    listing = _listing(table, root, spark, search, keeper)
    if search.location is not None and search.file_list_view is None and not listing.files_count + listing.hidden_count:
        listener.on(
            Warned(f"there is no file below {search.location!r}; see whether the location is the one that you mean")
        )
    living = living_runs(table, runtime, is_plan=is_plan)
    latest = _loaded_anew(table, root)
    with fails_closed():
        reached = _reached(latest, root, spark, search)
        compared = compare(listing.files, listing.files_count, reached, search.spelling, spark, keeper)
        if not compared.named_count and any_below(root, reached, spark):
            refuse_unmatched(table, root, listing, search)
    if search.mode is PrefixMismatchMode.ERROR:
        refuse_mismatches(compared.mismatched_count, compared.mismatches)
    unnamed = _narrowed(compared, limits_of(spark).listed_files_count)
    free, waiting_count = without_waiting(unnamed, compared.unnamed_count, latest, spark, keeper)
    sorter = sorter_of(latest, before_ms, now_ms, living, search.options.ignored_uuids)
    if search.location is not None or search.file_list_view is not None:
        # Metadata of another table may lie beside what was listed, and lead to files in it.
        beside, sorts = _sorted(_metadata_beside(latest, search.spelling), sorter, keeper)
        _refuse_strangers(latest, latest.metadata.location, beside, sorts)
    files, counts = _sorted(free, sorter, keeper)
    _refuse_strangers(latest, root, files, counts)
    going_count = sum(counts[Sort(kind)] for kind in _GOING)
    going = _going(files, going_count, limits_of(spark).listed_files_count)
    candidates = OrphanCandidates(
        table=latest,
        territory=places,
        files=going,
        files_count=going_count,
        share=OrphanShare(counts[Sort.ORPHAN], listing.files_count - counts[Sort.METADATA]),
        listed_count=listing.files_count,
        named_count=compared.named_count,
        kept=KeptFiles(
            young_count=counts[Sort.YOUNG],
            hidden_count=listing.hidden_count,
            outside_count=listing.outside_count,
            mismatched_count=compared.mismatched_count,
            versions_count=counts[Sort.VERSION],
            unborn_count=counts[Sort.UNBORN],
            former_statistics_count=listed_count(listing.files, former_statistics(latest, reached), search.spelling),
            waiting_count=waiting_count,
        ),
        mismatches=compared.mismatches,
        unlisted_reason=found.unlisted_reason,
        accepted=found.accepted,
        reached=reached,
        root=root,
        now_ms=now_ms,
    )
    listener.on(StepFinished(_FINDING, f"{going_count:,} of {counted(listing.files_count, 'files')}"))
    return candidates


def still_unnamed(
    candidates: OrphanCandidates, now: Table, spark: SparkSource, search: Search, keeper: RowKeeper
) -> tuple[OrphanCandidates, int]:
    """The candidates without those that the table leads to by now, and how many these are.

    Args:
        now: the table as it is.

    Raises:
        SafetyError: not everything that the table leads to can be read.
    """
    _refuse_other_table(candidates.table, now, candidates.root)
    with fails_closed():
        newly = _reached(now, candidates.root, spark, search, candidates.reached.seen)
        compared = compare(candidates.files, candidates.files_count, newly, search.spelling, spark, keeper)
    if not compared.named_count:
        return candidates, 0
    left = msgspec.structs.replace(candidates, files=compared.unnamed, files_count=compared.unnamed_count)
    return left, compared.named_count


def _reached(table: Table, root: str, spark: SparkSource, search: Search, since: Seen = NOTHING_SEEN) -> Reached:
    """What the table leads to, to be held against files below a directory."""
    reached = reached_by(table, spark, trust_manifest_list=search.trust_manifest_list, since=since)
    return msgspec.structs.replace(reached, roots=(root,))


def _listing(table: Table, root: str, spark: SparkSource, search: Search, keeper: RowKeeper) -> Listing:
    hidden = hidden_names(root, table.metadata.partition_specs)
    if search.file_list_view is not None:
        return list_given(
            search.file_list_view,
            table.storage,
            spark,
            root,
            hidden,
            search.spelling,
            keeper,
        )
    return list_files(
        table.storage,
        spark,
        root,
        hidden,
        search.spelling,
        keeper,
        # Below another location there may be few files of a large table.
        expected_count=0 if search.location is not None else expected_files_count(table.metadata),
    )


def _metadata_beside(table: Table, spelling: Spelling) -> pa.Table:
    """The metadata files where the table has its own, and of tables dropped in its place, that are not in its history."""
    storage, named = table.storage, _history(table)
    beside = ListingShare(metadata_directory(table.metadata), is_deep=False)
    found = [info for info in storage.list_share(beside) if is_metadata_file(info.location)]
    found += filter(None, map(storage.head, dropped_heads(storage, table.metadata.location)))
    strangers = [info for info in found if canonical(info.location) not in named]
    locations = pa.array([info.location for info in strangers], pa.string())
    sizes, times = ([getattr(info, name) for info in strangers] for name in ("size_bytes", "modified_ms"))
    rows = keyed_rows(locations, pa.array(sizes, pa.int64()), pa.array(times, pa.int64()), spelling)
    return pa.Table.from_batches([rows])


def _loaded_anew(table: Table, root: str) -> Table:
    """The table after the listing: what was committed meanwhile leads to files that were listed."""
    latest = table.refresh()
    _refuse_other_table(table, latest, root)
    return latest


def _refuse_other_table(before: Table, now: Table, root: str) -> None:
    refuse(now)
    refuse_unknown_names(now, root)
    is_same = before.metadata.table_uuid == now.metadata.table_uuid
    if not is_same or canonical(before.metadata.location) != canonical(now.metadata.location):
        raise SafetyError(
            f"table {before.name!r} became another one, or moved, while its files were looked at; nothing is deleted; run it "
            "again"
        )


def _narrowed(compared: Compared, limit: int) -> Rows:
    """The unnamed files; few of them come to the driver."""
    unnamed = compared.unnamed
    if isinstance(unnamed, pa.Table) or compared.unnamed_count > limit:
        return unnamed
    return arrow_rows(unnamed, LISTED)


def sorter_of(
    table: Table, before_ms: int, now_ms: int, living: frozenset[str], ignored_uuids: tuple[str, ...] = ()
) -> MetadataFileSorter:
    """What sorts the files that a table does not lead to; the arguments are attributes of the sorter."""
    metadata = table.metadata
    head = table.storage.head(table.metadata_location)
    return MetadataFileSorter(
        table_uuid=metadata.table_uuid,
        metadata_location=table.metadata_location,
        last_sequence_number=metadata.last_sequence_number,
        head_ms=metadata.last_updated_ms if head is None else head.modified_ms,
        before_ms=before_ms,
        last_version=parse_version_name(table.metadata_location.rpartition("/")[2]),
        table_location=canonical(metadata.location.rstrip("/")),
        columns=frozenset(tuple(field.name for field in schema.fields) for schema in metadata.schemas),
        now_ms=now_ms,
        storage=table.storage,
        living=living,
        ignored_uuids=ignored_uuids,
    )


def _sorted(files: Rows, sorter: MetadataFileSorter, keeper: RowKeeper) -> tuple[Rows, dict[Sort, int]]:
    """Unnamed files as rows of `SORTED`, and how many there are of each sort."""
    if isinstance(files, pa.Table):
        rows = pa.Table.from_batches(sorter.sort_all(files.to_batches()), SORTED)
        found = {row["values"]: row["counts"] for row in pc.value_counts(rows["kind"]).to_pylist()}
        return rows, {sort: found.get(sort.value, 0) for sort in Sort}
    kept = keeper.keep(files, SORTED, "sorted", "sorting files that nothing leads to", partial(_sorted_batch, sorter))
    return kept.frame(files.sparkSession), {sort: kept.counts[sort.value] for sort in Sort}


def _sorted_batch(sorter: MetadataFileSorter, files: pa.RecordBatch) -> tuple[pa.RecordBatch, Counter[str]]:
    rows = sorter.sort(files)
    return rows, Counter(rows["kind"].to_pylist())


def _going(files: Rows, files_count: int, limit: int) -> Rows:
    """The files that may go; few of them come to the driver."""
    if isinstance(files, pa.Table):
        return files.filter(pc.is_in(files["kind"], pa.array(_GOING, pa.string())))
    some = files.where(F.col("kind").isin(*_GOING))
    return arrow_rows(some, SORTED) if files_count <= limit else some


def _refuse_strangers(table: Table, root: str, files: Rows, counts: dict[Sort, int]) -> None:
    foreign, forks, unfinished = (
        _first(files, sort) if counts[sort] else [] for sort in (Sort.FOREIGN, Sort.FORK, Sort.UNFINISHED)
    )
    if forks or unfinished:
        # The commit that one of them belongs to may have landed since.
        landed = _history(table.catalog.load(table.identifier))
        forks, unfinished = (
            [row for row in rows if canonical(row["location"]) not in landed] for rows in (forks, unfinished)
        )
    refuse_foreign(table, root, *([row["reason"] for row in rows] for rows in (foreign, forks, unfinished)))


def _first(files: Rows, sort: Sort) -> list[dict[str, str]]:
    if isinstance(files, pa.Table):
        return files.filter(pc.equal(files["kind"], sort.value)).slice(0, _NAMED_STRANGERS).to_pylist()
    some = files.where(F.col("kind") == sort.value).limit(_NAMED_STRANGERS)
    return arrow_rows(some, SORTED).to_pylist()


def _history(table: Table) -> set[str]:
    metadata: TableMetadata = table.metadata
    return {canonical(table.metadata_location), *(canonical(entry.metadata_file) for entry in metadata.metadata_log)}
