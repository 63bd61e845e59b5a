"""Manifests as Arrow batches: whichever decoder reads them, the entries are those that `read_manifest` reads."""

import io
import math
import struct
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError, UnsupportedError
from icekeep.planning import manifests as manifest_reader
from icekeep.planning.decoder import BATCH_RECORDS, ManifestDecoder, NotReadError, chosen_decoder
from icekeep.planning.manifests import (
    STORED,
    batch_schema,
    distinct_partitions,
    partition_array,
    partition_arrow_type,
    partition_keys,
    partition_of_stored,
    read_manifests,
)
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.reach import partition_key
from icekeep.spec.types import OPAQUE, NestedField, StructType, parse_type
from icekeep.storage.local.storage import LocalStorage
from kit.cases import cases, for_each
from kit.foreign_files import our_manifest, write_with_pyiceberg
from kit.manifests import (
    DAY,
    MANIFEST,
    UNPARTITIONED,
    added,
    blocks,
    data_file,
    deleted,
    existing,
    field_of,
    read_entries,
    recounted,
    resized,
    with_metadata,
    with_schema,
    write_manifest,
)
from kit.storage import MemoryStorage
from kit.strategies import data_files, decimal_types, fixed_types, manifest_entries, partition_types, values_of

pytestmark = pytest.mark.slow

DATAFUSION, FASTAVRO = ManifestDecoder.DATAFUSION, ManifestDecoder.FASTAVRO
ALL = (*STORED.names, "partition")
UNKNOWN_COUNTS = dict.fromkeys(("added_files_count", "existing_files_count", "deleted_files_count"))
MEMORY = "memory://bucket/m0.avro"
METRICS: dict[str, Any] = {
    "column_sizes": {1: 10, 2: 20},
    "lower_bounds": {1: b"\1\0\0\0", 2: b""},
    "upper_bounds": {2: b"\xff"},
    "value_counts": {},
    "split_offsets": (4, 1000),
    "sort_order_id": 3,
}


