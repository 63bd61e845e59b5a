"""A judge: foreign software in a process of its own that reads tables by their metadata files. `make judges-env` makes it."""

import atexit
import json
import os
import selectors
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.storage.locations import local_path
from kit.judging.answers import answer_texts
from kit.shell import ROOT
from kit.written_deletes import data_files

ENVIRONMENT = ROOT / ".venv-judges"
TIMEOUT_S = 300
# Tests run beside each other, each with judges of its own.
_ONE_THREAD = dict.fromkeys(
    ("POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS", "OMP_NUM_THREADS", "GOMAXPROCS"), "1"
)


class JudgeError(Exception):
    """What a judge said instead of rows."""


class Judge:
    """One judge; its process starts with the first question, and anew where it has ended.

    Args:
        name: of the software.
        command: that starts its worker.
        has_null_lists: whether it tells a null from a list or map without elements, and from a struct of nulls.
    """

    def __init__(self, name: str, command: Sequence[Path], *, has_null_lists: bool = True) -> None:
        self.name, self.has_null_lists = name, has_null_lists
        self._command = [str(part) for part in command]
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._version = ""

    @property
    def version(self) -> str:
        """Of the software, as its process tells it."""
        self._started()
        return self._version

    def close(self) -> None:
        """End the process, and remove what it left."""
        atexit.unregister(self.close)
        self._end()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def rows(self, table: Table) -> Counter[str]:
        """The rows of a table on the local disk, in the form of `row_texts`; raises `JudgeError` where it cannot read it."""
        process = self._started()
        assert self._directory is not None
        rows = self._directory / "rows"
        self._ask(process, {"metadata": local_path(table.metadata_location), "rows": str(rows)})
        found = Counter[str]()
        with pa.memory_map(str(rows)) as file:
            # Batches of another schema are another stream.
            while file.tell() < file.size():
                answer = pa.ipc.open_stream(file).read_all()
                try:
                    found += answer_texts(table.metadata.schema, answer, has_null_lists=self.has_null_lists)
                except (ValueError, KeyError) as error:
                    raise JudgeError(f"its answer is not of the table's columns: {error}") from error
        return found

    def files_read(self, table: Table, where: str) -> int:
        """In how many data files of a table it looks for the rows that a filter in SQL matches; DuckDB and ClickHouse tell it."""
        request = {"metadata": local_path(table.metadata_location), "where": where}
        answer = self._ask(self._started(), request)
        return answer["files"] if "files" in answer else len(data_files(table)) - answer["pruned"]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if not Path(self._command[0]).exists():
            raise FileNotFoundError(f"there is no {self._command[0]}; run `make judges-env` first")
        self._end()
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="judge-"))
            atexit.register(self.close)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._directory,
                env=_environment(),
            )
        self._version = self._answer(self._process)["version"]
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> Mapping[str, Any]:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(request)}\n".encode())
        process.stdin.flush()
        answer = self._answer(process)
        if "error" in answer:
            raise JudgeError(answer["error"])
        return answer

    def _answer(self, process: subprocess.Popen[bytes]) -> Mapping[str, Any]:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            # An answer is one line written at once: when it begins, the rest is on its way.
            answers = selector.select(TIMEOUT_S)
        line = process.stdout.readline() if answers else b""
        if not line:
            self._end()
            why = "it ended" if answers else f"no answer in {TIMEOUT_S} s"
            return {"error": f"{why}; its log ends: {self._log.read_text(errors='replace')[-2000:]}"}
        return json.loads(line)

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None

    @property
    def _log(self) -> Path:
        assert self._directory is not None
        return self._directory / "log"


def _environment() -> dict[str, str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYICEBERG_"))}
    return {**plain, "TZ": "UTC", **_ONE_THREAD}
