"""Which files are put in order, over tables of rows: sorts and curves that a second run leaves alone (apache/iceberg #17489)."""

from collections.abc import Callable, Sequence
from itertools import chain, count

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import sort_keys
from icekeep.maintenance.compact.grouping import GroupRules, PlannedFile
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import (
    ColumnFacts,
    chosen_strategy,
    ends_of,
    key_space,
    order_summary,
    snapshots_in_order,
)
from icekeep.maintenance.compact.plan import GroupFile, unpack_group_files
from icekeep.maintenance.compact.planner import BinPacker, chosen_groups
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.rewrite.options import FileSizes
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.sorting import UNSORTED, build_sort_order
from icekeep.spec.types import DOUBLE, LONG, STRING, NestedField, PrimitiveType
from icekeep.spec.values import lower_bound, upper_bound
from kit.cases import cases
from kit.storage import MemoryStorage

pytestmark = pytest.mark.slow

ROW_BYTES = 100
SIZES = FileSizes(target_bytes=1000, min_bytes=750, max_bytes=1800)
SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="a", type=LONG),
        NestedField(field_id=2, name="b", type=LONG),
        NestedField(field_id=3, name="s", type=STRING),
        NestedField(field_id=4, name="d", type=DOUBLE),
    )
)
COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("s", pa.string()), ("d", pa.float64())])

Row = tuple[int | None, int | None, str | None, float | None]
OLD, NEW = 1, 2


def metadata_of(*keys: str, **properties: str):
    return new_table_metadata(
        schema=SCHEMA,
        spec=UNPARTITIONED,
        location="file:///t",
        table_uuid="00000000-0000-0000-0000-000000000001",
        now_ms=1,
        sort_order=build_sort_order(SCHEMA, keys) if keys else UNSORTED,
        properties={name.replace("__", "."): value for name, value in properties.items()},
    )


class Table:
    """Files of rows, and what a run makes of them."""

    def __init__(self, sort_order: str | None, *, keys: Sequence[str] = (), **given: str) -> None:
        self.metadata = metadata_of(*keys)
        self.options = parse_options(RewriteDataFilesOptions, {n.replace("_", "-"): v for n, v in given.items()})
        self.strategy = chosen_strategy("sort", sort_order, self.metadata, self.options)
        self.files: dict[str, tuple[GroupFile, list[Row]]] = {}
        self._numbers = count()
        self.row_bytes: Callable[[Row], int] = lambda _: ROW_BYTES

    def add(self, rows: Sequence[Row], *, sort_order_id: int = 0, snapshot_id: int = OLD) -> str:
        name = f"f{next(self._numbers):05d}"
        file = GroupFile(
            file_path=name,
            file_format="PARQUET",
            spec_id=0,
            partition=b"",
            record_count=len(rows),
            file_size_in_bytes=sum(map(self.row_bytes, rows)),
            snapshot_id=snapshot_id,
            sequence_number=1,
            file_sequence_number=1,
            manifest_path="m",
            sort_order_id=sort_order_id,
        )
        self.files[name] = file, list(rows)
        return name

    def plan(self):
        metadata = self.metadata
        if any(file.snapshot_id == NEW for file, _ in self.files.values()):
            summary = {"operation": "replace", **order_summary(self.strategy)}
            written = Snapshot(snapshot_id=NEW, timestamp_ms=1, summary=summary)
            metadata = msgspec.structs.replace(metadata, snapshots=(written,))
        ordering = self.strategy.ordering
        assert ordering is not None
        rules = GroupRules(
            sizes=SIZES,
            options=self.options,
            strategy=self.strategy,
            space=key_space(ordering, self.metadata),
            in_order=snapshots_in_order(self.strategy, metadata),
            output_specs={0: 0},
        )
        planned = [self._planned(file, rows, rules) for file, rows in self.files.values()]
        packer = BinPacker(rules=rules, storage=MemoryStorage(), directory=None)
        return chosen_groups(planned, packer, self.metadata)

    def run(self) -> int:
        """Rewrite what is planned; returns how many files that were."""
        groups, _, _ = self.plan()
        for group in groups:
            assert group.packed is not None
            names = [file.file_path for file in unpack_group_files(group.packed).files]
            rows = in_order(
                list(chain.from_iterable(self.files.pop(name)[1] for name in names)), self.strategy.ordering
            )
            for part in np.array_split(np.arange(len(rows)), group.expected_files_count):
                if len(part):
                    some = [rows[n] for n in part]
                    self.add(some, sort_order_id=self.strategy.sort_order_id, snapshot_id=NEW)
        return sum(group.files_count for group in groups)

    def depth(self) -> float:
        _, _, tally = self.plan()
        return tally.depth_sum / tally.depth_files_count

    def rows(self) -> list[Row]:
        return list(chain.from_iterable(rows for _, rows in self.files.values()))

    def _planned(self, file: GroupFile, rows: list[Row], rules: GroupRules) -> PlannedFile:
        size = file.file_size_in_bytes
        ends = None
        if rules.space is not None:
            ends = ends_of(
                rules.space,
                [facts(rows, field_id) for field_id in (column.field_id for column in rules.space.columns)],
                len(rows),
            )
        return PlannedFile(file=file, has_bad_size=size < SIZES.min_bytes or size > SIZES.max_bytes, ends=ends)


