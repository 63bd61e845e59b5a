import os
import re

from icekeep.secrets import (
    MASK,
    is_own_file,
    is_secret,
    masked,
    remember,
    server_address,
    without_login,
    without_secrets,
)
from kit.cases import for_each
from kit.shell import ROOT

DOCS = ROOT / "docs"
PROPERTY = re.compile(r"`([a-z][\w-]*(?:\.[\w*-]+)+|token|credential|ugi|uri|scope|audience|resource)`")
PLAIN = frozenset(
    {
        *("s3.access-key-id", "client.access-key-id", "glue.access-key-id", "s3.sse-kms-key-id", "ssl.client.key"),
        *("adls.auth.shared-key.account.name", "client.credentials-provider"),
        *(
            "auth.type",
            "auth.oauth2.token_url",
            "auth.oauth2.client_id",
            "auth.google.credentials_path",
            "auth.entra.scopes",
        ),
        *("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms"),
    }
)
"""What stands in the pages beside secrets, and is none."""


@for_each(
    "key",
    [
        *(
            "token",
            "credential",
            "s3.secret-access-key",
            "s3.session-token",
            "s3.sse.key",
            "jdbc.password",
            "adls.account-key",
        ),
        *(
            "adls.sas-token",
            "adls.sas-token.account.dfs.core.windows.net",
            "adls.connection-string.a",
            "adls.client-secret",
        ),
        *(
            "adls.auth.shared-key.account.key",
            "adls.auth.oauth2.client.secret",
            "gcs.oauth2.token",
            "gcs.encryption-key",
        ),
        *(
            "header.Authorization",
            "header.Cookie",
            "header.X-Auth",
            "header.anything",
            "rest.secret-access-key",
            "PGPASSWORD_PASS",
        ),
        *(
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OPENLINEAGE_API_KEY",
            "api_key",
            "sig",
        ),
        *(
            "glue.secret-access-key",
            "client.session-token",
            "adls.credential",
            "auth.basic.password",
            "auth.oauth2.client_secret",
            "auth.custom.user",
            "oauth.token.keys",
        ),
    ],
)
def test_a_secret_is_known_by_the_words_of_its_name(key):
    assert is_secret(key)
    assert masked(key, "hunter2") == MASK
    assert masked(key, "${VARIABLE}") == "${VARIABLE}"
    assert masked(key, "x${VARIABLE}") == MASK


@for_each(
    "key",
    [
        *(
            "type",
            "warehouse",
            "uri",
            "scope",
            "s3.endpoint",
            "s3.region",
            "s3.access-key-id",
            "s3.sse-kms-key-id",
            "PWD",
        ),
        *(
            "gcs.oauth2.token-expires-at",
            "s3.session-token-expires-at-ms",
            "adls.account-name",
            "rest-page-size",
            "ssl.client.key",
        ),
        *(
            "adls.auth.shared-key.account.name",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "keyboard",
        ),
    ],
)
def test_what_only_looks_like_one_is_shown(key):
    assert not is_secret(key)
    assert masked(key, "plain") == "plain"


