"""What of a table expires by a filter, from its metadata alone: whole data files, and those at the edge, of which some rows do.

entries of data manifests, each with whether all its rows match -> sums by partition; files at the edge, with the deletes that
reach them; lines of a plan's file

A data file expires where every one of its rows matches, by the partition of its own spec or by its metrics: predicate by
predicate, so that partitions may decide one and bounds another. Null, NaN, bounds that were cut and metrics that are missing
never count as a match. What may match and need not is at the edge.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.commit.file_sets import Digest, entry_digest, live_twice
from icekeep.maintenance.deletes.equality_plan import data_entry
from icekeep.maintenance.plans import DELETE_ROWS, REMOVE, REWRITE, PlanLine, SavedPlan
from icekeep.maintenance.preconditions import already_applied, check_decided, definition, first_of, landed, moved
from icekeep.planning.deletes import MAX_PAIRS
from icekeep.planning.entries import (
    ALL_MATCH,
    DecodedEntries,
    EntryFilter,
    ReadBy,
    chosen_reading,
    entries,
    entries_count,
    few_entries,
    folded,
)
from icekeep.planning.scan.plan import FewFiles, Scan, matched_on_driver, matched_with_deletes, refuse_encrypted_file
from icekeep.planning.spark.rows import collected, streamed
from icekeep.planning.spark.session import SparkSource, limits_of
from icekeep.rendered import Rendered
from icekeep.spec.filters.expressions import Expression, predicates
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spelling import counted_doing

KEEP, DELETES, COPIES = "keep", "deletes", "rewrite"
"""What becomes of files at the edge."""

DATA_FILE = "data file"
_SHOWN_PARTITIONS = 20
_SUMMED = frozenset({"spec_id", "partition", "record_count", "file_size_in_bytes", ALL_MATCH.name})
_FILE_COLUMNS = frozenset(
    {
        "file_path",
        "file_format",
        "spec_id",
        "partition",
        "sequence_number",
        "record_count",
        "file_size_in_bytes",
        "first_row_id",
        "sort_order_id",
        "key_metadata",
        ALL_MATCH.name,
    }
)
_STEP = "looking for files whose rows expire"


class FileSums(msgspec.Struct, frozen=True):
    """Data files, the rows that their entries count, and their bytes."""

    files_count: int = 0
    records_count: int = 0
    bytes: int = 0

    def plus(self, other: "FileSums") -> "FileSums":
        return FileSums(
            self.files_count + other.files_count, self.records_count + other.records_count, self.bytes + other.bytes
        )


_Key = tuple[int, bytes]


class ExpirySums(msgspec.Struct):
    """A `Fold`: by spec and partition, as bytes, what expires as whole files, and what is at the edge."""

    expired: dict[_Key, FileSums] = {}
    edge: dict[_Key, FileSums] = {}

    def add(self, decoded: DecodedEntries) -> None:
        """Count the files of a batch."""
        found = pa.table(decoded.entries).group_by(["spec_id", "partition", ALL_MATCH.name])
        sums = found.aggregate([("record_count", "sum"), ("file_size_in_bytes", "sum"), ([], "count_all")])
        for row in sums.to_pylist():
            one = FileSums(row["count_all"], row["record_count_sum"], row["file_size_in_bytes_sum"])
            self._count(self.expired if row[ALL_MATCH.name] else self.edge, (row["spec_id"], row["partition"]), one)

    def merge(self, other: "ExpirySums") -> None:
        """Count what another one has counted."""
        for own, others in ((self.expired, other.expired), (self.edge, other.edge)):
            for key, one in others.items():
                self._count(own, key, one)

    def _count(self, sums: dict[_Key, FileSums], key: _Key, one: FileSums) -> None:
        sums[key] = sums.get(key, FileSums()).plus(one)

    def total(self, sums: Mapping[_Key, FileSums]) -> FileSums:
        """The sum over all partitions."""
        whole = FileSums()
        for one in sums.values():
            whole = whole.plus(one)
        return whole


class ExpiredPartition(msgspec.Struct, frozen=True, kw_only=True):
    """What expires of one partition, and what is at its edge; sizes in bytes.

    Attributes:
        partition: as Iceberg's partition paths show it; empty for a table without partitions.
        removed_data_files_count, removed_records_count, removed_bytes_count: data files that go as a whole.
        edge_data_files_count, edge_records_count, edge_bytes_count: files at the edge.
    """

    partition: str
    spec_id: int
    removed_data_files_count: int = 0
    removed_records_count: int = 0
    removed_bytes_count: int = 0
    edge_data_files_count: int = 0
    edge_records_count: int = 0
    edge_bytes_count: int = 0


class ExpireRowsPlan(Rendered, frozen=True, kw_only=True):
    """What a run with the same arguments would do now; sizes in bytes.

    Attributes:
        snapshot_id: the head of `branch`; `None` for a table without data.
        where: the filter, with moments in place of ages.
        edge: what becomes of files at the edge: `keep`, `deletes` or `rewrite`.
        removed_data_files_count: that go as a whole, since metadata shows that all their rows match.
        removed_records_count: rows of these, as their entries count them; some may be deleted already.
        removed_delete_files_count: that reach none of the data files that are left; `None` where there are too many entries for a
            plan to say so.
        removed_bytes_count: of all these files, as the summary of a snapshot counts them: of a deletion vector its whole file.
        edge_data_files_count: files at the edge, of which some rows may match. Those that `keep` leaves in the table, and whose
            rows `deletes` and `rewrite` read.
        edge_records_count: rows of these, of which a part matches: the most that a run may delete by row.
        edge_bytes_count: of these files.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        partitions_count: with something that expires, or at the edge.
        partitions: the first of them.
    """

    branch: str = MAIN
    snapshot_id: int | None = None
    where: str = ""
    edge: str = KEEP
    removed_data_files_count: int = 0
    removed_records_count: int = 0
    removed_delete_files_count: int | None = 0
    removed_bytes_count: int = 0
    edge_data_files_count: int = 0
    edge_records_count: int = 0
    edge_bytes_count: int = 0
    swept_files_count: int = 0
    partitions_count: int = 0
    partitions: tuple[ExpiredPartition, ...] = ()


def strict_filter(scan: Scan) -> EntryFilter:
    """The filter of a scan's entries, that also says of which files all rows match."""
    metadata, schema = scan.table.metadata, scan.version.schema
    specs = {
        spec_id: one.strictly(scan.where, metadata.specs_by_id[spec_id], schema)
        for spec_id, one in scan.data.specs.items()
    }
    return msgspec.structs.replace(scan.wanted, specs=specs)


