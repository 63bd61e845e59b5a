"""An expiration that fails, dies or is lied to at every call of the store and of the catalog: nothing that is reachable goes, and
the next run ends where an uninterrupted one would have (peers' failure 28: a crash between commit and deletion).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from typing import Any, BinaryIO

import pytest

from icekeep.catalog.base import SwapOutcome, Table, Unknown
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.snapshots import CreateRef
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, OutcomeUnknownError, UnavailableError
from icekeep.maintenance.delete.lease import LEASE_MS
from icekeep.maintenance.expire.job import ExpireSnapshotsResult, expire_snapshots
from icekeep.spec.snapshots import SnapshotRef
from icekeep.storage.base import DeleteOutcome, DeleteStatus, MoveOutcome, MoveStatus
from kit.cases import some_of
from kit.memory_catalog import (
    COMMITS,
    CONFLICTS,
    IS_UNKNOWN,
    LANDS_BUT_IS_UNKNOWN,
    LANDS_BUT_SAYS_CONFLICT,
    MemoryCatalog,
    Step,
    after,
    fails,
    lands_but_raises,
    lands_late,
)
from kit.reclaim_histories import DAY_MS, History
from kit.reclaim_oracle import Oracle, normal
from kit.runtime import no_spark, with_runtime
from kit.storage import HookedStorage

pytestmark = pytest.mark.slow

STEPS = [
    ("append", 36),
    ("append", 3),
    ("positions", 36),
    ("statistics", 38),
    ("equality", 29),
    ("rewrite", 15),
    ("append", 41),
]
"""After which some files of every kind are garbage."""


class Died(BaseException):
    """The process is killed."""


class FaultyStorage(HookedStorage):
    """Fails at one call, counted from 1: before it acts or after it; a file that is deleted or moved is a call of its own.

    `error` is raised; where the protocol has an answer for a failure that is given instead, unless the process dies.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.fails_at = 0
        self.acts_first = False
        self.error: BaseException = Died()
        self.calls: list[str] = []

    def write(self, location: str) -> AbstractContextManager[BinaryIO]:
        return self._writing(location)

    @contextmanager
    def _writing(self, location: str) -> Iterator[BinaryIO]:
        is_faulty = self._counted("write")
        if is_faulty and not self.acts_first:
            raise self.error
        with self.inner.write(location) as stream:
            yield stream
        if is_faulty:
            raise self.error

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        def delete(location: str) -> DeleteOutcome:
            return self.inner.delete_many([location])[0]

        def failed(location: str) -> DeleteOutcome:
            return DeleteOutcome(location, DeleteStatus.FAILED, "it is out of reach")

        return self._each("delete", locations, delete, failed)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        def move(pair: tuple[str, str]) -> MoveOutcome:
            return self.inner.move_many([pair])[0]

        def failed(pair: tuple[str, str]) -> MoveOutcome:
            return MoveOutcome(pair[0], MoveStatus.FAILED, "it is out of reach")

        return self._each("move", moves, move, failed)

    def _each(
        self, operation: str, items: Iterable[Any], act: Callable[[Any], Any], failed: Callable[[Any], Any]
    ) -> Any:
        answers = []
        for item in items:
            is_faulty = self._counted(operation)
            if not is_faulty or self.acts_first:
                answers.append(act(item))
            if is_faulty and not isinstance(self.error, IcekeepError):
                raise self.error
            if is_faulty:
                answers[len(answers) - self.acts_first :] = [failed(item)]
        return answers

    def _call(self, operation: str, location: str, *arguments: Any) -> Any:
        is_faulty = self._counted(operation)
        if is_faulty and not self.acts_first:
            raise self.error
        answer = getattr(self.inner, operation)(location, *arguments)
        if is_faulty:
            raise self.error
        return answer

    def _counted(self, operation: str) -> bool:
        self.calls.append(operation)
        return len(self.calls) == self.fails_at


class Catalog(MemoryCatalog):
    """Says that it does not know what came of a swap whose answer it cannot read."""

    def swap(self, table: Table, requirements: Any, updates: Any) -> SwapOutcome:
        before = self.find(table.identifier)
        try:
            return super().swap(table, requirements, updates)
        except UnavailableError as error:
            now = self.find(table.identifier)
            if now == before:
                raise
            return Unknown(error.message, now.metadata_location)


