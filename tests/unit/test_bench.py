"""The harness of the benchmarks: what a rival's process says is believed only where it can be."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from pyiceberg.table import StaticTable

from bench import big_tables, expiration, expiration_copies, expiration_figures, manifests, manifests_figures
from bench.big_rows import ROWS_A_FILE, Shape, scattering_step
from bench.big_tables import FILTERS, days_filter, filters
from bench.expiration_figures import Left, Run
from bench.expiration_histories import History, Writer
from bench.expiration_running import EXPIRE, ORPHANS
from bench.expiration_tables import HistoryTable, history_table, make
from bench.manifests import EVERYTHING, ONE_PARTITION
from bench.manifests_figures import Answer, Content, Plan
from bench.manifests_running import APPEND, REWRITE, answer_of
from bench.planning import Figures, agreed
from bench.processes import RivalFailedError, run
from bench.rival import measured

pytestmark = pytest.mark.slow

FIGURES = Figures(rival="ours", files=7, bytes=700, first_s=2.0, warm_s=1.0, jvm_bytes=0, python_bytes=0)
HISTORY = History(writer="rewrites", snapshots=120, files=720, garbage_percent=50, orphans=7)


def script(directory: Path, text: str) -> list[str]:
    path = directory / "script.py"
    path.write_text(text)
    return [sys.executable, str(path)]


@pytest.mark.process
def test_the_last_line_of_a_process_is_its_answer_and_its_memory_is_seen(tmp_path: Path) -> None:
    text = "import time\ndata = bytearray(300_000_000)\ntime.sleep(0.5)\nprint('noise')\nprint('{\"files\": 7}')"
    command = script(tmp_path, text)
    ended = run(command, command[1])
    assert ended.answer == {"files": 7}
    assert ended.process_bytes > 300_000_000
    assert ended.seconds > 0


@pytest.mark.process
@pytest.mark.parametrize("text", ["raise ValueError('no table')", "print('{}')\nraise ValueError('no table')"])
def test_a_process_that_fails_is_an_error_that_says_why(tmp_path: Path, text: str) -> None:
    command = script(tmp_path, text)
    with pytest.raises(RivalFailedError, match=r"status 1: (?s:.*)no table"):
        run(command, command[1])


@pytest.mark.process
def test_a_process_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    command = script(tmp_path, "pass")
    with pytest.raises(RivalFailedError, match="status 0"):
        run(command, command[1])


@pytest.mark.process
def test_the_python_below_a_process_is_the_driver_and_others_are_not(tmp_path: Path) -> None:
    driver, other = tmp_path / "driver.py", tmp_path / "other.py"
    for path, size in ((driver, 100_000_000), (other, 400_000_000)):
        path.write_text(f"import time\ndata = bytearray({size})\ntime.sleep(1)")
    command = script(
        tmp_path,
        "import subprocess, sys\n"
        f"children = [subprocess.Popen([sys.executable, p]) for p in ({str(driver)!r}, {str(other)!r})]\n"
        "[child.wait() for child in children]\nprint('{}')",
    )
    ended = run(command, str(driver))
    assert 100_000_000 < ended.python_bytes < 200_000_000
    assert ended.process_bytes < 100_000_000


def test_a_plan_that_differs_from_call_to_call_is_an_error() -> None:
    results = iter([(7, 700), (7, 700), (6, 600)])
    with pytest.raises(AssertionError, match="different results"):
        measured(lambda: None, lambda _: next(results), repeat=2)


def test_each_plan_is_of_a_table_that_was_just_loaded() -> None:
    tables = iter(range(10))
    seen = []

    def plan(table: int) -> tuple[int, int]:
        seen.append(table)
        return 7, 700

    figures = measured(lambda: next(tables), plan, repeat=3)
    assert seen == [0, 1, 2, 3]
    assert (figures["files"], figures["bytes"]) == (7, 700)


def test_rivals_agree_only_where_files_and_bytes_are_equal() -> None:
    assert agreed([FIGURES, FIGURES])
    assert not agreed([FIGURES, msgspec.structs.replace(FIGURES, files=8)])
    assert not agreed([FIGURES, msgspec.structs.replace(FIGURES, bytes=701)])


def test_every_table_has_every_filter() -> None:
    for partitions in (1, 100, 1000):
        assert tuple(filters(Shape(entries=1, manifests=1, partitions=partitions))) == FILTERS


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> HistoryTable:
    """A table with a history, to be read only."""
    table = history_table(HISTORY, tmp_path_factory.mktemp("bench"))
    make(table)
    return table


@pytest.mark.parametrize("name", expiration.CASES)
@pytest.mark.parametrize("is_quick", [False, True])
def test_a_history_has_the_files_and_the_garbage_that_it_says(name: str, is_quick: bool) -> None:
    history = expiration.chosen_cases([name], None, is_quick=is_quick)[name].history
    steps = list(history.steps())
    assert len(steps) == history.snapshots
    assert sum(step.added for step in steps) == history.files
    assert history.garbage_files == history.files * history.garbage_percent // 100
    assert all(step.added > 0 for step in steps)


def test_files_by_number_take_the_orphans_with_them() -> None:
    chosen = expiration.chosen_cases(["orphans", "append-1000"], 5000, is_quick=False)
    assert {name: (case.history.files, case.history.orphans) for name, case in chosen.items()} == {
        "orphans": (5000, 50),
        "append-1000": (5000, 0),
    }


def test_all_files_of_a_history_are_on_disk_and_a_foreign_reader_finds_the_live_ones(table: HistoryTable) -> None:
    found = StaticTable.from_metadata(table.load().metadata_location)
    tasks = list(found.scan().plan_files())
    assert len(found.metadata.snapshots) == HISTORY.snapshots
    assert len(tasks) == HISTORY.files - HISTORY.garbage_files == 360
    for task in tasks:
        assert Path(task.file.file_path.removeprefix("file://")).stat().st_size == task.file.file_size_in_bytes
    names = list(expiration_copies.names(table.path))
    assert sum(name.startswith("data/") for name in names) == HISTORY.files + HISTORY.orphans
    assert found.scan().count() == msgspec.json.decode(table.mark.read_bytes())["rows"]


@pytest.mark.parametrize(("writer", "most"), [("append", 100), ("fast-append", 130)])
def test_manifests_of_a_history_are_merged_at_a_hundred_where_a_writer_does_so(
    writer: Writer, most: int, tmp_path: Path
) -> None:
    table = history_table(History(writer=writer, snapshots=130, files=130), tmp_path)
    make(table)
    found = StaticTable.from_metadata(table.load().metadata_location)
    lists = [len(snapshot.manifests(found.io)) for snapshot in found.snapshots()]
    assert max(lists) == most - (writer == "append")
    assert lists[-1] == (31 if writer == "append" else 130)


@pytest.mark.parametrize("history", [HISTORY, History(writer="append", snapshots=130, files=130, orphans=7)])
def test_every_file_on_disk_is_listed_by_some_snapshot_or_is_an_orphan_on_purpose(
    history: History, tmp_path: Path
) -> None:
    table = history_table(history, tmp_path)
    make(table)
    found = StaticTable.from_metadata(table.load().metadata_location)
    listed = {snapshot.manifest_list for snapshot in found.snapshots()}
    for snapshot in found.snapshots():
        for manifest in snapshot.manifests(found.io):
            if manifest.manifest_path not in listed:
                listed.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(found.io, discard_deleted=False)
                listed.update(entry.data_file.file_path for entry in entries)
    paths = {location.removeprefix("file://") for location in listed}
    files = {str(path) for path in table.path.rglob("*.*") if path.is_file() and ".avro" in path.name}
    files |= {str(path) for path in (table.path / "data").rglob("*.parquet")}
    assert paths <= files
    assert len(files - paths) == history.orphans


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, Path]:
    """A directory as a table's, and where its second names are."""
    table, pristine = tmp_path / "table", tmp_path / "pristine"
    for name in ("data/day=1/a.parquet", "data/day=2/b.parquet", "metadata/m.avro", "metadata/v1.metadata.json"):
        (table / name).parent.mkdir(parents=True, exist_ok=True)
        (table / name).write_text(name)
    (table / "metadata/version-hint.text").write_text("1")
    expiration_copies.take(table, pristine)
    return table, pristine


