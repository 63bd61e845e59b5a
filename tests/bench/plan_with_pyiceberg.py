"""PyIceberg, which needs no Spark."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import StaticTable

from bench import rival


def main() -> None:
    request, answer = rival.request(), rival.answering()

    def load() -> StaticTable:
        clear_manifest_cache()
        return StaticTable.from_metadata(request["metadata_location"])

    def plan(table: StaticTable) -> tuple[int, int]:
        sizes = [task.file.file_size_in_bytes for task in table.scan(row_filter=request["where"]).plan_files()]
        return len(sizes), sum(sizes)

    answer({**rival.measured(load, plan, request["repeat"]), **rival.memory()})


if __name__ == "__main__":
    main()
