"""Tables in stores that tasks reach by themselves, and with credentials that end."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from icekeep.catalog.base import Catalog, Committed, Table
from icekeep.catalog.open import open_catalog
from icekeep.events import CommitRetried, Event, StepAdvanced
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire import run as execute
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.planning.scan.report import plan_scan
from icekeep.runtime import SYSTEM, SystemRuntime
from icekeep.spec.updates import SetProperties
from icekeep.storage import vended
from icekeep.tables.verbs import append, create_table
from kit.changes import Recorder
from kit.lake import EVENTS, SCHEMA, events, multiset
from kit.naive_scan import live_entries
from kit.object_store import ObjectStore
from kit.rest_server import RestServer, Vending
from kit.runtime import with_runtime
from kit.small_servers import TcpProxy

ARROW_IO = "pyiceberg.io.pyarrow.PyArrowFileIO"


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.close()


@pytest.fixture
def s3(store: ObjectStore) -> Mapping[str, str]:
    return {"type": "hadoop", "warehouse": f"s3://{store.new_bucket()}/wh", **store.properties()}


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    server = RestServer(tmp_path)
    yield server.properties
    server.close()


@pytest.fixture(params=["s3", "rest"])
def properties(request: pytest.FixtureRequest) -> Mapping[str, str]:
    return request.getfixturevalue(request.param)


@pytest.fixture
def catalog(properties: Mapping[str, str]) -> Catalog:
    catalog = open_catalog("remote", properties)
    catalog.create_namespace(("db",))
    return catalog


def rows(table: Table, properties: Mapping[str, str]) -> object:
    foreign = StaticTable.from_metadata(table.metadata_location, {**properties, "py-io-impl": ARROW_IO})
    return multiset(foreign.scan().to_arrow())


def test_every_job_runs_on_them(catalog: Catalog, properties: Mapping[str, str], spark_session: SparkSession) -> None:
    table = create_table(catalog, EVENTS, SCHEMA, partition_by=[("at", "month")])
    parts = [events(number, month=number % 2 + 1) for number in range(6)]
    for part in parts:
        table = append(table, part)
    written = multiset(pa.concat_tables(parts))
    result = compact(catalog.load(EVENTS), spark_session, options={"min-input-files": "2"})
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (6, 2)
    rewrite_manifests(catalog.load(EVENTS), spark_session)
    expired = expire_snapshots(
        catalog.load(EVENTS),
        spark_session,
        older_than=SYSTEM.now_ms() + 1000,
        retain_last=1,
        trash=0,
        options={"grace": "0"},
    )
    assert (expired.deleted_data_files_count, expired.failed_files_count, expired.missing_files_count) == (6, 0, 0)
    table = catalog.load(EVENTS)
    assert len(table.metadata.snapshots) == 1
    assert plan_scan(table, spark_session).data_files_count == 2
    assert rows(table, properties) == written
    left = [info.location for info in table.storage.list(f"{table.metadata.location}/data")]
    assert len(left) == 2
    assert not list(table.storage.list(f"{table.metadata.location}/.icekeep"))


def test_expiration_is_checked_again_if_the_base_changed(
    rest: Mapping[str, str], spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The REST server may apply the commit to a newer base than the one that was checked."""
    catalog = open_catalog("remote", rest)
    catalog.create_namespace(("db",))
    table = append(create_table(catalog, EVENTS, SCHEMA), events(0))
    compact(append(table, events(1)), spark_session, options={"rewrite-all": "true"})
    proofs: list[str] = []
    swap, prove = type(catalog).swap, execute.garbage_between

    def swap_after_another(self: Any, table: Table, *rest: Any) -> Any:
        # The server asserts references alone; what somebody else sets does not stand in the way.
        assert isinstance(swap(self, table, [], [SetProperties({"theirs": "1"})]), Committed)
        return swap(self, table, *rest)

    def counted(*arguments: Any, **named: Any) -> Any:
        proofs.append("planned" if len(arguments) > 3 and arguments[3] is not None else "again")
        return prove(*arguments, **named)

    monkeypatch.setattr(type(catalog), "swap", swap_after_another)
    monkeypatch.setattr(execute, "garbage_between", counted)
    told = {"older_than": SYSTEM.now_ms() + 1000, "retain_last": 1, "options": {"grace": "0"}}
    result = expire_snapshots(catalog.load(EVENTS), spark_session, **told)
    assert (result.deleted_data_files_count, proofs) == (2, ["planned", "again"])


class Waiting(SystemRuntime):
    """Sleeps pass at once; the proxy's server comes back when twenty seconds of them are over."""

    def __init__(self, proxy: TcpProxy) -> None:
        self.slept_ms = 0
        self._proxy: TcpProxy | None = proxy

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.slept_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.slept_ms += duration_ms
        if self.slept_ms >= 20_000 and self._proxy is not None:
            self._proxy.come_back()
            self._proxy = None


