"""What a table's manifests hold, told by three readers that share no code: ours, PyIceberg's and Iceberg Java's.

An entry is its JSON with every field after inheritance, but for the status; entries are compared as a multiset.
"""

import datetime
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import count, pairwise
from typing import Any

import msgspec
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.spec.filters.expressions import Expression
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.schema import Schema
from kit.java import IcebergJava
from kit.java_row_deletes import JavaTable
from kit.java_values import to_wire
from kit.lake import Lake

Entries = Counter[str]
Where = tuple[Expression, Schema]
_NUMBERS = count(1)
_MAPS = (
    "column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds",
)  # fmt: skip


class Telling(msgspec.Struct):
    """What is to be the same before and after: live entries by each reader, and what Java plans and reads.

    `manifests` alone differ; `foreign` is null where PyIceberg was not asked.
    """

    ours: Entries
    java: Entries
    foreign: Entries | None
    planned: list[list[Any]]
    rows: Entries
    manifests: list[dict[str, Any]]

    def of_group(self) -> Counter[tuple[int, int]]:
        """How many manifests there are by spec and content."""
        return Counter((m["partition_spec_id"], m["content"]) for m in self.manifests)


def told(
    java: IcebergJava, name: str, table: Table, foreign: Any, wheres: Sequence[str] = (), rows: Any = None
) -> Telling:
    """Ask all three about the current snapshot; `rows` reads its rows, `java.rows` where it is null."""
    schema = table.metadata.schema
    read = java_manifests(java, name)
    return Telling(
        ours=our_live_entries(table),
        java=java_live_entries(read),
        foreign=None if foreign is None else foreign_live_entries(foreign),
        planned=[_planned(java.plan_files(name, (parse_where(where), schema))) for where in wheres],
        rows=java.rows(name) if rows is None else rows(),
        manifests=read,
    )


class Case:
    """A table of a name of its own in a catalog that all share, and its telling."""

    def __init__(self, lake: Lake, java: IcebergJava) -> None:
        self.lake, self.java = lake, java
        self.identifier = ("db", f"rewritten{next(_NUMBERS)}")
        self.name = f"local.db.{self.identifier[1]}"
        self.theirs = JavaTable(java, self.name)

    @property
    def table(self) -> Table:
        """As it is now."""
        return self.lake.catalog.load(self.identifier)

    @property
    def foreign(self) -> Any:
        """As PyIceberg has it."""
        return self.lake.foreign_catalog().load_table(self.identifier)

    def told(self, *wheres: str, rows: Any = None, foreign: bool = True) -> Telling:
        """What is to stay as it is."""
        return told(self.java, self.name, self.table, self.foreign if foreign else None, wheres, rows)


def check_rewritten(before: Telling, after: Telling, *, with_row_ids: bool = True) -> None:
    """Every live entry is there once, with every field; the new rows of the list are those that Java would write.

    With `with_row_ids=False` those of files that had no row id before are assigned by the rewriting: as the spec has it
    for what was there when a table became one of version 3.
    """
    assert before.ours
    if with_row_ids:
        assert (after.ours, after.java) == (before.ours, before.java)
        assert after.ours == after.java
    else:
        _check_assigned(before.ours, after.ours)
        _check_assigned(before.java, after.java)
    assert after.foreign == before.foreign
    assert after.planned == before.planned
    assert after.rows == before.rows
    known = {m["manifest_path"] for m in before.manifests}
    new = [m for m in after.manifests if m["manifest_path"] not in known]
    for manifest in new:
        assert manifest["listed"] == manifest["recomputed"], manifest["manifest_path"]
        assert manifest["listed"]["deleted_files_count"] == manifest["listed"]["deleted_rows_count"] == 0
        assert manifest["entries"]


def check_one_manifest_a_group(before: Telling, after: Telling) -> None:
    """What is small becomes one manifest of each spec and content; what holds nothing goes."""
    live = {(m["partition_spec_id"], m["content"]) for m in before.manifests if m["entries"]}
    assert after.of_group() == Counter(live)


