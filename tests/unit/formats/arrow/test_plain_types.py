"""Arrow memory under another description: only what is laid out alike, whatever other engines hand back."""

import pyarrow as pa
import pytest

from icekeep.errors import IcekeepBug
from icekeep.formats.arrow.arrays import described_as
from icekeep.formats.sort import external as sort_merge
from kit.cases import for_each

NESTED = pa.struct([pa.field("f0", pa.list_(pa.field("element", pa.map_(pa.string(), pa.binary()))))])
LARGE = pa.struct([pa.field("f0", pa.large_list(pa.field("element", pa.map_(pa.large_string(), pa.large_binary()))))])
TEXTS = ["", None, "a text that is too long for a view of twelve bytes", "ö"]
DEEP = [{"f0": [[("key", b"value"), ("k", None)], None]}, None, {"f0": None}, {"f0": []}]


@pytest.mark.parametrize("given", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_of_every_layout_come_as_the_texts_that_they_are(given):
    """64-bit offsets were taken for 32-bit ones."""
    batch = pa.record_batch([pa.array(TEXTS, given)], names=["a"])
    found = described_as(batch, pa.schema([pa.field("b", pa.string())]))
    found.validate(full=True)
    assert found.to_pydict() == {"b": TEXTS}
    assert found.schema == pa.schema([pa.field("b", pa.string())])


@pytest.mark.parametrize("given", [NESTED, LARGE])
def test_nested_columns_of_every_layout_come_as_they_are(given):
    batch = pa.record_batch([pa.array(DEEP, given)], names=["a"])
    found = described_as(batch, pa.schema([pa.field("b", NESTED)]))
    found.validate(full=True)
    assert found.column(0).to_pylist() == DEEP
    assert described_as(batch.slice(2, 2), found.schema).column(0).to_pylist() == DEEP[2:]


def test_what_is_laid_out_alike_is_not_copied():
    values = pa.array(["a", "b"], pa.string())
    found = described_as(pa.record_batch([values, pa.array([1, 2])], names=["a", "b"]), pa.schema([
        pa.field("x", pa.string(), metadata={b"k": b"v"}), pa.field("y", pa.timestamp("us", "UTC"))
    ]))  # fmt: skip
    assert found.column(0).buffers()[2].address == values.buffers()[2].address
    assert found.column(1).cast(pa.int64()).to_pylist() == [1, 2]


@for_each(
    ("given", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.string(), pa.binary()),
        (pa.string(), pa.int32()),
        (pa.binary(), pa.binary(2)),
        (pa.binary(3), pa.binary(2)),
        (pa.bool_(), pa.int8()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.struct([pa.field("a", pa.int32())]), pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32())])),
    ],
)
def test_another_layout_is_a_bug_and_not_read(given, wanted):
    """Nothing but the row count would show it."""
    batch = pa.record_batch([pa.nulls(1, given)], names=["a"])
    with pytest.raises(IcekeepBug, match="cannot be described as"):
        described_as(batch, pa.schema([pa.field("a", wanted)]))
    with pytest.raises(IcekeepBug, match="1 Arrow columns cannot be described as 0"):
        described_as(batch, pa.schema([]))


def test_rows_come_back_from_a_datafusion_that_hands_out_views(tmp_path, monkeypatch):
    """What it merges is looked at as well."""
    import datafusion

    schema = pa.schema([pa.field("text", pa.string()), pa.field("key", pa.binary())])
    tables = [pa.Table.from_arrays([TEXTS, [b"a", b"c", b"e", b"g"]], schema=schema) for _ in range(2)]
    for number, table in enumerate(tables):
        sort_merge.write_sorted_file(tmp_path / f"{number}.arrow", iter([table]))
    to_pyarrow = datafusion.RecordBatch.to_pyarrow

    def in_views(batch):
        return to_pyarrow(batch).cast(pa.schema([pa.field("c0", pa.string_view()), pa.field("c1", pa.binary_view())]))

    monkeypatch.setattr(datafusion.RecordBatch, "to_pyarrow", in_views)
    found = pa.concat_tables(sort_merge.merged_files(tmp_path, 2, schema))
    assert found.schema == schema
    assert found["text"].to_pylist() == [text for text in TEXTS for _ in range(2)]
