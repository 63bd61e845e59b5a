"""What the benchmark at scale does, over a small table and all of it in Spark: icekeep answers what the checks ask for."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bench.scale import with_icekeep
from bench.scale.benchmark import SCALE
from bench.tables import copies, scale_tables
from bench.tables.kept import Kept, kept, make_anew
from bench.tables.scale_tables import Scale
from icekeep.runtime import SYSTEM

SHAPE = Scale(files=2_000, deletes=400, partitions=4, manifest_files=70, garbage_percent=10, orphans_percent=2)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    made = kept(SHAPE, tmp_path_factory.mktemp("bench"))
    make_anew(made, scale_tables.make)
    return made


# The listing of orphan removal and of the check is a class of the benchmark's, which workers of this session do not find.
@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted({case.work for case in SCALE.cases.values()} - {"plan_orphans", "check"}))
def test_what_icekeep_says_is_what_the_benchmark_checks(name: str, table: Kept, spark_session: SparkSession) -> None:
    copies.restore(table.path, table.pristine)
    (case,) = (case for key, case in SCALE.cases.items() if case.work == name and key.endswith("-1m"))
    request = {"older_than_ms": SYSTEM.now_ms()}
    engine: Any = SimpleNamespace(spark=spark_session, request=request, load=lambda _: table.load())
    said = getattr(with_icekeep, name)(engine, {"catalog": "bench", "is_small": True})()()
    assert {key: said[key] for key in case.says} == {key: table.facts[field] for key, field in case.says.items()}
    assert said["payloads_bytes"] > 0