class _Stored(LocalStorage):
    """Answers every location with the same bytes, wherever it is."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        return self.data


def batches(
    data: bytes,
    row: ManifestFile,
    partition: StructType = DAY,
    columns: Collection[str] = ALL,
    decoder: ManifestDecoder = DATAFUSION,
    batch_records: int = BATCH_RECORDS,
) -> list[pa.RecordBatch]:
    found = read_manifests([row], partition, _Stored(data), columns, decoder=decoder, batch_records=batch_records)
    return [*found]


def vectorised(*arguments: Any, **how: Any) -> list[pa.RecordBatch]:
    """Read by DataFusion alone: that a manifest had to be read again is an error here."""

    def refuse(*_: Any) -> pa.RecordBatch:
        raise AssertionError("fastavro was needed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_reader, "batch_of_entries", refuse)
        return batches(*arguments, **how)


def rows(found: Iterable[pa.RecordBatch], columns: Collection[str] = ALL) -> list[dict[str, Any]]:
    """The rows of batches in the form of spec values."""
    made = []
    for batch in found:
        batch.validate(full=True)
        names = [name for name in batch.schema.names if name != "partition"]
        part = batch.select(names).to_pylist(maps_as_pydicts="strict") if names else [{} for _ in range(len(batch))]
        if "partition" in columns:
            tuples, codes = distinct_partitions(batch["partition"])
            part = [{**row, "partition": tuples[code]} for row, code in zip(part, codes, strict=True)]
        made += part
    return made


def rows_of(entries: Iterable[ManifestEntry], columns: Collection[str] = ALL) -> list[dict[str, Any]]:
    made = []
    for entry in entries:
        values = {**msgspec.structs.asdict(entry.data_file), **msgspec.structs.asdict(entry)}
        row = {name: values[name] for name in ALL if name in columns}
        row = {k: [*v] if isinstance(v, tuple) and k != "partition" else v for k, v in row.items()}
        made.append({k: int(v) if k in ("status", "content") else v for k, v in row.items()})
    return made


def check(data: bytes, row: ManifestFile, partition: StructType = DAY, batch_records: int = BATCH_RECORDS) -> None:
    """Both decoders give what `read_manifest` gives, DataFusion without help."""
    expected = rows_of(read_entries(data, row, partition))
    ours = vectorised(data, row, partition, batch_records=batch_records)
    slow = batches(data, row, partition, decoder=FASTAVRO, batch_records=batch_records)
    # NaN is not equal to itself, but it looks the same.
    assert repr(rows(ours)) == repr(rows(slow)) == repr(expected)
    assert {b.schema for b in (*ours, *slow)} <= {batch_schema(ALL, partition)}


def outcome(data: bytes, row: ManifestFile, partition: StructType, decoder: ManifestDecoder | None) -> str:
    """Rows or an error, as text."""
    try:
        if decoder is None:
            return repr(rows_of(read_entries(data, row, partition)))
        return repr(rows(batches(data, row, partition, decoder=decoder)))
    except InvalidTableError as error:
        return str(error)


def recoded(data: bytes, codec: str, block_bytes: int = 16000) -> bytes:
    """The same records written by fastavro with another codec."""
    out = io.BytesIO()
    header = read_header(data, "")
    metadata = {k: v.decode() for k, v in header.metadata.items() if not k.startswith("avro.")}
    reader = fastavro.reader(io.BytesIO(data))
    fastavro.writer(out, header.schema, reader, codec=codec, metadata=metadata, sync_interval=block_bytes)
    return out.getvalue()


# Sound manifests.


@given(st.data())
def test_entries_of_any_partition_type_decode_equally(data: st.DataObject):
    partition = data.draw(partition_types(), label="partition")
    entries = data.draw(st.lists(manifest_entries(partition), max_size=4))
    version = data.draw(st.sampled_from([1, 2, 3]) if all(numbered(e) for e in entries) else st.sampled_from([2, 3]))
    codec = data.draw(st.sampled_from(["gzip", "uncompressed"]))
    check(*write_manifest(entries, partition, codec=codec, format_version=version), partition)


def numbered(entry: ManifestEntry) -> bool:
    """Whether an entry can be one of version 1, which has no sequence numbers."""
    return entry.status == 1


@given(st.data())
@cases(30)
def test_decimal_and_fixed_partitions_round_trip(data: st.DataObject):
    partition = data.draw(partition_types(decimal_types() | fixed_types()))
    entries = data.draw(st.lists(manifest_entries(partition), min_size=1, max_size=3))
    check(*write_manifest(entries, partition), partition)


def test_truncated_decimal_may_have_a_digit_more_than_its_type():
    """`truncate[10]` of -9,999,999.99, a decimal(9, 2), is -10,000,000.00; Iceberg Java writes and reads it."""
    partition = columns("decimal(9, 2)")
    entries = [added(data_file(partition=(Decimal(text),))) for text in ("-10000000.00", "1.00")]
    check(*write_manifest(entries, partition), partition)


@given(st.data())
@cases(30)
def test_delete_files_are_the_same_by_either_decoder(data: st.DataObject):
    file = msgspec.structs.replace(
        data.draw(data_files(DAY)),
        content=data.draw(st.sampled_from([1, 2])),
        equality_ids=data.draw(st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)),
        referenced_data_file=data.draw(st.none() | st.just("file:/a.parquet")),
    )
    check(*write_manifest([existing(file), added(file)], content=ManifestContent.DELETES))


def test_deletion_vectors_of_version_3_are_read():
    vector = data_file(content=1, file_format="PUFFIN", content_offset=4, content_size_in_bytes=40)
    check(*write_manifest([added(vector)], content=ManifestContent.DELETES, format_version=3))


@for_each("codec", ["null", "deflate", "zstandard", "snappy", "bzip2"])
@for_each("batch_records", [1, 7, 100_000])
def test_multi_block_manifest_is_read_in_batches(codec: str, batch_records: int):
    files = [data_file(f"file:/{number}", partition=(number % 7,), **METRICS) for number in range(500)]
    data, row = write_manifest([[added, existing, deleted][n % 3](file) for n, file in enumerate(files)])
    data = recoded(data, codec, 4000)
    check(data, resized(row, data), batch_records=batch_records)
    if batch_records == 7:
        assert len(batches(data, resized(row, data), batch_records=7)) == len(blocks(data)) > 3


@pytest.mark.parametrize("decoder", ManifestDecoder)
def test_only_the_wanted_columns_come_in_the_order_of_stored(decoder: ManifestDecoder):
    data, row = write_manifest([added(data_file(**METRICS)), existing()])
    for columns in ({"partition", "record_count", "status"}, {"upper_bounds"}, {"first_row_id"}, {"partition"}, ALL):
        found = batches(data, row, columns=columns, decoder=decoder)
        assert [batch.schema.names for batch in found] == [[name for name in ALL if name in columns]]
        assert rows(found, columns) == rows_of(read_entries(data, row), columns)


def test_a_manifest_without_entries_gives_no_batches():
    data, row = write_manifest([])
    assert vectorised(data, row) == batches(data, row, decoder=FASTAVRO) == []


def test_unpartitioned_entries_have_empty_partition():
    data, row = write_manifest([added(data_file(partition=()))] * 3, UNPARTITIONED)
    check(data, row, UNPARTITIONED)
    (batch,) = vectorised(data, row, UNPARTITIONED, ["partition"])
    assert (len(batch), batch["partition"].to_pylist()) == (3, [{}, {}, {}])


def test_first_row_ids_are_inherited_from_batch_to_batch():
    files = [data_file(f"file:/{n}", record_count=n + 1, first_row_id=7 if n % 5 == 2 else None) for n in range(60)]
    data, row = write_manifest([[added, existing, deleted][n % 3](f) for n, f in enumerate(files)], format_version=3)
    data = recoded(data, "deflate", 500)
    row = msgspec.structs.replace(resized(row, data), first_row_id=1000)
    check(data, row, batch_records=1)
    assert len(batches(data, row, batch_records=1)) > 3
    found = rows(vectorised(data, row, columns=["first_row_id"], batch_records=1), ())
    assert [r["first_row_id"] for r in found[:6]] == [1000, 1001, 7, 1003, 1007, None]


@pytest.mark.parametrize("sequence_number", [None, 0, 5])
def test_ids_and_numbers_are_inherited(sequence_number: int | None):
    data, row = write_manifest([added(), added(snapshot_id=1, sequence_number=2), existing()], sequence_number=None)
    check(data, msgspec.structs.replace(row, sequence_number=sequence_number))


def test_fields_are_found_by_id_whatever_their_names_and_places():
    def renamed(schema: Any) -> Any:
        for number, field_id in enumerate((1, 3, 100, 103, 1000, 108, 117, 118, 125, 2, 102)):
            field_of(schema, field_id)["name"] = f"Ab_{number}"
        field_of(schema, 101)["name"] = "file_path"
        return schema

    data, row = write_manifest([added(data_file(**METRICS)), deleted()], codec="uncompressed")
    changed = with_schema(data, renamed)
    check(changed, resized(row, changed))
    assert rows(batches(changed, resized(row, changed))) == rows(batches(data, row))


def test_fields_that_are_not_known_are_ignored():
    data, row = write_manifest([added(data_file(sort_order_id=3, split_offsets=(1, 2)))], format_version=3)

    def unknown(schema: Any) -> Any:
        for field_id in (140, 132, 143):
            field_of(schema, field_id).update({"field-id": 9000 + field_id, "name": f"x{field_id}"})
        return schema

    changed = with_schema(data, unknown)
    check(changed, resized(row, changed))
    assert rows(batches(changed, resized(row, changed)))[0]["sort_order_id"] is None


def test_whole_numbers_may_be_stored_in_either_width():
    def widened(schema: Any) -> Any:
        for field_id in (0, 134, 117, 133):
            field = field_of(schema, field_id) if field_id != 133 else field_of(schema, 132)["type"][1]
            field["items" if field_id == 133 else "type"] = "int" if field_id == 133 else "long"
        field_of(schema, 1000)["type"] = ["null", "int"]
        return schema

    long_day = StructType((NestedField(field_id=1000, name="day", type=parse_type("long")),))
    data, row = write_manifest([added(data_file(**METRICS))])
    changed = with_schema(data, widened)
    check(changed, resized(row, changed), long_day)


def test_values_of_an_unknown_transform_are_shown_as_text():
    data, row = write_manifest([added(), added(data_file(partition=(None,)))])
    for type_ in (OPAQUE, parse_type("string")):
        text = StructType((NestedField(field_id=1000, name="day", type=type_),))
        for found in (vectorised(data, row, text), batches(data, row, text, decoder=FASTAVRO)):
            assert [r["partition"] for r in rows(found)] == [("19000",), (None,)]


def test_a_manifest_that_pyiceberg_wrote_is_read():
    partition = StructType(
        tuple(
            NestedField(field_id=1000 + n, name=f"p{n}", type=parse_type(name))
            for n, name in enumerate(("date", "string", "decimal(9, 2)", "timestamptz", "uuid", "fixed[3]", "double"))
        )
    )

    @given(st.lists(manifest_entries(partition), min_size=1, max_size=4))
    @cases(10)
    def agrees(entries: list[ManifestEntry]) -> None:
        written, row = write_with_pyiceberg(MANIFEST, entries, partition)
        check(written, msgspec.structs.replace(our_manifest(row), sequence_number=5), partition)

    agrees()


# Files that are not what they must be.


def several_blocks(codec: str) -> tuple[bytes, ManifestFile]:
    files = [data_file(f"file:/warehouse/{number:03}/{'x' * 30}", **METRICS) for number in range(60)]
    data, row = write_manifest([added(file) for file in files])
    data = recoded(data, codec, 1500)
    assert len(blocks(data)) > 3
    return data, resized(row, data)


@for_each("codec", ["deflate", "null", "zstandard", "snappy"])
def test_a_manifest_that_was_cut_gives_the_error_that_says_so(codec: str):
    data, row = several_blocks(codec)
    ends = [len(data)]
    for block in reversed(blocks(data)):
        ends.append(ends[-1] - len(block))
    for end in ends[1:]:
        for length in (end, end + 1, end + 10, end - 5):
            cut = data[:length]
            assert outcome(cut, row, DAY, DATAFUSION) == (
                f"manifest {MANIFEST!r} has {length} bytes, but its manifest list says {len(data)}"
            )
            found = outcome(cut, resized(row, cut), DAY, DATAFUSION)
            assert not found.startswith("[")
            assert found == outcome(cut, resized(row, cut), DAY, None)


@for_each("change", [-60, -2, -1, 1, 5, 1 << 40])
@for_each("codec", ["gzip", "uncompressed"])
def test_block_with_wrong_record_count_fails_and_never_hangs(codec: str, change: int):
    data, row = write_manifest([added(), existing(), deleted()], codec=codec)
    row = msgspec.structs.replace(row, **UNKNOWN_COUNTS)
    (block,) = blocks(data)
    spoilt = data.removesuffix(block) + recounted(block, change)
    found = outcome(spoilt, resized(row, spoilt), DAY, DATAFUSION)
    assert found.startswith("cannot read Avro file")
    assert found == outcome(spoilt, resized(row, spoilt), DAY, None)


@pytest.mark.parametrize("codec", ["deflate", "null", "zstandard", "snappy"])
@given(data=st.data())
@cases(80)
def test_damage_is_an_error_or_what_fastavro_makes_of_it(codec: str, data: st.DataObject):
    sound, row = several_blocks(codec)
    row = row if data.draw(st.booleans()) else msgspec.structs.replace(row, **UNKNOWN_COUNTS)
    spoilt = bytearray(sound)
    start = data.draw(st.integers(len(sound) - sum(map(len, blocks(sound))), len(sound) - 1))
    spoilt[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    row = resized(row, bytes(spoilt))
    found, expected = (outcome(bytes(spoilt), row, DAY, decoder) for decoder in (DATAFUSION, FASTAVRO))
    # DataFusion takes whatever is not null for the other branch of a union, where fastavro looks for one more.
    assert found == expected or (found.startswith("[") and "list index out of range" in expected)


@for_each("name", ["added_files_count", "existing_files_count", "deleted_files_count"])
@for_each("decoder", ManifestDecoder)
def test_a_manifest_must_have_as_many_entries_as_its_list_says(name: str, decoder: ManifestDecoder):
    data, row = write_manifest([added(), existing(), deleted()])
    kind = name.removesuffix("_files_count")
    wrong = msgspec.structs.replace(row, **{name: 2})
    with pytest.raises(InvalidTableError, match=f"holds 1 {kind} entries, but its manifest list says 2"):
        batches(data, wrong, columns=["file_path"], decoder=decoder)


def both_refuse(data: bytes, row: ManifestFile, partition: StructType = DAY) -> str:
    """The one error by which `read_manifest` and both decoders refuse a file."""
    (message,) = {outcome(data, resized(row, data), partition, d) for d in (None, DATAFUSION, FASTAVRO)}
    assert not message.startswith("[")
    return message


@pytest.mark.parametrize(("field_id", "name"), [(100, "file_path"), (101, "file_format"), (103, "record_count")])
def test_a_field_that_the_spec_requires_must_be_there(field_id: int, name: str):
    data, row = write_manifest([added()])

    def lacking(schema: Any) -> Any:
        field_of(schema, field_id)["field-id"] = 9999
        return schema

    assert f"an entry lacks {name!r}" in both_refuse(with_schema(data, lacking), row)


def test_two_fields_of_one_name_or_one_without_an_id_are_refused():
    data, row = write_manifest([added()])

    def doubled(schema: Any) -> Any:
        field_of(schema, 101)["name"] = "file_path"
        return schema

    def without_id(schema: Any) -> Any:
        del field_of(schema, 101)["field-id"]
        return schema

    assert "two fields of one name" in both_refuse(with_schema(data, doubled), row)
    assert "no field id" in both_refuse(with_schema(data, without_id), row)


def test_partition_field_without_id_is_an_error_not_null():
    other = StructType((NestedField(field_id=1001, name="day", type=parse_type("date")),))
    assert "no partition field with id 1001" in both_refuse(*write_manifest([added()]), other)


@for_each("type_", ["boolean", "double", "decimal(9, 2)", "uuid", "binary", "fixed[2]"])
def test_a_partition_value_of_another_kind_is_refused(type_: str):
    other = StructType((NestedField(field_id=1000, name="day", type=parse_type(type_)),))
    assert "cannot read" in both_refuse(*write_manifest([added()]), other)


@for_each(("field_id", "value"), [(0, 3), (0, -1), (134, 3), (134, 1), (134, -1)])
def test_a_status_or_content_that_cannot_be_is_refused(field_id: int, value: int):
    data, row = write_manifest([added()])
    message = both_refuse(with_number(data, field_id, value), row)
    assert "is not of the kind" in message if value == 1 else f" {value}; the spec knows" in message


def test_a_manifest_must_be_of_the_kind_that_its_list_says():
    data, row = write_manifest([added()])
    deletes = msgspec.structs.replace(row, content=ManifestContent.DELETES)
    assert "is not of the kind" in both_refuse(with_metadata(data, {"content": b"deletes"}), deletes)
    assert "but its manifest list says deletes" in both_refuse(data, deletes)


@pytest.mark.parametrize("make", [existing, deleted])
def test_an_older_entry_without_a_sequence_number_is_an_error(make: Any):
    data, row = write_manifest([make()])

    def lacking(schema: Any) -> Any:
        field_of(schema, 3).update({"field-id": 9999, "name": "x"})
        return schema

    assert "has no sequence number" in both_refuse(with_schema(data, lacking), row)


@pytest.mark.parametrize("decoder", ManifestDecoder)
def test_a_number_that_no_column_can_hold_is_an_error(decoder: ManifestDecoder):
    data, row = write_manifest([added(data_file(sort_order_id=3))])
    big = with_number(data, 140, 1 << 40)
    with pytest.raises(InvalidTableError, match="cannot read"):
        batches(big, resized(row, big), decoder=decoder)
    assert batches(big, resized(row, big), columns=["file_path"], decoder=decoder)[0].num_rows == 1


def with_number(data: bytes, field_id: int, value: int) -> bytes:
    """A manifest with another value of a field in its one entry, which may be wide."""
    header = read_header(data, "")
    schema = header.schema
    field = field_of(schema, field_id)
    field.pop("default", None)
    field["type"] = "long"
    (record,) = fastavro.reader(io.BytesIO(data))
    (record if field_id == 0 else record["data_file"])[field["name"]] = value
    out = io.BytesIO()
    metadata = {k: v.decode() for k, v in header.metadata.items() if not k.startswith("avro.")}
    fastavro.writer(out, schema, [record], metadata=metadata)
    return out.getvalue()


def test_of_a_map_that_has_a_key_twice_the_last_counts():
    data, row = write_manifest([added(data_file(value_counts={1: 5, 2: 6, 3: 7}))], codec="uncompressed")
    pairs = b"\x02\x0a\x04\x0c\x06\x0e"
    spoilt = data.replace(pairs, b"\x02\x0a\x04\x0c\x02\x0e")
    assert spoilt != data
    assert outcome(spoilt, row, DAY, DATAFUSION) == outcome(spoilt, row, DAY, FASTAVRO)
    assert rows(batches(spoilt, row))[0]["value_counts"] == {1: 7, 2: 6}


# Stores, temporary files and the choice.


@pytest.mark.parametrize("decoder", ManifestDecoder)
def test_manifests_of_any_store_are_read(decoder: ManifestDecoder, tmp_path: Path):
    data, row = write_manifest([added(data_file(**METRICS))], location=MEMORY)
    memory = MemoryStorage()
    memory.create(MEMORY, data)
    odd = tmp_path / "a b*[c]%20#d"
    odd.mkdir()
    (odd / "m.avro").write_bytes(data)
    expected = rows_of(read_entries(data, row))
    for location, storage in (
        (MEMORY, memory),
        (f"file:{odd}/m.avro", LocalStorage()),
        (f"{odd}/m.avro", LocalStorage()),
    ):
        place = msgspec.structs.replace(row, manifest_path=location)
        assert rows(read_manifests([place], DAY, storage, ALL, decoder=decoder)) == expected


@pytest.mark.parametrize("decoder", ManifestDecoder)
def test_a_manifest_that_is_missing_or_encrypted_is_an_error(decoder: ManifestDecoder):
    _, row = write_manifest([added()], location=MEMORY)
    with pytest.raises(MissingFileError):
        [*read_manifests([row], DAY, MemoryStorage(), ALL, decoder=decoder)]
    encrypted = msgspec.structs.replace(row, key_metadata=b"k")
    with pytest.raises(UnsupportedError, match="encrypted"):
        [*read_manifests([encrypted], DAY, MemoryStorage(), ALL, decoder=decoder)]


def test_no_temporary_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data, row = several_blocks("deflate")
    found = read_manifests([row], DAY, _Stored(data), ALL, decoder=DATAFUSION, batch_records=1)
    next(found)
    found.close()  # type: ignore[attr-defined]
    vectorised(data, row)
    spoilt = data[:-300] + b"\xff" * 200 + data[-100:]
    with pytest.raises(IcekeepError):
        batches(spoilt, row)
    assert [*tmp_path.iterdir()] == []


def test_odd_or_missing_temp_directory_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data, row = several_blocks("deflate")
    expected = rows_of(read_entries(data, row))
    odd = tmp_path / "a b*[c]%20#d?"
    odd.mkdir()
    for directory in (odd, tmp_path / "absent"):
        monkeypatch.setattr(tempfile, "tempdir", str(directory))
        assert rows(batches(data, row)) == expected


def test_fastavro_continues_where_datafusion_stops(monkeypatch: pytest.MonkeyPatch):
    data, row = several_blocks("deflate")
    expected = rows_of(read_entries(data, row))
    whole, calls = manifest_reader.ManifestBatchReader._entries, []

    class PanicException(BaseException):
        """As Rust code panics in Python: not an `Exception`."""

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise manifest_reader.NotReadError("out of patience")
        return whole(*arguments)

    monkeypatch.setattr(manifest_reader.ManifestBatchReader, "_entries", failing)
    assert rows(batches(data, row, batch_records=1)) == expected
    assert len(calls) == 3

    def panic(*_: Any) -> None:
        raise PanicException("index out of bounds")

    monkeypatch.setattr("icekeep.planning.decoder._read_whole", panic)
    assert rows(batches(data, row)) == expected


def test_the_choice_says_why(monkeypatch: pytest.MonkeyPatch):
    decoder, why = chosen_decoder()
    assert (decoder, "is installed" in why) == (DATAFUSION, True)
    monkeypatch.setitem(sys.modules, "datafusion", None)
    assert chosen_decoder() == (FASTAVRO, "package datafusion is not installed")
    data, row = several_blocks("deflate")
    assert len(rows(batches(data, row))) == 60


# Small manifests that are decoded together: the entries are those of one after another.


WITH_PATHS = ("manifest_path", *STORED.names, "partition")


class Store(MemoryStorage):
    """Manifests under names of their own, and their rows in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[ManifestFile] = []

    def put(self, data: bytes, row: ManifestFile, **changes: Any) -> None:
        location = f"memory://bucket/m{len(self.rows)}.avro"
        self.create(location, data)
        row = msgspec.structs.replace(resized(row, data), manifest_path=location, **changes)
        self.rows.append(row)


