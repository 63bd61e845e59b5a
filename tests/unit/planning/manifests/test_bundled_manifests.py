"""Small manifests that are decoded together: the entries are those of one after another."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.planning import manifests as manifest_reader
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.manifests import STORED, read_manifests
from icekeep.spec.manifests.structs import ManifestFile
from kit.cases import cases
from kit.manifests import DAY, added, data_file, deleted, existing, field_of, resized, with_schema, write_manifest
from kit.storage import MemoryStorage
from kit.table_strategies import manifest_entries

ALL = ("manifest_path", *STORED.names, "partition")
DATAFUSION, FASTAVRO = ManifestDecoder.DATAFUSION, ManifestDecoder.FASTAVRO


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


def read(store: Store, decoder: ManifestDecoder = DATAFUSION, columns: Sequence[str] = ALL) -> list[pa.RecordBatch]:
    return [*read_manifests(store.rows, DAY, store, columns, decoder=decoder)]


def rows(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches).combine_chunks()


def outcome(store: Store, decoder: ManifestDecoder) -> pa.Table | str:
    """The rows, or the error: row ids after billions of billions of rows are beyond what a column can hold."""
    try:
        return rows(read(store, decoder))
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
    assert outcome(store, DATAFUSION) == outcome(store, FASTAVRO)


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


def test_what_may_not_be_small_or_is_laid_out_otherwise_goes_by_itself(counted: list[str]) -> None:
    store = Store()
    data, row = write_manifest([added(data_file("file:/a"))])
    store.put(data, row)
    store.put(data, row, added_files_count=None)
    store.put(data, row)
    store.put(with_schema(data, renamed), row)
    read(store)
    # The second does not say how many entries it has; the last two have different schemas.
    assert counted == [row.manifest_path for row in store.rows]
    assert rows(read(store)) == rows(read(store, FASTAVRO))


def test_a_bundle_ends_where_a_batch_is_full(monkeypatch: pytest.MonkeyPatch, counted: list[str]) -> None:
    monkeypatch.setattr(manifest_reader, "BATCH_RECORDS", 4)
    store = Store()
    for number in range(5):
        store.put(*write_manifest([added(data_file(f"file:/{number}-{n}")) for n in range(2)]))
    assert [batch.num_rows for batch in read(store)] == [4, 4, 2]
    assert counted == [store.rows[4].manifest_path]


@pytest.mark.parametrize("damage", ["cut", "counts", "path"])
def test_what_is_wrong_with_one_of_them_is_told_as_if_it_were_alone(damage: str) -> None:
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