def test_a_table_is_made_whole_again_whatever_a_run_deleted_wrote_and_changed(copied: tuple[Path, Path]) -> None:
    table, pristine = copied
    before = {name: (table / name).read_bytes() for name in expiration_copies.names(table)}
    shutil.rmtree(table / "data/day=1")
    (table / "metadata/m.avro").unlink()
    (table / "metadata/v2.metadata.json").write_text("new")
    (table / "metadata/new.avro").write_text("new")
    (table / "metadata/version-hint.text").write_text("2")
    (table / ".icekeep/plans/run").mkdir(parents=True)
    (table / ".icekeep/plans/run/plan.json").write_text("{}")
    expiration_copies.restore(table, pristine)
    assert {name: (table / name).read_bytes() for name in expiration_copies.names(table)} == before
    assert not (table / ".icekeep").exists()


def test_what_a_run_left_is_told_by_names_but_for_what_each_rival_commits(copied: tuple[Path, Path]) -> None:
    table, listing = copied[0], copied[0].parent / "left.txt"
    before = expiration_copies.left(table, listing)
    assert listing.read_text().splitlines() == ["data/day=1/a.parquet", "data/day=2/b.parquet", "metadata/m.avro"]
    (table / "metadata/v2.metadata.json").write_text("new")
    (table / "metadata/.v2.metadata.json.crc").write_text("sum")
    (table / ".icekeep").mkdir()
    (table / ".icekeep/note").write_text("ours")
    assert expiration_copies.left(table, listing) == before
    (table / "data/day=1/a.parquet").rename(table / "data/day=1/c.parquet")
    after = expiration_copies.left(table, listing)
    assert (after["files"], after["digest"] != before["digest"]) == (before["files"], True)


