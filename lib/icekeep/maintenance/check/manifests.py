"""Manifests: each file once against its rows in manifest lists, and its entries against what the spec says of entries.

On the driver in threads or in Spark tasks; what comes back are faults, true rows and sums. Rules over entries look at a batch
at a time, and give the rows for which they do not hold.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap

from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed, ListedRows, ReadLists
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.entries import ReadBy, chosen_reading, threads_count
from icekeep.planning.manifests import distinct_partitions, read_manifests
from icekeep.planning.prune import decode_bounds
from icekeep.planning.spark.session import limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import MANIFEST_BYTES, tasks_count
from icekeep.spec.avro import AvroHeader, read_header, read_records
from icekeep.spec.collections import balanced, packed
from icekeep.spec.manifests.read import ManifestHeader, read_manifest_header, record_field, stored_fields
from icekeep.spec.manifests.structs import (
    DATA_FILE_FIELD_ID,
    PARTITION_FIELD_ID,
    FieldSummary,
    FileContent,
    ManifestContent,
    ManifestFile,
    Status,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import partition_fields_from_json
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, schema_from_json
from icekeep.spec.transforms import Void
from icekeep.spec.types import LONG, MIB, STRING, ListType, MapType, PrimitiveType, StructType, Type, child_fields
from icekeep.spec.values import INTEGER_WIDTHS, value_from_bytes
from icekeep.storage.base import Storage

Ids: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

WrongEntry: TypeAlias = tuple[FaultId, int, str]
"""A class of faults, the row of an entry in its batch, and what is wrong with the entry."""

_Checked: TypeAlias = tuple[ManifestFile, tuple[int, ...]]
"""A manifest that could be read: its row as the file has it, and the `SUMS` of its entries."""

METRIC_COLUMNS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
COUNT_NAMES = (
    "added_files_count", "existing_files_count", "deleted_files_count",
    "added_rows_count", "existing_rows_count", "deleted_rows_count",
)  # fmt: skip

SUMS = tuple(
    added + name
    for added in ("", "added_")
    for name in (
        "data_files", "records", "delete_files", "position_deletes", "equality_deletes", "bytes", "own_bytes",
    )
)  # fmt: skip
"""Sums over live entries, and over those that are added; `own_bytes` counts of a deletion vector its blob alone."""

_COLUMNS = frozenset(
    {
        "status", "snapshot_id", "sequence_number", "file_sequence_number", "content", "file_path", "file_format", "partition",
        "record_count", "file_size_in_bytes", *METRIC_COLUMNS, "split_offsets", "equality_ids", "sort_order_id",
        "referenced_data_file", "content_offset", "content_size_in_bytes",
    }
)  # fmt: skip
_FIRST_ROW_ID = "first_row_id"
_FORMATS = ("parquet", "orc", "avro", "puffin")
_MAX_SUMMED = 1 << 62
_CHUNK_BYTES = 5 * MIB

_PROMOTED = ({"int", "long"}, {"float", "double"}, {"date", "timestamp"}, {"date", "timestamp_ns"})
"""Types that a column may have one after the other (spec, "Schema Evolution")."""

_JUDGED = frozenset((*INTEGER_WIDTHS, "boolean", "float", "double", "decimal", "string", "uuid", "fixed", "binary"))

_STATUS, _SEQUENCE_NUMBER, _FILE_PATH, _CONTENT = 0, 3, 100, 134
"""Field ids of `manifest_entry` and `data_file`."""


class CheckedManifests(msgspec.Struct, frozen=True):
    """The manifests that could be read, by true rows, with the `SUMS` of each."""

    listed: Listed
    sums: tuple[tuple[int, ...], ...]


class TableDefinitions(msgspec.Struct, frozen=True, kw_only=True):
    """What each task needs to know of the table.

    Attributes:
        partitions: the partition type of each spec whose source columns some schema has.
        equality_ids: ids of the columns of all schemas.
        whole: of which classes each fault is kept.
        row_ids_since: the least sequence number whose snapshot is known to have given row ids; `None` if none has.
    """

    storage: Storage
    format_version: int
    partitions: Mapping[int, StructType]
    columns: "ColumnTypes"
    equality_ids: frozenset[int]
    sort_order_ids: frozenset[int]
    decoder: ManifestDecoder
    whole: frozenset[int]
    row_ids_since: int | None = None


def check_manifests(subject: CheckedTable, lists: ReadLists) -> CheckedManifests:
    """Look at each manifest; faults go to the subject's tally."""
    metadata, tally = subject.table.metadata, subject.tally
    reading = chosen_reading(lists.listed.manifests, limits_of(subject.spark).folded_entries_count)
    partitions: dict[int, StructType] = {}
    for spec_id in metadata.specs_by_id:
        # What is wrong with the others is a fault of the metadata.
        with suppress(InvalidTableError):
            partitions[spec_id] = metadata.partition_type(spec_id)
    known = TableDefinitions(
        storage=subject.table.storage,
        format_version=metadata.format_version,
        partitions=partitions,
        columns=column_types(metadata),
        equality_ids=frozenset(field_id for schema in metadata.schemas for field_id in schema.fields_by_id),
        sort_order_ids=frozenset({0, *(order.order_id for order in metadata.sort_orders)}),
        decoder=reading.decoder,
        whole=tally.whole,
        row_ids_since=min((s.sequence_number for s in metadata.snapshots if s.first_row_id is not None), default=None),
    )
    numbered = [*enumerate(lists.rows)]

    def size_of(one: tuple[int, ListedRows]) -> int:
        return max(1, one[1][0][0].manifest_length)

    if reading.by is ReadBy.DRIVER:
        session, some = None, [*packed(numbered, (size_of, _CHUNK_BYTES))]
    else:
        session = started(subject.spark)
        count = tasks_count(session, sum(map(size_of, numbered)), MANIFEST_BYTES)
        some = balanced(numbered, size_of, min(count, max(1, len(numbered))))
    threads = threads_count(manifest.manifest_path for manifest in lists.listed.manifests)
    checked: dict[int, _Checked] = {}
    ran = run_tasks(session, some, _checked, known, step="checking manifests", threads=threads)
    for part, found in all_results(ran):
        checked.update(part)
        tally.merge(found)
    return _renumbered(subject, lists.listed, checked)


