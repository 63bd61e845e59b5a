import json
import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import urlparse

import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql import SparkSession

from icekeep.formats.rewrite.copy_row_groups import STITCH_FLOOR_BYTES
from icekeep.maintenance.compact.job import compact
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append, create_table
from kit.cases import for_each
from kit.catalogs import check_race, conflicts_of, names, racing_table, start_appending
from kit.deletes import data_files
from kit.lake import EVENTS, Lake, events, multiset
from kit.shell import BIN, ROOT, Operator


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


def test_wrong_catalog_table_or_file_exits_2_in_one_line(operator: Operator) -> None:
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


def test_failed_job_exits_1_with_json_and_result_file(operator: Operator, tmp_path: Path) -> None:
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


ON_EVENTS = ("--catalog", "local", "--table", "db.events")


def test_a_branch_is_made_listed_and_published_from_the_shell(operator: Operator) -> None:
    table = operator.lake.filled(commits=1, files=1)
    assert operator.icekeep("ref", "create-branch", "audit", "--max-ref-age", "7d", *ON_EVENTS).status == 0
    append(operator.lake.load(), events(9), branch="audit")
    listed = operator.icekeep("ref", "list", "--output", "json", *ON_EVENTS)
    assert (listed.status, listed.err) == (0, "")
    refs = {ref["name"]: ref for ref in listed.json["result"]["refs"]}
    assert (refs["audit"]["type"], refs["audit"]["max_ref_age_ms"]) == ("branch", 604_800_000)
    rows = operator.lake.rows()
    planned = operator.icekeep("ref", "fast-forward", "main", "--to", "audit", "--dry-run", *ON_EVENTS)
    assert (planned.status, operator.lake.rows()) == (0, rows)
    assert operator.icekeep("ref", "fast-forward", "main", "--to", "audit", *ON_EVENTS).status == 0
    assert operator.lake.rows() == rows + multiset(events(9))
    back = operator.icekeep(
        "rollback", "--snapshot-id", str(table.metadata.current_snapshot_id), "--output", "json", *ON_EVENTS
    )
    assert (back.status, back.json["status"]) == (0, "done")
    assert operator.lake.rows() == rows


@pytest.fixture
def with_refs(operator: Operator) -> Operator:
    """Somebody whose table has a branch, `audit`, and a tag, `v1`."""
    create_tag(create_branch(operator.lake.filled(commits=1, files=1), "audit"), "v1")
    return operator


@for_each(
    ("words", "complaint"),
    [
        ("ref drop-branch audits", "no branch 'audits'; there is 'audit', 'main'"),
        ("ref drop-tag audit", "'audit' is a branch, not a tag"),
        ("ref list --dry-run", "unrecognized arguments: --dry-run"),
        ("rollback", "--snapshot-id --timestamp --set-current --set-current-ref is required"),
        ("compact --branch audits", "no branch 'audits'; there is 'audit', 'main'"),
        ("rewrite_manifests --branch v1", "'v1' is a tag; only a branch can be committed to"),
    ],
)
def test_a_wrong_name_is_one_line_and_exit_status_2(with_refs: Operator, words: str, complaint: str) -> None:
    done = with_refs.run_here(words)
    assert done.status == 2
    assert complaint in done.complaint
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.nightly
def test_branch_is_compacted_from_shell_and_main_stays(operator: Operator) -> None:
    table = create_branch(operator.lake.filled(), "audit")
    main = table.metadata.current_snapshot_id
    done = operator.icekeep("compact", "--branch", "audit", "--output", "json", *ON_EVENTS)
    assert (done.status, done.json["result"]["rewritten_data_files_count"]) == (0, 18)
    after = operator.lake.load().metadata
    assert (after.current_snapshot_id, after.refs["audit"].snapshot_id == main) == (main, False)


MIB = 1 << 20