def expired(rival: str, **result: int) -> expiration_figures.Figures:
    """What a rival did to `HISTORY`, by its own word."""
    counts = dict.fromkeys(expiration.COUNTS, 0) | {"deleted_data_files_count": HISTORY.garbage_files} | result
    left = Left(files=3, digest="same")
    memory = dict.fromkeys(("driver_bytes", "jvm_bytes", "worker_bytes", "total_bytes"), 1)
    run = Run(seconds=1.0, cpu_seconds=1.0, result=counts, left=left, **memory)
    return expiration_figures.Figures(case="case", rival=rival, runs=(run,))


def with_left(figures: expiration_figures.Figures, digest: str) -> expiration_figures.Figures:
    runs = tuple(replace(run, left=replace(run.left, digest=digest)) for run in figures.runs)
    return replace(figures, runs=runs)


def test_a_rival_must_say_that_it_deleted_what_became_garbage(table: HistoryTable) -> None:
    case = expiration.Case(history=HISTORY, job=EXPIRE)
    expiration.check_answers(expired("ours"), case)
    with pytest.raises(RivalFailedError, match="ours says 359 files, not 360"):
        expiration.check_answers(expired("ours", deleted_data_files_count=359), case)


def test_a_rival_must_leave_as_many_data_files_as_are_live(table: HistoryTable) -> None:
    case = expiration.Case(history=HISTORY, job=EXPIRE)
    listing = table.directory / "left-by-ours.txt"
    listing.write_text("data/x\n" * 367 + "metadata/m.avro\n")
    expiration.check_files(expired("ours"), case, table, live_files=360)
    with pytest.raises(RivalFailedError, match="ours leaves 367 data files, not 720"):
        expiration.check_files(expired("ours"), replace(case, job=ORPHANS), table, live_files=360)
    listing.write_text("data/x\n" * 366)
    with pytest.raises(RivalFailedError, match="ours leaves 366 data files, not 367"):
        expiration.check_files(expired("ours"), case, table, live_files=360)


def test_runs_of_a_rival_that_leave_different_files_are_an_error(table: HistoryTable) -> None:
    one = expired("ours")
    two = replace(one, runs=(*one.runs, *with_left(one, "other").runs))
    with pytest.raises(RivalFailedError, match="from run to run"):
        expiration.check_files(two, expiration.Case(history=HISTORY), table, live_files=360)


def test_rivals_that_leave_different_files_are_an_error_that_names_some(table: HistoryTable) -> None:
    expiration.check_agreement([expired("ours"), expired("theirs")], table)
    (table.directory / "left-by-ours.txt").write_text("data/a\ndata/b\n")
    (table.directory / "left-by-theirs.txt").write_text("data/a\ndata/c\n")
    with pytest.raises(RivalFailedError, match=r"'ours': \[1, 'data/b'\], 'theirs': \[1, 'data/c'\]"):
        expiration.check_agreement([expired("ours"), with_left(expired("theirs"), "other")], table)


