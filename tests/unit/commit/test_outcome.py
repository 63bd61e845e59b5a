"""What proves that a commit landed, that a refused swap lands no more, and what is removed then."""

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Committed, Conflict, Unknown
from icekeep.catalog.resending import StatusChecks
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.outcome import is_over, settle
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, InvalidTableError, OutcomeUnknownError, UnavailableError, UsageError
from icekeep.events import CommitRetried
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import (
    AssertRefSnapshotId,
    AssertTableUuid,
    RemoveSnapshots,
    SetProperties,
    SetSnapshotRef,
    UpgradeFormatVersion,
)
from kit.changes import Applying, run, thrown
from kit.memory_catalog import (
    CONFLICTS,
    IS_REFUSED,
    LANDS_BUT_IS_UNKNOWN,
    LANDS_BUT_SAYS_CONFLICT,
    MemoryCatalog,
    after,
    fails,
    lands_late,
)
from kit.runtime import FakeRuntime
from kit.tables import (
    EVENTS,
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    set_ref,
    staged_manifest,
    stored,
    swap,
)

ONE = AppendFiles(files=files("new"))
SET = ChangeProperties(updates={"owner": "me"})
NOT_THERE = 4711


@pytest.fixture
def table(catalog):
    return add(memory_table(catalog), "old")


def look(outcome, table, snapshot_id=NOT_THERE):
    return settle(outcome, table, snapshot_id, table.catalog.runtime)


def test_what_is_committed_is_not_looked_at(catalog, table):
    loads = catalog.loads_count
    outcome = Committed(table)
    assert look(outcome, table) is outcome
    assert catalog.loads_count == loads


def test_a_final_conflict_is_not_looked_at_either(catalog, table):
    loads = catalog.loads_count
    outcome = Conflict("another writer was faster", is_final=True)
    assert look(outcome, table, table.metadata.current_snapshot_id) is outcome
    assert catalog.loads_count == loads


def test_own_snapshot_proves_unknown_commit_landed(catalog, table):
    catalog.follow(LANDS_BUT_IS_UNKNOWN)
    result = run(table, ONE)
    assert result.snapshot_id == catalog.load(EVENTS).metadata.current_snapshot_id
    assert catalog.runtime.sleeps_ms == []


def test_own_snapshot_need_not_be_current(table):
    mine = table.metadata.current_snapshot_id
    latest = add(table, "theirs")
    assert look(Unknown("lost", "memory://lake/wh/elsewhere"), table, mine) == Committed(latest)


def test_own_metadata_file_proves_commit_without_snapshot(catalog, table):
    catalog.follow(LANDS_BUT_IS_UNKNOWN)
    result = run(table, SET)
    assert (result.changed, result.snapshot_id) == (True, None)
    assert result.table.metadata.properties["owner"] == "me"


def test_our_metadata_file_proves_it_in_the_metadata_log_too(table):
    mine = swap(table, SetProperties({"owner": "me"})).metadata_location
    latest = add(table, "theirs")
    assert latest.metadata_location != mine
    assert look(Unknown("lost", mine), table) == Committed(latest)


def test_a_version_of_the_number_that_we_wanted_need_not_be_ours(catalog, table, monkeypatch):
    theirs = replace(table, metadata_location=f"{table.metadata.location}/metadata/v2.metadata.json")
    monkeypatch.setattr(catalog, "load", lambda identifier: theirs)
    outcome = Unknown("lost", theirs.metadata_location)
    assert look(outcome, table) == outcome
    assert look(outcome, table, table.metadata.current_snapshot_id) == Committed(theirs)


def test_metadata_log_proves_commit_of_expired_snapshot(table):
    mine = add(table, "new")
    add(table, "theirs")
    latest = swap(table, RemoveSnapshots((mine.metadata.current_snapshot_id,)))
    found = look(Unknown("lost", mine.metadata_location), table, mine.metadata.current_snapshot_id)
    assert found == Committed(latest)


def test_what_is_not_found_stays_unknown_however_often_one_looks(catalog, table):
    loads = catalog.loads_count
    outcome = Unknown("lost", "memory://lake/wh/elsewhere")
    assert look(outcome, table) == outcome
    assert catalog.runtime.sleeps_ms == [1000, 2000, 4000]
    assert catalog.loads_count == loads + 4


def test_a_commit_that_lands_late_is_found_when_it_is_there(catalog, table):
    catalog.follow(lands_late(loads=3))
    result = run(table, ONE)
    assert live(result.table) == {"old": 1, "new": 1}
    assert catalog.runtime.sleeps_ms == [1000, 2000]


