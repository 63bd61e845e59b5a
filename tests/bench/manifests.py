"""Manifest rewriting, and merging on append, against Iceberg Java on Spark: `make bench-manifests`, or a part of it:

    .venv/bin/python tests/bench/manifests.py --cases rewrite-1000,merge-100 --rounds 1 --runs 1

The tables are those of `big_tables.py`, with entries of all partitions in every manifest, as many writers leave them. `rewrite`
clusters and resizes the manifests (`CALL system.rewrite_manifests`), `merge` appends one file to a table of 99 manifests,
the hundredth, with which a commit merges them. Each rival has a process of its own for each round and does a small table first;
then it is timed on the table itself, which is made what it was before each run. The best run counts. The case `process`
times whole commands: `icekeep rewrite_manifests` and spark-submit.

Entries and records must be as many after as before, by the entries and by the manifest list, and each planner must find the same
files in both: otherwise the benchmark fails. Planning is timed in the same processes, each rival's planner over the table before
and over what the rival left; and Iceberg Java's planner over what icekeep left.

What memory a driver has: `--driver-memory 4g`, the same for both. `--quick` does small tables, to see that all of it works.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import expiration_copies, expiration_running, planning
from bench.big_rows import FIRST_DAY, ROWS_A_FILE, Shape
from bench.big_tables import CACHE, CATALOG, TABLE, BigTable, big_table, day_text, days_filter, filters
from bench.engines import JAVAS, OURS, jars, java_catalog, names_among, spark_settings
from bench.in_turn import run_cases
from bench.manifests_figures import RIVALS, Answer, Content, Figures, console, print_figures, print_plans, print_summary
from bench.manifests_running import APPEND, PLAN, REWRITE
from bench.processes import RivalFailedError, run
from icekeep import plan_scan
from icekeep.commit.manifests import StorageManifestReader
from icekeep.spec.manifests.structs import ManifestFile
from kit.no_spark import no_spark

HERE = Path(__file__).resolve().parent
TABLE_NAME = ".".join(TABLE)
SMALL = "small"
"""The catalog of the small table."""

ONE_PARTITION, EVERYTHING = "one partition", "everything"
_APPENDED_BYTES = 10_000_000


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to which table, how often in a round; `is_process` times a whole command."""

    shape: Shape
    job: str = REWRITE
    runs: int = 2
    is_process: bool = False


def _scattered(entries: int, manifests: int) -> Shape:
    return Shape(entries=entries, manifests=manifests, scattered=True)


CASES: Mapping[str, Case] = {
    "rewrite-1000": Case(shape=_scattered(100_000, 1000)),
    "rewrite-10000": Case(shape=_scattered(1_000_000, 10_000)),
    "rewrite-200-large": Case(shape=_scattered(1_000_000, 200)),
    "merge-100": Case(shape=_scattered(9_900, 99), job=APPEND, runs=8),
    "merge-1000": Case(shape=_scattered(99_000, 99), job=APPEND, runs=8),
    "process": Case(shape=_scattered(100_000, 1000), runs=1, is_process=True),
}
"""The numbers are of manifests where they are rewritten, of the entries of each manifest where they are merged."""

