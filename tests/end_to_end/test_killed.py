"""`kill -9` of a compaction, at any moment: of the driver, and of the spark-submit above it, whose driver lives on.

Afterwards the table is whole, what nobody names lies where it may lie, and the next run carries on. More moments are in
`tests/interop/test_killed_often.py`.
"""

from collections.abc import Callable

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
from kit.shell import Operator

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
def test_a_killed_compaction_leaves_the_table_whole_and_the_next_one_carries_on(
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
def test_a_killed_compaction_in_threads_of_its_own_leaves_the_table_whole_too(
    operator: Operator, seen: Callable[[KilledRun], bool]
) -> None:
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
def test_a_driver_that_outlives_spark_submit_commits_nothing_of_what_it_has_finished(
    operator: Operator, spark_session: SparkSession
) -> None:
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


def test_a_jvm_that_dies_below_its_driver_ends_the_job_in_one_line(operator: Operator) -> None:
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