def our_live_entries(table: Table, snapshot_id: int | None = None) -> Entries:
    """As our own reader of a single manifest has them, which writes none."""
    metadata = table.metadata
    snapshot = metadata.current_snapshot if snapshot_id is None else metadata.snapshots_by_id[snapshot_id]
    reader = ManifestReader(table.storage)
    return Counter(
        _text(_our_entry(entry, table))
        for manifest in (reader.manifests(snapshot) if snapshot is not None else [])
        for entry in reader.typed_entries(manifest, metadata.partition_type(manifest.partition_spec_id))
        if entry.is_live
    )


def _our_entry(entry: ManifestEntry, table: Table) -> dict[str, Any]:
    file = entry.data_file
    fields = table.metadata.partition_type(file.spec_id).fields
    told = {name: getattr(file, name) for name in DataFile.__struct_fields__ if name not in _MAPS}
    return {
        **told,
        "content": int(file.content),
        "file_format": file.file_format.upper(),
        "partition": [to_wire(f.type, value) for f, value in zip(fields, file.partition, strict=True)],
        "key_metadata": None if file.key_metadata is None else file.key_metadata.hex(),
        **{name: _pairs(getattr(file, name)) for name in _MAPS},
        "snapshot_id": entry.snapshot_id,
        "sequence_number": entry.sequence_number,
        "file_sequence_number": entry.file_sequence_number,
    }


def java_live_entries(read: Sequence[Mapping[str, Any]]) -> Entries:
    """Of what `java_manifests` answered."""
    return Counter(_text(entry) for manifest in read for entry in manifest["entries"])


def java_manifests(java: IcebergJava, name: str, snapshot_id: int | None = None) -> list[dict[str, Any]]:
    """The manifests of a snapshot, each with its `entries`, its row as it is `listed` and as Java has `recomputed` it."""
    return java.ask("Manifests.read", table=name.split("."), snapshot_id=snapshot_id)


def foreign_live_entries(foreign: Any, snapshot_id: int | None = None) -> Entries:
    """As PyIceberg has them; it inherits no `first_row_id`."""
    snapshot = foreign.current_snapshot() if snapshot_id is None else foreign.snapshot_by_id(snapshot_id)
    return Counter(
        _text(_foreign_entry(entry))
        for manifest in snapshot.manifests(foreign.io)
        for entry in manifest.fetch_manifest_entry(foreign.io, discard_deleted=True)
    )


def _check_assigned(before: Entries, after: Entries) -> None:
    """The same but for data files without a row id, which have one now; no row has the id of another."""
    old, new = ([json.loads(text) for text in side.elements()] for side in (before, after))
    assert Counter(_text({**e, "first_row_id": None}) for e in old) == Counter(
        _text({**e, "first_row_id": None}) for e in new
    )
    ids = {e["file_path"]: e["first_row_id"] for e in new if e["content"] == 0}
    assert all(ids[e["file_path"]] == e["first_row_id"] for e in old if e["first_row_id"] is not None)
    ranges = sorted((e["first_row_id"], e["first_row_id"] + e["record_count"]) for e in new if e["content"] == 0)
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))


def _planned(files: Sequence[Mapping[str, Any]]) -> list[Any]:
    return sorted([file["file_path"], sorted(file["delete_paths"]), file["residual"]] for file in files)


def _foreign_entry(entry: Any) -> dict[str, Any]:
    file = entry.data_file
    fields = DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields
    named = {field.name: value for field, value in zip(fields, file._data, strict=True)}
    return {
        **{name: _plain(value) for name, value in named.items() if name != "first_row_id"},
        "partition": [_plain(value) for value in file.partition._data],
        "spec_id": file.spec_id,
        "snapshot_id": entry.snapshot_id,
        "sequence_number": entry.sequence_number,
        "file_sequence_number": entry.file_sequence_number,
    }


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case Mapping():
            return sorted([key, _plain(item)] for key, item in value.items())
        case bytes():
            return value.hex()
        case None | bool() | int() | str() | list():
            return value
        case float() | datetime.date():
            return repr(value)
    return str(value)


def _pairs(value: Mapping[int, Any] | None) -> list[list[Any]] | None:
    if value is None:
        return None
    return [[key, item.hex() if isinstance(item, bytes) else item] for key, item in sorted(dict(value).items())]


def _text(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True)