def _checked(some: Sequence[tuple[int, ListedRows]], known: TableDefinitions) -> tuple[dict[int, _Checked], Tally]:
    tally = Tally(known.whole)
    found = {number: check_manifest(rows, known, tally) for number, rows in some}
    return {number: one for number, one in found.items() if one is not None}, tally


def _renumbered(subject: CheckedTable, listed: Listed, checked: dict[int, _Checked]) -> CheckedManifests:
    """The manifests that were read, with numbers of their own."""
    unread, tally = {*listed.unread}, subject.tally
    kept = sorted(checked)
    new = np.full(len(listed.manifests), -1, np.int64)
    new[kept] = np.arange(len(kept))
    read, members = BitMap(kept), {}
    for snapshot_id, old in listed.members.items():
        here = old & read
        members[snapshot_id] = here if len(kept) == len(new) else BitMap(new[here.to_array()].tolist())
        if len(here) < len(old):
            unread.add(snapshot_id)
    for snapshot_id in sorted(unread):
        tally.gap(f"snapshot {snapshot_id}", "not all of its manifests were read")
    for snapshot in subject.snapshots:
        if snapshot.snapshot_id not in listed.members:
            tally.gap(f"snapshot {snapshot.snapshot_id}", "its manifest list was not read")
    of_kept = Listed(
        manifests=tuple(checked[number][0] for number in kept),
        members=members,
        since=tuple(listed.since[number] for number in kept),
        unread=frozenset(unread),
    )
    return CheckedManifests(of_kept, tuple(checked[number][1] for number in kept))


def check_manifest(rows: ListedRows, known: TableDefinitions, tally: Tally) -> _Checked | None:
    """Look at a manifest; `None` where it cannot be read, which the tally says."""
    first, since = rows[0]
    location = first.manifest_path
    if any(row.key_metadata is not None for row, _ in rows):
        tally.gap(location, "it is encrypted")
        return None
    try:
        data = known.storage.read(location)
        header = read_manifest_header(data, location)
        avro = read_header(data, location)
    except (UnsupportedError, UsageError) as error:
        tally.gap(location, first_line(error))
        return None
    except InvalidTableError as error:
        tally.add(_fault(FaultId.MANIFEST_UNREADABLE, first, since, first_line(error)))
        return None
    if problems := _header_problems(avro):
        tally.add(_fault(FaultId.MANIFEST_HEADER_WRONG, first, since, f"its header has {', '.join(problems)}"))
    row = _as_the_file_says(first, header, len(data), known)
    if row.partition_spec_id not in known.partitions:
        tally.gap(location, f"no schema has the source columns of its partition spec {row.partition_spec_id}")
        return None
    _report(rows, partial(_file_problems, header=header, size_bytes=len(data)), tally)
    partition = known.partitions[row.partition_spec_id]
    is_numbered = known.row_ids_since is not None and row.first_row_id is not None
    # Where counts are wrong, row ids cannot be checked, but all else still can.
    for columns in (_COLUMNS | {_FIRST_ROW_ID}, _COLUMNS) if is_numbered else (_COLUMNS,):
        look = _Entries(rows, row, known, partition)
        try:
            for batch in read_manifests([row], partition, known.storage, columns, decoder=known.decoder):
                look.add(batch)
            found = look.result()
        except (InvalidTableError, UnsupportedError) as error:
            problem = first_line(error)
            continue
        tally.merge(look.tally)
        return found
    tally.merge(look.tally)
    faults = raw_faults(data, row, partition)
    for number, detail, facts in faults or [(FaultId.MANIFEST_UNREADABLE, problem, {})]:
        tally.add(_fault(number, first, since, detail, **facts))
    return None


