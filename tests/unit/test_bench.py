"""The benchmarks: rivals in turn, tables that are what their shapes say, what is checked of what rivals leave, and reports."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from pyiceberg.table import StaticTable

from bench import expiration, manifests
from bench.carrying import measure
from bench.compaction import CompactionCase, CompactionTrial
from bench.expiration import EXPIRE, ORPHANS, ExpirationCase
from bench.jobs import with_icekeep
from bench.manifests import APPEND, EVERYTHING, ONE_PARTITION, Content, ManifestsCase
from bench.planning import check_files
from bench.rival import process
from bench.rival.watching import Watch, _together, timed_plans
from bench.runner import published, trial
from bench.runner.command_line import BENCHMARKS, chosen_cases, parser
from bench.runner.figures import Answer, Figures, Run
from bench.runner.published import Published, line, rounds_of
from bench.runner.rivals import RIVALS, ROOT, TESTS, Rival, RivalFailedError, before, run, start
from bench.runner.trial import Benchmark, Case, Trial, days_ago_ms
from bench.scale import with_icekeep as at_scale
from bench.scale.benchmark import far, figures_by_job, growth, pairs_of_sizes, print_growth
from bench.scale.with_icekeep import AbsentFilesStorage, SparkCounts
from bench.tables import copies, histories, scale_tables
from bench.tables.big_tables import FILTERS, ROWS_A_FILE, Shape, days_filter, filters, scattering_step
from bench.tables.histories import History, HistoryFiles
from bench.tables.kept import Kept, kept, make_anew
from bench.tables.lineitem import Lineitem
from bench.tables.make import Shapes
from bench.tables.scale_tables import AlikeRecords, DeleteKind, Paths, Scale, varints
from icekeep.planning.spark import tasks
from icekeep.planning.spark.tasks import SharedValue
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.matched_deletes import reaches
from kit.cases import for_each
from kit.naive_scan import live_entries
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

HISTORY = History(writer="rewrites", snapshots=120, files=720, garbage_percent=50, orphans=7)
SCALE = Scale(files=2_000, deletes=400, partitions=4, manifest_files=70, garbage_percent=10, orphans_percent=2)
MEMORY = dict.fromkeys(("driver_bytes", "jvm_bytes", "worker_bytes", "total_bytes"), 1)


def run_of(left: str = "same", seconds: float = 1.0, **result: Any) -> Run:
    took = {"seconds": seconds, "cpu_seconds": 2 * seconds, "steal_seconds": seconds / 10}
    return Run(**took, result=result, left={"files": 3, "digest": left}, **MEMORY)


def figures_of(*runs: Run, rival: str = "ours", case: str = "case", **facts: Any) -> Figures:
    return Figures(case=case, rival=rival, runs=runs, facts=facts)


def check_refused(calls: list[tuple[Callable[[], object], str]]) -> None:
    """Each call raises what a failed rival is, with its message; all that do not are listed."""
    wrong = []
    for number, (call, match) in enumerate(calls):
        try:
            with pytest.raises(RivalFailedError, match=match):
                call()
        except (AssertionError, pytest.fail.Exception) as error:
            wrong.append(f"{number}: {match}: {error}")
    assert wrong == []


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A table with a history, to be read only."""
    table = kept(HISTORY, tmp_path_factory.mktemp("bench"))
    make_anew(table, histories.make)
    return table


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("print('noise')\nprint('{\"files\": 7}')", None),
        ("print('{}')\nraise ValueError('no table')", r"status 1: (?s:.*)no table"),
        ("pass", "status 0"),
    ],
)
def test_processes(tmp_path: Path, text: str, says: str | None) -> None:
    (tmp_path / "script.py").write_text(text)
    command = [sys.executable, str(tmp_path / "script.py")]
    if says is None:
        assert run(command) == {"files": 7}
    else:
        check_refused([(partial(run, command), says)])


@pytest.mark.process
def test_memory_of_processes(tmp_path: Path) -> None:
    # Each holds its memory until both have it, and for some glances more.
    child = tmp_path / "child.py"
    child.write_text(
        f"#!{sys.executable}\nimport pathlib, sys, time\ndata = bytearray(int(sys.argv[1]))\n"
        "pathlib.Path(sys.argv[1]).touch()\nwhile len(list(pathlib.Path().glob('?00000000'))) < 2: time.sleep(0.01)\n"
        "time.sleep(1)\nprint('{\"result\": 7}')"
    )
    child.chmod(0o755)
    shell = " & ".join(f"{child} {size}" for size in (100_000_000, 300_000_000))
    command = [sys.executable, str(TESTS / "bench/rival/command.py"), "sh", "-c", f"{shell}; wait"]
    found = run(command, (TESTS,))
    assert (found["result"], found["jvm_bytes"], found["seconds"] > 1) == (7, 0, True)
    assert 300_000_000 < found["worker_bytes"] < 400_000_000 < found["total_bytes"]
    assert found["driver_bytes"] < 100_000_000
    # What processes of one program have of files counts once.
    assert _together([("python3.11", 100, 60), ("java", 400, 20), ("python3.11", 50, 70), ("python3.11", 5, 0)]) == 645
    with Watch() as watch:
        sum(range(10_000_000))
    assert 0.02 < watch.cpu_seconds < 10


