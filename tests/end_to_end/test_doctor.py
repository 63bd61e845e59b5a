"""The doctor as an operator calls it: by hand, and by spark-submit, where executors are asked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.shell import BIN, ROOT, Finished, Operator


def run(operator: Operator, *words: str, submit: bool = False, **environment: str) -> Finished:
    program = [str(BIN / "spark-submit"), "--master", "local[2]", f"{ROOT}/jobs/doctor.py"]
    done = subprocess.run(
        [*(program if submit else [str(BIN / "icekeep"), "doctor"]), "--conf", str(operator.conf), *words],
        capture_output=True,
        text=True,
        env={**operator.environment(submit=submit), **environment},
        cwd=operator.conf.parent,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def unwell(done: Finished) -> dict[tuple[str, str], str]:
    """But for memory, which may be little where the tests run."""
    found: list[dict[str, Any]] = done.json["result"]["findings"]
    return {
        (one["about"], one["check"]): one["status"]
        for one in found
        if one["status"] != "ok" and one["check"] != "memory"
    }


def test_by_hand_all_but_executors_is_looked_at(operator: Operator) -> None:
    before = sorted(operator.conf.parent.rglob("*"))
    done = run(operator, "--namespace", "db", "--output", "json")
    assert unwell(done) == {("executors", "session"): "not-tried"}
    assert done.status == (0 if done.json["status"] == "ok" else 2)
    assert sorted(operator.conf.parent.rglob("*")) == before


def test_without_java_the_rest_is_told(operator: Operator, tmp_path: Path) -> None:
    done = run(operator, "--executors", "--output", "json", JAVA_HOME=str(tmp_path))
    assert done.status == 2
    assert unwell(done) == {
        ("driver", "java"): "wrong",
        ("catalog local", "commit"): "not-tried",
        ("executors", "session"): "wrong",
    }


def test_by_spark_submit_executors_are_asked(operator: Operator) -> None:
    done = run(operator, "--namespace", "db", "--output", "json", submit=True)
    assert unwell(done) == {("driver", "java"): "not-tried"}
    found = {(one["about"], one["check"]): one["message"] for one in done.json["result"]["findings"]}
    assert "master local[2]" in found["executors", "session"]
    assert "(executors: 1, hosts: 1)" in found["executors", "python"]


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a Python of the same version without our packages")
@pytest.mark.nightly
def test_executors_that_have_nothing_of_what_is_needed_are_told(operator: Operator) -> None:
    bare = getattr(sys, "_base_executable", sys.executable)
    done = run(operator, "--output", "json", submit=True, PYSPARK_PYTHON=bare)
    assert done.status == 2
    missing = {
        check.removeprefix("package "): status
        for (about, check), status in unwell(done).items()
        if about == "executors"
    }
    assert missing["pyarrow"] == missing["datafusion"] == "wrong"
    assert json.loads(done.out)["job"] == "doctor"
