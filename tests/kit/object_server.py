"""An S3 server as fixtures for a `conftest.py`: it is started once for all tests of a process."""

from collections.abc import Iterator

import pytest

from kit.object_store import ObjectStore


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectStore]:
    """An S3 server."""
    server = ObjectStore()
    yield server
    server.close()


@pytest.fixture
def store(object_server: ObjectStore) -> Iterator[ObjectStore]:
    """The S3 server; what was asked of it before is forgotten, and so is what this test told it."""
    object_server.reset()
    yield object_server
    object_server.reset()
