"""Foreign software that tests ask, as fixtures for a `conftest.py`: each is started once for all tests of a process."""

from collections.abc import Iterator

import pytest

from kit.flink import Flink
from kit.java import IcebergJava
from kit.judging.panel import Panel
from kit.postgres import Postgres
from kit.trino import Trino


@pytest.fixture(scope="session")
def java() -> Iterator[IcebergJava]:
    """Iceberg Java, ready to open catalogs."""
    judge = IcebergJava()
    yield judge
    judge.close()


@pytest.fixture(scope="session")
def flink() -> Iterator[Flink]:
    """Flink, ready to open catalogs."""
    engine = Flink()
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def panel(trino: Trino) -> Iterator[Panel]:
    """Judges that are not Iceberg Java; each starts with its first question."""
    judges = Panel(trino)
    yield judges
    judges.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of the test run's own."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(scope="session")
def trino() -> Iterator[Trino]:
    """Trino's server, which starts with the first statement."""
    server = Trino()
    yield server
    server.close()
