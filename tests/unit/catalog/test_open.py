import os
from importlib.util import find_spec

import pytest

from icekeep.catalog.base import OperatorRules
from icekeep.catalog.clients import adapter
from icekeep.catalog.clients.metastore import GlueCatalog, HiveCatalog
from icekeep.catalog.clients.rest import RestCatalog
from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.catalog.open import _CLIENT_KINDS, _KINDS, open_catalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.catalog.wrappers import CatalogWrapper
from icekeep.errors import ConfigError, IcekeepError, UnsupportedError
from icekeep.settings import CATALOG_TYPES
from kit.cases import for_each


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sql", SqlCatalog),
        ("jdbc", SqlCatalog),
        ("filesystem", FilesystemCatalog),
        ("hadoop", FilesystemCatalog),
        ("SQL", SqlCatalog),
    ],
)
def test_the_type_says_which_catalog_it_is(tmp_path, kind, expected):
    catalog = open_catalog("mine", {"type": kind, "uri": f"sqlite:///{tmp_path}/x.db", "warehouse": str(tmp_path)})
    assert type(catalog) is expected
    assert catalog.name == "mine"
    assert list(tmp_path.iterdir()) == []


def test_every_type_has_its_class():
    assert {*_KINDS, *_CLIENT_KINDS} == {*CATALOG_TYPES}


def test_missing_or_wrong_type_is_config_error():
    with pytest.raises(
        ConfigError,
        match=rf"'catalogs.mine.type': is missing; give one of {', '.join(CATALOG_TYPES)}",
    ):
        open_catalog("mine", {})
    with pytest.raises(ConfigError, match=r"'catalogs.mine.type': is 'sqll'; give one of"):
        open_catalog("mine", {"type": "sqll"})


@pytest.mark.parametrize(("kind", "expected"), [("rest", RestCatalog), ("hive", HiveCatalog), ("Glue", GlueCatalog)])
def test_catalogs_of_other_makes_are_opened_without_asking_them(kind, expected):
    catalog = open_catalog("mine", {"type": kind, "uri": "http://127.0.0.1:1"})
    assert type(catalog) is expected
    assert catalog.name == "mine"


@pytest.mark.parametrize(
    ("kind", "compares", "restores", "frees_names"),
    [
        ("sql", True, True, False),
        ("filesystem", True, True, True),
        ("rest", False, False, False),
        ("hive", True, False, False),
        ("glue", True, False, False),
    ],
)
def test_a_catalog_says_what_its_swaps_and_drops_do(tmp_path, kind, compares, restores, frees_names):
    uri = "http://127.0.0.1:1" if kind in ("rest", "hive") else f"sqlite:///{tmp_path}/x.db"
    catalog = open_catalog("mine", {"type": kind, "uri": uri, "warehouse": str(tmp_path)})
    assert catalog.compares_metadata is compares
    assert catalog.restores_snapshots is restores
    assert catalog.drop_frees_metadata_names is frees_names


@for_each(
    ("kind", "given", "expected"),
    [
        ("sql", "s3://b/wh/", "s3://b/wh"),
        ("sql", "", None),
        ("filesystem", "s3://b/wh", "s3://b/wh"),
        ("hive", "s3://b/wh/", "s3://b/wh"),
        ("glue", "", None),
        ("rest", "s3://b/wh", "s3://b/wh"),
        ("rest", "prod", None),
        ("rest", "arn:aws:s3tables:us-east-1:1:bucket/b", None),
        ("rest", "", None),
    ],
)
def test_the_warehouse_is_told_where_it_is_a_place(kind, given, expected):
    catalog = open_catalog("mine", {"type": kind, "uri": "sqlite:///x.db", "warehouse": given})
    assert catalog.warehouse == expected


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("dynamodb", "PyIceberg's client cannot commit to it"),
        ("bigquery", "PyIceberg's client cannot commit to it"),
        ("nessie", "use its REST endpoint instead, type rest"),
    ],
)
def test_what_cannot_be_committed_to_safely_is_refused(kind, reason):
    with pytest.raises(UnsupportedError, match=f"catalog 'mine' has type '{kind}', which is not supported: {reason}"):
        open_catalog("mine", {"type": kind})


