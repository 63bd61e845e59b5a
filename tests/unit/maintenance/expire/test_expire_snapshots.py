"""The job on tables in memory, without Spark: plans, grace, trash, approval, clocks, and catalogs that cannot compare."""

import json
from datetime import timedelta

import msgspec
import pytest

from icekeep.catalog.base import OperatorRules
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, OptionError, OutcomeUnknownError, SafetyError
from icekeep.events import Warned
from icekeep.maintenance.delete.lease import LEASE_MS
from icekeep.maintenance.delete.plan_file import plans_below, plans_directory, read_part, read_plan
from icekeep.maintenance.expire.job import expire_snapshots, plan_expire_snapshots
from icekeep.spec.metadata import metadata_to_json
from icekeep.spec.types import DAY_MS
from kit.cases import for_each
from kit.changes import Recorder
from kit.memory_catalog import COMMITS, IS_UNKNOWN, MemoryCatalog, after, lands_late
from kit.runtime import FakeRuntime, no_spark, with_runtime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import add, data_file, entries_of, files, manifests_of, memory_table, set_ref

pytestmark = pytest.mark.slow


def history(catalog=None, **properties):
    """Three appends, and a rewrite of two of their files: a and b are garbage once only the last snapshot is kept."""
    table = memory_table(catalog, **properties)
    for name in ("a", "b", "c"):
        table.catalog.storage.create(data_file(name).file_path, b"rows")
        table = add(table, name)
        table.catalog.runtime.pass_ms(1000)
    for one in files("ab"):
        table.catalog.storage.create(one.file_path, b"rows")
    table = commit(
        table,
        RewriteFiles(removed=entries_of(table, "a", "b"), added=files("ab"), schema_id=0),
        runtime=table.catalog.runtime,
    ).table
    table.catalog.runtime.pass_ms(1000)
    return table


def expired(table, **told):
    """The job as it is run to keep one snapshot and delete at once."""
    runtime = table.catalog.runtime
    arguments = {"older_than": runtime.now_ms() + 1, "retain_last": 1, "trash": 0} | told
    return expire_snapshots(table, no_spark, **arguments)


def planned(table, **told):
    runtime = table.catalog.runtime
    arguments = {"older_than": runtime.now_ms() + 1, "retain_last": 1} | told
    return plan_expire_snapshots(table, no_spark, **arguments)


def data(table):
    location = f"{table.metadata.location}/data/"
    return sorted(at.removeprefix(location) for at in table.catalog.storage.files if at.startswith(location))


def own(table):
    location = f"{table.metadata.location}/.icekeep/"
    return [at.removeprefix(location) for at in table.catalog.storage.files if at.startswith(location)]


def latest(table):
    return table.catalog.load(table.identifier)


def test_ages_and_days_are_given_as_text_or_as_python_s_spans():
    plans = set()
    for age, days in ((timedelta(milliseconds=500), 3), ("0s", "3d"), (timedelta(), timedelta(days=3))):
        table = history()
        table.catalog.runtime.pass_ms(1000)
        result = expired(table, older_than=age, trash=days)
        head = read_plan(result.plan_location, table.storage)
        plans.add((head.trash_until_ms - table.catalog.runtime.now_ms(), result.expired_snapshots_count))
    assert plans == {(3 * DAY_MS, 3)}
    with pytest.raises(OptionError, match=r"option trash is .36h.; give whole days, as in 3 or 3d"):
        expired(history(), trash="36h")


def test_expired_files_are_deleted_at_once_without_trash():
    table = history()
    result = expired(table)
    assert (result.status, result.expired_snapshots_count, result.deleted_data_files_count) == ("done", 3, 2)
    assert (result.deleted_manifest_files_count, result.deleted_manifest_lists_count) == (2, 3)
    assert (data(table), own(table)) == (["ab", "c"], [])
    assert expired(latest(table)).expired_snapshots_count == 0


