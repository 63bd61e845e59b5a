"""`expire_rows`: which rows go and which stay, over generated tables, and what it does where a table is not so simple."""

import pytest

from icekeep import check, expire_rows, plan_expire_rows, read_table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.spec.filters.expressions import And, Expression, Not, Operation, Or, Predicate
from kit.cases import Choices, scaled, seeds
from kit.filters import Column, literal_of, truth
from kit.naive_scan import lineage_of
from kit.row_histories import VALUES, History, in_memory
from kit.runtime import no_spark

EDGES = ("keep", "deletes", "rewrite")
NAN = float("nan")


def some_filter(history: History, chosen: Choices) -> Expression:
    """A filter over columns of today, and over ids, so that whole files match now and then."""
    columns = [field for field in history.schema.fields if field.field_id != 1]
    terms: list[Expression] = [Predicate(Operation.LT, "id", (chosen.randint(1, len(history.model.rows)),))]
    for field in chosen.sample(columns, min(len(columns), chosen.randint(0, 2))):
        operation = chosen.choice((Operation.LT, Operation.EQ, Operation.NOT_EQ, Operation.IS_NULL, Operation.GT_EQ))
        value = chosen.choice([v for v in VALUES[field.type.name] if v is not None and v == v])
        several = () if operation is Operation.IS_NULL else (literal_of(field.type, value),)
        term: Expression = Predicate(operation, field.name, several)
        terms.append(Not(term) if chosen.random() < 0.3 else term)
    found = terms[0]
    for term in terms[1:]:
        found = chosen.choice((And, Or))(found, term)
    return found


def matching_ids(history: History, rows: Expression) -> set[int]:
    columns = [Column(field) for field in history.schema.fields]
    return {row.id for row in history.model.live if truth(rows, columns, row.values) is True}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("seed", seeds(scaled(60)))
def test_rows_that_match_go_and_no_others(seed: int, edge: str) -> None:
    history, chosen = History.of(seed, in_memory()), Choices(seed)
    table = history.table
    if history.version == 1 and edge == "deletes":
        return
    granularity = chosen.choice(("file", "partition"))
    table = commit(table, ChangeProperties(updates={"write.delete.granularity": granularity})).table
    rows, before = some_filter(history, chosen), history.by.rows()
    gone, lineage = matching_ids(history, rows), lineage_of(table) if history.version == 3 else {}
    planned = plan_expire_rows(table, no_spark, where=rows, edge=edge)
    done = expire_rows(table, no_spark, where=rows, edge=edge)
    after = history.table
    live = {row["id"] for row in read_table(after, select=["id"]).to_pylist()}
    assert history.model.ids - gone <= live <= history.model.ids
    if edge != "keep":
        assert live == history.model.ids - gone
    assert done.deleted_records_count <= len(gone)
    history.model.delete(history.model.ids - live)
    assert history.by.rows() == history.expected()
    assert planned.removed_data_files_count == done.removed_data_files_count
    assert planned.removed_records_count == done.removed_records_count
    # What is left behind by files that reading showed to be empty is known only then.
    assert planned.removed_bytes_count == done.removed_bytes_count or edge != "keep"
    if lineage:
        now = lineage_of(after)
        assert {id_: now[id_] for id_ in live} == {id_: lineage[id_] for id_ in live}
    assert check(after, no_spark, deep=True).faults == ()
    if before == history.by.rows() and not done.removed_data_files_count:
        assert done.is_idle
        assert after.metadata.current_snapshot_id == table.metadata.current_snapshot_id
    again = expire_rows(after, no_spark, where=rows, edge=edge)
    assert again.is_idle
    assert history.table.metadata_location == after.metadata_location
