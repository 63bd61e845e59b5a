"""The benchmark of carrying: all deletes are carried over, and rows that are not those of its model fail it."""

import pytest

from bench.carrying import measure
from bench.carrying.measure import KINDS, STRATEGIES, Size, measured
from kit.cases import for_each

pytestmark = pytest.mark.slow

SMALL = Size(files=3, rows=400, runs=30, deletes=90)


@for_each("kind", KINDS)
@for_each("strategy", STRATEGIES)
def test_every_delete_is_carried_over(kind: str, strategy: str) -> None:
    found = measured(kind, strategy, SMALL)
    assert found.carried == 90
    assert 0 < found.seconds < found.compaction_seconds


def test_rows_that_come_back_fail_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.carrying, "new_positions", lambda *_: {})
    with pytest.raises(SystemExit, match="PyIceberg finds"):
        measured("vectors", "binpack", SMALL)
