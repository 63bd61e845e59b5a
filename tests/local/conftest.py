"""Servers on this machine, started once for all tests of a process."""

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
def store(object_server: ObjectStore) -> ObjectStore:
    """The S3 server; what was asked of it before is forgotten."""
    object_server.reset()
    return object_server