def test_unreadable_manifest_outside_the_job_is_a_warning():
    """A manifest that only the report of references needs stops neither the plan nor the run."""
    table = memory_table()
    for name in ("a", "b"):
        table = add(table, name)
        table.catalog.runtime.pass_ms(1000)
    # Retained by all, so that the job opens none of them.
    first = manifests_of(table)[-1].manifest_path
    table.catalog.storage.delete_many([first])
    recorder = Recorder()
    plan = planned(table, listener=recorder)
    [warning] = [text for text in recorder.warnings if first in text]
    assert warning.startswith("what each reference keeps alive is not known: ")
    assert (plan.expired_snapshots_count, plan.refs) == (1, ())
    assert expired(table).expired_snapshots_count == 1


def test_nested_table_is_a_warning_and_keeps_its_files():
    """Expiration deletes only what its own metadata named; of that what a table inside may own stays."""
    table = memory_table()
    catalog = table.catalog
    for name in ("a", "inner/data/b"):
        catalog.storage.create(data_file(name).file_path, b"rows")
        table = add(table, name)
    change = RewriteFiles(removed=entries_of(table, "a", "b"), added=files("ab"), schema_id=0)
    table = commit(table, change, runtime=catalog.runtime).table
    metadata = msgspec.structs.replace(
        memory_table().metadata,
        location=f"{table.metadata.location}/data/inner",
        table_uuid=str(catalog.runtime.new_uuid()),
    )
    inner = catalog.create(("db", "inner"), metadata)
    catalog.runtime.pass_ms(1000)
    heard = Recorder()
    plan = planned(table)
    result = expired(table, listener=heard)
    assert result.expired_snapshots_count == 2
    assert data(table) == ["inner/data/b", f"inner/{inner.metadata_location.split('/inner/')[1]}"]
    assert plan.deleted_files_count == result.deleted_data_files_count + result.deleted_manifest_files_count + 2
    met, kept = heard.warnings
    assert met.endswith("of table 'db.inner': files in places of that table are kept")
    assert kept.startswith("kept 1 unused file outside the places of table 'db.events', such as 'memory://lake/wh/db/")
    assert expired(catalog.load(inner.identifier)).status == "done"


def test_an_append_only_history_opens_no_manifest():
    """apache/iceberg #11017, #13737: hours, and memory for every manifest of every snapshot, to find nothing to delete."""
    storage = HookedStorage(MemoryStorage(FakeRuntime()))
    table = memory_table(MemoryCatalog(storage))
    for number in range(5):
        table = add(table, f"f{number}")
        table.catalog.runtime.pass_ms(1)
    opened = []
    storage.before = lambda what, location: opened.append(location) if what in ("read", "open") else None
    result = expired(table)
    assert (result.deleted_manifest_lists_count, result.deleted_manifest_files_count) == (4, 0)
    assert not [location for location in opened if "-m" in location.rsplit("/", 1)[-1]]


def test_what_is_in_the_trash_and_in_use_again_stays_there():
    table = history()
    expired(table, trash=1)
    table.catalog.storage.create(data_file("a").file_path, b"other rows")
    table = add(latest(table), "a")
    table.catalog.runtime.pass_ms(2 * DAY_MS)
    heard = Recorder()
    result = expired(latest(table), listener=heard)
    assert (result.emptied_trash_files_count, result.kept_again_files_count) == (0, 1)
    assert [e for e in heard.events if isinstance(e, Warned) and "leads to them again" in e.message]
    assert table.storage.read(data_file("a").file_path) == b"other rows"
    assert len([name for name in own(table) if "/files/data/" in name]) == 2


def test_where_metadata_is_not_compared_files_wait_a_day():
    """trino #26213: commit fast, delete later."""
    table = history(MemoryCatalog(compares_metadata=False))
    result = expired(table)
    assert (result.expired_snapshots_count, result.deleted_data_files_count) == (3, 0)
    assert (result.left_files_count, result.left_reason) == (7, "the grace has not passed")
    assert data(table) == ["a", "ab", "b", "c"]
    table.catalog.runtime.pass_ms(DAY_MS - 10_000)
    assert expired(latest(table)).finished_files_count == 0
    table.catalog.runtime.pass_ms(20_000)
    assert expired(latest(table)).finished_files_count == 7
    assert (data(table), own(table)) == (["ab", "c"], [])


