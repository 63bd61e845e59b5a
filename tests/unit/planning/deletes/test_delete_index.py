"""Few delete files and data files, matched in Arrow, against the pure rule of `spec.delete_runs`."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from icekeep.errors import InvalidTableError
from icekeep.planning.deletes import reaching
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spec.reach import may_name, own_path, reaches
from kit.cases import for_each
from kit.reaching import (
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


@for_each(("deletes", "problem"), REFUSED)
def test_what_cannot_be_is_refused_as_by_the_rule(deletes: Entries, problem: str) -> None:
    with pytest.raises(InvalidTableError) as of_rule:
        reaching_by_rule([A], deletes)
    with pytest.raises(InvalidTableError) as of_tables:
        found([A], deletes)
    assert of_tables.value.message == of_rule.value.message == problem


def test_vectors_and_deletes_of_one_file_that_are_too_old_or_of_no_live_file_break_nothing() -> None:
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


def test_those_of_a_data_file_are_in_order_of_number_path_and_offset() -> None:
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
def test_runs_are_of_one_list_whose_members_are_in_the_order_of_their_numbers(table: tuple[Entries, Entries]) -> None:
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
def test_positions_of_a_data_file_alone_are_those_of_deletes_whose_own_path_is_its_path(
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


def test_a_delete_file_whose_equal_bounds_were_cut_is_of_no_data_file_alone() -> None:
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
