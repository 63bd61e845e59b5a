"""Who judged what: counted in a run of the interop tests, kept in a file, and written out for people."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from kit.judging.faults import FAULTS, VERSIONS
from kit.shell import ROOT

ALL, READ, ROWS = "all", "tables", "rows"
KEPT = ROOT / "build" / "judged_by_file.json"

Count = tuple[str, str, str]
"""Of what is counted: a judge, a label of a table or `ALL`, and `READ`, `ROWS`, or what a known fault is."""

LEFT_OUT: Count = ("icekeep", ALL, "left out")
"""States of tables that no judge was asked about, since icekeep does not read them."""


def save(counts: Mapping[Path, Counter[Count]]) -> None:
    """Keep what a run has counted, by the test file that made the tables.

    It takes the place of what was kept of these files; what other runs counted of other files stays. So files can be run
    one after the other.
    """
    found = _kept_by_file() if KEPT.exists() else {}
    found.update({str(file.relative_to(ROOT)): counted for file, counted in counts.items()})
    there = {name: counted for name, counted in sorted(found.items()) if (ROOT / name).exists()}
    KEPT.parent.mkdir(exist_ok=True)
    told = {name: [(*key, number) for key, number in sorted(counted.items())] for name, counted in there.items()}
    KEPT.write_text(json.dumps(told))


def kept() -> Counter[Count]:
    """What the last run of each file counted, added up; raises `FileNotFoundError` where there was none."""
    return sum(_kept_by_file().values(), Counter[Count]())


def kept_files() -> list[str]:
    """The files whose counts are kept."""
    return [*_kept_by_file()]


def _kept_by_file() -> dict[str, Counter[Count]]:
    found = json.loads(KEPT.read_text())
    return {
        name: Counter({(judge, label, what): number for judge, label, what, number in counted})
        for name, counted in found.items()
    }


def summary(counts: Counter[Count]) -> Iterator[str]:
    """A line for each judge that was asked, and one for what none was asked about."""
    for judge, version in VERSIONS.items():
        read, rows, failed = counts[judge, ALL, READ], counts[judge, ALL, ROWS], _faults_count(counts, judge, ALL)
        if read or failed:
            told = (
                f"read {read:,} states of tables as icekeep does, {rows:,} rows, and showed a known fault at {failed:,}"
            )
            yield f"judged: {judge} {version} {told}"
    if counts[LEFT_OUT]:
        yield f"judged: nobody was asked about {counts[LEFT_OUT]:,} states of tables that icekeep does not read"


def counted_table(counts: Counter[Count]) -> Iterator[str]:
    """In Markdown: of each kind of table how many each judge read rightly, and at how many it showed a known fault."""
    labels = {label for _, label, _ in counts} - {ALL}
    yield f"| states of tables | {' | '.join(f'{judge} {version}' for judge, version in VERSIONS.items())} |"
    yield f"|---|{'---|' * len(VERSIONS)}"
    for label in (ALL, *sorted(labels)):
        cells = (_cell(counts, judge, label) for judge in VERSIONS)
        yield f"| {label} | {' | '.join(cells)} |"
    yield f"| rows | {' | '.join(f'{counts[judge, ALL, ROWS]:,}' for judge in VERSIONS)} |"


def _cell(counts: Counter[Count], judge: str, label: str) -> str:
    read, failed = counts[judge, label, READ], _faults_count(counts, judge, label)
    return f"{read:,} ({failed:,})" if failed else f"{read:,}"


def _faults_count(counts: Counter[Count], judge: str, label: str) -> int:
    """At how many states of tables with a label a judge showed a known fault."""
    of_label = (one for one in counts.items() if one[0][:2] == (judge, label))
    return sum(number for (_, _, what), number in of_label if what not in (READ, ROWS))


def faults_table() -> Iterator[str]:
    """In Markdown: what each judge is known not to do."""
    for judge, version in VERSIONS.items():
        yield ""
        yield f"**{judge} {version}**"
        yield ""
        for fault in FAULTS:
            if fault.judge == judge:
                told = ("an error" if fault.says else "wrong rows", fault.issue)
                yield f"* {fault.what} ({', '.join(filter(None, told))})"
