"""What stands in the way of a newer format version is named, and holds up the upgrade or not."""

import json
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

import icekeep
from icekeep import cli
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import OptionError, SafetyError, UnsupportedError, UsageError
from icekeep.maintenance.upgrade.job import plan_upgrade_table, upgrade_table
from icekeep.maintenance.upgrade.obstacles import FORCIBLE, HOLDING_UP, obstacles_of
from icekeep.spec.evolution import AddColumn, RenameColumn
from icekeep.spec.metadata import parse_metadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import DAY_MS
from icekeep.tables.refs import create_branch, create_tag, drop_branch
from icekeep.tables.verbs import append, rollback_to_snapshot, update_schema
from kit.deletes import data_files, delete_equal, delete_positions
from kit.job_world import EVENTS, World
from kit.lake import Lake, events
from kit.runtime import no_spark
from kit.tables import add, data_file, memory_table

SPARK = {"engine-name": "spark", "engine-version": "3.5.1"}
FLINK = {
    "engine-name": "flink",
    "flink.job-id": "j-1",
    "flink.operator-id": "o",
    "flink.max-committed-checkpoint-id": "7",
}


def names(table, to=3):
    """The obstacles of a table that hold it up, and the others."""
    found = obstacles_of(table, to, no_spark)
    held = [one.name for one in found if one.holds_up]
    assert [one.name for one in found][: len(held)] == held
    return held, [one.name for one in found if not one.holds_up]


def obstacle(table, name, to=3):
    [one] = [one for one in obstacles_of(table, to, no_spark) if one.name == name]
    return one


@pytest.fixture
def world():
    world = World(2)
    world.append(1, 2)
    return world


def with_snapshots(table, *snapshots):
    """The table with other snapshots in its metadata."""
    return msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, snapshots=snapshots))


def with_summary(table, **summary):
    """The table, all of whose snapshots have some keys more in their summaries."""
    more = {key.replace("__", "."): value for key, value in summary.items()}
    changed = [msgspec.structs.replace(s, summary={**(s.summary or {}), **more}) for s in table.metadata.snapshots]
    return with_snapshots(table, *changed)


def test_sound_table_has_nothing_that_holds_it_up(world):
    assert names(world.table) == ([], ["readers"])
    assert obstacles_of(world.table, 2, no_spark) == ()


def test_delete_files_are_counted_by_their_kind(world):
    path = data_files(world.table)[0].file_path
    table = delete_equal(delete_positions(world.table, [(path, 0)]), pa.table({"id": [1]}), ["id"])
    held, others = names(table)
    assert (held, others[-1]) == (["equality-deletes"], "position-deletes")
    assert obstacle(table, "equality-deletes").found_count == obstacle(table, "position-deletes").found_count == 1
    assert "icekeep rewrite_position_deletes --table" in obstacle(table, "equality-deletes").advice
    # They are of version 2 already.
    v1 = World(1)
    v1.append(1)
    assert names(v1.table, 2)[0] == []


def test_deletes_that_only_a_tag_has_count_too(world):
    table = delete_equal(world.table, pa.table({"id": [1]}), ["id"])
    table = create_branch(create_tag(table, "before"), "audit")
    rollback_to_snapshot(table, table.metadata.snapshots[0].snapshot_id)
    held, others = names(drop_branch(world.table, "audit"))
    assert (held, others) == (["equality-deletes"], ["readers"])
    create_branch(world.table, "audit")
    assert "branches" in names(world.table)[1]


def test_release_that_cannot_write_it_holds_it_up(world):
    table = with_summary(world.table, **SPARK, **{"iceberg-version": "Apache Iceberg 1.4.3 (commit 9a)"})
    assert names(table)[0] == ["engines"]
    assert "Spark 3.5.1 with Iceberg 1.4.3 (1 snapshot, last " in obstacle(table, "engines").found
    assert names(with_summary(world.table, **SPARK)) == ([], ["unknown-engines", "readers"])


