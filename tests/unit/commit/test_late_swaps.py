"""A swap that was refused and lands all the same: nothing that it names goes, unless the table has moved on since."""

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.outcome import is_over
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, InvalidTableError, OutcomeUnknownError, UnavailableError
from icekeep.events import CommitRetried
from icekeep.spec.requirements import AssertRefSnapshotId, AssertTableUuid
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import RemoveSnapshots, SetProperties, SetSnapshotRef
from kit.changes import Applying, run, thrown
from kit.memory_catalog import CONFLICTS, IS_REFUSED, MemoryCatalog, after, fails, lands_late
from kit.runtime import FakeRuntime
from kit.tables import EVENTS, add, files, live, memory_table, stored, swap

ONE = AppendFiles(files=files("new"))
SET = ChangeProperties(updates={"owner": "me"})
STOP = SystemExit(143)
BUSY = UnavailableError("429")
BUSY.was_sent = True


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return add(memory_table(catalog), "old")


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
def test_where_a_refused_attempt_may_land_still_every_file_stays_and_the_outcome_is_unknown(
    catalog, table, act, cause, answer
):
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


def test_an_error_of_another_s_while_it_is_looked_at_again_proves_nothing(catalog, table, monkeypatch):
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
def test_an_ordinary_conflict_leaves_nothing_and_asks_nothing_more(catalog, table, act):
    undone, before = [], stored(catalog)
    catalog.follow(after(lambda: add(catalog.load(EVENTS), "theirs"), then=IS_REFUSED))
    with pytest.raises(SystemExit):
        act(table, lambda: undone.append(1))
    now = catalog.load(EVENTS)
    assert (undone, live(now)) == ([1], {"old": 1, "theirs": 1})
    # Their metadata, manifest and list.
    assert len(stored(catalog) - before) == 3


def test_the_last_of_ordinary_conflicts_is_one_and_leaves_nothing(catalog, table):
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