def _fault(number: FaultId, row: ManifestFile, since: int, detail: str, **facts: Any) -> Fault:
    path = row.manifest_path
    return Fault(number=number, where=path, detail=detail, snapshot_id=since, facts={"manifest": path, **facts})


def _report(
    rows: ListedRows, problems_of: Callable[[ManifestFile], Iterable[tuple[FaultId, str]]], tally: Tally
) -> None:
    for row, since in rows:
        for number, detail in problems_of(row):
            tally.add(_fault(number, row, since, detail))


def _file_problems(row: ManifestFile, header: ManifestHeader, size_bytes: int) -> Iterator[tuple[FaultId, str]]:
    """What a list says wrongly of a manifest file."""
    if row.manifest_length != size_bytes:
        detail = f"it has {size_bytes} bytes, its manifest list says {row.manifest_length}"
        yield FaultId.MANIFEST_LENGTH_WRONG, detail
    if header.content is not None and row.content is not header.content:
        said, is_ = row.content.name.lower(), header.content.name.lower()
        yield FaultId.MANIFEST_CONTENT_WRONG, f"it holds {is_}, its manifest list says {said}"
    spec_id, said_id = header.partition_spec_id, row.partition_spec_id
    if spec_id not in (None, said_id):
        detail = f"it is of partition spec {spec_id}, its manifest list says {said_id}"
        yield FaultId.MANIFEST_SPEC_MISSING, detail


def _as_the_file_says(
    row: ManifestFile, header: ManifestHeader, size_bytes: int, known: TableDefinitions
) -> ManifestFile:
    """The row by which the file can be read, whatever is wrong in the list."""
    spec_id = header.partition_spec_id
    return msgspec.structs.replace(
        row,
        manifest_length=size_bytes,
        content=row.content if header.content is None else header.content,
        partition_spec_id=spec_id if spec_id is not None and spec_id in known.partitions else row.partition_spec_id,
        **dict.fromkeys(COUNT_NAMES),
    )


def _header_problems(avro: AvroHeader) -> Sequence[str]:
    """What the header of a readable manifest says wrongly, or lacks."""
    said = avro.metadata
    of_later = () if said.get("format-version", b"1") == b"1" else ("partition-spec-id", "content")
    missing = [f"no {key!r}" for key in ("schema", "partition-spec", *of_later) if key not in said]
    return [*missing, *_definition_problems(said.get("schema"), said.get("partition-spec"), said["avro.schema"])]


@lru_cache(maxsize=64)
def _definition_problems(schema_json: bytes | None, spec_json: bytes | None, stored_json: bytes) -> tuple[str, ...]:
    """Cached, since most manifests have identical definitions."""
    problems = []
    schema = fields = None
    try:
        schema = None if schema_json is None else schema_from_json(msgspec.json.decode(schema_json))
    except (msgspec.DecodeError, InvalidTableError):
        problems.append("a 'schema' that is no schema")
    try:
        fields = None if spec_json is None else partition_fields_from_json(msgspec.json.decode(spec_json))
    except (msgspec.DecodeError, InvalidTableError):
        problems.append("a 'partition-spec' that is no list of partition fields")
    # A manifest whose entries cannot be read is a fault of its own.
    with suppress(ValueError):
        of_files = record_field(msgspec.json.decode(stored_json), DATA_FILE_FIELD_ID)[1]
        count = len(stored_fields(record_field(of_files, PARTITION_FIELD_ID)[1]))
        if fields is not None and count != len(fields):
            problems.append(f"a 'partition-spec' of {len(fields)} fields, and partitions of {count}")
    for field in fields or ():
        if schema is not None and not isinstance(field.transform, Void) and field.source_id not in schema.fields_by_id:
            problems.append(
                f"a 'schema' without column {field.source_id}, the source of partition field {field.name!r}"
            )
    return tuple(problems)