def test_files_elsewhere_and_other_formats_are_named():
    table = add(
        memory_table(), data_file("a"), replace_file(data_file("b"), file_path="memory://far/b.orc", file_format="ORC")
    )
    table = msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, format_version=2))
    elsewhere, formats = obstacle(table, "files-elsewhere"), obstacle(table, "file-formats")
    assert (elsewhere.found_count, "memory://far/b.orc" in elsewhere.found) == (1, True)
    assert (formats.found_count, "1 in ORC" in formats.found) == (1, True)
    assert not elsewhere.holds_up
    assert not formats.holds_up


def replace_file(file, **changes):
    return (
        replace(file, **changes) if hasattr(file, "__dataclass_fields__") else msgspec.structs.replace(file, **changes)
    )


def test_properties_whose_meaning_changes_are_named():
    world = World(
        1, write__delete__granularity="file", write__update__mode="merge-on-read", write__upsert__enabled="true"
    )
    found = obstacle(world.table, "properties").found
    for text in (
        "write.delete.granularity has no effect",
        "write.update.mode=merge-on-read takes effect",
        "write.upsert.enabled takes effect",
    ):
        assert text in found
    assert "granularity" not in obstacle(world.table, "properties", to=2).found


def test_flink_needs_the_whole_history_of_its_branch(world):
    whole = with_summary(world.append(3), **FLINK, **{"added-equality-delete-files": "1"})
    assert "flink-history" not in names(whole)[0]
    cut = with_snapshots(whole, whole.metadata.snapshots[-1])
    assert names(cut)[0] == ["flink-history"]
    appends = with_summary(world.table, **FLINK)
    assert names(with_snapshots(appends, appends.metadata.snapshots[-1]))[0] == []


def test_encryption_columns_and_lists_hold_up_for_good(world):
    named = update_schema(world.table, [AddColumn("_row_id", "long")])
    assert names(named)[0] == ["row-id-columns"]
    table = update_schema(named, [RenameColumn("_row_id", "number")])
    assert names(table)[0] == []
    encrypted = commit(table, ChangeProperties(updates={"encryption.key-id": "k"})).table
    assert names(encrypted) == (["encryption"], ["readers"])
    with pytest.raises(UnsupportedError, match="encrypted"):
        upgrade_table(encrypted, no_spark, to=3)
    old = Snapshot(snapshot_id=9, timestamp_ms=1, manifests=("memory://lake/m.avro",))
    assert names(with_snapshots(table, old, *table.metadata.snapshots))[0] == ["no-manifest-list"]
    assert set(FORCIBLE) < set(HOLDING_UP)
    for name in set(HOLDING_UP) - set(FORCIBLE):
        with pytest.raises(OptionError):
            upgrade_table(table, no_spark, to=3, force=[name])


def test_upgrade_refuses_what_is_not_forced(world):
    delete_equal(world.table, pa.table({"id": [1]}), ["id"])
    before = world.state()
    with pytest.raises(SafetyError, match=r"stays at format version 2: 1 equality delete file.*\(equality-deletes\)"):
        upgrade_table(world.table, no_spark, to=3)
    plan = plan_upgrade_table(world.table, no_spark, to=3)
    assert (plan.is_upgraded, plan.held_up_by, plan.format_version) == (False, ("equality-deletes",), 2)
    assert world.state() == before
    done = upgrade_table(world.table, no_spark, to=3, force=["equality-deletes"])
    assert (done.is_upgraded, done.forced, done.format_version) == (True, ("equality-deletes",), 3)
    assert world.table.metadata.format_version == 3
    assert world.rows()


def test_deletes_that_others_commit_meanwhile_hold_it_up(world):
    table = world.table
    operations = iter(["swap"])

    def commits_first(operation, location):
        if operation == next(operations, None):
            world.storage.before = lambda *_: None
            delete_equal(world.table, pa.table({"id": [1]}), ["id"])

    world.storage.before = lambda operation, location: (
        commits_first(operation, location) if operation == "swap" else None
    )
    with pytest.raises(SafetyError, match="equality delete file"):
        upgrade_table(table, no_spark, to=3)
    assert world.table.metadata.format_version == 2


