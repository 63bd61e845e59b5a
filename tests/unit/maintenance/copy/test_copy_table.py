"""A table copied to another place: all of it, from any point at which a copy was killed, and never over the files of others."""

import msgspec
import pytest

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, OutcomeUnknownError, SafetyError, UnavailableError, UsageError
from icekeep.maintenance.copy import job as copying
from icekeep.maintenance.copy.job import copy_table, plan_copy_table
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.spec.evolution import AddColumn
from icekeep.spec.types import DAY_MS
from icekeep.spec.updates import SetLocation
from icekeep.storage.locations import local_path
from icekeep.tables.read import read_table
from icekeep.tables.refs import create_tag, drop_tag
from icekeep.tables.verbs import append, create_table, rollback_to_snapshot, update_schema
from kit.cases import some_of
from kit.copied import (
    COPY,
    SOURCE,
    TARGET,
    copied_rows,
    everything,
    files_below,
    source_rows,
    with_deletes,
    with_statistics,
)
from kit.deletes import data_files, delete_positions
from kit.job_world import Fault, Killed, World
from kit.lake import SCHEMA, Lake, events, multiset
from kit.runtime import no_spark


def copy(world, **more):
    return copy_table(world.table, world.catalog, COPY, no_spark, **{"location": TARGET, **more})


@pytest.fixture(params=[1, 2, 3])
def world(request):
    return everything(request.param)


def test_the_copy_has_all_rows_of_all_references(world):
    before = files_below(world, SOURCE)
    result = copy(world)
    assert (result.status, result.is_increment) == ("done", False)
    assert copied_rows(world) == source_rows(world)
    assert files_below(world, SOURCE) == before
    made = world.catalog.load(COPY).metadata
    assert made.refs == world.table.metadata.refs
    assert made.table_uuid != world.table.metadata.table_uuid
    assert made.location == TARGET


def test_no_file_of_the_copy_names_the_source(world):
    """But for its properties, which say of what it is a copy."""
    copy(world)
    for location, data in files_below(world, TARGET).items():
        assert SOURCE.encode() not in data or location.endswith(".metadata.json"), location
    made = world.catalog.load(COPY).metadata
    assert SOURCE not in str([*made.snapshots, *made.statistics, made.metadata_log, made.location])


def test_the_copy_lives_without_its_source(world):
    rows = source_rows(world)
    copy(world)
    for location in files_below(world, SOURCE):
        del world.memory.files[location]
    assert copied_rows(world) == rows


@pytest.mark.parametrize("file_format", ["PARQUET", "AVRO", "ORC"])
def test_position_deletes_of_every_format_reach_their_rows(file_format):
    world = everything(2, file_format)
    copy(world)
    assert copied_rows(world) == source_rows(world)


def test_a_plan_has_the_figures_and_writes_nothing(world):
    before = world.state()
    planned = plan_copy_table(world.table, world.catalog, COPY, no_spark, location=TARGET)
    assert world.state() == before
    done = copy(world)
    assert (planned.status, planned.metadata_location) == ("planned", None)
    assert (planned.files, planned.files_count, planned.bytes) == (done.files, done.files_count, done.bytes)
    kinds = {one.kind for one in planned.files}
    assert {"data file", "manifest", "manifest list", "statistics file"} <= kinds


def test_a_copy_that_is_there_is_not_made_again(world):
    copy(world)
    before = world.state()
    again = copy(world)
    assert (again.status, again.files_count, again.copied_files_count) == ("done", 0, 0)
    assert world.state() == before


def calls_of(world, act):
    with Fault(world) as fault:
        act(world)
    return fault.calls


@pytest.mark.parametrize("version", [2, 3])
def test_a_copy_that_was_killed_at_any_call_goes_on(version):
    origin = everything(version)
    rows, before = source_rows(origin), files_below(origin, SOURCE)
    calls = calls_of(origin.copy(), copy)
    for number in some_of(range(len(calls)), least=12):
        world = origin.copy()
        with Fault(world, number), pytest.raises(Killed):
            copy(world)
        left = files_below(world, TARGET)
        world.runtime.pass_ms(DAY_MS)
        copy(world)
        assert copied_rows(world) == rows, calls[number]
        assert files_below(world, SOURCE) == before
        now = files_below(world, TARGET)
        assert {one: now.get(one) for one in left} == left, calls[number]