@pytest.mark.process
def test_processes_of_a_cluster(tmp_path: Path) -> None:
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


@pytest.mark.process
def test_icekeep_of_another_checkout(tmp_path: Path) -> None:
    (tmp_path / "icekeep").mkdir()
    (tmp_path / "icekeep/__init__.py").write_text("MINE = 7")
    (tmp_path / "work.py").write_text("import icekeep\ndef say(engine, target): return lambda: lambda: icekeep.MINE")
    assert start(before(tmp_path), {"module": "work", "work": "say", "once": True, "spark": {}}) == {"result": 7}
    with pytest.raises(RivalFailedError) as caught:
        start(before(tmp_path), {"module": "bench.jobs.with_icekeep", "work": "plan", "spark": {}})
    assert str(caught.value).startswith(f"the icekeep in {tmp_path} cannot do this: ImportError: cannot import name")
    assert "\n" not in str(caught.value)


class FakeTrial(Trial):
    """Two rivals that plan nothing; what they answer and what is checked is said by the test."""

    room = "jobs"

    def __init__(self, case: Case, cache: Path, directory: Path) -> None:
        self.case, self.directory = case, directory

    def warehouses(self, *rivals: str) -> dict[str, Path]:
        return {}

    def targets(self, rival: Rival) -> dict[str, Any]:
        return {}

    def check_turn(self, rival: Rival, answer: Answer) -> None:
        if answer.runs[0].result["files"] < 7:
            raise RivalFailedError(f"{rival.name} lost a file")

    def check(self, figures: list[Figures]) -> None:
        if len({run.result["files"] for f in figures for run in f.runs}) > 1:
            raise RivalFailedError("they disagree")

    def close(self) -> None:
        closed.append(self)


closed: list[Trial] = []


@pytest.mark.parametrize(
    ("ours", "theirs", "runs", "says"),
    [
        ([7, 7], [7, 7], {"icekeep": 2, "pyiceberg": 2}, None),
        ([7, 7], [6], {"icekeep": 2}, "pyiceberg lost a file"),
        ([7, 7], [7, 8], {"icekeep": 2, "pyiceberg": 2}, "they disagree"),
    ],
)
def test_rivals_in_turn(ours, theirs, runs, says, tmp_path, monkeypatch, capsys) -> None:
    answers = {"icekeep": [*ours], "pyiceberg": [*theirs]}
    monkeypatch.setattr(
        trial,
        "start",
        lambda rival, request: {"runs": [msgspec.to_builtins(run_of(files=answers[rival.name].pop(0)))]},
    )
    closed.clear()
    benchmark = Benchmark(about="", cases={}, quick=(), trial=FakeTrial)
    rivals = [RIVALS["icekeep"], RIVALS["pyiceberg"]]
    figures, is_good = trial.compare(benchmark, "case", Case(table=HISTORY, work="plan"), rivals, tmp_path)
    assert ({f.rival: len(f.runs) for f in figures}, is_good, len(closed)) == (runs, says is None, 1)
    assert (says or "") in capsys.readouterr().out
    assert "".join(trial.in_turn("abc", 3)) == "abccbaabc"


def chosen(benchmark: str, *arguments: str) -> dict[str, Any]:
    return chosen_cases(BENCHMARKS[benchmark], parser().parse_args([benchmark, *arguments]))


def test_chosen_cases() -> None:
    names = list(chosen("planning", "--cases", "100000-in-20-*,1000000-in-20-none"))
    assert (len(names), names[:2]) == (7, ["100000-in-20-none", "100000-in-20-none-process"])
    quick = chosen("expiration", "--quick")
    assert set(quick) == set(BENCHMARKS["expiration"].quick)
    assert {(case.rounds, case.runs, case.table.files) for case in quick.values()} == {(1, 1, 1000)}
    assert not any(name.startswith("rivals-") for name in chosen("expiration"))
    given = parser().parse_args(["expiration,manifests", "--cases", "rivals-append-*"])
    assert list(chosen_cases(BENCHMARKS["expiration"], given)) == ["rivals-append-200", "rivals-append-200-process"]
    assert chosen_cases(BENCHMARKS["manifests"], given) == {}
    [case] = chosen("deletes", "--cases", "compact", "--set", "partitions=4", "--set", "target_mb=32").values()
    assert (case.table.partitions, case.target_mb, case.table.data_files) == (4, 32, 20_000)
    [case] = chosen("compaction", "--cases", "sf1-200-sort", "--set", "by_pyiceberg=true", "--rounds", "3").values()
    assert (case.table.name, case.rounds) == ("sf1-200-pyiceberg", 3)
    for arguments, says in ((("--cases", "x"), "no case 'x'"), (("--set", "colour=red"), "no field 'colour'")):
        with pytest.raises(ValueError, match=f"there is {says}"):
            chosen("deletes", *arguments)


