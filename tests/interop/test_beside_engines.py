"""Compaction of whole tables while others never stop writing: no update is lost, none comes back, and no row is doubled.

Every snapshot's rows are compared with a model, in the order of the commits: a serial replay. Iceberg Java 1.12.0 and
PyIceberg read what the library's own writers left, and write themselves. apache/iceberg #10312, StarRocks PR #77709,
nimtable/iceberg-compaction PR #163: deletes that came while files were rewritten were lost, or rows came back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog
from pyspark.sql import SparkSession

from icekeep.catalog.base import Catalog, Table
from icekeep.catalog.open import open_catalog
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError
from icekeep.events import Event, StepAdvanced, StepStarted
from icekeep.maintenance.compact.execute import STEP
from icekeep.maintenance.compact.job import RewriteDataFilesResult, compact
from icekeep.spec.snapshots import Snapshot
from icekeep.tables.verbs import append, create_table
from kit.beside import (
    KINDS,
    SCHEMA,
    Engine,
    HistoryReader,
    Java,
    Ours,
    PyIceberg,
    Refusal,
    Rows,
    RowWriter,
    Together,
    Updater,
    as_table,
    main_history,
    rows_by_java,
    rows_by_our_scan,
    rows_by_pyiceberg,
)
from kit.beside import UpdatesBeside as Beside
from kit.cases import Choices, scaled
from kit.catalogs import (
    EVENTS,
    Race,
    append_in_step,
    append_in_step_by_pyiceberg,
    as_rows,
    check_history,
    check_race,
    conflicts_of,
    names,
    our_rows,
    racing_table,
    rows_of,
    start_appending,
)
from kit.java import IcebergJava, JavaError
from kit.lake import EVENTS as RACED
from kit.lake import Lake
from kit.rows import multiset

pytestmark = pytest.mark.deep

NUM_RETRIES = 4
PATIENT = {"commit.retry.num-retries": str(NUM_RETRIES), "commit.retry.min-wait-ms": "10"}
NAMES = count(1)


@pytest.fixture
def lake(java: IcebergJava, tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(java: IcebergJava, spark_session: SparkSession) -> SparkSession:
    """Our own Spark; Java's is in a process of its own."""
    return spark_session


def filled(lake: Lake, version: int, commits: int = 8, rows: int = 20) -> Table:
    """A table with one file a kind and commit."""
    table = create_table(
        lake.catalog,
        ("db", f"beside{next(NAMES)}"),
        SCHEMA,
        partition_by=(("kind", "identity"),),
        properties=PATIENT,
        format_version=version,
    )
    ids = count()
    for _ in range(commits):
        table = append(table, as_table((next(ids), kind, 0, None) for kind in KINDS for _ in range(rows)))
    return table


def replayed(history: list[Snapshot], states: dict[int, Rows]) -> dict[int, Rows]:
    """The rows that each snapshot should have, by the states after commits of writers: a compaction changes none."""
    expected: dict[int, Rows] = {}
    rows = Rows()
    for snapshot in history:
        if snapshot.operation != "replace":
            rows = states[snapshot.snapshot_id]
        expected[snapshot.snapshot_id] = rows
    return expected


def replaced_between(history: list[Snapshot], refusal: Refusal) -> bool:
    """Whether a compaction landed after a refused commit was planned, and before it was refused."""
    ids = [snapshot.snapshot_id for snapshot in history]
    between = history[ids.index(refusal.planned_on) + 1 : ids.index(refusal.seen_then) + 1]
    return any(snapshot.operation == "replace" for snapshot in between)


def check_readers(
    properties: Mapping[str, str], java: IcebergJava, spark: SparkSession, table: Table, expected: dict[int, Rows]
) -> None:
    """The library, Iceberg Java and PyIceberg, which reads no version 3 as it should, have the rows of some snapshots."""
    foreign = ForeignSqlCatalog("local", **{key: properties[key] for key in ("uri", "warehouse")})
    for snapshot_id, rows in expected.items():
        snapshot = table.metadata.snapshots_by_id[snapshot_id]
        assert rows_by_our_scan(table, spark, snapshot) == rows
        assert rows_by_java(java, f"local.{table.name}", snapshot) == rows
        if table.metadata.format_version == 2:
            assert rows_by_pyiceberg(foreign.load_table(table.identifier), snapshot) == rows