def test_an_answer_that_is_lost_loses_nothing():
    origin = everything(2)
    calls = calls_of(origin.copy(), copy)
    for number in some_of(range(len(calls)), least=10):
        world = origin.copy()
        try:
            with Fault(world, number, "lost"):
                copy(world)
        except UnavailableError:
            copy(world)
        assert copied_rows(world) == source_rows(world), calls[number]


def test_only_missing_files_are_copied_again(world):
    first = copy(world)
    world.catalog.drop(COPY)
    lost = next(one for one in files_below(world, TARGET) if "/data/" in one and one.endswith(".parquet"))
    del world.memory.files[lost]
    again = copy(world)
    assert first.copied_files_count > again.copied_files_count
    assert again.copied_files_count <= 1
    assert copied_rows(world) == source_rows(world)


def test_a_file_of_others_is_never_overwritten(world):
    origin = world.copy()
    copy(world)
    for location in files_below(world, TARGET):
        tried = origin.copy()
        tried.storage.create(location, b"of somebody else")
        with pytest.raises(SafetyError, match="is at the target already and has another content"):
            copy(tried)
        assert tried.memory.files[location][0] == b"of somebody else"
        assert COPY not in tried.catalog.list_tables(("db",))


def test_verify_sees_a_copy_of_equal_length_that_differs(world):
    copy(world)
    world.catalog.drop(COPY)
    location = next(one for one in files_below(world, TARGET) if "/data/" in one and one.endswith(".parquet"))
    data, at = world.memory.files[location]
    world.memory.files[location] = (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], at)
    with pytest.raises(SafetyError, match="another content"):
        copy(world, verify=True)


def test_a_source_file_of_another_length_is_not_copied():
    world = everything(2)
    location = data_files(world.table)[0].file_path
    data, at = world.memory.files[location]
    world.memory.files[location] = (data + b"x", at)
    with pytest.raises(SafetyError, match="bytes long where metadata says"):
        copy(world)
    assert COPY not in world.catalog.list_tables(("db",))


@pytest.mark.parametrize("location", [SOURCE, f"{SOURCE}/copy", "memory://lake/wh/db", "memory://lake/wh/db/events/"])
def test_prefixes_that_lie_in_each_other_are_refused(location):
    world = everything(2)
    before = world.state()
    with pytest.raises(UsageError, match="lie in each other"):
        copy(world, location=location)
    assert world.state() == before


def test_files_outside_of_the_prefix_are_named():
    world = World(2)
    world.append(0)
    outside = "memory://lake/other/data"
    table = commit(world.table, ChangeProperties(updates={"write.data.path": outside})).table
    append(table, events(1, 3))
    with pytest.raises(SafetyError, match=r"table property write.data.path 'memory://lake/other/data'"):
        copy(world)
    commit(world.table, ChangeProperties(removals=("write.data.path",)))
    with pytest.raises(SafetyError, match=r"file 'memory://lake/other/data/.*parquet'; paths are compared"):
        copy(world)
    assert COPY not in world.catalog.list_tables(("db",))


def test_another_table_in_the_way_is_refused():
    world = everything(2)
    create_table(world.catalog, ("db", "third"), SCHEMA, location=TARGET)
    with pytest.raises(SafetyError, match=r"'local\.db\.copied' cannot be put there"):
        copy(world)
    with pytest.raises(UsageError, match="which is no copy of"):
        copy_table(world.table, world.catalog, ("db", "third"), no_spark)
    with pytest.raises(NotFoundError):
        copy_table(world.table, world.catalog, ("nowhere", "t"), no_spark, location=TARGET)


def grown(world):
    """What a table may go through between a copy and its increment."""
    append(world.table, events(20, 4))
    with_deletes(world.table)
    world.runtime.pass_ms(1000)
    update_schema(world.table, [AddColumn("note", "string")])
    append(world.table, events(21, 2))
    create_tag(world.table, "late")
    drop_tag(world.table, "early")
    with_statistics(world.table)
    commit(world.table, ChangeProperties(updates={"owner": "us"}))


def test_an_increment_copies_what_is_new(world):
    copy(world)
    grown(world)
    with pytest.raises(UsageError, match="give increment to update it"):
        copy(world)
    planned = plan_copy_table(world.table, world.catalog, COPY, no_spark, increment=True)
    result = copy(world, increment=True)
    assert result.is_increment
    assert planned.files == result.files
    assert 0 < result.copied_files_count < len(data_files(world.table))
    assert copied_rows(world) == source_rows(world)
    source, made = world.table.metadata, world.catalog.load(COPY).metadata
    assert (made.refs, made.schemas) == (source.refs, source.schemas)
    assert made.properties["owner"] == "us"
    assert copy(world, increment=True).files_count == 0


