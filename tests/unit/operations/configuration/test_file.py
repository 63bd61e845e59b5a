import re
import subprocess
import sys
from pathlib import Path

import pytest

from icekeep.errors import ConfigError, NotFoundError, UsageError
from icekeep.health.prices import Prices
from icekeep.operations.configuration import file
from icekeep.operations.configuration.file import Configuration, RunsSettings, config_words, parse_config, read_config
from icekeep.settings import CONFIG_PATH, CONFIG_VARIABLE
from icekeep.spec.types import DAY_MS
from kit.cases import for_each

ROOT = Path(__file__).resolve().parents[4]

ONE_CATALOG = (
    "catalogs:\n  prod:\n    type: rest\n    uri: https://${HOST}/v1\n    token: ${TOKEN}\n    s3.retries: 010\n"
)


def test_catalog_properties_are_kept_verbatim_as_text():
    prod = parse_config(ONE_CATALOG).catalogs["prod"]
    assert prod.properties == {"type": "rest", "uri": "https://${HOST}/v1", "token": "${TOKEN}", "s3.retries": "010"}
    assert prod.sources == {key: f"icekeep.yaml, line {n}" for n, key in enumerate(prod.properties, 3)}


def test_environment_references_resolve_at_opening():
    prod = parse_config(ONE_CATALOG).catalogs["prod"]
    resolved = prod.resolved({"HOST": "h", "TOKEN": "a${HOST}b"})
    assert resolved["uri"] == "https://h/v1"
    assert resolved["token"] == "a${HOST}b", "a value is not searched for references again"


def test_unset_variable_error_names_key_and_variable():
    prod = parse_config(ONE_CATALOG).catalogs["prod"]
    with pytest.raises(ConfigError, match=r"'catalogs\.prod\.token': refers to environment variable 'TOKEN'") as caught:
        prod.resolved({"HOST": "s3cret"})
    assert "s3cret" not in str(caught.value)


@for_each("text", ["${", "${TOKEN", "a${b c}", "${}", "${1x}", "${env:TOKEN}"])
def test_malformed_reference_is_refused_at_reading(text):
    with pytest.raises(ConfigError, match=r"'catalogs\.c\.uri': holds '\$\{' that is no reference"):
        parse_config(f"catalogs: {{c: {{type: sql, uri: '{text}'}}}}")


@for_each(
    ("text", "key_path", "problem"),
    [
        (
            "catalog: {}",
            "catalog",
            "there is no such key; did you mean 'catalogs'?",
        ),
        ("catalogs:", "catalogs", "should be keys with values, but is no value"),
        ("catalogs: {c: {uri: x}}", "catalogs.c.type", "is missing"),
        ("catalogs: {c: {type: }}", "catalogs.c.type", "should be a single value, but is no value"),
        ("catalogs: {c: {type: ''}}", "catalogs.c.type", "is empty"),
        ("catalogs: {c: {type: sql, uri: [x]}}", "catalogs.c.uri", "should be a single value, but is a list"),
        ("catalogs: {c: {type: sql, s3: {x: y}}}", "catalogs.c.s3", "should be a single value, but is keys"),
        ("catalogs: {c: sql}", "catalogs.c", "should be keys with values, but is text"),
        ("catalogs: {a.b: {type: sql}}", "catalogs.a.b", "a catalog's name holds letters"),
        ("policies: {}", "policies", "should be a list, but is keys with values"),
        ("runs: {where: x}", "runs.where", "there is no such key; there is enabled, keep, table, uri"),
        ("runs: {uri: 'sqlite:///${x'}", "runs.uri", "holds '${' that is no reference"),
        ("runs: {uri: }", "runs.uri", "should be text, but is no value"),
        ("runs: {enabled: 1}", "runs.enabled", "should be true or false, but is a number"),
        ("runs: {table: ops.runs}", "runs.table", "'ops.runs' is not a full name; give CATALOG.NAMESPACE.TABLE"),
        ("runs: {keep: 5}", "runs.keep", "should be a span such as 30m, 36h or 7d, but is a number"),
        (
            "runs: {uri: mysql://h/d}",
            "runs.uri",
            "is of a database 'mysql', which is not supported; give sqlite:///PATH",
        ),
        ("runs: {uri: nonsense}", "runs.uri", "is no address; give sqlite:///PATH or postgresql://USER@HOST/DATABASE"),
        ("runs: {keep: long}", "runs.keep", "cannot read the duration 'long'"),
        ("runs: {keep: 1h}", "runs.keep", "is less than a day, and each run would forget the others"),
        ("runs: sqlite", "runs", "should be keys with values, but is text"),
    ],
)
def test_what_is_wrong_is_an_error_with_the_key_s_path(text, key_path, problem):
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert str(caught.value).startswith(f"configuration key {key_path!r}: {problem}")
    assert caught.value.facts["key_path"] == key_path


