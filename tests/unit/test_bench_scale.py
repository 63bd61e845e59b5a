"""The benchmark at scale: small tables of its kind are what they say, and what is counted and compared is what happened."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from bench.rival.watching import Watch
from bench.runner.figures import Figures, Run
from bench.scale import with_icekeep
from bench.scale.benchmark import far, figures_by_job, growth, pairs_of_sizes, print_growth
from bench.scale.with_icekeep import AbsentFilesStorage, SparkCounts
from bench.tables import scale_tables
from bench.tables.kept import Kept, kept, make_anew
from bench.tables.scale_tables import AlikeRecords, DeleteKind, Paths, Scale, varints
from icekeep.planning.spark import tasks
from icekeep.planning.spark.tasks import SharedValue
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import FileContent, ManifestEntry
from icekeep.spec.matched_deletes import reaches
from kit.naive_scan import live_entries

pytestmark = [pytest.mark.slow, pytest.mark.process]

SHAPE = Scale(files=2_000, deletes=400, partitions=4, manifest_files=70, garbage_percent=10, orphans_percent=2)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    made = kept(SHAPE, tmp_path_factory.mktemp("bench"))
    make_anew(made, scale_tables.make)
    return made


@pytest.fixture(scope="module")
def entries(table: Kept) -> list[ManifestEntry]:
    return list(live_entries(table.load()))


def of_content(entries: list[ManifestEntry], content: FileContent) -> list[ManifestEntry]:
    return [entry for entry in entries if entry.data_file.content is content]


def test_entries_of_data_files_are_read_as_they_were_meant(table: Kept, entries: list[ManifestEntry]) -> None:
    paths = Paths(SHAPE, f"{table.load().metadata.location}/data")
    files = {entry.data_file.file_path: entry.data_file for entry in of_content(entries, FileContent.DATA)}
    assert files.keys() == {paths.data(number) for number in range(SHAPE.files)}
    for number in range(0, SHAPE.files, 97):
        file = files[paths.data(number)]
        assert file.file_path.startswith(f"{paths.directory(file.partition[0] - 18_262)}/")
        assert file.value_counts == dict.fromkeys(range(1, 11), file.record_count)
        assert file.lower_bounds is not None
        assert file.upper_bounds is not None
        assert all(file.lower_bounds[1 + n] != file.upper_bounds[1 + n] for n in range(10))
        assert 16 << 20 <= file.file_size_in_bytes < 124 << 20
    assert len({file.lower_bounds[1] for file in files.values() if file.lower_bounds}) > SHAPE.files * 0.9


def test_delete_files_are_for_data_files_that_are_there(entries: list[ManifestEntry], table: Kept) -> None:
    data = {entry.data_file.file_path: entry for entry in of_content(entries, FileContent.DATA)}
    specs = table.load().metadata.specs_by_id
    kinds = Counter(SHAPE.delete(number).kind for number in range(SHAPE.deletes))
    assert kinds == {"of one file": 240, "of a stretch": 80, "vector": 40, "equality": 40}
    positions = of_content(entries, FileContent.POSITION_DELETES)
    only = [entry for entry in positions if entry.data_file.referenced_data_file is not None]
    assert len(only) == kinds[DeleteKind.OF_FILE] + kinds[DeleteKind.VECTOR]
    assert len({entry.data_file.referenced_data_file for entry in only}) == len(only)
    assert all(reaches(entry, data[entry.data_file.referenced_data_file or ""], specs) for entry in only)
    assert len(of_content(entries, FileContent.EQUALITY_DELETES)) == kinds[DeleteKind.EQUALITY]


def test_the_listing_has_each_file_once_and_the_orphans_and_what_is_on_disk(
    table: Kept, entries: list[ManifestEntry]
) -> None:
    location = table.load().metadata.location
    storage = AbsentFilesStorage(SHAPE, location)
    listed = Counter(info.location for share in storage.shares(location, 3) for info in storage.list_share(share))
    assert set(listed.values()) == {1}
    paths = Paths(SHAPE, f"{location}/data")
    orphans = {paths.data(number) for number in SHAPE.orphans}
    absent = {path for path in listed if path.startswith(f"{location}/data/")}
    named = {entry.data_file.file_path for entry in entries}
    assert absent == {*named, *(paths.data(number) for number in SHAPE.garbage), *orphans}
    assert len(orphans) == SHAPE.files * SHAPE.orphans_percent // 100
    on_disk = {path.as_uri() for path in (table.path / "metadata").iterdir()}
    assert listed.keys() - absent == on_disk


def test_the_orphans_of_the_listing_are_found_and_no_others(table: Kept) -> None:
    engine: Any = SimpleNamespace(
        spark=MagicMock(), request={"shapes": {"bench": msgspec.to_builtins(SHAPE)}}, load=lambda _: table.load()
    )
    engine.spark.conf.get.return_value = None
    said = with_icekeep.plan_orphans(engine, {"catalog": "bench", "is_small": False})()()
    assert (said["orphan_files_count"], said["jobs"]) == (len(SHAPE.orphans), 0)
    assert said["listed_files_count"] > SHAPE.orphans.stop + SHAPE.deletes


def test_jobs_tasks_and_bytes_are_counted_of_the_block_alone(tmp_path: Path) -> None:
    log = tmp_path / "app-1.inprogress"
    metrics = {"Result Size": 1000, "Shuffle Write Metrics": {"Shuffle Bytes Written": 70}, "Disk Bytes Spilled": 5}
    task = {"Event": "SparkListenerTaskEnd", "Task End Reason": {"Reason": "Success"}, "Task Metrics": metrics}
    lost = {"Event": "SparkListenerTaskEnd", "Task End Reason": {"Reason": "ExecutorLostFailure"}}
    events = [{"Event": "SparkListenerJobStart"}, task, lost, {"Event": "SparkListenerJobEnd"}]
    log.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    context = SimpleNamespace(applicationId="app-1", _jsc=MagicMock())
    conf = {"spark.eventLog.dir": tmp_path.as_uri()}
    spark: Any = SimpleNamespace(sparkContext=context, conf=conf)
    with SparkCounts(spark) as counts, log.open("a") as stream:
        for event in (*events, task):
            stream.write(json.dumps(event, separators=(",", ":")) + "\n")
        SharedValue(b"y" * 2_000, spark.sparkContext)
        tasks.pickle.dumps(b"x" * 1_000)
    with log.open("a") as stream:
        stream.write(json.dumps(task) + "\n")
    found = counts.figures()
    assert 3_000 < found.pop("payloads_bytes") < 3_200
    assert found == {
        "jobs": 1,
        "tasks": 3,
        "failed_tasks": 1,
        "results_bytes": 2_000,
        "shuffled_bytes": 140,
        "spilled_bytes": 10,
    }


def test_records_that_are_not_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="not alike"):
        AlikeRecords(lambda values: b"x" * values["n"], {"n": (1, 2)})
    with pytest.raises(ValueError, match="of 3 bytes"):
        varints(np.array([8_192, 1 << 20]), 3)
    with pytest.raises(ValueError, match="of 1 bytes"):
        varints(np.array([64]), 1)


def test_a_cluster_counts_and_its_own_processes_do_not(tmp_path: Path) -> None:
    held = "data = bytearray(int(200e6)); import time; print('held', flush=True); sum(range(10**7)); time.sleep(60)"
    shell = subprocess.Popen(
        ["sh", "-c", f"{sys.executable} -c '{held.replace(chr(39), chr(34))}'; true"], stdout=subprocess.PIPE
    )
    assert shell.stdout is not None
    shell.stdout.readline()
    try:
        with Watch([shell.pid]) as watch:
            SYSTEM.sleep_ms(1_000)
    finally:
        for child in Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split():
            subprocess.run(["kill", "-9", child], check=True)
        shell.wait()
    assert watch.worker_bytes > 200_000_000
    assert watch.total_bytes > watch.driver_total_bytes + 200_000_000
    assert watch.cpu_seconds > watch.driver_cpu_seconds


def figures_of(case: str, files: int, cpu_s: float) -> Figures:
    memory = dict.fromkeys(("driver_bytes", "jvm_bytes", "worker_bytes", "total_bytes"), 1)
    facts: dict[str, Any] = {"files": files, "CPU s": cpu_s}
    facts |= dict.fromkeys(("driver CPU s", "driver MB", "payload MB", "result MB", "shuffled MB"), 0)
    driver = {"driver_cpu_seconds": 2.0, "driver_total_bytes": files * 100}
    run = Run(seconds=cpu_s, cpu_seconds=cpu_s, result={}, **memory, **driver)
    return Figures(case=case, rival="icekeep", runs=(run,), facts=facts)


def test_growth_is_that_of_the_figures_by_that_of_the_table() -> None:
    small, large = figures_of("plan-scan-1m", 1_000_000, 10.0), figures_of("plan-scan-10m", 10_000_000, 150.0)
    other = figures_of("rewrite-1m", 1_000_000, 1.0)
    assert [f.case for f in figures_by_job([large, other, small])] == ["plan-scan-1m", "plan-scan-10m", "rewrite-1m"]
    assert growth(small, large) == {"CPU s": 1.5, "s": 1.5}
    same_size = figures_of("rewrite-3m", 1_000_000, 1.0)
    before = replace(other, rival="icekeep-before", case="rewrite-10m")
    assert pairs_of_sizes([large, other, before, small, same_size]) == [(small, large)]


def test_a_billion_files_are_on_the_line_through_two_sizes() -> None:
    small, large = figures_of("plan-scan-1m", 1_000_000, 12.0), figures_of("plan-scan-3m", 3_000_000, 42.0)
    found = far(small, large)
    assert (found.driver_s, found.driver_mb) == (2.0, 100_000.0)
    # 10 s of tasks for the first million, 15 for each other one, in 400 slots.
    assert found.tasks_s == pytest.approx((10 + 15 * 999) / 400)
    assert far(large, figures_of("plan-scan-10m", 10_000_000, 41.0)).tasks_s == pytest.approx(39 / 400)


def test_what_grows_is_printed_below_what_is_larger(capsys: Any) -> None:
    small, large = figures_of("plan-scan-1m", 1_000_000, 10.0), figures_of("plan-scan-10m", 10_000_000, 150.0)
    print_growth([large, small], ())
    lines = capsys.readouterr().out.splitlines()
    first, second, grown = (
        next(n for n, line in enumerate(lines) if text in line) for text in ("-1m", "-10m", "growth ")
    )
    assert first < second == grown - 1
    assert "1.50 x" in lines[grown]
    assert "extrapolated, not measured: 1,000,000,000 files, 400 slots" in "\n".join(lines)
