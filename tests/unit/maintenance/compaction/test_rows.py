"""Compaction leaves every row as it was: generated tables with deletes of every kind, compacted by every strategy.

A list of rows is the model (`kit.told_tables`). The model, `scan`, and a plain reader that knows no equality deletes,
so that none may be needed any more, must agree; in format version 3 also on the lineage of each row. PyIceberg reads what
it can.
"""

from collections import Counter
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from icekeep.catalog.base import Table
from icekeep.maintenance.compaction.job import compact
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata_columns import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.tables.refs import create_branch
from kit.cases import chosen_of
from kit.lake import Lake
from kit.naive_scan import live_entries, scan_rows, spec_rows
from kit.no_spark import no_spark
from kit.told_tables import FORMATS, Told, by_our_scan, rows_of
from kit.written_deletes import data_files

TABLES = 16
STRATEGIES = ("binpack", "sort", "zorder", "hilbert")
VERSIONS = (1, 2, 2, 3, 3)
KINDS = ("append", "append", "positions", "positions", "equality", "equality", "column", "spec")


def lineage(table: Table, ids: set[int]) -> dict[int, tuple[int, int]]:
    """Of each of these rows its id in the table, and the number of its last change."""
    rows = scan_rows(table, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER).to_pylist()
    return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows if row["id"] in ids}


def arguments(told: Told, strategy: str) -> dict[str, Any]:
    """Of `compact`: a sort order over two columns, where the strategy has one."""
    names = [field.name for field in told.schema.fields]
    first, second = told.lot.sample(names, 2)
    order = {
        "binpack": None,
        "sort": f"{first} DESC NULLS FIRST, {second}",
        "zorder": f"zorder({first}, {second})",
        "hilbert": f"hilbert({first}, {second})",
    }[strategy]
    return {} if order is None else {"strategy": "sort", "sort_order": order}


@pytest.mark.parametrize("seed", chosen_of(TABLES, (0, 1, 2, 3, 10, 11)))
def test_no_row_is_lost_and_none_comes_back(lake: Lake, seed: int) -> None:
    """nimtable/iceberg-compaction PR #163, apache/iceberg #10312; and #6669: the second run does nothing."""
    told, strategy = Told(lake, seed, VERSIONS, KINDS), STRATEGIES[seed % len(STRATEGIES)]
    branch = told.lot.choice(("main", "main", "audit"))
    table = told.table if branch == "main" else create_branch(told.table, branch)
    ids = {row[1] for row in told.rows}
    assert by_our_scan(table, branch) == told.expected()
    before = lineage(table, ids) if told.version == 3 else {}
    options = {
        "rewrite-all": "true",
        "remove-dangling-deletes": told.lot.choice(("true", "false")),
        "partial-progress.enabled": told.lot.choice(("true", "false")),
    }
    if told.lot.random() < 0.3:
        options["output-spec-id"] = str(told.lot.choice(sorted(table.metadata.specs_by_id)))
    asked = {**arguments(told, strategy), "branch": branch}
    result = compact(table, no_spark, options=options, **asked)
    assert result.rewritten_data_files_count == len(data_files(table))
    after = lake.catalog.load(table.identifier)
    assert by_our_scan(after, branch) == told.expected()
    if branch != "main":
        assert after.metadata.current_snapshot_id == table.metadata.current_snapshot_id
        return
    assert rows_of(spec_rows(scan_rows(after), after.metadata.schema)) == told.expected()
    if told.version == 3:
        assert lineage(after, ids) == before
    else:
        check_by_pyiceberg(after, told)
    again = {**options, "rewrite-all": "false", "delete-file-threshold": "1"}
    assert compact(after, no_spark, options=again, **asked).rewritten_data_files_count == 0


def check_by_pyiceberg(table: Table, told: Told) -> None:
    """It reads Parquet, and refuses equality deletes even where they reach nothing."""
    files = [entry.data_file for entry in live_entries(table)]
    if all(f.file_format.upper() == "PARQUET" and f.content is not FileContent.EQUALITY_DELETES for f in files):
        rows = StaticTable.from_metadata(table.metadata_location).scan().to_arrow()
        assert Counter(rows.column("id").to_pylist()) == Counter(row[1] for row in told.rows)


@pytest.mark.nightly
def test_the_tables_above_have_what_they_are_to_have(lake: Lake) -> None:
    """Versions, delete files of every kind, formats, specs, and rows that are deleted and left."""
    told = [Told(lake, seed, VERSIONS, KINDS) for seed in range(TABLES)]
    files = [entry.data_file for one in told for entry in live_entries(one.table)]
    assert {one.version for one in told} == {1, 2, 3}
    assert {file.content for file in files} == set(FileContent)
    assert {file.file_format.upper() for file in files} == {*FORMATS, "PUFFIN"}
    assert sum(len(one.table.metadata.specs_by_id) > 1 for one in told) >= 4
    assert sum(len(one.table.metadata.schemas) > 1 for one in told) >= 4
    assert sum(len(one.rows) for one in told) > 150
    assert sum(next(one.numbers) - len(one.rows) for one in told) > 40
