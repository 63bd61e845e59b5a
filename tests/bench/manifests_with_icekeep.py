"""icekeep rewrites manifests, or merges them in an append, in a warm process of its own."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench import manifests_running, rival
from bench.manifests_running import REWRITE
from icekeep import load_catalog, plan_scan, rewrite_manifests
from icekeep.catalog.base import Table
from icekeep.commit.changes.append_files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.planning.spark.session import build_session, stop_session
from icekeep.planning.transcode.merge_append import MergingManifestReader
from icekeep.spec.manifests.structs import DataFile


def main() -> None:
    request, answer = rival.request(), rival.answering()
    spark = build_session("icekeep", request["spark"])
    # What a first job costs that later ones do not, whether or not the small table needs Spark.
    spark.range(1).count()

    def load(catalog: str) -> Table:
        return load_catalog(catalog, conf=request["conf"]).load(request["name"])

    def prepare(catalog: str) -> Callable[[], dict[str, Any]]:
        if request["job"] == REWRITE:
            return lambda: msgspec.to_builtins(rewrite_manifests(load(catalog), spark))
        table, change = load(catalog), AppendFiles(files=(new_file(request),))

        def append() -> dict[str, Any]:
            commit(table, change, reader=MergingManifestReader(table.storage))
            return {}

        return append

    def planner(name: str) -> dict[str, Any]:
        def plan(table: Table) -> tuple[int, int]:
            found = plan_scan(table, spark, where=request["filters"][name]["where"])
            return found.data_files_count, found.data_files_bytes

        return manifests_running.planned(lambda: load(request["table"]["catalog"]), plan)

    answer(manifests_running.answer_of(request, prepare, planner))
    stop_session(spark)


def new_file(request: dict[str, Any]) -> DataFile:
    """The file that an append adds."""
    file = request["file"]
    return DataFile(
        file_path=file["path"],
        file_format="PARQUET",
        spec_id=0,
        partition=(file["day"],),
        record_count=file["records"],
        file_size_in_bytes=file["bytes"],
    )


if __name__ == "__main__":
    main()
