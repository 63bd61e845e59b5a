"""icekeep plans, or does, what is measured of tables of millions of files; with its answer comes what Spark did meanwhile."""

import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any
from urllib.parse import urlparse

import msgspec
import numpy as np
import pyspark
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import icekeep
from bench.rival.engines import Icekeep, Target
from bench.tables.scale_tables import Paths, Scale, data_bytes, delete_bytes
from icekeep.planning.spark import tasks
from icekeep.planning.spark.session import Engine, Limits
from icekeep.spec.types import DAY_MS
from icekeep.storage.base import FileInfo, ListingShare
from icekeep.storage.local.storage import LocalStorage

_BYTES = {
    "results_bytes": ("Result Size",),
    "shuffled_bytes": ("Shuffle Write Metrics", "Shuffle Bytes Written"),
    "spilled_bytes": ("Disk Bytes Spilled",),
}
"""Where Spark's metrics of a task have them; results are what tasks send to the driver."""


class SparkCounts:
    """Counts while the block runs.

    Attributes, when the block has ended:
        counts: `jobs`, `tasks`, `failed_tasks`, those of `_BYTES`, and `payloads_bytes`: what was pickled for tasks, be it
            for one of them or for all.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Without a log of events count only what is pickled."""
        self._spark, self._log = spark, Path(os.devnull)
        directory = spark.conf.get("spark.eventLog.dir", None)
        if directory is not None:
            self._log = Path(urlparse(directory).path, f"{spark.sparkContext.applicationId}.inprogress")
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> "SparkCounts":
        self._begin = self._settled_bytes()
        tasks.pickle = self._counting(pickle)  # type: ignore[attr-defined]
        # Where a session is wanted it is imported anew, by its package.
        pyspark.cloudpickle = self._counting(cloudpickle)  # type: ignore[attr-defined]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks.pickle, pyspark.cloudpickle = pickle, cloudpickle  # type: ignore[attr-defined]
        self._end = self._settled_bytes()

    def _settled_bytes(self) -> int:
        """The length of the log once all events are in it: Spark writes it out whenever a job ends."""
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        return self._log.stat().st_size

    def _counting(self, module: Any) -> SimpleNamespace:
        """The functions of a module that pickles, those that do it for tasks counted."""

        def dumps(value: object) -> bytes:
            data: bytes = module.dumps(value)
            self.counts["payloads_bytes"] += len(data)
            return data

        return SimpleNamespace(dumps=dumps, loads=module.loads)

    def figures(self) -> dict[str, int]:
        """The counts; the log is read now."""
        with self._log.open("rb") as log:
            log.seek(self._begin)
            for line in log.read(self._end - self._begin).splitlines():
                # Events of queries are long, and of no use here.
                if line.startswith((b'{"Event":"SparkListenerJobStart"', b'{"Event":"SparkListenerTaskEnd"')):
                    self._add(json.loads(line))
        names = ("jobs", "tasks", "failed_tasks", *_BYTES, "payloads_bytes")
        return {name: self.counts[name] for name in names}

    def _add(self, event: dict[str, Any]) -> None:
        if event["Event"] == "SparkListenerJobStart":
            self.counts["jobs"] += 1
            return
        self.counts["tasks"] += 1
        self.counts["failed_tasks"] += event["Task End Reason"]["Reason"] != "Success"
        for name, place in _BYTES.items():
            value: Any = event.get("Task Metrics") or {}
            for key in place:
                value = value.get(key, {})
            self.counts[name] += value or 0


_AGE_DAYS = 10
"""Older than what a writer may have in flight."""


class AbsentFilesStorage(LocalStorage):
    """Lists the data files of a table of `scale_tables.py` and its orphans, a share for each partition; all else is as it is.

    Args:
        location: of the table.
    """

    def __init__(self, shape: Scale, location: str) -> None:
        super().__init__()
        self._shape, self._location = shape, location.rstrip("/")
        self._paths = Paths(shape, f"{self._location}/data")
        self._modified_ms = time.time_ns() // 1_000_000 - _AGE_DAYS * DAY_MS

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        real = super().shares(prefix_location, count)
        if prefix_location.rstrip("/") != self._location:
            return real
        return [*real, *(ListingShare(self._paths.directory(number)) for number in range(self._shape.partitions))]

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        partition = self._paths.partition_of(share.prefix)
        if partition is None:
            yield from super().list_share(share)
            return
        step = self._shape.partitions
        numbers = np.arange(partition, self._shape.orphans.stop, step)
        for number, size_bytes in zip(numbers.tolist(), data_bytes(numbers).tolist(), strict=True):
            yield FileInfo(self._paths.data(number), size_bytes, self._modified_ms)
        for number in range(partition, self._shape.deletes, step):
            yield FileInfo(self._paths.delete(number), delete_bytes(number), self._modified_ms)


_NOTHING_HERE = Limits(**dict.fromkeys(Limits.__struct_fields__, 0))
"""Small tables warm up what large ones need: all of it is done in tasks."""

_Work = Callable[[], Callable[[], dict[str, Any]]]


def plan_scan(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.plan_scan)


def plan_binpack(engine: Icekeep, target: Target) -> _Work:
    # Footers cannot be looked at where there are no files.
    return _counted(engine, target, icekeep.plan_compact, options={"stitch": "never"})


def plan_sort(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.plan_compact, sort_order="id")


def plan_position_deletes(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.plan_rewrite_position_deletes)


def plan_expiration(engine: Icekeep, target: Target) -> _Work:
    moment = engine.request["older_than_ms"]
    return _counted(engine, target, icekeep.plan_expire_snapshots, older_than=moment, retain_last=1)


def expire_snapshots(engine: Icekeep, target: Target) -> _Work:
    moment = engine.request["older_than_ms"]
    return _counted(engine, target, icekeep.expire_snapshots, older_than=moment, retain_last=1, trash=0)


def plan_orphans(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, partial(_plan_orphans, engine.request["shapes"][target["catalog"]]))


def check(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, partial(_check, engine.request["shapes"][target["catalog"]]))


def table_health(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.table_health)


def rewrite_manifests(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.rewrite_manifests)


def _plan_orphans(shape: Any, table: Any, spark: Any) -> Any:
    return icekeep.plan_remove_orphan_files(_with_files(table, shape), spark)


def _check(shape: Any, table: Any, spark: Any) -> Any:
    return icekeep.check(_with_files(table, shape), spark)


def _with_files(table: Any, shape: Any) -> Any:
    storage = AbsentFilesStorage(msgspec.convert(shape, Scale), table.metadata.location)
    return msgspec.structs.replace(table, storage=storage)


def _counted(engine: Icekeep, target: Target, job: Callable[..., Any], **arguments: Any) -> _Work:
    table, spark = engine.load(target), engine.spark
    source = Engine(spark=spark, limits=_NOTHING_HERE) if target["is_small"] else spark

    def work() -> Callable[[], dict[str, Any]]:
        with SparkCounts(spark) as counts:
            result = job(table, source, **arguments)
        return lambda: {**counts.figures(), **_said(result)}

    return work


def _said(result: Any) -> dict[str, Any]:
    """What a result counts."""
    values = {name: getattr(result, name) for name in result.__struct_fields__}
    return {name: value for name, value in values.items() if name.endswith("_count") and isinstance(value, int)}
