"""Compactions killed with -9 at random moments, half of them by their driver, half by the spark-submit above it.

`--cases` says how many of each: four in `make interop`, one of each kind of moment, twenty-five in `make kills`. After each: rows
as before or as after, never between; whatever nobody names lies where it may; the next run finishes the work. What the kills hit,
what they left and what was rewritten again is printed when the tests have run.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icekeep.maintenance.compact.job import compact
from icekeep.runtime import SYSTEM
from kit.cases import scaled
from kit.killing import (
    FIRST_DATA_FILE,
    FIRST_LIST,
    FIRST_MANIFEST,
    REWRITING,
    SPARK_IS_UP,
    KilledRun,
    Left,
    Moment,
    check_table,
)
from kit.runtime import FakeRuntime
from kit.shell import Operator

pytestmark = pytest.mark.deep

KILLS = 10
# The first is one commit, the second one for each of its three groups, the third is sorted.
WAYS = (
    (),
    ("--option", "partial-progress.enabled=true", "--option", "partial-progress.max-commits=3"),
    ("--strategy", "sort", "--sort-order", "amount DESC, id"),
)


@pytest.mark.parametrize("submit", [False, True], ids=["driver", "spark-submit"])
def test_a_compaction_killed_at_any_moment_changes_no_row(
    tmp_path: Path,
    spark_session: SparkSession,
    tried: Callable[[str, int], None],
    submit: bool,
) -> None:
    killed = "spark-submit" if submit else "driver"
    hits: list[str] = []
    for number, moment in enumerate(moments(tmp_path / "whole", FakeRuntime(50 + submit, chance=None), submit=submit)):
        operator = filled(tmp_path / str(number))
        rows, head = operator.lake.rows(), head_of(operator)
        old_bytes = bytes_of(operator)
        way = WAYS[number % len(WAYS)]
        run = KilledRun(operator, *way, submit=submit)
        if run.wait_until(moment):
            run.kill()
            run.check_nothing_was_committed_since()
            hits.append(run.hit)
        else:
            # Faster than the one that was timed: one more is killed in its place.
            run.wait()
        left = check_table(operator.lake, rows, head, many="partial-progress.enabled=true" in way)
        landed = operator.lake.load().metadata.current_snapshot_id != head
        again = compact(operator.lake.load(), spark_session)
        assert again.status == "done"
        rewritten_bytes = again.rewritten_bytes_count
        if not landed:
            assert rewritten_bytes == old_bytes
        elif "partial-progress.enabled=true" in way:
            assert rewritten_bytes < old_bytes
        else:
            assert rewritten_bytes == 0
        assert check_table(operator.lake, rows, head, many=True) == left
        assert len(operator.lake.foreign().inspect.files()) == 3
        report(tried, f"kills of the {killed}", run, left, landed=landed)
        if run.hit >= "3":
            tried(f"kills of the {killed}: bytes rewritten again by the next runs", again.rewritten_bytes_count)
        if len(hits) == scaled(KILLS, least=4):
            break
    assert len(set(hits)) > 1, f"all kills came at {hits[0]!r}"
    assert max(hits) >= "3 rewriting", f"no kill came later than {max(hits)!r}"


def moments(directory: Path, chance: FakeRuntime, *, submit: bool) -> Iterator[Moment]:
    """Moments all over a run, more of them where more happens: counted from the start, and from what can be seen."""
    run = KilledRun(filled(directory), submit=submit)
    up_ms = 0
    while run.process.poll() is None:
        up_ms = up_ms or SPARK_IS_UP(run) * run.elapsed_ms
        SYSTEM.sleep_ms(1)
    whole_ms = run.elapsed_ms
    run.wait()
    working_ms = whole_ms - up_ms
    kinds = [
        *[Moment(None, whole_ms)] * 6,
        *[Moment(SPARK_IS_UP, working_ms)] * 6,
        *[Moment(REWRITING, working_ms // 2)] * 3,
        *[Moment(FIRST_DATA_FILE, 100)] * 3,
        *[Moment(FIRST_MANIFEST, 40)] * 4,
        *[Moment(FIRST_LIST, 10)] * 3,
    ]
    for number in count():
        # In steps of seven every kind has its turn early on.
        kind = kinds[7 * number % len(kinds)]
        yield Moment(kind.is_seen, int(chance.uniform(0, kind.delay_ms)))


def filled(directory: Path) -> Operator:
    """Somebody with a table of sixty small files."""
    directory.mkdir()
    operator = Operator(directory)
    operator.lake.filled(commits=6, files=10)
    return operator


def head_of(operator: Operator) -> int:
    head = operator.lake.load().metadata.current_snapshot_id
    assert head is not None
    return head


def bytes_of(operator: Operator) -> int:
    """The size of the table's live data files."""
    return sum(operator.lake.foreign().inspect.files()["file_size_in_bytes"].to_pylist())


def report(tried: Callable[[str, int], None], name: str, run: KilledRun, left: Left, *, landed: bool) -> None:
    tried(f"{name}: {run.hit}{', committed' if landed else ''}", 1)
    tried(f"{name}: new data files that were left", len(left.data))
    tried(f"{name}: their bytes", left.data_bytes)
    tried(f"{name}: files that were left under .icekeep/", len(left.own))
    tried(f"{name}: files of cut-off commits that were left beside the metadata", len(left.attempts))
