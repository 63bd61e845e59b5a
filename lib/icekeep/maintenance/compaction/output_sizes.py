"""Output sizes, as Iceberg's planner has them (reference: `SizeBasedFileRewritePlanner`). Pure."""

from icekeep.maintenance.compaction.options import FileSizes

_SPLIT_OVERHEAD_BYTES = 5 * 1024


def expected_output_files(input_bytes: int, sizes: FileSizes, compression_factor: float = 1.0) -> int:
    """How many files a group becomes: a remainder too small for a file of its own is spread over the others.

    Args:
        compression_factor: new bytes for one of the old ones.
    """
    input_bytes = int(input_bytes * compression_factor) if compression_factor != 1.0 else input_bytes
    if input_bytes < sizes.target_bytes:
        return 1
    whole, rest = divmod(input_bytes, sizes.target_bytes)
    if rest == 0:
        return whole
    if rest > sizes.min_bytes:
        return whole + 1
    average = input_bytes / whole
    return whole if average < min(1.1 * sizes.target_bytes, sizes.write_max_bytes) else whole + 1


def input_split_bytes(input_bytes: int, sizes: FileSizes, compression_factor: float = 1.0) -> int:
    """How many bytes of input one task takes, so that each task makes about one file."""
    size = input_bytes // expected_output_files(input_bytes, sizes, compression_factor) + _SPLIT_OVERHEAD_BYTES
    return min(max(size, sizes.target_bytes), sizes.write_max_bytes)
