"""Histories of rows that icekeep carries out by its own writers, on the storage of any catalog: in memory or on disk."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from icekeep.catalog.base import Catalog, Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.spec.schema import FILE, POS, Schema
from icekeep.tables.verbs import append, create_table
from kit.columns import table_of
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import live_entries, scan_rows
from kit.row_model import Place
from kit.row_texts import scanned_rows
from kit.storage import MemoryStorage
from kit.written_deletes import data_files, delete_equal, new_data_files, position_delete_files, vector_files

_NUMBERS = count(1)


class ByIcekeep:
    """An interpreter of histories (`row_histories.Interpreter`). It holds every value, and reads every table."""

    finds_rows = True
    adds_defaults = True

    def __init__(self, catalog: Catalog, name: str = "") -> None:
        """Args:
        name: of the table in the namespace `db`; one that no other has where none is given.
        """
        self.catalog = catalog
        self.identifier = ("db", name or f"history{next(_NUMBERS)}")

    @property
    def table(self) -> Table:
        return self.catalog.load(self.identifier)

    def holds(self, value: Any, file_format: str) -> bool:
        return True

    def deletes(self, keys: Sequence[Sequence[Any]], file_format: str) -> bool:
        return True

    def create(self, schema: Schema, partition_by: Sequence[tuple[str, str]], version: int) -> None:
        create_table(self.catalog, self.identifier, schema, partition_by=partition_by, format_version=version)

    def append(self, rows: Sequence[Mapping[str, Any]], file_format: str) -> None:
        """Later files that a rewrite makes have the format too."""
        table = commit(self.table, ChangeProperties(updates={"write.format.default": file_format.lower()})).table
        append(table, [table_of(table.metadata.schema, list(map(dict, rows[half::2]))) for half in range(2)])

    def delete_positions(self, ids: Iterable[int], file_format: str, scope: str, *, is_referenced: bool) -> None:
        table, wanted = self.table, set(ids)
        files = {file.file_path: file for file in data_files(table)}
        found = [row for row in scan_rows(table, FILE, POS).to_pylist() if row["id"] in wanted]
        positions = [(files[row["_file"]], row["_pos"]) for row in found]
        named = frozenset(file.file_path for file, _ in positions)
        if table.metadata.format_version == 3:
            old = tuple(entry for entry in live_entries(table) if entry.data_file.referenced_data_file in named)
            commit(table, RowDelta(added_deletes=vector_files(table, positions, old), removed_deletes=old))
            return
        deletes = position_delete_files(table, positions, file_format, scope)
        if not is_referenced:
            deletes = tuple(replace(file, referenced_data_file=None) for file in deletes)
        commit(table, RowDelta(added_deletes=deletes, named=named))

    def delete_equal(
        self,
        names: Sequence[str],
        keys: Sequence[Sequence[Any]],
        place: Place,
        file_format: str,
        added: Sequence[Mapping[str, Any]],
    ) -> None:
        table = self.table
        schema = table.metadata.schema
        columns = Schema(fields=tuple(schema.field(name) for name in names))
        rows = table_of(columns, [dict(zip(names, key, strict=True)) for key in keys])
        new = new_data_files(table, table_of(schema, list(map(dict, added)))) if added else ()
        delete_equal(table, rows, names, like=place, file_format=file_format, added=new)

    def rows(self) -> Counter[str]:
        return scanned_rows(self.table)


def in_memory() -> ByIcekeep:
    """On a storage of its own, which goes with it."""
    catalog = MemoryCatalog(MemoryStorage())
    catalog.create_namespace(("db",))
    return ByIcekeep(catalog)
