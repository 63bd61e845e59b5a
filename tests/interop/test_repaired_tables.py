"""Tables of which files are lost that Iceberg Java 1.12.0 compacted, repaired by us: Java reads the rows, and keeps the files."""

from copy import deepcopy

import pytest

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.maintenance.repair.job import repair
from kit.beside import FAR_AHEAD_MS
from kit.cases import Choices
from kit.damager import Damager, old_entries, rewritten_files
from kit.deletes import data_files, vector_files
from kit.java import IcebergJava
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.runtime import no_spark

NAME = "local.db.events"


def compacted(java: IcebergJava, version: int) -> None:
    """By Java: three inserts, a delete of rows where they lie, and a rewrite of all data files."""
    options = f"'format-version'='{version}', 'write.delete.mode'='merge-on-read'"
    java.sql("CREATE NAMESPACE IF NOT EXISTS local.db")
    java.sql(f"CREATE TABLE {NAME} (id BIGINT, kind STRING) USING iceberg TBLPROPERTIES ({options})")
    for start in (0, 100, 200):
        java.sql(f"INSERT INTO {NAME} SELECT id, concat('k', id % 5) FROM range({start}, {start + 60})")
    java.sql(f"DELETE FROM {NAME} WHERE id % 7 = 3")
    java.sql("CALL local.system.rewrite_data_files(table => 'db.events', options => map('rewrite-all', 'true'))")


def rows_of(java: IcebergJava, version: int) -> list[tuple[object, ...]]:
    columns = ["id", "kind", *(["_row_id", "_last_updated_sequence_number"] if version == 3 else [])]
    java.sql(f"REFRESH TABLE {NAME}")
    return sorted(tuple(row.values()) for row in java.sql(f"SELECT {', '.join(columns)} FROM {NAME}"))


@pytest.mark.deep
@pytest.mark.parametrize("version", [2, 3])
def test_java_reads_repaired_files_and_expires_beside_them(lake: Lake, java: IcebergJava, version: int) -> None:
    compacted(java, version)
    before = rows_of(java, version)
    assert 100 < len(before) < 180
    damager = Damager(lake.catalog, ("db", "events"), Choices(1))
    for file in rewritten_files(lake.load()):
        damager.remove(file.file_path)
    result = repair(lake.load(), no_spark, fault=[301])
    assert (len(result.mended), result.not_mended) == (1, ())
    assert rows_of(java, version) == before
    old = [entry.data_file.file_path for entry in old_entries(lake.load())]
    # Java's own cleaning goes by what manifests mark as deleted, and not by what is live.
    java.ask("Tables.expire", table=NAME.split("."), older_than_ms=FAR_AHEAD_MS)
    assert len(lake.load().metadata.snapshots) == 1
    assert all(lake.load().storage.head(path) is None for path in old)
    assert rows_of(java, version) == before
    java.sql(f"INSERT INTO {NAME} SELECT id, 'new' FROM range(900, 910)")
    assert len(rows_of(java, version)) == len(before) + 10


@pytest.mark.deep
@pytest.mark.parametrize("number", [213, 414])
def test_java_keeps_a_puffin_file_of_which_one_vector_went(lake: Lake, java: IcebergJava, number: int) -> None:
    """Its cleaning deletes the files of entries that are marked as deleted, whatever else is live in them."""
    java.sql("CREATE NAMESPACE IF NOT EXISTS local.db")
    java.sql(f"CREATE TABLE {NAME} (id BIGINT, kind STRING) USING iceberg TBLPROPERTIES ('format-version'='3')")
    for start in (0, 100, 200):
        java.sql(f"INSERT INTO {NAME} SELECT id, concat('k', id % 5) FROM range({start}, {start + 60})")
    vectors = vector_files(lake.load(), [(file, 0) for file in data_files(lake.load())], [])
    commit(lake.load(), RowDelta(added_deletes=vectors))
    damager = Damager(lake.catalog, ("db", "events"), Choices(1))
    place = next(damager.entries(1))
    path, at = place.file["file_path"], place.file["content_offset"] + 9
    if number == 414:
        damager.change_bytes(path, lambda data: data.__setitem__(at, data[at] ^ 0xFF))
        accepted = path
    else:
        other = deepcopy(place.entry)
        other["data_file"]["file_path"] += "-2"
        damager.write(path + "-2", damager.read(path))
        damager.edit_manifest(place.manifest, lambda entries: entries.append(other))
        accepted = place.file["referenced_data_file"]
    result = repair(lake.load(), no_spark, fault=[213, 413, 414], accept_loss=[accepted])
    assert (len(result.mended), result.not_mended) == (1, ())
    java.sql(f"INSERT INTO {NAME} SELECT id, 'new' FROM range(900, 910)")
    before = rows_of(java, 3)
    assert len(before) == 190 - len(vectors) + (number == 414)
    assert len(vectors) > 1
    java.ask("Tables.expire", table=NAME.split("."), older_than_ms=FAR_AHEAD_MS)
    assert len(lake.load().metadata.snapshots) == 1
    live = {entry.data_file.file_path for entry in live_entries(lake.load())}
    assert path in live
    assert all(lake.load().storage.head(one) is not None for one in live)
    assert rows_of(java, 3) == before
