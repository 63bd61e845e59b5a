"""Which data files could be worth rewriting: a DataFrame of entries in, fewer out."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icekeep.maintenance.compaction.options import FileSizes


def candidates(files: DataFrame, sizes: FileSizes, *, rewrite_all: bool) -> DataFrame:
    """Files that are too small or too large; all of them with `rewrite-all`."""
    if rewrite_all:
        return files
    size = F.col("file_size_in_bytes")
    return files.where((size < sizes.min_bytes) | (size > sizes.max_bytes))
