from collections.abc import Iterator

import pytest

from kit.rest_server import RestServer


@pytest.fixture
def server(tmp_path) -> Iterator[RestServer]:
    server = RestServer(tmp_path)
    yield server
    server.close()
