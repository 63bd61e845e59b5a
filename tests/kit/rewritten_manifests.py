"""Rewrites of manifests: staged as the job plans them, run on tables in memory, and what must hold after them.

What manifests hold is told by three readers that share no code, ours, PyIceberg's and Iceberg Java's: an entry is its JSON with
every field after inheritance, but for the status; entries are compared as a multiset.
"""

import datetime
import io
import itertools
import json
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import count, pairwise
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.manifests.candidates import ManifestCandidates, candidates
from icekeep.maintenance.manifests.job import RewriteManifestsResult, rewrite_manifests
from icekeep.maintenance.manifests.records import RunWriter
from icekeep.maintenance.manifests.rules import RewriteManifestsRequest, RewriteRules, checked_rules
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.transcode import RecordsTask, RecordTarget, SortPart, live_records, sort_parts
from icekeep.spec.filters.expressions import Expression
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.read import read_manifest
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder
from icekeep.spec.partitioning import build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.types import StructType
from icekeep.spec.values import value_from_bytes
from icekeep.storage.base import Storage
from kit.changes import run
from kit.deletes import AddDeleteFile, path_of
from kit.java import IcebergJava
from kit.java_stories import JavaTable
from kit.lake import Lake
from kit.manifests import DAY, resized, spec_and_schema, write_manifest
from kit.memory_catalog import MemoryCatalog, after
from kit.rows import to_wire
from kit.runtime import no_spark
from kit.storage import MemoryStorage
from kit.tables import BY_KIND, COLUMNS, EVENTS, add, data_file, manifests_of, memory_table, orphans, raw, raw_list

PREFIX = "optimized"


def asked(table: Table, **arguments: Any) -> RewriteRules:
    """What arguments of `rewrite_manifests` come to for a table."""
    return checked_rules(table.metadata, RewriteManifestsRequest(**arguments))


def chosen(table: Table, *, spark: Any = no_spark, **arguments: Any) -> ManifestCandidates:
    """What `rewrite_manifests` would rewrite."""
    return candidates(table, asked(table, **arguments), spark, 0)


def listed(table: Table, branch: str = "main") -> list[ManifestFile]:
    """The manifests of a branch that may hold live files."""
    head = table.metadata.head(branch)
    return [] if head is None else [m for m in _reader(table).manifests(head) if m.may_have_live_files]