def facts(rows: Sequence[Row], field_id: int) -> ColumnFacts:
    type_ = SCHEMA.fields_by_id[field_id].type
    assert isinstance(type_, PrimitiveType)
    values = [row[field_id - 1] for row in rows]
    some = [value for value in values if value is not None and value == value]
    if not some:
        return ColumnFacts(None, None, values.count(None), sum(value != value for value in values))
    return ColumnFacts(
        lower_bound(type_, min(some), 16),
        upper_bound(type_, max(some), 16),
        values.count(None),
        len(values) - len(some) - values.count(None),
    )


def in_order(rows: list[Row], ordering: Ordering) -> list[Row]:
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=COLUMNS)
    keys = sort_keys(table, ordering, SCHEMA).to_pylist()
    return [rows[n] for n in sorted(range(len(rows)), key=lambda n: keys[n])]


def numbered(*numbers: int) -> list[Row]:
    return [(number, number, f"s{number}", float(number)) for number in numbers]


def test_files_of_a_healthy_size_are_sorted_where_they_overlap():
    # apache/iceberg #17489: a sort of well sized files reported success and changed nothing.
    table = Table("a")
    for start in range(4):
        table.add(numbered(*range(start, 40, 4)))
    assert table.depth() == 4
    assert table.run() == 4
    assert table.depth() == 1
    assert table.run() == 0


def test_two_files_over_one_another_are_what_a_look_up_may_meet():
    table = Table("a")
    table.add(numbered(*range(0, 20, 2)))
    table.add(numbered(*range(1, 20, 2)))
    assert table.depth() == 2
    assert table.run() == 0


def test_file_without_the_tables_sort_order_id_is_sorted():
    table = Table(None, keys=["a"])
    sorted_one = table.add(numbered(*range(10)), sort_order_id=1)
    table.add(numbered(*range(10, 20)))
    assert table.run() == 1
    assert sorted_one in table.files
    assert {file.sort_order_id for file, _ in table.files.values()} == {1}
    assert table.run() == 0


def test_far_away_files_are_not_sorted_again():
    table = Table(None, keys=["a"])
    old = [table.add(numbered(*range(10 * n, 10 * n + 10)), sort_order_id=1) for n in range(20)]
    for start in range(3):
        table.add(numbered(*range(150 + start, 180, 3)))
    assert table.run() == 3
    assert set(old) <= table.files.keys()
    assert table.depth() < 2
    # The next ones would lie over two.
    for start in range(3):
        table.add(numbered(*range(150 + start, 180, 3)))
    assert table.run() == 3 + 3 + 3
    assert table.depth() == 1
    assert set(old[:15] + old[18:]) <= table.files.keys()
    assert table.run() == 0


