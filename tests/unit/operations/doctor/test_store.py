"""Each thing that is tried of a store fails once, and then the others are told all the same and nothing is left."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from icekeep.errors import OutcomeUnknownError, UnavailableError, UsageError
from icekeep.operations.doctor.driver import DoctorResult, Notes, remove_own
from icekeep.operations.doctor.places import StorePlace, look_at_store
from icekeep.storage.base import DeleteOutcome, DeleteStatus, FileInfo
from icekeep.storage.local.storage import LocalStorage
from kit.cases import for_each
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage

WAREHOUSE = "memory://lake/wh"
CHECKS = ["reached", "put", "read", "conditional put", "list", "clock", "delete"]


class Lying(HookedStorage):
    """A store that does one thing wrong; `inner` is in memory."""

    def __init__(self, **lies: Callable[..., Any]) -> None:
        super().__init__(MemoryStorage(FakeRuntime()))
        self.lies = lies

    def __getattribute__(self, name: str) -> Any:
        lies = object.__getattribute__(self, "__dict__").get("lies", {})
        if name in lies:
            return lambda *arguments: lies[name](self.inner, *arguments)
        return super().__getattribute__(name)


def looked_at(storage: Any, location: str = WAREHOUSE, runtime: Any = None) -> DoctorResult:
    notes = Notes()
    look_at_store(notes, StorePlace(storage, location), runtime or FakeRuntime())
    return notes.result(0)


def overwrite(inner: MemoryStorage, location: str, data: bytes) -> None:
    inner.delete_many([location])
    inner.create(location, data)


def late_list(inner: MemoryStorage, location: str) -> Iterator[FileInfo]:
    return iter(())


def denied(inner: MemoryStorage, locations: list[str]) -> list[DeleteOutcome]:
    return [DeleteOutcome(location, DeleteStatus.FAILED, "access denied") for location in locations]


def kept(inner: MemoryStorage, locations: list[str]) -> list[DeleteOutcome]:
    return [DeleteOutcome(location, DeleteStatus.DELETED) for location in locations]


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def once_there(lie: Callable[..., Any]) -> Callable[..., Any]:
    """A lie about a file, told once it has been made."""
    return lambda inner, location: (lie if inner.head(location) else MemoryStorage.read)(inner, location)


def test_a_store_that_is_well_has_a_line_for_each_thing_and_nothing_is_left() -> None:
    storage = MemoryStorage(FakeRuntime())
    result = looked_at(storage)
    assert [(one.check, one.status) for one in result.findings] == [(check, "ok") for check in CHECKS]
    assert {one.about for one in result.findings} == {f"store {WAREHOUSE}"}
    assert storage.files == {}


@for_each(
    ("check", "status", "message", "lies"),
    [
        ("conditional put", "wrong", "put a second file over the first", {"create": overwrite}),
        ("read", "wrong", "3 bytes came back", {"read": once_there(lambda *_: b"old")}),
        ("list", "wrong", "a listing shows []", {"list": late_list}),
        ("delete", "wrong", "cannot be deleted, and is left behind: access denied", {"delete_many": denied}),
        ("delete", "wrong", "is still there after it was deleted", {"delete_many": kept}),
        ("read", "unavailable", "no answer", {"read": once_there(raising(UnavailableError("no answer")))}),
    ],
)
def test_one_thing_that_is_wrong_is_told_and_the_others_are_well(
    check: str, status: str, message: str, lies: dict[str, Callable[..., Any]]
) -> None:
    storage = Lying(**lies)
    findings = looked_at(storage).findings
    assert [one.check for one in findings] == CHECKS
    (wrong,) = [one for one in findings if one.status != "ok"]
    assert (wrong.check, wrong.status) == (check, status)
    assert message in wrong.message
    assert bool(storage.inner.files) is (check == "delete")


def test_after_a_put_that_is_refused_nothing_else_is_tried() -> None:
    storage = Lying(create=raising(UsageError("access denied; give write access")))
    findings = looked_at(storage).findings
    assert [(one.check, one.status) for one in findings] == [("reached", "ok"), ("put", "wrong")]
    assert findings[1].message == "access denied; give write access"


def test_after_a_put_of_which_nobody_knows_nothing_is_left() -> None:
    def lose_answer(inner: MemoryStorage, location: str, data: bytes) -> None:
        inner.create(location, data)
        raise OutcomeUnknownError("the connection was lost")

    storage = Lying(create=lose_answer)
    assert [one.check for one in looked_at(storage).findings] == ["reached", "put"]
    assert storage.inner.files == {}


def test_a_put_that_finds_the_name_taken_leaves_what_is_there() -> None:
    def come_first(inner: MemoryStorage, location: str, data: bytes) -> None:
        inner.create(location, b"another's")
        inner.create(location, data)

    storage = Lying(create=come_first)
    assert [one.check for one in looked_at(storage).findings] == ["reached", "put"]
    assert [data for data, _ in storage.inner.files.values()] == [b"another's"]


def test_a_store_that_is_out_of_reach_is_not_written_to() -> None:
    storage = Lying(read=raising(UnavailableError("no answer")))
    result = looked_at(storage)
    assert [(one.check, one.status) for one in result.findings] == [("reached", "unavailable")]
    assert result.status == "unavailable"
    assert storage.fired["create"] == 0


@pytest.mark.parametrize(("ahead_ms", "way"), [(60_000, "behind"), (-60_000, "ahead of")])
def test_a_clock_that_is_wrong_is_told(ahead_ms: int, way: str) -> None:
    runtime = FakeRuntime()
    runtime.clock_ms += ahead_ms
    (wrong,) = [one for one in looked_at(MemoryStorage(FakeRuntime()), runtime=runtime).findings if one.status != "ok"]
    assert wrong.check == "clock"
    assert f"s {way} this machine's" in wrong.message


def test_a_killed_run_leaves_only_what_is_below_its_own_directory() -> None:
    """At each call once; what follows it is not carried out."""
    for operation in ("create", "read", "list", "head", "delete_many"):
        storage = HookedStorage(MemoryStorage(FakeRuntime()))

        def die(*_: str, operation: str = operation, storage: HookedStorage = storage) -> None:
            if storage.fired[operation]:
                raise SystemExit

        storage.after = die
        storage.inner.create(f"{WAREHOUSE}/db/t/file", b"theirs")
        with suppress(SystemExit):
            looked_at(storage)
        assert all(name == f"{WAREHOUSE}/db/t/file" or "/.icekeep/doctor/" in name for name in storage.inner.files)
        assert f"{WAREHOUSE}/db/t/file" in storage.inner.files


@pytest.mark.parametrize("is_there", [False, True])
def test_a_directory_is_left_as_it_was(tmp_path: Path, is_there: bool) -> None:
    warehouse = tmp_path / "wh"
    if is_there:
        (warehouse / ".icekeep" / "purges").mkdir(parents=True)
    result = looked_at(LocalStorage(), warehouse.as_uri(), FakeRuntime(now_ms=0))
    assert [one.check for one in result.findings] == CHECKS
    assert {one.status for one in result.findings if one.check != "clock"} == {"ok"}
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == (["wh", "wh/.icekeep", "wh/.icekeep/purges"] if is_there else [])


def test_a_place_that_cannot_be_written_is_told() -> None:
    findings = looked_at(LocalStorage(), "file:///proc/icekeep-doctor").findings
    assert [(one.check, one.status) for one in findings] == [("reached", "ok"), ("put", "wrong")]
    assert "file:///proc/icekeep-doctor" in findings[1].message


def test_only_a_directory_that_this_run_has_named_is_removed() -> None:
    storage = MemoryStorage(FakeRuntime())
    storage.create(f"{WAREHOUSE}/db/t/file", b"theirs")
    with pytest.raises(Exception, match="is not named by 'drawn'"):
        remove_own(storage, f"{WAREHOUSE}/db/t", "drawn")
    assert len(storage.files) == 1
