"""The joins of `planning.deletes` against the pure rule of `spec.applicability`."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from icekeep.errors import InvalidTableError
from icekeep.planning.columns import ENTRIES, REACHING_DELETES
from icekeep.planning.deletes import deletes_in_use, with_deletes
from icekeep.planning.tasks import collected, dataframe_from_tasks, streamed
from icekeep.spec.applicability import reaching_deletes
from icekeep.spec.manifests.encode import PartitionCodec
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.metadata_columns import DELETE_FILE_PATH
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.transforms import Identity, Transform, Void
from icekeep.spec.types import DOUBLE, INT, STRING, NestedField, PrimitiveType, StructType
from kit.table_strategies import partition_tuples

FIELDS = [field.name for field in REACHING_DELETES.value_type]


def _spec(spec_id: int, *transforms: Transform) -> PartitionSpec:
    fields = (
        PartitionField(source_id=n, field_id=999 + n, name=f"p{n}", transform=t) for n, t in enumerate(transforms, 1)
    )
    return PartitionSpec(spec_id=spec_id, fields=tuple(fields))


def _partition_type(*types: PrimitiveType) -> StructType:
    return StructType(tuple(NestedField(field_id=1000 + n, name=f"p{n}", type=t) for n, t in enumerate(types)))


# Spec 0 is unpartitioned, 3 as well, since all its fields were dropped (v1).
SPECS = {0: _spec(0), 1: _spec(1, Identity()), 2: _spec(2, Identity(), Identity()), 3: _spec(3, Void())}
TYPES = {
    0: _partition_type(),
    1: _partition_type(STRING),
    2: _partition_type(DOUBLE, INT),
    3: _partition_type(STRING),
}
CODECS = {spec_id: PartitionCodec(type_) for spec_id, type_ in TYPES.items()}


def entry(path: str, number: int, content: FileContent = FileContent.DATA, **file: Any) -> ManifestEntry:
    facts = {"spec_id": 1, "partition": ("x",), "file_format": "PARQUET", "record_count": 3, "file_size_in_bytes": 100}
    return ManifestEntry(
        status=Status.EXISTING,
        snapshot_id=1,
        sequence_number=number,
        file_sequence_number=number,
        data_file=DataFile(file_path=path, content=content, **{**facts, **file}),
    )


def positions(path: str, number: int, **file: Any) -> ManifestEntry:
    return entry(path, number, FileContent.POSITION_DELETES, **file)


def equality(path: str, number: int, **file: Any) -> ManifestEntry:
    return entry(path, number, FileContent.EQUALITY_DELETES, **{"equality_ids": (1, 5), **file})


def vector(number: int, named: str | None, offset: int = 4, **file: Any) -> ManifestEntry:
    blob = {"referenced_data_file": named, "content_offset": offset, "content_size_in_bytes": 40}
    return positions(file.pop("path", "v.puffin"), number, **{"file_format": "puffin", **blob, **file})


def bounded(lower: bytes | None, upper: bytes | None) -> dict[str, Any]:
    field_id = DELETE_FILE_PATH.field_id
    return {
        "lower_bounds": {1: b"other"} if lower is None else {field_id: lower},
        "upper_bounds": None if upper is None else {1: b"other", field_id: upper},
    }


def columns_of(entry: ManifestEntry) -> dict[str, Any]:
    """An entry under the names of `ENTRIES`."""
    file = entry.data_file
    made = {"manifest_path": "m.avro", "partition": CODECS.get(file.spec_id, CODECS[1]).encode(file.partition)}
    for name in ENTRIES.names:
        if name not in made:
            value = getattr(entry if name in ManifestEntry.__struct_fields__ else file, name)
            made[name] = list(value.items()) if isinstance(value, dict) else value
    return made


def frame(spark: SparkSession, entries: list[ManifestEntry], log: Path | None = None) -> DataFrame:
    """Entries in two tasks, as planning makes them; `log` gets a line for each time that a task runs."""

    def batches(rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        if log is not None:
            with log.open("a", encoding="utf-8") as file:
                file.write("read\n")
        yield pa.RecordBatch.from_pylist(rows, schema=ENTRIES)

    columns = [columns_of(entry) for entry in entries]
    return dataframe_from_tasks(spark, [columns[::2], columns[1::2]], batches, ENTRIES)


def found(planned: DataFrame) -> dict[str, list[dict[str, Any]]]:
    return {row["file_path"]: [d.asDict() for d in row["deletes"]] for row in collected(planned)}


def expected(data: list[ManifestEntry], deletes: list[ManifestEntry]) -> dict[str, list[dict[str, Any]]]:
    def order(delete: ManifestEntry) -> tuple[Any, ...]:
        offset = delete.data_file.content_offset
        return delete.sequence_number, delete.data_file.file_path, -1 if offset is None else offset

    def fields(delete: ManifestEntry) -> dict[str, Any]:
        columns = columns_of(delete)
        ids = columns["equality_ids"]
        return {name: columns[name] for name in FIELDS} | {"equality_ids": None if ids is None else list(ids)}

    reaching = reaching_deletes(data, deletes, SPECS)
    return {path: [fields(d) for d in sorted(found, key=order)] for path, found in reaching.items()}


_NUMBERS = st.integers(1, 6)
_NAMES = st.sampled_from(["a", "ab", "abc", "b", "é", "\U0001f600", "B"])


def _one_nan(partition: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(math.nan if isinstance(value, float) and math.isnan(value) else value for value in partition)


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Data files in a few partitions, and delete files of each kind that break no rule."""
    places = [
        {"spec_id": spec_id, "partition": _one_nan(draw(partition_tuples(TYPES[spec_id])))}
        for spec_id in draw(st.lists(st.sampled_from([0, 1, 1, 2, 2, 2, 3]), min_size=1, max_size=4))
    ]
    place = st.sampled_from(places)
    data = [entry(name, draw(_NUMBERS), **draw(place)) for name in sorted(draw(st.sets(_NAMES, max_size=5)))]
    deletes: list[ManifestEntry] = []
    for n in range(draw(st.integers(0, 8))):
        kind, number = (
            draw(st.sampled_from(["positions", "bounds", "equality", "of one file", "vector"])),
            draw(_NUMBERS),
        )
        named = draw(st.sampled_from(data)).data_file if data else None
        if kind == "equality":
            deletes.append(equality(f"d{n}", number, key_metadata=b"k", **draw(place)))
        elif kind == "bounds":
            low, high = sorted(draw(st.tuples(_NAMES, _NAMES)))
            cut = st.sampled_from([None, 1, 2, 9])
            lower, upper = (None if (n := draw(cut)) is None else text.encode()[:n] for text in (low, high))
            deletes.append(positions(f"d{n}", number, **bounded(lower, upper), **draw(place)))
        elif kind == "positions" or named is None:
            deletes.append(positions(f"d{n}", number, **draw(place)))
        else:
            where = {"spec_id": named.spec_id, "partition": named.partition}
            path = draw(st.sampled_from([named.file_path, named.file_path, "gone"]))
            if kind == "of one file":
                deletes.append(positions(f"d{n}", number, referenced_data_file=path, **where))
            elif not any(d.data_file.content_offset and d.data_file.referenced_data_file == path for d in deletes):
                deletes.append(vector(number, path, 4 + n, **where))
    return data, deletes


