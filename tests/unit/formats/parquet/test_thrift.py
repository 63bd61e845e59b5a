import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.parquet import thrift
from icekeep.formats.parquet.thrift import (
    BINARY,
    BYTE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    UUID,
    Damaged,
    Struct,
    binary_bytes,
    integer_at,
    list_bytes,
    struct_bytes,
    structs_at,
    with_integers,
)
from icekeep.spec.avro import encode_long
from kit.cases import cases, for_each

LONGS = st.integers(-(2**63), 2**63 - 1)


def small(number):
    return struct_bytes([(1, I64, encode_long(number))])


@given(LONGS)
def test_a_number_is_read_as_it_was_written(number):
    data = encode_long(number)
    assert integer_at(data + b"rest", 0) == (number, len(data))


def test_numbers_are_zigzag_varints_as_the_protocol_says():
    assert [encode_long(n) for n in (0, -1, 1, -2, 63, 64)] == [b"\0", b"\1", b"\2", b"\3", b"\x7e", b"\x80\x01"]


@given(st.dictionaries(st.integers(1, 32767), LONGS, min_size=1))
def test_fields_are_found_by_their_ids_however_far_apart_these_are(numbers):
    data = struct_bytes([(id_, I64, encode_long(numbers[id_])) for id_ in sorted(numbers)])
    struct = Struct(data)
    assert struct.spans.keys() == set(numbers)
    assert {id_: struct.value(id_) for id_ in numbers} == numbers
    assert struct.end == len(data)


@for_each("count", [0, 1, 14, 15, 16, 200])
def test_a_list_of_more_than_14_structs_has_a_longer_head(count):
    data = struct_bytes([(3, LIST, list_bytes(STRUCT, [small(n) for n in range(count)]))])
    assert [struct.value(1) for struct in Struct(data).structs(3)] == list(range(count))


def test_what_is_not_asked_for_is_passed_over():
    data = struct_bytes(
        [
            (1, BYTE, b"\x05"),
            (2, TRUE, b""),
            (3, BINARY, binary_bytes(b"text")),
            (4, SET, bytes([2 << 4 | TRUE, 1, 2])),
            (5, MAP, bytes([2, BINARY << 4 | I32]) + binary_bytes(b"k") + b"\2" + binary_bytes(b"l") + b"\4"),
            (6, MAP, b"\0"),
            (7, UUID, bytes(16)),
            (8, 7, bytes(8)),
            (9, STRUCT, small(1)),
            (40, I16, encode_long(-7)),
        ]
    )
    struct = Struct(data)
    kinds = {id_: span.kind for id_, span in struct.spans.items()}
    assert kinds == {
        1: BYTE,
        2: TRUE,
        3: BINARY,
        4: SET,
        5: MAP,
        6: MAP,
        7: UUID,
        8: 7,
        9: STRUCT,
        40: I16,
    }
    assert struct.byte(1) == 5
    assert struct.boolean(2)
    assert not struct.boolean(99)
    assert struct.raw(3) == b"\4text"
    assert struct.struct(9).value(1) == 1
    assert struct.value(40) == -7
    assert struct.end == len(data)


def test_a_replaced_number_leaves_all_else_as_it_was():
    data = struct_bytes([(1, I64, encode_long(5)), (2, BINARY, binary_bytes(b"keep")), (3, I64, encode_long(600))])
    struct = Struct(data)
    # Given in no order, and of other lengths than before.
    changed = with_integers(data, 0, len(data), [(struct.integer(3), 2), (struct.integer(1), 2**40)])
    assert [Struct(changed).value(n) for n in (1, 3)] == [2**40, 2]
    assert Struct(changed).raw(2) == b"\4keep"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        small(1)[:-1],
        bytes([1 << 4 | BINARY]) + b"\xff\xff\xff\x7f",
        bytes([1 << 4 | LIST, 15 << 4 | I32]) + b"\xff\xff\xff\xff\x0f",
        bytes([1 << 4 | MAP]) + b"\xff\xff\xff\xff\x0f\x55",
        bytes([1 << 4 | I64]) + b"\xff" * 20 + b"\0",
        bytes([1 << 4 | 14, 0]),
        bytes([1 << 4 | STRUCT]) + bytes([1 << 4 | STRUCT]) * 5000,
        bytes([1 << 4 | LIST]) + bytes([1 << 4 | LIST]) * 5000,
        bytes([1 << 4 | I32, 0, I32, 2, 0, 0]),
    ],
    ids=["empty", "no end", "text", "list", "map", "number", "kind", "structs in structs", "lists in lists", "twice"],
)
def test_bytes_that_are_no_struct_are_damaged(data):
    with pytest.raises(Damaged):
        Struct(data)


def test_a_field_of_another_kind_than_asked_for_is_damaged():
    struct = Struct(struct_bytes([(1, BINARY, binary_bytes(b"x")), (2, LIST, b"\x15\0")]))
    for ask in (struct.integer, struct.struct, struct.structs, struct.byte, struct.boolean):
        with pytest.raises(Damaged):
            ask(1)
    with pytest.raises(Damaged):
        struct.structs(2)
    with pytest.raises(Damaged):
        struct.required_integer(3)


@cases(500)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_struct_or_damaged(data):
    try:
        struct = Struct(data)
        for field_id, span in struct.spans.items():
            if span.kind == STRUCT:
                struct.struct(field_id)
        structs_at(data, 0)
    except Damaged:
        pass


def test_lists_of_numbers_bytes_and_truth_values_are_read_as_they_were_written():
    data = struct_bytes(
        [
            (1, thrift.LIST, thrift.list_bytes(thrift.I64, [encode_long(n) for n in range(-9, 9)])),
            (2, thrift.LIST, thrift.list_bytes(thrift.BINARY, [thrift.binary_bytes(b"x" * n) for n in range(200)])),
            (3, thrift.LIST, thrift.list_bytes(thrift.TRUE, [b"\1", b"\2", b"\1"])),
            (4, thrift.BINARY, thrift.binary_bytes(b"text")),
        ]
    )
    struct = Struct(data)
    assert struct.integers(1) == list(range(-9, 9))
    assert struct.binaries(2) == [b"x" * n for n in range(200)]
    assert struct.booleans(3) == [True, False, True]
    assert (struct.binary(4), struct.binary(5), struct.integers(6)) == (b"text", None, [])
    with pytest.raises(Damaged):
        struct.integers(2)