@for_each("name", BENCHMARKS)
def test_every_case_has_a_table_and_work(name: str) -> None:
    cases = BENCHMARKS[name].cases.values()
    shapes = {shape for case in cases for shape in (case.table, case.small)}
    assert len({shape.name for shape in shapes}) == len(shapes)
    assert [shape for shape in shapes if msgspec.json.decode(msgspec.json.encode(shape), type=Shapes) != shape] == []
    room = {"verifying": "parts", "reaching": "parts", "scale": "scale"}.get(name, "jobs")
    for case in cases:
        for rival in (RIVALS[rival] for rival in case.rivals):
            text = (TESTS / f"bench/{room}/with_{rival.engine}.py").read_text()
            assert f"def {rival.asks.get('work', case.work)}(" in text


@pytest.mark.process
def test_each_run_is_of_a_whole_table(tmp_path: Path) -> None:
    table, pristine = tmp_path / "table", tmp_path / "pristine"
    (table / "metadata").mkdir(parents=True)
    (table / "metadata/m.avro").write_text("old")
    copies.take(table, pristine)
    seen = []

    def work(engine: object, target: dict[str, Any]) -> Callable[[], Callable[[], dict[str, int]]]:
        seen.append((target["catalog"], len(list(copies.names(table)))))
        return lambda: (table / "metadata/m2.avro").write_text("new") and (lambda: {"made": 1})

    looks = {"look": lambda engine, target: {"files": len(list(copies.names(table)))}}
    restoring = ["restore", str(table), str(pristine)]
    request = {
        "work": "work",
        "before": "look",
        "after": "look",
        "runs": 3,
        "small": {"catalog": "small", "before": restoring},
        "table": {"catalog": "bench", "before": restoring, "after": ["left", str(table), str(tmp_path / "listing")]},
    }
    answer = msgspec.convert(process.answered(request, None, SimpleNamespace(work=work, **looks)), Answer)
    assert seen == [("small", 1), ("bench", 1), ("bench", 1), ("bench", 1)]
    assert [(run.result, run.left["files"]) for run in answer.runs] == [({"made": 1}, 2)] * 3
    assert (answer.before, answer.after) == ({"files": 1}, {"files": 2})
    slow, module = {"work": "work", "runs": 3, "table": {"before": [], "after": []}}, SimpleNamespace()
    module.work = lambda engine, target: lambda: dict
    assert len(process.answered(slow, None, module)["runs"]) == 3
    assert len(process.answered({**slow, "patience_s": 0}, None, module)["runs"]) == 1


@for_each("name", BENCHMARKS["expiration"].cases)
@for_each("is_quick", [False, True])
def test_steps_of_a_history(name: str, is_quick: bool) -> None:
    [case] = chosen("expiration", "--cases", name, *(["--quick"] if is_quick else [])).values()
    history = case.table
    steps = list(history.steps())
    assert (len(steps), sum(step.added for step in steps)) == (history.snapshots, history.files)
    assert history.garbage_files == history.files * history.garbage_percent // 100
    assert all(step.added > 0 for step in steps)


def test_a_foreign_reader_finds_the_live_files(table: Kept) -> None:
    found = StaticTable.from_metadata(table.load().metadata_location)
    files = [task.file for task in found.scan().plan_files()]
    assert (len(found.metadata.snapshots), len(files)) == (HISTORY.snapshots, HISTORY.files - HISTORY.garbage_files)
    sizes = {file: Path(file.file_path.removeprefix("file://")).stat().st_size for file in files}
    assert [file for file, size in sizes.items() if file.file_size_in_bytes != size] == []
    names = list(copies.names(table.path))
    assert sum(name.startswith("data/") for name in names) == HISTORY.files + HISTORY.orphans
    assert found.scan().count() == table.facts["rows"]


