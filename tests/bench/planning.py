"""Scan planning: tables of `big_tables.py` and some filters. All rivals must find the same files.

What is timed is a plan of a table that was just loaded, or a whole command from spark-submit to the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.runner.figures import Fact, Figures
from bench.runner.rivals import Rival, RivalFailedError, submit
from bench.runner.trial import BENCH, Benchmark, Case, Trial
from bench.tables.big_tables import FILTERS, Shape, filters
from bench.tables.scale_tables import Scale

PATIENCE_S = 20
"""A rival whose first plan takes longer is not asked again: what a second one saves does not matter then."""


class PlanCase(Case, frozen=True, kw_only=True):
    """`remembers` says that icekeep has a memory that lives as long as its process; no rival's is switched on.

    `chooses` says that a plan is of a job, which takes what it finds worth a rewrite: rivals may differ in that.
    """

    filter: str = "none"
    chooses: bool = False
    remembers: bool = False
    work: str = "plan"
    runs: int = 4
    driver_memory: str = "2g"
    rivals: tuple[str, ...] = ("icekeep", "java", "java-distributed", "java-files", "pyiceberg")


class PlanTrial(Trial):
    """Plans must have the same files from run to run, and for all rivals."""

    room = "jobs"

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        chosen = msgspec.structs.asdict(filters(self.case.table)[self.case.filter])
        chosen["remembers"] = self.case.remembers
        return {**chosen, "metadata_location": self.table.load().metadata_location, "patience_s": PATIENCE_S}

    def command(self, rival: Rival, request: Mapping[str, Any]) -> list[str]:
        where = ["--conf", request["conf"], "--catalog", BENCH, "--table", self.table.name]
        filtered = [] if request["where"] == "true" else ["--where", request["where"]]
        name, *flags = _COMMANDS[self.case.work]
        job = rival.lib.parent / f"jobs/{name}.py"
        return submit(rival, request["spark"], job, *where, *filtered, *flags, "--output", "json")

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        plans = {f.rival: _counts(f.runs[-1].result) for f in figures}
        return {
            rival: {"files": plan["data_files_count"], "GB": plan["data_files_bytes"] / 1e9}
            for rival, plan in plans.items()
        }

    def check(self, figures: Sequence[Figures]) -> None:
        if not self.case.chooses:
            check_files(figures)


_COMMANDS = {
    "plan": ("plan_scan",),
    "plan_compaction": ("compact", "--dry-run", "--option", "stitch=never"),
    "plan_position_deletes": ("rewrite_position_deletes", "--dry-run"),
}
"""What a whole process of icekeep does for each work."""


def _counts(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The files and bytes of a plan, by the names of a scan's."""
    if "data_files_count" in result:
        return result
    files = result.get("rewritten_data_files_count", result.get("rewritten_delete_files_count"))
    return {"data_files_count": files, "data_files_bytes": result["rewritten_bytes_count"]}


def check_files(figures: Sequence[Figures]) -> None:
    """Raise where plans have not as many files with as many bytes, from run to run and from rival to rival."""
    names = ("data_files_count", "data_files_bytes")
    found = {f.rival: {tuple(run.result[name] for name in names) for run in f.runs} for f in figures}
    if len(set().union(*found.values())) > 1:
        raise RivalFailedError(f"plans have different files, as their number and bytes: {found}")


def _cases() -> Iterator[tuple[str, PlanCase]]:
    for entries, manifests in ((e, m) for e in (100_000, 1_000_000) for m in (20, 2000)):
        table = Shape(entries=entries, manifests=manifests)
        for name in FILTERS:
            yield f"{entries}-in-{manifests}-{name}", PlanCase(table=table, filter=name)
            process = PlanCase(table=table, filter=name, runs=2, is_process=True, rivals=("icekeep", "java"))
            yield f"{entries}-in-{manifests}-{name}-process", process
            again = PlanCase(table=table, filter=name, remembers=True, rivals=("icekeep", "java"))
            yield f"again-{entries}-in-{manifests}-{name}", again
    yield from _with_deletes()
    huge = Shape(entries=10_000_000, manifests=200)
    for name in FILTERS:
        yield f"10000000-in-200-{name}", PlanCase(table=huge, filter=name, rounds=1, rivals=("icekeep",))
        process = PlanCase(table=huge, filter=name, rounds=1, is_process=True, rivals=("icekeep",))
        yield f"10000000-in-200-{name}-process", process


def _with_deletes() -> Iterator[tuple[str, PlanCase]]:
    """Plans of a scan, a compaction and a rewrite of position deletes, warm and as whole processes."""
    for files, deletes in ((200_000, 20_000), (1_000_000, 110_000)):
        for mix in ("mostly-of-one-file", "wide", "equality"):
            table = Scale(files=files, deletes=deletes, manifest_files=20_000, mix=mix, format_version=2)
            for work in _COMMANDS:
                if work == "plan_position_deletes" and mix == "equality":
                    continue
                case = PlanCase(table=table, work=work, chooses=work != "plan", runs=2, rivals=("icekeep", "java"))
                name = f"{files}-with-{deletes}-{mix}-{work.replace('_', '-')}"
                yield name, replace(case, driver_memory="6g")
                yield f"{name}-process", replace(case, driver_memory="6g", is_process=True)


PLANNING = Benchmark(
    about="plans of scans: tables of so many entries in so many manifests, with a filter",
    cases=dict(_cases()),
    quick=("100000-in-20-bounds", "100000-in-20-none-process"),
    trial=PlanTrial,
)
