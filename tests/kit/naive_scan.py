"""A table's rows and health as one process reads them: every live file and every entry, slow and plain.

Rows are less what vectors and position deletes remove; equality deletes are not applied, so that rows that are right here need
none. Files are decoded by the library's own readers, which know all formats and evolved schemas; `beside` reads by PyArrow alone.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.puffin import read_deletion_vector
from icekeep.formats.reader import SourceFile, read_file
from icekeep.health.values import TableHealth
from icekeep.maintenance.compact.job import plan_compact
from icekeep.maintenance.deletes.job import plan_rewrite_position_deletes
from icekeep.maintenance.manifests.job import plan_rewrite_manifests
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.partitioning import identity_values
from icekeep.spec.reach import is_deletion_vector, partition_key
from icekeep.spec.schema import (
    DELETE_FILE_PATH,
    DELETE_FILE_POS,
    DELETED,
    LAST_UPDATED_SEQUENCE_NUMBER,
    ROW_ID,
    Schema,
    name_mapping_of,
)
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import ListType, MapType, NestedField, StructType, Type
from kit.rows import row_texts
from kit.runtime import no_spark

_DELETES = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))


def live_entries(table: Table, ref: str = MAIN) -> list[ManifestEntry]:
    """The live entries of a branch, delete files among them."""
    snapshot = table.metadata.head(ref)
    if snapshot is None:
        return []
    reader = ManifestReader(table.storage)
    return [
        entry
        for manifest in reader.manifests(snapshot)
        for entry in reader.entries(manifest, table.metadata)
        if entry.is_live
    ]


def scan_rows(table: Table, *metadata_columns: NestedField) -> pa.Table:
    """The rows that are not deleted, and the metadata columns asked for."""
    entries = live_entries(table)
    positions = [entry for entry in entries if entry.data_file.content is FileContent.POSITION_DELETES]
    deleted = newest_deletes(positions, lambda file: _positions(table, file))
    schema = table.metadata.schema
    wanted = replace(schema, fields=(*schema.fields, *metadata_columns, DELETED))
    tables = [
        part.filter(pc.invert(part.column(DELETED.name)))
        for entry in entries
        if entry.data_file.content is FileContent.DATA
        for part in read_file(table.storage, _source(table, entry, deleted), wanted)
    ]
    return pa.concat_tables(tables or [arrow_schema(wanted).empty_table()]).drop_columns([DELETED.name])


def naive_rows(table: Table) -> Counter[str]:
    """The same rows, each as a text, to be compared with the texts of others."""
    return row_texts(table.metadata.schema, scan_rows(table).to_pylist())


def lineage_of(table: Table) -> dict[int, tuple[int, int]]:
    """In format version 3, of each row by the value of its column `id`: its row id, and the number of its last change."""
    rows = scan_rows(table, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER).to_pylist()
    return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows}


def _source(table: Table, entry: ManifestEntry, deleted: dict[str, dict[int, int]]) -> SourceFile:
    metadata, file = table.metadata, entry.data_file
    fields = metadata.specs_by_id[file.spec_id].fields
    age = entry.sequence_number or 0
    return SourceFile(
        location=file.file_path,
        file_format=file.file_format,
        constants=identity_values(metadata.specs_by_id[file.spec_id], file.partition),
        name_mapping=name_mapping_of(metadata.properties),
        spec_id=file.spec_id,
        partition={f.field_id: value for f, value in zip(fields, file.partition, strict=True)},
        first_row_id=file.first_row_id,
        data_sequence_number=entry.sequence_number,
        deleted_positions=sorted(p for p, newest in deleted.get(file.file_path, {}).items() if newest >= age),
    )


def newest_deletes(
    entries: Iterable[ManifestEntry], positions: Callable[[DataFile], Iterable[tuple[str, int]]]
) -> dict[str, dict[int, int]]:
    """By data file and position, the sequence number of the newest delete; it deletes rows of files that are not newer.

    Args:
        entries: of position delete files and deletion vectors.
        positions: reads one of them: which positions of which data files it names.
    """
    deleted: dict[str, dict[int, int]] = defaultdict(dict)
    for entry in entries:
        for path, position in positions(entry.data_file):
            deleted[path][position] = max(deleted[path].get(position, 0), entry.sequence_number or 0)
    return deleted


def _positions(table: Table, file: DataFile) -> Iterator[tuple[str, int]]:
    if file.content_offset is not None:
        assert file.referenced_data_file is not None
        for position in read_deletion_vector(table.storage, file):
            yield file.referenced_data_file, position
        return
    source = SourceFile(location=file.file_path, file_format=file.file_format)
    for part in read_file(table.storage, source, _DELETES):
        yield from zip(part.column(0).to_pylist(), part.column(1).to_pylist(), strict=True)


def spec_rows(rows: pa.Table, schema: Schema) -> list[dict[str, Any]]:
    """Rows in a schema's columns with values as `spec/values.py` has them; structs by field name, maps as pairs.

    For times and UUIDs that Python's own types, which `to_pylist` makes, cannot hold.
    """
    columns = [_values(rows.column(n).combine_chunks(), f.type) for n, f in enumerate(schema.fields)]
    names = [field.name for field in schema.fields]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(array: Any, type_: Type) -> list[Any]:
    match type_:
        case StructType(fields=fields):
            columns = [_values(array.field(n), f.type) for n, f in enumerate(fields)]
            return [
                {f.name: column[n] for f, column in zip(fields, columns, strict=True)} if valid else None
                for n, valid in enumerate(array.is_valid().to_pylist())
            ]
        case ListType(element=element):
            return [None if one.values is None else tuple(_values(one.values, element)) for one in array]
        case MapType(key=key, value=value):
            pairs = [None if one.values is None else one.values for one in array]
            return [
                None if p is None else tuple(zip(_values(p.field(0), key), _values(p.field(1), value), strict=True))
                for p in pairs
            ]
    if type_.name == "uuid":
        return [None if b is None else UUID(bytes=b) for b in array.storage.to_pylist()]
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    return array.to_pylist()


def data_of(table: Table) -> list[ManifestEntry]:
    return [entry for entry in live_entries(table) if entry.data_file.content is FileContent.DATA]


def deletes_of(table: Table) -> list[ManifestEntry]:
    return [entry for entry in live_entries(table) if entry.data_file.content is not FileContent.DATA]


def check_data(health: TableHealth, table: Table) -> None:
    files = [entry.data_file for entry in data_of(table)]
    found = health.data
    sizes = [file.file_size_in_bytes for file in files]
    assert (found.data_files_count, found.data_files_bytes) == (len(files), sum(sizes))
    assert found.record_count == sum(file.record_count for file in files)
    assert (found.small_files_count, found.small_files_bytes, found.large_files_count) == (len(files), sum(sizes), 0)
    assert (found.smallest_file_bytes, found.largest_file_bytes) == (min(sizes, default=None), max(sizes, default=None))
    buckets = Counter(1 << (size.bit_length() - 1) for size in sizes)
    assert {one.least_bytes: one.files_count for one in found.histogram} == buckets
    assert sum(one.bytes for one in found.histogram) == sum(sizes)


def check_deletes(health: TableHealth, table: Table) -> None:
    found = health.deletes
    data, deletes = data_of(table), deletes_of(table)
    kinds = defaultdict(list)
    for entry in deletes:
        kind = "equality" if entry.data_file.content is FileContent.EQUALITY_DELETES else "position"
        kinds["vector" if is_deletion_vector(entry.data_file) else kind].append(entry.data_file)
    for kind, prefix in (
        ("equality", "equality_delete_files"),
        ("position", "position_delete_files"),
        ("vector", "deletion_vectors"),
    ):
        files = kinds[kind]
        assert getattr(found, f"{prefix}_count") == len(files)
        assert getattr(found, f"{prefix}_bytes") == sum(file.own_bytes for file in files)
        assert getattr(found, f"{prefix}_record_count") == sum(file.record_count for file in files)
    reached = reaching_deletes(data, deletes, table.metadata.specs_by_id)
    pairs = [delete.data_file for some in reached.values() for delete in some]
    assert found.scan_read_bytes == sum(file.own_bytes for file in pairs)
    assert found.data_files_with_deletes_count == sum(bool(some) for some in reached.values())
    assert found.mean_deletes == (round(len(pairs) / len(data), 4) if data else 0)
    used = {(file.file_path, file.content_offset) for file in pairs}
    idle = [e.data_file for e in deletes if (e.data_file.file_path, e.data_file.content_offset) not in used]
    assert (found.dangling_count, found.dangling_bytes) == (len(idle), sum(file.own_bytes for file in idle))
    deleted = sum(file.record_count for file in (*kinds["position"], *kinds["vector"]))
    rows = sum(entry.data_file.record_count for entry in data)
    assert found.deleted_ratio == (round(deleted / rows, 4) if rows else 0)


def check_partitions(health: TableHealth, table: Table) -> None:
    sizes = Counter()
    for entry in data_of(table):
        sizes[partition_key(entry.data_file)] += entry.data_file.file_size_in_bytes
    found = health.partitions
    assert found.partitions_count == len(sizes)
    assert found.largest_partition_bytes == max(sizes.values(), default=None)
    if sizes:
        median = sorted(sizes.values())[(len(sizes) - 1) // 2]
        assert math.isclose(found.median_partition_bytes, median, rel_tol=0.01)


def check_references(health: TableHealth, table: Table) -> None:
    files = {
        ref: {
            (e.data_file.file_path, e.data_file.content_offset): e.data_file.own_bytes for e in live_entries(table, ref)
        }
        for ref in table.metadata.refs
    }
    found = {one.ref: one for one in health.refs}
    assert found.keys() == files.keys()
    for name, own in files.items():
        others = {file for other, some in files.items() if other != name for file in some}
        only = {file: size for file, size in own.items() if file not in others}
        assert (found[name].files_count, found[name].bytes) == (len(own), sum(own.values()))
        assert (found[name].only_files_count, found[name].only_bytes) == (len(only), sum(only.values()))


def check_jobs(health: TableHealth, table: Table) -> None:
    jobs = {one.job: one for one in health.jobs}
    compact = plan_compact(table, no_spark)
    found = jobs["compact"]
    assert (found.files_count, found.written_bytes) == (
        compact.rewritten_data_files_count,
        compact.rewritten_bytes_count,
    )
    assert found.has_work is (compact.rewritten_data_files_count > 0)
    deletes = plan_rewrite_position_deletes(table, no_spark)
    found = jobs["rewrite_position_deletes"]
    moved, dangling = deletes.rewritten_delete_files_count, deletes.removed_dangling_delete_files_count
    assert (found.files_count, found.has_work) == (moved + dangling, bool(moved + dangling))
    manifests = plan_rewrite_manifests(table, no_spark)
    found = jobs["rewrite_manifests"]
    assert found.files_count == manifests.rewritten_manifests_count
    assert found.read_bytes == manifests.rewritten_bytes_count
