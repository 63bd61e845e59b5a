"""Plans of compaction in Spark, and those that are carried out later."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, SafetyError, UnsupportedError
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import chosen_strategy
from icekeep.maintenance.compact.plan import FileGroup, GroupFiles, RewritePlan, group_files, plan_locations
from icekeep.maintenance.compact.planner import plan
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.plans import read_plan_file
from icekeep.operations.commands.applying import apply_plan, write_plan
from icekeep.planning.scan import plan as scan_plan
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.session import Engine
from icekeep.runtime import SYSTEM
from icekeep.spec.evolution import AddPartitionField, RemovePartitionField
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.properties import own_directory
from icekeep.spec.reach import applied_delete
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.spec.types import DAY_MS, LONG, STRING
from icekeep.spec.values import value_to_bytes
from icekeep.tables.verbs import append, update_spec
from kit.cases import thinned
from kit.deletes import data_files, delete_positions
from kit.lake import Lake, events
from kit.runtime import limited

TARGET = 1000
SIZES = {"target-file-size-bytes": str(TARGET), "min-file-size-bytes": "750", "max-file-size-bytes": "1800"}
IN_TASKS = -1


def described(table: Table, name: str, size: int, partition: tuple[Any, ...] = (), **changes: Any) -> DataFile:
    return DataFile(
        **{
            "file_path": f"{table.metadata.location}/data/{name}",
            "file_format": "PARQUET",
            "spec_id": table.metadata.default_spec_id,
            "partition": partition,
            "record_count": 10,
            "file_size_in_bytes": size,
            "split_offsets": (4,),
            **changes,
        }
    )


def bounded(first: int, last: int, kind: str = "k") -> dict[str, Any]:
    return {
        "lower_bounds": {1: value_to_bytes(LONG, first), 2: value_to_bytes(STRING, kind)},
        "upper_bounds": {1: value_to_bytes(LONG, last), 2: value_to_bytes(STRING, kind)},
        "null_value_counts": {1: 0, 2: 0},
    }


def appended(table: Table, files: Sequence[DataFile]) -> Table:
    return commit(table, AppendFiles(files=tuple(files))).table


def with_deletes(table: Table, *deletes: DataFile, named: tuple[str, ...] = ()) -> Table:
    return commit(table, RowDelta(added_deletes=deletes, named=frozenset(named))).table


def positions(table: Table, name: str, partition: tuple[Any, ...], records: int = 1, **changes: Any) -> DataFile:
    content = FileContent.POSITION_DELETES
    return described(table, name, 20, partition, record_count=records, content=content, split_offsets=None, **changes)


def equalities(table: Table, name: str, partition: tuple[Any, ...], **changes: Any) -> DataFile:
    content, ids = FileContent.EQUALITY_DELETES, (1,)
    return described(
        table, name, 30, partition, record_count=1, content=content, equality_ids=ids, split_offsets=None, **changes
    )


def generated(lake: Lake, seed: int, *, has_vectors: bool = False) -> Table:
    """Files of many sizes in three partitions, of two specs if the seed is odd, some with deletes of each kind."""
    chance = np.random.default_rng(seed)
    table = lake.create(partition_by=(("kind", "identity"),), format_version=3 if has_vectors else 2)
    files: list[DataFile] = []
    for commit_number in range(3):
        if commit_number == 2 and seed % 2:
            table = update_spec(table, [AddPartitionField("id", "bucket[4]", name="id_bucket")])
        more = []
        for number in range(chance.integers(15, 40)):
            kind = ["a", "b", None][chance.integers(3)]
            partition = (kind,) if len(table.metadata.spec.fields) == 1 else (kind, number % 4)
            first = int(chance.integers(1000))
            keys = bounded(first, first + int(chance.integers(300)), kind or "z") if chance.random() < 0.9 else {}
            size = int(chance.choice([10, 200, 700, 900, 1000, 2000, 5000]))
            name = f"{chance.integers(100)}-{commit_number}-{number}"
            more.append(described(table, name, size, partition, **keys))
        table = appended(table, more)
        files += more
        for number, position in enumerate(chance.permutation(len(files))[:6]):
            file = files[position]
            delete: DataFile
            same = {"spec_id": file.spec_id}
            if has_vectors and number % 3 < 2:
                # A file may have one.
                file = more[number]
                blob = {"referenced_data_file": file.file_path, "content_offset": 4, "content_size_in_bytes": 9}
                same = {"spec_id": file.spec_id, "file_format": "PUFFIN", **blob}
                delete = positions(table, f"v-{commit_number}-{number}", file.partition, 1 + number, **same)
                table = with_deletes(table, delete)
                continue
            match number % 3:
                case 0:
                    if chance.random() < 0.5:
                        path = {DELETE_FILE_PATH.field_id: file.file_path.encode()}
                        same |= {"lower_bounds": path, "upper_bounds": path}
                    records = 1 + 3 * number
                    delete = positions(table, f"p-{commit_number}-{number}", file.partition, records, **same)
                case 1:
                    only = {"referenced_data_file": file.file_path, **same}
                    delete = positions(table, f"o-{commit_number}-{number}", file.partition, 4, **only)
                case _:
                    delete = equalities(table, f"e-{commit_number}-{number}", file.partition, **same)
            table = with_deletes(table, delete, named=(file.file_path,) if number % 3 == 0 else ())
    return table


def planned(
    table: Table,
    spark: SparkSession,
    sort_order: str | None = None,
    *,
    limit: int = 200_000,
    where: str = "true",
    run: str | None = "1",
    **given: str,
) -> RewritePlan:
    options = parse_options(
        RewriteDataFilesOptions, {**SIZES, **{name.replace("_", "-"): value for name, value in given.items()}}
    )
    strategy = chosen_strategy(None, sort_order, table.metadata, options)
    directory = None if run is None else own_directory(table.metadata, f"plans/{run}")
    engine = limited(spark, entries_count=limit, matched_entries_count=limit)
    return plan(open_scan(table, where=where), engine, strategy, options, directory=directory)


def without_files(found: RewritePlan) -> RewritePlan:
    return replace(found, groups=tuple(replace(group, packed=None, location=None, held=None) for group in found.groups))


def files_of(found: RewritePlan, table: Table) -> list[GroupFiles]:
    return [group_files(group, table.storage) for group in found.groups]


def names(group: FileGroup, table: Table) -> set[str]:
    return {file.file_path.rsplit("/", 1)[-1] for file in group_files(group, table.storage).files}


def stored(table: Table) -> set[str]:
    directory = Path(urlparse(own_directory(table.metadata, "plans")).path)
    return {path.as_uri() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("seed", "has_vectors"), thinned([(3, True), (1, False), (2, False)], 3))
def test_tasks_come_to_the_groups_that_the_driver_comes_to(
    lake: Lake, spark_session: SparkSession, seed: int, has_vectors: bool
) -> None:
    table = generated(lake, seed, has_vectors=has_vectors)
    for number, (order, given) in enumerate(
        [
            (None, {}),
            (None, {"max_files_to_rewrite": "13", "rewrite_job_order": "bytes-desc"}),
            ("id DESC, kind", {"max_file_group_size_bytes": "9000"}),
            ("zorder(id, kind)" if seed % 2 == 0 else "id", {"max_files_to_rewrite": "20"}),
        ]
    ):
        few = planned(table, spark_session, order, **given)
        many = planned(table, spark_session, order, limit=IN_TASKS, run=str(number), **given)
        assert few.groups
        assert without_files(many) == without_files(few)
        assert files_of(many, table) == files_of(few, table)
        assert all(group.location is None for group in few.groups)
        assert {*plan_locations(many)} == stored(table)
        table.storage.delete_many(plan_locations(many))


def test_deletes_beyond_the_driver_limit_match_in_spark(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = generated(lake, 2)
    few = planned(table, spark_session)
    monkeypatch.setattr(scan_plan, "reaching", lambda *_: None)
    many = planned(table, spark_session)
    assert {group.location for group in many.groups} == stored(table)
    assert files_of(many, table) == files_of(few, table)


def test_second_task_attempt_reuses_stored_files(lake: Lake, spark_session: SparkSession) -> None:
    table = generated(lake, 2)
    first = planned(table, spark_session, limit=IN_TASKS)
    files = files_of(first, table)
    second = planned(table, spark_session, limit=IN_TASKS)
    assert second == first
    assert files_of(second, table) == files


def test_a_preview_puts_nothing_into_storage(lake: Lake, spark_session: SparkSession) -> None:
    table = generated(lake, 4)
    given = {"max_files_to_rewrite": "13"}
    preview = planned(table, spark_session, limit=IN_TASKS, run=None, **given)
    assert without_files(preview) == without_files(planned(table, spark_session, **given))
    assert not stored(table)


def test_the_files_of_a_group_say_all_that_their_entries_do(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.create(partition_by=(("kind", "identity"),))
    table = appended(table, [described(table, f"f{n}", 10, ("a",), sort_order_id=3) for n in range(5)])
    only = positions(table, "p", ("a",), referenced_data_file=f"{table.metadata.location}/data/f1")
    table = with_deletes(table, only, equalities(table, "e", ("a",)))
    found = planned(table, spark_session)
    [group] = found.groups
    snapshot, *_ = table.metadata.snapshots
    [of_group] = files_of(found, table)
    for file in of_group.files:
        assert (file.snapshot_id, file.sequence_number, file.file_sequence_number) == (snapshot.snapshot_id, 1, 1)
        assert (file.sort_order_id, file.split_offsets, file.record_count) == (3, (4,), 10)
        assert file.manifest_path.endswith(".avro")
    assert [len(file.deletes) for file in of_group.files] == [1, 2, 1, 1, 1]
    first, second = of_group.deletes
    assert (first.equality_ids, first.content, second.referenced_data_file) == ((1,), 2, only.referenced_data_file)
    assert (group.partition, group.delete_files_count, group.delete_bytes) == ("kind=a", 2, 50)
    assert (found.snapshot_id, found.sequence_number) == (table.metadata.current_snapshot_id, 2)


@pytest.mark.parametrize("limit", thinned([IN_TASKS, 200_000], 2))
def test_deletes_ask_for_a_rewrite_by_number_or_by_share(lake: Lake, spark_session: SparkSession, limit: int) -> None:
    table = lake.create(partition_by=())
    table = appended(table, [described(table, name, 900) for name in ("many", "most", "few", "none")])
    of = {name: f"{table.metadata.location}/data/{name}" for name in ("many", "most", "few")}
    table = with_deletes(
        table,
        *(positions(table, f"m{n}", (), referenced_data_file=of["many"]) for n in range(2)),
        positions(table, "o", (), 3, referenced_data_file=of["most"]),
        positions(table, "f", (), 2, referenced_data_file=of["few"]),
    )
    by_default = planned(table, spark_session, limit=limit, run="0")
    assert [names(group, table) for group in by_default.groups] == [{"most"}]
    [group] = planned(
        table, spark_session, limit=limit, run="1", delete_file_threshold="2", delete_ratio_threshold="1.0"
    ).groups
    assert names(group, table) == {"many"}
    [group] = planned(table, spark_session, limit=limit, run="2", delete_file_threshold="1").groups
    assert names(group, table) == {"many", "most", "few"}
    [group] = planned(table, spark_session, limit=limit, run="3", delete_ratio_threshold="0.2").groups
    assert names(group, table) == {"many", "most", "few"}


@pytest.mark.parametrize("limit", thinned([IN_TASKS, 200_000], 2))
def test_deletes_of_a_whole_partition_count_by_number_alone(
    lake: Lake, spark_session: SparkSession, limit: int
) -> None:
    table = lake.create(partition_by=())
    table = appended(table, [described(table, "a", 900)])
    deletes = (positions(table, "p", (), 9), equalities(table, "e", ()))
    table = with_deletes(table, *deletes, named=(f"{table.metadata.location}/data/a",))
    assert not planned(table, spark_session, limit=limit, run="4").groups
    assert planned(table, spark_session, limit=limit, run="5", delete_file_threshold="2").groups


@pytest.mark.parametrize("limit", thinned([IN_TASKS, 200_000], 2))
def test_deletes_older_than_a_file_do_not_select_it(lake: Lake, spark_session: SparkSession, limit: int) -> None:
    table = lake.create(partition_by=())
    table = appended(table, [described(table, "a", 900)])
    table = with_deletes(table, positions(table, "p", ()), named=(f"{table.metadata.location}/data/a",))
    found = planned(table, spark_session, limit=limit, run="6", delete_file_threshold="1")
    assert len(found.groups) == 1
    reader = ManifestReader(table.storage)
    manifests = reader.manifests(table.metadata.current_snapshot)
    entries = {e.data_file.file_path: e for m in manifests for e in reader.entries(m, table.metadata)}
    path = f"{table.metadata.location}/data/"
    # By its number the delete file reaches the new one too, as it would a file of its own commit.
    change = RewriteFiles(
        removed=(entries[path + "a"],),
        added=(described(table, "b", 900),),
        schema_id=0,
        data_sequence_number=found.sequence_number,
        applied_deletes={path + "a": frozenset({applied_delete(entries[path + "p"])})},
    )
    table = commit(table, change).table
    assert not planned(table, spark_session, limit=limit, run="7", delete_file_threshold="1").groups


def test_files_of_an_older_spec_move_to_the_default_one(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.create(partition_by=(("kind", "identity"),))
    table = appended(table, [described(table, f"o{n}", 10, (kind,)) for n, kind in enumerate("aabbb")])
    table = update_spec(table, [RemovePartitionField("kind"), AddPartitionField("at", "day", name="day")])
    table = appended(table, [described(table, f"n{n}", 10, (7,)) for n in range(5)])
    old, new = sorted(planned(table, spark_session).groups, key=lambda group: group.spec_id)
    assert (old.spec_id, old.output_spec_id, old.files_count, old.partition) == (0, 1, 5, "")
    assert (new.spec_id, new.output_spec_id, new.files_count, new.partition) == (1, 1, 5, "day=1970-01-08")
    back = {
        group.spec_id: group for group in planned(table, spark_session, output_spec_id="0", min_input_files="2").groups
    }
    assert (back[1].output_spec_id, back[1].is_moved) == (0, True)
    with pytest.raises(NotFoundError, match="no partition spec 7"):
        planned(table, spark_session, output_spec_id="7")


def test_equality_deletes_keep_files_in_their_spec(lake: Lake, spark_session: SparkSession) -> None:
    """Files that they may reach move to another spec only when asked."""
    table = lake.create(partition_by=(("kind", "identity"),))
    table = appended(table, [described(table, f"o{n}", 10, ("a",)) for n in range(5)])
    # It reaches no file of the scan: that it is live is enough, since the next one may be on its way.
    table = with_deletes(table, equalities(table, "e", ("elsewhere",)))
    table = update_spec(table, [RemovePartitionField("kind")])
    [group] = planned(table, spark_session, where="id >= 0").groups
    assert (group.spec_id, group.output_spec_id, group.partition) == (0, 0, "kind=a")
    [group] = planned(table, spark_session, output_spec_id="1").groups
    assert (group.spec_id, group.output_spec_id, group.partition) == (0, 1, "")


def test_nothing_moves_to_a_spec_with_unknown_transform(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.create(partition_by=(("kind", "identity"),))
    table = appended(table, [described(table, f"o{n}", 10, ("a",)) for n in range(5)])
    spec = {"spec-id": 1, "fields": [{"name": "s", "transform": "spiral", "source-id": 1, "field-id": 1001}]}
    known = {"spec-id": 0, "fields": [{"name": "kind", "transform": "identity", "source-id": 2, "field-id": 1000}]}
    lake.edit_metadata(partition_specs=[known, spec], default_spec_id=1)
    table = lake.load()
    [group] = planned(table, spark_session).groups
    assert (group.spec_id, group.output_spec_id, group.partition) == (0, 0, "kind=a")
    with pytest.raises(UnsupportedError, match="partition spec 1 has a transform that is not known"):
        planned(table, spark_session, output_spec_id="1")


def test_an_encrypted_file_is_refused_where_it_is_read(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.create(partition_by=())
    table = appended(table, [described(table, f"f{n}", 10, key_metadata=b"key") for n in range(5)])
    for limit in (200_000, IN_TASKS):
        with pytest.raises(UnsupportedError, match="is encrypted"):
            planned(table, spark_session, limit=limit)


def test_overlap_is_measured_by_partition_and_the_same_in_tasks(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.create(partition_by=(("kind", "identity"),))
    apart = [described(table, f"a{n}", 900, ("a",), **bounded(10 * n, 10 * n + 10, "a")) for n in range(4)]
    together = [described(table, f"b{n}", 900, ("b",), **bounded(n, 100 + n, "b")) for n in range(4)]
    table = appended(table, [*apart, *together])
    found = planned(table, spark_session, "id")
    assert found.overlap_depth_before == (4 * 1 + 4 * 4) / 8
    [group] = found.groups
    assert (group.partition, names(group, table)) == ("kind=b", {"b0", "b1", "b2", "b3"})
    assert planned(table, spark_session, "id", limit=IN_TASKS).overlap_depth_before == 2.5
    assert planned(table, spark_session).overlap_depth_before is None
    assert planned(lake.load(), spark_session, "id", where="kind = 'a'").groups == ()


def test_a_table_without_files_is_an_empty_plan(lake: Lake, spark_session: SparkSession) -> None:
    found = planned(lake.create(), spark_session, "id")
    assert (found.groups, found.left_alone, found.overlap_depth_before, found.snapshot_id) == ((), (), None, None)


@pytest.fixture
def engine(in_tasks: Engine) -> Engine:
    """Nothing is few enough for the driver."""
    return in_tasks


def lines_of(path: Path, *kinds: str) -> Counter[str]:
    return Counter(line.name for line in read_plan_file(str(path)).lines() if line.kind in kinds)


def table_with_deletes(lake: Lake) -> Table:
    table = lake.filled(commits=4, files=2)
    paths = [file.file_path for file in data_files(table)][:3]
    for path in paths:
        table = delete_positions(table, [(path, 1)])
    return table


OPTIONS: Mapping[str, str] = {"rewrite-all": "true", "max-file-group-input-files": "3"}


def test_a_compaction_is_carried_out_as_it_was_planned(tmp_path: Path, lake: Lake, engine: Engine) -> None:
    table, path = table_with_deletes(lake), tmp_path / "plan.jsonl"
    files = lake.files_on_disk()
    told = write_plan(table, "compact", str(path), engine, options=OPTIONS)
    # Nothing is put in storage for a plan that is only written down.
    assert lake.files_on_disk() == files
    assert told.totals.files_count == 8 + 3
    assert lines_of(path, "data file") == Counter(file.file_path for file in data_files(table))
    append(lake.load(), events(50))
    rows = lake.rows()
    held = apply_plan(table.catalog, str(path), engine, dry_run=True)
    assert (held.status, held.result.rewritten_data_files_count) == ("planned", 8)
    done = apply_plan(table.catalog, str(path), engine).result
    groups = sum(line.kind == "group" for line in read_plan_file(str(path)).lines())
    assert (done.rewritten_data_files_count, done.added_data_files_count) == (8, groups)
    assert groups > 2
    assert lake.rows() == rows
    assert apply_plan(table.catalog, str(path), engine).applied_before


def test_the_same_file_comes_of_few_files_and_of_many(
    tmp_path: Path, lake: Lake, engine: Engine, spark_session: SparkSession
) -> None:
    table = table_with_deletes(lake)
    few, many = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    write_plan(table, "compact", str(few), spark_session, options=OPTIONS)
    write_plan(table, "compact", str(many), engine, options=OPTIONS)
    states = [{line.name: line.state for line in read_plan_file(str(one)).lines() if line.state} for one in (few, many)]
    assert states[0] == states[1]
    assert len(states[0]) == 8 + 3
    assert apply_plan(table.catalog, str(few), engine).result.rewritten_data_files_count == 8


def test_a_file_that_has_other_deletes_is_seen_in_tasks(tmp_path: Path, lake: Lake, engine: Engine) -> None:
    table, path = table_with_deletes(lake), tmp_path / "plan.jsonl"
    write_plan(table, "compact", str(path), engine, options=OPTIONS)
    before = delete_positions(table, [(data_files(table)[0].file_path, 3)])
    files = lake.files_on_disk()
    with pytest.raises(SafetyError, match="1 file has other deletes now"):
        apply_plan(table.catalog, str(path), engine)
    assert lake.load().metadata_location == before.metadata_location
    assert lake.files_on_disk() == files


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ("expire_snapshots", {"older_than": SYSTEM.now_ms() + DAY_MS, "trash": 0}),
        ("drop", {"purge": True}),
    ],
)
def test_what_is_deleted_is_what_is_in_the_file(
    tmp_path: Path, lake: Lake, engine: Engine, spark_session: SparkSession, job: str, told: Mapping[str, Any]
) -> None:
    table, path = table_with_deletes(lake), tmp_path / "plan.jsonl"
    compact(table, spark_session, options={"rewrite-all": "true"})
    files = lake.files_on_disk()
    written = write_plan(lake.load(), job, str(path), engine, **told)
    assert lake.files_on_disk() == files
    apply_plan(table.catalog, str(path), engine)
    planned = {line.name for line in read_plan_file(str(path)).lines() if line.do == "delete"}
    gone = {str(file) for file in files - lake.files_on_disk() if ".icekeep" not in str(file)}
    assert {name.removeprefix("file://") for name in planned} >= gone
    assert len(gone) >= 8
    assert written.totals.files_count == len(planned)


def test_orphans_are_those_of_the_file(tmp_path: Path, lake: Lake, engine: Engine) -> None:
    table, path = table_with_deletes(lake), tmp_path / "plan.jsonl"
    directory, old_s = Path(lake.location().removeprefix("file://")), (SYSTEM.now_ms() - 5 * DAY_MS) / 1000
    strays = [directory / "data" / f"stray-{number}.parquet" for number in range(6)]
    for stray in strays:
        stray.write_bytes(b"stray")
        os.utime(stray, (old_s, old_s))
    strays[5].unlink()
    write_plan(table, "remove_orphan_files", str(path), engine, trash=0, options={"max-orphan-ratio": "0.9"})
    planned = lines_of(path, "orphan file")
    assert planned.total() == len(planned) == 5
    strays[5].write_bytes(b"stray")
    os.utime(strays[5], (old_s, old_s))
    assert apply_plan(table.catalog, str(path), engine).result.deleted_files_count == 5
    assert [stray.exists() for stray in strays] == [False] * 5 + [True]
    assert apply_plan(table.catalog, str(path), engine).applied_before
