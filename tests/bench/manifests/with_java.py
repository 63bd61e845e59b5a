"""Iceberg Java rewrites manifests by its procedure, or merges them in an append; and plans the table before and after."""

from collections.abc import Callable
from typing import Any

from bench.manifests.plans import timed_plans
from bench.planning.with_java import planning
from bench.rival.engines import Java, Target


def rewrite_manifests(engine: Java, target: Target) -> Callable[[], Any]:
    def work() -> Callable[[], Any]:
        [row] = engine.call("rewrite_manifests", target)
        return row.asDict

    return work


def append(engine: Java, target: Target) -> Callable[[], Any]:
    table, file, ours = engine.load(target), engine.request["file"], engine.ours

    def work() -> Callable[[], Any]:
        ours.Appending.append(table, file["path"], file["partition"], file["bytes"], file["records"])
        return dict

    return work


def plans(engine: Java, target: Target) -> dict[str, Any]:
    return timed_plans(
        engine.request["filters"], lambda asked: planning(engine, engine.load(target), target, asked["sql"])
    )


def only_plans(engine: Java, _: Target) -> Callable[[], Any]:
    """Of the table as another left it."""
    return lambda: lambda: plans(engine, engine.request["table"])