@pytest.mark.parametrize(
    ("writer", "most", "last"), [("append", 99, 31), ("fast-append", 130, 130), ("rewrites", None, None)]
)
def test_files_of_a_history(writer, most, last, tmp_path: Path) -> None:
    """Manifests are merged at a hundred where a writer does so, and all on disk is listed or an orphan on purpose."""
    history = HISTORY if writer == "rewrites" else History(writer=writer, snapshots=130, files=130, orphans=7)
    table = kept(history, tmp_path)
    make_anew(table, histories.make)
    found = StaticTable.from_metadata(table.load().metadata_location)
    lists = [snapshot.manifests(found.io) for snapshot in found.snapshots()]
    assert most is None or (max(map(len, lists)), len(lists[-1])) == (most, last)
    known = {manifest.manifest_path: manifest for listed in lists for manifest in listed}
    listed = {*known, *(snapshot.manifest_list for snapshot in found.snapshots())}
    for manifest in known.values():
        entries = manifest.fetch_manifest_entry(found.io, discard_deleted=False)
        listed.update(entry.data_file.file_path for entry in entries)
    paths = {location.removeprefix("file://") for location in listed}
    files = {str(path) for path in table.path.rglob("*.*") if path.is_file() and ".avro" in path.name}
    files |= {str(path) for path in (table.path / "data").rglob("*.parquet")}
    assert (paths - files, len(files - paths)) == (set(), history.orphans)


def test_copies_of_a_table(tmp_path: Path) -> None:
    table, pristine, listing = tmp_path / "table", tmp_path / "pristine", tmp_path / "left.txt"

    def write(**texts: str) -> None:
        for name, text in texts.items():
            (table / name).parent.mkdir(parents=True, exist_ok=True)
            (table / name).write_text(text)

    names = ("data/day=1/a.parquet", "data/day=2/b.parquet", "metadata/m.avro", "metadata/v1.metadata.json")
    write(**{name: name for name in names}, **{"metadata/version-hint.text": "1"})
    copies.take(table, pristine)
    whole = {name: (table / name).read_bytes() for name in copies.names(table)}
    before = copies.left(table, listing)
    assert listing.read_text().splitlines() == list(names[:3])
    # What each rival commits is not told.
    write(**{"metadata/v2.metadata.json": "new", "metadata/.v2.metadata.json.crc": "sum", ".icekeep/note": "ours"})
    assert copies.left(table, listing) == before
    (table / "data/day=1/a.parquet").rename(table / "data/day=1/c.parquet")
    after = copies.left(table, listing)
    assert (after["files"], after["digest"] != before["digest"]) == (before["files"], True)
    shutil.rmtree(table / "data/day=1")
    (table / "metadata/m.avro").unlink()
    write(**{"metadata/new.avro": "new", "metadata/version-hint.text": "2", ".icekeep/plans/run/plan.json": "{}"})
    copies.restore(table, pristine)
    assert {name: (table / name).read_bytes() for name in copies.names(table)} == whole
    assert not (table / ".icekeep").exists()


EXPIRED = ExpirationCase(table=HISTORY)
WITHOUT_ORPHANS = ExpirationCase(table=HISTORY, work=ORPHANS)


def expired(left: str = "same", **result: int) -> Run:
    """What a rival did to `HISTORY`, by its own word."""
    counts = {key: 0 for key in expiration.COUNTS if key != "orphans_count"}
    return run_of(left, **{**counts, "deleted_data_files_count": HISTORY.garbage_files, **result})


def test_checks_of_expiration(table: Kept, tmp_path: Path) -> None:
    orphan = HistoryFiles(HISTORY, "").orphan_path(3).rpartition("/")[2]
    ours, theirs = figures_of(expired()), partial(figures_of, rival="theirs")
    full, one_less = tmp_path / "left.txt", tmp_path / "less.txt"
    full.write_text("data/x\n" * 367 + "metadata/m.avro\n")
    one_less.write_text("data/x\n" * 366)
    listings = {name: tmp_path / f"left-by-{name}.txt" for name in ("ours", "theirs")}
    listings["ours"].write_text("data/a\ndata/b\n")
    listings["theirs"].write_text("data/a\ndata/c\n")
    answers, files = partial(expiration.check_answers, "ours"), partial(expiration.check_files, "ours")
    agree, two, dry = expiration.check_agreement, Answer(runs=(expired(), expired("other"))), {"is_dry_run": True}
    one, rows = Answer(runs=(expired(),)), table.facts["rows"]

    def orphans(name: str) -> Answer:
        return Answer(runs=(run_of(orphans_count=7, some=[name]),))

    answers(one, EXPIRED)
    answers(orphans(orphan), WITHOUT_ORPHANS)
    files(one, EXPIRED, full)
    agree([ours, theirs(expired())], listings)
    expiration.check_rows(table, rows)
    expiration.check_snapshots("ours", WITHOUT_ORPHANS, table)
    differ = r"'ours': \[1, 'data/b'\], 'theirs': \[1, 'data/c'\]"
    check_refused(
        [
            (lambda: answers(Answer(runs=(expired(deleted_data_files_count=359),)), EXPIRED), "359 files, not 360"),
            (lambda: answers(orphans("x.parquet"), WITHOUT_ORPHANS), r"ours takes 'x\.parquet' for an orphan"),
            (lambda: files(one, WITHOUT_ORPHANS, full), "ours leaves 367 data files, not 720"),
            (lambda: files(one, replace(WITHOUT_ORPHANS, **dry), full), "ours leaves 367 data files, not 727"),
            (lambda: files(one, EXPIRED, one_less), "ours leaves 366 data files, not 367"),
            (lambda: files(two, EXPIRED, full), "from run to run"),
            (lambda: agree([ours, theirs(expired("other"))], listings), differ),
            (lambda: agree([figures_of(*two.runs), theirs(expired())], listings), differ),
            (lambda: agree([ours, theirs(expired(deleted_manifest_files_count=1))], {}), "count differently"),
            (lambda: expiration.check_rows(table, rows + 1), "PyIceberg counts"),
            (lambda: expiration.check_snapshots("ours", EXPIRED, table), "ours leaves 120 snapshots"),
        ]
    )


