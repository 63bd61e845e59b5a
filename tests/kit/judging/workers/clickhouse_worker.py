"""ClickHouse in one process: chdb."""

import os
from pathlib import Path

import chdb
import pyarrow as pa
from answering import answer_requests
from chdb import session

FORMAT = "output_format_arrow_string_as_string = 0, output_format_arrow_compression_method = 'none'"


def main() -> None:
    # It reads only below the directory that it works in.
    os.chdir("/")
    opened = session.Session(":memory:")

    def read(request: dict) -> pa.Table:
        metadata = Path(request["metadata"])
        table = (
            f"icebergLocal('{metadata.parent.parent}', "
            f"SETTINGS iceberg_metadata_file_path = 'metadata/{metadata.name}')"
        )
        found = opened.query(f"SELECT * FROM {table} SETTINGS max_threads = 1, {FORMAT}", "ArrowStream")
        return pa.ipc.open_stream(found.bytes()).read_all()

    [version] = str(opened.query("SELECT version()", "TSVRaw")).split()
    answer_requests(version, read, Exception)


if __name__ == "__main__":
    main()
