"""Rows are read as the model has them and as PyIceberg reads them."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlparse

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.errors import MissingFileError, NotFoundError, UnsupportedError, UsageError
from icekeep.formats.deletes.apply import LiveRowsReader
from icekeep.planning.scan.report import plan_scan
from icekeep.planning.scan.tasks import Residuals
from icekeep.planning.spark.rows import spark_columns
from icekeep.spec.collections import PositionSet, packed_positions
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    MoveFirst,
    RemovePartitionField,
    RenameColumn,
    UpdateColumnType,
)
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.types import LONG, MIB, STRING, StructType
from icekeep.storage.wrappers import CountedStorage, Meter
from icekeep.tables import read as scan
from icekeep.tables.read import explaining, plan_text, read_batches, read_table
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append, create_table, update_schema, update_spec
from kit.cases import cases
from kit.columns import column, parquet_bytes, schema_of
from kit.deletes import add_deletes, data_files, delete_by_vector, delete_equal, delete_positions, position_deletes
from kit.lake import EVENTS, Lake, events, multiset
from kit.naive_scan import live_entries
from kit.row_histories import FORMATS, SPECS, VERSIONS, History, Step, in_memory, steps
from kit.rows import row_texts
from kit.runtime import no_spark
from kit.storage import MemoryStorage
from kit.tables import BY_KIND, add, data_file, memory_table

FILTERS = ("id < 3", "kind = 'k1'", "kind is null or score > 0")


class Watched(CountedStorage):
    """A storage whose open files a test can see."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage, Meter())
        self.streams: list[tuple[str, BinaryIO]] = []

    def open(self, location: str) -> BinaryIO:
        stream = super().open(location)
        self.streams.append((location, stream))
        return stream

    @property
    def open_now(self) -> list[str]:
        return [location for location, stream in self.streams if not stream.closed]


def watched(table: Table) -> tuple[Table, Watched]:
    storage = Watched(table.storage)
    return msgspec.structs.replace(table, storage=storage), storage


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@cases(60, least=20)
@given(steps(least=1), st.sampled_from(VERSIONS), st.sampled_from(SPECS), st.sampled_from(FILTERS))
def test_batches_have_the_rows_of_the_model_and_of_the_table(
    history: list[Step], version: int, fields: Sequence[tuple[str, str]], where: str
) -> None:
    """Deletes of each kind, in each format, and columns and partitions that changed; with and without a filter."""
    made = History(in_memory(), version, fields).went_on(history)
    table, schema = made.table, made.table.metadata.schema
    whole = read_batches(table).read_all()
    assert row_texts(schema, whole.to_pylist()) == made.expected()
    assert whole.schema == read_table(table).schema
    names = {field.name for field in schema.fields}
    if {"kind", "score"} <= names:
        some, expected = read_batches(table, where=where).read_all(), read_table(table, where=where)
        assert row_texts(schema, some.to_pylist()) == row_texts(schema, expected.to_pylist())
    chosen = ["_pos", "id", "_file"]
    assert multiset(read_batches(table, select=chosen).read_all()) == multiset(read_table(table, select=chosen))


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_pyiceberg_reads_the_same_rows_after_changes(lake: Lake, version: int) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("kind", pa.string()), ("number", pa.int32())])

    def rows(first: int, schema: pa.Schema) -> pa.Table:
        values = {"id": range(first, first + 50), "kind": [f"k{n % 3}" for n in range(50)], "number": range(50)}
        return pa.table({**values, "land": values["kind"], "note": ["new"] * 50}).select(schema.names).cast(schema)

    table = create_table(lake.catalog, EVENTS, columns, partition_by=[("kind", "identity")], format_version=version)
    table = append(table, [rows(0, columns), rows(50, columns)])
    target = data_files(table)[0].file_path
    by_file = partial(delete_positions, table, [(target, 0), (target, 3)])
    table = by_file() if version == 2 else delete_by_vector(table, target, [0, 3])
    changes = [RenameColumn("kind", "land"), UpdateColumnType("number", "long"), AddColumn("note", "string")]
    table = update_schema(table, [*changes, MoveFirst("number")])
    table = update_spec(table, [RemovePartitionField("kind"), AddPartitionField("id", "bucket[4]")])
    later = pa.schema([("number", pa.int64()), pa.field("id", pa.int64(), nullable=False)])
    later = pa.schema([*later, ("land", pa.string()), ("note", pa.string())])
    table = append(table, rows(100, later))
    table = update_schema(table, [DropColumn("number")])
    for where in ("id >= 0", "id > 40 and land = 'k1'"):
        theirs = lake.foreign().scan(row_filter=where).to_arrow_batch_reader().read_all()
        ours = read_batches(table, where=where).read_all()
        assert ours.column_names == theirs.column_names
        assert multiset(ours) == multiset(theirs)
    assert read_batches(table).read_all().num_rows == 148


