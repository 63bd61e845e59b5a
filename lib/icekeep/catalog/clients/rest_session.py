"""HTTP with a REST catalog's server: waits have bounds, and only what reads is sent again.

Imported only when such a catalog is used, since requests is an optional extra.
"""

import json
import logging
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from icekeep.catalog.clients.adapter import ANSWER_TIMEOUT, CONNECT_TIMEOUT
from icekeep.catalog.clients.errors import AUTH_TYPE, Settings, protocol_error
from icekeep.catalog.clients.rest_login import login
from icekeep.errors import IcekeepError
from icekeep.runtime import Runtime
from icekeep.secrets import is_secret, without_login, without_secrets
from icekeep.storage.ranges import FirstAnswer, first_answer_ms

_LOG = logging.getLogger(__name__)

CONNECT_TIMEOUT_DEFAULT_MS = 60_000
ANSWER_TIMEOUT_DEFAULT_MS = 300_000

_READS = frozenset({"GET", "HEAD"})
_READS_AGAIN = 3
_PASSING = frozenset({429, 502, 503, 504})
_NEVER_AGAIN = Retry(0, read=False)
_NOT_LET_IN = frozenset({401, 419})
_SHOWN_LENGTH_MAX = 200
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})
_KEY_HEADER = "Idempotency-Key"
_HEADER = "header."
"""Properties that begin so are sent as headers."""

_NOT_OF_SESSIONS = ("prefix", "warehouse", "namespace-separator", "rest-page-size", "s3.", "gcs.", "adls.")
"""How properties begin that change nothing in how a server is spoken to."""


class HttpRefusal(Exception):
    def __init__(self, response: requests.Response) -> None:
        super().__init__(without_secrets(_refusal_text(response)))
        self.response = response


class _ReadsAgain(Retry):
    """Sends what only reads once more after a failure that may pass: at once first, since an idle connection may be dead.

    Anything else is sent once, also where it surely never left: what becomes of a commit is for its loop to decide.
    """

    def increment(self, method: str | None = None, *rest: Any, **named: Any) -> Self:
        if method not in _READS:
            # Raises, as it has nothing to spend.
            _NEVER_AGAIN.increment(method, *rest, **named)
        return super().increment(method, *rest, **named)


