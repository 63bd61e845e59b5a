"""Expiration and orphan removal against Iceberg Java on Spark: `make bench-expiration`, or a part of it:

    .venv/bin/python tests/bench/expiration.py --cases append-1000,rewrites-1000 --files 20000 --repeat 0

The tables are those of `expiration_tables.py`; all that metadata names is on disk. `expire_snapshots` keeps the newest
snapshot alone, `remove_orphan_files` deletes what is older than three days, both at once and for good (`--trash 0`). Each
rival has a process of its own for each case and does a small table first; then it is timed on the table itself, which is made
whole again before each run. The rivals of `process` are timed from the start of a command to its end: `icekeep expire_snapshots`
and spark-submit.

Both must leave exactly the same files, as many data files as are live and the snapshots that they must; count the same in what
they answer; and leave a table in which PyIceberg and, after its own runs, Iceberg Java find all rows. Otherwise the benchmark
fails.

Memory is of all processes of a rival together, the most at one glance; pages that processes share count for each. What memory a
driver has: `--driver-memory 4g`, the same for both. `--quick` does small tables, to see that all of it works.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from pyiceberg.table import StaticTable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import expiration_running
from bench.engines import JAVAS, OURS, jars, java_catalog, names_among, spark_settings
from bench.expiration_figures import RIVALS, Figures, Run, console, print_figures, print_summary
from bench.expiration_histories import History, HistoryFiles
from bench.expiration_running import EXPIRE, ORPHANS, ORPHANS_DRY_RUN
from bench.expiration_tables import CACHE, NAME, NAMESPACE, HistoryTable, history_table, made
from bench.in_turn import run_cases
from bench.processes import RivalFailedError, run

HERE = Path(__file__).resolve().parent
TABLE_NAME = f"{NAMESPACE}.{NAME}"
BIG, SMALL = "bench", "small"
"""The names of the catalogs, each of one table."""

_DAY_MS = 24 * 60 * 60 * 1000
COUNTS = tuple(
    f"deleted_{kind}_count"
    for kind in (
        "data_files",
        "position_delete_files",
        "equality_delete_files",
        "manifest_files",
        "manifest_lists",
        "statistics_files",
    )
)
_SHOWN_NAMES = 5


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to which table; `is_process` times a whole command."""

    history: History
    job: str = EXPIRE
    is_process: bool = False


_APPENDED = History(writer="append", snapshots=1000, files=100_000)
_REWRITTEN = History(writer="rewrites", snapshots=1000, files=100_000, garbage_percent=50)
_WITH_ORPHANS = History(writer="fast-append", snapshots=10, files=990_000, orphans=10_000)

