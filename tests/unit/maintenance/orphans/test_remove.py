"""The whole job on a table in memory. Names of Iceberg Java's tests, and numbers of failures elsewhere, are in the docstrings."""

import gzip
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import OptionError, SafetyError, TryAgainError, UnavailableError, UnsupportedError, UsageError
from icekeep.events import SILENT, Warned
from icekeep.maintenance.delete.locations import forget_locations
from icekeep.maintenance.orphans.compare import refuse_unmatched
from icekeep.maintenance.orphans.job import RemoveOrphanFilesRequest
from icekeep.maintenance.orphans.listing import LISTED, LocationListing
from icekeep.maintenance.rewrite.alive import DEAD_AFTER_MS, Heartbeat
from icekeep.spec.metadata import format_metadata
from icekeep.spec.updates import RemoveSnapshotRef, SetProperties
from icekeep.storage.base import DeleteOutcome, DeleteStatus
from kit.cases import cases
from kit.tables import EVENTS, add, data_file, memory_table, set_ref, swap

pytestmark = pytest.mark.slow

RUN = "0f3c4d1e-6f0a-4a58-9c38-7a4d3f1b2c5d"
ROOT = "memory://lake/wh/db/events"


def document(world, **keys):
    """The current metadata's JSON, with other keys."""
    return {**json.loads(format_metadata(world.table.metadata)), **keys}


def put_metadata(world, name, days=10.0, **keys):
    return world.put(name, json.dumps(document(world, **keys)).encode(), days=days)


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_strays_are_deleted_and_nothing_else(new_world, format_version):
    """orphanedFileRemovedWithParallelTasks, testRemoveOrphanFilesProcedure."""
    world = new_world(format_version=format_version)
    names = world.names()
    strays = {world.put("data/x.parquet", b"four"), world.put("metadata/lost-m0.avro", b"xy"), world.put("top")}
    result = world.run(max_concurrent_deletes=2, options={"max-orphan-ratio": 0.5})
    assert set(result.orphan_file_locations) == strays
    assert (result.orphan_files_count, result.deleted_files_count, result.deleted_bytes_count) == (3, 3, 11)
    assert not result.is_in_trash
    assert world.names() == names


def test_new_files_of_a_living_run_stay_at_any_age(world):
    """A run of days has old files that no snapshot names yet."""
    new = {world.put(f"data/00000-1-{RUN}-0-00001.parquet"), world.put(f"metadata/optimized-m-{RUN}-1.avro")}
    stray = world.put("data/00000-1-another-0-00001.parquet")
    heartbeat = Heartbeat(world.table, RUN, "compact", world.runtime, SILENT)
    heartbeat.beat()
    result = world.run(options={"max-orphan-ratio": 0.5})
    assert result.orphan_file_locations == (stray,)
    assert result.kept.young_count == 2
    # Killed: nothing beats any more.
    world.runtime.pass_ms(DEAD_AFTER_MS + 1)
    assert set(world.run(options={"max-orphan-ratio": 0.5}).orphan_file_locations) == new


def test_only_files_older_than_the_moment_go(world):
    """testOlderThanTimestamp: strictly older."""
    at, before = world.put("data/at", days=5), world.put("data/before", days=5)
    world.memory.files[before] = (b"x", world.days_ago(5) - 1)
    young = world.put("data/young", days=2)
    result = world.run(older_than=world.days_ago(5))
    assert (result.orphan_file_locations, result.kept.young_count) == ((before,), 2)
    assert {at, young} <= set(world.memory.files)


def test_three_days_are_the_default(world):
    kept = world.put("data/three", days=3)
    gone = world.put("data/more", days=3.001)
    assert world.run().orphan_file_locations == (gone,)
    assert kept in world.memory.files


def test_ages_are_told_by_the_earlier_of_the_clocks(world):
    """The store is five minutes behind, so that a day by our clock is none by its."""
    world.put("data/x.parquet", days=1.001)
    create = world.memory.create

    def slow(location, data):
        create(location, data)
        content, modified_ms = world.memory.files[location]
        world.memory.files[location] = (content, modified_ms - 5 * 60_000)

    world.memory.create = slow
    assert world.run(older_than=world.days_ago(1), force=True).kept.young_count == 1


def test_who_may_only_read_can_plan_and_not_run(world):
    """A plan asks for our clock alone, and so writes nothing to see the store's."""
    Heartbeat(world.table, RUN, "compact", world.runtime, SILENT).beat()
    world.pass_days(1.1)
    stray = world.put("data/x.parquet", days=3.001)
    world.put("data/y.parquet", days=2.999)
    tried = []

    def deny(what, location):
        if what in ("create", "write", "delete_many", "move", "make_directory", "remove_directory"):
            tried.append(location)
            raise UsageError("the store denies access")

    world.storage.before = deny
    assert world.plan().orphan_file_locations == (stray,)
    assert tried == []
    with pytest.raises(UsageError, match="denies access"):
        world.run()
    assert stray in world.memory.files


