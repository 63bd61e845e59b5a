"""Ways to log in to a REST catalog's server: none, a token, a client's credential for OAuth2, and AWS's signatures.

Properties are PyIceberg's, its `auth.*` among them: Google's and Microsoft's logins, and those of other people's classes, are
PyIceberg's managers. A login stands where requests wants an `auth`.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from requests import PreparedRequest, RequestException, Response

from icekeep.catalog.clients.errors import AUTH, AUTH_TYPE, SIGV4, Settings, described, protocol_error, read_failure
from icekeep.errors import ConfigError, IcekeepError, UnavailableError, UsageError
from icekeep.runtime import Runtime
from icekeep.secrets import remember, without_secrets

_TOKEN_PATH = "v1/oauth/tokens"
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_SHARE_USED = 0.75
"""How much of a token's life passes before another one is asked for."""

_REFRESH_MARGIN_S = 60
_GOOGLE_HELD_MS = 240_000
"""For how long a header of Google's manager is sent again, which gets a new token whenever it is asked; none ends sooner."""

_CONSTRUCTED = ("google", "entra", "custom")
_TYPES = ("noop", "basic", "oauth2", *_CONSTRUCTED)
_PASSING = frozenset({"TransportError", "ServiceRequestError", "ServiceResponseError"})
"""What Google's and Microsoft's libraries raise where the token endpoint is out of reach."""

PostForm = Callable[[str, Mapping[str, str], Mapping[str, str]], Response]
"""Takes an address, a form and headers."""


class Login:
    """What lets requests in by a header, or by none; an error of ours proves that the request it was for was not sent."""

    def __init__(self, header: str | None = None) -> None:
        self._header = header

    def prepare(self) -> None:
        """Get ready for a request."""

    def renew(self) -> None:
        """Log in again, since a request was not let in."""

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Put into a request what lets it in."""
        if self._header is not None:
            request.headers["Authorization"] = self._header
        return request


def login(settings: Settings, runtime: Runtime, post_form: PostForm) -> Login:
    """The login that a catalog's properties describe.

    Raises:
        ConfigError: `auth.*` makes no sense.
        UsageError: there is nothing to log in with.
    """
    credential, token = settings.text("credential"), settings.text("token")
    if any(key.startswith(AUTH) for key in settings.properties):
        inner = _by_auth(settings, runtime, post_form)
    elif credential is not None:
        inner = _by_credential(credential, settings, runtime, post_form)
    else:
        inner = Login(None if token is None else f"Bearer {token}")
    return _Signature(inner, settings) if settings.switch(SIGV4, default=False) else inner


def _by_credential(credential: str, settings: Settings, runtime: Runtime, post_form: PostForm) -> Login:
    """By OAuth2 from the catalog's server, unless another one is named; the credential is in the form."""
    client, separator, secret = credential.partition(":")
    optional = {name: settings.text(name) for name in ("audience", "resource")}
    form = {
        "grant_type": "client_credentials",
        **({"client_id": client} if separator else {}),
        "client_secret": secret if separator else credential,
        "scope": settings.text("scope") or "catalog",
        **{name: value for name, value in optional.items() if value is not None},
    }
    url = settings.address("oauth2-server-uri") or f"{settings.address('uri').rstrip('/')}/{_TOKEN_PATH}"
    ask = partial(post_form, url, form, {})
    return _ClientCredential(settings.name, "oauth2-server-uri", url, ask, runtime, lambda life_s: life_s * _SHARE_USED)


def _by_auth(settings: Settings, runtime: Runtime, post_form: PostForm) -> Login:
    """The login that `auth.type` names, with what stands below `auth.TYPE`; a variable has dashes where PyIceberg has none."""
    kind, impl = settings.text(AUTH_TYPE), settings.text(f"{AUTH}impl")
    if kind not in _TYPES:
        given = "is missing" if kind is None else f"is {kind!r}"
        raise ConfigError(f"catalogs.{settings.name}.{AUTH_TYPE}", f"{given}; give one of {', '.join(_TYPES)}")
    if (impl is None) == (kind == "custom"):
        wanted = "is missing; give MODULE.CLASS" if impl is None else f"is for {AUTH_TYPE}=custom alone; take it out"
        raise ConfigError(f"catalogs.{settings.name}.{AUTH}impl", wanted)
    below = _AuthProperties(settings, kind)
    if kind == "noop":
        return Login()
    if kind == "basic":
        return Login(_basic(below.required("username"), below.required("password")))
    if kind == "oauth2":
        return _by_oauth2(below, settings, runtime, post_form)
    return _Managed(impl or kind, below.arguments(), settings.name, runtime)


