"""Each thing that is tried of a store fails once, and then the others are told all the same and nothing is left."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from icekeep.catalog.base import Committed, Identifier, Table
from icekeep.catalog.open import open_catalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import ConfigError, OutcomeUnknownError, UnavailableError, UsageError
from icekeep.operations.configuration.file import CatalogSettings
from icekeep.operations.doctor.driver import DoctorResult, Needs, Notes, Requirement, remove_own
from icekeep.operations.doctor.places import (
    NAME_PREFIX,
    DoctorCatalog,
    StorePlace,
    TrialSite,
    look_at_catalog,
    look_at_store,
)
from icekeep.operations.loading import open_settings
from icekeep.storage.base import DeleteOutcome, DeleteStatus, FileInfo
from icekeep.storage.local.storage import LocalStorage
from kit.cases import for_each
from kit.catalogs import simple_metadata
from kit.lake import Lake
from kit.memory_catalog import CONFLICTS, IS_UNKNOWN, MemoryCatalog, fails
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


def store_looked_at(storage: Any, location: str = WAREHOUSE, runtime: Any = None) -> DoctorResult:
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


def test_healthy_store_has_line_per_check_and_nothing_left() -> None:
    storage = MemoryStorage(FakeRuntime())
    result = store_looked_at(storage)
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
    findings = store_looked_at(storage).findings
    assert [one.check for one in findings] == CHECKS
    (wrong,) = [one for one in findings if one.status != "ok"]
    assert (wrong.check, wrong.status) == (check, status)
    assert message in wrong.message
    assert bool(storage.inner.files) is (check == "delete")


def test_after_a_put_that_is_refused_nothing_else_is_tried() -> None:
    storage = Lying(create=raising(UsageError("access denied; give write access")))
    findings = store_looked_at(storage).findings
    assert [(one.check, one.status) for one in findings] == [("reached", "ok"), ("put", "wrong")]
    assert findings[1].message == "access denied; give write access"


def test_after_a_put_of_which_nobody_knows_nothing_is_left() -> None:
    def lose_answer(inner: MemoryStorage, location: str, data: bytes) -> None:
        inner.create(location, data)
        raise OutcomeUnknownError("the connection was lost")

    storage = Lying(create=lose_answer)
    assert [one.check for one in store_looked_at(storage).findings] == ["reached", "put"]
    assert storage.inner.files == {}


def test_a_put_that_finds_the_name_taken_leaves_what_is_there() -> None:
    def come_first(inner: MemoryStorage, location: str, data: bytes) -> None:
        inner.create(location, b"another's")
        inner.create(location, data)

    storage = Lying(create=come_first)
    assert [one.check for one in store_looked_at(storage).findings] == ["reached", "put"]
    assert [data for data, _ in storage.inner.files.values()] == [b"another's"]


def test_a_store_that_is_out_of_reach_is_not_written_to() -> None:
    storage = Lying(read=raising(UnavailableError("no answer")))
    result = store_looked_at(storage)
    assert [(one.check, one.status) for one in result.findings] == [("reached", "unavailable")]
    assert result.status == "unavailable"
    assert storage.fired["create"] == 0


@pytest.mark.parametrize(("ahead_ms", "way"), [(60_000, "behind"), (-60_000, "ahead of")])
def test_a_clock_that_is_wrong_is_told(ahead_ms: int, way: str) -> None:
    runtime = FakeRuntime()
    runtime.clock_ms += ahead_ms
    (wrong,) = [
        one for one in store_looked_at(MemoryStorage(FakeRuntime()), runtime=runtime).findings if one.status != "ok"
    ]
    assert wrong.check == "clock"
    assert f"s {way} this machine's" in wrong.message


def test_killed_run_leaves_only_its_own_directory() -> None:
    """At each call once; what follows it is not carried out."""
    for operation in ("create", "read", "list", "head", "delete_many"):
        storage = HookedStorage(MemoryStorage(FakeRuntime()))

        def die(*_: str, operation: str = operation, storage: HookedStorage = storage) -> None:
            if storage.fired[operation]:
                raise SystemExit

        storage.after = die
        storage.inner.create(f"{WAREHOUSE}/db/t/file", b"theirs")
        with suppress(SystemExit):
            store_looked_at(storage)
        assert all(name == f"{WAREHOUSE}/db/t/file" or "/.icekeep/doctor/" in name for name in storage.inner.files)
        assert f"{WAREHOUSE}/db/t/file" in storage.inner.files


@pytest.mark.parametrize("is_there", [False, True])
def test_a_directory_is_left_as_it_was(tmp_path: Path, is_there: bool) -> None:
    warehouse = tmp_path / "wh"
    if is_there:
        (warehouse / ".icekeep" / "purges").mkdir(parents=True)
    result = store_looked_at(LocalStorage(), warehouse.as_uri(), FakeRuntime(now_ms=0))
    assert [one.check for one in result.findings] == CHECKS
    assert {one.status for one in result.findings if one.check != "clock"} == {"ok"}
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == (["wh", "wh/.icekeep", "wh/.icekeep/purges"] if is_there else [])


def test_a_place_that_cannot_be_written_is_told() -> None:
    findings = store_looked_at(LocalStorage(), "file:///proc/icekeep-doctor").findings
    assert [(one.check, one.status) for one in findings] == [("reached", "ok"), ("put", "wrong")]
    assert "file:///proc/icekeep-doctor" in findings[1].message


def test_only_a_directory_that_this_run_has_named_is_removed() -> None:
    storage = MemoryStorage(FakeRuntime())
    storage.create(f"{WAREHOUSE}/db/t/file", b"theirs")
    with pytest.raises(Exception, match="is not named by 'drawn'"):
        remove_own(storage, f"{WAREHOUSE}/db/t", "drawn")
    assert len(storage.files) == 1


DB = ("db",)
STORE = ["reached", "put", "read", "conditional put", "list", "clock", "delete"]
COMMITS = ["create table", "commit", "commit on an old version", "drop table"]


@pytest.fixture
def catalog() -> MemoryCatalog:
    catalog = MemoryCatalog()
    catalog.create_namespace(DB)
    return catalog


def looked_at(catalog: Any, namespace: Identifier | None = DB, location: str | None = None) -> DoctorResult:
    notes = Notes()
    subject = DoctorCatalog("local", {}, lambda: catalog)
    look_at_catalog(notes, subject, TrialSite(namespace=namespace, location=location), None)
    return notes.result(0)


def unwell(result: DoctorResult) -> list[tuple[str, str]]:
    return [(one.check, one.status) for one in result.findings if one.status != "ok"]


def test_healthy_catalog_has_line_per_check_and_nothing_left(catalog: MemoryCatalog) -> None:
    result = looked_at(catalog)
    assert unwell(result) == []
    assert [one.check for one in result.findings] == ["settings", "namespaces", "tables", *STORE, *COMMITS]
    assert (catalog.storage.files, catalog.list_tables(DB)) == ({}, [])


def test_without_namespace_no_commit_is_tried(catalog: MemoryCatalog) -> None:
    result = looked_at(catalog, None)
    assert unwell(result) == [("commit", "not-tried")]
    assert "give --namespace" in result.findings[-1].message
    assert (result.status, catalog.swaps) == ("ok", [])


def test_a_namespace_that_is_not_there_is_told(catalog: MemoryCatalog) -> None:
    result = looked_at(catalog, ("nope",))
    assert unwell(result) == [("tables", "wrong"), ("commit", "not-tried")]
    assert "there is no namespace 'nope'" in result.findings[2].message
    assert result.findings[-1].message == "its namespace cannot be listed, or its store failed: see above"
    assert catalog.storage.files == {}


def test_a_catalog_that_does_not_open_is_one_line() -> None:
    def fail() -> Any:
        raise ConfigError("catalogs.local.uri", "is missing")

    notes = Notes()
    assert look_at_catalog(notes, DoctorCatalog("local", {}, fail), TrialSite(namespace=DB), None) == ()
    assert unwell(notes.result(0)) == [("settings", "wrong")]


def test_a_catalog_that_does_not_answer_is_not_committed_to(
    catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise UnavailableError("the catalog is out of reach")

    monkeypatch.setattr(catalog, "list_namespaces", fail)
    result = looked_at(catalog)
    assert unwell(result) == [("namespaces", "unavailable"), ("commit", "not-tried")]
    assert (result.status, catalog.swaps) == ("unavailable", [])


def test_a_commit_that_is_refused_is_told_and_the_table_goes(catalog: MemoryCatalog) -> None:
    catalog.follow(fails(UsageError("you may not write")))
    result = looked_at(catalog)
    assert unwell(result) == [("commit", "wrong")]
    assert (catalog.storage.files, catalog.list_tables(DB)) == ({}, [])


@pytest.mark.parametrize("step", [CONFLICTS, IS_UNKNOWN], ids=["conflict", "unknown"])
def test_commits_that_never_land_are_told(catalog: MemoryCatalog, step: Any) -> None:
    catalog.follow(*[step] * 20)
    result = looked_at(catalog)
    assert [check for check, _ in unwell(result)] == ["commit"]
    assert catalog.list_tables(DB) == []


def test_a_catalog_that_takes_a_late_commit_is_told(catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = catalog.swap

    def careless(table: Table, requirements: Any, updates: Any) -> Any:
        current = catalog.load(table.identifier)
        return (
            Committed(current)
            if current.metadata_location != table.metadata_location
            else swap(table, requirements, updates)
        )

    monkeypatch.setattr(catalog, "swap", careless)
    result = looked_at(catalog)
    assert unwell(result) == [("commit on an old version", "wrong")]
    assert "commits of others are lost" in result.findings[-2].message


def test_a_table_that_cannot_be_dropped_is_named(catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise UnavailableError("no answer")

    monkeypatch.setattr(catalog, "drop", fail)
    result = looked_at(catalog)
    assert unwell(result) == [("drop table", "wrong")]
    ((_, name),) = catalog.list_tables(DB)
    assert name.startswith(NAME_PREFIX)
    assert f"table 'db.{name}' of this run may be left behind: no answer" in result.findings[-1].message


@pytest.mark.parametrize("is_there", [False, True])
def test_a_creation_of_which_nobody_knows_is_looked_after(
    catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    create = catalog.create

    def lose_answer(*arguments: Any) -> Any:
        if is_there:
            create(*arguments)
        raise OutcomeUnknownError("the connection was lost")

    monkeypatch.setattr(catalog, "create", lose_answer)
    result = looked_at(catalog)
    assert unwell(result) == [("create table", "wrong")] + [("drop table", "not-tried")] * (not is_there)
    assert (catalog.storage.files, catalog.list_tables(DB)) == ({}, [])


def test_tables_of_others_are_left_alone(catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a server puts all tables into one directory."""
    shared = "memory://lake/shared"
    catalog.storage.create(f"{shared}/data/theirs.parquet", b"theirs")
    monkeypatch.setattr(catalog, "default_location", lambda _: shared)
    result = looked_at(catalog)
    assert unwell(result) == []
    assert "what else lies below 'memory://lake/shared' is left alone" in result.findings[-1].message
    assert {*catalog.storage.files} == {f"{shared}/data/theirs.parquet"}


