import pickle
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pyspark
import pytest
from pyspark import cloudpickle

from icekeep.planning.spark.executors import (
    UNKNOWN_VERSION,
    by_value,
    described_in_task,
    described_process,
    installed_version,
)


def test_a_process_says_what_it_has_and_what_it_lacks() -> None:
    told = described_process(["pyarrow", "there-is-no-such-package"])
    assert told["packages"] == {"pyarrow": version("pyarrow"), "there-is-no-such-package": None}
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert pickle.loads(pickle.dumps(told)) == told


def test_a_task_says_the_same() -> None:
    assert list(described_in_task(["pyarrow"], 0, [])) == [described_process(["pyarrow"])]


@pytest.mark.parametrize(("attributes", "expected"), [({"__version__": "4.1.2"}, "4.1.2"), ({}, UNKNOWN_VERSION)])
def test_what_is_no_package_but_can_be_imported_is_there(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, str], expected: str
) -> None:
    module = ModuleType("brought_by_spark")
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, "brought_by_spark", module)
    assert installed_version("brought-by-spark") == expected


BARE = """
import pickle, sys
work = pickle.load(sys.stdin.buffer)
assert "icekeep" not in sys.modules
print(next(work([]))["packages"])
"""


@pytest.mark.process
def test_it_runs_where_icekeep_is_not() -> None:
    with by_value():
        work = cloudpickle.dumps(partial(described_in_task, ("icekeep", "py4j"), 0.0))
    # Without its start-up files Python does not see a package that is installed from a checkout.
    bare = [sys.executable, "-S", "-c", BARE]
    packages = str(Path(pyspark.__file__).parents[1])
    done = subprocess.run(bare, input=work, env={"PYTHONPATH": packages}, capture_output=True, check=False)
    assert done.stderr.decode() == ""
    assert version("py4j") in done.stdout.decode()
