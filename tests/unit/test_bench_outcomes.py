"""The tables of the benchmarks, and what is checked of what rivals leave of them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from pyiceberg.table import StaticTable

from bench.expiration import benchmark as expiration
from bench.expiration import with_icekeep as expiration_with_icekeep
from bench.expiration.benchmark import EXPIRE, ORPHANS, ExpirationCase
from bench.manifests import benchmark as manifests
from bench.manifests import with_icekeep as manifests_with_icekeep
from bench.manifests.benchmark import APPEND, EVERYTHING, ONE_PARTITION, Content, ManifestsCase
from bench.manifests.plans import timed_plans
from bench.planning import with_icekeep as planning_with_icekeep
from bench.runner.command_line import BENCHMARKS
from bench.runner.figures import Answer, Run
from bench.runner.in_place import days_ago_ms
from bench.runner.processes import RivalFailedError
from bench.tables import copies, history_tables
from bench.tables.big_rows import ROWS_A_FILE, Shape, scattering_step
from bench.tables.big_tables import FILTERS, days_filter, filters
from bench.tables.histories import History, HistoryFiles, Writer
from bench.tables.kept import Kept, kept, make_anew
from kit.cases import for_each
from kit.runtime import no_spark
from unit.test_bench import HISTORY, chosen, figures_of, run_of

pytestmark = pytest.mark.slow


def test_every_table_has_every_filter() -> None:
    for partitions in (1, 100, 1000):
        assert tuple(filters(Shape(entries=1, manifests=1, partitions=partitions))) == FILTERS


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A table with a history, to be read only."""
    table = kept(HISTORY, tmp_path_factory.mktemp("bench"))
    make_anew(table, history_tables.make)
    return table


@for_each("name", BENCHMARKS["expiration"].cases)
@for_each("is_quick", [False, True])
def test_a_history_has_the_files_and_the_garbage_that_it_says(name: str, is_quick: bool) -> None:
    [case] = chosen("expiration", "--cases", name, *(["--quick"] if is_quick else [])).values()
    history = case.table
    steps = list(history.steps())
    assert len(steps) == history.snapshots
    assert sum(step.added for step in steps) == history.files
    assert history.garbage_files == history.files * history.garbage_percent // 100
    assert all(step.added > 0 for step in steps)


def test_all_files_of_a_history_are_on_disk_and_a_foreign_reader_finds_the_live_ones(table: Kept) -> None:
    found = StaticTable.from_metadata(table.load().metadata_location)
    tasks = list(found.scan().plan_files())
    assert len(found.metadata.snapshots) == HISTORY.snapshots
    assert len(tasks) == HISTORY.files - HISTORY.garbage_files == 360
    for task in tasks:
        assert Path(task.file.file_path.removeprefix("file://")).stat().st_size == task.file.file_size_in_bytes
    names = list(copies.names(table.path))
    assert sum(name.startswith("data/") for name in names) == HISTORY.files + HISTORY.orphans
    assert found.scan().count() == table.facts["rows"]


@pytest.mark.parametrize(("writer", "most"), [("append", 100), ("fast-append", 130)])
def test_manifests_of_a_history_are_merged_at_a_hundred_where_a_writer_does_so(
    writer: Writer, most: int, tmp_path: Path
) -> None:
    table = kept(History(writer=writer, snapshots=130, files=130), tmp_path)
    make_anew(table, history_tables.make)
    found = StaticTable.from_metadata(table.load().metadata_location)
    lists = [len(snapshot.manifests(found.io)) for snapshot in found.snapshots()]
    assert max(lists) == most - (writer == "append")
    assert lists[-1] == (31 if writer == "append" else 130)


@pytest.mark.parametrize("history", [HISTORY, History(writer="append", snapshots=130, files=130, orphans=7)])
def test_every_file_on_disk_is_listed_by_some_snapshot_or_is_an_orphan_on_purpose(
    history: History, tmp_path: Path
) -> None:
    table = kept(history, tmp_path)
    make_anew(table, history_tables.make)
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
    copies.take(table, pristine)
    return table, pristine


