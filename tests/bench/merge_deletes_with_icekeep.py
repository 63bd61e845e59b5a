"""icekeep merges the position deletes of copies of a table in a warm session of its own."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench import compacting, rival
from icekeep import load_catalog, rewrite_position_deletes
from icekeep.planning.spark.session import build_session, stop_session


def main() -> None:
    request, answer = rival.request(), rival.answering()
    catalog = load_catalog(request["catalog"], conf=request["conf"])
    spark = build_session("icekeep", request["spark"])

    def run(table: str) -> dict[str, Any]:
        return msgspec.to_builtins(rewrite_position_deletes(catalog.load(table), spark, options=request["options"]))

    answer(compacting.measured(request, run))
    stop_session(spark)


if __name__ == "__main__":
    main()