class RestSession:
    """Connections to one server, and the login there.

    Times are `rest.client.*`, in milliseconds; `ssl.cabundle`, `ssl.client.cert` and `ssl.client.key` are paths, of what the
    server's certificate is held against and of what the client shows.
    """

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._settings, self._runtime = settings, runtime
        self._limits_s = (
            settings.count(CONNECT_TIMEOUT, CONNECT_TIMEOUT_DEFAULT_MS, 1) / 1000,
            settings.count(ANSWER_TIMEOUT, ANSWER_TIMEOUT_DEFAULT_MS, 1) / 1000,
        )
        self._first_answer_ms = first_answer_ms(f"catalogs.{settings.name}", settings.properties)
        self._first_answers: dict[str, FirstAnswer] = {}
        # Without one, as the environment says (REQUESTS_CA_BUNDLE).
        self._authorities = settings.file("ssl.cabundle")
        self._http = requests.Session()
        self._http.headers.update(_headers(settings.properties))
        shown, key = settings.file("ssl.client.cert"), settings.file("ssl.client.key")
        self._http.cert = (shown, key) if shown and key else shown
        again = _ReadsAgain(
            _READS_AGAIN,
            allowed_methods=_READS,
            status_forcelist=_PASSING,
            backoff_factor=0.2,
            raise_on_status=False,
            # A server may ask for hours.
            respect_retry_after_header=False,
        )
        for scheme in ("https://", "http://"):
            self._http.mount(scheme, HTTPAdapter(max_retries=again))
        self._login = login(settings, runtime, self._post_form)
        if any(
            key in ("token", "credential", AUTH_TYPE) or (key.startswith(_HEADER) and is_secret(key))
            for key in settings.properties
        ):
            for key in ("uri", "oauth2-server-uri", "auth.oauth2.token_url", "auth.oauth2.token-url"):
                _warn_of_plain_http(settings.name, key, settings.address(key))

    def send(self, method: str, url: str, params: Mapping[str, str], body: Any = None, key: str | None = None) -> bytes:
        """Send one request, its body as JSON, and return what was answered.

        One that was not let in (401, 419) is sent once more with a new login: that is decided before anything is done.

        Args:
            key: tells the server which requests are one and the same, where it asks for that.

        Raises:
            HttpRefusal: the answer is no success.
            IcekeepError: there is no way to log in, and so nothing was done.
        """
        self._login.prepare()
        response = self._sent(method, url, params, body, key)
        if response.status_code in _NOT_LET_IN:
            self._renew(response)
            response = self._sent(method, url, params, body, key)
        if not 200 <= response.status_code < 300:
            raise HttpRefusal(response)
        return bytes(response.content)

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        self._http.close()

    def with_settings(self, settings: Settings) -> "RestSession":
        """A session with the same server by other properties: this one, where they change nothing in it."""

        def of_session(properties: Mapping[str, str]) -> dict[str, str]:
            return {key: value for key, value in properties.items() if not key.startswith(_NOT_OF_SESSIONS)}

        if of_session(settings.properties) == of_session(self._settings.properties):
            return self
        self.close()
        return RestSession(settings, self._runtime)

    def _renew(self, response: requests.Response) -> None:
        try:
            self._login.renew()
        except IcekeepError as error:
            # Of the two statuses it is this one that proves (`errors.py`) that nothing was done.
            if response.status_code == HTTPStatus.UNAUTHORIZED:
                raise
            raise HttpRefusal(response) from error

    def _sent(self, method: str, url: str, params: Mapping[str, str], body: Any, key: str | None) -> requests.Response:
        data = None if body is None else json.dumps(body).encode()
        # A redirect would take headers and tables' metadata to a server that nobody has named.
        return self._first(url).ask(
            lambda: self._http.request(
                method,
                url,
                params,
                data,
                None if key is None else {_KEY_HEADER: key},
                timeout=self._limits_s,
                auth=self._login,
                verify=self._authorities,
                allow_redirects=False,
            )
        )

    def _post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> requests.Response:
        try:
            return self._posted(url, form, headers)
        except requests.ConnectTimeout:
            raise
        except requests.ConnectionError:
            # An idle connection may be dead, and to ask for a token twice does no harm.
            return self._posted(url, form, headers)

    def _posted(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> requests.Response:
        # The login here is one that adds nothing: without any, requests looks for one in ~/.netrc.
        return self._first(url).ask(
            lambda: self._http.post(
                url,
                form,
                headers={"Content-Type": "application/x-www-form-urlencoded", **headers},
                timeout=self._limits_s,
                auth=lambda request: request,
                verify=self._authorities,
                allow_redirects=False,
            )
        )

    def _first(self, url: str) -> FirstAnswer:
        """Of the server at an address, of which there is another one where tokens are handed out elsewhere."""
        parts = urlsplit(url)
        address = without_login(f"{parts.scheme}://{parts.netloc}")
        if address not in self._first_answers:
            self._first_answers[address] = FirstAnswer(address, self._first_answer_ms)
        return self._first_answers[address]


@cache
def _warn_of_plain_http(catalog_name: str, key: str, address: str) -> None:
    """Warn once that what lets requests in can be read on the way to a server that is not on this machine."""
    parts = urlsplit(address)
    if parts.scheme == "http" and parts.hostname not in _THIS_MACHINE:
        _LOG.warning(
            "catalog %r sends its credentials to http://%s (%s), where all on the way can read them; give an address with https",
            catalog_name,
            parts.hostname,
            key,
        )


def _headers(properties: Mapping[str, str]) -> dict[str, str]:
    given = {key.removeprefix(_HEADER): value for key, value in properties.items() if key.startswith(_HEADER)}
    ours = {
        "Content-Type": "application/json",
        "User-Agent": "icekeep",
        "X-Iceberg-Access-Delegation": "vended-credentials",
    }
    named = {key.lower() for key in given}
    return {**{key: value for key, value in ours.items() if key.lower() not in named}, **given}


def _refusal_text(response: requests.Response) -> str:
    """What an answer says went wrong, in one line; without the protocol's body it is a proxy's, or a broken server's.

    Such an answer is shown with its address, since the address may be wrong.
    """
    error = protocol_error(response.text)
    if error is not None:
        return error
    try:
        phrase = HTTPStatus(response.status_code).phrase
    except ValueError:
        phrase = response.reason or ""
    status = f"HTTP {response.status_code} {phrase}".rstrip()
    if response.is_redirect:
        return f"{status} to {response.headers['location']!r}"
    shown = " ".join(response.text.split())[:_SHOWN_LENGTH_MAX]
    place = without_login(response.url.partition("?")[0])
    return f"{status} from {place}{f': {shown}' if shown else ''}"
