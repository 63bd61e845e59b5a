"""The health of tables that were made for it: sizes, sums in the place of plans, expiration, orphans, prices, faults."""

import gzip
import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, MissingFileError, UnsupportedError
from icekeep.health.advice import facts_of
from icekeep.health.job import table_health
from icekeep.health.prices import Prices
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.expire.job import expire_snapshots, plan_expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.orphans.job import plan_remove_orphan_files
from icekeep.planning.spark.session import LIMITS, Engine
from icekeep.spec.evolution import RemovePartitionField
from icekeep.spec.types import DAY_MS
from icekeep.tables.refs import create_tag
from icekeep.tables.verbs import append, create_table, rollback_to_snapshot, update_spec, upgrade_format_version
from kit.cases import Choices, cases, for_each
from kit.damager import Damager
from kit.deletes import (
    add_deletes,
    data_files,
    delete_by_vector,
    delete_positions,
    equality_deletes,
    with_position_deletes,
)
from kit.job_world import EVENTS, World
from kit.lake import SCHEMA, events
from kit.runtime import no_spark
from kit.tables import BY_KIND, add, data_file, memory_table

pytestmark = pytest.mark.slow

MANY = Engine(spark=no_spark, limits=replace(LIMITS, entries_count=0, ref_entries_count=0))
"""As where there are too many entries for a plan."""


def health(world, **more):
    return table_health(world.table, no_spark, **more)


def job(found, name):
    return next(one for one in found.jobs if one.job == name)


def filled(files=12, **properties):
    world = World(2, [("at", "month")], **properties)
    for number in range(files):
        world.append(number, month=1 + number % 2)
    return world


def test_nothing_is_written_and_a_table_without_data_is_healthy():
    world = World(2)
    before = world.state()
    found = health(world)
    assert (found.score, found.snapshot_id, found.refs, found.to_do) == (100.0, None, (), ())
    assert found.data.histogram == ()
    assert world.state() == before


@pytest.mark.parametrize("version", [1, 2, 3])
def test_maintenance_makes_a_table_healthier(version):
    world = World(version)
    for number in range(10):
        world.append(number)
    before = health(world)
    assert [one.job for one in before.to_do] == ["compact", "rewrite_manifests"]
    compact(world.table, no_spark)
    after = health(world)
    assert after.score > before.score
    assert not job(after, "compact").has_work
    assert [one.job for one in after.last_maintenance] == ["compact"]


def test_manifests_that_only_leave_are_not_told_as_small_ones():
    world = filled(6)
    compact(world.table, no_spark, options={"rewrite-all": "true"})
    found = health(world)
    told = job(found, "rewrite_manifests")
    assert found.metadata.manifests_count == 1
    # Planning opens none of them.
    assert (told.has_work, told.reason) == (False, "6 manifests hold no live file")
    assert (told.gain, told.spared_opens_count) == ("6 manifests leave the list", 0)


def test_what_a_rewrite_replaces_is_not_told_as_freed():
    world = World(2)
    for number in range(10):
        world.append(number)
    found = health(world)
    for name in ("compact", "rewrite_manifests"):
        told = job(found, name)
        assert told.has_work
        assert told.freed_bytes == 0 < told.replaced_bytes
    assert job(found, "expire_snapshots").replaced_bytes == 0


