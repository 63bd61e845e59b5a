"""Hashes of locations, for whole arrays: what is compared by `canonical` for one file is compared by these for millions.

A key is a hash of 64 bits that depends on the canonical spelling and on nothing else: neither on the process nor on the
machine or the version of Python. Equal locations have equal keys; different ones have different keys but for chance,
one in 2**64 for each pair. So a key may decide what to keep, as `canonical` does: by chance it keeps a file too many.

A location is taken apart into its head (scheme and authority), of which there are few, and its path. Most paths are
spelled as `canonical` would spell them, which is seen for many at once; the others are taken apart one by one. Files of
this machine that are named through symbolic links are hashed under the names that a listing gives them.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug
from icekeep.storage.local.links import local_place
from icekeep.storage.locations import canonical, local_path, loosened, parse_location

Locations: TypeAlias = pa.Array | pa.ChunkedArray
Keys: TypeAlias = NDArray[np.int64]

ANY_PREFIX = 0
"""The prefix key of a location without a scheme or an authority: it stands for every prefix."""

_CHUNK_ROWS = 1 << 13
"""Rows that are worked on at one time, so that what is held of them stays in the processor's cache."""

_FAR = 1 << 31
"""Beyond the end of any text: left to find the end itself, Arrow counts wrong."""

_MAX_HEADS = 32
_MAX_VALUE_BYTES = 1024
"""Paths are filled up to the length of the longest; longer ones, which no object store has, are hashed one by one."""

_HEAD = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?)?(?=/)")
_NOT_CANONICAL = r"//|/\.{1,2}(?:/|$)|/$|\x00"
_SLASH, _DOT, _PERCENT, _BACKSLASH, _ASCII_END = b"/"[0], b"."[0], b"%"[0], b"\\"[0], 0x80

_START, _STEP = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_LAST = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)

_Head: TypeAlias = tuple[str, str]


class Spelling(msgspec.Struct, frozen=True):
    """Schemes and authorities that mean the same store beyond those of `storage.stores`, each with the one that stands for it.

    Case does not matter.
    """

    schemes: Mapping[str, str] = {}
    authorities: Mapping[str, str] = {}


AS_SPELLED = Spelling()


def location_keys(locations: Locations) -> Keys:
    """A hash of `storage.locations.canonical` of each location.

    Args:
        locations: text, plain or by dictionary; none is null.

    Raises:
        InvalidTableError: one of them is none, as `canonical` says.
    """
    return _by_value(locations, _exact_keys)[0]


def loose_keys(locations: Locations, spelling: Spelling = AS_SPELLED) -> tuple[Keys, Keys]:
    """Hashes of each location's path in a looser spelling, and of its scheme and authority.

    Paths are those of `canonical`, percent-decoded once, in Unicode's form NFC, case-folded, and with slashes for
    backslashes: whatever a store or a writer may have changed about a name is not seen, so that a file which is named in
    another way counts as named.
    Where the scheme or the authority is missing the second key is `ANY_PREFIX`.

    Raises:
        InvalidTableError: as `location_keys`.
    """
    schemes = {name.casefold(): other.casefold() for name, other in spelling.schemes.items()}
    authorities = {name.casefold(): other.casefold() for name, other in spelling.authorities.items()}

    def prefix_key(head: _Head) -> int:
        return _prefix_key(head, schemes, authorities)

    def keys(chunk: pa.Array) -> list[Keys]:
        heads, numbers, paths = _taken_apart(chunk)
        prefixes = np.array([prefix_key(head) for head in heads], np.uint64)
        return [_finished(_hashes(_loosened(paths))).view(np.int64), prefixes[numbers].view(np.int64)]

    path_keys, prefix_keys = _by_value(locations, keys, 2)
    return path_keys, prefix_keys


def path_keys(locations: Locations) -> Keys:
    """The first keys of `loose_keys`: of files that have one path, whatever store they are in.

    Raises:
        InvalidTableError: as `location_keys`.
    """
    return loose_keys(locations)[0]