def expiry_sums(scan: Scan, spark: SparkSource) -> ExpirySums:
    """Sum up what expires; no row of the metadata reaches Spark, and few entries do not start it."""
    return folded(scan.table.storage, spark, scan.data.opened, strict_filter(scan), _SUMMED, ExpirySums)


def shown_partitions(sums: ExpirySums, metadata: TableMetadata) -> tuple[int, tuple[ExpiredPartition, ...]]:
    """How many partitions there are, and the first of them by spec and value: those that expire before those at the edge."""
    codecs = PartitionCodecs(metadata.partition_types)
    keys = {*sums.expired, *sums.edge}
    in_order = sorted(keys, key=lambda key: (key not in sums.expired, key))[:_SHOWN_PARTITIONS]
    shown = []
    for spec_id, partition in in_order:
        gone = sums.expired.get((spec_id, partition), FileSums())
        edge = sums.edge.get((spec_id, partition), FileSums())
        shown.append(
            ExpiredPartition(
                partition=metadata.partition_path(spec_id, codecs.decode(spec_id, partition)),
                spec_id=spec_id,
                removed_data_files_count=gone.files_count,
                removed_records_count=gone.records_count,
                removed_bytes_count=gone.bytes,
                edge_data_files_count=edge.files_count,
                edge_records_count=edge.records_count,
                edge_bytes_count=edge.bytes,
            )
        )
    return len(keys), tuple(sorted(shown, key=lambda one: (one.spec_id, one.partition)))


def files_found(scan: Scan, spark: SparkSource, *, expired: bool) -> Iterator[Mapping[str, Any]]:
    """The files that expire as a whole, or those at the edge: rows of some columns of `planning.manifests.ENTRIES`."""
    storage, opened, wanted = scan.table.storage, scan.data.opened, strict_filter(scan)
    reading = chosen_reading(opened, limits_of(spark).entries_count)
    if reading.by is ReadBy.DRIVER:
        found = few_entries(storage, opened, wanted, _FILE_COLUMNS, reading.decoder)
        yield from _of_kind(found, expired=expired).to_pylist()
        return
    rows = entries(storage, spark, opened, wanted, _FILE_COLUMNS, reading)
    kind = rows.where(ALL_MATCH.name if expired else f"NOT {ALL_MATCH.name}")
    yield from (row.asDict() for row in streamed(kind, _STEP))


