"""How a REST catalog's client logs in, and what becomes of its requests where that fails."""

from base64 import b64encode
from typing import ClassVar

import pytest
import requests
from pyiceberg.catalog.rest.auth import AuthManager, BasicAuthManager

from icekeep.catalog.base import Committed, Unknown
from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, UnavailableError, UsageError
from icekeep.secrets import is_secret
from kit.cases import for_each
from kit.catalogs import COUNTER, EVENTS, set_counter, simple_metadata
from kit.rest_server import Fault, RestServer, SignatureJudge, TokenIssuer, token_server
from kit.runtime import FakeRuntime

CREDENTIAL = "icekeep:hunter2secret"


def served_by(server, issuer):
    server.log_in, server.lets_in = issuer.log_in, issuer.lets_in
    return issuer


@pytest.fixture
def issuer(server):
    return served_by(server, TokenIssuer(CREDENTIAL))


def opened(server, **more):
    return open_catalog("local", {**server.properties, **more}, FakeRuntime())


def a_table(catalog):
    catalog.create_namespace(("db",))
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


def counter(table):
    return table.catalog.load(EVENTS).metadata.properties.get(COUNTER)


class TestNone:
    def test_without_a_login_no_header_says_that_there_is_one(self, server, monkeypatch, tmp_path):
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine")
        monkeypatch.setenv("HOME", str(tmp_path))
        seen = []
        server.lets_in = lambda request: seen.append(request.headers) is None
        assert opened(server).list_namespaces() == []
        assert all("Authorization" not in headers for headers in seen)
        assert {headers["X-Iceberg-Access-Delegation"] for headers in seen} == {"vended-credentials"}

    def test_headers_are_sent_as_properties_say(self, server):
        seen = []
        server.lets_in = lambda request: seen.append(request.headers) is None
        given = {"header.X-Iceberg-Access-Delegation": "remote-signing", "header.x-who": "me"}
        opened(server, **given).list_namespaces()
        assert {headers["X-Iceberg-Access-Delegation"] for headers in seen} == {"remote-signing"}
        assert {headers["X-Who"] for headers in seen} == {"me"}