def test_data_files_are_opened_one_at_a_time_on_demand(lake: Lake) -> None:
    table, storage = watched(lake.filled(commits=2, files=3, rows=20))
    files = {file.file_path for file in data_files(table)}
    reader = read_batches(table)
    assert not files & {location for location, _ in storage.streams}
    seen = []
    for batch in reader:
        assert batch.num_rows == 20
        assert len(files & {*storage.open_now}) <= 1
        seen.append(len(files & {location for location, _ in storage.streams}))
    assert seen == [1, 2, 3, 4, 5, 6]
    assert not files & {*storage.open_now}


def test_a_row_group_is_read_when_its_rows_are_wanted(lake: Lake) -> None:
    """Of one file with several, the first rows come while the rest is not read yet."""
    table = lake.create((), write__parquet__row_group_limit="100", write__parquet__row_group_size_bytes="4096")
    table = append(table, [events(0, 2_000)])
    sizes = [batch.num_rows for batch in read_batches(table)]
    assert sum(sizes) == 2_000
    assert max(sizes) < 2_000


def test_who_stops_early_leaves_no_file_open(lake: Lake) -> None:
    table, storage = watched(lake.filled(commits=1, files=3, rows=20))
    files = {file.file_path for file in data_files(table)}
    reader = read_batches(table)
    next(reader)
    assert len(files & {*storage.open_now}) == 1
    del reader
    assert not files & {*storage.open_now}
    assert len(files & {location for location, _ in storage.streams}) == 1


def test_equality_delete_applies_to_successive_files(lake: Lake) -> None:
    table = lake.create(())
    table = append(table, [events(number, 20) for number in range(4)])
    keys = read_table(table, select=["id"]).slice(5, 30)
    table = append(delete_equal(table, keys, ["id"]), [events(0, 20)])
    whole = read_batches(table).read_all()
    assert whole.num_rows == 70
    assert multiset(whole) == multiset(read_table(table))


def test_a_version_is_chosen_as_for_scan(lake: Lake) -> None:
    first = lake.filled(commits=1, files=1, rows=20)
    table = create_branch(first, "audit")
    table = append(table, [events(7, 20)], branch="audit")
    table = append(table, [events(8, 20), events(9, 20)])
    start, head = first.metadata.current_snapshot_id, table.metadata.current_snapshot_id
    for version, rows in (
        ({}, 60),
        ({"ref": "audit"}, 40),
        ({"snapshot_id": start}, 20),
        ({"as_of": timedelta(0)}, 60),
        ({"start_snapshot_id": start, "end_snapshot_id": head}, 40),
    ):
        whole = read_batches(table, **version).read_all()
        assert whole.num_rows == rows
        assert multiset(whole) == multiset(read_table(table, **version))


def test_a_table_without_a_snapshot_has_its_columns_and_no_batch(lake: Lake) -> None:
    reader = read_batches(lake.create())
    assert reader.schema.names == ["id", "kind", "at", "amount", "tags"]
    assert [*reader] == []