@pytest.mark.parametrize(("compares", "grace", "left_count"), [(True, "36h", 7), (False, "0", 0)])
def test_the_grace_is_an_option_on_every_catalog(compares, grace, left_count):
    table = history(MemoryCatalog(compares_metadata=compares))
    assert expired(table, options={"grace": grace}).left_files_count == left_count


def test_file_used_again_within_the_grace_is_kept():
    table = history()
    expired(table, options={"grace": "1h"})
    table = add(latest(table), "a")
    table.catalog.runtime.pass_ms(2 * 3_600_000)
    result = expired(latest(table), retain_last=9)
    assert (result.finished_files_count, result.kept_again_files_count) == (6, 1)
    assert data(table) == ["a", "ab", "c"]
    assert own(table) == []


def test_old_metadata_files_go_with_the_log_that_named_them():
    table = history(write__metadata__previous_versions_max="2")
    table.catalog.runtime.pass_ms(4 * DAY_MS)
    dropped = table.metadata.metadata_log[0].metadata_file
    assert dropped in planned(table).files
    result = expired(table)
    assert result.deleted_metadata_files_count == 1
    assert dropped not in table.catalog.storage.files
    left = latest(table)
    assert all(table.storage.head(entry.metadata_file) for entry in left.metadata.metadata_log)


class Killed(BaseException):
    pass


def test_a_crash_between_commit_and_deletion_loses_nothing():
    """apache/iceberg #7937, #12545: what a crashed run had found was never listed again."""
    storage = HookedStorage(MemoryStorage(FakeRuntime()))
    table = history(MemoryCatalog(storage))

    def die(what, location):
        if what == "delete_many" and location.endswith("/data/a"):
            raise Killed

    storage.before = die
    with pytest.raises(Killed):
        expired(table)
    storage.before = lambda what, location: None
    assert data_of(storage) == ["a", "ab", "b", "c"]
    # As long as the run that died may be alive its plan is left alone.
    assert expired(latest(table)).finished_files_count == 0
    for runtime in (storage.inner.runtime, table.catalog.runtime):
        runtime.pass_ms(LEASE_MS + 1)
    result = expired(latest(table))
    assert (result.expired_snapshots_count, result.finished_files_count) == (0, 7)
    assert data_of(storage) == ["ab", "c"]
    assert [*plans_below(plans_directory(table.metadata), storage)] == []


def data_of(storage):
    return sorted(at.rsplit("/", 1)[-1] for at in storage.inner.files if "/data/" in at)


def test_unknown_outcome_keeps_the_plan_for_a_later_run():
    table = history()
    table.catalog.follow(lands_late(20))
    with pytest.raises(OutcomeUnknownError):
        expired(table)
    assert data(table) == ["a", "ab", "b", "c"]
    assert len([*plans_below(plans_directory(table.metadata), table.storage)]) == 1
    for _ in range(20):
        landed = latest(table)
    assert len(landed.metadata.snapshots) == 1
    assert expired(landed).finished_files_count == 7
    assert data(table) == ["ab", "c"]


def test_an_uncommitted_plan_is_forgotten_after_a_day():
    table = history()
    table.catalog.follow(IS_UNKNOWN)
    with pytest.raises(OutcomeUnknownError):
        expired(table)
    assert expired(latest(table), retain_last=9).finished_files_count == 0
    assert len([*plans_below(plans_directory(table.metadata), table.storage)]) == 1
    table.catalog.runtime.pass_ms(DAY_MS + 1000)
    assert expired(latest(table), retain_last=9).finished_files_count == 0
    assert data(table) == ["a", "ab", "b", "c"]
    assert own(table) == []


