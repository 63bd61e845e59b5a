"""Which listed files are orphans: nothing leads to them, they are old enough, and nothing stands against judging by metadata.

clock -> neighbours -> listing -> metadata, loaded after it -> everything that it leads to -> compared by path -> sorted

Files are compared by their paths alone, in a loose spelling, so that doubt keeps a file. A path that metadata has under another
scheme or authority is the same file for all that can be known here: it is kept, and the operator is asked.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.catalog.filesystem import dropped_heads
from icekeep.catalog.metadata_files import metadata_files, parse_version_name, unknown_names
from icekeep.errors import ConflictError, InvalidTableError, SafetyError, UsageError, and_more, argument
from icekeep.events import Listener, StepFinished, StepStarted, Warned
from icekeep.maintenance.delete.garbage import held_against, reached_keys
from icekeep.maintenance.delete.lease import safe_now_ms
from icekeep.maintenance.delete.locations import DeletableLocations, check_roots, deletable_locations
from icekeep.maintenance.delete.neighbours import Neighbours, neighbours
from icekeep.maintenance.delete.reachable import (
    GARBAGE,
    NOTHING_SEEN,
    ReachableLists,
    Reached,
    fails_closed,
    refuse_if_gc_is_disabled,
    spelled_like,
)
from icekeep.maintenance.orphans import JOB
from icekeep.maintenance.orphans.listing import (
    LISTED,
    LocationListing,
    RowKeeper,
    Rows,
    arrow_rows,
    expected_files_count,
    hidden_names,
    keyed_rows,
    list_files,
    list_given,
    without_planned,
)
from icekeep.maintenance.orphans.metadata import SORTED, MetadataFileSorter, Sort, former_statistics, reached_by
from icekeep.maintenance.orphans.options import PrefixMismatchMode, Search, eligible_before_ms
from icekeep.maintenance.rewrite.alive import living_runs
from icekeep.planning.entries import DecodedEntries, folded
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.planning.spark.session import F, SparkSource, limits_of, started, to_arrow_schema
from icekeep.planning.spark.workers import SHUFFLED_KEYS, tasks_count
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import OWN_DIRECTORY, metadata_directory
from icekeep.spelling import counted
from icekeep.storage.location_keys import ANY_PREFIX, Spelling, loose_keys
from icekeep.storage.locations import canonical, is_location, is_under, loose_path, parse_location, without_dots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMED_MISMATCHES = 10


class Mismatch(msgspec.Struct, frozen=True):
    """A file that is listed under one scheme and authority, and that metadata has under another."""

    listed: str
    metadata: str


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the listed files.

    Attributes:
        unnamed: those that no metadata leads to, rows of `LISTED`.
        mismatched_count: those that it leads to under other schemes or authorities only; they are kept.
        mismatches: the first of these.
    """

    unnamed: Rows
    unnamed_count: int
    named_count: int
    mismatched_count: int = 0
    mismatches: tuple[Mismatch, ...] = ()


def compare(
    files: Rows, files_count: int, reached: Reached, spelling: Spelling, spark: SparkSource, keeper: RowKeeper
) -> Compared:
    """Sort listed files by whether metadata leads to them.

    Args:
        files: rows of `LISTED`, with other columns or without; there are `files_count`.
        keeper: keeps what tasks find.

    Raises:
        InvalidTableError: a manifest is not whole.
    """
    if isinstance(files, pa.Table):
        return _compared_here(files, reached, spelling, spark)
    return _compared_in_tasks(files, files_count, reached, spelling, spark, keeper)


def any_below(root: str, reached: Reached, spark: SparkSource) -> bool:
    """Whether metadata leads to any file below a directory."""
    below = DeletableLocations(roots=(root,))
    if below.mask(reached.named["location"]).any():
        return True
    task = reached.decode_task()
    fold = partial(_BelowFold, below)
    return folded(task.storage, spark, task.manifests, task.wanted, task.columns, fold).found


def listed_count(files: Rows, locations: pa.Array, spelling: Spelling) -> int:
    """How many listed files have the paths of some locations, few of them.

    Args:
        files: rows of `LISTED`.
    """
    if not len(locations):
        return 0
    keys = np.unique(loose_keys(locations, spelling)[0])
    if isinstance(files, pa.Table):
        return int(np.count_nonzero(np.isin(files["path_key"].to_numpy(), keys)))
    return arrow_rows(files.where(F.col("path_key").isin(keys.tolist())), LISTED).num_rows


