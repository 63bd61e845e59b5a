"""One lie at a time about a table, by hand: a field of its metadata, manifest list, manifests, footers or delete files says
what is not so, as other writers' mistakes make it.

What is said elsewhere of the same thing stays, but for lengths and counts that follow from a changed manifest: a reader that
holds one against the other can know. Every choice follows from the damager's number.
"""

import io
import json
import struct
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.formats.parquet.thrift import Struct
from kit.cases import Choices
from kit.damager import DATA, POSITION_DELETES, CannotDamageError, Damager, Place, Record, is_vector

_ABSENT = 424_242
_PATH = 2147483546
_COUNTS = ("added_files_count", "existing_files_count", "added_rows_count", "existing_rows_count")
_MAPS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


class Lie(NamedTuple):
    """What was said of what.

    Attributes:
        where: the kind of file, and the field: `list added_files_count`.
        text: what it was, and what it is.
    """

    where: str
    text: str


def lie(damager: Damager, kind: str = "") -> Lie:
    """Put one lie into a table, of a kind that is drawn by lot where none is named.

    Raises `CannotDamageError` where the table has nothing of the kind.
    """
    kinds = [one for one in _KINDS if kind in ("", one.__name__)]
    return damager.chosen.choices(kinds, [_KINDS[one] for one in kinds])[0](damager)


def _other(chosen: Choices, value: Any, others: list[Any]) -> Any:
    """Another value of the same kind; null, zero and what the same field is elsewhere among them."""
    found: list[Any] = [None, *others]
    if isinstance(value, bool):
        found = [not value, None]
    elif isinstance(value, int):
        found += [0, -1, value + 1, value - 1, value * 2, _ABSENT, 2**31, 2**62]
    elif isinstance(value, float):
        found += [0.0, -value, float("nan")]
    elif isinstance(value, bytes):
        found += [b"", value[:-1], value + b"\x00", bytes(reversed(value)), bytes(len(value)), b"\xff" * len(value)]
    elif isinstance(value, str):
        found += ["", value + "x", value.upper(), value.swapcase()]
    elif isinstance(value, list):
        found += [[], value[:-1], value[::-1], value + value[:1]]
    elif value is None:
        found += [0, 1, "", b"\x01", [], False]
    found = [one for one in found if repr(one) != repr(value)]
    if not found:
        raise CannotDamageError
    return chosen.choice(found)


def _changed(where: str, before: Any, after: Any) -> Lie:
    return Lie(where, f"{before!r:.60} -> {after!r:.60}")


# The manifest list


def _row(damager: Damager) -> Lie:
    rows = damager.rows()
    if not rows:
        raise CannotDamageError
    row = damager.chosen.choice(rows)
    name = damager.chosen.choice([name for name in row if name != "partitions"])
    before = row[name]
    after = _other(damager.chosen, before, [one[name] for one in rows])
    _edit(lambda: damager.edit_row(row["manifest_path"], **{name: after}))
    return _changed(f"list {name}", before, after)


def _counts(damager: Damager) -> Lie:
    """All counts of a manifest, or of all manifests of a content, are 0 or missing."""
    rows = damager.rows()
    if not rows:
        raise CannotDamageError
    some = [damager.chosen.choice(rows)] if damager.chosen.random() < 0.7 else rows
    value = damager.chosen.choice([0, 0, 0, None])
    for row in some:
        names = [n for n in row if n in _COUNTS or n.replace("_data", "") in _COUNTS]
        _edit(lambda row=row, names=names: damager.edit_row(row["manifest_path"], **dict.fromkeys(names, value)))
    return Lie("list all counts", f"{value} in {len(some)} rows")


def _min_numbers(damager: Damager) -> Lie:
    """Every manifest says that its oldest entry is as new as itself, as writers do who forget entries that they merge."""
    rows = [row for row in damager.rows() if row.get("min_sequence_number") != row.get("sequence_number")]
    if not rows:
        raise CannotDamageError
    for row in rows:
        damager.edit_row(row["manifest_path"], min_sequence_number=row["sequence_number"])
    return Lie("list min_sequence_number", f"the manifest's own in {len(rows)} rows")