class _AuthProperties:
    """What stands below `auth.TYPE`, by PyIceberg's names."""

    def __init__(self, settings: Settings, kind: str) -> None:
        self._name, self._kind, prefix = settings.name, kind, f"{AUTH}{kind}."
        self._keys = {
            key.removeprefix(prefix).replace("-", "_"): key for key in settings.properties if key.startswith(prefix)
        }
        self.settings = settings

    def key(self, name: str) -> str:
        return self._keys.get(name, f"{AUTH}{self._kind}.{name}")

    def text(self, name: str) -> str | None:
        return self.settings.text(self.key(name))

    def required(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise ConfigError(
                f"catalogs.{self._name}.{self.key(name)}", f"is missing; {AUTH_TYPE}={self._kind} needs it"
            )
        return found

    def arguments(self) -> dict[str, Any]:
        """All of it, as a manager takes it: `scopes` are a list, switches are switches."""
        found: dict[str, Any] = {name: self.settings.properties[key] for name, key in self._keys.items()}
        switches = {"true": True, "false": False}
        found = {name: switches.get(value.lower(), value) for name, value in found.items()}
        if isinstance(found.get("scopes"), str):
            found["scopes"] = found["scopes"].replace(",", " ").split()
        return found


def _by_oauth2(given: _AuthProperties, settings: Settings, runtime: Runtime, post_form: PostForm) -> Login:
    """By OAuth2 as PyIceberg's manager does it, the credential in a header; but with bounds, and without redirects."""
    url_key = given.key("token_url")
    given.required("token_url")
    url, scope = settings.address(url_key), given.text("scope")
    form = {"grant_type": "client_credentials", **({} if scope is None else {"scope": scope})}
    header = _basic(given.required("client_id"), given.required("client_secret"))
    margin_s = settings.count(given.key("refresh_margin"), _REFRESH_MARGIN_S)
    assumed_s = settings.count(given.key("expires_in"), 0) or None
    ask = partial(post_form, url, form, {"Authorization": header})
    return _ClientCredential(
        settings.name, url_key, url, ask, runtime, lambda life_s: max(life_s - margin_s, 0), assumed_s
    )


def _basic(user: str, password: str) -> str:
    encoded = b64encode(f"{user}:{password}".encode()).decode()
    remember({"token": encoded})
    return f"Basic {encoded}"


class _Renewed(Login):
    """A header that is got when it is first needed, and again when it is due."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._due_ms: float | None = None

    def prepare(self) -> None:
        if self._header is None or (self._due_ms is not None and self._runtime.monotonic_ms() >= self._due_ms):
            self.renew()


class _ClientCredential(_Renewed):
    """Tokens by OAuth2's client credentials flow (RFC 6749, 4.4).

    Args:
        url_key: the property that names the token endpoint.
        ask: sends the request for one.
        used_s: for how long a token is used that lives for so many seconds.
        assumed_s: how long one lives where the answer does not say it; by default until it is refused.
    """

    def __init__(
        self,
        catalog_name: str,
        url_key: str,
        url: str,
        ask: Callable[[], Response],
        runtime: Runtime,
        used_s: Callable[[float], float],
        assumed_s: float | None = None,
    ) -> None:
        super().__init__(runtime)
        self._name, self._url_key, self._url = catalog_name, url_key, url
        self._ask, self._used_s, self._assumed_s = ask, used_s, assumed_s

    def renew(self) -> None:
        asked_ms = self._runtime.monotonic_ms()
        try:
            response = self._ask()
        except Exception as error:
            raise read_failure(error, self._name) from error
        try:
            parsed = json.loads(response.text)
        except ValueError:
            parsed = None
        answer = parsed if isinstance(parsed, dict) else {}
        token = answer.get("access_token")
        if not response.ok or response.is_redirect or not isinstance(token, str) or not token:
            raise self._refused(response, answer)
        remember({"token": token})
        self._header, self._due_ms = f"Bearer {token}", None
        life_s = answer.get("expires_in", self._assumed_s)
        if isinstance(life_s, int | float) and life_s > 0:
            self._due_ms = asked_ms + self._used_s(life_s) * 1000

    def _refused(self, response: Response, answer: Mapping[str, Any]) -> Exception:
        said = ": ".join(str(answer[key]) for key in ("error", "error_description") if isinstance(answer.get(key), str))
        said = said or protocol_error(response.text) or ""
        text = without_secrets(f"{said} ({self._url})" if said else f"HTTP {response.status_code} from {self._url}")
        if response.is_redirect:
            place = without_secrets(response.headers["location"])
            return UsageError(
                f"catalog {self._name!r} gives no token: {text}, which redirects to {place!r}; if that is the right server, set "
                f"{self._url_key} to it"
            )
        # With 400 and an error of OAuth2's the request was understood, and would be refused again.
        if response.status_code in (401, 403) or (response.status_code == 400 and said):
            return UsageError(f"catalog {self._name!r} refused the credential: {text}")
        return UnavailableError(f"catalog {self._name!r} gives no token: {text}")


class _Managed(_Renewed):
    """What one of PyIceberg's managers puts into requests, or a class that somebody else wrote for it.

    One says itself when it gets a new token; Google's gets one whenever it is asked, and so is asked every few minutes.
    """

    def __init__(self, class_or_name: str, arguments: Mapping[str, Any], catalog_name: str, runtime: Runtime) -> None:
        from pyiceberg.catalog.rest.auth import AuthManagerFactory

        super().__init__(runtime)
        self._name, self._said = catalog_name, class_or_name
        self._held_ms = _GOOGLE_HELD_MS if class_or_name == "google" else 0
        try:
            if class_or_name not in _CONSTRUCTED:
                _refuse_no_manager(class_or_name)
            self._manager = AuthManagerFactory.create(class_or_name, dict(arguments))
        except Exception as error:
            raise self._failure(error) from error

    def renew(self) -> None:
        asked_ms = self._runtime.monotonic_ms()
        try:
            self._header = self._manager.auth_header()
        except Exception as error:
            raise self._failure(error) from error
        remember({"authorization": self._header or ""})
        self._due_ms = asked_ms + self._held_ms

    def _failure(self, error: Exception) -> IcekeepError:
        names = {kind.__name__ for link in (error, error.__cause__) for kind in type(link).__mro__}
        passes = bool(getattr(error, "retryable", False)) or bool(names & _PASSING)
        kind = UnavailableError if passes or isinstance(error, RequestException | OSError) else UsageError
        return kind(
            f"catalog {self._name!r} cannot log in by {AUTH}* ({self._said}): {described(error)}", catalog=self._name
        )


def _refuse_no_manager(name: str) -> None:
    """Raise `ValueError` unless a name is one of a class that makes managers: anything else could be called by it, too."""
    from pyiceberg.catalog.rest.auth import AuthManager

    module, _, attribute = name.rpartition(".")
    found = getattr(import_module(module), attribute, None) if module else None
    if not isinstance(found, type) or not issubclass(found, AuthManager):
        raise ValueError("auth.impl names no class that is made from pyiceberg.catalog.rest.auth.AuthManager")


class _Signature(Login):
    """Signs requests as AWS wants them (version 4); another login's header goes along under another name."""

    def __init__(self, inner: Login, settings: Settings) -> None:
        # An extra of its own, for those who sign.
        from icekeep.catalog.clients.glue_client import aws_session

        super().__init__()
        session = aws_session(settings, "client")
        self._inner, self._settings = inner, settings
        self._credentials = session.get_credentials()
        self._region = settings.text("rest.signing-region") or session.region_name
        self._service = settings.text("rest.signing-name") or "execute-api"
        if self._credentials is None or self._region is None:
            lacks = (
                "no AWS keys to sign requests with; give client.access-key-id and client.secret-access-key"
                if self._credentials is None
                else "no AWS region to sign requests for; give rest.signing-region"
            )
            raise UsageError(f"catalog {settings.name!r} has {SIGV4}, and {lacks}, or as AWS's tools find them")

    def prepare(self) -> None:
        self._inner.prepare()

    def renew(self) -> None:
        self._inner.renew()

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request = self._inner(request)
        try:
            headers = self._signed(request)
        except Exception as error:
            raise read_failure(error, self._settings.name) from error
        if "Authorization" in request.headers:
            request.headers["Original-Authorization"] = request.headers["Authorization"]
        request.headers.update(headers)
        return request

    def _signed(self, request: PreparedRequest) -> dict[str, str]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        url = urlsplit(str(request.url))
        # What proxies may change or leave out is not signed.
        headers = {"Content-Type": request.headers["Content-Type"]}
        if not request.body:
            headers["x-amz-content-sha256"] = _EMPTY_SHA256
        signed = AWSRequest(
            method=request.method,
            url=url._replace(query="").geturl(),
            params=dict(parse_qsl(url.query, keep_blank_values=True)),
            data=request.body or b"",
            headers=headers,
        )
        # Taken each time, since they may be ones that end and are renewed.
        credentials = self._credentials.get_frozen_credentials()
        SigV4Auth(credentials, self._service, self._region).add_auth(signed)
        return dict(signed.headers.items())