def test_a_table_is_made_whole_again_whatever_a_run_deleted_wrote_and_changed(copied: tuple[Path, Path]) -> None:
    table, pristine = copied
    before = {name: (table / name).read_bytes() for name in copies.names(table)}
    shutil.rmtree(table / "data/day=1")
    (table / "metadata/m.avro").unlink()
    (table / "metadata/v2.metadata.json").write_text("new")
    (table / "metadata/new.avro").write_text("new")
    (table / "metadata/version-hint.text").write_text("2")
    (table / ".icekeep/plans/run").mkdir(parents=True)
    (table / ".icekeep/plans/run/plan.json").write_text("{}")
    copies.restore(table, pristine)
    assert {name: (table / name).read_bytes() for name in copies.names(table)} == before
    assert not (table / ".icekeep").exists()


def test_what_a_run_left_is_told_by_names_but_for_what_each_rival_commits(copied: tuple[Path, Path]) -> None:
    table, listing = copied[0], copied[0].parent / "left.txt"
    before = copies.left(table, listing)
    assert listing.read_text().splitlines() == ["data/day=1/a.parquet", "data/day=2/b.parquet", "metadata/m.avro"]
    (table / "metadata/v2.metadata.json").write_text("new")
    (table / "metadata/.v2.metadata.json.crc").write_text("sum")
    (table / ".icekeep").mkdir()
    (table / ".icekeep/note").write_text("ours")
    assert copies.left(table, listing) == before
    (table / "data/day=1/a.parquet").rename(table / "data/day=1/c.parquet")
    after = copies.left(table, listing)
    assert (after["files"], after["digest"] != before["digest"]) == (before["files"], True)


EXPIRED = ExpirationCase(table=HISTORY)
WITHOUT_ORPHANS = ExpirationCase(table=HISTORY, work=ORPHANS)


def expired(left: str = "same", **result: int) -> Run:
    """What a rival did to `HISTORY`, by its own word."""
    counts = {key: 0 for key in expiration.COUNTS if key != "orphans_count"}
    return run_of(left, **{**counts, "deleted_data_files_count": HISTORY.garbage_files, **result})


def test_a_rival_must_say_that_it_deleted_what_became_garbage() -> None:
    expiration.check_answers("ours", Answer(runs=(expired(),)), EXPIRED)
    with pytest.raises(RivalFailedError, match="ours says 359 files, not 360"):
        expiration.check_answers("ours", Answer(runs=(expired(deleted_data_files_count=359),)), EXPIRED)


def test_a_rival_must_take_the_orphans_alone_for_orphans() -> None:
    orphan = HistoryFiles(HISTORY, "").orphan_path(3).rpartition("/")[2]
    expiration.check_answers("ours", Answer(runs=(run_of(orphans_count=7, some=[orphan]),)), WITHOUT_ORPHANS)
    with pytest.raises(RivalFailedError, match=r"ours takes 'x\.parquet' for an orphan"):
        expiration.check_answers("ours", Answer(runs=(run_of(orphans_count=7, some=["x.parquet"]),)), WITHOUT_ORPHANS)


def test_a_rival_must_leave_as_many_data_files_as_are_live(tmp_path: Path) -> None:
    listing, answer = tmp_path / "left.txt", Answer(runs=(expired(),))
    listing.write_text("data/x\n" * 367 + "metadata/m.avro\n")
    expiration.check_files("ours", answer, EXPIRED, listing)
    with pytest.raises(RivalFailedError, match="ours leaves 367 data files, not 720"):
        expiration.check_files("ours", answer, WITHOUT_ORPHANS, listing)
    with pytest.raises(RivalFailedError, match="ours leaves 367 data files, not 727"):
        expiration.check_files("ours", answer, replace(WITHOUT_ORPHANS, is_dry_run=True), listing)
    listing.write_text("data/x\n" * 366)
    with pytest.raises(RivalFailedError, match="ours leaves 366 data files, not 367"):
        expiration.check_files("ours", answer, EXPIRED, listing)


def test_runs_of_a_rival_that_leave_different_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RivalFailedError, match="from run to run"):
        expiration.check_files("ours", Answer(runs=(expired(), expired("other"))), EXPIRED, tmp_path / "left.txt")


