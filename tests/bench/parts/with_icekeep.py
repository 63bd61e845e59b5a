"""icekeep does the task of a compaction that encodes all rows, with proof or not, and finds which deletes reach which files."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.rival.engines import Icekeep, Target
from bench.tables.delete_entries import SCHEMA
from icekeep.catalog.base import Table
from icekeep.formats.rewrite.proof import problem_of_rows
from icekeep.formats.rewrite.run import rewrite
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.sort.encode import Ordering
from icekeep.planning.deletes import with_deletes
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from kit.deletes import data_files

_TARGET_BYTES = 128 * 1024 * 1024
_MEMORY_BYTES = 1024 * 1024 * 1024
_SHIP_DATE = 11


def binpack(engine: Icekeep, target: Target) -> Callable[[], Any]:
    """Rows keep their order."""
    return _rewritten(engine, engine.load(target), None)


def moved(engine: Icekeep, target: Target) -> Callable[[], Any]:
    """The same, and pages that need not be encoded are moved."""
    return _rewritten(engine, engine.load(target), None, moves_pages=True)


def sort(engine: Icekeep, target: Target) -> Callable[[], Any]:
    by_date = Ordering(fields=(SortField(source_id=_SHIP_DATE, transform=Identity()),))
    return _rewritten(engine, engine.load(target), by_date)


def _rewritten(
    engine: Icekeep, table: Table, ordering: Ordering | None, *, moves_pages: bool = False
) -> Callable[[], Any]:
    task = replace(
        task_for(table), ordering=ordering, moves_pages=moves_pages, verifies=engine.request.get("verifies", False)
    )

    def work() -> Callable[[], Any]:
        with tempfile.TemporaryDirectory(prefix="icekeep-") as directory:
            outcome = rewrite(replace(task, table_location=Path(directory).as_uri()), table.storage)
        return lambda: _said(outcome, task)

    return work


def task_for(table: Table) -> RewriteTask:
    metadata = table.metadata
    return RewriteTask(
        pieces=tuple(
            FilePiece(
                location=file.file_path,
                record_count=file.record_count,
                size_bytes=file.file_size_in_bytes,
                partition=file.partition,
            )
            for file in data_files(table)
        ),
        schema=metadata.schema,
        specs={spec.spec_id: spec for spec in metadata.partition_specs},
        spec_id=metadata.default_spec_id,
        table_location="",
        properties=metadata.properties,
        target_file_size_bytes=_TARGET_BYTES,
        budget_bytes=_MEMORY_BYTES,
        operation_id="rates",
        moves_pages=False,
    )


def _said(outcome: Any, task: RewriteTask) -> dict[str, Any]:
    """How many records were written; where the task verifies, what it found must be what went in."""
    if task.verifies:
        assert outcome.hash_in is not None
        assert outcome.hash_out is not None
        if problem := problem_of_rows([outcome.hash_in], [outcome.hash_out], outcome.files):
            raise problem
    return {"records_count": sum(file.record_count for file in outcome.files)}


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
