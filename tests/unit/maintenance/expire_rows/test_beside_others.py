"""Others who write while rows expire, and entries that tell of too few rows: no row goes that the filter does not match."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep import compact, expire_rows
from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import UpgradeTable
from icekeep.commit.changes.files import OverwriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import JobFailedError, SafetyError
from icekeep.spec.evolution import RenameColumn
from icekeep.spec.types import LONG
from icekeep.tables.verbs import append, create_table, update_schema
from kit.columns import column, schema_of, table_of
from kit.deletes import data_files
from kit.memory_catalog import MemoryCatalog, after
from kit.naive_scan import live_entries
from kit.numbered_rows import ids_of
from kit.runtime import no_spark

SCHEMA = schema_of(column(1, "id", LONG, required=True), column(2, "a", LONG), column(3, "b", LONG))
UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"


def made(catalog: MemoryCatalog, *files: list[tuple[int, int, int]], version: int = 2, **properties: str) -> Table:
    """A commit of a file for each list of rows; `__` in the names of properties stands for `.`."""
    catalog.create_namespace(("db",), exists_ok=True)
    named = {name.replace("__", "."): value for name, value in properties.items()}
    table = create_table(catalog, ("db", "t"), SCHEMA, format_version=version, properties=named)
    for rows in files:
        table = append(table, table_of(SCHEMA, [dict(zip(("id", "a", "b"), row, strict=True)) for row in rows]))
    return table


def now(table: Table) -> Table:
    return table.catalog.load(table.identifier)


def test_two_columns_that_change_names_meanwhile_are_noticed() -> None:
    catalog = MemoryCatalog()
    table = made(catalog, [(1, 1, 9), (2, 1, 9)], [(3, 9, 1), (4, 9, 1)])

    def swap_names() -> None:
        for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
            update_schema(now(table), [RenameColumn(old, new)])

    catalog.follow(after(swap_names))
    with pytest.raises(SafetyError, match="a column of the filter is another one now"):
        expire_rows(table, no_spark, where="a < 5 and b > 5")
    assert ids_of(now(table)) == [1, 2, 3, 4]


@pytest.mark.parametrize("edge", ["deletes", "rewrite"])
def test_rows_that_a_compaction_moved_to_the_edge_go(edge: str) -> None:
    """Their file was to go as a whole; now they lie beside rows that stay."""
    catalog = MemoryCatalog()
    table = made(catalog, [(1, 0, 0), (2, 0, 0)], [(5, 0, 0), (6, 0, 0)])
    catalog.follow(after(lambda: compact(now(table), no_spark, options={"rewrite-all": "true"})))
    done = expire_rows(table, no_spark, where="id < 3", edge=edge)
    assert (done.attempts_count, done.removed_data_files_count, done.deleted_records_count) == (2, 0, 2)
    assert ids_of(now(table)) == [5, 6]


def test_an_upgrade_to_version_3_has_deletes_written_anew() -> None:
    catalog = MemoryCatalog()
    table = made(catalog, [(1, 0, 0), (2, 0, 0)])
    catalog.follow(after(lambda: commit(now(table), UpgradeTable(3, UUID))))
    done = expire_rows(table, no_spark, where="id < 2", edge="deletes")
    assert (done.attempts_count, done.deleted_records_count) == (2, 1)
    assert ids_of(now(table)) == [2]


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("edge", ["deletes", "rewrite"])
def test_more_rows_than_the_entry_says_do_not_go(edge: str, file_format: str) -> None:
    """Three rows match, and three are all that the entry tells of; the file has three more."""
    rows = [(n, 0, 0) for n in range(6)]
    table = made(MemoryCatalog(), rows, write__format__default=file_format)
    wrong: dict[str, Any] = {"record_count": 3, "value_counts": None, "null_value_counts": None}
    added = tuple(replace(file, **wrong) for file in data_files(table))
    table = commit(table, OverwriteFiles(removed=tuple(live_entries(table)), added=added)).table
    with pytest.raises(JobFailedError, match="has 6 rows where its manifest says 3"):
        expire_rows(table, no_spark, where="id < 3", edge=edge)
    assert ids_of(now(table)) == [0, 1, 2, 3, 4, 5]
