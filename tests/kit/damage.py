"""All damage that there is, by the class of the fault that it makes: what else is reported beside it, and what `repair` corrects.

Each raises `CannotDamageError` where a table has nothing to be damaged so.
"""

import struct
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from typing import Any

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import InvalidTableError
from icekeep.maintenance.check.job import CheckResult, check, check_unreadable
from icekeep.maintenance.repair.job import RepairResult
from icekeep.spec.manifests.structs import DataFile
from kit.cases import Choices
from kit.damager import DATA, DELETED, EQUALITY_DELETES, POSITION_DELETES, CannotDamageError, Damager, Record, is_vector
from kit.naive_scan import live_entries
from kit.runtime import no_spark

Damage = Callable[[Damager], object]
_ABSENT = 424_242


def _need(found: object) -> None:
    if not found:
        raise CannotDamageError


def _in_metadata(change: Callable[[Damager, Record], object]) -> Damage:
    def damage(damager: Damager) -> None:
        document = damager.metadata()
        change(damager, document)
        damager.edit_metadata(lambda old: (old.clear(), old.update(document)))

    return damage


def _above_v1(document: Record) -> None:
    _need(document["format-version"] > 1)


def _snapshot(damager: Damager, document: Record) -> Record:
    _need(document.get("snapshots"))
    found: Record = damager.chosen.choice(document["snapshots"])
    return found


