"""Theta sketches of columns (Puffin spec, "apache-datasketches-theta-v1"): how many distinct values there are, about.

A sketch keeps the least hashes of all values, `NOMINAL` at most: it has all of them (`theta` is 1) or, of more, a known share.
Sketches of parts of a column make that of the whole. A hash is the upper half of MurmurHash3's 128 bits, one shifted right, over
the bytes of the single-value serialization (spec, Appendix D), with the seed of Apache DataSketches. That library's Python takes
whole numbers, floats and text alone, and no bytes, so that it can make no sketch of a column of type `int`, `date`, `decimal` or
`uuid`; here hashes are computed of whole columns.

The bytes are those of a compact sketch in order, as Java writes it (version 3 of DataSketches' format), little-endian:

longs before the hashes | 3 | 3 | 0 | 0 | flags | hash of the seed (2 bytes) | count (4) | 1.0 (4) | theta (8) | hashes (8 each)

Theta is there only where it is below 1, and the count not for none and for one.
"""

import struct
from collections.abc import Iterable
from uuid import UUID

import mmh3
import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.types import DecimalType, FixedType, PrimitiveType, Type
from icekeep.spec.values import value_to_bytes

BLOB_TYPE = "apache-datasketches-theta-v1"

NOMINAL = 4096
"""As many hashes as sketches of Iceberg's Java library and of Trino keep: an error of 1.6 % in the mean."""

SEED = 9001
_SEED_HASH = mmh3.hash64(SEED.to_bytes(8, "little"), 0, x64arch=True, signed=False)[0] & 0xFFFF
_WHOLE = (1 << 63) - 1
_VERSION, _COMPACT_FAMILY = 3, 3
_READ_ONLY, _EMPTY, _COMPACT, _ORDERED, _SINGLE = 2, 4, 8, 16, 32
_HELD = 1 << 16

Hashes = NDArray[np.uint64]

_FIXED_WIDTHS = {
    **dict.fromkeys(("int", "date", "float"), 4),
    **dict.fromkeys(("long", "double", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), 8),
}
_OTHERS = frozenset({"boolean", "string", "uuid", "binary"})


class ThetaSketch(msgspec.Struct, frozen=True):
    """The least hashes of a column, ascending; `theta` is above all of them, in parts of 2^63."""

    hashes: Hashes
    theta: int = _WHOLE

    @property
    def estimate(self) -> int:
        """How many distinct values there are; the very number where all hashes are kept."""
        return int(len(self.hashes) / (self.theta / _WHOLE)) if self.theta < _WHOLE else len(self.hashes)

    def to_bytes(self) -> bytes:
        """A compact sketch, as blobs hold it."""
        count, flags = len(self.hashes), _READ_ONLY | _COMPACT | _ORDERED
        longs = 3 if self.theta < _WHOLE else 2 if count > 1 else 1
        if self.theta == _WHOLE and count < 2:
            flags |= _SINGLE if count else _EMPTY
        data = struct.pack(
            "<BBBBBBH", longs, _VERSION, _COMPACT_FAMILY, 0, 0, flags, 0 if flags & _EMPTY else _SEED_HASH
        )
        if longs > 1:
            data += struct.pack("<If", count, 1.0)
        if longs > 2:
            data += struct.pack("<Q", self.theta)
        return data + self.hashes.astype("<u8").tobytes()


def sketch_from_bytes(data: bytes) -> ThetaSketch:
    """Read a compact sketch, whichever engine wrote it.

    Raises:
        InvalidTableError: it is damaged, or of another seed.
        UnsupportedError: it is of a form that icekeep does not read, such as a compressed one.
    """
    try:
        longs, version, family, _, _, flags, seed_hash = struct.unpack_from("<BBBBBBH", data)
        if version != _VERSION or family != _COMPACT_FAMILY:
            raise UnsupportedError(f"a theta sketch has family {family} and version {version}, which is not read")
        if seed_hash != _SEED_HASH and not flags & _EMPTY:
            raise InvalidTableError("a theta sketch has another seed than that of the specification")
        count, theta = (0 if flags & _EMPTY else 1), _WHOLE
        if longs > 1:
            (count,) = struct.unpack_from("<I", data, 8)
        if longs > 2:
            (theta,) = struct.unpack_from("<Q", data, 16)
        hashes = np.sort(np.frombuffer(data, "<u8", count, 8 * longs).astype(np.uint64))
    except (struct.error, ValueError) as error:
        raise InvalidTableError(f"a theta sketch is damaged: {error}") from error
    if not 0 < theta <= _WHOLE or (count and not 0 < int(hashes[0]) <= int(hashes[-1]) < theta):
        raise InvalidTableError("a theta sketch has hashes that are not below its theta")
    return ThetaSketch(hashes, theta)


