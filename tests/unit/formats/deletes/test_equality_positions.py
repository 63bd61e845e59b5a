"""Which rows equality deletes remove, by position: a set of Python's tuples is the oracle, and a slow reader for whole tables."""

import io
import struct
from collections import Counter
from itertools import pairwise
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.deletes import apply as equality_match
from icekeep.formats.deletes import apply as merge_on_read
from icekeep.formats.deletes.apply import LivePiece
from icekeep.formats.deletes.equality import equality_positions
from icekeep.formats.deletes.read import DeleteCache, write_equality_deletes
from icekeep.formats.reader import SourceFile
from icekeep.spec.types import DOUBLE, FLOAT, LONG, STRING, NestedField, StructType
from kit.cases import cases, for_each
from kit.columns import column, schema_of, table_of
from kit.data_files import options_for, write_files
from kit.storage import HookedStorage, MemoryStorage

FORMATS = ["PARQUET", "ORC", "AVRO"]
NAN = float("nan")
INNER = StructType((column(4, "x", DOUBLE), column(5, "label", STRING)))
SCHEMA = schema_of(
    column(1, "id", LONG), column(2, "kind", STRING), column(3, "inner", INNER), column(6, "ratio", FLOAT)
)
KEYS = ((1,), (2,), (4,), (6,), (1, 2), (2, 4), (2, 5, 6))
"""By which deletes compare: fields of structs among them."""

_ROW = st.fixed_dictionaries(
    {
        "id": st.sampled_from([None, 0, 1, 2**40]),
        "kind": st.sampled_from([None, "", "a", "ä"]),
        "inner": st.none()
        | st.fixed_dictionaries(
            {"x": st.sampled_from([None, 0.0, -0.0, NAN]), "label": st.sampled_from([None, "a", ""])}
        ),
        "ratio": st.sampled_from([None, 0.5, NAN]),
    }
)
_FILES = st.lists(st.tuples(st.lists(_ROW, max_size=12), st.sampled_from(FORMATS)), min_size=1, max_size=4)
_DELETES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.lists(_ROW, min_size=1, max_size=4), st.sampled_from(FORMATS)), max_size=4
)


def key_of(row: dict[str, Any], ids: tuple[int, ...]) -> tuple[Any, ...]:
    inner = row["inner"] or {"x": None, "label": None}
    values = {1: row["id"], 2: row["kind"], 4: inner["x"], 5: inner["label"], 6: row["ratio"]}
    return tuple(_bits(values[field_id]) for field_id in ids)


