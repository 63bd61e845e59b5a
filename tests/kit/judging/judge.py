"""A judge: foreign software in a process of its own that reads tables by their metadata files. `make judges-env` makes it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.storage.locations import local_path
from kit.judging.answers import answer_texts
from kit.line_process import LineProcess, NoAnswerError, environment_without
from kit.shell import ROOT
from kit.written_deletes import data_files

ENVIRONMENT = ROOT / ".venv-judges"
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
        self._command = command
        self._process: LineProcess | None = None
        self._version = ""

    @property
    def version(self) -> str:
        """Of the software, as its process tells it."""
        self._started()
        return self._version

    def close(self) -> None:
        """End the process, and remove what it left."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def rows(self, table: Table) -> Counter[str]:
        """The rows of a table on the local disk, in the form of `row_texts`; raises `JudgeError` where it cannot read it."""
        process = self._started()
        rows = process.home / "rows"
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

    def _started(self) -> LineProcess:
        if self._process is not None and self._process.is_running:
            return self._process
        if not self._command[0].exists():
            raise FileNotFoundError(f"there is no {self._command[0]}; run `make judges-env` first")
        self.close()
        environment = environment_without("PYTHON", "PYICEBERG_", TZ="UTC", **_ONE_THREAD)
        self._process = LineProcess(self.name, self._command, environment)
        self._version = json.loads(self._process.answer())["version"]
        return self._process

    def _ask(self, process: LineProcess, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer = json.loads(process.ask(json.dumps(request)))
        except NoAnswerError as error:
            raise JudgeError(str(error)) from error
        if "error" in answer:
            raise JudgeError(answer["error"])
        return answer
