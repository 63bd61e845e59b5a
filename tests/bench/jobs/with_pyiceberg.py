"""PyIceberg plans a scan; in place of compaction it reads all rows into memory and overwrites the table."""

from collections.abc import Callable
from typing import Any

from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import StaticTable

from bench.rival.engines import PyIceberg, Target


def plan(engine: PyIceberg, target: Target) -> Callable[[], Any]:
    """Of a table that was just loaded, which is not counted."""
    clear_manifest_cache()
    table = StaticTable.from_metadata(engine.request["metadata_location"])

    def work() -> Callable[[], dict[str, int]]:
        tasks = table.scan(row_filter=engine.request["where"]).plan_files()
        sizes = [task.file.file_size_in_bytes for task in tasks]
        return lambda: {"data_files_count": len(sizes), "data_files_bytes": sum(sizes)}

    return work


def rewrite_data_files(engine: PyIceberg, target: Target) -> Callable[[], Any]:
    engine.register(target)
    size_bytes = engine.request["options"]["target-file-size-bytes"]

    def work() -> Callable[[], Any]:
        table = engine.load(target)
        with table.transaction() as transaction:
            transaction.set_properties({"write.target-file-size-bytes": size_bytes})
            transaction.overwrite(table.scan().to_arrow())
        return dict

    return work