def edge_files(scan: Scan, spark: SparkSource) -> list[dict[str, Any]]:
    """The files at the edge, each with its `deletes`, those of one partition side by side; the driver holds them."""
    storage, opened, wanted = scan.table.storage, scan.data.opened, strict_filter(scan)
    reading = chosen_reading([*opened, *scan.deletes.opened], limits_of(spark).entries_count)
    rows: list[dict[str, Any]] | None = None
    if reading.by is ReadBy.DRIVER:
        files = _of_kind(few_entries(storage, opened, wanted, _FILE_COLUMNS, reading.decoder), expired=False)
        reached = matched_on_driver(scan, files, reading.decoder, MAX_PAIRS) if scan.deletes.opened else None
        if reached is not None or not scan.deletes.opened:
            rows = FewFiles(files=files, reaching=reached).rows()
    if rows is None:
        found = entries(storage, spark, opened, wanted, _FILE_COLUMNS).where(f"NOT {ALL_MATCH.name}")
        if scan.deletes.opened:
            deletes = EntryFilter(specs=scan.deletes.specs)
            count = entries_count(opened)
            found = matched_with_deletes(found, scan.table, spark, scan.deletes.opened, deletes, data_count=count)
        rows = [row.asDict(recursive=True) for row in collected(found, _STEP)]
    for row in rows:
        refuse_encrypted_file(row)
    for path, count in Counter(row["file_path"] for row in rows).items():
        if count > 1:
            raise live_twice(path)
    return sorted(rows, key=lambda row: (row["spec_id"], bytes(row["partition"]), row["file_path"]))


def _of_kind(files: pa.Table, *, expired: bool) -> pa.Table:
    all_match = files[ALL_MATCH.name]
    return files.filter(all_match if expired else pc.invert(all_match))


def filter_columns(bound: Expression, metadata: TableMetadata) -> dict[str, str]:
    """The fields that a filter is bound to, by name: with the partition specs, what decides which files expire."""
    names = metadata.schema.names_by_id
    fields = {predicate.field.field_id: predicate.field for predicate in predicates(bound)}
    return {f"column {names[id_]}": definition(id_, str(field.type)) for id_, field in sorted(fields.items())}


def file_lines(table: Table, rows: Iterator[Mapping[str, Any]], do: str) -> Iterator[PlanLine]:
    """A line for each data file; its state is the digest of its entry."""
    codecs = PartitionCodecs(table.metadata.partition_types)
    for row in rows:
        entry = data_entry(row, codecs)
        yield PlanLine(
            do=do,
            kind=DATA_FILE,
            name=entry.data_file.file_path,
            size_bytes=entry.data_file.file_size_in_bytes,
            record_count=entry.data_file.record_count,
            state=entry_digest(entry).hex(),
            says={"partition": table.metadata.partition_path(entry.data_file.spec_id, entry.data_file.partition)},
        )


EDGE_VERBS = {DELETES: DELETE_ROWS, COPIES: REWRITE}
"""What the lines of a plan say is done with files at the edge."""


class SavedExpiry(msgspec.Struct, frozen=True):
    """The files of a saved plan, by the digest of their entries: those that go as a whole, and those at the edge."""

    expired: frozenset[Digest]
    edge: frozenset[Digest]


def saved_expiry(saved: SavedPlan, scan: Scan, spark: SparkSource, decided: Mapping[str, str]) -> SavedExpiry:
    """The files of a saved plan, each of which is live as it was, and expires as a whole, or is at the edge, as it did.

    Raises:
        SafetyError: that is not so of one of them, or what decides of the outcome is another.
        AlreadyApplied: the plan was carried out before.
    """
    metadata = scan.table.metadata
    if landed(saved, metadata):
        raise already_applied(saved, metadata)
    check_decided(saved, metadata, decided)
    planned: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for line in saved.lines():
        if line.kind == DATA_FILE:
            planned[line.do == REMOVE][line.state] = line.name
    codecs = PartitionCodecs(metadata.partition_types)
    kinds: list[frozenset[Digest]] = []
    missing: list[str] = []
    for expired, names in planned.items():
        live: set[Digest] = set()
        for row in files_found(scan, spark, expired=expired) if names else ():
            # The first commit in version 3 gives the rows of a file ids.
            for first_row_id in {row["first_row_id"], None}:
                state = entry_digest(data_entry({**row, "first_row_id": first_row_id}, codecs)).hex()
                if names.pop(state, None) is not None:
                    live.add(entry_digest(data_entry(row, codecs)))
        missing += names.values()
        kinds.append(frozenset(live))
    if missing:
        problem = (
            f"{counted_doing(len(missing), 'data files', 'are')} gone, or not as before, such as {first_of(missing)}"
        )
        raise moved(saved, metadata, problem, gone_count=len(missing))
    return SavedExpiry(*kinds)


def has_same_fields(first: Expression, now: Expression) -> bool:
    """Whether a filter is bound to the same fields as before: names may have gone from one column to another."""
    return _fields(first) == _fields(now)


def _fields(bound: Expression) -> Sequence[int]:
    # In the order of the filter: two columns may have changed names with one another.
    return [predicate.field.field_id for predicate in predicates(bound)]
