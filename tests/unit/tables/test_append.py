"""Rows into files of partitions, and what is left when something goes wrong."""

import hashlib
import re

import msgspec
import pyarrow as pa
import pytest

from icekeep.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    UnsupportedError,
    UsageError,
)
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.properties import data_layout
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import UnknownTransform
from icekeep.spec.types import (
    LONG,
    TIMESTAMP_NS,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    VARIANT,
    GeographyType,
    GeometryType,
    NestedField,
)
from icekeep.spec.updates import RemovePartitionSpecs, SetProperties
from icekeep.tables.refs import create_branch, create_tag, drop_branch
from icekeep.tables.verbs import append, create_table
from kit.columns import column
from kit.data_files import read_table
from kit.memory_catalog import CONFLICTS, IS_UNKNOWN, MemoryCatalog, after, fails, lands_but_raises
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import EVENTS, live, raw, raw_list, stored, swap

SIMPLE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("kind", pa.string())])


@pytest.fixture
def storage():
    return HookedStorage(MemoryStorage())


@pytest.fixture
def catalog(storage):
    catalog = MemoryCatalog(storage)
    catalog.create_namespace(("db",))
    return catalog


@pytest.fixture
def table(catalog):
    return create_table(catalog, "db.events", SIMPLE, partition_by=[("kind", "identity")])


def simple(*pairs) -> pa.Table:
    ids, kinds = zip(*pairs, strict=True)
    return pa.table({"id": ids, "kind": kinds}, schema=SIMPLE)


TWO = simple((1, "x"), (2, "y"), (3, "x"))


def put(table, data=TWO, **options):
    return append(table, data, **options)


def data_files(catalog) -> set[str]:
    return {location for location in stored(catalog) if location.endswith(".parquet")}


def test_append_makes_one_snapshot_and_a_file_per_partition(catalog, table):
    done = put(table, summary={"job": "nightly"})
    assert catalog.load(EVENTS).metadata == done.metadata
    assert len(done.metadata.snapshots) == 1
    summary = done.metadata.current_snapshot.summary
    assert (summary["operation"], summary["job"]) == ("append", "nightly")
    assert (summary["added-records"], summary["added-data-files"], summary["changed-partition-count"]) == (
        "3",
        "2",
        "2",
    )
    names = sorted(location.removeprefix(f"{table.metadata.location}/data/") for location in data_files(catalog))
    uuid_ = r"[0-9a-f-]{36}"
    assert re.fullmatch(
        rf"kind=x/00000-0-{uuid_}-00001\.parquet kind=y/00000-0-{uuid_}-00002\.parquet", " ".join(names)
    )
    assert catalog.runtime.sleeps_ms == []


def test_append_to_branch_leaves_main_unchanged(catalog, table):
    table = create_branch(put(table), "audit")
    main = table.metadata.head()
    done = put(put(table, branch="audit"), branch="audit")
    assert done.metadata.head() == main
    head = done.metadata.head("audit")
    assert (head.summary["total-records"], head.summary["added-records"]) == ("9", "3")
    assert len(live(done, "audit")) == 6
    assert list(done.metadata.ancestors(head.snapshot_id))[-1] == main


def test_append_to_missing_branch_writes_nothing(catalog, storage, table):
    table = create_tag(create_branch(put(table), "audit"), "v1")
    before, written = stored(catalog), storage.fired["write"]
    with pytest.raises(NotFoundError, match="no branch 'audits'; there is 'audit', 'main'"):
        put(table, branch="audits")
    with pytest.raises(UsageError, match="'v1' is a tag; only a branch can be committed to"):
        put(table, branch="v1")
    assert (stored(catalog), storage.fired["write"]) == (before, written)


def test_append_to_dropped_branch_leaves_no_files(catalog, table):
    table = create_branch(put(table), "audit")
    drop_branch(table, "audit")
    before = stored(catalog)
    with pytest.raises(NotFoundError, match="'audit'"):
        put(table, branch="audit")
    assert stored(catalog) == before


def test_each_of_several_tables_gets_files_of_its_own(catalog, table):
    done = put(table, iter([TWO, simple((4, "x")), TWO.slice(0, 0), simple((5, None))]))
    assert done.metadata.current_snapshot.summary["added-data-files"] == "4"
    assert done.metadata.current_snapshot.summary["added-records"] == "5"
    assert sorted(name[:5] for name in live(done)) == ["00000", "00000", "00001", "00003"]


def test_two_appends_never_share_a_name(catalog, table):
    put(put(table))
    assert len(data_files(catalog)) == 4


def test_large_input_is_split_at_target_file_size(catalog):
    properties = {"write.target-file-size-bytes": "60000", "write.parquet.row-group-size-bytes": "20000"}
    table = create_table(catalog, "db.events", SIMPLE, properties=properties)
    text = [hashlib.sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(6000)]
    done = put(table, pa.table({"id": range(6000), "kind": text}, schema=SIMPLE))
    assert len(live(done)) > 1
    assert done.metadata.current_snapshot.summary["added-records"] == "6000"