def test_late_commit_is_unknown_and_keeps_its_files(catalog, table):
    catalog.follow(lands_late(loads=5))
    with pytest.raises(OutcomeUnknownError):
        run(table, ONE)
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


def test_a_look_that_fails_is_no_answer(catalog, table):
    def lose_contact():
        catalog.failing_loads = 2

    catalog.follow(after(lose_contact, then=LANDS_BUT_IS_UNKNOWN))
    assert run(table, ONE).changed
    assert catalog.runtime.sleeps_ms == [1000, 2000]


def test_dropped_table_proves_nothing(catalog, table):
    catalog.drop(EVENTS)
    outcome = Unknown("lost", "memory://lake/wh/elsewhere")
    assert look(outcome, table) == outcome
    assert len(catalog.runtime.sleeps_ms) == 3


def test_the_table_says_how_often_and_how_long_to_look(catalog):
    table = memory_table(
        catalog,
        **{
            "commit.status-check.num-retries": "5",
            "commit.status-check.min-wait-ms": "10",
            "commit.status-check.max-wait-ms": "60",
        },
    )
    look(Unknown("lost", "nowhere"), table)
    assert catalog.runtime.sleeps_ms == [10, 20, 40, 60, 60]


def test_looking_ends_when_the_time_for_it_is_over(catalog):
    properties = {"commit.status-check.total-timeout-ms": "2999", "commit.status-check.num-retries": "99"}
    table = memory_table(catalog, **properties)
    look(Unknown("lost", "nowhere"), table)
    assert catalog.runtime.sleeps_ms == [1000, 2000]


def test_one_look_is_taken_even_if_the_table_allows_no_more(catalog):
    table = add(memory_table(catalog, **{"commit.status-check.num-retries": "0"}), "mine")
    found = look(Unknown("lost", "nowhere"), table, table.metadata.current_snapshot_id)
    assert found == Committed(table)
    assert catalog.runtime.sleeps_ms == []


def test_a_conflict_that_hides_our_own_snapshot_is_a_commit(table):
    assert look(Conflict("409"), table, table.metadata.current_snapshot_id) == Committed(table)


def test_a_conflict_with_others_is_one_after_a_single_look(catalog, table):
    loads = catalog.loads_count
    set_ref(table, "theirs", table.metadata.current_snapshot_id)
    assert look(Conflict("409"), table) == Conflict("409", is_final=True)
    assert catalog.loads_count == loads + 2
    assert catalog.runtime.sleeps_ms == []


def test_a_conflict_that_cannot_be_looked_into_is_unknown(catalog, table):
    catalog.failing_loads = 10**6
    found = look(Conflict("409"), table)
    assert found == Unknown("409; the table cannot be loaded to see whether that was this very commit", "")


def test_unreachable_catalog_is_asked_until_timeout(catalog, table):
    """Looks that see nothing for they reach nobody are not counted: a fail-over takes longer than three of them."""
    catalog.failing_loads = 20
    assert look(Unknown("lost", "nowhere"), table, table.metadata.current_snapshot_id) == Committed(table)
    assert catalog.runtime.sleeps_ms[:7] == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]
    catalog.failing_loads = 10**6
    assert look(Unknown("lost", "nowhere"), table) == Unknown("lost", "nowhere")
    assert sum(catalog.runtime.sleeps_ms) > 1_800_000


def test_looks_have_pauses_between_them_whatever_the_table_says(catalog):
    names = ("commit.status-check.min-wait-ms", "commit.status-check.max-wait-ms")
    table = memory_table(catalog, **dict.fromkeys(names, "0"))
    catalog.failing_loads = 10**6
    look(Unknown("lost", "nowhere"), table)
    assert len(catalog.runtime.sleeps_ms) < 2000


def test_conflict_is_checked_again_when_catalog_is_back(catalog, table):
    catalog.failing_loads = 1
    assert look(Conflict("409"), table, table.metadata.current_snapshot_id) == Committed(table)
    catalog.failing_loads = 1
    assert look(Conflict("409"), table) == Conflict("409")
    assert catalog.runtime.sleeps_ms == [1000, 1000]


def test_a_conflict_over_a_table_that_was_dropped_is_one(catalog, table):
    catalog.drop(EVENTS)
    assert look(Conflict("dropped"), table) == Conflict("dropped")
    assert catalog.runtime.sleeps_ms == []