def engine_of(table: Kept, **request: Any) -> Any:
    return SimpleNamespace(load=lambda _: table.load(), spark=no_spark, request=request)


@pytest.mark.parametrize(("work", "is_dry_run"), [(ORPHANS, True), (ORPHANS, False), (EXPIRE, False)])
def test_icekeep_expires(work: str, is_dry_run: bool, tmp_path: Path) -> None:
    table, listing = kept(HISTORY, tmp_path), tmp_path / "left.txt"
    make_anew(table, histories.make)
    case = ExpirationCase(table=HISTORY, work=work, is_dry_run=is_dry_run)
    engine = engine_of(table, older_than_ms=days_ago_ms(0 if work == EXPIRE else 3), is_dry_run=is_dry_run)
    said = getattr(with_icekeep, work)(engine, {})()()
    answer = Answer(runs=(replace(run_of(**said), left=copies.left(table.path, listing)),))
    expiration.check_answers("ours", answer, case)
    expiration.check_files("ours", answer, case, listing)
    expiration.check_snapshots("ours", case, table)
    expiration.check_rows(table, table.facts["rows"])


REWRITTEN = ManifestsCase(table=Shape(entries=2000, manifests=20, scattered=True))
APPENDED = replace(REWRITTEN, work=APPEND)
WAS = Content(
    manifests=20, bytes=700, listed_files=2000, listed_records=9000, files=2000, records=9000, opened=20, found=2
)
IS = replace(WAS, manifests=1, bytes=600, opened=1)


def test_icekeep_plans_and_rewrites_manifests(tmp_path: Path) -> None:
    table = kept(History(writer="fast-append", snapshots=30, files=60), tmp_path)
    make_anew(table, histories.make)
    engine = engine_of(table, where="true", filters={EVERYTHING: {"where": "true"}})
    assert with_icekeep.plan(engine, {})()()["data_files_count"] == 60
    before = with_icekeep.plans(engine, {})
    said = with_icekeep.rewrite_manifests(engine, {})()()
    assert (said["rewritten_manifests_count"], said["added_manifests_count"]) == (30, 1)
    manifests.check_plans([{"before": before, "after": with_icekeep.plans(engine, {})}], replace(WAS, files=60))
    engine.request["file"] = {"path": table.path.as_uri() + "/data/x.parquet", "day": 19_000, "bytes": 9, "records": 7}
    assert with_icekeep.append(engine, {})()() == {}
    assert with_icekeep.plan(engine, {})()()["data_files_count"] == 61


def plan_of(files: int, seconds: float = 1.0) -> dict[str, Any]:
    return {"data_files_count": files, "data_files_bytes": files * 10, "seconds": seconds}