REWRITES = tuple(name for name, case in CASES.items() if case.job == REWRITE and not case.is_process)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line chose."""

    cases: Mapping[str, Case]
    rivals: tuple[str, ...]
    driver_memory: str
    rounds: int
    cache: Path


def main() -> int:
    """Run it; 0 if every rival answered and all left what they must."""
    settings, save = parse_arguments()
    return run_cases(settings.cases, lambda name, case: compare(name, case, settings), print_summary, save, console)


def compare(name: str, case: Case, settings: Settings) -> list[Figures]:
    """Let each rival do one case, in turn, and print what it took.

    Raises:
        RivalFailedError: one failed, lost or made up entries, or said something else of what it did.
    """
    console.print(f"\n[bold]{name}[/]: {case.shape.name}")
    table = made(case.shape, settings.cache)
    made(small(case), settings.cache)
    before = content(table)
    check_made(before, case.shape)
    answers: dict[str, Answer] = {}
    after: dict[str, Content] = {}
    # icekeep comes last, so that Java can plan what it left.
    in_turn = sorted(settings.rivals, key=RIVALS.index, reverse=True)
    try:
        for rival in in_turn * settings.rounds:
            answer = measure(rival, case, settings)
            after[rival] = content(table)
            check_content(rival, case, before, after[rival])
            check_results(rival, case, answer, after[rival])
            answers[rival] = answers[rival].joined(answer) if rival in answers else answer
        over_ours = plans_of_java(case, settings) if in_turn[-1] == RIVALS[0] and not case.is_process else Answer()
        check_plans([*answers.values(), over_ours], before)
    finally:
        expiration_running.restore(place(table, CATALOG))
    found = [
        Figures(case=name, rival=rival, answer=answers[rival], before=before, after=after[rival])
        for rival in settings.rivals
    ]
    for figures in found:
        print_figures(figures)
    print_plans("java over icekeep's manifests", over_ours)
    return found


def small(case: Case) -> Shape:
    """A table of the same kind that each rival does first."""
    return _scattered(2000, 20) if case.job == REWRITE else _scattered(990, 99)


def made(shape: Shape, cache: Path) -> BigTable:
    """The table as it was made, whatever a run that was cut short left of it."""
    table = planning.made(shape, cache)
    pristine = _pristine(table)
    if pristine.exists():
        expiration_running.restore(place(table, CATALOG))
        return table
    half = pristine.with_name("pristine-in-part")
    shutil.rmtree(half, ignore_errors=True)
    expiration_copies.take(table.path, half)
    half.rename(pristine)
    return table


def content(table: BigTable) -> Content:
    """What a table holds now, by its manifest list and by its entries."""
    loaded = table.load()
    snapshot = loaded.metadata.current_snapshot
    assert snapshot is not None
    manifests = StorageManifestReader(loaded.storage).manifests(snapshot)
    everything = plan_scan(loaded, no_spark)
    one = plan_scan(loaded, no_spark, where=days_filter(table.shape, 1).where)
    return Content(
        manifests=len(manifests),
        bytes=sum(m.manifest_length for m in manifests),
        listed_files=sum(m.live_files_count or 0 for m in manifests),
        listed_records=sum(_records(m) for m in manifests),
        files=everything.data_files_count,
        records=everything.record_count,
        opened=one.opened_manifests_count,
        found=one.data_files_count,
    )


def _records(manifest: ManifestFile) -> int:
    return (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)


def measure(rival: str, case: Case, settings: Settings) -> Answer:
    """One round of a rival; raises `RivalFailedError`."""
    if case.is_process:
        return measure_process(rival, case, settings)
    script = str(HERE / f"manifests_with_{rival}.py")
    request = {**_request(case.job, case, settings), "spark": _spark(rival, case, settings)}
    return _answered(rival, script, request)


def plans_of_java(case: Case, settings: Settings) -> Answer:
    """What Java's planner takes for the table as it is; nothing where no plan is asked for."""
    script = str(HERE / "manifests_with_java.py")
    request = {**_request(PLAN, case, settings), "spark": _spark("java", case, settings)}
    return _answered("java", script, request) if request["filters"] else Answer()


def measure_process(rival: str, case: Case, settings: Settings) -> Answer:
    """A command from its start to its end, as often as the case says; raises `RivalFailedError`."""
    request, script = _request(case.job, case, settings), str(HERE / "expiration_process.py")
    if rival == "java":
        # The class path of the driver is fixed when its JVM starts: --conf comes in time, a session's builder too late.
        confs = [text for key, value in _spark(rival, case, settings).items() for text in ("--conf", f"{key}={value}")]
        job = str(HERE / "manifests_with_java.py")
        command = [str(JAVAS / "spark-submit"), *confs, job, json.dumps(request)]
    else:
        where = ["--conf", request["conf"], "--catalog", CATALOG, "--table", TABLE_NAME]
        command = [str(OURS / "icekeep"), "rewrite_manifests", *where, "--output", "json"]
    answer = Answer()
    for _ in range(case.runs):
        expiration_running.restore(request["table"])
        found = run([str(_python(rival)), script, json.dumps({"command": command})], script).answer
        answer = answer.joined(msgspec.convert({"runs": [found]}, Answer))
    return answer


def _answered(rival: str, script: str, request: dict[str, Any]) -> Answer:
    found = run([str(_python(rival)), script, json.dumps(request)], script).answer
    return msgspec.convert(found, Answer)


def _python(rival: str) -> Path:
    return (JAVAS if rival == "java" else OURS) / "python"


def _request(job: str, case: Case, settings: Settings) -> dict[str, Any]:
    table = big_table(case.shape, settings.cache)
    small_table = big_table(small(case), settings.cache)
    day = FIRST_DAY + case.shape.partitions // 2
    partition = f"at_day={day_text(day)}"
    new_file = {
        "path": f"{table.path.as_uri()}/data/{partition}/appended-00001.parquet",
        "partition": partition,
        "day": day,
        "records": ROWS_A_FILE,
        "bytes": _APPENDED_BYTES,
    }
    asked = {ONE_PARTITION: days_filter(case.shape, 1), EVERYTHING: filters(case.shape)["none"]}
    return {
        "job": job,
        "name": TABLE_NAME,
        "table": place(table, CATALOG),
        "small": place(small_table, SMALL),
        "conf": str(_conf({CATALOG: table, SMALL: small_table})),
        "runs": case.runs,
        "file": new_file,
        "filters": msgspec.to_builtins(asked) if case.job == REWRITE else {},
    }


def place(table: BigTable, catalog: str) -> dict[str, str]:
    """What a rival's process is told of a table."""
    return {"catalog": catalog, "path": str(table.path), "pristine": str(_pristine(table))}


