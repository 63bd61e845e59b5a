"""What the session of a command begins, and what its Python workers import: one session tells all of it."""

import json
import os
import subprocess
import sys

import pytest

from kit.shell import ROOT

SESSION = """
import json, sys
from icekeep.planning.spark.own_session import build_own_session
from icekeep.planning.spark.session import stop_session
from icekeep.planning.spark.jobs import inherited, spark_run
from icekeep.planning.spark.tasks import all_results, dataframe_from_tasks, run_tasks

def seen(number, shared):
    import sys
    import pyarrow as pa
    import icekeep.maintenance.compact.tasks
    import icekeep.formats.sort.keys
    pool = pa.default_memory_pool().backend_name
    array = pa.array([1, None]).null_count
    return {"text": shared * number, "array": array, "pool": pool, "modules": sorted(sys.modules)}

def batches(number):
    import pyarrow as pa
    yield pa.RecordBatch.from_pydict({"a": [number]})

def error_of_a_task():
    try:
        spark.sparkContext.parallelize([1], 1).map(lambda number: number / 0).collect()
    except Exception as error:
        return type(error).__name__

spark = build_own_session("own")
told = {"tasks": all_results(run_tasks(spark, [1, 2], seen, "ab"))}
told["tags"] = inherited(spark, lambda number: number)(sorted(spark.getTags()))
told["error before"] = error_of_a_task()
told["begun before"] = "_jsparkSession" in vars(spark)
import pyarrow as pa
rows = dataframe_from_tasks(spark, [3, 4], batches, pa.schema([("a", pa.int64())]))
told["rows"] = sorted(row["a"] for row in rows.collect())
told["begun after"] = "_jsparkSession" in vars(spark)
told["error after"] = error_of_a_task()
told["zone"] = spark.conf.get("spark.sql.session.timeZone")
told["own"] = spark.conf.get("spark.test.mine", "")
told["same"] = spark.getActiveSession()._jsparkSession.equals(spark._jsparkSession)
told["another"] = spark.newSession().range(2).count()
told["options"] = spark.sparkContext.getConf().get("spark.driver.defaultJavaOptions", "")
stop_session(spark)
told["stopped"] = spark.sparkContext._jsc is None
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a session says whose operator has one setting of his own."""
    conf = tmp_path_factory.mktemp("conf")
    (conf / "spark-defaults.conf").write_text(
        "spark.master local[2]\nspark.test.mine yes\nspark.executor.pyspark.memory 4g\n"
    )
    script = conf / "session.py"
    script.write_text(SESSION)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))}
    environ = {**inherited, "PYTHONPATH": str(ROOT / "lib"), "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_tasks_need_no_sql(told):
    assert [task["text"] for task in told["tasks"]] == ["ab", "abab"]
    assert not told["begun before"]


def test_jvm_errors_become_pyspark_errors_before_sql_begins(told):
    assert told["error before"] == told["error after"] is not None


def test_sql_begins_with_the_first_rows_as_it_is_configured(told):
    assert told["rows"] == [3, 4]
    assert told["begun after"]
    assert (told["zone"], told["own"]) == ("UTC", "yes")
    assert told["same"]
    assert (told["tags"], told["another"]) == ([], 2)
    assert told["stopped"]


def test_worker_imports_no_pandas_and_no_driver_modules(told):
    for task in told["tasks"]:
        assert task["array"] == 1
        packages = {name.partition(".")[0] for name in task["modules"]}
        assert {"pyarrow", "pyspark", "icekeep"} <= packages
        assert not packages & {"pandas", "sqlalchemy", "rich", "yaml", "boto3", "requests", "thrift", "datafusion"}


def test_arrow_gives_memory_back_in_a_limited_worker(told):
    """What other allocators keep for later counts by the limit that `spark.executor.pyspark.memory` sets."""
    assert {task["pool"] for task in told["tasks"]} == {"system"}


def test_the_jvm_is_told_to_compile_less(told):
    assert "-XX:Tier4InvocationThreshold" in told["options"]
