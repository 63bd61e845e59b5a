"""How much of a file a task of a scan holds at one time, and how many tasks share an executor's memory."""

from typing import Any

import pyarrow as pa
import pytest

from icekeep.errors import UnsupportedError
from icekeep.formats.deletes.apply import LiveRowsReader
from icekeep.planning.scan.tasks import PlannedRows
from icekeep.planning.spark.rows import spark_columns
from icekeep.spec.collections import PositionSet, packed_positions
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.types import LONG, MIB, STRING, StructType
from icekeep.tables import read as scan
from kit.columns import column, parquet_bytes, schema_of
from kit.storage import MemoryStorage

ROWS = schema_of(column(1, "id", LONG), column(2, "text", STRING))
COUNT = 20_000
PARTITION = PartitionCodec(StructType(())).encode(())


def scanned(monkeypatch: pytest.MonkeyPatch, schema: Any, memory_bytes: int) -> list[pa.Table]:
    """What a task holds of one row group of 20 MB, one table after the other."""
    storage, held = MemoryStorage(), []
    fields = [pa.field(f.name, t, metadata={b"PARQUET:field_id": str(f.field_id).encode()}) for f, t in TYPES]
    texts = [str(n) * 200 for n in range(COUNT)]
    table = pa.Table.from_arrays([pa.array(range(COUNT), pa.int64()), pa.array(texts)], schema=pa.schema(fields))
    data = parquet_bytes(table, COUNT, use_dictionary=False, data_page_size=64 * 1024)
    storage.create("memory:/t/a", data)

    class Noting(LiveRowsReader):
        def read(self, *args: Any, **facts: Any) -> Any:
            for rows in super().read(*args, **facts):
                held.append(rows)
                yield rows

    monkeypatch.setattr(scan, "LiveRowsReader", Noting)
    monkeypatch.setattr(scan, "task_memory_bytes", lambda slots: memory_bytes // slots)
    types = {0: StructType(())}
    planned = PlannedRows(rows=ALWAYS_TRUE, schema=ROWS, specs={0: UNPARTITIONED}, partition_types=types)
    reader = scan._Reader(
        storage=storage,
        planned=planned,
        selected=schema,
        columns=spark_columns(schema),
        table_schemas=(ROWS,),
        name_mapping=None,
        slots=2,
    )
    split = {"file_path": "memory:/t/a", "file_format": "PARQUET", "spec_id": 0, "partition": PARTITION, "start": 0}
    split |= {"length": len(data), "deletes": [], "first_row_id": None, "sequence_number": 1}
    split["reached_by"] = packed_positions(PositionSet())
    assert sum(batch.num_rows for batch in reader.read([split])) == COUNT
    return held


TYPES = [*zip(ROWS.fields, (pa.int64(), pa.string()), strict=True)]


@pytest.mark.slow
def test_a_scan_reads_a_row_group_that_is_large_beside_its_memory_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group that compaction reads well must not end the Python worker of a scan."""
    assert [rows.num_rows for rows in scanned(monkeypatch, ROWS, 1024 * MIB)] == [COUNT]
    held = scanned(monkeypatch, ROWS, 64 * MIB)
    assert len(held) > 4
    assert max(rows.nbytes for rows in held) < 5 * MIB


@pytest.mark.slow
def test_a_scan_of_narrow_columns_needs_the_memory_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that could not hold any batch says so."""
    only_ids = schema_of(ROWS.fields[0])
    assert [rows.num_rows for rows in scanned(monkeypatch, only_ids, 2 * MIB)] == [COUNT]
    with pytest.raises(UnsupportedError, match=r"row group 0 takes .* bytes and reading it in batches"):
        scanned(monkeypatch, ROWS, 200_000)
