"""What the process of each rival does: a small table first, then the table that counts, as often as is asked.

    python process.py REQUEST

The request is a JSON object, the answer one line of JSON; whatever else is printed goes to standard error. `module` and `work`
name a function: `work(engine, target)` makes ready, what it returns is timed, and what that returns says the outcome.
A target names a table, and what `copies.py` does to it `before` and `after` each run. Standard library only.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from bench.rival.engines import ENGINES
from bench.rival.watching import Watch
from bench.tables import copies

NOT_THERE = (ImportError, AttributeError, TypeError)
"""What calls raise in another checkout that has no such function, or one with other arguments."""


def main() -> None:
    request, answer = json.loads(sys.argv[1]), answering()
    try:
        module = import_module(request["module"])
        engine = ENGINES[request["engine"]](request)
        answer(answered(request, engine, module))
    except NOT_THERE as error:
        if not request.get("is_another"):
            raise
        answer({"unable": f"{type(error).__name__}: {error}"})
        return
    engine.stop()


def answering() -> Callable[[Mapping[str, Any]], None]:
    """A function that answers; Spark's JVM and all others write to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(values: Mapping[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    return answer


def answered(request: Mapping[str, Any], engine: Any, module: Any) -> dict[str, Any]:
    """What a process answers.

    Returns:
        `runs`, each with what `Watch` saw, the `result` and what is `left` of the table, which stays as the last run left it;
        `before` and `after`, what functions of these names in the request find before the first run and after the last. A
        request that is to be done `once` has the `result` alone.
    """
    work, table = getattr(module, request["work"]), request.get("table")
    if request.get("once"):
        return {"result": work(engine, table)()()}
    if small := request.get("small"):
        copied(small["before"])
        work(engine, small)()()
    copied(table["before"])
    looks = {"before": _look(request, "before", engine, module)}
    runs: list[dict[str, Any]] = []
    for number in range(request["runs"]):
        if number:
            copied(table["before"])
        timed = work(engine, table)
        with Watch(request.get("cluster", ())) as watch:
            say = timed()
        runs.append({**watch.figures(), "result": say(), "left": copied(table["after"])})
        if runs[0]["seconds"] > request.get("patience_s", float("inf")):
            break
    return {"runs": runs, **looks, "after": _look(request, "after", engine, module)}


def copied(arguments: Sequence[str]) -> dict[str, Any]:
    """What `copies.py` does and says, in a process of its own: the names of a million files take memory."""
    if not arguments:
        return {}
    command = [sys.executable, copies.__file__, *arguments]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def _look(request: Mapping[str, Any], when: str, engine: Any, module: Any) -> dict[str, Any]:
    name = request.get(when)
    return getattr(module, name)(engine, request["table"]) if name else {}


if __name__ == "__main__":
    main()