def test_run_records_are_beside_warehouse_unless_configured():
    assert parse_config("catalogs: {}").runs == RunsSettings(uri=None, is_enabled=True, table=None)
    said = parse_config("runs: {uri: 'postgresql://u:s3cret@h/d', enabled: true, table: lake.ops.runs, keep: 90d}").runs
    assert (said.uri, said.is_enabled, said.table) == ("postgresql://u:s3cret@h/d", True, "lake.ops.runs")
    assert said.keep_ms == 90 * DAY_MS
    assert "s3cret" not in repr(said)


def test_secrets_show_neither_in_errors_nor_in_a_repr():
    config = parse_config("catalogs: {c: {type: sql, password: s3cret, uri: 'x://u:s3cret@h'}}")
    assert "s3cret" not in repr(config)
    assert "password" in repr(config)
    with pytest.raises(ConfigError) as caught:
        parse_config("catalogs: {c: {type: sql, password: [s3cret]}}")
    assert "s3cret" not in str(caught.value)


def test_an_empty_file_configures_nothing():
    assert parse_config("# nothing here\n") == Configuration("icekeep.yaml", {})


def test_the_default_file_may_be_missing_but_a_named_one_may_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_config() == Configuration(None, {})
    with pytest.raises(NotFoundError, match=r"no configuration file 'my\.yaml'"):
        read_config("my.yaml")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "icekeep.yaml").write_text("catalogs: {c: {type: sql}}")
    assert list(read_config().catalogs) == ["c"]


def test_the_configuration_that_is_shipped_works_as_it_stands():
    config = read_config(str(ROOT / "conf" / "icekeep.example.yaml"))
    assert config.catalogs["local"].resolved({})["type"] == "sql"
    assert [call.job for call in config.policies[0].calls] == ["compact", "rewrite_manifests", "expire_snapshots"]