def raw_faults(data: bytes, row: ManifestFile, partition: StructType) -> list[tuple[FaultId, str, dict[str, Any]]]:
    """What is wrong with a manifest that does not decode, as far as its records show before anything is inherited.

    Returns:
        Classes, details, and facts; nothing where the records do not show it.
    """
    found: list[tuple[FaultId, str, dict[str, Any]]] = []
    try:
        header = read_header(data, row.manifest_path)
        schema = msgspec.json.decode(header.metadata["avro.schema"])
        file_name, file_schema = record_field(schema, DATA_FILE_FIELD_ID)
        stored = stored_fields(record_field(file_schema, PARTITION_FIELD_ID)[1])
        missing = [field.name for field in partition.fields if field.field_id not in stored]
        if missing:
            detail = f"its partitions lack {', '.join(map(repr, missing))} of spec {row.partition_spec_id}"
            return [(FaultId.PARTITION_VALUE_WRONG, detail, {})]
        entry_names = {number: field["name"] for number, field in stored_fields(schema).items()}
        file_names = {number: field["name"] for number, field in stored_fields(file_schema).items()}
        for record in read_records(data, header, row.manifest_path):
            file = record[file_name]
            path = file[file_names[_FILE_PATH]]
            status = record[entry_names[_STATUS]]
            content = file.get(file_names.get(_CONTENT, ""), FileContent.DATA) or 0
            if status not in [*Status] or content not in [*FileContent]:
                # The decoder says it in its own words.
                continue
            facts = {"file_path": path, "spec_id": row.partition_spec_id}
            if (content == FileContent.DATA) is not (row.content is ManifestContent.DATA):
                kind = "data" if content == FileContent.DATA else "deletes"
                detail = f"the entry of {path!r} is of {kind}, the manifest of {row.content.name.lower()}"
                found.append((FaultId.MANIFEST_CONTENT_WRONG, detail, facts))
            numbered = entry_names.get(_SEQUENCE_NUMBER)
            if status != Status.ADDED and row.sequence_number and (numbered is None or record[numbered] is None):
                detail = f"the entry of {path!r} is not added, and has no sequence number"
                found.append((FaultId.ENTRY_NUMBER_MISSING, detail, facts))
    except (InvalidTableError, KeyError, TypeError, ValueError, msgspec.DecodeError):
        return []
    return found


