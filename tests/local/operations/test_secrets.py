"""Secrets stand in every property that can hold one, and servers repeat all they are sent: no command writes one anywhere."""

import json
import traceback
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from icekeep import cli
from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, IcekeepError, UsageError
from icekeep.secrets import MASK
from kit.shell import restored_logging
from kit.small_servers import HttpSink, http_sink

CORE = "zqhunter"
"""What every spelling of the secret has in it."""
SECRET = f"{CORE}/2 'pl&nt?"
QUOTED = quote(SECRET, safe="")
COMMANDS = (
    ("report", "--verbose", "--log-format", "json", "--output", "json"),
    ("compact", "--table", "c.db.t", "--verbose"),
)


def catalogs(server: str) -> dict[str, Mapping[str, str]]:
    """Catalogs of each type, on each store."""
    login = server.replace("://", f"://me:{QUOTED}@")
    aws = {f"{of}.{name}": SECRET for of in ("client", "s3", "glue") for name in ("secret-access-key", "session-token")}
    aws |= {f"{of}.access-key-id": "AKIA" for of in ("client", "s3", "glue")}
    s3 = {**aws, "s3.endpoint": server, "s3.region": "x"}
    gcs = {"gcs.service.host": server, "gcs.oauth2.token": SECRET}
    azure = {
        "adls.account-name": "a",
        "adls.blob-storage-authority": server.partition("://")[2],
        "adls.blob-storage-scheme": "http",
    }
    wasb = "abfss://wh@a.dfs.core.windows.net/wh"
    service = {"adls.tenant-id": "t", "adls.client-id": "i", "adls.client-secret": SECRET}
    return {
        "token": {
            "type": "rest",
            "uri": server,
            "token": SECRET,
            "header.X-Api-Key": SECRET,
            "header.Cookie": f"a=b; c={SECRET}",
        },
        "credential": {
            "type": "rest",
            "uri": login,
            "credential": f"client:{SECRET}",
            "oauth2-server-uri": f"{login}/tokens",
        },
        "signed": {"type": "rest", "uri": server, "rest.sigv4-enabled": "true", "rest.signing-region": "x", **aws},
        "unasked": {"type": "rest", "uri": login.replace(QUOTED, SECRET)},
        "managed": {"type": "rest", "uri": server, "auth.type": "basic", "auth.basic.password": SECRET},
        "hive": {"type": "hive", "uri": f"thrift://me:{QUOTED}@127.0.0.1:1"},
        "ugly": {"type": "hive", "uri": f"thrift://me:{SECRET}@127.0.0.1:1"},
        "glue": {"type": "glue", "glue.endpoint": server, "glue.region": "x", "glue.max-retries": "0", **aws},
        "sql": {"type": "sql", "uri": f"postgresql://me:{SECRET}@127.0.0.1:1/db", "warehouse": "s3://b/wh"},
        "at": {"type": "sql", "uri": f"postgresql://me:x@{SECRET}@127.0.0.1:1/db", "warehouse": "s3://b/wh"},
        "jdbc": {
            "type": "jdbc",
            "uri": "jdbc:postgresql://127.0.0.1:1/db?user=me",
            "jdbc.password": SECRET,
            "warehouse": "s3://b/wh",
        },
        "parameter": {
            "type": "jdbc",
            "uri": f"jdbc:postgresql://127.0.0.1:1/db?user=me&password={QUOTED}",
            "warehouse": "s3://b/w",
        },
        "s3": {"type": "hadoop", "warehouse": "s3://bucket/wh", **s3},
        "encrypted": {"type": "hadoop", "warehouse": "s3://b/wh", "s3.sse.type": "custom", "s3.sse.key": SECRET, **s3},
        "gcs": {"type": "hadoop", "warehouse": "gs://bucket/wh", **gcs},
        "keyed": {"type": "hadoop", "warehouse": "gs://bucket/wh", "gcs.encryption-key": SECRET, **gcs},
        "azure": {"type": "hadoop", "warehouse": wasb, "adls.account-key": SECRET, **azure},
        "base64": {
            "type": "hadoop",
            "warehouse": wasb,
            "adls.account-key": b64encode(SECRET.encode()).decode(),
            **azure,
        },
        "sas": {"type": "hadoop", "warehouse": wasb, "adls.sas-token": f"sv=1&sig={QUOTED}", **azure},
        "bearer": {"type": "hadoop", "warehouse": wasb, "adls.token": SECRET, **azure},
        "service": {"type": "hadoop", "warehouse": wasb, **service, **azure},
        "connection": {
            "type": "hadoop",
            "warehouse": wasb,
            "adls.connection-string": f"AccountKey={SECRET};x=y",
            **azure,
        },
    }


