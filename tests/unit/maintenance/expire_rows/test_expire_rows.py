"""`expire_rows`: which rows go and which stay, over generated tables, and what it does where a table is not so simple."""

from typing import Any

import pyarrow as pa
import pytest

from icekeep import check, compact, expire_rows, expire_snapshots, plan_expire_rows, read_table
from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import ExpressionError, NotFoundError, SafetyError, UnsupportedError, UsageError
from icekeep.events import Warned
from icekeep.maintenance.expire_rows import job
from icekeep.operations.jobs import POLICY_JOBS
from icekeep.spec.evolution import AddColumn, AddPartitionField, RemovePartitionField, RenameColumn
from icekeep.spec.filters.expressions import And, Expression, Not, Operation, Or, Predicate
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.types import DAY_MS, LONG
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append, create_table, update_schema, update_spec
from kit.cases import Choices, scaled, seeds
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_files, delete_positions
from kit.filters import Column, literal_of, truth
from kit.job_world import EVENTS, World
from kit.lake import events
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import lineage_of
from kit.row_histories import VALUES, History, in_memory
from kit.runtime import no_spark
from kit.storage import MemoryStorage

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


def ids(table: Table, ref: str = "main") -> list[int]:
    """Of the rows of a branch, in order."""
    return sorted(row["id"] for row in read_table(table, ref=ref, select=["id"]).to_pylist())


def of_months(*months: int, version: int = 2, **properties: str) -> World:
    """A file of five rows for each month of 2013, in partitions by month."""
    world = World(version, [("at", "month")], **properties)
    for month in months:
        world.append(month, month=month)
    return world


def test_aligned_partitions_read_no_byte_of_data():
    world = of_months(1, 2, 3)
    touched: list[str] = []
    world.storage.before = lambda operation, location: touched.append(location)
    done = expire_rows(world.table, no_spark, where="at < '2013-03-01T00:00:00Z'")
    assert (done.removed_data_files_count, done.edge_data_files_count) == (2, 0)
    assert [location for location in touched if "/data/" in location] == []
    assert ids(world.table) == [3000000 + n for n in range(5)]


def test_files_of_each_spec_expire_by_their_own_partition():
    world = of_months(1, 2)
    update_spec(world.table, [RemovePartitionField("at_month"), AddPartitionField("at", "day")])
    world.append(3, month=1)
    update_spec(world.table, [RemovePartitionField("at_day")])
    world.append(4, month=1)
    done = expire_rows(world.table, no_spark, where="at < '2013-02-01T00:00:00Z'")
    planned = plan_expire_rows(world.table, no_spark, where="at < '2013-03-01T00:00:00Z'")
    assert done.removed_data_files_count == 3
    assert {one.partition for one in planned.partitions} == {"at_month=2013-02"}
    assert ids(world.table) == [2000000 + n for n in range(5)]


@pytest.mark.parametrize("edge", EDGES)
def test_a_column_that_came_later_is_null_or_its_default(edge):
    before = World(3)
    before.append(1)
    update_schema(before.table, [AddColumn("level", LONG), AddColumn("rank", LONG, default=7)])
    world = before.copy()
    for where in ("level < 5", "level != 5", "rank = 8"):
        assert expire_rows(world.table, no_spark, where=where, edge=edge).is_idle
    # Its entry says nothing of the columns, so that only reading does.
    for where, left in (("level is null and id = 1000001", 4), ("rank = 7", 0)):
        world = before.copy()
        done = expire_rows(world.table, no_spark, where=where, edge=edge)
        assert (done.removed_data_files_count, done.edge_data_files_count) == (0, 1)
        assert done.is_idle == (edge == "keep")
        assert len(ids(world.table)) == (5 if edge == "keep" else left)


def test_missing_metrics_and_nulls_never_count_as_a_match():
    world = World(2, write__metadata__metrics__default="none")
    world.append(1)
    planned = plan_expire_rows(world.table, no_spark, where="id < 9000000")
    assert (planned.removed_data_files_count, planned.edge_data_files_count) == (0, 1)
    nulls = World(2)
    rows = events(1, 3)
    append(nulls.table, rows.set_column(2, rows.schema.field(2), pa.array([rows["at"][0].as_py(), None, None])))
    done = expire_rows(nulls.table, no_spark, where="at < '2020-01-01T00:00:00Z'", edge="deletes")
    assert (done.removed_data_files_count, done.deleted_records_count) == (0, 1)
    assert ids(nulls.table) == [1000001, 1000002]


def test_nan_is_not_less_than_anything():
    catalog = MemoryCatalog(MemoryStorage())
    catalog.create_namespace(EVENTS[:-1])
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("score", pa.float64())])
    table = append(create_table(catalog, EVENTS, schema), pa.table({"id": [1, 2, 3], "score": [0.5, NAN, 0.7]}, schema))
    assert expire_rows(table, no_spark, where="score < 1").removed_data_files_count == 0
    expire_rows(table.refresh(), no_spark, where="score < 1", edge="rewrite")
    assert ids(table.refresh()) == [2]


