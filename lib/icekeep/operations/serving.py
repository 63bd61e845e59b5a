"""A server of pages for the user who started it: on this machine alone, read only, behind a token that is new at each start.

Everybody on the machine can connect to it, and each page that a browser has open can make that browser ask it. So a request is
answered only where it names the server by an address of this machine (`Host`: a page elsewhere whose name leads here names that),
and has the token: first in the address that was printed, then in a cookie.
"""

import logging
import socket
from collections.abc import Mapping
from hmac import compare_digest
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from icekeep.errors import UsageError, one_line, printable

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""What the server can be bound to."""

_LOG = logging.getLogger(__name__)
_TOKEN = "token"
_HTTP_PORT = 80
_SECONDS = 30
_NO_POLICY = "default-src 'none'"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is answered with.

    Attributes:
        policy: the content security policy of a page; nothing may be framed, whatever it says.
    """

    body: str
    status: int = 200
    content_type: str = "text/plain"
    policy: str = _NO_POLICY


class Pages(Protocol):
    """What a server shows; called in several threads at once, and does not wait."""

    def answer(self, path: str, query: Mapping[str, str]) -> HttpResponse | None:
        """The answer for a path; `None` where there is nothing."""


class LocalServer(ThreadingHTTPServer):
    """The server; it listens once it is made, and answers while `serve_forever` runs.

    Args:
        host: one of `LOOPBACK`.
        port: 0 for any that is free.
        token: without which nothing is answered.

    Attributes:
        address: of its first page, without the token.

    Raises:
        UsageError: the host is not a loopback address, or the port is taken.
    """

    daemon_threads = True
    # Another program could else listen on the same port, and be sent the token.
    allow_reuse_port = False

    def __init__(self, pages: Pages, host: str, port: int, token: str) -> None:
        if host not in LOOPBACK:
            raise UsageError(
                f"the server listens on this machine alone: --host is one of {', '.join(LOOPBACK)}, not {host!r}; from another "
                "machine use a tunnel, such as `ssh -L`",
                host=host,
            )
        self.address_family = socket.AF_INET6 if host == "::1" else socket.AF_INET
        self.pages, self._token = pages, token
        bound = "127.0.0.1" if host == "localhost" else host
        try:
            super().__init__((bound, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = (error.strerror or "") if isinstance(error, OSError) else "there is no such port"
            raise UsageError(
                f"cannot listen on port {port} of {host}: {reason.lower()}; give another --port, or 0 for any that is free",
                host=host,
                port=port,
            ) from error
        # Not `localhost`: browsers look for that at ::1 first, where another user of the machine may listen and get the token.
        shown = f"[{bound}]" if ":" in bound else bound
        self.address = f"http://{shown}:{self.server_port}/"
        self.cookie = f"icekeep-{self.server_port}"
        ports = ("", f":{self.server_port}") if self.server_port == _HTTP_PORT else (f":{self.server_port}",)
        self.hosts = frozenset(f"{name}{port}" for name in ("127.0.0.1", "[::1]", "localhost") for port in ports)

    def server_bind(self) -> None:
        """Bind the socket; no name server is asked for the name of the host."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def opening_address(self, path: str = "/") -> str:
        """The address of a page with the token."""
        return f"{self.address[:-1]}{path}?{urlencode({_TOKEN: self._token})}"

    def knows(self, token: str) -> bool:
        """Whether that is the token, compared in constant time."""
        return compare_digest(token.encode(errors="replace"), self._token.encode())

    def set_cookie(self) -> str:
        """The header's value that makes a browser send the token from now on: to this host alone, and for no page of another."""
        return f"{self.cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection failed, as those do that browsers close."""
        _LOG.debug("a connection failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request on one connection."""

    server: LocalServer
    timeout = _SECONDS

    def version_string(self) -> str:
        return "icekeep"

    def do_GET(self) -> None:
        self._send(self._answer())

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a malformed request, or one whose method is not GET or HEAD."""
        # Else headers are left out, where the version of the protocol could not be read.
        self.request_version = self.protocol_version
        # What the library calls "not implemented" are methods.
        self._send(_METHOD if code == 501 else HttpResponse(status=code, body="bad request"))

    def log_message(self, format: str, *args: Any) -> None:
        """What the library logs has the token in it."""

    def _answer(self) -> HttpResponse:
        if [host.lower() for host in self.headers.get_all("Host", [])] not in [[one] for one in self.server.hosts]:
            return _refused(
                f"the request names another host: open {self.server.address}, through a tunnel too (the same port at both ends)"
            )
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        given = query.pop(_TOKEN, None)
        tokens = self._cookies() if given is None else [given]
        if not any(self.server.knows(token) for token in tokens):
            return _refused("the token is missing, or an old one: open the address that `icekeep serve` printed")
        try:
            found = None if parts.netloc else self.server.pages.answer(parts.path, query)
        except Exception as error:  # noqa: BLE001 - one page says nothing of the others
            _LOG.warning("%s could not be answered: %s", printable(parts.path), one_line(error), exc_info=True)
            return HttpResponse(status=500, body="unexpected error; the log of `icekeep serve` has it")
        if found is None:
            return HttpResponse(status=404, body="there is no such page; open / or /runs")
        if given is not None and found.content_type == "text/html":
            return _without_token(parts.path, query)
        return found

    def _cookies(self) -> list[str]:
        """The tokens that cookies have: pages on other ports of this host can add some."""
        pairs = [pair.strip().partition("=") for text in self.headers.get_all("Cookie", []) for pair in text.split(";")]
        return [value for name, _, value in pairs if name == self.server.cookie]

    def _send(self, answer: HttpResponse) -> None:
        body = answer.body.encode(errors="replace")
        # A malformed request has no path.
        path = printable(getattr(self, "path", "").partition("?")[0])
        _LOG.debug("%s %s: %s", self.command, path, answer.status)
        self.send_response(answer.status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header(
            "Content-Security-Policy", f"{answer.policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.send_header("Content-Type", f"{answer.content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if answer.status == _METHOD.status:
            self.send_header("Allow", "GET, HEAD")
        if isinstance(answer, _Opened):
            self.send_header("Set-Cookie", self.server.set_cookie())
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Opened(HttpResponse, frozen=True):
    """The answer to an address with the token, which a cookie has from now on."""


_METHOD = HttpResponse(status=405, body="only GET and HEAD are answered: nothing can be changed here")


def _refused(why: str) -> HttpResponse:
    return HttpResponse(status=403, body=why)


def _without_token(path: str, query: Mapping[str, str]) -> HttpResponse:
    """A page that leads on to the same address without the token, so that neither its bar nor the history has it.

    This is not a redirect: where a page of another site has the link, as that of a terminal in a browser, the cookie would not be
    sent with what follows a redirect.
    """
    address = escape(path + (f"?{urlencode(query)}" if query else ""))
    body = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>icekeep</title>\n'
        f'<meta http-equiv="refresh" content="0; url={address}"></head>\n'
        f'<body><p><a href="{address}">Continue</a></p></body></html>\n'
    )
    return _Opened(body=body, content_type="text/html")
