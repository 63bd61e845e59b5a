"""Tables in memory whose files are named but never written: for tests of what commits do to metadata.

What a table holds is read with fastavro alone, raw, so that our own reader does not vouch for our own writer.
"""

import io
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import fastavro
from msgspec.structs import asdict, replace

from icekeep.catalog.base import Committed, Table
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.history import FilesChanged, commit_history
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED, PartitionSpec, build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.types import DOUBLE, LONG, STRING, NestedField
from icekeep.spec.updates import SetSnapshotRef, Update
from icekeep.spec.values import value_to_bytes
from kit.memory_catalog import MemoryCatalog

EVENTS = ("db", "events")
COLUMNS = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG, required=True),
        NestedField(field_id=2, name="kind", type=STRING),
        NestedField(field_id=3, name="score", type=DOUBLE),
    )
)
BY_KIND = build_spec(COLUMNS, [("kind", "identity", None)])
BY_SCORE = build_spec(COLUMNS, [("score", "identity", None)])


class RawEntry(NamedTuple):
    """An entry as its manifest stores it, nothing inherited."""

    name: str
    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None


def memory_table(
    catalog: MemoryCatalog | None = None,
    *,
    schema: Schema = COLUMNS,
    spec: PartitionSpec = UNPARTITIONED,
    format_version: int = 2,
    **properties: str,
) -> Table:
    """An empty table; `__` in the names of properties stands for `.`, `_` for `-`."""
    catalog = MemoryCatalog() if catalog is None else catalog
    catalog.create_namespace(EVENTS[:-1], exists_ok=True)
    metadata = new_table_metadata(
        schema=schema,
        spec=spec,
        location=catalog.default_location(EVENTS),
        table_uuid=str(catalog.runtime.new_uuid()),
        now_ms=catalog.runtime.now_ms(),
        properties={name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()},
        format_version=format_version,
    )
    return catalog.create(EVENTS, metadata)


def data_file(name: str, records: int = 10, partition: tuple[Any, ...] = (), *, spec_id: int = 0) -> DataFile:
    return DataFile(
        file_path=f"memory://lake/wh/db/events/data/{name}",
        file_format="PARQUET",
        spec_id=spec_id,
        partition=partition,
        record_count=records,
        file_size_in_bytes=10 * records,
    )


def files(*names: str, records: int = 10) -> tuple[DataFile, ...]:
    """Files of an unpartitioned table."""
    return tuple(data_file(name, records) for name in names)


def with_ids(name: str, low: int, high: int, partition: tuple[Any, ...] = ("x",), **changes: Any) -> DataFile:
    """A file of ten rows whose ids lie between two bounds."""
    counts = {"value_counts": {1: 10}, "null_value_counts": {1: 0}}
    bounds = {"lower_bounds": {1: value_to_bytes(LONG, low)}, "upper_bounds": {1: value_to_bytes(LONG, high)}}
    return replace(data_file(name, 10, partition), **{**counts, **bounds, **changes})


def ids(table: Table) -> list[int]:
    """The snapshots of a table, in order."""
    return [snapshot.snapshot_id for snapshot in table.metadata.snapshots]


def add(table: Table, *added: str | DataFile, branch: str = "main") -> Table:
    """The table after another commit that appends files."""
    change = AppendFiles(files=tuple(data_file(f) if isinstance(f, str) else f for f in added), branch=branch)
    return commit(table, change, runtime=table.catalog.runtime).table


def swap(table: Table, *updates: Update) -> Table:
    """The table after updates that nobody checks."""
    latest = table.catalog.load(table.identifier)
    outcome = table.catalog.swap(latest, [], updates)
    assert isinstance(outcome, Committed)
    return outcome.table


def set_ref(table: Table, name: str, snapshot_id: int, kind: str = "tag", **retention: int) -> Table:
    """The table with a branch or tag."""
    return swap(table, SetSnapshotRef(name, SnapshotRef(snapshot_id=snapshot_id, type=kind, **retention)))


def entries_of(table: Table, *names: str) -> tuple[ManifestEntry, ...]:
    """Live entries of the current snapshot as a plan reads them; all of them if no names are given."""
    reader = ManifestReader(table.storage)
    found = [
        entry
        for manifest in reader.manifests(table.metadata.current_snapshot)
        for entry in reader.entries(manifest, table.metadata)
        if entry.is_live
    ]
    chosen = [e for e in found if not names or e.data_file.file_path.rsplit("/", 1)[-1] in names]
    assert len(chosen) >= len(names)
    return tuple(chosen)