def test_a_table_whose_files_may_belong_to_others_is_refused(new_world):
    """testGarbageCollectionDisabled."""
    world = new_world(gc__enabled="false")
    stray = world.put("data/x.parquet")
    with pytest.raises(SafetyError, match=r"gc\.enabled=false"):
        world.run()
    assert stray in world.memory.files


def test_an_encrypted_table_is_refused(world):
    keyed = document(world, **{"encryption-keys": [{"key-id": "k"}]})
    world.memory.files[world.table.metadata_location] = (json.dumps(keyed).encode(), 0)
    with pytest.raises(UnsupportedError, match="encrypted"):
        world.plan()


def test_files_of_all_snapshots_are_kept_whatever_leads_to_them(world):
    """testWapFilesAreKept, test 'with delete files': branches, tags and staged snapshots."""
    head = world.table.metadata.current_snapshot
    table = set_ref(world.table, "audit", head.snapshot_id, "branch")
    world.put("data/branch.parquet", days=0)
    table = add(table, "branch.parquet", branch="audit")
    # Staged: a snapshot that no reference names.
    table = swap(table, RemoveSnapshotRef("audit"))
    world.pass_days(10)
    assert world.run().orphan_files_count == 0
    assert "data/branch.parquet" in world.names()


def test_a_location_below_the_table_is_all_that_is_listed(world):
    """Java's procedure: data folder."""
    outside = world.put("metadata/lost.avro")
    inside = world.put("data/lost.parquet")
    beside = world.put("data2/lost.parquet")
    assert world.run(location=f"{ROOT}/data/").orphan_file_locations == (inside,)
    assert {outside, beside} <= set(world.memory.files)


@pytest.mark.parametrize(
    "location",
    [
        "memory://lake/wh/db",
        "memory://lake/wh/db/events2",
        "memory://lake/wh/db/events/../other",
        "memory://lake/",
        "/",
        "file:///",
        f"{ROOT}/../../../..",
    ],
)
def test_a_location_outside_of_the_table_is_refused(world, location):
    """apache/iceberg #16493."""
    stray = world.put("x", root="memory://lake/wh/db/events2")
    with pytest.raises(SafetyError, match="does not lie in a place of the table"):
        world.run(location=location)
    assert stray in world.memory.files


def test_the_operator_may_allow_another_place(world):
    other = "memory://lake/wh/old"
    stray = world.put("x", root=other)
    assert world.run(location=other, options={"reclaim.roots": other}, force=True).orphan_file_locations == (stray,)


def test_the_data_path_is_listed_only_where_it_is_named(new_world):
    """As for Iceberg, which lists the table's location alone; and whoever may set the property could name any directory."""
    elsewhere = "memory://lake/data/events"
    world = new_world(**{"write.data.path": elsewhere})
    stray = world.put("x.parquet", root=elsewhere)
    assert world.run().orphan_files_count == 0
    with pytest.raises(SafetyError, match=r"does not lie in a place of the table .*reclaim\.roots"):
        world.run(location=elsewhere, force=True)
    world.catalog.reclaim_roots = (elsewhere,)
    assert world.run(location=elsewhere, force=True).orphan_file_locations == (stray,)


@pytest.mark.parametrize("identifier", [("db", "events", "inner"), ("db",), ("other",)])
def test_another_table_of_the_catalog_in_the_same_place_stops_it(world, identifier):
    """apache/iceberg #16493: nested both ways, and equal."""
    places = {3: f"{ROOT}/inner", 1: "memory://lake/wh"}
    metadata = msgspec.structs.replace(
        world.table.metadata,
        location=places.get(len(identifier), ROOT),
        table_uuid=str(world.runtime.new_uuid()),
        properties={},
    )
    world.catalog.create(("db", "other"), metadata)
    stray = world.put("x")
    with pytest.raises(SafetyError, match=r"db\.other"):
        world.run()
    assert stray in world.memory.files


def test_a_sibling_whose_name_only_begins_alike_is_no_neighbour(world):
    """apache/iceberg #16493: `events` and `events2`."""
    metadata = msgspec.structs.replace(
        world.table.metadata,
        location=f"{ROOT}2",
        table_uuid=str(world.runtime.new_uuid()),
        snapshots=(),
        refs={},
        current_snapshot_id=None,
        properties={},
    )
    world.catalog.create(("db", "events2"), metadata)
    theirs = world.put("data/live.parquet", root=f"{ROOT}2")
    stray = world.put("x")
    assert world.run().orphan_file_locations == (stray,)
    assert theirs in world.memory.files