@for_each(
    ("value", "shown"),
    [
        ("postgresql://me:pw@db/x", f"postgresql://me:{MASK}@db/x"),
        ("postgresql://me:p@w@db/x", f"postgresql://me:{MASK}@db/x"),
        ("postgresql://me:p/w?a#b@db/x", f"postgresql://me:{MASK}@db/x"),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("https://t0ken@host/x", f"https://{MASK}@host/x"),
        ("abfss://container@account.dfs.core.windows.net/wh", "abfss://container@account.dfs.core.windows.net/wh"),
        ("jdbc:postgresql://db/x?user=me&password=p#w;x", f"jdbc:postgresql://db/x?user=me&password={MASK}"),
        ("https://store/x?sig=abc&v=1", f"https://store/x?sig={MASK}&v=1"),
        ("https://store/x?pass%77ord=abc", f"https://store/x?pass%77ord={MASK}"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", MASK),
        ("sqlite:///warehouse/catalog.db", "sqlite:///warehouse/catalog.db"),
        ("s3://bucket/wh", "s3://bucket/wh"),
        ("https://host:8181/iceberg/main@abc", "https://host:8181/iceberg/main@abc"),
        ("thrift://me:p/w@h:9083", f"thrift://me:{MASK}@h:9083"),
    ],
)
def test_addresses_are_shown_without_the_secrets_in_them(value, shown):
    assert masked("uri", value) == shown


@for_each(
    ("address", "shown"),
    [
        ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", f"slack://{MASK}"),
        ("mailto://me:pw@mail.example.com?to=you@example.com", f"mailto://{MASK}"),
        ("${SLACK_URL}", "${SLACK_URL}"),
        ("slack://${TOKEN}", f"slack://{MASK}"),
        ("no address", MASK),
    ],
)
def test_notification_address_is_shown_as_its_service(address, shown):
    assert masked("notifications[3].url", address) == shown


def test_tokens_of_notification_address_are_masked():
    remember({"notifications[].url": "json://me:mes-pw@Hooks.example4.com/services/TIiajkdnlaz1"})
    text = without_secrets("POST to hooks.example4.com/services failed for TIiajkdnlaz1 and mes-pw")
    assert text == f"POST to hooks.example4.com/services failed for {MASK} and {MASK}"


def test_each_spelling_of_a_secret_is_cut_out_of_what_others_say():
    secret = "zq'9ü/x +y\n"
    remember({"token": secret, "uri": "postgresql://me:db-pw/9@host/x"})
    spellings = [
        secret,
        secret.strip(),
        repr(secret),
        repr(f"Bearer {secret}".encode()),
        ascii(secret),
        "zq%279%C3%BC/x%20%2By",
    ]
    for spelling in [*spellings, "zq%279%C3%BC%2Fx+%2By", "db-pw/9", "db-pw%2F9"]:
        text = without_secrets(f"Invalid header value {spelling} at https://host/v1")
        assert MASK in text
        assert not {"zq", "db-pw"} & set(re.findall(r"[\w-]+", text)), text


def test_what_was_never_a_secret_stays_in_what_others_say():
    remember({"token": "true", "s3.sse.key": "1", "credential": "", "header.X": "ab", "password": "${PASSWORD}"})
    text = "true 1 ab ${PASSWORD} at https://host:8181/v1/db.t?snapshots=all"
    assert without_secrets(text) == text


def test_logins_that_nobody_was_told_of_are_cut_out_too():
    text = without_secrets("GET https://me:pw@h/x?sig=abc&se=2026 Authorization: Bearer vended-t0ken")
    assert text == f"GET https://me:{MASK}@h/x?sig={MASK}&se=2026 Authorization: Bearer {MASK}"


@for_each(
    "address",
    ["host:9083", "https://", "https://me:p/w@host", "https://h:x", "https://a@b@c"],
)
def test_address_that_would_show_password_part_is_refused(address):
    assert server_address(address, ("https",)) is None


@for_each(
    ("address", "shown"),
    [
        ("https://me:pw@h:8181/x", "https://h:8181/x"),
        ("thrift://a:b@h1:9083,thrift://me:p/w@h2:9083", "thrift://h1:9083,thrift://h2:9083"),
        ("https://t0ken@h/x", "https://h/x"),
        ("https://me:p,w@h:8181", "https://h:8181"),
        ("thrift://a:p,w@h1:9083, thrift://h2:9083", "thrift://h1:9083, thrift://h2:9083"),
        ("https://h:8181/iceberg/main@abc", "https://h:8181/iceberg/main@abc"),
        ("", ""),
    ],
)
def test_an_address_is_told_without_its_login(address, shown):
    assert without_login(address) == shown


def test_every_property_of_the_pages_is_known_for_what_it_is():
    """A new property whose name has a telling word must be masked, or stand among those that are plain."""
    pages = [*(DOCS / "catalogs").glob("*.md"), DOCS / "stores.md"]
    names = {name for page in pages for name in PROPERTY.findall(page.read_text())}
    assert len(names) > 60
    telling = {name for name in names if re.search(r"key|token|secret|pass|cred|sas|header", name, re.IGNORECASE)}
    shown = {name for name in telling if not is_secret(name)}
    assert shown <= PLAIN, shown - PLAIN


def test_files_of_this_user_and_of_root_are_our_own(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("")
    assert is_own_file(path)
    assert is_own_file("/etc/passwd")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert is_own_file(path) == (path.stat().st_uid == 0)