def test_data_goes_where_the_table_wants_it(catalog):
    table = create_table(catalog, "db.events", SIMPLE, properties={"write.data.path": "memory://lake/elsewhere/"})
    put(table)
    (location,) = data_files(catalog)
    assert location.startswith("memory://lake/elsewhere/00000-0-")


def test_data_is_spread_by_hash_where_the_table_asks_for_it(catalog):
    properties = {"write.object-storage.enabled": "true", "write.data.path": "memory://lake/shared"}
    table = create_table(catalog, "db.events", SIMPLE, properties=properties)
    put(table)
    (location,) = data_files(catalog)
    name = location.rpartition("/")[2]
    assert location == data_layout(table.metadata.location, properties).location(name)
    assert location.endswith(f"/db/events/{name}")


def test_foreign_location_provider_is_refused_before_writing(catalog, storage):
    table = create_table(catalog, "db.events", SIMPLE, properties={"write.location-provider.impl": "a.B"})
    with pytest.raises(UnsupportedError, match=r"location-provider\.impl"):
        put(table)
    assert storage.fired["write"] == 0


def test_a_partition_of_doubles_is_stored_in_full(catalog):
    schema = pa.schema([pa.field("x", pa.float64())])
    table = create_table(catalog, "db.events", schema, partition_by=[("x", "identity")])
    done = put(table, pa.table({"x": [-3e10, 0.1]}, schema=schema))
    (manifest,) = raw_list(done)
    records = raw(done, manifest["manifest_path"])
    assert [record["data_file"]["partition"] for record in records] == [{"x": -3e10}, {"x": 0.1}]


@pytest.mark.parametrize("data", [TWO.slice(0, 0), [], iter([TWO.slice(0, 0)])])
def test_no_rows_are_no_commit_and_no_file(catalog, table, data):
    before = stored(catalog)
    assert put(table, data).metadata == table.metadata
    assert (stored(catalog), catalog.swaps) == (before, [])


def test_columns_are_matched_by_name_and_a_missing_one_is_null(catalog, table):
    put(table, pa.table({"kind": ["x"], "id": pa.array([1], pa.int32())}))
    put(table, pa.table({"id": [2]}))
    paths = sorted(location.split("/data/")[1].split("/")[0] for location in data_files(catalog))
    assert paths == ["kind=null", "kind=x"]


def with_columns(table, *fields):
    """The table as if it had these columns too; the catalog does not know."""
    (schema,) = table.metadata.schemas
    schema = msgspec.structs.replace(schema, fields=(*schema.fields, *fields))
    return msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, schemas=(schema,)))


def test_missing_column_takes_write_default(catalog, table):
    done = put(with_columns(table, NestedField(field_id=3, name="n", type=LONG, initial_default=5, write_default=6)))
    schema = Schema(fields=(NestedField(field_id=3, name="n", type=LONG),))
    found = [read_table(table.storage, location, schema)["n"].to_pylist() for location in sorted(data_files(catalog))]
    assert found == [[6, 6], [6]]
    assert len(done.metadata.snapshots) == 1


def test_missing_required_column_is_refused_before_writing(catalog, storage, table):
    field = NestedField(field_id=3, name="n", type=LONG, required=True, initial_default=5)
    with pytest.raises(UsageError, match="column 'n' is required and missing from the data"):
        put(with_columns(table, field))
    assert storage.fired["write"] == 0


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rows_go_into_tables_of_every_format_version(catalog, version):
    table = create_table(catalog, "db.versioned", SIMPLE, format_version=version)
    done = put(put(table), simple((4, None)))
    assert done.metadata.format_version == version
    assert done.metadata.current_snapshot.summary["total-records"] == "4"
    found = [read_table(table.storage, f, table.metadata.schema).num_rows for f in data_files(catalog)]
    assert sorted(found) == [1, 3]


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
def test_a_property_of_the_table_chooses_the_format(catalog, table, file_format):
    table = swap(table, SetProperties({"write.format.default": file_format.upper()}))
    put(table)
    files = sorted(location for location in stored(catalog) if "/data/" in location)
    assert {location.rpartition(".")[2] for location in files} == {file_format}
    rows = [row for location in files for row in read_table(table.storage, location, table.metadata.schema).to_pylist()]
    assert rows == [{"id": 1, "kind": "x"}, {"id": 3, "kind": "x"}, {"id": 2, "kind": "y"}]


def test_unknown_format_is_refused_before_writing(catalog, storage, table):
    with pytest.raises(UsageError, match="is 'csv'; set 'parquet', 'orc' or 'avro'"):
        put(swap(table, SetProperties({"write.format.default": "csv"})))
    assert storage.fired["write"] == 0


def test_columns_of_version_3_are_written_and_read(catalog, storage, table):
    fields = (column(3, "ns", TIMESTAMP_NS), column(4, "u", UNKNOWN), column(5, "tz", TIMESTAMPTZ_NS))
    data = TWO.append_column("ns", pa.array([1, None, 3], pa.timestamp("ns")))
    data = data.append_column("u", pa.nulls(3)).append_column("tz", pa.array([7] * 3, pa.timestamp("ns", "UTC")))
    put(with_columns(table, *fields), data)
    schema = Schema(fields=fields)
    found = pa.concat_tables(read_table(table.storage, f, schema) for f in sorted(data_files(catalog)))
    assert found["ns"].cast(pa.int64()).to_pylist() == [1, 3, None]
    assert found["tz"].cast(pa.int64()).to_pylist() == [7, 7, 7]
    assert found["u"].null_count == 3