def test_the_approved_plan_is_carried_out_and_another_is_not():
    table = history()
    plan = planned(table)
    with pytest.raises(SafetyError, match="look at --dry-run again") as refused:
        expired(table, approve="0" * 32)
    assert refused.value.facts["hash"] == plan.hash
    with pytest.raises(SafetyError, match="is approved: nothing would be expired"):
        planned(table, approve="0" * 32)
    assert planned(table, approve=plan.hash) == plan
    assert (data(table), own(table)) == (["a", "ab", "b", "c"], [])
    assert latest(table).metadata_location == table.metadata_location
    assert expired(table, approve=plan.hash).deleted_data_files_count == 2


def test_a_plan_says_what_waits_for_the_grace():
    catalog = MemoryCatalog()
    catalog.compares_metadata = False
    table = history(catalog)
    plan = planned(table)
    assert (plan.deleted_files_count, plan.deleted_bytes_count, plan.left_files_count) == (0, 0, 7)
    assert sum(files.files_count for files in plan.files_by_kind) == 7
    done = expired(table)
    assert (done.deleted_files_count, done.deleted_bytes_count, done.left_files_count) == (0, 0, 7)


def test_approved_plan_is_void_if_the_selection_changes():
    table = history()
    plan = planned(table)
    table.catalog.follow(after(lambda: set_ref(latest(table), "late", table.metadata.snapshots[0].snapshot_id)))
    with pytest.raises(ConflictError):
        expired(table, approve=plan.hash)
    assert data(table) == ["a", "ab", "b", "c"]


def test_approved_plan_keeps_files_that_are_used_again():
    table = history()
    table = set_ref(table, "side", table.metadata.current_snapshot_id, "branch")
    plan = planned(table)
    table.catalog.follow(after(lambda: add(latest(table), "a", branch="side"), then=COMMITS))
    result = expired(table, approve=plan.hash)
    assert (result.deleted_data_files_count, result.expired_snapshots_count) == (0, 3)
    assert "not what was approved" in result.left_reason
    assert data(table) == ["a", "ab", "b", "c"]
    assert expired(latest(table), retain_last=9).finished_files_count > 0
    assert data(table) == ["a", "ab", "c"]


def test_the_policy_is_proved_again_on_what_was_really_replaced():
    """iceberg-go #672: where updates are applied to whatever is current, a new branch's own limits would have kept more."""

    class Applying(MemoryCatalog):
        """Applies updates to whatever is current; another writer has just made a branch that keeps all of its history."""

        def swap(self, table, requirements, updates):
            if any(type(update).__name__ == "RemoveSnapshots" for update in updates):
                head = table.metadata.current_snapshot_id
                current = set_ref(table, "keeps", head, "branch", min_snapshots_to_keep=9)
                return super().swap(current, (), updates)
            return super().swap(table, requirements, updates)

    table = history(Applying(compares_metadata=False))
    result = expired(table, options={"grace": "0"})
    assert (result.status, "went that the policy keeps" in result.left_reason) == ("partial", True)
    assert data(table) == ["a", "ab", "b", "c"]


def test_a_clock_far_ahead_of_the_store_s_expires_nothing():
    store_clock, ours = FakeRuntime(), FakeRuntime()
    table = history(MemoryCatalog(MemoryStorage(store_clock), runtime=FakeRuntime()))
    ours.pass_ms(30 * DAY_MS)
    with pytest.raises(SafetyError, match="ahead of that of the store"):
        expire_snapshots(with_runtime(table, ours), no_spark)
    assert latest(table).metadata_location == table.metadata_location


def test_a_clock_behind_the_store_s_retains_more():
    store_clock = FakeRuntime()
    table = history(MemoryCatalog(MemoryStorage(store_clock), runtime=FakeRuntime()))
    store_clock.pass_ms(30 * DAY_MS)
    assert expire_snapshots(with_runtime(table, FakeRuntime()), no_spark).expired_snapshots_count == 0


