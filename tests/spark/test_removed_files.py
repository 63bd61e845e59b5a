"""What goes in Spark's tasks, and what is brought back: expiration, orphan removal, restoration."""

import datetime
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlparse

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ClaimedError, ConflictError, InvalidTableError, SafetyError, UsageError
from icekeep.events import SILENT, StepAdvanced
from icekeep.maintenance.compact.commit import read_files, store_removed_files
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.compact.plan import FileGroup, GroupDelete, GroupFile, GroupFiles, pack_group_files
from icekeep.maintenance.delete import lease as claims
from icekeep.maintenance.delete import pending as earlier_runs
from icekeep.maintenance.delete import plan_file as plan_writing
from icekeep.maintenance.delete import reachable as last_look
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.delete.options import OrphanOptions
from icekeep.maintenance.delete.plan_file import chosen_plan, read_part, trash_location
from icekeep.maintenance.delete.reachable import Reached, named_files
from icekeep.maintenance.expire.job import ExpireSnapshotsResult, expire_snapshots, plan_expire_snapshots
from icekeep.maintenance.orphans.compare import compare, find_candidates, still_unnamed
from icekeep.maintenance.orphans.job import (
    OrphanRemoval,
    RemoveOrphanFilesPlan,
    RemoveOrphanFilesResult,
    remove_orphan_files,
)
from icekeep.maintenance.orphans.listing import RowKeeper, hidden_names, keeping_rows, keyed_rows, list_given
from icekeep.maintenance.orphans.options import PrefixMismatchMode, Search, spelling
from icekeep.maintenance.restore import files as restored_files
from icekeep.maintenance.restore.job import restore
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.session import Engine, SparkSource
from icekeep.planning.spark.tasks import finished_tasks
from icekeep.runtime import SYSTEM
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.storage.open import open_storage
from icekeep.tables.refs import create_tag
from icekeep.tables.verbs import append
from kit.cases import Choices, thinned
from kit.changes import Recorder
from kit.damager import Damager
from kit.deletes import data_files
from kit.lake import EVENTS, Lake, events
from kit.runtime import limited, no_spark
from kit.spark_jobs import Counted
from kit.tables import memory_table


def listed(table: Table) -> list[tuple[ManifestEntry, str]]:
    reader = ManifestReader(table.storage)
    return [
        (entry, manifest.manifest_path)
        for manifest in reader.manifests(table.metadata.current_snapshot)
        for entry in reader.entries(manifest, table.metadata)
        if entry.is_live
    ]


