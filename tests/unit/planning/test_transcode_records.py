"""Manifests as records: whichever decoder reads them, they are the live entries, each with its old position."""

import math
from collections.abc import Callable
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from icekeep.planning import transcode
from icekeep.planning.decoder import ManifestDecoder, NotReadError
from icekeep.planning.transcode import (
    PLACES_A_MANIFEST,
    RECORDS,
    BoundPart,
    PartitionPart,
    RecordTarget,
    cluster_key,
    entry_keys,
    needs_bounds,
    sort_parts,
)
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
    BINARY,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    ListType,
    NestedField,
    StructType,
    decimal,
    parse_type,
)
from icekeep.spec.values import sort_key, value_to_bytes
from kit.cases import cases, for_each
from kit.manifests import (
    DAY,
    UNPARTITIONED,
    added,
    blocks,
    data_file,
    deleted,
    encode_block,
    existing,
    field_of,
    recounted,
    with_schema,
    write_manifest,
)
from kit.rewritten_manifests import ManifestStore, target_of
from kit.strategies import manifest_entries, partition_types, primitive_types, values_of

DATAFUSION, FASTAVRO = ManifestDecoder.DATAFUSION, ManifestDecoder.FASTAVRO
BY_BOUND = (BoundPart(3, LONG),)


def whole(batches: list[pa.RecordBatch]) -> pa.Table:
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
    return pa.Table.from_batches(batches, RECORDS).combine_chunks()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of manifests whose entries were encoded one by one."""
    paths: list[str] = []
    real = transcode._RecordReader.of_entries

    def noted(reader: Any, entries: Any, run: Any) -> Any:
        paths.append(run.manifest.manifest_path)
        return real(reader, entries, run)

    monkeypatch.setattr(transcode._RecordReader, "of_entries", noted)
    return paths


def little_at_once(monkeypatch: pytest.MonkeyPatch, batch_records: int) -> None:
    real = transcode._RecordReader.__init__

    def init(reader: Any, task: Any) -> None:
        real(reader, task)
        reader._batch_records = batch_records

    monkeypatch.setattr(transcode._RecordReader, "__init__", init)


def expected(store: ManifestStore, target: RecordTarget) -> dict[str, list[Any]]:
    """What the records of all live entries are, worked out from the entries."""
    codec, encoder, types = PartitionCodec(target.partition), target.encoder, [f.type for f in target.partition.fields]
    entries = store.live()
    return {
        "key": [b"".join(map(cluster_key, types, e.data_file.partition)) for e in entries],
        "partition": [codec.encode(e.data_file.partition) for e in entries],
        "record_count": [e.data_file.record_count for e in entries],
        "sequence_number": [e.sequence_number for e in entries],
        "record": [encoder.encode(e) for e in entries],
    }


def check(store: ManifestStore, target: RecordTarget) -> pa.Table:
    """Both decoders give the records of all live entries in order."""
    fast, slow = (whole(store.records(target, decoder)) for decoder in (DATAFUSION, FASTAVRO))
    assert fast == slow
    assert fast.drop_columns("place").to_pydict() == expected(store, target)
    return fast


@pytest.mark.slow
@given(st.data())
@cases(60)
def test_both_decoders_give_the_same_records(data: st.DataObject):
    partition = data.draw(partition_types(), label="partition")
    version = data.draw(st.sampled_from([2, 3]), label="version")
    store = ManifestStore(partition)
    for _ in range(data.draw(st.integers(1, 4), label="manifests")):
        entries = data.draw(st.lists(manifest_entries(partition).map(with_few_rows), min_size=1, max_size=4))
        inherits = data.draw(st.booleans())
        if inherits:
            entries = [bare(entry) if entry.status == 1 else entry for entry in entries]
        first_row_id = data.draw(st.none() | st.integers(0, 9999)) if version == 3 else None
        store.put(
            *write_manifest(entries, partition, format_version=version),
            sequence_number=data.draw(st.integers(1, 2**40)),
            first_row_id=first_row_id,
        )
    check(store, target_of(partition, data.draw(st.integers(version, 3))))


def with_few_rows(entry: Any) -> Any:
    """Row ids have to fit a long."""
    return replace(entry, data_file=replace(entry.data_file, record_count=entry.data_file.record_count % 10**6))


def bare(entry: Any) -> Any:
    return replace(entry, snapshot_id=None, sequence_number=None, file_sequence_number=None)


def test_deleted_entries_go_and_the_others_say_where_they_were(slow: list[str]):
    store = ManifestStore()
    for number in range(3):
        kinds = [deleted, added, existing, deleted, added]
        store.put_entries([kind(data_file(f"file:/{number}-{n}")) for n, kind in enumerate(kinds)])
    found = check(store, target_of())
    assert found["place"].to_pylist() == [n * PLACES_A_MANIFEST + place for n in range(3) for place in (1, 2, 4)]
    assert [batch.num_rows for batch in store.records(target_of())] == [9]
    assert slow == [row.manifest_path for row in store.rows]  # those that fastavro was to read


def test_a_share_of_the_manifests_keeps_the_numbers_that_they_have_among_all():
    store = ManifestStore()
    for number in range(4):
        store.put_entries([added(data_file(f"file:/{number}"))])
    task = store.task(target_of())
    [batch] = transcode.live_records(replace(task, manifests=(task.manifests[3], task.manifests[1])))
    assert batch["place"].to_pylist() == [3 * PLACES_A_MANIFEST, PLACES_A_MANIFEST]


@pytest.mark.parametrize("decoder", ManifestDecoder)
def test_places_go_on_from_batch_to_batch(monkeypatch: pytest.MonkeyPatch, decoder: ManifestDecoder):
    little_at_once(monkeypatch, 7)
    store = ManifestStore()
    entries = [[added, existing, deleted][n % 3](data_file(f"file:/{n}{'x' * 3000}")) for n in range(100)]
    store.put_entries(entries)
    found = store.records(target_of(), decoder)
    assert len(found) > 3
    assert whole(found)["place"].to_pylist() == [n for n in range(100) if n % 3 < 2]
    assert whole(found)["record"].to_pylist() == expected(store, target_of())["record"]


def renamed(schema: Any) -> Any:
    field_of(schema, 1).update(name="made_by")
    return schema


def with_counts_that_may_be_null(data: bytes) -> bytes:
    """Not as the spec has it; read one by one all the same."""

    def nullable(schema: Any) -> Any:
        for field_id in (118, 120):
            field_of(schema, field_id)["type"] = ["null", "long"]
        return schema

    return with_schema(data, nullable)


def test_a_manifest_of_another_schema_among_many_small_ones_is_read_by_itself(slow: list[str]):
    store = ManifestStore()
    for number in range(5):
        data, row = write_manifest([added(data_file(f"file:/{number}")), deleted()])
        store.put(renamed_data(data) if number == 2 else data, row, sequence_number=number + 1)
    batches = store.records(target_of())
    assert [batch.num_rows for batch in batches] == [1] * 5
    assert slow == []
    assert check(store, target_of())["sequence_number"].to_pylist() == [1, 2, 3, 4, 5]


def renamed_data(data: bytes) -> bytes:
    return with_schema(data, renamed)


def test_a_manifest_that_cannot_be_copied_is_encoded_anew(slow: list[str]):
    store = ManifestStore()
    for number in range(3):
        data, row = write_manifest([added(data_file(f"file:/{number}"))])
        store.put(with_counts_that_may_be_null(data) if number == 1 else data, row)
    found = whole(store.records(target_of()))
    assert slow == [store.rows[1].manifest_path]
    assert found.drop_columns("place").to_pydict() == expected(store, target_of())


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_what_was_not_read_is_read_in_the_slow_way_from_there(monkeypatch: pytest.MonkeyPatch, failing: int):
    little_at_once(monkeypatch, 1)
    store = ManifestStore()
    store.put_entries([[added, deleted][n % 2](data_file(f"file:/{n}{'x' * 3000}")) for n in range(90)])
    right, calls, real = whole(store.records(target_of())), [], transcode.RecordLayout.records

    def doubtful(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == failing:
            raise NotReadError("another length")
        return real(*arguments)

    monkeypatch.setattr(transcode.RecordLayout, "records", doubtful)
    assert whole(store.records(target_of())) == right
    assert len(calls) == failing


def test_a_block_that_is_not_encoded_in_the_shortest_way_gives_the_right_records(slow: list[str]):
    store = ManifestStore()
    data, row = write_manifest([added(data_file(record_count=10))], codec="uncompressed")
    [block] = blocks(data)
    payload = block[3:-16] if block[1] & 0x80 else block[2:-16]
    longer = payload.replace(b"\x14\xd0\x0f", b"\x94\x00\xd0\x0f")
    assert len(longer) == len(payload) + 1
    header = read_header(data, "")
    store.put(data[: header.length_bytes] + encode_block(longer, 1, "null", header.sync), row)
    right = ManifestStore()
    right.put(data, row)
    assert whole(store.records(target_of())) == whole(right.records(target_of()))
    assert slow == [store.rows[0].manifest_path]


def test_entries_of_version_1_become_those_of_version_2():
    store = ManifestStore()
    store.put_entries([added(), added(snapshot_id=9)], format_version=1, sequence_number=0)
    found = check(store, target_of(format_version=2))
    assert found["sequence_number"].to_pylist() == [0, 0]
    check(store, target_of(format_version=1))


def test_without_partition_fields_all_keys_are_equal():
    store = ManifestStore(UNPARTITIONED)
    store.put_entries([added(data_file(f"file:/{n}", partition=())) for n in range(3)])
    assert check(store, target_of(UNPARTITIONED))["key"].to_pylist() == [b"", b"", b""]


def test_keys_are_those_of_lower_bounds_where_these_are_asked_for():
    bounds = [None, {}, {3: (5).to_bytes(8, "little")}, {3: (-5 & (1 << 64) - 1).to_bytes(8, "little"), 4: b""}]
    files = [data_file(f"file:/{n}", lower_bounds=b) for n, b in enumerate(bounds)]
    store = ManifestStore()
    store.put_entries([kind(file) for file in files for kind in (added, deleted)])
    target = target_of(sort=BY_BOUND)
    fast, slow = (whole(store.records(target, decoder)) for decoder in (DATAFUSION, FASTAVRO))
    assert fast == slow
    assert fast["key"].to_pylist() == [sort_key([LONG], [v]) for v in (None, None, 5, -5)]


@pytest.mark.parametrize("type_", ["double", "float"])
def test_every_nan_is_one_partition(type_: str):
    partition = StructType((NestedField(field_id=1000, name="x", type=parse_type(type_)),))
    store = ManifestStore(partition)
    store.put_entries([added(data_file(partition=(v,))) for v in (math.nan, -math.nan, 0.0, -0.0)])
    keys = check(store, target_of(partition))["key"].to_pylist()
    assert keys[0] == keys[1] > keys[2] > keys[3]


# What is wrong.


def spoilt(change: Callable[[bytes], bytes], **changes: Any) -> ManifestStore:
    store = ManifestStore()
    for number in range(3):
        data, row = write_manifest([added(data_file(f"file:/{number}")), existing()], codec="uncompressed")
        store.put(*((change(data), row) if number == 1 else (data, row)), **(changes if number == 1 else {}))
    return store


def of_another_count(change: int) -> Callable[[bytes], bytes]:
    def do(data: bytes) -> bytes:
        [block] = blocks(data)
        return data.removesuffix(block) + recounted(block, change)

    return do


@for_each(
    ("store", "message"),
    [
        (spoilt(lambda d: d, added_files_count=2), "its manifest list says 2"),
        (spoilt(lambda d: d, deleted_files_count=1), "its manifest list says 1"),
        (spoilt(lambda d: d, manifest_length=5), "its manifest list says 5"),
        (spoilt(lambda d: d[:-1]), "cannot read|sync marker"),
        (spoilt(lambda d: d[:-40]), "cannot read|sync marker"),
        (spoilt(lambda d: d.removesuffix(*blocks(d))), "cannot read|sync marker|holds 0"),
        (spoilt(of_another_count(1)), "cannot read"),
        (spoilt(of_another_count(-1)), "cannot read"),
        (spoilt(of_another_count(1 << 40)), "cannot read"),
        (spoilt(lambda d: b"x" + d[1:]), "cannot read"),
        (spoilt(lambda d: b""), "cannot read"),
        (spoilt(lambda d: d, partition_spec_id=3), "spec"),
    ],
)
@for_each("alone", [False, True])
def test_a_manifest_that_is_not_whole_is_an_error_that_names_it(store: ManifestStore, message: str, alone: bool):
    for decoder in ManifestDecoder:
        task = store.task(target_of(), decoder)
        task = replace(task, manifests=(store.rows[1],)) if alone else task
        with pytest.raises(InvalidTableError, match=message) as caught:
            [*transcode.live_records(task)]
        assert store.rows[1].manifest_path in str(caught.value)


@pytest.mark.parametrize("decoder", ManifestDecoder)
def test_a_manifest_that_is_missing_or_encrypted_is_an_error(decoder: ManifestDecoder):
    store = spoilt(lambda d: d)
    encrypted = replace(store.rows[0], key_metadata=b"k")
    with pytest.raises(UnsupportedError, match="encrypted"):
        [*transcode.live_records(replace(store.task(target_of(), decoder), manifests=(encrypted,)))]
    store.delete_many([store.rows[1].manifest_path])
    with pytest.raises(MissingFileError):
        store.records(target_of(), decoder)


@given(st.data())
@cases(60)
def test_damage_is_an_error_or_what_fastavro_makes_of_it(data: st.DataObject):
    sound, row = write_manifest(
        [
            kind(data_file(f"file:/{n}", value_counts={1: 300}, split_offsets=(4,)))
            for n, kind in enumerate([added, existing])
        ],
        codec="uncompressed",
    )
    [block] = blocks(sound)
    damaged = bytearray(sound)
    start = data.draw(st.integers(len(sound) - len(block), len(sound) - 1))
    damaged[start] = data.draw(st.integers(0, 255))
    store = ManifestStore()
    store.put(bytes(damaged), row)

    def outcome(decoder: ManifestDecoder) -> Any:
        try:
            return whole(store.records(target_of(), decoder))
        except IcekeepError as error:
            return str(error)

    fast, slow = outcome(DATAFUSION), outcome(FASTAVRO)
    if isinstance(fast, str) or isinstance(slow, str):
        # DataFusion takes whatever is not null for the other branch of a union, where fastavro looks for one more.
        assert fast == slow or "list index out of range" in slow
    else:
        # Of a key that a map has twice, of numbers that are not the shortest, the copies are the same or mean the same.
        assert fast.drop_columns("record") == slow.drop_columns("record")


def test_dates_sort_as_their_days_do():
    store = ManifestStore(DAY)
    store.put_entries([added(data_file(partition=(day,))) for day in (3, -3, None)])
    assert check(store, target_of())["key"].to_pylist() == [sort_key([DATE], [day]) for day in (3, -3, None)]


# What entries are clustered by: keys are in the order of the values.


PARTITION = StructType(
    (NestedField(field_id=1000, name="day", type=DATE), NestedField(field_id=1001, name="kind", type=STRING))
)
SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG),
        NestedField(field_id=2, name="kind", type=STRING),
        NestedField(field_id=3, name="place", type=StructType((NestedField(field_id=4, name="x", type=DOUBLE),))),
        NestedField(field_id=7, name="anything", type=parse_type("variant")),
        NestedField(field_id=8, name="shape", type=parse_type("geometry")),
        NestedField(field_id=5, name="tags", type=ListType(element_id=6, element=STRING, element_required=True)),
    )
)


def keys_of(tuples: list[tuple[Any, ...]], partition: StructType) -> list[bytes]:
    parts = sort_parts(None, partition, SCHEMA)
    return entry_keys(tuples, np.arange(len(tuples)), None, parts).to_pylist()


def bound_keys(bounds: list[dict[int, bytes] | None], part: BoundPart) -> list[bytes]:
    maps = pa.array([b if b is None else [*b.items()] for b in bounds], pa.map_(pa.int32(), pa.binary()))
    return entry_keys([()], np.zeros(len(bounds), np.int64), maps, [part]).to_pylist()


def compared(one: Any, other: Any) -> int:
    """Nulls first, then values, then NaN; -0.0 before 0.0."""
    ranks = [
        (0,) if v is None else (2,) if v != v else (1, v, math.copysign(1, v) if v == 0 else 0) for v in (one, other)
    ]
    return (ranks[0] > ranks[1]) - (ranks[0] < ranks[1])


# Names.


def test_all_partition_fields_in_the_order_of_the_spec_unless_told_otherwise():
    assert sort_parts(None, PARTITION, SCHEMA) == (PartitionPart(0, DATE), PartitionPart(1, STRING))
    assert sort_parts(None, UNPARTITIONED, SCHEMA) == ()


def test_a_name_is_a_partition_field_s_or_else_a_column_s():
    parts = sort_parts(["kind", "id", "place.x", "day"], PARTITION, SCHEMA)
    assert parts == (PartitionPart(1, STRING), BoundPart(1, LONG), BoundPart(4, DOUBLE), PartitionPart(0, DATE))
    assert sort_parts(["kind"], UNPARTITIONED, SCHEMA) == (BoundPart(2, STRING),)


def test_bounds_are_needed_where_a_column_is_asked_for():
    assert [needs_bounds(sort_parts(n, PARTITION, SCHEMA)) for n in (None, ["kind"], ["day", "id"])] == [
        False,
        False,
        True,
    ]


@for_each(
    ("names", "error", "message"),
    [
        ([], UsageError, "sort_by is empty"),
        (["day", "day"], UsageError, "sort_by names 'day' twice"),
        (
            ["week"],
            NotFoundError,
            "neither a partition field nor a column 'week'; the partition fields are day, kind",
        ),
        (["Kind"], NotFoundError, "neither a partition field nor a column 'Kind'; did you mean 'kind'?"),
        (["place"], UnsupportedError, "column 'place' is of type struct"),
        (["anything"], UnsupportedError, "column 'anything' is of type variant"),
        (["shape"], UnsupportedError, "column 'shape' is of type geometry"),
        (["tags"], UnsupportedError, "column 'tags' is of type list"),
    ],
)
def test_what_cannot_be_clustered_by_is_an_error(names: list[str], error: type[Exception], message: str):
    with pytest.raises(error) as caught:
        sort_parts(names, PARTITION, SCHEMA)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_without_partition_fields_says_so():
    with pytest.raises(NotFoundError, match="the partition fields are none"):
        sort_parts(["week"], UNPARTITIONED, SCHEMA)


# Keys of partitions.


@given(st.lists(st.tuples(st.none() | st.integers(-(2**31), 2**31 - 1), st.none() | st.floats()), max_size=8))
def test_keys_of_partitions_are_in_the_order_of_their_values(tuples: list[tuple[Any, ...]]):
    partition = StructType(
        (NestedField(field_id=1000, name="n", type=INT), NestedField(field_id=1001, name="x", type=DOUBLE))
    )
    keys = keys_of(tuples, partition)

    def order(one: int, other: int) -> int:
        return compared(tuples[one][0], tuples[other][0]) or compared(tuples[one][1], tuples[other][1])

    places = range(len(tuples))
    for one in places:
        for other in places:
            assert (keys[one] > keys[other]) - (keys[one] < keys[other]) == order(one, other)
    assert sorted(places, key=keys.__getitem__) == sorted(places, key=cmp_to_key(order))


def test_entries_have_the_keys_of_their_partitions_in_the_order_of_the_names():
    tuples = [(5, "b"), (4, "c"), (None, "a")]
    codes = np.array([2, 0, 0, 1])
    by_kind = entry_keys(tuples, codes, None, sort_parts(["kind", "day"], PARTITION, SCHEMA)).to_pylist()
    assert sorted(range(4), key=by_kind.__getitem__) == [0, 1, 2, 3]
    by_day = entry_keys(tuples, codes, None, sort_parts(["day"], PARTITION, SCHEMA)).to_pylist()
    assert by_day[1] == by_day[2]
    assert sorted({*by_day}) == [by_day[0], by_day[3], by_day[1]]


def test_nothing_to_cluster_by_makes_all_keys_equal():
    assert entry_keys([()], np.array([0, 0]), None, ()).to_pylist() == [b"", b""]


# Keys of bounds.


@given(st.data())
def test_keys_of_bounds_are_in_the_order_of_the_values(data: st.DataObject):
    type_ = data.draw(primitive_types())
    values = data.draw(st.lists(st.none() | values_of(type_), max_size=6))
    bounds = [None if v is None else {9: value_to_bytes(type_, v), 8: b"x"} for v in values]
    whole = bound_keys(bounds, BoundPart(9, type_))
    one_field = StructType((NestedField(field_id=1000, name="v", type=type_),))
    assert whole == keys_of([(v,) for v in values], one_field)


def test_the_bound_of_the_column_is_taken_and_no_other():
    bounds = [{7: b"a"}, None, {}, {8: b"c", 7: b"b"}, {8: b"d"}, {7: b"e"}]
    none, *_ = bound_keys([None], BoundPart(7, STRING))
    found = bound_keys(bounds, BoundPart(7, STRING))
    assert [key == none for key in found] == [False, True, True, False, True, False]
    assert found[0] < found[3] < found[5]


def test_bounds_of_a_slice_are_those_of_its_rows():
    bounds = [{7: b"a"}, {7: b"b"}, None, {7: b"c"}]
    maps = pa.array([b if b is None else [*b.items()] for b in bounds], pa.map_(pa.int32(), pa.binary()))
    part = BoundPart(7, STRING)
    some = entry_keys([()], np.zeros(2, np.int64), maps.slice(1, 2), [part]).to_pylist()
    assert some == bound_keys(bounds, part)[1:3]


@given(st.sampled_from([INT, LONG, DOUBLE, STRING, DATE, decimal(9, 2), parse_type("uuid")]), st.binary(max_size=40))
def test_bytes_that_are_no_value_of_the_type_count_as_none(type_: Any, garbage: bytes):
    # Whatever writers leave there, an order is all that depends on it.
    assert len(bound_keys([{1: garbage}, {}], BoundPart(1, type_))) == 2


def test_a_decimal_of_more_bytes_than_any_has_counts_as_none():
    assert len({*bound_keys([{1: b"\x7f" * 20}, None], BoundPart(1, decimal(9, 2)))}) == 1
    assert len({*bound_keys([{1: b"abc"}, None], BoundPart(1, LONG))}) == 1


def test_a_bound_of_a_type_before_it_was_promoted_is_read():
    found = bound_keys(
        [{1: value_to_bytes(INT, n)} for n in (-5, 3)] + [{1: value_to_bytes(LONG, 3)}], BoundPart(1, LONG)
    )
    assert found[0] < found[1] == found[2]


def test_partitions_and_bounds_make_one_key():
    maps = pa.array([[(1, b"b")], [(1, b"a")], [(1, b"z")]], pa.map_(pa.int32(), pa.binary()))
    parts = [PartitionPart(0, INT), BoundPart(1, BINARY)]
    keys = entry_keys([(2,), (1,)], np.array([0, 0, 1]), maps, parts).to_pylist()
    assert sorted(range(3), key=keys.__getitem__) == [2, 1, 0]