class _Entries:
    """Takes the entries of a manifest batch by batch.

    Attributes:
        tally: what is found.
    """

    def __init__(self, rows: ListedRows, row: ManifestFile, known: TableDefinitions, partition: StructType) -> None:
        self.tally = Tally(known.whole)
        self._rows, self._row, self._known = rows, row, known
        self._counts = dict.fromkeys(COUNT_NAMES, 0)
        self._sums = dict.fromkeys(SUMS, 0)
        self._partition = partition
        self._fields = [_FieldValues() for _ in partition.fields]
        self._least_number: int | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at some entries."""
        status, records = batch["status"].to_numpy(), batch["record_count"].to_numpy()
        for name in ("added", "existing", "deleted"):
            mine = status == Status[name.upper()]
            self._counts[f"{name}_files_count"] += int(np.count_nonzero(mine))
            self._counts[f"{name}_rows_count"] += _sum(records[mine])
        live = status != Status.DELETED
        self._add_up(batch, live, status == Status.ADDED)
        rows = batch.filter(pa.array(live))
        numbers = rows["sequence_number"].drop_null()
        if len(numbers):
            least = pc.min(numbers).as_py()
            self._least_number = least if self._least_number is None else min(self._least_number, least)
        for values in distinct_partitions(rows["partition"])[0] if self._fields else ():
            for field, value in zip(self._fields, values, strict=True):
                field.add(value)
        for number, at, detail in chain(
            self._sequence_numbers(rows),
            self._row_ids(rows),
            self._contradictions(rows),
            self._unknown_ids(rows),
            _split_offsets(rows),
            check_metrics(rows, self._known.columns),
        ):
            facts = {
                "manifest": self._row.manifest_path,
                "file_path": rows["file_path"][at].as_py(),
                "content_offset": rows["content_offset"][at].as_py(),
                "spec_id": self._row.partition_spec_id,
            }
            where, since = facts["file_path"], self._rows[0][1]
            self.tally.add(Fault(number=number, where=where, detail=detail, snapshot_id=since, facts=facts))

    def result(self) -> _Checked:
        """After the last entry: counts and summaries against what lists say."""
        _report(self._rows, self._row_problems, self.tally)
        min_number = self._row.min_sequence_number or 0
        min_number = min_number if self._least_number is None else min(min_number, self._least_number)
        corrected = msgspec.structs.replace(self._row, min_sequence_number=min_number, partitions=None, **self._counts)
        return corrected, tuple(self._sums[name] for name in SUMS)

    def _row_problems(self, row: ManifestFile) -> Iterator[tuple[FaultId, str]]:
        for names, number in (
            (COUNT_NAMES[:3], FaultId.FILE_COUNTS_WRONG),
            (COUNT_NAMES[3:], FaultId.ROW_COUNTS_WRONG),
        ):
            said = {name: getattr(row, name) for name in names}
            wrong = [name for name in names if said[name] not in (None, self._counts[name])]
            if wrong:
                yield (
                    number,
                    ", ".join(f"{name} is {said[name]}, but {self._counts[name]} are counted" for name in wrong),
                )
        for detail in self._wrong_summaries(row.partitions):
            yield FaultId.PARTITION_SUMMARY_WRONG, detail
        min_number, least = row.min_sequence_number or 0, self._least_number
        if least is not None and min_number > least:
            detail = f"min_sequence_number is {min_number}, but a live entry has sequence number {least}"
            yield FaultId.MIN_SEQUENCE_NUMBER_WRONG, detail

    def _wrong_summaries(self, summaries: tuple[FieldSummary, ...] | None) -> Iterator[str]:
        """A manifest without summaries is not wrong."""
        if summaries is None:
            return
        if len(summaries) != len(self._fields):
            yield f"it has {len(summaries)} partition summaries, but its spec has {len(self._fields)} fields"
            return
        for found, summary, field in zip(self._fields, summaries, self._partition.fields, strict=True):
            for problem in found.against(summary, field.type):
                yield f"partition field {field.name!r}: {problem}"

    def _add_up(self, batch: pa.RecordBatch, live: Mask, added: Mask) -> None:
        content, records = batch["content"].to_numpy(), batch["record_count"].to_numpy()
        sizes = batch["file_size_in_bytes"].to_numpy()
        own = pc.coalesce(batch["content_size_in_bytes"], batch["file_size_in_bytes"]).to_numpy(zero_copy_only=False)
        is_data, is_equality = content == FileContent.DATA, content == FileContent.EQUALITY_DELETES
        is_position = content == FileContent.POSITION_DELETES
        for name, mask in (("", live), ("added_", added)):
            self._sums[f"{name}data_files"] += int(np.count_nonzero(mask & is_data))
            self._sums[f"{name}records"] += _sum(records[mask & is_data])
            self._sums[f"{name}delete_files"] += int(np.count_nonzero(mask & ~is_data))
            self._sums[f"{name}position_deletes"] += _sum(records[mask & is_position])
            self._sums[f"{name}equality_deletes"] += _sum(records[mask & is_equality])
            self._sums[f"{name}bytes"] += _sum(sizes[mask])
            self._sums[f"{name}own_bytes"] += _sum(own[mask])

    def _sequence_numbers(self, rows: pa.RecordBatch) -> Iterator[WrongEntry]:
        limit = self._row.sequence_number or 0
        if self._known.format_version == 1 or limit == 0:
            return
        data, file = rows["sequence_number"], rows["file_sequence_number"]
        wrong = pc.or_kleene(pc.greater(data, file), pc.or_kleene(pc.greater(data, limit), pc.greater(file, limit)))
        for at in _where(wrong):
            numbers = f"data sequence number {data[at].as_py()}, file sequence number {file[at].as_py()}"
            yield FaultId.ENTRY_NUMBER_WRONG, at, f"{numbers}, manifest {limit}"

    def _row_ids(self, rows: pa.RecordBatch) -> Iterator[WrongEntry]:
        """Existing entries say their first row id; one that lacks it gets an id of this manifest's, above all from before."""
        since, first = self._known.row_ids_since, self._row.first_row_id
        if _FIRST_ROW_ID not in rows.schema.names or self._row.content is not ManifestContent.DATA:
            return
        ids = rows[_FIRST_ROW_ID]
        is_existing = pc.equal(rows["status"], int(Status.EXISTING))
        was_given = pc.greater_equal(rows["file_sequence_number"], since)
        for at in _where(pc.and_kleene(pc.and_kleene(is_existing, was_given), pc.greater_equal(ids, first))):
            detail = f"the entry exists without its first row id, and inherits {ids[at].as_py()}"
            yield FaultId.FIRST_ROW_ID_LOST, at, detail

    def _contradictions(self, rows: pa.RecordBatch) -> Iterator[WrongEntry]:
        content, formats = rows["content"].to_numpy(), pc.utf8_lower(rows["file_format"])
        is_puffin = _mask(pc.equal(formats, "puffin"))
        no_ids = _mask(pc.fill_null(pc.equal(pc.list_value_length(rows["equality_ids"]), 0), True))
        needed = ("referenced_data_file", "content_offset", "content_size_in_bytes")
        lacks = ~np.all([_mask(rows[name].is_valid()) for name in needed], axis=0)
        version, wrong = self._known.format_version, FaultId.ENTRY_CONTRADICTS_ITSELF
        is_too_early = (version < 3) & (self._row.content is ManifestContent.DELETES)
        rules: tuple[tuple[FaultId, Any, str], ...] = (
            (wrong, pc.less(rows["record_count"], 0), "record_count is {record_count}"),
            (wrong, pc.less_equal(rows["file_size_in_bytes"], 0), "file_size_in_bytes is {file_size_in_bytes}"),
            (wrong, (content == FileContent.EQUALITY_DELETES) & no_ids, "equality deletes without equality_ids"),
            (
                wrong,
                pc.invert(pc.is_in(formats, pa.array(_FORMATS))),
                "its format {file_format!r} is not one of the spec",
            ),
            (wrong, pc.less(rows["content_offset"], 0), "content_offset is {content_offset}"),
            (
                wrong,
                pc.less_equal(rows["content_size_in_bytes"], 0),
                "content_size_in_bytes is {content_size_in_bytes}",
            ),
            (wrong, is_puffin & lacks, "a deletion vector without its data file, offset or size"),
            (wrong, is_puffin & (content != FileContent.POSITION_DELETES), "a Puffin file that is no vector"),
            (
                FaultId.DELETE_OF_ANOTHER_VERSION,
                is_puffin & is_too_early,
                f"a deletion vector in a table of version {version}",
            ),
        )
        shown = rows.select(
            ["record_count", "file_size_in_bytes", "file_format", "content_offset", "content_size_in_bytes"]
        )
        for number, mask, detail in rules:
            for at in _where(mask):
                yield number, at, detail.format_map(shown.slice(at, 1).to_pylist()[0])

    def _unknown_ids(self, rows: pa.RecordBatch) -> Iterator[WrongEntry]:
        known, ids, orders = self._known, rows["equality_ids"], rows["sort_order_id"]
        unknown = sorted({*pc.unique(ids.flatten()).to_pylist()} - known.equality_ids - {None})
        for at in range(len(rows)) if unknown else ():
            if {*(ids[at].as_py() or ())} & {*unknown}:
                detail = f"equality_ids {ids[at].as_py()}: {unknown} are columns of no schema"
                yield FaultId.EQUALITY_IDS_UNKNOWN, at, detail
        strange = [one for one in pc.unique(orders).to_pylist() if one is not None and one not in known.sort_order_ids]
        for at in _where(pc.is_in(orders, pa.array(strange, orders.type))) if strange else ():
            detail = f"sort_order_id {orders[at].as_py()} is not one of the table's sort orders"
            yield FaultId.SORT_ORDER_UNKNOWN, at, detail


