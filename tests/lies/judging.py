"""A table with one false statement in its files, and a job over it: readers keep the same rows, or the job refuses in a line."""

import datetime
import io
import json
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache, lru_cache
from typing import Any, NamedTuple, NoReturn

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import IcekeepError, UnavailableError
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.delete.locations import forget_locations
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.repair.job import repair
from icekeep.spec.evolution import DropColumn
from icekeep.spec.metadata import unpacked
from icekeep.tables.verbs import update_schema
from kit.cases import Choices
from kit.damager import CannotDamageError, Damager
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import live_entries
from kit.row_histories import SPECS, VERSIONS, ByIcekeep, History, steps_of
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage
from lies.lying import Lie, lie

Record = dict[str, Any]
_PATH, _POSITION = 2147483546, 2147483545
_DELETED = 2
_EPOCH = datetime.date(1970, 1, 1)


class UnreadableError(Exception):
    """A reader that keeps to the specification cannot read the table."""


class Entry(NamedTuple):
    """A live entry with what it inherits.

    Attributes:
        place: the partition and its spec.
    """

    file: Record
    content: int
    sequence_number: int
    spec_id: int
    place: str


def plain_rows(read: Callable[[str], bytes], metadata_location: str) -> Counter[str]:
    """Each row of the current snapshot as a text that follows from the values by the ids of columns.

    Args:
        read: a file's bytes by its location.

    Raises:
        UnreadableError: a file is not there, damaged, or says what the specification does not allow.
    """
    try:
        return _rows(read, metadata_location)
    except Exception as error:
        # Whatever it is that such a reader stumbles over.
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


def _rows(read: Callable[[str], bytes], metadata_location: str) -> Counter[str]:
    document = json.loads(unpacked(read(metadata_location)))
    schema = next(s for s in document["schemas"] if s["schema-id"] == document["current-schema-id"])
    # Those of older schemas too: equality deletes may compare by a column that was dropped.
    fields = {field["id"]: field for one in (*document["schemas"], schema) for field in one["fields"]}
    entries = list(_live(read, document))
    vectors, positions, equality = _deletes(read, document, entries)
    found = Counter[str]()
    for entry in entries:
        if entry.content != 0:
            continue
        path = entry.file["file_path"]
        columns = _columns(read(path), document)
        count = max(map(len, columns.values()), default=entry.file["record_count"])
        gone = set()
        vector = vectors.get(path)
        if vector is not None and vector[0] >= entry.sequence_number:
            gone = vector[1]
        else:
            for number, place, deleted in positions.get(path, ()):
                if number >= entry.sequence_number and place == entry.place:
                    gone |= deleted
        keys = [
            (ids, values)
            for number, place, ids, values in equality
            if number > entry.sequence_number and place in (None, entry.place)
        ]
        asked = {*(field["id"] for field in schema["fields"]), *(id_ for ids, _ in keys for id_ in ids)}
        read_as = {id_: columns.get(id_) or [_default(fields[id_], entry, document)] * count for id_ in asked}
        for row in range(count):
            if row in gone:
                continue
            if any(tuple(_text(read_as[id_][row]) for id_ in ids) in values for ids, values in keys):
                continue
            found[repr([_text(read_as[field["id"]][row]) for field in schema["fields"]])] += 1
    return found


def _live(read: Callable[[str], bytes], document: Record) -> Iterator[Entry]:
    current = document.get("current-snapshot-id")
    snapshot = next((s for s in document.get("snapshots", ()) if s["snapshot-id"] == current), None)
    if snapshot is None:
        if current not in (None, -1):
            raise ValueError(f"no snapshot {current}")
        return
    for row in fastavro.reader(io.BytesIO(read(snapshot["manifest-list"]))):
        assert isinstance(row, dict)
        for entry in fastavro.reader(io.BytesIO(read(row["manifest_path"]))):
            assert isinstance(entry, dict)
            if entry["status"] == _DELETED:
                continue
            number = entry.get("sequence_number")
            if number is None:
                if entry["status"] == 0 and document["format-version"] > 1 and row.get("sequence_number"):
                    raise ValueError("an existing entry has no sequence number")
                number = row.get("sequence_number") or 0
            spec_id = row["partition_spec_id"]
            if all(spec["spec-id"] != spec_id for spec in document["partition-specs"]):
                raise ValueError(f"no spec {spec_id}")
            file = entry["data_file"]
            # In the order of the spec's fields: names in a manifest are those that they had when it was written.
            place = repr((spec_id, [_text(value) for value in file["partition"].values()]))
            yield Entry(file, file.get("content") or 0, number, spec_id, place)