@pytest.mark.parametrize("name", ["num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms"])
def test_bad_property_is_refused_early_but_hides_no_outcome(catalog, name):
    """A bad status-check property is refused before the commit, and ignored once its outcome is unknown."""
    table = add(memory_table(catalog, **{f"commit.status-check.{name}": "1"}), "mine")
    bad = swap(table, SetProperties({f"commit.status-check.{name}": "²"}))
    with pytest.raises(UsageError, match=f"'commit.status-check.{name}' is '²'; set a whole number"):
        StatusChecks.of(bad.metadata)
    assert StatusChecks.of(table.metadata)
    lost = Unknown("lost", "nowhere")
    assert look(lost, bad) == lost
    assert look(lost, bad, table.metadata.current_snapshot_id) == Committed(bad)


STOP = SystemExit(143)
BUSY = UnavailableError("429")
BUSY.was_sent = True


class Stopped(FakeRuntime):
    """Interrupts the first wait."""

    def sleep_ms(self, duration_ms):
        raise STOP


class Ending:
    @staticmethod
    def on(event):
        if isinstance(event, CommitRetried):
            raise STOP


def waits(table, undo):
    commit(table, ONE, runtime=Stopped(seed=9), undo=undo)


def is_told(table, undo):
    run(table, ONE, listener=Ending(), undo=undo)


def applies(error):
    return lambda table, undo: run(table, Applying(ONE, attempt_2=thrown(error)), undo=undo)


def sends(error):
    def act(table, undo):
        table.catalog.follow(fails(error))
        run(table, ONE, undo=undo)

    return act


def has_nothing_to_do(table, undo):
    class Once:
        def apply(self, base, attempt):
            return ONE.apply(base, attempt) if attempt._number == 1 else ()

    run(table, Once(), undo=undo)


ENDS = {
    "wait": (waits, STOP),
    "told": (is_told, STOP),
    "interrupted change": (applies(STOP), STOP),
    "change that does not apply": (applies(ConflictError("its files are gone")), ConflictError),
    "proved error": (sends(InvalidTableError("broken")), InvalidTableError),
    "nothing to do": (has_nothing_to_do, None),
}


@pytest.mark.parametrize("answer", ["refusal", BUSY], ids=["conflict", "busy"])
@pytest.mark.parametrize(("act", "cause"), ENDS.values(), ids=ENDS)
def test_a_refused_attempt_that_may_still_land_is_unknown(catalog, table, act, cause, answer):
    undone, before = [], stored(catalog)
    catalog.follow(lands_late(10**6, answer))
    with pytest.raises(OutcomeUnknownError, match=r"that was refused may have landed or land still") as raised:
        act(table, lambda: undone.append(1))
    assert raised.value.exit_status == 5
    assert (cause is None) or raised.value.__cause__ is cause or isinstance(raised.value.__cause__, cause)
    assert undone == []
    # A manifest, and a list for each attempt that got so far.
    assert len(stored(catalog) - before) >= 2
    # Only now the first request is carried out.
    catalog._late = (1, catalog._late[1])
    now = catalog.load(EVENTS)
    assert live(now) == {"old": 1, "new": 1}
    assert str(now.metadata.current_snapshot_id) in raised.value.message
    assert raised.value.facts["snapshot_id"] == now.metadata.current_snapshot_id


def test_so_it_is_where_the_last_of_all_attempts_was_refused(catalog, table):
    before = stored(catalog)
    catalog.follow(*[CONFLICTS] * 4, lands_late(3, "refusal"))
    with pytest.raises(OutcomeUnknownError) as raised:
        run(table, ONE)
    assert isinstance(raised.value.__cause__, ConflictError)
    assert len(stored(catalog) - before) == 1 + 5
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


def test_one_that_has_landed_by_the_last_look_keeps_its_files(catalog, table):
    # The look of the answer itself is the first, and does not see it.
    catalog.follow(lands_late(2, "refusal"))
    with pytest.raises(OutcomeUnknownError):
        waits(table, lambda: pytest.fail("undone"))
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


def test_what_cannot_be_looked_at_again_may_land(catalog, table):
    before = stored(catalog)
    catalog.follow(fails(BUSY))
    with pytest.raises(OutcomeUnknownError):
        run(table, Applying(ONE, attempt_2=lambda: (setattr(catalog, "failing_loads", 10**6), thrown(STOP)())))
    catalog.failing_loads = 0
    assert len(stored(catalog) - before) == 3


