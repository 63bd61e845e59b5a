"""What entries say of columns, held against itself: bounds that are values and not crossed, counts that fit one another.

The partitions of a manifest's live entries, against the summaries in the manifest list.

Why the entries of a manifest cannot be read: what its records store, before anything is inherited.

One manifest: its file against its rows in manifest lists, and its entries against what the spec says of entries.

Each manifest once, on the driver in threads or in Spark tasks; what comes back are faults, true rows and sums.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property, lru_cache
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
from icekeep.maintenance.check.lists import SUMS, CheckedTable, Counted, Listed, ReadLists, RowsOfManifest
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.entries import ReadBy, chosen_reading, threads_count
from icekeep.planning.manifests import read_manifests
from icekeep.planning.partition_columns import distinct_partitions
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
Tell = Callable[[int, int, str], None]
"""Takes the number of a class, the row of an entry, and what is wrong with it."""

_COUNTS = ("value_counts", "null_value_counts", "nan_value_counts")
METRIC_COLUMNS = (*_COUNTS, "lower_bounds", "upper_bounds")


_PROMOTED = (
    {"int", "long"},
    {"float", "double"},
    {"date", "timestamp"},
    {"date", "timestamp_ns"},
)
"""Types that a column may have one after the other (spec, "Schema Evolution")."""


class ColumnTypes(msgspec.Struct, frozen=True, dict=True):
    """Columns of all schemas of a table by id, each by its newest type, but for those whose types contradict.

    With them the columns of position delete files. `plain` are those that lie in no list or map.
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

    def are_plain(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of some columns lie in no list or map."""
        return np.isin(ids, self._plain)

    @cached_property
    def _kinds(self) -> tuple[Ids, NDArray[np.intp]]:
        places = {type_: place for place, type_ in enumerate(self.judged)}
        found = sorted((id_, places[type_]) for id_, type_ in self.types.items() if type_ in places)
        return np.array([id_ for id_, _ in found], np.int64), np.array([place for _, place in found], np.intp)

    @cached_property
    def _plain(self) -> Ids:
        return np.array(sorted(self.plain), np.int64)


def column_types(metadata: TableMetadata) -> ColumnTypes:
    """The columns that entries may tell of."""
    types: dict[int, PrimitiveType] = {}
    names: dict[int, set[str]] = {}
    plain: set[int] = set()
    for schema in sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id)):
        for field_id, type_, is_plain in _leaves(StructType(schema.fields), is_plain=True):
            types[field_id] = type_
            names.setdefault(field_id, set()).add(type_.name)
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


def check_metrics(batch: pa.RecordBatch, known: ColumnTypes, tell: Tell) -> None:
    """Look at the metrics of entries; each entry that is wrong is told once for each class.

    All columns of one type are looked at together: a manifest of a wide table has few entries, and many columns.
    """
    _check_counts(batch, known, tell)
    lower, upper = (_Items(batch[name]) for name in ("lower_bounds", "upper_bounds"))
    kinds, upper_kinds = known.kinds(lower.keys), known.kinds(upper.keys)
    undecodable, crossed = _Wrong(), _Wrong()
    for kind in np.union1d(kinds, upper_kinds).tolist():
        if kind < 0:
            continue
        type_ = known.judged[kind]
        of_kind, upper_of_kind = lower.where(kinds == kind), upper.where(upper_kinds == kind)
        values, upper_values = (decode_bounds(type_, some.values) for some in (of_kind, upper_of_kind))
        for some, decoded in ((of_kind, values), (upper_of_kind, upper_values)):
            undecodable.add(some, decoded.is_null().to_numpy(zero_copy_only=False))
        if type_.name != "uuid":
            crossed.add(of_kind, _crossed(of_kind, values, upper_of_kind, upper_values) & known.are_plain(of_kind.keys))
    for row, ids in undecodable.by_row():
        tell(FaultId.BOUND_UNDECODABLE, row, f"bounds of {_columns(ids)} are no values of the type")
    for row, ids in crossed.by_row():
        tell(FaultId.BOUNDS_CROSSED, row, f"the lower bound of {_columns(ids)} is above the upper bound")


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


_JUDGED = frozenset((*INTEGER_WIDTHS, "boolean", "float", "double", "decimal", "string", "uuid", "fixed", "binary"))


class _Items:
    """The pairs of a column of maps, each with the row that has it.

    Attributes:
        rows, keys, values: of each pair.
    """

    def __init__(self, column: pa.MapArray) -> None:
        # A null map may cover pairs, which are not there.
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        flat = column.take(pa.array(there))
        offsets = flat.offsets.to_numpy()
        start, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        self.rows = np.repeat(there, np.diff(offsets))
        self.keys: Ids = flat.keys.slice(start, count).to_numpy().astype(np.int64)
        self.values = flat.items.slice(start, count)

    def where(self, mask: NDArray[np.bool_]) -> "_Items":
        """Some of the pairs."""
        found = copy(self)
        found.rows, found.keys = self.rows[mask], self.keys[mask]
        found.values = self.values.filter(pa.array(mask, pa.bool_()))
        return found

    def places_of(self, others: "_Items") -> NDArray[np.int64]:
        """Where the pair with the row and key of each of some others is; -1 where there is none."""
        codes, asked = self._codes, others._codes
        if not len(codes):
            return np.full(len(asked), -1, np.int64)
        order = np.argsort(codes, kind="stable")
        found = order[np.minimum(np.searchsorted(codes, asked, sorter=order), len(codes) - 1)]
        return np.where(codes[found] == asked, found, -1)

    @property
    def _codes(self) -> NDArray[np.int64]:
        return (self.rows.astype(np.int64) << 32) | (self.keys & 0xFFFFFFFF)


class _Wrong:
    """Columns of which rows tell something wrong."""

    def __init__(self) -> None:
        self._found: dict[int, set[int]] = {}

    def add(self, items: _Items, mask: NDArray[np.bool_]) -> None:
        for row, key in zip(items.rows[mask].tolist(), items.keys[mask].tolist(), strict=True):
            self._found.setdefault(row, set()).add(key)

    def by_row(self) -> Iterator[tuple[int, list[int]]]:
        """The rows in order, each with its columns."""
        for row in sorted(self._found):
            yield row, sorted(self._found[row])


def _crossed(lower: _Items, values: pa.Array, upper: _Items, upper_values: pa.Array) -> NDArray[np.bool_]:
    """Which lower bounds are above the upper bound of their row and column."""
    places = upper.places_of(lower)
    others = upper_values.take(pa.array(places, pa.int64(), mask=places < 0))
    above: NDArray[np.bool_] = pc.fill_null(pc.greater(values, others), False).to_numpy(zero_copy_only=False)
    return above


def _check_counts(batch: pa.RecordBatch, known: ColumnTypes, tell: Tell) -> None:
    values, nulls, nans = (_Items(batch[name]) for name in _COUNTS)
    value_counts, wrong = values.values.to_numpy(), _Wrong()
    for items in (nulls, nans, values):
        counts, places = items.values.to_numpy(), values.places_of(items)
        over = np.zeros(len(counts), np.bool_)
        there = np.flatnonzero(places >= 0)
        over[there] = counts[there] > value_counts[places[there]]
        wrong.add(items, (over | (counts < 0)) & known.are_plain(items.keys))
    for row, ids in wrong.by_row():
        tell(
            FaultId.METRIC_COUNTS_CONTRADICT,
            row,
            f"counts of {_columns(ids)} are negative, or above the count of values",
        )


def _columns(ids: Sequence[int]) -> str:
    return f"column{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


class Partitions:
    """Takes partition tuples, and keeps of each field what a summary must hold."""

    def __init__(self, partition: StructType) -> None:
        self._partition = partition
        self._fields = [_Field() for _ in partition.fields]

    def add(self, partitions: pa.StructArray) -> None:
        """Take in the partitions of some live entries."""
        if not self._fields:
            return
        tuples, _ = distinct_partitions(partitions)
        for values in tuples:
            for field, value in zip(self._fields, values, strict=True):
                field.add(value)

    def against(self, summaries: tuple[FieldSummary, ...] | None) -> Iterator[str]:
        """What is wrong in the summaries of a list; none at all are not wrong."""
        if summaries is None:
            return
        if len(summaries) != len(self._fields):
            yield f"it has {len(summaries)} partition summaries, its spec {len(self._fields)} fields"
            return
        for found, summary, field in zip(self._fields, summaries, self._partition.fields, strict=True):
            for problem in found.against(summary, field.type):
                yield f"partition field {field.name!r}: {problem}"


class _Field:
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
            yield "contains_null is false, and a partition is null"
        if self._has_nan and summary.contains_nan is False:
            yield "contains_nan is false, and a partition is NaN"
        try:
            lower, upper = (
                None if bound is None else value_from_bytes(type_, bound)
                for bound in (summary.lower_bound, summary.upper_bound)
            )
        except InvalidTableError as error:
            yield f"its bounds cannot be read ({error.message})"
            return
        except UnsupportedError:
            return
        if self._least is None:
            return
        if lower is None or upper is None:
            yield "it has no bounds, and partitions that are not null"
        elif _is_nan(lower) or _is_nan(upper):
            # Old writers took a NaN for a bound, and readers prune nothing by it.
            return
        elif lower > self._least or upper < self._greatest:
            yield f"its bounds are {lower!r} and {upper!r}, the partitions {self._least!r} to {self._greatest!r}"


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


_STATUS, _SEQUENCE_NUMBER, _FILE_PATH, _CONTENT = 0, 3, 100, 134
"""Field ids of `manifest_entry` and `data_file`."""

RawFault = tuple[int, str, dict[str, Any]]


def raw_faults(data: bytes, row: ManifestFile, partition: StructType) -> list[RawFault]:
    """What is wrong with a manifest that does not decode, as far as it is known: class, detail, facts; else nothing."""
    try:
        header = read_header(data, row.manifest_path)
        schema = msgspec.json.decode(header.metadata["avro.schema"])
        file_name, file_schema = record_field(schema, DATA_FILE_FIELD_ID)
        stored = stored_fields(record_field(file_schema, PARTITION_FIELD_ID)[1])
        missing = [field.name for field in partition.fields if field.field_id not in stored]
        if missing:
            return [
                (
                    FaultId.PARTITION_VALUE_WRONG,
                    f"its partitions lack {', '.join(map(repr, missing))} of spec {row.partition_spec_id}",
                    {},
                )
            ]
        entry_names = {number: field["name"] for number, field in stored_fields(schema).items()}
        file_names = {number: field["name"] for number, field in stored_fields(file_schema).items()}
        found: list[RawFault] = []
        for record in read_records(data, header, row.manifest_path):
            found += _of_record(record, record[file_name], entry_names, file_names, row)
    except (InvalidTableError, KeyError, TypeError, ValueError, msgspec.DecodeError):
        return []
    return found


def _of_record(
    record: Any, file: Any, entry_names: dict[int, str], file_names: dict[int, str], row: ManifestFile
) -> list[RawFault]:
    path = file[file_names[_FILE_PATH]]
    facts = {"file_path": path, "spec_id": row.partition_spec_id}
    status, content = record[entry_names[_STATUS]], file.get(file_names.get(_CONTENT, ""), FileContent.DATA) or 0
    found: list[RawFault] = []
    if status not in [*Status] or content not in [*FileContent]:
        # Told by the decoder's own words.
        return found
    if (content == FileContent.DATA) is not (row.content is ManifestContent.DATA):
        kind = "data" if content == FileContent.DATA else "deletes"
        found.append(
            (
                FaultId.MANIFEST_CONTENT_WRONG,
                f"the entry of {path!r} is of {kind}, the manifest of {row.content.name.lower()}",
                facts,
            )
        )
    numbered = entry_names.get(_SEQUENCE_NUMBER)
    is_null = numbered is None or record[numbered] is None
    if status != Status.ADDED and row.sequence_number and is_null:
        found.append(
            (FaultId.ENTRY_NUMBER_MISSING, f"the entry of {path!r} is not added, and has no sequence number", facts)
        )
    return found


_COLUMNS = frozenset(
    {
        "status", "snapshot_id", "sequence_number", "file_sequence_number", "content", "file_path", "file_format", "partition",
        "record_count", "file_size_in_bytes", *METRIC_COLUMNS, "split_offsets", "equality_ids", "sort_order_id",
        "referenced_data_file", "content_offset", "content_size_in_bytes",
    }
)  # fmt: skip


_FIRST_ROW_ID = "first_row_id"
_MAX_SUMMED = 1 << 62
_FORMATS = ("parquet", "orc", "avro", "puffin")


class TableDefinitions(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the table, and goes to each task.

    Attributes:
        partitions: the partition type of each spec.
        equality_ids: ids of the columns of all schemas.
        whole: of which classes each fault is kept.
        row_ids_since: the least sequence number whose snapshot is known to have given row ids; `None` if none has.
    """

    storage: Storage
    format_version: int
    partitions: Mapping[int, StructType]
    columns: ColumnTypes
    equality_ids: frozenset[int]
    sort_order_ids: frozenset[int]
    decoder: ManifestDecoder
    whole: frozenset[int]
    row_ids_since: int | None = None


class ManifestCheck(msgspec.Struct, frozen=True):
    """A manifest that could be read: its row as the file has it, and what its entries come to."""

    row: ManifestFile
    counted: Counted


def check_manifest(rows: RowsOfManifest, known: TableDefinitions, tally: Tally) -> ManifestCheck | None:
    """Look at a manifest; `None` where it cannot be read, which the tally says."""
    first, since = rows.rows[0]
    location = first.manifest_path
    if any(row.key_metadata is not None for row, _ in rows.rows):
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
    is_numbered = known.row_ids_since is not None and row.first_row_id is not None
    # Where counts are wrong, row ids cannot be told, and all else still can.
    for columns in (_COLUMNS | {_FIRST_ROW_ID}, _COLUMNS) if is_numbered else (_COLUMNS,):
        told = Tally(known.whole)
        look = _Look(rows, row, known, told)
        look.rows_against(header, len(data))
        try:
            for batch in read_manifests(
                [row], known.partitions[row.partition_spec_id], known.storage, columns, decoder=known.decoder
            ):
                look.add(batch)
            found = look.result()
        except (InvalidTableError, UnsupportedError) as error:
            problem = first_line(error)
            continue
        tally.merge(told)
        return found
    tally.merge(told)
    faults = raw_faults(data, row, known.partitions[row.partition_spec_id])
    for number, detail, facts in faults or [(FaultId.MANIFEST_UNREADABLE, problem, {})]:
        tally.add(_fault(number, first, since, detail, **facts))
    return None


def _header_problems(avro: AvroHeader) -> Sequence[str]:
    """What the header of a manifest says wrongly of itself, or not at all; it could be read."""
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
        problems.append("a 'schema' that is none")
    try:
        fields = None if spec_json is None else partition_fields_from_json(msgspec.json.decode(spec_json))
    except (msgspec.DecodeError, InvalidTableError):
        problems.append("a 'partition-spec' that is no list of partition fields")
    stored = _partition_fields_count(stored_json)
    if None not in (fields, stored) and stored != len(fields or ()):
        problems.append(f"a 'partition-spec' of {len(fields or ())} fields, and partitions of {stored}")
    for field in fields or ():
        if schema is not None and not isinstance(field.transform, Void) and field.source_id not in schema.fields_by_id:
            problems.append(
                f"a 'schema' without column {field.source_id}, the source of partition field {field.name!r}"
            )
    return tuple(problems)


def _partition_fields_count(stored_json: bytes) -> int | None:
    """How many fields the partitions in a manifest have; `None` where its entries cannot be read, which is told then."""
    try:
        of_files = record_field(msgspec.json.decode(stored_json), DATA_FILE_FIELD_ID)[1]
        return len(stored_fields(record_field(of_files, PARTITION_FIELD_ID)[1]))
    except ValueError:
        return None


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


COUNT_NAMES = (
    "added_files_count", "existing_files_count", "deleted_files_count",
    "added_rows_count", "existing_rows_count", "deleted_rows_count",
)  # fmt: skip


class _Look:
    """Takes the entries of a manifest batch by batch."""

    def __init__(self, rows: RowsOfManifest, row: ManifestFile, known: TableDefinitions, tally: Tally) -> None:
        self._rows, self._row, self._known, self._tally = rows, row, known, tally
        self._since = rows.rows[0][1]
        self._counts = [[0, 0] for _ in Status]
        self._sums: dict[str, int] = dict.fromkeys(SUMS, 0)
        self._partitions = Partitions(known.partitions[row.partition_spec_id])
        self._least_number: int | None = None

    def rows_against(self, header: ManifestHeader, size_bytes: int) -> None:
        """Hold what lists say of the file against it."""
        for row, since in self._rows.rows:
            if row.manifest_length != size_bytes:
                self._tell_row(
                    FaultId.MANIFEST_LENGTH_WRONG,
                    row,
                    since,
                    f"it has {size_bytes} bytes, its manifest list says {row.manifest_length}",
                )
            if header.content is not None and row.content is not header.content:
                said, is_ = row.content.name.lower(), header.content.name.lower()
                self._tell_row(
                    FaultId.MANIFEST_CONTENT_WRONG, row, since, f"it holds {is_}, its manifest list says {said}"
                )
            if header.partition_spec_id not in (None, row.partition_spec_id):
                self._tell_row(
                    FaultId.MANIFEST_SPEC_MISSING,
                    row,
                    since,
                    f"it is of partition spec {header.partition_spec_id}, its manifest list says {row.partition_spec_id}",
                )

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at some entries."""
        status, records = batch["status"].to_numpy(), batch["record_count"].to_numpy()
        for one in Status:
            mine = status == one
            self._counts[one][0] += int(np.count_nonzero(mine))
            self._counts[one][1] += _sum(records[mine])
        live = status != Status.DELETED
        self._count_sums(batch, live, status == Status.ADDED)
        rows = batch.filter(pa.array(live))
        numbers = rows["sequence_number"].drop_null()
        if len(numbers):
            least = pc.min(numbers).as_py()
            self._least_number = least if self._least_number is None else min(self._least_number, least)
        self._partitions.add(rows["partition"])
        self._check_numbers(rows)
        self._check_row_ids(rows)
        self._check_files(rows)
        self._check_offsets(rows)
        check_metrics(rows, self._known.columns, lambda number, at, detail: self._tell(number, rows, at, detail))

    def result(self) -> ManifestCheck:
        """After the last entry: counts and summaries against what lists say."""
        files, records = ([counts[i] for counts in self._counts] for i in (0, 1))
        kinds = (Status.ADDED, Status.EXISTING, Status.DELETED)
        counted = (*(files[kind] for kind in kinds), *(records[kind] for kind in kinds))
        found = dict(zip(COUNT_NAMES, counted, strict=True))
        for row, since in self._rows.rows:
            for names, number in (
                (COUNT_NAMES[:3], FaultId.FILE_COUNTS_WRONG),
                (COUNT_NAMES[3:], FaultId.ROW_COUNTS_WRONG),
            ):
                said = {name: getattr(row, name) for name in names}
                wrong = [n for n in names if said[n] not in (None, found[n])]
                if wrong:
                    detail = ", ".join(f"{name} is {said[name]}, counted are {found[name]}" for name in wrong)
                    self._tell_row(number, row, since, detail)
            for detail in self._partitions.against(row.partitions):
                self._tell_row(FaultId.PARTITION_SUMMARY_WRONG, row, since, detail)
            self._check_least(row, since)
        min_number = self._row.min_sequence_number or 0
        if self._least_number is not None:
            min_number = min(min_number, self._least_number)
        corrected = msgspec.structs.replace(self._row, min_sequence_number=min_number, partitions=None, **found)
        return ManifestCheck(corrected, Counted(**self._sums))

    def _check_least(self, row: ManifestFile, since: int) -> None:
        said = row.min_sequence_number or 0
        if self._least_number is not None and said > self._least_number:
            self._tell_row(
                FaultId.MIN_SEQUENCE_NUMBER_WRONG,
                row,
                since,
                f"min_sequence_number is {said}, a live entry has sequence number {self._least_number}",
            )

    def _count_sums(self, batch: pa.RecordBatch, live: NDArray[np.bool_], added: NDArray[np.bool_]) -> None:
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

    def _check_numbers(self, rows: pa.RecordBatch) -> None:
        limit = self._row.sequence_number or 0
        if self._known.format_version == 1 or limit == 0:
            return
        data, file = rows["sequence_number"], rows["file_sequence_number"]
        wrong = pc.or_kleene(pc.greater(data, file), pc.or_kleene(pc.greater(data, limit), pc.greater(file, limit)))
        for at in _where(wrong):
            self._tell(
                FaultId.ENTRY_NUMBER_WRONG,
                rows,
                at,
                f"data sequence number {data[at].as_py()}, file sequence number {file[at].as_py()}, manifest {limit}",
            )

    def _check_row_ids(self, rows: pa.RecordBatch) -> None:
        """Existing entries say their first row id; one that lacks it gets an id of this manifest's, above all from before."""
        since, first = self._known.row_ids_since, self._row.first_row_id
        if _FIRST_ROW_ID not in rows.schema.names or self._row.content is not ManifestContent.DATA:
            return
        ids = rows[_FIRST_ROW_ID]
        is_existing = pc.equal(rows["status"], int(Status.EXISTING))
        was_given = pc.greater_equal(rows["file_sequence_number"], since)
        for at in _where(pc.and_kleene(pc.and_kleene(is_existing, was_given), pc.greater_equal(ids, first))):
            self._tell(
                FaultId.FIRST_ROW_ID_LOST,
                rows,
                at,
                f"the entry exists without its first row id, and inherits {ids[at].as_py()}",
            )

    def _check_files(self, rows: pa.RecordBatch) -> None:
        content, is_vector = rows["content"].to_numpy(), _is_puffin(rows)
        deletes = self._row.content is ManifestContent.DELETES
        version = self._known.format_version
        records, sizes, formats = rows["record_count"], rows["file_size_in_bytes"], rows["file_format"]
        offsets, lengths = rows["content_offset"], rows["content_size_in_bytes"]
        unknown = pc.invert(pc.is_in(pc.utf8_lower(formats), pa.array(_FORMATS)))
        ids = rows["equality_ids"]
        no_ids = pc.fill_null(pc.equal(pc.list_value_length(ids), 0), True).to_numpy(zero_copy_only=False)
        lacks = ~_all_valid(rows, "referenced_data_file", "content_offset", "content_size_in_bytes")
        problems: tuple[tuple[int, Any, Callable[[int], str]], ...] = (
            (
                FaultId.ENTRY_CONTRADICTS_ITSELF,
                pc.less(records, 0),
                lambda at: f"record_count is {records[at].as_py()}",
            ),
            (
                FaultId.ENTRY_CONTRADICTS_ITSELF,
                pc.less_equal(sizes, 0),
                lambda at: f"file_size_in_bytes is {sizes[at].as_py()}",
            ),
            (
                FaultId.ENTRY_CONTRADICTS_ITSELF,
                (content == FileContent.EQUALITY_DELETES) & no_ids,
                lambda _: "equality deletes without equality_ids",
            ),
            (
                FaultId.ENTRY_CONTRADICTS_ITSELF,
                unknown,
                lambda at: f"its format {formats[at].as_py()!r} is none of the spec",
            ),
            (
                FaultId.ENTRY_CONTRADICTS_ITSELF,
                pc.less(offsets, 0),
                lambda at: f"content_offset is {offsets[at].as_py()}",
            ),
            (
                FaultId.ENTRY_CONTRADICTS_ITSELF,
                pc.less_equal(lengths, 0),
                lambda at: f"content_size_in_bytes is {lengths[at].as_py()}",
            ),
            (
                FaultId.ENTRY_CONTRADICTS_ITSELF,
                is_vector & lacks,
                lambda _: "a deletion vector without its data file, offset or size",
            ),
            (
                FaultId.ENTRY_CONTRADICTS_ITSELF,
                is_vector & (content != FileContent.POSITION_DELETES),
                lambda _: "a Puffin file that is no vector",
            ),
            (
                FaultId.DELETE_OF_ANOTHER_VERSION,
                is_vector & deletes & (version < 3),
                lambda _: f"a deletion vector in a table of version {version}",
            ),
        )
        for number, mask, detail in problems:
            for at in _where(mask):
                self._tell(number, rows, at, detail(at))
        self._check_ids(rows)

    def _check_ids(self, rows: pa.RecordBatch) -> None:
        known, ids = self._known, rows["equality_ids"]
        unknown = sorted({*pc.unique(ids.flatten()).to_pylist()} - known.equality_ids - {None})
        if unknown:
            for at in range(len(rows)):
                if {*(ids[at].as_py() or ())} & {*unknown}:
                    self._tell(
                        FaultId.EQUALITY_IDS_UNKNOWN,
                        rows,
                        at,
                        f"equality_ids {ids[at].as_py()}: {unknown} are columns of no schema",
                    )
        orders = rows["sort_order_id"]
        strange = [one for one in pc.unique(orders).to_pylist() if one is not None and one not in known.sort_order_ids]
        for at in _where(pc.is_in(orders, pa.array(strange, orders.type))) if strange else ():
            self._tell(
                FaultId.SORT_ORDER_UNKNOWN,
                rows,
                at,
                f"sort_order_id {orders[at].as_py()} is none of the table's sort orders",
            )

    def _check_offsets(self, rows: pa.RecordBatch) -> None:
        offsets, sizes = rows["split_offsets"], rows["file_size_in_bytes"].to_numpy()
        lengths = pc.fill_null(pc.list_value_length(offsets), 0).to_numpy(zero_copy_only=False)
        values = offsets.flatten().to_numpy(zero_copy_only=False)
        owners = np.repeat(np.arange(len(rows)), lengths)
        wrong = (values < 0) | (values >= sizes[owners])
        wrong[1:] |= (owners[1:] == owners[:-1]) & (values[1:] <= values[:-1])
        for at in np.unique(owners[wrong]).tolist():
            self._tell(
                FaultId.SPLIT_OFFSETS_WRONG,
                rows,
                at,
                f"split offsets {offsets[at].as_py()[:5]} of a file of {sizes[at]} bytes",
            )

    def _tell(self, number: int, rows: pa.RecordBatch, at: int, detail: str) -> None:
        facts = {
            "manifest": self._row.manifest_path,
            "file_path": rows["file_path"][at].as_py(),
            "content_offset": rows["content_offset"][at].as_py(),
            "spec_id": self._row.partition_spec_id,
        }
        self._tally.add(
            Fault(number=number, where=facts["file_path"], detail=detail, snapshot_id=self._since, facts=facts)
        )

    def _tell_row(self, number: int, row: ManifestFile, since: int, detail: str) -> None:
        self._tally.add(_fault(number, row, since, detail))


def _fault(number: int, row: ManifestFile, since: int, detail: str, **facts: Any) -> Fault:
    return Fault(
        number=number,
        where=row.manifest_path,
        detail=detail,
        snapshot_id=since,
        facts={"manifest": row.manifest_path, **facts},
    )


def _where(mask: Any) -> Iterable[int]:
    """The rows for which something holds; null is no."""
    if not isinstance(mask, np.ndarray):
        mask = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    found: Iterator[int] = iter(np.flatnonzero(mask).tolist())
    return found


def _sum(numbers: NDArray[np.int64]) -> int:
    """The sum, however large: what a damaged manifest counts may be more than 64 bits hold."""
    if len(numbers) and int(np.abs(numbers.astype(np.float64)).max()) >= _MAX_SUMMED // len(numbers):
        return sum(numbers.tolist())
    return int(numbers.sum())


def _is_puffin(rows: pa.RecordBatch) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.equal(pc.utf8_lower(rows["file_format"]), "puffin").to_numpy(zero_copy_only=False)
    return found


def _all_valid(rows: pa.RecordBatch, *names: str) -> NDArray[np.bool_]:
    masks = [rows[name].is_valid().to_numpy(zero_copy_only=False) for name in names]
    found: NDArray[np.bool_] = np.all(masks, axis=0)
    return found


_CHUNK_BYTES = 5 * MIB


class CheckedManifests(msgspec.Struct, frozen=True):
    """The manifests that could be read, by true rows, with the sums of each."""

    listed: Listed
    counted: tuple[Counted, ...]


def check_manifests(subject: CheckedTable, lists: ReadLists) -> CheckedManifests:
    """Look at each manifest; faults go to the subject's tally."""
    metadata = subject.table.metadata
    reading = chosen_reading(lists.listed.manifests, limits_of(subject.spark).folded_entries_count)
    known = TableDefinitions(
        storage=subject.table.storage,
        format_version=metadata.format_version,
        partitions=_partition_types(metadata),
        columns=column_types(metadata),
        equality_ids=frozenset(field_id for schema in metadata.schemas for field_id in schema.fields_by_id),
        sort_order_ids=frozenset({0, *(order.order_id for order in metadata.sort_orders)}),
        decoder=reading.decoder,
        whole=subject.tally.whole,
        row_ids_since=min((s.sequence_number for s in metadata.snapshots if s.first_row_id is not None), default=None),
    )
    session = None if reading.by is ReadBy.DRIVER else started(subject.spark)
    numbered = [*enumerate(lists.rows)]

    def size_of(one: tuple[int, RowsOfManifest]) -> int:
        return max(1, one[1].rows[0][0].manifest_length)

    if session is None:
        some = [*map(tuple, packed(numbered, (size_of, _CHUNK_BYTES)))]
    else:
        count = tasks_count(session, sum(map(size_of, numbered)), MANIFEST_BYTES)
        some = [*map(tuple, balanced(numbered, size_of, min(count, max(1, len(numbered)))))]
    threads = threads_count(manifest.manifest_path for manifest in lists.listed.manifests)
    checked: dict[int, ManifestCheck] = {}
    for part, tally in all_results(
        run_tasks(session, some, _checked, known, step="checking manifests", threads=threads)
    ):
        checked.update(part)
        subject.tally.merge(tally)
    return _renumbered(subject, lists, checked)


def _partition_types(metadata: TableMetadata) -> dict[int, StructType]:
    """Those of the specs whose source columns some schema has; what is wrong with the others is told with the metadata."""
    found: dict[int, StructType] = {}
    for spec_id in metadata.specs_by_id:
        with suppress(InvalidTableError):
            found[spec_id] = metadata.partition_type(spec_id)
    return found


def _checked(
    some: Sequence[tuple[int, RowsOfManifest]], known: TableDefinitions
) -> tuple[dict[int, ManifestCheck], Tally]:
    tally = Tally(known.whole)
    found = {number: check_manifest(rows, known, tally) for number, rows in some}
    return {number: one for number, one in found.items() if one is not None}, tally


def _renumbered(subject: CheckedTable, lists: ReadLists, checked: dict[int, ManifestCheck]) -> CheckedManifests:
    """The manifests that were read, with numbers of their own."""
    listed, unread = lists.listed, {*lists.listed.unread}
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
        subject.tally.gap(f"snapshot {snapshot_id}", "not all of its manifests were read")
    for snapshot in subject.snapshots:
        if snapshot.snapshot_id not in listed.members:
            subject.tally.gap(f"snapshot {snapshot.snapshot_id}", "its manifest list was not read")
    return CheckedManifests(
        Listed(
            manifests=tuple(checked[number].row for number in kept),
            members=members,
            since=tuple(listed.since[number] for number in kept),
            unread=frozenset(unread),
        ),
        tuple(checked[number].counted for number in kept),
    )
