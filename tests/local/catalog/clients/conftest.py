from collections.abc import Iterator

import pytest

from kit.object_store import GlueServer
from kit.rest_server import RestServer


@pytest.fixture
def server(tmp_path) -> Iterator[RestServer]:
    server = RestServer(tmp_path)
    yield server
    server.close()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Where AWS Glue is."""
    server = GlueServer()
    yield server.endpoint
    server.close()
