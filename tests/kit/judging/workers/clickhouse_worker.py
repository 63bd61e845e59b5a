"""ClickHouse in one process: chdb."""

import os
from pathlib import Path

import pyarrow as pa
from answering import answer_requests
from chdb import session

SETTINGS = (
    "max_threads = 1, use_iceberg_metadata_files_cache = 0, output_format_arrow_string_as_string = 0, "
    "output_format_arrow_compression_method = 'none'"
)


def read(request: dict) -> pa.Table:
    return pa.ipc.open_stream(
        asked(f"SELECT * FROM {table(request)} SETTINGS {SETTINGS}", "ArrowStream").bytes()
    ).read_all()


def files_pruned(request: dict) -> dict[str, int]:
    """All that it counted since its process began, less what it had counted before."""
    before = pruned()
    asked(f"SELECT * FROM {table(request)} WHERE {request['where']} SETTINGS {SETTINGS}", "ArrowStream")
    return {"pruned": pruned() - before}


def pruned() -> int:
    names = "'IcebergMinMaxIndexPrunedFiles', 'IcebergPartitionPrunedFiles'"
    return int(str(asked(f"SELECT sum(value) FROM system.events WHERE event IN ({names})", "TSVRaw")))


def table(request: dict) -> str:
    metadata = Path(request["metadata"])
    return f"icebergLocal('{metadata.parent.parent}', SETTINGS iceberg_metadata_file_path = 'metadata/{metadata.name}')"


def asked(query: str, output_format: str) -> object:
    # The answer after an error would begin with what that has left.
    opened = session.Session(":memory:")
    try:
        return opened.query(query, output_format)
    finally:
        opened.close()


if __name__ == "__main__":
    # It reads only below the directory that it works in.
    os.chdir("/")
    [version] = str(asked("SELECT version()", "TSVRaw")).split()
    answer_requests(version, read, Exception, files_pruned)
