import subprocess
import sys
from pathlib import Path

import pytest

from icekeep.errors import ConfigError, NotFoundError, UsageError
from icekeep.operations.configuration import catalogs as pyiceberg
from icekeep.operations.configuration.catalogs import (
    Catalogs,
    find_pattern,
    find_table,
    pyiceberg_catalogs,
    spark_catalogs,
)
from icekeep.operations.configuration.file import Configuration, parse_config

YAML = "catalogs: {local: {type: sql, uri: from-yaml}}"
SPARK = {
    "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.local.type": "hadoop",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "jdbc",
    "spark.sql.catalog.lake.uri": "from-spark",
}
ENVIRON = {
    "PYICEBERG_CATALOG__LAKE__URI": "sqlite:///from-environment",
    "PYICEBERG_CATALOG__ENV__URI": "sqlite:///from-environment",
}


class Asked:
    """Spark's properties, which remember whether somebody wanted them."""

    def __init__(self, properties):
        self.properties = properties
        self.count = 0

    def __call__(self):
        self.count += 1
        return self.properties


def catalogs(tmp_path, yaml=YAML, spark=SPARK, environ=ENVIRON):
    return Catalogs(parse_config(yaml), spark if callable(spark) else lambda: spark, environ, tmp_path)


@pytest.mark.parametrize(
    ("name", "uri"), [("local", "from-yaml"), ("lake", "from-spark"), ("env", "sqlite:///from-environment")]
)
def test_yaml_comes_before_spark_and_spark_before_pyiceberg(tmp_path, name, uri):
    assert catalogs(tmp_path).get(name).properties["uri"] == uri


def test_the_sources_of_one_catalog_are_not_mixed(tmp_path):
    assert catalogs(tmp_path).get("local").properties == {"type": "sql", "uri": "from-yaml"}


def test_spark_is_asked_only_for_names_not_in_file(tmp_path):
    asked = Asked(SPARK)
    known = catalogs(tmp_path, spark=asked)
    known.get("local")
    known.get(None)
    assert asked.count == 0
    known.get("lake")
    known.get("env")
    assert asked.count == 1


def test_all_lists_each_catalog_once_and_sorted(tmp_path):
    found = catalogs(tmp_path).all()
    assert list(found) == ["env", "lake", "local"]
    assert found["lake"].properties["uri"] == "from-spark"


def test_without_a_name_the_only_catalog_of_the_file_is_meant(tmp_path):
    assert catalogs(tmp_path).get(None).name == "local"


def test_without_a_name_the_only_catalog_at_all_is_meant(tmp_path):
    assert (
        catalogs(tmp_path, yaml="", spark={}, environ={"PYICEBERG_CATALOG__X__URI": "sqlite:///x"}).get(None).name
        == "x"
    )


def test_without_a_name_default_is_meant_among_several(tmp_path):
    several = "catalogs: {a: {type: sql}, default: {type: sql}}"
    assert catalogs(tmp_path, yaml=several).get(None).name == "default"


def test_without_a_name_several_are_an_error_that_lists_them(tmp_path):
    several = "catalogs: {b: {type: sql}, a: {type: sql}}"
    with pytest.raises(NotFoundError, match="it is not clear which catalog is meant; there is a, b, env, lake, local"):
        catalogs(tmp_path, yaml=several).get(None)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(NotFoundError, match="there is no catalog 'prod'; there is env, lake, local") as caught:
        catalogs(tmp_path).get("prod")
    assert caught.value.exit_status == 2


def test_missing_configuration_error_lists_searched_places(tmp_path):
    without_file = Catalogs(Configuration(None, {}), dict, {}, tmp_path)
    with pytest.raises(
        NotFoundError,
        match=r"^no catalog is configured: there is no configuration \(.*ICEKEEP_CONFIG names, conf/icekeep\.yaml or .*\); make",
    ):
        without_file.get(None)
    with pytest.raises(NotFoundError, match=r"no catalog is configured: not in icekeep\.yaml, nor in Spark's"):
        catalogs(tmp_path, yaml="", spark={}, environ={}).get(None)


@pytest.mark.parametrize(
    ("table", "catalog", "expected"),
    [
        ("db.t", None, ("local", "db.t")),
        ("lake.db.t", None, ("lake", "db.t")),
        ("lake.db.sub.t", None, ("lake", "db.sub.t")),
        ("db.sub.t", None, ("local", "db.sub.t")),
        ("lake.t", None, ("local", "lake.t")),
        ("lake.db.t", "env", ("env", "lake.db.t")),
        ("db.t", "lake", ("lake", "db.t")),
        ("db.`t.x`", None, ("local", "db.`t.x`")),
        ('lake.db."t.x"', None, ("lake", "db.`t.x`")),
        ("`lake`.`db`.`t`", None, ("lake", "db.t")),
        ("`lake.db`.t", None, ("local", "`lake.db`.t")),
    ],
)
def test_first_part_of_table_is_catalog_if_one_has_the_name(tmp_path, table, catalog, expected):
    found = find_table(catalogs(tmp_path), table, catalog)
    assert (found.catalog.name, found.name) == expected
    assert found.full_name == ".".join(expected)