def _by_value(locations: Locations, keys: Callable[[pa.Array], list[Keys]], kinds: int = 1) -> list[Keys]:
    """Keys of plain text, chunk by chunk, or of a dictionary's entries."""
    if isinstance(locations, pa.ChunkedArray):
        several = [_by_value(chunk, keys, kinds) for chunk in locations.chunks]
        return [_joined(some) for some in zip(*several, strict=True)] or [_joined(())] * kinds
    if locations.null_count:
        raise IcekeepBug("a location is null")
    if pa.types.is_dictionary(locations.type):
        codes = locations.indices.to_numpy()
        used = np.zeros(len(locations.dictionary), bool)
        used[codes] = True
        places = np.cumsum(used) - 1
        entries = locations.dictionary if used.all() else locations.dictionary.filter(pa.array(used))
        return [found[places[codes]] for found in _by_value(entries, keys, kinds)]
    starts = range(0, len(locations), _CHUNK_ROWS)
    chunks = [keys(_as_binary(locations.slice(start, _CHUNK_ROWS))) for start in starts]
    return [_joined(some) for some in zip(*chunks, strict=True)] or [_joined(())] * kinds


def _joined(arrays: tuple[Keys, ...]) -> Keys:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _as_binary(texts: pa.Array) -> pa.Array:
    """The same bytes, of which Arrow does not ask again and again whether they are text."""
    if pa.types.is_string(texts.type) and texts.buffers()[2] is not None:
        return pa.Array.from_buffers(pa.binary(), len(texts), [None, *texts.buffers()[1:]], offset=texts.offset)
    return texts.cast(pa.binary())


def _exact_keys(chunk: pa.Array) -> list[Keys]:
    heads, numbers, paths = _taken_apart(chunk)
    known = np.array([_text_hash(canonical(f"{scheme}://{authority}/")) for scheme, authority in heads], np.uint64)
    return [_finished(_hashes(paths) ^ known[numbers]).view(np.int64)]


def _taken_apart(chunk: pa.Array) -> tuple[list[_Head], NDArray[np.intp], pa.Array]:
    """Schemes and authorities, which of them each row has, and the paths as `canonical` spells them."""
    numbers: dict[_Head, int] = {}
    rest = np.arange(len(chunk))
    one_by_one: list[NDArray[np.intp]] = []
    parts: list[tuple[NDArray[np.intp], int, pa.Array]] = []
    for _ in range(_MAX_HEADS):
        if not len(rest):
            break
        mine, begin, head = _alike(chunk if len(rest) == len(chunk) else chunk.take(rest))
        rows, rest = rest[mine], rest[~mine]
        if head is None:
            one_by_one.append(rows)
            continue
        paths = pc.binary_slice(chunk if len(rows) == len(chunk) else chunk.take(rows), begin, _FAR)
        doubtful = _doubtful(paths)
        if doubtful is not None:
            # Most often a table's location ends on a slash, and then all its paths have two.
            paths = pc.replace_substring_regex(paths, "//+", "/")
            doubtful = _doubtful(paths)
        if doubtful is not None:
            one_by_one.append(rows[doubtful])
            rows, paths = rows[~doubtful], paths.filter(pa.array(~doubtful))
        parts.append((rows, numbers.setdefault(head, len(numbers)), paths))
    one_by_one.append(rest)
    return _put_together(chunk, numbers, parts, np.concatenate(one_by_one))