def test_rivals_or_rounds_that_leave_different_files_are_an_error_that_names_some(tmp_path: Path) -> None:
    listings = {name: tmp_path / f"left-by-{name}.txt" for name in ("ours", "theirs")}
    expiration.check_agreement([figures_of(expired()), figures_of(expired(), rival="theirs")], listings)
    listings["ours"].write_text("data/a\ndata/b\n")
    listings["theirs"].write_text("data/a\ndata/c\n")
    for ours, theirs in (([expired()], [expired("other")]), ([expired(), expired("other")], [expired()])):
        with pytest.raises(RivalFailedError, match=r"'ours': \[1, 'data/b'\], 'theirs': \[1, 'data/c'\]"):
            expiration.check_agreement([figures_of(*ours), figures_of(*theirs, rival="theirs")], listings)


def test_rivals_that_count_differently_are_an_error() -> None:
    theirs = figures_of(expired(deleted_manifest_files_count=1), rival="theirs")
    with pytest.raises(RivalFailedError, match="count differently"):
        expiration.check_agreement([figures_of(expired()), theirs], {})


def test_rows_that_a_foreign_reader_does_not_find_are_an_error(table: Kept) -> None:
    rows = table.facts["rows"]
    expiration.check_rows(table, rows)
    with pytest.raises(RivalFailedError, match="PyIceberg counts"):
        expiration.check_rows(table, rows + 1)


def test_a_rival_must_leave_the_newest_snapshot_alone_where_it_expires(table: Kept) -> None:
    expiration.check_snapshots("ours", WITHOUT_ORPHANS, table)
    with pytest.raises(RivalFailedError, match="ours leaves 120 snapshots"):
        expiration.check_snapshots("ours", EXPIRED, table)


def engine_of(table: Kept, **request: Any) -> Any:
    return SimpleNamespace(load=lambda _: table.load(), spark=no_spark, request=request)


@pytest.mark.parametrize(("work", "is_dry_run"), [(ORPHANS, True), (ORPHANS, False), (EXPIRE, False)])
def test_what_icekeep_does_as_a_rival_of_expiration_passes_the_checks(
    work: str, is_dry_run: bool, tmp_path: Path
) -> None:
    table, listing = kept(HISTORY, tmp_path), tmp_path / "left.txt"
    make_anew(table, history_tables.make)
    case = ExpirationCase(table=HISTORY, work=work, is_dry_run=is_dry_run)
    engine = engine_of(table, older_than_ms=days_ago_ms(0 if work == EXPIRE else 3), is_dry_run=is_dry_run)
    said = getattr(expiration_with_icekeep, work)(engine, {})()()
    run = replace(run_of(**said), left=copies.left(table.path, listing))
    expiration.check_answers("ours", Answer(runs=(run,)), case)
    expiration.check_files("ours", Answer(runs=(run,)), case, listing)
    expiration.check_snapshots("ours", case, table)
    expiration.check_rows(table, table.facts["rows"])


def test_what_icekeep_does_as_a_rival_of_planning_and_manifests_is_said_as_the_checks_read_it(tmp_path: Path) -> None:
    history = History(writer="fast-append", snapshots=30, files=60)
    table = kept(history, tmp_path)
    make_anew(table, history_tables.make)
    engine = engine_of(table, where="true", filters={EVERYTHING: {"where": "true"}})
    assert planning_with_icekeep.plan(engine, {})()()["data_files_count"] == 60
    before = manifests_with_icekeep.plans(engine, {})
    said = manifests_with_icekeep.rewrite_manifests(engine, {})()()
    assert (said["rewritten_manifests_count"], said["added_manifests_count"]) == (30, 1)
    was = replace(WAS, files=60)
    manifests.check_plans([{"before": before, "after": manifests_with_icekeep.plans(engine, {})}], was)
    engine.request["file"] = {"path": table.path.as_uri() + "/data/x.parquet", "day": 19_000, "bytes": 9, "records": 7}
    assert manifests_with_icekeep.append(engine, {})()() == {}
    assert planning_with_icekeep.plan(engine, {})()()["data_files_count"] == 61


@for_each("partitions", [1, 2, 3, 10, 97, 100, 618, 1000, 1024])
def test_steps_of_scattering_come_by_every_partition_before_any_comes_again(partitions: int) -> None:
    step = scattering_step(partitions)
    assert {number * step % partitions for number in range(partitions)} == set(range(partitions))


