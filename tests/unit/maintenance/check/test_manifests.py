"""Manifest lists, manifests and totals against what they say of each other, and what entries say of columns."""

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap

from icekeep.errors import InvalidTableError
from icekeep.events import SILENT
from icekeep.maintenance.check import manifests as metrics
from icekeep.maintenance.check.faults import Tally
from icekeep.maintenance.check.job import check_totals
from icekeep.maintenance.check.lists import CheckedTable, read_lists
from icekeep.maintenance.check.manifests import METRIC_COLUMNS, SUMS, ColumnTypes, check_manifests, check_metrics
from icekeep.planning.manifests import STORED
from icekeep.spec.evolution import RemovePartitionField
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.spec.types import INT, LONG, STRING, UNKNOWN, UUID, decimal
from icekeep.spec.values import value_from_bytes
from icekeep.tables.verbs import update_spec
from kit.cases import Choices, cases, for_each
from kit.damager import POSITION_DELETES, Damager
from kit.deletes import add_deletes, position_deletes
from kit.manifests import with_schema
from kit.runtime import no_spark
from kit.tables import BY_KIND, EVENTS, add, data_file, memory_table


def checked(table):
    """The tally, and what could be read."""
    tally = Tally()
    snapshots = tuple(sorted(table.metadata.snapshots, key=lambda one: one.timestamp_ms))
    subject = CheckedTable(table=table, snapshots=snapshots, spark=no_spark, listener=SILENT, tally=tally)
    found = check_manifests(subject, read_lists(subject))
    check_totals(subject, found)
    return tally, found


def numbers(tally):
    return dict(tally.counts)


def damager(table):
    return Damager(table.catalog, EVENTS, Choices(1))


@pytest.fixture
def table():
    table = memory_table(spec=BY_KIND)
    table = add(table, data_file("a", partition=("x",)), data_file("b", partition=("y",)))
    return add(table, data_file("c", partition=("z",)))


def test_each_manifest_is_listed_once(table):
    tally, found = checked(table)
    first, second = table.metadata.snapshots
    assert numbers(tally) == {}
    assert found.listed.since == (first.snapshot_id, second.snapshot_id)
    assert found.listed.members == {first.snapshot_id: BitMap([0]), second.snapshot_id: BitMap([0, 1])}
    assert [one[SUMS.index("data_files")] for one in found.sums] == [2, 1]


def test_a_row_that_the_newest_list_has_wrong(table):
    old = next(row for row in damager(table).rows() if row["added_files_count"] == 2)
    damager(table).edit_rows(
        lambda rows: [row.update(added_files_count=7) for row in rows if row["manifest_path"] == old["manifest_path"]]
    )
    tally, found = checked(table)
    [fault] = tally.faults(204)
    assert fault.snapshot_id == table.metadata.snapshots[-1].snapshot_id
    assert fault.where == old["manifest_path"]
    assert found.listed.manifests[0].added_files_count == 2


NO_COLUMNS = '{"type": "struct", "fields": []}'


@for_each(
    ("header", "detail"),
    [
        ({"schema": None, "content": None}, "no 'schema', no 'content'"),
        ({"partition-spec": None, "partition-spec-id": None}, "no 'partition-spec', no 'partition-spec-id'"),
        ({"schema": "[]"}, "a 'schema' that is no schema"),
        ({"schema": NO_COLUMNS}, "a 'schema' without column 2, the source of partition field 'kind'"),
        ({"partition-spec": '{"spec-id": 0, "fields": []}'}, "a 'partition-spec' that is no list of partition fields"),
        ({"partition-spec": "[]", "schema": NO_COLUMNS}, "a 'partition-spec' of 0 fields, and partitions of 1"),
        # Those of version 1 need not say what they hold.
        ({"format-version": None, "content": None, "partition-spec-id": None}, None),
        ({"format-version": "1", "content": None, "schema-id": None}, None),
    ],
)
def test_a_header_that_some_engines_do_not_read_is_told(header, detail):
    table = add(memory_table(spec=BY_KIND), data_file("a", partition=("x",)))
    [row] = damager(table).rows()
    damager(table).edit_header(row["manifest_path"], header)
    tally, _ = checked(table)
    assert numbers(tally) == ({} if detail is None else {234: 1})
    assert [fault.detail for fault in tally.faults(234)] == ([] if detail is None else [f"its header has {detail}"])


