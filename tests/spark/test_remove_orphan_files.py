"""Orphans where Spark has a part in finding them: many files, and lists of files that somebody else made."""

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_plus, urlparse

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import SafetyError, UsageError
from icekeep.events import SILENT
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.delete.options import OrphanOptions
from icekeep.maintenance.delete.reachable import Reached, named_files
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.orphans.compare import compare, find_candidates, still_unnamed
from icekeep.maintenance.orphans.job import (
    OrphanRemoval,
    RemoveOrphanFilesPlan,
    RemoveOrphanFilesResult,
    foreseen_removal,
    remove_orphan_files,
    result,
)
from icekeep.maintenance.orphans.listing import RowKeeper, hidden_names, keeping_rows, keyed_rows, list_given
from icekeep.maintenance.orphans.options import PrefixMismatchMode, Search, spelling
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.session import Engine, SparkSource
from icekeep.runtime import SYSTEM
from icekeep.storage.open import open_storage
from icekeep.tables.verbs import append
from kit.cases import Choices, thinned
from kit.damager import Damager
from kit.deletes import data_files
from kit.lake import EVENTS, Lake, events
from kit.runtime import limited
from kit.tables import memory_table

DAY_S = 86_400


class Place:
    """A table on the local disk whose files are ten days old, and what lies about beside them."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.table = lake.filled(4, 2)
        self.root = Path(urlparse(lake.location()).path)
        for path in self.root.rglob("*"):
            if path.is_file():
                self.age(path, 10)
        self.live = lake.files_on_disk()
        self.strays = {self.stray(f"data/month={n}/stray {n}.parquet") for n in range(5)}
        self.young = self.stray("data/young.parquet", days=1)
        self.hidden = self.stray("data/_temporary/x")

    def age(self, path: Path, days: float) -> None:
        at = SYSTEM.now_ms() / 1000 - days * DAY_S
        os.utime(path, (at, at))

    def stray(self, name: str, data: bytes = b"stray", days: float = 10) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.age(path, days)
        return path

    def rows(self, *more: str) -> list[dict[str, object]]:
        """What a listing of the warehouse says, `more` files among it, as a file list view has it."""
        files = list(self.lake.files_on_disk())
        stated = [(f"file://{path}", path.stat()) for path in files]
        return [
            {
                "file_path": location,
                "last_modified": datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC),
                "size": status.st_size,
            }
            for location, status in stated
        ] + [
            {"file_path": name, "last_modified": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), "size": 1}
            for name in more
        ]


@pytest.fixture
def place(lake: Lake) -> Place:
    return Place(lake)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[RowKeeper]:
    """Keeps rows below a table of its own, and leaves nothing behind."""
    table = Lake(tmp_path / "kept").create()
    before = [*table.storage.list(table.metadata.location)]
    with keeping_rows(table, SILENT) as kept:
        yield kept
    assert [*table.storage.list(table.metadata.location)] == before


def search(**given: object) -> Search:
    return Search(
        spelling=spelling(None, None),
        mode=PrefixMismatchMode.ERROR,
        options=OrphanOptions(),
        **given,  # type: ignore[arg-type]
    )


def run(table: Table, spark: SparkSource, **given: object) -> RemoveOrphanFilesResult:
    wanted = search(**given)
    with keeping_rows(table, SILENT) as keeper:
        found = find_candidates(table, spark, wanted, SILENT, keeper)
        return result(OrphanRemoval(found, spark, wanted, SILENT, keeper).remove())


def plan_orphans(table: Table, spark: SparkSource, wanted: Search) -> RemoveOrphanFilesPlan:
    with keeping_rows(table, SILENT) as keeper:
        found = find_candidates(table, spark, wanted, SILENT, keeper, is_plan=True)
        return foreseen_removal(found, spark, wanted, SILENT)


def listing(spark: SparkSession, limit: int) -> Engine:
    """Up to so many files are listed by this process."""
    return limited(spark, listed_files_count=limit)


def paths(found: RemoveOrphanFilesResult) -> set[Path]:
    return {Path(location.removeprefix("file://")) for location in found.orphan_file_locations}


@pytest.mark.parametrize("limit", thinned([10, 0], 2))
def test_many_files_are_compared_in_tasks_with_the_same_result(
    place: Place, spark_session: SparkSession, limit: int
) -> None:
    """apache/iceberg #14679, apache/iceberg #16932; testManyTopLevelPartitions, testManyLeafPartitions."""
    place.stray("metadata/00001-lost.metadata.json", Path(urlparse(place.table.metadata_location).path).read_bytes())
    place.stray("metadata/v7.metadata.json", Path(urlparse(place.table.metadata_location).path).read_bytes())
    few = plan_orphans(place.table, spark_session, search())
    many = plan_orphans(place.table, listing(spark_session, limit), search())
    assert few.orphan_files_count == 6
    assert (few.kept.hidden_count, few.kept.young_count, few.kept.versions_count) == (1, 1, 1)
    assert (set(many.orphan_file_locations), many.hash, many.orphan_bytes_count) == (
        set(few.orphan_file_locations),
        few.hash,
        few.orphan_bytes_count,
    )
    assert (many.listed_files_count, many.reachable_files_count) == (few.listed_files_count, few.reachable_files_count)
    assert (many.kept, many.files_by_kind) == (few.kept, few.files_by_kind)