def _cut(damager: Damager) -> None:
    data = damager.read(damager.location)
    damager.write(damager.location, data[: damager.chosen.randrange(len(data) // 2)])


def _last_sequence_number(damager: Damager, document: Record) -> None:
    _above_v1(document)
    _need(document["last-sequence-number"] > 0 and document.get("snapshots"))
    newest = max(snapshot.get("sequence-number", 0) for snapshot in document["snapshots"])
    _need(newest)
    document["last-sequence-number"] = damager.chosen.randrange(newest)


def _doubled_schema(_: Damager, document: Record) -> None:
    _need(document.get("schemas"))
    document["schemas"].append(document["schemas"][0])


def _last_column_id(damager: Damager, document: Record) -> None:
    document["last-column-id"] = 1


def _last_partition_id(_: Damager, document: Record) -> None:
    _need(any(spec["fields"] for spec in document.get("partition-specs", [])))
    document["last-partition-id"] = 999


def _partition_source(_: Damager, document: Record) -> None:
    default = document.get("default-spec-id")
    fields = [f for spec in document.get("partition-specs", []) if spec["spec-id"] == default for f in spec["fields"]]
    _need(fields)
    fields[0]["source-id"] = _ABSENT


def _identifier(_: Damager, document: Record) -> None:
    _need(document.get("schemas"))
    for schema in document["schemas"]:
        schema["identifier-field-ids"] = [_ABSENT]


def _doubled_field(_: Damager, document: Record) -> None:
    _need(document.get("schemas"))
    for schema in document["schemas"]:
        _need(len(schema["fields"]) > 1)
        schema["fields"][1]["id"] = schema["fields"][0]["id"]


def _current_snapshot(_: Damager, document: Record) -> None:
    _need(document.get("snapshots"))
    document["current-snapshot-id"] = _ABSENT
    document.pop("refs", None)


def _reference(_: Damager, document: Record) -> None:
    _need(document.get("snapshots"))
    document.setdefault("refs", {})["lost"] = {"snapshot-id": _ABSENT, "type": "branch"}


def _main(_: Damager, document: Record) -> None:
    others = [s for s in document.get("snapshots", []) if s["snapshot-id"] != document.get("current-snapshot-id")]
    _need(others)
    document.setdefault("refs", {})["main"] = {"snapshot-id": others[0]["snapshot-id"], "type": "branch"}


def _limit(_: Damager, document: Record) -> None:
    _need(document.get("refs", {}).get("main"))
    document["refs"]["main"]["max-snapshot-age-ms"] = -1


def _circle(damager: Damager, document: Record) -> None:
    snapshot = _snapshot(damager, document)
    snapshot["parent-snapshot-id"] = snapshot["snapshot-id"]


def _sequence_number(_: Damager, document: Record) -> None:
    _above_v1(document)
    children = [s for s in document.get("snapshots", []) if s.get("parent-snapshot-id") is not None]
    _need(children)
    by_id = {s["snapshot-id"]: s for s in document["snapshots"]}
    parent = by_id.get(children[-1]["parent-snapshot-id"])
    _need(parent and parent.get("sequence-number"))
    assert parent is not None
    children[-1]["sequence-number"] = parent["sequence-number"]


def _no_manifests(damager: Damager, document: Record) -> None:
    snapshot = _snapshot(damager, document)
    snapshot.pop("manifest-list", None)
    snapshot.pop("manifests", None)


def _snapshot_log(_: Damager, document: Record) -> None:
    _need(len(document.get("snapshot-log", [])) > 1)
    document["snapshot-log"][-1]["snapshot-id"] = document["snapshot-log"][0]["snapshot-id"]


def _statistics(_: Damager, document: Record) -> None:
    document.setdefault("statistics", []).append(
        {
            "snapshot-id": _ABSENT,
            "statistics-path": "memory://elsewhere/stats.puffin",
            "file-size-in-bytes": 10,
            "file-footer-size-in-bytes": 4,
            "blob-metadata": [],
        }
    )


def _uuid(_: Damager, document: Record) -> None:
    _above_v1(document)
    _need(document.get("metadata-log"))
    document["table-uuid"] = str(uuid.UUID(int=7))


def _location(_: Damager, document: Record) -> None:
    document["location"] = "warehouse/db/t"


def _next_row_id(damager: Damager, document: Record) -> None:
    _need(document["format-version"] > 2 and document["next-row-id"] > 0)
    _need(any(snapshot.get("added-rows") for snapshot in document["snapshots"]))
    document["next-row-id"] = damager.chosen.randrange(document["next-row-id"])


def _row_ids(_: Damager, document: Record) -> None:
    adding = [s for s in document.get("snapshots", []) if s.get("added-rows")]
    _need(document["format-version"] > 2 and len(adding) > 1)
    adding[-1]["first-row-id"] = adding[0]["first-row-id"]


def _no_row_id(_: Damager, document: Record) -> None:
    _need(document["format-version"] > 2 and len(document.get("snapshots", [])) > 1)
    document["snapshots"][-1].pop("first-row-id")


def _schema_of_snapshot(damager: Damager, document: Record) -> None:
    _snapshot(damager, document)["schema-id"] = _ABSENT


def _time(_: Damager, document: Record) -> None:
    children = [s for s in document.get("snapshots", []) if s.get("parent-snapshot-id") is not None]
    _need(children)
    children[-1]["timestamp-ms"] -= 10 * 24 * 3600 * 1000


def _operation(damager: Damager, document: Record) -> None:
    _above_v1(document)
    snapshot = _snapshot(damager, document)
    _need(snapshot.get("summary"))
    del snapshot["summary"]["operation"]


def _odd_history(damager: Damager, document: Record) -> None:
    damager.chosen.choice((_schema_of_snapshot, _time, _operation))(damager, document)


def _feature(_: Damager, document: Record) -> None:
    _need(document["format-version"] < 3 and document.get("schemas"))
    document["schemas"][-1]["fields"][-1]["initial-default"] = 1


METADATA_DAMAGE: Mapping[int, Damage] = {
    101: _cut,
    102: _in_metadata(_last_sequence_number),
    103: _in_metadata(_doubled_schema),
    104: _in_metadata(lambda _, document: document.update({"current-schema-id": _ABSENT})),
    105: _in_metadata(lambda _, document: document.update({"default-spec-id": _ABSENT})),
    106: _in_metadata(lambda _, document: document.update({"default-sort-order-id": _ABSENT})),
    107: _in_metadata(_partition_source),
    108: _in_metadata(_last_column_id),
    109: _in_metadata(_last_partition_id),
    111: _in_metadata(_doubled_field),
    113: _in_metadata(_identifier),
    114: _in_metadata(_current_snapshot),
    115: _in_metadata(_reference),
    116: _in_metadata(_main),
    117: _in_metadata(_limit),
    118: _in_metadata(_circle),
    119: _in_metadata(_sequence_number),
    120: _in_metadata(_no_manifests),
    121: _in_metadata(_snapshot_log),
    124: _in_metadata(_statistics),
    126: _in_metadata(_uuid),
    127: _in_metadata(_location),
    128: _in_metadata(_next_row_id),
    129: _in_metadata(_row_ids),
    130: _in_metadata(_no_row_id),
    136: _in_metadata(_feature),
    137: _in_metadata(
        lambda _, document: document.setdefault("properties", {}).update({"schema.name-mapping.default": "[{"})
    ),
    138: _in_metadata(_odd_history),
}


def _row(damager: Damager, wanted: Callable[[Record], object] = lambda row: True) -> Record:
    rows = [row for row in damager.rows() if wanted(row)]
    if not rows:
        raise CannotDamageError
    found: Record = damager.chosen.choice(rows)
    return found


def _is_live(damager: Damager, row: Record) -> bool:
    """Whether a manifest has live entries; what is said of others misleads nobody."""
    return any(entry["status"] != DELETED for entry in damager.records(row["manifest_path"]))


def _count_name(row: Record, kind: str) -> str:
    """Version 1 had other names for counts of files."""
    return f"{kind}_files_count" if f"{kind}_files_count" in row else f"{kind}_data_files_count"


def _list_gone(damager: Damager) -> None:
    head = damager.head()
    if head is None or "manifest-list" not in head:
        raise CannotDamageError
    if damager.chosen.random() < 0.5:
        damager.remove(head["manifest-list"])
    else:
        data = damager.read(head["manifest-list"])
        damager.write(head["manifest-list"], data[: len(data) // 2])


def _manifest_cut(damager: Damager) -> None:
    path = _row(damager)["manifest_path"]
    data = damager.read(path)
    damager.write(path, data[: len(data) - 20])
    damager.edit_row(path, manifest_length=len(data) - 20)


def _length(damager: Damager) -> None:
    row = _row(damager)
    damager.edit_row(row["manifest_path"], manifest_length=row["manifest_length"] + 1)


def _file_counts(damager: Damager) -> None:
    row = _row(damager)
    name = _count_name(row, damager.chosen.choice(("added", "existing", "deleted")))
    if row.get(name) is None:
        raise CannotDamageError
    damager.edit_row(row["manifest_path"], **{name: row[name] + 1})


def _row_counts(damager: Damager) -> None:
    row = _row(damager, lambda one: one.get("added_rows_count") is not None)
    damager.edit_row(row["manifest_path"], added_rows_count=row["added_rows_count"] + 5)


def _summary(damager: Damager) -> None:
    row = _row(
        damager,
        lambda one: (
            any(s.get("lower_bound") is not None for s in one.get("partitions") or ()) and _is_live(damager, one)
        ),
    )
    summaries = deepcopy(row["partitions"])
    summary = next(s for s in summaries if s.get("lower_bound") is not None)
    bound = summary["lower_bound"]
    if len(bound) not in (4, 8) or summary["lower_bound"] != summary["upper_bound"]:
        raise CannotDamageError
    kind = "<i" if len(bound) == 4 else "<q"
    summary["lower_bound"] = summary["upper_bound"] = struct.pack(kind, struct.unpack(kind, bound)[0] + 1)
    damager.edit_row(row["manifest_path"], partitions=summaries)


def _min_sequence_number(damager: Damager) -> None:
    row = _row(damager, lambda one: one.get("min_sequence_number") and one["sequence_number"])
    damager.edit_row(row["manifest_path"], min_sequence_number=row["sequence_number"] + 1)


def _sequence_number_wrong(damager: Damager) -> None:
    row = _row(damager, lambda one: one.get("sequence_number"))
    damager.edit_row(row["manifest_path"], sequence_number=_ABSENT)


def _spec(damager: Damager) -> None:
    damager.edit_row(_row(damager)["manifest_path"], partition_spec_id=_ABSENT)


def _content(damager: Damager) -> None:
    row = _row(damager, lambda one: "content" in one)
    damager.edit_row(row["manifest_path"], content=1 - row["content"])


def _header(damager: Damager) -> None:
    row = _row(damager)
    damager.edit_header(row["manifest_path"], damager.chosen.choice([{"schema": None}, {"partition-spec": "{}"}]))


def _doubled(damager: Damager) -> None:
    place = damager.entry(None, lambda file: not is_vector(file))
    damager.edit_manifest(place.manifest, lambda entries: entries.append(deepcopy(entries[place.index])))


def _two_vectors(damager: Damager) -> None:
    place = damager.vector()

    def add(entries: list[Record]) -> None:
        other = deepcopy(entries[place.index])
        other["data_file"]["file_path"] += "-2"
        entries.append(other)

    damager.write(place.file["file_path"] + "-2", damager.read(place.file["file_path"]))
    damager.edit_manifest(place.manifest, add)


def _dangling(damager: Damager) -> None:
    place = damager.vector()
    damager.edit_file(place, referenced_data_file=place.file["referenced_data_file"] + "-gone")


def _vector_too_old(damager: Damager) -> None:
    vector = damager.vector()
    path = vector.file["referenced_data_file"]
    data = damager.entry(DATA, lambda file: file["file_path"] == path)
    numbers = {row["manifest_path"]: row["sequence_number"] for row in damager.rows()}
    number = data.entry.get("sequence_number")
    older = (numbers[data.manifest] if number is None else number) - 1
    damager.edit_entry(vector, lambda entry: entry.update(sequence_number=older, file_sequence_number=older))


def _doubled_manifest(damager: Damager) -> None:
    damager.edit_rows(lambda rows: rows.append(deepcopy(rows[0])) if rows else None)


def _totals(damager: Damager) -> None:
    def change(document: Record) -> None:
        head = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
        name = damager.chosen.choice(("total-data-files", "total-records", "total-delete-files"))
        if name not in head["summary"]:
            raise CannotDamageError
        head["summary"][name] = str(int(head["summary"][name]) + 1)

    if damager.head() is None:
        raise CannotDamageError
    damager.edit_metadata(change)


def _entry_number(damager: Damager) -> None:
    existing = [place for place in damager.entries() if place.entry["status"] == 0 and "sequence_number" in place.entry]
    damager.edit_entry(damager.some(existing), lambda entry: entry.update(sequence_number=None))


def _numbers_crossed(damager: Damager) -> None:
    numbered = [place for place in damager.entries() if place.entry.get("sequence_number") is not None]
    damager.edit_entry(damager.some(numbered), lambda entry: entry.update(sequence_number=_ABSENT))


def _negative(damager: Damager) -> None:
    damager.edit_file(damager.entry(), record_count=-1)


def _metric(damager: Damager, name: str, wanted: Callable[[Record], object] = lambda item: True) -> tuple[Any, Any]:
    """An entry of a data file, and one item of a map of its metrics."""
    place = damager.entry(DATA, lambda file: any(wanted(item) for item in file.get(name) or ()))
    item = damager.chosen.choice([item for item in place.file[name] if wanted(item)])
    return place, item


def _replaced(damager: Damager, place: Any, name: str, key: int, value: Any) -> None:
    items = [{"key": i["key"], "value": value if i["key"] == key else i["value"]} for i in place.file[name]]
    damager.edit_file(place, **{name: items})


def _undecodable(damager: Damager) -> None:
    place, item = _metric(damager, "lower_bounds", lambda item: item["key"] == 1)
    _replaced(damager, place, "lower_bounds", item["key"], b"\x01\x02\x03")


def _crossed(damager: Damager) -> None:
    place, _ = _metric(damager, "lower_bounds", lambda item: item["key"] == 1 and len(item["value"]) == 8)
    upper = next((i["value"] for i in place.file["upper_bounds"] if i["key"] == 1), None)
    if upper is None:
        raise CannotDamageError
    _replaced(damager, place, "lower_bounds", 1, struct.pack("<q", struct.unpack("<q", upper)[0] + 1))


def _bounds(damager: Damager) -> None:
    place, item = _metric(damager, "upper_bounds", lambda item: item["key"] == 1 and len(item["value"]) == 8)
    lower = next((i["value"] for i in place.file["lower_bounds"] if i["key"] == 1), item["value"])
    if lower == item["value"]:
        raise CannotDamageError
    _replaced(damager, place, "upper_bounds", 1, lower)


def _null_counts(damager: Damager) -> None:
    place, item = _metric(damager, "null_value_counts", lambda item: item["key"] in (2, 3))
    _replaced(damager, place, "null_value_counts", item["key"], -3)


def _null_count(damager: Damager) -> None:
    place, _ = _metric(damager, "null_value_counts", lambda item: item["key"] == 1)
    _replaced(damager, place, "null_value_counts", 1, 1)


def _value_count(damager: Damager) -> None:
    place, item = _metric(damager, "value_counts", lambda item: item["key"] == 1)
    _replaced(damager, place, "value_counts", 1, item["value"] + 1)


def _equality_ids(damager: Damager) -> None:
    damager.edit_file(damager.entry(EQUALITY_DELETES), equality_ids=[_ABSENT])


def _offsets(damager: Damager) -> None:
    place = damager.entry(DATA, lambda file: file.get("split_offsets"))
    damager.edit_file(place, split_offsets=[10**12])


def _offsets_of_file(damager: Damager) -> None:
    place = damager.entry(DATA, lambda file: file.get("split_offsets") and file["file_format"].lower() == "parquet")
    damager.edit_file(place, split_offsets=[place.file["split_offsets"][0] + 1])


def _sort_order(damager: Damager) -> None:
    place = damager.entry(DATA, lambda file: "sort_order_id" in file)
    damager.edit_file(place, sort_order_id=77)


def _missing(damager: Damager) -> None:
    damager.remove(damager.entry().file["file_path"])


def _missing_deletes(damager: Damager) -> None:
    found = [place for place in damager.entries() if place.file.get("content", DATA) != DATA]
    damager.remove(damager.some(found).file["file_path"])


def _size(damager: Damager) -> None:
    place = damager.entry()
    damager.edit_file(place, file_size_in_bytes=place.file["file_size_in_bytes"] + 1)


def _unreadable(damager: Damager) -> None:
    path = damager.entry().file["file_path"]
    damager.write(path, b"\x00" * len(damager.read(path)))


def _unreadable_deletes(damager: Damager) -> None:
    place = damager.entry(None, lambda file: file.get("content", DATA) != DATA and not is_vector(file))
    damager.write(place.file["file_path"], b"\x00" * len(damager.read(place.file["file_path"])))


def _record_count(damager: Damager) -> None:
    place = damager.entry()
    damager.edit_file(place, record_count=place.file["record_count"] + 1)


def _deleted_count(damager: Damager) -> None:
    found = [place for place in damager.entries() if place.file.get("content", DATA) != DATA]
    place = damager.some(found)
    damager.edit_file(place, record_count=place.file["record_count"] + 1)


def _vector_bytes(damager: Damager) -> None:
    place = damager.vector()

    def flip(data: bytearray) -> None:
        data[place.file["content_offset"] + damager.chosen.randrange(4, place.file["content_size_in_bytes"])] ^= 0xFF

    damager.change_bytes(place.file["file_path"], flip)


def _puffin_footer(damager: Damager) -> None:
    place = damager.vector()

    def flip(data: bytearray) -> None:
        data[-damager.chosen.randint(1, 4)] ^= 0xFF

    damager.change_bytes(place.file["file_path"], flip)


def _referenced(damager: Damager) -> None:
    place = damager.entry(
        POSITION_DELETES, lambda file: not is_vector(file) and file.get("referenced_data_file") is not None
    )
    others = [p.file["file_path"] for p in damager.entries(DATA)]
    other = damager.chosen.choice([path for path in others if path != place.file["referenced_data_file"]] or [None])
    if other is None:
        raise CannotDamageError
    damager.edit_file(place, referenced_data_file=other)


def _first_row_id_lost(damager: Damager) -> None:
    """As a rewrite of manifests loses it that copies entries column by column."""
    snapshots = damager.metadata()["snapshots"]
    since = min((one["sequence-number"] for one in snapshots if one.get("first-row-id") is not None), default=_ABSENT)
    existing = [place for place in damager.entries(DATA) if place.entry["status"] == 0]
    shown = [place for place in existing if (place.entry.get("file_sequence_number") or 0) >= since]
    numbered = [place for place in shown if place.file.get("first_row_id") is not None]
    damager.edit_file(damager.some(numbered), first_row_id=None)


ENTRY_DAMAGE: Mapping[int, Damage] = {
    201: _list_gone,
    202: _manifest_cut,
    203: _length,
    204: _file_counts,
    205: _row_counts,
    206: _summary,
    207: _min_sequence_number,
    208: _sequence_number_wrong,
    210: _spec,
    211: _content,
    212: _doubled,
    213: _two_vectors,
    214: _dangling,
    215: _totals,
    217: _entry_number,
    218: _numbers_crossed,
    219: _negative,
    220: _doubled_manifest,
    225: _undecodable,
    226: _crossed,
    227: _null_counts,
    228: _equality_ids,
    230: _offsets,
    231: _sort_order,
    234: _header,
    235: _vector_too_old,
    236: _first_row_id_lost,
    301: _missing,
    302: _size,
    303: _missing_deletes,
}

CONTENT_DAMAGE: Mapping[int, Damage] = {
    401: _unreadable,
    402: _record_count,
    405: _bounds,
    406: _null_count,
    407: _value_count,
    413: _unreadable_deletes,
    414: _vector_bytes,
    415: _deleted_count,
    416: _puffin_footer,
    421: _referenced,
    422: _offsets_of_file,
}


DAMAGE: Mapping[int, Damage] = {**METADATA_DAMAGE, **ENTRY_DAMAGE, **CONTENT_DAMAGE}

_TOTALS = {138, 215, 233}
IMPLIED: dict[int, set[int]] = {
    107: {110},
    111: {107},
    114: {121},
    119: {208},
    124: {304},
    128: {222, 417},
    136: {101},
    208: {214, 235},
    211: {222},
    212: {*_TOTALS, 417},
    213: _TOTALS,
    214: {416},
    218: {214, 235},
    219: {*_TOTALS, 417},
    226: {405},
    228: {420},
    235: {207, 214},
    236: {417},
    302: {233},
    402: {*_TOTALS, 417},
    415: _TOTALS,
    421: {214},
}
"""What is wrong too where a class's damage is done, and so may be told beside it."""

DANGLING = (214, 235)
MENDABLE = (
    108, 109, 124, 128, 203, 204, 205, 206, 207, 214, 215, 225, 226, 227, 230, 231, 235, 302, 402, 405, 406, 407, 415,
    422,
)  # fmt: skip
"""What is mended with no loss."""

LOSSES = (212, 213, 220, 301, 303, 401, 413, 414)
"""What is mended where the loss is accepted."""

Key = tuple[str, int | None]
"""Which file: its location, and where in it a vector begins."""


def spoil(catalog: Catalog, identifier: Identifier, seed: int, *numbers: int) -> None:
    """Damage a table in each way; all places follow from the seed. Raises `CannotDamageError` where it has none."""
    for number in numbers:
        DAMAGE[number](Damager(catalog, identifier, Choices(seed * 1000 + number)))


def checked(catalog: Catalog, identifier: Identifier) -> CheckResult:
    """What the job says of a table, down to its rows."""
    try:
        table = catalog.load(identifier)
    except InvalidTableError as error:
        return check_unreadable(catalog, identifier, error, deep=True)
    return check(table, no_spark, deep=True)


def found_in(result: CheckResult) -> set[int]:
    """The numbers of what was found, notices among them."""
    return {one.fault_id for one in (*result.faults, *result.notices)}


def lost_keys(before: Table, after: Table, results: Iterable[RepairResult]) -> set[Key]:
    """What was live before a repair and is not after, of the files that are told as lost."""
    told = {path for result in results for mend in result.mended for path in mend.lost_files}
    keys = [{_key(entry.data_file) for entry in live_entries(table)} for table in (before, after)]
    return {key for key in keys[0] - keys[1] if key[0] in told}


def take_out(catalog: Catalog, identifier: Identifier, keys: Collection[Key]) -> None:
    """Take the entries of some files out of their manifests by hand, as nobody does."""

    def change(entries: list[Record]) -> None:
        entries[:] = [e for e in entries if (e["data_file"]["file_path"], _offset(e["data_file"])) not in keys]

    damager = Damager(catalog, identifier, Choices())
    places = [*damager.entries(None)]
    for manifest in {one.manifest for one in places if (one.file["file_path"], _offset(one.file)) in keys}:
        damager.edit_manifest(manifest, change)


def _key(file: DataFile) -> Key:
    return file.file_path, file.content_offset


def _offset(file: Record) -> int | None:
    return file.get("content_offset")