class Case:
    """A table with something of every kind to delete, and what an uninterrupted run makes of it."""

    def __init__(self, version: int, trash: int) -> None:
        self.history = History(6, STEPS, format_version=version)
        self.history.runtime.pass_ms(20 * DAY_MS)
        self.trash = trash
        self.storage = FaultyStorage(self.history.storage)
        self.history.catalog.storage = self.storage
        self.history.catalog.__class__ = Catalog
        self.before = self.files
        self.location_before = self.location
        oracle, roots = Oracle(self.history.files), self.history.elsewhere
        self.history.catalog.reclaim_roots = roots
        self.expected = oracle.expiration(self.location, now_ms=self.now_ms, roots=roots, older_than_ms=self.now_ms)

    @property
    def now_ms(self) -> int:
        return self.history.runtime.now_ms()

    @property
    def location(self) -> str:
        """The current metadata."""
        return self.history.catalog.find(self.history.table.identifier).metadata_location

    @property
    def files(self) -> dict[str, bytes]:
        """All but the tool's own and table metadata."""
        found = {normal(location): data for location, data in self.history.files.items()}
        return {name: data for name, data in found.items() if "/.icekeep/" not in name and not name.endswith(".json")}

    @property
    def trashed(self) -> list[bytes]:
        """What lies in the trash."""
        return sorted(
            data for name, data in self.history.files.items() if "/.icekeep/trash/" in name and "/files/" in name
        )

    @property
    def state(self) -> Any:
        """The table's snapshots, references and statistics, and every file."""
        document = Oracle(self.history.files).document(self.location)
        keys = ("snapshots", "refs", "schemas", "partition-specs", "statistics", "partition-statistics")
        return {key: document.get(key) for key in keys}, self.files, self.trashed

    def run(self) -> ExpireSnapshotsResult:
        """One run, with the table as it is now."""
        table = self.history.catalog.load(self.history.table.identifier)
        return expire_snapshots(
            with_runtime(table, self.history.runtime), no_spark, older_than=self.now_ms, trash=self.trash
        )

    def check_nothing_lost(self) -> None:
        """Every file that the current metadata leads to is there, as it was."""
        oracle = Oracle(self.history.files)
        assert oracle.missing(self.location) == set()
        files = self.files
        assert all(files[name] == self.before[name] for name in oracle.reachable(self.location) if name in self.before)

    def check_interrupted(self, error: BaseException | None) -> None:
        """What holds after a run that was interrupted, whatever it was that ended it."""
        self.check_nothing_lost()
        if self.location == self.location_before or isinstance(error, OutcomeUnknownError):
            assert self.before.items() <= self.files.items(), "nothing goes before the commit is known"

    def interrupted(self) -> BaseException | None:
        """A run that may end by an error of ours or by death; which is returned."""
        try:
            self.run()
        except IcekeepError as error:
            return error
        except Died as error:
            # Who died does not say so: its plan is left alone for as long as it may be alive.
            self.history.runtime.pass_ms(LEASE_MS + 1)
            return error
        return None


def finished(version: int, trash: int) -> tuple[Any, list[str]]:
    """The state after an uninterrupted run, and its calls of the store."""
    case = Case(version, trash)
    result = case.run()
    calls = list(case.storage.calls)
    assert result.status == "done"
    assert {name for name in case.before if name not in case.files} == case.expected.files
    kinds = {
        "manifest list",
        "manifest",
        "data file",
        "statistics file",
        "position delete file",
        "equality delete file",
    }
    assert case.expected.garbage.keys() == kinds, "something of every kind goes"
    assert bool(case.trashed) == bool(trash)
    return case.state, calls


ERRORS = {"fails": UnavailableError("the store is out of reach"), "dies": Died()}