def test_a_filter_of_one_partition_ends_where_the_next_begins() -> None:
    chosen = days_filter(Shape(entries=1, manifests=1, partitions=100), 1)
    assert chosen.where == "at >= '2020-02-13T00:00:00+00:00' and at < '2020-02-14T00:00:00+00:00'"


REWRITTEN = ManifestsCase(table=Shape(entries=2000, manifests=20, scattered=True))
APPENDED = replace(REWRITTEN, work=APPEND)
WAS = Content(
    manifests=20, bytes=700, listed_files=2000, listed_records=9000, files=2000, records=9000, opened=20, found=2
)
IS = replace(WAS, manifests=1, bytes=600, opened=1)


def answered(rewritten: int = 20, added: int = 1) -> Answer:
    return Answer(runs=(run_of(rewritten_manifests_count=rewritten, added_manifests_count=added),))


def plan_of(files: int, seconds: float = 1.0) -> dict[str, Any]:
    return {"data_files_count": files, "data_files_bytes": files * 10, "seconds": seconds}


def test_a_table_must_have_the_manifests_and_entries_of_its_shape() -> None:
    manifests.check_made(WAS, REWRITTEN.table)
    for wrong in (replace(WAS, manifests=19), replace(WAS, files=1999), replace(WAS, listed_files=1999)):
        with pytest.raises(RivalFailedError, match="remove it"):
            manifests.check_made(wrong, REWRITTEN.table)
    with pytest.raises(RivalFailedError, match="other records"):
        manifests.check_made(replace(WAS, records=8999), REWRITTEN.table)


@for_each("name", ["files", "records", "listed_files", "listed_records"])
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


def test_what_is_written_in_the_jvm_has_all_entries_and_leaves_the_table_as_it_was() -> None:
    right = Answer(runs=(run_of(entries_count=2000),))
    manifests.check_in_the_jvm(right, WAS, WAS)
    with pytest.raises(RivalFailedError, match="1999"):
        manifests.check_in_the_jvm(Answer(runs=(*right.runs, run_of(entries_count=1999))), WAS, WAS)
    with pytest.raises(RivalFailedError, match="left"):
        manifests.check_in_the_jvm(right, WAS, IS)


def test_planners_that_find_other_files_before_than_after_have_failed() -> None:
    both = {ONE_PARTITION: plan_of(2), EVERYTHING: plan_of(2000)}
    manifests.check_plans([{"before": both, "after": both}, {"after": both}, {}], WAS)
    for wrong in ({**both, ONE_PARTITION: plan_of(3)}, {**both, EVERYTHING: plan_of(1999)}):
        for rounds in ([{"before": both, "after": wrong}], [{"before": wrong, "after": wrong}]):
            with pytest.raises(RivalFailedError, match="planners find"):
                manifests.check_plans(rounds, WAS)


def test_of_the_plans_of_all_rounds_the_fastest_counts() -> None:
    rounds = [
        {"before": {EVERYTHING: plan_of(7, 3.0)}, "after": {EVERYTHING: plan_of(7, 1.0)}},
        {"before": {EVERYTHING: plan_of(7, 2.0)}, "after": {EVERYTHING: plan_of(7, 2.0)}},
    ]
    assert manifests.best_plans(rounds, EVERYTHING) == [2.0, 1.0]
    assert manifests.best_plans([{"after": rounds[0]["after"]}], EVERYTHING) == [1.0]


def test_a_plan_that_differs_from_call_to_call_is_an_error_and_each_is_of_a_table_that_was_just_loaded() -> None:
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


@for_each("name", BENCHMARKS["manifests"].cases)
@for_each("is_quick", [False, True])
def test_a_table_to_merge_is_one_manifest_short_of_what_a_commit_merges(name: str, is_quick: bool) -> None:
    [case] = chosen("manifests", "--cases", name, *(["--quick"] if is_quick else [])).values()
    assert all(shape.manifests == 99 for shape in (case.table, case.small) if case.work == APPEND)
    assert case.table.scattered
    assert (case.runs == 1) == (is_quick or case.is_process)
