"""icekeep compacts copies of a table in a warm session of its own."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench import compacting, rival
from icekeep import compact, load_catalog
from icekeep.planning.spark.session import build_session, stop_session


def main() -> None:
    request, answer = rival.request(), rival.answering()
    catalog = load_catalog(request["catalog"], conf=request["conf"])
    spark = build_session("icekeep", request["spark"])

    def run(table: str) -> dict[str, Any]:
        arguments = {**request["arguments"], "options": request["options"]}
        return msgspec.to_builtins(compact(catalog.load(table), spark, **arguments))

    answer(compacting.measured(request, run))
    stop_session(spark)


if __name__ == "__main__":
    main()
