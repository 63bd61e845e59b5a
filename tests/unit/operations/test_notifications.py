"""Who is sent a message when a command has ended, by whole command lines over fake jobs, to real servers on this machine."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from icekeep import cli
from icekeep.errors import ConflictError, OutcomeUnknownError, SafetyError, TryAgainError
from icekeep.operations import listeners
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.shown.notification import message_of
from icekeep.secrets import masked, without_secrets
from icekeep.telemetry.notifications import checked_receiver
from kit import fake_jobs
from kit.cases import for_each
from kit.fake_jobs import FAILURES, JOBS, SEAMS
from kit.pages import configurations
from kit.runtime import FakeRuntime
from kit.shell import restored_logging
from kit.small_servers import http_sink, mail_server

CATALOG = "catalogs: {local: {type: sql, uri: 'sqlite:///x.db'}}\n"
COMPACT = ("compact", "--table", "db.t", "--output", "json")
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


@pytest.fixture(autouse=True)
def _world(tmp_path, monkeypatch):
    fake_jobs.forget()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "conf").mkdir()
    # A machine that is busy with other tests may take seconds to import what is sent by.
    monkeypatch.setattr(listeners, "_NOTIFYING_MS", 60_000)
    with restored_logging():
        yield


def configure(tmp_path, *entries):
    text = json.dumps({"notifications": [*entries]})
    (tmp_path / "conf" / "icekeep.yaml").write_text(CATALOG + f"notifications: {json.loads(text)['notifications']}\n")


def run(*words, jobs=JOBS):
    return cli.main(list(words), None, jobs=jobs, seams=SEAMS, runtime=FakeRuntime())


def webhook(server, path=""):
    return server.url.replace("http://", "json://") + path


def received(server):
    return [json.loads(one.body) for one in server.requests]


def warnings_of(err):
    return [line for line in err.splitlines() if line.startswith("warning: ")]


@pytest.mark.server
def test_refusal_is_notified_with_page_and_run_not_success(tmp_path, capsys):
    with http_sink() as server:
        configure(tmp_path, {"url": webhook(server)})
        assert run(*COMPACT) == 0
        assert server.requests == []
        FAILURES.append(SafetyError("a file is too young"))
        capsys.readouterr()
        assert run(*COMPACT) == 4
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    [told] = received(server)
    assert told["title"] == "icekeep compact local.db.t: refused (exit status 4)"
    assert told["message"].splitlines() == ["a file is too young (icekeep help safety)", f"run {run_id}"]
    assert told["type"] == "failure"


@pytest.mark.server
def test_of_a_success_the_figures_are_sent(tmp_path):
    with http_sink() as server:
        configure(tmp_path, {"url": webhook(server), "when": ["success"]})
        assert run(*COMPACT) == 0
    [told] = received(server)
    assert told["title"] == "icekeep compact local.db.t: done (exit status 0)"
    assert "rewritten_data_files 12" in told["message"]
    assert told["type"] == "success"


@pytest.mark.server
@pytest.mark.parametrize(
    ("failure", "status", "ending"),
    [
        (None, 0, "success"),
        (ZeroDivisionError("x"), 1, "failure"),
        (OutcomeUnknownError("x"), 5, "failure"),
        (ConflictError("x"), 75, "retry"),
    ],
)
def test_each_hears_of_the_endings_that_it_asks_for(tmp_path, failure, status, ending):
    with http_sink() as server:
        entries = [
            {"url": webhook(server, f"/{one}"), "when": [one]}
            for one in ("success", "partial", "failure", "retry", "interrupted")
        ]
        configure(tmp_path, *entries)
        FAILURES.extend([failure] if failure else [])
        assert run(*COMPACT) == status
    assert [one.path for one in server.requests] == [f"/{ending}"]


@pytest.mark.server
def test_a_job_in_part_and_one_that_is_interrupted(tmp_path):
    with http_sink() as server:
        configure(tmp_path, {"url": webhook(server), "when": ["partial", "interrupted"]})
        for function, status in (("compact_in_part", 3), ("terminated", 143)):
            jobs = {"compact": replace(JOBS["compact"], run=f"kit.fake_jobs:{function}")}
            assert run(*COMPACT, jobs=jobs) == status
    assert [(one["title"].rpartition(": ")[2], one["type"]) for one in received(server)] == [
        ("partial (exit status 3)", "warning"),
        ("interrupted (exit status 143)", "warning"),
    ]


@pytest.mark.server
def test_early_failure_is_notified_but_no_dry_run_or_other_job(tmp_path, capsys):
    """Commands that only look at tables are not notified of either."""
    with http_sink() as server:
        every = ["success", "partial", "failure"]
        configure(tmp_path, {"url": webhook(server), "when": every, "jobs": ["compact", "maintain"]})
        run(*COMPACT, "--dry-run")
        run("config", "show")
        run("plan_scan", "--table", "db.t")
        run("compact", "--table", "db.t", "--colour")
        run("maintain", "--list")
        assert server.requests == []
        assert run("maintain", "--policy", "nightly") == 2
    [told] = received(server)
    assert told["title"] == "icekeep maintain: failed (exit status 2)"


@pytest.mark.server
def test_undelivered_answer_is_notified_with_final_status(tmp_path):
    jobs = {"compact": replace(JOBS["compact"], for_people="kit.fake_jobs:not_shown")}
    with http_sink() as server:
        configure(tmp_path, {"url": webhook(server)})
        assert run("compact", "--table", "db.t", jobs=jobs) == 3
    assert [one["title"] for one in received(server)] == ["icekeep compact local.db.t: done (exit status 3)"]


@pytest.mark.server
def test_mail_is_sent_by_a_real_server_as_plain_lines(tmp_path):
    with mail_server() as server:
        address = f"mailto://127.0.0.1:{server.port}?from=icekeep@example.com&to=team@example.com&mode=insecure"
        configure(tmp_path, {"url": address})
        FAILURES.append(SafetyError("rows <a> & <b> differ"))
        assert run(*COMPACT) == 4
    [mail] = server.messages
    assert mail["Subject"] == "icekeep compact local.db.t: refused (exit status 4)"
    assert "team@example.com" in mail["To"]
    body = mail.get_body(("plain",))
    assert body.get_content().splitlines()[0] == "rows <a> & <b> differ (icekeep help safety)"


@pytest.mark.server
@for_each("address", [SLACK, "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"])
def test_slack_is_sent_what_it_takes(tmp_path, monkeypatch, address):
    from apprise.plugins.slack import NotifySlack

    fake_jobs.forget()
    monkeypatch.setenv("SLACK", address)
    with http_sink() as server:
        monkeypatch.setattr(NotifySlack, "webhook_url", f"{server.url}/services")
        configure(tmp_path, {"url": "${SLACK}"})
        FAILURES.append(SafetyError("no"))
        assert run(*COMPACT) == 4
    [request] = server.requests
    assert request.path == "/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    assert "no (icekeep help safety)" in request.body.decode()


@pytest.mark.server
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("down", "A Connection error occurred sending JSON notification to 127.0.0.1"),
        ("refusing", "Failed to send JSON POST notification: Internal server error"),
        ("without its variable", "configuration key 'notifications[0].url': refers to environment variable 'NOT_SET'"),
        ("unknown", "apprise does not know this kind of address"),
        ("not installed", "apprise is not installed; icekeep[notify] brings apprise"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--verbose",), ("--log-format", "json")])
def test_failed_notification_hides_address_and_keeps_status(tmp_path, monkeypatch, capfd, how, why, more):
    secret = "S3cretPartOfIt"
    with http_sink(500) as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = {
            "down": f"json://127.0.0.1:{taken.getsockname()[1]}/{secret}",
            "refusing": webhook(server, f"/{secret}"),
            "without its variable": "${NOT_SET}",
            "unknown": f"nosuchservice://{secret}",
            "not installed": f"json://me:{secret}@127.0.0.1",
        }[how]
        if how == "not installed":
            monkeypatch.setitem(sys.modules, "apprise", None)
        configure(tmp_path, {"url": address, "when": ["success"]})
        assert run(*COMPACT, *more) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["status"] == "done"
    assert secret not in err
    said = [line for line in err.splitlines() if "cannot be notified" in line]
    assert len(said) == 1
    assert f"{masked('notifications[0].url', address)} cannot be notified: {why}" in said[0]
    assert "the exit status is 0 all the same" in said[0]


@pytest.mark.slow
@pytest.mark.server
def test_a_service_that_hangs_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(listeners, "_NOTIFYING_MS", 700)
    with http_sink(hangs=True) as server:
        configure(tmp_path, {"url": webhook(server), "when": ["success"]})
        assert run(*COMPACT) == 0
    [warning] = warnings_of(capsys.readouterr().err)
    assert "json://****** cannot be notified: it does not answer, and is left" in warning


def test_addresses_are_masked_where_the_configuration_is_shown(tmp_path, capsys):
    configure(tmp_path, {"url": SLACK}, {"url": "${MAIL}"}, {"url": "slack://${A}/${B}/xyzzy"})
    assert run("config", "show", "--output", "json") == 0
    out = capsys.readouterr().out
    shown = {one["key"]: one["value"] for one in json.loads(out)["result"]["values"]}
    assert [shown[f"notifications[{number}].url"] for number in range(3)] == [
        "slack://******",
        "${MAIL}",
        "slack://******",
    ]
    assert "TIiaj" not in out + repr(parse_config((tmp_path / "conf" / "icekeep.yaml").read_text()).telemetry)


def test_foreign_error_text_loses_tokens_but_keeps_host():
    checked_receiver(SLACK)
    checked_receiver("json://me:hunter2pw@webhooks1.example.com/services/T0ken-Of-It")
    said = "POST https://webhooks1.example.com/services/T0ken-Of-It TIiajkdnlazkcOXrIdevi7FQ hunter2pw"
    assert without_secrets(said) == "POST https://webhooks1.example.com/services/****** ****** ******"


@for_each(
    ("entries", "problem"),
    [
        ("{}", "'notifications': should be a list, but is keys with values"),
        ("[{}]", "'notifications[0].url': is missing"),
        (
            "[{url: xyzzy}]",
            "'notifications[0].url': is not an address; give SERVICE://..., or a reference to a variable",
        ),
        ("[{url: 'slack://${A'}]", "'notifications[0].url': holds '${' that is no reference"),
        (
            "[{url: 'json://x', when: [broken]}]",
            "'notifications[0].when[0]': is 'broken'; there is success, partial, failure",
        ),
        ("[{url: 'json://x', when: [sucess]}]", "'notifications[0].when[0]': is 'sucess'; did you mean 'success'?"),
        (
            "[{url: 'json://x', when: []}]",
            "'notifications[0].when': is empty",
        ),
        ("[{url: 'json://x', jobs: [report]}]", "'notifications[0].jobs[0]': is 'report'; "),
        ("[{url: 'json://x', at: x}]", "'notifications[0].at': there is no such key"),
    ],
)
def test_configuration_error_does_not_show_address(tmp_path, capsys, entries, problem):
    (tmp_path / "conf" / "icekeep.yaml").write_text(f"{CATALOG}notifications: {entries}\n")
    assert run(*COMPACT) == 2
    err = capsys.readouterr().err
    assert f"icekeep: configuration key {problem}" in err
    assert "xyzzy" not in err


def test_the_addresses_that_the_page_shows_are_taken(monkeypatch):
    page = Path(__file__).parents[3] / "docs" / "notifications.md"
    [text] = configurations(page)
    shown = [one.url for one in parse_config(text).telemetry.notifications]
    assert len(shown) == 3
    shown += re.findall(r"`([a-z]+://[^`]+)`", page.read_text().partition("## When")[0])
    assert len(shown) >= 9
    for url in shown:
        if "://..." in url or url.startswith("https:") or url == "${SLACK_URL}":
            continue
        told = (
            url.replace("slack://A/B/C", SLACK).replace("HOST:PORT", "example.com:8080").replace("HOST", "example.com")
        )
        told = told.replace("from=...&to=...", "from=a@example.com&to=b@example.com")
        assert checked_receiver(told.replace("${MAIL_PASSWORD}", "x")), url


def document_of_maintain(**result):
    counts = {"due_jobs_count": 0, "done_jobs_count": 0, "tables": [], "not_read": [], "failing": []}
    return {"job": "maintain", "run_id": "maintain-1", "status": "partial", "result": {**counts, **result}}


def job(name, status, why, kind=None):
    return {"job": name, "status": status, "why": why, "error_kind": kind}


def test_of_a_night_what_needs_attention_is_named():
    tables = [
        {"table": "a.b.good", "jobs": [job("compact", "done", "x"), job("check", "not_due", "y")]},
        {
            "table": "a.b.bad",
            "jobs": [job("compact", "failed", "the disk is full", "job-failed"), job("check", "faulty", "z")],
        },
    ]
    message = message_of(
        document_of_maintain(
            due_jobs_count=12_345,
            done_jobs_count=12_000,
            failed_jobs_count=1,
            not_begun_jobs_count=2,
            tables=tables,
            not_read=[{"name": "a.b.c", "kind": "invalid-table", "reason": "cut short"}],
            failing=[
                {"table": "a.b.bad", "job": "compact", "why": "the disk is full"},
                {"table": "a.b.old", "job": "compact", "why": "too young"},
            ],
        ),
        3,
    )
    assert message.title == "icekeep maintain: partial (exit status 3)"
    assert message.body.splitlines() == [
        "12,000 of 12,345 due jobs done, 1 failed, 2 not begun",
        "failed: a.b.bad compact: the disk is full (icekeep help job-failed)",
        "faulty: a.b.bad check: z (icekeep help partial)",
        "not read: a.b.c: cut short (icekeep help invalid-table)",
        "failing repeatedly: a.b.old compact: too young",
        "run maintain-1",
    ]


def test_job_on_pattern_names_only_tables_needing_attention():
    failed = {"error_kind": "safety", "error_message": "no"}
    well = {"error_kind": None, "error_message": None}
    result = {
        "tables_count": 3,
        "failed_tables_count": 1,
        "not_read": [{"name": "lake.x.*", "kind": "unavailable", "reason": "away"}],
        "tables": [
            {"table": "lake.air.a", "status": "refused", **failed},
            {"table": "lake.air.b", "status": "faulty", **well},
            {"table": "lake.air.c", "status": "sound", **well},
        ],
    }
    arguments = {"match": "lake.**"}
    told = message_of(
        {"job": "check", "run_id": "check-1", "status": "partial", "arguments": arguments, "result": result}, 3
    )
    assert told.title == "icekeep check lake.**: partial (exit status 3)"
    assert told.body.splitlines() == [
        "tables 3, failed_tables 1",
        "refused: lake.air.a: no (icekeep help safety)",
        "faulty: lake.air.b (icekeep help partial)",
        "not read: lake.x.*: away (icekeep help unavailable)",
    ]


def test_a_message_is_short_and_moves_no_cursor():
    rows = [{"name": f"a.b.t{n}", "kind": "error", "reason": "x\x1b[2J" * 200} for n in range(40)]
    lines = message_of(document_of_maintain(not_read=rows), 3).body.splitlines()
    assert lines[0] == "no job was due"
    assert lines[-2:] == ["and 30 more", "run maintain-1"]
    assert len(lines) == 13
    assert max(map(len, lines)) < 1000
    assert "\x1b" not in "".join(lines)


def test_a_run_that_is_to_be_tried_again_is_a_warning():
    error = {"kind": "unavailable", "message": "no answer", "help": ""}
    told = message_of({"job": "maintain", "exit_status": 75, "error": error}, TryAgainError.exit_status)
    assert (told.title, told.kind) == ("icekeep maintain: try again later (exit status 75)", "warning")
