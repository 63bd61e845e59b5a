import pytest

from kit.changes import Way

_REMOVING = (
    "files",
    "rewrite_files",
    "overwrite_files",
    "row_delta",
    "cherry_pick",
    "rewrite_deletes",
    "rewrite_manifests",
    "convert_deletes",
)


def pytest_generate_tests(metafunc):
    """Changes that remove files do so in this process and in shares; rewrites also of a set of files in storage."""
    name = metafunc.module.__name__.rpartition("test_")[2]
    if "way" in metafunc.fixturenames:
        removes = name.startswith(_REMOVING)
        ways = ["here", "shared", *(["stored"] if name.startswith("rewrite_files") else [])] if removes else ["here"]
        metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture(autouse=True)
def way(request, monkeypatch):
    monkeypatch.setattr(Way, "shared", request.param != "here")
    monkeypatch.setattr(Way, "stored", request.param == "stored")
