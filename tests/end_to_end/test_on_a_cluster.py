"""What goes wrong on executors, and what is said of it; each is a process of its own, as on a cluster."""

from pathlib import Path

import pytest

from kit.shell import run_script

SCRIPT = '''
import os, signal, sys
from pathlib import Path
from urllib.parse import urlparse
from pyspark.sql import SparkSession
from icekeep import compact, plan_remove_orphan_files
from icekeep.errors import IcekeepError
from icekeep.maintenance.orphans import compare
from icekeep.planning.spark.session import Limits
from icekeep.planning.spark.session import Engine
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.runtime import SYSTEM
from kit.lake import Lake
from kit.deletes import data_files

DAYS_S = 86_400

def executor(_, kills):
    """The executor that a task runs on: a worker's parent is a daemon, whose parent it is."""
    pid = int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[1])
    if kills:
        os.kill(pid, signal.SIGKILL)
    return pid

def dying(location, _):
    os.kill(os.getpid(), signal.SIGKILL)

def outcome(act):
    try:
        return act()
    except IcekeepError as error:
        return f"{type(error).__name__}: {error.message}"

def main(directory):
    spark = SparkSession.active()
    lake = Lake(directory)
    table = lake.filled(commits=3, files=2)
    for path in lake.files_on_disk():
        at = SYSTEM.now_ms() / 1000 - 10 * DAYS_S
        os.utime(path, (at, at))
    strays = [Path(urlparse(table.metadata.location).path) / "data" / f"stray-{n}.parquet" for n in range(5)]
    for stray in strays:
        stray.write_bytes(b"x")
        os.utime(stray, (at, at))
    # Nothing is few enough for the driver, and the executor that listed is gone when the files are compared.
    checked = compare._refuse_other_table

    def lose_executors_and_check(*arguments):
        pids = set(run_tasks(spark, range(4), executor, False)[0])
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        print("lost:", len(pids) > 0)
        return checked(*arguments)

    compare._refuse_other_table = lose_executors_and_check
    engine = Engine(spark=spark, limits=Limits(**dict.fromkeys(Limits.__struct_fields__, -1)))
    print("orphans:", outcome(lambda: plan_remove_orphan_files(table, engine).orphan_files_count))
    print("left:", [path.name for path in lake.files_on_disk() if ".icekeep" in path.parts])
    print("worker:", outcome(lambda: all_results(run_tasks(spark, [{"location": "s3://b/at-work"}], dying, None))))
    file = Path(urlparse(data_files(table)[0].file_path).path)
    data = bytearray(file.read_bytes())
    data[4:200] = b"\\0" * 196
    file.write_bytes(bytes(data))
    print("damaged:", file.name, outcome(lambda: compact(table, spark, options={"rewrite-all": True, "stitch": "never"})))

if __name__ == "__main__":
    settings = {"spark.master": "local-cluster[2,1,1024]", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    settings |= {"spark.sql.shuffle.partitions": "4"}
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    with builder.getOrCreate():
        main(Path(sys.argv[1]))
'''


@pytest.mark.nightly
def test_lost_executors_end_no_orphan_removal_and_errors_name_their_files(tmp_path: Path) -> None:
    done = run_script(SCRIPT, tmp_path, str(tmp_path / "lake"))
    said = dict(line.split(": ", 1) for line in done.out.splitlines() if ": " in line)
    assert (said.get("lost"), said.get("orphans"), said.get("left")) == ("True", "5", "[]"), done.out + done.err[-5000:]
    assert said["worker"].startswith("JobFailedError: Spark failed: ")
    assert "'s3://b/at-work'" in said["worker"]
    assert "spark.executor.memoryOverhead" in said["worker"]
    name, _, error = said["damaged"].partition(" ")
    assert error.startswith("JobFailedError: cannot rewrite 2 data files of partition 'at_month=2013-01': ")
    assert name in error
