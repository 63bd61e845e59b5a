"""A sample reads the columns of the ordering alone, of every piece, and says how many rows it saw."""

import pyarrow as pa

from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.options import WriteOptions
from icekeep.formats.rewrite.run import sample_task
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import split_points
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from kit.storage import MemoryStorage
from kit.tables import COLUMNS


def written(storage: MemoryStorage, name: str, ids: range) -> FilePiece:
    rows = pa.table({"id": [*ids], "kind": ["k"] * len(ids), "score": [0.5] * len(ids)})
    with DataFileWriter(storage, COLUMNS, WriteOptions(), lambda: f"memory:/t/{name}") as writer:
        writer.write(cast_to_schema(rows, COLUMNS))
        [file] = writer.close()
    return FilePiece(location=file.file_path, record_count=len(ids), size_bytes=file.file_size_in_bytes)


def test_points_from_a_sample_halve_the_rows_of_all_pieces():
    storage = MemoryStorage()
    pieces = (written(storage, "a", range(300)), written(storage, "b", range(300, 400)))
    task = RewriteTask(
        pieces=pieces,
        schema=COLUMNS,
        specs={0: UNPARTITIONED},
        spec_id=0,
        table_location="memory:/t",
        properties={},
        target_file_size_bytes=1,
        ordering=Ordering(fields=(SortField(source_id=1, transform=Identity()),)),
        operation_id="o",
    )
    sample = sample_task(task, storage)
    assert (sample.row_count, sample.arrow_bytes) == (400, 400 * 8)
    [point] = split_points([sample], 2)
    assert sum(key < point for key in sample.keys) == 200