def test_tags_and_branches_keep_old_rows_readable():
    world = of_months(1, 2)
    create_branch(create_tag(world.table, "before"), "audit")
    expire_rows(world.table, no_spark, where="id < 2000000")
    world.runtime.pass_ms(30 * DAY_MS)
    expire_snapshots(world.table, no_spark, older_than="1d", retain_last=1)
    assert len(ids(world.table)) == 5
    assert len(ids(world.table, "before")) == len(ids(world.table, "audit")) == 10
    expire_rows(world.table, no_spark, where="id < 3000000", branch="audit")
    assert (len(ids(world.table)), len(ids(world.table, "audit")), len(ids(world.table, "before"))) == (5, 0, 10)


@pytest.mark.parametrize("where", ["1 = 1", "true", "id is not null", "NOT id is null", None])
def test_a_filter_of_all_rows_is_refused_without_a_word(where):
    world = World(2)
    world.append(1)
    arguments: dict[str, Any] = {} if where is None else {"where": where}
    before = world.state()
    for ask in (expire_rows, plan_expire_rows):
        with pytest.raises(SafetyError, match="the filter is true of every row"):
            ask(world.table, no_spark, **arguments)
    assert world.state() == before
    assert expire_rows(world.table, no_spark, allow_all_rows=True, **arguments).removed_data_files_count == 1
    assert ids(world.table) == []


def test_arguments_that_do_not_hold_change_nothing():
    world = World(1)
    world.append(1)
    before = world.state()
    for error, arguments in (
        (UnsupportedError, {"where": "id < 5", "edge": "deletes"}),
        (UsageError, {"where": "id < 5", "edge": "delete"}),
        (NotFoundError, {"where": "ids < 5"}),
        (ExpressionError, {"where": "id < 'x'"}),
        (NotFoundError, {"where": "id < 5", "branch": "audit"}),
    ):
        for ask in (expire_rows, plan_expire_rows):
            with pytest.raises(error):
                ask(world.table, no_spark, **arguments)
    assert world.state() == before


def test_nothing_is_committed_where_nothing_expires():
    world = of_months(1)
    before = world.state()
    assert expire_rows(world.table, no_spark, where="at < '2012-01-01T00:00:00Z'", edge="deletes").is_idle
    assert expire_rows(World(2).table, no_spark, where="id < 5").is_idle
    assert expire_rows(world.table, no_spark, where="0 = 1").is_idle
    assert world.state() == before


def test_keep_says_what_is_left_at_the_edge():
    world = of_months(1, 2)
    heard: list[Any] = []
    expire_rows(world.table, no_spark, where="id < 2000003", listener=Heard(heard.append))
    [warning] = [one for one in heard if isinstance(one, Warned)]
    assert "1 data file is left at the edge of the filter" in warning.message


class Heard:
    """Calls something with each event."""

    def __init__(self, call: Any) -> None:
        self.on = call


def test_deletes_that_reached_only_removed_files_go_with_them():
    world = of_months(1, 2, write__delete__granularity="partition")
    first, second = sorted(data_files(world.table), key=lambda file: file.partition)
    delete_positions(world.table, [(first.file_path, 1)])
    delete_positions(world.table, [(second.file_path, 1)])
    delete_equal(world.table, events(2, 1, 2).select(["id"]), ["id"], like=first)
    delete_equal(world.table, events(2, 1, 2).select(["id"]), ["id"], like=second)
    done = expire_rows(world.table, no_spark, where="at < '2013-02-01T00:00:00Z'")
    assert (done.removed_data_files_count, done.removed_delete_files_count) == (1, 2)
    assert {file.partition for file in delete_files(world.table)} == {second.partition}
    assert len(ids(world.table)) == 3


def test_global_equality_deletes_that_reach_others_stay():
    world = World(2)
    world.append(1, 2)
    delete_equal(world.table, events(2, 1).select(["id"]), ["id"])
    assert expire_rows(world.table, no_spark, where="id < 2000000").removed_delete_files_count == 0
    assert len(ids(world.table)) == 4
    assert expire_rows(world.table, no_spark, where="id < 3000000").removed_delete_files_count == 1
    assert delete_files(world.table) == []


@pytest.mark.parametrize(("granularity", "files_count"), [("file", 2), ("partition", 1)])
def test_deletes_follow_the_properties_of_the_table(granularity, files_count):
    world = World(2, write__delete__granularity=granularity, write__delete__format__default="orc")
    world.append(1, 1)
    done = expire_rows(world.table, no_spark, where="id < 1000002", edge="deletes")
    assert (done.added_delete_files_count, done.deleted_records_count) == (files_count, 4)
    assert {file.file_format for file in delete_files(world.table)} == {"ORC"}


