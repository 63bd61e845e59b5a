"""One report of a run, as Markdown and as JSON: the machine, the versions, and the median of the rounds of each rival.

A round is a process of each rival, one after the other, in an order that is turned around from round to round; of several runs in
one process the best counts. So the rounds of a case are pairs, and each ratio is the median of the ratios of the rounds.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.runner.figures import Fact, Figures, Run
from bench.runner.rivals import ICEKEEP, RIVALS, ROOT, Rival
from bench.runner.trial import Case

_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "icekeep": ("icekeep", "pyarrow", "datafusion", "pyspark"),
    "java": ("pyspark",),
    "pyiceberg": ("pyiceberg", "pyarrow"),
    "rust": ("iceberg-compaction",),
    "zamboni": ("iceberg-zamboni", "pyiceberg", "duckdb", "pyarrow"),
}
"""What a rival consists of, by its engine; Iceberg Java is a jar beside PySpark."""

_SHOWN = ("MB before", "MB written", "files", "manifests", "MB", "files left", "scan s", "scan CPU s", "opened")

_COLUMNS = (
    "Of a compaction: MB before: of data files; MB written, files: of all files with data that it wrote, and how many; scan s, "
    "scan CPU s: what Spark with Iceberg Java takes to read the whole table then, the best of four or more scans; opened: how "
    "many data files a query over ranges of two columns opens then, the mean of 24 queries.",
    "Of manifests, before -> after: manifests: how many; MB: their bytes together; opened: how many a filter of one partition "
    "opens. Of an expiration: files left: all files of the table that are still on disk, but for those that each rival names by "
    "itself (the current metadata file).",
)
"""What the columns of `_SHOWN` mean."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What a rival took in a case: medians of its rounds, but for memory, of which the most is told.

    Attributes:
        ratio: the median of its seconds by icekeep's in the same round; null where icekeep took no part.
        steal_seconds, others_cpu_seconds: the most in a run that counts: what the host of this virtual machine took, and what
            other processes did.
    """

    rival: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    rounds_seconds: tuple[float, ...]
    ratio: float | None
    steal_seconds: float
    others_cpu_seconds: float
    facts: Mapping[str, Fact]


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """A case: what table it had, how files were written, and what each rival took."""

    case: str
    table: str
    is_process: bool
    codec: str
    rounds: int
    lines: tuple[Line, ...]


class Published:
    """Cases as they come."""

    def __init__(self) -> None:
        self._began = datetime.now(UTC)
        self._told: list[CaseReport] = []

    def add(self, case: Case, figures: Sequence[Figures]) -> None:
        own = next((rounds_of(f, case) for f in figures if f.rival == ICEKEEP), None)
        codec, level = getattr(case, "codec", None), getattr(case, "level", None)
        self._told.append(
            CaseReport(
                case=next((f.case for f in figures), ""),
                table=case.table.name,
                is_process=case.is_process,
                codec="" if codec is None else codec if level is None else f"{codec}, level {level}",
                rounds=case.rounds,
                lines=tuple(line(f, case, own) for f in figures),
            )
        )

    def write(self, name: Path, failed: Sequence[str]) -> None:
        """Write NAME.md and NAME.json, with all that there is by now."""
        rivals = dict.fromkeys(one.rival for told in self._told for one in told.lines)
        about = {
            "machine": machine(),
            "began": self._began.isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {rival: versions(RIVALS[rival]) for rival in rivals if rival in RIVALS},
            "failed": list(failed),
        }
        name.parent.mkdir(parents=True, exist_ok=True)
        document = msgspec.json.encode({**about, "cases": self._told})
        name.with_suffix(".json").write_bytes(msgspec.json.format(document))
        name.with_suffix(".md").write_text(markdown(about, self._told))


def rounds_of(figures: Figures, case: Case) -> list[Run]:
    """The best run of each round."""
    runs, count = figures.runs, case.runs
    rounds = [runs[at : at + count] for at in range(0, len(runs), count)]
    return [min(one, key=lambda run: run.seconds) for one in rounds]


def line(figures: Figures, case: Case, own: Sequence[Run] | None) -> Line:
    rounds = rounds_of(figures, case)
    pairs = zip(rounds, own or (), strict=False)
    ratios = [theirs.seconds / ours.seconds for theirs, ours in pairs if ours.seconds]
    return Line(
        rival=figures.rival,
        seconds=median(run.seconds for run in rounds),
        cpu_seconds=median(run.cpu_seconds for run in rounds),
        peak_bytes=figures.most("total_bytes"),
        rounds_seconds=tuple(run.seconds for run in rounds),
        ratio=median(ratios) if ratios else None,
        steal_seconds=max(run.steal_seconds for run in rounds),
        others_cpu_seconds=max(run.others_cpu_seconds for run in rounds),
        facts=figures.facts,
    )


def machine() -> dict[str, Any]:
    """What the machine is, and how busy it was in the last minutes."""
    models = [text.partition(":")[2].strip() for text in _lines("/proc/cpuinfo") if text.startswith("model name")]
    [memory_kb] = [text.split()[1] for text in _lines("/proc/meminfo") if text.startswith("MemTotal")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": int(memory_kb) * 1024,
        "kernel": platform.release(),
        "load": list(os.getloadavg()),
        "commit": _commit(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def versions(rival: Rival) -> dict[str, str]:
    """Of the packages of a rival, by name, as its own Python has them."""
    names = _PACKAGES[rival.engine]
    script = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    command = [str(rival.programs / "python"), "-c", script]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    jars = [jar.stem for jar in sorted((ROOT / ".java-env").glob("iceberg-*.jar"))] if rival.engine == "java" else []
    return {**json.loads(said), **({"jars": ", ".join(jars)} if jars else {})}


def markdown(about: Mapping[str, Any], cases: Sequence[CaseReport]) -> str:
    """The report for people."""
    where = about["machine"]
    lines = [
        f"# Benchmarks of {about['began'][:10]}",
        "",
        f"{where['processor']}, {where['cores']} cores, {where['memory_bytes'] / 1e9:.0f} GB, Linux {where['kernel']}; "
        f"icekeep at {where['commit'] or 'no commit'}; from {about['began']} to {about['ended']}; "
        f"load at the end {', '.join(f'{one:.1f}' for one in where['load'])}.",
        "",
        "Medians of the rounds, whose order alternates. Processor seconds and memory are of all processes of a rival; "
        "memory is the most at one glance. Times: the rival's seconds by icekeep's, the median of the rounds' ratios. "
        "Stolen: the most processor seconds that the host of this virtual machine took in a run; others: that other processes "
        "took.",
        "",
        *(line for text in _COLUMNS for line in (text, "")),
        "| rival | versions |",
        "|---|---|",
        *(f"| {rival} | {', '.join(map(' '.join, own.items()))} |" for rival, own in about["versions"].items()),
    ]
    for told in cases:
        lines += ["", *_table(told)]
    if about["failed"]:
        lines += ["", f"Failed, so that a rival is missing or its outcome was wrong: {', '.join(about['failed'])}."]
    return "\n".join([*lines, ""])


def _table(told: CaseReport) -> list[str]:
    kind = "whole processes" if told.is_process else "warm sessions"
    codec = f", {told.codec} where it can be set" if told.codec else ""
    names = [name for name in _SHOWN if any(name in one.facts for one in told.lines)]
    titles = ["rival", "s (each round)", "processor s", "times", "peak MB", *names, "stolen s", "others' s"]
    lines = [
        f"## {told.case}",
        "",
        f"Table {told.table}, {kind}, {told.rounds} rounds{codec}.",
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
    ]
    for one in told.lines:
        cells = [
            one.rival,
            f"{one.seconds:.2f} ({', '.join(f'{s:.2f}' for s in one.rounds_seconds)})",
            f"{one.cpu_seconds:.2f}",
            "" if one.ratio is None else f"{one.ratio:.2f}",
            f"{one.peak_bytes / 1e6:,.0f}",
            *(_text(one.facts.get(name, "")) for name in names),
            f"{one.steal_seconds:.1f}",
            f"{one.others_cpu_seconds:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _text(fact: Fact) -> str:
    return fact if isinstance(fact, str) else f"{fact:,}" if isinstance(fact, int) else f"{fact:,.2f}"
