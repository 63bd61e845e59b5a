"""docs/schedules.md: what it shows are its files, and their commands do on a lake what the page says."""

import json
import os
import re
import shutil
import subprocess
from configparser import RawConfigParser
from importlib import import_module
from pathlib import Path
from urllib.parse import urlparse

import pytest

from icekeep.tables.verbs import append, create_table
from kit.lake import SCHEMA, events
from kit.pages import blocks
from kit.shell import BIN, ROOT, Operator
from kit.small_servers import http_sink

SCHEDULES = ROOT / "docs" / "deploy" / "schedules"
PAGE = ROOT / "docs" / "schedules.md"
BARE = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "PYTHONPATH": f"{ROOT}/lib"}
"""What a scheduler gives a process; the package is that of this checkout."""

POLICIES = """
policies:
  - {name: nightly, schedule: "0 2 * * *", match: local.db.*, jobs: {compact: {when: {small_files_over: 4}}}}
"""


@pytest.fixture
def fleet(operator: Operator) -> Operator:
    """Two tables, of which one has a job that is due."""
    operator.conf.write_text(operator.conf.read_text() + POLICIES)
    for name, count in (("calm", 1), ("sick", 6)):
        table = create_table(operator.lake.catalog, ("db", name), SCHEMA)
        for number in range(count):
            table = append(table, [events(number, 4)])
    return operator


def files_of(operator: Operator) -> set[Path]:
    return {path for path in operator.lake.directory.rglob("*.parquet") if "/data/" in str(path)}


def placed(text: str, operator: Operator) -> str:
    """An example with the paths of this machine in the place of those that it shows."""
    directory = operator.lake.directory
    for shown, real in {
        "/opt/icekeep/bin": BIN,
        "/etc/icekeep/icekeep.yaml": operator.conf,
        "/etc/icekeep": directory,
        "/var/log/icekeep": directory,
    }.items():
        text = text.replace(shown, str(real))
    return text


def test_the_page_shows_the_files_as_they_are() -> None:
    shown = [block.text for block in blocks(PAGE)]
    units = ("icekeep-maintain.service", "icekeep-maintain.timer")
    for name in ("crontab", *units, "orchestrators/dagster_icekeep.py", "orchestrators/prefect_icekeep.py"):
        assert (SCHEDULES / name).read_text() in [text if text.endswith("\n") else f"{text}\n" for text in shown], name


def crontab(operator: Operator) -> tuple[dict[str, str], str]:
    """The variables that it sets, and its command, as cron takes both."""
    lines = [line for line in placed((SCHEDULES / "crontab").read_text(), operator).splitlines() if line[:1] not in "#"]
    variables = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    [entry] = [line for line in lines if line and not re.match(r"\w+=", line)]
    *when, command = entry.split(maxsplit=5)
    assert len(when) == 5
    assert "%" not in command, "cron takes it for the end of a line"
    assert variables.keys() == {"MAILTO", "ICEKEEP_CONFIG", "LOG", "SECRETS"}, (
        "cron's mails have all of them in a header"
    )
    return variables, command


def in_cron(operator: Operator, command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command],
        env={**BARE, "HOME": str(operator.lake.directory), **variables},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_cron_sends_no_mail_of_a_good_night_and_one_line_of_another(fleet: Operator) -> None:
    variables, command = crontab(fleet)
    log, secrets = Path(variables["LOG"]), Path(variables["SECRETS"])
    lost = in_cron(fleet, command, variables)
    assert re.fullmatch(rf"icekeep maintain: exit status [12], see {re.escape(str(log))}\n", lost.stdout), (
        "as shells differ"
    )
    secrets.touch()
    before = files_of(fleet)
    planned = in_cron(fleet, command.replace(" maintain ", " maintain --dry-run "), variables)
    assert (planned.returncode, planned.stdout, planned.stderr) == (0, "", "")
    assert "local.db.sick" in log.read_text()
    assert files_of(fleet) == before

    done = in_cron(fleet, command, variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "maintain: done" in log.read_text()
    assert files_of(fleet) > before

    Path(urlparse(fleet.lake.catalog.load(("db", "calm")).metadata_location).path).write_text("{")
    with http_sink() as server:
        secrets.write_text(f"CHAT='{server.url.replace('http:', 'json:')}'\n")
        told = {"notifications": [{"url": "${CHAT}"}]}
        fleet.conf.write_text(fleet.conf.read_text() + json.dumps(told)[1:-1] + "\n")
        bad = in_cron(fleet, command, variables)
    assert bad.stdout == f"icekeep maintain: exit status 3, see {log}\n"
    [message] = [json.loads(one.body) for one in server.requests]
    assert message["title"] == "icekeep maintain: partial (exit status 3)"
    assert re.match(
        r"no job was due\nnot read: local\.db\.calm: .+ \(icekeep help invalid-table\)\nrun maintain-",
        message["message"],
    )


def unit(operator: Operator, name: str) -> RawConfigParser:
    parsed = RawConfigParser(strict=True, comment_prefixes=("#",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(placed((SCHEDULES / name).read_text(), operator))
    return parsed


def test_systemd_takes_the_units_and_the_service_starts_maintain(fleet: Operator, tmp_path: Path) -> None:
    service = unit(fleet, "icekeep-maintain.service")["Service"]
    assert service["Type"] == "oneshot"
    assert "75" not in service["RestartPreventExitStatus"].split()
    assert {service[key] for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp")} == {"yes"}
    assert unit(fleet, "icekeep-maintain.timer")["Timer"]["OnCalendar"]
    done = subprocess.run(
        [*service["ExecStart"].split(), "--dry-run"],
        env={**BARE, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "local.db.sick" in done.stdout
    if shutil.which("systemd-analyze") is None:
        return
    units = tmp_path / "units"
    units.mkdir()
    for name in ("icekeep-maintain.service", "icekeep-maintain.timer"):
        (units / name).write_text(placed((SCHEDULES / name).read_text(), fleet))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units.iterdir())],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # What it does not know it names, and ends with 0.
    assert (verified.returncode, verified.stderr) == (0, "")


def test_a_line_that_is_no_utf_8_does_not_end_the_run_of_an_orchestrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "icekeep"
    command.write_text("#!/bin/sh\nprintf 'a \\377\\nb\\n' >&2\nexit 75\n")
    command.chmod(0o755)
    monkeypatch.setenv("ICEKEEP", str(command))
    monkeypatch.syspath_prepend(str(SCHEDULES / "orchestrators"))
    process, lines = import_module("icekeep_process"), []
    with pytest.raises(process.Ended, match="ended with exit status 75"):
        process.run("maintain", say=lines.append)
    assert lines == ["a \ufffd", "b"]
