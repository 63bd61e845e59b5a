import pytest

from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.catalog.open import open_catalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import ConfigError, UnsupportedError


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


def test_a_type_that_is_missing_or_wrong_is_a_configuration_error():
    with pytest.raises(
        ConfigError, match=r"'catalogs.mine.type': is missing; give one of sql, jdbc, filesystem, hadoop"
    ):
        open_catalog("mine", {})
    with pytest.raises(ConfigError, match=r"'catalogs.mine.type': is 'sqll'; give one of"):
        open_catalog("mine", {"type": "sqll"})


@pytest.mark.parametrize("kind", ["rest", "hive", "glue"])
def test_a_type_that_other_engines_know_is_not_supported_yet(kind):
    with pytest.raises(UnsupportedError, match=f"catalog 'mine' has type '{kind}', which is not supported yet"):
        open_catalog("mine", {"type": kind})


def test_a_property_that_the_type_needs_is_asked_for():
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
    assert catalog.default_location(("db", "t")) == location.format(cwd=tmp_path)