def test_more_small_files_never_raise_the_score_of_a_table():
    world, scores = World(2, [("at", "month")]), []
    for number in range(12):
        world.append(number, month=1 + number % 2)
        scores.append(health(world).score)
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] < scores[0]


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 300)), min_size=1, max_size=24),
    st.sampled_from([500, 1690, 6000, 25000]),
    st.sampled_from(["", "x", "y"]),
    st.booleans(),
)
@example([("x", 125)] * 12, 600, "", False)
@example([("x", 125)] * 12, 1400, "", False)
@example([("x", 125)] * 4, 1690, "", False)
@example([("x", 125)] * 12, 5000, "", False)
@example([("x", 10), ("y", 10), ("z", 10)] * 3, 25000, "", True)
@example([("x", 10), ("y", 10), ("z", 10)] * 3, 25000, "x", True)
@cases(60)
def test_sums_advise_what_compact_plans(chosen, target_bytes, deleted_kind, is_moved):
    """Of a table too large for a plan without Spark: whatever the sizes, and whether files are moved to another spec."""
    table = memory_table(spec=BY_KIND, write__target_file_size_bytes=str(target_bytes))
    table = add(table, *(data_file(f"f{number}", records, (kind,)) for number, (kind, records) in enumerate(chosen)))
    if deleted_kind:
        table = add_deletes(table, equality_deletes("e", partition=(deleted_kind,)))
    if is_moved:
        table = update_spec(table, [RemovePartitionField("kind")])
    planned, found = (job(table_health(table, source), "compact") for source in (no_spark, MANY))
    assert (planned.is_exact, found.is_exact) == (True, False)
    for name in (
        ("has_work", "files_count", "written_bytes", "requests_count")
        if not deleted_kind
        else ("has_work", "files_count")
    ):
        assert getattr(found, name) == getattr(planned, name), name
    assert found.gain == planned.gain.partition(",")[0]


TARGET = "write.target-file-size-bytes"


def test_what_is_too_much_to_measure_is_told():
    world = filled()
    create_tag(world.table, "v1", world.table.metadata.snapshots[0].snapshot_id)
    found = table_health(world.table, MANY)
    assert [ref.only_bytes for ref in found.refs] == [None, None]
    assert any("expire_snapshots" in line for line in found.not_measured)


def test_expiration_is_foretold():
    world = filled(6, history__expire__max_snapshot_age_ms=str(DAY_MS))
    compact(world.table, no_spark, options={"rewrite-all": "true"})
    world.append(9, month=1)
    world.runtime.pass_ms(2 * DAY_MS)
    found = health(world)
    planned = plan_expire_snapshots(world.table, no_spark)
    told = job(found, "expire_snapshots")
    assert (found.snapshots.expirable_count, planned.expired_snapshots_count) == (7, 7)
    assert told.has_work
    assert told.files_count == planned.deleted_files_count
    gone = {one.snapshot_id for one in planned.snapshots}
    lists = [s.manifest_list for s in world.table.metadata.snapshots if s.snapshot_id in gone]
    # Of manifest lists the plan does not know the sizes.
    assert told.freed_bytes == planned.deleted_bytes_count + sum(len(world.memory.files[one][0]) for one in lists)
    expire_snapshots(world.table, no_spark, trash=0)
    after = health(world)
    assert not job(after, "expire_snapshots").has_work
    assert after.score > found.score


def test_expiration_of_what_was_rolled_back_is_foretold():
    """What it added goes; what it removed is live where it came from."""
    world = World(2)
    for number in range(3):
        world.append(number)
    first = world.table.metadata.current_snapshot_id
    world.append(3)
    compact(world.table, no_spark, options={"rewrite-all": "true"})
    rollback_to_snapshot(world.table, first)
    world.append(4)
    world.runtime.pass_ms(30 * DAY_MS)
    planned = plan_expire_snapshots(world.table, no_spark)
    told = job(health(world), "expire_snapshots")
    assert planned.expired_snapshots_count == 5
    assert told.files_count == planned.deleted_files_count
    expire_snapshots(world.table, no_spark, trash=0)
    assert not job(health(world), "expire_snapshots").has_work


def test_a_table_that_may_not_be_cleaned_says_so():
    found = health(filled(gc__enabled="false"))
    for name in ("expire_snapshots", "remove_orphan_files"):
        assert not job(found, name).has_work
        assert "gc.enabled" in job(found, name).reason


def test_metadata_files_that_left_the_log_are_told():
    world = filled(6, write__metadata__previous_versions_max="2")
    found = health(world)
    there = [location for location in world.memory.files if location.endswith(".metadata.json")]
    assert found.metadata.lost_metadata_files_count == len(there) - 3 > 0
    # By default three days must have passed; when the table was made nobody knows any more.
    assert job(found, "remove_orphan_files").files_count == 1
    world.runtime.pass_ms(4 * DAY_MS)
    found = health(world)
    assert job(found, "remove_orphan_files").files_count == len(there) - 3
    assert plan_remove_orphan_files(world.table, no_spark).orphan_files_count == len(there) - 3
    deleting = filled(
        6, write__metadata__previous_versions_max="2", write__metadata__delete_after_commit__enabled="true"
    )
    assert health(deleting).metadata.lost_metadata_files_count == 0