def test_error_while_checking_again_proves_nothing(catalog, table, monkeypatch):
    """It was told as that of a commit of which nothing had landed, and the files went by."""
    undone, before = [], stored(catalog)
    catalog.follow(lands_late(10**6, "refusal"))

    def break_client():
        monkeypatch.setattr(catalog, "load", thrown(RuntimeError("the client broke")))
        raise STOP

    with pytest.raises(OutcomeUnknownError, match="that was refused may have landed or land still"):
        run(table, Applying(ONE, attempt_2=break_client), undo=lambda: undone.append(1))
    assert undone == []
    assert len(stored(catalog) - before) >= 2


@pytest.mark.parametrize("act", [waits, is_told, applies(STOP)])
def test_ordinary_conflict_is_undone_without_more_loads(catalog, table, act):
    undone, before = [], stored(catalog)
    catalog.follow(after(lambda: add(catalog.load(EVENTS), "theirs"), then=IS_REFUSED))
    with pytest.raises(SystemExit):
        act(table, lambda: undone.append(1))
    now = catalog.load(EVENTS)
    assert (undone, live(now)) == ([1], {"old": 1, "theirs": 1})
    # Their metadata, manifest and list.
    assert len(stored(catalog) - before) == 3


def test_last_of_ordinary_conflicts_leaves_no_files(catalog, table):
    others = iter(range(9))
    catalog.follow(*[after(lambda: add(catalog.load(EVENTS), f"their{next(others)}"), then=IS_REFUSED)] * 5)
    with pytest.raises(ConflictError, match="gave up after 5 attempts"):
        run(table, ONE)
    named = {s.manifest_list for s in catalog.load(EVENTS).metadata.snapshots}
    assert {name for name in stored(catalog) if "snap-" in name} == named
    loads = catalog.loads_count
    catalog.follow(*[after(lambda: add(catalog.load(EVENTS), f"their{next(others)}"), then=IS_REFUSED)])
    with pytest.raises(SystemExit):
        waits(table, lambda: None)
    # Theirs loads twice; ours to begin, and once after its refusal.
    assert catalog.loads_count - loads == 4


def test_one_that_is_tried_again_and_lands_is_no_doubt(catalog, table):
    catalog.follow(IS_REFUSED)
    assert live(run(table, ONE).table) == {"old": 1, "new": 1}


def test_a_change_that_names_no_file_is_in_no_doubt(catalog, table):
    catalog.follow(IS_REFUSED)
    with pytest.raises(SystemExit):
        commit(table, SET, runtime=Stopped(seed=9))


def test_a_table_that_is_gone_takes_nothing_any_more(catalog, table):
    before, undone = stored(catalog), []
    catalog.follow(after(lambda: catalog.drop(EVENTS), then=IS_REFUSED))
    with pytest.raises(SystemExit):
        waits(table, lambda: undone.append(1))
    assert (stored(catalog), undone) == (before, [1])


def heads(table, branch="main"):
    ref = table.metadata.refs.get(branch)
    return [AssertTableUuid(table.metadata.table_uuid), AssertRefSnapshotId(branch, ref and ref.snapshot_id)]


class TestWhatProvesThatOneIsOver:
    """At a server that applies updates to whatever is current, as REST has them."""

    @pytest.fixture(params=[1, 2, 3])
    def base(self, request):
        catalog = MemoryCatalog(compares_metadata=False)
        return add(memory_table(catalog, format_version=request.param), "old")

    def test_nothing_has_happened(self, base):
        assert not is_over(base, heads(base), base)

    def test_others_have_set_a_property(self, base):
        now = swap(base, SetProperties({"theirs": "1"}))
        assert not is_over(base, heads(base), now)
        compared = replace(base, catalog=MemoryCatalog(compares_metadata=True))
        assert is_over(compared, heads(base), now)

    def test_others_have_committed_to_the_branch(self, base):
        assert is_over(base, heads(base), add(base, "theirs"))

    def test_others_have_committed_and_rolled_back(self, base):
        first = base.metadata.current_snapshot_id
        now = swap(add(base, "theirs"), SetSnapshotRef("main", SnapshotRef(snapshot_id=first, type="branch")))
        # In version 1 it is the branch alone that tells them apart.
        assert is_over(base, heads(base), now) == (base.metadata.format_version > 1)

    def test_its_number_is_another_s_and_it_needs_no_parent(self, base):
        now = add(base, "theirs")
        assert not is_over(base, heads(base, "new"), now)
        first = now.metadata.current_snapshot_id
        there = swap(now, SetSnapshotRef("new", SnapshotRef(snapshot_id=first, type="branch")))
        assert is_over(base, heads(base, "new"), there)

    def test_what_has_its_number_is_expired_and_may_have_been_itself(self, base):
        now = add(add(base, "theirs"), "more")
        second = now.metadata.snapshots[1].snapshot_id
        gone = swap(now, RemoveSnapshots((second,)))
        assert not is_over(base, heads(base), gone)

    def test_another_table_is_there(self, base):
        catalog = base.catalog
        catalog.drop(EVENTS)
        now = memory_table(catalog, owner="another")
        assert is_over(base, heads(base), now)


