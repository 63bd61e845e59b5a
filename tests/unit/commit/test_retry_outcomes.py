"""What is left in storage, and what is said, for every answer of the catalog and every interrupt."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from icekeep.catalog.metadata_files import encode
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import (
    ConflictError,
    InvalidTableError,
    NotFoundError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
)
from icekeep.events import CommitRetried, SnapshotCommitted, unfailing
from icekeep.spec.updates import UpgradeFormatVersion, log_previous
from kit.cases import for_each
from kit.changes import Applying, run, thrown
from kit.memory_catalog import (
    COMMITS,
    CONFLICTS,
    IS_REFUSED,
    IS_UNKNOWN,
    LANDS_BUT_IS_UNKNOWN,
    LANDS_BUT_SAYS_CONFLICT,
    MemoryCatalog,
    after,
    fails,
    lands_but_raises,
)
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import EVENTS, add, files, live, memory_table, stored, swap

ONE = AppendFiles(files=files("new"))
SET = ChangeProperties(updates={"owner": "me"})


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return add(memory_table(catalog), "old")


@pytest.mark.parametrize("error", [NotFoundError("gone"), InvalidTableError("broken")])
def test_after_an_error_of_the_swap_nothing_is_left(catalog, table, error):
    before = stored(catalog)
    catalog.follow(CONFLICTS, fails(error))
    with pytest.raises(type(error)):
        run(table, ONE)
    assert len(catalog.swaps) == 3
    assert stored(catalog) == before


@pytest.mark.parametrize("error", [ConflictError("no"), KeyboardInterrupt(), SystemExit(143), ValueError("bug")])
@pytest.mark.parametrize("attempt", [1, 2])
def test_what_goes_wrong_before_the_swap_leaves_nothing(catalog, table, error, attempt):
    before = stored(catalog)
    catalog.follow(CONFLICTS)
    change = Applying(ONE, **{f"attempt_{attempt}": thrown(error)})
    with pytest.raises(type(error)):
        run(table, change)
    assert len(change.bases) == attempt
    assert stored(catalog) == before


@pytest.mark.parametrize("change", [ONE, SET], ids=["snapshot", "properties"])
@pytest.mark.parametrize("attempt", [1, 2])
def test_an_abandoned_process_swaps_nothing_and_leaves_nothing(catalog, table, change, attempt):
    before, swaps = stored(catalog), len(catalog.swaps)
    runtime = FakeRuntime(seed=9)

    def die() -> None:
        runtime.abandoned = True

    catalog.follow(*[CONFLICTS] * (attempt - 1))
    # The very last moment at which something happens before the swap: the change is applied and its files are written.
    applied = Applying(change, **{f"attempt_{attempt}": die})
    with pytest.raises(
        UnavailableError, match=r"process that started this one .* is gone.* ICEKEEP_SUBMITTER=none "
    ) as raised:
        commit(table, applied, runtime=runtime)
    assert (type(raised.value), raised.value.exit_status) == (UnavailableError, 75)
    assert len(catalog.swaps) - swaps == attempt - 1
    assert stored(catalog) == before
    assert catalog.load(EVENTS).metadata == table.metadata


def test_a_process_that_is_abandoned_after_its_swap_has_committed(catalog, table):
    runtime = FakeRuntime(seed=9)

    def die() -> None:
        runtime.abandoned = True

    catalog.follow(after(die))
    assert commit(table, ONE, runtime=runtime).changed
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_while_waiting_for_the_next_attempt_leaves_nothing(catalog, table, error):
    class Interrupting(FakeRuntime):
        def sleep_ms(self, duration_ms):
            raise error

    before = stored(catalog)
    catalog.follow(CONFLICTS)
    with pytest.raises(type(error)):
        commit(table, ONE, runtime=Interrupting(seed=9))
    assert stored(catalog) == before


class Ending:
    """A listener that ends a job at the first event of a kind."""

    def __init__(self, kind, error=None):
        self.kind, self.error = kind, error or SystemExit(130)

    def on(self, event):
        if isinstance(event, self.kind):
            raise self.error


@pytest.mark.parametrize(
    "step",
    [CONFLICTS, fails(UnavailableError("away")), "apply"],
    ids=["conflict", "no swap", "not applied"],
)
def test_a_job_that_ends_where_it_is_told_of_a_retry_leaves_nothing(catalog, table, step):
    before, undone, change = stored(catalog), [], ONE
    if step == "apply":
        change = Applying(ONE, attempt_1=thrown(UnavailableError("away")))
    else:
        catalog.follow(step)
    with pytest.raises(SystemExit):
        run(table, change, listener=Ending(CommitRetried), undo=lambda: undone.append(stored(catalog) - before))
    # What belongs to the commit goes first; nothing that it wrote is left when its caller's files are removed.
    assert undone == [set()]
    assert stored(catalog) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bug")])
@pytest.mark.parametrize("attempt", [1, 2])
def test_undo_is_called_where_an_interrupt_comes_before_the_swap(catalog, table, error, attempt):
    undone = []
    catalog.follow(*[CONFLICTS] * (attempt - 1))
    change = Applying(ONE, **{f"attempt_{attempt}": thrown(error)})
    with pytest.raises(type(error)):
        run(table, change, undo=lambda: undone.append(attempt))
    assert undone == [attempt]


def test_what_cannot_be_undone_hides_no_interrupt(catalog, table):
    change = Applying(ONE, attempt_1=thrown(SystemExit(143)))
    with pytest.raises(SystemExit):
        run(table, change, undo=thrown(UnavailableError("away")))


@pytest.mark.parametrize(
    ("steps", "error", "listener"),
    [
        ([IS_UNKNOWN], OutcomeUnknownError, None),
        ([LANDS_BUT_IS_UNKNOWN], None, None),
        ([COMMITS], None, None),
        ([COMMITS], SystemExit, Ending(SnapshotCommitted)),
        ([CONFLICTS, LANDS_BUT_IS_UNKNOWN], SystemExit, Ending(SnapshotCommitted)),
        ([lands_but_raises(SystemExit(143))], OutcomeUnknownError, None),
        ([fails(SystemExit(143))], OutcomeUnknownError, None),
        ([CONFLICTS] * 5, ConflictError, None),
        ([fails(InvalidTableError("broken"))], InvalidTableError, None),
    ],
)
def test_nothing_that_may_have_landed_is_undone(catalog, table, steps, error, listener):
    undone = []
    catalog.follow(*steps)
    told = {} if listener is None else {"listener": listener}
    with nullcontext() if error is None else pytest.raises(error):
        run(table, ONE, undo=lambda: undone.append(1), **told)
    assert undone == []


def test_a_manifest_that_cannot_be_written_leaves_nothing(catalog):
    def full(operation, location):
        if operation == "write" and "snap-" in location:
            raise UnavailableError("no space left")

    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = memory_table(catalog)
    before = stored(catalog)
    storage.before = full
    with pytest.raises(UnavailableError):
        run(table, ONE)
    # The manifest once, and then a list for each attempt.
    assert storage.fired["write"] == 1 + len(catalog.runtime.sleeps_ms) + 1
    assert stored(catalog) == before


@pytest.mark.parametrize(
    "step", [IS_UNKNOWN, fails(OutcomeUnknownError("lost", metadata_location="memory://lake/wh/x"))]
)
def test_after_an_unknown_outcome_nothing_at_all_is_removed(step):
    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "old")
    before = stored(catalog)
    catalog.follow(CONFLICTS, step)
    with pytest.raises(OutcomeUnknownError, match="may or may not have landed") as raised:
        run(table, ONE)
    assert raised.value.exit_status == 5
    assert raised.value.facts["metadata_location"].startswith("memory://lake/wh/")
    assert raised.value.facts["metadata_location"] in raised.value.message
    assert str(raised.value.facts["snapshot_id"]) in raised.value.message
    assert len(stored(catalog) - before) == 3
    assert storage.fired["delete_many"] == 0


def test_a_commit_that_is_there_has_landed_whatever_the_catalog_said_of_it(catalog, table):
    """It was made once more, over its own snapshot; that failed, and the manifests of the live table were removed."""
    catalog.follow(CONFLICTS, lands_but_raises(UnavailableError("no answer, so nothing was sent")))
    result = run(table, ONE)
    now = catalog.load(EVENTS)
    assert (result.changed, result.table, len(catalog.swaps)) == (True, now, 3)
    assert result.snapshot_id == now.metadata.current_snapshot_id
    assert result.base.metadata == table.metadata
    assert result.summary["added-data-files"] == "1"
    assert live(now) == {"old": 1, "new": 1}
    assert len([name for name in stored(catalog) if "snap-" in name]) == 2


@for_each("error", [KeyboardInterrupt(), SystemExit(143), RuntimeError("driver gone")])
@for_each("lands", [False, True])
def test_an_interrupt_in_the_swap_leaves_the_outcome_unknown(error, lands):
    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "old")
    before = stored(catalog)
    catalog.follow(lands_but_raises(error) if lands else fails(error))
    with pytest.raises(OutcomeUnknownError, match=type(error).__name__) as raised:
        run(table, ONE)
    assert raised.value.__cause__ is error
    assert storage.fired["delete_many"] == 0
    assert len(stored(catalog) - before) == 2 + lands
    assert live(catalog.load(EVENTS)) == ({"old": 1, "new": 1} if lands else {"old": 1})


def test_an_interrupt_after_the_commit_landed_is_not_mistaken_for_one_before_it():
    def interrupt(operation, location):
        if operation == "delete_many":
            raise KeyboardInterrupt

    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "old")
    catalog.follow(CONFLICTS)
    storage.before = interrupt
    # It is no unknown outcome either: the listener has heard of the commit. Callers remove nothing after an interrupt.
    undone, heard = [], []
    with pytest.raises(KeyboardInterrupt):
        run(table, ONE, undo=lambda: undone.append(1), listener=SimpleNamespace(on=heard.append))
    assert (storage.fired["delete_many"], undone) == (1, [])
    assert [event.snapshot_id for event in heard if isinstance(event, SnapshotCommitted)] == [
        catalog.load(EVENTS).metadata.current_snapshot_id
    ]
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


@pytest.mark.parametrize("error", [ConflictError("of another table"), OSError("the terminal is gone")])
def test_an_error_of_a_listener_is_not_taken_for_one_of_the_commit_that_it_is_told_of(catalog, table, error, caplog):
    class Failing:
        on = staticmethod(thrown(error))

    catalog.follow(CONFLICTS)
    result = run(table, ONE, listener=unfailing(Failing()))
    assert result.changed
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}
    assert [one.exc_info[1] for one in caplog.records if one.exc_info] == [error]


def test_what_is_in_doubt_is_named_as_far_as_it_is_known(catalog, table):
    catalog.follow(fails(KeyboardInterrupt()), fails(KeyboardInterrupt()))
    with pytest.raises(OutcomeUnknownError, match=r"see whether snapshot \d+ is there") as raised:
        run(table, ONE)
    assert str(raised.value.facts["snapshot_id"]) in raised.value.message
    with pytest.raises(OutcomeUnknownError, match="see whether the change is there"):
        run(table, SET)


def test_an_unknown_outcome_that_is_found_to_have_landed_is_a_commit(catalog, table):
    before = stored(catalog)
    catalog.follow(LANDS_BUT_IS_UNKNOWN)
    result = run(table, ONE)
    assert live(result.table) == {"old": 1, "new": 1}
    assert len(catalog.swaps) == 2
    assert len(stored(catalog) - before) == 3


def test_a_conflict_that_hides_our_own_commit_is_a_commit_and_its_manifest_list_stays(catalog, table):
    # apache/iceberg #14583: the answer was lost, the request sent again, and the second answer said "conflict".
    before = stored(catalog)
    catalog.follow(CONFLICTS, LANDS_BUT_SAYS_CONFLICT)
    result = run(table, ONE)
    assert len(catalog.swaps) == 3
    assert live(result.table) == {"old": 1, "new": 1}
    assert result.table.metadata.current_snapshot.manifest_list in stored(catalog)
    assert len(stored(catalog) - before) == 3
    assert len(result.table.metadata.snapshots) == 2


def test_a_conflict_that_cannot_be_looked_into_is_unknown_and_removes_nothing(catalog, table):
    # Taken for a conflict, the next attempt would find the snapshot there already, fail, and remove what it names.
    before = stored(catalog)

    def lose_contact():
        catalog.failing_loads = 10**6

    catalog.follow(after(lose_contact, then=LANDS_BUT_SAYS_CONFLICT))
    with pytest.raises(OutcomeUnknownError, match="cannot be loaded"):
        run(table, ONE)
    catalog.failing_loads = 0
    assert len(stored(catalog) - before) == 3
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


def test_a_commit_that_others_built_upon_while_we_looked_is_still_found(catalog, table):
    def build_upon():
        add(catalog.load(EVENTS), "theirs")

    catalog.follow(after(build_upon, then=COMMITS), LANDS_BUT_IS_UNKNOWN)
    result = run(table, ONE)
    assert live(result.table) == {"old": 1, "theirs": 1, "new": 1}


def test_a_table_that_was_dropped_and_made_again_is_not_touched(catalog, table):
    def make_again():
        catalog.drop(EVENTS)
        memory_table(catalog, owner="another")

    catalog.follow(after(make_again))
    with pytest.raises(SafetyError, match="is another table now") as raised:
        run(table, ONE)
    assert raised.value.exit_status == 4
    assert table.metadata.table_uuid in raised.value.message
    assert catalog.load(EVENTS).metadata.snapshots == ()
    manifests = [location for location in stored(catalog) if location.endswith("-m0.avro")]
    assert len(manifests) == 1


def test_a_table_that_was_dropped_is_not_found_and_nothing_is_left(catalog, table):
    before = stored(catalog)
    catalog.follow(after(lambda: catalog.drop(EVENTS)))
    with pytest.raises(NotFoundError):
        run(table, ONE)
    assert stored(catalog) == before


def test_the_summary_is_that_of_the_snapshot_that_landed(catalog, table):
    """The first attempt lands after all, and the second, made on what another writer left, meets it."""
    late = []

    def commit_theirs() -> None:
        # What the first attempt asked for is kept back, and lands on what it was made for.
        late.append(catalog.swaps[-1])

    def land() -> None:
        (_, updates) = late[0]
        swap(catalog.load(EVENTS), *updates)

    wide = AppendFiles(files=files("new"), summary={"attempt": "1"})
    narrow = AppendFiles(files=files("new"), summary={"attempt": "2"})

    class Differing:
        """A change whose counts depend on the attempt, as those of a delete do."""

        def __init__(self) -> None:
            self.left = [wide, narrow]

        def apply(self, base, attempt):
            return self.left.pop(0).apply(base, attempt)

    catalog.follow(after(commit_theirs, then=CONFLICTS), after(land, then=CONFLICTS))
    result = run(table, Differing())
    landed = result.table.metadata.snapshot(result.snapshot_id)
    assert landed.summary["attempt"] == "1"
    assert result.summary == landed.summary
    assert result.base.metadata == table.metadata


def test_the_base_is_that_of_the_attempt_that_landed(catalog, table):
    """The first attempt lands late; the second, on what another writer left meanwhile, was only refused."""
    requests = []
    meant_for = []

    def keep_back() -> None:
        meant_for.append(catalog.load(EVENTS).metadata)
        requests.append(catalog.swaps[-1])
        swap(catalog.load(EVENTS), *SET.apply(table.metadata, None))

    def land() -> None:
        swap(catalog.load(EVENTS), *requests[0][1])

    catalog.follow(after(keep_back, then=IS_REFUSED), after(land, then=IS_REFUSED))
    result = run(table, ONE)
    assert result.base.metadata == meant_for[0] == table.metadata
    assert live(result.table) == {"old": 1, "new": 1}


def replaced(catalog, table, **changes):
    """Another writer's metadata, however it came about."""
    metadata = replace(catalog.load(EVENTS).metadata, **changes)
    location = f"{table.metadata.location}/metadata/00099-{len(stored(catalog))}.metadata.json"
    catalog.storage.create(location, encode(metadata))
    catalog._locations[EVENTS] = location


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"table_uuid": "another"}, "is another table now"),
        ({"location": "memory://lake/elsewhere"}, "was moved to 'memory://lake/elsewhere' from "),
        ({"format_version": 1}, "has format version 1 now, and had 2"),
    ],
)
def test_what_a_job_stands_on_may_not_change_under_it(catalog, table, changes, problem):
    before = stored(catalog)
    catalog.follow(after(lambda: replaced(catalog, table, **changes), then=CONFLICTS))
    with pytest.raises(SafetyError, match=f"^table 'db.events' {problem}.*; nothing was changed$") as raised:
        run(table, ONE)
    assert raised.value.exit_status == 4
    assert {location for location in stored(catalog) - before if location.endswith(".avro")} == set()


def test_an_upgrade_by_another_writer_does_not_end_a_job(catalog, table):
    catalog.follow(after(lambda: swap(table, UpgradeFormatVersion(3))))
    result = run(table, ONE)
    assert (result.table.metadata.format_version, live(result.table)) == (3, {"old": 1, "new": 1})


def test_another_spelling_of_the_location_is_the_same_place(catalog, table):
    location = table.metadata.location.replace("memory://lake/", "memory://lake//")
    catalog.follow(after(lambda: replaced(catalog, table, location=location), then=CONFLICTS))
    assert run(table, ONE).changed


def test_a_table_without_a_uuid_may_be_given_one_and_not_be_replaced(catalog):
    table = memory_table(catalog, format_version=1)
    replaced(catalog, table, table_uuid=None)
    bare = catalog.load(EVENTS)
    given = log_previous(
        replace(bare.metadata, table_uuid="given"), bare.metadata_location, bare.metadata.last_updated_ms
    )
    replaced(catalog, bare, table_uuid="given", metadata_log=given.metadata_log)
    assert run(bare, SET).changed
    replaced(catalog, bare, metadata_log=())
    with pytest.raises(SafetyError, match=r"is another table now \(uuid given, was None\)"):
        run(bare, SET)
