"""How long Spark takes to give many data files their delete files:

    .venv/bin/python tests/bench/deletes_reach.py --against before/delete_join.py

`--against` names a file with another `with_deletes`; both are measured in turn, in one session, and must find the same.
Times are the best of the rounds: seconds on the clock, and of the processors of all processes together.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.watching import Watch
from icekeep.planning.deletes import delete_join
from icekeep.planning.manifests.entry_schema import ENTRIES
from icekeep.planning.spark.session import build_session, stop_session
from icekeep.planning.spark.tasks import collected, dataframe_from_tasks
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata_columns import DELETE_FILE_PATH
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.transforms import Identity

_TASKS, _BATCH_ROWS, _NUMBERS = 8, 10_000, 1_000
_SPECS = {
    0: PartitionSpec(spec_id=0, fields=()),
    1: PartitionSpec(spec_id=1, fields=(PartitionField(source_id=1, field_id=1000, name="p", transform=Identity()),)),
}
_COLUMNS = [field for field in ENTRIES if field.name not in ("column_sizes", "value_counts", "null_value_counts")]
_SCHEMA = pa.schema([field for field in _COLUMNS if field.name != "nan_value_counts"])


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A table: how many files it has, and what makes the number-th delete file."""

    files: int
    partitions: int
    deletes: int
    make: Callable[[int, "Case"], dict[str, Any]]

    def data_file(self, number: int) -> dict[str, Any]:
        place = number % self.partitions
        return _file(number, FileContent.DATA, path_of(number), place, self, sequence_number=number * 7 % _NUMBERS + 1)


def path_of(number: int) -> str:
    return f"s3://bucket/warehouse/db/table/data/{number:09}-{number * 2654435761 % 2**32:08x}-00001.parquet"


def vector_of(number: int, case: Case) -> dict[str, Any]:
    """A deletion vector, one for each data file."""
    blob = {"content_offset": 4 + number % 100 * 60, "content_size_in_bytes": 56, "file_format": "puffin"}
    path = f"s3://bucket/warehouse/db/table/data/{number // 100:09}-deletes.puffin"
    place = number % case.partitions
    blob |= {"referenced_data_file": path_of(number), "sequence_number": _NUMBERS + 1}
    return _file(number, FileContent.POSITION_DELETES, path, place, case, **blob)


def of_partition(number: int, case: Case) -> dict[str, Any]:
    """Deletes of positions and by values in turn, for a partition; half of its files are old enough."""
    is_equality = number // case.partitions % 2
    content = FileContent.EQUALITY_DELETES if is_equality else FileContent.POSITION_DELETES
    facts = {"sequence_number": number * 13 % _NUMBERS + 1, "equality_ids": [1, 2] if is_equality else None}
    return _file(number, content, f"{path_of(number)}.deletes", number % case.partitions, case, **facts)


def bounded(number: int, case: Case) -> dict[str, Any]:
    """Deletes of positions in some of fifty data files, whose paths are neighbours."""
    first = number * 997 % case.files
    bounds = {
        name: [(DELETE_FILE_PATH.field_id, path_of(at).encode())]
        for name, at in (("lower_bounds", first), ("upper_bounds", first + 49))
    }
    path, facts = f"{path_of(number)}.deletes", {"sequence_number": _NUMBERS + 1, **bounds}
    return _file(number, FileContent.POSITION_DELETES, path, number % case.partitions, case, **facts)


CASES = {
    "vectors": Case(files=200_000, partitions=100, deletes=200_000, make=vector_of),
    "of partitions": Case(files=200_000, partitions=1_000, deletes=20_000, make=of_partition),
    "many of partitions": Case(files=200_000, partitions=1_000, deletes=40_000, make=of_partition),
    "path bounds": Case(files=500_000, partitions=1, deletes=2_000, make=bounded),
}


