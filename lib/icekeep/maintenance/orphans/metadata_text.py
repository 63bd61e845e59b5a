"""The text of metadata files that may be broken: plain or packed, and whether it ended before its JSON did."""

from typing import TypeVar

import msgspec

from icekeep.decoding import from_json
from icekeep.spec.metadata import unpacked_head

T = TypeVar("T")

_MAX_BYTES = 4 << 30
_MAGICS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""With which a packed file begins: gzip, zstd."""
_CUT_OFF = "truncated"
"""What msgspec says of text that ends too early, and of no other."""


class CutOffError(Exception):
    """Text that ended before its JSON did, so that nobody can read it.

    What is wrong in another way may be in a format that is not known here.
    """


def parse_metadata_text(data: bytes, wanted: type[T]) -> T:
    """What is wanted of a metadata file.

    Raises:
        CutOffError: it is empty, or ends in the middle.
        msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error: it is broken in another way.
    """
    # A file that was made longer and never filled, as a crash leaves it on some disks, is as good as empty.
    if any(magic.startswith(data) for magic in _MAGICS) or not data.strip(b"\0"):
        raise CutOffError("it is empty")
    text = unzipped(data)
    try:
        return from_json(text, wanted)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if _ends_early(text):
            raise CutOffError("it ends in the middle") from error
        raise


def unzipped(data: bytes) -> bytes:
    """A metadata file's text, plain or packed, as far as it goes; raises `zlib.error` where it is broken."""
    return unpacked_head(data, _MAX_BYTES)


def _ends_early(text: bytes) -> bool:
    # A number that was cut off is no number, until one more digit follows.
    for more in (b"", b"0"):
        try:
            msgspec.json.decode(text + more)
        except msgspec.DecodeError as error:
            if _CUT_OFF in str(error):
                return True
    return False
