"""The frame of a deletion vector: what a Puffin blob `deletion-vector-v1` holds around its bitmap (Puffin spec).

    length (4 bytes, big-endian, of magic and bitmap) | magic | bitmap | CRC-32 of magic and bitmap (4 bytes, big-endian)

The bitmap itself is `formats/puffin/deletion_vectors.py`.
"""

import zlib

from icekeep.errors import InvalidTableError

BLOB_TYPE = "deletion-vector-v1"

_MAGIC = bytes.fromhex("d1d33964")
_NUMBER_BYTES = 4


def frame(bitmap: bytes) -> bytes:
    """A serialized bitmap as the bytes of its blob."""
    body = _MAGIC + bitmap
    return len(body).to_bytes(_NUMBER_BYTES, "big") + body + zlib.crc32(body).to_bytes(_NUMBER_BYTES, "big")


def unframe(blob: bytes, where: str) -> bytes:
    """The bitmap in a blob, its length, magic and checksum verified; `where` names the blob in errors.

    Raises:
        InvalidTableError: the blob is damaged or is no deletion vector.
    """
    body, checksum = blob[_NUMBER_BYTES:-_NUMBER_BYTES], blob[-_NUMBER_BYTES:]
    if len(blob) < 2 * _NUMBER_BYTES + len(_MAGIC) or int.from_bytes(blob[:_NUMBER_BYTES], "big") != len(body):
        raise InvalidTableError(
            f"the deletion vector {where} has {len(blob)} bytes, which is not the length that it says"
        )
    if not body.startswith(_MAGIC):
        raise InvalidTableError(f"the deletion vector {where} begins with {body[:4].hex()}, not with {_MAGIC.hex()}")
    if int.from_bytes(checksum, "big") != zlib.crc32(body):
        raise InvalidTableError(f"the deletion vector {where} is damaged: its checksum does not fit")
    return body[len(_MAGIC) :]
