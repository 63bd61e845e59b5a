"""Copies of tables that Iceberg Java 1.12.0 made: our list of files is its procedure's, and it reads what we rewrote.

The source is gone when a copy is read, so that nothing can be read by an old path. PyIceberg, DuckDB and the others of the panel
read the copies too.
"""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.maintenance.copy.job import copy_table
from icekeep.maintenance.copy.rewrite_path import RewritePathResult, rewrite_table_path
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import append
from kit.cases import SQL_BY_DAY
from kit.java import IcebergJava
from kit.judging.panel import Panel
from kit.lake import EVENTS, Lake, events
from kit.naive_scan import live_entries
from kit.runtime import no_spark

pytestmark = pytest.mark.parametrize("lake", SQL_BY_DAY, indirect=True)

NAME, THERE = "local.db.t", "other.db.t"
REFS = ("main", "early", "trial")
Rows = dict[str, Counter[str]]


@pytest.fixture
def other(tmp_path: Path, java: IcebergJava) -> Lake:
    """Another catalog, in another directory, called `other` by Java."""
    (tmp_path / "there").mkdir()
    lake = Lake(tmp_path / "there")
    lake.catalog = open_catalog("other", lake.properties)
    lake.catalog.create_namespace(("db",))
    java.open_catalog("other", lake.properties)
    return lake


def made(java: IcebergJava, version: int, file_format: str = "parquet", location: str = "") -> None:
    """A table with deletes as its version has them, a branch, a tag and statistics of both kinds.

    Args:
        location: of the table; Java's procedure wants it spelled as Java spells paths, `file:/`.
    """
    mode = "copy-on-write" if version == 1 else "merge-on-read"
    properties = {
        "format-version": str(version),
        "write.delete.mode": mode,
        "write.update.mode": mode,
        "write.format.default": file_format,
    }
    options = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    at = f"LOCATION '{location}'" if location else ""
    columns = "(id BIGINT, kind STRING) USING iceberg PARTITIONED BY (kind)"
    java.sql(f"CREATE TABLE {NAME} {columns} {at} TBLPROPERTIES ({options})")
    for start in (0, 100):
        java.sql(f"INSERT INTO {NAME} SELECT id, concat('k', id % 3) FROM range({start}, {start + 40})")
    java.sql(f"ALTER TABLE {NAME} CREATE TAG early")
    java.sql(f"DELETE FROM {NAME} WHERE id % 7 = 3")
    java.sql(f"ALTER TABLE {NAME} CREATE BRANCH trial")
    java.sql(f"INSERT INTO {NAME}.branch_trial SELECT id, 'k9' FROM range(900, 905)")
    java.sql(f"UPDATE {NAME} SET kind = 'k1' WHERE id BETWEEN 10 AND 12")
    java.call("local", "compute_table_stats", table="db.t")
    if file_format != "orc":
        # Java cannot write them as ORC.
        java.call("local", "compute_partition_stats", table="db.t")


def rows_of(java: IcebergJava, name: str) -> Rows:
    java.sql(f"REFRESH TABLE {name}")
    return {
        ref: Counter(repr(sorted(row.items())) for row in java.sql(f"SELECT * FROM {name} VERSION AS OF '{ref}'"))
        for ref in REFS
    }


def pairs_of(location: str) -> set[tuple[str, str]]:
    lines = Path(local_path(location)).read_text().splitlines()
    return {(source, target) for source, target in (line.split(",") for line in lines)}


def carry_out(pairs: set[tuple[str, str]]) -> None:
    for source, target in pairs:
        to = Path(local_path(target))
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(local_path(source), to)


def load(lake: Lake) -> Table:
    return lake.catalog.load(("db", "t"))


def rewritten_by_both(
    java: IcebergJava, lake: Lake, target: str, start: str | None = None
) -> tuple[RewritePathResult, set[tuple[str, str]]]:
    """What we staged, and the pairs of our list, which are those of Java's but for the names of the staging directories."""
    table = load(lake)
    asked = {"source_prefix": table.metadata.location, "target_prefix": target}
    asked |= {} if start is None else {"start_version": start}
    [told] = java.call("local", "rewrite_table_path", table="db.t", **asked)
    ours = rewrite_table_path(table, no_spark, **asked)
    assert ours.file_list_location is not None
    theirs, mine = pairs_of(told["file_list_location"]), pairs_of(ours.file_list_location)
    staged = told["file_list_location"].removesuffix("file-list"), ours.staging_location or ""
    assert {(a.replace(staged[0], "STAGED/"), b) for a, b in theirs} == {
        (a.replace(staged[1], "STAGED/"), b) for a, b in mine
    }
    counts = ["latest_version", "rewritten_manifest_file_paths_count"]
    # Of an increment Java counts older delete files too, which it rewrites and does not list.
    counts += [] if start else ["rewritten_delete_file_paths_count"]
    for name in counts:
        assert told[name] == getattr(ours, name), name
    return ours, mine


@pytest.mark.deep
@pytest.mark.parametrize(
    ("version", "file_format"), [(1, "parquet"), (2, "parquet"), (2, "avro"), (2, "orc"), (3, "parquet")]
)
def test_java_reads_what_our_list_copies(
    lake: Lake, other: Lake, java: IcebergJava, panel: Panel, version: int, file_format: str
) -> None:
    made(java, version, file_format, f"file:{lake.directory}/tables/t")
    before = rows_of(java, NAME)
    target = f"{other.directory.as_uri()}/copies/t"
    ours, pairs = rewritten_by_both(java, lake, target)
    carry_out(pairs)
    shutil.move(local_path(load(lake).metadata.location), lake.directory / "gone")
    java.call("other", "register_table", table="db.t", metadata_file=ours.target_metadata_location)
    assert rows_of(java, THERE) == before
    assert panel.disagreements(load(other)) == []