def test_work_costs_what_prices_say():
    world = filled()
    assert {one.cost for one in health(world).jobs} == {None}
    found = job(health(world, prices=Prices(core_hour=3600.0, million_requests=1_000_000.0)), "compact")
    assert found.cost == pytest.approx(found.cpu_ms / 1000 + found.requests_count)


def test_a_property_with_a_wrong_value_ends_nothing():
    world = filled()
    wrong = {TARGET: "much", "commit.manifest.target-size-bytes": "-1", "history.expire.min-snapshots-to-keep": "few"}
    found = table_health(replace(world.table, metadata=replace(world.table.metadata, properties=wrong)), no_spark)
    assert found.data.data_files_count == 12
    assert sum(TARGET in line for line in found.not_measured) == 1
    assert "history.expire.min-snapshots-to-keep" in job(found, "expire_snapshots").reason
    assert TARGET in job(found, "compact").reason


def test_faults_of_metadata_are_counted_and_cost_points():
    world = filled()
    healthy = health(world)
    metadata = world.table.metadata
    old = metadata.snapshots[0]
    assert old.manifest_list is not None
    del world.memory.files[old.manifest_list]
    found = health(world)
    assert [(one.fault_id, one.faults_count) for one in found.faults] == [(201, 1)]
    # Whatever its score: the first thing to do is to look.
    assert (found.band, found.to_do[0].job) == ("broken", "check")
    assert found.to_do[0].command == f"icekeep check --table {found.table}"
    assert "1 fault in metadata and manifest lists: 201 " in found.to_do[0].reason
    assert found.score < healthy.score / 1.5
    assert found.data == healthy.data


def test_a_head_that_cannot_be_read_is_an_error():
    world = filled()
    head = world.table.metadata.current_snapshot
    del world.memory.files[head.manifest_list]
    with pytest.raises(MissingFileError):
        health(world)


@pytest.mark.parametrize("part", ["snap-", "-m0.avro"])
def test_what_others_expire_meanwhile_is_no_fault(part):
    """Lists of snapshots, or manifests of the head that was, are gone once they are come to."""
    world = filled(6)
    table, moved = world.table, []

    def before(operation, location):
        if part in location and not moved:
            moved.append(location)
            compact(world.table, no_spark, options={"rewrite-all": "true"})
            rewrite_manifests(world.table, no_spark)
            expire_snapshots(world.table, no_spark, older_than="0s", trash=0)

    world.storage.before = before
    found = table_health(table, no_spark)
    assert moved
    assert (found.faults, found.snapshot_id) == ((), world.table.metadata.current_snapshot_id)
    assert found == replace(health(world), requests_count=found.requests_count, read_bytes=found.read_bytes)


def test_metadata_that_later_commits_delete_is_no_fault():
    """A large table is looked at some time after it was loaded."""
    world = filled(3)
    table = world.table
    for number in range(3):
        world.append(number)
    del world.memory.files[table.metadata_location]
    found = table_health(table, no_spark)
    assert (found.faults, found.data.data_files_count) == ((), 6)
    assert found.score == health(world).score


def test_a_table_that_changes_all_the_time_is_to_be_tried_again():
    world = filled(2)

    def before(operation, location):
        if operation == "read" and "snap-" in location:
            world.storage.before = lambda *_: None
            world.append(9)
            expire_snapshots(world.table, no_spark, older_than="0s", trash=0)
            world.storage.before = before

    table = world.table
    world.storage.before = before
    with pytest.raises(ConflictError, match="changed while it was looked at, 3 times"):
        table_health(table, no_spark)


def test_a_transform_that_is_not_known_ends_nothing():
    world = filled(3)
    location = world.pointer()
    data, at = world.memory.files[location]
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    world.memory.files[location] = (text.replace(b'"month"', b'"moons"'), at)
    found = health(world)
    assert found.data.data_files_count == 3
    assert found.partitions.partitions_count == 2
    assert "moons" in job(found, "compact").reason