@pytest.mark.nightly
def test_row_groups_of_lineitem_are_copied_by_the_second_rewrite(tmp_path: Path, spark_session: SparkSession) -> None:
    """At 27 bytes a row, a limit of a million rows kept every row group below the floor of 32 MiB."""
    shape = ["--tables=lineitem", "--scale-factor=1", "--parts=24", f"--output-dir={tmp_path / 'rows'}"]
    command = [str(BIN / "tpchgen-cli"), "parquet", "--quiet", "--no-progress", *shape, "--compression=ZSTD(1)"]
    subprocess.run(command, check=True)
    lake = Lake(tmp_path)
    paths = sorted((tmp_path / "rows" / "lineitem").iterdir())
    table = create_table(lake.catalog, EVENTS, pq.read_schema(paths[0]))
    for path in paths:
        table = append(table, pq.read_table(path))
    rows_count = sum(file.record_count for file in data_files(table))
    first = compact(table, spark_session, options={"target-file-size-bytes": str(64 * MIB)})
    assert (first.rewritten_data_files_count, first.stitched_data_files_count) == (24, 0)
    written = data_files(lake.load())
    large = [file for file in written if file.file_size_in_bytes > STITCH_FLOOR_BYTES + MIB]
    assert len(large) >= 2
    assert all(file.file_size_in_bytes / len(file.split_offsets) > STITCH_FLOOR_BYTES for file in large)
    options = {"target-file-size-bytes": str(512 * MIB), "rewrite-all": "true"}
    second = compact(lake.load(), spark_session, options=options)
    assert second.stitched_data_files_count >= 1
    after = data_files(lake.load())
    assert sum(file.record_count for file in after) == rows_count
    assert max(len(file.split_offsets or ()) for file in after) >= 2


def test_metadata_that_was_cut_off(operator: Operator) -> None:
    table = operator.lake.filled(commits=3, files=1)
    location = table.metadata_location
    before = table.metadata.metadata_log[-1].metadata_file
    path = Path(urlparse(location).path)
    path.write_bytes(path.read_bytes()[:400])
    rows = multiset(events(0, 20, month=1)) + multiset(events(1, 20, month=2))
    files = operator.lake.files_on_disk()
    checked = operator.run("check", "--output", "json")
    assert (checked.status, checked.json["status"]) == (3, "faulty")
    assert checked.json["result"]["sound_metadata"][0]["metadata_location"] == before
    others = operator.run("repair", "--fault", "302")
    assert others.status == 1
    assert "`--fault 101` has the table begin again" in others.complaint
    refused = operator.run("repair", "--fault", "101", "--output", "json")
    assert (refused.json["status"], refused.json["result"]["mended"]) == ("partial", [])
    [stays] = refused.json["result"]["not_mended"]
    assert f"--accept-loss {location}" in stays["reason"]
    asked = ("--fault", "101", "--accept-loss", location)
    plan = operator.run("repair", *asked, "--dry-run", "--output", "json")
    assert (plan.status, plan.json["status"]) == (0, "planned")
    assert operator.lake.files_on_disk() == files
    assert "lost" in operator.run("repair", *asked, "--dry-run").out
    done = operator.run("repair", *asked, "--approve", plan.json["result"]["hash"], "--output", "json")
    assert (done.status, done.json["status"]) == (0, "done")
    result = done.json["result"]
    now = operator.lake.load()
    assert (result["metadata_location_before"], result["metadata_location"]) == (location, now.metadata_location)
    assert operator.lake.rows() == rows
    assert files < operator.lake.files_on_disk()
    assert len(operator.lake.foreign().snapshots()) == 2


WRITERS, COMMITS = 4, 10


@pytest.mark.parametrize("kind", ["sql", pytest.param("filesystem", marks=pytest.mark.nightly)])
def test_four_processes_lose_no_commit_and_double_none(tmp_path, kind):
    lake = Lake(tmp_path, kind)
    racing_table(lake.properties)
    start_appending(lake.properties, writers=WRITERS, commits=COMMITS).finish()
    check_race(lake.load(), lake.foreign(), dict.fromkeys(names(WRITERS), COMMITS))
    # Writers that never met would have shown nothing.
    assert conflicts_of(lake.load()) >= WRITERS * COMMITS * 0.3
