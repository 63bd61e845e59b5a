"""docs/observability.md, the dashboard and the alerts name what there is: every metric, every field of a log line."""

import json
import logging
import re

import yaml

from icekeep.events import (
    CommitRetried,
    InRun,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepFinished,
    StepStarted,
    Warned,
)
from icekeep.fleet.values import MaintainResult
from icekeep.health.prices import Prices
from icekeep.maintenance.check.job import CheckResult
from icekeep.maintenance.compact.options import RewriteDataFilesResult
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile
from icekeep.maintenance.expire.job import ExpireSnapshotsResult
from icekeep.maintenance.orphans.job import RemoveOrphanFilesResult
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.console.logs import JsonLines
from icekeep.reports.job import merged, report
from icekeep.reports.prometheus import REPORT_METRICS, report_figures
from icekeep.reports.values import NotRead
from icekeep.tables.verbs import append, create_table
from icekeep.telemetry.figures import RUN_METRICS, RunTally
from kit.cases import for_each
from kit.expired_tables import written_plan
from kit.job_world import World
from kit.lake import SCHEMA, events
from kit.runtime import no_spark
from kit.shell import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "observability.md").read_text()
DASHBOARD = json.loads((DOCS / "grafana" / "icekeep.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DOCS / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
METRICS = {one.name: one for one in (*RUN_METRICS, *REPORT_METRICS)}
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())] + [
    rule["expr"] for rule in RULES
]


def test_the_page_lists_every_metric_as_it_is():
    rows = re.findall(r"^\| `(icekeep_\w+)` \| (\w+) \| ([\w, -]+) \| (.+) \|$", PAGE, re.MULTILINE)
    told = [(one.name, one.unit, ", ".join(one.labels) or "-", one.help) for one in (*RUN_METRICS, *REPORT_METRICS)]
    assert rows == told


def figures_of_runs():
    """Of a run of each kind of result, with all that can happen."""
    for result in (
        RewriteDataFilesResult(),
        ExpireSnapshotsResult(),
        RemoveOrphanFilesResult(),
        CheckResult(status="sound", is_deep=False),
        MaintainResult(status="done", run_id="x-1"),
    ):
        tally = RunTally(RunStarted(run_id="x-1", job="x", started_ms=0, table="a.b.c"))
        for event in (
            StepStarted("s"),
            StepFinished("s"),
            Warned("w"),
            CommitRetried("b.c", 1, 1, "r"),
            SnapshotCommitted("b.c", 1, "m"),
        ):
            tally.add(InRun("x-1", event), 0)
        yield from tally.figures(RunEnded(run_id="x-1", status="done", exit_status=0, ended_ms=1, result=result))


def figures_of_a_report():
    """Of a table that has all that is measured."""
    world = World(2)
    table = create_table(world.catalog, ("db", "more"), SCHEMA, partition_by=[("at", "month")])
    for number in range(3):
        table = append(table, [events(number, 5)])
    table = world.catalog.load(("db", "more"))
    for trash in (True, False):
        written_plan(
            table, [GarbageFile(FileKind.DATA, f"{table.metadata.location}/x", 7)], trash=trash, run=f"run-{trash}"
        )
    found = report(world.catalog, no_spark, prices=Prices(core_hour=1))
    return report_figures(merged([found], [NotRead(name="a.b.c", kind="x", reason="y")]))


def test_each_metric_of_a_run_is_told_by_some_run():
    found = {figure.metric for figure in figures_of_runs()}
    assert {one.name for one in found} == {one.name for one in RUN_METRICS}


def test_each_metric_of_a_table_is_told_by_some_report():
    found = {figure.metric.name for figure in figures_of_a_report()}
    rare = {"icekeep_table_last_maintenance_timestamp_seconds"}
    assert found | rare == {one.name for one in REPORT_METRICS}


def test_the_page_lists_the_fields_of_a_log_line():
    listed = re.findall(r"^\| `(\w+)` \| ", PAGE.partition("## Metrics")[0], re.MULTILINE)
    record = logging.LogRecord("icekeep.x", logging.ERROR, "", 1, "m", (), (ValueError, ValueError("x"), None))
    record.facts = {"a": 1}
    line = json.loads(JsonLines().format(record))
    assert [*line] == listed


def metrics_in(expression):
    """The metrics of an expression, each with the labels by which it is chosen."""
    for name, _, labels in re.findall(r"(icekeep_\w+)(\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels))


@for_each("expression", EXPRESSIONS)
def test_expressions_ask_for_metrics_that_there_are(expression):
    found = [*metrics_in(expression)]
    assert found
    for name, labels in found:
        assert labels <= {*METRICS[name].labels}


def test_the_dashboard_can_be_imported_anywhere():
    assert DASHBOARD["uid"] == "icekeep"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) > 15
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD["panels"])
    assert {*re.findall(r"\$\{?([a-z]\w*)", text)} <= variables
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if "datasource" in panel} == {"${datasource}"}
    for one in DASHBOARD["templating"]["list"]:
        for name, labels in metrics_in(one.get("definition", "")):
            assert {*labels, one["name"]} <= {*METRICS[name].labels}


def test_panels_do_not_lie_upon_each_other():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


@for_each("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_has_required_fields_and_known_labels(rule):
    assert rule["labels"]["severity"] in ("warning", "critical")
    labels = set.intersection(*({*METRICS[name].labels} for name, _ in metrics_in(rule["expr"])))
    assert {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])} <= labels


def test_the_page_tells_of_each_alert():
    rows = re.findall(r"^\| (`Icekeep[^|]*) \|", PAGE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {rule["alert"] for rule in RULES}


def test_commands_that_the_page_names_are_there():
    for words in re.findall(r"`icekeep ([a-z]+)", PAGE):
        assert words in COMMANDS or words in ("runs", "check")


def test_what_java_logs_has_the_form_of_a_log_line():
    text = (DOCS.parent / "conf" / "log4j2-json.properties").read_text()
    template = json.loads(re.search(r"eventTemplate = (.*)", text)[1])
    assert [*template] == ["time", "level", "message", "logger"]