def configuration(name: str, properties: Mapping[str, str], server: str) -> str:
    """The file, in YAML, which has JSON's strings."""
    push = server.replace("://", f"://me:{QUOTED}@")
    return json.dumps(
        {
            "catalogs": {"c": dict(properties), "other": {"type": "sql", "uri": "sqlite:///x.db", "token": SECRET}},
            "runs": {"uri": f"postgresql://me:{SECRET}@127.0.0.1:1/runs"},
            "metrics": {"pushgateway": push, "file": "metrics.prom", "labels": {"of": name}},
        }
    )


@pytest.fixture
def server() -> Iterator[HttpSink]:
    with http_sink(403, echoes=True) as server:
        yield server


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def written(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """All that is on the streams and in files, but for the configuration itself."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "conf.yaml"]
    return "\n".join([*capsys.readouterr(), *(path.read_bytes().decode(errors="replace") for path in files)])


def test_the_configuration_is_shown_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, properties in catalogs("http://host").items():
        Path("conf.yaml").write_text(configuration(name, properties, "http://host"))
        for output in ("json", "table"):
            assert cli.main(["config", "show", "--config", "conf.yaml", "--output", output]) == 0
            told = written(tmp_path, capsys)
            assert CORE not in told, f"{name}: {told}"
            assert MASK in told


@pytest.mark.parametrize("name", [name for name in catalogs("") if name != "service"])
def test_no_command_writes_a_secret(
    name: str, server: HttpSink, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = catalogs(server.url)[name]
    Path("conf.yaml").write_text(configuration(name, properties, server.url))
    for words in COMMANDS:
        with restored_logging():
            status = cli.main([*words, "--config", "conf.yaml", "--result-file", "result.json"])
        told = written(tmp_path, capsys)
        assert len(told) > 100
        assert CORE not in told, f"{name}: {words}: {told[max(0, told.index(CORE) - 500) :][:1000]}"
        assert status != 0, told


@pytest.mark.parametrize("name", [*catalogs("")])
def test_control_character_error_does_not_quote_value(name: str) -> None:
    properties = catalogs("http://127.0.0.1:1")[name]
    for key in properties:
        with pytest.raises(
            ConfigError, match=r"holds a line break or another control character; take it out$"
        ) as raised:
            open_catalog("c", {**properties, key: f"{properties[key]}{CORE}\n"})
        assert CORE not in str(raised.value)


@pytest.mark.parametrize("status", [403, 500])
def test_server_error_traceback_shows_no_secret(status: int) -> None:
    """As schedulers and notebooks print it."""
    with http_sink(status, echoes=True) as server:
        for name in ("token", "credential", "signed"):
            with pytest.raises(IcekeepError) as raised:
                open_catalog("c", catalogs(server.url)[name]).list_namespaces()
            assert CORE not in "".join(traceback.format_exception(raised.value)), name


def test_no_identity_of_a_catalog_has_a_secret() -> None:
    """It stands in plans, and tells catalogs apart in the record of runs."""
    several = {"type": "hive", "uri": f"thrift://h:1,thrift://me:{QUOTED}@h:2,thrift://me:{SECRET}@h:3"}
    refused = {"at"}
    for name, properties in {**catalogs("http://127.0.0.1:1"), "several": several}.items():
        if name in refused:
            with pytest.raises(IcekeepError):
                open_catalog("c", properties)
        else:
            assert CORE not in open_catalog("c", properties).identity, name


def test_line_break_after_variable_is_stripped(
    server: HttpSink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKEN", "zqhunter2token\n")
    text = {"catalogs": {"c": {"type": "rest", "uri": server.url, "token": "${TOKEN}"}}}
    Path("conf.yaml").write_text(json.dumps(text))
    with restored_logging():
        assert cli.main(["compact", "--table", "c.db.t", "--config", "conf.yaml"]) == 2
    assert server.requests[0].headers["Authorization"] == "Bearer zqhunter2token"
    assert CORE not in written(tmp_path, capsys)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "properties",
    [
        {"credential": "id:s3cr3t"},
        {"token": "t0ken"},
        {"header.X-Api-Key": "k3y", "header.Cookie": "a=b"},
        {"auth.type": "basic", "auth.basic.username": "me", "auth.basic.password": "s3cr3t"},
    ],
)
def test_no_redirect_takes_a_secret_to_another_server(status: int, properties: Mapping[str, str]) -> None:
    with http_sink(200) as elsewhere, http_sink(status, location=f"{elsewhere.url}/steal") as server:
        catalog = open_catalog("c", {"type": "rest", "uri": server.url, **properties})
        with pytest.raises(
            UsageError, match=f"HTTP {status} .*{elsewhere.url}/steal.*set (uri|oauth2-server-uri) to it"
        ):
            catalog.list_namespaces()
        assert elsewhere.requests == []
