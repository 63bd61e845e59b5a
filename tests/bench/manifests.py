"""Manifest rewriting, and merging on append: tables of `big_tables.py` with entries of all partitions in every manifest.

`rewrite` clusters and resizes the manifests, `merge` appends one file to a table of 99 manifests, the hundredth, with which a
commit merges them. Entries and records must be as many after as before, by the entries and by the manifest list, and each planner
must find the same files in both. Planning is timed in the same processes, over the table before and after; and Iceberg Java's
planner over what icekeep left. `--rivals icekeep,spark-avro` compares with all of it done in the JVM.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.runner.figures import Answer, Fact, Figures
from bench.runner.rivals import ICEKEEP, RIVALS, RUST, ZAMBONI, Rival, RivalFailedError, ask, spark_settings
from bench.runner.trial import BENCH, OF_RIVALS, Benchmark, Case, InPlaceTrial, target
from bench.tables.big_tables import FIRST_DAY, ROWS_A_FILE, Shape, day_text, days_filter, filters
from bench.tables.kept import Kept
from icekeep import plan_scan
from icekeep.commit.manifests import ManifestReader
from icekeep.spec.manifests.structs import ManifestFile
from kit.runtime import no_spark

REWRITE, APPEND = "rewrite_manifests", "append"
ONE_PARTITION, EVERYTHING = "one partition", "everything"
_APPENDED_BYTES = 10_000_000
_IN_THE_JVM = "spark-avro"


class ManifestsCase(Case, frozen=True, kw_only=True):
    work: str = REWRITE

    @property
    def small(self) -> Shape:
        return self.table.small if self.work == REWRITE else replace(self.table, entries=990)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a table holds.

    Attributes:
        manifests, bytes: by the manifest list.
        listed_files, listed_records: live ones, by the manifest list.
        files, records: by the entries.
        opened: how many manifests a filter of one partition opens.
        found: how many files it finds.
    """

    manifests: int
    bytes: int
    listed_files: int
    listed_records: int
    files: int
    records: int
    opened: int
    found: int


class ManifestsTrial(InPlaceTrial):
    room = "jobs"

    def __init__(self, case: ManifestsCase, cache: Path, directory: Path) -> None:
        super().__init__(case, cache, directory)
        self.close()  # whatever a run that was cut short left of it
        self.was = content(self.table)
        check_made(self.was, case.table)
        self.after: dict[str, Content] = {}
        self.plans: dict[str, list[Mapping[str, Any]]] = {}
        asked = {ONE_PARTITION: days_filter(case.table, 1), EVERYTHING: filters(case.table)["none"]}
        self.filters = msgspec.to_builtins(asked) if case.work == REWRITE and not case.is_process else {}

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        day = FIRST_DAY + self.case.table.partitions // 2
        partition = f"at_day={day_text(day)}"
        file = {
            "path": f"{self.table.path.as_uri()}/data/{partition}/appended-00001.parquet",
            "partition": partition,
            "day": day,
            "records": ROWS_A_FILE,
            "bytes": _APPENDED_BYTES,
        }
        looks = {"before": "plans", "after": "plans"} if self.filters and not rival.is_by_rest else {}
        return {"file": file, "filters": self.filters, "scratch": str(self.directory / "scratch"), **looks}

    def check_turn(self, rival: Rival, answer: Answer) -> None:
        is_now = content(self.table)
        if rival.name == _IN_THE_JVM:
            check_in_the_jvm(answer, self.was, is_now)
            return
        check_content(rival.name, self.case, self.was, is_now)
        check_results(rival.name, self.case, answer, is_now)
        self.after[rival.name] = is_now
        self.plans.setdefault(rival.name, []).append({"before": answer.before, "after": answer.after})
        if rival.name == ICEKEEP and self.filters:
            self.plans.setdefault("java over icekeep's", []).append({"after": self._plans_of_java()})

    def _plans_of_java(self) -> Any:
        """What Java's planner takes for the table as it is."""
        spark = spark_settings(RIVALS["java"], self.case.driver_memory, self.warehouses())
        table = target(BENCH, self.table.name)
        return ask("java", "bench.jobs.with_java", "only_plans", spark=spark, table=table, filters=self.filters)

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        found: dict[str, dict[str, Fact]] = {}
        for rival, is_now in self.after.items():
            found[rival] = {
                "manifests": f"{self.was.manifests:,} -> {is_now.manifests:,}",
                "MB": f"{self.was.bytes / 1e6:,.1f} -> {is_now.bytes / 1e6:,.1f}",
                "opened": f"{self.was.opened:,} -> {is_now.opened:,}",
            }
        for said in (f.runs[-1].result for f in figures if f.rival == _IN_THE_JVM):
            made = f"{said['rewritten_manifests_count']:,} -> {said['added_manifests_count']:,}"
            found[_IN_THE_JVM] = {"manifests": made, "headers s": said["splice_s"]}
        for name in self.filters:
            for planner, plans in self.plans.items():
                best = best_plans(plans, name)
                of, title = (planner, f"plans {name} s") if planner in found else (ICEKEEP, f"{planner}, {name} s")
                found.setdefault(of, {})[title] = " -> ".join(f"{seconds:.3f}" for seconds in best)
        return found

    def check(self, figures: Sequence[Figures]) -> None:
        check_plans([plans for all_plans in self.plans.values() for plans in all_plans], self.was)