def _bits(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "nan" if value != value else struct.pack(">d", value)


class Table:
    """Data files and delete files in a store."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.numbers = 0

    def data(self, rows, file_format="PARQUET", schema=SCHEMA, deletes=()):
        self.numbers += 1
        directory = f"memory:/t/{self.numbers}"
        if not rows:
            # What has no rows makes no file: one row stands for it, and its entry is never read past it.
            rows = [dict.fromkeys(field.name for field in schema.fields)]
        options = options_for(file_format)
        (file,) = write_files(self.storage, schema, [table_of(schema, rows)], options, directory)
        source = SourceFile(location=file.file_path, file_format=file_format)
        return LivePiece(source=source, deletes=list(deletes), record_count=file.record_count)

    def equality(self, ids, rows, file_format="PARQUET", schema=SCHEMA):
        self.numbers += 1
        return write_equality_deletes(
            self.storage,
            f"memory:/t/deletes-{self.numbers}",
            file_format,
            table_of(schema, rows),
            ids,
            schema,
            spec_id=0,
        )

    def positions(self, pieces, schemas=(SCHEMA,), storage=None, **options):
        found = equality_positions(storage or self.storage, pieces, schemas, **options)
        return [positions.tolist() for positions in found]


@pytest.mark.slow
@given(_FILES, _DELETES, st.data())
@cases(60)
def test_positions_are_those_of_the_rows_that_equal_a_delete(files, deletes, data):
    """Null equals null, NaN equals NaN, 0.0 is not -0.0; whatever pieces the rows are read in, and deletes pass by in."""
    table = Table()
    written = [table.equality(ids, rows, file_format) for ids, rows, file_format in deletes]
    pieces, expected = [], []
    for rows, file_format in files:
        reaching = data.draw(st.sets(st.integers(0, max(0, len(deletes) - 1)))) if deletes else set()
        rows = rows or [{"id": None, "kind": None, "inner": None, "ratio": None}]
        pieces.append(table.data(rows, file_format, deletes=[written[n] for n in sorted(reaching)]))
        gone = {(deletes[n][0], key_of(row, deletes[n][0])) for n in reaching for row in deletes[n][1]}
        expected.append([n for n, row in enumerate(rows) if any((ids, key_of(row, ids)) in gone for ids in KEYS)])
    piece_rows, batch_rows = data.draw(st.sampled_from([1, 3, 1000])), data.draw(st.sampled_from([1, 2, 1000]))
    with (
        mock.patch.object(merge_on_read, "PIECE_ROWS", piece_rows),
        mock.patch.object(equality_match, "BATCH_ROWS", batch_rows),
    ):
        assert table.positions(pieces) == expected


def test_columns_that_were_dropped_or_promoted_and_those_that_came_later_are_compared():
    table = Table()
    older = replace(schema_of(column(1, "id", LONG), column(2, "ratio", FLOAT), column(3, "kind", STRING)), schema_id=0)
    added = NestedField(field_id=4, name="origin", type=STRING, initial_default="here")
    now = replace(schema_of(column(1, "id", LONG), column(2, "ratio", DOUBLE), added), schema_id=1)
    rows = [{"id": n, "ratio": n / 4, "kind": "ab"[n % 2]} for n in range(6)]
    by_dropped = table.equality([3], [{"id": None, "ratio": None, "kind": "b"}], schema=older)
    by_promoted = table.equality([2], [{"id": None, "ratio": 0.5, "origin": None}], schema=now)
    by_default = table.equality([1, 4], [{"id": 4, "ratio": None, "origin": "here"}], schema=now)
    piece = table.data(rows, schema=older, deletes=[by_dropped, by_promoted, by_default])
    for schemas in ([older, now], [now, older]):
        assert table.positions([piece], schemas) == [[1, 2, 3, 4, 5]]


def test_only_the_columns_that_are_compared_are_looked_at():
    """The others may be broken."""
    table = Table()
    wide = schema_of(column(1, "id", LONG), column(2, "text", STRING))
    rows = [{"id": n, "text": f"text {n}"} for n in range(2000)]
    piece = table.data(rows, schema=wide)
    data = bytearray(table.storage.read(piece.source.location))
    text = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1)
    start = text.dictionary_page_offset or text.data_page_offset
    data[start : start + text.total_compressed_size] = bytes(text.total_compressed_size)
    table.storage.delete_many([piece.source.location])
    table.storage.create(piece.source.location, bytes(data))
    by_id, by_text = (table.equality([n], [{"id": 7, "text": "text 7"}], schema=wide) for n in (1, 2))
    assert table.positions([replace(piece, deletes=[by_id])], [wide]) == [[7]]
    with pytest.raises(InvalidTableError):
        table.positions([replace(piece, deletes=[by_text])], [wide])


def test_a_delete_file_is_read_once_for_files_that_share_it():
    table = Table()
    rows = [{"id": n, "kind": "a", "inner": None, "ratio": None} for n in range(4)]
    delete = table.equality([1], [rows[2]])
    pieces = [table.data(rows, deletes=[delete]) for _ in range(5)]
    opened = Counter()
    storage = HookedStorage(table.storage, before=lambda operation, location: opened.update([location]))
    assert table.positions(pieces, storage=storage, cache=DeleteCache()) == [[2]] * 5
    assert opened == {delete.file_path: 1} | {piece.source.location: 1 for piece in pieces}


@for_each("place", [0, 1, 2])
@for_each("wrong", [-1, 1])
def test_a_file_that_has_not_the_rows_of_its_entry_is_refused(place, wrong):
    table = Table()
    rows = [{"id": n, "kind": "a", "inner": None, "ratio": None} for n in range(4)]
    delete = table.equality([1], [rows[2]])
    pieces = [table.data(rows, deletes=[delete]) for _ in range(3)]
    pieces[place] = replace(pieces[place], record_count=4 + wrong)
    with pytest.raises(InvalidTableError, match=f"has 4 rows where its manifest says {4 + wrong}"):
        table.positions(pieces)


def test_parts_of_files_have_no_positions():
    table = Table()
    piece = table.data([{"id": 1, "kind": "a", "inner": None, "ratio": None}])
    for wrong in (replace(piece, record_count=None), replace(piece, split=(0, 10))):
        with pytest.raises(IcekeepBug, match="in a part of data file"):
            table.positions([wrong])


def test_positions_ascend_and_are_within_the_file():
    table = Table()
    rows = [{"id": n % 3, "kind": None, "inner": None, "ratio": None} for n in range(100)]
    [found] = table.positions([table.data(rows, deletes=[table.equality([1], rows[:2])])])
    assert found == [n for n in range(100) if n % 3 < 2]
    assert all(a < b for a, b in pairwise(found))