def test_append_that_comes_meanwhile_does_not_matter(world):
    table = world.table
    world.append(7)
    assert upgrade_table(table, no_spark, to=3).is_upgraded
    assert len(world.table.metadata.snapshots) == 2


@pytest.mark.parametrize(
    ("to", "match"), [(0, "no format version is given"), (4, "no such format version"), (1, "no way back")]
)
def test_versions_that_cannot_be_had(world, to, match):
    with pytest.raises(UsageError, match=match):
        upgrade_table(world.table, no_spark, to=to)


def test_a_table_that_has_the_version_is_left_alone(world):
    before = world.state()
    assert upgrade_table(world.table, no_spark, to=2).is_idle
    assert world.state() == before


def test_version_1_without_uuid_or_snapshots_is_upgraded():
    world = World(1)
    assert upgrade_table(world.table, no_spark, to=2).is_upgraded
    assert upgrade_table(world.table, no_spark, to=3).is_upgraded
    location = world.catalog.find(EVENTS).metadata_location
    assert parse_metadata(world.memory.files[location][0], location).next_row_id == 0


def test_first_snapshot_after_it_gives_all_rows_their_ids(world):
    upgrade_table(world.table, no_spark, to=3)
    world.runtime.pass_ms(DAY_MS)
    metadata = world.append(3).metadata
    assert (metadata.current_snapshot.first_row_id, metadata.next_row_id) == (0, 15)
    assert metadata.snapshots[0].first_row_id is None


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    lake = Lake(tmp_path)
    (tmp_path / "icekeep.yaml").write_text(json.dumps({"catalogs": {"local": lake.properties}}))
    lake.filled(commits=1, format_version=2)

    def run_command(*words):
        status = cli.main([*words, "--conf", str(tmp_path / "icekeep.yaml"), "--output", "json"])
        return status, json.loads(capsys.readouterr().out)

    return lake, run_command


@pytest.mark.slow
def test_command_and_doctor_say_the_same(run):
    lake, run_command = run
    delete_equal(lake.load(), pa.table({"id": [1]}), ["id"], like=data_files(lake.load())[0])
    status, planned = run_command("upgrade", "--table", "db.events", "--to", "3", "--dry-run")
    assert (status, planned["result"]["held_up_by"]) == (0, ["equality-deletes"])
    status, looked = run_command("doctor", "--table", "db.events", "--upgrade-to", "3")
    assert (status, looked["result"]["status"]) == (2, "wrong")
    found = {one["check"]: one["status"] for one in looked["result"]["findings"]}
    assert found == {"equality-deletes": "wrong", "readers": "not-tried"}
    assert {one["about"] for one in looked["result"]["findings"]} == {"table local.db.events"}
    status, refused = run_command("upgrade", "--table", "db.events", "--to", "3")
    assert (status, refused["error"]["kind"]) == (4, "safety")
    status, done = run_command("upgrade", "--table", "db.events", "--to", "3", "--force", "equality-deletes")
    assert status == 0, done["error"]["message"]
    assert (status, done["result"]["is_upgraded"], lake.load().metadata.format_version) == (0, True, 3)
    status, looked = run_command("doctor", "--table", "db.events", "--upgrade-to", "3")
    assert (status, looked["result"]["findings"][0]["message"]) == (0, "the table has format version 3")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--table", "db.events"), ("--upgrade-to", "3")])
def test_doctor_wants_a_table_and_a_version(run, words):
    status, document = run[1]("doctor", *words)
    assert (status, document["error"]["kind"]) == (2, "usage")


@pytest.mark.slow
def test_judges_read_the_upgraded_table(tmp_path):
    lake = Lake(tmp_path)
    lake.filled(commits=2, format_version=2)
    icekeep.upgrade_table(lake.load(), to=3)
    rows = lake.rows()
    append(lake.load(), events(7))
    assert lake.rows() > rows
