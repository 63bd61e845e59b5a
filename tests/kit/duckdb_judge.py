"""DuckDB's Iceberg extension as a judge: one process that reads tables by their metadata files. `make duckdb-env` makes it."""

import atexit
import json
import pickle
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from icekeep.catalog.base import Table
from icekeep.spec.manifests.structs import FileContent
from kit.naive_scan import live_entries
from kit.row_texts import row_texts
from kit.shell import ROOT

PYTHON = ROOT / ".venv-duckdb" / "bin" / "python"
WORKER = Path(__file__).with_name("duckdb_worker.py")


class DuckDBError(Exception):
    """What DuckDB said instead of rows."""


class DuckDB:
    """The judge; `close` ends its process, and so does the end of this one."""

    def __init__(self) -> None:
        if not PYTHON.exists():
            raise FileNotFoundError("there is no .venv-duckdb; run `make duckdb-env` first")
        self._directory = Path(tempfile.mkdtemp(prefix="duckdb-"))
        self._process = subprocess.Popen(
            [str(PYTHON), str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self._directory
        )
        atexit.register(self.close)

    def close(self) -> None:
        """End the process, and remove what it left."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        shutil.rmtree(self._directory, ignore_errors=True)

    def rows(self, table: Table) -> Counter[str]:
        """The rows of a table, in the form of `row_texts`; raises `DuckDBError` where it cannot read it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        rows = self._directory / "rows"
        request = {"metadata": table.metadata_location, "rows": str(rows)}
        self._process.stdin.write(f"{json.dumps(request)}\n".encode())
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise DuckDBError(answer["error"])
        return row_texts(table.metadata.schema, pickle.loads(rows.read_bytes()))

    @staticmethod
    def reads(table: Table) -> bool:
        """Whether it reads such files: Parquet and vectors. It fails at equality deletes, or passes them over."""
        files = [entry.data_file for entry in live_entries(table)]
        is_plain = all(file.content is not FileContent.EQUALITY_DELETES for file in files)
        return is_plain and all(file.file_format.lower() in ("parquet", "puffin") for file in files)