@pytest.mark.parametrize("theirs", ["memory://lake/wh/old", "memory://lake/wh/old/t", "memory://lake/wh"])
def test_a_table_that_lies_at_an_allowed_place_stops_it(world, theirs):
    """What an operator allows to be deleted from is not for that reason nobody's."""
    other = "memory://lake/wh/old"
    metadata = msgspec.structs.replace(
        world.table.metadata, location=theirs, table_uuid=str(world.runtime.new_uuid()), properties={}
    )
    world.catalog.create(("db", "other"), metadata)
    stray = world.put("x", root=other)
    with pytest.raises(SafetyError, match=r"db\.other"):
        world.run(location=other, options={"reclaim.roots": other}, force=True)
    assert stray in world.memory.files


def test_a_neighbour_that_cannot_be_read_stops_it(world):
    metadata = msgspec.structs.replace(
        world.table.metadata, location=f"{ROOT}2", table_uuid=str(world.runtime.new_uuid())
    )
    other = world.catalog.create(("db", "broken"), metadata)
    world.memory.files[other.metadata_location] = (b"{", 0)
    stray = world.put("x")
    with pytest.raises(SafetyError, match=r"'db\.broken' cannot be loaded"):
        world.run()
    assert stray in world.memory.files


def test_an_unreadable_neighbour_is_accepted_by_name(world):
    """One broken or forbidden table does not stop a whole catalog."""
    metadata = msgspec.structs.replace(
        world.table.metadata, location=f"{ROOT}2", table_uuid=str(world.runtime.new_uuid())
    )
    other = world.catalog.create(("db", "broken"), metadata)
    stray = world.put("x")
    before = world.plan()
    assert before.unreadable_tables == ()
    world.memory.files[other.metadata_location] = (b"{", 0)
    forget_locations()
    plan = world.plan(accept_unreadable=["db.broken", "db.other"])
    assert (plan.orphan_file_locations, plan.unreadable_tables) == ((stray,), ("db.broken",))
    assert plan.hash != before.hash
    with pytest.raises(SafetyError, match="is approved"):
        world.run(accept_unreadable=["db.broken"], approve=before.hash)
    assert stray in world.memory.files
    result = world.run(accept_unreadable=["db.broken"], approve=plan.hash)
    assert (result.orphan_file_locations, result.unreadable_tables) == ((stray,), ("db.broken",))
    assert stray not in world.memory.files


def test_shared_data_path_blocks_only_if_it_is_listed(new_world):
    """The layout that AWS recommends; the shared path is not listed by default."""
    shared = {"write.data.path": "memory://lake/shared/data"}
    world = new_world(**shared)
    metadata = msgspec.structs.replace(
        world.table.metadata, location=f"{ROOT}2", table_uuid=str(world.runtime.new_uuid()), properties=shared
    )
    world.catalog.create(("db", "other"), metadata)
    theirs = world.put("live.parquet", root="memory://lake/shared/data")
    stray = world.put("x")
    with pytest.raises(SafetyError, match=r"is the same place as 'memory://lake/shared/data' of table 'db\.other'"):
        world.run(location="memory://lake/shared/data", options={"reclaim.roots": "memory://lake/shared"})
    assert world.run().orphan_file_locations == (stray,)
    assert theirs in world.memory.files


def test_a_catalog_that_cannot_list_is_told(world):
    def refuse():
        raise UnsupportedError("this catalog lists nothing")

    world.catalog.list_namespaces = refuse
    assert "this catalog lists nothing" in world.run().unlisted_reason


def test_metadata_of_another_table_in_the_place_stops_it(world):
    """apache/iceberg #7052, #6890; amoro #4292."""
    stranger = put_metadata(
        world, "metadata/00000-x.metadata.json", **{"table-uuid": "0c2b5d1e-0000-4000-8000-000000000000"}
    )
    stray = world.put("x")
    with pytest.raises(SafetyError, match="is of table 0c2b5d1e") as raised:
        world.run()
    assert stranger in raised.value.message
    assert stray in world.memory.files


@pytest.mark.parametrize("days", [0.0, 10.0])
@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"table-uuid": null}', b'{"table-uuid": 7}', b"\x04\x22\x4d\x18"])
def test_metadata_that_does_not_tell_whose_it_is_stops_it(world, data, days):
    """Young or old."""
    world.put("inner/metadata/v3.metadata.json", data, days=days)
    with pytest.raises(SafetyError, match=r"inner/metadata/v3\.metadata\.json"):
        world.run()


