"""The report over a catalog: the worst first, and what cannot be read is told and ends nothing."""

import json
import re
import sys
import threading

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.errors import NotFoundError, UnavailableError, UsageError
from icekeep.health.prices import Prices
from icekeep.operations.console.output import format_json
from icekeep.operations.console.terminal import print_tables
from icekeep.operations.console.values import plain_values
from icekeep.reports.job import OUT_OF_REACH_MAX, report
from icekeep.reports.prometheus import prometheus_text
from icekeep.reports.values import ReportResult, report_shown
from icekeep.tables.verbs import append, create_table
from kit.job_world import World
from kit.lake import SCHEMA, events
from kit.reports import bare_table, full_table, report_of
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


def world_of(sizes):
    """A catalog with tables by name, each with so many files; the first is in a namespace of its own."""
    world = World(2)
    world.catalog.create_namespace(("raw",))
    for number, (name, files) in enumerate(sizes.items()):
        identifier = ("raw" if number == 0 else "db", name)
        table = create_table(world.catalog, identifier, SCHEMA, partition_by=[("at", "month")])
        for file in range(files):
            table = append(table, [events(file, 5)])
    return world


@pytest.fixture
def world():
    return world_of({"calm": 1, "some": 6, "sick": 20})


def spoil(world, identifier):
    location = world.catalog.find(identifier).metadata_location
    data, at = world.memory.files[location]
    world.memory.files[location] = (data[:40], at)


def test_all_tables_of_all_namespaces_are_told_the_worst_first(world):
    before = world.state()
    found = report(world.catalog, no_spark)
    assert [one.table for one in found.tables] == [
        "local.db.sick",
        "local.db.some",
        "local.db.events",
        "local.raw.calm",
    ]
    assert [one.score for one in found.tables] == sorted(one.score for one in found.tables)
    assert (found.status, found.tables_count, found.not_read) == ("done", 4, ())
    assert found.requests_count == sum(one.requests_count for one in found.tables)
    assert world.state() == before


def test_a_pattern_or_names_choose_tables(world):
    assert [one.table for one in report(world.catalog, no_spark, match="raw.*").tables] == ["local.raw.calm"]
    named = report(world.catalog, no_spark, tables=["db.some", ("raw", "calm")])
    assert [one.table for one in named.tables] == ["local.db.some", "local.raw.calm"]
    assert report(world.catalog, no_spark, match="other.*").tables == ()


@pytest.mark.parametrize(
    ("arguments", "error", "line"),
    [
        ({"match": "raw"}, UsageError, "can match no table"),
        ({"match": "raw.*", "tables": ["db.some"]}, UsageError, "give one of them"),
        ({"tables": ["db.nothing"]}, NotFoundError, "db.nothing"),
    ],
)
def test_a_wrong_question_is_one_line(world, arguments, error, line):
    with pytest.raises(error, match=line):
        report(world.catalog, no_spark, **arguments)


def test_metadata_that_does_not_load_is_told_with_its_fault(world):
    spoil(world, ("db", "some"))
    found = report(world.catalog, no_spark)
    [unread] = found.not_read
    assert (unread.name, unread.kind) == ("local.db.some", "invalid-table")
    assert [one.fault_id for one in unread.faults] == [101]
    assert (found.status, found.tables_count, len(found.tables)) == ("partial", 4, 3)


def test_a_manifest_list_that_is_gone_is_told_by_its_own_fault(world):
    table = world.catalog.load(("db", "some"))
    del world.memory.files[table.current_snapshot.manifest_list]
    [unread] = report(world.catalog, no_spark).not_read
    assert unread.kind == "missing-file"
    assert [one.fault_id for one in unread.faults] == [201]


def test_a_table_out_of_reach_does_not_stop_the_rest(world):
    gone = world.catalog.load(("db", "some")).current_snapshot.manifest_list

    def before(operation, location):
        if location == gone:
            raise UnavailableError("the store is away")

    world.storage.before = before
    found = report(world.catalog, no_spark)
    assert [(one.name, one.kind, one.reason) for one in found.not_read] == [
        ("local.db.some", "unavailable", "the store is away")
    ]
    assert len(found.tables) == 3


def test_unreachable_catalog_is_not_tried_table_by_table():
    world, loads = world_of({f"t{number:02}": 0 for number in range(40)}), []

    def away(operation, location):
        loads.append(operation)
        raise UnavailableError("out of reach")

    world.storage.before = away
    stores_alone = report(world.catalog, no_spark)
    assert ({one.reason for one in stores_alone.not_read}, loads.count("load")) == ({"out of reach"}, 41)
    loads.clear()

    listed = world.catalog.list_namespaces

    def list_namespaces():
        if loads:
            raise UnavailableError("out of reach")
        return listed()

    world.catalog.list_namespaces = list_namespaces
    found = report(world.catalog, no_spark)
    assert OUT_OF_REACH_MAX <= loads.count("load") < 2 * OUT_OF_REACH_MAX
    assert (found.tables_count, len(found.not_read), {one.kind for one in found.not_read}) == (41, 41, {"unavailable"})
    last = max(found.not_read, key=lambda one: one.name)
    assert last.reason == "not looked at: the catalog has gone out of reach"


def test_namespaces_that_pattern_cannot_match_are_not_listed(world, monkeypatch):
    listed, list_tables = [], type(world.catalog).list_tables

    def listing(self, namespace):
        listed.append(namespace)
        if namespace == ("raw",):
            raise UnavailableError("not for you")
        return list_tables(self, namespace)

    monkeypatch.setattr(type(world.catalog), "list_tables", listing)
    found = report(world.catalog, no_spark, match="db.s*")
    assert (found.status, listed) == ("done", [("db",)])
    assert report(world.catalog, no_spark).status == "partial"