def test_an_unreadable_manifest(table):
    row = damager(table).rows()[0]
    table.storage.delete_many([row["manifest_path"]])
    tally, found = checked(table)
    assert numbers(tally) == {202: 1}
    assert len(found.listed.manifests) == 1
    assert {gap.why for gap in tally.gaps()} == {"not all of its manifests were read"}
    assert found.listed.unread == {table.metadata.current_snapshot_id}


def test_a_manifest_list_that_is_gone(table):
    head = table.metadata.current_snapshot
    table.storage.delete_many([head.manifest_list])
    tally, found = checked(table)
    assert numbers(tally) == {201: 1}
    assert tally.faults(201)[0].where == head.manifest_list
    assert [gap.what for gap in tally.gaps()] == [f"snapshot {head.snapshot_id}"]
    assert head.snapshot_id not in found.listed.members


def test_a_header_of_another_spec(table):
    table = update_spec(table, [RemovePartitionField("kind")])
    damager(table).edit_row(damager(table).rows()[0]["manifest_path"], partition_spec_id=1)
    tally, found = checked(table)
    assert numbers(tally) == {210: 1}
    assert tally.faults(210)[0].detail == "it is of partition spec 0, its manifest list says 1"
    assert {one.partition_spec_id for one in found.listed.manifests} == {0}


def test_partitions_that_lack_a_field(table):
    path = damager(table).rows()[0]["manifest_path"]

    def renumbered(schema):
        file = next(field for field in schema["fields"] if field["name"] == "data_file")["type"]
        partition = next(field for field in file["fields"] if field["name"] == "partition")["type"]
        partition["fields"][0]["field-id"] = 4711
        return schema

    data = with_schema(table.storage.read(path), renumbered)
    damager(table).write(path, data)
    damager(table).edit_row(path, manifest_length=len(data))
    tally, _ = checked(table)
    assert numbers(tally) == {216: 1}
    assert tally.faults(216)[0].detail == "its partitions lack 'kind' of spec 0"


def test_a_delete_file_among_data_files_is_told():
    table = add(memory_table(), data_file("a"))
    place = damager(table).entry()
    damager(table).edit_file(place, file_format="puffin", content=1)
    tally, _ = checked(table)
    assert numbers(tally) == {211: 1}


@for_each(("lower", "upper", "expected"), [(b"z", b"a", {226: 1}), (b"a", b"z", {}), (b"\xff", b"z", {225: 1})])
def test_bounds_of_paths(lower, upper, expected):
    table = add_deletes(add(memory_table(), "a"), position_deletes("p", "a"), named=("a",))
    place = damager(table).entry(POSITION_DELETES)
    bounds = {
        name: [{"key": DELETE_FILE_PATH.field_id, "value": bound}]
        for name, bound in (("lower_bounds", lower), ("upper_bounds", upper))
    }
    damager(table).edit_file(place, **bounds)
    tally, _ = checked(table)
    assert numbers(tally) == expected


def test_a_wrong_total_that_is_carried_on(table):
    wrong = {"total-data-files": 5}
    snapshots = [
        replace(one, summary={**one.summary, "total-data-files": str(int(one.summary["total-data-files"]) + 5)})
        for one in table.metadata.snapshots
    ]
    table = replace(table, metadata=replace(table.metadata, snapshots=tuple(snapshots)))
    tally, _ = checked(table)
    [fault] = tally.faults(215)
    assert fault.snapshot_id == snapshots[0].snapshot_id
    assert fault.facts["totals"] == {name: {"recorded": "7", "difference": by} for name, by in wrong.items()}


def test_a_total_that_is_no_number_is_told(table):
    last = table.metadata.snapshots[-1]
    last = replace(last, summary={**last.summary, "total-records": "many"})
    table = replace(table, metadata=replace(table.metadata, snapshots=(table.metadata.snapshots[0], last)))
    tally, _ = checked(table)
    assert "total-records 'many' is no number" in tally.faults(215)[0].detail


def test_a_sequence_number_of_another_snapshot(table):
    """Lower, deletes that came before would reach its rows."""
    newest = max(damager(table).rows(), key=lambda row: row["sequence_number"])
    damager(table).edit_row(newest["manifest_path"], sequence_number=1, min_sequence_number=1)
    tally, _ = checked(table)
    assert tally.faults(208)[0].where == newest["manifest_path"]
    assert "its sequence number is 1, that of snapshot" in tally.faults(208)[0].detail


def test_a_manifest_path_that_is_no_location(table):
    damager(table).edit_rows(lambda rows: rows[0].update(manifest_path="nowhere"))
    tally, found = checked(table)
    assert numbers(tally)[202] == 1
    assert table.metadata.current_snapshot_id in found.listed.unread


