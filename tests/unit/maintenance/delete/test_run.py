"""A plan is carried out: what is planned goes and nothing else; and sets of paths, by whatever spelling."""

import pickle
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, SafetyError
from icekeep.events import StepFinished, StepStarted, Warned
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.delete.garbage import is_garbage
from icekeep.maintenance.delete.lease import LEASE_MS, take_lease
from icekeep.maintenance.delete.locations import deletable_locations
from icekeep.maintenance.delete.options import ReclaimOptions
from icekeep.maintenance.delete.plan_file import (
    PlanDraft,
    PlanPart,
    classify_files,
    plan_directory,
    trash_location,
    write_plan,
)
from icekeep.maintenance.delete.reachable import (
    NO_PATHS,
    NO_SPELLINGS,
    FileKind,
    FilesOfKind,
    GarbageFile,
    PathSet,
    Reached,
    SpelledPaths,
    garbage_table,
    named_files,
    paths_by_prefix,
    read_reached,
    union,
)
from icekeep.maintenance.delete.run import DeletionRequest, DeletionRun
from icekeep.storage.base import DeleteOutcome, DeleteStatus
from icekeep.storage.location_keys import path_keys
from kit.cases import for_each
from kit.changes import Recorder
from kit.runtime import FakeRuntime, no_spark, with_runtime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import add, memory_table

ROOT = "memory://lake/wh/db/events"
RUN = "run-1"


@pytest.fixture
def table():
    return table_on(HookedStorage(MemoryStorage()))


def table_on(storage, **properties):
    return replace(memory_table(**properties), storage=storage)


def file(kind=FileKind.DATA, name="data/a.parquet", size_bytes=10, root=ROOT):
    return GarbageFile(kind, f"{root}/{name}", size_bytes)


def stored(table, *files):
    for one in files:
        table.storage.create(one.location, b"x" * (one.size_bytes or 1))


def planned(table, *files, **draft):
    """Write a plan of content files and one of all others, as the jobs do."""
    told = PlanDraft(job="expire_snapshots", run=RUN, **draft)
    directory = plan_directory(table, told)
    places = deletable_locations(table)
    found = classify_files(garbage_table(files), places, directory, table.storage)
    return write_plan(found, told, table, FakeRuntime())


def nothing_new():
    return NO_PATHS


def carried_out(table, plan, listener=None, runtime=None, look=nothing_new, claim=None, **options):
    runtime = runtime or FakeRuntime()
    # Whoever wrote the plan, or carried it out before, is gone.
    now_ms = table.storage.inner.runtime.now_ms() + LEASE_MS + 1
    lease = claim or take_lease(plan.directory, "test", table.storage, runtime, now_ms)
    request = DeletionRequest(options=ReclaimOptions(**options))
    run = DeletionRun.of(with_runtime(table, runtime), no_spark, request, listener or Recorder(), now_ms)
    return run.reclaim(plan, lease, look)


def left(table):
    return {location for location in table.storage.inner.files if "/.icekeep/" not in location}


def counts(done):
    return {one.kind: one.files_count for one in done.deleted}


def test_bytes_that_the_store_keeps_as_older_versions_are_told(table):
    class Versioned(HookedStorage):
        def delete_many(self, locations):
            return [replace(one, is_kept_as_version=True) for one in super().delete_many(locations)]

    table = replace(table, storage=Versioned(table.storage.inner))
    files = [file(name=f"data/{number}.parquet", size_bytes=500) for number in range(3)]
    stored(table, *files)
    listener = Recorder()
    done = carried_out(table, planned(table, *files), listener)
    (note,) = [event.note for event in listener.events if isinstance(event, StepFinished)]
    assert note == "3 files, whose 1,500 bytes the bucket keeps as older versions until its rules let them go"
    assert done.deleted_bytes_count == 1500


def test_what_is_planned_is_deleted_and_nothing_else(table):
    files = [
        file(),
        file(FileKind.MANIFEST, "metadata/m.avro", 7),
        file(FileKind.MANIFEST_LIST, "metadata/s.avro", None),
    ]
    kept = [file(name="data/kept.parquet"), file(name="data/a.parquet", root="memory://lake/wh/db/events2")]
    stored(table, *files, *kept)
    done = carried_out(table, planned(table, *files))
    assert done.deleted == (
        FilesOfKind(kind=FileKind.DATA, files_count=1, bytes=10),
        FilesOfKind(kind=FileKind.MANIFEST, files_count=1, bytes=7),
        FilesOfKind(kind=FileKind.MANIFEST_LIST, files_count=1, bytes=0),
    )
    assert (done.deleted_bytes_count, done.missing_count, done.failed) == (17, 0, ())
    assert left(table) == {one.location for one in kept}


