"""What Spark did in a block: its jobs and tasks by the log of its events, and the bytes of what the driver sent them."""

import json
import os
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any
from urllib.parse import urlparse

import pyspark
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from icekeep.planning.spark import tasks

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