def test_compaction_commit_survives_a_catalog_outage(tmp_path: Path, spark_session: SparkSession) -> None:
    server = RestServer(tmp_path)
    proxy = TcpProxy(urlsplit(server.uri).port or 0)
    properties = {**server.properties, "uri": f"http://127.0.0.1:{proxy.port}"}
    catalog = open_catalog("remote", properties)
    catalog.create_namespace(("db",))
    table = create_table(catalog, EVENTS, SCHEMA, properties={"commit.retry.min-wait-ms": "4000"})
    parts = [events(number) for number in range(4)]
    for part in parts:
        table = append(table, part)

    def data_files() -> set[str]:
        return {info.location for info in table.storage.list(f"{table.metadata.location}/data")}

    before, rewritten = data_files(), set[str]()

    class Listening(Recorder):
        def on(self, event: Event) -> None:
            super().on(event)
            if isinstance(event, StepAdvanced):
                # The first request after the files are written is the one that a commit begins with.
                proxy.vanish(b"GET /v1/namespaces/db/tables/events", lambda: rewritten.update(data_files() - before))

    heard, runtime = Listening(), Waiting(proxy)
    result = compact(with_runtime(table, runtime), spark_session, options={"rewrite-all": "true"}, listener=heard)
    assert rewritten
    assert (result.status, result.commits_count, runtime.slept_ms > 20_000) == ("done", 1, True)
    assert sum(isinstance(event, CommitRetried) for event in heard.events) == 3
    after = catalog.load(EVENTS)
    assert {entry.data_file.file_path for entry in live_entries(after)} == rewritten
    assert rows(after, properties) == multiset(pa.concat_tables(parts))
    proxy.close()
    server.close()


def test_every_job_runs_with_an_empty_part_in_the_location(
    store: ObjectStore, spark_session: SparkSession, tmp_path: Path
) -> None:
    """As Glue and Hive name tables of a database whose location ends with a slash."""
    bucket = store.new_bucket()
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", **store.properties()}
    catalog = open_catalog("remote", {**properties, "warehouse": f"s3://{bucket}/wh"})
    catalog.create_namespace(("db",))
    table = create_table(catalog, EVENTS, SCHEMA, partition_by=[("at", "month")], location=f"s3://{bucket}/db//events")
    for number in range(4):
        table = append(table, events(number, month=number % 2 + 1))
    compact(catalog.load(EVENTS), spark_session, options={"min-input-files": "2"})
    rewrite_manifests(catalog.load(EVENTS), spark_session)
    told = {"trash": 0, "options": {"grace": "0"}}
    expired = expire_snapshots(
        catalog.load(EVENTS), spark_session, older_than=SYSTEM.now_ms() + 1000, retain_last=1, **told
    )
    assert (expired.deleted_data_files_count, expired.failed_files_count) == (4, 0)
    orphans = [f"{table.metadata.location}/data/{name}" for name in ("orphan.parquet", "/orphan.parquet")]
    for orphan in orphans:
        table.storage.create(orphan, b"nobody's")
    beside = f"s3://{bucket}/db/events/data/orphan.parquet"
    table.storage.create(beside, b"another's")
    store.make_older(bucket, timedelta(days=9))
    removed = remove_orphan_files(catalog.load(EVENTS), spark_session, **told)
    assert (removed.status, removed.deleted_files_count) == ("done", 2)
    table = catalog.load(EVENTS)
    assert [table.storage.head(orphan) for orphan in orphans] == [None, None]
    assert table.storage.head(beside) is not None
    assert plan_scan(table, spark_session).data_files_count == 2
    assert all(key.startswith(("db//events/", "db/events/data/orphan")) for key in store.keys(bucket))


USES = 15


@pytest.fixture
def vending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vending]:
    monkeypatch.setattr(vended, "_newest", {})
    store = ObjectStore()
    vending = Vending(tmp_path, store, uses=USES)
    yield vending
    vending.close()
    store.close()


def test_jobs_continue_after_their_credentials_expire(vending: Vending, spark_session: SparkSession) -> None:
    catalog = open_catalog("vending", vending.properties)
    catalog.create_namespace(("db",))
    table = create_table(
        catalog, EVENTS, SCHEMA, location=f"s3://{vending.bucket}/wh/events", partition_by=[("at", "month")]
    )
    parts = [events(number, month=number % 2 + 1) for number in range(8)]
    for part in parts:
        table = append(table, part)
    planned = catalog.load(EVENTS)
    # Those of the plan are gone before the first task has begun.
    vending.end_keys()
    handed_out = len(vending.keys)
    result = compact(planned, spark_session, options={"min-input-files": "2"})
    assert (result.status, result.rewritten_data_files_count, result.added_data_files_count) == ("done", 8, 2)
    assert len(vending.keys) > handed_out
    assert vending.store.ended_keys
    expired = expire_snapshots(
        catalog.load(EVENTS),
        spark_session,
        older_than=SYSTEM.now_ms() + 1000,
        retain_last=1,
        trash=0,
        options={"grace": "0"},
    )
    assert (expired.deleted_data_files_count, expired.failed_files_count) == (8, 0)
    table = catalog.load(EVENTS)
    assert plan_scan(table, spark_session).data_files_count == 2
