"""TPC-H's lineitem as icekeep sorts it: by ship date and order key, in files of one row group."""

from typing import ClassVar

import msgspec

from bench.tables import copies
from bench.tables.kept import Kept, made
from bench.tables.lineitem import Lineitem
from icekeep import compact

_FILE_BYTES = 20 << 20


class SortedLineitem(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A table of a scale factor, made of files that PyIceberg wrote."""

    scale: str
    files: int

    read: ClassVar[tuple[str, ...]] = ("*.parquet",)
    is_restored: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"sf{self.scale}-sorted"

    @property
    def small(self) -> "SortedLineitem":
        return SortedLineitem(scale="0.01", files=20)


def make(table: Kept) -> dict[str, int]:
    """Make a table; how many data files it has."""
    source = made(Lineitem(scale=table.shape.scale, files=table.shape.files, by_pyiceberg=True), table.directory.parent)
    copies.clone(source.path, table.path)
    options = {"target-file-size-bytes": str(_FILE_BYTES), "rewrite-all": "true"}
    result = compact(table.load(), strategy="sort", sort_order="l_shipdate, l_orderkey", options=options)
    return {"files": result.added_data_files_count}
