"""Compaction of TPC-H's lineitem: scale factor 1 in 200 and in 2,000 files, of which each job makes about eight, and scale
factor 10 in 40 files, which are stitched to 512 MB; with and without deletes.

All rivals have the same codec and options. Of sorted tables icekeep counts the files that range queries over two columns open.
`--rivals icekeep,reencode` compares icekeep with itself when it copies nothing; `--set by_pyiceberg=true` has PyIceberg write
the tables.

Whole commands, from their start to their end, are timed on tables that PyIceberg wrote in many files: 10 MB, and scale factor 1.
There icekeep needs no Spark; `icekeep-in-spark` is the same command when it leaves nothing to threads of its own.

The cases `rivals-*` are of all that can do the work: iceberg-compaction (Rust) neither sorts nor writes anything but Snappy,
iceberg-zamboni and PyIceberg apply no equality deletes. With `zstd` the level is 3 for all that let it be chosen; with `snappy`
all write the same. iceberg-zamboni and PyIceberg take a target size for that of rows in memory, and write more files. Rivals that
work through REST have a catalog in another process, whose time does not count; Spark and icekeep have the files alone.
"""

import datetime
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.runner.figures import Fact, Figures, console
from bench.runner.rivals import (
    IN_SPARK,
    OURS,
    PYICEBERG,
    RIVALS,
    RUST,
    ZAMBONI,
    Rival,
    RivalFailedError,
    ask,
    catalog_of,
    spark_settings,
)
from bench.runner.trial import BENCH, OF_RIVALS, SMALL, Benchmark, Case, Trial, target
from bench.tables.kept import NAMESPACE, made
from bench.tables.lineitem import Lineitem
from kit.deletes import data_files

_QUERIES = 24
_FIRST_DAY, _DAYS = datetime.date(1992, 1, 2), 2526  # of shipping
_PARTS = 200_000  # at scale factor 1
_SEED = 7


def range_queries(scale: float) -> list[str]:
    """Filters: a range of ship dates, from a month to a year, and one of parts, from a hundredth to a fifth of all."""
    numbers = random.Random(_SEED)
    return [_query(numbers, int(_PARTS * scale)) for _ in range(_QUERIES)]


