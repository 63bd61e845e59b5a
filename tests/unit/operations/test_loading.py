import pytest

from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import ConfigError, NotFoundError
from icekeep.operations.configuration.catalogs import Catalogs, TableReference, find_table
from icekeep.operations.configuration.file import CatalogSettings, parse_config
from icekeep.operations.loading import configured_catalogs, load_catalog, load_table, open_settings


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(variable, raising=False)


def test_a_catalog_of_the_default_file_is_opened_by_name(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "icekeep.yaml").write_text(
        "catalogs: {c: {type: sql, uri: 'sqlite:///c.db', warehouse: ./wh}}"
    )
    catalog = load_catalog("c")
    assert isinstance(catalog, SqlCatalog)
    assert catalog.name == "c"
    catalog.create_namespace(("db",))
    assert catalog.default_location(("db", "t")) == f"file://{tmp_path}/wh/db/t"
    assert load_catalog().name == "c"


def test_a_catalog_of_spark_s_configuration_needs_no_file(tmp_path, monkeypatch):
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.sql.catalog.lake org.apache.iceberg.spark.SparkCatalog\nspark.sql.catalog.lake.type hadoop\n"
        f"spark.sql.catalog.lake.warehouse {tmp_path}/wh\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert isinstance(load_catalog("lake"), FilesystemCatalog)


def test_a_catalog_of_pyiceberg_s_environment_needs_no_file(monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__ENV__URI", "sqlite:///c.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__ENV__WAREHOUSE", "/wh")
    assert isinstance(load_catalog("env"), SqlCatalog)


def test_a_file_that_is_named_must_be_there():
    with pytest.raises(NotFoundError, match=r"there is no configuration file 'other\.yaml'"):
        load_catalog("c", conf="other.yaml")


def test_references_resolve_at_opening_not_before(tmp_path):
    settings = parse_config("catalogs: {c: {type: hadoop, warehouse: '${WAREHOUSE}'}}").catalogs["c"]
    with pytest.raises(ConfigError, match="'WAREHOUSE', which is not set"):
        open_settings(settings, environ={})
    assert open_settings(settings, environ={"WAREHOUSE": str(tmp_path)}).name == "c"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("type: sqll", "uri: sqlite:///x.db"), r"'catalogs\.c\.type': is 'sqll'; give one of .* \(my\.yaml, line 4\)"),
        (("type: sql", "warehouse: /wh"), r"'catalogs\.c\.uri': is missing; give .* \(my\.yaml, line 4\)"),
        (("type: sql", "url: sqlite:///x.db"), r"; there is 'url': did you mean 'uri'\? \(my\.yaml, line 4\)"),
        (("warehouse: /wh", "type: sql", "uri: 'sqlite:///${NO}'"), r"which is not set \(my\.yaml, line 6\)"),
        (("type: sql", "uri: sqlite:///x.db"), r"'catalogs\.c\.uri': there is no file .* \(my\.yaml, line 5\)"),
    ],
)
def test_an_error_on_a_property_says_where_that_stands(tmp_path, lines, message):
    text = "# two\ncatalogs:\n  c:\n" + "".join(f"    {line}\n" for line in lines)
    with pytest.raises(ConfigError, match=f"{message}$"):
        load_table(TableReference(parse_config(text, "my.yaml").catalogs["c"], "db.t"))


def test_error_on_shared_property_names_its_place_once():
    """It got the line of each, and was raised from itself, so that its cause was lost."""
    first, second = (
        CatalogSettings(name, {"s3.endpoint": "x"}, {"s3.endpoint": f"my.yaml, line {line}"})
        for name, line in (("a", 4), ("b", 9))
    )
    wrong = ConfigError("s3.endpoint", "is no address")
    with (
        pytest.raises(ConfigError, match=r"no address \(my\.yaml, line 4\)$") as raised,
        second.placing(),
        first.placing(),
    ):
        raise wrong
    assert raised.value.__cause__ is wrong


def test_error_on_pyiceberg_property_names_its_variable(monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__OTHER__URI", "oracle://x")
    with pytest.raises(
        ConfigError, match=r"'catalogs\.other\.type': is missing.*\(variable PYICEBERG_CATALOG__OTHER__URI\)$"
    ):
        load_catalog("other")
    monkeypatch.setenv("PYICEBERG_CATALOG__OTHER__URI", "sqlite:///none.db")
    settings = configured_catalogs(None).get("other")
    with pytest.raises(ConfigError, match=r"there is no file .*\(variable PYICEBERG_CATALOG__OTHER__URI\)$"):
        load_table(TableReference(settings, "db.t"))


def test_a_table_that_is_not_there_is_named_with_its_catalog(tmp_path):
    settings = parse_config(f"catalogs: {{c: {{type: hadoop, warehouse: {tmp_path}}}}}").catalogs["c"]
    with pytest.raises(NotFoundError, match=r"no table 'db\.t' in catalog 'c'"):
        load_table(TableReference(settings, "db.t"))


def test_missing_table_error_notes_unknown_catalog(tmp_path):
    config = parse_config(f"catalogs: {{c: {{type: hadoop, warehouse: {tmp_path}}}}}")
    reference = find_table(Catalogs(config, dict, {}, tmp_path), "nope.db.t")
    message = r"no table 'nope\.db\.t' in catalog 'c'.*; 'nope' is not configured as a catalog either$"
    with pytest.raises(NotFoundError, match=message):
        load_table(reference)