@pytest.mark.parametrize("limit", thinned([0, 1000], 2))
def test_the_strays_go_and_the_table_reads_as_before(place: Place, spark_session: SparkSession, limit: int) -> None:
    rows = place.lake.rows()
    done = run(place.table, listing(spark_session, limit), trash=0)
    assert (done.status, done.deleted_files_count) == ("done", 5)
    assert paths(done) == place.strays
    assert place.lake.files_on_disk() == place.live | {place.young, place.hidden}
    assert place.lake.rows() == rows


def test_in_tasks_too_metadata_of_another_table_stops_it(place: Place, spark_session: SparkSession) -> None:
    place.stray("other/metadata/v1.metadata.json", b'{"table-uuid": "another"}')
    with pytest.raises(SafetyError, match="of table another"):
        run(place.table, listing(spark_session, 0))
    assert place.strays <= place.lake.files_on_disk()


def test_in_tasks_too_nothing_goes_where_a_manifest_cannot_be_read(place: Place, spark_session: SparkSession) -> None:
    """G4."""
    manifest = next(path for path in place.live if path.name.endswith("-m0.avro"))
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with pytest.raises(SafetyError, match="nothing is deleted"):
        run(place.table, listing(spark_session, 0))
    assert place.strays <= place.lake.files_on_disk()


def test_in_tasks_too_a_listing_in_which_no_live_file_is_stops_it(place: Place, spark_session: SparkSession) -> None:
    data = place.root / "data"
    for path in [p for p in data.rglob("*.parquet") if p in place.live]:
        path.rename(path.with_name(f"moved-{path.name}"))
    with pytest.raises(SafetyError, match="none of those listed there"):
        run(place.table, listing(spark_session, 0), location=data.as_uri(), force=True)


def test_schemes_and_authorities_are_compared_in_tasks_as_on_the_driver(
    spark_session: SparkSession, keeper: RowKeeper
) -> None:
    """testPathsWithEqualSchemes, testPathsWithEqualAuthorities, testPathsWithExtraSlashes."""
    listed = [f"hdfs://a/{n}" for n in range(5)] + ["hdfs:///any", "s3a://b//x", "s3://c/stray", "other://a/y"]
    named = ["hdfs://a/0", "hdfs://b/1", "hdfs:/2", "hdfs://b/3", "hdfs://a/3", "hdfs://q/any", "s3://b/x", "s3://a/y"]
    for equal in ({}, {"b": "a"}):
        rule = spelling(None, equal)
        rows = keyed_rows(pa.array(listed), pa.array([1] * len(listed)), pa.array([0] * len(listed)), rule)
        reached = Reached(
            metadata=memory_table().metadata,
            storage=open_storage({}),
            manifests=(),
            named=named_files({}, [], [], named),
        )
        few = compare(pa.Table.from_batches([rows]), rows.num_rows, reached, rule, spark_session, keeper)
        frame = arrow_dataframe(spark_session, pa.Table.from_batches([rows]))
        many = compare(frame, rows.num_rows, reached, rule, spark_session, keeper)
        assert sorted(row["location"] for row in many.unnamed.collect()) == ["hdfs://a/4", "s3://c/stray"]
        assert sorted(few.unnamed["location"].to_pylist()) == ["hdfs://a/4", "s3://c/stray"]
        assert (many.named_count, many.mismatched_count) == (few.named_count, few.mismatched_count)
        assert few.mismatched_count == (1 if equal else 2)
        assert {c.listed for c in many.mismatches} == {c.listed for c in few.mismatches}


def test_files_that_metadata_names_through_links_stay_in_tasks_too(
    place: Place, spark_session: SparkSession, tmp_path: Path
) -> None:
    old_place = tmp_path / "old place"
    old_place.symlink_to(place.root)
    damager = Damager(place.lake.catalog, EVENTS, Choices(1))
    entry = damager.entry()
    path = Path(urlparse(entry.file["file_path"]).path)
    damager.edit_file(entry, file_path=f"file://{old_place}/{path.relative_to(place.root)}")
    run(place.lake.load(), listing(spark_session, 0), force=True)
    assert path.exists()
    assert not place.strays & place.lake.files_on_disk()


