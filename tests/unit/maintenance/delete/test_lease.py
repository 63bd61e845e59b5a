"""Who is at work on a plan; how plans are written and read; and the options of what deletes."""

import inspect
import os
import pickle
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import ClaimedError, InvalidTableError, MissingFileError, OptionError
from icekeep.maintenance.delete.lease import LEASE_MS, LEASES, RESTORE, holding, last_work, new_lease, take_lease
from icekeep.maintenance.delete.options import (
    DAY_MS,
    ExpirationOptions,
    GraceOptions,
    OrphanOptions,
    ReclaimOptions,
    asked_trash_days,
)
from icekeep.maintenance.delete.plan_file import (
    BEFORE,
    FILES,
    HEAD,
    ClassifiedGarbage,
    DeletionPlan,
    PlanDraft,
    delete_plan,
    digest_of,
    plan_hash,
    plans_below,
    read_part,
    read_plan,
    trash_location,
    write_head,
    write_part,
)
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile, garbage_table
from icekeep.maintenance.options import parse_options
from icekeep.operations.jobs import JOBS, resolve
from icekeep.processes import has_ended, process_name
from kit.cases import for_each
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage
from kit.tables import memory_table

PLAN = "memory://lake/wh/db/events/.icekeep/plans/run-1"


@pytest.fixture
def runtime():
    return FakeRuntime()


@pytest.fixture
def storage(runtime):
    return MemoryStorage(runtime)


def taken(storage, runtime, job="other"):
    return take_lease(PLAN, job, storage, runtime, runtime.now_ms())


def test_one_of_two_gets_a_plan(storage, runtime):
    first = taken(storage, runtime, "expire_snapshots")
    with pytest.raises(ClaimedError, match="is in use by expire_snapshots,") as refused:
        taken(storage, runtime)
    assert refused.value.exit_status == 75
    first.check(storage, runtime)


