"""A private PostgreSQL server, on loopback, gone with the tests; and many processes that write their runs into one database."""

import multiprocessing
import os
import pwd
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path

from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter, RunRecord
from icekeep.runtime import SYSTEM
from kit.shell import free_port


class Postgres:
    """The server; as root it runs as the user `postgres`, since it refuses to be root's."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._home = Path(tempfile.mkdtemp(prefix="icekeep-postgres-"))
        self._numbers = count(1)
        self._as_user = (
            ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        )
        if self._as_user:
            user = pwd.getpwnam("postgres")
            os.chown(self._home, user.pw_uid, user.pw_gid)
        self._run(
            "initdb", "--pgdata", self._data, "--username", "test", "--auth", "trust", "--no-sync", "--encoding", "UTF8"
        )
        self.port = free_port()
        options = f"-p {self.port} -h 127.0.0.1 -k {self._home} -c fsync=off -c synchronous_commit=off"
        self._run("pg_ctl", "--pgdata", self._data, "--log", f"{self._home}/log", "--wait", "-o", options, "start")

    @property
    def _data(self) -> str:
        return f"{self._home}/data"

    def new_database(self) -> str:
        """Make an empty database; returns its URI, as our catalogs' property `uri` has it."""
        name = f"test_{next(self._numbers)}"
        self._run("createdb", "--host", "127.0.0.1", "--port", str(self.port), "--username", "test", name)
        return f"postgresql://test:test@127.0.0.1:{self.port}/{name}"

    def query(self, uri: str, statement: str) -> list[list[str]]:
        out = self._run("psql", uri, "--no-align", "--tuples-only", "--field-separator", "\t", "--command", statement)
        return [line.split("\t") for line in out.splitlines()]

    def run_script(self, uri: str, script: Path) -> None:
        """Carry out the statements of a file; raises `RuntimeError` at the first that fails."""
        quiet = ("--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--set", "client_min_messages=warning")
        # The server's user may not be one who can read it.
        copy = self._home / script.name
        copy.write_bytes(script.read_bytes())
        copy.chmod(0o644)
        self._run("psql", uri, *quiet, "--file", str(copy))

    def close(self) -> None:
        self._run("pg_ctl", "--pgdata", self._data, "--mode", "immediate", "--wait", "stop")
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> str:
        # pg_ctl's server inherits what it is given: with a pipe, reading to its end would wait for the server's.
        with tempfile.TemporaryFile("w+") as out:
            command = [*self._as_user, str(self._programs / program), *arguments]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self._home, timeout=120
            )
            out.seek(0)
            said = out.read()
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {said[-2000:]}")
        return said


def postgres_release() -> str:
    """The newest PostgreSQL of this machine, such as `15.14`."""
    said = subprocess.run([_programs() / "initdb", "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[2]


def _programs() -> Path:
    """Where the newest PostgreSQL keeps its programs; Debian puts no server on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise FileNotFoundError("there is no PostgreSQL server; install Debian's package `postgresql`")
    return Path(on_path).parent


PROCESSES = 10
RUNS = 5


def write_runs(uri, number, start, counts):
    """Begin and end runs, and fight for one lease."""
    records = RunRecords.at(uri)
    start.wait(60)
    taken = 0
    for turn in range(RUNS):
        now_ms = SYSTEM.now_ms()
        run = RunRecord(
            run_id=f"compact-{number}-{turn}", job="compact", table="l.db.t", started_ms=now_ms, seen_ms=now_ms
        )
        records.begin(run)
        records.beat(run.run_id, now_ms + 1)
        taken += records.take_lease(f"l.db.t{turn}", f"{number}", now_ms + 3_600_000, now_ms) == f"{number}"
        records.end(RunRecord(**{**as_dict(run), "status": "done", "exit_status": 0, "ended_ms": now_ms}))
    counts.put(taken)


def as_dict(run):
    return {name: getattr(run, name) for name in RunRecord.__struct_fields__}


def assert_all_are_there(uri):
    """None is lost, none is told that the database is busy, and a lease has one holder."""
    context = multiprocessing.get_context("spawn")
    start, counts = context.Barrier(PROCESSES), context.Queue()
    processes = [context.Process(target=write_runs, args=(uri, n, start, counts)) for n in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    records = RunRecords.at(uri)
    found = records.select(RunFilter(), SYSTEM.now_ms())
    assert {one.run_id for one in found} == {f"compact-{n}-{turn}" for n in range(PROCESSES) for turn in range(RUNS)}
    assert {one.status for one in found} == {"done"}
    # Each lease has one holder and no more.
    assert sum(counts.get(timeout=10) for _ in processes) == RUNS
