"""Runs of `compact` that are killed with -9 at some moment, and what must be true of the table afterwards."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

from icekeep.runtime import SYSTEM
from kit.lake import Lake
from kit.shell import Operator

LONG_ENOUGH_SECONDS = 120
"""After which something that must end by itself hangs."""
SWAP_UNDER_WAY_MS = 500
"""A swap that had begun when its process was abandoned has ended after this, on a busy machine too."""

_RUN = "ICEKEEP_KILLED_RUN"
"""The variable by which every process of a run is known, those of Spark's Python workers too."""
_NUMBERS = count()

_LEFT_BESIDE_DATA = re.compile(r"(.*-m\d+\.avro|snap-.*\.avro|.*\.metadata\.json|[^/]*\.tmp)$")


class Moment(NamedTuple):
    """When to kill: so long after something was seen (null: after the start)."""

    is_seen: "Callable[[KilledRun], bool] | None" = None
    delay_ms: int = 0


def said(words: str) -> "Callable[[KilledRun], bool]":
    """The run has said something on stderr."""
    return lambda run: any(words in line for line in run.lines)


def new_file(pattern: str) -> "Callable[[KilledRun], bool]":
    """There is a file in the table's directory that was not there when the run began."""
    return lambda run: any(path not in run.before for path in run.directory.glob(pattern))


SPARK_IS_UP = said("starting Spark: done")
REWRITING = said("rewriting data files: started")
FIRST_DATA_FILE = new_file("data/**/*.parquet")
FIRST_MANIFEST = new_file("metadata/*-m*.avro")
FIRST_LIST = new_file("metadata/snap-*.avro")


_STARTS_SPARK = """
from icekeep.planning.spark import session as source

source.LIMITS = source.Limits(rewrite_bytes=0, submitted_rewrite_bytes=0)
"""
"""The smallest table is too much for threads."""
_COMMAND = "from icekeep.__main__ import entry_point\n\nentry_point()\n"
"""The `icekeep` command."""
_COMMAND_IN_SPARK = f"{_STARTS_SPARK}\n{_COMMAND}"
_SCRIPT = (
    f"import sys\nfrom icekeep.cli import main\n{_STARTS_SPARK}\n"
    'if __name__ == "__main__":\n    sys.exit(main(job="compact"))\n'
)
"""The script of the job, as it is submitted."""
_SCRIPT_NAME = "compact_in_spark.py"


class KilledRun:
    """One run of `compact`, from its start to the end of the last process that it started.

    Attributes:
        lines: what it has said on stderr so far.
        hit: what it was at when it was killed.
        waited_ms: how long after the kill its last process ended.
        version_when_killed: the table's metadata when what was killed had ended.
    """

    def __init__(self, operator: Operator, *arguments: str, submit: bool = False, in_threads: bool = False) -> None:
        """Begin it, in Spark, by spark-submit (`submit`) or not, or in threads of its own process."""
        self.lake = operator.lake
        self.directory = table_directory(operator.lake)
        self.before = {path for path in self.directory.rglob("*") if path.is_file()}
        self.lines: list[str] = []
        self.hit = "6 over"
        self.waited_ms = 0
        self.version_when_killed = ""
        self._frozen: list[int] = []
        self._killed_at_ms = 0
        self._began_ms = SYSTEM.monotonic_ms()
        self._name = f"{os.getpid()}-{next(_NUMBERS)}"
        command = operator.command("compact", *arguments, submit=submit)
        script = operator.conf.parent / _SCRIPT_NAME
        script.write_text(_SCRIPT)
        submitted = [str(script) if word.endswith("/jobs/compact.py") else word for word in command]
        self.process = subprocess.Popen(
            submitted
            if submit
            else [sys.executable, "-c", _COMMAND if in_threads else _COMMAND_IN_SPARK, *command[1:]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**operator.environment(submit=submit), _RUN: self._name},
            cwd=operator.conf.parent,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until(self, moment: Moment) -> bool:
        """Wait for a moment; false if the run ended before it came."""
        while moment.is_seen is not None and not moment.is_seen(self):
            if self.process.poll() is not None:
                return False
            SYSTEM.sleep_ms(1)
        since_ms = self._began_ms if moment.is_seen is None else SYSTEM.monotonic_ms()
        while SYSTEM.monotonic_ms() - since_ms < moment.delay_ms:
            if self.process.poll() is not None:
                return False
            SYSTEM.sleep_ms(1)
        return True

    def kill(self) -> None:
        """Kill what was started: the driver itself, or the JVM of spark-submit above it; then wait for all others."""
        self.hit = self.stage()
        self.process.kill()
        self.process.wait()
        killed_ms = SYSTEM.monotonic_ms()
        self._killed_at_ms = SYSTEM.now_ms()
        self.version_when_killed = self.lake.load().metadata_location
        for driver in self._frozen:
            os.kill(driver, signal.SIGCONT)
        self.wait()
        self.waited_ms = SYSTEM.monotonic_ms() - killed_ms

    def kill_jvm(self) -> None:
        """Kill the JVM that the driver started."""
        jvms = [pid for pid, parent, words in processes() if parent == self.process.pid and "java" in words]
        assert len(jvms) == 1
        os.kill(jvms[0], signal.SIGKILL)
        self.wait()

    def freeze(self, drivers: list[int]) -> None:
        """Stop processes where they are, until what started them was killed."""
        self._frozen = drivers
        for driver in drivers:
            os.kill(driver, signal.SIGSTOP)

    def check_nothing_was_committed_since(self) -> None:
        """But for a swap that had begun already."""
        location = self.lake.load().metadata_location
        if location != self.version_when_killed:
            written_ms = Path(urlparse(location).path).stat().st_mtime * 1000
            assert not self._frozen
            assert written_ms - self._killed_at_ms < SWAP_UNDER_WAY_MS

    def wait(self) -> None:
        """Wait until every process of the run is gone.

        Its end of stderr is not enough: Spark's Python workers, which write files, have one that leads to the JVM, and end a
        moment after it.
        """
        self._reader.join(LONG_ENOUGH_SECONDS)
        assert not self._reader.is_alive(), f"something lives on: {self.lines[-5:]}"
        while living := self._living():
            assert SYSTEM.monotonic_ms() - self._began_ms < 2 * LONG_ENOUGH_SECONDS * 1000, f"these live on: {living}"
            SYSTEM.sleep_ms(5)

    def _living(self) -> list[str]:
        """The words of every process of the run that has not ended."""
        mark = f"{_RUN}={self._name}".encode()
        return [words for pid, _, words in processes() if mark in environment_of(pid)]

    def drivers(self) -> list[int]:
        """The Python processes that spark-submit has started."""
        return [pid for pid, parent, words in processes() if parent == self.process.pid and _SCRIPT_NAME in words]

    def stage(self) -> str:
        """What the run is at, as far as it can be seen from outside."""
        if not SPARK_IS_UP(self):
            return "1 starting"
        if not REWRITING(self):
            return "2 planning"
        if said("committed snapshot")(self):
            return "5 ending"
        return "4 committing" if FIRST_MANIFEST(self) else "3 rewriting"

    @property
    def elapsed_ms(self) -> int:
        return SYSTEM.monotonic_ms() - self._began_ms

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))