def test_a_claim_is_not_lost_to_its_own_thread(runtime):
    """Which renews it between this thread's listing of the claims and its look at them."""

    class Renewed(MemoryStorage):
        meanwhile = staticmethod(lambda: None)

        def list(self, prefix_location):
            found = list(super().list(prefix_location))
            act, self.meanwhile = self.meanwhile, lambda: None
            act()
            yield from found

    storage = Renewed(runtime)
    claim = taken(storage, runtime)
    runtime.pass_ms(LEASE_MS // 2 + 1)
    storage.meanwhile = lambda: claim.check(storage, runtime)
    claim.check(storage, runtime)
    assert claim.number == 2


def test_of_two_who_look_at_the_same_moment_one_gets_it(storage, runtime):
    class Late(MemoryStorage):
        def list(self, prefix_location):
            yield from super().list(prefix_location)
            if not self.files:
                self.first = new_lease(PLAN, "faster", self, runtime)

    late = Late(runtime)
    with pytest.raises(ClaimedError, match="another run has just begun"):
        taken(late, runtime)
    late.first.check(late, runtime)


def test_a_claim_ends_when_nobody_renews_it(storage, runtime):
    first = taken(storage, runtime)
    runtime.pass_ms(LEASE_MS)
    with pytest.raises(ClaimedError):
        taken(storage, runtime)
    runtime.pass_ms(1)
    second = taken(storage, runtime, "second")
    second.check(storage, runtime)
    with pytest.raises(ClaimedError, match="taken over by second"):
        first.check(storage, runtime)


def test_whoever_works_renews_it_in_time(storage, runtime):
    first = taken(storage, runtime)
    for _ in range(10):
        runtime.pass_ms(LEASE_MS // 2 + 1)
        first.check(storage, runtime)
        with pytest.raises(ClaimedError):
            taken(storage, runtime)
    assert len([*storage.list(f"{PLAN}/{LEASES}")]) == 11


def test_tasks_of_one_run_renew_it_together(storage, runtime):
    first = taken(storage, runtime)
    one, other = (pickle.loads(pickle.dumps(first)).arrived(runtime) for _ in range(2))
    runtime.pass_ms(LEASE_MS - 1)
    one.check(storage, runtime)
    other.check(storage, runtime)
    first.check(storage, runtime)
    assert (one.number, other.number, first.number) == (2, 2, 2)


def test_a_released_plan_is_free_at_once(storage, runtime):
    with holding(taken(storage, runtime, "restore"), storage, runtime) as first:
        assert last_work(PLAN, storage).restored_ms == runtime.now_ms()
    restored_ms = last_work(PLAN, storage).restored_ms
    assert restored_ms == runtime.now_ms()
    runtime.pass_ms(1000)
    with holding(taken(storage, runtime), storage, runtime):
        assert last_work(PLAN, storage).restored_ms == restored_ms
    with holding(taken(storage, runtime), storage, runtime) as going_on:
        going_on.restored_ms = 0
    assert last_work(PLAN, storage).restored_ms == 0
    second = taken(storage, runtime)
    assert second.unfinished_by == ""
    with pytest.raises(ClaimedError):
        first.check(storage, runtime)
    first.release(storage)
    second.check(storage, runtime)


def test_a_run_that_fails_releases_and_one_that_dies_does_not(storage, runtime):
    class Killed(BaseException):
        pass

    for error, is_free in ((ValueError, True), (KeyboardInterrupt, True), (Killed, False)):
        with pytest.raises(error), holding(taken(storage, runtime), storage, runtime):
            raise error
        if is_free:
            continue
        with pytest.raises(ClaimedError):
            taken(storage, runtime)


def test_restore_waits_for_the_lease_and_knows_its_holder(storage, runtime):
    first = taken(storage, runtime, "expire_snapshots")
    with pytest.raises(ClaimedError):
        taken(storage, runtime, RESTORE)
    runtime.pass_ms(LEASE_MS + 1)
    second = taken(storage, runtime, RESTORE)
    assert second.unfinished_by == "expire_snapshots"
    with pytest.raises(ClaimedError):
        first.check(storage, runtime)


def test_a_plan_that_is_gone_is_nobody_s(storage, runtime):
    first = taken(storage, runtime)
    storage.delete_many([info.location for info in storage.list(PLAN)])
    with pytest.raises(ClaimedError, match="is gone"):
        first.check(storage, runtime)


def test_the_claim_of_an_ended_process_is_over(storage, runtime, monkeypatch):
    own = process_name()
    where, _, _ = own.rpartition("@")
    monkeypatch.setattr("icekeep.maintenance.delete.lease.process_name", lambda: f"{where}@1")
    taken(storage, runtime)
    monkeypatch.undo()
    # What it had begun may take effect all the same.
    assert taken(storage, runtime).unfinished_by == "other"


def test_whose_end_is_known():
    own = process_name()
    where, _, began = own.rpartition("@")
    assert own
    assert not has_ended(own)
    assert has_ended(f"{where}@1")
    assert has_ended(f"{own.rpartition(':')[0]}:{2**22 + 1}@{began}")
    assert not has_ended(own.replace("boot:", "boot:another-"))
    assert not has_ended("")


def test_later_claims_repeat_a_permanent_deletion(storage, runtime):
    """A call may take effect long after its run has lost the plan; a restore must know of it."""
    first = taken(storage, runtime, "expire_snapshots")
    assert not last_work(PLAN, storage).deletes
    first.begin_deleting(storage, runtime)
    assert last_work(PLAN, storage).deletes
    runtime.pass_ms(LEASE_MS + 1)
    second = taken(storage, runtime, "restore")
    assert second.deletes
    second.release(storage)
    assert taken(storage, runtime, "expire_snapshots").deletes


def test_a_claim_that_is_lost_begins_no_deletion(storage, runtime):
    first = taken(storage, runtime, "expire_snapshots")
    runtime.pass_ms(LEASE_MS + 1)
    assert not taken(storage, runtime, "restore").deletes
    with pytest.raises(ClaimedError):
        first.begin_deleting(storage, runtime)
    assert not last_work(PLAN, storage).deletes


def test_a_claim_renewed_as_a_deletion_begins(runtime):
    class Renewing(MemoryStorage):
        """A thread of the run renews the claim between the look at it and the next claim."""

        claim = None

        def create(self, location, data):
            claim, self.claim = self.claim, None
            if claim is not None:
                runtime.pass_ms(LEASE_MS // 2 + 1)
                claim.check(self, runtime)
            super().create(location, data)

    storage = Renewing(runtime)
    claim = taken(storage, runtime, "expire_snapshots")
    storage.claim = claim
    claim.begin_deleting(storage, runtime)
    assert (claim.deletes, claim.number, last_work(PLAN, storage).deletes) == (True, 3, True)


def test_forked_process_has_its_own_name(monkeypatch):
    """Whose end would else be taken for its own, by whoever looks at its claims."""
    name = process_name()
    monkeypatch.setattr("os.getpid", os.getppid)
    assert process_name() not in ("", name)


TABLE = "memory://lake/wh/db/events"
DIRECTORY = f"{TABLE}/.icekeep/plans/run-1"


def file(name, kind=FileKind.DATA, size_bytes=10):
    return GarbageFile(kind, f"{TABLE}/data/{name}", size_bytes)


def plan(parts=(), directory=DIRECTORY, **told):
    values = {
        "job": "expire_snapshots",
        "run": "run-1",
        "directory": directory,
        "table": "db.events",
        "table_uuid": "u",
        "table_location": TABLE,
        "metadata_location": f"{TABLE}/metadata/v3.metadata.json",
        "created_ms": 1,
        "not_before_ms": 2,
        "trash_until_ms": None,
        "snapshot_ids": (1, 2),
        "ref_names": ("old",),
        "outside_count": 3,
        "parts": tuple(parts),
        "hash": "h",
    }
    return DeletionPlan(**values | told)


files = st.lists(
    st.builds(
        GarbageFile,
        st.sampled_from(FileKind),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(lambda t: f"{TABLE}/{t}"),
        st.none() | st.integers(0, 2**62),
    ),
    max_size=12,
)


@given(files)
def test_a_part_is_read_as_it_was_written(chosen):
    storage, table = MemoryStorage(), garbage_table(chosen)
    part = write_part(table, f"{DIRECTORY}/files-0.jsonl", storage)
    assert read_part(part, storage).equals(table)
    assert part.digest == digest_of(table)
    assert part.files_count == len(chosen)


def test_a_part_is_a_line_of_json_for_each_file():
    storage = MemoryStorage()
    part = write_part(garbage_table([file("a"), file("b", FileKind.MANIFEST, None)]), f"{DIRECTORY}/f", storage)
    assert [msgspec.json.decode(line) for line in storage.read(part.location).splitlines()] == [
        {"kind": "data file", "location": f"{TABLE}/data/a", "size-in-bytes": 10},
        {"kind": "manifest", "location": f"{TABLE}/data/b", "size-in-bytes": None},
    ]


@given(files, files)
def test_the_hash_is_that_of_the_set_in_whatever_order_and_parts(some, others):
    def hashed(*parts):
        return plan_hash("job", "u", ((2, 1), ("b", "a")), [digest_of(garbage_table(part)) for part in parts])

    assert hashed(some, others) == hashed([*reversed([*some, *others])]) == hashed(others, some)
    assert hashed(some, others) != hashed(some, others, [file("one more")])


@for_each(
    "differs",
    [
        {"job": "drop"},
        {"snapshot_ids": (2,)},
        {"ref_names": ("r",)},
        {"schema_ids": (1,)},
        {"spec_ids": (1,)},
        {"accepted": ("r",)},
        {"grace_ms": 1},
        {"trash_ms": 1},
    ],
)
def test_the_hash_is_of_all_that_a_run_does_and_how_it_does_it(differs):
    draft = PlanDraft(job="expire_snapshots", run="one", snapshot_ids=(1,))
    other = replace(draft, run="another", roots=("file:///d",), **differs)
    found, table = ClassifiedGarbage(), memory_table(MemoryCatalog())
    assert found.hash(table, other.at(5)) != found.hash(table, draft)
    assert found.hash(table, replace(other, **{name: getattr(draft, name) for name in differs})) == found.hash(
        table, draft
    )
    elsewhere = replace(table, metadata=replace(table.metadata, table_uuid="v"))
    assert found.hash(elsewhere, draft) != found.hash(table, draft)


@for_each(
    "change",
    [
        lambda data: data.replace(b"data/a", b"data/c"),
        lambda data: data.splitlines(keepends=True)[0],
        lambda data: data + data.splitlines(keepends=True)[0],
        lambda data: data.replace(b'"kind":"data file"', b'"kind":"manifest"', 1),
        lambda data: data[:-5],
        lambda data: b"[]\n",
        lambda data: b'{"kind": 1}\n',
    ],
)
def test_a_part_that_was_changed_is_not_believed(change):
    storage = MemoryStorage()
    part = write_part(garbage_table([file("a"), file("b")]), f"{DIRECTORY}/f", storage)
    data = storage.read(part.location)
    storage.delete_many([part.location])
    storage.create(part.location, change(data))
    with pytest.raises(InvalidTableError, match=f"plan {part.location!r}"):
        read_part(part, storage)


def test_plan_exists_while_its_head_does():
    """A plan counts once its head is written and until it is deleted."""
    storage = MemoryStorage()
    part = write_part(garbage_table([file("a")]), f"{DIRECTORY}/f", storage)
    storage.create(f"{DIRECTORY}/{BEFORE}", b"{}")
    above = DIRECTORY.rsplit("/", 1)[0]
    assert [*plans_below(above, storage)] == []
    with pytest.raises(MissingFileError):
        read_plan(DIRECTORY, storage)
    written = plan([part])
    write_head(written, storage)
    assert [*plans_below(above, storage)] == [DIRECTORY]
    assert read_plan(DIRECTORY, storage) == written
    delete_plan(written, storage)
    assert storage.files == {}


def test_what_is_in_the_trash_outlives_its_plan():
    storage = MemoryStorage()
    written = plan(directory=f"{TABLE}/.icekeep/trash/run-1", trash_until_ms=9)
    write_head(written, storage)
    moved = trash_location(written, f"{TABLE}/data/a")
    storage.create(moved, b"rows")
    delete_plan(written, storage)
    assert [*storage.files] == [moved] == [f"{written.directory}/{FILES}/data/a"]


def test_a_head_elsewhere_than_it_says_is_not_believed():
    storage = MemoryStorage()
    head = msgspec.json.encode(plan(directory=f"{TABLE}/.icekeep/plans/another"))
    storage.create(f"{DIRECTORY}/{HEAD}", head)
    with pytest.raises(InvalidTableError, match="says that it lies in"):
        read_plan(DIRECTORY, storage)


def test_a_head_that_is_none_is_named():
    storage = MemoryStorage()
    storage.create(f"{DIRECTORY}/{HEAD}", b"{")
    with pytest.raises(InvalidTableError, match=r"plan\.json"):
        read_plan(DIRECTORY, storage)


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "x y", "%2F"]), min_size=1, max_size=5).map("/".join))
def test_trash_locations_are_unique_and_below_the_trash(path):
    written = plan(directory=f"{TABLE}/.icekeep/trash/run-1", trash_until_ms=9)
    place = trash_location(written, f"{TABLE}/data/{path}")
    assert place.startswith(f"{written.directory}/{FILES}/")
    assert ".." not in place.split("/")
    other = trash_location(written, f"memory://other/{path}/z")
    assert other.startswith(f"{written.directory}/{FILES}/_elsewhere/memory/other/")