def _summaries(damager: Damager) -> Lie:
    """Summaries of partitions: bounds that are crossed, those of another manifest, flags turned round, one less."""
    rows = [row for row in damager.rows() if row.get("partitions")]
    if not rows:
        raise CannotDamageError
    row = damager.chosen.choice(rows)
    changed = deepcopy(row["partitions"])
    number = damager.chosen.randrange(len(changed))
    one = changed[number]
    how = damager.chosen.choice(["crossed", "another's", "flag", "bound", "one less", "none"])
    if how == "crossed":
        one["lower_bound"], one["upper_bound"] = _crossed(one["lower_bound"], one["upper_bound"])
    elif how == "another's":
        changed = deepcopy(damager.chosen.choice(rows)["partitions"])
    elif how == "flag":
        name = damager.chosen.choice(["contains_null", "contains_nan"])
        one[name] = not one[name]
    elif how == "bound":
        name = damager.chosen.choice(["lower_bound", "upper_bound"])
        one[name] = _other(damager.chosen, one[name], [])
    elif how == "one less":
        changed.pop()
    after = None if how == "none" else changed
    if repr(after) == repr(row["partitions"]):
        raise CannotDamageError
    _edit(lambda: damager.edit_row(row["manifest_path"], partitions=after))
    return Lie("list partitions", how)


def _crossed(lower: bytes | None, upper: bytes | None) -> tuple[bytes, bytes]:
    if lower is None or upper is None:
        raise CannotDamageError
    if lower != upper:
        return upper, lower
    return lower + b"\x7f", lower


# Entries


def _entry(damager: Damager) -> Lie:
    place = damager.some([*damager.entries()])
    if damager.chosen.random() < 0.3:
        name = damager.chosen.choice([name for name in place.entry if name != "data_file"])
        before = place.entry[name]
        after = _other(damager.chosen, before, [one.entry[name] for one in damager.entries()])
        _edit(lambda: damager.edit_entry(place, lambda entry: entry.update({name: after})))
        return _changed(f"entry {name}", before, after)
    names = [name for name in place.file if name not in (*_MAPS, "partition")]
    name = damager.chosen.choice(names)
    before = place.file[name]
    after = _other(damager.chosen, before, [one.file.get(name) for one in damager.entries()])
    _edit(lambda: damager.edit_file(place, **{name: after}))
    return _changed(f"entry {_content(place)} {name}", before, after)


def _metrics(damager: Damager) -> Lie:
    """A count or a bound of a column; those of `file_path` too."""
    place = damager.some([p for p in damager.entries() if any(p.file.get(name) for name in _MAPS)])
    name = damager.chosen.choice([name for name in _MAPS if place.file.get(name)])
    items = deepcopy(place.file[name])
    item = damager.chosen.choice(items)
    how = damager.chosen.choice(["crossed", "value", "value", "one less", "none"])
    after: Any = items
    if how == "crossed":
        bounds = {kind: {i["key"]: i["value"] for i in place.file.get(kind) or ()} for kind in _MAPS[-2:]}
        key = damager.chosen.choice(sorted(set(bounds["lower_bounds"]) & set(bounds["upper_bounds"])) or [None])
        if key is None:
            raise CannotDamageError
        crossed = _crossed(bounds["lower_bounds"][key], bounds["upper_bounds"][key])
        for kind, value in zip(bounds, crossed, strict=True):
            bounds[kind][key] = value
        values = {kind: [{"key": k, "value": v} for k, v in pairs.items()] for kind, pairs in bounds.items()}
        _edit(lambda: damager.edit_file(place, **values))
        return Lie(f"entry {_content(place)} bounds", f"crossed, of column {key}")
    if how == "value":
        item["value"] = _other(damager.chosen, item["value"], [one["value"] for one in items])
    elif how == "one less":
        items.remove(item)
    else:
        after = None
    _edit(lambda: damager.edit_file(place, **{name: after}))
    return Lie(f"entry {_content(place)} {name}", how)


def _crossed_paths(damager: Damager) -> Lie:
    """Bounds of the paths of data files in a file of position deletes, the wrong way round."""
    return _paths(damager, "crossed", _crossed)


def _cut_paths(damager: Damager) -> Lie:
    """The same bounds, cut to the directory of all paths, and not incremented: both are the path of no data file."""
    return _paths(damager, "cut", _cut)


def _cut(lower: bytes, upper: bytes) -> tuple[bytes, bytes]:
    directory = lower[: lower.rindex(b"/") + 1]
    if not upper.startswith(directory):
        raise CannotDamageError
    return directory, directory