@pytest.mark.parametrize("data", [b"", b"{", b"\x1f\x8b\x08", b"\0\0\0"])
def test_metadata_that_was_cut_off_stops_it_until_it_is_old(world, data):
    """What a killed writer leaves is no table, and must not stop orphan removal for ever."""
    cut = world.put("metadata/00009-cut.metadata.json", data, days=2.9)
    stray = world.put("x")
    with pytest.raises(
        TryAgainError, match=r"00009-cut\.metadata\.json' cannot be read .* it may still be written"
    ) as raised:
        world.run(older_than=world.days_ago(1))
    assert raised.value.exit_status == 75
    assert {cut, stray} <= set(world.memory.files)
    world.pass_days(0.2)
    result = world.run()
    assert set(result.orphan_file_locations) == {cut, stray}
    assert result.deleted_metadata_files_count == 1


DEAD = "0c2b5d1e-0000-4000-8000-000000000000"


def test_metadata_of_a_named_dead_table_is_ignored(world):
    """A table that was dropped and created again at the same path (Hive, Glue)."""
    dead = put_metadata(world, "metadata/00000-x.metadata.json", **{"table-uuid": DEAD})
    young = put_metadata(world, "metadata/00001-x.metadata.json", days=1.0, **{"table-uuid": DEAD})
    stray = world.put("x")
    named = {"ignore-metadata-of": f"{DEAD.upper()}, 0c2b5d1e-0000-4000-8000-000000000001"}
    with pytest.raises(SafetyError, match="ignore-metadata-of"):
        world.run()
    with pytest.raises(SafetyError, match="00001-x"):
        world.run(options=named)
    world.pass_days(3)
    assert {dead, young, stray} <= set(world.memory.files)
    assert set(world.run(options=named).orphan_file_locations) == {dead, young, stray}


def test_live_table_cannot_be_named_as_dead(world):
    metadata = msgspec.structs.replace(world.table.metadata, location=f"{ROOT}2", table_uuid=DEAD)
    world.catalog.create(("db", "other"), metadata)
    put_metadata(world, "metadata/00000-x.metadata.json", **{"table-uuid": DEAD})
    with pytest.raises(SafetyError, match=r"is said to be dead, but is 'db\.other' in catalog 'local'"):
        world.run(options={"ignore-metadata-of": DEAD})


def test_metadata_of_our_own_that_is_in_no_log_goes(world):
    """testRemoveUnreachableMetadataVersionFiles, and what commits that lost leave behind (apache/iceberg #7937)."""
    lost = put_metadata(world, "metadata/00002-lost.metadata.json")
    young = put_metadata(world, "metadata/00003-lost.metadata.json", days=1.0)
    result = world.run()
    assert result.orphan_file_locations == (lost,)
    assert (result.deleted_metadata_files_count, result.kept.young_count) == (1, 1)
    assert young in world.memory.files


def test_metadata_that_a_catalog_may_find_by_name_stays(world):
    kept = {put_metadata(world, f"metadata/v{number}.metadata.json") for number in (1, 2, 900)}
    result = world.run()
    assert (result.orphan_files_count, result.kept.versions_count) == (0, 3)
    assert kept <= set(world.memory.files)


def test_another_line_of_history_stops_it(world):
    """The table is in two catalogs; a commit under way is nothing to be refused for good."""
    log = [{"timestamp-ms": 1, "metadata-file": world.table.metadata_location}]
    fork = put_metadata(world, "metadata/00009-fork.metadata.json", days=1.0, **{"metadata-log": log})
    stray = world.put("x")
    with pytest.raises(TryAgainError, match="a commit may be under way") as raised:
        world.run()
    assert (fork in raised.value.message, raised.value.exit_status) == (True, 75)
    world.pass_days(3)
    with pytest.raises(SafetyError, match="not in its history") as raised:
        world.run()
    assert fork in raised.value.message
    assert {fork, stray} <= set(world.memory.files)


def dead_commit(world):
    log = [{"timestamp-ms": 1, "metadata-file": world.table.metadata_location}]
    return put_metadata(world, "metadata/00009-fork.metadata.json", **{"metadata-log": log})


def test_dead_commit_is_garbage_if_the_operator_says_so(world):
    """The ways out that the refusal names."""
    fork, stray = dead_commit(world), world.put("x")
    uuid = world.table.metadata.table_uuid
    with pytest.raises(SafetyError, match=f"commit to the table or give --option ignore-metadata-of={uuid}"):
        world.run()
    assert set(world.run(options={"ignore-metadata-of": uuid}).orphan_file_locations) == {fork, stray}


def test_a_commit_that_died_is_garbage_once_another_has_landed(world):
    fork = dead_commit(world)
    world.commit("later.parquet")
    assert world.run().orphan_file_locations == (fork,)


