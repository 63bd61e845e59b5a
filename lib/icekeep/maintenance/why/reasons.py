"""What is reported of a file, and what one version of the table says of it: its entry, its deletes, a filter's answer."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.summary import made_by
from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.maintenance.delete.reachable import CONTENT_KINDS
from icekeep.maintenance.why.search import whole_entries
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
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot

TRASH, IN_PLACE, GONE = "trash", "in place", "gone"

_SHOWN_COUNT = 1_000
_VECTOR = "deletion vector"


class FileState(StrEnum):
    """The state of a file in its table.

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
        kind: as `reachable.FileKind`; `deletion vectors` for a Puffin file.
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


def kind_of(content: int, file_format: str, *, vector: str = "deletion vectors") -> str:
    """What kind of file an entry is of; of a deletion vector `vector`."""
    if content == FileContent.POSITION_DELETES and file_format.lower() == "puffin":
        return vector
    return str(CONTENT_KINDS[FileContent(content)])


def described(
    path: str,
    manifests: Sequence[ManifestFile],
    snapshot: Snapshot,
    table: Table,
    spark: SparkSource,
    where: str | Expression | None,
) -> tuple[dict[str, Any], list[str]]:
    """Fields of `WhyResult` from one version, and notes about what is not known.

    Args:
        manifests: those of the version that have live entries of the file.
        where: a filter, and the answer is whether it reads a data file; without one it is the bounds of columns.

    Raises:
        ExpressionError, NotFoundError: the filter does not fit the table.
    """
    entries = whole_entries(manifests, table, path, ENTRIES.names)
    row: dict[str, Any] = entries.slice(0, 1).to_pylist(maps_as_pydicts="lossy")[0]
    if kind_of(row["content"], row["file_format"], vector=_VECTOR) == _VECTOR:
        vectors = _vectors(entries)
        some = {"vectors_count": len(vectors), "vectors": tuple(vectors[:_SHOWN_COUNT])}
        return some | {"record_count": sum(vector.record_count for vector in vectors)}, []
    spec_id = row["spec_id"]
    partition = PartitionCodec(table.metadata.partition_type(spec_id)).decode(row["partition"])
    fields = {
        "record_count": row["record_count"],
        "partition": table.metadata.partition_path(spec_id, partition) or None,
        "sequence_number": row["sequence_number"],
        "referenced_data_file": row["referenced_data_file"],
    }
    if row["content"] != FileContent.DATA:
        return fields, []
    if where is None:
        fields["columns"] = _columns(row, table.metadata.schema)
    else:
        is_current = snapshot.snapshot_id == table.metadata.current_snapshot_id
        scan = open_scan(table, where=where, snapshot_id=None if is_current else snapshot.snapshot_id)
        explained = explain_entry(scan, row, next(m for m in manifests if m.manifest_path == row["manifest_path"]))
        fields |= {
            "is_read_by_filter": explained.is_read,
            "pruned_by": explained.pruned_by,
            "evidence": explained.evidence,
        }
    try:
        deletes = _deletes_reaching(entries.slice(0, 1), table, snapshot, spark)
    except (InvalidTableError, UnsupportedError) as error:
        return fields, [f"which deletes reach it cannot be determined: {error.message}"]
    return fields | {"deletes_count": len(deletes), "deletes": tuple(deletes[:_SHOWN_COUNT])}, []


def _vectors(entries: pa.Table) -> list[HeldVector]:
    """The vectors of a Puffin file, in the file's order."""
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


def _columns(row: dict[str, Any], schema: Schema) -> tuple[KnownColumn, ...]:
    file = DataFile(
        content=FileContent.DATA,
        partition=(),
        **{name: row[name] for name in DataFile.__struct_fields__ if name not in ("content", "partition")},
    )
    measured = {id_ for name in ("lower_bounds", "upper_bounds", "null_value_counts") for id_ in row[name] or ()}
    return tuple(
        KnownColumn(column=name, known=metrics_text(schema.fields_by_id[field_id], file))
        for field_id, name in schema.names_by_id.items()
        if field_id in measured
    )


class _ReachingFold:
    """A `Fold` that keeps the few delete files that reach one data file."""

    COLUMNS = MATCHED_COLUMNS | {"snapshot_id"}

    def __init__(self, data: pa.Table, specs: Mapping[int, PartitionSpec]) -> None:
        self._data, self._specs = data, specs
        self.rows = entries_schema(self.COLUMNS).empty_table()

    def add(self, decoded: DecodedEntries) -> None:
        rows = pa.Table.from_batches([decoded.entries])
        found = self.reaching(rows)
        keys = {*_keys(found.deletes.take(pa.array(found.of_row(0), pa.int64())))}
        mask = pa.array([key in keys for key in _keys(rows)], pa.bool_())
        self.rows = pa.concat_tables([self.rows, rows.filter(mask)])

    def merge(self, other: "_ReachingFold") -> None:
        self.rows = pa.concat_tables([self.rows, other.rows])

    def reaching(self, deletes: pa.Table) -> ReachingDeletes:
        """Those of some delete files that reach the data file."""
        found = reaching(self._data, deletes, self._specs, EVERY_PAIR)
        if found is None:
            raise IcekeepBug("too many delete files reach one data file to be listed")
        return found


def _deletes_reaching(data: pa.Table, table: Table, snapshot: Snapshot, spark: SparkSource) -> list[ReachingDelete]:
    """What readers of a snapshot apply to a data file, given by its entry, in the order of a plan.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read, or deletes contradict one another.
    """
    metadata = table.metadata
    manifests = delete_manifests(snapshot_manifests(table, snapshot))
    selected = select_manifests(metadata, metadata.schema, manifests, ALWAYS_TRUE)
    new = partial(_ReachingFold, data, metadata.specs_by_id)
    columns = _ReachingFold.COLUMNS
    found = folded(table.storage, spark, selected.opened, EntryFilter(specs=selected.specs), columns, new)
    reached = found.reaching(found.rows)
    added_by = dict(zip(_keys(found.rows), found.rows["snapshot_id"].to_pylist(), strict=True))
    deletes = []
    for row in reached.deletes.take(pa.array(reached.of_row(0), pa.int64())).to_pylist():
        snapshot_id = added_by[row["file_path"], row["content_offset"]]
        by = None if snapshot_id is None else metadata.snapshots_by_id.get(snapshot_id)
        deletes.append(
            ReachingDelete(
                kind=kind_of(row["content"], row["file_format"], vector=_VECTOR),
                record_count=row["record_count"],
                sequence_number=row["sequence_number"],
                snapshot_id=snapshot_id,
                timestamp_ms=None if by is None else by.timestamp_ms,
                made_by=None if by is None else made_by(by.summary),
                file_path=row["file_path"],
            )
        )
    return deletes


def _keys(deletes: pa.Table) -> list[tuple[str, int | None]]:
    """What identifies a delete file, the vectors of one Puffin file too."""
    return [*zip(deletes["file_path"].to_pylist(), deletes["content_offset"].to_pylist(), strict=True)]