def read(
    store: Store, decoder: ManifestDecoder = DATAFUSION, columns: Sequence[str] = WITH_PATHS
) -> list[pa.RecordBatch]:
    return [*read_manifests(store.rows, DAY, store, columns, decoder=decoder)]


def one_table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches).combine_chunks()


def outcome_together(store: Store, decoder: ManifestDecoder) -> pa.Table | str:
    """The rows, or the error: row ids after billions of billions of rows are beyond what a column can hold."""
    try:
        return one_table(read(store, decoder))
    except InvalidTableError as error:
        return str(error)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of manifests that were read by themselves."""
    alone: list[str] = []
    one = manifest_reader.ManifestBatchReader._alone

    def read_alone(reader: Any, manifest: ManifestFile, *arguments: Any) -> Any:
        alone.append(manifest.manifest_path)
        return one(reader, manifest, *arguments)

    monkeypatch.setattr(manifest_reader.ManifestBatchReader, "_alone", read_alone)
    return alone


@pytest.mark.slow
@given(
    st.lists(st.lists(manifest_entries(DAY), min_size=1, max_size=3), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)), min_size=4, max_size=4),
)
@cases(60)
def test_each_entry_inherits_from_its_own_manifest(entries: list[list[Any]], inherited: list[tuple[int, Any]]) -> None:
    store = Store()
    for some, (number, first_row_id) in zip(entries, inherited, strict=False):
        data, row = write_manifest(some, format_version=3)
        store.put(data, row, sequence_number=number, added_snapshot_id=number + 70, first_row_id=first_row_id)
    assert outcome_together(store, DATAFUSION) == outcome_together(store, FASTAVRO)


def test_small_manifests_of_one_schema_are_one_batch(counted: list[str]) -> None:
    store = Store()
    for number in range(5):
        file = data_file(f"file:/{number}", record_count=10, first_row_id=None)
        entries = [added(file), existing(file), deleted(file)]
        store.put(*write_manifest(entries, format_version=3), sequence_number=number + 1, first_row_id=100 * number)
    [batch] = read(store)
    assert counted == []
    assert batch["manifest_path"].to_pylist() == [row.manifest_path for row in store.rows for _ in range(3)]
    assert batch["sequence_number"].to_pylist()[::3] == [1, 2, 3, 4, 5]
    assert batch["first_row_id"].to_pylist()[:6] == [0, 10, None, 100, 110, None]
    assert read(store, columns=["file_path"])[0].schema.names == ["file_path"]


def renamed(schema: Any) -> Any:
    field_of(schema, 1).update(name="made_by")
    return schema


def test_unbundled_manifests_are_read_alone(counted: list[str]) -> None:
    """Manifests without counts or with another schema are not read together with small ones."""
    store = Store()
    data, row = write_manifest([added(data_file("file:/a"))])
    store.put(data, row)
    store.put(data, row, added_files_count=None)
    store.put(data, row)
    store.put(with_schema(data, renamed), row)
    read(store)
    # The second does not say how many entries it has; the last two have different schemas.
    assert counted == [row.manifest_path for row in store.rows]
    assert one_table(read(store)) == one_table(read(store, FASTAVRO))


def test_a_bundle_ends_where_a_batch_is_full(monkeypatch: pytest.MonkeyPatch, counted: list[str]) -> None:
    monkeypatch.setattr(manifest_reader, "BATCH_RECORDS", 4)
    store = Store()
    for number in range(5):
        store.put(*write_manifest([added(data_file(f"file:/{number}-{n}")) for n in range(2)]))
    assert [batch.num_rows for batch in read(store)] == [4, 4, 2]
    assert counted == [store.rows[4].manifest_path]


@pytest.mark.parametrize("damage", ["cut", "counts", "path"])
def test_bundled_error_equals_that_of_single_manifest(damage: str) -> None:
    store = Store()
    for number in range(3):
        data, row = write_manifest([added(data_file(f"file:/{number}"))])
        if damage == "cut" and number == 1:
            data = data[:-1]
        store.put(data, row, **({"added_files_count": 3} if damage == "counts" and number == 1 else {}))
    if damage == "path":
        spoilt = msgspec.structs.replace(store.rows[1], manifest_length=7)
        store.rows[1] = spoilt
    told = []
    for decoder in ManifestDecoder:
        with pytest.raises(InvalidTableError) as caught:
            read(store, decoder)
        told.append(str(caught.value))
    assert store.rows[1].manifest_path in told[0]
    assert told[0] == told[1]


NAN_OF_ANOTHER_SIGN = struct.unpack(">d", b"\xff\xf8\0\0\0\0\0\1")[0]


def columns(*types: str) -> StructType:
    return StructType(
        tuple(NestedField(field_id=1000 + i, name=f"p{i}", type=parse_type(t)) for i, t in enumerate(types))
    )


def key(values: tuple[Any, ...]) -> Any:
    return partition_key(data_file(partition=values))


@given(st.data())
def test_distinct_tuples_are_those_that_the_spec_tells_apart(data: st.DataObject):
    partition = data.draw(partition_types())
    tuples = st.tuples(*(st.none() | values_of(field.type) for field in partition.fields))
    few = data.draw(st.lists(tuples, min_size=1, max_size=4))
    rows = data.draw(st.lists(st.sampled_from(few), max_size=12))
    array = partition_array(rows, partition)
    array.validate(full=True)
    assert array.type == partition_arrow_type(partition)
    found, codes = distinct_partitions(array)
    assert [key(found[code]) for code in codes] == [key(row) for row in rows]
    assert repr([found[code] for code in codes]) == repr(rows)
    assert [key(values) for values in found] == list(dict.fromkeys(map(key, rows)))


@given(st.data())
def test_keys_are_the_bytes_of_the_codec(data: st.DataObject):
    partition = data.draw(partition_types())
    tuples = st.tuples(*(st.none() | values_of(field.type) for field in partition.fields))
    rows = data.draw(st.lists(tuples, max_size=6))
    codec = PartitionCodec(partition)
    keys = partition_keys(partition_array(rows, partition), codec)
    assert keys.type == pa.binary()
    assert [key(codec.decode(k)) for k in keys.to_pylist()] == [key(row) for row in rows]
    plain = [row for row in rows if not any(isinstance(v, float) and math.isnan(v) for v in row)]
    assert partition_keys(partition_array(plain, partition), codec).to_pylist() == [codec.encode(r) for r in plain]


@pytest.mark.parametrize("type_", ["float", "double"])
def test_each_nan_is_the_same_and_the_zeros_are_two(type_: str):
    partition = columns(type_)
    values = [math.nan, NAN_OF_ANOTHER_SIGN, 0.0, -0.0, None, 0.0]
    array = partition_array([(value,) for value in values], partition)
    tuples, codes = distinct_partitions(array)
    assert codes.tolist() == [0, 0, 1, 2, 3, 1]
    assert repr(tuples) == "[(nan,), (0.0,), (-0.0,), (None,)]"
    assert len(set(partition_keys(array, PartitionCodec(partition)).to_pylist())) == 4


def test_many_columns_of_many_values_are_told_apart():
    partition = columns(*["int"] * 8)
    rows = [tuple(n * (i + 1) for i in range(8)) for n in range(1000)] * 2
    tuples, codes = distinct_partitions(partition_array(rows, partition))
    assert tuples == rows[:1000]
    assert codes.tolist() == [*range(1000)] * 2


def test_a_part_of_a_column_is_its_own_column():
    partition = columns("string", "date", "uuid")
    array = partition_array([(text, 1, None) for text in "abcab"], partition)
    tuples, codes = distinct_partitions(array.slice(2, 3))
    assert (tuples, codes.tolist()) == ([("c", 1, None), ("a", 1, None), ("b", 1, None)], [0, 1, 2])


def test_tuples_of_an_unpartitioned_spec_are_all_equal():
    nothing = StructType(())
    array = partition_array([(), ()], nothing)
    assert len(array) == 2
    tuples, codes = distinct_partitions(array)
    assert (tuples, codes.tolist()) == ([()], [0, 0])
    assert partition_keys(array, PartitionCodec(nothing)).to_pylist() == [b"", b""]
    assert distinct_partitions(partition_array([], nothing))[0] == []


def test_nothing_is_told_apart_of_no_rows():
    tuples, codes = distinct_partitions(partition_array([], columns("date", "double")))
    assert (tuples, codes.tolist(), codes.dtype) == ([], [], np.int64)


def stored(values: list[Any], type_: pa.DataType, name: str) -> list[tuple[Any, ...]]:
    raw = pa.StructArray.from_arrays([pa.array(values, type_)], names=["x"])
    found = partition_of_stored(raw, ["x"], columns(name), len(values))
    tuples, codes = distinct_partitions(found)
    return [tuples[code] for code in codes]


def test_stored_values_of_a_narrower_type_are_widened():
    assert stored([1, None], pa.int32(), "long") == [(1,), (None,)]
    assert stored([1.5], pa.float32(), "double") == [(1.5,)]
    assert stored([b"ab"], pa.binary(2), "binary") == [(b"ab",)]
    assert stored([b"ab"], pa.binary(), "fixed[2]") == [(b"ab",)]


@for_each(
    ("value", "kind", "name"),
    [
        (True, pa.bool_(), "int"),
        (1, pa.int32(), "boolean"),
        (1, pa.int32(), "double"),
        ("x", pa.string(), "binary"),
        ("x", pa.string(), "date"),
        (b"abc", pa.binary(3), "fixed[2]"),
        (b"abc", pa.binary(), "uuid"),
        ("f79c3e09-677c-4bbd-a479-3f349cb785e7", pa.string(), "uuid"),
    ],
)
def test_value_of_wrong_stored_type_is_left_to_fallback(value: Any, kind: pa.DataType, name: str):
    with pytest.raises(NotReadError):
        stored([value], kind, name)
