"""A judge's process, `worker.py ENGINE`: requests as JSON lines, rows as Arrow's IPC stream in a file.

Runs in `.venv-judges`, which has nothing of icekeep and none of its tests. It says the engine's version, then answers each
request, and ends when its standard input does.
"""

import json
import os
import re
import sys
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pyarrow as pa


class Engine:
    """How one engine reads a table by a request, whose `metadata` is the path of the table's metadata file."""

    version: str
    faults: type[BaseException] = Exception
    """What it raises where it cannot read a table."""

    def read(self, request: dict) -> pa.Table:
        raise NotImplementedError

    def count(self, request: dict) -> dict[str, int]:
        """Of a request with a filter, `where`: in how many `files` it looked, or how many it had `pruned`."""
        raise NotImplementedError


class DuckDB(Engine):
    """With its Iceberg extension. Nothing is fetched: the extensions come with the environment."""

    def __init__(self) -> None:
        import duckdb

        self.version, self.faults = duckdb.__version__, duckdb.Error
        self._connections: list = []

    def read(self, request: dict) -> pa.Table:
        # An error inside DuckDB may leave nothing that can be asked again.
        connection = self._connections.pop() if self._connections else self._opened()
        rows = connection.execute(f"SELECT * FROM iceberg_scan('{request['metadata']}')").to_arrow_table()
        self._connections.append(connection)
        return rows

    def count(self, request: dict) -> dict[str, int]:
        query = f"SELECT * FROM iceberg_scan('{request['metadata']}') WHERE {request['where']}"
        [(_, plan)] = self._opened().execute(f"EXPLAIN ANALYZE {query}").fetchall()
        return {"files": sum(map(int, re.findall(r"Total Files Read: (\d+)", plan)))}

    def _opened(self) -> object:
        import duckdb
        import duckdb_extension_avro
        import duckdb_extension_iceberg

        connection = duckdb.connect(
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                # Tests put files back under their names.
                "enable_external_file_cache": "false",
                "threads": "1",
            }
        )
        for module in (duckdb_extension_avro, duckdb_extension_iceberg):
            [extension] = Path(str(module.__file__)).parent.rglob("*.duckdb_extension")
            connection.execute(f"LOAD '{extension}'")
        return connection


class ClickHouse(Engine):
    """In one process: chdb."""

    SETTINGS = (
        "max_threads = 1, use_iceberg_metadata_files_cache = 0, output_format_arrow_string_as_string = 0, "
        "output_format_arrow_compression_method = 'none'"
    )

    def __init__(self) -> None:
        # It reads only below the directory that it works in.
        os.chdir("/")
        [self.version] = str(self._asked("SELECT version()", "TSVRaw")).split()

    def read(self, request: dict) -> pa.Table:
        query = f"SELECT * FROM {self._table(request)} SETTINGS {self.SETTINGS}"
        return pa.ipc.open_stream(self._asked(query, "ArrowStream").bytes()).read_all()

    def count(self, request: dict) -> dict[str, int]:
        # All that it counted since its process began, less what it had counted before.
        before = self._pruned()
        query = f"SELECT * FROM {self._table(request)} WHERE {request['where']} SETTINGS {self.SETTINGS}"
        self._asked(query, "ArrowStream")
        return {"pruned": self._pruned() - before}

    def _pruned(self) -> int:
        names = "'IcebergMinMaxIndexPrunedFiles', 'IcebergPartitionPrunedFiles'"
        return int(str(self._asked(f"SELECT sum(value) FROM system.events WHERE event IN ({names})", "TSVRaw")))

    def _table(self, request: dict) -> str:
        metadata = Path(request["metadata"])
        setting = f"iceberg_metadata_file_path = 'metadata/{metadata.name}'"
        return f"icebergLocal('{metadata.parent.parent}', SETTINGS {setting})"

    def _asked(self, query: str, output_format: str) -> object:
        from chdb import session

        # The answer after an error would begin with what that has left.
        opened = session.Session(":memory:")
        try:
            return opened.query(query, output_format)
        finally:
            opened.close()


class Rust(Engine):
    """iceberg-rust, by its Python package, read by DataFusion."""

    def __init__(self) -> None:
        self.version = version("pyiceberg-core")

    def read(self, request: dict) -> pa.Table:
        from datafusion import SessionContext
        from pyiceberg_core.datafusion import IcebergDataFusionTable

        context = SessionContext()
        table = IcebergDataFusionTable(
            identifier=["db", "t"], metadata_location=f"file://{request['metadata']}", file_io_properties={}
        )
        context.register_table("t", table)
        return context.sql("SELECT * FROM t").to_arrow_table()


class Polars(Engine):
    """Its own planner and reader of Iceberg."""

    def __init__(self) -> None:
        self.version = version("polars")

    def read(self, request: dict) -> pa.Table:
        import polars

        return polars.scan_iceberg(f"file://{request['metadata']}", reader_override="native").collect().to_arrow()


class PyIceberg(Engine):
    def __init__(self) -> None:
        self.version = version("pyiceberg")

    def read(self, request: dict) -> pa.Table:
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(f"file://{request['metadata']}").scan().to_arrow()


ENGINES = {"duckdb": DuckDB, "clickhouse": ClickHouse, "rust": Rust, "polars": Polars, "pyiceberg": PyIceberg}


def answered(engine: Engine, request: dict) -> dict:
    try:
        if "where" in request:
            return engine.count(request)
        rows = engine.read(request)
    except engine.faults as error:
        return {"error": f"{type(error).__name__}: {error}"}
    with pa.ipc.new_stream(str(Path(request["rows"])), rows.schema) as stream:
        stream.write_table(rows)
    return {}


def main() -> None:
    engine = ENGINES[sys.argv[1]]()
    requests = (answered(engine, json.loads(line)) for line in sys.stdin)
    for answer in chain([{"version": engine.version}], requests):
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
