import json
import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyiceberg.exceptions import CommitFailedException

from kit.cases import for_each
from kit.lake import EVENTS, events, multiset
from kit.shell import ROOT, Operator


def test_jobs_by_spark_submit_and_by_themselves_keep_every_row(operator: Operator) -> None:
    operator.lake.filled()
    rows = operator.lake.rows()
    planned = operator.run_here("plan_scan", "--output", "json")
    assert (planned.status, planned.json["result"]["data_files_count"]) == (0, 18)
    compacted = operator.run("compact", "--output", "json", submit=True)
    assert (compacted.status, compacted.json["status"]) == (0, "done")
    assert compacted.json["result"]["rewritten_data_files_count"] == 18
    summary = operator.lake.foreign().snapshot_by_id(int(compacted.json["snapshot_id_after"])).summary
    assert (summary["engine-name"], summary["icekeep.run-id"]) == ("icekeep", compacted.json["run_id"])
    rewritten = operator.run("rewrite_manifests", "--output", "json")
    assert rewritten.json["result"]["rewritten_manifests_count"] == 6
    expired = operator.run(
        "expire_snapshots",
        *("--older-than", "0s", "--retain-last", "1", "--trash", "0", "--output", "json"),
        submit=True,
    )
    assert expired.json["result"]["deleted_data_files_count"] == 18
    assert operator.lake.rows() == rows
    assert len(operator.lake.foreign().snapshots()) == 1
    found = operator.run("runs", "--output", "json").json["result"]["runs"]
    ran = [expired, rewritten, compacted, planned]
    assert [(one["run_id"], one["status"]) for one in found] == [(one.json["run_id"], "done") for one in ran]


def test_a_dry_run_prints_the_plan_and_changes_nothing(operator: Operator) -> None:
    operator.lake.filled()
    files = operator.lake.files_on_disk()
    done = operator.run_here("compact", "--dry-run", "--output", "json")
    assert (done.status, done.json["dry_run"]) == (0, True)
    assert done.json["result"]["rewritten_data_files_count"] == 18
    done = operator.run_here("expire_snapshots", "--older-than", "0s", "--dry-run")
    assert done.status == 0
    assert "manifest list" in done.out
    assert operator.lake.files_on_disk() == files


def test_a_wrong_argument_is_exit_status_2_of_the_process_too(operator: Operator) -> None:
    operator.lake.filled(commits=1, files=1)
    done = operator.run("compact", "--where", "colour = 'red'")
    assert (done.status, "no column 'colour'" in done.complaint, len(done.err.strip().splitlines())) == (2, True, 1)


@pytest.fixture
def with_a_file(operator: Operator) -> Operator:
    operator.lake.filled(commits=1, files=1)
    return operator