def test_small_files_are_packed_and_sorted():
    table = Table("a")
    for start in range(6):
        table.add(numbered(start, start + 10))
    assert table.run() == 6
    assert [row[0] for row in table.rows()] == sorted([*range(6), *range(10, 16)])
    few = Table("a")
    for start in (0, 10):
        few.add(numbered(start, start + 1))
    (groups, left, tally) = few.plan()
    assert not groups
    assert (left[0].files_count, tally.candidate_files_count) == (2, 2)


def test_without_bounds_files_are_chosen_by_what_else_is_known():
    for keys, expected in ((["a"], 4), ([], 0)):
        table = Table("bucket(4, a)" if not keys else None, keys=keys)
        if keys:
            table.metadata = msgspec.structs.replace(
                table.metadata, properties={"write.metadata.metrics.column.a": "none"}
            )
        for start in range(4):
            table.add(numbered(*range(start, 40, 4)))
        assert table.plan()[2].depth_files_count == 0
        assert table.run() == expected
        assert table.run() == 0


def test_strings_that_begin_alike_are_not_sorted_again_and_again():
    # Bounds are cut at sixteen characters, where these do not differ yet.
    table = Table("s")
    for start in range(5):
        table.add([(n, n, f"https://www.example.org/{n:04d}", 0.0) for n in range(start, 50, 5)])
    assert table.run() == 0
    table = Table(None, keys=["s"])
    for start in range(5):
        table.add([(n, n, f"https://www.example.org/{n:04d}", 0.0) for n in range(start, 50, 5)])
    assert table.run() == 5
    assert table.run() == 0


def test_constant_first_column_leaves_the_order_to_the_next():
    table = Table("a, b")
    for start in range(6):
        table.add([(7, n, "", 0.0) for n in range(start, 60, 6)])
    assert table.depth() == 6
    assert table.run() == 6
    assert table.depth() == 1
    assert table.run() == 0


def test_nulls_and_nans_have_their_place_in_an_order():
    table = Table("d DESC NULLS LAST")
    rows: list[Row] = [(n, n, "", value) for n, value in enumerate([None, float("nan"), *map(float, range(28))] * 2)]
    for start in range(6):
        table.add(rows[start::6])
    assert table.run() == 6
    assert table.depth() == 1
    assert table.run() == 0
    assert table.rows()[0][3] != table.rows()[0][3]
    assert table.rows()[-1][3] is None


NUMBERS = st.integers(-20, 20) | st.integers(-(2**40), 2**40) | st.none()
TEXTS = (
    st.text("ab\U0010ffff", max_size=3) | st.sampled_from(["prefix-of-sixteen", "x"]).map(lambda p: p * 3) | st.none()
)
ROWS = st.tuples(NUMBERS, NUMBERS, TEXTS, st.floats() | st.none())
FILES = st.lists(st.lists(ROWS, min_size=1, max_size=20), min_size=1, max_size=14)
ORDERS = st.sampled_from(
    ["a", "a DESC", "b, a", "s", "s DESC NULLS FIRST, a", "d", "d DESC, b", "truncate(s, 2), a", "truncate(a, 10), b"]
)


@cases(80)
@given(FILES, ORDERS)
def test_a_second_sort_does_nothing(files, order):
    table = Table(order)
    for rows in files:
        table.add(rows)
    before = sorted(map(repr, table.rows()))
    table.run()
    assert sorted(map(repr, table.rows())) == before
    assert table.run() == 0


@cases(40)
@given(FILES, FILES, st.sampled_from([["a"], ["b", "a"], ["s"]]))
def test_files_that_come_later_are_sorted_once(files, later, keys):
    table = Table(None, keys=keys)
    for rows in files:
        table.add(rows)
    table.run()
    for rows in later:
        table.add(rows)
    table.run()
    assert all(file.sort_order_id == 1 for file, _ in table.files.values())
    assert table.run() == 0


