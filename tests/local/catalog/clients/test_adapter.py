import subprocess
import sys

import pytest

from icekeep.catalog.clients.adapter import require_pyiceberg
from icekeep.errors import UnsupportedError


@pytest.mark.parametrize("installed", ["0.12.0", "0.12.7", "0.12.0rc1"])
def test_the_versions_whose_inner_workings_are_known_are_used(installed):
    require_pyiceberg("prod", installed)


@pytest.mark.parametrize("installed", ["0.11.1", "0.13.0", "0.13.0.dev1", "1.0.0", "0"])
def test_other_versions_are_refused_in_one_line(installed):
    with pytest.raises(
        UnsupportedError,
        match=rf"^catalog 'prod' needs PyIceberg 0.12, but {installed} is installed; .*pip install 'icekeep\[catalogs\]'$",
    ):
        require_pyiceberg("prod", installed)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_pyiceberg_one_line_says_what_to_install():
    code = (
        "import importlib.metadata as m\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.version = missing\n"
        "from icekeep.catalog.open import open_catalog\n"
        "try:\n open_catalog('prod', {'type': 'rest', 'uri': 'http://x'})\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    done = run(code)
    assert done.stdout == (
        "UnsupportedError catalog 'prod' needs PyIceberg's clients; install them with: pip install 'icekeep[catalogs]'\n"
    )


def test_opening_a_catalog_loads_no_client():
    code = (
        "import sys\n"
        "from icekeep.catalog.open import open_catalog\n"
        "for kind in ('rest', 'hive', 'glue'): open_catalog('prod', {'type': kind, 'uri': 'http://x'})\n"
        "print([name for name in ('pyiceberg', 'pydantic', 'boto3', 'requests', 'thrift') if name in sys.modules])\n"
    )
    assert run(code).stdout == "[]\n"