@pytest.mark.process
def test_reading_configuration_needs_only_yaml_and_msgspec():
    code = (
        "import sys; from icekeep.operations.configuration.file import read_config; "
        f"read_config({str(ROOT / 'conf' / 'icekeep.example.yaml')!r}); print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "lib")},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert {"icekeep", "yaml", "msgspec"} <= loaded
    assert not loaded & {
        "pyspark",
        "pyarrow",
        "pandas",
        "numpy",
        "rich",
        "sqlalchemy",
        "fastavro",
        "mmh3",
        "xxhash",
        "datafusion",
    }


def test_prices_are_numbers_and_a_currency():
    found = parse_config("prices: {core_hour: 0.05, million_requests: 5, currency: EUR}").prices
    assert found == Prices(core_hour=0.05, million_requests=5.0, currency="EUR")
    assert parse_config("prices: {}").prices == Prices()
    assert parse_config(ONE_CATALOG).prices is None


@for_each(
    ("text", "key_path", "problem"),
    [
        ("prices: 5", "prices", "should be keys with values"),
        ("prices: {core-hour: 1}", "prices.core-hour", "there is no such key; did you mean 'core_hour'?"),
        ("prices: {core_hour: -1}", "prices.core_hour", "give a number of 0 or more"),
        ("prices: {core_hour: free}", "prices.core_hour", "should be a number, but is text"),
        ("prices: {currency: 5}", "prices.currency", "should be text, but is a number"),
    ],
)
def test_a_wrong_price_is_named(text, key_path, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        parse_config(text)
    assert f"'{key_path}'" in str(caught.value)


@for_each(
    "text",
    [
        "catalogs: {c: {type: rest, token: '${TOKEN}'}}",
        "runs: {uri: '${RUNS}'}",
        "metrics: {pushgateway: 'http://${P}@h'}",
    ],
)
def test_file_of_other_user_gets_no_environment_variables(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir(exist_ok=True)
    (tmp_path / CONFIG_PATH).write_text(text)
    assert read_config().path == CONFIG_PATH
    refused = r"belongs to another user, and takes \$\{.*\} from the environment; .* --config conf/icekeep.yaml"
    with monkeypatch.context() as patch:
        patch.setattr(file, "is_own_file", lambda _: False)
        with pytest.raises(UsageError, match=refused):
            read_config()
        assert read_config(CONFIG_PATH).path == CONFIG_PATH
        (tmp_path / CONFIG_PATH).write_text("catalogs: {c: {type: sql, uri: 'sqlite:///x.db'}}")
        assert read_config().catalogs


def _layout(tmp_path, monkeypatch):
    """A directory with a configuration in each place that is looked at, by the name of its only catalog."""
    places = {
        "named": tmp_path / "named.yaml",
        "here": tmp_path / CONFIG_PATH,
        "own": tmp_path / "xdg/icekeep/icekeep.yaml",
        "home": tmp_path / ".config/icekeep/icekeep.yaml",
    }
    for name, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"catalogs: {{{name}: {{type: sql, uri: '${{DB}}'}}}}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv(CONFIG_VARIABLE, str(places["named"]))
    return places


def test_environment_precedes_directory_and_user_file(tmp_path, monkeypatch):
    places = _layout(tmp_path, monkeypatch)
    assert [*read_config(CONFIG_PATH).catalogs] == ["here"]
    assert [*read_config().catalogs] == ["named"]
    assert config_words(str(places["named"])) == ()
    assert config_words(CONFIG_PATH) == ("--config", CONFIG_PATH)
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    assert [*read_config().catalogs] == ["here"]
    assert config_words(CONFIG_PATH) == ()
    places["here"].unlink()
    assert [*read_config().catalogs] == ["own"]
    assert config_words(read_config().path) == ()
    for ignored in ("", "xdg"):
        monkeypatch.setenv("XDG_CONFIG_HOME", ignored)
        assert [*read_config().catalogs] == ["home"]
    places["home"].unlink()
    assert read_config() == Configuration(None, {})


def test_a_file_that_the_variable_names_must_be_there(tmp_path, monkeypatch):
    places = _layout(tmp_path, monkeypatch)
    places["named"].unlink()
    with pytest.raises(
        NotFoundError, match=r"no configuration file '.*named.yaml', which ICEKEEP_CONFIG names; name another"
    ):
        read_config()


def test_only_a_file_that_nobody_named_is_asked_for_its_owner(tmp_path, monkeypatch):
    places = _layout(tmp_path, monkeypatch)
    monkeypatch.setattr(file, "is_own_file", lambda _: False)
    assert read_config().catalogs
    monkeypatch.delenv(CONFIG_VARIABLE)
    for place in ("here", "own"):
        with pytest.raises(UsageError, match=r"belongs to another user, and takes \$\{DB\} from the environment"):
            read_config()
        places[place].unlink()


def test_words_of_a_configuration_ask_no_closed_directory(monkeypatch):
    def closed():
        raise PermissionError

    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    monkeypatch.setattr(file, "_found_path", closed)
    assert config_words(None) == ()
    assert config_words("my.yaml") == ("--config", "my.yaml")