CASES: Mapping[str, Case] = {
    "append-1000": Case(history=_APPENDED),
    "append-10000": Case(history=replace(_APPENDED, snapshots=10_000)),
    "fast-append-1000": Case(history=replace(_APPENDED, writer="fast-append")),
    "rewrites-1000": Case(history=_REWRITTEN),
    "rewrites-10000": Case(history=replace(_REWRITTEN, snapshots=10_000)),
    "tenth-of-1000000": Case(history=replace(_REWRITTEN, files=1_000_000, garbage_percent=10)),
    "half-of-1000000": Case(history=replace(_REWRITTEN, files=1_000_000)),
    "orphans-dry-run": Case(history=_WITH_ORPHANS, job=ORPHANS_DRY_RUN),
    "orphans": Case(history=_WITH_ORPHANS, job=ORPHANS),
    "process": Case(history=replace(_APPENDED, files=10_000), is_process=True),
}
QUICK = ("rewrites-1000", "orphans", "process")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line chose."""

    cases: Mapping[str, Case]
    rivals: tuple[str, ...]
    driver_memory: str
    repeat: int
    cache: Path


def main() -> int:
    """Run it; 0 if every rival answered and all left what they must."""
    settings, save = parse_arguments()
    return run_cases(settings.cases, lambda name, case: compare(name, case, settings), print_summary, save, console)


def compare(name: str, case: Case, settings: Settings) -> list[Figures]:
    """Let each rival do one case and print what it took.

    Raises:
        RivalFailedError: one failed, left other files than it must, or answered something else.
    """
    history = case.history
    console.print(f"\n[bold]{name}[/]: {history.name}")
    whole = made(history, settings.cache)
    made(small(history), settings.cache)
    table = history_table(history, settings.cache)
    measure = measure_process if case.is_process else measure_session
    figures = []
    try:
        for rival in settings.rivals:
            found = Figures(case=name, rival=rival, runs=measure(rival, case, settings))
            figures.append(found)
            print_figures(found)
            check_answers(found, case)
            check_files(found, case, table, whole.live_files)
            check_snapshots(found, case, table)
        check_agreement(figures, table)
        # The files of all rivals are the same, and counting takes a foreign reader long.
        check_rows(table, whole.rows)
    finally:
        expiration_running.restore(_place(table, BIG, RIVALS[0]))
    return figures


def small(history: History) -> History:
    """A table of the same kind that each rival does first."""
    return replace(history, snapshots=100, files=1000, orphans=min(10, history.orphans))


def measure_session(rival: str, case: Case, settings: Settings) -> tuple[Run, ...]:
    """The runs of a rival in a warm session; raises `RivalFailedError`."""
    script = str(HERE / f"expiration_with_{rival}.py")
    request = {**_request(rival, case, settings), "spark": _spark(rival, case, settings)}
    python = JAVAS if rival == "java" else OURS
    answer = run([str(python / "python"), script, json.dumps(request)], script).answer
    rows = made(case.history, settings.cache).rows
    if answer.get("rows", rows) != rows:
        raise RivalFailedError(f"{rival} counts {answer['rows']:,} rows in what it left, not {rows:,}")
    return msgspec.convert(answer["runs"], tuple[Run, ...])


def measure_process(rival: str, case: Case, settings: Settings) -> tuple[Run, ...]:
    """The runs of a command; raises `RivalFailedError`."""
    request = _request(rival, case, settings)
    command, runs = _command(rival, request, _spark(rival, case, settings)), []
    script = str(HERE / "expiration_process.py")
    python = JAVAS if rival == "java" else OURS
    for _ in range(1 + settings.repeat):
        expiration_running.restore(request["table"])
        answer = run([str(python / "python"), script, json.dumps({"command": command})], script).answer
        answer["left"] = expiration_running.left(request["table"])
        runs.append(msgspec.convert(answer, Run))
    return tuple(runs)


def _command(rival: str, request: dict[str, Any], spark: Mapping[str, str]) -> list[str]:
    if rival == "java":
        # The class path of the driver is fixed when its JVM starts: --conf comes in time, a session's builder too late.
        confs = [text for key, value in spark.items() for text in ("--conf", f"{key}={value}")]
        script = str(HERE / "expiration_with_java.py")
        return [str(JAVAS / "spark-submit"), *confs, script, json.dumps(request)]
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(request["older_than_ms"] / 1000))
    where = ["--conf", request["conf"], "--catalog", BIG, "--table", TABLE_NAME]
    wish = ["--older-than", moment, "--retain-last", "1", "--trash", "0", "--output", "json"]
    return [str(OURS / "icekeep"), "expire_snapshots", *where, *wish]


def _request(rival: str, case: Case, settings: Settings) -> dict[str, Any]:
    tables = _tables(case, settings)
    now_ms = time.time_ns() // 1_000_000
    return {
        "job": case.job,
        "name": TABLE_NAME,
        "table": _place(tables[BIG], BIG, rival),
        "small": _place(tables[SMALL], SMALL, rival),
        "conf": str(_conf(tables)),
        "older_than_ms": now_ms if case.job == EXPIRE else now_ms - 3 * _DAY_MS,
        "repeat": settings.repeat,
    }


def _tables(case: Case, settings: Settings) -> dict[str, HistoryTable]:
    histories = {BIG: case.history, SMALL: small(case.history)}
    return {name: history_table(history, settings.cache) for name, history in histories.items()}


def _place(table: HistoryTable, catalog: str, rival: str) -> dict[str, str]:
    """What a rival's process is told of a table."""
    return {
        "catalog": catalog,
        "path": str(table.path),
        "pristine": str(table.pristine),
        "listing": str(_listing(table, rival)),
    }


def _listing(table: HistoryTable, rival: str) -> Path:
    """Where the names of the files that a rival's last run left are."""
    return table.directory / f"left-by-{rival}.txt"


def _conf(tables: Mapping[str, HistoryTable]) -> Path:
    """A configuration file that names all catalogs."""
    path = tables[BIG].directory / "icekeep.yaml"
    path.write_text(json.dumps({"catalogs": {name: table.properties for name, table in tables.items()}}))
    return path


def _spark(rival: str, case: Case, settings: Settings) -> dict[str, str]:
    spark = spark_settings(settings.driver_memory)
    if rival == "java":
        spark |= {
            "spark.driver.extraClassPath": os.pathsep.join(jars()),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        }
        for name, table in _tables(case, settings).items():
            spark |= java_catalog(name, table.warehouse.as_uri())
    return spark


