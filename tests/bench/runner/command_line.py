"""The command line of all benchmarks."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.compaction import COMPACTION
from bench.deletes import DELETES
from bench.expiration import EXPIRATION
from bench.manifests import MANIFESTS
from bench.parts.benchmark import REACHING, VERIFYING
from bench.planning import PLANNING
from bench.runner.figures import Figures, console
from bench.runner.published import Published
from bench.runner.rivals import CACHE, RIVALS, Rival, before
from bench.runner.trial import OF_RIVALS, Benchmark, Case, compare
from bench.scale.benchmark import SCALE

BENCHMARKS: Mapping[str, Benchmark] = {
    "planning": PLANNING,
    "compaction": COMPACTION,
    "deletes": DELETES,
    "expiration": EXPIRATION,
    "manifests": MANIFESTS,
    "verifying": VERIFYING,
    "reaching": REACHING,
    "scale": SCALE,
}


def main() -> int:
    """Run it; 0 if every rival answered in every case and left what it must."""
    given = parser().parse_args()
    if given.list:
        print_list()
        return 0
    if not given.benchmark:
        parser().error(f"name one of {', '.join(BENCHMARKS)}, or --list")
    try:
        chosen = {name: chosen_cases(BENCHMARKS[name], given) for name in given.benchmark}
        others = () if given.against is None else (_before(given.against),)
    except ValueError as error:
        parser().error(str(error))
    figures: list[Figures] = []
    failed: list[str] = []
    told = Published()
    for benchmark, cases in ((BENCHMARKS[name], cases) for name, cases in chosen.items()):
        first = len(figures)
        for name, case in cases.items():
            rivals = [RIVALS[rival] for rival in given.rivals or case.rivals]
            found, is_good = compare(benchmark, name, case, [*rivals, *others], given.cache.absolute())
            figures += found
            if not is_good:
                failed.append(name)
            told.add(case, found)
            _write(given, figures, told, failed)
        benchmark.summary(figures[first:], benchmark.compared)
    if failed:
        console.print(f"[bold red]what failed[/]: {', '.join(failed)}")
    return 1 if failed else 0


def _write(given: Any, figures: Sequence[Figures], told: Published, failed: Sequence[str]) -> None:
    if given.save is not None:
        given.save.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    if given.report is not None:
        told.write(given.report, failed)


def chosen_cases(benchmark: Benchmark, given: Any) -> dict[str, Case]:
    """The cases that are asked for, as they are asked for.

    Raises:
        ValueError: there is no such case, or nothing that can be set so.
    """
    patterns = given.cases or (benchmark.quick if given.quick else _common(benchmark))
    known = [name for asked in given.benchmark for name in BENCHMARKS[asked].cases]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(f"there is no case {pattern!r}; there is {', '.join(known)}")
    chosen = {
        name: case for name, case in benchmark.cases.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    values = {"rounds": given.rounds, "runs": given.runs, "driver_memory": given.driver_memory}
    numbers = {name: value for name, value in values.items() if value is not None}
    if given.quick:
        numbers = {"rounds": 1, "runs": 1, **numbers}
        chosen = {name: replace(case, table=case.small) for name, case in chosen.items()}
    return {name: _with_settings(replace(case, **numbers), given.set) for name, case in chosen.items()}


def _common(benchmark: Benchmark) -> tuple[str, ...]:
    return tuple(name for name in benchmark.cases if not name.startswith(OF_RIVALS))


def _with_settings(case: Case, settings: Sequence[str]) -> Case:
    """A case with fields of its table, or of its own, as FIELD=VALUE says."""
    for setting in settings:
        field, _, value = setting.partition("=")
        if field in case.table.__struct_fields__:
            case = replace(case, table=_with_value(case.table, field, value))
        elif field in case.__struct_fields__:
            case = _with_value(case, field, value)
        else:
            fields = ", ".join((*case.table.__struct_fields__, *case.__struct_fields__))
            raise ValueError(f"there is no field {field!r}; there is {fields}")
    return case


def _with_value(record: Any, field: str, value: str) -> Any:
    (kind,) = (one.type for one in msgspec.structs.fields(record) if one.name == field)
    return msgspec.convert({**_values(record), field: msgspec.convert(value, kind, strict=False)}, type(record))


def _values(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _before(lib: Path) -> Rival:
    if not (lib / "icekeep/__init__.py").exists():
        raise ValueError(f"--against {lib}: there is no icekeep in it; name the lib directory of another checkout")
    return before(lib.absolute())


def print_list() -> None:
    """The benchmarks and their cases."""
    for name, benchmark in BENCHMARKS.items():
        print(f"{name}: {benchmark.about}")
        for case_name, case in benchmark.cases.items():
            print(f"    {case_name:<36} {case.table.name}: {', '.join(case.rivals)}")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="run.py", description="Compare icekeep with its rivals.")
    add = found.add_argument
    add("benchmark", nargs="?", type=_benchmarks, metavar="BENCHMARKS", help=f"between commas: {', '.join(BENCHMARKS)}")
    add("--list", action="store_true", help="print the benchmarks and their cases")
    add("--cases", type=_names, metavar="NAMES", help="between commas, with * for any text (default: all)")
    add("--rivals", type=_rivals, metavar="NAMES", help=f"among {', '.join(RIVALS)} (default: each case's own)")
    add("--against", type=Path, metavar="LIB", help="the lib of another checkout: a rival more, icekeep-before")
    add("--rounds", type=int, help="processes of each rival, in turn; 0 only makes the tables")
    add("--runs", type=int, help="runs in each process; the best of all rounds counts")
    add(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="of every case or its table, such as files=20"
    )
    add("--quick", action="store_true", help="small tables, one run, and few cases unless they are named")
    add("--driver-memory", help="of each Spark, in place of each case's own")
    add("--cache", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    add("--save", type=Path, help="a file for all figures as JSON, written after each case")
    add("--report", type=Path, metavar="NAME", help="NAME.md and NAME.json: medians of rounds, machine, versions")
    return found


def _benchmarks(text: str) -> tuple[str, ...]:
    if unknown := [name for name in _names(text) if name not in BENCHMARKS]:
        raise argparse.ArgumentTypeError(f"there is no benchmark {unknown[0]!r}; there is {', '.join(BENCHMARKS)}")
    return _names(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _rivals(text: str) -> tuple[str, ...]:
    if unknown := [name for name in _names(text) if name not in RIVALS]:
        raise argparse.ArgumentTypeError(f"there is no rival {unknown[0]!r}; there is {', '.join(RIVALS)}")
    return _names(text)


if __name__ == "__main__":
    sys.exit(main())
