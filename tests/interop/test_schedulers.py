"""The examples of docs/schedules.md in a real Dagster and a real Prefect: what is tried again, what fails, what is passed on."""

import json
import os
import subprocess

import pytest

from icekeep.tables.verbs import append, create_table
from kit.lake import SCHEMA, Lake, events
from kit.shell import BIN, ROOT

pytestmark = pytest.mark.nightly

EXAMPLES = ROOT / "docs" / "deploy" / "schedules" / "orchestrators"
PYTHON = ROOT / ".venv-schedulers" / "bin" / "python"
STATUSES = (0, 1, 2, 3, 4, 5, 75)
FAKE = """#!/bin/sh
echo called >>"$0.calls"
while [ "$1" != --result-file ]; do shift; done
echo '{"status": "partial", "result": {"done_jobs_count": 4, "failed_jobs_count": 0}ERROR}' >"$2"
echo 'looking at tables' >&2
exit STATUS
"""
ERROR = ', "error": {"message": "no answer", "help": "icekeep help unavailable"}'


@pytest.fixture(scope="module", params=["dagster", "prefect"])
def seen(request, tmp_path_factory):
    """What became of a run for each exit status, and how often it was begun; and a run of icekeep itself."""
    directory = tmp_path_factory.mktemp("scheduler")
    lake = Lake(directory)
    table = create_table(lake.catalog, ("db", "sick"), SCHEMA)
    for number in range(6):
        table = append(table, [events(number, 4)])
    configuration = {
        "catalogs": {"local": {**lake.properties}},
        "policies": [{"name": "n", "schedule": "@daily", "match": "local.**", "jobs": {"compact": {}}}],
    }
    (directory / "icekeep.yaml").write_text(json.dumps(configuration))
    programs = {}
    for status in STATUSES:
        programs[status] = directory / f"icekeep-{status}"
        error = ERROR if status in (1, 2, 4, 5, 75) else ""
        programs[status].write_text(FAKE.replace("STATUS", str(status)).replace("ERROR", error))
        programs[status].chmod(0o755)
    real = directory / "icekeep"
    real.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}/lib" exec "{BIN}/icekeep" "$@"\n')
    real.chmod(0o755)
    done = subprocess.run(
        [
            str(PYTHON),
            str(ROOT / "tests" / "kit" / "schedulers_probe.py"),
            request.param,
            *map(str, [*programs.values(), real]),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "DAGSTER_HOME": str(directory),
            "PYTHONPATH": str(EXAMPLES),
            "ICEKEEP_CONFIG": str(directory / "icekeep.yaml"),
            "ICEKEEP_RETRY_SECONDS": "0",
            "DO_NOT_TRACK": "1",
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    calls = {status: len(path.with_name(f"{path.name}.calls").read_text().split()) for status, path in programs.items()}
    return told, {status: told[str(path)] for status, path in programs.items()}, calls, told[str(real)]


def test_only_75_is_tried_again(seen):
    _, by_status, calls, _ = seen
    assert {status for status, told in by_status.items() if told["ok"]} == {0}
    assert calls == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 75: 5}


def test_a_failure_says_in_one_line_why(seen):
    _, by_status, _, _ = seen
    assert by_status[4]["message"] == "icekeep ended with exit status 4: no answer (icekeep help unavailable)"
    assert by_status[3]["message"] == "icekeep ended with exit status 3: it is partial"


def test_the_result_is_passed_on(seen):
    _, by_status, _, real = seen
    fake, own = ((one.get("result") or one["figures"]["result"])["result"] for one in (by_status[0], real))
    assert fake["done_jobs_count"] == 4
    assert (own["done_jobs_count"], own["failed_jobs_count"]) == (1, 0)
    if "figures" in real:
        assert real["figures"]["done_jobs_count"] == 1
        assert "failed_jobs_count" not in real["figures"]


def test_dagster_has_the_job_and_its_schedule(seen):
    told = seen[0]
    if "definitions" in told:
        assert told["definitions"] == {"job": "maintain", "cron": "0 2 * * *"}