class TestClientCredentials:
    def test_a_token_is_got_and_sent(self, server, issuer):
        assert opened(server, credential=CREDENTIAL).list_namespaces() == []
        assert issuer.seen[-1] == f"Bearer {issuer.token}"
        assert issuer.forms[-1] == {
            "grant_type": "client_credentials",
            "client_id": "icekeep",
            "client_secret": "hunter2secret",
            "scope": "catalog",
        }

    def test_what_is_asked_for_is_what_properties_say(self, server):
        issuer = served_by(server, TokenIssuer("alone"))
        more = {"scope": "PRINCIPAL_ROLE:ALL", "audience": "a", "resource": "r", "token": "not this one"}
        opened(server, credential="alone", **more).list_namespaces()
        assert issuer.forms[-1] == {
            "grant_type": "client_credentials",
            "client_secret": "alone",
            "scope": "PRINCIPAL_ROLE:ALL",
            "audience": "a",
            "resource": "r",
        }

    def test_tokens_may_come_from_elsewhere(self, server, issuer, tmp_path):
        elsewhere = RestServer(tmp_path)
        server.log_in, elsewhere.log_in = None, issuer.log_in
        place = f"{elsewhere.uri}/v1/oauth/tokens"
        assert opened(server, credential=CREDENTIAL, **{"oauth2-server-uri": place}).list_namespaces() == []
        elsewhere.close()

    def test_the_server_may_say_with_what_to_log_in(self, server, issuer):
        server.config = {"credential": CREDENTIAL}
        issuer.token = "for the first question"
        assert opened(server, token=issuer.token).list_namespaces() == []
        assert len(issuer.forms) == 1

    @pytest.mark.parametrize(
        ("told", "logins"),
        [
            ({}, 1),
            ({"prefix": "lake", "s3.region": "eu-1", "warehouse": "other"}, 1),
            ({"scope": "more"}, 2),
            ({"header.x-who": "me"}, 2),
        ],
    )
    def test_one_login_is_enough_unless_server_changes_it(self, server, issuer, told, logins):
        server.config = told
        catalog = opened(server, credential=CREDENTIAL)
        assert catalog.list_namespaces() == []
        assert len(issuer.forms) == logins
        assert issuer.forms[-1]["scope"] == told.get("scope", "catalog")

    def test_token_request_is_repeated_on_dead_connection(self, server, issuer):
        """It was idle for most of an hour, and something on the way had forgotten it."""
        log_in, cut = issuer.log_in, ["once"]

        def cut_once(form):
            if cut:
                raise ConnectionAbortedError(cut.pop())
            return log_in(form)

        server.log_in = cut_once
        assert opened(server, credential=CREDENTIAL).list_namespaces() == []
        assert len(issuer.forms) == 1

    def test_expired_token_is_renewed_and_commit_resent_once(self, server, issuer):
        table = a_table(opened(server, credential=CREDENTIAL))
        issuer.token = "another"
        asked = len(issuer.forms)
        assert isinstance(table.catalog.swap(table, [], set_counter(1)), Committed)
        assert (len(issuer.forms) - asked, server.commits) == (1, 3)

    def test_a_token_is_replaced_before_it_ends(self, server):
        issuer = served_by(server, TokenIssuer(CREDENTIAL, life_s=3600))
        catalog = opened(server, credential=CREDENTIAL)
        catalog.list_namespaces()
        asked = len(issuer.forms)
        catalog.runtime.pass_ms(40 * 60_000)
        catalog.list_namespaces()
        assert len(issuer.forms) == asked
        catalog.runtime.pass_ms(10 * 60_000)
        catalog.list_namespaces()
        catalog.list_namespaces()
        assert len(issuer.forms) == asked + 1
        assert "Bearer another" not in issuer.seen

    @pytest.mark.parametrize(
        ("status", "body", "error", "text"),
        [
            (401, {"error": "invalid_client"}, UsageError, "refused the credential: invalid_client"),
            (400, {"error": "invalid_scope", "error_description": "no"}, UsageError, "credential: invalid_scope: no"),
            (403, "<html>", UsageError, "refused the credential: HTTP 403 from http"),
            (400, "<html>", UnavailableError, "gives no token: HTTP 400 from http:.*tokens"),
            (
                503,
                {"error": "temporarily_unavailable"},
                UnavailableError,
                r"no token: temporarily_unavailable \(http:.*tokens\)",
            ),
            (200, {"token_type": "bearer"}, UnavailableError, "gives no token: HTTP 200"),
            (200, "[]", UnavailableError, "gives no token: HTTP 200"),
        ],
    )
    def test_who_gets_no_token_is_told_why(self, server, issuer, status, body, error, text):
        issuer.refusals = [(status, body)]
        with pytest.raises(error, match=rf"^catalog 'local' .*{text}"):
            opened(server, credential=CREDENTIAL).list_namespaces()

    @pytest.mark.parametrize(("status", "error"), [(401, UsageError), (500, UnavailableError), (429, UnavailableError)])
    def test_a_commit_for_which_there_is_no_token_was_not_sent(self, server, issuer, status, error):
        table = a_table(opened(server, credential=CREDENTIAL))
        issuer.token, issuer.refusals = "another", [(status, "")]
        with pytest.raises(error, match=r"^catalog 'local' "):
            table.catalog.swap(table, [], set_counter(1))
        assert counter(table) is None

    def test_commit_unknown_after_419(self, server, issuer):
        table = a_table(opened(server, credential=CREDENTIAL))
        server.faults = [Fault(False, 419, "")]
        issuer.refusals = [(500, "")]
        outcome = table.catalog.swap(table, [], set_counter(1))
        assert isinstance(outcome, Unknown)
        assert "HTTP 419" in outcome.cause
        server.faults = [Fault(False, 419, "")]
        assert isinstance(table.catalog.swap(table, [], set_counter(1)), Committed)

    def test_secrets_are_not_told(self, server, issuer):
        with pytest.raises(
            UsageError, match=r"refused the credential: invalid_client: not \*{6} \(http:.*/v1/oauth/tokens\)$"
        ):
            opened(server, credential="icekeep:wrong-secret").list_namespaces()

    @pytest.mark.parametrize("given", ["localhost:8181", "rest.lake/api"])
    def test_address_without_http_is_config_error(self, server, given):
        """It was taken for a server out of reach, which a later run may find."""
        with pytest.raises(
            ConfigError, match=r"'catalogs\.local\.uri': is no address of a server; give http://HOST:PORT or"
        ):
            opened(server, uri=given).list_namespaces()

    def test_a_place_for_tokens_that_is_not_there_is_unavailable(self, server):
        with pytest.raises(
            UnavailableError, match=r"^catalog 'local' is out of reach at http://127\.0\.0\.1:1: connection refused$"
        ):
            opened(server, credential=CREDENTIAL, **{"oauth2-server-uri": "http://127.0.0.1:1/t"}).list_namespaces()