def _moved(entry: ManifestEntry, table: int) -> ManifestEntry:
    """An entry in the directory of a table, with what it says of paths."""
    file, prefix, field_id = entry.data_file, f"t{table}/", DELETE_FILE_PATH.field_id
    changes: dict[str, Any] = {"file_path": prefix + file.file_path}
    if file.referenced_data_file is not None:
        changes["referenced_data_file"] = prefix + file.referenced_data_file
    for name in ("lower_bounds", "upper_bounds"):
        bounds = getattr(file, name)
        if bounds and field_id in bounds:
            changes[name] = {**bounds, field_id: prefix.encode() + bounds[field_id]}
    return replace(entry, data_file=replace(file, **changes))


@pytest.fixture(scope="module")
def tables() -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Many small tables side by side in one: their global deletes reach them all."""
    data: list[ManifestEntry] = []
    deletes: list[ManifestEntry] = []
    count = 0

    @settings(max_examples=80, database=None, suppress_health_check=list(HealthCheck))
    @given(_tables())
    def gather(table: tuple[list[ManifestEntry], list[ManifestEntry]]) -> None:
        nonlocal count
        count += 1
        data.extend(_moved(e, count) for e in table[0])
        # A global delete reaches all tables, and the others shall not drown in them.
        deletes.extend(
            _moved(e, count)
            for e in table[1]
            if count % 10 == 0
            or e.data_file.content is not FileContent.EQUALITY_DELETES
            or e.data_file.spec_id in (1, 2)
        )

    gather()
    return data, deletes


@pytest.mark.parametrize("is_counted", [True, False])
def test_joins_give_each_data_file_the_deletes_that_the_rule_gives_it(
    spark_session: SparkSession, tables: tuple[list[ManifestEntry], list[ManifestEntry]], is_counted: bool
) -> None:
    data, deletes = tables
    planned = with_deletes(
        frame(spark_session, data),
        frame(spark_session, deletes),
        SPECS,
        deletes_count=len(deletes) if is_counted else None,
    )
    assert planned.columns == [*ENTRIES.names, "deletes"]
    assert planned.schema["deletes"].dataType == from_arrow_type(REACHING_DELETES)
    wanted = expected(data, deletes)
    assert found(planned) == wanted
    kinds = {(d["content"], d["file_format"], d["spec_id"] in (0, 3)) for reaching in wanted.values() for d in reaching}
    assert len(kinds) == 6
    assert [] in wanted.values()


A = entry("a", 5)


@pytest.mark.parametrize(
    ("deletes", "problem"),
    [
        ([vector(7, "a"), vector(8, "a", 50)], "data file 'a' has 2 deletion vectors; it may have one"),
        (
            [vector(7, "a", partition=("y",))],
            "delete file 'v.puffin' is for data file 'a', which has another partition spec or partition",
        ),
        (
            [positions("p", 7, referenced_data_file="a", spec_id=3)],
            "delete file 'p' is for data file 'a', which has another partition spec or partition",
        ),
        ([vector(7, None)], "the deletion vector in 'v.puffin' does not say which data file it is for"),
        ([equality("e", 7, spec_id=9)], "delete file 'e' has partition spec 9, which is not there"),
        ([positions("p", 7, spec_id=9)], "delete file 'p' has partition spec 9, which is not there"),
    ],
)
@pytest.mark.parametrize("run", [collected, lambda rows: list(streamed(rows))], ids=["collected", "streamed"])
def test_what_cannot_be_is_refused_by_joins_as_by_the_rule(
    spark_session: SparkSession, deletes: list[ManifestEntry], problem: str, run: Callable[[DataFrame], Any]
) -> None:
    with pytest.raises(InvalidTableError) as of_rule:
        reaching_deletes([A], deletes, SPECS)
    planned = with_deletes(frame(spark_session, [A]), frame(spark_session, deletes), SPECS)
    with pytest.raises(InvalidTableError) as of_joins:
        run(planned)
    assert of_joins.value.message == of_rule.value.message == problem


def test_vectors_and_deletes_of_one_file_that_are_too_old_or_of_no_live_file_break_nothing(
    spark_session: SparkSession,
) -> None:
    elsewhere = {"spec_id": 2, "partition": (0.5, 1)}
    old = [vector(4, "a", **elsewhere), positions("p", 4, referenced_data_file="a", **elsewhere)]
    lost = [vector(7, "gone", **elsewhere), vector(8, "gone", 50), positions("q", 7, referenced_data_file="gone")]
    planned = with_deletes(frame(spark_session, [A]), frame(spark_session, [*old, *lost]), SPECS)
    assert found(planned) == expected([A], [*old, *lost]) == {"a": []}


def test_both_sides_are_read_once(spark_session: SparkSession, tmp_path: Path) -> None:
    data = [A, entry("b", 1, spec_id=0, partition=())]
    deletes = [vector(7, "a"), positions("p", 7), equality("e", 9), equality("g", 9, spec_id=0, partition=())]
    for number, deletes_count in enumerate((None, len(deletes))):
        logs = [tmp_path / f"data{number}", tmp_path / f"deletes{number}"]
        planned = with_deletes(
            frame(spark_session, data, logs[0]),
            frame(spark_session, deletes, logs[1]),
            SPECS,
            deletes_count=deletes_count,
        )
        assert found(planned) == expected(data, deletes)
        # Two tasks each.
        assert [log.read_text(encoding="utf-8").count("read") for log in logs] == [2, 2]


def test_with_few_delete_files_no_data_file_is_shuffled(spark_session: SparkSession) -> None:
    data, deletes = frame(spark_session, [A]), frame(spark_session, [positions("p", 7)])

    def shuffles_of_data(planned: DataFrame) -> bool:
        text = planned._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
        return "SortMergeJoin" in text or "ShuffledHashJoin" in text

    assert not shuffles_of_data(with_deletes(data, deletes, SPECS, deletes_count=1))
    assert shuffles_of_data(with_deletes(data, deletes, SPECS))


def test_a_table_without_unpartitioned_specs_has_no_global_deletes(spark_session: SparkSession) -> None:
    specs = {1: SPECS[1]}
    deletes = [equality("e", 7), equality("older", 5), equality("elsewhere", 7, partition=(None,))]
    planned = with_deletes(frame(spark_session, [A]), frame(spark_session, deletes), specs)
    assert [d["file_path"] for d in found(planned)["a"]] == ["e"]
    assert planned.schema["deletes"].dataType == from_arrow_type(REACHING_DELETES)


def test_only_four_columns_of_data_files_are_needed(spark_session: SparkSession) -> None:
    data = frame(spark_session, [A]).select("file_path", "spec_id", "partition", "sequence_number")
    planned = with_deletes(data, frame(spark_session, [positions("p", 5)]), SPECS)
    assert [d["file_path"] for d in found(planned)["a"]] == ["p"]


def test_each_delete_file_in_use_is_counted_once(spark_session: SparkSession) -> None:
    data = [entry(name, 5, **where) for name in ("a", "b") for where in [{}]] + [entry("c", 5, partition=("y",))]
    deletes = [
        vector(7, "a", 4, record_count=2),
        vector(7, "b", 44, record_count=5),
        vector(7, "gone", 84),
        positions("p", 6, file_size_in_bytes=70),
        positions("q", 6, partition=("y",), file_size_in_bytes=30),
        equality("e", 7, file_size_in_bytes=1000, record_count=9),
        equality("f", 5),
    ]
    planned = with_deletes(frame(spark_session, data), frame(spark_session, deletes), SPECS)
    [row] = collected(deletes_in_use(planned))
    assert row.asDict() == {
        "deletion_vectors_count": 2,
        "deletion_vectors_bytes": 80,
        "deletion_vectors_record_count": 7,
        "position_delete_files_count": 1,
        "position_delete_files_bytes": 30,
        "position_delete_files_record_count": 3,
        "equality_delete_files_count": 1,
        "equality_delete_files_bytes": 1000,
        "equality_delete_files_record_count": 9,
    }
    [none] = collected(deletes_in_use(planned.where(F.lit(False))))
    assert set(none.asDict().values()) == {0}