def test_rivals_that_count_differently_are_an_error(table: HistoryTable) -> None:
    with pytest.raises(RivalFailedError, match="count differently"):
        expiration.check_agreement([expired("ours"), expired("theirs", deleted_manifest_files_count=1)], table)


def test_rows_that_a_foreign_reader_does_not_find_are_an_error(table: HistoryTable) -> None:
    rows = msgspec.json.decode(table.mark.read_bytes())["rows"]
    expiration.check_rows(table, rows)
    with pytest.raises(RivalFailedError, match="PyIceberg counts"):
        expiration.check_rows(table, rows + 1)


def test_a_rival_must_leave_the_newest_snapshot_alone_where_it_expires(table: HistoryTable) -> None:
    expiration.check_snapshots(expired("ours"), expiration.Case(history=HISTORY, job=ORPHANS), table)
    with pytest.raises(RivalFailedError, match="ours leaves 120 snapshots"):
        expiration.check_snapshots(expired("ours"), expiration.Case(history=HISTORY, job=EXPIRE), table)


@pytest.mark.parametrize("partitions", [1, 2, 3, 10, 97, 100, 618, 1000, 1024])
def test_steps_of_scattering_come_by_every_partition_before_any_comes_again(partitions: int) -> None:
    step = scattering_step(partitions)
    assert {number * step % partitions for number in range(partitions)} == set(range(partitions))


@pytest.mark.parametrize("scattered", [False, True])
def test_a_shape_is_read_again_from_its_arguments_and_has_a_name_of_its_own(scattered: bool) -> None:
    shape = Shape(entries=300, manifests=30, partitions=7, columns=5, scattered=scattered)
    read, _ = big_tables.parse_arguments(big_tables.arguments(shape))
    assert read == shape
    assert shape.name != replace(shape, scattered=not scattered).name


def test_a_filter_of_one_partition_ends_where_the_next_begins() -> None:
    chosen = days_filter(Shape(entries=1, manifests=1, partitions=100), 1)
    assert chosen.where == "at >= '2020-02-13T00:00:00+00:00' and at < '2020-02-14T00:00:00+00:00'"


REWRITTEN = manifests.Case(shape=Shape(entries=2000, manifests=20, scattered=True))
APPENDED = replace(REWRITTEN, job=APPEND)
WAS = Content(
    manifests=20, bytes=700, listed_files=2000, listed_records=9000, files=2000, records=9000, opened=20, found=2
)
IS = replace(WAS, manifests=1, bytes=600, opened=1)


def answered(rewritten: int = 20, added: int = 1, **plans: dict[str, Plan]) -> Answer:
    memory = dict.fromkeys(("driver_bytes", "jvm_bytes", "worker_bytes", "total_bytes"), 1)
    result = {"rewritten_manifests_count": rewritten, "added_manifests_count": added}
    run = manifests_figures.Run(seconds=1.0, cpu_seconds=1.0, result=result, **memory)
    return Answer(runs=(run,), **plans)


def plan_of(files: int, warm_s: float = 1.0) -> Plan:
    return Plan(files=files, bytes=files * 10, first_s=2.0, warm_s=warm_s)


def test_a_table_must_have_the_manifests_and_entries_of_its_shape() -> None:
    manifests.check_made(WAS, REWRITTEN.shape)
    for wrong in (replace(WAS, manifests=19), replace(WAS, files=1999), replace(WAS, listed_files=1999)):
        with pytest.raises(RivalFailedError, match="remove it"):
            manifests.check_made(wrong, REWRITTEN.shape)
    with pytest.raises(RivalFailedError, match="other records"):
        manifests.check_made(replace(WAS, records=8999), REWRITTEN.shape)


@pytest.mark.parametrize("name", ["files", "records", "listed_files", "listed_records"])
def test_a_rival_that_loses_an_entry_or_a_record_has_failed(name: str) -> None:
    manifests.check_content("ours", REWRITTEN, WAS, IS)
    wrong = replace(IS, **{name: getattr(IS, name) - 1})
    with pytest.raises(RivalFailedError, match="as files and records"):
        manifests.check_content("ours", REWRITTEN, WAS, wrong)