def test_usage_errors_are_immediate_and_lost_file_is_late(lake: Lake) -> None:
    """A wrong argument is refused at once; a lost data file only when its rows are read."""
    table = lake.filled(commits=1, files=3, rows=20)
    with pytest.raises(UsageError, match="is no Spark session"):
        read_batches(table, "id > 5")  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="there is no column 'idd'"):
        read_batches(table, select=["idd"])
    last = sorted(file.file_path for file in data_files(table))[-1]
    Path(urlparse(last).path).unlink()
    reader = read_batches(table)
    assert next(reader).num_rows == 20
    with pytest.raises(MissingFileError, match="there is no such file"):
        reader.read_all()


class Rows:
    """In the place of a DataFrame: says how it was asked for its plan."""

    def explain(self, extended: Any = None, mode: Any = None) -> None:
        sys.stdout.write(f"Spark's plan, {extended}, {mode}\n")


def test_explain_prints_icekeep_plan_before_sparks(capsys: Any) -> None:
    """The table is planned only when explain is called."""
    asked = []

    def plan() -> Any:
        asked.append(1)
        return plan_scan(add(memory_table(), "a", "b"), no_spark)

    rows = Rows()
    assert explaining(rows, "db.events", plan) is rows  # type: ignore[arg-type, comparison-overlap]
    assert not asked, "planned before anybody asks"
    rows.explain(mode="formatted")
    out = capsys.readouterr().out
    assert out.startswith("== icekeep: scan of db.events, snapshot ")
    assert out.endswith("Spark's plan, None, formatted\n")
    assert "data files   2 of 2 read, 200 B, up to 20 rows\n" in out


def test_plan_text_reports_skipped_files_and_deletes() -> None:
    table = memory_table(spec=BY_KIND)
    for kind in ("x", "y", "z"):
        table = add(table, data_file(f"{kind}1", partition=(kind,)), data_file(f"{kind}2", partition=(kind,)))
    table = add_deletes(table, position_deletes("d", "x1", partition=("x",)), named=("x1",))
    text = plan_text("db.events", plan_scan(table, no_spark, where="kind = 'x'"))
    assert "manifests    2 of 4 opened\n" in text
    assert "data files   2 of 6 read, 200 B, up to 20 rows\n" in text
    assert "             left out: 4 with their manifests, 0 by their partition, 0 by bounds of their columns\n" in text
    assert "deletes      1 position delete files\n" in text
    assert "deletes      none\n" in plan_text("db.events", plan_scan(table, no_spark, where="kind = 'y'"))


def test_a_table_without_data_has_nothing_to_read() -> None:
    text = plan_text("db.events", plan_scan(memory_table(), no_spark))
    assert "no snapshot ==" in text
    assert "data files   0 of 0 read" in text


ROWS = schema_of(column(1, "id", LONG), column(2, "text", STRING))
COUNT = 20_000
PARTITION = PartitionCodec(StructType(())).encode(())


