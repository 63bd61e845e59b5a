"""What is told of a file.

The delete files that readers of a version apply to one data file, and the vectors that a Puffin file holds.

What a version of the table says of one data or delete file: its entry, the deletes that reach it, how a filter sees it.

What a file is that nothing of the table leads to, by the rules of `remove_orphan_files` at its defaults.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.summary import made_by
from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.maintenance.delete.locations import territory
from icekeep.maintenance.delete.reachable import CONTENT_KINDS
from icekeep.maintenance.orphans.compare import sorter_of
from icekeep.maintenance.orphans.listing import hidden_names, keyed_rows
from icekeep.maintenance.orphans.metadata import Sort
from icekeep.maintenance.orphans.options import DEFAULT_AGE_MS, eligible_before_ms
from icekeep.maintenance.rewrite.run import living_runs
from icekeep.maintenance.why.search import Target, whole_entries
from icekeep.planning.deletes import EVERY_PAIR, ReachingDeletes, reaching
from icekeep.planning.entries import DecodedEntries, EntryFilter, entries_schema, folded
from icekeep.planning.manifests import ENTRIES, MATCHED_COLUMNS
from icekeep.planning.scan.explain import Evidence, explain_entry, metrics_text
from icekeep.planning.scan.plan import delete_manifests, open_scan, select_manifests, snapshot_manifests
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.times import format_time
from icekeep.storage.base import FileInfo, ListingShare
from icekeep.storage.location_keys import AS_SPELLED
from icekeep.storage.locations import canonical, is_under, requests_at_once


class FileState(StrEnum):
    """What a file is to its table.

    Attributes:
        CURRENT: the current version of `main` has it.
        RETAINED: a snapshot has it, and the current version of `main` does not.
        PLANNED: no snapshot has it, and it lies in its place until the plan of a run takes it.
        TRASH: a run has moved it to the trash.
        GARBAGE: it was of the table, no snapshot has it any more, and it is still there.
        ORPHAN: it lies in a place of the table, and nothing has ever led to it as far as is known.
        OWN: it is icekeep's own.
        ELSEWHERE: it lies in no place of the table, and nothing of the table leads to it.
        GONE: it was of the table, and is not there any more.
        UNKNOWN: it is not there, and nothing is known of it.
        UNDECIDED: nothing that can be read leads to it, and not everything can be read.
    """

    CURRENT = "current"
    RETAINED = "retained"
    PLANNED = "planned"
    TRASH = "trash"
    GARBAGE = "garbage"
    ORPHAN = "orphan"
    OWN = "own"
    ELSEWHERE = "elsewhere"
    GONE = "gone"
    UNKNOWN = "unknown"
    UNDECIDED = "undecided"


class FileEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot did with the file.

    Attributes:
        event: `added`, `removed`, `removed in part` (some of the vectors of a Puffin file), or of statistics `describes`.
        timestamp_ms: of the snapshot, epoch milliseconds; `None` where it expired, as `operation` and `made_by`.
    """

    event: str
    snapshot_id: int
    timestamp_ms: int | None
    operation: str | None
    made_by: str | None