SIGNED = {
    "rest.sigv4-enabled": "true",
    "rest.signing-region": "eu-west-1",
    "rest.signing-name": "glue",
    "client.access-key-id": "key",
    "client.secret-access-key": "aws-secret",
}


class TestSignatures:
    @pytest.fixture
    def judge(self, server):
        judge = SignatureJudge("key", "aws-secret", "eu-west-1", "glue")
        server.lets_in = judge.lets_in
        return judge

    def test_all_requests_are_signed(self, server, judge):
        server.config = {"prefix": "catalogs/123"}
        catalog = opened(server, warehouse="123:s3tablescatalog/b", **SIGNED)
        catalog.create_namespace(("a b", "c"))
        name = ("a b", "c", "t+ü")
        table = catalog.create(name, simple_metadata(catalog.default_location(name)))
        assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
        assert catalog.list_tables(name[:-1]) == [name]
        assert catalog.list_namespaces() == [("a b",), ("a b", "c")]
        catalog.drop(name)
        assert len(judge.seen) > 10

    def test_another_secret_is_refused_and_none_is_told(self, server, judge):
        with pytest.raises(UsageError, match="bad token") as raised:
            opened(server, **{**SIGNED, "client.secret-access-key": "another-secret"}).list_namespaces()
        assert "secret" not in raised.value.message

    def test_a_token_goes_along_and_keys_of_a_session_are_said(self, server, judge):
        opened(server, token="mine", **SIGNED, **{"client.session-token": "of-a-session"}).list_namespaces()
        assert {headers["Original-Authorization"] for headers in judge.seen} == {"Bearer mine"}
        assert {headers["X-Amz-Security-Token"] for headers in judge.seen} == {"of-a-session"}

    def test_keys_and_a_region_are_asked_for(self, server, judge, monkeypatch, tmp_path):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        for lacking, text in (
            ("client.access-key-id", "no AWS keys .*give client.access-key-id"),
            ("rest.signing-region", "no AWS region .*give rest.signing-region"),
        ):
            given = {key: value for key, value in SIGNED.items() if key != lacking}
            if lacking == "client.access-key-id":
                del given["client.secret-access-key"]
            with pytest.raises(UsageError, match=f"catalog 'local' has rest.sigv4-enabled, and {text}"):
                opened(server, **given).list_namespaces()


class Custom(AuthManager):
    """A login of somebody else's: tokens are counted, and each argument is kept."""

    made: ClassVar[list["Custom"]] = []
    failure: ClassVar[Exception | None] = None

    def __init__(self, **given):
        self.given, self.asked = given, 0
        self.made.append(self)

    def auth_header(self):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return f"Custom {self.given.get('api_word')} {self.asked}"