def _split_offsets(rows: pa.RecordBatch) -> Iterator[WrongEntry]:
    offsets, sizes = rows["split_offsets"], rows["file_size_in_bytes"].to_numpy()
    lengths = pc.fill_null(pc.list_value_length(offsets), 0).to_numpy(zero_copy_only=False)
    values = offsets.flatten().to_numpy(zero_copy_only=False)
    owners = np.repeat(np.arange(len(rows)), lengths)
    wrong = (values < 0) | (values >= sizes[owners])
    wrong[1:] |= (owners[1:] == owners[:-1]) & (values[1:] <= values[:-1])
    for at in np.unique(owners[wrong]).tolist():
        detail = f"split offsets {offsets[at].as_py()[:5]} of a file of {sizes[at]} bytes"
        yield FaultId.SPLIT_OFFSETS_WRONG, at, detail


def _mask(mask: Any) -> Mask:
    found: Mask = mask.to_numpy(zero_copy_only=False)
    return found


def _where(mask: Any) -> list[int]:
    """The rows for which something holds; null is no."""
    found: list[int] = np.flatnonzero(
        mask if isinstance(mask, np.ndarray) else _mask(pc.fill_null(mask, False))
    ).tolist()
    return found


def _sum(numbers: NDArray[np.int64]) -> int:
    """The sum, however large: the counts of a damaged manifest may exceed 64 bits."""
    if len(numbers) and int(np.abs(numbers.astype(np.float64)).max()) >= _MAX_SUMMED // len(numbers):
        return sum(numbers.tolist())
    return int(numbers.sum())