@pytest.mark.parametrize("version", [2, 3])
def test_a_writer_that_updates_rows_all_the_time(
    lake: Lake, java: IcebergJava, spark: SparkSession, tried: Any, version: int
) -> None:
    table = filled(lake, version)
    beginning = main_history(table.metadata)
    reader = HistoryReader(table)
    options = {"rewrite-all": "true", "max-concurrent-file-group-rewrites": "1"}
    with Updater(table, version, pause_s=0.5) as updater:
        for sort_order in (None, "number DESC, id"):
            beside = Beside(lake.catalog.load(table.identifier), updater, NUM_RETRIES)
            result = compact(beside.table, spark, sort_order=sort_order, options=options, listener=beside)
            assert (result.status, result.planned_anew_files_count, result.commits_count) == ("done", 0, 1)
            assert result.rewritten_data_files_count >= 48
            assert result.carried_delete_files_count > 0
            assert beside.swaps_count == 1 + NUM_RETRIES
            assert beside.landed_meanwhile >= len(KINDS) + NUM_RETRIES
            # So that the one that was held back is refused, and lands when it is planned again.
            updater.another()
            tried("updates that landed while whole tables were compacted", beside.landed_meanwhile)
    table = lake.catalog.load(table.identifier)
    history = main_history(table.metadata)
    assert [snapshot.operation for snapshot in history].count("replace") == 2
    assert len(history) - len(beginning) == updater.landed_count + 2
    assert len(updater.refusals) == 2
    assert all(replaced_between(history, refusal) for refusal in updater.refusals)

    states = updater.states | {s.snapshot_id: reader.seen(table.metadata, s).rows for s in beginning}
    expected = replayed(history, states)
    for snapshot in history:
        assert reader.seen(table.metadata, snapshot).rows == expected[snapshot.snapshot_id]
    meeting = [
        s for n, s in enumerate(history) if "replace" in (s.operation, history[(n + 1) % len(history)].operation)
    ]
    check_readers(
        lake.properties, java, spark, table, {s.snapshot_id: expected[s.snapshot_id] for s in [*meeting, history[-1]]}
    )
    tried("snapshots of such tables that are as a serial replay says", len(history))


OPTIONS = (
    {"partial-progress.enabled": "false"},
    {"partial-progress.enabled": "true", "partial-progress.max-commits": "3"},
    {"partial-progress.enabled": "true", "partial-progress.max-commits": "2", "remove-dangling-deletes": "true"},
    {"partial-progress.enabled": "false", "remove-dangling-deletes": "true"},
)
CHANGES = ("append", "append", "delete", "delete", "delete", "overwrite", "overwrite", "overwrite")


def shared_table(catalog: Catalog, engines: Sequence[Engine], version: int) -> Table:
    """The first rows of all engines, of several in each file."""
    table = create_table(
        catalog,
        engines[0].identifier,
        SCHEMA,
        partition_by=(("kind", "identity"),),
        properties={
            "commit.retry.num-retries": "30",
            "commit.retry.min-wait-ms": "10",
            "commit.retry.max-wait-ms": "200",
            "write.delete.mode": "merge-on-read",
            "write.update.mode": "copy-on-write" if version == 2 else "merge-on-read",
        },
        format_version=version,
    )
    rows = [row for engine in engines for row in engine.first]
    for number in range(4):
        table = append(table, as_table(rows[number::4]))
    return table


