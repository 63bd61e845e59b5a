"""icekeep in a warm session of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import rival
from icekeep import load_catalog, plan_scan
from icekeep.planning.spark.session import build_session, stop_session


def main() -> None:
    request, answer = rival.request(), rival.answering()
    catalog = load_catalog(request["catalog"], conf=request["conf"])
    spark = build_session("icekeep", request["spark"])
    spark.range(1).count()

    def plan(table: object) -> tuple[int, int]:
        result = plan_scan(table, spark, where=request["where"])
        return result.data_files_count, result.data_files_bytes

    figures = rival.measured(lambda: catalog.load(request["table"]), plan, request["repeat"])
    answer({**figures, **rival.memory(spark)})
    stop_session(spark)


if __name__ == "__main__":
    main()
