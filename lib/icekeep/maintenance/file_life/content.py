"""What a version of the table says of one data or delete file: its entry, the deletes that reach it, how a filter sees it."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.maintenance.deletion.file_kinds import CONTENT_KINDS
from icekeep.maintenance.file_life.deletes import SHOWN_COUNT, deletes_reaching, is_puffin, vectors_of
from icekeep.maintenance.file_life.result import KnownColumn
from icekeep.maintenance.file_life.search import whole_entries
from icekeep.planning.manifests import ENTRIES
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.scan.report import explain_entry, metrics_text
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.filters.expressions import Expression
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot

_SIZES = ("lower_bounds", "upper_bounds", "null_value_counts")


def kind_of(content: int, file_format: str) -> str:
    """What a file is by its entry."""
    return "deletion vectors" if is_puffin(content, file_format) else str(CONTENT_KINDS[FileContent(content)])


def described(
    path: str,
    manifests: Sequence[ManifestFile],
    snapshot: Snapshot,
    table: Table,
    spark: SparkSource,
    where: str | Expression | None,
) -> tuple[dict[str, Any], list[str]]:
    """Fields of `WhyResult` that a version says, and notes about what could not be told.

    Args:
        manifests: those of the version that have live entries of the file.
        where: a filter, of which is told what becomes of a data file; without one the bounds of columns are told.

    Raises:
        ExpressionError, NotFoundError: the filter does not fit the table.
    """
    entries = whole_entries(manifests, table, path, ENTRIES.names)
    row: dict[str, Any] = entries.slice(0, 1).to_pylist(maps_as_pydicts="lossy")[0]
    if is_puffin(row["content"], row["file_format"]):
        vectors = vectors_of(entries)
        some = {"vectors_count": len(vectors), "vectors": tuple(vectors[:SHOWN_COUNT])}
        return some | {"record_count": sum(vector.record_count for vector in vectors)}, []
    spec_id = row["spec_id"]
    partition = PartitionCodec(table.metadata.partition_type(spec_id)).decode(row["partition"])
    told = {
        "record_count": row["record_count"],
        "partition": table.metadata.partition_path(spec_id, partition) or None,
        "sequence_number": row["sequence_number"],
        "referenced_data_file": row["referenced_data_file"],
    }
    if row["content"] != FileContent.DATA:
        return told, []
    manifest = next(m for m in manifests if m.manifest_path == row["manifest_path"])
    told |= _of_scan(row, manifest, snapshot, table, where)
    deletes, problem = _deletes(entries, snapshot, table, spark)
    return told | deletes, [problem] if problem else []


def _deletes(
    entries: pa.Table, snapshot: Snapshot, table: Table, spark: SparkSource
) -> tuple[dict[str, Any], str | None]:
    try:
        deletes = deletes_reaching(entries.slice(0, 1), table, snapshot, spark)
    except (InvalidTableError, UnsupportedError) as error:
        return {}, f"which deletes reach it cannot be determined: {error.message}"
    return {"deletes_count": len(deletes), "deletes": tuple(deletes[:SHOWN_COUNT])}, None


def _of_scan(
    row: dict[str, Any], manifest: ManifestFile, snapshot: Snapshot, table: Table, where: str | Expression | None
) -> dict[str, Any]:
    metadata = table.metadata
    if where is None:
        return {"columns": _columns(row, metadata.schema)}
    is_current = snapshot.snapshot_id == metadata.current_snapshot_id
    version_id = None if is_current else snapshot.snapshot_id
    scan = open_scan(table, where=where, snapshot_id=version_id)
    explained = explain_entry(scan, row, manifest)
    return {
        "is_read_by_filter": explained.is_read,
        "pruned_by": explained.pruned_by,
        "evidence": explained.evidence,
    }


def _columns(row: dict[str, Any], schema: Schema) -> tuple[KnownColumn, ...]:
    file = DataFile(
        content=FileContent.DATA,
        partition=(),
        **{name: row[name] for name in DataFile.__struct_fields__ if name not in ("content", "partition")},
    )
    known = {field_id for name in _SIZES for field_id in row[name] or ()}
    return tuple(
        KnownColumn(column=name, known=metrics_text(schema.fields_by_id[field_id], file))
        for field_id, name in schema.names_by_id.items()
        if field_id in known
    )