TAKEN = {
    "expire_snapshots": {
        "grace",
        "keep-writer-progress",
        "readers.max-lag",
        "readers.spark-checkpoints",
        "max-deletes-per-second",
        "reclaim.roots",
    },
    "remove_orphan_files": {
        "grace",
        "max-orphan-ratio",
        "ignore-metadata-of",
        "max-deletes-per-second",
        "reclaim.roots",
    },
    "drop": {"max-deletes-per-second", "reclaim.roots"},
}
VALUES = {
    "grace": "7d",
    "keep-writer-progress": "30d",
    "max-orphan-ratio": "0.01",
    "ignore-metadata-of": "3e1b4a7c-0f4f-4b56-9b43-0d8c2a5f7e11",
    "max-deletes-per-second": "10",
    "reclaim.roots": "s3://bucket/old",
}


@for_each("job", TAKEN)
@for_each("option", VALUES)
def test_a_job_refuses_an_option_that_it_does_not_go_by(job, option):
    cls = resolve(JOBS[job].options)
    given = {option: VALUES[option]}
    if option in TAKEN[job]:
        parse_options(cls, given)
    else:
        with pytest.raises(OptionError, match=f"there is no option {option!r}; give one of ") as refused:
            parse_options(cls, given)
        assert all(name in refused.value.message for name in TAKEN[job])