def _paths(damager: Damager, how: str, changed: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> Lie:
    places = [
        place
        for place in damager.entries(POSITION_DELETES)
        if not is_vector(place.file) and {_PATH} <= {item["key"] for item in place.file.get("lower_bounds") or ()}
    ]
    place = damager.some(places)
    lower, upper = ({i["key"]: i["value"] for i in place.file[name]} for name in _MAPS[-2:])
    lower[_PATH], upper[_PATH] = changed(lower[_PATH], upper[_PATH])
    bounds = {
        n: [{"key": k, "value": v} for k, v in b.items()] for n, b in zip(_MAPS[-2:], (lower, upper), strict=True)
    }
    damager.edit_file(place, referenced_data_file=None, **bounds)
    return Lie("entry positions bounds", f"{how}, of file_path")


def _partition(damager: Damager) -> Lie:
    place = damager.some([p for p in damager.entries() if p.file["partition"]])
    name = damager.chosen.choice(sorted(place.file["partition"]))
    before = place.file["partition"][name]
    others = [one.file["partition"].get(name) for one in damager.entries()]
    after = _other(damager.chosen, before, others)
    _edit(lambda: damager.edit_file(place, partition={**place.file["partition"], name: after}))
    return _changed(f"entry {_content(place)} partition", before, after)


def _content(place: Place) -> str:
    content = place.file.get("content") or DATA
    return "vector" if is_vector(place.file) else ("data", "positions", "equality")[content]


# What a manifest says of itself


def _header(damager: Damager) -> Lie:
    rows = damager.rows()
    if not rows:
        raise CannotDamageError
    manifest = damager.chosen.choice(rows)["manifest_path"]
    reader = fastavro.reader(io.BytesIO(damager.read(manifest)))
    name = damager.chosen.choice(sorted(name for name in reader.metadata if not name.startswith("avro.")))
    before = reader.metadata[name]
    after = damager.chosen.choice([None, "", "0", "1", "data", "deletes", "[]", "{}", before + " "])
    damager.edit_header(manifest, {name: after})
    return _changed(f"header {name}", before, after)


# Metadata


def _metadata(damager: Damager) -> Lie:
    document = damager.metadata()
    places = [*_leaves(document, ())]
    path, before = damager.chosen.choice(places)
    same = [value for other, value in places if other and other[-1] == path[-1]]
    after = _other(damager.chosen, before, same)
    _put(document, path, after)
    damager.write(damager.location, json.dumps(document).encode())
    name = ".".join("*" if isinstance(part, int) else part for part in path)
    return _changed(f"metadata {name}", before, after)


def _summary(damager: Damager) -> Lie:
    """A total of the head's summary."""
    head = damager.head()
    names = sorted(name for name in (head or {}).get("summary", {}) if name.startswith("total-"))
    if head is None or not names:
        raise CannotDamageError
    name = damager.chosen.choice(names)
    after = damager.chosen.choice(["0", str(int(head["summary"][name]) + 1), "-1", None])

    def change(document: Record) -> None:
        for snapshot in document["snapshots"]:
            if snapshot["snapshot-id"] == head["snapshot-id"]:
                snapshot["summary"].pop(name) if after is None else snapshot["summary"].update({name: after})

    damager.edit_metadata(change)
    return _changed(f"summary {name}", head["summary"][name], after)


def _leaves(value: Any, path: tuple[Any, ...]) -> Any:
    parts: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        yield path, value
        return
    for key, part in parts:
        yield from _leaves(part, (*path, key))


def _put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for part in path[:-1]:
        document = document[part]
    document[path[-1]] = value


# Data and delete files


def _ids(damager: Damager) -> Lie:
    """Columns of a file have no field id, one has none, or one has another."""
    place = damager.some([p for p in damager.entries() if str(p.file["file_format"]).lower() == "parquet"])
    table = pq.ParquetFile(io.BytesIO(damager.read(place.file["file_path"]))).read()
    how = damager.chosen.choice(["no ids", "one without", "one without", "other id"])
    which = damager.chosen.randrange(len(table.schema))
    fields = [
        field.with_metadata({})
        if how == "no ids" or (how == "one without" and number == which)
        else field.with_metadata({"PARQUET:field_id": str(_ABSENT)})
        if how == "other id" and number == which
        else field
        for number, field in enumerate(table.schema)
    ]
    _rewritten(damager, place, pa.table(table.columns, schema=pa.schema(fields)))
    return Lie(f"file {_content(place)} field ids", how)


def _mapped_ids(damager: Damager) -> Lie:
    """Where a name mapping names all columns."""
    document = damager.metadata()
    schema = next(s for s in document["schemas"] if s["schema-id"] == document["current-schema-id"])
    mapping = [{"field-id": field["id"], "names": [field["name"]]} for field in schema["fields"]]
    made = _ids(damager)
    damager.edit_metadata(
        lambda found: found["properties"].update({"schema.name-mapping.default": json.dumps(mapping)})
    )
    return Lie(f"{made.where}, mapped", made.text)


def _rows_of_deletes(damager: Damager) -> Lie:
    """Position deletes in another order, twice, behind the end of the file, or of a file that is not there."""
    place = damager.some(
        [
            p
            for p in damager.entries(POSITION_DELETES)
            if not is_vector(p.file) and str(p.file["file_format"]).lower() == "parquet"
        ]
    )
    table = pq.ParquetFile(io.BytesIO(damager.read(place.file["file_path"]))).read()
    how = damager.chosen.choice(["turned round", "twice", "behind the end", "another file"])
    more = table.slice(0, 1)
    if how == "turned round":
        table = table.take(list(range(len(table)))[::-1])
    elif how == "twice":
        table = pa.concat_tables([table, more])
    else:
        column = 1 if how == "behind the end" else 0
        value = pa.array([10**9 if column else "memory://lake/nowhere"], table.schema.field(column).type)
        table = pa.concat_tables([table, more.set_column(column, table.schema.field(column), value)])
    _rewritten(damager, place, table)
    return Lie("file positions rows", how)


def _footer(damager: Damager) -> Lie:
    """A number of a Parquet footer: rows, values and nulls of a row group or a column, or a bound."""
    place = damager.some([p for p in damager.entries() if str(p.file["file_format"]).lower() == "parquet"])
    data = damager.read(place.file["file_path"])
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    spots = [*_spots(Struct(footer))]
    name, field, struct_ = damager.chosen.choice(spots)
    span = struct_.spans.get(field)
    if span is None:
        raise CannotDamageError
    if isinstance(value := struct_.binary(field) if field in _TEXTS.get(name, ()) else None, bytes):
        after: Any = _other(damager.chosen, value, [])
        if after is None:
            raise CannotDamageError
        written = _varint(len(after)) + after
    else:
        value = struct_.value(field)
        after = damager.chosen.choice([0, value + 1, 2 * value + 3])
        written = _varint(2 * after)
    changed = footer[: span.start] + written + footer[span.end :]
    _stored(damager, place, data[: -8 - length] + changed + struct.pack("<I", len(changed)) + data[-4:])
    return _changed(f"footer {_content(place)} {name} {field}", value, after)


_TEXTS: Mapping[str, tuple[int, ...]] = {"statistics": (1, 2, 5, 6)}


def _spots(footer: Struct) -> Any:
    yield "file", 3, footer
    for group in footer.structs(4):
        yield "row group", 3, group
        for chunk in group.structs(1):
            column = chunk.struct(3)
            if column is None:
                continue
            yield "column", 5, column
            if (statistics := column.struct(12)) is not None:
                for field in sorted(statistics.spans.keys() & {1, 2, 3, 5, 6}):
                    yield "statistics", field, statistics


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _rewritten(damager: Damager, place: Place, table: pa.Table) -> None:
    out = io.BytesIO()
    pq.write_table(table, out, store_schema=False)
    _stored(damager, place, out.getvalue(), split_offsets=None)


def _stored(damager: Damager, place: Place, data: bytes, **changes: Any) -> None:
    damager.write(place.file["file_path"], data)
    known = {name: value for name, value in changes.items() if name in place.file}
    damager.edit_file(place, file_size_in_bytes=len(data), **known)


def _edit(change: Callable[[], object]) -> None:
    """A value that the schema of an Avro file does not take cannot be written."""
    try:
        change()
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError, struct.error) as error:
        raise CannotDamageError from error


_KINDS: Mapping[Callable[[Damager], Lie], float] = {
    _row: 4,
    _counts: 2,
    _min_numbers: 0.5,
    _summaries: 2,
    _entry: 5,
    _metrics: 4,
    _crossed_paths: 0.5,
    _cut_paths: 0.5,
    _partition: 1,
    _header: 1.5,
    _metadata: 2,
    _summary: 1,
    _ids: 1,
    _mapped_ids: 1,
    _rows_of_deletes: 1,
    _footer: 1.5,
}