@for_each(
    ("job", "arguments", "complaint"),
    [
        ("compact", ["--where", "colour = 'red'"], "no column 'colour'"),
        ("compact", ["--where", "id ="], "position 5"),
        ("compact", ["--where", "id = 1 xor id = 2"], "AND, OR or the end is missing"),
        ("compact", ["--option", "min-input-files=none"], "min-input-files"),
        ("compact", ["--option", "colour=red"], "colour"),
        ("compact", ["--option", "min-input-files"], "KEY=VALUE"),
        ("compact", ["--retain-last", "1"], "--retain-last"),
        ("expire_snapshots", ["--older-than", "yesterday"], "yesterday"),
        ("expire_snapshots", ["--retain-last", "0"], "retain"),
        ("rewrite_manifests", ["--spec-id", "9"], "spec 9"),
        ("plan_scan", ["--ref", "audit"], "audit"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_status_2(
    with_a_file: Operator, job: str, arguments: list[str], complaint: str
) -> None:
    done = with_a_file.run_here(job, *arguments)
    assert done.status == 2
    assert complaint in done.complaint
    assert len(done.err.strip().splitlines()) == 1


def test_a_wrong_catalog_or_table_or_file_is_one_line_and_exit_status_2(operator: Operator) -> None:
    operator.lake.filled(commits=1, files=1)
    assert operator.run_here("compact", table="db.event").status == 2
    assert "'db.events'" in operator.run_here("compact", table="db.event").complaint
    unknown = operator.run_here("compact", catalog="prod")
    assert (unknown.status, "'prod'" in unknown.complaint) == (2, True)
    twice = operator.run_here("compact", "--catalog", "prod")
    assert (twice.status, "--catalog: is given twice" in twice.complaint) == (2, True)
    operator.conf.write_text(operator.conf.read_text() + "catalog: {}\n")
    broken = operator.run_here("compact")
    assert (broken.status, "catalog" in broken.complaint) == (2, True)
    operator.conf.unlink()
    absent = operator.run_here("compact")
    assert (absent.status, str(operator.conf) in absent.complaint) == (2, True)


def test_gc_disabled_is_exit_status_4(operator: Operator) -> None:
    operator.lake.create(gc__enabled="false")
    done = operator.run_here("expire_snapshots", "--older-than", "0s")
    assert done.status == 4
    assert "gc.enabled=false" in done.complaint


@pytest.mark.parametrize(
    "job", ["plan_scan", pytest.param("compact", marks=pytest.mark.nightly), "rewrite_manifests", "expire_snapshots"]
)
def test_an_encrypted_table_is_exit_status_4(operator: Operator, job: str) -> None:
    operator.lake.create()
    operator.lake.edit_metadata(encryption_keys=[{"key-id": "1", "encrypted-key-metadata": "aWNlYmVyZwo="}])
    files = operator.lake.files_on_disk()
    done = operator.run_here(job)
    assert done.status == 4
    assert "not supported yet" in done.complaint
    assert operator.lake.files_on_disk() == files


def test_a_failed_job_is_exit_status_1_one_json_object_and_a_result_file(operator: Operator, tmp_path: Path) -> None:
    operator.lake.filled(commits=1, files=6)
    victim = next(p for p in operator.lake.files_on_disk() if p.suffix == ".parquet")
    victim.unlink()
    files, snapshots = operator.lake.content_on_disk(), operator.lake.load().metadata.snapshots
    result_file = tmp_path / "result.json"
    done = operator.run("compact", "--output", "json", "--result-file", str(result_file))
    assert done.status == 1
    assert victim.name in done.json["error"]["message"]
    assert json.loads(result_file.read_text()) == done.json
    after = operator.lake.load().metadata
    assert (operator.lake.content_on_disk(), after.snapshots, set(after.refs)) == (files, snapshots, {"main"})


@pytest.mark.nightly
def test_pyiceberg_appending_while_compact_runs_loses_nothing(operator: Operator) -> None:
    operator.lake.filled(commits=10, rows=200)
    expected = operator.lake.rows()
    process = subprocess.Popen(
        operator.command("compact", "--output", "json", "--option", "partial-progress.enabled=true"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=operator.environment(),
        cwd=operator.conf.parent,
        text=True,
    )
    assert process.stderr is not None
    appended = 0
    for line in process.stderr:
        if "rewriting" in line:
            break
    while process.poll() is None and appended < 200:
        rows = events(1000 + appended, 3, month=1 + appended % 3)
        try:
            operator.lake.foreign_catalog().load_table(EVENTS).append(rows)
        except CommitFailedException:
            continue
        expected += multiset(rows)
        appended += 1
    out, _ = process.communicate(timeout=120)
    assert json.loads(out)["result"]["rewritten_data_files_count"] == 30
    assert appended > 0
    assert operator.lake.rows() == expected


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)]
)
def test_an_interrupted_job_leaves_the_table_as_it_was(operator: Operator, sent: signal.Signals, status: int) -> None:
    operator.lake.filled(commits=8, rows=400)
    rows, content = operator.lake.rows(), operator.lake.content_on_disk()
    process = subprocess.Popen(
        operator.command("compact", "--option", "max-file-group-input-files=5"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=operator.environment(),
        cwd=operator.conf.parent,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "rewriting" in line:
            break
    process.send_signal(sent)
    process.communicate(timeout=120)
    assert process.returncode == status
    assert operator.lake.rows() == rows
    # The signal meets the run before its tag is made, while it is made, or after: its metadata files may be there.
    assert operator.lake.content_on_disk() == content
    assert list(operator.lake.load().metadata.refs) == ["main"]


def test_every_job_says_what_it_is_for(operator: Operator) -> None:
    for path in sorted((ROOT / "jobs").glob("*.py")):
        done = operator.run_here(path.stem, "--help")
        assert done.status == 0
        asked = {"doctor": "--catalog", "apply": "FILE"}.get(path.stem, "--table")
        assert asked in done.out


def test_what_was_deleted_comes_back_and_what_is_purged_does_not(operator: Operator) -> None:
    lake = operator.lake
    lake.filled()
    rows, files = lake.rows(), lake.content_on_disk()
    planned = operator.run_here(
        "expire_snapshots", "--older-than", "0s", "--retain-last", "1", "--dry-run", "--output", "json"
    )
    approved = planned.json["result"]["hash"]
    refused = operator.run_here("expire_snapshots", "--older-than", "0s", "--retain-last", "1", "--approve", "0" * 32)
    assert (refused.status, "nothing is expired" in refused.err) == (4, True)
    expired = operator.run_here(
        "expire_snapshots", "--older-than", "0s", "--retain-last", "1", "--approve", approved, "--output", "json"
    )
    assert expired.json["result"]["is_in_trash"] is True
    assert len(lake.foreign().snapshots()) == 1
    restored = operator.run_here("restore", "--output", "json")
    assert restored.json["result"]["restored_snapshots_count"] == 5
    assert len(lake.foreign().snapshots()) == 6
    assert {p for p in lake.content_on_disk() if ".icekeep" not in p.parts} >= files
    assert lake.rows() == rows


def test_an_orphan_goes_to_the_trash_and_comes_back(operator: Operator) -> None:
    lake = operator.lake
    lake.filled(commits=2)
    orphan = Path(urlparse(lake.location()).path) / "data" / "left-over.parquet"
    orphan.write_bytes(b"rows of nobody")
    ten_days_ago = orphan.stat().st_mtime - 10 * 24 * 3600
    os.utime(orphan, (ten_days_ago, ten_days_ago))
    assert operator.run_here("remove_orphan_files", "--older-than", "1h").status == 2
    done = operator.run_here("remove_orphan_files", "--output", "json")
    assert (done.status, done.json["result"]["orphan_files_count"]) == (0, 1)
    assert not orphan.exists()
    assert operator.run_here("restore").status == 0
    assert orphan.read_bytes() == b"rows of nobody"


def test_a_purged_table_is_gone_with_its_files(operator: Operator) -> None:
    operator.lake.filled(commits=2)
    planned = operator.run_here("drop", "--purge", "--dry-run", "--output", "json")
    assert planned.json["result"]["deleted_files_count"] > 10
    assert operator.run_here("drop", "--purge").status == 0
    assert operator.lake.content_on_disk() == set()
    assert operator.run_here("drop", "--purge").status == 2