def _query(numbers: random.Random, parts: int) -> str:
    days = numbers.randint(30, 365)
    first = _FIRST_DAY + datetime.timedelta(days=numbers.randrange(_DAYS - days))
    last = first + datetime.timedelta(days=days)
    width = numbers.randint(parts // 100, parts // 5)
    part = numbers.randrange(1, parts - width)
    return f"l_shipdate >= '{first}' and l_shipdate < '{last}' and l_partkey >= {part} and l_partkey < {part + width}"


COPY = "copy"
_SCANS = 4
"""One scan each told apart what the machine did meanwhile, not the files."""


class CopiedTrial(Trial):
    """Copies must hold the rows of `reference`, a table in the catalog `bench`."""

    room = "jobs"
    reference = (NAMESPACE, "kept")

    def warehouses(self, *rivals: str) -> dict[str, Path]:
        own = {catalog_of(rival): self.directory / rival for rival in rivals}
        return {BENCH: self.table.warehouse, **own}

    def targets(self, rival: Rival) -> dict[str, Any]:
        sources = {"table": (self.table, COPY), "small": (self.small, SMALL)}
        found = {}
        for key, (source, name) in sources.items():
            copy = str(self.directory / rival.name / NAMESPACE / name)
            clone = ["clone", str(source.path), copy, *self.properties]
            found[key] = target(
                catalog_of(rival.name), f"{NAMESPACE}.{name}", clone, ["written", copy], path=Path(copy)
            )
        return found

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        return {"arguments": {}, "options": self.options}

    @property
    def options(self) -> dict[str, str]:
        """Iceberg's, for all rivals."""
        raise NotImplementedError

    @property
    def properties(self) -> list[str]:
        """Of the copies, each as NAME=VALUE."""
        return []

    def places(self, figures: Sequence[Figures]) -> dict[str, tuple[str, str]]:
        """The catalog and the name of the copy that each rival left."""
        return {f.rival: (catalog_of(f.rival), f"{NAMESPACE}.{COPY}") for f in figures}

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        places = self.places(figures)
        names = {rival: ".".join(place) for rival, place in places.items()}
        names[BENCH] = ".".join((BENCH, *self.reference))
        found = ask(
            "java",
            "bench.jobs.with_java",
            "scan",
            spark=spark_settings(RIVALS["java"], self.driver_memory(RIVALS["java"]), self.warehouses(*places)),
            tables=list(names.values()),
            repeat=max(_SCANS, self.case.runs - 1, self.case.rounds - 1),
        )
        self.sums = {rival: found[name]["sums"] for rival, name in names.items()}
        console.print(f"{names[BENCH]}: a scan takes {found[names[BENCH]]['seconds']:.2f} s")
        return {
            f.rival: {
                "files": f.runs[-1].left["files"],
                "MB written": f.runs[-1].left["bytes"] / 1e6,
                "scan s": found[names[f.rival]]["seconds"],
                "scan CPU s": found[names[f.rival]]["cpu_seconds"],
            }
            for f in figures
        }

    def check(self, figures: Sequence[Figures]) -> None:
        """Raise where a copy holds other rows than it must: their number, and the sum of hashes of each whole row."""
        wanted = self.sums[BENCH]
        if wrong := sorted(rival for rival, sums in self.sums.items() if sums != wanted):
            raise RivalFailedError(
                f"rows are not those of the table in the output of {' and '.join(wrong)}: {self.sums}"
            )
        console.print(f"all hold the same {wanted[0]:,} rows")


STITCHED_BYTES = 512 << 20
_IN_SPARK_SCRIPT = Path(__file__).with_name("jobs") / "in_spark.py"


class CompactionCase(Case, frozen=True, kw_only=True):
    """
    Attributes:
        arguments: what all rivals know.
        into_files: how many shall come out, null for 512 MB a file.
        codec, level: of the new files, where a rival lets them be chosen: a property of the table; null for each one's own.
    """

    arguments: dict[str, str]
    into_files: int | None
    codec: str | None = None
    level: int | None = None
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

    @property
    def properties(self) -> list[str]:
        case, name = self.case, "write.parquet.compression"
        chosen = [] if case.codec is None else [f"{name}-codec={case.codec}"]
        return chosen if case.level is None else [*chosen, f"{name}-level={case.level}"]

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        # A case of rivals has all files rewritten, which some of them always do.
        options = {**self.options, "rewrite-all": "true"} if self.case.codec else self.options
        return {"arguments": self.case.arguments, "options": options, "cores": os.cpu_count() or 1}

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
        before = {"MB before": self.table_bytes / 1e6}
        found = {rival: {**before, **facts} for rival, facts in super().find(figures).items()}
        if "sort_order" not in self.case.arguments:
            return found
        places = self.places(figures)
        opened = ask(
            "icekeep",
            "bench.jobs.with_icekeep",
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


def _rival_cases() -> Iterator[tuple[str, CompactionCase]]:
    """All rivals, three paired rounds: whole commands, from the start of the process to its end, and warm sessions.

    What is large is done by whole commands alone: there a start is not worth a word.
    """
    everybody = ("icekeep", "java", RUST, ZAMBONI, PYICEBERG)
    small = Lineitem(scale="0.06", files=20, by_pyiceberg=True)
    table = Lineitem(scale="1", files=60, by_pyiceberg=True)
    # Nearly the largest that icekeep takes upon itself without Spark.
    large = Lineitem(scale="8", files=120, by_pyiceberg=True)
    with_deletes = replace(table, has_deletes=True)
    kinds: list[tuple[str, Lineitem, str, int, tuple[str, ...], str]] = [
        ("small-binpack", small, "binpack", 1, everybody, "zstd"),
        ("small-binpack-snappy", small, "binpack", 1, everybody, "snappy"),
        ("binpack", table, "binpack", 2, everybody, "zstd"),
        ("binpack-snappy", table, "binpack", 2, everybody, "snappy"),
        ("large-binpack-snappy", large, "binpack", 4, ("icekeep", RUST), "snappy"),
        ("sort", table, "sort", 2, ("icekeep", "java", ZAMBONI), "zstd"),
        ("zorder", table, "zorder", 2, ("icekeep", "java", ZAMBONI), "zstd"),
        ("deletes-binpack", with_deletes, "binpack", 2, ("icekeep", "java", RUST), "zstd"),
    ]
    for name, shape, job, into, rivals, codec in kinds:
        case = CompactionCase(
            table=shape,
            arguments=_JOBS[job][0],
            into_files=into,
            codec=codec,
            level=3 if codec == "zstd" else None,
            rounds=3,
            runs=1,
            rivals=rivals,
        )
        yield f"{OF_RIVALS}{name}-process", replace(case, is_process=True)
        if shape is not large:
            yield f"{OF_RIVALS}{name}", case


COMPACTION = Benchmark(
    about="TPC-H's lineitem, binpacked, sorted, clustered or stitched",
    cases={**dict(_cases()), **dict(_rival_cases())},
    quick=("sf1-200-deletes-binpack", "sf1-200-zorder", "sf10-40-stitch", "sf0.06-20-pyiceberg-binpack-process"),
    trial=CompactionTrial,
    compared=("MB written", "scan s", "scan CPU s"),
)
