"""`kill -9` of a compaction, at any moment: of the driver, and of the spark-submit above it, whose driver lives on.

Afterwards the table is whole, what nobody names lies where it may lie, and the next run carries on. More moments are in
`tests/interop/test_killed_often.py`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icekeep.maintenance.compact.job import compact
from kit.killing import (
    FIRST_DATA_FILE,
    FIRST_MANIFEST,
    REWRITING,
    KilledRun,
    Moment,
    check_table,
    sorted_out,
    table_directory,
)
from kit.runtime import FakeRuntime, no_spark
from kit.shell import Operator, run_script

ENDS_WITHIN_MS = 20_000
"""The driver ends in a second or two; a machine that is busy gets more."""

CHANCE = FakeRuntime(seed=8, chance=None)
MOMENTS = {
    "rewriting": Moment(FIRST_DATA_FILE, int(CHANCE.uniform(0, 50))),
    "committing": Moment(FIRST_MANIFEST, int(CHANCE.uniform(0, 20))),
}


def carry_on(operator: Operator, spark: SparkSession, rewritten_bytes_count: int) -> None:
    """A second run does what is left to do, and says how many bytes that were."""
    rows = operator.lake.rows()
    result = compact(operator.lake.load(), spark)
    assert (result.status, result.rewritten_bytes_count) == ("done", rewritten_bytes_count)
    assert operator.lake.rows() == rows
    files = operator.lake.foreign().inspect.files()
    assert len(files) == 3


@pytest.mark.parametrize(
    ("submit", "name"),
    [
        pytest.param(False, "committing", id="driver-committing"),
        pytest.param(True, "rewriting", id="spark-submit-rewriting", marks=pytest.mark.nightly),
    ],
)
def test_a_killed_compaction_leaves_the_table_whole(
    operator: Operator, spark_session: SparkSession, submit: bool, name: str
) -> None:
    operator.lake.filled(commits=6, files=5)
    rows, head = operator.lake.rows(), operator.lake.load().metadata.current_snapshot_id
    old_bytes = sum(operator.lake.foreign().inspect.files()["file_size_in_bytes"].to_pylist())
    assert head is not None
    run = KilledRun(operator, submit=submit)
    assert run.wait_until(MOMENTS[name])
    run.kill()
    assert run.waited_ms < ENDS_WITHIN_MS
    run.check_nothing_was_committed_since()
    left = check_table(operator.lake, rows, head)
    [killed] = operator.run("runs", "--output", "json").json["result"]["runs"]
    assert (killed["job"], killed["snapshot_id_before"]) == ("compact", str(head))
    # A driver that outlives spark-submit says how it ended.
    told = {("failed", 75), ("interrupted", 143)} if submit else {("unfinished", None)}
    assert (killed["status"], killed["exit_status"]) in told
    is_done = operator.lake.load().metadata.current_snapshot_id != head
    carry_on(operator, spark_session, 0 if is_done else old_bytes)
    # What the killed run left is no part of the table, and no later run takes it for one.
    assert check_table(operator.lake, rows, head) == left


@pytest.mark.parametrize("seen", [FIRST_DATA_FILE, FIRST_MANIFEST], ids=["rewriting", "committing"])
def test_a_killed_compaction_in_threads(operator: Operator, seen: Callable[[KilledRun], bool]) -> None:
    operator.lake.filled(commits=6, files=5)
    rows, head = operator.lake.rows(), operator.lake.load().metadata.current_snapshot_id
    assert head is not None
    run = KilledRun(operator, in_threads=True)
    assert run.wait_until(Moment(seen))
    run.kill()
    assert not any("starting Spark" in line for line in run.lines)
    check_table(operator.lake, rows, head)
    result = compact(operator.lake.load(), no_spark)
    assert (result.status, len(operator.lake.foreign().inspect.files())) == ("done", 3)
    assert operator.lake.rows() == rows


@pytest.mark.nightly
def test_a_driver_that_outlives_spark_submit_commits_nothing(operator: Operator, spark_session: SparkSession) -> None:
    operator.lake.filled(commits=12, files=3)
    rows, head = operator.lake.rows(), operator.lake.load().metadata.current_snapshot_id
    assert head is not None
    run = KilledRun(operator, submit=True)
    assert run.wait_until(Moment(REWRITING))
    drivers = run.drivers()
    assert len(drivers) == 1
    assert run.wait_until(Moment(FIRST_MANIFEST))
    # All groups are rewritten and the commit's files are being written: the swap is all that is missing.
    run.freeze(drivers)
    assert operator.lake.load().metadata.current_snapshot_id == head, "the driver was too fast for this test"
    assert not any("nothing more is committed" in line for line in run.lines)
    run.kill()
    assert run.waited_ms < ENDS_WITHIN_MS
    assert operator.lake.load().metadata_location == run.version_when_killed
    assert operator.lake.load().metadata.current_snapshot_id == head
    assert any("nothing more is committed" in line for line in run.lines)
    # It lived long enough to clean up behind its commit; its tag is a commit too, and so it stays until its day is over.
    left = check_table(operator.lake, rows, head)
    assert not left.attempts
    assert [name for name in operator.lake.load().metadata.refs if name.startswith("icekeep-rewrite-")]
    carry_on(operator, spark_session, sum(f.stat().st_size for f in run.before if f.suffix == ".parquet"))


def test_a_file_that_may_not_lie_there_is_seen(operator: Operator) -> None:
    operator.lake.filled(commits=1, files=1)
    rows, head = operator.lake.rows(), operator.lake.load().metadata.current_snapshot_id
    assert head is not None
    directory = table_directory(operator.lake)
    assert not any(check_table(operator.lake, rows, head))
    (directory / "metadata" / "moves-0").touch()
    with pytest.raises(AssertionError):
        check_table(operator.lake, rows, head)
    (directory / "metadata" / "moves-0").unlink()
    with pytest.raises(KeyError):
        sorted_out({directory / "runs" / "x"}, directory)


def test_dying_jvm_ends_job_in_one_line(operator: Operator) -> None:
    operator.lake.filled(commits=6, files=5)
    rows, head = operator.lake.rows(), operator.lake.load().metadata.current_snapshot_id
    assert head is not None
    run = KilledRun(operator, submit=False)
    assert run.wait_until(Moment(REWRITING))
    run.kill_jvm()
    assert run.process.wait() == 75
    assert (
        run.lines[-1]
        == "icekeep: the JVM of Spark is gone (killed, or out of memory?); nothing is broken, run it again "
        "(icekeep help unavailable)\n"
    )
    left = check_table(operator.lake, rows, head)
    assert not left.attempts


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
def test_an_interrupt_ends_all_deletion(tmp_path: Path) -> None:
    done = run_script(SCRIPT, tmp_path, str(tmp_path / "lake"), timeout_s=900)
    assert done.out.splitlines() == [
        "interrupted",
        "threads: []",
        "answers: 7 8 local[*]",
        "carried on: done 3",
        "left some: True",
    ], done.out + done.err[-5000:]


LOSING_SCRIPT = """
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
def test_an_executor_lost_between_readers(tmp_path: Path) -> None:
    """Partitions of the plan are computed again, from blocks that arrive in another order."""
    done = run_script(LOSING_SCRIPT, tmp_path, str(tmp_path))
    assert "executor lost: 114 True" in done.out, done.out + done.err[-5000:]


CLUSTER_SCRIPT = '''
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
def test_executor_loss_is_survived_and_errors_name_files(tmp_path: Path) -> None:
    """Orphan removal goes on without its executors, and a failed rewrite names its files."""
    done = run_script(CLUSTER_SCRIPT, tmp_path, str(tmp_path / "lake"))
    said = dict(line.split(": ", 1) for line in done.out.splitlines() if ": " in line)
    assert (said.get("lost"), said.get("orphans"), said.get("left")) == ("True", "5", "[]"), done.out + done.err[-5000:]
    assert said["worker"].startswith("JobFailedError: Spark failed: ")
    assert "'s3://b/at-work'" in said["worker"]
    assert "spark.executor.memoryOverhead" in said["worker"]
    name, _, error = said["damaged"].partition(" ")
    assert error.startswith("JobFailedError: cannot rewrite 2 data files of partition 'at_month=2013-01': ")
    assert name in error