class SketchBuilder:
    """Makes the sketch of values, and of other sketches, that are added one after the other."""

    def __init__(self) -> None:
        self._theta = _WHOLE
        self._parts: list[Hashes] = []
        self._held = 0

    def add_hashes(self, hashes: Hashes) -> None:
        """Add hashes of values; those above theta are dropped at once."""
        kept = hashes[(hashes > 0) & (hashes < self._theta)]
        if len(kept):
            self._parts.append(kept)
            self._held += len(kept)
            if self._held > _HELD:
                self._compact()

    def add(self, sketch: ThetaSketch) -> None:
        """Add what another sketch stands for."""
        self._theta = min(self._theta, sketch.theta)
        self.add_hashes(sketch.hashes)

    def sketch(self) -> ThetaSketch:
        """The sketch of all that was added."""
        self._compact()
        return ThetaSketch(self._parts[0], self._theta)

    def _compact(self) -> None:
        hashes = np.unique(np.concatenate(self._parts)) if self._parts else np.empty(0, np.uint64)
        hashes = hashes[hashes < self._theta]
        if len(hashes) > NOMINAL:
            self._theta = int(hashes[NOMINAL])
            hashes = hashes[:NOMINAL]
        self._parts, self._held = [hashes], 0


def has_sketches(type_: Type) -> bool:
    """Whether there are sketches of columns of a type: of all primitive ones with a single-value serialization."""
    if isinstance(type_, DecimalType | FixedType):
        return True
    return isinstance(type_, PrimitiveType) and (type_.name in _FIXED_WIDTHS or type_.name in _OTHERS)


def hashes_of(values: pa.Array, type_: Type) -> Hashes:
    """The hashes of the values of a column that are not null, as its rows hold them in Arrow; of text for a UUID too.

    Values without a byte, such as empty text, have none, as in Apache DataSketches.
    """
    name = type_.name if isinstance(type_, PrimitiveType) else ""
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    values = values.drop_null()
    if not len(values):
        return np.empty(0, np.uint64)
    if name in _FIXED_WIDTHS:
        return _hashes_of_numbers(values, name)
    if isinstance(values, pa.UuidArray):
        values = values.storage
    distinct = values.unique()
    if name == "string":
        data: Iterable[bytes] = distinct.cast(pa.binary()).to_pylist()
    elif name == "uuid" and pa.types.is_string(distinct.type):
        data = [UUID(text).bytes for text in distinct.to_pylist()]
    elif name in ("uuid", "binary") or isinstance(type_, FixedType):
        data = distinct.to_pylist()
    else:
        data = [value_to_bytes(type_, value) for value in distinct.to_pylist()]
    found = [mmh3.hash64(one, SEED, x64arch=True, signed=False)[0] for one in data if one]
    return np.array(found, np.uint64) >> np.uint64(1)


def _hashes_of_numbers(values: pa.Array, name: str) -> Hashes:
    """Of values whose serialization has 4 or 8 bytes, without an object for each."""
    width = _FIXED_WIDTHS[name]
    if pa.types.is_floating(values.type):
        # All NaN are one value, as Java writes it.
        numbers = np.where(np.isnan(plain := values.to_numpy(zero_copy_only=False)), plain.dtype.type("nan"), plain)
        keys = numbers.view(np.uint32 if width == 4 else np.uint64).astype(np.uint64)
    else:
        integers = values.view(pa.int32() if width == 4 else pa.int64())
        signed = integers.to_numpy(zero_copy_only=False)
        keys = signed.view(np.uint32 if width == 4 else np.uint64).astype(np.uint64)
    return _murmur3(keys, width)


def _murmur3(keys: Hashes, length: int) -> Hashes:
    """The upper half of MurmurHash3's 128 bits over up to 8 bytes each, shifted right by one."""
    with np.errstate(over="ignore"):
        mixed = _rotated(keys * np.uint64(0x87C37B91114253D5), 31) * np.uint64(0x4CF5AD432745937F)
        one = (np.uint64(SEED) ^ mixed) ^ np.uint64(length)
        other = np.full_like(one, np.uint64(SEED ^ length))
        one = one + other
        other = other + one
        one, other = _finished(one), _finished(other)
        return (one + other) >> np.uint64(1)


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _finished(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
