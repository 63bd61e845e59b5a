"""Runs in `.venv-duckdb`: DuckDB with its Iceberg extension, which answers requests as JSON lines on its pipes.

Started by `kit.duckdb_judge`. It ends when its standard input does. Nothing is fetched: the extensions come with the environment.
"""

import json
import pickle
import sys
from pathlib import Path

import duckdb
import duckdb_extension_avro
import duckdb_extension_iceberg

EXTENSIONS = (duckdb_extension_avro, duckdb_extension_iceberg)


def opened() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "1"}
    )
    for module in EXTENSIONS:
        [extension] = Path(str(module.__file__)).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    return connection


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            # An error inside DuckDB may leave nothing that can be asked again.
            found = opened().execute(f"SELECT * FROM iceberg_scan('{request['metadata']}')")
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
            # In Parquet of DuckDB's 0.0 and -0.0 are the same.
            Path(request["rows"]).write_bytes(pickle.dumps(rows))
            answer = {}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
