"""Delete files matched to data files in Arrow, and in what Spark tasks make of them, against the rule of `spec.delete_runs`."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.planning import deletes as planned
from icekeep.planning.deletes import reaching
from icekeep.planning.entries import DecodedEntries, PruningStats
from icekeep.planning.manifests import ENTRIES
from icekeep.spec import delete_runs
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spec.matched_deletes import reaches
from icekeep.spec.reach import may_name, own_path
from kit.cases import cases, for_each
from kit.reaching import (
    CODECS,
    REFUSED,
    SPECS,
    A,
    bounded,
    entry,
    equality,
    expected,
    generated_tables,
    positions,
    reaching_by_rule,
    table_of,
    vector,
)

Entries = list[ManifestEntry]


def found(data: Entries, deletes: Entries) -> dict[str, list[dict[str, Any]]]:
    held = reaching(table_of(data), table_of(deletes), SPECS)
    assert held is not None
    rows = held.deletes.to_pylist()
    return {e.data_file.file_path: [rows[n] for n in held.of_row(row)] for row, e in enumerate(data)}


def names(data: Entries, deletes: Entries) -> dict[str, list[str]]:
    return {path: [row["file_path"] for row in rows] for path, rows in found(data, deletes).items()}


@given(generated_tables())
def test_each_data_file_gets_the_deletes_that_the_rule_gives_it(table: tuple[Entries, Entries]) -> None:
    data, deletes = table
    assert found(data, deletes) == expected(data, deletes)


@given(generated_tables())
def test_paths_of_many_lengths_are_searched(table: tuple[Entries, Entries]) -> None:
    data, deletes = table
    with patch.object(delete_runs, "_MANY_LENGTHS", -1):
        assert found(data, deletes) == expected(data, deletes)


@for_each(("deletes", "problem"), REFUSED)
def test_what_cannot_be_is_refused_as_by_the_rule(deletes: Entries, problem: str) -> None:
    with pytest.raises(InvalidTableError) as of_rule:
        reaching_by_rule([A], deletes)
    with pytest.raises(InvalidTableError) as of_tables:
        found([A], deletes)
    assert of_tables.value.message == of_rule.value.message == problem


def test_old_or_orphaned_single_file_deletes_are_harmless() -> None:
    elsewhere = {"spec_id": 2, "partition": (0.5, 1)}
    old = [vector(4, "a", **elsewhere), positions("p", 4, referenced_data_file="a", **elsewhere)]
    lost = [vector(7, "gone", **elsewhere), vector(8, "gone", 50), positions("q", 7, referenced_data_file="gone")]
    assert found([A], [*old, *lost]) == {"a": []}


@for_each("lower", [None, b"", b"a", b"ab", b"b", b"\xc3", b"\xff"])
@for_each("upper", [None, b"", b"a", b"ab", b"abd", b"\xc3", b"\xff"])
def test_path_bounds_leave_what_the_rule_leaves(lower: bytes | None, upper: bytes | None) -> None:
    paths = ["", "a", "aa", "ab", "abc", "abd", "ac", "b", "é", "\U0001f600"]
    delete = positions("p", 9, **bounded(lower, upper))
    reached = {path for path, by in names([entry(path, 5) for path in paths], [delete]).items() if by}
    assert reached == {path for path in paths if may_name(delete.data_file, path)}


def test_equality_deletes_have_no_path_bounds() -> None:
    assert names([A], [equality("e", 9, **bounded(b"x", b"y"))]) == {"a": ["e"]}


def test_deletes_are_ordered_by_number_path_and_offset() -> None:
    deletes = [equality("b", 8), equality("a", 8), positions("é", 7), equality("z", 7), positions("Z", 7)]
    assert names([A], deletes) == {"a": ["Z", "z", "é", "a", "b"]}


def test_a_data_file_that_is_listed_twice_has_its_deletes_twice() -> None:
    held = reaching(table_of([A, entry("b", 9), A]), table_of([vector(7, "a"), positions("p", 7)]), SPECS)
    assert held is not None
    assert [held.of_row(row) for row in range(3)] == [[1], [], [1]]


def test_without_delete_files_nothing_is_reached() -> None:
    assert found([A], []) == {"a": []}
    assert found([], [equality("e", 9)]) == {}


def test_pairs_that_are_too_many_are_left_to_spark() -> None:
    data, deletes = table_of([A, entry("b", 5)]), table_of([equality("e", 7), equality("f", 7)])
    assert reaching(data, deletes, SPECS, max_pairs=4) is not None
    assert reaching(data, deletes, SPECS, max_pairs=3) is None


@given(generated_tables())
def test_runs_stay_in_one_list_ordered_by_number(table: tuple[Entries, Entries]) -> None:
    held = reaching(table_of(table[0]), table_of(table[1]), SPECS)
    assert held is not None
    numbers = held.deletes["sequence_number"].to_pylist()
    for row in range(len(table[0])):
        for n in range(held.offsets[row], held.offsets[row + 1]):
            some = slice(held.starts[n], held.stops[n])
            assert len({*held.lists[some].tolist()}) == 1
            assert numbers[some] == sorted(numbers[some])
    used = {n for row in range(len(table[0])) for n in held.of_row(row)}
    assert {n for n, is_used in enumerate(held.used) if is_used} == used
    order = sorted(table[1], key=lambda d: (d.sequence_number, d.data_file.file_path, d.data_file.content_offset or -1))
    entries = [order[rank] for rank in held.ranks.tolist()]
    assert held.reached.tolist() == [any(reaches(delete, one, SPECS) for one in table[0]) for delete in entries]


@given(generated_tables())
def test_own_record_counts_follow_own_paths(
    table: tuple[Entries, Entries],
) -> None:
    data, deletes = table
    held = reaching(table_of(data), table_of(deletes), SPECS)
    assert held is not None
    in_force = reaching_by_rule(data, deletes)
    wanted = [
        sum(d.data_file.record_count for d in in_force[path] if own_path(d.data_file) == path.encode())
        for path in (one.data_file.file_path for one in data)
    ]
    assert held.own_record_counts(table_of(data)["file_path"]).tolist() == wanted


def test_truncated_equal_bounds_name_no_single_file() -> None:
    deletes = [positions("p", 7, record_count=5, **bounded(b"a", b"a"))]
    for paths, counts in ((["a", "ab"], [5, 0]), (["ab", "ac"], [0, 0])):
        data = table_of([entry(path, 5) for path in paths])
        held = reaching(data, table_of(deletes), SPECS)
        assert held is not None
        assert np.diff(held.offsets).tolist() == [1, 1]
        assert held.own_record_counts(data["file_path"]).tolist() == counts


def test_a_row_has_few_runs_however_many_deletes_reach_it() -> None:
    everywhere = {"spec_id": 0, "partition": ()}
    data = [entry(f"f{n:03}", n, **everywhere) for n in range(200)]
    deletes = [equality(f"e{n}", n, **everywhere) for n in range(200)]
    for n in range(200):
        own = bounded(f"f{n:03}".encode(), f"f{n:03}".encode())
        deletes += [positions(f"p{n}-{m}", n + m, **own, **everywhere) for m in range(3)]
    held = reaching(table_of(data), table_of(deletes), SPECS)
    assert held is not None
    assert sum(len(held.of_row(row)) for row in range(200)) == 3 * 200 + sum(range(200))
    assert int(np.diff(held.offsets).max()) == 2


def met(data: pa.Table, deletes: pa.Table, batch_rows: int) -> list[pa.RecordBatch]:
    """Rows as they come to a task: in one of two columns, mixed."""
    columns = pa.schema([("data", pa.struct([*data.schema])), ("delete", pa.struct([*deletes.schema]))])
    rows = [{"data": row} for row in data.to_pylist()] + [{"delete": row} for row in deletes.to_pylist()]
    order = np.random.default_rng(7).permutation(len(rows))
    return pa.Table.from_pylist([rows[n] for n in order], columns).to_batches(batch_rows)


def matched(data: Sequence[ManifestEntry], deletes: Sequence[ManifestEntry], batch_rows: int = 3) -> pa.Table:
    batches = met(table_of([*data]), table_of([*deletes]), batch_rows)
    return pa.Table.from_batches([*planned._matched(SPECS, batches)])


@cases(100)
@given(generated_tables(), st.integers(1, 4), st.integers(1, 9))
def test_task_matches_deletes_by_the_rule(tables, batch_rows, pairs):
    data, deletes = tables
    if not data:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(planned, "_BATCH_PAIRS", pairs)
        found = matched(data, deletes, batch_rows)
    assert found.column_names == [*ENTRIES.names, "deletes"]
    assert {row["file_path"]: row["deletes"] for row in found.to_pylist()} == expected(data, deletes)
    paths = found["file_path"].to_pylist()
    assert paths == sorted(paths, key=str.encode)


@cases(30)
@given(generated_tables(), st.integers(0, 3))
def test_data_files_with_too_many_deletes_to_be_held_are_halved(tables, limit):
    data, deletes = tables
    if not data:
        return
    real = planned.reaching

    def reaching(some, *rest):
        return None if some.num_rows > 1 + limit else real(some, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(planned, "reaching", reaching)
        found = matched(data, deletes)
    assert {row["file_path"]: row["deletes"] for row in found.to_pylist()} == expected(data, deletes)


def test_nothing_that_comes_makes_nothing():
    assert [*planned._matched(SPECS, [])] == []
    assert matched([entry("a", 1)], []).to_pylist()[0]["deletes"] == []


def test_shared_deletes_are_counted_by_partition():
    deletes = [
        *(positions(f"p{n}", 3) for n in range(3)),
        *(positions(f"q{n}", 3, partition=("y",)) for n in range(2)),
        positions("only", 3, referenced_data_file="a"),
        vector(3, "a"),
        # Java writes this of no equality delete file; the rule does not ask it.
        equality("e", 3, referenced_data_file="a"),
        equality("g", 3, spec_id=0, partition=()),
    ]
    halves = [planned.SharedDeleteCounts(), planned.SharedDeleteCounts()]
    for number, half in enumerate(halves):
        for batch in table_of(deletes[number::2]).to_batches():
            half.add(DecodedEntries(batch, PruningStats()))
    halves[0].merge(halves[1])
    keys = {name: (1, CODECS[1].encode((name,))) for name in ("x", "y")}
    assert halves[0] == {keys["x"]: 4, keys["y"]: 2, (0, CODECS[0].encode(())): 1}


@pytest.mark.parametrize(("most", "shared"), [(0, None), (2_000, None), (2_001, 2_004)])
def test_a_partition_with_more_than_two_thousand_is_crowded(monkeypatch, most, shared):
    counts = planned.SharedDeleteCounts()
    counts.update({(1, b"x"): most, (1, b"y"): 3})
    monkeypatch.setattr(planned, "folded", lambda *asked: counts)
    assert planned.crowded_count(None, None, [], None) == shared