def manifests_of(table: Table) -> list[ManifestFile]:
    return ManifestReader(table.storage).manifests(table.metadata.current_snapshot)


def raw(table: Table, location: str) -> list[dict[str, Any]]:
    """The records of an Avro file."""
    return list(fastavro.reader(io.BytesIO(table.storage.read(location))))


def raw_list(table: Table, ref: str = "main") -> list[dict[str, Any]]:
    """The rows of a branch's manifest list."""
    head = table.metadata.head(ref)
    return [] if head is None else raw(table, head.manifest_list)


def raw_entries(table: Table, ref: str = "main") -> list[RawEntry]:
    """The entries of a branch's manifests, deleted ones too, in order."""
    return [
        RawEntry(
            record["data_file"]["file_path"].rsplit("/", 1)[-1],
            record["status"],
            record["snapshot_id"],
            record.get("sequence_number"),
            record.get("file_sequence_number"),
        )
        for row in raw_list(table, ref)
        for record in raw(table, row["manifest_path"])
    ]


def live(table: Table, ref: str = "main") -> Counter[str]:
    """The names of the live files of a branch, as a multiset: what its rows are made of."""
    return Counter(entry.name for entry in raw_entries(table, ref) if entry.status != 2)


def staged_manifest(table: Table, entries: Iterable[ManifestEntry], name: str = "optimized-m-1") -> ManifestFile:
    """A manifest of existing entries that no snapshot lists yet, as a maintenance job writes them."""
    metadata = table.metadata
    builder = ManifestBuilder(
        f"{metadata.location}/metadata/{name}.avro",
        EntryEncoder(metadata.partition_type(metadata.default_spec_id), metadata.format_version),
        metadata.spec,
        metadata.schema,
        format_version=metadata.format_version,
    )
    for entry in entries:
        builder.add(replace(entry, status=Status.EXISTING))
    data, manifest = builder.finish(None)
    table.storage.create(builder.location, data)
    return manifest


def orphans(catalog: MemoryCatalog) -> set[str]:
    """Manifests and manifest lists in storage that no snapshot of `db.events` leads to."""
    table = catalog.load(EVENTS)
    lists = {s.manifest_list for s in table.metadata.snapshots if s.manifest_list}
    manifests = {row["manifest_path"] for location in lists for row in raw(table, location)}
    return {location for location in stored(catalog) if location.endswith(".avro")} - lists - manifests


def stored(catalog: MemoryCatalog) -> set[str]:
    """Every location that the catalog's memory holds."""
    inner = getattr(catalog.storage, "inner", catalog.storage)
    return set(inner.files)


def written_by(locations: Iterable[str], commit_id: str) -> set[str]:
    """Of some locations, the manifests and manifest lists of one commit."""
    return {location for location in locations if commit_id in location}


HOUR_MS = 3_600_000
NOTHING = dict.fromkeys(FilesChanged.__struct_fields__, 0)


def wait(table: Table, hours: int = 1) -> Table:
    """So that no two commits are of one moment."""
    table.catalog.runtime.pass_ms(hours * HOUR_MS)
    return table


def appends(version: int = 2, count: int = 3, **properties: str) -> Table:
    """Commits of 1, 2 ... files of 10 rows and 100 bytes each, an hour apart."""
    table = memory_table(format_version=version, commit__manifest_merge__enabled="false", **properties)
    for number in range(1, count + 1):
        table = add(wait(table), *(f"{number}-{n}" for n in range(number)))
    return table


def changed(known: FilesChanged) -> dict[str, int | None]:
    """What is not zero of it."""
    return {name: count for name, count in asdict(known).items() if count != 0}


def with_summaries(table: Table, *kept: str) -> Table:
    """The same table, whose summaries have nothing but these keys."""
    snapshots = tuple(
        replace(s, summary={key: s.summary[key] for key in kept if key in s.summary}) for s in table.metadata.snapshots
    )
    return replace(table, metadata=replace(table.metadata, snapshots=snapshots))


def history_ids(table: Table, **arguments: Any) -> list[int]:
    """The snapshots that a history tells of, in its order."""
    return [entry.snapshot_id for entry in commit_history(table, **arguments).commits]