@pytest.mark.parametrize(("version", "trash"), [(2, 0), (3, 3)], ids=["delete", "trash"])
@pytest.mark.parametrize("acts_first", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("ending", ERRORS)
def test_a_run_that_ends_at_any_call_of_the_store(ending: str, acts_first: bool, trash: int, version: int) -> None:
    state, calls = finished(version, trash)
    fired: Counter[str] = Counter()
    places = some_of(enumerate(calls, start=1), least=8, kind=itemgetter(1))
    for number, operation in places:
        case = Case(version, trash)
        case.storage.fails_at, case.storage.acts_first, case.storage.error = number, acts_first, ERRORS[ending]
        error = case.interrupted()
        assert len(case.storage.calls) >= number, "the fault was met"
        assert case.storage.calls[number - 1] == operation
        fired[operation] += 1
        case.check_interrupted(error)
        assert ending == "fails" or error is not None, "nobody swallows a death"
        case.storage.fails_at = 0
        case.run()
        assert case.state == state, f"call {number}, {operation}"
    assert fired.total() == len(places)
    assert {"read", "write", "create", "move" if trash else "delete"} <= fired.keys()


ENDINGS = {
    "fails": fails(UnavailableError("the catalog is out of reach")),
    "dies before it": fails(Died()),
    "lands but breaks off": lands_but_raises(OSError("the connection was reset")),
    "lands but raises": lands_but_raises(OutcomeUnknownError("the answer was lost")),
    "dies after it": lands_but_raises(Died()),
    "lands but is unknown": LANDS_BUT_IS_UNKNOWN,
    "is unknown": IS_UNKNOWN,
    "conflicts": CONFLICTS,
    "lands but says conflict": LANDS_BUT_SAYS_CONFLICT,
    "lands at the next look": lands_late(1),
    "lands late": lands_late(5),
}


@pytest.mark.parametrize("trash", [0, 3], ids=["delete", "trash"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_whatever_comes_of_the_swap_nothing_is_lost(ending: str, trash: int) -> None:
    state, _ = finished(2, trash)
    case = Case(2, trash)
    case.history.catalog.follow(ENDINGS[ending])
    error = case.interrupted()
    assert case.history.catalog.swaps, "the fault was met"
    case.check_interrupted(error)
    for _ in range(2):
        # What lands late lands while the first of them looks.
        case.interrupted()
        case.check_nothing_lost()
    assert case.state == state


def put_back(case: Case) -> None:
    """Another writer adds a data file again that is about to go."""
    table = case.history.catalog.load(case.history.table.identifier)
    name = min(case.expected.garbage["data file"])
    reached = next(iter(case.expected.expired[name]))
    file = case.history.removed_file(reached.spelling)
    commit(table, AppendFiles(files=(file,)), runtime=case.history.runtime)


def tag_what_expires(case: Case) -> None:
    """Another writer tags a snapshot that is about to go."""
    table = case.history.catalog.load(case.history.table.identifier)
    snapshot_id = min(case.expected.snapshot_ids)
    change = CreateRef("kept", SnapshotRef(snapshot_id=snapshot_id, type="tag"))
    commit(table, change, runtime=case.history.runtime)


@pytest.mark.parametrize("trash", [0, 3], ids=["delete", "trash"])
@pytest.mark.parametrize("ending", [COMMITS, LANDS_BUT_IS_UNKNOWN, lands_but_raises(Died())], ids=str)
@pytest.mark.parametrize("act", [put_back, tag_what_expires])
def test_concurrent_commit_before_the_swap_keeps_its_files(
    act: Callable[[Case], None], ending: Step, trash: int
) -> None:
    case = Case(2, trash)
    case.history.catalog.follow(after(lambda: act(case), CONFLICTS), ending)
    error = case.interrupted()
    case.check_interrupted(error)
    case.run()
    case.check_nothing_lost()
    expected = Oracle({**case.history.files, **case.before})
    kept = expected.reachable(case.location) & case.before.keys()
    assert case.files.keys() & case.before.keys() == kept, "all that nothing leads to is gone, and nothing else"
    assert kept & case.expected.files, "something that was planned to go stayed"


def test_files_that_a_run_failed_to_delete() -> None:
    state, _ = finished(2, 0)
    case = Case(2, 0)
    names = sorted(case.expected.files)
    refused = set(names[::2])
    delete_many = case.storage.inner.delete_many

    def deny(locations: Iterable[str]) -> list[DeleteOutcome]:
        return [
            DeleteOutcome(location, DeleteStatus.FAILED, "denied")
            if normal(location) in refused
            else delete_many([location])[0]
            for location in locations
        ]

    case.storage.delete_many = deny  # type: ignore[method-assign]
    result = case.run()
    assert (result.status, result.failed_files_count) == ("partial", len(refused))
    case.check_nothing_lost()
    assert {name for name in case.before if name not in case.files} == case.expected.files - refused
    del case.storage.delete_many
    assert case.run().status == "done"
    assert case.state == state