def test_checks_of_manifests_and_plans() -> None:
    made, content, results = manifests.check_made, manifests.check_content, manifests.check_results
    in_jvm, plans = manifests.check_in_the_jvm, manifests.check_plans
    grown = {"files": 2001, "listed_files": 2001, "records": 9000 + ROWS_A_FILE, "listed_records": 9000 + ROWS_A_FILE}
    written = [Answer(runs=(run_of(entries_count=count),)) for count in (2000, 1999)]
    both = {ONE_PARTITION: plan_of(2), EVERYTHING: plan_of(2000)}
    seven = run_of(data_files_count=7, data_files_bytes=700)

    def answered(rewritten: int = 20, added: int = 1) -> Answer:
        return Answer(runs=(run_of(rewritten_manifests_count=rewritten, added_manifests_count=added),))

    made(WAS, REWRITTEN.table)
    content("ours", REWRITTEN, WAS, IS)
    content("ours", APPENDED, WAS, replace(IS, **grown))
    results("ours", REWRITTEN, answered(), IS)
    results("ours", APPENDED, Answer(), IS)
    in_jvm(written[0], WAS, WAS)
    plans([{"before": both, "after": both}, {"after": both}, {}], WAS)
    check_files([figures_of(seven, seven), figures_of(seven, rival="theirs")])
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: made(replace(WAS, records=8999), REWRITTEN.table), "other records"),
        (lambda: content("ours", APPENDED, WAS, IS), "as files and records"),
        (lambda: content("ours", APPENDED, WAS, replace(IS, **grown, manifests=20)), "no fewer"),
        (lambda: in_jvm(written[1], WAS, WAS), "1999"),
        (lambda: in_jvm(written[0], WAS, IS), "left"),
    ]
    for field in ("manifests", "files", "listed_files"):
        calls.append((partial(made, replace(WAS, **{field: getattr(WAS, field) - 1}), REWRITTEN.table), "remove it"))
    for field in ("files", "records", "listed_files", "listed_records"):
        less = replace(IS, **{field: getattr(IS, field) - 1})
        calls.append((partial(content, "ours", REWRITTEN, WAS, less), "as files and records"))
    for wrong in (answered(rewritten=19), answered(added=0), answered(added=2)):
        calls.append((partial(results, "ours", REWRITTEN, wrong, IS), "says"))
    for other in ({**both, ONE_PARTITION: plan_of(3)}, {**both, EVERYTHING: plan_of(1999)}):
        for first in (both, other):
            calls.append((partial(plans, [{"before": first, "after": other}], WAS), "planners find"))
    for count, size in ((8, 700), (7, 701)):
        wrong_run = run_of(data_files_count=count, data_files_bytes=size)
        for figures in ([figures_of(seven, wrong_run)], [figures_of(seven), figures_of(wrong_run, rival="theirs")]):
            calls.append((partial(check_files, figures), "different files"))
    check_refused(calls)
    rounds = [
        {"before": {EVERYTHING: plan_of(7, b)}, "after": {EVERYTHING: plan_of(7, a)}} for b, a in ((3, 1), (2, 2))
    ]
    assert manifests.best_plans(rounds, EVERYTHING) == [2.0, 1.0]
    assert manifests.best_plans([{"after": rounds[0]["after"]}], EVERYTHING) == [1.0]


def test_timed_plans() -> None:
    loaded = []

    def ready(asked: str) -> Callable[[], Callable[[], dict[str, int]]]:
        loaded.append(asked)
        files = 6 if len(loaded) > 4 else 7
        return lambda: lambda: {"data_files_count": files}

    assert timed_plans({"all": "true"}, ready)["all"]["data_files_count"] == 7
    assert loaded == ["true"] * 4
    loaded.pop()
    with pytest.raises(AssertionError, match="different results"):
        timed_plans({"all": "true"}, ready)


def test_big_tables() -> None:
    for partitions in (1, 2, 3, 10, 97, 100, 618, 1000, 1024):
        step = scattering_step(partitions)
        assert {number * step % partitions for number in range(partitions)} == set(range(partitions))
        assert tuple(filters(Shape(entries=1, manifests=1, partitions=partitions))) == FILTERS
    chosen = days_filter(Shape(entries=1, manifests=1, partitions=100), 1)
    assert chosen.where == "at >= '2020-02-13T00:00:00+00:00' and at < '2020-02-14T00:00:00+00:00'"


@for_each("name", BENCHMARKS["manifests"].cases)
@for_each("is_quick", [False, True])
def test_tables_to_merge(name: str, is_quick: bool) -> None:
    """They are one manifest short of what a commit merges."""
    [case] = chosen("manifests", "--cases", name, *(["--quick"] if is_quick else [])).values()
    assert all(shape.manifests == 99 for shape in (case.table, case.small) if case.work == APPEND)
    assert (case.table.scattered, case.runs == 1) == (True, is_quick or case.is_process)


def test_carrying(monkeypatch: pytest.MonkeyPatch) -> None:
    small = measure.Size(files=3, rows=400, runs=30, deletes=90)
    for kind in measure.KINDS:
        for strategy in measure.STRATEGIES:
            found = measure.measured(kind, strategy, small)
            assert (found.carried, 0 < found.seconds < found.compaction_seconds) == (90, True)
    monkeypatch.setattr(measure.carrying, "new_positions", lambda *_: {})
    with pytest.raises(SystemExit, match="PyIceberg finds"):
        measure.measured("vectors", "binpack", small)


LINEITEM = Lineitem(scale="1", files=60, by_pyiceberg=True)
CASE = CompactionCase(table=LINEITEM, arguments={}, into_files=2, codec="zstd", level=3, rounds=3, runs=2)


def timed(rival: str, *seconds: float) -> Figures:
    return figures_of(*(run_of(seconds=one) for one in seconds), rival=rival, **{"MB written": 1.5})