@pytest.mark.parametrize("version", [2, 3])
def test_each_snapshot_has_the_rows_of_the_model(
    java: IcebergJava, spark: SparkSession, postgres: Any, tmp_path: Path, tried: Any, version: int
) -> None:
    """On PostgreSQL. PyIceberg commits nothing to tables of version 3."""
    properties = {"type": "sql", "uri": postgres.new_database(), "warehouse": (tmp_path / "warehouse").as_uri()}
    java.open_catalog("local", properties)
    catalog = open_catalog("local", properties)
    catalog.create_namespace(("db",))
    identifier = ("db", f"shared{version}")
    of_java = Java(java, identifier, 10 * version, 60)
    engines: list[Engine] = [of_java, Ours(catalog, identifier, 10 * version + 1, 60)]
    if version == 2:
        engines.append(PyIceberg(properties, identifier, 10 * version + 2, 60))
    table = shared_table(catalog, engines, version)
    began_count = len(main_history(table.metadata))
    results: list[RewriteDataFilesResult] = []
    gave_up_count = 0
    with Together(engines, CHANGES) as together:
        while together.goes_on or not results:
            number = len(results) + gave_up_count
            options = {**OPTIONS[number % 4], "rewrite-all": "true", "max-concurrent-file-group-rewrites": "1"}
            order = "number, id" if number % 3 == 1 else None
            table = catalog.load(identifier)
            try:
                results.append(compact(table, spark, sort_order=order, options=options, listener=together))
            except ConflictError:
                # It may say so where others never stop; nothing was changed then.
                gave_up_count += 1
    table = catalog.load(identifier)
    history = main_history(table.metadata)[began_count:]
    expected = check_each(table, history, engines, of_java)
    replaces = [snapshot.snapshot_id for snapshot in history if snapshot.operation == "replace"]
    assert len(replaces) >= sum(result.commits_count for result in results) > 0
    if version == 3:
        # Nobody writes files anew there.
        assert sum(result.carried_delete_files_count for result in results) > 0
    shown = [*replaces[-2:], history[-1].snapshot_id]
    check_readers(properties, java, spark, table, {id_: expected[id_] for id_ in shown})
    tried("changes of several engines beside compactions", len(CHANGES) * len(engines))
    tried("of these refused at first", sum(engine.refused_count for engine in engines))
    tried("compactions beside several engines", len(results))
    tried("compactions beside several engines that gave up", gave_up_count)
    tried("delete files that these carried over", sum(result.carried_delete_files_count for result in results))
    tried("data files that these planned anew", sum(result.planned_anew_files_count for result in results))


def check_each(table: Table, history: list[Snapshot], engines: Sequence[Engine], of_java: Engine) -> dict[int, Rows]:
    """Each snapshot has the rows that were there before but for those that its engine changed; nobody's commit is missing.

    Java alone does not say which snapshots are its.
    """
    reader = HistoryReader(table)
    makers = {snapshot_id: engine for engine in engines for snapshot_id in engine.made}
    steps = {engine: iter(engine.steps) for engine in engines}
    rows = {engine: Rows(engine.first) for engine in engines}
    expected: dict[int, Rows] = {}
    for snapshot in history:
        seen = reader.seen(table.metadata, snapshot).rows
        if snapshot.operation != "replace":
            engine = makers.get(snapshot.snapshot_id, of_java)
            step = next(steps[engine])
            own = step.rows
            if not step.is_whole:
                own = seen - sum((rows[other] for other in engines if other is not engine), Rows())
                assert rows[engine] & step.rows <= own <= rows[engine] | step.rows
            rows[engine] = own
        expected[snapshot.snapshot_id] = sum(rows.values(), Rows())
        assert seen == expected[snapshot.snapshot_id], (snapshot.operation, seen - expected[snapshot.snapshot_id])
    assert [list(left) for left in steps.values()] == [[]] * len(engines)
    return expected


class Acts:
    """A listener through which others act: once when files begin to be rewritten, and once when some were."""

    def __init__(
        self, began: Callable[[], object] = lambda: None, advanced: Callable[[], object] = lambda: None
    ) -> None:
        self._acts: dict[type[Event], Callable[[], object]] = {StepStarted: began, StepAdvanced: advanced}

    def on(self, event: Event) -> None:
        if isinstance(event, StepStarted | StepAdvanced) and event.step == STEP:
            self._acts.pop(type(event), lambda: None)()