def live_in(table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
    """The live entries of a manifest."""
    return [entry for entry in _reader(table).entries(manifest, table.metadata) if entry.is_live]


def stated(table: Table, branch: str = "main") -> list[str]:
    """All that is said of the live files of a branch, but which status they have and where they are listed."""
    entries = [entry for m in listed(table, branch) for entry in live_in(table, m)]
    return sorted(repr(replace(entry, status=Status.EXISTING)) for entry in entries)


def staged(
    table: Table,
    name: str,
    entries: Iterable[ManifestEntry],
    spec_id: int = 0,
    content: ManifestContent = ManifestContent.DATA,
) -> ManifestFile:
    """A manifest of existing entries that no snapshot lists yet."""
    metadata = table.metadata
    builder = ManifestBuilder(
        f"{metadata.location}/metadata/{name}.avro",
        EntryEncoder(metadata.partition_type(spec_id), metadata.format_version),
        metadata.specs_by_id[spec_id],
        metadata.schema,
        format_version=metadata.format_version,
        content=content,
    )
    for entry in entries:
        builder.add(replace(entry, status=Status.EXISTING))
    data, manifest = builder.finish(None)
    table.storage.create(builder.location, data)
    return manifest


def rewrite_staged(
    table: Table,
    *,
    each: int = 2,
    branch: str = "main",
    chosen: Callable[[ManifestFile], Any] = lambda m: True,
    prefix: str = PREFIX,
    **options: Any,
) -> RewriteManifests:
    """A change that clusters the live entries of chosen manifests by partition and path, so many to each new one."""
    replaced, kinds = [m for m in listed(table, branch) if chosen(m)], defaultdict(list)
    for m in replaced:
        kinds[m.partition_spec_id, m.content] += live_in(table, m)
    added = []
    for (spec_id, content), entries in kinds.items():
        entries.sort(key=_order)
        for start in range(0, len(entries), each):
            name = f"{prefix}-m-{len(added)}"
            added.append(staged(table, name, entries[start : start + each], spec_id, content))
    return RewriteManifests(replaced=tuple(replaced), added=tuple(added), branch=branch, **options)


def latest(table: Any) -> Any:
    """The table as it is now."""
    return table.catalog.load(EVENTS)


def run_beside(table: Any, *acts: Callable[[], Any], change: Any = None, branch: str = "main", **options: Any) -> Any:
    """What comes of a rewrite where others act before its swaps, one before each: the files that they leave, in all fields."""
    left: list[list[str]] = []

    def acting(act: Callable[[], Any]) -> Callable[[], None]:
        def do() -> None:
            act()
            left.append(stated(latest(table), branch))

        return do

    change = rewrite_staged(table, branch=branch, **options) if change is None else change
    table.catalog.follow(*(after(acting(act)) for act in acts))
    result = run(table, change)
    assert stated(result.table, branch) == left[-1]
    assert len(left) == len(acts)
    assert orphans(table.catalog) == set()
    return result


def deleting(table: Any, *gone: str, branch: str = "main") -> Callable[[], Any]:
    """Another writer, who deletes files by their names."""
    return lambda: run(latest(table), DeleteFiles(paths=frozenset(map(path_of, gone)), branch=branch))


def six(catalog: MemoryCatalog, version: int = 2) -> Table:
    """Six files, two in each of three commits; `rewrite` puts `a b`, `c d` and `e f` together."""
    table = memory_table(catalog, format_version=version)
    return add(add(add(table, "a", "d"), "c", "f"), "b", "e")


def names(table: Table, branch: str = "main") -> dict[str, set[str]]:
    """The names of the files that each manifest lists as live, by its own name."""
    return {
        row["manifest_path"].rsplit("/", 1)[-1]: {
            record["data_file"]["file_path"].rsplit("/", 1)[-1]
            for record in raw(table, row["manifest_path"])
            if record["status"] != Status.DELETED
        }
        for row in raw_list(table, branch)
    }


def kept_as_staged(table: Table) -> list[int]:
    """The numbers of the manifests that `rewrite` has written and that are listed as they are."""
    parts = (name.removesuffix(".avro").rpartition(f"{PREFIX}-m-") for name in names(table))
    return sorted(int(number) for _, found, number in parts if found)


def _reader(table: Table) -> ManifestReader:
    """Past whatever a test does at the calls of a storage."""
    return ManifestReader(getattr(table.storage, "inner", table.storage))


def _order(entry: ManifestEntry) -> tuple[str, str, int]:
    file = entry.data_file
    return repr(file.partition), file.file_path, file.content_offset or 0


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


DIRECTORY = "memory://bucket/metadata"


class ManifestStore(MemoryStorage):
    """Manifests of one spec under names of their own, and their rows of a manifest list in order."""

    def __init__(self, partition: StructType = DAY) -> None:
        super().__init__()
        self.partition = partition
        self.rows: list[ManifestFile] = []

    def put(self, data: bytes, row: ManifestFile, **changes: Any) -> None:
        """Store a manifest; the row is as its writer left it but for `changes`."""
        location = f"memory://bucket/m{len(self.rows)}.avro"
        self.create(location, data)
        self.rows.append(replace(resized(row, data), manifest_path=location, **changes))

    def put_entries(self, entries: Iterable[ManifestEntry], **how: Any) -> None:
        self.put(*write_manifest(entries, self.partition, **how))

    def live(self) -> list[ManifestEntry]:
        """The live entries of all manifests in order, as existing ones."""
        entries = [e for row in self.rows for e in read_manifest(self.read(row.manifest_path), row, self.partition)[1]]
        return [replace(entry, status=Status.EXISTING) for entry in entries if entry.is_live]

    def task(self, target: RecordTarget, decoder: ManifestDecoder = ManifestDecoder.DATAFUSION) -> RecordsTask:
        return RecordsTask(
            manifests=tuple(self.rows),
            numbers={row.manifest_path: number for number, row in enumerate(self.rows)},
            target=target,
            storage=self,
            decoder=decoder,
        )

    def records(
        self, target: RecordTarget, decoder: ManifestDecoder = ManifestDecoder.DATAFUSION
    ) -> list[pa.RecordBatch]:
        return [*live_records(self.task(target, decoder))]


def target_of(
    partition: StructType = DAY,
    format_version: int = 2,
    sort: Sequence[SortPart] | None = None,
) -> RecordTarget:
    """Clustered by all partition fields, unless `sort` says otherwise."""
    _, schema = spec_and_schema(partition)
    parts = sort_parts(None, partition, schema) if sort is None else sort
    return RecordTarget(partition=partition, format_version=format_version, sort=tuple(parts))


def writer_of(target: RecordTarget, storage: Storage, target_bytes: int = 8 << 20, **changes: Any) -> RunWriter:
    spec, schema = spec_and_schema(target.partition)
    settings = {"content": ManifestContent.DATA, "codec": "gzip", "level": None, **changes}
    return RunWriter(
        directory=DIRECTORY,
        spec=spec,
        schema=schema,
        target=target,
        target_bytes=target_bytes,
        storage=storage,
        **settings,
    )


def entries_in(storage: Storage, manifests: Iterable[ManifestFile], partition: StructType) -> list[ManifestEntry]:
    """The entries of manifests that were just written, in order."""
    # What an existing entry says does not depend on the numbers of its manifest.
    rows = [replace(row, sequence_number=1 << 40, added_snapshot_id=0) for row in manifests]
    return [e for row in rows for e in read_manifest(storage.read(row.manifest_path), row, partition)[1]]
