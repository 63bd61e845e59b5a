"""What a process of a command's own imports, before and during its work."""

import subprocess
import sys

import pytest

from kit.lake import Lake
from kit.shell import ROOT

pytestmark = pytest.mark.process

COMMAND = "from icekeep.{door}\nimport sys\ntry:\n    {call}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
ABSENT = "if name in ('pyspark', 'py4j'): raise ModuleNotFoundError(name)"
ALL = ["--option", "rewrite-all=true"]


def modules_of(call, *words, code=COMMAND):
    """What a process has imported in the end, and what it printed."""
    door = "cli import main" if "main" in call else "__main__ import entry_point"
    done = subprocess.run(
        [sys.executable, "-c", code.format(door=door, call=call), *words],
        env={"PYTHONPATH": str(ROOT / "lib")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split()), done.stdout


@pytest.fixture
def words(tmp_path):
    lake = Lake(tmp_path)
    lake.filled(commits=3)
    conf = tmp_path / "icekeep.yaml"
    conf.write_text(
        f"catalogs: {{local: {{type: sql, uri: '{lake.properties['uri']}', warehouse: '{tmp_path.as_uri()}'}}}}"
    )
    return ["--conf", str(conf), "--table", "local.db.events", "--output", "json"]


@pytest.mark.parametrize(
    ("call", "before"),
    [("entry_point()", ["compact", *ALL]), ("sys.exit(main(job='compact'))", ALL)],
    ids=["command", "script"],
)
def test_a_small_compaction_imports_neither_pandas_nor_spark(words, call, before):
    modules, answer = modules_of(call, *before, *words)
    assert '"rewritten_data_files_count": 9' in answer
    assert "pyarrow" in modules
    assert not {name.partition(".")[0] for name in modules} & {"pandas", "pyspark", "py4j", "rich"}
    unasked = (
        "telemetry.otel",
        "telemetry.lineage",
        "telemetry.prometheus",
        "operations.plan_files",
        "operations.policy_calls",
    )
    assert not modules & {f"icekeep.{name}" for name in unasked}


@pytest.mark.parametrize("arguments", [[], ["--sort-order", "id", "--verify"]], ids=["binpack", "sort"])
def test_a_small_compaction_needs_no_pyspark_that_is_installed(words, arguments):
    without = f"class Without:\n    def find_spec(self, name, path=None, target=None):\n        {ABSENT}\n"
    code = f"import sys\n{without}sys.meta_path.insert(0, Without())\n{COMMAND}"
    _, answer = modules_of("entry_point()", "compact", *ALL, *arguments, *words, code=code)
    assert '"rewritten_data_files_count": 9' in answer


def test_a_report_imports_no_pandas(words):
    modules, _ = modules_of("entry_point()", "report", *words)
    assert "pyarrow" in modules
    assert "pandas" not in modules


def test_a_process_of_others_has_pandas_as_before(words):
    modules, answer = modules_of("sys.exit(main(sys.argv[1:]))", "compact", *ALL, *words)
    assert '"rewritten_data_files_count": 9' in answer
    assert "pandas" in modules


def test_pandas_can_be_used_afterwards():
    code = """
from icekeep.formats.machine import leave_pandas_out
leave_pandas_out()
import sys
assert "pandas" not in sys.modules
import pyarrow as pa
print(pa.table({{"a": [1, None]}}).to_pandas()["a"].sum())
import pandas as pd
print(pa.array(pd.Series([1.5, float("nan")])).null_count, pa.Table.from_pandas(pd.DataFrame({{"b": [1]}})).num_rows)
leave_pandas_out()
assert "pandas" in sys.modules
print(*sys.modules, file=sys.stderr)
"""
    modules, answer = modules_of("", code=code)
    assert "pandas" in modules
    assert answer.split() == ["1.0", "1", "1"]


THREADS = """
import os
{given}
from icekeep.operations.process_run import start_lean
start_lean()
import sys
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
print(*sys.modules, file=sys.stderr)
"""


def threads_of(given=""):
    """How many threads a process has after its start, and what the variable is that says how many NumPy starts."""
    modules, answer = modules_of("", code=THREADS.replace("{given}", given))
    assert "numpy" in modules
    return answer.split()


POOL = """
import resource
{given}
from icekeep.operations.process_run import start_lean
start_lean()
import os, sys
import pyarrow as pa
print(pa.default_memory_pool().backend_name, os.environ.get("ARROW_DEFAULT_MEMORY_POOL"))
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("given", "pool"), [("", "jemalloc"), ("resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))", "system")]
)
def test_arrow_uses_lean_allocator_if_address_space_is_limited(given, pool):
    _, answer = modules_of("", code=POOL.replace("{given}", given))
    assert answer.split() == [pool, "None"]


def test_numpy_starts_no_threads_unless_an_operator_wants_them():
    alone = threads_of("os.environ['OPENBLAS_NUM_THREADS'] = '1'")
    assert threads_of() == [alone[0], "None"]
    assert threads_of("os.environ['OPENBLAS_NUM_THREADS'] = '3'")[1] == "3"