def processes() -> Iterator[tuple[int, int, str]]:
    """Every process that has not ended: its number, its parent's, and its words."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (directory / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state not in "ZX":
            yield int(directory.name), int(parent), words


def environment_of(process_id: int) -> list[bytes]:
    """The variables that a process was started with; none if it has ended."""
    try:
        return Path(f"/proc/{process_id}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def table_directory(lake: Lake) -> Path:
    """Where the table lies on the disk."""
    return Path(urlparse(lake.load().metadata.location).path)


class Left(NamedTuple):
    """The files below a table that no metadata names: under the data path, under `.icekeep/`, and attempts at a commit."""

    data: frozenset[Path]
    own: frozenset[Path]
    attempts: frozenset[Path]

    @property
    def data_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.data)


def check_table(lake: Lake, rows: Counter[str], head_before: int, *, many: bool = False) -> Left:
    """The table is whole: as it was, or after replacements of files that change no row; returns what nobody names.

    Args:
        rows: which the table has in each of its versions since.
        head_before: the snapshot that the run started from.
        many: the run may have committed more than one replacement.
    """
    table, seen_rows = lake.load(), lake.rows()
    assert seen_rows == rows
    snapshots = table.metadata.snapshots_by_id
    since = []
    head = table.metadata.current_snapshot
    while head is not None and head.snapshot_id != head_before:
        since.append(head)
        head = snapshots.get(head.parent_snapshot_id)
    assert head is not None, "the starting snapshot is no ancestor of the current one"
    assert many or len(since) <= 1
    for snapshot in since:
        assert (snapshot.summary or {})["operation"] == "replace"
        records = [int(s.summary["total-records"]) for s in (snapshot, head) if s.summary]
        assert records[0] == records[1]
    named = referenced(lake.foreign())
    there = {path for path in table_directory(lake).rglob("*") if path.is_file()}
    assert named <= there
    return sorted_out(there - named, table_directory(lake))


def sorted_out(files: set[Path], directory: Path) -> Left:
    """Where unreferenced files lie: those of the metadata directory have the names of a commit's files."""
    places: dict[str, set[Path]] = {"data": set(), ".icekeep": set(), "metadata": set()}
    for path in files:
        places[path.relative_to(directory).parts[0]].add(path)
    for path in places["metadata"]:
        assert _LEFT_BESIDE_DATA.match(path.name), path
    return Left(frozenset(places["data"]), frozenset(places[".icekeep"]), frozenset(places["metadata"]))


def referenced(table: Any) -> set[Path]:
    """Every file that a table's metadata names, in all of its versions, as PyIceberg reads it."""
    named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    manifests = {}
    for snapshot in table.snapshots():
        named.add(snapshot.manifest_list)
        manifests |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        named.add(path)
        named.update(
            entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        )
    return {Path(urlparse(location).path) for location in named}