def _deletes(read: Callable[[str], bytes], document: Record, entries: list[Entry]) -> tuple[Any, Any, Any]:
    """Vectors by data file; positions by data file; and equality deletes, whose place is null where they are for all."""
    unpartitioned = {
        spec["spec-id"]
        for spec in document["partition-specs"]
        if all(field["transform"] == "void" for field in spec["fields"])
    }
    vectors: dict[str, tuple[int, set[int]]] = {}
    positions: dict[str, list[tuple[int, str, set[int]]]] = defaultdict(list)
    equality = []
    for entry in entries:
        if entry.content == 0:
            continue
        data = read(entry.file["file_path"])
        if entry.content == 2:
            ids = tuple(entry.file["equality_ids"])
            columns = _columns(data, document)
            rows = {tuple(map(_text, row)) for row in zip(*(columns[id_] for id_ in ids), strict=True)}
            place = None if entry.spec_id in unpartitioned else entry.place
            equality.append((entry.sequence_number, place, ids, rows))
        elif str(entry.file["file_format"]).lower() == "puffin":
            path = entry.file["referenced_data_file"]
            if path in vectors:
                raise ValueError("two vectors for a file")
            vectors[path] = entry.sequence_number, _vector(data, entry.file)
        else:
            columns = _columns(data, document)
            by_path: dict[str, set[int]] = defaultdict(set)
            for path, position in zip(columns[_PATH], columns[_POSITION], strict=True):
                by_path[path].add(position)
            for path, deleted in by_path.items():
                # Its rows of other paths apply to nothing, as the spec has it in "Scan Planning".
                if entry.file.get("referenced_data_file") in (None, path):
                    positions[path].append((entry.sequence_number, entry.place, deleted))
    return vectors, positions, equality


def _vector(data: bytes, file: Record) -> set[int]:
    """The positions of a blob `deletion-vector-v1`: its length, a magic, and a bitmap for each of the high 32 bits."""
    start = file["content_offset"]
    length, magic = struct.unpack(">I4s", data[start : start + 8])
    if magic != b"\xd1\xd3\x39\x64":
        raise ValueError("no vector")
    return set(BitMap64.deserialize(data[start + 8 : start + 4 + length]))


def _columns(data: bytes, document: Record) -> Mapping[int, list[Any]]:
    """The values of each column by field id; a column without an id has that of the name mapping."""
    return _columns_by_mapping(data, document["properties"].get("schema.name-mapping.default", "[]"))


# A table is read before and after a job, which leaves most of its files as they are.
@lru_cache(1024)
def _columns_by_mapping(data: bytes, mapping_text: str) -> Mapping[int, list[Any]]:
    mapping = json.loads(mapping_text)
    by_name = {name: field.get("field-id") for field in mapping for name in field["names"]}
    table = pq.ParquetFile(io.BytesIO(data)).read()
    found: dict[int, list[Any]] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        id_ = (field.metadata or {}).get(b"PARQUET:field_id")
        number = by_name.get(field.name) if id_ is None else int(id_)
        if number is not None:
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
            found[number] = column.to_pylist()
    return found


def _default(field: Record, entry: Entry, document: Record) -> Any:
    """What a column is of which a file has nothing: the value of the identity partition, or the initial default."""
    spec = next(spec for spec in document["partition-specs"] if spec["spec-id"] == entry.spec_id)
    for part, value in zip(spec["fields"], entry.file["partition"].values(), strict=True):
        if part["source-id"] == field["id"] and part["transform"] == "identity":
            return value
    return field.get("initial-default")


def _text(value: Any) -> str:
    """NaN equals NaN, -0.0 is not 0.0; a float is the double that it is."""
    return repr((value - _EPOCH).days if isinstance(value, datetime.date) else value)


ALL = {"rewrite-all": "true"}
DANGLING = {"remove-dangling-deletes": "true"}
STEPS = 9
TEN_DAYS_MS = 10 * 24 * 3_600_000
FAR_AHEAD_MS = 4_102_444_800_000

Job = Callable[[Table], Any]


def no_spark() -> NoReturn:
    """Refuse: a number that is too large makes little work look like much."""
    raise UnavailableError("Spark was asked for, for a table of a few rows")


def _repair(table: Table) -> Any:
    """Whatever `check` finds, with no loss accepted."""
    result = check(table, no_spark, deep=True)
    found = sorted({one.fault_id for one in (*result.faults, *result.notices)})
    return repair(table, no_spark, fault=found) if found else None


JOBS: Mapping[str, Job] = {
    "compact": lambda table: compact(table, no_spark, options=ALL),
    "compact, dangling": lambda table: compact(table, no_spark, options={**ALL, **DANGLING}),
    "compact, deletes": lambda table: compact(table, no_spark, options={"delete-file-threshold": "1"}),
    "sort": lambda table: compact(table, no_spark, sort_order="id", options=ALL),
    "rewrite_manifests": lambda table: rewrite_manifests(table, no_spark),
    "rewrite_manifests, dangling": lambda table: rewrite_manifests(table, no_spark, options=DANGLING),
    "rewrite_position_deletes": lambda table: rewrite_position_deletes(table, no_spark, options=ALL),
    "convert_equality_deletes": lambda table: convert_equality_deletes(table, no_spark),
    "expire_snapshots": lambda table: expire_snapshots(
        table, no_spark, older_than=FAR_AHEAD_MS, retain_last=1, trash=0, clean_expired_metadata=True
    ),
    "remove_orphan_files": lambda table: remove_orphan_files(table, no_spark, trash=0, force=True),
    "repair": _repair,
}