def test_partial_snapshots_are_refused():
    with pytest.raises(UnsupportedError, match="has snapshot-loading-mode=refs: with some of a table's snapshots only"):
        open_catalog("mine", {"type": "rest", "uri": "http://x", "snapshot-loading-mode": "refs"})
    open_catalog("mine", {"type": "rest", "uri": "http://x", "snapshot-loading-mode": "all"})


@for_each(
    ("kind", "module", "extra"), [("google", "google.auth", "gcp-auth"), ("entra", "azure.identity", "entra-auth")]
)
def test_a_login_whose_library_is_not_installed_is_refused(kind, module, extra, monkeypatch):
    monkeypatch.setattr(adapter, "find_spec", lambda name: None if name == module else find_spec(name))
    with pytest.raises(
        UnsupportedError, match=rf"needs the Python module '{module}'.*: pip install 'pyiceberg\[{extra}"
    ):
        open_catalog("mine", {"type": "rest", "uri": "http://x", "auth.type": kind})


@for_each("value", ["", "0", "-1", "1.5", "10s"])
def test_invalid_milliseconds_are_config_error(value):
    key = "rest.client.socket-timeout-ms"
    with pytest.raises(ConfigError, match=rf"'catalogs.mine.{key}': is '{value}'; give milliseconds, 1 or more"):
        open_catalog("mine", {"type": "rest", "uri": "http://x", key: value})


def test_a_property_that_the_type_needs_is_asked_for():
    for kind in ("rest", "hive"):
        with pytest.raises(ConfigError, match=r"'catalogs.mine.uri': is missing; give the address of the server"):
            open_catalog("mine", {"type": kind})
    with pytest.raises(ConfigError, match=r"'catalogs.mine.uri': is missing"):
        open_catalog("mine", {"type": "sql"})
    with pytest.raises(ConfigError, match=r"'catalogs.mine.warehouse': is missing"):
        open_catalog("mine", {"type": "hadoop"})


@pytest.mark.parametrize(
    ("warehouse", "location"),
    [
        ("file:///wh", "file:///wh/db/t"),
        ("file:/wh/", "file:/wh/db/t"),
        ("/wh", "file:///wh/db/t"),
        ("wh", "file://{cwd}/wh/db/t"),
        ("./wh/", "file://{cwd}/wh/db/t"),
        ("file:wh", "file://{cwd}/wh/db/t"),
        ("s3://bucket/wh", "s3://bucket/wh/db/t"),
    ],
)
@pytest.mark.parametrize("kind", ["sql", "hadoop"])
def test_a_warehouse_without_a_scheme_is_on_this_machine(tmp_path, monkeypatch, kind, warehouse, location):
    monkeypatch.chdir(tmp_path)
    catalog = open_catalog("mine", {"type": kind, "uri": "sqlite:///x.db", "warehouse": warehouse})
    if kind == "sql":
        catalog.create_namespace(("db",))
    assert catalog.default_location(("db", "t")) == location.format(cwd=tmp_path)