@pytest.mark.parametrize("type_", [VARIANT, GeometryType("geometry"), GeographyType("geography")], ids=str)
def test_uninterpretable_column_is_refused_before_writing(storage, table, type_):
    with pytest.raises(UnsupportedError, match=r"column 'v' has type .*cannot interpret"):
        put(with_columns(table, column(3, "v", type_)))
    assert storage.fired["write"] == 0


def nothing_is_left(catalog, before):
    assert stored(catalog) == before
    assert live(catalog.load(EVENTS)) == {}


@pytest.mark.parametrize(
    "bad",
    [
        pa.table({"id": [1], "other": [1]}),
        pa.table({"kind": ["x"]}),
        pa.table({"id": pa.array([None], pa.int64())}),
        pa.table({"id": ["one"]}),
    ],
)
def test_rows_that_do_not_fit_leave_nothing_of_those_before_them(catalog, storage, table, bad):
    before = stored(catalog)
    with pytest.raises(UsageError):
        put(table, [TWO, bad])
    assert storage.fired["write"] == 2
    nothing_is_left(catalog, before)


@pytest.mark.parametrize("error", [UsageError("the store denies access"), KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_a_write_that_fails_in_the_middle_leaves_nothing(catalog, storage, table, error, write):
    """The third write is that of the manifest, the fourth that of its list: what the commit had not tried is nobody's."""

    def fail(operation, location):
        if operation == "write" and storage.fired["write"] == write:
            raise error

    before = stored(catalog)
    storage.before = fail
    with pytest.raises(type(error)):
        put(table)
    assert storage.fired["write"] == write
    nothing_is_left(catalog, before)


def test_a_source_of_rows_that_fails_leaves_nothing(catalog, storage, table):
    def source():
        yield TWO
        raise KeyboardInterrupt

    before = stored(catalog)
    with pytest.raises(KeyboardInterrupt):
        put(table, source())
    assert storage.fired["write"] == 2
    nothing_is_left(catalog, before)


def test_a_commit_that_is_given_up_leaves_nothing(catalog, table):
    before = stored(catalog)
    catalog.follow(*[CONFLICTS] * 5)
    with pytest.raises(ConflictError):
        put(table)
    assert catalog.runtime.sleeps_ms == [100, 200, 400, 800]
    nothing_is_left(catalog, before)


def test_a_spec_that_vanished_meanwhile_leaves_nothing(catalog, table):
    metadata = msgspec.structs.replace(
        table.metadata,
        partition_specs=(*table.metadata.partition_specs, PartitionSpec(spec_id=1, fields=())),
        default_spec_id=1,
    )
    catalog.drop(EVENTS)
    planned = catalog.create(EVENTS, metadata)
    catalog.drop(EVENTS)
    now = catalog.create(EVENTS, msgspec.structs.replace(metadata, default_spec_id=0))
    swap(now, RemovePartitionSpecs((1,)))
    before = stored(catalog)
    with pytest.raises(ConflictError, match="partition spec 1"):
        put(planned)
    nothing_is_left(catalog, before)


def test_after_an_unknown_outcome_every_file_stays(catalog, table):
    before = stored(catalog)
    catalog.follow(IS_UNKNOWN)
    with pytest.raises(OutcomeUnknownError) as raised:
        put(table)
    assert raised.value.exit_status == 5
    assert len(stored(catalog) - before) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), RuntimeError("driver gone")])
@pytest.mark.parametrize("lands", [False, True])
def test_interrupted_swap_never_removes_data_files(catalog, table, error, lands):
    catalog.follow(lands_but_raises(error) if lands else fails(error))
    with pytest.raises(OutcomeUnknownError):
        put(table)
    assert len(data_files(catalog)) == 2
    named = {f"{table.metadata.location}/data/{name}" for name in live(catalog.load(EVENTS))}
    assert len(named) == (2 if lands else 0)


def test_bad_status_check_property_removes_no_data_files(catalog, table):
    # A bad commit.status-check.* was an error of usage after the commit had landed, and its data was deleted.
    def spoil():
        swap(table, SetProperties({"commit.status-check.num-retries": "often"}))

    catalog.follow(after(spoil, then=CONFLICTS), IS_UNKNOWN)
    with pytest.raises(OutcomeUnknownError):
        put(table)
    assert len(data_files(catalog)) == 2


def test_unknown_transform_is_refused_before_writing(catalog, storage, table):
    field = PartitionField(source_id=2, field_id=1000, name="f", transform=UnknownTransform("zorder"))
    metadata = msgspec.structs.replace(table.metadata, partition_specs=(PartitionSpec(spec_id=0, fields=(field,)),))
    with pytest.raises(UnsupportedError, match="transform that is not known"):
        put(msgspec.structs.replace(table, metadata=metadata))
    assert storage.fired["write"] == 0
