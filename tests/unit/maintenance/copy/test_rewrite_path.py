"""Metadata staged for another prefix, and the list of files to copy: read by whoever carries the list out, and registers."""

import pytest

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import InvalidTableError, NotFoundError, SafetyError, UnsupportedError, UsageError
from icekeep.maintenance.copy.rewrite_path import plan_rewrite_table_path, rewrite_table_path
from icekeep.tables.verbs import append
from kit.copied import COPY, SOURCE, TARGET, copied_rows, everything, files_below, source_rows
from kit.job_world import Fault, Killed, World
from kit.lake import events
from kit.runtime import no_spark

PREFIXES = {"source_prefix": SOURCE, "target_prefix": TARGET}
STAGING = "memory://lake/staging"


@pytest.fixture(params=[1, 2, 3])
def world(request):
    return everything(request.param)


def rewrite(world, **more):
    return rewrite_table_path(world.table, no_spark, **{**PREFIXES, "staging_location": STAGING, **more})


def pairs_of(world, result):
    lines = world.memory.files[result.file_list_location][0].decode().splitlines()
    return [tuple(line.split(",")) for line in lines]


def carry_out(world, result):
    """Copy the files of a list, as `distcp` does: what is there is replaced."""
    for source, target in pairs_of(world, result):
        world.memory.files[target] = world.memory.files[source]


def registered(world, result):
    """The copy as any catalog takes it in: both tables have one uuid, which our own `register` refuses within one catalog."""
    carry_out(world, result)
    return world.catalog.register_table(COPY, result.target_metadata_location)


def test_the_files_of_the_list_are_the_table(world):
    before = files_below(world, SOURCE)
    result = rewrite(world)
    assert files_below(world, SOURCE) == before
    registered(world, result)
    assert copied_rows(world) == source_rows(world)


def test_the_list_has_every_file_once(world):
    result = rewrite(world)
    pairs = pairs_of(world, result)
    assert len({target for _, target in pairs}) == len(pairs) == result.files_count
    for source, target in pairs:
        start = STAGING if source.startswith(STAGING + "/") else SOURCE
        assert source.removeprefix(start) == target.removeprefix(TARGET)
        is_plain = source.endswith((".parquet", ".stats")) and "deletes-" not in source
        assert (start == SOURCE) >= is_plain
    assert result.latest_version == world.table.metadata_location.rpartition("/")[2]


def test_all_metadata_files_of_the_log_are_rewritten(world):
    result = rewrite(world)
    logged = [one.metadata_file for one in world.table.metadata.metadata_log]
    targets = {target for _, target in pairs_of(world, result)}
    assert {one.replace(SOURCE, TARGET) for one in [*logged, world.table.metadata_location]} <= targets
    made = registered(world, result)
    assert [one.metadata_file for one in made.metadata.metadata_log] == [one.replace(SOURCE, TARGET) for one in logged]


def test_a_plan_has_the_figures_and_writes_nothing(world):
    before = world.state()
    planned = plan_rewrite_table_path(world.table, no_spark, **PREFIXES)
    assert world.state() == before
    done = rewrite_table_path(world.table, no_spark, **PREFIXES)
    for name in ("files", "files_count", "bytes", "rewritten_manifest_file_paths_count", "latest_version"):
        assert getattr(planned, name) == getattr(done, name)
    assert done.staging_location.startswith(f"{SOURCE}/metadata/copy-table-staging-")


def test_no_list_is_written_where_none_is_asked_for(world):
    result = rewrite(world, create_file_list=False)
    assert result.file_list_location is None
    assert f"{STAGING}/file-list" not in world.memory.files


def test_a_later_version_adds_what_is_new(world):
    first = rewrite(world)
    carry_out(world, first)
    append(world.table, events(60, 3))
    append(world.table, events(61, 2))
    then = rewrite(world, start_version=first.latest_version, staging_location=f"{STAGING}-2")
    assert then.rewritten_manifest_file_paths_count == 2
    kinds = {one.kind: one.files_count for one in then.files}
    assert kinds == {"data file": 2, "manifest": 2, "manifest list": 2, "metadata file": 2, "statistics file": 1}
    registered(world, then)
    assert copied_rows(world) == source_rows(world)


def test_what_the_target_lacks_comes_with_a_later_version(world):
    """Its manifests cannot be seen, so that their lengths are not known: they are staged, and no data file is."""
    first = rewrite(world)
    append(world.table, events(60, 3))
    then = rewrite(world, start_version=first.latest_version, staging_location=f"{STAGING}-2")
    assert {one.kind: one.files_count for one in then.files}["data file"] == 1
    carry_out(world, first)
    registered(world, then)
    assert copied_rows(world) == source_rows(world)


def test_an_earlier_version_is_the_table_as_it_was(world):
    rows = source_rows(world)
    name = world.table.metadata_location
    append(world.table, events(60, 3))
    registered(world, rewrite(world, end_version=name))
    assert copied_rows(world) == rows


@pytest.mark.parametrize("name", ["start_version", "end_version"])
def test_versions_that_the_log_lacks_are_refused(name):
    world = everything(2)
    with pytest.raises(NotFoundError, match="is not in the table's metadata log, which goes from"):
        rewrite(world, **{name: "v99.metadata.json"})


def test_a_start_that_is_not_before_the_end_is_refused():
    world = everything(2)
    with pytest.raises(UsageError, match="nothing came between them"):
        rewrite(world, start_version=world.table.metadata_location)


def test_a_rewrite_that_was_killed_goes_on_in_its_staging():
    origin = everything(2)
    world = origin.copy()
    with Fault(world) as counted:
        rewrite(world)
    for number in range(0, len(counted.calls), 4):
        world = origin.copy()
        with Fault(world, number), pytest.raises(Killed):
            rewrite(world)
        registered(world, rewrite(world))
        assert copied_rows(world) == source_rows(world)


def test_the_staging_of_another_rewrite_is_left_alone():
    world = everything(2)
    rewrite(world)
    before = files_below(world, STAGING)
    with pytest.raises(SafetyError, match="another content"):
        rewrite(world, target_prefix="memory://lake/third")
    assert files_below(world, STAGING) == before
    with pytest.raises(UsageError, match="is the source prefix"):
        rewrite(world, staging_location=f"{SOURCE}/")


def test_a_path_that_the_list_cannot_hold_is_refused():
    world = World(2)
    world.append(0)
    with pytest.raises(UnsupportedError, match="has a comma or a line break"):
        rewrite(world, target_prefix="memory://lake/a,b")


def test_encrypted_tables_are_refused():
    world = World(2)
    world.append(0)
    table = commit(world.table, ChangeProperties(updates={"encryption.key-id": "k"})).table
    with pytest.raises(UnsupportedError, match="is encrypted"):
        rewrite_table_path(table, no_spark, **PREFIXES)


def test_deletes_of_another_place_are_refused():
    """The data file's path in a delete file is spelled otherwise: whether it deletes rows here is not for us to say."""
    world = everything(2)
    location = next(one for one in files_below(world, SOURCE) if "deletes-" in one)
    del world.memory.files[location]
    with pytest.raises(InvalidTableError):
        rewrite(world)
