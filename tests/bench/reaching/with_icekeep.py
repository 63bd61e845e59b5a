"""icekeep gives data files their delete files, by the joins of `planning/deletes`, which another checkout may have otherwise."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.rival.engines import Icekeep, Target
from bench.tables.delete_entries import SCHEMA
from icekeep.planning.deletes import with_deletes
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.transforms import Identity

_SPECS = {
    0: PartitionSpec(spec_id=0, fields=()),
    1: PartitionSpec(spec_id=1, fields=(PartitionField(source_id=1, field_id=1000, name="p", transform=Identity()),)),
}


def reach(engine: Icekeep, target: Target) -> Callable[[], Any]:
    """Needs every value of `deletes`: how many rows and deletes there are, and a sum of their hashes."""
    directory = Path(target["name"])
    data = _frame(engine, directory / "data").drop("lower_bounds", "upper_bounds")
    deletes, count = _frame(engine, directory / "deletes"), engine.request["deletes_count"]

    def work() -> Callable[[], Any]:
        planned = with_deletes(data, deletes, _SPECS, deletes_count=count)
        value = F.xxhash64("file_path", "deletes") % 1_000_003
        [row] = collected(planned.agg(F.count("*"), F.sum(F.size("deletes")), F.sum(value)))
        return lambda: dict(zip(("rows_count", "deletes_count", "hashes"), row, strict=True))

    return work


def _frame(engine: Icekeep, directory: Path) -> DataFrame:
    """Rows that tasks bring from Python, as those that decode manifests do."""
    return dataframe_from_tasks(engine.spark, sorted(map(str, directory.iterdir())), _batches, SCHEMA)


def _batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as file:
        reader = pa.ipc.open_file(file)
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
