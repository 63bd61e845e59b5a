import pickle
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from icekeep.planning.spark.process import UNKNOWN_VERSION, described_in_task, described_process, installed_version


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


def test_it_needs_nothing_that_must_be_installed() -> None:
    """It is sent to executors that may have nothing of ours."""
    text = Path(described_process.__code__.co_filename).read_text()
    imports = {line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imports <= sys.stdlib_module_names