def scanned(monkeypatch: pytest.MonkeyPatch, schema: Any, memory_bytes: int) -> list[pa.Table]:
    """What a task holds of one row group of 20 MB, one table after the other."""
    storage, held = MemoryStorage(), []
    fields = [pa.field(f.name, t, metadata={b"PARQUET:field_id": str(f.field_id).encode()}) for f, t in TYPES]
    texts = [str(n) * 200 for n in range(COUNT)]
    table = pa.Table.from_arrays([pa.array(range(COUNT), pa.int64()), pa.array(texts)], schema=pa.schema(fields))
    data = parquet_bytes(table, COUNT, use_dictionary=False, data_page_size=64 * 1024)
    storage.create("memory:/t/a", data)

    class Noting(LiveRowsReader):
        def read(self, *args: Any, **facts: Any) -> Any:
            for rows in super().read(*args, **facts):
                held.append(rows)
                yield rows

    monkeypatch.setattr(scan, "LiveRowsReader", Noting)
    monkeypatch.setattr(scan, "task_memory_bytes", lambda slots: memory_bytes // slots)
    types = {0: StructType(())}
    planned = Residuals(where=ALWAYS_TRUE, schema=ROWS, specs={0: UNPARTITIONED}, partition_types=types)
    reader = scan.TaskReader(
        storage=storage,
        planned=planned,
        selected=schema,
        columns=spark_columns(schema),
        table_schemas=(ROWS,),
        name_mapping=None,
        slots=2,
    )
    split = {"file_path": "memory:/t/a", "file_format": "PARQUET", "spec_id": 0, "partition": PARTITION, "start": 0}
    split |= {"length": len(data), "deletes": [], "first_row_id": None, "sequence_number": 1}
    split["reached_by"] = packed_positions(PositionSet())
    assert sum(batch.num_rows for batch in reader.read([split])) == COUNT
    return held


TYPES = [*zip(ROWS.fields, (pa.int64(), pa.string()), strict=True)]


@pytest.mark.slow
def test_large_row_group_is_scanned_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group that compaction reads well must not end the Python worker of a scan."""
    assert [rows.num_rows for rows in scanned(monkeypatch, ROWS, 1024 * MIB)] == [COUNT]
    held = scanned(monkeypatch, ROWS, 64 * MIB)
    assert len(held) > 4
    assert max(rows.nbytes for rows in held) < 5 * MIB


@pytest.mark.slow
def test_a_scan_of_narrow_columns_needs_the_memory_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that could not hold any batch says so."""
    only_ids = schema_of(ROWS.fields[0])
    assert [rows.num_rows for rows in scanned(monkeypatch, only_ids, 2 * MIB)] == [COUNT]
    with pytest.raises(UnsupportedError, match=r"row group 0 takes .* bytes and reading it in batches"):
        scanned(monkeypatch, ROWS, 200_000)


HISTORIES = 100


@cases(HISTORIES, least=25)
@given(steps(least=1), st.sampled_from(VERSIONS), st.sampled_from(SPECS))
def test_scan_has_the_rows_of_the_model(steps: list[Step], version: int, fields: Sequence[tuple[str, str]]) -> None:
    """Rows lie where the model says, too: in partitions that follow from their values when they were written."""
    history = History(in_memory(), version, fields).went_on(steps)
    assert history.by.rows() == history.expected()
    places = {row.id: row.place for row in history.model.rows}
    assert all(place.is_same(places[id_]) for id_, place in history.found_places().items())


def compares_lost_columns(history: History) -> bool:
    """Whether rows were deleted by a column that is no longer there."""
    compared = {id_ for entry in live_entries(history.table) for id_ in entry.data_file.equality_ids or ()}
    return bool(compared - history.schema.fields_by_id.keys())


@pytest.mark.nightly
def test_histories_have_what_they_are_to_have() -> None:
    """Of fifty that follow from numbers: what they do, and that each kind of delete takes rows away and leaves others."""
    histories = [History.of(number, in_memory()) for number in range(50)]
    metadata = [history.table.metadata for history in histories]
    files = [entry.data_file for history in histories for entry in live_entries(history.table)]
    assert {file.content for file in files} == set(FileContent)
    assert {file.file_format for file in files} == {*FORMATS, "PUFFIN"}
    assert {file.referenced_data_file is None for file in files if file.content is FileContent.POSITION_DELETES} == {
        True,
        False,
    }
    assert sum(len(one.specs_by_id) > 1 for one in metadata) > 10
    assert sum(len(one.schemas) > 1 for one in metadata) > 10
    assert any(field.initial_default is not None for one in metadata for field in one.schema.fields)
    assert any(map(compares_lost_columns, histories))
    counts = [(len(history.model.live), len(history.model.rows)) for history in histories]
    assert 0.2 < sum(live for live, _ in counts) / sum(written for _, written in counts) < 0.8