def test_an_append_adds_one_file_with_its_records_and_leaves_fewer_manifests() -> None:
    grown = {"files": 2001, "listed_files": 2001, "records": 9000 + ROWS_A_FILE, "listed_records": 9000 + ROWS_A_FILE}
    manifests.check_content("ours", APPENDED, WAS, replace(IS, **grown))
    with pytest.raises(RivalFailedError, match="as files and records"):
        manifests.check_content("ours", APPENDED, WAS, IS)
    with pytest.raises(RivalFailedError, match="no fewer"):
        manifests.check_content("ours", APPENDED, WAS, replace(IS, **grown, manifests=20))


def test_a_rival_must_say_that_it_rewrote_all_manifests_and_how_many_it_left() -> None:
    manifests.check_results("ours", REWRITTEN, answered(), IS)
    for wrong in (answered(rewritten=19), answered(added=0), answered(added=2)):
        with pytest.raises(RivalFailedError, match="says"):
            manifests.check_results("ours", REWRITTEN, wrong, IS)
    manifests.check_results("ours", APPENDED, Answer(), IS)


def test_planners_that_find_other_files_before_than_after_have_failed() -> None:
    both = {ONE_PARTITION: plan_of(2), EVERYTHING: plan_of(2000)}
    manifests.check_plans([answered(before=both, after=both), Answer(after=both), Answer()], WAS)
    for wrong in ({**both, ONE_PARTITION: plan_of(3)}, {**both, EVERYTHING: plan_of(1999)}):
        for answers in ([answered(before=both, after=wrong)], [answered(before=wrong, after=wrong)]):
            with pytest.raises(RivalFailedError, match="planners find"):
                manifests.check_plans(answers, WAS)


def test_rounds_of_a_rival_are_joined_with_the_faster_plan_of_both() -> None:
    one = answered(before={EVERYTHING: plan_of(7, 3.0)}, after={EVERYTHING: plan_of(7, 1.0)})
    other = answered(before={EVERYTHING: plan_of(7, 2.0)}, after={EVERYTHING: plan_of(7, 2.0)})
    joined = one.joined(other)
    assert len(joined.runs) == 2
    assert (joined.before[EVERYTHING].warm_s, joined.after[EVERYTHING].warm_s) == (2.0, 1.0)
    assert Answer().joined(one) == one


@pytest.mark.parametrize("name", manifests.CASES)
@pytest.mark.parametrize("is_quick", [False, True])
def test_a_table_to_merge_is_one_manifest_short_of_what_a_commit_merges(name: str, is_quick: bool) -> None:
    case = manifests.chosen_cases([name], None, is_quick=is_quick)[name]
    assert case.job != APPEND or case.shape.manifests == 99
    assert case.shape.scattered
    assert (case.runs == 1) == (is_quick or case.is_process)


@pytest.mark.process
def test_each_run_is_of_a_table_made_whole_again_and_plans_come_before_and_after(copied: tuple[Path, Path]) -> None:
    table, pristine = copied
    place = {"catalog": "bench", "path": str(table), "pristine": str(pristine)}
    seen = []

    def prepare(catalog: str) -> Callable[[], dict[str, int]]:
        def work() -> dict[str, int]:
            seen.append((catalog, len(list(expiration_copies.names(table)))))
            (table / "metadata/m2.avro").write_text("new")
            return {"made": 1}

        return work

    def planner(name: str) -> dict[str, object]:
        return {"name": name, "files": len(list(expiration_copies.names(table)))}

    request = {
        "job": REWRITE,
        "table": place,
        "small": {**place, "catalog": "small"},
        "filters": {"all": {}},
        "runs": 3,
    }
    answer = answer_of(request, prepare, planner)
    assert seen == [("small", 5), ("bench", 5), ("bench", 5), ("bench", 5)]
    assert [run["result"] for run in answer["runs"]] == [{"made": 1}] * 3
    assert (answer["before"]["all"]["files"], answer["after"]["all"]["files"]) == (5, 6)
    assert answer_of({**request, "job": "plan"}, prepare, planner) == {"after": answer["after"]}
