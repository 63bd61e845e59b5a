"""One manifest: its file against its rows in manifest lists, and its entries against what the spec says of entries."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.maintenance.checking.manifest_classes import FIRST_ROW_ID_LOST, HEADER_WRONG, MANIFEST_UNREADABLE
from icekeep.maintenance.checking.manifests.lists import RowsOfManifest
from icekeep.maintenance.checking.manifests.metrics import METRIC_COLUMNS, ColumnTypes, check_metrics
from icekeep.maintenance.checking.manifests.partitions import Partitions
from icekeep.maintenance.checking.manifests.raw_entries import raw_faults
from icekeep.maintenance.checking.manifests.sums import SUMS, Counted
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.manifests import read_manifests
from icekeep.spec.avro import AvroHeader, read_header
from icekeep.spec.manifests.read import ManifestHeader, read_manifest_header, record_field, stored_fields
from icekeep.spec.manifests.structs import (
    DATA_FILE_FIELD_ID,
    PARTITION_FIELD_ID,
    FileContent,
    ManifestContent,
    ManifestFile,
    Status,
)
from icekeep.spec.partitioning import partition_fields_from_json
from icekeep.spec.schema import schema_from_json
from icekeep.spec.transforms import Void
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage

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


class Known(msgspec.Struct, frozen=True, kw_only=True):
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


class Checked(msgspec.Struct, frozen=True):
    """A manifest that could be read: its row as the file has it, and what its entries come to."""

    row: ManifestFile
    counted: Counted


def check_manifest(rows: RowsOfManifest, known: Known, tally: Tally) -> Checked | None:
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
        tally.add(_fault(MANIFEST_UNREADABLE, first, since, first_line(error)))
        return None
    if problems := _header_problems(avro):
        tally.add(_fault(HEADER_WRONG, first, since, f"its header has {', '.join(problems)}"))
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
    for number, detail, facts in faults or [(MANIFEST_UNREADABLE, problem, {})]:
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


def _as_the_file_says(row: ManifestFile, header: ManifestHeader, size_bytes: int, known: Known) -> ManifestFile:
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

    def __init__(self, rows: RowsOfManifest, row: ManifestFile, known: Known, tally: Tally) -> None:
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
                    203, row, since, f"it has {size_bytes} bytes, its manifest list says {row.manifest_length}"
                )
            if header.content is not None and row.content is not header.content:
                said, is_ = row.content.name.lower(), header.content.name.lower()
                self._tell_row(211, row, since, f"it holds {is_}, its manifest list says {said}")
            if header.partition_spec_id not in (None, row.partition_spec_id):
                self._tell_row(
                    210,
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

    def result(self) -> Checked:
        """After the last entry: counts and summaries against what lists say."""
        files, records = ([counts[i] for counts in self._counts] for i in (0, 1))
        kinds = (Status.ADDED, Status.EXISTING, Status.DELETED)
        counted = (*(files[kind] for kind in kinds), *(records[kind] for kind in kinds))
        found = dict(zip(COUNT_NAMES, counted, strict=True))
        for row, since in self._rows.rows:
            for names, number in ((COUNT_NAMES[:3], 204), (COUNT_NAMES[3:], 205)):
                said = {name: getattr(row, name) for name in names}
                wrong = [n for n in names if said[n] not in (None, found[n])]
                if wrong:
                    detail = ", ".join(f"{name} is {said[name]}, counted are {found[name]}" for name in wrong)
                    self._tell_row(number, row, since, detail)
            for detail in self._partitions.against(row.partitions):
                self._tell_row(206, row, since, detail)
            self._check_least(row, since)
        min_number = self._row.min_sequence_number or 0
        if self._least_number is not None:
            min_number = min(min_number, self._least_number)
        corrected = msgspec.structs.replace(self._row, min_sequence_number=min_number, partitions=None, **found)
        return Checked(corrected, Counted(**self._sums))

    def _check_least(self, row: ManifestFile, since: int) -> None:
        said = row.min_sequence_number or 0
        if self._least_number is not None and said > self._least_number:
            self._tell_row(
                207, row, since, f"min_sequence_number is {said}, a live entry has sequence number {self._least_number}"
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
                218,
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
                FIRST_ROW_ID_LOST,
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
            (219, pc.less(records, 0), lambda at: f"record_count is {records[at].as_py()}"),
            (219, pc.less_equal(sizes, 0), lambda at: f"file_size_in_bytes is {sizes[at].as_py()}"),
            (
                219,
                (content == FileContent.EQUALITY_DELETES) & no_ids,
                lambda _: "equality deletes without equality_ids",
            ),
            (219, unknown, lambda at: f"its format {formats[at].as_py()!r} is none of the spec"),
            (219, pc.less(offsets, 0), lambda at: f"content_offset is {offsets[at].as_py()}"),
            (219, pc.less_equal(lengths, 0), lambda at: f"content_size_in_bytes is {lengths[at].as_py()}"),
            (219, is_vector & lacks, lambda _: "a deletion vector without its data file, offset or size"),
            (219, is_vector & (content != FileContent.POSITION_DELETES), lambda _: "a Puffin file that is no vector"),
            (221, is_vector & deletes & (version < 3), lambda _: f"a deletion vector in a table of version {version}"),
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
                    self._tell(228, rows, at, f"equality_ids {ids[at].as_py()}: {unknown} are columns of no schema")
        orders = rows["sort_order_id"]
        strange = [one for one in pc.unique(orders).to_pylist() if one is not None and one not in known.sort_order_ids]
        for at in _where(pc.is_in(orders, pa.array(strange, orders.type))) if strange else ():
            self._tell(231, rows, at, f"sort_order_id {orders[at].as_py()} is none of the table's sort orders")

    def _check_offsets(self, rows: pa.RecordBatch) -> None:
        offsets, sizes = rows["split_offsets"], rows["file_size_in_bytes"].to_numpy()
        lengths = pc.fill_null(pc.list_value_length(offsets), 0).to_numpy(zero_copy_only=False)
        values = offsets.flatten().to_numpy(zero_copy_only=False)
        owners = np.repeat(np.arange(len(rows)), lengths)
        wrong = (values < 0) | (values >= sizes[owners])
        wrong[1:] |= (owners[1:] == owners[:-1]) & (values[1:] <= values[:-1])
        for at in np.unique(owners[wrong]).tolist():
            self._tell(230, rows, at, f"split offsets {offsets[at].as_py()[:5]} of a file of {sizes[at]} bytes")

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
