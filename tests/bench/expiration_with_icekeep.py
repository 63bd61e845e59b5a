"""icekeep expires snapshots or removes orphan files in a warm session of its own."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench import expiration_running, rival
from bench.expiration_running import EXPIRE, ORPHANS_DRY_RUN
from icekeep import expire_snapshots, load_catalog
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.planning.spark.session import build_session, stop_session


def main() -> None:
    request, answer = rival.request(), rival.answering()
    spark = build_session("icekeep", request["spark"])
    # What a first job costs that later ones do not, whether or not the small table needs Spark.
    spark.range(1).count()

    def job(catalog: str) -> Any:
        table = load_catalog(catalog, conf=request["conf"]).load(request["name"])
        older_than = request["older_than_ms"]
        if request["job"] == EXPIRE:
            return expire_snapshots(table, spark, older_than=older_than, retain_last=1, trash=0)
        dry_run = request["job"] == ORPHANS_DRY_RUN
        return remove_orphan_files(table, spark, older_than=older_than, dry_run=dry_run, trash=0)

    def said(outcome: Any) -> dict[str, Any]:
        if request["job"] == EXPIRE:
            return dict(msgspec.to_builtins(outcome))
        return expiration_running.orphans_said(outcome.orphan_files_count, outcome.orphan_file_locations)

    answer(expiration_running.measured(request, job, said))
    stop_session(spark)


if __name__ == "__main__":
    main()
