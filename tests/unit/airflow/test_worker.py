import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import icekeep
from icekeep.airflow import installation as installation_module
from icekeep.airflow.calls import JobOnTable
from icekeep.airflow.installation import SUBMITTED, Installation, Worker, recorded_document

pytestmark = pytest.mark.process


def installation(tmp_path, program):
    """A checkout whose library is a module `icekeep` that runs a program."""
    home = tmp_path / "home" / "lib" / "icekeep"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "__main__.py").write_text(program)
    return Installation(conf="/c.yaml", python=sys.executable, home=str(tmp_path / "home"))


def test_lines_go_on_and_the_status_comes_back(tmp_path):
    said = []
    where = installation(
        tmp_path, "import sys; print(sys.argv[1:], flush=True); print('é', file=sys.stderr); sys.exit(4)"
    )
    assert Worker(where, ["compact", "--table=t"], said.append).run() == 4
    assert said == ["['compact', '--table=t']", "é"]


def test_a_python_that_is_not_there_cannot_be_started(tmp_path):
    where = Installation(conf="c", python=str(tmp_path / "none"))
    with pytest.raises(OSError, match="none"):
        Worker(where, [], print).run()


SLEEPS = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *_: {then})
print(child.pid, flush=True)
time.sleep(600)
"""


class Watched:
    """The child of a process, which says its number."""

    def __init__(self, line):
        self._end = os.pidfd_open(int(line))

    def is_gone(self):
        readable, _, _ = select.select([self._end], [], [], 60)
        os.close(self._end)
        return bool(readable)


@pytest.mark.parametrize(("then", "status"), [("sys.exit(143)", 143), ("None", -signal.SIGKILL)])
def test_what_runs_is_asked_to_end_and_killed_with_its_children(tmp_path, monkeypatch, then, status):
    monkeypatch.setattr(installation_module, "PATIENCE_S", 0.2 if then == "None" else 60)
    found = []

    def say(line):
        thread = Thread(target=one.stop)
        thread.start()
        found.extend([Watched(line), thread])

    one = Worker(installation(tmp_path, SLEEPS.replace("{then}", then)), [], say)
    assert one.run() == status
    found[1].join()
    assert found[0].is_gone()


def test_what_interrupts_the_task_ends_what_runs(tmp_path):
    class Timeout(BaseException):
        pass

    def say(line):
        found.append(Watched(line))
        raise Timeout

    found = []
    one = Worker(installation(tmp_path, SLEEPS.replace("{then}", "sys.exit(143)")), [], say)
    with pytest.raises(Timeout):
        one.run()
    assert found[0].is_gone()


# It says its number; where the process above it is gone it says to a file whether it takes itself for abandoned.
ORPHAN = """
import os, pathlib, sys
sys.path.insert(0, {lib!r})
from icekeep.runtime import SYSTEM
above = os.pidfd_open(os.getppid())
print(os.getpid(), flush=True)
__import__("select").select([above], [], [])
pathlib.Path({told!r}).write_text(str(SYSTEM.is_abandoned()))
"""
TASK = """
import sys
sys.path.insert(0, {lib!r})
from icekeep.airflow.installation import Installation
from icekeep.airflow.installation import Worker
where = Installation(conf="c", python={python!r})
Installation.command = lambda self, words: [self.python, "-c", {child!r}]
Worker(where, [], lambda line: print(line, flush=True)).run()
"""


def test_process_of_killed_task_knows_it_is_abandoned(tmp_path):
    lib, told = str(Path(icekeep.__file__).parents[1]), tmp_path / "told"
    child = ORPHAN.format(lib=lib, told=str(told))
    task = subprocess.Popen(
        [sys.executable, "-c", TASK.format(lib=lib, python=sys.executable, child=child)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert task.stdout is not None
    one = Watched(task.stdout.readline())
    task.kill()
    task.wait()
    task.stdout.close()
    assert one.is_gone()
    assert told.read_text() == "True"


@pytest.mark.parametrize("words", [[str(SUBMITTED)], ["-P", "-m", "icekeep"]])
def test_what_is_installed_is_any_command_of_icekeep(words):
    done = subprocess.run(
        [sys.executable, *words, "compact", "--table", "t", "--wher", "x"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(icekeep.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "icekeep: there is no flag '--wher'; did you mean '--where'?\n"


CALL = JobOnTable(job="compact", table="c.d.t")
RUNS = [
    {"run_id": "compact-3", "job": "compact", "table": "c.d.t", "app_id": "application_1_3", "exit_status": None},
    {"run_id": "compact-2", "job": "compact", "table": "c.d.t", "app_id": "application_1_2", "exit_status": 4},
    {"run_id": "compact-1", "job": "compact", "table": "c.d.t", "app_id": "application_1_1", "exit_status": 0},
]
ANSWERS = """
import json, sys
words = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[2:])
runs = json.loads(RUNS)
whole = {"status": "done", "result": {"n": 1}, "metadata_location_after": "b"}
if 'run' in words:
    runs = [{**one, **whole} for one in runs if one["run_id"] == words['run']]
else:
    assert (words["table"], words["job"]) == ("c.d.t", "compact")
open(words["result-file"], "w").write(json.dumps({"result": {"runs": runs}}))
"""


def test_the_record_of_a_run_is_found_by_its_application(tmp_path):
    where = installation(tmp_path, f"RUNS = {json.dumps(RUNS)!r}\n{ANSWERS}")
    assert recorded_document(where, CALL, "application_1_2", tmp_path, print) == {
        "job": "compact",
        "table": "c.d.t",
        "run_id": "compact-2",
        "status": "done",
        "metadata_location_after": "b",
        "result": {"n": 1},
        "exit_status": 4,
    }
    assert recorded_document(where, CALL, "application_1_3", tmp_path, print) is None
    assert recorded_document(where, CALL, "application_9_9", tmp_path, print) is None


def test_where_no_record_is_kept_there_is_none(tmp_path):
    where = installation(tmp_path, "import sys; sys.exit(2)")
    assert recorded_document(where, CALL, "application_1_2", tmp_path, print) is None
