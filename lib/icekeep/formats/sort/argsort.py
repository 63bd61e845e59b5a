"""The order of binary keys, found by sorting machine words: what numpy does fastest."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_WORD_BYTES = 8

_BLOCK_ROWS = 16_384
"""Keys that are padded at one time, so that they stay in the processor's cache."""

_LONGEST_PADDED = 32
"""Keys of up to so many bytes are padded to one length and compared as words."""

Words = NDArray[np.uint64]


def key_order(keys: pa.Array) -> NDArray[np.int64]:
    """Positions of the keys in rising order; equal keys stay in the order in which they are."""
    words = _words(keys)
    if words is None:
        return pc.sort_indices(keys).to_numpy().astype(np.int64)
    count = len(keys)
    # The keys, and then these words, take more than all else here: whoever hands them over need not hold them either.
    del keys
    words = _varying_words(words)
    return _stable_order(words, count)


def _words(keys: pa.Array) -> list[Words] | None:
    """Keys as big-endian words, the most significant first; `None` if some are too long."""
    if pa.types.is_fixed_size_binary(keys.type):
        width = keys.type.byte_width
        data = np.frombuffer(
            keys.buffers()[1] or b"", dtype=np.uint8, count=len(keys) * width, offset=keys.offset * width
        )
        return list(_as_words(data.reshape(len(keys), width)))
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int64, count=len(keys) + 1, offset=keys.offset * _WORD_BYTES)
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=0))
    if width > _LONGEST_PADDED:
        return None
    data = np.frombuffer(keys.buffers()[2] or bytes(1), dtype=np.uint8)
    rows = np.zeros((len(keys), width), dtype=np.uint8)
    for start in range(0, len(keys), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        positions = np.minimum(offsets[:-1][block, None] + np.arange(width), len(data) - 1)
        np.copyto(rows[block], data[positions], where=np.arange(width) < lengths[block, None])
    # Where one key is another one and zeros behind it, the length decides.
    return [*_as_words(rows), lengths.astype(np.uint64)]


def _as_words(rows: NDArray[np.uint8]) -> Iterator[Words]:
    for start in range(0, rows.shape[1], _WORD_BYTES):
        word = np.empty(len(rows), dtype=np.uint64)
        padded = np.zeros((min(_BLOCK_ROWS, len(rows)), _WORD_BYTES), dtype=np.uint8)
        for first in range(0, len(rows), _BLOCK_ROWS):
            piece = rows[first : first + _BLOCK_ROWS, start : start + _WORD_BYTES]
            padded[: len(piece), : piece.shape[1]] = piece
            word[first : first + _BLOCK_ROWS] = padded[: len(piece)].view(">u8")[:, 0]
        yield word


def _varying_words(words: Sequence[Words]) -> list[Words]:
    """Fewer words of the same order: without the bytes that are the same in all keys."""
    out: list[Words] = []
    free = 0
    for word in words:
        varying = int(np.bitwise_or.reduce(word) ^ np.bitwise_and.reduce(word)) if len(word) else 0
        for shift, length in _varying_runs(varying):
            while length:
                if not free:
                    out.append(np.zeros(len(word), dtype=np.uint64))
                    free = _WORD_BYTES
                taken = min(free, length)
                length, free = length - taken, free - taken
                piece = (word >> np.uint64(8 * (shift + length))) & np.uint64((1 << 8 * taken) - 1)
                out[-1] = piece if taken == _WORD_BYTES else out[-1] << np.uint64(8 * taken) | piece
    return out


def _varying_runs(varying: int) -> Iterator[tuple[int, int]]:
    """Of neighbouring bytes of a word in which bits vary, the most significant first, the last one and their number."""
    length = 0
    for position in range(_WORD_BYTES - 1, -1, -1):
        if varying >> 8 * position & 0xFF:
            length += 1
        elif length:
            yield position + 1, length
            length = 0
    if length:
        yield 0, length


def _stable_order(words: Sequence[Words], count: int) -> NDArray[np.int64]:
    if not words:
        return np.arange(count)
    code, distinct = words[0], 0
    for word in words[1:]:
        ranks, distinct = _ranks(code)
        if distinct == count:
            code = ranks
            break
        others, others_distinct = _ranks(word)
        code = ranks * np.uint64(others_distinct) + others
    return _positions(code)


def _positions(code: Words) -> NDArray[np.int64]:
    """The stable order of numbers: sorted with their positions in the lower bits, since that is what is fast."""
    bits = max(1, len(code) - 1).bit_length()
    numbers = np.arange(len(code), dtype=np.uint64)
    if len(code) and int(code.max()) >> 64 - bits:
        code, _ = _ranks(code)
    code = code << np.uint64(bits)
    code |= numbers
    code.sort()
    code &= np.uint64((1 << bits) - 1)
    return code.view(np.int64)


def _ranks(code: Words) -> tuple[Words, int]:
    """For each number how many different ones are less, and how many different ones there are."""
    order = np.argsort(code)
    in_order = code[order]
    steps = np.empty(len(code), dtype=np.uint64)
    steps[:1] = 0
    steps[1:] = in_order[1:] != in_order[:-1]
    np.cumsum(steps, out=steps)
    ranks = np.empty(len(code), dtype=np.uint64)
    ranks[order] = steps
    return ranks, int(steps[-1]) + 1 if len(steps) else 0