def _put_together(
    chunk: pa.Array,
    numbers: dict[_Head, int],
    parts: list[tuple[NDArray[np.intp], int, pa.Array]],
    one_by_one: NDArray[np.intp],
) -> tuple[list[_Head], NDArray[np.intp], pa.Array]:
    if len(parts) == 1 and not len(one_by_one):
        return [*numbers], np.full(len(chunk), parts[0][1], np.intp), parts[0][2]
    of_rows = np.empty(len(chunk), np.intp)
    for rows, number, _ in parts:
        of_rows[rows] = number
    singles: list[bytes] = []
    for row, raw in zip(one_by_one.tolist(), chunk.take(one_by_one).to_pylist(), strict=True):
        location = raw.decode()
        scheme, authority, _ = parse_location(location)
        of_rows[row] = numbers.setdefault((scheme, authority), len(numbers))
        singles.append(parse_location(canonical(location)).path.encode())
    order = np.concatenate([*(rows for rows, _, _ in parts), one_by_one])
    back = np.empty(len(chunk), np.intp)
    back[order] = np.arange(len(chunk))
    paths = pa.concat_arrays([*(paths for _, _, paths in parts), pa.array(singles, pa.binary())])
    return [*numbers], of_rows, paths.take(back)


def _alike(chunk: pa.Array) -> tuple[NDArray[np.bool_], int, _Head | None]:
    """Which rows have the head of the first one, spelled as it does, where their paths begin, and what it is.

    The head is null where the first row is in doubt: then it is that row alone.
    """
    match = _HEAD.match(chunk[0].as_py().decode())
    if match is not None:
        head = match[0].encode()
        mine = pc.starts_with(chunk, head + b"/")
        if head.endswith(b":"):
            # Two slashes after it would begin an authority.
            mine = pc.and_not(mine, pc.starts_with(chunk, head + b"//"))
        found: NDArray[np.bool_] = mine.to_numpy(zero_copy_only=False)
        if found[0]:
            scheme, authority, _ = parse_location(match[0] + "/")
            return found, len(head), (scheme, authority)
    alone = np.zeros(len(chunk), bool)
    alone[0] = True
    return alone, 0, None


def _doubtful(paths: pa.Array) -> NDArray[np.bool_] | None:
    """Which paths, each of which begins with a slash, may not be spelled as `canonical` does; null for none."""
    data, _ = _bytes_and_lengths(paths)
    if not len(data):
        return None
    after = data[1:]
    # A slash at the end of a path is before that of the next one.
    is_odd = data[:-1] == _SLASH
    is_odd &= (after == _SLASH) | (after == _DOT)
    if data[-1] != _SLASH and not is_odd.any() and data.min():
        return None
    found: NDArray[np.bool_] = pc.match_substring_regex(paths, _NOT_CANONICAL).to_numpy(zero_copy_only=False)
    return found if found.any() else None


def _loosened(paths: pa.Array) -> pa.Array:
    data, _ = _bytes_and_lengths(paths)
    if not len(data) or (data.max() < _ASCII_END and not ((data == _PERCENT) | (data == _BACKSLASH)).any()):
        return _lower(paths)
    found = pc.match_substring_regex(paths, r"[%\\\x80-\xff]")
    loose = [loosened(raw.decode()).encode() for raw in paths.filter(found).to_pylist()]
    plain = _lower(pc.replace_with_mask(paths, found, pa.array([b"/"] * len(loose), pa.binary())))
    return pc.replace_with_mask(plain, found, pa.array(loose, pa.binary()))


def _lower(paths: pa.Array) -> pa.Array:
    return _as_binary(pc.ascii_lower(_as_text(paths)))


def _as_text(raw: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), len(raw), [None, *raw.buffers()[1:]], offset=raw.offset)


def _prefix_key(head: _Head, schemes: Mapping[str, str], authorities: Mapping[str, str]) -> int:
    scheme, authority = (part.casefold() for part in head)
    if not authority:
        return ANY_PREFIX
    scheme = schemes.get(scheme, scheme)
    # What is one store to `canonical` is one here too, whichever of its names the mapping has.
    same, one, _ = parse_location(canonical(f"{scheme}://{authorities.get(authority, authority)}/"))
    key = _text_hash(f"{schemes.get(same, same)}://{authorities.get(one, one)}")
    return key or 1


def _text_hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _bytes_and_lengths(raw: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not len(raw):
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    _, offsets_buffer, data = raw.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[raw.offset :][: len(raw) + 1].astype(np.int64)
    if data is None:
        return np.empty(0, np.uint8), np.diff(offsets)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]], np.diff(offsets)


