"""Expiration and orphan removal: tables of `histories.py`; all that metadata names is on disk.

`expire_snapshots` keeps the newest snapshot alone, `remove_orphan_files` deletes what is older than three days, both at once and
for good (`--trash 0`).

All must leave exactly the same files, as many data files as are live and the snapshots that they must; count the same in what
they answer; and leave a table in which PyIceberg and, after its own runs, Iceberg Java find all rows.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from pyiceberg.table import StaticTable

from bench.runner.figures import Answer, Fact, Figures
from bench.runner.rivals import ZAMBONI, Rival, RivalFailedError
from bench.runner.trial import OF_RIVALS, Benchmark, Case, InPlaceTrial, days_ago_ms
from bench.tables.histories import History, HistoryFiles
from bench.tables.kept import Kept

EXPIRE, ORPHANS = "expire_snapshots", "remove_orphan_files"
KINDS = ("data", "position_delete", "equality_delete", "manifest", "statistics")
COUNTS = (*(f"deleted_{kind}_files_count" for kind in KINDS), "deleted_manifest_lists_count", "orphans_count")
_SHOWN_NAMES = 5


class ExpirationCase(Case, frozen=True, kw_only=True):
    work: str = EXPIRE
    is_dry_run: bool = False
    runs: int = 1

    @property
    def left_files(self) -> int:
        """How many data files a run must leave."""
        history = self.table
        if self.work == EXPIRE:
            return history.files - history.garbage_files + history.orphans
        return history.files + (history.orphans if self.is_dry_run else 0)


class ExpirationTrial(InPlaceTrial):
    room = "jobs"

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        older_than_ms = days_ago_ms(0 if self.case.work == EXPIRE else 3)
        # Only Iceberg Java reads its table again: PyIceberg counts the rows of all.
        after = "rows" if rival.engine == "java" else ""
        return {"older_than_ms": older_than_ms, "is_dry_run": self.case.is_dry_run, "after": after}

    def flags(self, request: Mapping[str, Any]) -> list[str]:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(request["older_than_ms"] / 1000))
        return ["--older-than", moment, "--retain-last", "1", "--trash", "0"]

    def check_turn(self, rival: Rival, answer: Answer) -> None:
        check_answers(rival.name, answer, self.case)
        check_files(rival.name, answer, self.case, self.listing(rival.name))
        check_snapshots(rival.name, self.case, self.table)
        rows = self.table.facts["rows"]
        if answer.after.get("rows", rows) != rows:
            raise RivalFailedError(f"{rival.name} counts {answer.after['rows']:,} rows in what it left, not {rows:,}")

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        return {f.rival: {"files left": f.runs[-1].left["files"]} for f in figures}

    def check(self, figures: Sequence[Figures]) -> None:
        check_agreement(figures, {f.rival: self.listing(f.rival) for f in figures})
        # The files of all rivals are the same, and counting takes a foreign reader long.
        check_rows(self.table, self.table.facts["rows"])


def check_answers(rival: str, answer: Answer, case: ExpirationCase) -> None:
    """Raise where a rival did not say of each run that it removed what it had to."""
    history = case.table
    wanted, key = history.orphans, "orphans_count"
    if case.work == EXPIRE:
        wanted, key = history.garbage_files, "deleted_data_files_count"
    files = HistoryFiles(history, "")
    orphans = {files.orphan_path(number).rpartition("/")[2] for number in range(history.orphans)}
    for one in answer.runs:
        if one.result.get(key, wanted) != wanted:
            raise RivalFailedError(f"{rival} says {one.result[key]:,} files, not {wanted:,}: {one.result}")
        if wrong := set(one.result.get("some", ())) - orphans:
            raise RivalFailedError(f"{rival} takes {min(wrong)!r} for an orphan")


def check_files(rival: str, answer: Answer, case: ExpirationCase, listing: Path) -> None:
    """Raise where a run did not leave as many data files as it must, or another run of the same rival left others."""
    lefts = [one.left for one in answer.runs]
    if any(left != lefts[0] for left in lefts):
        raise RivalFailedError(f"{rival} leaves other files from run to run: {lefts}")
    data_files = sum(name.startswith("data/") for name in listing.read_text().splitlines())
    if data_files != case.left_files:
        raise RivalFailedError(f"{rival} leaves {data_files:,} data files, not {case.left_files:,}")


def check_snapshots(rival: str, case: ExpirationCase, table: Kept) -> None:
    """Raise where a rival left other snapshots than the newest, or any of them out that was not to go."""
    metadata = table.load().metadata
    count = 1 if case.work == EXPIRE else case.table.snapshots
    number = metadata.current_snapshot.sequence_number if metadata.current_snapshot else 0
    if (len(metadata.snapshots), number) != (count, case.table.snapshots):
        raise RivalFailedError(f"{rival} leaves {len(metadata.snapshots):,} snapshots up to {number:,}")


def check_rows(table: Kept, rows: int) -> None:
    """Raise where PyIceberg does not find all rows in the table as it is now."""
    found = StaticTable.from_metadata(table.load().metadata_location).scan().count()
    if found != rows:
        raise RivalFailedError(f"PyIceberg counts {found:,} rows in what is left, not {rows:,}")


def check_agreement(figures: Sequence[Figures], listings: Mapping[str, Path]) -> None:
    """Raise where rivals left different files, in any round, or counted differently what they deleted."""
    lefts = {msgspec.json.encode(run.left, order="sorted") for f in figures for run in f.runs}
    if len(lefts) > 1:
        names = {f.rival: set(listings[f.rival].read_text().splitlines()) for f in figures}
        both = set.intersection(*names.values())
        more = {rival: [len(own - both), *sorted(own - both)[:_SHOWN_NAMES]] for rival, own in names.items()}
        raise RivalFailedError(f"the rivals leave different files; what the other has not: {more}")
    # A rival that counts all kinds of files together has none of these.
    counts = {f.rival: {key: f.runs[-1].result[key] for key in COUNTS if key in f.runs[-1].result} for f in figures}
    if len({msgspec.json.encode(count) for count in counts.values() if count}) > 1:
        raise RivalFailedError(f"the rivals count differently: {counts}")


_APPENDED = History(writer="append", snapshots=1000, files=100_000)
_REWRITTEN = History(writer="rewrites", snapshots=1000, files=100_000, garbage_percent=50)
_WITH_ORPHANS = History(writer="fast-append", snapshots=10, files=990_000, orphans=10_000)

_AGAINST_ALL = ExpirationCase(
    table=replace(_APPENDED, snapshots=200, files=4000), rounds=3, rivals=("icekeep", "java", ZAMBONI)
)
"""Short, and without rewritten files: iceberg-zamboni reads the manifests of each snapshot anew, and leaves files behind of which
a manifest that is retained says that they were deleted. iceberg-compaction and PyIceberg delete no files."""

EXPIRATION = Benchmark(
    about="expiration and orphan removal, up to 10,000 snapshots and 1,000,000 files",
    cases={
        "append-1000": ExpirationCase(table=_APPENDED),
        "append-10000": ExpirationCase(table=replace(_APPENDED, snapshots=10_000)),
        "fast-append-1000": ExpirationCase(table=replace(_APPENDED, writer="fast-append")),
        "rewrites-1000": ExpirationCase(table=_REWRITTEN),
        "rewrites-10000": ExpirationCase(table=replace(_REWRITTEN, snapshots=10_000)),
        "tenth-of-1000000": ExpirationCase(table=replace(_REWRITTEN, files=1_000_000, garbage_percent=10)),
        "half-of-1000000": ExpirationCase(table=replace(_REWRITTEN, files=1_000_000)),
        "orphans-dry-run": ExpirationCase(table=_WITH_ORPHANS, work=ORPHANS, is_dry_run=True),
        "orphans": ExpirationCase(table=_WITH_ORPHANS, work=ORPHANS),
        "process": ExpirationCase(table=replace(_APPENDED, files=10_000), is_process=True),
        f"{OF_RIVALS}append-200": _AGAINST_ALL,
        f"{OF_RIVALS}append-200-process": replace(_AGAINST_ALL, is_process=True),
    },
    quick=("rewrites-1000", "orphans", "process"),
    trial=ExpirationTrial,
)