def test_what_others_name_goes_before_what_names_it(table):
    order = []
    files = [file(kind, f"{number}") for number, kind in enumerate(reversed(FileKind))]
    stored(table, *files)
    plan = planned(table, *files)
    table.storage.before = lambda what, location: order.append(location) if what == "delete_many" else None
    carried_out(table, plan)
    assert [next(f.kind for f in files if f.location == location) for location in order] == list(FileKind)
    assert list(FileKind).index(FileKind.DATA) < list(FileKind).index(FileKind.MANIFEST)
    assert list(FileKind).index(FileKind.MANIFEST) < list(FileKind).index(FileKind.MANIFEST_LIST)


def test_files_that_are_gone_already_are_fine_and_counted_apart(table):
    files = [file(name=name) for name in ("data/a", "data/b")]
    stored(table, files[0])
    done = carried_out(table, planned(table, *files))
    assert (counts(done), done.deleted_bytes_count, done.missing_count) == ({FileKind.DATA: 1}, 10, 1)


@pytest.mark.parametrize("trash_until_ms", [None, 99])
def test_a_plan_that_is_carried_out_twice_deletes_nothing_more(table, trash_until_ms):
    files = [file(name=name) for name in ("data/a", "data/b")]
    stored(table, *files)
    plan = planned(table, *files, trash_until_ms=trash_until_ms)
    assert counts(carried_out(table, plan)) == {FileKind.DATA: 2}
    again = carried_out(table, plan)
    assert (again.deleted, again.failed_count, again.missing_count) == ((), 0, 2)


def test_a_plan_that_another_run_has_finished_is_no_failure(table):
    files = [file(name=name) for name in ("data/a", "data/b")]
    plan = planned(table, *files)
    table.storage.delete_many([part.location for part in plan.parts])
    done = carried_out(table, plan)
    assert (done.deleted, done.missing_count, done.failed_count) == ((), 2, 0)


def test_undeletable_files_are_reported_and_others_deleted():
    class Refusing(MemoryStorage):
        def delete_many(self, locations):
            return [
                DeleteOutcome(location, DeleteStatus.FAILED, "access denied")
                if location.endswith("/b")
                else super(Refusing, self).delete_many([location])[0]
                for location in locations
            ]

    table, heard = table_on(HookedStorage(Refusing())), Recorder()
    files = [file(name=f"data/{name}") for name in "abc"]
    stored(table, *files)
    done = carried_out(table, planned(table, *files), heard)
    failure = f"{files[1].location!r}: access denied"
    assert (counts(done), done.failed_count, done.failed, done.deleted_bytes_count) == (
        {FileKind.DATA: 2},
        1,
        (failure,),
        20,
    )
    assert Warned(f"could not delete {failure}") in heard.events
    assert left(table) == {files[1].location}


@pytest.mark.slow
def test_many_files_go_a_thousand_at_a_time(table):
    files = [file(name=f"data/{number:05d}") for number in range(2500)]
    stored(table, *files)
    heard, calls = Recorder(), []
    plan = planned(table, *files)
    real = table.storage.inner.delete_many
    table.storage.inner.delete_many = lambda locations: (
        calls.append(len(locations := list(locations))) or real(locations)
    )
    assert counts(carried_out(table, plan, heard)) == {FileKind.DATA: 2500}
    assert calls == [1000, 1000, 500]
    assert heard.events[0] == StepStarted("deleting files", 2500, "files")
    assert heard.events[-1] == StepFinished("deleting files", "2,500 files")
    assert left(table) == set()


def test_files_go_no_faster_than_they_may(table):
    files = [file(name=f"data/{number:05d}") for number in range(250)]
    stored(table, *files)
    runtime = FakeRuntime()
    began_ms = runtime.monotonic_ms()
    assert counts(carried_out(table, planned(table, *files), runtime=runtime, max_deletes_per_second=100)) == {
        FileKind.DATA: 250
    }
    assert runtime.monotonic_ms() - began_ms >= 2_000


def test_in_the_trash_a_file_keeps_its_name_and_bytes(table):
    files = [file(), file(FileKind.MANIFEST, "metadata/m.avro", 7)]
    stored(table, *files)
    plan = planned(table, *files, trash_until_ms=99)
    assert plan.directory == f"{ROOT}/.icekeep/trash/{RUN}"
    assert counts(carried_out(table, plan)) == {FileKind.DATA: 1, FileKind.MANIFEST: 1}
    assert left(table) == set()
    for one in files:
        moved = trash_location(plan, one.location)
        assert moved == f"{plan.directory}/files{one.location.removeprefix(ROOT)}"
        assert table.storage.read(moved) == b"x" * one.size_bytes


def test_a_file_of_an_allowed_root_has_a_place_in_the_trash_too(table):
    plan = planned(table, file(), trash_until_ms=99)
    assert trash_location(plan, "s3a://other/root/x") == f"{plan.directory}/files/_elsewhere/s3/other/root/x"


