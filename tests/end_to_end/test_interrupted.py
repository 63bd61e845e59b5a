"""An interrupt of a notebook's cell: the main thread waits for a job of ours, which has started Spark jobs."""

from pathlib import Path

import pytest

from kit.shell import run_script

SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from icekeep import compact, expire_snapshots
from icekeep.maintenance.delete import plan_file as plan_writing
from icekeep.planning.spark.session import Limits
from icekeep.planning.spark.session import Engine
from icekeep.runtime import SYSTEM
from kit.lake import Lake
from kit.spark_jobs import count_at_rest

plan_writing._PART_ROWS = 5
spark = SparkSession.builder.getOrCreate()
lake = Lake(Path(sys.argv[1]))
lake.filled(commits=5, files=8)
compact(lake.load(), spark, options={"rewrite-all": True})
engine = Engine(spark=spark, limits=Limits(**dict.fromkeys(Limits.__struct_fields__, -1)))

def data():
    return len([path for path in lake.files_on_disk() if path.suffix == ".parquet"])

def interrupt():
    before = data()
    while data() == before:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    options = {"max-deletes-per-second": 4}
    expire_snapshots(lake.load(), engine, older_than=SYSTEM.now_ms() + 1, retain_last=1, trash=0, options=options)
except KeyboardInterrupt:
    print("interrupted")
# The limit lets up to a second pass between two deletes of a task.
left = count_at_rest(spark, data, 3_000)
print("threads:", [one.name for one in threading.enumerate() if one.name in ("spark jobs", "spark progress")])
# The thread's connection to the JVM gives each call its own answer.
print("answers:", spark.range(7).count(), spark.range(8).count(), spark.conf.get("spark.master"))
done = expire_snapshots(lake.load(), engine, older_than=SYSTEM.now_ms() + 1, retain_last=1, trash=0)
print("carried on:", done.status, data())
print("left some:", left > data())
spark.stop()
"""


@pytest.mark.nightly
def test_what_an_interrupt_ends_deletes_nothing_more_and_the_session_is_as_before(tmp_path: Path) -> None:
    done = run_script(SCRIPT, tmp_path, str(tmp_path / "lake"), timeout_s=900)
    assert done.out.splitlines() == [
        "interrupted",
        "threads: []",
        "answers: 7 8 local[*]",
        "carried on: done 3",
        "left some: True",
    ], done.out + done.err[-5000:]
