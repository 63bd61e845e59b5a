"""Whether PyIceberg still brings the classes of Hive's metastore, which it promises to nobody, and what is said if not."""

import importlib
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

RELEASE = version("pyiceberg")
OPEN = (
    "from icekeep.catalog.open import open_catalog\n"
    "try:\n open_catalog('prod', {'type': 'hive', 'uri': 'thrift://127.0.0.1:1'}).list_namespaces()\n"
    "except Exception as e: print(type(e).__name__, e)\n"
)


def test_the_installed_pyiceberg_brings_the_classes_of_a_hive_metastore():
    try:
        importlib.import_module("icekeep.catalog.clients.hive_thrift")
    except ImportError as error:
        pytest.fail(f"PyIceberg {RELEASE} does not bring what a Hive catalog takes from it: {error}")


def said(code, *directories):
    path = os.pathsep.join([*map(str, directories), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_a_release_without_the_classes_is_named():
    assert said(f"import sys\nsys.modules['hive_metastore'] = None\n{OPEN}") == (
        f"UnsupportedError catalog 'prod' needs the Python module 'hive_metastore', which pyiceberg {RELEASE} does not "
        "bring; icekeep[catalogs] brings it (how to install it: docs/install.md)\n"
    )


def test_a_release_that_lacks_some_of_the_classes_is_named(tmp_path):
    package = tmp_path / "hive_metastore"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "ThriftHiveMetastore.py").write_text("class Client: pass\n")
    (package / "ttypes.py").write_text("class Table: pass\n")
    assert said(OPEN, tmp_path).startswith(
        f"UnsupportedError catalog 'prod' needs classes for Hive that pyiceberg {RELEASE} lacks: "
        "cannot import name 'AlreadyExistsException' from 'hive_metastore.ttypes'"
    )