def test_a_table_that_is_named_twice_is_looked_at_once(world):
    assert report(world.catalog, no_spark, tables=["db.some", ("db", "some")]).tables_count == 1


def test_what_nobody_has_thought_of_does_not_stop_the_rest(world):
    def before(operation, location):
        if "/some/" in location:
            raise ZeroDivisionError("by zero")

    world.storage.before = before
    [unread] = report(world.catalog, no_spark).not_read
    assert unread.kind == "unexpected"
    assert "ZeroDivisionError" in unread.reason
    assert "by zero" in unread.reason


@pytest.mark.parametrize("function", ["check_unreadable", "cheap_faults"])
def test_unexpected_error_in_fault_search_stops_no_report(world, monkeypatch, function):
    def broken(*_):
        raise RuntimeError("nobody has thought of this")

    if function == "check_unreadable":
        spoil(world, ("db", "sick"))
    else:
        del world.memory.files[world.catalog.load(("db", "sick")).current_snapshot.manifest_list]
    monkeypatch.setattr(f"icekeep.reports.job.{function}", broken)
    found = report(world.catalog, no_spark)
    assert [(one.name, one.faults) for one in found.not_read] == [("local.db.sick", ())]
    assert len(found.tables) == 3


def test_a_catalog_out_of_reach_is_an_error(world, monkeypatch):
    def away():
        raise UnavailableError("the catalog is away")

    monkeypatch.setattr(world.catalog, "list_namespaces", away)
    with pytest.raises(UnavailableError):
        report(world.catalog, no_spark)


def test_an_interrupt_ends_it_before_all_tables_are_looked_at():
    world = world_of({f"t{number}": 0 for number in range(40)})
    looked_at = []

    def before(operation, location):
        if operation == "load":
            looked_at.append(location)
            raise KeyboardInterrupt

    world.storage.before = before
    with pytest.raises(KeyboardInterrupt):
        report(world.catalog, no_spark)
    assert len(looked_at) < 40


def test_a_table_that_is_dropped_meanwhile_is_left_out(world, monkeypatch):
    load = world.catalog.load
    lock = threading.Lock()

    def dropping(identifier):
        with lock:
            if identifier == ("db", "some") and identifier in world.catalog.list_tables(("db",)):
                world.catalog.drop(identifier)
        return load(identifier)

    monkeypatch.setattr(world.catalog, "load", dropping)
    found = report(world.catalog, no_spark)
    assert (found.status, len(found.tables)) == ("done", 3)


def test_it_round_trips_as_json(world):
    spoil(world, ("db", "some"))
    found = report(world.catalog, no_spark, prices=Prices(core_hour=1.0, currency="EUR"))
    text = format_json(plain_values(found))
    assert msgspec.json.decode(text, type=ReportResult, strict=False) == found


def test_people_see_each_table_why_and_what_to_do(world, capsys):
    spoil(world, ("db", "some"))
    found = report(world.catalog, no_spark, prices=Prices(core_hour=3600.0, currency="EUR"))
    shown = report_shown(found)
    assert [row["table"] for row in shown["tables"]] == [one.table for one in found.tables]
    assert shown["tables"][0]["to_do"] == "compact, rewrite_manifests"
    assert any(line.startswith("local.db.sick files (-") for line in shown["why"])
    assert {row["cost"][-4:] for row in shown["to_do"]} == {" EUR"}
    [line] = shown["not_read"]
    assert line.startswith("local.db.some: cannot read")
    assert line.endswith("(faults: 101 unreadable-metadata; `icekeep check` tells more)")


@pytest.mark.parametrize(("cpu_ms", "shown"), [(0, "0.0"), (99, "< 0.1"), (100, "0.1"), (61_500, "61.5")])
def test_people_see_that_a_job_takes_some_time(cpu_ms, shown):
    jobs = (replace(full_table().jobs[0], cpu_ms=cpu_ms),)
    [row] = report_shown(report_of(full_table(jobs=jobs), bare_table()))["to_do"]
    assert row["core_s"] == shown


def test_people_see_all_of_one_table(world, capsys):
    import sys

    shown = report_shown(report(world.catalog, no_spark, tables=["db.sick"]))
    print_tables("one", shown, sys.stdout)
    out = capsys.readouterr().out
    for word in ("data.data_files_count", "####", "rewrite_position_deletes", "there are no position deletes", "main"):
        assert word in out


def test_metrics_have_a_value_for_each_table(world):
    from prometheus_client import parser as prometheus

    spoil(world, ("db", "some"))
    found = report(world.catalog, no_spark)
    families = {one.name: one for one in prometheus.text_string_to_metric_families(prometheus_text(found))}
    scores = {sample.labels["table"]: sample.value for sample in families["icekeep_table_score"].samples}
    assert scores == {one.table: one.score for one in found.tables}
    [unread] = families["icekeep_table_not_read"].samples
    named = {"catalog": "local", "namespace": "db", "table": "local.db.some"}
    assert (unread.labels, unread.value) == (named | {"kind": "invalid-table"}, 1)
    due = {(s.labels["table"], s.labels["job"]) for s in families["icekeep_job_has_work"].samples if s.value}
    assert due == {(one.table, job.job) for one in found.tables for job in one.to_do}
    assert all(re.fullmatch("icekeep_[a-z_]+", name) for name in families)


def test_without_the_package_the_error_says_what_to_install(world, monkeypatch):
    found = report(world.catalog, no_spark, match="raw.*")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"icekeep\[telemetry\] brings it"):
        prometheus_text(found)


def test_json_has_no_number_that_json_has_not(world):
    json.loads(format_json(plain_values(report(world.catalog, no_spark))), parse_constant=pytest.fail)