def test_lines_of_a_report() -> None:
    """The best run of each round counts; ratios are of the same round, and medians of all."""
    assert [run.seconds for run in rounds_of(timed("java", 3, 2, 5, 6, 4, 1), CASE)] == [2, 5, 1]
    own = rounds_of(timed("icekeep", 1, 9, 2, 9, 4, 9), CASE)
    found = line(timed("java", 3, 9, 2, 9, 8, 9), CASE, own)
    assert (found.seconds, found.cpu_seconds, found.rounds_seconds) == (3, 6, (3, 2, 8))
    # Of 3, 1 and 2; the medians, 3 and 2, have another ratio.
    assert (found.ratio, found.steal_seconds) == (2, pytest.approx(0.8))
    assert line(timed("java", 2, 9, 6, 9, 9, 9), CASE, own[:2]).ratio == 2.5
    assert line(timed("java", 2, 9), CASE, None).ratio is None


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "versions", lambda rival: {rival.name: "1.2"})
    monkeypatch.setattr(published, "_commit", lambda: "abc")
    told = Published()
    told.add(CASE, [timed("icekeep", *[1] * 6), timed("iceberg-compaction", *[2] * 6)])
    told.write(tmp_path / "of" / "rivals", ["another case"])
    text = (tmp_path / "of" / "rivals.md").read_text()
    assert "| iceberg-compaction | iceberg-compaction 1.2 |" in text
    assert "Table sf1-60-pyiceberg, warm sessions, 3 rounds, zstd, level 3 where it can be set." in text
    assert "| iceberg-compaction | 2.00 (2.00, 2.00, 2.00) | 4.00 | 2.00 | 0 | 1.50 | 0.2 | 0.0 |" in text
    assert "another case" in text.splitlines()[-1]
    page = " ".join((ROOT / "docs" / "performance" / "rivals.md").read_text().split())
    words = [one for one in text.splitlines() if one.startswith(("Medians of ", "Of a compaction: ", "Of manifests, "))]
    assert [one in page for one in words] == [True] * 3
    document = json.loads((tmp_path / "of" / "rivals.json").read_bytes())
    assert document["machine"]["commit"] == "abc"
    assert [one["rival"] for one in document["cases"][0]["lines"]] == ["icekeep", "iceberg-compaction"]


def test_codecs_of_copies() -> None:
    for codec, level, expected in (
        (None, None, []),
        ("snappy", None, ["codec=snappy"]),
        ("zstd", 3, ["codec=zstd", "level=3"]),
    ):
        one = object.__new__(CompactionTrial)
        one.case = replace(CASE, codec=codec, level=level)
        assert one.properties == [f"write.parquet.compression-{text}" for text in expected]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    made = kept(SCALE, tmp_path_factory.mktemp("bench"))
    make_anew(made, scale_tables.make)
    return made


@pytest.mark.process
def test_entries_at_scale(big: Kept) -> None:
    entries = list(live_entries(big.load()))
    of = {content: [e for e in entries if e.data_file.content is content] for content in FileContent}
    location = big.load().metadata.location
    paths = Paths(SCALE, f"{location}/data")
    data = {entry.data_file.file_path: entry for entry in of[FileContent.DATA]}
    assert data.keys() == {paths.data(number) for number in range(SCALE.files)}
    for number in range(0, SCALE.files, 97):
        file = data[paths.data(number)].data_file
        assert file.file_path.startswith(f"{paths.directory(file.partition[0] - 18_262)}/")
        assert file.value_counts == dict.fromkeys(range(1, 11), file.record_count)
        assert all((file.lower_bounds or {})[1 + n] != (file.upper_bounds or {})[1 + n] for n in range(10))
        assert 16 << 20 <= file.file_size_in_bytes < 124 << 20
    assert len({e.data_file.lower_bounds[1] for e in data.values() if e.data_file.lower_bounds}) > SCALE.files * 0.9
    kinds = Counter(SCALE.delete(number).kind for number in range(SCALE.deletes))
    assert kinds == {"of one file": 240, "of a stretch": 80, "vector": 40, "equality": 40}
    only = [e for e in of[FileContent.POSITION_DELETES] if e.data_file.referenced_data_file is not None]
    assert len(only) == kinds[DeleteKind.OF_FILE] + kinds[DeleteKind.VECTOR]
    assert len({entry.data_file.referenced_data_file for entry in only}) == len(only)
    specs = big.load().metadata.specs_by_id
    assert all(reaches(entry, data[entry.data_file.referenced_data_file or ""], specs) for entry in only)
    assert len(of[FileContent.EQUALITY_DELETES]) == kinds[DeleteKind.EQUALITY]
    # The listing has each of them once, with the orphans and what is on disk.
    storage = AbsentFilesStorage(SCALE, location)
    listed = Counter(info.location for share in storage.shares(location, 3) for info in storage.list_share(share))
    assert set(listed.values()) == {1}
    orphans, garbage = ({paths.data(n) for n in numbers} for numbers in (SCALE.orphans, SCALE.garbage))
    absent = {path for path in listed if path.startswith(f"{location}/data/")}
    assert absent == {*(entry.data_file.file_path for entry in entries), *garbage, *orphans}
    assert len(orphans) == SCALE.files * SCALE.orphans_percent // 100
    assert listed.keys() - absent == {path.as_uri() for path in (big.path / "metadata").iterdir()}
    engine: Any = engine_of(big, shapes={"bench": msgspec.to_builtins(SCALE)})
    engine.spark = MagicMock()
    engine.spark.conf.get.return_value = None
    said = at_scale.plan_orphans(engine, {"catalog": "bench", "is_small": False})()()
    assert (said["orphan_files_count"], said["jobs"]) == (len(orphans), 0)
    assert said["listed_files_count"] > SCALE.orphans.stop + SCALE.deletes


