"""The job on real tables on the local disk, on both kinds of catalog; PyIceberg reads what is left."""

import os
import shutil
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog
from pyiceberg.table.statistics import StatisticsFile

from icekeep.errors import SafetyError
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append
from kit.cases import Choices
from kit.damager import Damager
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.lake import EVENTS, Lake, events
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


def aged(path: Path, days: float = 10) -> Path:
    at = SYSTEM.now_ms() / 1000 - days * 86_400
    os.utime(path, (at, at))
    return path


def age_all(lake: Lake) -> None:
    for path in lake.files_on_disk():
        aged(path)


def root_of(lake: Lake) -> Path:
    return Path(urlparse(lake.location()).path)


def put(lake: Lake, name: str, data: bytes = b"stray", days: float = 10) -> Path:
    path = root_of(lake) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return aged(path, days)


@pytest.fixture(params=["sql", "filesystem"])
def lake(tmp_path, request):
    lake = Lake(tmp_path, request.param)
    lake.filled(3, 2)
    age_all(lake)
    return lake


def test_rows_are_as_before_and_strays_are_in_the_trash(lake):
    """testRemoveOrphanFilesWithHadoopCatalog, testSparkCatalogTable; the trash is the default here."""
    rows, live = lake.rows(), lake.files_on_disk()
    stray = put(lake, "data/x y%2F.parquet", b"precious")
    result = remove_orphan_files(lake.load(), no_spark)
    assert (result.deleted_files_count, result.is_in_trash, result.failed_files_count) == (1, True, 0)
    assert {path for path in lake.files_on_disk() if ".icekeep" not in path.parts} == live
    trash = Path(urlparse(result.plan_location).path) / "files" / stray.relative_to(root_of(lake))
    assert trash.read_bytes() == b"precious"
    assert lake.rows() == rows
    again = remove_orphan_files(lake.load(), no_spark)
    # The stray, the plan of two files, and beside them what says that nobody is at work on it any more.
    assert (again.orphan_files_count, again.kept.hidden_count) == (0, 6)


