"""Run the contracts on servers that others wrote, and print what each has kept; `--write` puts it into `docs/servers.md`.

python tests/interop/servers.py --write
python tests/interop/servers.py --only Nessie,MinIO
"""

import argparse
import importlib
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from contracts.catalog_contract import CatalogContract, HiveCatalogContract, RestCatalogContract
from contracts.life_contract import TableLife
from contracts.storage_contract import ObjectStorageContract, StorageContract
from icekeep.runtime import SYSTEM
from kit.postgres import postgres_release
from kit.servers.catalogs import NessieServer, SeaweedServer
from kit.servers.gcs import FakeGcsServer
from kit.servers.stores import Azurite, MinIO, SeaweedFS
from kit.shell import ROOT

PAGE = ROOT / "docs" / "servers.md"
_BEGIN, _END = "<!-- The table is written by `make servers`. -->", "<!-- end of the table -->"
# The narrower first.
_CONTRACTS = (
    HiveCatalogContract,
    RestCatalogContract,
    CatalogContract,
    ObjectStorageContract,
    StorageContract,
    TableLife,
)


class Server(msgspec.Struct, frozen=True):
    """A server in a release, and the classes of tests that keep its contracts: of a store or a catalog, and of a table's life."""

    name: str
    release: str
    keeps: str
    life: str | None = None


SERVERS = (
    Server("Hive metastore", "3.1.3 over Derby", "test_hive.py::TestHive3", "test_lives.py::TestHive3"),
    Server("Hive metastore", "4.0.1 over PostgreSQL", "test_hive.py::TestHive4", "test_lives.py::TestHive4"),
    Server("Iceberg Java (`CatalogHandlers`)", "1.12.0", "test_rest_catalog.py::TestIcebergJava"),
    Server("Nessie", NessieServer.release, "test_rest_servers.py::TestNessie", "test_lives.py::TestNessie"),
    Server(
        "SeaweedFS as a catalog",
        SeaweedServer.release,
        "test_rest_servers.py::TestSeaweed",
        "test_lives.py::TestSeaweedFS",
    ),
    Server("PostgreSQL", postgres_release(), "test_postgres_catalog.py::TestPostgresqlCatalog"),
    Server("MinIO", MinIO.release, "test_stores.py::TestMinIO", "test_lives.py::TestMinIO"),
    Server(
        "MinIO that keeps versions",
        MinIO.release,
        "test_stores.py::TestMinIOWithVersioning",
        "test_lives.py::TestMinIOWithVersions",
    ),
    Server("SeaweedFS as a store", SeaweedFS.release, "test_stores.py::TestSeaweedFS"),
    Server("Azurite", Azurite.release, "test_stores.py::TestAzurite", "test_lives.py::TestAzurite"),
    Server(
        "fake-gcs-server",
        FakeGcsServer.release,
        "test_stores.py::TestFakeGcsServer",
        "test_lives.py::TestFakeGcsServer",
    ),
    Server("HDFS", "Hadoop 3.4.2", "test_hdfs.py::TestHdfsStorage"),
)


class Outcomes:
    """What became of each test, as a plugin of pytest."""

    def __init__(self) -> None:
        self._found: dict[str, Counter[str]] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest: a test that fails while it is set up or taken down has failed."""
        of_class = "::".join(report.nodeid.split("::")[:2]).rpartition("/")[2]
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when == "call" or report.outcome != "passed":
            self._found.setdefault(of_class, Counter())[report.outcome] += 1

    def summary(self, of_class: str | None) -> str:
        """How many tests of a class passed, and how many of its contract it leaves out."""
        if of_class is None:
            return "none"
        outcomes = self._found.get(of_class, Counter())
        left_out = len(_left_out(of_class))
        return f"{outcomes['passed']} of {outcomes.total()}" + (f", {left_out} left out" if left_out else "")


def _left_out(of_class: str) -> list[str]:
    """The tests of its contract that a class sets to `None`."""
    file, _, name = of_class.partition("::")
    tested: Any = getattr(importlib.import_module(file.removesuffix(".py")), name)
    contract = next(contract for contract in _CONTRACTS if issubclass(tested, contract))
    return [test for test in dir(contract) if callable(getattr(contract, test)) and getattr(tested, test) is None]


def main() -> None:
    """Run, print and exit as pytest does: with 1 where a test failed, with others where tests cannot be found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of servers as the table has them, between commas")
    parser.add_argument("--write", action="store_true", help="without --only: write the table into docs/servers.md")
    asked = parser.parse_args()
    known = [server.name for server in SERVERS]
    names = asked.only.split(",") if asked.only else known
    if unknown := sorted(set(names) - set(known)):
        # With no file of tests pytest would run all there are.
        parser.error(f"there is no server {', '.join(map(repr, unknown))}; there is {', '.join(dict.fromkeys(known))}")
    servers = [server for server in SERVERS if server.name in names]
    outcomes = Outcomes()
    classes = [of_class for server in servers for of_class in (server.keeps, server.life) if of_class]
    here = Path(__file__).parent
    status = pytest.main(["-q", "-m", "", "-n0", *(f"{here}/{of_class}" for of_class in classes)], plugins=[outcomes])
    lines = [
        f"Run on {datetime.fromtimestamp(SYSTEM.now_ms() / 1000, UTC):%d %B %Y}.",
        "",
        "| server | release | contract of a catalog or a store | life of a table |",
        "|---|---|---|---|",
        *(
            f"| {one.name} | {one.release} | {outcomes.summary(one.keeps)} | {outcomes.summary(one.life)} |"
            for one in servers
        ),
    ]
    table = "\n".join(lines)
    print(table)
    for test in outcomes.failed:
        print(f"failed: {test}", file=sys.stderr)
    if asked.write and not asked.only:
        page = PAGE.read_text()
        PAGE.write_text(re.sub(f"{_BEGIN}.*{_END}", lambda _: f"{_BEGIN}\n\n{table}\n\n{_END}", page, flags=re.DOTALL))
    sys.exit(int(status))


if __name__ == "__main__":
    main()