class TestTypes:
    """PyIceberg's `auth.*`, which go before every other login."""

    OAUTH2: ClassVar = {
        "auth.type": "oauth2",
        "auth.oauth2.client_id": "icekeep",
        "auth.oauth2.client_secret": "hunter2secret",
        "auth.oauth2.scope": "PRINCIPAL_ROLE:ALL",
    }
    CUSTOM: ClassVar = {"auth.type": "custom", "auth.impl": f"{__name__}.Custom"}

    @pytest.fixture
    def seen(self, server):
        """The logins of requests."""
        seen = []
        server.lets_in = lambda request: seen.append(request.headers.get("Authorization")) is None
        return seen

    @pytest.fixture(autouse=True)
    def _none_made(self, monkeypatch):
        monkeypatch.setattr(Custom, "made", [])
        monkeypatch.setattr(Custom, "failure", None)

    @pytest.fixture
    def tokens(self):
        """A token endpoint that wants the credential in a header; its `answers` come first."""
        with token_server("icekeep", "hunter2secret", life_s=3600) as server:
            yield server

    def test_none_sends_none(self, server, seen):
        opened(server, **{"auth.type": "noop", "token": "not this one"}).list_namespaces()
        assert set(seen) == {None}

    def test_a_name_and_a_password_are_sent(self, server, seen):
        given = {"auth.type": "basic", "auth.basic.username": "me", "auth.basic.password": "hunter2secret"}
        opened(server, **given).list_namespaces()
        assert set(seen) == {f"Basic {b64encode(b'me:hunter2secret').decode()}"}
        assert set(seen) == {BasicAuthManager("me", "hunter2secret").auth_header()}

    def test_a_token_is_got_with_a_credential_in_a_header(self, server, seen, tokens):
        opened(server, **self.OAUTH2, **{"auth.oauth2.token_url": tokens.url}).list_namespaces()
        assert set(seen) == {"Bearer token 1"}
        assert tokens.forms == [{"grant_type": "client_credentials", "scope": "PRINCIPAL_ROLE:ALL"}]

    def test_names_may_have_dashes_as_variables_give_them(self, server, seen, tokens):
        given = {key.replace("_", "-"): value for key, value in self.OAUTH2.items()}
        opened(server, **given, **{"auth.oauth2.token-url": tokens.url}).list_namespaces()
        assert set(seen) == {"Bearer token 1"}

    @pytest.mark.parametrize(("life_s", "assumed_s"), [(3600, None), (None, "3600"), (600, "3600")])
    def test_a_token_is_replaced_a_margin_before_it_ends(self, server, seen, tokens, life_s, assumed_s):
        tokens.life_s = life_s
        given = {"auth.oauth2.token_url": tokens.url, "auth.oauth2.refresh_margin": "100"}
        given |= {} if assumed_s is None else {"auth.oauth2.expires_in": assumed_s}
        catalog = opened(server, **self.OAUTH2, **given)
        for passed_s in (0, (life_s or 3600) - 101, 2, 10):
            catalog.runtime.pass_ms(passed_s * 1000)
            catalog.list_namespaces()
        assert len(tokens.forms) == 2
        assert seen[-1] == "Bearer token 2"

    def test_a_token_that_was_refused_is_replaced(self, server, seen, tokens):
        table = a_table(opened(server, **self.OAUTH2, **{"auth.oauth2.token_url": tokens.url}))
        server.faults = [Fault(False, 401, "")]
        assert isinstance(table.catalog.swap(table, [], set_counter(1)), Committed)
        assert len(tokens.forms) == 2

    @for_each(
        ("answer", "error", "text"),
        [
            ((401, {"error": "invalid_client"}), UsageError, "refused the credential: invalid_client"),
            ((503, {}), UnavailableError, "gives no token: HTTP 503"),
            ((200, {"token_type": "bearer"}), UnavailableError, "gives no token: HTTP 200"),
        ],
    )
    def test_who_gets_no_token_is_told_why(self, server, seen, tokens, answer, error, text):
        tokens.answers = [answer]
        with pytest.raises(error, match=rf"^catalog 'local' {text}"):
            opened(server, **self.OAUTH2, **{"auth.oauth2.token_url": tokens.url}).list_namespaces()

    @for_each("status", [301, 302, 303, 307, 308])
    def test_a_credential_goes_to_no_other_place(self, server, seen, tokens, status):
        """What answers for the token endpoint could have the secret sent anywhere."""
        tokens.answers, tokens.forms = [(status, {})], []
        with pytest.raises(
            UsageError, match=r"redirects to 'http://127.0.0.1:\d+/elsewhere'; .* set auth.oauth2.token_url to"
        ):
            opened(server, **self.OAUTH2, **{"auth.oauth2.token_url": tokens.url}).list_namespaces()
        assert (len(tokens.forms), tokens.elsewhere) == (1, [])

    def test_a_class_of_somebody_elses_is_asked_for_each_request(self, server, seen):
        given = {"auth.custom.api_word": "open", "auth.custom.scopes": "a, b", "auth.custom.strict": "true"}
        opened(server, **self.CUSTOM, **given).list_namespaces()
        [manager] = Custom.made
        assert manager.given == {"api_word": "open", "scopes": ["a", "b"], "strict": True}
        assert seen == [f"Custom open {number}" for number in range(1, len(seen) + 1)]

    def test_a_request_is_signed_as_well(self, server):
        judge = SignatureJudge("key", "aws-secret", "eu-west-1", "glue")
        server.lets_in = judge.lets_in
        opened(server, **SIGNED, **self.CUSTOM).list_namespaces()
        assert judge.seen[0]["Original-Authorization"] == "Custom None 1"

    @for_each(
        ("failure", "error"),
        [
            (ValueError("no such user"), UsageError),
            (TypeError("takes no argument"), UsageError),
            (requests.ConnectionError("away"), UnavailableError),
            (type("TransportError", (Exception,), {})("away"), UnavailableError),
            (type("RefreshError", (Exception,), {"retryable": True})("away"), UnavailableError),
            (type("RefreshError", (Exception,), {"retryable": False})("revoked"), UsageError),
        ],
    )
    def test_one_that_fails_has_sent_nothing(self, server, seen, monkeypatch, failure, error):
        monkeypatch.setattr(Custom, "failure", None)
        catalog = opened(server, **self.CUSTOM)
        catalog.list_namespaces()
        asked = len(server.requests)
        monkeypatch.setattr(Custom, "failure", failure)
        with pytest.raises(error, match=rf"^catalog 'local' cannot log in by auth.* \({__name__}.Custom\): {failure}"):
            catalog.create_namespace(("db",))
        assert len(server.requests) == asked

    @for_each(
        ("given", "key", "text"),
        [
            ({"auth.impl": "x.Y"}, "auth.type", "is missing; give one of noop, basic, oauth2, google, entra, custom"),
            ({"auth.type": "kerberos"}, "auth.type", "is 'kerberos'; give one of"),
            (
                {"auth.type": "basic", "auth.basic.username": "me"},
                "auth.basic.password",
                "is missing; auth.type=basic needs",
            ),
            ({"auth.type": "custom"}, "auth.impl", "is missing; give MODULE.CLASS"),
            ({"auth.type": "noop", "auth.impl": "x.Y"}, "auth.impl", "is for auth.type=custom alone"),
            ({"auth.type": "oauth2"}, "auth.oauth2.token_url", "is missing"),
            ({**OAUTH2, "auth.oauth2.token_url": "tokens"}, "auth.oauth2.token_url", "is no address of a server"),
            (
                {**OAUTH2, "auth.oauth2.token_url": "http://x", "auth.oauth2.expires_in": "soon"},
                "auth.oauth2.expires_in",
                "is 'soon'; give a whole number",
            ),
        ],
    )
    def test_what_makes_no_sense_is_an_error_of_the_configuration(self, server, given, key, text):
        with pytest.raises(ConfigError, match=rf"'catalogs\.local\.{key}': {text}"):
            opened(server, **given).list_namespaces()

    @for_each("impl", ["os.system", "subprocess.Popen", f"{__name__}.TestTypes", "nowhere.Class", "Class"])
    def test_a_name_that_is_no_manager_is_called_by_nobody(self, server, impl, tmp_path):
        mark = tmp_path / "mark"
        given = {"auth.type": "custom", "auth.impl": impl, "auth.custom.command": f"touch {mark}"}
        with pytest.raises(UsageError, match=r"cannot log in by auth.*: (auth.impl names no class|No module named)"):
            opened(server, **given).list_namespaces()
        assert not mark.exists()

    def test_a_server_cannot_say_which_code_logs_in(self, server, seen):
        server.config = {**self.CUSTOM, "auth.custom.api_word": "open"}
        catalog = opened(server, token="mine")
        catalog.list_namespaces()
        assert (set(seen), Custom.made) == ({"Bearer mine"}, [])
        assert [key for key in catalog._client().properties if key.startswith("auth.")] == []

    def test_nothing_of_a_login_is_told(self, server, monkeypatch):
        given = {**self.CUSTOM, "auth.custom.api_word": "zq-anything-goes"}
        assert is_secret("auth.custom.api_word")
        catalog = opened(server, **given)
        monkeypatch.setattr(Custom, "failure", ValueError("not let in with zq-anything-goes"))
        with pytest.raises(UsageError, match=r"not let in with \*{6}$"):
            catalog.list_namespaces()
