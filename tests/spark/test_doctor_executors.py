"""Executors of a real session are asked."""

from pathlib import Path

from pyspark.sql import SparkSession

import icekeep
from icekeep.operations.doctor.driver import Notes
from icekeep.operations.doctor.examination import look_at_executors
from icekeep.planning.spark.executors import described_process, executor_answers, executor_processes
from icekeep.runtime import SYSTEM
from icekeep.storage.open import open_storage
from kit.lake import Lake
from kit.runtime import FakeRuntime

PACKAGES = ["icekeep", "pyarrow", "there-is-no-such-package"]


def unwell(notes: Notes) -> list[tuple[str, str]]:
    return [(one.check, one.status) for one in notes.result(0).findings if one.status != "ok" and one.check != "memory"]


def test_executors_say_what_they_have_like_this_process(spark_session: SparkSession) -> None:
    (found,) = executor_processes(spark_session, PACKAGES, "asking")
    ours = described_process(PACKAGES)
    assert {**found, "above": 0} == {**ours, "above": 0}


def test_executors_tell_their_clocks_and_what_they_do_not_reach(spark_session: SparkSession, tmp_path: Path) -> None:
    storage = open_storage({})
    places = [(storage, tmp_path.as_uri()), (storage, "nowhere://x/y")]
    began_ms = SYSTEM.now_ms()
    seen = executor_answers(spark_session, places, "asking")
    assert all(began_ms <= one.now_ms <= SYSTEM.now_ms() for one in seen)
    assert {one.problems[0] for one in seen} == {""}
    assert all("nowhere" in one.problems[1] for one in seen)
    assert all(one.memory_bytes > 0 for one in seen)


def test_a_session_that_is_given_is_looked_at(spark_session: SparkSession, lake: Lake) -> None:
    result = icekeep.doctor(lake.catalog, spark_session, namespace="db")
    found = {(one.about, one.check): one for one in result.findings}
    assert {one.status for one in result.findings if one.check != "memory"} == {"ok"}
    assert "master local[2], 2 tasks at once" in found["executors", "session"].message
    assert found["executors", "packages"].status == "ok"
    assert found[f"store {lake.catalog.warehouse}", "reached by executors"].status == "ok"
    assert ("executors", "memory") in found


def test_clocks_that_differ_are_told(spark_session: SparkSession) -> None:
    notes = Notes()
    look_at_executors(notes, spark_session, ["pyarrow"], [], FakeRuntime(now_ms=0))
    assert unwell(notes) == [("clock", "wrong")]