def test_counts_beyond_64_bits(table):
    place = next(one for one in damager(table).entries() if one.index == 1)
    for index in (0, 1):
        damager(table).edit_file(place._replace(index=index), record_count=2**62 - 1)
    tally, found = checked(table)
    assert max(one[SUMS.index("records")] for one in found.sums) == 2**63 - 2
    assert 215 in tally.counts


def test_a_column_that_had_two_types(table):
    """A table that was replaced keeps ids by name, and its old snapshots."""
    schema = table.metadata.schema
    text = replace(schema.fields[0], type=STRING)
    replaced = replace(schema, schema_id=schema.schema_id + 1, fields=(text, *schema.fields[1:]))
    place = damager(table).entry()
    damager(table).edit_file(place, lower_bounds=[{"key": 1, "value": b"\xff\xfe"}], upper_bounds=[])
    assert 225 in checked(table)[0].counts
    both = replace(table.metadata, schemas=(schema, replaced), current_schema_id=replaced.schema_id)
    assert 225 not in checked(replace(table, metadata=both))[0].counts


TYPES = {1: INT, 2: LONG, 3: STRING, 4: UUID, 5: decimal(9, 2), 6: UNKNOWN, 7: STRING, 8: LONG}
KNOWN = ColumnTypes(TYPES, frozenset(TYPES.keys() - {7}))
IDS = st.integers(0, 9)
BOUNDS = st.sampled_from([b"", b"a", b"b", b"\xff", b"\1\0\0\0", b"\2\0\0\0", b"\3\0\0\0\0\0\0\0", bytes(16)])
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            name: st.none() | st.dictionaries(IDS, BOUNDS if "bounds" in name else st.integers(-1, 3), max_size=5)
            for name in METRIC_COLUMNS
        }
    ),
    max_size=4,
)


def batch_of(entries):
    columns = [
        pa.array([None if e[n] is None else [*e[n].items()] for e in entries], STORED.field(n).type)
        for n in METRIC_COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, names=[*METRIC_COLUMNS])


def told(entries, known=KNOWN):
    found = {}
    for number, row, detail in check_metrics(batch_of(entries), known):
        found.setdefault((number, row), detail)
    return found


def value(type_, bound):
    if bound is None:
        return None
    try:
        return value_from_bytes(type_, bound)
    except InvalidTableError:
        return None


def wrong_columns(entry):
    """The same, one column at a time."""
    wrong = {225: set(), 226: set(), 227: set()}
    counts, nulls, nans, lower, upper = ({} if entry[name] is None else entry[name] for name in METRIC_COLUMNS)
    for id_, type_ in TYPES.items():
        if type_ is not UNKNOWN:
            low, high = (value(type_, bounds.get(id_)) for bounds in (lower, upper))
            if (id_ in lower and low is None) or (id_ in upper and high is None):
                wrong[225].add(id_)
            if None not in (low, high) and type_ is not UUID and id_ in KNOWN.plain and low > high:
                wrong[226].add(id_)
        some = [one[id_] for one in (counts, nulls, nans) if id_ in one]
        if id_ in KNOWN.plain and any(n < 0 or (id_ in counts and n > counts[id_]) for n in some):
            wrong[227].add(id_)
    return wrong


@cases(200)
@given(ENTRIES)
def test_each_column_is_judged_as_if_it_were_alone(entries):
    expected = {
        (number, row): ", ".join(map(str, sorted(ids)))
        for row, entry in enumerate(entries)
        for number, ids in wrong_columns(entry).items()
        if ids
    }
    found = told(entries)
    assert found.keys() == expected.keys()
    assert all(f" {ids} " in found[key] for key, ids in expected.items())


def test_columns_of_one_type_are_looked_at_together():
    """A manifest of a wide table has few entries, each with thousands of bounds."""
    wide = {id_: STRING if id_ % 2 else LONG for id_ in range(1, 2001)}
    bounds = {id_: b"a" if id_ % 2 else bytes(8) for id_ in wide}
    counts = dict.fromkeys(wide, 1)
    entry = dict(zip(METRIC_COLUMNS, (counts, counts, {}, bounds, bounds), strict=True))
    with mock.patch.object(metrics, "decode_bounds", wraps=metrics.decode_bounds) as decoding:
        assert told([entry] * 2, ColumnTypes(wide, frozenset(wide))) == {}
    assert decoding.call_count == 4
