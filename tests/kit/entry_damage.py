"""Damage to manifest lists, manifests, and what they name, by the class of the fault that it makes."""

import struct
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from kit.damager import DATA, DELETED, EQUALITY_DELETES, POSITION_DELETES, CannotDamageError, Damager, Record, is_vector
from kit.metadata_damage import Damage

_ABSENT = 424_242


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


def _sequence_number(damager: Damager) -> None:
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
    208: _sequence_number,
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