def test_a_vector_holds_what_was_deleted_before():
    world = World(3)
    table = world.append(1)
    [file] = data_files(table)
    delete_by_vector(table, file.file_path, [4])
    done = expire_rows(world.table, no_spark, where="id < 1000002", edge="deletes")
    assert (done.added_delete_files_count, done.replaced_delete_files_count, done.removed_delete_files_count) == (
        1,
        1,
        0,
    )
    [vector] = delete_files(world.table)
    assert is_deletion_vector(vector)
    assert vector.record_count == 3
    assert ids(world.table) == [1000002, 1000003]


@pytest.mark.parametrize("edge", ["deletes", "rewrite"])
def test_a_file_without_another_row_goes_as_a_whole(edge):
    world = World(2, write__metadata__metrics__default="none")
    world.append(1, 2)
    first = min(file.file_path for file in data_files(world.table))
    delete_positions(world.table, [(first, 0)])
    done = expire_rows(world.table, no_spark, where="id < 2000000", edge=edge)
    assert (done.emptied_data_files_count, done.deleted_records_count, done.added_data_files_count) == (1, 4, 0)
    assert len(data_files(world.table)) == 1
    assert delete_files(world.table) == []


def while_it_plans(monkeypatch: pytest.MonkeyPatch, others: Any) -> None:
    """Have others change the table once, between a plan and its commit."""
    left = [others]

    def sums(*arguments: Any) -> Any:
        found = EXPIRY_SUMS(*arguments)
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(job, "expiry_sums", sums)


EXPIRY_SUMS = job.expiry_sums


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("seed", seeds(scaled(40)))
def test_others_may_write_meanwhile(monkeypatch: pytest.MonkeyPatch, seed: int, edge: str) -> None:
    """No row of theirs is lost, nothing that they deleted comes back, and old rows that match are gone."""
    history, chosen = History.of(seed, in_memory(), (2, 2, 3, 3)), Choices(seed)
    rows, old = some_filter(history, chosen), {row.id for row in history.model.rows}

    def others() -> None:
        kinds = ("append", "positions", "equality", "upsert", "spec")
        history.went_on([(chosen.choice(kinds), chosen.getrandbits(31)) for _ in range(chosen.randint(1, 3))])
        if chosen.random() < 0.5:
            compact(history.table, no_spark, options={"rewrite-all": "true"})

    while_it_plans(monkeypatch, others)
    expire_rows(history.table, no_spark, where=rows, edge=edge)
    live, matching = set(ids(history.table)), matching_ids(history, rows)
    assert history.model.ids - matching <= live <= history.model.ids
    assert edge == "keep" or not live & matching & old
    history.model.delete(history.model.ids - live)
    assert history.by.rows() == history.expected()
    assert check(history.table, no_spark, deep=True).faults == ()


def test_rows_that_others_moved_go_with_their_new_file(monkeypatch):
    world = of_months(1, 2)
    world.append(1)
    while_it_plans(monkeypatch, lambda: compact(world.table, no_spark, options={"rewrite-all": "true"}))
    done = expire_rows(world.table, no_spark, where="at < '2013-02-01T00:00:00Z'")
    assert (done.attempts_count, done.removed_data_files_count, done.removed_records_count) == (2, 1, 10)
    assert ids(world.table) == [2000000 + n for n in range(5)]


@pytest.mark.parametrize("edge", ["deletes", "rewrite"])
def test_a_file_that_others_replaced_is_planned_again(monkeypatch, edge):
    world = World(2)
    world.append(1, 2)
    while_it_plans(monkeypatch, lambda: compact(world.table, no_spark, options={"rewrite-all": "true"}))
    done = expire_rows(world.table, no_spark, where="id < 1000002", edge=edge)
    assert (done.attempts_count, done.deleted_records_count) == (2, 2)
    assert len(ids(world.table)) == 8


@pytest.mark.parametrize("edge", ["deletes", "rewrite"])
def test_a_vector_of_others_is_planned_again(monkeypatch, edge):
    world = World(3)
    [file] = data_files(world.append(1))
    while_it_plans(monkeypatch, lambda: delete_by_vector(world.table, file.file_path, [4]))
    done = expire_rows(world.table, no_spark, where="id < 1000002", edge=edge)
    assert done.attempts_count == 2
    assert ids(world.table) == [1000002, 1000003]


@pytest.mark.parametrize("edge", EDGES)
def test_a_name_that_went_to_another_column_is_refused(monkeypatch, edge):
    world = World(2)
    world.append(1, 2)

    def others() -> None:
        update_schema(world.table, [RenameColumn("id", "number"), AddColumn("id", LONG)])

    while_it_plans(monkeypatch, others)
    with pytest.raises(SafetyError, match="a column of the filter is another one now"):
        expire_rows(world.table, no_spark, where="id < 2000002 or id is null", edge=edge)
    assert read_table(world.table).num_rows == 10


def test_it_runs_before_what_would_handle_the_same_rows():
    assert POLICY_JOBS.index("expire_rows") < min(map(POLICY_JOBS.index, ("compact", "expire_snapshots")))
