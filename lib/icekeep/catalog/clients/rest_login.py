"""Ways to log in to a REST catalog's server: none, a token, a client's credential for OAuth2, and AWS's signatures.

Properties are PyIceberg's. A login stands where requests wants an `auth`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from requests import PreparedRequest, Response

from icekeep.catalog.clients.errors import protocol_error, read_failure
from icekeep.catalog.clients.settings import SIGV4, Settings
from icekeep.errors import UnavailableError, UsageError
from icekeep.runtime import Runtime
from icekeep.secrets import remember, without_secrets

_TOKEN_PATH = "v1/oauth/tokens"
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_SHARE_USED = 0.75
"""How much of a token's life passes before another one is asked for."""

PostForm = Callable[[str, Mapping[str, str]], Response]


class Login(Protocol):
    """What lets requests in; an error of ours proves that the request it was for was not sent."""

    def prepare(self) -> None:
        """Get ready for a request."""

    def renew(self) -> None:
        """Log in anew, since a request was not let in."""

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Put into a request what lets it in."""


def login(settings: Settings, runtime: Runtime, post_form: PostForm) -> Login:
    """The login that a catalog's properties describe."""
    credential = settings.text("credential")
    by_token = (
        _Token(settings.text("token"))
        if credential is None
        else _ClientCredential(credential, settings, runtime, post_form)
    )
    return _Signature(by_token, settings) if settings.switch(SIGV4, default=False) else by_token


class _Token:
    """A token that is given, or none."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def prepare(self) -> None:
        pass

    def renew(self) -> None:
        pass

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        if self.token is not None:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request


class _ClientCredential(_Token):
    """Tokens by OAuth2's client credentials flow (RFC 6749, 4.4), from the catalog's server unless another is named."""

    def __init__(self, credential: str, settings: Settings, runtime: Runtime, post_form: PostForm) -> None:
        super().__init__(None)
        client, separator, secret = credential.partition(":")
        optional = {name: settings.text(name) for name in ("audience", "resource")}
        self._form = {
            "grant_type": "client_credentials",
            **({"client_id": client} if separator else {}),
            "client_secret": secret if separator else credential,
            "scope": settings.text("scope") or "catalog",
            **{name: value for name, value in optional.items() if value is not None},
        }
        base = settings.address("uri").rstrip("/")
        self._url = settings.address("oauth2-server-uri") or f"{base}/{_TOKEN_PATH}"
        self._settings, self._runtime, self._post_form = settings, runtime, post_form
        self._due_ms: float | None = None

    def prepare(self) -> None:
        if self.token is None or (self._due_ms is not None and self._runtime.monotonic_ms() >= self._due_ms):
            self.renew()

    def renew(self) -> None:
        asked_ms = self._runtime.monotonic_ms()
        try:
            response = self._post_form(self._url, self._form)
        except Exception as error:
            raise read_failure(error, self._settings.name) from error
        answer = _parsed(response)
        token = answer.get("access_token")
        if not response.ok or not isinstance(token, str) or not token:
            raise self._refused(response, answer)
        remember({"token": token})
        self.token, self._due_ms = token, None
        life_s = answer.get("expires_in")
        if isinstance(life_s, int | float) and life_s > 0:
            self._due_ms = asked_ms + life_s * 1000 * _SHARE_USED

    def _refused(self, response: Response, answer: Mapping[str, Any]) -> Exception:
        said = ": ".join(str(answer[key]) for key in ("error", "error_description") if isinstance(answer.get(key), str))
        said = said or protocol_error(response.text) or ""
        text = without_secrets(said or f"HTTP {response.status_code} from {self._url}")
        if response.is_redirect:
            place = without_secrets(response.headers["location"])
            return UsageError(
                f"catalog {self._settings.name!r} gives no token: {text}, which redirects to {place!r}; if that is "
                "the right server, set oauth2-server-uri to it"
            )
        # With 400 and an error of OAuth2's the request was understood, and would be refused again.
        if response.status_code in (401, 403) or (response.status_code == 400 and said):
            return UsageError(f"catalog {self._settings.name!r} refused the credential: {text}")
        return UnavailableError(f"catalog {self._settings.name!r} gives no token: {text}")


class _Signature:
    """Signs requests as AWS wants them (version 4); another login's header goes along under another name."""

    def __init__(self, inner: Login, settings: Settings) -> None:
        # An extra of its own, for those who sign.
        from icekeep.catalog.clients.aws_session import aws_session

        session = aws_session(settings, "client")
        self._inner, self._settings = inner, settings
        self._credentials = session.get_credentials()
        self._region = settings.text("rest.signing-region") or session.region_name
        self._service = settings.text("rest.signing-name") or "execute-api"
        if self._credentials is None or self._region is None:
            lacking = "credentials" if self._credentials is None else "region (rest.signing-region)"
            raise UsageError(
                f"catalog {settings.name!r} has {SIGV4}, but there is no AWS {lacking} to sign requests with"
            )

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


def _parsed(response: Response) -> dict[str, Any]:
    try:
        answer = json.loads(response.text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