def view(spark: SparkSession, rows: list[dict[str, object]], name: str = "files") -> str:
    spark.createDataFrame(rows, "file_path string, last_modified timestamp, size bigint").createOrReplaceTempView(name)
    return name


@pytest.mark.parametrize("limit", thinned([0, 1000], 2))
def test_a_view_of_files_takes_the_place_of_a_listing(place: Place, spark_session: SparkSession, limit: int) -> None:
    """testCompareToFileList."""
    listed = plan_orphans(place.table, spark_session, search())
    name = view(spark_session, place.rows())
    planned = plan_orphans(place.table, listing(spark_session, limit), search(file_list_view=name))
    assert (set(planned.orphan_file_locations), planned.hash, planned.kept) == (
        set(listed.orphan_file_locations),
        listed.hash,
        listed.kept,
    )
    assert planned.reachable_files_count == listed.reachable_files_count


def test_of_a_view_nothing_counts_that_is_not_below_the_location(place: Place, spark_session: SparkSession) -> None:
    """apache/iceberg #16493: `events` and `events2`."""
    sibling = place.root.with_name("events2") / "data" / "live.parquet"
    sibling.parent.mkdir(parents=True)
    sibling.write_bytes(b"precious")
    place.age(sibling, 10)
    name = view(spark_session, place.rows("s3://other/bucket/file", "no location"))
    done = run(place.table, spark_session, file_list_view=name, trash=0)
    assert (done.deleted_files_count, done.kept.outside_count) == (5, 3)
    assert sibling.exists()
    name = view(spark_session, place.rows())
    location = f"file://{place.root}/data/month=9"
    assert run(place.table, spark_session, file_list_view=name, location=location).orphan_files_count == 0


def test_a_file_of_a_view_is_deleted_only_if_it_is_old_by_the_view(place: Place, spark_session: SparkSession) -> None:
    rows = [{**row, "last_modified": None} for row in place.rows()]
    done = run(place.table, spark_session, file_list_view=view(spark_session, rows))
    assert (done.orphan_files_count, done.kept.young_count) == (0, 6)


@pytest.mark.parametrize("suffix", thinned(["parquet", "orc", "csv"], 3))
def test_files_may_be_listed_in_files(place: Place, spark_session: SparkSession, tmp_path: Path, suffix: str) -> None:
    rows = pa.Table.from_pylist(place.rows())
    target = tmp_path / "lists" / f"part-0.{suffix}"
    target.parent.mkdir()
    match suffix:
        case "parquet":
            pa.parquet.write_table(rows, target)
        case "orc":
            # Spark 4.0 cannot read ORC's instants.
            times = rows["last_modified"].cast(pa.timestamp("us"))
            pa.orc.write_table(
                rows.set_column(rows.column_names.index("last_modified"), "last_modified", times), target
            )
        case "csv":
            pa.csv.write_csv(rows, target)
    for location in (target.as_uri(), target.parent.as_uri()):
        planned = plan_orphans(place.table, spark_session, search(file_list_view=location))
        assert {Path(f.removeprefix("file://")) for f in planned.orphan_file_locations} == place.strays


@pytest.mark.parametrize(
    "columns",
    [
        "file_path bigint, last_modified timestamp",
        "file_path string, last_modified string",
        "file_path string, last_modified timestamp_ntz",
        "path string",
        "bucket string, key string",
    ],
)
def test_a_view_of_other_columns_is_a_mistake(place: Place, spark_session: SparkSession, columns: str) -> None:
    spark_session.createDataFrame([], columns).createOrReplaceTempView("wrong")
    with pytest.raises(UsageError, match=r"give the columns file_path \(string\) and last_modified \(timestamp\)"):
        plan_orphans(place.table, spark_session, search(file_list_view="wrong"))


def test_moments_of_a_view_need_a_time_zone(place: Place, spark_session: SparkSession) -> None:
    spark_session.createDataFrame([], "file_path string, last_modified timestamp_ntz").createOrReplaceTempView("naive")
    with pytest.raises(
        UsageError, match="of type timestamp_ntz, which has no time zone: write it with one, such as UTC; give"
    ):
        plan_orphans(place.table, spark_session, search(file_list_view="naive"))


def test_a_view_that_names_no_file_of_the_table_is_refused_as_that(place: Place, spark_session: SparkSession) -> None:
    """The last step of testCompareToFileList; the view may be that of another table."""
    for rows, message in (
        ([], "names none there; nothing"),
        (["/tmp/mock1"], "names none there, and 1 that lie elsewhere"),
    ):
        listed = [
            {"file_path": row, "last_modified": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)} for row in rows
        ]
        name = view(spark_session, listed, "others")
        with pytest.raises(SafetyError, match=message):
            plan_orphans(place.table, spark_session, search(file_list_view=name))


