"""Manifest lists of PyIceberg's commits that are gone: put together, they are read by PyIceberg and by us as they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog

from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import repair
from kit.lake import Lake
from kit.lost_lists import LIST, entries_of
from kit.no_spark import no_spark
from kit.row_texts import scanned_rows

pytestmark = pytest.mark.deep

TABLE = ("db", "foreign")
MERGES = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
HEADS: dict[str, Callable[[Any], object]] = {
    "append": lambda table: table.append(rows(7)),
    "delete of rows": lambda table: table.delete("id = 4"),
    "delete of files": lambda table: table.delete("id >= 3 and id <= 5"),
    "overwrite": lambda table: table.overwrite(rows(9), overwrite_filter="id >= 3 and id <= 5"),
}


def rows(number: int) -> pa.Table:
    """Three rows of their own."""
    return pa.table({"id": [*range(3 * number, 3 * number + 3)], "kind": ["a", "b", "c"]})


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_a_list_of_a_commit_of_pyiceberg(tmp_path: Path, version: int, *, merges: bool, head: str):
    lake = Lake(tmp_path)
    theirs = ForeignSqlCatalog("local", **{key: lake.properties[key] for key in ("uri", "warehouse")})
    properties = {"format-version": str(version), **(MERGES if merges else {})}
    foreign = theirs.create_table(TABLE, schema=rows(0).schema, properties=properties)
    for number in range(3):
        foreign.append(rows(number))
    HEADS[head](foreign)
    table = lake.catalog.load(TABLE)
    before, entries = scanned_rows(table), entries_of(table)
    Path(urlparse(table.metadata.head("main").manifest_list).path).unlink()
    assert repair(table, no_spark, fault=[LIST]).mended
    now = lake.catalog.load(TABLE)
    assert scanned_rows(now) == before
    assert entries_of(now) == entries
    assert check(now, no_spark, deep=True, ref="main").status == "sound"
    assert theirs.load_table(TABLE).scan().to_arrow().num_rows == before.total()