def flink_history(catalog=None, at=0, **more):
    """Four appends; one says how far a Flink job has come."""
    table = memory_table(catalog)
    for name in ("a", "b", "c", "d"):
        table = add(table, name)
        table.catalog.runtime.pass_ms(1000)
    snapshots = list(table.metadata.snapshots)
    summary = {**snapshots[at].summary, "flink.job-id": "j1", "flink.max-committed-checkpoint-id": "7", **more}
    snapshots[at] = msgspec.structs.replace(snapshots[at], summary=summary)
    metadata = msgspec.structs.replace(table.metadata, snapshots=tuple(snapshots))
    return msgspec.structs.replace(table, metadata=metadata)


def test_a_writer_s_progress_is_kept_with_all_that_came_after_it():
    """apache/iceberg #5846: after expiration a Flink job committed old checkpoints again."""
    table = flink_history()
    plan = planned(table)
    assert (plan.expired_snapshots_count, len(plan.kept_for_writers)) == (0, 3)
    assert {kept.snapshot_id for kept in plan.kept_for_writers} == {s.snapshot_id for s in table.metadata.snapshots[:3]}
    assert planned(table, options={"keep-writer-progress": "0"}).expired_snapshots_count == 3


def test_the_history_of_a_flink_job_with_vectors():
    """apache/iceberg #2482, for vectors: once any of it is gone, such a job can commit no more."""
    table, heard = flink_history(at=3, **{"added-dvs": "2"}), Recorder()
    plan = planned(table, listener=heard)
    assert (plan.expired_snapshots_count, [kept.key for kept in plan.kept_for_writers]) == (0, ["added-dvs"] * 3)
    assert heard.warnings == [
        "snapshots that would have expired stay (3): Flink job j1 writes deletion vectors to branch 'main', and could commit "
        "none any more if the branch's history were cut (Iceberg Java up to 1.12 looks through all of it); --option "
        "keep-writer-progress=0 lets them go"
    ]
    assert planned(table, options={"keep-writer-progress": "0"}).expired_snapshots_count == 3


def test_a_snapshot_that_a_writer_needs_cannot_be_named():
    table = flink_history()
    with pytest.raises(SafetyError, match="keep-writer-progress"):
        planned(table, snapshot_ids=[table.metadata.snapshots[0].snapshot_id])