@pytest.mark.parametrize("text", ["false", "FALSE", "no", "0", "", " true"])
def test_gc_disabled_deletes_nothing(table, text):
    stored(table, file())
    plan = planned(table, file())
    disabled = replace(table, metadata=replace(table.metadata, properties={"gc.enabled": text}))
    with pytest.raises(SafetyError, match=f"gc.enabled={text}") as raised:
        carried_out(disabled, plan)
    assert raised.value.exit_status == 4
    assert left(table) == {file().location}


def test_the_plan_of_another_table_is_not_carried_out(table):
    stored(table, file())
    plan = msgspec.structs.replace(planned(table, file()), table_uuid="another")
    with pytest.raises(IcekeepBug, match="another table"):
        carried_out(table, plan)
    assert left(table) == {file().location}


def test_plan_written_for_wider_roots_is_refused(table):
    """The places are looked at once more where files go: what an operator allowed may not be allowed now."""
    elsewhere = file(root="memory://lake/wh/db/events2")
    stored(table, elsewhere)
    told = PlanDraft(job="expire_snapshots", run=RUN)
    places = deletable_locations(table, ["memory://lake/wh/db/events2"])
    found = classify_files(garbage_table([elsewhere]), places, plan_directory(table, told), table.storage)
    plan = write_plan(found, told, table, FakeRuntime())
    assert plan.files_count == 1
    with pytest.raises(SafetyError, match="outside the places of table"):
        carried_out(table, plan)
    assert left(table) == {elsewhere.location}


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(FileKind), st.none() | st.integers(0, 99), st.booleans()), max_size=20))
def test_counts_are_the_difference_that_was_made(drawn):
    table = table_on(HookedStorage(MemoryStorage()))
    files = [file(kind, f"data/{n}", size) for n, (kind, size, _) in enumerate(drawn)]
    there = [one for one, (_, _, exists) in zip(files, drawn, strict=True) if exists]
    stored(table, *there)
    done = carried_out(table, planned(table, *files))
    assert left(table) == set()
    assert done.deleted_count == len(there)
    assert done.missing_count == len(files) - len(there)
    assert done.deleted_bytes_count == sum(one.size_bytes or 0 for one in there)
    assert set(counts(done)) == {one.kind for one in there}


MINUTE = 60_000


def parts(count: int, files: int = 50_000) -> tuple[PlanPart, ...]:
    kind = FilesOfKind(kind=FileKind.DATA, files_count=files, bytes=0)
    return tuple(PlanPart(location=f"p{n}", files=(kind,), digest="") for n in range(count))


class Clock:
    now = 0

    def monotonic_ms(self) -> int:
        return self.now


def batches(count: int, took: Any) -> list[int]:
    """How many parts the rounds have, where one of so many takes so long."""
    clock, found, left = Clock(), [], [*parts(count)]
    for some in deleting.batches_of_parts(parts(count), None, clock):
        found.append(len(some))
        assert [*some] == left[: len(some)]
        del left[: len(some)]
        clock.now += took(len(some), len(found))
    assert not left
    return found


def test_a_batch_takes_about_a_minute_whatever_slots_there_are():
    assert batches(1_000, lambda size, _: size * 1_000)[:6] == [4, 8, 16, 32, 60, 60]
    assert batches(20, lambda size, _: size * 30_000) == [4, *[2] * 8]
    assert batches(8, lambda size, _: 10 * MINUTE) == [4, 1, 1, 1, 1]


def test_slots_that_come_later_are_used():
    """Four hundred executors came when the first rounds were done."""
    found = batches(4_000, lambda size, number: size * (15_000 if number < 4 else 100))
    assert found[:3] == [4, 4, 4]
    assert max(found) > 500


@pytest.mark.parametrize(("rate", "sizes"), [(1.0, [1] * 5), (2_000.0, [2, 2, 1]), (10_000.0, [5])])
def test_delete_rate_limits_the_batch_size(rate, sizes):
    found = [*deleting.batches_of_parts(parts(5), rate, Clock())]
    assert [len(some) for some in found] == sizes


@for_each(
    ("rate", "concurrent", "tasks"), [(None, None, 40), (None, 7, 7), (100.0, None, 1), (2_500.0, None, 5), (1e6, 9, 9)]
)
def test_tasks_share_a_limited_speed(rate, concurrent, tasks):
    conf = SimpleNamespace(get=lambda *_: None)
    session = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf, master="yarn", defaultParallelism=2))
    bins, each = deleting.task_bins(rate, parts(40), concurrent, session)
    assert len(bins) == tasks
    assert each == (None if rate is None else rate / tasks)


A, B, C = "s3://b/data/a", "s3://b/data/b", "s3://b/data/c"


