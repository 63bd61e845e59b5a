"""Tables whose compacted files are lost, for tests of what can be put back: made without Spark, and told apart by rows."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.compact.job import compact
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from kit.choices import Choices
from kit.columns import table_of
from kit.damager import Damager
from kit.naive_scan import lineage_of, live_entries, naive_rows
from kit.no_spark import no_spark
from kit.our_histories import ByIcekeep, in_memory
from kit.row_histories import START
from kit.row_texts import scanned_rows
from kit.written_deletes import data_files, new_data_files

REWRITE = "replace"


class Rows(NamedTuple):
    """What readers have of a branch; the lineage is of `main`, in format version 3."""

    scanned: Counter[str]
    naive: Counter[str]
    lineage: Any

    @classmethod
    def of(cls, table: Table, ref: str = "main") -> "Rows":
        """The rows as they are now."""
        lineage = lineage_of(table) if table.metadata.format_version == 3 else None
        return cls(scanned_rows(table, ref), naive_rows(table), lineage)


def filled(
    version: int = 2, *, file_format: str = "PARQUET", partition_by: Sequence[tuple[str, str]] = ()
) -> ByIcekeep:
    """A table of 24 rows, numbered by `id`, in three commits of two files."""
    by = in_memory()
    by.create(START, partition_by, version)
    for first in (0, 8, 16):
        append(by, range(first, first + 8), file_format)
    return by


def append(by: ByIcekeep, ids: Sequence[int], file_format: str = "PARQUET") -> None:
    """Append rows of kinds `a` and `b`."""
    names = [field.name for field in by.table.metadata.schema.fields]
    rows = [dict.fromkeys(names) | {"id": n, "number": n % 3} for n in ids]
    kinds = [{"kind": "ab"[n % 2]} if "kind" in names else {} for n in ids]
    by.append([row | kind for row, kind in zip(rows, kinds, strict=True)], file_format)


def compacted(by: ByIcekeep) -> ByIcekeep:
    """After all files of each partition were rewritten into one."""
    compact(by.table, no_spark, options={"rewrite-all": "true"})
    return by


def rewritten(by: ByIcekeep, *parts: Sequence[int], **facts: Any) -> ByIcekeep:
    """After all data files were rewritten into one file for each list of ids, whatever that does to rows."""
    table = by.table
    names = [field.name for field in table.metadata.schema.fields]
    rows = [[dict.fromkeys(names) | {"id": n, "kind": "ab"[n % 2], "number": n % 3} for n in part] for part in parts]
    files = [file for part in rows for file in new_data_files(table, table_of(table.metadata.schema, part))]
    old = tuple(entry for entry in live_entries(table) if entry.data_file.content is FileContent.DATA)
    change = RewriteFiles(removed=old, added=tuple(files), schema_id=table.metadata.current_schema_id, **facts)
    commit(table, change)
    return by


def rewritten_files(table: Table) -> list[DataFile]:
    """The live data files that a rewrite wrote, by path."""
    by = {s.snapshot_id for s in table.metadata.snapshots if (s.summary or {})["operation"] == REWRITE}
    live = {entry.data_file.file_path for entry in live_entries(table) if entry.snapshot_id in by}
    return [file for file in data_files(table) if file.file_path in live]


def damager(by: ByIcekeep) -> Damager:
    """Who spoils the table as it is now."""
    return Damager(by.catalog, by.identifier, Choices(1))


def lose(by: ByIcekeep, *files: DataFile) -> None:
    """Remove files; all that a rewrite wrote, where none is named."""
    for file in files or rewritten_files(by.table):
        damager(by).remove(file.file_path)


def old_entries(table: Table) -> list[ManifestEntry]:
    """The live data files of the snapshot before the last rewrite, by path."""
    rewrite = [s for s in table.metadata.snapshots if (s.summary or {})["operation"] == REWRITE][-1]
    parent = table.metadata.snapshots_by_id[rewrite.parent_snapshot_id or 0]
    reader = ManifestReader(table.storage)
    entries = [e for m in reader.manifests(parent) for e in reader.entries(m, table.metadata) if e.is_live]
    data = [entry for entry in entries if entry.data_file.content is FileContent.DATA]
    return sorted(data, key=lambda entry: entry.data_file.file_path)
