import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.formats.puffin import frame, unframe

BITMAP = b"bitmap"


def test_the_frame_is_length_magic_bitmap_and_checksum():
    body = bytes.fromhex("d1d33964") + BITMAP
    assert frame(BITMAP) == len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    assert unframe(frame(BITMAP), "x") == BITMAP


@pytest.mark.parametrize(
    ("blob", "problem"),
    [
        (b"", "has 0 bytes, which is not the length that it says"),
        (frame(BITMAP)[:-1], "has 17 bytes, which is not the length"),
        (frame(BITMAP) + b"x", "has 19 bytes, which is not the length"),
        (frame(BITMAP).replace(b"\xd1\xd3", b"\xd1\xd4"), "begins with d1d43964, not with d1d33964"),
        (frame(BITMAP).replace(b"bit", b"bat"), "its checksum does not fit"),
    ],
    ids=["empty", "cut", "longer", "magic", "damaged"],
)
def test_a_damaged_vector_is_refused(blob: bytes, problem: str):
    with pytest.raises(InvalidTableError, match=f"the deletion vector at byte 4 of 'f' .*{problem}"):
        unframe(blob, "at byte 4 of 'f'")


@given(st.binary(max_size=40), st.integers(0, 400), st.integers(1, 255))
def test_no_changed_byte_goes_unseen(bitmap: bytes, position: int, change: int):
    blob = bytearray(frame(bitmap))
    blob[position % len(blob)] ^= change
    with pytest.raises(InvalidTableError):
        unframe(bytes(blob), "x")
