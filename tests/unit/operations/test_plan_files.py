"""The file of a plan: what was written is read, and nothing else."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepError, NotFoundError, UsageError
from icekeep.health.prices import Prices
from icekeep.maintenance import compact as compaction
from icekeep.maintenance import expire as expiration
from icekeep.maintenance.expire.job import ExpireSnapshotsRequest
from icekeep.maintenance.plans import VERSION, ExactPlan, PlanCost, PlanLine, read_plan_file
from icekeep.operations.plan_files import PlanSource, absolute_arguments, write_exact
from icekeep.spec.filters.parsing import parse_where
from kit.cases import cases, for_each

GOLDEN = Path(__file__).parent / "golden"

LINES = (
    PlanLine(do="rewrite", kind="group", group=0, says={"partition": "day=1"}),
    PlanLine(do="rewrite", kind="data file", name="s3://lake/é.parquet", group=0, size_bytes=5, state="ab"),
    PlanLine(do="apply", kind="position delete file", name="s3://lake/d.parquet", group=0, size_bytes=7),
)
CATALOG = "sql sqlite:///lake.db local"
TABLE: Any = SimpleNamespace(
    metadata=SimpleNamespace(table_uuid="u-1", location="s3://lake/db/events"),
    metadata_location="s3://lake/db/events/metadata/v1.metadata.json",
    catalog=SimpleNamespace(identity=CATALOG),
)
MADE = PlanSource(
    job="compact", name="local.db.events", table=TABLE, created_ms=1_700_000_000_000, arguments={"where": "id > 5"}
)


def exact(lines: Any = LINES, **more: Any) -> ExactPlan:
    return ExactPlan(shown=None, snapshot_id=7, lines=lines, cost=PlanCost(read_bytes=5, requests_count=2), **more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plan.jsonl"


def written(path: Path) -> bytes:
    write_exact(str(path), exact(), MADE, None)
    return path.read_bytes()


def refused(path: Path, data: bytes) -> str:
    """What is said of a file with other bytes."""
    path.write_bytes(data)
    with pytest.raises(UsageError) as raised:
        [*read_plan_file(str(path)).lines()]
    assert "\n" not in raised.value.message
    return raised.value.message


def test_what_was_written_is_read(path: Path) -> None:
    decided = {"sort order": "1 (ab)"}
    told = write_exact(
        str(path),
        exact(approve="ff", notes=("beside",), decided_by=decided),
        MADE,
        Prices(gib_read=1.0, currency="EUR"),
    )
    file = read_plan_file(str(path))
    assert [*file.lines()] == [*LINES]
    assert [*file.lines()] == [*LINES]
    assert (told.hash, told.path, told.totals, told.notes) == (file.hash, str(path), file.totals, ("beside",))
    assert (file.totals.lines_count, file.totals.files_count, file.totals.files_bytes) == (3, 1, 5)
    assert (file.totals.read_bytes, file.totals.requests_count, file.totals.currency) == (5, 2, "EUR")
    head = file.head
    assert (head.approve, head.snapshot_id, head.created_ms) == ("ff", 7, MADE.created_ms)
    assert (head.catalog, head.decided_by) == (CATALOG, decided)
    assert file.head.arguments == {"where": "id > 5"}


def test_each_line_is_an_object_that_other_programs_read(path: Path) -> None:
    head, *lines, totals, last = map(json.loads, written(path).decode().splitlines())
    assert (head["format"], head["version"], head["table"]) == ("icekeep-plan", VERSION, "local.db.events")
    assert lines[1] == {
        "do": "rewrite",
        "kind": "data file",
        "name": "s3://lake/é.parquet",
        "group": 0,
        "size_bytes": 5,
        "state": "ab",
    }
    assert totals["totals"]["lines_count"] == 3
    assert [*last] == ["hash"]


def test_the_hash_is_that_of_what_is_planned(path: Path) -> None:
    first, second, third = (str(path.with_name(name)) for name in "abc")
    digest = write_exact(first, exact(), MADE, None).hash
    assert write_exact(second, exact(), MADE, None).hash == digest
    assert write_exact(third, exact(LINES[:2]), MADE, None).hash != digest


@cases(300)
@given(st.data())
def test_a_file_with_another_byte_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.jsonl"
    good = written(path)
    place = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    refused(path, good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :])


@cases(100)
@given(st.data())
def test_a_file_that_is_cut_off_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.jsonl"
    good = written(path)
    refused(path, good[: data.draw(st.integers(0, len(good) - 1))])


def test_what_is_wrong_is_said(path: Path) -> None:
    good = written(path)
    lines = good.splitlines(keepends=True)
    assert "cut off" in refused(path, b"".join(lines[:-1]))
    assert "cut off" in refused(path, good + b"\n")
    assert "its hash differs" in refused(path, b"".join([*lines[:1], *lines[2:]]))
    assert "no plan of icekeep" in refused(path, b'{"catalogs": {}}\n')
    assert "no plan of icekeep" in refused(path, b"\x00\xff" * 100)
    assert "no plan of icekeep" in refused(path, b"")
    newer = good.replace(f'"version":{VERSION},"icekeep"'.encode(), b'"version":99,"more":1,"icekeep"')
    assert newer != good
    said = refused(path, newer)
    assert "newer icekeep" in said
    assert "format version 99" in said
    with pytest.raises(NotFoundError, match="there is no plan"):
        read_plan_file(str(path.with_name("other")))
    with pytest.raises(UsageError, match="cannot read plan"):
        read_plan_file(str(path.parent))


def test_a_file_is_whole_or_not_there(path: Path) -> None:
    def broken() -> Iterator[PlanLine]:
        yield LINES[0]
        raise UsageError("the store is away")

    closed: list[bool] = []
    with pytest.raises(IcekeepError, match="the store is away"):
        write_exact(str(path), exact(broken(), close=lambda: closed.append(True)), MADE, None)
    assert closed == [True]
    assert [*path.parent.iterdir()] == []
    before = written(path)
    with pytest.raises(UsageError, match=r"plan .* is there already; name another file, or delete it first"):
        write_exact(str(path), exact(LINES[:1], close=lambda: closed.append(True)), MADE, None)
    assert (path.read_bytes(), len(closed)) == (before, 2)
    assert [*path.parent.iterdir()] == [path]
    with pytest.raises(UsageError, match="cannot write plan"):
        write_exact(str(path / "below"), exact(), MADE, None)


def test_a_file_that_changes_while_it_is_carried_out_is_refused(path: Path) -> None:
    good = written(path)
    file = read_plan_file(str(path))
    path.write_bytes(good.replace(b"day=1", b"day=2"))
    with pytest.raises(UsageError, match="its hash differs"):
        [*file.lines()]


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_files_of_all_versions_are_read(version: int) -> None:
    """They are never written anew: where this fails the format has changed, and its version is to be raised."""
    file = read_plan_file(str(GOLDEN / f"plan-{version}.jsonl"))
    assert (file.head.version, [*file.lines()], file.head.approve) == (version, [*LINES], "ff")
    known = (None, None) if version == 1 else (CATALOG, {"sort order": "1 (ab)"})
    assert (file.head.catalog, file.head.decided_by) == known


NOW_MS = 1_700_000_000_000


@for_each(
    ("told", "plain"),
    [
        ({"older_than": "7d"}, {"older_than": NOW_MS - 7 * 86_400_000}),
        ({"older_than": timedelta(hours=1)}, {"older_than": NOW_MS - 3_600_000}),
        ({"older_than": datetime(2023, 1, 1, tzinfo=UTC)}, {"older_than": 1_672_531_200_000}),
        ({"trash": "3d", "retain_last": None}, {"trash": 3}),
        ({"snapshot_ids": (1, 2)}, {"snapshot_ids": [1, 2]}),
        ({"options": {"grace": "1h"}}, {"options": {"grace": "1h"}}),
    ],
)
def test_times_are_moments(told: dict[str, Any], plain: dict[str, Any]) -> None:
    found = json.loads(json.dumps(absolute_arguments(expiration.JOB, told, NOW_MS)))
    assert found == plain
    ExpireSnapshotsRequest(**found)


def test_what_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(UsageError, match="where is an expression"):
        absolute_arguments(compaction.JOB, {"where": parse_where("id > 5", 0)}, NOW_MS)
    with pytest.raises(UsageError, match="leave one of them out"):
        absolute_arguments(expiration.JOB, {"approve": "ab"}, NOW_MS)
    with pytest.raises(UsageError, match="branch cannot be written"):
        absolute_arguments(compaction.JOB, {"branch": object()}, NOW_MS)