SEVERAL = "catalogs: {demo: {type: sql}, prod: {type: sql}}"


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("dmo.db.t", "there is no catalog 'dmo'; did you mean 'demo'?"),
        (
            "ns.db.t",
            r"it is not clear which catalog is meant; there is demo, env, lake, local, prod; name the table as .*",
        ),
        ("db.t", r".* prod; name the table as CATALOG\.NAMESPACE\.TABLE, or give --catalog"),
    ],
)
def test_ambiguous_catalog_error_says_what_to_write(tmp_path, table, told):
    with pytest.raises(NotFoundError, match=f"^{told}$".replace("mean 'demo'?", r"mean 'demo'\?")):
        find_table(catalogs(tmp_path, yaml=SEVERAL), table)


def test_mistyped_catalog_is_suggested_where_nothing_is_found(tmp_path):
    known = catalogs(tmp_path)
    assert find_table(known, "lcal.db.t").doubt.endswith("; did you mean 'local'?")
    assert find_table(known, "ns.db.t").doubt == "'ns' is not configured as a catalog either"
    assert find_table(known, "local.db.t").doubt == ""
    told = "there is no catalog 'lcal'; did you mean 'local'?"
    doubts = {"lcal.db.*": told, "lcal.**": told, "ns.db.*": "", "lcal.*": "", "local.db.*": "", "*.db.*": ""}
    assert {pattern: find_pattern(known, pattern).doubt for pattern in doubts} == doubts


def test_quotes_in_a_pattern_keep_a_dot_in_its_part(tmp_path):
    found = find_pattern(catalogs(tmp_path), "lake.`a.b`.*")
    assert ([one.name for one in found.catalogs], found.glob.text) == (["lake"], "`a.b`.*")
    with pytest.raises(UsageError, match=r"the quote ` in 'lake\.`a' is not closed"):
        find_pattern(catalogs(tmp_path), "lake.`a")
    with pytest.raises(UsageError, match=r"the quote ` in 'lake\.`a' is not closed"):
        find_table(catalogs(tmp_path), "lake.`a")


@pytest.mark.parametrize("table", ["t", "", ".t", "db.", "db..t"])
def test_a_table_needs_a_namespace(tmp_path, table):
    with pytest.raises(UsageError, match=r"cannot be a table; name it as NAMESPACE\.TABLE"):
        find_table(catalogs(tmp_path), table)


def test_spark_catalogs_take_their_type_from_the_implementation():
    prefix = "spark.sql.catalog.c"
    found = spark_catalogs(
        {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        }
    )
    assert found["c"].properties["type"] == "jdbc"
    assert found["c"].sources["type"] == f"{prefix}.catalog-impl"


def test_a_spark_catalog_without_type_is_a_hive_catalog():
    found = spark_catalogs({"spark.sql.catalog.c": "org.apache.iceberg.spark.SparkSessionCatalog"})
    assert found["c"].properties == {"type": "hive"}


def test_catalogs_of_other_formats_are_not_ours():
    found = spark_catalogs(
        {
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.catalog.other.uri": "x",
            "spark.sql.catalog.bare.type": "hadoop",
            "spark.sql.shuffle.partitions": "2",
        }
    )
    assert list(found) == ["bare"]


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


def test_pyiceberg_home_precedes_home_and_current_directory(home, tmp_path):
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


def test_file_of_other_user_does_not_extend_environment(tmp_path, monkeypatch):
    (tmp_path / ".pyiceberg.yaml").write_text("catalog: {lake: {uri: 'https://elsewhere'}}")
    environ = {"PYICEBERG_CATALOG__LAKE__TOKEN": "s3cret"}
    assert pyiceberg_catalogs(environ, tmp_path)["lake"].properties["token"] == "s3cret"
    monkeypatch.setattr(pyiceberg, "is_own_file", lambda _: False)
    with pytest.raises(UsageError, match=r"belongs to another user.*set PYICEBERG_HOME to"):
        pyiceberg_catalogs(environ, tmp_path)
    for trusted in ({}, {**environ, "PYICEBERG_HOME": str(tmp_path)}, {**environ, "HOME": str(tmp_path)}):
        assert pyiceberg_catalogs(trusted, tmp_path)["lake"].properties["uri"] == "https://elsewhere"