@pytest.mark.parametrize(
    "name", thinned(["no_such_view", "file:///no/such/files.parquet", "file:///no/such/directory"], 3)
)
def test_a_list_that_is_not_there_is_a_mistake(place: Place, spark_session: SparkSession, name: str) -> None:
    with pytest.raises(UsageError, match="file_list_view") as raised:
        plan_orphans(place.table, spark_session, search(file_list_view=name))
    assert "\n" not in raised.value.message


def test_an_s3_inventory_names_the_current_versions_of_objects(
    spark_session: SparkSession, tmp_path: Path, keeper: RowKeeper
) -> None:
    """Keys are percent-encoded but in Parquet and ORC."""
    at = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    keys = ["wh/tbl/data/a b.parquet", "wh/tbl/data/x=a%2Fb/f", "wh/tbl2/f", "wh/tbl/data/", "wh/tbl/_x"]

    def rows(encode: bool) -> list[dict[str, object]]:
        named = [quote_plus(key, safe="/") if encode else key for key in keys]
        current = [(key, True, False) for key in named]
        return [
            {
                "bucket": "b",
                "key": key,
                "is_latest": latest,
                "is_delete_marker": marker,
                "size": 7,
                "last_modified_date": at,
            }
            for key, latest, marker in [*current, ("wh/tbl/old", False, False), ("wh/tbl/deleted", True, True)]
        ]

    pa.parquet.write_table(pa.Table.from_pylist(rows(encode=False)), tmp_path / "i.parquet")
    pa.csv.write_csv(pa.Table.from_pylist(rows(encode=True)), tmp_path / "i.csv")
    kinds = "bucket string, key string, is_latest boolean, is_delete_marker boolean, size bigint, last_modified_date timestamp"
    spark_session.createDataFrame(rows(encode=True), kinds).createOrReplaceTempView("inventory")
    root = "s3a://b/wh/tbl"
    for name in ((tmp_path / "i.parquet").as_uri(), (tmp_path / "i.csv").as_uri(), "inventory"):
        hidden = hidden_names(root, [])
        found = list_given(name, open_storage({}), spark_session, root, hidden, spelling(None, None), keeper)
        listed = found.files.select(["location", "size_bytes", "modified_ms"]).to_pylist()
        assert sorted(row["location"] for row in listed) == [f"s3://b/{key}" for key in keys[:2]], name
        assert {(row["size_bytes"], row["modified_ms"]) for row in listed} == {(7, round(at.timestamp() * 1000))}
        assert (found.hidden_count, found.outside_count) == (2, 1)


def test_files_that_were_adopted_since_the_plan_are_kept_in_tasks_too(
    place: Place, spark_session: SparkSession, keeper: RowKeeper
) -> None:
    """Right before the deletion the metadata is loaded again."""
    wanted = search(force=True)
    found = find_candidates(place.table, listing(spark_session, 0), wanted, SILENT, keeper)
    assert not isinstance(found.files, pa.Table)
    later = append(place.table, [events(99)])
    kept, count = still_unnamed(found, later, spark_session, wanted, keeper)
    assert (count, kept) == (0, found)
    stray = sorted(place.strays)[0]
    [file] = [f for f in data_files(later) if f.file_path not in {g.file_path for g in data_files(place.table)}]
    adopted = msgspec.structs.replace(file, file_path=f"file://{stray}")
    later = commit(later, AppendFiles(files=(adopted,)), runtime=SYSTEM).table
    kept, count = still_unnamed(found, later, spark_session, wanted, keeper)
    assert count == 1
    left = {Path(row["location"].removeprefix("file://")) for row in kept.files.collect()}
    assert left == place.strays - {stray}


def test_small_tables_need_no_spark(place: Place) -> None:
    def no_spark() -> SparkSession:
        raise AssertionError("Spark was started")

    assert remove_orphan_files(place.table, no_spark).deleted_files_count == 5


@pytest.mark.parametrize("limit", thinned([-1, 1_000_000], 2))
def test_files_that_another_plan_names_are_no_orphans_where_spark_has_the_plans(
    lake: Lake, spark_session: SparkSession, limit: int
) -> None:
    place = Place(lake)
    compact(lake.load(), spark_session, options={"rewrite-all": True})
    left = expire_snapshots(
        lake.load(), spark_session, older_than=SYSTEM.now_ms() + 1, retain_last=1, trash=0, options={"grace": "24h"}
    ).left_files_count
    assert left > 8
    for path in place.live:
        place.age(path, 10)
    engine = limited(spark_session, listed_files_count=limit, plan_files_count=-1)
    done = run(lake.load(), engine, trash=0, force=True)
    assert done.kept.waiting_count + done.kept.young_count >= left
    assert done.deleted_files_count == len(place.strays)
    assert place.live <= lake.files_on_disk()
