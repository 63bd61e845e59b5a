"""What tasks make of the data files and delete files that are dealt out to them, without Spark."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.planning import deletes as delete_index
from icekeep.planning import deletes as delete_tasks
from icekeep.planning.entries import DecodedEntries, PruningStats
from icekeep.planning.manifests import ENTRIES
from icekeep.spec.manifests.structs import ManifestEntry
from kit.cases import cases
from kit.reaching import CODECS, SPECS, entry, equality, expected, generated_tables, positions, table_of, vector


def met(data: pa.Table, deletes: pa.Table, batch_rows: int) -> list[pa.RecordBatch]:
    """Rows as they come to a task: in one of two columns, mixed."""
    columns = pa.schema([("data", pa.struct([*data.schema])), ("delete", pa.struct([*deletes.schema]))])
    rows = [{"data": row} for row in data.to_pylist()] + [{"delete": row} for row in deletes.to_pylist()]
    order = np.random.default_rng(7).permutation(len(rows))
    return pa.Table.from_pylist([rows[n] for n in order], columns).to_batches(batch_rows)


def matched(data: Sequence[ManifestEntry], deletes: Sequence[ManifestEntry], batch_rows: int = 3) -> pa.Table:
    batches = met(table_of([*data]), table_of([*deletes]), batch_rows)
    return pa.Table.from_batches([*delete_tasks._matched(SPECS, batches)])


@cases(100)
@given(generated_tables(), st.integers(1, 4), st.integers(1, 9))
def test_a_task_gives_each_data_file_the_deletes_that_the_rule_gives_it(tables, batch_rows, pairs):
    data, deletes = tables
    if not data:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delete_tasks, "_BATCH_PAIRS", pairs)
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
    real = delete_index.reaching

    def reaching(some, *rest):
        return None if some.num_rows > 1 + limit else real(some, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delete_tasks, "reaching", reaching)
        found = matched(data, deletes)
    assert {row["file_path"]: row["deletes"] for row in found.to_pylist()} == expected(data, deletes)


def test_nothing_that_comes_makes_nothing():
    assert [*delete_tasks._matched(SPECS, [])] == []
    assert matched([entry("a", 1)], []).to_pylist()[0]["deletes"] == []


def test_deletes_that_are_not_for_one_data_file_are_counted_by_partition():
    deletes = [
        *(positions(f"p{n}", 3) for n in range(3)),
        *(positions(f"q{n}", 3, partition=("y",)) for n in range(2)),
        positions("only", 3, referenced_data_file="a"),
        vector(3, "a"),
        # Java writes this of no equality delete file; the rule does not ask it.
        equality("e", 3, referenced_data_file="a"),
        equality("g", 3, spec_id=0, partition=()),
    ]
    halves = [delete_tasks._Counts(), delete_tasks._Counts()]
    for number, half in enumerate(halves):
        for batch in table_of(deletes[number::2]).to_batches():
            half.add(DecodedEntries(batch, PruningStats()))
    halves[0].merge(halves[1])
    keys = {name: (1, CODECS[1].encode((name,))) for name in ("x", "y")}
    assert halves[0].by_partition == {keys["x"]: 4, keys["y"]: 2, (0, CODECS[0].encode(())): 1}


@pytest.mark.parametrize(("most", "is_crowded"), [(0, False), (2_000, False), (2_001, True)])
def test_a_partition_with_more_than_two_thousand_is_crowded(most, is_crowded):
    assert delete_tasks.Crowd(10_000, most).is_crowded is is_crowded
