"""Tables in memory whose manifests are rewritten: builders, the job without Spark, and what must hold after it."""

import io
import itertools
import json
import struct
from typing import Any

import fastavro
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.retry import commit
from icekeep.maintenance.manifests.job import RewriteManifestsResult, rewrite_manifests
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestFile
from icekeep.spec.partitioning import build_spec
from icekeep.spec.values import value_from_bytes
from kit.deletes import AddDeleteFile
from kit.no_spark import no_spark
from kit.rewritten_manifests import our_live_entries
from kit.tables import (
    BY_KIND,
    COLUMNS,
    add,
    data_file,
    manifests_of,
    memory_table,
    orphans,
    raw,
)

BY_KIND_AND_SCORE = build_spec(COLUMNS, [("kind", "identity", None), ("score", "identity", None)])
# Small enough that the head of a manifest matters, so it is left uncompressed as the entries are.
SMALL = {"commit__manifest__target_size_bytes": "10000", "write__manifest__compression_codec": "uncompressed"}


def rewrite(table: Table, **arguments: Any) -> RewriteManifestsResult:
    """Run the job, to which Spark is not to be had."""
    return rewrite_manifests(table, no_spark, **arguments)


def reload(table: Table) -> Table:
    """The table as it is now."""
    return table.catalog.load(table.identifier)


def counts(result: RewriteManifestsResult) -> tuple[int, int]:
    """The columns of Iceberg's procedure."""
    return result.rewritten_manifests_count, result.added_manifests_count


def kinds(count: int = 4, spec: Any = BY_KIND, version: int = 2, **properties: str) -> Table:
    """A table of `count` manifests, each with a file in each of three partitions."""
    table = memory_table(spec=spec, format_version=version, commit__manifest_merge__enabled="false", **properties)
    for number in range(count):
        table = add(table, *(data_file(f"{kind}{number}", partition=(kind,)) for kind in ("a", "b", None)))
    return table


def wide(version: int = 2, commits: int = 5, **partition: Any) -> Table:
    """Many files of many partitions, scattered over all manifests, which are larger than the target together."""
    spec = build_spec(COLUMNS, [("id", "identity", None)])
    table = memory_table(spec=spec, format_version=version, **SMALL)
    for number in range(commits):
        table = add(table, *(data_file(f"{n:03}", partition=(n,)) for n in range(number, 500, commits)))
    return table


def scattered(version: int = 2) -> Table:
    """Files of one partition tuple each; no manifest is narrow in any of the fields, and ids are only told by bounds."""
    table = memory_table(spec=BY_KIND_AND_SCORE, format_version=version, **SMALL)
    for number in range(4):
        files = []
        for n in range(number, 400, 4):
            lower = {1: struct.pack("<q", (n * 7919) % 400)}
            file = data_file(f"{n:03}", partition=(f"k{n * 17 % 20:02}", float(n * 31 % 400)))
            files.append(replace(file, lower_bounds=lower, upper_bounds=lower))
        table = add(table, *files)
    return table


def check_same(table: Table, result: RewriteManifestsResult, manifests_count: int) -> list[ManifestFile]:
    """Every live entry of `table` is in its newest version, in so many manifests, which are returned."""
    after = reload(table)
    entries = our_live_entries(table)
    assert entries
    assert our_live_entries(after) == entries
    manifests = manifests_of(after)
    assert len(manifests) == manifests_count
    snapshot = after.metadata.current_snapshot
    assert snapshot is not None
    assert snapshot.operation == "replace"
    new = [m for m in manifests if m.added_snapshot_id == snapshot.snapshot_id]
    assert len(new) == result.added_manifests_count
    for manifest in new:
        _check_row(after, manifest)
    assert orphans(after.catalog) == set()
    return manifests