def _hashes(texts: pa.Array) -> NDArray[np.uint64]:
    """One hash for each text: its words of eight bytes, the last filled up with zeros, are mixed in one after another."""
    _, lengths = _bytes_and_lengths(texts)
    if not len(lengths) or int(lengths.max()) <= _MAX_VALUE_BYTES:
        return _padded_hashes(texts, lengths)
    hashes = np.empty(len(texts), np.uint64)
    is_long = lengths > _MAX_VALUE_BYTES
    hashes[~is_long] = _hashes(texts.filter(pa.array(~is_long)))
    for row in np.flatnonzero(is_long).tolist():
        hashes[row : row + 1] = _padded_hashes(texts.take(pa.array([row])), lengths[row : row + 1])
    return hashes


def _padded_hashes(texts: pa.Array, lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    hashes = lengths.astype(np.uint64)
    hashes *= np.uint64(_START)
    if not len(lengths) or not lengths.max():
        return hashes
    counts = (lengths + 7) >> 3
    shortest, longest = int(counts.min()), int(counts.max())
    padded = pc.ascii_rpad(_as_text(texts), 8 * longest, padding="\0")
    words = np.frombuffer(padded.buffers()[2], "<u8")[: len(lengths) * longest].reshape(-1, longest)
    shifted, before = np.empty_like(hashes), np.empty_like(hashes)
    for number in range(longest):
        if number >= shortest:
            before[:] = hashes
        np.bitwise_xor(hashes, words[:, number], out=hashes)
        _mix(hashes, 32, _STEP, shifted)
        if number >= shortest:
            np.copyto(hashes, before, where=counts <= number)
    return hashes


def _mix(hashes: NDArray[np.uint64], shift: int, factor: int, shifted: NDArray[np.uint64]) -> None:
    """Spread a change of any bits, the highest too, over all; of different numbers none become the same."""
    np.right_shift(hashes, np.uint64(shift), out=shifted)
    np.bitwise_xor(hashes, shifted, out=hashes)
    np.multiply(hashes, np.uint64(factor), out=hashes)
    np.right_shift(hashes, np.uint64(29), out=shifted)
    np.bitwise_xor(hashes, shifted, out=hashes)


def _finished(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    shifted: NDArray[Any] = np.empty_like(hashes)
    for factor in _LAST:
        _mix(hashes, 33, factor, shifted)
    return hashes


class LinkedFiles:
    """Finds the other names of files below some directories; what it has found of a directory it keeps.

    A listing follows no link. So a file has one name there, whatever links lead to it: those of a warehouse that was moved,
    links to directories, and links to the file itself. Where the directories are not on this machine nothing is looked at.
    """

    def __init__(self, roots: Iterable[str]) -> None:
        """`roots` are locations of directories, perhaps links themselves, to one directory or into each other."""
        local = [root for root in roots if local_place(root) is not None]
        self._roots = sorted({(os.path.realpath(local_path(root)), root.rstrip("/")) for root in local})
        self._real: dict[str, str] = {}

    def respelled(self, locations: Locations) -> pa.Array:
        """The names below each of the directories of those of some files that are named in another way; of others none."""
        found = self._respelled(locations.to_pylist()) if self._roots else ()
        return pa.array(found, pa.string())

    def _respelled(self, locations: Iterable[str]) -> Iterator[str]:
        for location in locations:
            if local_place(location) is None:
                continue
            real = self._real_path(local_path(location))
            for directory, root in self._roots:
                if real.startswith(directory.rstrip("/") + "/"):
                    name = f"{root}/{real.removeprefix(directory).lstrip('/')}"
                    if canonical(name) != canonical(location):
                        yield name

    def _real_path(self, path: str) -> str:
        directory, _, name = path.rpartition("/")
        real = self._real.get(directory)
        if real is None:
            real = self._real[directory] = os.path.realpath(directory or "/")
        found = os.path.join(real, name)
        return os.path.realpath(found) if name in ("", ".", "..") or os.path.islink(found) else found
