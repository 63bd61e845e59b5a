"""Compaction leaves every row as it was: generated tables with deletes of every kind, compacted by every strategy.

The model (`kit.row_histories`), `scan`, and a plain reader that knows no equality deletes, so that none may be needed any
more, must agree; in format version 3 also on the lineage of each row. PyIceberg reads what it can.
"""

from collections import Counter
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from icekeep.catalog.base import Table
from icekeep.maintenance.compact.job import compact
from icekeep.spec.manifests.structs import FileContent
from icekeep.tables.refs import create_branch
from kit.cases import Choices, chosen_of
from kit.deletes import data_files
from kit.lake import Lake
from kit.naive_scan import lineage_of, live_entries, naive_rows
from kit.row_histories import FORMATS, ByIcekeep, History
from kit.rows import scanned_rows
from kit.runtime import no_spark

TABLES = 16
STRATEGIES = ("binpack", "sort", "zorder", "hilbert")


def arguments(history: History, chosen: Choices, strategy: str) -> dict[str, Any]:
    """Of `compact`: a sort order over two columns, where the strategy has one."""
    names = [field.name for field in history.schema.fields]
    first, second = chosen.sample(names, 2)
    order = {
        "binpack": None,
        "sort": f"{first} DESC NULLS FIRST, {second}",
        "zorder": f"zorder({first}, {second})",
        "hilbert": f"hilbert({first}, {second})",
    }[strategy]
    return {} if order is None else {"strategy": "sort", "sort_order": order}


@pytest.mark.parametrize("seed", chosen_of(TABLES, (0, 1, 2, 3, 4, 11)))
def test_no_row_is_lost_and_none_comes_back(lake: Lake, seed: int) -> None:
    """nimtable/iceberg-compaction PR #163, apache/iceberg #10312; and #6669: the second run does nothing."""
    history, chosen = History.of(seed, ByIcekeep(lake.catalog)), Choices(seed)
    branch = chosen.choice(("main", "main", "audit"))
    table = history.table if branch == "main" else create_branch(history.table, branch)
    expected = history.expected()
    assert scanned_rows(table, branch) == expected
    before = lineage_of(table) if history.version == 3 else {}
    options = {
        "rewrite-all": "true",
        "remove-dangling-deletes": chosen.choice(("true", "false")),
        "partial-progress.enabled": chosen.choice(("true", "false")),
    }
    if chosen.random() < 0.3:
        options["output-spec-id"] = str(chosen.choice(sorted(table.metadata.specs_by_id)))
    asked = {**arguments(history, chosen, STRATEGIES[seed % len(STRATEGIES)]), "branch": branch}
    result = compact(table, no_spark, options=options, **asked)
    assert result.rewritten_data_files_count == len(data_files(table))
    after = lake.catalog.load(table.identifier)
    assert scanned_rows(after, branch) == expected
    if branch != "main":
        assert after.metadata.current_snapshot_id == table.metadata.current_snapshot_id
        return
    assert naive_rows(after) == expected
    if history.version == 3:
        assert lineage_of(after) == {id_: before[id_] for id_ in history.model.ids}
    else:
        check_by_pyiceberg(after, history.model.ids)
    again = {**options, "rewrite-all": "false", "delete-file-threshold": "1"}
    spec_id = int(options.get("output-spec-id", after.metadata.default_spec_id))
    if any(file.spec_id != spec_id for file in data_files(after)):
        # They stayed in their specs for equality deletes written there, which are gone by now.
        compact(after, no_spark, options=again, **asked)
        after = history.table
        assert naive_rows(after) == expected
    assert compact(after, no_spark, options=again, **asked).rewritten_data_files_count == 0


def check_by_pyiceberg(table: Table, ids: set[int]) -> None:
    """It reads Parquet, and refuses equality deletes even where they reach nothing."""
    files = [entry.data_file for entry in live_entries(table)]
    if all(f.file_format.upper() == "PARQUET" and f.content is not FileContent.EQUALITY_DELETES for f in files):
        rows = StaticTable.from_metadata(table.metadata_location).scan().to_arrow()
        assert Counter(rows.column("id").to_pylist()) == Counter(ids)


@pytest.mark.nightly
def test_the_tables_above_have_what_they_are_to_have(lake: Lake) -> None:
    """Versions, delete files of every kind, formats, specs, and rows that are deleted and left."""
    histories = [History.of(seed, ByIcekeep(lake.catalog)) for seed in range(TABLES)]
    files = [entry.data_file for one in histories for entry in live_entries(one.table)]
    assert {one.version for one in histories} == {1, 2, 3}
    assert {file.content for file in files} == set(FileContent)
    assert {file.file_format.upper() for file in files} == {*FORMATS, "PUFFIN"}
    assert sum(len(one.table.metadata.specs_by_id) > 1 for one in histories) >= 4
    assert sum(len(one.table.metadata.schemas) > 1 for one in histories) >= 4
    assert sum(len(one.model.live) for one in histories) > 150
    assert sum(len(one.model.rows) - len(one.model.live) for one in histories) > 40