def _file(number: int, content: FileContent, path: str, place: int, case: Case, **facts: Any) -> dict[str, Any]:
    is_partitioned = case.partitions > 1
    return {
        "manifest_path": "s3://bucket/warehouse/db/table/metadata/m.avro",
        "spec_id": int(is_partitioned),
        "partition": f"day-{place:05}".encode() if is_partitioned else b"",
        "status": 1,
        "snapshot_id": 1,
        "file_sequence_number": facts["sequence_number"],
        "content": int(content),
        "file_path": path,
        "file_format": "PARQUET",
        "record_count": 1000 + number % 10,
        "file_size_in_bytes": 1_000_000 + number,
        **facts,
    }


def frame(spark: SparkSession, make: Callable[[int], dict[str, Any]], count: int, directory: Path) -> DataFrame:
    """Rows that tasks bring from Python, as those that decode manifests do; made before anything is timed, and kept."""
    directory.mkdir(parents=True, exist_ok=True)
    shares = [directory / f"{task}.arrow" for task in range(_TASKS)]
    for task, share in enumerate(shares):
        if not share.exists():
            rows = [make(number) for number in range(task, count, _TASKS)]
            with pa.ipc.new_file(share, _SCHEMA) as writer:
                writer.write_table(pa.Table.from_pylist(rows, _SCHEMA), _BATCH_ROWS)
    return dataframe_from_tasks(spark, [*map(str, shares)], _batches, _SCHEMA)


def _batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as file:
        reader = pa.ipc.open_file(file)
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))


def answer(planned: DataFrame) -> Row:
    """Needs every value of `deletes`: how many rows and deletes there are, and a sum of their hashes."""
    value = F.xxhash64("file_path", "deletes") % 1_000_003
    [row] = collected(planned.agg(F.count("*"), F.sum(F.size("deletes")), F.sum(value)))
    return row


def measure(
    name: str, case: Case, spark: SparkSession, rivals: Mapping[str, Any], rounds: int, directory: Path
) -> bool:
    """Print what each rival takes; false if they found something else."""
    data = frame(spark, case.data_file, case.files, directory / "data")
    data = data.drop("lower_bounds", "upper_bounds")
    deletes = frame(spark, lambda number: case.make(number, case), case.deletes, directory / "deletes")
    best: dict[str, Watch] = {}
    answers = set()
    for turn in range(rounds + 1):
        for rival, with_deletes in rivals.items():
            with Watch() as watch:
                answers.add(answer(with_deletes(data, deletes, _SPECS, deletes_count=case.deletes)))
            # The first warms up.
            if turn and (rival not in best or watch.cpu_seconds < best[rival].cpu_seconds):
                best[rival] = watch
    for rival, watch in best.items():
        took = f"{watch.seconds:6.2f} s, {watch.cpu_seconds:6.2f} s of processors"
        print(f"{name:20} {rival:8} {took}, workers {watch.worker_bytes / 1e6:,.0f} MB, found {tuple(min(answers))}")
    return len(answers) == 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Time how delete files are given to data files in Spark.")
    parser.add_argument("--against", type=Path, help="a file with another `with_deletes`")
    parser.add_argument("--cases", default=",".join(CASES), help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (default: %(default)s)")
    parser.add_argument("--directory", type=Path, default=Path(".bench/deletes_reach"), help="for the inputs")
    given = parser.parse_args()
    rivals = {"icekeep": delete_join.with_deletes}
    if given.against is not None:
        spec = importlib.util.spec_from_file_location("another_join", given.against)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        rivals["another"] = module.with_deletes
    spark = build_session("deletes reach", {"spark.master": "local[2]", "spark.driver.memory": "4g"})
    agreed = [
        measure(name, CASES[name], spark, rivals, given.rounds, given.directory.absolute() / name)
        for name in given.cases.split(",")
    ]
    stop_session(spark)
    if not all(agreed):
        print("the rivals disagree: their times mean nothing")
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
