"""DuckDB with its Iceberg extension. Nothing is fetched: the extensions come with the environment."""

import re
from pathlib import Path

import duckdb
import duckdb_extension_avro
import duckdb_extension_iceberg
import pyarrow as pa
from answering import answer_requests

EXTENSIONS = (duckdb_extension_avro, duckdb_extension_iceberg)


def opened() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            # Tests put files back under their names.
            "enable_external_file_cache": "false",
            "threads": "1",
        }
    )
    for module in EXTENSIONS:
        [extension] = Path(str(module.__file__)).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    return connection


def files_read(request: dict) -> dict[str, int]:
    query = f"SELECT * FROM iceberg_scan('{request['metadata']}') WHERE {request['where']}"
    [(_, told)] = opened().execute(f"EXPLAIN ANALYZE {query}").fetchall()
    return {"files": sum(map(int, re.findall(r"Total Files Read: (\d+)", told)))}


def main() -> None:
    connections: list[duckdb.DuckDBPyConnection] = []

    def read(request: dict) -> pa.Table:
        # An error inside DuckDB may leave nothing that can be asked again.
        connection = connections.pop() if connections else opened()
        rows = connection.execute(f"SELECT * FROM iceberg_scan('{request['metadata']}')").to_arrow_table()
        connections.append(connection)
        return rows

    answer_requests(duckdb.__version__, read, duckdb.Error, files_read)


if __name__ == "__main__":
    main()