def test_an_encrypted_table_is_refused():
    world = filled(2)
    metadata = replace(world.table.metadata, properties={"encryption.key-id": "k"})
    with pytest.raises(UnsupportedError, match="encrypted"):
        table_health(replace(world.table, metadata=metadata), no_spark)


@for_each("name", ["file_size_in_bytes", "record_count"])
@for_each("number", [-1, -(2**63), 2**63 - 1])
def test_sizes_that_no_file_has_spoil_no_figure(name, number):
    world = filled(6)
    damager = Damager(world.catalog, EVENTS, Choices(0))
    for place in [*damager.entries()][:2]:
        damager.edit_file(place, **{name: number})
    for source in (no_spark, MANY):
        found = table_health(world.table, source)
        assert 0 <= found.score <= 100
        assert min(found.data.data_files_bytes, found.data.record_count, found.partitions.largest_partition_bytes) > 0
        assert all(one.least_bytes > 0 and one.bytes >= 0 for one in found.data.histogram)
        assert all(
            min(one.read_bytes, one.written_bytes, one.cpu_ms, one.requests_count, one.freed_bytes or 0) >= 0
            for one in found.jobs
        )
        assert [line for line in found.not_measured if "what no file has" in line] == [
            "sizes and rows: 2 entries state what no file has; `icekeep check` names them"
        ]


def test_the_command_that_is_shown_can_be_given_to_a_shell():
    world = World(2)
    table = create_table(world.catalog, ("db", "it's; $(here) *"), SCHEMA)
    table = append(table, [events(number, 5) for number in range(6)])
    found = job(table_health(table, no_spark), "compact")
    assert shlex.split(found.command) == ["icekeep", "compact", "--table", "local.db.`it's; $(here) *`"]


def test_sums_put_files_of_an_old_spec_together_as_the_plan_does():
    """One small file in each partition of an old spec: alone none would be rewritten, and compact moves them all."""
    world = World(2, [("at", "month")])
    for number in range(8):
        world.append(number, month=1 + number)
    before = health(world)
    assert (before.partitions.partitions_count, job(before, "compact").files_count) == (8, 0)
    assert "files" not in [part.name for part in before.score_parts]
    table = update_spec(world.table, [RemovePartitionField("at_month")])
    assert plan_compact(table, no_spark).rewritten_data_files_count == 8
    for source in (no_spark, MANY):
        found = table_health(table, source)
        assert (job(found, "compact").files_count, job(found, "compact").has_work) == (8, True)
        assert "files" in [part.name for part in found.score_parts]


@pytest.mark.parametrize("is_for_one", [True, False])
def test_deletes_that_compaction_removes_need_no_rewrite(is_for_one):
    """Those for one data file, and those that are older than all that is left then."""
    world = World(2)
    for number in range(6):
        world.append(number)
    table = world.table
    for position in range(5):
        table = with_position_deletes(table, position, is_for_one=is_for_one)
    world.append(6)
    found = health(world)
    told = job(found, "rewrite_position_deletes")
    assert (told.has_work, told.files_count, told.done_by) == (True, 5, "compact")
    assert told.reason.endswith("compact, which comes first, takes 5 of them out")
    assert told not in found.to_do
    compact(world.table, no_spark)
    after = health(world)
    assert (after.deletes.files_count, job(after, "rewrite_position_deletes").has_work) == (0, False)


def test_deletes_that_a_compaction_may_leave_are_to_be_rewritten():
    """The last is as new as the files that a compaction makes, and may be for several."""
    world = World(2)
    for number in range(6):
        world.append(number)
    table = world.table
    for position in range(5):
        table = with_position_deletes(table, position)
    found = health(world)
    told = job(found, "rewrite_position_deletes")
    assert told.reason.endswith("compact, which comes first, takes 4 of them out")
    assert told.done_by is None
    assert told in found.to_do
    compact(world.table, no_spark)
    assert health(world).deletes.files_count == 1


def test_deletes_of_files_not_compacted_need_rewrite():
    world = World(2)
    world.append(0, rows=50)
    table = world.table
    for position in range(5):
        table = with_position_deletes(table, position, is_for_one=True)
    told = job(health(world), "rewrite_position_deletes")
    assert (told.has_work, told.done_by) == (True, None)


