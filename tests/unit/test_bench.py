"""The harness of the benchmarks: what a rival's process says is believed only where it can be."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench.planning import check_files
from bench.rival import process
from bench.rival.watching import Watch, _together
from bench.runner import trial
from bench.runner.command_line import BENCHMARKS, chosen_cases, parser
from bench.runner.figures import Answer, Figures, Run
from bench.runner.rivals import RIVALS, TESTS, Rival, RivalFailedError, before, run, start
from bench.runner.trial import Benchmark, Case, Trial
from bench.tables import copies
from bench.tables.histories import History
from bench.tables.make import Shapes
from kit.cases import for_each

pytestmark = pytest.mark.slow

HISTORY = History(writer="rewrites", snapshots=120, files=720, garbage_percent=50, orphans=7)
MEMORY = dict.fromkeys(("driver_bytes", "jvm_bytes", "worker_bytes", "total_bytes"), 1)


def run_of(left: str = "same", **result: Any) -> Run:
    return Run(seconds=1.0, cpu_seconds=1.0, result=result, left={"files": 3, "digest": left}, **MEMORY)


def figures_of(*runs: Run, rival: str = "ours") -> Figures:
    return Figures(case="case", rival=rival, runs=runs)


def script(directory: Path, text: str) -> list[str]:
    path = directory / "script.py"
    path.write_text(text)
    return [sys.executable, str(path)]


@pytest.mark.process
def test_the_last_line_of_a_process_is_its_answer(tmp_path: Path) -> None:
    assert run(script(tmp_path, "print('noise')\nprint('{\"files\": 7}')")) == {"files": 7}


@pytest.mark.process
@pytest.mark.parametrize("text", ["raise ValueError('no table')", "print('{}')\nraise ValueError('no table')"])
def test_a_process_that_fails_is_an_error_that_says_why(tmp_path: Path, text: str) -> None:
    with pytest.raises(RivalFailedError, match=r"status 1: (?s:.*)no table"):
        run(script(tmp_path, text))


@pytest.mark.process
def test_a_process_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RivalFailedError, match="status 0"):
        run(script(tmp_path, "pass"))


@pytest.mark.process
def test_the_memory_of_all_processes_below_is_seen_and_that_of_the_largest_python(tmp_path: Path) -> None:
    # Each holds its memory until both have it, and for some glances more.
    text = (
        "import pathlib, sys, time\ndata = bytearray(int(sys.argv[1]))\npathlib.Path(sys.argv[1]).touch()\n"
        "while len(list(pathlib.Path().glob('?00000000'))) < 2: time.sleep(0.01)\ntime.sleep(1)\nprint('{\"result\": 7}')"
    )
    _, child = script(tmp_path, f"#!{sys.executable}\n{text}")
    Path(child).chmod(0o755)
    shell = " & ".join(f"{child} {size}" for size in (100_000_000, 300_000_000))
    command = [sys.executable, str(TESTS / "bench/rival/command.py"), "sh", "-c", f"{shell}; wait"]
    found = run(command, (TESTS,))
    assert found["result"] == 7
    assert 300_000_000 < found["worker_bytes"] < 400_000_000 < found["total_bytes"]
    assert found["driver_bytes"] < 100_000_000
    assert (found["jvm_bytes"], found["seconds"] > 1) == (0, True)


def test_what_processes_of_one_program_have_of_files_counts_once() -> None:
    python, java = "python3.11", "java"
    assert _together([(python, 100, 60), (java, 400, 20), (python, 50, 70), (python, 5, 0)]) == 555 + 70 + 20
    assert _together([]) == 0


def test_the_processor_time_of_the_block_alone_is_seen() -> None:
    sum(range(3_000_000))
    with Watch() as watch:
        sum(range(10_000_000))
    assert 0.02 < watch.cpu_seconds < 10


@pytest.mark.process
def test_icekeep_of_another_checkout_is_the_one_that_runs(tmp_path: Path) -> None:
    (tmp_path / "icekeep").mkdir()
    (tmp_path / "icekeep/__init__.py").write_text("MINE = 7")
    (tmp_path / "work.py").write_text("import icekeep\ndef say(engine, target): return lambda: lambda: icekeep.MINE")
    rival = before(tmp_path)
    assert start(rival, {"module": "work", "work": "say", "once": True, "spark": {}}) == {"result": 7}


@pytest.mark.process
def test_what_another_checkout_has_not_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "icekeep").mkdir()
    (tmp_path / "icekeep/__init__.py").touch()
    with pytest.raises(RivalFailedError) as caught:
        start(before(tmp_path), {"module": "bench.jobs.with_icekeep", "work": "plan", "spark": {}})
    assert str(caught.value).startswith(f"the icekeep in {tmp_path} cannot do this: ImportError: cannot import name")
    assert "\n" not in str(caught.value)


def test_rivals_take_turns_and_who_was_last_in_a_round_is_first_in_the_next() -> None:
    assert "".join(trial.in_turn("abc", 3)) == "abccbaabc"


class FakeTrial(Trial):
    """Two rivals that plan nothing; what they answer and what is checked is said by the test."""

    room = "jobs"

    def __init__(self, case: Case, cache: Path, directory: Path) -> None:
        self.case, self.directory, self.is_closed = case, directory, False

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


def compared(
    answers: dict[str, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, int], bool, str]:
    """How many runs each rival has, whether all is well, and what was printed."""

    def started(rival: Rival, request: dict[str, Any]) -> dict[str, Any]:
        found = run_of(files=answers[rival.name].pop(0))
        return {"runs": [msgspec.to_builtins(found)]}

    monkeypatch.setattr(trial, "start", started)
    closed.clear()
    case = Case(table=HISTORY, work="plan")
    benchmark = Benchmark(about="", cases={}, quick=(), trial=FakeTrial)
    rivals = [RIVALS["icekeep"], RIVALS["pyiceberg"]]
    figures, is_good = trial.compare(benchmark, "case", case, rivals, tmp_path)
    assert len(closed) == 1
    return {f.rival: len(f.runs) for f in figures}, is_good, capsys.readouterr().out


def test_each_rival_runs_in_each_round(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    runs, is_good, _ = compared({"icekeep": [7, 7], "pyiceberg": [7, 7]}, tmp_path, monkeypatch, capsys)
    assert (runs, is_good) == ({"icekeep": 2, "pyiceberg": 2}, True)


def test_a_rival_that_fails_is_left_out_and_said_and_the_others_go_on(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    runs, is_good, said = compared({"icekeep": [7, 7], "pyiceberg": [6]}, tmp_path, monkeypatch, capsys)
    assert (runs, is_good) == ({"icekeep": 2}, False)
    assert "pyiceberg lost a file" in said


def test_rivals_that_disagree_fail_the_case(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    runs, is_good, said = compared({"icekeep": [7, 7], "pyiceberg": [7, 8]}, tmp_path, monkeypatch, capsys)
    assert (runs, is_good) == ({"icekeep": 2, "pyiceberg": 2}, False)
    assert "they disagree" in said


def test_plans_that_differ_from_run_to_run_or_from_rival_to_rival_are_an_error() -> None:
    seven = run_of(data_files_count=7, data_files_bytes=700)
    check_files([figures_of(seven, seven), figures_of(seven, rival="theirs")])
    for wrong in ({"data_files_count": 8, "data_files_bytes": 700}, {"data_files_count": 7, "data_files_bytes": 701}):
        for figures in (
            [figures_of(seven, run_of(**wrong))],
            [figures_of(seven), figures_of(run_of(**wrong), rival="theirs")],
        ):
            with pytest.raises(RivalFailedError, match="different files"):
                check_files(figures)


def chosen(benchmark: str, *arguments: str) -> dict[str, Any]:
    return chosen_cases(BENCHMARKS[benchmark], parser().parse_args([benchmark, *arguments]))


def test_cases_are_chosen_by_name_and_by_pattern_and_as_a_quick_few() -> None:
    assert list(chosen("planning", "--cases", "100000-in-20-*,1000000-in-20-none"))[:2] == [
        "100000-in-20-none",
        "100000-in-20-none-process",
    ]
    assert len(chosen("planning", "--cases", "100000-in-20-*,1000000-in-20-none")) == 7
    quick = chosen("expiration", "--quick")
    assert set(quick) == set(BENCHMARKS["expiration"].quick)
    assert {(case.rounds, case.runs, case.table.files) for case in quick.values()} == {(1, 1, 1000)}
    with pytest.raises(ValueError, match="there is no case 'x'"):
        chosen("expiration", "--cases", "x")
    assert not any(name.startswith("rivals-") for name in chosen("expiration"))
    given = parser().parse_args(["expiration,manifests", "--cases", "rivals-append-*"])
    assert list(chosen_cases(BENCHMARKS["expiration"], given)) == ["rivals-append-200", "rivals-append-200-process"]
    assert chosen_cases(BENCHMARKS["manifests"], given) == {}


def test_fields_of_a_case_and_of_its_table_are_set() -> None:
    [case] = chosen("deletes", "--cases", "compact", "--set", "partitions=4", "--set", "target_mb=32").values()
    assert (case.table.partitions, case.target_mb, case.table.data_files) == (4, 32, 20_000)
    [case] = chosen("compaction", "--cases", "sf1-200-sort", "--set", "by_pyiceberg=true", "--rounds", "3").values()
    assert (case.table.name, case.rounds) == ("sf1-200-pyiceberg", 3)
    with pytest.raises(ValueError, match="there is no field 'colour'"):
        chosen("deletes", "--set", "colour=red")


@for_each("name", BENCHMARKS)
def test_a_table_is_made_by_a_process_that_is_told_its_shape(name: str) -> None:
    shapes = {shape for case in BENCHMARKS[name].cases.values() for shape in (case.table, case.small)}
    assert len({shape.name for shape in shapes}) == len(shapes)
    for shape in shapes:
        assert msgspec.json.decode(msgspec.json.encode(shape), type=Shapes) == shape


@for_each("name", BENCHMARKS)
def test_every_case_has_a_function_for_each_engine_of_its_rivals(name: str) -> None:
    for case in BENCHMARKS[name].cases.values():
        for rival in (RIVALS[rival] for rival in case.rivals):
            room = {"verifying": "parts", "reaching": "parts", "scale": "scale"}.get(name, "jobs")
            text = (TESTS / f"bench/{room}/with_{rival.engine}.py").read_text()
            assert f"def {rival.asks.get('work', case.work)}(" in text


@pytest.mark.process
def test_each_run_is_of_a_table_made_whole_again_and_looks_come_before_and_after(tmp_path: Path) -> None:
    table, pristine = tmp_path / "table", tmp_path / "pristine"
    (table / "metadata").mkdir(parents=True)
    (table / "metadata/m.avro").write_text("old")
    copies.take(table, pristine)
    seen = []

    def work(engine: object, target: dict[str, Any]) -> Callable[[], Callable[[], dict[str, int]]]:
        seen.append((target["catalog"], len(list(copies.names(table)))))

        def timed() -> Callable[[], dict[str, int]]:
            (table / "metadata/m2.avro").write_text("new")
            return lambda: {"made": 1}

        return timed

    def look(engine: object, target: dict[str, Any]) -> dict[str, int]:
        return {"files": len(list(copies.names(table)))}

    before = ["restore", str(table), str(pristine)]
    request = {
        "work": "work",
        "before": "look",
        "after": "look",
        "runs": 3,
        "small": {"catalog": "small", "before": before},
        "table": {"catalog": "bench", "before": before, "after": ["left", str(table), str(tmp_path / "listing")]},
    }
    answer = msgspec.convert(process.answered(request, None, SimpleNamespace(work=work, look=look)), Answer)
    assert seen == [("small", 1), ("bench", 1), ("bench", 1), ("bench", 1)]
    assert [(run.result, run.left["files"]) for run in answer.runs] == [({"made": 1}, 2)] * 3
    assert (answer.before, answer.after) == ({"files": 1}, {"files": 2})


def test_who_takes_long_is_not_asked_again_where_patience_is_short() -> None:
    module = SimpleNamespace(work=lambda engine, target: lambda: dict)
    request = {"work": "work", "runs": 3, "table": {"before": [], "after": []}}
    assert len(process.answered(request, None, module)["runs"]) == 3
    assert len(process.answered({**request, "patience_s": 0}, None, module)["runs"]) == 1