@pytest.mark.parametrize("job", TAKEN)
def test_functions_parse_the_options_of_the_command_line(job):
    cls = resolve(JOBS[job].options)
    hint = str(inspect.signature(resolve(JOBS[job].run)).parameters["options"].annotation)
    assert cls.__name__ in hint
    [setting] = [setting for setting in JOBS[job].settings if setting.argument == "options"]
    assert set(setting.help.partition(";")[0].split(", ")) == TAKEN[job] == set(cls.__struct_encode_fields__)


@pytest.mark.parametrize("cls", [GraceOptions, ExpirationOptions, OrphanOptions])
def test_texts_that_are_read_later_must_be_right_at_once(cls):
    cls(grace="36h").check()
    with pytest.raises(OptionError, match="grace"):
        cls(grace="soon").check()
    assert cls().grace_ms(compares_metadata=False) == DAY_MS
    ReclaimOptions().check()


def test_the_age_of_writers_progress_is_read_at_once_too():
    with pytest.raises(OptionError, match="keep-writer-progress"):
        ExpirationOptions(keep_writer_progress="for ever").check()


@for_each(
    "span", [True, 1.5, "3x", timedelta(microseconds=1), timedelta(hours=1), "36h", timedelta(days=3, milliseconds=1)]
)
def test_fractional_trash_days_are_refused(span):
    with pytest.raises(OptionError, match="whole days"):
        asked_trash_days(span)


def test_days_in_the_trash_may_be_a_number_a_text_or_a_timedelta():
    assert [asked_trash_days(given) for given in (None, 3, "3", "3d", timedelta(days=3))] == [None, 3, 3, 3, 3]
