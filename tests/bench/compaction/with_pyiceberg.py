"""What PyIceberg has in place of compaction: all rows are read into memory and overwrite the table."""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import PyIceberg, Target


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