def _check_row(table: Table, manifest: ManifestFile) -> None:
    """What the list says of a manifest is what its entries, as fastavro has them, add up to."""
    entries = raw(table, manifest.manifest_path)
    assert {entry["status"] for entry in entries} == {0}
    assert manifest.existing_files_count == len(entries)
    assert manifest.existing_rows_count == sum(entry["data_file"]["record_count"] for entry in entries)
    assert manifest.min_sequence_number == min(entry.get("sequence_number") or 0 for entry in entries)
    for field, summary in zip(
        table.metadata.partition_type(manifest.partition_spec_id).fields, manifest.partitions or (), strict=True
    ):
        values = [entry["data_file"]["partition"][field.name] for entry in entries]
        known = [value for value in values if value is not None]
        bounds = [
            None if bound is None else value_from_bytes(field.type, bound)
            for bound in (summary.lower_bound, summary.upper_bound)
        ]
        assert summary.contains_null == (len(known) < len(values))
        assert bounds == ([min(known), max(known)] if known else [None, None])


def position_deletes(name: str, data: DataFile, **changes: Any) -> DataFile:
    return replace(
        data_file(name, 1, data.partition, spec_id=data.spec_id),
        content=FileContent.POSITION_DELETES,
        **{"referenced_data_file": data.file_path, **changes},
    )


def with_deletes(table: Table, *files: DataFile) -> Table:
    """Each in a commit, and so in a manifest, of its own."""
    for file in files:
        table = commit(table, AddDeleteFile(file), runtime=table.catalog.runtime).table
    return table


def follow(found: list[tuple[Any, Any]]) -> bool:
    return all(before[1] <= after[0] for before, after in itertools.pairwise(found))


def with_retired_fields(table: Table, numbers: set[int]) -> Table:
    """The same table, some of whose manifests (by place in the list) have the fields that only old writers wrote.

    `distinct_counts`, `file_ordinal` and `sort_columns`: version 2 dropped them (spec, "Manifests").
    """
    snapshot = table.metadata.current_snapshot
    assert snapshot is not None
    rows, schema, metadata = _avro(table, snapshot.manifest_list)
    for place in numbers:
        path = rows[place]["manifest_path"]
        rows[place]["manifest_length"] = _retire(table, path, place)
    _store(table, snapshot.manifest_list, rows, schema, metadata)
    return reload(table)


def without_counts(table: Table) -> Table:
    """The same table of version 1, whose list does not say how many files each manifest holds, as it need not."""
    snapshot = table.metadata.current_snapshot
    assert snapshot is not None
    rows, schema, metadata = _avro(table, snapshot.manifest_list)
    for row in rows:
        row.update({name: None for name in row if name.endswith("_count")})
    _store(table, snapshot.manifest_list, rows, schema, metadata)
    return reload(table)


_COUNTS = {
    "type": "array",
    "logicalType": "map",
    "items": {
        "type": "record",
        "name": "k123_v124",
        "fields": [{"name": "key", "type": "int", "field-id": 123}, {"name": "value", "type": "long", "field-id": 124}],
    },
}
_RETIRED = (
    {"name": "distinct_counts", "field-id": 111, "type": ["null", _COUNTS], "default": None},
    {"name": "file_ordinal", "field-id": 106, "type": ["null", "int"], "default": None},
    {
        "name": "sort_columns",
        "field-id": 107,
        "type": ["null", {"type": "array", "items": "int", "element-id": 112}],
        "default": None,
    },
)


def _retire(table: Table, path: str, place: int) -> int:
    rows, schema, metadata = _avro(table, path)
    file_type = next(field["type"] for field in schema["fields"] if field["name"] == "data_file")
    file_type["fields"] = [*file_type["fields"], *_RETIRED]
    for number, row in enumerate(rows):
        counts = None if number % 3 == 2 else [{"key": 1, "value": 100 * place + number}, {"key": 2, "value": 2**40}]
        row["data_file"].update(distinct_counts=counts, file_ordinal=number or None, sort_columns=[2, place])
    return _store(table, path, rows, schema, metadata)


def _avro(table: Table, location: str) -> tuple[list[dict[str, Any]], Any, dict[str, str]]:
    reader = fastavro.reader(io.BytesIO(table.storage.read(location)))
    rows = [*reader]
    metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    return rows, json.loads(reader.metadata["avro.schema"]), metadata


def _store(table: Table, location: str, rows: list[dict[str, Any]], schema: Any, metadata: dict[str, str]) -> int:
    out = io.BytesIO()
    fastavro.writer(out, schema, rows, codec="deflate", metadata=metadata)
    table.storage.delete_many([location])
    table.storage.create(location, out.getvalue())
    return len(out.getvalue())