def content(table: Kept) -> Content:
    """What a table holds now, by its manifest list and by its entries."""
    loaded = table.load()
    snapshot = loaded.metadata.current_snapshot
    assert snapshot is not None
    manifests = ManifestReader(loaded.storage).manifests(snapshot)
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


def best_plans(rounds: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """The best time of a filter's plans before, where there are any, and after."""
    times = [[plans[when][name]["seconds"] for plans in rounds if name in plans.get(when, {})] for when in _WHEN]
    return [min(seconds) for seconds in times if seconds]


_WHEN = ("before", "after")


def check_made(was: Content, shape: Shape) -> None:
    """Raise where a table is not what its shape says."""
    if (was.manifests, was.files, was.listed_files) != (shape.manifests, shape.entries, shape.entries):
        raise RivalFailedError(f"the table holds {was}, not {shape}; remove it")
    if was.records != was.listed_records:
        raise RivalFailedError(f"the manifest list of the table says other records than the entries: {was}")


def check_content(rival: str, case: ManifestsCase, was: Content, is_now: Content) -> None:
    """Raise where a table has not the entries and records that it must have after a run."""
    files, records = (1, ROWS_A_FILE) if case.work == APPEND else (0, 0)
    wanted = (was.files + files, was.records + records)
    found = {(is_now.files, is_now.records), (is_now.listed_files, is_now.listed_records)}
    if found != {wanted}:
        raise RivalFailedError(f"{rival} left {found} as files and records, by entries and by list, not {wanted}")
    if is_now.manifests >= was.manifests:
        raise RivalFailedError(f"{rival} left {is_now.manifests:,} manifests, no fewer than there were")


def check_results(rival: str, case: ManifestsCase, answer: Answer, is_now: Content) -> None:
    """Raise where a rival's own counts are not those of the table."""
    for one in answer.runs if case.work == REWRITE else ():
        said = (one.result["rewritten_manifests_count"], one.result["added_manifests_count"])
        if said[0] != case.table.manifests or said[1] < 1:
            raise RivalFailedError(f"{rival} says that it made {said[0]:,} manifests {said[1]:,}")
    if case.work == REWRITE and answer.runs[-1].result["added_manifests_count"] != is_now.manifests:
        raise RivalFailedError(f"{rival} left {is_now.manifests:,} manifests and says {answer.runs[-1].result}")


def check_in_the_jvm(answer: Answer, was: Content, is_now: Content) -> None:
    """Raise where Spark lost entries, or touched the table, of which it makes no snapshot."""
    counts = {one.result["entries_count"] for one in answer.runs}
    if counts != {was.files}:
        raise RivalFailedError(f"{_IN_THE_JVM} wrote {counts} entries, not {was.files:,}")
    if is_now != was:
        raise RivalFailedError(f"{_IN_THE_JVM} left {is_now} of {was}")


def check_plans(rounds: Sequence[Mapping[str, Any]], was: Content) -> None:
    """Raise where a planner finds other files before than after, or than another one."""
    for name, files in {ONE_PARTITION: was.found, EVERYTHING: was.files}.items():
        plans = [plans[when][name] for plans in rounds for when in _WHEN if name in plans.get(when, {})]
        found = {(plan["data_files_count"], plan["data_files_bytes"]) for plan in plans}
        if plans and (len(found) > 1 or plans[0]["data_files_count"] != files):
            raise RivalFailedError(f"planners find {found} as files and bytes of {name}, not {files:,} files")


def _scattered(entries: int, manifests: int) -> Shape:
    return Shape(entries=entries, manifests=manifests, scattered=True)


_AGAINST_ALL = ManifestsCase(table=_scattered(100_000, 1000), rounds=3, rivals=(ICEKEEP, "java", RUST, ZAMBONI))
"""Of these iceberg-compaction makes manifests that are not clustered, and iceberg-zamboni works in Python alone."""

MANIFESTS = Benchmark(
    about="manifests rewritten, or merged on append, up to 1,000,000 entries",
    # The numbers are of manifests where they are rewritten, of the entries of each manifest where they are merged.
    cases={
        "rewrite-1000": ManifestsCase(table=_scattered(100_000, 1000)),
        "rewrite-10000": ManifestsCase(table=_scattered(1_000_000, 10_000)),
        "rewrite-200-large": ManifestsCase(table=_scattered(1_000_000, 200)),
        "merge-100": ManifestsCase(table=_scattered(9_900, 99), work=APPEND, runs=8),
        "merge-1000": ManifestsCase(table=_scattered(99_000, 99), work=APPEND, runs=8),
        "process": ManifestsCase(table=_scattered(100_000, 1000), runs=1, is_process=True),
        f"{OF_RIVALS}rewrite-1000": _AGAINST_ALL,
        f"{OF_RIVALS}rewrite-1000-process": replace(_AGAINST_ALL, runs=1, is_process=True),
    },
    quick=("*",),
    trial=ManifestsTrial,
)