@pytest.mark.parametrize(
    ("properties", "identity"),
    [
        ({"type": "filesystem", "warehouse": "s3a://lake/wh/"}, "filesystem s3://lake/wh"),
        (
            {"type": "sql", "uri": "postgresql+psycopg://me:secret@db:5432/cat?sslmode=require"},
            "sql postgresql+psycopg://db:5432/cat lake",
        ),
        (
            {"type": "rest", "uri": "https://me:secret@polaris/api/", "warehouse": "prod"},
            "rest https://polaris/api prod",
        ),
        ({"type": "hive", "uri": "thrift://hms:9083"}, "hive thrift://hms:9083"),
        ({"type": "glue", "glue.region": "eu-west-1", "glue.id": "123"}, "glue 123 eu-west-1"),
    ],
)
def test_catalog_identity_is_its_address_without_secrets(monkeypatch, properties, identity):
    """Two catalogs over one warehouse are two, whatever a configuration calls them."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert open_catalog("lake", properties).identity == identity


@for_each(
    ("properties", "shown"),
    [
        (
            {"type": "sql", "uri": "postgresql://me:pw-1@h/db", "warehouse": "hdfs://me:pw-2@h:8020/wh"},
            "SqlCatalog(lake: sql postgresql+psycopg://h/db lake, warehouse hdfs://me:******@h:8020/wh)",
        ),
        # What stands before the account is a container, and no user.
        (
            {"type": "sql", "uri": "postgresql://h/db", "warehouse": "abfss://c@a.dfs.core.windows.net/wh"},
            "SqlCatalog(lake: sql postgresql+psycopg://h/db lake, warehouse abfss://c@a.dfs.core.windows.net/wh)",
        ),
        (
            {"type": "hadoop", "warehouse": "s3://b/wh"},
            "FilesystemCatalog(lake: filesystem s3://b/wh, warehouse s3://b/wh)",
        ),
        (
            {"type": "rest", "uri": "https://me:pw-1@h/api?sig=pw-2", "token": "pw-3-pw-3", "warehouse": "w"},
            "RestCatalog(lake: rest https://h/api w)",
        ),
        ({"type": "hive", "uri": "thrift://me:pw-1@h:9083"}, "HiveCatalog(lake: hive thrift://h:9083)"),
    ],
)
def test_a_catalog_shows_its_type_and_place_without_secrets(properties, shown):
    """In a notebook's cell and at a prompt."""
    catalog = open_catalog("lake", properties)
    assert repr(catalog) == shown
    assert repr(CatalogWrapper(catalog)) == shown


@for_each("kind", ["hadoop", "sql", "hive", "glue"])
@for_each(
    ("warehouse", "expected"),
    [
        ("hdfs:/wh", "hdfs:/wh"),
        ("HDFS:/wh", "HDFS:/wh"),
        ("hdfs://nn:8020/wh", "hdfs://nn:8020/wh"),
        ("s3://bucket/wh", "s3://bucket/wh"),
        ("file:/wh", "file:/wh"),
        ("file:wh", f"file://{os.getcwd()}/wh"),
        ("/wh", "file:///wh"),
        ("./c:/wh", f"file://{os.getcwd()}/c:/wh"),
    ],
)
def test_one_slash_hdfs_warehouse_is_in_default_file_system(kind, warehouse, expected):
    uri = {"sql": "sqlite:///:memory:"}.get(kind, "thrift://127.0.0.1:1")
    catalog = open_catalog("lake", {"type": kind, "warehouse": warehouse, "uri": uri})
    assert catalog.warehouse == expected


@for_each("warehouse", ["s3:/bucket/wh", "gs:bucket", "hdfs:wh", "C:\\wh", "viewfs:/wh", "a:b"])
@for_each("kind", ["hadoop", "sql", "glue"])
def test_no_scheme_becomes_the_name_of_a_directory(kind, warehouse):
    with pytest.raises(ConfigError, match=r"'catalogs.lake.warehouse': is '.*, which is no location; give SCHEME://"):
        open_catalog("lake", {"type": kind, "warehouse": warehouse, "uri": "sqlite:///:memory:"})


def test_one_slash_hdfs_table_is_sought_in_hadoop_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    catalog = open_catalog("lake", {"type": "hadoop", "warehouse": "hdfs:/wh"})
    with pytest.raises(IcekeepError, match="hdfs:/wh") as raised:
        catalog.create_namespace(("db",))
    assert "\n" not in raised.value.message
    assert list(tmp_path.iterdir()) == []


@for_each(
    ("key", "value", "problem"),
    [
        ("expire.least-age", "soon", r"expire\.least-age': is no age: "),
        (
            "carry.summary-keys",
            "ticket, total-records",
            r"carry\.summary-keys': names 'total-records', which Iceberg, an engine",
        ),
    ],
)
def test_enforced_properties_are_checked_at_opening(tmp_path, key, value, problem):
    with pytest.raises(ConfigError, match=problem):
        open_catalog("lake", {"type": "hadoop", "warehouse": f"file://{tmp_path}", key: value})


def test_what_the_operator_lays_down_is_the_catalog_s(tmp_path):
    given = {"expire.least-age": "7d", "carry.summary-keys": "a, b.*"}
    found = open_catalog("lake", {"type": "hadoop", "warehouse": f"file://{tmp_path}", **given}).rules
    assert found == OperatorRules(carried_keys=("a", "b.*"), least_snapshot_age_ms=7 * 86_400_000)
