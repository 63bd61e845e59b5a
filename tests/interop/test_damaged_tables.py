"""Tables of Iceberg Java, PyIceberg and icekeep, each spoilt in many ways: what was spoilt is named, and nothing else.

Where it can be mended it is, and the rows are then those of the sound table, less what was named as lost. Judged by Iceberg Java
1.12.0 and by the judges that share no code with it, each where it reads the sound table.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError
from icekeep.health.job import table_health
from icekeep.maintenance.check.faults import CLASSES
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import RepairResult, plan_repair, repair
from icekeep.operations.console.output import format_json
from icekeep.operations.console.values import plain_values
from icekeep.tables.refs import create_tag
from kit.cases import Choices, scaled, seeds
from kit.damage import DAMAGE, DANGLING, IMPLIED, LOSSES, MENDABLE, Key, checked, found_in, lost_keys, spoil, take_out
from kit.damager import CannotDamageError, Damager
from kit.foreign_tables import Judge, Origin, Spoilable, judges_of, made, origins
from kit.java import IcebergJava
from kit.judging.concerns import Kind
from kit.judging.faults import explained, faults_of
from kit.judging.panel import Judge as PanelJudge
from kit.judging.panel import JudgeError, Panel, answer_texts, our_rows
from kit.lake import Lake
from kit.naive_scan import check_data, check_deletes, check_jobs, check_partitions, check_references, lineage_of
from kit.rows import scanned_rows
from kit.runtime import no_spark
from lies.judging import JOBS, history_in
from lies.lying import lie

ENGINES = {"Iceberg Java", "PyIceberg", "DuckDB"}
VECTOR_BROKEN = 414
"""PyIceberg reads all vectors of a Puffin file, also one whose entry is gone: it does not judge this."""

VECTOR_TOO_OLD = 235

GONE = (301, 303, 401, 413, VECTOR_BROKEN)
"""Where files go, and the rows that they hold, or those that they delete come back."""

ALWAYS = (
    "java-v1-avro-plain", "java-v2-parquet-plain", "java-v2-orc-all", "java-v3-parquet-plain", "java-v3-avro-all",
    "icekeep-v1-orc-plain", "icekeep-v2-parquet-plain", "icekeep-v2-avro-all", "icekeep-v3-parquet-plain",
    "icekeep-v3-orc-all", "pyiceberg-v1-parquet-plain-136", "pyiceberg-v2-parquet-plain-137",
)  # fmt: skip
"""Those that differ most are tried in each run, the others in `make nightly`."""

KNOWN: Mapping[int, set[int]] = {key: {233} for key in DANGLING} | {key: {214} for key in GONE}
"""Notices that a mend is known to make: of a vector Java counts the bytes of its blob, and icekeep takes off its file's; deletes
of a data file that is taken out are left, as it may be put back.
"""

Tried = Callable[..., None]


def chosen(origin: Origin) -> object:
    is_always = str(origin).startswith(ALWAYS)
    return pytest.param(origin, marks=() if is_always else pytest.mark.nightly, id=str(origin))


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("damaged"))
    java.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the sound tables' files."""
    return tmp_path_factory.mktemp("copies")


@pytest.mark.deep
@pytest.mark.parametrize("origin", [chosen(origin) for origin in origins()])
def test_what_was_spoilt_is_named_and_mended(
    origin: Origin, lake: Lake, java: IcebergJava, panel: Panel, copies: Path, tried: Tried
) -> None:
    spoilable = Spoilable(made(origin, lake, java), lake, copies)
    judges = judges_of(spoilable, java, panel)
    assert judges.keys() >= {"Iceberg Java"} or judges.keys() >= {"Iceberg Java's Spark"}
    assert judges.keys() >= ENGINES or not (origin.is_plain and origin.file_format == "parquet")
    for name in judges:
        tried(f"sound tables that {name} judges")
    sound = checked(lake.catalog, spoilable.identifier)
    assert sound.faults == ()
    assert sound.not_checked == ()
    case = Case(origin.seed, spoilable, judges, found_in(sound), tried)
    wanted, spoilt = scaled(12, least=5), 0
    for number in _numbers(origin):
        if spoilt == wanted:
            break
        spoilt += case.tries(number)
    assert spoilt == wanted
    spoilable.put_back()