class _FieldValues:
    """What a summary of a partition field must hold."""

    def __init__(self) -> None:
        self._has_null = self._has_nan = False
        self._least: Any = None
        self._greatest: Any = None

    def add(self, value: Any) -> None:
        if value is None:
            self._has_null = True
        elif isinstance(value, float) and math.isnan(value):
            self._has_nan = True
        elif isinstance(value, UUID):
            # Engines order UUIDs in two ways; only what both agree on could be judged.
            return
        elif self._least is None:
            self._least = self._greatest = value
        else:
            self._least, self._greatest = min(self._least, value), max(self._greatest, value)

    def against(self, summary: FieldSummary, type_: Type) -> Iterator[str]:
        if self._has_null and not summary.contains_null:
            yield "contains_null is false, but a partition is null"
        if self._has_nan and summary.contains_nan is False:
            yield "contains_nan is false, but a partition is NaN"
        try:
            bounds = [
                None if bound is None else value_from_bytes(type_, bound)
                for bound in (summary.lower_bound, summary.upper_bound)
            ]
        except InvalidTableError as error:
            yield f"its bounds cannot be read ({error.message})"
            return
        except UnsupportedError:
            return
        lower, upper = bounds
        # Old writers took a NaN for a bound, and readers prune nothing by it.
        if self._least is None or any(isinstance(bound, float) and math.isnan(bound) for bound in bounds):
            return
        if lower is None or upper is None:
            yield "it has no bounds, and partitions that are not null"
        elif lower > self._least or upper < self._greatest:
            yield f"its bounds are {lower!r} and {upper!r}, the partitions {self._least!r} to {self._greatest!r}"


class ColumnTypes(msgspec.Struct, frozen=True, dict=True):
    """Columns of all schemas of a table by id, each by its newest type, but for those whose types contradict.

    The columns of position delete files are among them. `plain` are those in no list or map.
    """

    types: Mapping[int, PrimitiveType]
    plain: frozenset[int]

    @cached_property
    def judged(self) -> tuple[PrimitiveType, ...]:
        """The different types of columns whose bounds are looked at."""
        return tuple(dict.fromkeys(type_ for type_ in self.types.values() if is_judged(type_)))

    def kinds(self, ids: Ids) -> NDArray[np.intp]:
        """For each of some columns the place of its type in `judged`, or -1."""
        known, kinds = self._kinds
        if not len(known):
            return np.full(len(ids), -1, np.intp)
        places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[places] == ids, kinds[places], -1)

    @cached_property
    def _kinds(self) -> tuple[Ids, NDArray[np.intp]]:
        places = {type_: place for place, type_ in enumerate(self.judged)}
        found = sorted((id_, places[type_]) for id_, type_ in self.types.items() if type_ in places)
        return np.array([id_ for id_, _ in found], np.int64), np.array([place for _, place in found], np.intp)

    @cached_property
    def plain_ids(self) -> Ids:
        """The same as `plain`, in order."""
        return np.array(sorted(self.plain), np.int64)


def column_types(metadata: TableMetadata) -> ColumnTypes:
    """The columns of which entries may have metrics."""
    types: dict[int, PrimitiveType] = {}
    names: defaultdict[int, set[str]] = defaultdict(set)
    plain: set[int] = set()
    for schema in sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id)):
        for field_id, type_, is_plain in _leaves(StructType(schema.fields), is_plain=True):
            types[field_id] = type_
            names[field_id].add(type_.name)
            if is_plain:
                plain.add(field_id)
    # A table that was replaced has a column of another type under the id of an old one: nobody knows whose bounds are whose.
    known = {
        i: type_
        for i, type_ in types.items()
        if any(names[i] <= promoted for promoted in _PROMOTED) or len(names[i]) == 1
    }
    known |= {DELETE_FILE_PATH.field_id: STRING, DELETE_FILE_POS.field_id: LONG}
    return ColumnTypes(known, frozenset({*plain, DELETE_FILE_PATH.field_id, DELETE_FILE_POS.field_id}))


def _leaves(type_: Type, *, is_plain: bool) -> Iterator[tuple[int, PrimitiveType, bool]]:
    for field in child_fields(type_):
        below = is_plain and not isinstance(type_, ListType | MapType)
        if isinstance(field.type, PrimitiveType):
            yield field.field_id, field.type, below
        else:
            yield from _leaves(field.type, is_plain=below)