def _pristine(table: BigTable) -> Path:
    return table.directory / "pristine"


def _conf(tables: Mapping[str, BigTable]) -> Path:
    """A configuration file that names all catalogs."""
    path = tables[CATALOG].directory / "manifests.yaml"
    path.write_text(json.dumps({"catalogs": {name: table.properties for name, table in tables.items()}}))
    return path


def _spark(rival: str, case: Case, settings: Settings) -> dict[str, str]:
    spark = spark_settings(settings.driver_memory)
    if rival == "java":
        classes = planning.compiled(planning.CLASSES)
        spark |= {
            "spark.driver.extraClassPath": os.pathsep.join([str(classes), *jars()]),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            # The faster mode on one machine.
            "spark.sql.iceberg.data-planning-mode": "local",
            "spark.sql.iceberg.delete-planning-mode": "local",
        }
        for name, shape in ((CATALOG, case.shape), (SMALL, small(case))):
            spark |= java_catalog(name, big_table(shape, settings.cache).properties["warehouse"])
    return spark


def check_made(before: Content, shape: Shape) -> None:
    """Raise where a table is not what its shape says."""
    if (before.manifests, before.files, before.listed_files) != (shape.manifests, shape.entries, shape.entries):
        raise RivalFailedError(f"the table holds {before}, not {shape}; remove it")
    if before.records != before.listed_records:
        raise RivalFailedError(f"the manifest list of the table says other records than the entries: {before}")


def check_content(rival: str, case: Case, before: Content, after: Content) -> None:
    """Raise where a table has not the entries and records that it must have after a run."""
    files, records = (1, ROWS_A_FILE) if case.job == APPEND else (0, 0)
    wanted = (before.files + files, before.records + records)
    found = {(after.files, after.records), (after.listed_files, after.listed_records)}
    if found != {wanted}:
        raise RivalFailedError(f"{rival} left {found} as files and records, by entries and by list, not {wanted}")
    if after.manifests >= before.manifests:
        raise RivalFailedError(f"{rival} left {after.manifests:,} manifests, no fewer than there were")


def check_results(rival: str, case: Case, answer: Answer, after: Content) -> None:
    """Raise where a rival's own counts are not those of the table."""
    for one in answer.runs if case.job == REWRITE else ():
        said = (one.result["rewritten_manifests_count"], one.result["added_manifests_count"])
        if said[0] != case.shape.manifests or said[1] < 1:
            raise RivalFailedError(f"{rival} says that it made {said[0]:,} manifests {said[1]:,}")
    if case.job == REWRITE and answer.runs[-1].result["added_manifests_count"] != after.manifests:
        raise RivalFailedError(f"{rival} left {after.manifests:,} manifests and says {answer.runs[-1].result}")


def check_plans(answers: Sequence[Answer], before: Content) -> None:
    """Raise where a planner finds other files before than after, or than another one."""
    wanted = {ONE_PARTITION: before.found, EVERYTHING: before.files}
    for name, files in wanted.items():
        plans = [plans[name] for a in answers for plans in (a.before, a.after) if name in plans]
        found = {(plan.files, plan.bytes) for plan in plans}
        if plans and (len(found) > 1 or plans[0].files != files):
            raise RivalFailedError(f"planners find {found} as files and bytes of {name}, not {files:,} files")


def chosen_cases(names: Sequence[str], runs: int | None, *, is_quick: bool) -> dict[str, Case]:
    """Cases by their names; quick ones have small tables and one run."""
    chosen = {name: CASES[name] for name in names}
    if is_quick:
        chosen = {name: replace(case, shape=small(case), runs=1) for name, case in chosen.items()}
    return chosen if runs is None else {name: replace(case, runs=runs) for name, case in chosen.items()}


def parse_arguments() -> tuple[Settings, Path | None]:
    parser = argparse.ArgumentParser(description="Compare icekeep's manifest rewriting with Iceberg Java's.")
    parser.add_argument("--cases", type=names_among(tuple(CASES)), help=f"among {','.join(CASES)} (default: all)")
    parser.add_argument("--rivals", type=names_among(RIVALS), default=RIVALS, help=",".join(RIVALS))
    parser.add_argument("--rounds", type=int, default=2, help="processes of each rival, in turn (default: %(default)s)")
    parser.add_argument("--runs", type=int, help="runs in each process, in place of each case's own number")
    parser.add_argument("--quick", action="store_true", help="small tables, one run each")
    parser.add_argument("--driver-memory", default="4g", help="of each Spark (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="a file for all figures as JSON")
    given = parser.parse_args()
    settings = Settings(
        cases=chosen_cases(given.cases or tuple(CASES), given.runs, is_quick=given.quick),
        rivals=given.rivals,
        driver_memory=given.driver_memory,
        rounds=1 if given.quick else given.rounds,
        cache=given.cache.absolute(),
    )
    return settings, given.save


if __name__ == "__main__":
    sys.exit(main())