class _BelowFold:
    def __init__(self, below: DeletableLocations) -> None:
        self._below = below
        self.found = False

    def add(self, decoded: DecodedEntries) -> None:
        self.found = self.found or bool(self._below.mask(decoded.entries["file_path"]).any())

    def merge(self, other: "_BelowFold") -> None:
        self.found = self.found or other.found


def _compared_here(files: pa.Table, reached: Reached, spelling: Spelling, spark: SparkSource) -> Compared:
    paths, places = np.unique(files["path_key"].to_numpy(), return_inverse=True)
    found = held_against(paths, reached, spark, spelling)
    listed_prefixes = files["prefix_key"].to_numpy()
    is_named = found.mask[places]
    is_same = listed_prefixes == ANY_PREFIX
    for prefix, mask in found.by_prefix.items():
        if prefix == ANY_PREFIX:
            is_same |= mask[places]
        else:
            is_same |= mask[places] & (listed_prefixes == prefix)
    mismatched = np.flatnonzero(is_named & ~is_same)
    mismatches = []
    for row in mismatched[:NAMED_MISMATCHES].tolist():
        # As metadata has it: of names only one is kept for each scheme and authority.
        listed = files["location"][row].as_py()
        example = next(found.examples[prefix] for prefix, mask in found.by_prefix.items() if mask[places[row]])
        mismatches.append(Mismatch(listed, spelled_like(example, listed)))
    named_count = int(np.count_nonzero(is_named))
    return Compared(
        unnamed=files.filter(pa.array(~is_named, pa.bool_())),
        unnamed_count=files.num_rows - named_count,
        named_count=named_count,
        mismatched_count=len(mismatched),
        mismatches=tuple(mismatches),
    )


def _compared_in_tasks(
    files: "DataFrame", files_count: int, reached: Reached, spelling: Spelling, spark: SparkSource, keeper: RowKeeper
) -> Compared:
    # Spark joins what it has shuffled on disk; `held_against` needs the keys of all listed files in one process.
    session = started(spark)
    # Metadata names about as many files as are listed; how many it names of its history is known when they are compared.
    bins_count = tasks_count(session, 2 * files_count, SHUFFLED_KEYS, a_slot=2)
    # A path that is named by more than two prefixes is named by one between the least and the greatest: no mismatch then.
    named = (
        reached_keys(reached, session, spelling)
        .repartition(bins_count, "path_key")
        .groupBy("path_key")
        .agg(F.min("prefix_key").alias("least"), F.max("prefix_key").alias("greatest"))
    )
    joined = files.repartition(bins_count, "path_key").join(named, on="path_key", how="left")
    # Whether metadata names a row by its own scheme and authority.
    own, least, greatest, any_prefix = F.col("prefix_key"), F.col("least"), F.col("greatest"), F.lit(ANY_PREFIX)
    is_same = (own == any_prefix) | (least == any_prefix) | (greatest == any_prefix) | own.between(least, greatest)
    left = joined.where(least.isNull() | ~is_same).select(*files.columns, "least")
    schema = pa.schema([*to_arrow_schema(files.schema), pa.field("least", pa.int64())])
    kept = keeper.keep(left, schema, "unnamed", "comparing files with what metadata leads to", _counted)
    found, is_unnamed = kept.frame(session), F.col("least").isNull()
    mismatches: tuple[Mismatch, ...] = ()
    if kept.counts["mismatched"]:
        some = arrow_rows(found.where(~is_unnamed).limit(NAMED_MISMATCHES), LISTED)
        mismatches = _compared_here(some, reached, spelling, spark).mismatches
    return Compared(
        unnamed=found.where(is_unnamed).select(*files.columns),
        unnamed_count=kept.counts["unnamed"],
        named_count=files_count - kept.counts["unnamed"],
        mismatched_count=kept.counts["mismatched"],
        mismatches=mismatches,
    )