def is_judged(type_: PrimitiveType) -> bool:
    """Bounds of other types (variant, geometry, unknown) have forms of their own."""
    return type_.name in _JUDGED


def check_metrics(batch: pa.RecordBatch, known: ColumnTypes) -> Iterator[WrongEntry]:
    """What is wrong with the metrics of entries; each entry once for each class.

    All columns of one type are looked at together: a manifest of a wide table has few entries, and many columns.
    """
    values, nulls, nans, lower, upper = (_Pairs(batch[name]) for name in METRIC_COLUMNS)
    wrong_counts: list[tuple[_Pairs, Mask]] = []
    value_counts = values.values.to_numpy()
    for pairs in (nulls, nans, values):
        counts, places = pairs.values.to_numpy(), values.places_of(pairs)
        over = np.zeros(len(counts), np.bool_)
        there = np.flatnonzero(places >= 0)
        over[there] = counts[there] > value_counts[places[there]]
        wrong_counts.append((pairs, (over | (counts < 0)) & np.isin(pairs.keys, known.plain_ids)))
    undecodable: list[tuple[_Pairs, Mask]] = []
    crossed: list[tuple[_Pairs, Mask]] = []
    kinds, upper_kinds = known.kinds(lower.keys), known.kinds(upper.keys)
    for kind in np.union1d(kinds[kinds >= 0], upper_kinds[upper_kinds >= 0]).tolist():
        type_ = known.judged[kind]
        lows, highs = lower.where(kinds == kind), upper.where(upper_kinds == kind)
        low_values, high_values = (decode_bounds(type_, some.values) for some in (lows, highs))
        undecodable += [(lows, _mask(low_values.is_null())), (highs, _mask(high_values.is_null()))]
        if type_.name != "uuid":
            places = highs.places_of(lows)
            others = high_values.take(pa.array(places, pa.int64(), mask=places < 0))
            above = _mask(pc.fill_null(pc.greater(low_values, others), False))
            crossed.append((lows, above & np.isin(lows.keys, known.plain_ids)))
    for number, wrong, detail in (
        (FaultId.METRIC_COUNTS_CONTRADICT, wrong_counts, "counts of {} are negative, or above the count of values"),
        (FaultId.BOUND_UNDECODABLE, undecodable, "bounds of {} are not values of the type"),
        (FaultId.BOUNDS_CROSSED, crossed, "the lower bound of {} is above the upper bound"),
    ):
        for row, ids in _columns_by_row(wrong):
            columns = f"column{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"
            yield number, row, detail.format(columns)


class _Pairs:
    """The pairs of a column of maps, each with the row that has it.

    Attributes:
        rows, keys, values: of each pair.
    """

    def __init__(self, column: pa.MapArray) -> None:
        # A null map may cover pairs, which are not there.
        there = np.flatnonzero(_mask(column.is_valid()))
        flat = column.take(pa.array(there))
        offsets = flat.offsets.to_numpy()
        start, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        self.rows = np.repeat(there, np.diff(offsets))
        self.keys: Ids = flat.keys.slice(start, count).to_numpy().astype(np.int64)
        self.values = flat.items.slice(start, count)

    def where(self, mask: Mask) -> "_Pairs":
        """Some of the pairs."""
        found = copy(self)
        found.rows, found.keys = self.rows[mask], self.keys[mask]
        found.values = self.values.filter(pa.array(mask, pa.bool_()))
        return found

    def places_of(self, others: "_Pairs") -> NDArray[np.int64]:
        """Where the pair with the row and key of each of some others is; -1 where there is none."""
        codes, asked = ((pairs.rows.astype(np.int64) << 32) | (pairs.keys & 0xFFFFFFFF) for pairs in (self, others))
        if not len(codes):
            return np.full(len(asked), -1, np.int64)
        order = np.argsort(codes, kind="stable")
        found = order[np.minimum(np.searchsorted(codes, asked, sorter=order), len(codes) - 1)]
        return np.where(codes[found] == asked, found, -1)


def _columns_by_row(several: Iterable[tuple[_Pairs, Mask]]) -> Iterator[tuple[int, list[int]]]:
    """The rows in order, each with its columns of which something is wrong."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for pairs, mask in several:
        for row, key in zip(pairs.rows[mask].tolist(), pairs.keys[mask].tolist(), strict=True):
            found[row].add(key)
    for row in sorted(found):
        yield row, sorted(found[row])