def test_path_set_matches_any_store_and_spelling():
    stays = PathSet.of([A, "hdfs://nn1:8020/x", "wasbs://c@a.blob.core.windows.net/y", "s3://b/month%3D1/z"])
    named = ["s3a://b//data/A", "hdfs://ha/x", "abfss://c@a.dfs.core.windows.net/y", "s3://b/month=1/z", C]
    assert stays.mask(named).tolist() == [True, True, True, True, False]


def test_sets_are_joined_cut_and_compared():
    one, other = PathSet.of([A, B, A]), PathSet.of(pa.chunked_array([[B], [C]]))
    assert (len(one), len(one | other), len(one & other)) == (2, 3, 1)
    assert one & other <= one <= union([one, other])
    assert not one <= other
    assert (one & PathSet.of([C])).keys.tolist() == NO_PATHS.keys.tolist() == []
    assert one >= NO_PATHS
    assert pickle.loads(pickle.dumps(one)).keys.tolist() == one.keys.tolist()


def spelled(*locations):
    return SpelledPaths.of(paths_by_prefix(pa.array(locations, pa.string())))


def test_a_set_of_many_stores_is_the_set_of_their_files():
    stays = spelled(A, "hdfs://nn1/x", "s3a://b/data/b", "/y")
    assert len(stays.by_prefix) == 3
    asked = pa.array([B, "hdfs://other/x", "gs://b/y", C])
    assert stays.paths.mask(asked).tolist() == [True, True, True, False]
    assert stays.split_by_spelling(asked, path_keys(asked))[0].tolist() == [True, True, True, False]
    assert len(spelled().paths) == 0


@for_each(
    ("asked", "kept", "told"),
    [
        ("hdfs://nn1/x", ["hdfs://ha/x"], "hdfs://ha/x"),
        ("hdfs://nn1/x", ["hdfs://ha/x", "hdfs://nn1/y"], "hdfs://ha/x"),
        ("hdfs://nn1/x", ["hdfs://ha/x", "hdfs://NN1:8020//x"], None),
        ("hdfs://nn1/x", ["hdfs://ha/x", "hdfs:/x"], None),
        ("hdfs:///x", ["hdfs://ha/x"], None),
        ("s3a://b/x", ["s3://b/x"], None),
        ("s3a://b/x", ["s3://b2/x"], "s3://b2/x"),
    ],
)
def test_what_is_in_the_set_by_another_store_only_is_told(asked, kept, told):
    files = pa.array([asked, "hdfs://nn1/z", asked])
    is_in, found = spelled(*kept).split_by_spelling(files, path_keys(files))
    assert is_in.tolist() == [True, False, True]
    assert [(one.location, one.kept) for one in found.examples] == [(asked, told)] * (2 if told else 0)
    assert len(found) == (1 if told else 0)


def test_of_many_spellings_the_first_are_told():
    stays = spelled(*(f"hdfs://a/{number}" for number in range(30)))
    files = pa.array([f"hdfs://b/{number}" for number in range(30)])
    _, found = stays.split_by_spelling(files, path_keys(files))
    assert (len(found), len(found.examples)) == (30, 10)
    assert (len(found | NO_SPELLINGS), len(found | found), len((found | found).examples)) == (30, 30, 10)


def test_nothing_is_in_no_set():
    assert NO_PATHS.mask([A]).tolist() == [False]
    assert PathSet.of([A]).mask([]).tolist() == []
    assert len(union([])) == 0


@pytest.mark.parametrize("spelling", ["memory://lake/wh/{}", "memory://other/WH/{}"])
def test_file_retained_under_another_store_is_no_garbage(spelling):
    named = named_files({}, [], [], ["memory://lake/wh/metadata/v1.metadata.json"])
    retained = Reached(metadata=memory_table().metadata, storage=MemoryStorage(), manifests=(), named=named)
    locations = [spelling.format(name) for name in ("metadata/v1.metadata.json", "metadata/v2.metadata.json")]
    files = garbage_table(GarbageFile(FileKind.METADATA, location) for location in locations)
    assert is_garbage(files, retained, no_spark).tolist() == [False, True]


def test_seen_manifests_are_not_read_again():
    """Their paths are still among those that the table names."""
    first = add(memory_table(), "a")
    table = add(first, "b")

    def read(table, **since):
        return read_reached(
            table.metadata, table.metadata_location, table.storage, no_spark, trust_manifest_list=False, **since
        )

    whole, before = read(table), read(first)
    newly = read(table, since=before.seen)
    assert [m.added_snapshot_id for m in newly.manifests] == [table.metadata.current_snapshot_id]
    assert newly.seen.lists == whole.seen.lists
    assert np.array_equal(newly.seen.manifest_keys, whole.seen.manifest_keys)
    assert read(table, since=newly.seen).manifests == ()
    lists = [snapshot.manifest_list for snapshot in table.metadata.snapshots]
    assert newly.named_paths.paths.mask(lists).all()
