import subprocess
import sys
from pathlib import Path

import pytest

from icekeep.errors import ConfigError, UsageError
from icekeep.operations.configuration import catalogs as pyiceberg
from icekeep.operations.configuration.catalogs import pyiceberg_catalogs

FILE = """
default-catalog: prod
catalog:
  PROD:
    URI: https://file/v1
    s3.endpoint: http://minio
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".pyiceberg.yaml").write_text(FILE)
    return tmp_path


def test_the_file_of_pyiceberg_home_comes_first_then_home_then_here(home, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / ".pyiceberg.yaml").write_text("catalog: {other: {uri: 'sqlite:///x'}}")
    assert list(pyiceberg_catalogs({"PYICEBERG_HOME": str(other), "HOME": str(home)}, home)) == ["other"]
    assert list(pyiceberg_catalogs({"HOME": str(home)}, other)) == ["prod"]
    assert list(pyiceberg_catalogs({}, other)) == ["other"]
    assert pyiceberg_catalogs({}, other / "nowhere") == {}


def test_variables_win_over_the_file_key_by_key(home):
    environ = {
        "PYICEBERG_CATALOG__PROD__URI": "https://env/v1",
        "PYICEBERG_CATALOG__PROD__S3__ACCESS_KEY_ID": "id",
        "PYICEBERG_HOME": str(home),
        "UNRELATED": "1",
    }
    prod = pyiceberg_catalogs(environ, home)["prod"]
    assert prod.properties == {
        "type": "rest",
        "uri": "https://env/v1",
        "s3.endpoint": "http://minio",
        "s3.access-key-id": "id",
    }
    assert prod.sources["uri"] == "variable PYICEBERG_CATALOG__PROD__URI"
    assert prod.sources["s3.endpoint"] == str(home / ".pyiceberg.yaml")


def test_keys_that_lie_in_each_other_are_joined_by_dots(tmp_path):
    text = "catalog: {c: {uri: http://x, SSL: {cabundle: /ca.pem, client: {Cert: /c.pem}}}}"
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    found = pyiceberg_catalogs({}, tmp_path)["c"].properties
    assert found == {"type": "rest", "uri": "http://x", "ssl.cabundle": "/ca.pem", "ssl.client.cert": "/c.pem"}


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("http://x", "rest"),
        ("thrift://x", "hive"),
        ("sqlite:///x", "sql"),
        ("postgresql+psycopg://x", "sql"),
        ("x", None),
    ],
)
def test_the_type_follows_from_the_uri_where_it_is_not_given(uri, kind, tmp_path):
    found = pyiceberg_catalogs({"PYICEBERG_CATALOG__C__URI": uri}, tmp_path)["c"]
    assert found.properties.get("type") == kind
    told = pyiceberg_catalogs({"PYICEBERG_CATALOG__C__URI": uri, "PYICEBERG_CATALOG__C__TYPE": "x"}, tmp_path)["c"]
    assert told.properties["type"] == "x"


@pytest.mark.process
def test_pyiceberg_itself_reads_the_same(home):
    environ = {
        "PYICEBERG_HOME": str(home),
        "PYICEBERG_CATALOG__MY_CAT__S3__SECRET_ACCESS_KEY": "k",
        "PYICEBERG_CATALOG__PROD__TOKEN": "t",
        "PATH": "",
    }
    code = (
        "from pyiceberg.utils.config import Config; "
        "print(sorted((n, sorted(p.items())) for n, p in Config().config['catalog'].items()))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    ours = pyiceberg_catalogs(environ, Path("/nowhere"))
    for settings in ours.values():
        if settings.sources.get("type") == "inferred from uri":
            del settings.properties["type"]
    assert done.stdout.strip() == repr(sorted((n, sorted(s.properties.items())) for n, s in ours.items()))


def test_a_file_of_another_shape_is_an_error_with_the_key_s_path(tmp_path):
    (tmp_path / ".pyiceberg.yaml").write_text("catalog: {prod: {uri: [x]}}")
    with pytest.raises(ConfigError, match=r"'catalog\.prod\.uri': should be a single value"):
        pyiceberg_catalogs({}, tmp_path)


def test_a_file_of_another_user_does_not_complete_what_the_environment_says(tmp_path, monkeypatch):
    (tmp_path / ".pyiceberg.yaml").write_text("catalog: {lake: {uri: 'https://elsewhere'}}")
    environ = {"PYICEBERG_CATALOG__LAKE__TOKEN": "s3cret"}
    assert pyiceberg_catalogs(environ, tmp_path)["lake"].properties["token"] == "s3cret"
    monkeypatch.setattr(pyiceberg, "is_own_file", lambda _: False)
    with pytest.raises(UsageError, match=r"belongs to another user.*set PYICEBERG_HOME to"):
        pyiceberg_catalogs(environ, tmp_path)
    for trusted in ({}, {**environ, "PYICEBERG_HOME": str(tmp_path)}, {**environ, "HOME": str(tmp_path)}):
        assert pyiceberg_catalogs(trusted, tmp_path)["lake"].properties["uri"] == "https://elsewhere"