def test_concurrent_commit_is_no_fork(world):
    stray = world.put("x")
    pending = put_metadata(
        world,
        "metadata/00009-next.metadata.json",
        days=0.0,
        **{"metadata-log": [{"timestamp-ms": 1, "metadata-file": world.table.metadata_location}]},
    )

    def land(operation, location):
        # Sorting reads it after the metadata was loaded.
        if operation == "read" and location == pending:
            world.catalog._locations[EVENTS] = pending

    world.storage.before = land
    assert world.run().orphan_file_locations == (stray,)
    assert pending in world.memory.files


def test_statistics_files_are_kept_also_from_the_log(world):
    """testRemoveOrphanFilesWithStatisticFiles, amoro #1959."""
    head = world.table.metadata.current_snapshot_id
    log = world.table.metadata.metadata_log
    kept = [world.put(f"metadata/{name}") for name in ("s.puffin", "p.parquet", "old-s.puffin", "old-p.parquet")]
    statistics = [
        {
            "snapshot-id": head,
            "statistics-path": location,
            "file-size-in-bytes": 5,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
        for location in kept
    ]
    previous = json.loads(world.memory.read(log[0].metadata_file))
    previous |= {"statistics": [statistics[2]], "partition-statistics": [statistics[3]]}
    world.memory.files[log[0].metadata_file] = (gzip.compress(json.dumps(previous).encode()), 0)
    current = document(world, **{"statistics": [statistics[0]], "partition-statistics": [statistics[1]]})
    world.memory.files[world.table.metadata_location] = (json.dumps(current).encode(), 0)
    stray = world.put("metadata/stray.puffin")
    assert world.plan().kept.former_statistics_count == 2
    done = world.run()
    assert (done.orphan_file_locations, done.kept.former_statistics_count) == ((stray,), 2)
    assert set(kept) <= set(world.memory.files)
    # Those that are listed are counted.
    assert world.run(location=f"{ROOT}/data").kept.former_statistics_count == 0


def test_statistics_that_were_attached_again_are_no_former_ones(world):
    """The log names them, and the current metadata does, in another spelling."""
    location = world.put("metadata/s.puffin")
    one = {"snapshot-id": world.table.metadata.current_snapshot_id, "file-size-in-bytes": 5}
    one |= {"file-footer-size-in-bytes": 1, "blob-metadata": []}
    older = world.table.metadata.metadata_log[0].metadata_file
    previous = {**json.loads(world.memory.read(older)), "statistics": [{**one, "statistics-path": location}]}
    world.memory.files[older] = (json.dumps(previous).encode(), 0)
    spelled = location.replace("/metadata/", "/./metadata//")
    current = document(world, statistics=[{**one, "statistics-path": spelled}])
    world.memory.files[world.table.metadata_location] = (json.dumps(current).encode(), 0)
    assert world.plan().kept.former_statistics_count == 0


def test_broken_metadata_in_the_log_stops_nothing(world):
    log = world.table.metadata.metadata_log
    del world.memory.files[log[0].metadata_file]
    world.memory.files[log[1].metadata_file] = (b"{", 0)
    stray = world.put("x")
    assert world.run().orphan_file_locations == (stray,)
    assert log[1].metadata_file in world.memory.files


def test_a_version_hint_stays(world):
    hint = world.put("metadata/version-hint.text", b"3")
    assert world.run().orphan_files_count == 0
    assert hint in world.memory.files


@pytest.mark.slow
def test_what_cannot_be_read_whole_stops_it(world):
    """Every manifest and manifest list, gone, cut or broken."""
    stray = world.put("x")
    avro = [location for location in world.memory.files if location.endswith(".avro")]
    assert len(avro) == 6
    for location in avro:
        data, modified_ms = world.memory.files[location]
        for broken in (None, b"", data[:-1], data[: len(data) // 2], b"x" + data[1:]):
            if broken is None:
                del world.memory.files[location]
            else:
                world.memory.files[location] = (broken, modified_ms)
            with pytest.raises(SafetyError, match="nothing is deleted"):
                world.run(force=True)
            assert stray in world.memory.files
        world.memory.files[location] = (data, modified_ms)
    assert world.run().orphan_file_locations == (stray,)


def test_unavailable_store_stops_the_run_with_a_retryable_error(world):
    stray = world.put("x")
    fired = []

    def failing(at):
        def fail(operation, location):
            if operation == at and location.startswith(ROOT):
                fired.append(location)
                raise UnavailableError("the store is out of reach")

        return fail

    for at in ("list_share", "shares", "read"):
        world.storage.before = failing(at)
        with pytest.raises(UnavailableError):
            world.run()
        assert fired.pop()
        assert stray in world.memory.files


def test_no_listed_file_is_a_live_one(world):
    for location in [*world.memory.files]:
        world.memory.files[location.replace("/data/", "/data/moved-")] = world.memory.files.pop(location)
    with pytest.raises(
        SafetyError, match="none of those listed there is one of them: paths must be spelled in different"
    ):
        world.run(location=f"{ROOT}/data", force=True)
    assert "data/moved-a0.parquet" in world.names()


def test_where_nothing_is_listed_the_reason_is_not_the_spelling(world):
    for location in [location for location in world.memory.files if "/data/" in location]:
        del world.memory.files[location]
    with pytest.raises(SafetyError, match="no file was listed there; nothing is deleted; see whether they are gone"):
        world.run(location=f"{ROOT}/data", force=True)


@pytest.mark.parametrize(
    ("names", "outside_count", "message"),
    [
        (0, 0, "'files' names none there; nothing is deleted"),
        (0, 1, "names none there, and 1 that lie elsewhere; nothing"),
    ],
)
def test_list_without_files_of_the_location_is_refused(world, names, outside_count, message):
    listing = LocationListing(files=LISTED.empty_table(), files_count=names, outside_count=outside_count)
    search = RemoveOrphanFilesRequest(file_list_view="files").search()
    with pytest.raises(SafetyError, match=message) as raised:
        refuse_unmatched(world.table, ROOT, listing, search)
    assert "spelled" not in raised.value.message


@pytest.mark.parametrize(
    "location", [f"{ROOT}/data/../data", f"{ROOT}/./data/", f"{ROOT}//data", f"{ROOT}/x/../data/."]
)
def test_a_location_is_listed_by_the_names_that_it_comes_to(world, location):
    stray = world.put("data/lost.parquet")
    world.put("data/_hidden")
    done = world.run(location=location, options={"max-orphan-ratio": 0.5})
    assert (done.orphan_files_count, done.reachable_files_count, done.kept.hidden_count) == (1, 6, 1)
    assert stray not in world.memory.files


def test_a_location_with_no_file_below_it_is_perhaps_mistyped(world):
    warning = (
        "there is no file below 'memory://lake/wh/db/events/dta'; see whether the location is the one that you mean"
    )
    assert world.run(location=f"{ROOT}/dta").status == "done"
    assert world.heard.warnings == [warning]
    world.put("new/_hidden")
    world.run(location=f"{ROOT}/new")
    assert world.heard.warnings == [warning]


def test_unreferenced_location_may_hold_only_orphans(world):
    stray = world.put("left/over.parquet")
    assert world.run(location=f"{ROOT}/left", force=True).orphan_file_locations == (stray,)


def test_large_share_of_orphans_needs_approval(world):
    """G12: a fifth, and not a file more."""
    listed = len(world.names())
    most = next(n for n in range(1, 100) if n + 1 > 0.2 * (listed + n + 1))
    for number in range(most):
        world.put(f"stray-{number}")
    assert world.plan().too_many is None
    world.put("one-more")
    plan = world.plan()
    assert f"{most + 1} of the {listed + most + 1} files" in plan.too_many
    with pytest.raises(SafetyError, match=r"20%.*--approve HASH.*--force"):
        world.run()
    assert world.run(force=True).deleted_files_count == most + 1


def test_the_share_is_an_option(world):
    world.put("x")
    with pytest.raises(SafetyError, match="more than 0%"):
        world.run(options={"max-orphan-ratio": "0"})
    with pytest.raises(OptionError, match="max-orphan-ratio"):
        world.run(options={"max-orphan-ratio": 2})
    assert world.run(options={"max-orphan-ratio": 1}).deleted_files_count == 1


def test_who_approves_of_a_plan_gets_exactly_that_plan(world):
    for number in range(20):
        world.put(f"stray-{number}")
    plan = world.plan()
    assert plan.too_many
    late = world.put("late")
    with pytest.raises(SafetyError, match="other files would go"):
        world.run(approve=plan.hash)
    with pytest.raises(SafetyError, match="other files would go"):
        world.run(approve=plan.hash, force=True)
    with pytest.raises(SafetyError, match="is approved: nothing would be deleted"):
        world.plan(approve=plan.hash)
    assert late in world.memory.files
    assert world.run(approve=world.plan().hash).deleted_files_count == 21


def test_files_that_cannot_be_deleted_are_counted_and_named(world):
    stuck, free = world.put("stuck"), world.put("free")
    delete_many = world.storage.delete_many

    def deny(locations):
        return [
            DeleteOutcome(location, DeleteStatus.FAILED, "access denied")
            if location == stuck
            else delete_many([location])[0]
            for location in locations
        ]

    world.storage.delete_many = deny
    result = world.run()
    assert (result.status, result.deleted_files_count, result.failed_files_count) == ("partial", 1, 1)
    assert "access denied" in result.failed_files[0]
    assert result.plan_location
    assert free not in world.memory.files
    world.storage.delete_many = delete_many
    again = world.run()
    assert again.finished_files_count + again.deleted_files_count == 1
    assert stuck not in world.memory.files


def test_special_characters_in_names_are_kept(world):
    names = ["a b", "a%20b", "a&<>'\"b", "ä", "a\nb", "%2Fx", "x+y", "q?x=1#y"]
    strays = {world.put(f"data/{name}") for name in names}
    result = world.run(force=True)
    assert set(result.orphan_file_locations) == strays
    assert not strays & set(world.memory.files)


def test_where_a_grace_is_asked_for_a_later_run_deletes(world):
    stray = world.put("x")
    result = world.run(options={"grace": "2h"})
    assert (result.deleted_files_count, result.waits_until_ms) == (0, world.runtime.now_ms() + 2 * 3_600_000)
    assert stray in world.memory.files
    world.pass_days(0.1)
    assert world.run().finished_files_count == 1
    assert stray not in world.memory.files


def test_days_in_the_trash_begin_when_the_grace_is_over(world):
    """With as many days of grace as in the trash, the run after the one that moved the files emptied it."""
    world.put("x")
    world.run(trash=3, options={"grace": "3d"})
    world.pass_days(3.01)
    assert world.run(trash=3).finished_files_count == 1
    world.pass_days(2.9)
    assert world.run(trash=3).emptied_trash_files_count == 0
    world.pass_days(0.2)
    assert world.run(trash=3).emptied_trash_files_count == 1


def test_a_table_that_became_another_one_meanwhile_is_left_alone(world):
    table, stray = world.table, world.put("x")
    world.catalog.drop(EVENTS)
    memory_table(world.catalog)
    with pytest.raises(SafetyError, match="became another one"):
        world.run(table)
    assert stray in world.memory.files


def test_properties_that_change_meanwhile_are_obeyed(world):
    table, stray = world.table, world.put("x")
    swap(table, SetProperties({"gc.enabled": "false"}))
    with pytest.raises(SafetyError, match=r"gc\.enabled=false"):
        world.run(table)
    assert stray in world.memory.files


def test_unknown_metadata_key_with_local_files_stops_the_run(world):
    """An index has files that only its own metadata names."""
    stray, known = world.put("x"), document(world)
    for key, value in (
        ("indexes", [{"metadata-location": f"{ROOT}/metadata/index/1.json"}]),
        ("index-root", "metadata/index"),
        ("snapshots", [{**one, "index-files": {"a": f"{ROOT}/data/i.bin"}} for one in known["snapshots"]]),
    ):
        world.memory.files[world.table.metadata_location] = (json.dumps({**known, key: value}).encode(), 0)
        for ask in (world.run, world.plan):
            with pytest.raises(
                SafetyError, match=rf"names '{ROOT}/.*' by the key 'index.*', which this icekeep does not know"
            ):
                ask(world.table)
    assert stray in world.memory.files
    for value in ("text", 5, {"key": "memory://elsewhere/x"}, ["../up"]):
        world.memory.files[world.table.metadata_location] = (json.dumps({**known, "later": value}).encode(), 0)
        world.plan(world.table)
    assert world.run().orphan_file_locations == (stray,)


@pytest.mark.parametrize(
    "spelled", ["memory:/wh/db/events/i/x", f"{ROOT}/../%65vents/i/x", "memory://lake/WH/db/events/i"]
)
def test_location_in_an_unknown_key_matches_any_spelling(world, spelled):
    """Files are compared in the same way: whoever names one without its store, or escaped, names it all the same."""
    stray = world.put("x")
    world.memory.files[world.table.metadata_location] = (json.dumps({**document(world), "later": spelled}).encode(), 0)
    with pytest.raises(SafetyError, match="by the key 'later'"):
        world.run()
    assert stray in world.memory.files


def test_what_such_a_key_names_elsewhere_is_kept(world):
    elsewhere = "memory://lake/elsewhere"
    named, stray = world.put("named", root=elsewhere), world.put("stray", root=elsewhere)
    world.memory.files[world.table.metadata_location] = (
        json.dumps({**document(world), "later": {"file": named}}).encode(),
        0,
    )
    options = {"reclaim.roots": elsewhere}
    with pytest.raises(SafetyError, match="by the key 'later'"):
        world.run(location=elsewhere, options=options)
    assert {named, stray} <= world.memory.files.keys()


def test_nobody_is_warned_of_a_run_in_which_all_went_well(world):
    world.put("x")
    world.run()
    assert not [event for event in world.heard.events if isinstance(event, Warned)]


def test_a_table_of_version_1_without_an_id_can_be_cleaned(new_world):
    world = new_world(format_version=1)
    uuidless = document(world)
    del uuidless["table-uuid"]
    world.memory.files[world.table.metadata_location] = (json.dumps(uuidless).encode(), 0)
    assert world.table.metadata.table_uuid is None
    stray = world.put("x")
    assert world.run().orphan_file_locations == (stray,)
    world.put("metadata/00000-other.metadata.json", json.dumps(uuidless).encode())
    with pytest.raises(SafetyError, match="no table-uuid"):
        world.run()


def test_live_file_under_another_authority_is_kept(world):
    """apache/iceberg #4346.

    testRemoveOrphanFilesProcedureWithPrefixMode, testRemoveOrphanFilesProcedureWithEqualAuthorities.
    """
    moved = msgspec.structs.replace(data_file("m.parquet"), file_path="memory://old/wh/db/events/data/m.parquet")
    add(world.table, moved)
    listed, stray = world.put("data/m.parquet"), world.put("data/x.parquet")
    with pytest.raises(SafetyError, match="equal_schemes and equal_authorities") as raised:
        world.run()
    assert listed in raised.value.message
    assert moved.file_path in raised.value.message
    with pytest.raises(UnsupportedError, match="DELETE"):
        world.run(prefix_mismatch_mode="DELETE")
    plan = world.plan(prefix_mismatch_mode="IGNORE")
    assert (plan.orphan_file_locations, plan.kept.mismatched_count, plan.mismatches[0].listed) == ((stray,), 1, listed)
    plan = world.plan(equal_authorities={"old": "lake"})
    assert (plan.orphan_file_locations, plan.kept.mismatched_count, plan.mismatches) == ((stray,), 0, ())
    assert world.run(prefix_mismatch_mode="ignore").orphan_file_locations == (stray,)
    assert listed in world.memory.files


def test_a_list_that_contradicts_its_summary(world):
    current = document(world)
    current["snapshots"][0]["summary"]["total-data-files"] = "7"
    world.memory.files[world.table.metadata_location] = (json.dumps(current).encode(), 0)
    stray = world.put("x")
    with pytest.raises(SafetyError, match="total-data-files"):
        world.run()
    assert world.run(trust_manifest_list=True).orphan_file_locations == (stray,)


def test_snapshots_without_file_totals_are_counted(world):
    current = document(world)
    current["snapshots"][0]["summary"] = {"operation": "append"}
    world.memory.files[world.table.metadata_location] = (json.dumps(current).encode(), 0)
    assert world.run().untotalled_snapshots_count == 1


def test_prefix_listing_and_streaming_are_what_happens_anyhow(world):
    """testDefaultToHadoopListing, testStreamResultsDeletion."""
    stray = world.put("x")
    assert world.run(prefix_listing=True, stream_results=True).orphan_file_locations == (stray,)


def test_a_thousand_locations_are_shown_of_more(world):
    for number in range(1_005):
        world.put(f"data/stray-{number:04}")
    result = world.run(force=True)
    assert (result.orphan_files_count, len(result.orphan_file_locations)) == (1_005, 1_000)


_STEPS = ("commit", "old stray", "young stray", "hidden", "adopt", "branch", "lost metadata", "beside")


@pytest.mark.slow
@cases(25)
@given(st.lists(st.sampled_from(_STEPS), max_size=8), st.booleans())
def test_after_any_history_exactly_the_old_strays_are_gone(new_world, steps, uses_trash):
    world = new_world()
    gone = set()
    for number, step in enumerate(steps):
        name = f"n{number}.parquet"
        match step:
            case "commit":
                world.commit(name)
            case "old stray":
                gone.add(world.put(f"data/{name}", days=3.5))
            case "young stray":
                world.put(f"data/{name}", days=2.5)
            case "hidden":
                world.put(f"data/_{name}", days=9)
            case "adopt":
                world.put(f"data/{name}", days=9)
                add(world.table, name)
            case "branch":
                world.put(f"data/{name}", days=9)
                table = set_ref(world.table, f"b{number}", world.table.metadata.current_snapshot_id, "branch")
                add(table, name, branch=f"b{number}")
            case "lost metadata":
                gone.add(put_metadata(world, f"metadata/{number:05d}-lost.metadata.json", days=4))
            case "beside":
                world.put(f"data/{name}", days=9, root=f"{ROOT}2")
    names = world.names()
    result = world.run(force=True, trash=3 if uses_trash else 0)
    assert set(result.orphan_file_locations) == gone
    assert world.names() == names - {location.removeprefix(f"{ROOT}/") for location in gone}
    assert (
        result.reachable_files_count + result.orphan_files_count + result.kept.young_count == result.listed_files_count
    )
    assert world.run(force=True).orphan_files_count == 0