def test_counts_of_spark(tmp_path: Path) -> None:
    """Jobs, tasks and bytes of the block alone."""
    log = tmp_path / "app-1.inprogress"
    metrics = {"Result Size": 1000, "Shuffle Write Metrics": {"Shuffle Bytes Written": 70}, "Disk Bytes Spilled": 5}
    task = {"Event": "SparkListenerTaskEnd", "Task End Reason": {"Reason": "Success"}, "Task Metrics": metrics}
    lost = {"Event": "SparkListenerTaskEnd", "Task End Reason": {"Reason": "ExecutorLostFailure"}}
    events = [{"Event": "SparkListenerJobStart"}, task, lost, {"Event": "SparkListenerJobEnd"}]

    def write(*some: Any) -> None:
        with log.open("a") as stream:
            stream.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in some)

    write(*events)
    context = SimpleNamespace(applicationId="app-1", _jsc=MagicMock())
    spark: Any = SimpleNamespace(sparkContext=context, conf={"spark.eventLog.dir": tmp_path.as_uri()})
    with SparkCounts(spark) as counts:
        write(*events, task)
        SharedValue(b"y" * 2_000, spark.sparkContext)
        tasks.pickle.dumps(b"x" * 1_000)
    write(task)
    found = counts.figures()
    assert 3_000 < found.pop("payloads_bytes") < 3_200
    spilled = {"results_bytes": 2_000, "shuffled_bytes": 140, "spilled_bytes": 10}
    assert found == {"jobs": 1, "tasks": 3, "failed_tasks": 1, **spilled}


def test_records_that_are_not_alike() -> None:
    for call, says in (
        (lambda: AlikeRecords(lambda values: b"x" * values["n"], {"n": (1, 2)}), "not alike"),
        (lambda: varints(np.array([8_192, 1 << 20]), 3), "of 3 bytes"),
        (lambda: varints(np.array([64]), 1), "of 1 bytes"),
    ):
        with pytest.raises(ValueError, match=says):
            call()


def sized(case: str, files: int, cpu_s: float, rival: str = "icekeep") -> Figures:
    facts: dict[str, Any] = {"files": files, "CPU s": cpu_s}
    facts |= dict.fromkeys(("driver CPU s", "driver MB", "payload MB", "result MB", "shuffled MB"), 0)
    driver = {"driver_cpu_seconds": 2.0, "driver_total_bytes": files * 100}
    return figures_of(replace(run_of(seconds=cpu_s), cpu_seconds=cpu_s, **driver), rival=rival, case=case, **facts)


def test_growth(capsys: Any) -> None:
    small, large = sized("plan-scan-1m", 1_000_000, 10.0), sized("plan-scan-10m", 10_000_000, 150.0)
    other, same_size = sized("rewrite-1m", 1_000_000, 1.0), sized("rewrite-3m", 1_000_000, 1.0)
    assert [f.case for f in figures_by_job([large, other, small])] == ["plan-scan-1m", "plan-scan-10m", "rewrite-1m"]
    assert growth(small, large) == {"CPU s": 1.5, "s": 1.5}
    before = replace(other, rival="icekeep-before", case="rewrite-10m")
    assert pairs_of_sizes([large, other, before, small, same_size]) == [(small, large)]
    found = far(sized("plan-scan-1m", 1_000_000, 12.0), sized("plan-scan-3m", 3_000_000, 42.0))
    # 10 s of tasks for the first million, 15 for each other one, in 400 slots.
    assert (found.driver_s, found.driver_mb) == (2.0, 100_000.0)
    assert found.tasks_s == pytest.approx((10 + 15 * 999) / 400)
    shrinking = far(sized("plan-scan-3m", 3_000_000, 42.0), sized("plan-scan-10m", 10_000_000, 41.0))
    assert shrinking.tasks_s == pytest.approx(39 / 400)
    print_growth([large, small], ())
    lines = capsys.readouterr().out.splitlines()
    places = [next(n for n, one in enumerate(lines) if text in one) for text in ("-1m", "-10m", "growth ")]
    assert places[0] < places[1] == places[2] - 1
    assert "1.50 x" in lines[places[2]]
    assert "extrapolated, not measured: 1,000,000,000 files, 400 slots" in "\n".join(lines)