def check_answers(figures: Figures, case: Case) -> None:
    """Raise where a rival did not say of each run that it removed what it had to."""
    wanted = case.history.garbage_files if case.job == EXPIRE else case.history.orphans
    files = HistoryFiles(case.history, "")
    orphans = {files.orphan_path(number).rpartition("/")[2] for number in range(case.history.orphans)}
    for one in figures.runs:
        said = one.result["deleted_data_files_count" if case.job == EXPIRE else "orphans_count"]
        if said != wanted:
            raise RivalFailedError(f"{figures.rival} says {said:,} files, not {wanted:,}: {one.result}")
        if wrong := set(one.result.get("some", ())) - orphans:
            raise RivalFailedError(f"{figures.rival} takes {min(wrong)!r} for an orphan")


def check_files(figures: Figures, case: Case, table: HistoryTable, live_files: int) -> None:
    """Raise where a run did not leave as many data files as it must, or another run of the same rival left others."""
    if len({one.left for one in figures.runs}) > 1:
        raise RivalFailedError(f"{figures.rival} leaves other files from run to run: {[r.left for r in figures.runs]}")
    names = _listing(table, figures.rival).read_text().splitlines()
    data_files = sum(name.startswith("data/") for name in names)
    wanted = case.history.files + case.history.orphans
    if case.job == EXPIRE:
        wanted = live_files + case.history.orphans
    elif case.job == ORPHANS:
        wanted = case.history.files
    if data_files != wanted:
        raise RivalFailedError(f"{figures.rival} leaves {data_files:,} data files, not {wanted:,}")


def check_snapshots(figures: Figures, case: Case, table: HistoryTable) -> None:
    """Raise where a rival left other snapshots than the newest, or any of them out that was not to go."""
    metadata = table.load().metadata
    count = 1 if case.job == EXPIRE else case.history.snapshots
    sequence_number = metadata.current_snapshot.sequence_number if metadata.current_snapshot else 0
    if (len(metadata.snapshots), sequence_number) != (count, case.history.snapshots):
        raise RivalFailedError(
            f"{figures.rival} leaves {len(metadata.snapshots):,} snapshots up to {sequence_number:,}"
        )


def check_rows(table: HistoryTable, rows: int) -> None:
    """Raise where PyIceberg does not find all rows in the table as it is now."""
    found = StaticTable.from_metadata(table.load().metadata_location).scan().count()
    if found != rows:
        raise RivalFailedError(f"PyIceberg counts {found:,} rows in what is left, not {rows:,}")


def check_agreement(figures: Sequence[Figures], table: HistoryTable) -> None:
    """Raise where the rivals left different files, or counted differently what they deleted."""
    if len({one.runs[-1].left for one in figures}) > 1:
        names = {f.rival: set(_listing(table, f.rival).read_text().splitlines()) for f in figures}
        both = set.intersection(*names.values())
        more = {rival: [len(own - both), *sorted(own - both)[:_SHOWN_NAMES]] for rival, own in names.items()}
        raise RivalFailedError(f"the rivals leave different files; what the other has not: {more}")
    keys = (*COUNTS, "orphans_count")
    counts = {f.rival: {key: f.runs[-1].result[key] for key in keys if key in f.runs[-1].result} for f in figures}
    if len({msgspec.json.encode(count) for count in counts.values()}) > 1:
        raise RivalFailedError(f"the rivals count differently: {counts}")


def chosen_cases(names: Sequence[str], files: int | None, *, is_quick: bool) -> dict[str, Case]:
    """Cases by their names, with other numbers of files where these are given; quick ones are as small as can be."""
    chosen = {}
    for name in names:
        case = CASES[name]
        history = small(case.history) if is_quick else case.history
        if files is not None:
            history = replace(history, files=files, orphans=min(history.orphans, files // 100))
        chosen[name] = replace(case, history=history)
    return chosen


def parse_arguments() -> tuple[Settings, Path | None]:
    parser = argparse.ArgumentParser(description="Compare icekeep's expiration and orphan removal with Iceberg Java's.")
    parser.add_argument("--cases", type=names_among(tuple(CASES)), help=f"among {','.join(CASES)} (default: all)")
    parser.add_argument("--files", type=int, help="data files of each table, in place of its own number")
    parser.add_argument("--rivals", type=names_among(RIVALS), default=RIVALS, help=",".join(RIVALS))
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs after the first; the best counts (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="small tables, and few cases unless they are named")
    parser.add_argument("--driver-memory", default="4g", help="of each Spark (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="a file for all figures as JSON")
    given = parser.parse_args()
    names = given.cases or (QUICK if given.quick else tuple(CASES))
    settings = Settings(
        cases=chosen_cases(names, given.files, is_quick=given.quick),
        rivals=given.rivals,
        driver_memory=given.driver_memory,
        repeat=0 if given.quick else given.repeat,
        cache=given.cache.absolute(),
    )
    return settings, given.save


if __name__ == "__main__":
    sys.exit(main())
