"""Ended runs appended to an Iceberg table, on disk, read by PyIceberg."""

from datetime import UTC, datetime

import pytest

from icekeep.errors import ConflictError, UnavailableError, UsageError
from icekeep.run_records.iceberg_table import append_runs
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunRecord
from icekeep.tables.verbs import create_table
from kit.lake import SCHEMA, Lake
from kit.memory_catalog import CONFLICTS, MemoryCatalog, fails

NOW_MS = 1_700_000_000_123
RUNS = ("ops", "runs")
AWAY = UnavailableError("the catalog is out of reach")

pytestmark = pytest.mark.slow


def record(run_id, **fields):
    return RunRecord(
        **{
            "run_id": run_id,
            "job": "compact",
            "table": "lake.db.t",
            "started_ms": NOW_MS,
            "ended_ms": NOW_MS + 5,
            "seen_ms": NOW_MS + 5,
            "status": "done",
            "exit_status": 0,
            **fields,
        }
    )


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


def rows(lake):
    table = lake.foreign_catalog().load_table(RUNS)
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["run_id"])


def test_the_table_is_made_and_runs_are_rows_of_it(lake):
    append_runs(
        lake.catalog,
        RUNS,
        record("compact-1", arguments={"where": "a = 1"}, result={"n": 1}, snapshot_id_after=2**62, policy="nightly"),
        None,
    )
    append_runs(lake.catalog, RUNS, record("compact-2", status="failed", exit_status=75, error_kind="conflict"), None)
    first, second = rows(lake)
    moment = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert (first["run_id"], first["started_at"], first["policy"]) == ("compact-1", moment, "nightly")
    assert (first["arguments"], first["result"], first["snapshot_id_after"]) == ('{"where":"a = 1"}', '{"n":1}', 2**62)
    assert (second["status"], second["exit_status"], second["error_kind"]) == ("failed", 75, "conflict")
    assert (second["result"], second["table_name"]) == (None, "lake.db.t")


def test_child_runs_are_appended_with_parent_in_one_commit(lake, tmp_path):
    records = RunRecords.at(f"sqlite:///{tmp_path}/runs.db")
    for number in range(3):
        records.end(record(f"compact-{number}", parent_id="maintain-1"))
    records.begin(record("compact-8", parent_id="maintain-1", status="running", exit_status=None, ended_ms=None))
    records.end(record("compact-9", parent_id="maintain-2"))
    append_runs(lake.catalog, RUNS, record("maintain-1", job="maintain", table=""), records)
    assert [row["run_id"] for row in rows(lake)] == ["compact-0", "compact-1", "compact-2", "maintain-1"]
    assert len(lake.catalog.load(RUNS).metadata.snapshots) == 1


def catalog_with_a_table():
    catalog = MemoryCatalog()
    append_runs(catalog, RUNS, record("compact-0"), None)
    return catalog


def test_many_who_append_at_once_are_waited_for():
    catalog = catalog_with_a_table()
    catalog.follow(*[CONFLICTS] * 40)
    append_runs(catalog, RUNS, record("compact-1"), None)
    assert len(catalog.load(RUNS).metadata.snapshots) == 2
    assert not any(key.startswith("commit.") for key in catalog.load(RUNS).metadata.properties)


def test_no_run_waits_for_long_to_be_written_down():
    for step, error in ((CONFLICTS, ConflictError), (fails(AWAY), UnavailableError)):
        catalog = catalog_with_a_table()
        catalog.follow(*[step] * 10_000)
        began_ms = catalog.runtime.monotonic_ms()
        with pytest.raises(error):
            append_runs(catalog, RUNS, record("compact-1"), None)
        assert 10_000 < catalog.runtime.monotonic_ms() - began_ms < 25_000


def test_a_table_of_something_else_is_left_as_it_is(lake):
    lake.catalog.create_namespace(RUNS[:-1])
    create_table(lake.catalog, RUNS, SCHEMA)
    with pytest.raises(UsageError):
        append_runs(lake.catalog, RUNS, record("compact-1"), None)
    assert lake.catalog.load(RUNS).current_snapshot is None
