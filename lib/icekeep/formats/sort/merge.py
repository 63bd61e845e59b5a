"""Sorted rows on disk (Arrow IPC files), and their merging, which is DataFusion's work: it holds a batch of each file."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from icekeep.formats.arrow.plain_types import described_as, plain_type
from icekeep.spec.units import MIB

_BATCH_ROWS = 8_192
"""Rows of a file that are in memory at one time."""

_BATCH_BYTES = MIB
"""The same as an amount of data."""


def write_sorted_file(path: Path, tables: Iterator[pa.Table]) -> None:
    """Write tables whose rows are in the order of their last column; dictionaries are the same in all tables."""
    first = next(tables)
    schema = _plain_schema(first.schema)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for table in chain([first], tables):
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * table.num_rows // max(1, table.nbytes)))
            for batch in table.to_batches(max_chunksize=rows):
                writer.write_batch(described_as(batch, schema))


def merged_files(directory: Path, files_count: int, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of sorted files in order, a batch at a time.

    Args:
        directory: where the files are, and nothing else.
        schema: of the rows, the key last.
    """
    # It takes 0.3 s to import, and what fits in memory does not need it.
    from datafusion import SessionConfig, SessionContext

    # As many partitions as files, each in its order: then they need no more than merging.
    config = SessionConfig().with_target_partitions(files_count).with_batch_size(_BATCH_ROWS)
    context = SessionContext(config)
    location, key = str(directory).replace("'", "''"), _name(len(schema) - 1)
    context.sql(f"CREATE EXTERNAL TABLE sorted STORED AS ARROW WITH ORDER ({key}) LOCATION '{location}/'").collect()
    for batch in context.sql(f"SELECT * FROM sorted ORDER BY {key}").execute_stream():
        yield pa.Table.from_batches([described_as(batch.to_pyarrow(), schema)])


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Names that need no quotes in SQL, and types that are not pyarrow's alone."""
    return pa.schema([pa.field(_name(number), plain_type(field.type)) for number, field in enumerate(schema)])


def _name(number: int) -> str:
    return f"c{number}"
