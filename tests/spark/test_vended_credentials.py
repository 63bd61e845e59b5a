"""Jobs whose credentials end again and again while they run, on the driver and in tasks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.open import open_catalog
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.planning.scan.report import plan_scan
from icekeep.runtime import SYSTEM
from icekeep.storage import vended
from icekeep.tables.verbs import append, create_table
from kit.lake import EVENTS, SCHEMA, events
from kit.object_store import ObjectStore
from kit.rest_server import Vending

USES = 15


@pytest.fixture
def vending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vending]:
    monkeypatch.setattr(vended, "_newest", {})
    store = ObjectStore()
    vending = Vending(tmp_path, store, uses=USES)
    yield vending
    vending.close()
    store.close()


def test_a_compaction_and_an_expiration_go_on_after_their_credentials_have_ended(
    vending: Vending, spark_session: SparkSession
) -> None:
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
