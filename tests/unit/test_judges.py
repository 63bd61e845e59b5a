"""`docs/judges.md` and the list of what judges do not read are of one mind, without any judge."""

import re
from collections import Counter
from pathlib import Path

import pytest

from fuzz.run import run
from fuzz.targets import TARGETS, Target
from icekeep.tables.verbs import append
from kit.cases import for_each, scaled, seeds
from kit.judging import panel as tally
from kit.judging.examples import EXAMPLES, HISTORY
from kit.judging.faults import ALL_OF_JAVA, FAULTS, VERSIONS, Fault, explained
from kit.judging.panel import BEFORE, faults_table, states_below
from kit.lake import Lake, events
from kit.shell import ROOT
from lies.broken import MUTANTS, NUMBERS_MAX
from lies.judging import JOBS, judged
from lies.run import TABLES as TABLES_AT_LENGTH

PAGE = (ROOT / "docs" / "judges.md").read_text()


def section(name: str) -> str:
    found = re.search(f"<!-- {name} -->(.*)<!-- end of {name} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1].strip()


def test_the_page_has_the_faults_of_the_list() -> None:
    assert section("faults") == "\n".join(faults_table()).strip()


def test_the_page_counts_all_judges_in_their_versions() -> None:
    head = section("counts").splitlines()[0]
    assert head == f"| states of tables | {' | '.join(f'{judge} {version}' for judge, version in VERSIONS.items())} |"


def test_the_environments_have_these_versions() -> None:
    lock = (ROOT / ".ci" / "requirements-judges.lock").read_text()
    go = (ROOT / "tests" / "kit" / "judging" / "go" / "go.mod").read_text()
    packages = {"DuckDB": "duckdb", "iceberg-rust": "pyiceberg-core", "polars": "polars", "PyIceberg": "pyiceberg"}
    for judge, package in packages.items():
        assert f"\n{package}=={VERSIONS[judge]} " in f"\n{lock}"
    assert f"iceberg-go {VERSIONS['iceberg-go']}\n" in go
    assert f"chdb-core=={'.'.join(VERSIONS['ClickHouse'].split('.')[:2])}." in lock
    trino = (ROOT / ".ci" / "trino" / "pom.xml").read_text()
    assert trino.count(f"<version>{VERSIONS['Trino']}</version>") == 2


def test_each_fault_has_an_example_and_one_way_to_fail() -> None:
    names = {*EXAMPLES, HISTORY, *ALL_OF_JAVA}
    for fault in FAULTS:
        assert fault.example in names
        assert bool(fault.says) != bool(fault.missing or fault.added), fault
    assert len({(fault.judge, fault.what) for fault in FAULTS}) == len(FAULTS)


def test_fault_explains_only_its_own_error_or_rows() -> None:
    loud = Fault("j", "fails", lambda _: True, "plain", says=r"no \d+")
    quiet = Fault("j", "errs", lambda _: True, "plain", missing=(1,))
    assert explained([loud, quiet], "there is no 5 here") is loud
    assert explained([loud, quiet], "") is quiet
    assert explained([quiet], "no 5") is None
    assert explained([loud], "") is None


def test_what_files_counted_one_after_the_other_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "KEPT", tmp_path / "build" / "judged.json")
    here, there = (ROOT / "tests" / "interop" / name for name in ("test_judges.py", "test_trino.py"))
    with pytest.raises(FileNotFoundError):
        tally.kept()
    tally.save(
        {here: Counter({("DuckDB", "all", "tables"): 5}), ROOT / "gone.py": Counter({("DuckDB", "all", "tables"): 9})}
    )
    tally.save({there: Counter({("DuckDB", "all", "tables"): 2, ("polars", "all", "rows"): 1})})
    tally.save({here: Counter({("DuckDB", "all", "tables"): 3})})
    assert tally.kept() == {("DuckDB", "all", "tables"): 5, ("polars", "all", "rows"): 1}
    assert tally.kept_files() == ["tests/interop/test_judges.py", "tests/interop/test_trino.py"]


def test_summary_counts_states_read_and_left_out() -> None:
    counts = Counter(
        {("polars", "all", "tables"): 1200, ("polars", "all", "rows"): 3400, ("polars", "all", "fails"): 5}
    )
    told = "judged: polars 2.1.0 read 1,200 states of tables as icekeep does, 3,400 rows, and showed a known fault at 5"
    assert list(tally.summary(counts)) == [told]
    counts[tally.LEFT_OUT] = 7
    assert list(tally.summary(counts)) == [
        told,
        "judged: nobody was asked about 7 states of tables that icekeep does not read",
    ]


def test_table_is_judged_at_recent_snapshots_once_each(tmp_path: Path) -> None:
    seen: set[str] = set()
    lake = Lake(tmp_path)
    table = lake.filled(commits=BEFORE + 3, files=1)
    newest = [snapshot.snapshot_id for snapshot in reversed(table.metadata.snapshots)]
    judged = [state.metadata.current_snapshot_id for state in states_below(tmp_path, seen)]
    assert judged == newest[: len(judged)]
    assert len(judged) >= 1 + BEFORE
    assert list(states_below(tmp_path, seen)) == []
    later = append(table, [events(99, 5)])
    assert [state.metadata_location for state in states_below(tmp_path, seen)] == [later.metadata_location]


TABLES = 12
FOUND = (5000239, 5000557, 5000559, 5000891, 8003834, 8011833, 8016030, 8017750)
"""Lies of long runs that lost rows, or ended a job with an error that is none of icekeep's."""


@pytest.mark.slow
def test_no_row_is_lost_for_one_lie():
    outcomes, jobs = Counter[str](), set[str]()
    for number in seeds(scaled(3_000)):
        verdict = judged(number, TABLES)
        if verdict is not None:
            assert verdict.outcome != "lost", (number, verdict)
            outcomes[verdict.outcome] += 1
            jobs.add(verdict.job)
    assert jobs == {*JOBS}
    # Where nothing is kept or nothing refused, nothing is tried.
    assert min(outcomes["kept"], outcomes["refused"]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_library_that_believes_more_is_shown_by_a_lie(mutant):
    hunt = MUTANTS[mutant]
    for number in range(hunt.at, hunt.at + NUMBERS_MAX):
        with mutant():
            verdict = judged(number, TABLES_AT_LENGTH, hunt.job, hunt.kind)
        if verdict is not None and verdict.outcome == "lost":
            break
    else:
        pytest.fail(f"{NUMBERS_MAX} lies of kind {hunt.kind} lost nothing")
    kept = judged(number, TABLES_AT_LENGTH, hunt.job, hunt.kind)
    assert kept is not None
    assert kept.outcome != "lost"


@pytest.mark.slow
def test_what_was_found_once_is_not_found_again():
    verdicts = {number: judged(number, TABLES_AT_LENGTH) for number in FOUND}
    assert {
        number: verdict for number, verdict in verdicts.items() if verdict is None or verdict.outcome == "lost"
    } == {}


INPUTS = 150


@pytest.mark.slow
@for_each("target", TARGETS, ids=lambda target: target.name)
def test_spoilt_input_is_refused_in_one_line_or_read_rightly(target: Target):
    taken = run(target, INPUTS, seed=0)
    # A target that takes nothing, or everything, tests nothing.
    assert 0 < taken < INPUTS