class Contested:
    """An unpartitioned table of eight files that Java's compactions, ours and a writer of ours are at, and its rows."""

    def __init__(self, lake: Lake, java: IcebergJava, spark: SparkSession, version: int) -> None:
        self.lake, self.java, self.spark = lake, java, spark
        identifier = ("db", f"contested{next(NAMES)}")
        self.table = create_table(lake.catalog, identifier, SCHEMA, properties=PATIENT, format_version=version)
        for number in range(8):
            self.append(number * 100)
        self.writer = RowWriter(self.table, Choices(version))
        self.rows = self.writer.look().rows
        self.delete(range(0, 800, 60))

    def append(self, first_id: int) -> None:
        rows = [(id_, KINDS[id_ % 6], 0, None) for id_ in range(first_id, first_id + 20)]
        self.table = append(self.table, as_table(rows))
        self.rows = Rows(rows) + getattr(self, "rows", Rows())

    def delete(self, ids: Iterable[int]) -> None:
        """By position, where the rows are now."""
        seen, wanted = self.writer.look(), set(ids)
        gone = [place for place in seen.places if place.row[0] in wanted]
        assert gone
        commit(self.writer.table, self.writer.delta(seen, gone, ()))
        self.rows -= Rows(place.row for place in gone)

    def start(self) -> None:
        """Let Java begin a compaction, which its own commit manager commits when it is asked to."""
        self.java.ask("Compactions.start", table=["local", *self.table.identifier])

    def commit(self) -> None:
        self.java.ask("Compactions.commit", table=["local", *self.table.identifier])

    def java_compacts(self) -> None:
        self.java.call("local", "rewrite_data_files", table=self.table.name, options={"rewrite-all": "true"})

    def compact(self, acts: Acts | None = None, **arguments: Any) -> RewriteDataFilesResult:
        table, options = self.lake.catalog.load(self.table.identifier), {"rewrite-all": "true"}
        result = compact(table, self.spark, options=options, listener=acts or Acts(), **arguments)
        assert result.status == "done"
        return result

    def check(self) -> None:
        """All readers have the rows of the model."""
        table = self.lake.catalog.load(self.table.identifier)
        head = table.metadata.current_snapshot_id
        assert head is not None
        assert self.writer.look().rows == self.rows
        check_readers(self.lake.properties, self.java, self.spark, table, {head: self.rows})


@pytest.fixture(params=[2, 3])
def contested(request: Any, lake: Lake, java: IcebergJava, spark: SparkSession, tried: Any) -> Contested:
    tried("tables that Java and we compacted at once")
    return Contested(lake, java, spark, request.param)


@pytest.mark.parametrize("order", [None, "number, id DESC"])
def test_compact_replans_after_java_commits_in_between(contested: Contested, order: str | None) -> None:
    """It leaves Java's new file alone, since it was asked for those that Java replaced; the next run rewrites it."""

    def java_is_quicker() -> None:
        contested.delete([100, 301])
        contested.java_compacts()
        contested.delete([101, 302])

    result = contested.compact(Acts(java_is_quicker), sort_order=order)
    assert (result.planned_anew_files_count, result.commits_count) == (8, 0)
    contested.check()
    carried = contested.compact(Acts(advanced=lambda: contested.delete([102, 303])), sort_order=order)
    assert (carried.planned_anew_files_count, carried.carried_delete_files_count) == (0, 1)
    contested.check()


def test_compact_replans_after_earlier_begun_java_commits(contested: Contested) -> None:
    contested.start()
    result = contested.compact(Acts(contested.commit))
    assert result.planned_anew_files_count == 8
    contested.check()


@pytest.mark.parametrize("deletes", ["before ours", "in the middle of ours", "after ours", "never"])
def test_javas_is_refused_where_ours_lands_before_it(contested: Contested, deletes: str) -> None:
    """Whatever it read has been replaced; deletes that we carried over are no reason to let it pass."""
    contested.start()
    if deletes == "before ours":
        contested.delete([100, 301])
    middle = (lambda: contested.delete([100, 301])) if deletes == "in the middle of ours" else lambda: None
    result = contested.compact(Acts(advanced=middle))
    assert result.carried_delete_files_count == (1 if deletes == "in the middle of ours" else 0)
    if deletes == "after ours":
        contested.delete([100, 301])
    with pytest.raises(JavaError, match=r"(?i)new delete|new position delete|missing|cannot commit"):
        contested.commit()
    contested.check()