@for_each(
    ("told", "problem"),
    [
        ({"trash": -1}, "trash"),
        ({"max_concurrent_deletes": 0}, "max_concurrent_deletes"),
        ({"options": {"grace": "soon"}}, "grace"),
        ({"options": {"keep-writer-progress": "x"}}, "keep-writer-progress"),
        ({"options": {"max-deletes-per-second": 0}}, "max-deletes-per-second"),
        ({"options": {"reclaim.roots": "s3://bucket"}}, "reclaim.roots"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(told, problem):
    table = history()
    for run in (expired, planned):
        with pytest.raises(OptionError, match=problem):
            run(table, **told)


def test_catalog_outage_after_the_commit_leaves_the_plan():
    table = history()
    table.catalog.follow(after(lambda: setattr(table.catalog, "failing_loads", 0)))
    real = table.catalog.swap

    def swap_then_vanish(*arguments):
        outcome = real(*arguments)
        table.catalog.failing_loads = 1
        return outcome

    table.catalog.swap = swap_then_vanish
    result = expired(table)
    assert (result.status, result.expired_snapshots_count, result.left_files_count) == ("partial", 3, 7)
    assert "out of reach; what was to go with them is listed in" in result.left_reason
    table.catalog.swap = real
    assert data(table) == ["a", "ab", "b", "c"]
    assert expired(latest(table)).finished_files_count == 7


def test_the_plan_is_lines_of_json_below_the_table():
    table = history()
    expired(table, options={"grace": "1h"})
    [directory] = plans_below(plans_directory(table.metadata), table.storage)
    plan = read_plan(directory, table.storage)
    assert directory.startswith(f"{table.metadata.location}/.icekeep/plans/")
    lines = [line for part in plan.parts for line in table.storage.read(part.location).splitlines()]
    assert len(lines) == plan.files_count == 7
    first = msgspec.json.decode(lines[0])
    assert first == {"kind": "data file", "location": data_file("a").file_path, "size-in-bytes": 100}
    assert sum(read_part(part, table.storage).num_rows for part in plan.parts) == 7
    assert {*plan.snapshot_ids} == {s.snapshot_id for s in table.metadata.snapshots[:3]}


def test_an_unreadable_expired_snapshot_keeps_its_files():
    table = history()
    [second] = [s for s in table.metadata.snapshots if s.sequence_number == 2]
    table.storage.delete_many([second.manifest_list])
    table.storage.create(second.manifest_list, b"nonsense")
    heard = Recorder()
    plan_expire_snapshots(table, no_spark, older_than="0s", listener=heard)
    result = expired(table, listener=heard)
    warning = (
        f"cannot read '{second.manifest_list}': what nothing else leads to stays; no later expiration finds it, but "
        "`icekeep remove_orphan_files` does"
    )
    assert heard.warnings == [warning, warning]
    assert result.unreadable_files == (second.manifest_list,)
    assert second.manifest_list in table.catalog.storage.files
    assert "ab" in data(table)


@for_each("clean", ["none", "METADATA", "All"])
def test_clean_level_selects_the_deleted_kinds(clean):
    table = history()
    before = {*table.catalog.storage.files}
    plan = planned(table, clean=clean)
    result = expired(table, clean=clean)
    gone = before - {*table.catalog.storage.files}
    kinds = {one.kind.value: one.files_count for one in plan.files_by_kind}
    assert len(gone) == plan.deleted_files_count == result.deleted_files_count == sum(kinds.values())
    assert {*kinds} == {"none": set(), "metadata": NAMED, "all": {"data file", *NAMED}}[clean.lower()]
    assert ("a" in data(table)) == (clean != "All")
    assert (result.expired_snapshots_count, len(latest(table).metadata.snapshots)) == (3, 1)


NAMED = {"manifest list", "manifest"}


def test_what_earlier_runs_left_waits_for_a_run_that_cleans_all():
    table = history()
    expired(table, options={"grace": "1h"})
    table.catalog.runtime.pass_ms(2 * 3_600_000)
    assert expired(latest(table), clean="none").finished_files_count == 0
    assert "a" in data(table)
    assert expired(latest(table)).finished_files_count > 0
    assert "a" not in data(table)


def test_there_is_no_other_level_of_cleaning():
    with pytest.raises(OptionError, match=r"option clean is .most.; give none, metadata or all"):
        expired(history(), clean="most")


def test_the_catalog_s_least_age_holds_for_every_run():
    catalog = MemoryCatalog()
    table = history(catalog, **{"history.expire.max-snapshot-age-ms": "1"})
    catalog.rules = OperatorRules(least_snapshot_age_ms=DAY_MS)
    with pytest.raises(SafetyError, match="lets no snapshot expire that is younger than 1d"):
        expired(table)
    assert expired(table, older_than=None).expired_snapshots_count == 0
    catalog.runtime.pass_ms(DAY_MS)
    assert expired(latest(table), older_than="1d").expired_snapshots_count == 3


def test_files_named_by_unknown_metadata_keys_stay():
    table = history()
    assert {"a", "b"} <= {*data(table)}
    at, known = table.metadata_location, metadata_to_json(table.metadata)
    kept = f"{table.metadata.location}/data/a"
    files = table.catalog.storage.files
    files[at] = (json.dumps({**known, "later": {"file": kept}}).encode(), *files[at][1:])
    expired(latest(table))
    assert kept in files
    assert "b" not in data(table)
    assert latest(table).metadata.extra == {"later": {"file": kept}}