def add_and_expire(catalog: MemoryCatalog, *names: str) -> None:
    """Another writer's commits, and then nothing but the last of all snapshots is left."""
    for name in names:
        add(catalog.load(EVENTS), name)
    table = catalog.load(EVENTS)
    swap(table, RemoveSnapshots(tuple(s.snapshot_id for s in table.metadata.snapshots[:-1])))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_conflict_is_in_doubt_if_snapshot_expired(version: int):
    """Where the snapshot of that sequence number has expired, it may have been this commit: files stay."""
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, format_version=version), "a")
    late = Applying(AppendFiles(files=files("late")), attempt_1=lambda: add_and_expire(catalog, "b", "c"))
    with pytest.raises(OutcomeUnknownError, match="may have been this very commit, expired since"):
        commit(table, late, runtime=catalog.runtime)
    # Nobody knows whether the list of this attempt is named: it stays.
    assert any("snap-" in location for location in stored(catalog))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_conflict_is_believed_if_other_snapshot_is_there(version: int):
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, format_version=version), "a")
    late = Applying(AppendFiles(files=files("late")), attempt_1=lambda: add(catalog.load(EVENTS), "b"))
    assert live(commit(table, late, runtime=catalog.runtime).table) == {"a": 1, "b": 1, "late": 1}


def test_change_without_snapshot_is_retried_after_expiry():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a")
    late = Applying(ChangeProperties(updates={"k": "v"}), attempt_1=lambda: add_and_expire(catalog, "b", "c"))
    assert commit(table, late, runtime=catalog.runtime).table.metadata.properties["k"] == "v"


def test_manifests_are_not_reused_after_upgrade():
    catalog = MemoryCatalog()
    table = add(add(memory_table(catalog, format_version=1), "a", "b"), "c")
    change = RewriteFiles(removed=entries_of(table, "a"), added=(data_file("new"),), schema_id=0)
    upgrade = Applying(change, attempt_1=lambda: swap(catalog.load(EVENTS), UpgradeFormatVersion(2)))
    after_it = commit(table, upgrade, runtime=catalog.runtime).table
    assert live(after_it) == {"b": 1, "c": 1, "new": 1}
    assert {e.sequence_number for e in entries_of(after_it, "b", "c")} == {0}


def test_rewrite_conflicts_with_newly_assigned_row_ids():
    table = swap(add(add(memory_table(), "a"), "b"), UpgradeFormatVersion(3))
    change = RewriteManifests(
        replaced=tuple(manifests_of(table)), added=(staged_manifest(table, entries_of(table)),), format_version=3
    )
    add(table, "c")
    with pytest.raises(ConflictError, match="no longer in the table as it was read"):
        commit(table, change, runtime=table.catalog.runtime)


def test_removed_file_given_row_id_since_read_is_a_conflict():
    """A file that got a row id since it was read makes the retried rewrite a conflict."""
    catalog = MemoryCatalog()
    table = swap(add(memory_table(catalog), "a", "b"), UpgradeFormatVersion(3))
    entry = entries_of(table, "a")
    change = RewriteFiles(removed=entry, added=(data_file("new"),), schema_id=0, format_version=3)
    # The file that is replaced was read without a row id, and has one when the change is tried again.
    late = Applying(change, attempt_1=lambda: add(catalog.load(EVENTS), "c"))
    with pytest.raises(ConflictError, match="no longer live as it was read"):
        commit(table, late, runtime=catalog.runtime)


def test_own_commit_is_recognised_after_conflict_answer():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a")
    catalog.script.append(after(lambda: None, LANDS_BUT_SAYS_CONFLICT))
    assert live(commit(table, AppendFiles(files=files("b")), runtime=catalog.runtime).table) == {"a": 1, "b": 1}