def test_increments_follow_one_another(world):
    copy(world)
    for number in range(3):
        append(world.table, events(30 + number, 2))
        copy(world, increment=True)
        assert copied_rows(world) == source_rows(world)


def test_increments_follow_maintenance_of_the_source(world):
    """Snapshots expire at the source, and manifests are rewritten: files of expired snapshots are copied, once."""
    copy(world)
    world.runtime.pass_ms(10 * DAY_MS)
    append(world.table, events(40, 2))
    expire_snapshots(world.table, no_spark, older_than=world.runtime.now_ms(), retain_last=1)
    append(world.table, events(41, 2))
    copy(world, increment=True)
    assert copied_rows(world) == source_rows(world)
    rewrite_manifests(world.table, no_spark)
    world.runtime.pass_ms(10 * DAY_MS)
    expire_snapshots(world.table, no_spark, older_than=world.runtime.now_ms(), retain_last=1)
    result = copy(world, increment=True)
    assert result.copied_files_count == 0
    assert copied_rows(world) == source_rows(world)


def test_a_rollback_of_the_source_reaches_the_copy(world):
    first = world.table.metadata.snapshots[0].snapshot_id
    copy(world)
    rollback_to_snapshot(world.table, first)
    copy(world, increment=True)
    assert world.catalog.load(COPY).metadata.current_snapshot_id == first
    assert copied_rows(world) == source_rows(world)


def test_a_copy_that_others_changed_is_left_alone(world):
    copy(world)
    append(world.catalog.load(COPY), events(50, 1))
    append(world.table, events(51, 1))
    before = world.state()
    with pytest.raises(SafetyError, match="is not as the last copy has left it"):
        copy(world, increment=True)
    assert world.state() == before


def test_a_commit_of_others_during_an_increment_is_kept(world, monkeypatch):
    copy(world)
    append(world.table, events(50, 1))
    written = copying.write_relocated

    def meanwhile(*arguments):
        append(world.catalog.load(COPY), events(51, 1))
        return written(*arguments)

    monkeypatch.setattr(copying, "write_relocated", meanwhile)
    with pytest.raises(Exception, match="others have changed the copy meanwhile"):
        copy(world, increment=True)
    assert sum(copied_rows(world)["main"].values()) == sum(source_rows(world)["main"].values())


@pytest.mark.parametrize("version", [2, 3])
def test_an_increment_that_was_killed_at_any_call_goes_on(version):
    origin = everything(version)
    copy(origin)
    grown(origin)
    rows = source_rows(origin)
    calls = calls_of(origin.copy(), lambda world: copy(world, increment=True))
    for number in some_of(range(len(calls)), least=12):
        world = origin.copy()
        with Fault(world, number), pytest.raises((Killed, OutcomeUnknownError)):
            copy(world, increment=True)
        copied_rows(world)
        copy(world, increment=True)
        assert copied_rows(world) == rows, calls[number]


def test_there_must_be_a_copy_to_update():
    world = everything(2)
    with pytest.raises(NotFoundError, match=r"there is no table 'local\.db\.copied' that could be updated"):
        copy(world, increment=True)


class Respelled(msgspec.Struct, frozen=True):
    location: str

    def apply(self, base, attempt):
        return (SetLocation(self.location),)


def test_files_that_spell_their_store_otherwise_are_copied(tmp_path):
    """As a table has them whose location was moved from `file:/` to `file:///`, or that engines write through `s3a` and `s3`."""
    lake = Lake(tmp_path)
    table = lake.filled(commits=2, files=1)
    plain = local_path(table.metadata.location)
    table = commit(table, Respelled(plain)).table
    append(table, events(90, 3))
    before = multiset(read_table(lake.load()))
    assert len({one.file_path.partition("/warehouse")[0] for one in data_files(lake.load())}) == 2
    copy_table(lake.load(), lake.catalog, COPY, no_spark)
    assert multiset(read_table(lake.catalog.load(COPY))) == before


def test_deletes_beside_mixed_spellings_are_refused(tmp_path):
    """A delete reaches the data file whose path it spells alike; in the copy it would reach others."""
    lake = Lake(tmp_path)
    table = commit(lake.filled(commits=1, files=1), Respelled(local_path(lake.location()))).table
    append(table, events(90, 3))
    delete_positions(lake.load(), [(data_files(lake.load())[0].file_path, 0)])
    with pytest.raises(SafetyError, match="spell its prefix in several ways"):
        copy_table(lake.load(), lake.catalog, COPY, no_spark)
