"""Compaction of TPC-H's lineitem: scale factor 1 in 200 and in 2,000 files, of which each job makes about eight, and scale
factor 10 in 40 files, which are stitched to 512 MB; with and without deletes.

All rivals have the same codec and options. Of sorted tables icekeep counts the files that range queries over two columns open.
`--rivals icekeep,reencode` compares icekeep with itself when it copies nothing; `--set by_pyiceberg=true` has PyIceberg write
the tables.

Whole commands, from their start to their end, are timed on tables that PyIceberg wrote in many files: 10 MB, and scale factor 1.
There icekeep needs no Spark; `icekeep-in-spark` is the same command when it leaves nothing to threads of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.compaction.copied import CopiedTrial
from bench.compaction.range_queries import range_queries
from bench.runner.figures import Fact, Figures, console
from bench.runner.rivals import IN_SPARK, OURS, RIVALS, Rival, ask, spark_settings
from bench.runner.trial import BENCH, Benchmark, Case
from bench.tables.kept import made
from bench.tables.lineitem import Lineitem
from kit.written_deletes import data_files

STITCHED_BYTES = 512 << 20
_IN_SPARK_SCRIPT = Path(__file__).with_name("in_spark.py")


class CompactionCase(Case, frozen=True, kw_only=True):
    """`arguments` are what all rivals know; `into_files` is how many shall come out, null for 512 MB a file."""

    arguments: dict[str, str]
    into_files: int | None
    work: str = "rewrite_data_files"


class CompactionTrial(CopiedTrial):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # Data files are those of the table without deletes; all are in the page cache.
        made(self.case.table.plain, self.cache)
        self.table_bytes = sum(file.file_size_in_bytes for file in data_files(self.table.load()))
        console.print(f"{self.table_bytes / 1e6:,.1f} MB in all, {self.options} {self.case.arguments or ''}")

    @property
    def options(self) -> dict[str, str]:
        into = self.case.into_files
        return {"target-file-size-bytes": str(STITCHED_BYTES if into is None else self.table_bytes // into)}

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        return {"arguments": self.case.arguments, "options": self.options}

    def command(self, rival: Rival, request: Mapping[str, Any]) -> list[str]:
        table = request["table"]
        flags = [
            word for name, value in request["arguments"].items() for word in (f"--{name.replace('_', '-')}", value)
        ]
        options = [word for name, value in request["options"].items() for word in ("--option", f"{name}={value}")]
        program = [str(OURS / "python"), str(_IN_SPARK_SCRIPT)] if rival.name == IN_SPARK else [str(OURS / "icekeep")]
        where = ["--conf", request["conf"], "--catalog", table["catalog"], "--table", table["name"]]
        return [*program, "compact", *where, *flags, *options, "--output", "json"]

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        found = super().find(figures)
        if "sort_order" not in self.case.arguments:
            return found
        places = self.places(figures)
        opened = ask(
            "icekeep",
            "bench.compaction.with_icekeep",
            "opened",
            spark=spark_settings(RIVALS["icekeep"], self.case.driver_memory, {}),
            conf=str(self.conf_of(*places)),
            tables=[(BENCH, self.table.name), *places.values()],
            filters=range_queries(float(self.case.table.scale)),
        )
        console.print(f"before, a range query opens {opened[BENCH]:.2f} files")
        return {rival: {**facts, "opened": opened[places[rival][0]]} for rival, facts in found.items()}


def _sorted(order: str) -> dict[str, str]:
    return {"strategy": "sort", "sort_order": order}


_CLUSTERED_BY = "l_shipdate, l_partkey"
_JOBS: dict[str, tuple[dict[str, str], int | None]] = {
    "binpack": ({}, 8),
    "sort": (_sorted("l_shipdate, l_orderkey"), 8),
    "zorder": (_sorted(f"zorder({_CLUSTERED_BY})"), 8),
    "hilbert": (_sorted(f"hilbert({_CLUSTERED_BY})"), 8),
    # The same in more files: eight are few to tell how well a curve keeps neighbours together.
    "zorder-64": (_sorted(f"zorder({_CLUSTERED_BY})"), 64),
    "hilbert-64": (_sorted(f"hilbert({_CLUSTERED_BY})"), 64),
}
_STITCH: dict[str, tuple[dict[str, str], int | None]] = {"stitch": ({}, None)}


def _cases() -> Iterator[tuple[str, CompactionCase]]:
    for scale, files, jobs in (("1", 200, _JOBS), ("1", 2000, _JOBS), ("10", 40, _STITCH)):
        for has_deletes in (False, True):
            table = Lineitem(scale=scale, files=files, has_deletes=has_deletes)
            for name, (arguments, into) in jobs.items():
                case = CompactionCase(table=table, arguments=arguments, into_files=into)
                yield f"{table.name}-{name}", case
    for scale, files, into in (("0.06", 20, 1), ("1", 60, 2)):
        table = Lineitem(scale=scale, files=files, by_pyiceberg=True)
        for name in ("binpack", "sort"):
            arguments, _ = _JOBS[name]
            case = CompactionCase(
                table=table,
                arguments=arguments,
                into_files=into,
                is_process=True,
                runs=1,
                rounds=3,
                rivals=("icekeep", IN_SPARK, "java"),
            )
            yield f"{table.name}-{name}-process", case


COMPACTION = Benchmark(
    about="TPC-H's lineitem, binpacked, sorted, clustered or stitched",
    cases=dict(_cases()),
    quick=("sf1-200-deletes-binpack", "sf1-200-zorder", "sf10-40-stitch", "sf0.06-20-pyiceberg-binpack-process"),
    trial=CompactionTrial,
    compared=("MB written", "scan s"),
)