def _numbers(origin: Origin) -> Iterator[int]:
    """All kinds of damage, by lot, so that all tables together have all of them."""
    numbers = sorted(DAMAGE)
    Choices(0).shuffle(numbers)
    first = 5 * origin.seed % len(numbers)
    yield from numbers[first:]
    yield from numbers[:first]


class Case:
    """A table, who judges it, and what is told of it while it is sound."""

    def __init__(
        self, seed: int, spoilable: Spoilable, judges: Mapping[str, Judge], sound: set[int], tried: Tried
    ) -> None:
        self.seed, self.spoilable, self.judges, self.sound, self.tried = seed, spoilable, judges, sound, tried
        self.catalog, self.identifier = spoilable.lake.catalog, spoilable.identifier

    def tries(self, number: int) -> bool:
        """Spoil it in one way; whether it could be."""
        if number in self.sound:
            return False
        self.spoilable.put_back()
        try:
            spoil(self.catalog, self.identifier, self.seed, number)
        except CannotDamageError:
            return False
        result = checked(self.catalog, self.identifier)
        found = found_in(result) - self.sound
        assert number in found, (number, result)
        assert found - {number} <= IMPLIED.get(number, set()), (number, result)
        assert CLASSES[number].is_notice or result.status == "faulty"
        self.tried("damaged tables, whose fault was named")
        if number in (*MENDABLE, *LOSSES):
            self._mended(number)
        return True

    def _mended(self, number: int) -> None:
        table, files = self.spoilable.load(), self.spoilable.files()
        before = _found_on_main(table)
        # This damage itself brings rows back.
        judges = {name: judge for name, judge in self.judges.items() if number != VECTOR_BROKEN or name != "PyIceberg"}
        expected = dict.fromkeys(judges, self.spoilable.history.expected())
        if number == VECTOR_TOO_OLD:
            # Java reads the table again, and did not before.
            expected = dict.fromkeys(judges, scanned_rows(table))
        elif number in DANGLING:
            expected = {name: judge(table) for name, judge in judges.items()}
        result = _repaired(table, number)
        now = self.spoilable.load()
        assert self.spoilable.files().items() >= files.items(), (number, result)
        if not result.mended:
            assert now.metadata_location == table.metadata_location
            assert result.not_mended, number
            assert all(one.reason for one in result.not_mended)
            self.tried("damaged tables that were not mended, with a reason")
            return
        assert _found_on_main(now) <= before - {number} | KNOWN.get(number, set()), (number, result)
        rows = {name: judge(now) for name, judge in judges.items()}
        ours, lineage = scanned_rows(now), self._lineage(now)
        if number in GONE:
            expected = self._without(judges, lost_keys(table, now, [result]), result.lost_records_count)
        assert rows == expected, (number, result)
        assert ours in expected.values(), (number, result)
        self.spoilable.put_back()
        sound = self._lineage(self.spoilable.load())
        assert {number: one for number, one in lineage.items() if number in sound}.items() <= sound.items()
        self.tried("repairs, judged by the rows that they promise")

    def _without(self, judges: Mapping[str, Judge], lost: set[Key], count: int) -> dict[str, Counter[str]]:
        """The rows of the sound table once the entries of lost files are taken out, by hand.

        Args:
            count: of records that are told as lost.
        """
        assert lost
        self.spoilable.put_back()
        take_out(self.catalog, self.identifier, lost)
        found = {name: judge(self.spoilable.load()) for name, judge in judges.items()}
        rows, sound = next(iter(found.values())), self.spoilable.history.expected()
        assert rows <= sound or rows >= sound
        # One equality delete may delete many rows.
        if rows <= sound or self._is_plain:
            assert abs(rows.total() - sound.total()) <= count
        return found

    def _lineage(self, table: Table) -> dict[int, tuple[int, int]]:
        """Where the plain reader, which knows no equality deletes, has the rows."""
        return lineage_of(table) if table.metadata.format_version == 3 and self._is_plain else {}

    @property
    def _is_plain(self) -> bool:
        return "PyIceberg" in self.judges