def _counted(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
    unnamed_count = rows["least"].null_count
    return rows, {"unnamed": unnamed_count, "mismatched": rows.num_rows - unnamed_count}


_NAMED_TABLES = 5


def refuse(table: Table) -> None:
    """Refuse a table whose files must not be judged by its metadata.

    Raises:
        SafetyError: the table has `gc.enabled=false`, or its catalog a garbage collector of its own.
        UnsupportedError: the table is encrypted.
    """
    refuse_if_gc_is_disabled(table)
    refuse_encrypted(table.metadata, JOB.name)


def refuse_neighbours(table: Table, found: Neighbours) -> None:
    """Raise `SafetyError` where it is not known of all tables of the catalog that they lie elsewhere."""
    names = found.unreadable
    if names:
        named = ", ".join(map(repr, names[:_NAMED_TABLES]))
        raise SafetyError(
            f"files below table {table.name!r} may belong to others: tables {named}{and_more(names, _NAMED_TABLES)} cannot "
            "be loaded, so that it is not known where their files are; nothing is deleted; repair them, drop them from the "
            "catalog without purging them, or, if you know that they lie elsewhere, name them in "
            f"{argument('accept_unreadable')}",
            tables=list(names),
        )


def checked_root(metadata: TableMetadata, search: Search) -> str:
    """The directory that is listed, of a table and a search that hold so far; nothing is read for it.

    Raises:
        UsageError: the location is none.
        OptionError: a root that the options add is none.
        SafetyError: the location is icekeep's own.
        UnsupportedError: the table is encrypted.
    """
    refuse_encrypted(metadata, JOB.name)
    check_roots(search.options.roots)
    given = metadata.location if search.location is None else search.location
    try:
        location = without_dots(given)
    except InvalidTableError as error:
        raise UsageError(f"{error.message}", location=search.location) from None
    if OWN_DIRECTORY in parse_location(location).path.split("/"):
        raise SafetyError(f"location {given!r} is icekeep's own directory; name another one")
    # Of a whole disk no more than the scheme would be left.
    root = location.rstrip("/")
    return root if is_location(root) else location


def refuse_unknown_names(table: Table, root: str) -> None:
    """Raise `SafetyError` where metadata names something below the root by a key that is not known: it may lead to more files."""
    loose_root = f"{loose_path(root).rstrip('/')}/"
    for location, key in unknown_names(table.metadata).items():
        # In the spelling that files which may be deleted are compared by.
        if is_location(location) and (is_under(location, root) or loose_path(location).startswith(loose_root)):
            raise SafetyError(
                f"metadata of table {table.name!r} names {location!r} by the key {key!r}, which this icekeep does not know: "
                f"files below {root!r} that it leads to would be taken for orphans; nothing is deleted; use an icekeep that "
                "knows the key",
                location=location,
            )


def refuse_outside(table: Table, root: str, search: Search) -> None:
    """Raise `SafetyError` where the directory that is listed lies where files of this table must not be deleted."""
    # Locations are asked for files: one right in the directory stands for all below it.
    places = deletable_locations(table, search.options.roots)
    if not places.holds(f"{root}/any"):
        raise SafetyError(
            f"location {root!r} does not lie in a place of the table ({', '.join(map(repr, places.roots))}): "
            "files there may belong to somebody else; allow it with the option reclaim.roots if they do not",
            location=root,
        )


def refuse_unmatched(table: Table, root: str, listing: LocationListing, search: Search) -> None:
    """Raise `SafetyError`: metadata leads to files below the root, and none of them was listed.

    Where something was listed, paths are spelled in different ways; where nothing was, it is the wrong list or place.
    """
    if listing.files_count:
        problem = (
            "none of those listed there is one of them: paths must be spelled in different ways, and live files would be taken "
            "for orphans; nothing is deleted; compare a path that is listed with one in the metadata"
        )
    elif search.file_list_view is None:
        problem = "no file was listed there; nothing is deleted; see whether they are gone, or lie in another store"
    else:
        others = f", and {listing.outside_count:,} that lie elsewhere" if listing.outside_count else ""
        problem = (
            f"{argument('file_list_view')} {search.file_list_view!r} names none there{others}; nothing is deleted; give a list "
            "of all files below that location"
        )
    raise SafetyError(f"metadata of table {table.name!r} leads to files below {root!r}, but {problem}", location=root)


def refuse_mismatches(count: int, mismatches: Sequence[Mismatch]) -> None:
    """Raise `SafetyError` where metadata has listed files under other schemes or authorities."""
    if count:
        named = "; ".join(f"listed {c.listed!r}, in metadata as {c.metadata!r}" for c in mismatches)
        raise SafetyError(
            f"{count} listed files have the path of a live file but another scheme or authority, so it cannot be told whether "
            f"they are orphans: {named}; say which are equal with {argument('equal_schemes')} and "
            f"{argument('equal_authorities')}, or keep such files with {argument('prefix_mismatch_mode')} IGNORE",
            count=count,
        )


def refuse_foreign(
    table: Table, root: str, foreign: Sequence[str], forks: Sequence[str], unfinished: Sequence[str] = ()
) -> None:
    """Refuse to go on where there is metadata that leads to files which this table's metadata does not know of.

    Args:
        foreign, forks: of other tables, and of another line of this one's history; each says which file.
        unfinished: young files that may be those of a commit under way.

    Raises:
        SafetyError: something is `foreign`, or there are `forks`.
        ConflictError: all that stands in the way is `unfinished`.
    """
    if foreign:
        raise SafetyError(
            f"below {root!r} there is table metadata that is not of table {table.name!r}: {foreign[0]}"
            f"{and_more(foreign)}; its files would look like orphans, so nothing is deleted; move that table, or its metadata "
            "if it is dead, to another place, or name a dead table with --option ignore-metadata-of=UUID",
            files=[*foreign],
        )
    if forks:
        raise SafetyError(
            f"metadata that descends from the current one of table {table.name!r}, or is further on, is not in its history: "
            f"{forks[0]}{and_more(forks)}; another catalog may have this table too, or a commit died before it landed; nothing "
            "is deleted; find out which line of history is the right one, and if it is the catalog's, commit to the table or "
            f"give --option ignore-metadata-of={table.metadata.table_uuid}",
            files=[*forks],
        )
    if unfinished:
        raise ConflictError(
            f"somebody is writing metadata of table {table.name!r}, or died at it a short time ago: {unfinished[0]}"
            f"{and_more(unfinished)}; nothing is deleted; run it again later",
            files=[*unfinished],
        )


class OrphanShare(msgspec.Struct, frozen=True):
    """How many of the files that count would go; metadata files in no log do not count."""

    orphans_count: int
    files_count: int

    def problem(self, most: float) -> str | None:
        """What stands against deleting so many, `None` where nothing does.

        Args:
            most: the greatest share that is deleted without asking.
        """
        if self.orphans_count <= most * self.files_count:
            return None
        return (
            f"{self.orphans_count:,} of the {self.files_count:,} files that were listed would go, which is more than "
            f"{most:.0%}: something may be wrong with the listing or with the metadata; nothing is deleted; look at the plan, "
            "and if it is right run with --approve HASH for exactly these files, or with --force, or raise max-orphan-ratio"
        )


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
        files: rows of `SORTED`, those that may go; there are `files_count`.
        share: of the listed files.
        reached: what was held against the listing.
        root: the directory that was listed.
        now_ms: the earlier of the clocks when the run began.
        accepted: tables that cannot be loaded and were accepted by name.
    """

    table: Table
    locations: DeletableLocations
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
        """The files as rows of `GARBAGE`."""
        return (
            self.files.select(GARBAGE.names) if isinstance(self.files, pa.Table) else self.files.select(*GARBAGE.names)
        )


def find_candidates(
    table: Table,
    spark: SparkSource,
    search: Search,
    listener: Listener,
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
    runtime = table.runtime
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
    places = deletable_locations(table, search.options.roots, found.other_roots)
    listener.on(StepStarted(_FINDING))
    listing = _listing(table, root, spark, search, keeper)
    if search.location is not None and search.file_list_view is None and not listing.files_count + listing.hidden_count:
        listener.on(
            Warned(f"there is no file below {search.location!r}; see whether the location is the one that you mean")
        )
    living = living_runs(table, runtime, is_plan=is_plan)
    # What was committed meanwhile leads to files that were listed.
    latest = table.refresh()
    _refuse_other_table(table, latest, root)
    with fails_closed():
        reached = _reached(latest, root, spark, search)
        compared = compare(listing.files, listing.files_count, reached, search.spelling, spark, keeper)
        if not compared.named_count and any_below(root, reached, spark):
            refuse_unmatched(table, root, listing, search)
    if search.mode is PrefixMismatchMode.ERROR:
        refuse_mismatches(compared.mismatched_count, compared.mismatches)
    unnamed, limit = compared.unnamed, limits_of(spark).listed_files_count
    if not isinstance(unnamed, pa.Table) and compared.unnamed_count <= limit:
        unnamed = arrow_rows(unnamed, LISTED)
    free, waiting_count = without_planned(unnamed, compared.unnamed_count, latest, spark, keeper)
    sorter = sorter_of(latest, before_ms, now_ms, living, search.options.ignored_uuids)
    if search.location is not None or search.file_list_view is not None:
        # Metadata of another table may lie beside what was listed, and lead to files in it.
        beside, sorts = _sorted(_metadata_beside(latest, search.spelling), sorter, keeper)
        _refuse_strangers(latest, latest.metadata.location, beside, sorts)
    going, counts = _going(latest, root, free, sorter, keeper, limit)
    going_count = sum(counts[Sort(kind)] for kind in _GOING)
    candidates = OrphanCandidates(
        table=latest,
        locations=places,
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
    """The candidates without those that the table leads to now, and how many these are.

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


def _reached(
    table: Table, root: str, spark: SparkSource, search: Search, since: ReachableLists = NOTHING_SEEN
) -> Reached:
    """What the table leads to, to be compared with files below a directory."""
    reached = reached_by(table, spark, trust_manifest_list=search.trust_manifest_list, since=since)
    return msgspec.structs.replace(reached, roots=(root,))


def _listing(table: Table, root: str, spark: SparkSource, search: Search, keeper: RowKeeper) -> LocationListing:
    storage, hidden = table.storage, hidden_names(root, table.metadata.partition_specs)
    if search.file_list_view is not None:
        return list_given(search.file_list_view, storage, spark, root, hidden, search.spelling, keeper)
    # Below another location there may be few files of a large table.
    expected_count = 0 if search.location is not None else expected_files_count(table.metadata)
    return list_files(storage, spark, root, hidden, search.spelling, keeper, expected_count=expected_count)


def _metadata_beside(table: Table, spelling: Spelling) -> pa.Table:
    """The metadata files where the table has its own, and of tables dropped in its place, that are not in its history."""
    storage, named = table.storage, _history(table)
    found = metadata_files(storage, metadata_directory(table.metadata))
    found += filter(None, map(storage.head, dropped_heads(storage, table.metadata.location)))
    strangers = [info for info in found if canonical(info.location) not in named]
    locations = pa.array([info.location for info in strangers], pa.string())
    sizes, times = ([getattr(info, name) for info in strangers] for name in ("size_bytes", "modified_ms"))
    rows = keyed_rows(locations, pa.array(sizes, pa.int64()), pa.array(times, pa.int64()), spelling)
    return pa.Table.from_batches([rows])


def _refuse_other_table(before: Table, now: Table, root: str) -> None:
    refuse(now)
    refuse_unknown_names(now, root)
    is_same = before.metadata.table_uuid == now.metadata.table_uuid
    if not is_same or canonical(before.metadata.location) != canonical(now.metadata.location):
        raise SafetyError(
            f"table {before.name!r} became another one, or moved, while its files were looked at; nothing is deleted; run it "
            "again"
        )


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
        rows = pa.Table.from_batches(map(sorter.sort, files.to_batches()), SORTED)
        found = {row["values"]: row["counts"] for row in pc.value_counts(rows["kind"]).to_pylist()}
        return rows, {sort: found.get(sort.value, 0) for sort in Sort}
    kept = keeper.keep(files, SORTED, "sorted", "sorting files that nothing leads to", partial(_sorted_batch, sorter))
    return kept.frame(files.sparkSession), {sort: kept.counts[sort.value] for sort in Sort}


def _sorted_batch(sorter: MetadataFileSorter, files: pa.RecordBatch) -> tuple[pa.RecordBatch, Counter[str]]:
    rows = sorter.sort(files)
    return rows, Counter(rows["kind"].to_pylist())


def _going(
    table: Table, root: str, free: Rows, sorter: MetadataFileSorter, keeper: RowKeeper, limit: int
) -> tuple[Rows, dict[Sort, int]]:
    """Those of some unnamed files that may go, and how many of all there are of each sort; few come to the driver."""
    files, counts = _sorted(free, sorter, keeper)
    _refuse_strangers(table, root, files, counts)
    if isinstance(files, pa.Table):
        return files.filter(pc.is_in(files["kind"], pa.array(_GOING, pa.string()))), counts
    going = files.where(F.col("kind").isin(*_GOING))
    is_few = sum(counts[Sort(kind)] for kind in _GOING) <= limit
    return arrow_rows(going, SORTED) if is_few else going, counts


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
