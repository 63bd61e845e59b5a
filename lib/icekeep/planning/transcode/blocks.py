"""Encoded entries that lie one after another -> blocks of a manifest, cut and packed as they are."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.planning.transcode.avro_lengths import value_offsets
from icekeep.spec.avro_packing import Packer
from icekeep.spec.manifests.encode import manifest_packer

BLOCK_BYTES = 64 << 10
"""A block ends at the first record that reaches it."""

_ISAL_LEVEL = 3


class RecordBlock(NamedTuple):
    """Some records, and what their manifest sums up; `partitions` are the different ones of their files, as bytes."""

    payload: bytes
    files_count: int
    rows_count: int
    min_sequence_number: int
    partitions: list[bytes]


def record_blocks(records: pa.RecordBatch) -> Iterator[RecordBlock]:
    """The blocks that a batch of `records.RECORDS` makes, in order."""
    if not records.num_rows:
        return
    offsets, data = value_offsets(records["record"]), memoryview(records["record"].buffers()[2])
    size_bytes = int(offsets[-1] - offsets[0])
    wanted = int(offsets[0]) + np.arange(1, size_bytes // BLOCK_BYTES + 1) * BLOCK_BYTES
    stops = np.unique(np.append(np.searchsorted(offsets, wanted), records.num_rows))
    starts = np.append(0, stops[:-1])
    rows = np.add.reduceat(records["record_count"].to_numpy(), starts)
    least = np.minimum.reduceat(records["sequence_number"].to_numpy(), starts)
    for start, stop, count, number in zip(starts.tolist(), stops.tolist(), rows.tolist(), least.tolist(), strict=True):
        partitions = records["partition"].slice(start, stop - start).unique().to_pylist()
        yield RecordBlock(bytes(data[offsets[start] : offsets[stop]]), stop - start, count, number, partitions)


def record_lengths(records: pa.BinaryArray) -> NDArray[np.int64]:
    """The bytes of each record."""
    lengths: NDArray[np.int64] = np.diff(value_offsets(records))
    return lengths


def joined(records: pa.BinaryArray) -> bytes:
    """Records one after another."""
    offsets = value_offsets(records)
    return bytes(memoryview(records.buffers()[2])[int(offsets[0]) : int(offsets[-1])]) if len(records) else b""


def fast_packer(codec: str, level: int | None) -> Packer:
    """What packs blocks: Intel's deflate, eight times as fast as zlib's, where it is installed and no level is asked for.

    Args:
        codec, level: properties `write.manifest.compression-codec` and `write.manifest.compression-level`.

    Raises:
        UnsupportedError: there is no such codec or level.
    """
    name, pack = manifest_packer(codec, level)
    if name != "deflate" or level is not None:
        return pack
    try:
        from isal import isal_zlib
    except ImportError:
        return pack
    return lambda payload: bytes(isal_zlib.compress(payload, _ISAL_LEVEL, wbits=-15))