def test_an_interrupt_in_the_middle_drops_the_table(catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    load = catalog.load

    def interrupt(_: Any) -> Any:
        monkeypatch.setattr(catalog, "load", load)
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        looked_at(catalog)
    assert catalog.load == load
    assert (catalog.storage.files, catalog.list_tables(DB)) == ({}, [])


def test_without_warehouse_the_location_of_a_table_is_checked(catalog: MemoryCatalog) -> None:
    warehouse, catalog.warehouse = catalog.warehouse, None
    catalog.default_location = lambda identifier: f"{warehouse}/{'/'.join(identifier)}"  # type: ignore[method-assign]
    assert unwell(looked_at(catalog, None)) == [("store", "not-tried"), ("commit", "not-tried")]
    result = looked_at(catalog)
    assert unwell(result) == []
    assert [one.check for one in result.findings][3:] == ["create table", *STORE, *COMMITS[1:]]
    assert NAME_PREFIX in result.findings[4].about
    assert catalog.storage.files == {}


def test_a_location_stands_in_for_the_warehouse(catalog: MemoryCatalog) -> None:
    result = looked_at(catalog, None, "memory://lake/elsewhere")
    assert {one.about for one in result.findings} == {"catalog local", "store memory://lake/elsewhere"}


def test_packages_that_the_catalog_takes_are_looked_at(catalog: MemoryCatalog) -> None:
    needs = Needs(Requirement("Python"), (Requirement("requests", ((">=", "99"),), "catalogs"),))
    notes = Notes()
    look_at_catalog(notes, DoctorCatalog("local", {"type": "rest"}, lambda: catalog), TrialSite(), needs)
    first = notes.result(0).findings[0]
    assert (first.about, first.check, first.status) == ("catalog local", "package requests", "wrong")
    assert "pip install 'requests>=99'" in first.message


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sql", "filesystem"])
def test_a_real_catalog_on_the_local_disk_is_left_as_it_was(tmp_path: Path, kind: str) -> None:
    lake = Lake(tmp_path, kind)
    before = sorted(tmp_path.rglob("*"))
    result = looked_at(lake.catalog)
    assert unwell(result) == []
    assert sorted(tmp_path.rglob("*")) == before
    assert lake.catalog.list_namespaces() == [DB]
    assert lake.catalog.list_tables(DB) == []


@pytest.mark.slow
def test_beside_a_table_of_a_user_s_too(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.filled(commits=1, files=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".db"}
    assert unwell(looked_at(lake.catalog)) == []
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".db"} == before


def test_a_new_sql_catalog_makes_no_database_and_no_directory(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/x/catalog.db", "warehouse": f"file://{tmp_path}/wh"}
    assert unwell(looked_at(open_catalog("local", properties), None)) == [
        ("namespaces", "wrong"),
        ("commit", "not-tried"),
    ]
    assert list(tmp_path.iterdir()) == []


def test_catalog_property_error_says_where_it_is_set(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/none.db", "warehouse": f"file://{tmp_path}/wh"}
    settings = CatalogSettings("local", properties, dict.fromkeys(properties, "my.yaml, line 3"))
    notes = Notes()
    look_at_catalog(
        notes,
        DoctorCatalog("local", properties, lambda: open_settings(settings), placing=settings.placing),
        TrialSite(),
        None,
    )
    (told,) = [one for one in notes.result(0).findings if one.status == "wrong"]
    assert told.message.endswith("(my.yaml, line 3)")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deno", "has no tables of catalog 'deno', but of 'demo'; a new catalog has none, and where"),
        ("other", "catalog 'other', but of 'bar', 'baz', 'demo' and 1 more; a new catalog has none"),
    ],
)
def test_catalog_without_tables_may_be_new_or_misnamed(tmp_path: Path, name: str, said: str) -> None:
    """In a database with tables of other catalogs, an empty one may come of a mistyped name."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/wh"}
    for known in ("demo", "bar", "baz", "foo"):
        catalog = open_catalog(known, properties)
        catalog.create_namespace(DB)
        catalog.create((*DB, "t"), simple_metadata(f"file://{tmp_path}/wh/{known}"))
    (told,) = [one for one in looked_at(open_catalog(name, properties), None).findings if one.check == "namespaces"]
    assert (told.status, said in told.message) == ("ok", True)
    (told,) = [one for one in looked_at(open_catalog("demo", properties), None).findings if one.check == "namespaces"]
    assert (told.status, "tables of" in told.message) == ("ok", False)


@pytest.mark.parametrize(("theirs_ms", "said"), [(None, "is a file"), (1_700_000_000_000, "within 5 s")])
def test_a_database_s_clock_is_held_against_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs_ms: int | None, said: str
) -> None:
    catalog = clocked(tmp_path, monkeypatch, theirs_ms)
    (clock,) = [one for one in looked_at(catalog, None).findings if one.check == "clock" and "catalog" in one.about]
    assert (clock.status, said in clock.message) == ("ok", True)


def test_a_database_s_clock_that_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = clocked(tmp_path, monkeypatch, 1_700_000_060_000)
    (clock,) = [one for one in looked_at(catalog, None).findings if one.check == "clock" and "catalog" in one.about]
    assert clock.status == "wrong"
    assert "the clock of the catalog's database is 60 s ahead" in clock.message


def clocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs_ms: int | None) -> SqlCatalog:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/wh"}
    catalog = open_catalog("local", properties, FakeRuntime())
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace(("db",))
    monkeypatch.setattr(catalog, "clock_ms", lambda: theirs_ms)
    return catalog
