"""The rows of a table's head as one process reads them: every live file, less what vectors and position deletes remove.

Slow and plain, for tests to compare with. Equality deletes are not applied, so that rows that are right here need none. Files
are decoded by the library's own readers, which know every format and evolved schemas; `snapshot_rows` reads by PyArrow alone.
"""

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
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.partitioning import identity_values
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
from kit.row_texts import row_texts

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
