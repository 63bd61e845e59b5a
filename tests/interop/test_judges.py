"""What the judges that share no code with Iceberg Java read, and the faults that are known of them, one by one."""

import json
import uuid
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.spec.partitioning import build_spec
from icekeep.spec.types import LONG, TIMESTAMP, UUID, PrimitiveType, decimal
from icekeep.tables.verbs import append, create_table
from kit.columns import column, schema_of
from kit.deletes import data_files
from kit.java import IcebergJava
from kit.judging.concerns import Kind
from kit.judging.examples import EXAMPLES, HISTORY, example
from kit.judging.faults import (
    ALL_OF_JAVA,
    FAULTS,
    OF_JAVA,
    TIMES_OF_JAVA,
    TWO_DECIMALS_OF_JAVA,
    TWO_UUIDS_OF_JAVA,
    VERSIONS,
    Fault,
    faults_of,
)
from kit.judging.panel import LEFT_OUT, JudgeError, Panel, answer_texts, our_rows
from kit.lake import Lake
from kit.rows import scanned_rows, to_wire
from kit.runtime import no_spark

WRONG_BEFORE = (
    "keys of one column",
    "keys of one partition",
    "zero keys",
    "keys in many specs",
    "keys of a default",
    "keys of a promoted column",
    "keys too large for older files",
)
"""Examples with equality deletes that some judge reads wrongly without an error."""

OF_EACH_FAMILY = ("DuckDB", "ClickHouse", "iceberg-rust", "PyIceberg")
"""Judges that share no code with each other nor with Iceberg Java, and need no server and no compiler."""

Made = Callable[[str], Table]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Makes the examples, each once, apart from the directories whose tables all judges read at the end of a test."""
    lake = Lake(tmp_path_factory.mktemp("judged"))
    of_java = {
        OF_JAVA: _named_by_java,
        TWO_UUIDS_OF_JAVA: lambda *by: _partitioned_by_java(*by, UUID, uuid.UUID(int=1), uuid.UUID(int=2)),
        TWO_DECIMALS_OF_JAVA: lambda *by: _partitioned_by_java(*by, decimal(9, 2), Decimal("1.00"), Decimal("2.50")),
        TIMES_OF_JAVA: _timed_by_java,
    }

    @cache
    def make(name: str) -> Table:
        if name in of_java:
            return of_java[name](lake, request.getfixturevalue("java"))
        return example(lake, name)

    return make


@pytest.mark.deep
def test_the_list_of_faults_is_of_these_versions(panel: Panel) -> None:
    assert {judge.name: judge.version for judge in panel.judges} == VERSIONS


@pytest.mark.deep
@pytest.mark.parametrize("name", [*EXAMPLES, HISTORY, *ALL_OF_JAVA])
def test_who_is_not_known_to_fail_reads_it(name: str, made: Made, panel: Panel) -> None:
    left_out = panel.counts[LEFT_OUT]
    assert panel.disagreements(made(name)) == []
    assert panel.counts[LEFT_OUT] == left_out


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.judge} {fault.what}")
def test_a_fault_is_still_there(fault: Fault, made: Made, panel: Panel) -> None:
    table, judge = made(fault.example), panel.judge(fault.judge)
    assert fault in faults_of(fault.judge, Kind(table))
    if fault.says:
        with pytest.raises(JudgeError, match=fault.says):
            judge.rows(table)
        return
    rows = judge.rows(table)
    expected = answer_texts(table.metadata.schema, our_rows(table), has_null_lists=judge.has_null_lists)
    assert (_numbers(expected - rows), _numbers(rows - expected)) == (fault.missing, fault.added)


@pytest.mark.deep
def test_names_beyond_avro_are_read_after_rewrite_manifests(made: Made, panel: Panel) -> None:
    table = made(OF_JAVA)
    assert rewrite_manifests(table, no_spark).rewritten_manifests_count == 2
    table = table.catalog.load(table.identifier)
    for name in ("DuckDB", "iceberg-rust"):
        assert panel.judge(name).rows(table).total() == 4
    # It got further, to the next of its faults.
    with pytest.raises(JudgeError, match="no such file"):
        panel.judge("iceberg-go").rows(table)


@pytest.mark.deep
@pytest.mark.parametrize("name", WRONG_BEFORE)
def test_once_compacted_all_read_it(name: str, tmp_path: Path, panel: Panel, spark_session: SparkSession) -> None:
    lake = Lake(tmp_path)
    table = example(lake, name)
    assert any(fault.example == name and not fault.says for fault in FAULTS)
    compact(table, spark_session, options={"rewrite-all": "true", "remove-dangling-deletes": "true"})
    table = lake.catalog.load(table.identifier)
    expected = answer_texts(table.metadata.schema, our_rows(table))
    assert expected == scanned_rows(table)
    for judge in panel.judges:
        assert judge.rows(table) == expected, judge.name


@pytest.mark.parametrize("judge", OF_EACH_FAMILY)
def test_once_compacted_a_judge_of_each_family_reads_it(
    judge: str, tmp_path: Path, panel: Panel, spark_session: SparkSession
) -> None:
    lake = Lake(tmp_path)
    table = example(lake, HISTORY)
    compact(table, spark_session, options={"rewrite-all": "true", "remove-dangling-deletes": "true"})
    table = lake.catalog.load(table.identifier)
    assert panel.judge(judge).rows(table) == answer_texts(table.metadata.schema, our_rows(table))


def _named_by_java(lake: Lake, java: IcebergJava) -> Table:
    java.open_catalog("local", lake.properties)
    schema = schema_of(column(1, "id", LONG), column(2, "é", LONG))
    java.create_table("local.db.named", schema, build_spec(schema, [("é", "identity", None)]))
    for number in range(2):
        java.append("local.db.named", [[number, 1], [number, None]])
    return lake.catalog.load(("db", "named"))


def _partitioned_by_java(lake: Lake, java: IcebergJava, type_: PrimitiveType, one: object, two: object) -> Table:
    java.open_catalog("local", lake.properties)
    schema = schema_of(column(1, "id", LONG), column(2, "one", type_), column(3, "two", type_))
    spec = build_spec(schema, [(name, "identity", None) for name in ("one", "two")])
    java.create_table(f"local.db.{type_.name}s", schema, spec)
    java.append(f"local.db.{type_.name}s", [to_wire(schema.as_struct(), {"id": 1, "one": one, "two": two})])
    return lake.catalog.load(("db", f"{type_.name}s"))


def _timed_by_java(lake: Lake, java: IcebergJava) -> Table:
    java.open_catalog("local", lake.properties)
    schema = schema_of(column(1, "id", LONG), column(2, "at", TIMESTAMP))
    java.create_table("local.db.times", schema)
    java.append(
        "local.db.times", [to_wire(schema.as_struct(), {"id": 1, "at": -31_535_999_999_999})], file_format="orc"
    )
    return lake.catalog.load(("db", "times"))


def _numbers(rows: Counter[str]) -> tuple[int, ...]:
    return tuple(sorted(json.loads(row)[0] for row in rows.elements()))


FILES = 6
ROWS = 600
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.date32()), ("text", pa.string())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Without Iceberg Java."""
    return Lake(tmp_path)