CLEANING = ("expire_snapshots",)
"""Jobs after which nothing may be wrong that was right: what they take out of metadata is needed by no reader of rows alone."""


class Verdict(NamedTuple):
    """What came of a lie and a job.

    Attributes:
        outcome: `kept`, `refused`, `unreadable` where no reader of the specification could read the table, or `lost`.
        is_seen_by_none: whether the rows of a reader of the specification are others for the lie: nobody could know.
        text: what the job said, or which rows are lost or new.
    """

    lie: Lie
    job: str
    outcome: str
    is_seen_by_none: bool = False
    text: str = ""


@cache
def history(number: int) -> History:
    """The `history_in` of a number, in memory."""
    runtime = FakeRuntime()
    catalog = MemoryCatalog(MemoryStorage(runtime), runtime)
    catalog.create_namespace(("db",))
    return history_in(catalog, number)


def history_in(catalog: Catalog, number: int) -> History:
    """A table of Parquet files, with deletes of all kinds; some have manifests rewritten, or lost a column that deletes need."""
    chosen = Choices(number)
    made = History(ByIcekeep(catalog, f"lies{number}"), chosen.choice(VERSIONS), chosen.choice(SPECS), ("PARQUET",))
    steps = steps_of(number)
    made.went_on([*steps[:STEPS], *steps[-2:]])
    if chosen.random() < 0.4:
        rewrite_manifests(made.table, no_spark)
        made.went_on([("append", chosen.getrandbits(31)), ("equality", chosen.getrandbits(31))])
    if chosen.random() < 0.5:
        _drop_a_deleted_column(made, chosen.getrandbits(31))
    return made


def _drop_a_deleted_column(made: History, number: int) -> None:
    """One by which live deletes compare; the snapshot after it has a schema without."""
    table = made.table
    sources = {id_ for spec in table.metadata.partition_specs for field in spec.fields for id_ in field.source_ids}
    compared = {
        id_
        for entry in live_entries(table)
        for id_ in entry.data_file.equality_ids or ()
        if id_ not in sources and id_ != 1
    }
    names = [field.name for field in table.metadata.schema.fields if field.field_id in compared]
    if names:
        update_schema(table, [DropColumn(names[0])])
        made.went_on([("append", number)])


def judged(number: int, tables: int, job: str = "", kind: str = "") -> Verdict | None:
    """Put the lie of a number into one of so many tables and run a job over it, both drawn by lot where none is named.

    Returns:
        `None` where there was nothing to lie about in that way.

    Raises:
        AssertionError: an error was not icekeep's own, or more than a line.
    """
    chosen = Choices(number)
    by = history(chosen.randrange(tables)).by
    name = job or chosen.choice(list(JOBS))
    catalog: Any = deepcopy(by.catalog)
    forget_locations()
    try:
        one = lie(Damager(catalog, by.identifier, Choices(chosen.getrandbits(31))), kind)
    except CannotDamageError:
        return None
    catalog.runtime.pass_ms(TEN_DAYS_MS)
    sound = sound_rows(by)
    try:
        before = _judging_rows(catalog, by.identifier)
    except UnreadableError:
        before = None
    faults = _faults(catalog, by.identifier) if name in CLEANING else None
    try:
        JOBS[name](catalog.load(by.identifier))
    except IcekeepError as error:
        text, outcome = str(error), "refused"
    else:
        text, outcome = "", "kept"
    assert len(text.splitlines()) <= 1, text
    if before is None:
        return Verdict(one, name, "unreadable", text=text)
    try:
        after = _judging_rows(catalog, by.identifier)
    except UnreadableError as error:
        return Verdict(one, name, "lost", sound != before, f"unreadable now: {error}")
    if faults is not None and outcome == "kept":
        new = (_faults(catalog, by.identifier) or set()) - faults
        if new:
            return Verdict(one, name, "lost", sound != before, f"faults that were not there: {sorted(new)}")
    if after != before:
        text = f"lost {sorted((before - after).elements())[:3]}, new {sorted((after - before).elements())[:3]}"
        return Verdict(one, name, "lost", sound != before, text)
    return Verdict(one, name, outcome, sound != before, text)


@cache
def sound_rows(by: ByIcekeep) -> Counter[str]:
    """Of the table before any lie."""
    return _judging_rows(by.catalog, by.identifier)


def _faults(catalog: Any, identifier: Identifier) -> set[int] | None:
    """What `check` finds without reading files; null where it cannot."""
    try:
        return {one.fault_id for one in check(catalog.load(identifier), no_spark).faults}
    except IcekeepError:
        return None


def _judging_rows(catalog: Any, identifier: Identifier) -> Counter[str]:
    pointer = catalog.find(identifier)
    return plain_rows(pointer.storage.read, pointer.metadata_location)