@pytest.mark.parametrize("version", [2, 3])
def test_java_reads_what_an_increment_adds(lake: Lake, other: Lake, java: IcebergJava, version: int) -> None:
    made(java, version, location=f"file:{lake.directory}/tables/t")
    target = f"{other.directory.as_uri()}/copies/t"
    first, pairs = rewritten_by_both(java, lake, target)
    carry_out(pairs)
    java.sql(f"INSERT INTO {NAME} SELECT id, 'k5' FROM range(500, 520)")
    java.sql(f"DELETE FROM {NAME} WHERE id % 11 = 5")
    then, pairs = rewritten_by_both(java, lake, target, first.latest_version)
    carry_out(pairs)
    before = rows_of(java, NAME)
    shutil.move(local_path(load(lake).metadata.location), lake.directory / "gone")
    java.call("other", "register_table", table="db.t", metadata_file=then.target_metadata_location)
    assert rows_of(java, THERE) == before


def test_files_of_expired_snapshots_are_listed(lake: Lake, java: IcebergJava) -> None:
    """Java's list lacks live files whose snapshot no metadata file of the log has any more."""
    location = f"file:{lake.directory}/tables/t"
    options = "'write.metadata.previous-versions-max' = '1'"
    java.sql(f"CREATE TABLE {NAME} (id BIGINT) USING iceberg LOCATION '{location}' TBLPROPERTIES ({options})")
    for number in range(3):
        java.sql(f"INSERT INTO {NAME} VALUES ({number})")
    expire_snapshots(load(lake), no_spark, older_than="0s", retain_last=1)
    java.sql(f"REFRESH TABLE {NAME}")
    java.sql(f"INSERT INTO {NAME} VALUES (9)")
    java.sql(f"ALTER TABLE {NAME} SET TBLPROPERTIES ('a' = 'b')")
    prefixes = {"source_prefix": location, "target_prefix": f"{lake.directory.as_uri()}/copy"}
    [told] = java.call("local", "rewrite_table_path", table="db.t", **prefixes)
    ours = rewrite_table_path(load(lake), no_spark, **prefixes)
    assert ours.file_list_location is not None
    theirs, mine = (
        {source for source, _ in pairs_of(one) if "/data/" in source}
        for one in (told["file_list_location"], ours.file_list_location)
    )
    assert theirs < mine == {entry.data_file.file_path for entry in live_entries(load(lake))}


@pytest.mark.deep
@pytest.mark.parametrize("version", [1, 2, 3])
def test_copies_and_increments_are_read_alike(
    lake: Lake, other: Lake, java: IcebergJava, panel: Panel, version: int
) -> None:
    made(java, version)
    copy_table(load(lake), other.catalog, ("db", "t"), no_spark, verify=True)
    assert rows_of(java, THERE) == rows_of(java, NAME)
    assert panel.disagreements(load(other)) == []
    java.sql(f"INSERT INTO {NAME} SELECT id, 'k5' FROM range(500, 520)")
    java.sql(f"DELETE FROM {NAME} WHERE id % 11 = 5")
    java.sql(f"ALTER TABLE {NAME} ADD COLUMN note STRING")
    java.sql(f"UPDATE {NAME} SET note = 'n' WHERE id = 501")
    java.call("local", "compute_table_stats", table="db.t")
    copy_table(load(lake), other.catalog, ("db", "t"), no_spark, increment=True)
    before = rows_of(java, NAME)
    shutil.move(local_path(load(lake).metadata.location), lake.directory / "gone")
    assert rows_of(java, THERE) == before
    assert panel.disagreements(load(other)) == []


def test_java_writes_to_a_copy(lake: Lake, other: Lake, java: IcebergJava) -> None:
    """The copy is a table of its own; what Java has written there is not lost to an increment."""
    made(java, 2)
    copy_table(load(lake), other.catalog, ("db", "t"), no_spark)
    java.sql(f"REFRESH TABLE {THERE}")
    java.sql(f"INSERT INTO {THERE} VALUES (1000, 'k0')")
    java.call("other", "rewrite_manifests", table="db.t")
    java.sql(f"INSERT INTO {NAME} VALUES (1001, 'k0')")
    with pytest.raises(Exception, match="is not as the last copy has left it"):
        copy_table(load(lake), other.catalog, ("db", "t"), no_spark, increment=True)
    expire_snapshots(load(other), no_spark, older_than="0d", retain_last=1)
    assert sum(rows_of(java, THERE)["main"].values()) == sum(rows_of(java, NAME)["main"].values())


def test_a_copy_goes_to_a_catalog_in_a_directory(lake: Lake, tmp_path: Path, java: IcebergJava) -> None:
    """Whose version files begin with the copy's; an increment is the next of them."""
    (tmp_path / "files").mkdir()
    there = Lake(tmp_path / "files", "filesystem")
    java.open_catalog("files", there.properties)
    table = lake.filled(commits=3)
    copy_table(table, there.catalog, EVENTS, no_spark)
    append(table, events(90, 4))
    copy_table(lake.load(), there.catalog, EVENTS, no_spark, increment=True)
    assert there.load().metadata_location.endswith("/v2.metadata.json")
    assert java.rows("files.db.events") == java.rows("local.db.events")