def filled(lake: Lake, partition_by: tuple[tuple[str, str], ...] = ()) -> Table:
    """Files in one commit each, every one of which has ids from the whole range."""
    table = create_table(lake.catalog, ("db", "t"), SCHEMA, partition_by=partition_by)
    for file in range(FILES):
        rows = [{"id": n, "day": n // 100, "text": f"{n * 7919 % 10007:>040}"} for n in range(file, ROWS, FILES)]
        table = append(table, pa.Table.from_pylist(rows, schema=SCHEMA))
    return table


@pytest.mark.deep
@pytest.mark.parametrize("judge", ["DuckDB", "ClickHouse", "Trino"])
def test_a_sort_leaves_one_file_to_read_where_all_were(
    judge: str, lake: Lake, panel: Panel, spark_session: SparkSession
) -> None:
    table, reader = filled(lake), panel.judge(judge)
    assert reader.files_read(table, "id = 300") == FILES
    options = {"rewrite-all": "true", "target-file-size-bytes": "2048"}
    compact(table, spark_session, strategy="sort", sort_order="id", options=options)
    table = lake.catalog.load(table.identifier)
    assert len(data_files(table)) > 3
    assert reader.files_read(table, "id = 300") == 1
    assert reader.files_read(table, "id < 0") == 0


@pytest.mark.deep
@pytest.mark.parametrize("judge", ["DuckDB", "ClickHouse", "Trino"])
def test_rewritten_manifests_leave_what_is_read_as_it_was(judge: str, lake: Lake, panel: Panel) -> None:
    table, reader = filled(lake, (("day", "identity"),)), panel.judge(judge)
    filters = ("day = DATE '1970-01-03'", "id = 300", "id < 100 AND day = DATE '1970-01-03'", "id > 1000")
    before = [reader.files_read(table, where) for where in filters]
    assert before[0] == FILES
    assert before[3] == 0
    rewrite_manifests(table, no_spark)
    table = lake.catalog.load(table.identifier)
    assert [reader.files_read(table, where) for where in filters] == before
