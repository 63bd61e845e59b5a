"""A scan that loses an executor, and with it what it has shuffled, while some of its readers are done: each row comes once."""

from pathlib import Path

import pytest

from kit.shell import run_script

SCRIPT = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from icekeep.planning import deletes as delete_join
from icekeep.planning.spark.session import Limits
from icekeep.planning.spark.session import Engine
from icekeep.tables.read import scan
from kit.lake import Lake
from kit.deletes import data_files, delete_positions

def main(directory):
    # Planned in tasks and joined with the deletes, as if both were many.
    delete_join.BROADCAST_MAX_COUNT = 0
    names = {"read__split__target_size": "1", "read__split__open_file_cost": "1"}
    table = Lake(directory).filled(commits=4, files=6, rows=5, **names)
    for file in data_files(table)[::4]:
        table = delete_positions(table, [(file.file_path, 0)])
    expected = sorted(row for row in read(table, SparkSession.active(), None))
    found = sorted(row for row in read(table, SparkSession.active(), str(directory / "killed")))
    assert (directory / "killed").exists()
    print("executor lost:", len(expected), expected == found and len(set(found)) == len(found))

def read(table, spark, mark):
    def killing(batches):
        for batch in batches:
            if mark and TaskContext.get().partitionId() == 10 and not os.path.exists(mark):
                Path(mark).touch()
                # A worker's parent is a daemon, whose parent is the executor.
                daemon = os.getppid()
                os.kill(int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
            yield batch
    frame = scan(table, Engine(spark=spark, limits=Limits(entries_count=0)), select=["_file", "_pos"])
    return [(row[0], row[1]) for row in frame.mapInArrow(killing, frame.schema).collect()]

if __name__ == "__main__":
    settings = {"spark.master": "local-cluster[2,1,1024]", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    settings |= {"spark.sql.shuffle.partitions": "4", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    with builder.getOrCreate():
        main(Path(sys.argv[1]))
"""


@pytest.mark.nightly
def test_each_row_is_read_once_though_an_executor_is_lost_between_the_readers(tmp_path: Path) -> None:
    """Partitions of the plan are computed again, from blocks that arrive in another order."""
    done = run_script(SCRIPT, tmp_path, str(tmp_path))
    assert "executor lost: 114 True" in done.out, done.out + done.err[-5000:]
