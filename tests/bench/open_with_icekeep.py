"""How many data files queries open in tables, planned by icekeep."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import rival
from icekeep import load_catalog, plan_scan
from icekeep.planning.spark.session import build_session, stop_session


def main() -> None:
    request, answer = rival.request(), rival.answering()
    spark = build_session("icekeep", request["spark"])
    opened = {}
    for catalog, name in request["tables"]:
        table = load_catalog(catalog, conf=request["conf"]).load(name)
        plans = [plan_scan(table, spark, where=where) for where in request["filters"]]
        opened[f"{catalog}.{name}"] = [plan.data_files_count for plan in plans]
    answer(opened)
    stop_session(spark)


if __name__ == "__main__":
    main()