@cases(40)
@given(FILES, ORDERS, st.integers(1500, 4000))
def test_partition_above_the_group_size_converges(files, order, group_bytes):
    table = Table(order, max_file_group_size_bytes=str(group_bytes))
    for rows in files:
        table.add(rows)
    for _ in range(20):
        if table.run() == 0:
            return
    raise AssertionError("still sorted after many runs")


def scattered(count: int, seed: int = 1) -> list[list[Row]]:
    numbers = np.random.default_rng(seed).integers(0, 1_000_000, (10 * count, 2)).tolist()
    rows: list[Row] = [(a, b, "", 0.0) for a, b in numbers]
    return [rows[10 * n : 10 * n + 10] for n in range(count)]


@pytest.mark.parametrize("kind", ["zorder", "hilbert"])
def test_overlapping_files_are_clustered_along_the_curve(kind):
    table = Table(f"{kind}(a, b)")
    for rows in scattered(64):
        table.add(rows)
    before = table.depth()
    assert table.run() == 64
    assert table.depth() < before / 5
    assert table.run() == 0
    # Also where the snapshot that would tell is expired.
    for name, (file, rows) in [*table.files.items()]:
        table.files[name] = msgspec.structs.replace(file, snapshot_id=OLD), rows
    assert table.run() == 0


@pytest.mark.parametrize("kind", ["zorder", "hilbert"])
def test_skewed_values_are_clustered_only_once(kind):
    chance = np.random.default_rng(2)
    exponents = chance.uniform(0, 60, (640, 2))
    rows: list[Row] = [(int(2**a), int(2**b), "", 0.0) for a, b in exponents.tolist()]
    table = Table(f"{kind}(a, b)")
    for start in range(64):
        table.add(rows[start::64])
    assert table.run() == 64
    assert table.depth() > 8
    assert table.run() == 0


def test_few_new_files_are_not_spread_over_a_deep_curve():
    table = Table("zorder(a, b)")
    for rows in scattered(64):
        table.add(rows)
    table.run()
    for rows in scattered(6, seed=2):
        table.add(rows[:2])
    rewritten = table.run()
    assert rewritten >= 6
    assert table.run() == 0


@cases(40)
@given(FILES, FILES, st.sampled_from(["zorder(a, b)", "hilbert(b, a)", "zorder(a, s)", "zorder(a, b, d)"]))
def test_a_second_run_along_a_curve_does_nothing(files, later, order):
    table = Table(order)
    for rows in files:
        table.add(rows)
    table.run()
    assert table.run() == 0
    for rows in later:
        table.add(rows)
    table.run()
    assert table.run() == 0


@pytest.mark.parametrize("kind", ["zorder", "hilbert"])
def test_later_curve_run_does_not_merge_distant_files(kind):
    # Rows of some places compress well, so that files of as many rows are small there.
    table = Table(f"{kind}(a, b)", min_input_files="2")
    table.row_bytes = lambda row: 50 if (row[0] // 100_000 + row[1] // 100_000) % 4 == 0 else ROW_BYTES
    for rows in scattered(128):
        table.add(rows)
    assert table.run() == 128
    assert sum(file.file_size_in_bytes < SIZES.min_bytes for file, _ in table.files.values()) > 4
    for _ in range(3):
        before = table.depth()
        table.run()
        assert table.depth() <= before
    assert table.run() == 0


@cases(30)
@given(FILES, FILES, st.sampled_from(["zorder(a, b)", "hilbert(b, a)", "zorder(a, b, d)"]), st.integers(1, ROW_BYTES))
def test_later_runs_along_a_curve_leave_no_more_overlap(files, later, order, less):
    table = Table(order, min_input_files="2")
    table.row_bytes = lambda row: less if (row[0] or 0) % 3 == 0 else ROW_BYTES
    for rows in files:
        table.add(rows)
    table.run()
    for number in range(6):
        # What others add is put in order, whatever it lies over.
        if number % 3 == 0:
            table.add(later[number % len(later)])
            table.run()
        before = table.depth()
        table.run()
        assert table.depth() <= before