def groups_of(table: Table, directory: str) -> list[tuple[FileGroup, GroupFiles]]:
    """The table's files in groups of four from all over, one half of the groups in storage."""
    rows, found = listed(table), []
    deletes = tuple(GroupDelete(
        content=1, file_path=f"memory://d{n}", file_format="PARQUET", spec_id=0, partition=b"", sequence_number=9,
        record_count=1, file_size_in_bytes=1, content_offset=n or None,
    ) for n in range(3))  # fmt: skip
    for number in range(0, len(rows), 4):
        some = rows[number // 4 :: len(rows) // 4]
        codec = PartitionCodec(table.metadata.partition_type(0))
        files = GroupFiles(
            files=tuple(
                _file(entry, path, codec, PositionSet([at % 3] * (at > 0))) for at, (entry, path) in enumerate(some)
            ),
            deletes=deletes,
        )
        packed, location = pack_group_files(files), None
        if number % 8:
            location = f"{directory}/group-{number}"
            table.storage.create(location, packed)
        group = FileGroup(
            number=number,
            partition="",
            spec_id=0,
            output_spec_id=0,
            files_count=len(some),
            bytes=1,
            record_count=1,
            expected_files_count=1,
            packed=None if location else packed,
            location=location,
        )
        found.append((group, files))
    return found


def _file(entry: ManifestEntry, path: str, codec: PartitionCodec, deletes: PositionSet) -> GroupFile:
    file = entry.data_file
    return GroupFile(
        file_path=file.file_path,
        file_format=file.file_format,
        spec_id=0,
        partition=codec.encode(file.partition),
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number or 0,
        file_sequence_number=entry.file_sequence_number,
        manifest_path=path,
        deletes=deletes,
    )


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.filled(commits=6, files=4)


def test_stored_removed_files_equal_what_was_read(table: Table, spark_session: SparkSession) -> None:
    directory = f"{table.metadata.location}/.icekeep/runs/1"
    groups = groups_of(table, directory)
    stored = store_removed_files(table, spark_session, [group for group, _ in groups], directory)
    expected = [read for _, files in groups for read in read_files(files, table.metadata.partition_types)]
    assert stored.files_count == len(expected) == 24
    assert stored.records_count == sum(read.entry.data_file.record_count for read in expected)
    assert stored.parts.keys() == {read.manifest_path for read in expected}
    for manifest_path in stored.parts:
        wanted = stored.load(table.storage, [manifest_path])
        here = [read for read in expected if read.manifest_path == manifest_path]
        assert set(wanted.paths.values()) == {read.entry.data_file.file_path for read in here}
        assert wanted.applied == {r.entry.data_file.file_path: r.applied_deletes for r in here if r.applied_deletes}
    # And a commit finds its files by it, with what it says was applied: delete files that are not there.
    with pytest.raises(ConflictError, match=r"delete file 'memory://d.' no longer reaches data file"):
        commit(table, RewriteFiles(removed=stored, added=(), schema_id=0))


def test_a_group_that_cannot_be_read_leaves_no_part(table: Table, spark_session: SparkSession) -> None:
    directory = f"{table.metadata.location}/.icekeep/runs/1"
    groups = [group for group, _ in groups_of(table, directory)]
    broken = replace(groups[0], packed=b"nonsense", location=None)
    with pytest.raises(InvalidTableError, match="cannot read the files of a group"):
        store_removed_files(table, spark_session, [broken, *groups[1:]], directory)
    assert not list(Path(directory.removeprefix("file://")).glob("files-*"))


def test_dangling_deletes_are_found_in_tasks(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=3, files=2)
    data = [entry for entry, _ in listed(table)]
    name = f"{table.metadata.location}/data/deletes"
    for number in range(3):
        # One in each partition, and no file of the last.
        file = replace(
            data[2 * number].data_file,
            file_path=f"{name}-{number}",
            content=FileContent.EQUALITY_DELETES,
            equality_ids=(1,),
            partition=data[2 * number].data_file.partition if number < 2 else (9999,),
        )
        table = commit(table, RowDelta(added_deletes=(file,))).table
    change = RewriteFiles(removed=(), added=(), schema_id=0, remove_dangling=True)
    done = commit(table, change, reader=SparkManifestReader(in_tasks, table.storage)).table
    left = {e.data_file.file_path for e, _ in listed(done) if e.data_file.content is not FileContent.DATA}
    assert left == {f"{name}-0", f"{name}-1"}


@pytest.fixture
def tasks(in_tasks: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Nothing is few enough for the driver, and a plan has many parts."""
    monkeypatch.setattr(plan_writing, "_PART_ROWS", 5)
    return in_tasks


def filled(lake: Lake, spark: SparkSession) -> Table:
    table = lake.filled(commits=4, files=3)
    create_tag(table, "kept", table.metadata.snapshots[1].snapshot_id)
    compact(lake.load(), spark, options={"rewrite-all": True})
    return append(lake.load(), events(99))


def arguments() -> dict[str, Any]:
    return {"older_than": SYSTEM.now_ms() + 1, "retain_last": 1}


def content(lake: Lake) -> set[Path]:
    return {p for p in lake.content_on_disk() if ".icekeep" not in p.parts}


def test_tasks_find_and_delete_what_the_driver_would(
    lake: Lake, spark_session: SparkSession, request: pytest.FixtureRequest
) -> None:
    table = filled(lake, spark_session)
    told = {**arguments(), "trash": 0}
    expected = plan_expire_snapshots(table, no_spark, **told)
    files, rows = lake.files_on_disk(), lake.rows()
    tasks = request.getfixturevalue("tasks")
    plan = plan_expire_snapshots(table, tasks, **told)
    assert (plan.hash, plan.files_by_kind, plan.refs) == (expected.hash, expected.files_by_kind, expected.refs)
    assert {*plan.files} == {*expected.files}
    result = expire_snapshots(table, tasks, approve=plan.hash, max_concurrent_deletes=2, **told)
    assert result.deleted_data_files_count == 6
    assert {f"file://{p}" for p in files - lake.files_on_disk()} == {*expected.files}
    assert lake.rows() == rows


def test_the_trash_is_filled_and_emptied_by_tasks(lake: Lake, spark_session: SparkSession, tasks: Engine) -> None:
    table = filled(lake, spark_session)
    rows = lake.rows()
    result = expire_snapshots(table, tasks, trash=1, options={"grace": "1s"}, **arguments())
    left_count = result.left_files_count
    assert left_count > 6
    assert due(lake, "not-before-ms", tasks).finished_files_count == left_count
    assert lake.rows() == rows
    assert len([p for p in lake.files_on_disk() if "trash" in p.parts and "files" in p.parts]) == left_count
    assert due(lake, "trash-until-ms", tasks).emptied_trash_files_count == left_count
    assert not [p for p in lake.files_on_disk() if ".icekeep" in p.parts]
    assert lake.rows() == rows


def test_what_a_run_left_is_held_against_what_is_retained_once(
    lake: Lake, spark_session: SparkSession, tasks: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was done three times: for what stays, and on both sides of what lies elsewhere by now."""
    table = filled(lake, spark_session)
    result = expire_snapshots(table, tasks, trash=1, options={"grace": "1s"}, **arguments())
    # Of the files that wait one is in use again.
    [head] = [p for p in lake.files_on_disk() if p.name == "plan.json"]
    part = next(p for p in head.parent.iterdir() if p.suffix == ".jsonl" and '"data file"' in p.read_text())
    [location, *_] = re.findall(r'"location": ?"([^"]+)"', part.read_text())
    reader = ManifestReader(table.storage)
    manifests = [m for s in table.metadata.snapshots for m in reader.manifests(s)]
    entries = [entry for m in manifests for entry in reader.entries(m, table.metadata)]
    back = next(entry.data_file for entry in entries if entry.data_file.file_path == location)
    commit(lake.load(), AppendFiles(files=(back,)))
    counted, real = Counted(tmp_path), earlier_runs.marked_garbage
    monkeypatch.setattr(earlier_runs, "marked_garbage", lambda *told: counted.frame(real(*told)))
    finished = due(lake, "not-before-ms", tasks)
    assert (finished.finished_files_count, finished.kept_again_files_count) == (result.left_files_count - 1, 1)
    assert counted.times == [1]
    assert Path(urlparse(location).path).exists()


def test_tasks_stop_if_a_restore_takes_over_the_plan(
    lake: Lake, spark_session: SparkSession, tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two rounds of tasks an operator takes back what the first has moved."""
    table = filled(lake, spark_session)
    before, restored = content(lake), []
    monkeypatch.setattr(deleting, "batches_of_parts", lambda parts, *_: [[part] for part in parts])
    look = last_look.TableLook.__call__

    def look_and_restore(self: last_look.TableLook) -> Any:
        if not restored and any("files" in p.parts for p in lake.files_on_disk() if "trash" in p.parts):
            with pytest.raises(ClaimedError):
                restore(lake.load())
            # As a machine that stood still for longer than its claim lasts.
            with monkeypatch.context() as gone:
                gone.setattr(claims, "has_ended", lambda process: True)
                restored.append(restore(lake.load()))
        return look(self)

    monkeypatch.setattr(last_look.TableLook, "__call__", look_and_restore)
    result = expire_snapshots(table, tasks, trash=1, **arguments())
    assert (result.status, "taken over by restore" in result.left_reason) == ("partial", True)
    assert restored[0].restored_snapshots_count > 0
    assert before <= content(lake)


def test_tasks_keep_what_is_adopted_between_two_rounds(
    lake: Lake, spark_session: SparkSession, tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What metadata leads to by now stays."""
    table = filled(lake, spark_session)
    adopted: list[DataFile] = []
    real = deleting.batches_of_parts

    def batches(parts: Any, *told: Any) -> Any:
        for number, some in enumerate(real(parts, *told)):
            if not adopted and number == 0:
                gone = [row["location"] for part in parts for row in read_part(part, table.storage).to_pylist()]
                reader = ManifestReader(table.storage)
                manifests = [m for s in table.metadata.snapshots for m in reader.manifests(s)]
                entries = (entry for m in manifests for entry in reader.entries(m, table.metadata))
                adopted.append(next(entry.data_file for entry in entries if entry.data_file.file_path in gone))
                commit(lake.load(), AppendFiles(files=(adopted[0],)))
            yield some

    monkeypatch.setattr(deleting, "batches_of_parts", batches)
    result = expire_snapshots(table, tasks, trash=0, **arguments())
    assert (result.status, result.left_reason, result.kept_again_files_count) == ("done", "", 1)
    assert Path(urlparse(adopted[0].file_path).path).exists()


def due(lake: Lake, moment: str, spark: Engine) -> ExpireSnapshotsResult:
    """Run the job when a moment of the plan has come: that is set back, and the clocks stay."""
    [head] = [p for p in lake.files_on_disk() if p.name == "plan.json"]
    plan = re.sub(rf'"{moment}": \d+', f'"{moment}": 1', head.read_text())
    head.unlink()
    head.write_text(plan)
    return expire_snapshots(lake.load(), spark, trash=1)


def in_the_trash(lake: Lake, spark: Any) -> tuple[Table, set[Path]]:
    compact(lake.filled(commits=3, files=2), spark, options={"rewrite-all": True})
    before = content(lake)
    expire_snapshots(lake.load(), spark, trash=1, older_than=SYSTEM.now_ms() + 1, retain_last=1)
    assert content(lake) < before
    return lake.load(), before


def test_tasks_bring_everything_back(lake: Lake, tasks: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    table, before = in_the_trash(lake, tasks)
    plan, heard, shared_out = chosen_plan(table, None), Recorder(), []
    assert len(plan.parts) > 1

    def noted(session: Any, payloads: Any, *told: Any, step: str) -> Any:
        shared_out.append((step, len(payloads)))
        return finished_tasks(session, payloads, *told, step=step)

    monkeypatch.setattr(restored_files, "finished_tasks", noted)
    result = restore(table, spark=tasks, listener=heard)
    steps = ("looking at what is to come back", restored_files.STEP, restored_files.STEP)
    assert shared_out == [(step, len(plan.parts)) for step in steps]
    told = [e.done for e in heard.events if isinstance(e, StepAdvanced) and e.step == restored_files.STEP]
    assert sum(told) == plan.files_count
    assert (result.status, result.restored_files_count) == ("done", plan.files_count)
    assert result.restored_snapshots_count == len(plan.snapshot_ids)
    assert before <= content(lake)
    assert not [p for p in lake.files_on_disk() if ".icekeep" in p.parts]


def test_tasks_check_reused_paths_before_any_move(lake: Lake, tasks: Engine) -> None:
    table, _ = in_the_trash(lake, tasks)
    plan = chosen_plan(table, None)
    places = [place for part in plan.parts for place in read_part(part, table.storage)["location"].to_pylist()]
    table.storage.create(places[-1], b"another file")
    here = content(lake)
    with pytest.raises(SafetyError, match=r"is in use again by another file") as raised:
        restore(table, spark=tasks)
    assert raised.value.facts["locations"] == [places[-1]]
    table.storage.delete_many([places[-1], trash_location(plan, places[0])])
    with pytest.raises(SafetyError, match="1 file is neither in its trash nor in their places"):
        restore(table, spark=tasks)
    assert content(lake) == here - {Path(places[-1].removeprefix("file://"))}


def test_tasks_move_nothing_more_once_another_run_has_the_plan(
    lake: Lake, tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = in_the_trash(lake, tasks)
    here, whole = content(lake), restored_files.move_back

    def taken_over(work: Any, *others: Any) -> Any:
        monkeypatch.setattr(claims, "has_ended", lambda process: True)
        claims.take_lease(work.plan.directory, "expire_snapshots", work.storage, SYSTEM, SYSTEM.now_ms())
        return whole(work, *others)

    monkeypatch.setattr("icekeep.maintenance.restore.job.move_back", taken_over)
    with pytest.raises(ClaimedError):
        restore(table, spark=tasks)
    assert content(lake) == here


def test_tasks_report_needs_that_later_runs_removed(lake: Lake, spark_session: SparkSession, tasks: Engine) -> None:
    compact(lake.filled(commits=3, files=1), spark_session, options={"rewrite-all": True})
    table = lake.load()
    before, (first, *_) = content(lake), table.metadata.snapshots_by_id
    expire_snapshots(table, tasks, trash=1, snapshot_ids=[first])
    older = chosen_plan(lake.load(), None)
    expire_snapshots(lake.load(), tasks, trash=1, older_than=SYSTEM.now_ms() + 1, retain_last=1)
    files = lake.files_on_disk()
    with pytest.raises(SafetyError, match=r"need \d+ files? that later runs have removed"):
        restore(lake.load(), run=older.run, spark=tasks)
    assert {p for p in lake.files_on_disk() ^ files if "claims" not in p.parts} == set()
    assert restore(lake.load(), spark=tasks).status == "done"
    assert restore(lake.load(), run=older.run, spark=tasks).status == "done"
    assert before <= content(lake)


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
        return OrphanRemoval(found, spark, wanted, SILENT, keeper).remove()


def plan_orphans(table: Table, spark: SparkSource, wanted: Search) -> RemoveOrphanFilesPlan:
    with keeping_rows(table, SILENT) as keeper:
        found = find_candidates(table, spark, wanted, SILENT, keeper, is_plan=True)
        return OrphanRemoval(found, spark, wanted, SILENT, keeper).foreseen()


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


def test_tasks_delete_nothing_if_a_manifest_is_unreadable(place: Place, spark_session: SparkSession) -> None:
    """G4."""
    manifest = next(path for path in place.live if path.name.endswith("-m0.avro"))
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with pytest.raises(SafetyError, match="nothing is deleted"):
        run(place.table, listing(spark_session, 0))
    assert place.strays <= place.lake.files_on_disk()


def test_tasks_stop_if_the_listing_has_no_live_file(place: Place, spark_session: SparkSession) -> None:
    data = place.root / "data"
    for path in [p for p in data.rglob("*.parquet") if p in place.live]:
        path.rename(path.with_name(f"moved-{path.name}"))
    with pytest.raises(SafetyError, match="none of those listed there"):
        run(place.table, listing(spark_session, 0), location=data.as_uri(), force=True)


def test_tasks_compare_schemes_and_authorities_like_the_driver(spark_session: SparkSession, keeper: RowKeeper) -> None:
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


def test_tasks_keep_files_named_through_symlinks(place: Place, spark_session: SparkSession, tmp_path: Path) -> None:
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


def test_file_list_view_decides_the_file_age(place: Place, spark_session: SparkSession) -> None:
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


def test_file_list_view_without_table_files_is_refused(place: Place, spark_session: SparkSession) -> None:
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


def test_tasks_keep_files_adopted_since_the_plan(place: Place, spark_session: SparkSession, keeper: RowKeeper) -> None:
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
def test_files_of_another_plan_are_no_orphans(lake: Lake, spark_session: SparkSession, limit: int) -> None:
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