def _found_on_main(table: Table) -> set[int]:
    return found_in(check(table, no_spark, deep=True, ref="main"))


def _repaired(table: Table, number: int) -> RepairResult:
    """With all that may be lost accepted; without that nothing is lost."""
    plan = plan_repair(table, no_spark, fault=[number])
    accepted = [one.where for one in plan.not_mended]
    if number in LOSSES:
        assert plan.mends == ()
        plan = plan_repair(table, no_spark, fault=[number], accept_loss=accepted)
    else:
        assert plan.lost_records_count == 0
        accepted = []
    return repair(table, no_spark, fault=[number], accept_loss=accepted, approve=plan.hash)


def a_fifth(origin: Origin) -> object:
    """A fifth is tried in each run, of each engine and file format some, the others in `make nightly`."""
    return pytest.param(origin, marks=() if origin.seed % 5 == 0 else pytest.mark.nightly, id=str(origin))


@pytest.mark.deep
@pytest.mark.parametrize("origin", [a_fifth(origin) for origin in origins()])
def test_figures_are_those_of_the_entries_and_no_fault_is_told(origin: Origin, lake: Lake, java: IcebergJava) -> None:
    table = made(origin, lake, java).by.table
    table = create_tag(table, "first", table.metadata.snapshots[0].snapshot_id)
    found = table_health(table, no_spark)
    for figures in (check_data, check_deletes, check_partitions, check_references, check_jobs):
        figures(found, table)
    assert (found.faults, found.not_measured) == ((), ())
    assert check(table, no_spark).faults == ()
    assert 0 <= found.score <= 100
    assert math.isfinite(found.score)
    assert "NaN" not in format_json(plain_values(found))


JUDGES = ("DuckDB", "ClickHouse", "iceberg-rust", "PyIceberg")


@pytest.mark.deep
def test_judges_keep_their_rows_whatever_job_ran_over_a_lie(
    tmp_path_factory: pytest.TempPathFactory, panel: Panel, tried: Callable[[str, int], None]
) -> None:
    judges = [panel.judge(name) for name in JUDGES]
    # Not `tmp_path`, whose tables are sound in the end.
    directory, changed = tmp_path_factory.mktemp("lies"), []
    for number in seeds(scaled(60)):
        lake = Lake(directory / str(number))
        chosen = Choices(number)
        by = history_in(lake.catalog, number).by
        name = chosen.choice([*JOBS])
        try:
            what = lie(Damager(lake.catalog, by.identifier, chosen))
        except CannotDamageError:
            continue
        try:
            lied = lake.catalog.load(by.identifier)
            before = [_rows(judge, lied) for judge in judges]
            JOBS[name](lied)
        except IcekeepError:
            # What it refuses it leaves as it was.
            tried("lies refused before judges", 1)
            continue
        table = lake.catalog.load(by.identifier)
        try:
            read = our_rows(table)
        except IcekeepError:
            continue
        ours = {one: answer_texts(table.metadata.schema, read, has_null_lists=one) for one in (False, True)}
        for judge, rows in zip(judges, before, strict=True):
            if rows is None:
                continue
            tried(f"lies read by {judge.name} before and after a job", 1)
            after = _rows(judge, table)
            known = explained(faults_of(judge.name, Kind(table)), "") is not None
            if after not in (rows, ours[judge.has_null_lists]) and not known:
                changed.append((number, what, name, judge.name, rows.total(), after and after.total()))
    assert changed == []


def _rows(judge: PanelJudge, table: Table) -> Counter[str] | None:
    try:
        return judge.rows(table)
    except JudgeError:
        return None
