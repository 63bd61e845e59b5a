import pytest

from icekeep.formats.parquet.footer import CannotMove
from icekeep.formats.parquet.thrift import (
    BINARY,
    I64,
    LIST,
    STRUCT,
    Damaged,
    Struct,
    binary_bytes,
    integer_bytes,
    list_bytes,
)
from icekeep.formats.rewrite.copy_pages import FooterHead, footer_of, head_bytes, walk_footer
from icekeep.spec.types import INT, LONG, STRING
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.spliced import with_edits

SCHEMA = schema_of(column(1, "a", LONG), column(2, "b", INT), column(3, "c", STRING))


def file(row_count=10, first=0, **options):
    rows = [{"a": n, "b": -n, "c": f"text {n}"} for n in range(first, first + row_count)]
    return parquet_bytes(table_of(SCHEMA, rows), **options)


def head(footer, columns_count=3):
    return FooterHead(head_bytes(footer), {}, columns_count, 20)


def walked(data, positions=(0, 2), known_end=None, **facts):
    footer = footer_of(data)
    return walk_footer(footer, head(footer, **facts), positions, known_end)


def test_only_the_chunks_that_are_asked_for_are_opened_in_every_row_group():
    found = walked(file(10, row_group_rows=4), (0, 2))
    assert [group.row_count for group in found.row_groups] == [4, 4, 2]
    assert [set(group.chunks) for group in found.row_groups] == [{0, 2}] * 3
    names = [chunk.struct(3).binaries(3) for chunk in found.row_groups[1].chunks.values()]
    assert names == [[b"a"], [b"c"]]
    assert found.row_count == 10


def test_a_file_has_the_rows_of_its_row_groups():
    assert walked(file(7)).has_rows(7)
    assert not walked(file(7)).has_rows(8)
    assert not walked(with_edits(file(7), footer={3: (I64, integer_bytes(8))})).has_rows(8)


def test_the_head_is_that_of_all_files_of_a_schema_and_of_no_other():
    other = parquet_bytes(table_of(schema_of(*SCHEMA.fields[:2]), [{"a": 1, "b": 2}]))
    assert footer_of(file(500, 99)).startswith(head_bytes(footer_of(file())))
    assert not footer_of(other).startswith(head_bytes(footer_of(file())))


def test_the_end_says_who_wrote_the_file_and_which_columns_are_ordered():
    end = walked(file()).end
    assert end.created_by.startswith(b"parquet-cpp-arrow version")
    assert end.ordered == {0, 1, 2}
    without = walked(with_edits(file(), footer={6: None, 7: None})).end
    assert (without.created_by, without.ordered) == (b"", frozenset())


def test_an_end_that_is_known_is_not_read_again_and_any_other_is():
    known = walked(file()).end
    assert walked(file(33, 5), known_end=known).end is known
    others = with_edits(file(), footer={6: (BINARY, binary_bytes(b"someone else"))})
    assert walked(others, known_end=known).end == walked(others).end
    assert walked(others).end.created_by == b"someone else"
    # What comes behind the known end is no footer's.
    footer = footer_of(file())
    with pytest.raises(Damaged):
        walk_footer(footer + b"\0", head(footer), (), known)


def test_a_row_group_has_the_columns_of_the_schema():
    for count in (2, 4):
        with pytest.raises(Damaged, match="not the columns"):
            walked(file(), columns_count=count)
    (group,) = Struct(footer_of(file())).structs(4)
    chunks = group.raw(1)
    for edits in ({1: None}, {1: (LIST, list_bytes(STRUCT, [])), 2: (LIST, chunks)}, {3: (I64, integer_bytes(-1))}):
        with pytest.raises(Damaged):
            walked(with_edits(file(), group=edits))


def test_a_footer_that_is_not_there_in_plain_text_is_damaged():
    good = file()
    for bad in (good[:-1] + b"E", good[:-8] + b"\xff\xff\xff\x7fPAR1", good[-6:], b"", b"PAR1"):
        with pytest.raises((Damaged, CannotMove)):
            footer_of(bad)


def test_a_footer_says_how_many_rows_there_are():
    with pytest.raises(Damaged):
        walked(with_edits(file(), footer={3: None}))