def test_statistics_that_pyiceberg_took_off_stay_and_are_counted(tmp_path):
    """testRemoveOrphanFilesWithStatisticFiles, but that Java deletes them."""
    lake = Lake(tmp_path)
    lake.filled(1, 1)
    path = put(lake, "data/some-stats.puffin")
    foreign = lake.foreign()
    snapshot_id = foreign.current_snapshot().snapshot_id
    statistics = StatisticsFile.model_validate(
        {
            "snapshot-id": snapshot_id,
            "statistics-path": path.as_uri(),
            "file-size-in-bytes": 5,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
    )
    with foreign.update_statistics() as update:
        update.set_statistics(statistics)
    age_all(lake)
    assert remove_orphan_files(lake.load(), no_spark).kept.former_statistics_count == 0
    with lake.foreign().update_statistics() as update:
        update.remove_statistics(snapshot_id)
    age_all(lake)
    assert lake.load().metadata.statistics == ()
    done = remove_orphan_files(lake.load(), no_spark)
    assert (done.orphan_files_count, done.kept.former_statistics_count, path.exists()) == (0, 1, True)


def test_live_files_that_metadata_names_through_a_link_stay(lake, tmp_path):
    """The warehouse was moved, and a link left in its old place."""
    old_place = tmp_path / "old place"
    old_place.symlink_to(root_of(lake))
    stray = put(lake, "data/stray")
    damager = Damager(lake.catalog, EVENTS, Choices(1))
    place = damager.entry()
    path = Path(urlparse(place.file["file_path"]).path)
    damager.edit_file(place, file_path=f"file://{old_place}/{path.relative_to(root_of(lake))}")
    age_all(lake)
    rows = lake.rows()
    result = remove_orphan_files(lake.load(), no_spark, options={"max-orphan-ratio": 1})
    assert result.orphan_file_locations == (f"file://{stray}",)
    assert (path.exists(), stray.exists(), lake.rows()) == (True, False, rows)


def test_links_are_not_followed_and_directories_stay(lake, tmp_path):
    """ClickHouse #120165."""
    precious = tmp_path / "precious"
    precious.mkdir()
    aged_file = precious / "f"
    aged_file.write_bytes(b"x")
    aged(aged_file)
    (root_of(lake) / "data" / "link").symlink_to(precious)
    stray = put(lake, "data/empty/x")
    assert remove_orphan_files(lake.load(), no_spark, trash=0).orphan_file_locations == (f"file://{stray}",)
    assert aged_file.exists()
    assert stray.parent.is_dir()


def test_recreated_table_in_the_same_place_stops_the_run(lake):
    """apache/iceberg #7052, #2850."""
    old = [path for path in lake.files_on_disk() if path.name.endswith(".metadata.json")]
    copies = [(path.read_bytes(), path) for path in old]
    lake.catalog.drop(EVENTS)
    shutil.rmtree(root_of(lake) / "metadata")
    lake.create()
    for data, path in copies:
        put(lake, f"old/{path.name}", data)
    with pytest.raises(SafetyError, match=r"not of table 'db\.events'"):
        remove_orphan_files(lake.load(), no_spark, force=True)


def test_newest_numbered_versions_stay(tmp_path):
    """testRemoveUnreachableMetadataVersionFiles: here the newest hundred stay whatever their age."""
    lake = Lake(tmp_path, "filesystem")
    lake.create(write__metadata__previous_versions_max="1")
    for number in range(4):
        append(lake.load(), [events(number)])
    age_all(lake)
    result = remove_orphan_files(lake.load(), no_spark)
    assert (result.orphan_files_count, result.kept.versions_count) == (0, 3)
    assert lake.rows()


def test_metadata_that_fell_out_of_the_log_goes(tmp_path):
    """testRemoveUnreachableMetadataVersionFiles."""
    lake = Lake(tmp_path, "sql")
    lake.create(write__metadata__previous_versions_max="1")
    for number in range(4):
        append(lake.load(), [events(number)])
    age_all(lake)
    result = remove_orphan_files(lake.load(), no_spark)
    assert (result.orphan_files_count, result.deleted_metadata_files_count) == (3, 3)
    assert len([p for p in lake.content_on_disk() if p.suffix == ".parquet"]) == 4
    assert sum(lake.rows().values()) == 80


@pytest.mark.parametrize("format_version", [2, 3])
def test_delete_files_are_live(tmp_path, format_version):
    """Java's procedure: with delete files; position and equality deletes, deletion vectors."""
    lake = Lake(tmp_path, "sql")
    table = lake.filled(2, 1, format_version=format_version)
    first = data_files(table)[0]
    if format_version == 2:
        table = delete_positions(table, [(first.file_path, 3)])
    else:
        table = delete_by_vector(table, first.file_path, [3])
    delete_equal(table, pa.table({"id": [5]}), ["id"], like=first)
    age_all(lake)
    stray = put(lake, f"data/{'x.puffin' if format_version > 2 else 'x.parquet'}")
    names = lake.files_on_disk() - {stray}
    result = remove_orphan_files(lake.load(), no_spark, trash=0)
    assert result.orphan_file_locations == (f"file://{stray}",)
    assert lake.files_on_disk() == names
    assert len([path for path in names if path.name.startswith("deletes-")]) == 2


def test_what_create_table_if_not_exists_leaves(tmp_path):
    """`create_table_if_not_exists` in a pipeline writes the metadata of a new table first, and then asks the catalog."""
    lake = Lake(tmp_path)
    lake.filled(3, 2)
    schema = lake.foreign().schema()
    for _ in range(3):
        lake.foreign_catalog().create_table_if_not_exists(EVENTS, schema)
    age_all(lake)
    stray = put(lake, "data/stray.parquet")
    before = lake.files_on_disk()
    result = remove_orphan_files(lake.load(), no_spark)
    assert (result.deleted_files_count, result.kept.unborn_count) == (1, 3)
    assert before - lake.files_on_disk() == {stray}


def test_another_table_of_pyiceberg_in_the_place(tmp_path):
    lake = Lake(tmp_path)
    lake.filled(3, 2)
    other = ForeignSqlCatalog("other", uri=f"sqlite:///{tmp_path}/other.db", warehouse=lake.properties["warehouse"])
    other.create_namespace(EVENTS[0])
    table = other.create_table(EVENTS, lake.foreign().schema(), location=lake.location())
    rows = lake.foreign().scan().to_arrow()
    table.append(rows)
    age_all(lake)
    with pytest.raises(SafetyError, match="metadata that is not of table"):
        remove_orphan_files(lake.load(), no_spark)