def test_deletes_of_kept_version_1_files_need_rewrite():
    """Such files have sequence number 0, which all deletes are newer than."""
    world = World(1, [("at", "month")])
    world.append(0, rows=50, month=1)
    table = upgrade_format_version(world.table, 2)
    for position in range(5):
        table = with_position_deletes(table, position)
    for number in range(6):
        world.append(1 + number, month=2)
    assert job(health(world), "compact").files_count == 6
    told = job(health(world), "rewrite_position_deletes")
    assert (told.has_work, told.done_by) == (True, None)


def test_what_is_told_by_sums_claims_nothing_of_deletes():
    world = World(2)
    for number in range(3):
        world.append(number)
    table = with_position_deletes(world.table)
    table = replace(table, metadata=replace(table.metadata, properties={TARGET: "1500"}))
    found = table_health(table, MANY)
    for name in ("compact", "rewrite_position_deletes"):
        assert not job(found, name).is_exact
        assert "can only be told with Spark" in job(found, name).reason
    exact = table_health(table, no_spark)
    assert all("Spark" not in job(exact, name).reason for name in ("compact", "rewrite_position_deletes"))


@pytest.mark.parametrize("names_file", [True, False])
def test_deletes_that_reach_nothing_delete_no_rows(names_file):
    """Where a compaction has applied deletes and they stay, the rows that it has left are no deleted ones."""
    world = World(2)
    world.append(0, rows=10)
    table = world.append(1, rows=10)
    for file in data_files(table):
        table = delete_positions(table, [(file.file_path, n) for n in range(9)], names_file=names_file)
    before = health(world)
    assert before.deletes.deleted_ratio == facts_of(before, "compact").delete_ratio == 0.9
    [reason] = [one.reason for one in before.score_parts if one.name == "deletes"]
    assert reason.startswith("90.0% of the rows are deleted")
    compact(world.table, no_spark, options={"rewrite-all": "true"})
    after = health(world)
    assert after.data.record_count == 2
    assert after.deletes.deleted_ratio == facts_of(after, "compact").delete_ratio == 0.0
    assert "deletes" not in [one.name for one in after.score_parts]


@pytest.mark.parametrize(("count", "told"), [(1, "1 delete file reaches nothing"), (2, "2 delete files reach nothing")])
def test_a_report_has_one_count_of_what_reaches_nothing(count, told):
    world = World(2)
    world.append(0, rows=500)
    table = world.append(*range(1, count + 1), rows=10)
    gone = [file.file_path for file in data_files(table) if file.record_count == 10]
    for path in gone:
        delete_positions(world.table, [(path, 0)], names_file=False)
    commit(world.table, DeleteFiles(paths=frozenset(gone)))
    found = health(world)
    assert (found.deletes.dangling_count, found.deletes.deleted_ratio) == (count, 0.0)
    assert [one.reason for one in found.score_parts if one.name == "dangling"] == [told]
    advice = job(found, "rewrite_position_deletes")
    assert (advice.has_work, advice.reason) == (True, told)
    done = rewrite_position_deletes(world.table, no_spark)
    assert (done.rewritten_delete_files_count, done.removed_dangling_delete_files_count) == (0, count)


def test_a_file_loses_no_more_rows_than_it_has():
    """Positions that two delete files name count twice."""
    world = World(2)
    [path] = [file.file_path for file in data_files(world.append(0, rows=4))]
    world.append(1, rows=4)
    for _ in range(3):
        delete_positions(world.table, [(path, n) for n in range(3)], names_file=False)
    assert health(world).deletes.deleted_ratio == 0.5
    assert table_health(world.table, MANY).deletes.deleted_ratio == 1.0


@pytest.mark.parametrize("format_version", [2, 3])
def test_deletes_and_vectors_count_where_they_reach_one_file(format_version):
    world = World(format_version)
    files = data_files(world.append(0, 1, rows=5))
    if format_version == 2:
        delete_positions(world.table, [(file.file_path, n) for file in files for n in range(2)])
    else:
        for file in files:
            delete_by_vector(world.table, file.file_path, range(2))
    assert health(world).deletes.deleted_ratio == 0.4