def test_compaction_by_java_beside_ours_of_other_files(contested: Contested) -> None:
    """It looks into no `replace` snapshot for new deletes, and needs not: ours name only files that it has not read."""
    contested.start()
    for first_id in (1000, 1100, 1200):
        contested.append(first_id)
    middle = Acts(advanced=lambda: contested.delete([1101, 1102, 1119]))
    result = contested.compact(middle, where="id >= 1000")
    assert (result.rewritten_data_files_count, result.carried_delete_files_count) == (3, 1)
    contested.check()
    contested.commit()
    contested.check()
    assert contested.compact().planned_anew_files_count == 0
    contested.check()


COMMITS = 20
WRITERS = {"icekeep": COMMITS, "pyiceberg": COMMITS, "java": COMMITS}


def test_three_engines_lose_no_commit_and_each_reads_all(java, postgres, tmp_path, tried):
    """Judged by Iceberg Java, PyIceberg and PostgreSQL."""
    uri, warehouse = postgres.new_database(), (tmp_path / "warehouse").as_uri()
    properties = {"type": "sql", "uri": uri, "warehouse": warehouse}
    racing_table(properties)
    java.open_catalog("local", properties)
    race = Race(parties=3)
    race.start(append_in_step, properties, "icekeep", COMMITS)
    race.start(append_in_step_by_pyiceberg, properties, "pyiceberg", COMMITS)
    for number in range(COMMITS):
        race.meet()
        java.append("local.db.events", [["java", number]])
    race.finish()

    table = open_catalog("local", properties).load(EVENTS)
    foreign = ForeignSqlCatalog("local", uri=uri, warehouse=warehouse).load_table(EVENTS)
    expected = rows_of(WRITERS)
    assert our_rows(table) == as_rows(foreign.scan().to_arrow()) == expected
    assert java.rows("local.db.events") == multiset([[writer, number] for writer, number in expected])
    check_history(table, sum(WRITERS.values()))
    conflicts = conflicts_of(table)
    # Writers that never met would have shown nothing.
    assert conflicts >= COMMITS / 4
    tried("commits of three engines at once", sum(WRITERS.values()))
    tried("conflicts that they met", conflicts)


PROCESSES, COMMITS_EACH = 8, scaled(25, least=10)


@pytest.fixture(params=["filesystem", "sqlite", "postgresql"])
def raced(request, tmp_path):
    """A catalog's properties, and how PyIceberg loads its table."""
    if request.param != "postgresql":
        lake = Lake(tmp_path, "filesystem" if request.param == "filesystem" else "sql")
        return lake.properties, lake.foreign
    uri = request.getfixturevalue("postgres").new_database()
    properties = {"type": "sql", "uri": uri, "warehouse": (tmp_path / "warehouse").as_uri()}
    foreign = lambda: ForeignSqlCatalog("local", uri=uri, warehouse=properties["warehouse"]).load_table(RACED)  # noqa: E731
    return properties, foreign


def test_eight_processes_lose_no_commit_and_double_none(raced, tried):
    properties, foreign = raced
    racing_table(properties)
    start_appending(properties, writers=PROCESSES, commits=COMMITS_EACH).finish()
    table = open_catalog("local", properties).load(RACED)
    check_race(table, foreign(), dict.fromkeys(names(PROCESSES), COMMITS_EACH))
    conflicts = conflicts_of(table)
    # Writers that never met would have shown nothing; how often they do is the machine's load.
    assert conflicts >= PROCESSES * COMMITS_EACH * 0.1
    tried("commits of racing processes", PROCESSES * COMMITS_EACH)
    tried("conflicts that they met", conflicts)