class ReadingRef(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots that read the file and that one reference leads to; `ref` is `None` for those that none leads to.

    Attributes:
        is_in_head: whether the snapshot at which the reference is has the file.
        oldest_timestamp_ms, newest_timestamp_ms: of the snapshots, epoch milliseconds.
    """

    ref: str | None
    type: str
    is_in_head: bool
    snapshots_count: int
    oldest_timestamp_ms: int
    newest_timestamp_ms: int


class ReachingDelete(msgspec.Struct, frozen=True, kw_only=True):
    """A delete file, or a vector in a Puffin file, that readers apply to the data file.

    Attributes:
        record_count: of the whole delete file, which may be for other data files too.
        snapshot_id: that added it; `None` where that is not known.
    """

    kind: str
    record_count: int
    sequence_number: int
    snapshot_id: int | None
    timestamp_ms: int | None
    made_by: str | None
    file_path: str


class HeldVector(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion vector in a Puffin file, and the data file that it is for."""

    record_count: int
    offset_bytes: int | None
    blob_bytes: int | None
    referenced_data_file: str | None


class KnownColumn(msgspec.Struct, frozen=True, kw_only=True):
    """What metadata says of the values that a data file has in a column."""

    column: str
    known: str


class PlanOfFile(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of a run that names the file.

    Attributes:
        place: `trash`; `in place`, where the file waits for the plan to be carried out; or `gone`.
        created_ms: when the run made the plan, epoch milliseconds.
        until_ms: the file is not deleted before.
        is_restorable: whether `icekeep restore --run RUN` brings it back.
    """

    run: str
    job: str
    place: str
    created_ms: int
    until_ms: int
    is_restorable: bool


class WhyResult(Rendered, frozen=True, kw_only=True, omit_defaults=True):
    """The life of one file. What does not apply to such a file is left out.

    Attributes:
        file_path: as metadata spells it, or the store.
        kind: as `file_kinds.FileKind`; `deletion vectors` for a Puffin file.
        answer: why it is there, or is not, and when it goes; a sentence or two.
        created_ms: when the store says that it was written, epoch milliseconds.
        partition: as people read it; empty for none.
        referenced_data_file: the only data file that a delete file is for.
        is_read_by_filter: whether a scan with the filter reads it.
        pruned_by: the first step that leaves it out, as `Explanation.pruned_by`.
        snapshots_count: how many snapshots read it.
        retained_until_ms: so long expiration by the table's own limits keeps a snapshot that reads it, if nothing is committed.
        kept_by: what keeps it for good, until somebody changes that.
        removable_after_ms: from then on `remove_orphan_files` takes it at its defaults.
        deletes_count: delete files that reach the data file in the version that is described: the current one, or the newest that
            has it. `deletes` are the first thousand; so are `vectors`.
        unreadable_files: manifest lists, manifests and plans that could not be looked into.
    """

    file_path: str
    kind: str
    state: FileState
    answer: str
    is_in_storage: bool
    stored_bytes: int | None = None
    created_ms: int | None = None
    record_count: int | None = None
    partition: str | None = None
    sequence_number: int | None = None
    referenced_data_file: str | None = None
    is_read_by_filter: bool | None = None
    pruned_by: str | None = None
    snapshots_count: int = 0
    retained_until_ms: int | None = None
    kept_by: tuple[str, ...] = ()
    removable_after_ms: int | None = None
    deletes_count: int | None = None
    vectors_count: int | None = None
    history: tuple[FileEvent, ...] = ()
    refs: tuple[ReadingRef, ...] = ()
    deletes: tuple[ReachingDelete, ...] = ()
    vectors: tuple[HeldVector, ...] = ()
    columns: tuple[KnownColumn, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    plans: tuple[PlanOfFile, ...] = ()
    unreadable_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


SHOWN_COUNT = 1_000

_COLUMNS = MATCHED_COLUMNS | {"snapshot_id"}
_VECTOR = "deletion vector"


class _OfFile:
    """A `Fold` that keeps the few delete files that reach one data file."""

    def __init__(self, data: pa.Table, specs: Mapping[int, PartitionSpec]) -> None:
        self._data, self._specs = data, specs
        self.rows = entries_schema(_COLUMNS).empty_table()

    def add(self, decoded: DecodedEntries) -> None:
        rows = pa.Table.from_batches([decoded.entries])
        found = self.reaching(rows)
        keys = {*_keys(found.deletes.take(pa.array(found.of_row(0), pa.int64())))}
        mask = pa.array([key in keys for key in _keys(rows)], pa.bool_())
        self.rows = pa.concat_tables([self.rows, rows.filter(mask)])

    def merge(self, other: "_OfFile") -> None:
        self.rows = pa.concat_tables([self.rows, other.rows])

    def reaching(self, deletes: pa.Table) -> ReachingDeletes:
        """What of some delete files reaches the data file."""
        found = reaching(self._data, deletes, self._specs, EVERY_PAIR)
        if found is None:
            raise IcekeepBug("too many delete files reach one data file to be told")
        return found


def deletes_reaching(data: pa.Table, table: Table, snapshot: Snapshot, spark: SparkSource) -> list[ReachingDelete]:
    """What readers of a snapshot apply to a data file, in the order of a plan.

    Args:
        data: the entry of the file, a row of `planning.manifests.ENTRIES`.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read, or deletes contradict one another.
    """
    metadata = table.metadata
    manifests = delete_manifests(snapshot_manifests(table, snapshot))
    selected = select_manifests(metadata, metadata.schema, manifests, ALWAYS_TRUE)
    new = partial(_OfFile, data, metadata.specs_by_id)
    found = folded(table.storage, spark, selected.opened, EntryFilter(specs=selected.specs), _COLUMNS, new)
    reached = found.reaching(found.rows)
    added_by = dict(zip(_keys(found.rows), found.rows["snapshot_id"].to_pylist(), strict=True))
    rows = reached.deletes.take(pa.array(reached.of_row(0), pa.int64())).to_pylist()
    return [_told(row, added_by[row["file_path"], row["content_offset"]], metadata) for row in rows]


def vectors_of(entries: pa.Table) -> list[HeldVector]:
    """What live entries say of the vectors of a Puffin file, in the file's order."""
    names = ["record_count", "content_offset", "content_size_in_bytes", "referenced_data_file"]
    rows = entries.select(names).group_by(names).aggregate([]).sort_by("content_offset").to_pylist()
    return [
        HeldVector(
            record_count=row["record_count"],
            offset_bytes=row["content_offset"],
            blob_bytes=row["content_size_in_bytes"],
            referenced_data_file=row["referenced_data_file"],
        )
        for row in rows
    ]


def is_puffin(content: int, file_format: str) -> bool:
    """Whether an entry is of a deletion vector."""
    return content == FileContent.POSITION_DELETES and file_format.lower() == "puffin"


def _keys(deletes: pa.Table) -> list[tuple[str, int | None]]:
    """What tells delete files apart, the vectors of one Puffin file too."""
    return [*zip(deletes["file_path"].to_pylist(), deletes["content_offset"].to_pylist(), strict=True)]


def _told(row: Mapping[str, Any], snapshot_id: int | None, metadata: TableMetadata) -> ReachingDelete:
    snapshot = None if snapshot_id is None else metadata.snapshots_by_id.get(snapshot_id)
    content, file_format = row["content"], row["file_format"]
    return ReachingDelete(
        kind=_VECTOR if is_puffin(content, file_format) else str(CONTENT_KINDS[FileContent(content)]),
        record_count=row["record_count"],
        sequence_number=row["sequence_number"],
        snapshot_id=snapshot_id,
        timestamp_ms=None if snapshot is None else snapshot.timestamp_ms,
        made_by=None if snapshot is None else made_by(snapshot.summary),
        file_path=row["file_path"],
    )


_SIZES = ("lower_bounds", "upper_bounds", "null_value_counts")


def kind_of(content: int, file_format: str) -> str:
    """What a file is by its entry."""
    return "deletion vectors" if is_puffin(content, file_format) else str(CONTENT_KINDS[FileContent(content)])


def described(
    path: str,
    manifests: Sequence[ManifestFile],
    snapshot: Snapshot,
    table: Table,
    spark: SparkSource,
    where: str | Expression | None,
) -> tuple[dict[str, Any], list[str]]:
    """Fields of `WhyResult` that a version says, and notes about what could not be told.

    Args:
        manifests: those of the version that have live entries of the file.
        where: a filter, of which is told what becomes of a data file; without one the bounds of columns are told.

    Raises:
        ExpressionError, NotFoundError: the filter does not fit the table.
    """
    entries = whole_entries(manifests, table, path, ENTRIES.names)
    row: dict[str, Any] = entries.slice(0, 1).to_pylist(maps_as_pydicts="lossy")[0]
    if is_puffin(row["content"], row["file_format"]):
        vectors = vectors_of(entries)
        some = {"vectors_count": len(vectors), "vectors": tuple(vectors[:SHOWN_COUNT])}
        return some | {"record_count": sum(vector.record_count for vector in vectors)}, []
    spec_id = row["spec_id"]
    partition = PartitionCodec(table.metadata.partition_type(spec_id)).decode(row["partition"])
    told = {
        "record_count": row["record_count"],
        "partition": table.metadata.partition_path(spec_id, partition) or None,
        "sequence_number": row["sequence_number"],
        "referenced_data_file": row["referenced_data_file"],
    }
    if row["content"] != FileContent.DATA:
        return told, []
    manifest = next(m for m in manifests if m.manifest_path == row["manifest_path"])
    told |= _of_scan(row, manifest, snapshot, table, where)
    deletes, problem = _deletes(entries, snapshot, table, spark)
    return told | deletes, [problem] if problem else []


def _deletes(
    entries: pa.Table, snapshot: Snapshot, table: Table, spark: SparkSource
) -> tuple[dict[str, Any], str | None]:
    try:
        deletes = deletes_reaching(entries.slice(0, 1), table, snapshot, spark)
    except (InvalidTableError, UnsupportedError) as error:
        return {}, f"which deletes reach it cannot be determined: {error.message}"
    return {"deletes_count": len(deletes), "deletes": tuple(deletes[:SHOWN_COUNT])}, None


def _of_scan(
    row: dict[str, Any], manifest: ManifestFile, snapshot: Snapshot, table: Table, where: str | Expression | None
) -> dict[str, Any]:
    metadata = table.metadata
    if where is None:
        return {"columns": _columns(row, metadata.schema)}
    is_current = snapshot.snapshot_id == metadata.current_snapshot_id
    version_id = None if is_current else snapshot.snapshot_id
    scan = open_scan(table, where=where, snapshot_id=version_id)
    explained = explain_entry(scan, row, manifest)
    return {
        "is_read_by_filter": explained.is_read,
        "pruned_by": explained.pruned_by,
        "evidence": explained.evidence,
    }


def _columns(row: dict[str, Any], schema: Schema) -> tuple[KnownColumn, ...]:
    file = DataFile(
        content=FileContent.DATA,
        partition=(),
        **{name: row[name] for name in DataFile.__struct_fields__ if name not in ("content", "partition")},
    )
    known = {field_id for name in _SIZES for field_id in row[name] or ()}
    return tuple(
        KnownColumn(column=name, known=metrics_text(schema.fields_by_id[field_id], file))
        for field_id, name in schema.names_by_id.items()
        if field_id in known
    )


_MAX_NAMES = 100


class FileVerdict(msgspec.Struct, frozen=True):
    """What it is, what becomes of it, and from when on it may go, epoch milliseconds; `None` where it stays."""

    state: FileState
    fate: str
    removable_after_ms: int | None = None


def judged(info: FileInfo, table: Table) -> FileVerdict:
    """Judge a file of which it is certain that no metadata, no manifest and no plan of the table names it.

    Raises:
        IcekeepError: the store does not answer.
    """
    metadata, location = table.metadata, info.location
    if is_under(location, metadata.location) and f"/{OWN_DIRECTORY}/" in canonical(location):
        return FileVerdict(FileState.OWN, "it is icekeep's own, which removes it itself when it is done with it")
    if not territory(table).holds(location):
        return FileVerdict(
            FileState.ELSEWHERE, "it lies in no place of the table, and below no `reclaim.roots`, so no run deletes it"
        )
    if not is_under(location, metadata.location):
        directory = location.rpartition("/")[0]
        return FileVerdict(
            FileState.ORPHAN,
            f"`remove_orphan_files` takes it only where it is told `--location {directory}` or a directory above that",
        )
    if hidden_names(metadata.location, metadata.partition_specs).mask(pa.array([location]))[0]:
        return FileVerdict(FileState.ORPHAN, "`remove_orphan_files` does not look at hidden names, so it stays")
    return _sorted(info, table)


def _sorted(info: FileInfo, table: Table) -> FileVerdict:
    now_ms = table.runtime.now_ms()
    sorter = sorter_of(table, eligible_before_ms(None, now_ms), now_ms, living_runs(table, table.runtime, is_plan=True))
    location, size_bytes, modified_ms = (pa.array([one]) for one in (info.location, info.size_bytes, info.modified_ms))
    row = sorter.sort(keyed_rows(location, size_bytes, modified_ms, AS_SPELLED)).to_pylist()[0]
    after_ms = info.modified_ms + DEFAULT_AGE_MS
    match Sort(row["kind"]):
        case Sort.ORPHAN | Sort.METADATA:
            return FileVerdict(FileState.ORPHAN, "the next `remove_orphan_files` takes it", after_ms)
        case Sort.YOUNG if after_ms > now_ms:
            return FileVerdict(
                FileState.ORPHAN, f"`remove_orphan_files` takes it from {format_time(after_ms)} on", after_ms
            )
        case Sort.YOUNG:
            return FileVerdict(
                FileState.ORPHAN, "`remove_orphan_files` leaves it alone: the run that wrote it is at work"
            )
        case Sort.VERSION:
            return FileVerdict(
                FileState.ORPHAN, "`remove_orphan_files` leaves it alone: a catalog may find the table by this version"
            )
    return FileVerdict(FileState.ORPHAN, f"`remove_orphan_files` refuses to go on because of it: {row['reason']}")


def listed_with_end(table: Table, target: Target) -> list[FileInfo]:
    """The files below the table's location that end as asked: a listing of all of it, of which little is held.

    Raises:
        IcekeepError: it could not be listed whole.
    """
    storage, root = table.storage, table.metadata.location
    threads = requests_at_once([root])

    def listed(share: ListingShare) -> list[FileInfo]:
        found: list[FileInfo] = []
        for info in storage.list_share(share):
            if len(found) < _MAX_NAMES and info.location.endswith(target.text):
                found.append(info)
        return found

    with ThreadPoolExecutor(threads) as pool:
        return [info for some in pool.map(listed, storage.shares(root, threads)) for info in some]
