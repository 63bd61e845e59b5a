"""What a server asks of those who log in: OAuth2's client credentials, or AWS's signatures, worked out anew by the rules."""

import hashlib
import hmac
import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote

from kit.rest_server import Request


class TokenIssuer:
    """Gives tokens for one client's credential and lets in who brings the last; `refusals` are answered first.

    Its methods are a server's `log_in` and `lets_in`.
    """

    def __init__(self, credential: str, life_s: int | None = None) -> None:
        self._credential = credential
        self._life_s = life_s
        self.forms: list[dict[str, str]] = []
        self.refusals: list[tuple[int, Any]] = []
        self.seen: list[str | None] = []
        self.token = "none yet"

    def log_in(self, form: dict[str, str]) -> tuple[int, Any]:
        self.forms.append(form)
        if self.refusals:
            return self.refusals.pop(0)
        given = ":".join(form[key] for key in ("client_id", "client_secret") if key in form)
        if form["grant_type"] != "client_credentials" or given != self._credential:
            return 401, {"error": "invalid_client", "error_description": f"not {form['client_secret']}"}
        self.token = f"token {len(self.forms)}"
        life = {} if self._life_s is None else {"expires_in": self._life_s}
        return 200, {"access_token": self.token, "token_type": "bearer", **life}

    def lets_in(self, request: Request) -> bool:
        self.seen.append(request.headers.get("Authorization"))
        return self.seen[-1] == f"Bearer {self.token}"


class TokenServer:
    """A token endpoint that wants a credential in a header; `answers` come first, a redirect leads to `elsewhere`."""

    def __init__(self, user: str, secret: str, life_s: int | None) -> None:
        self._wanted = f"Basic {b64encode(f'{user}:{secret}'.encode()).decode()}"
        self.life_s = life_s
        self.answers: list[tuple[int, Any]] = []
        self.forms: list[dict[str, str]] = []
        self.elsewhere: list[str] = []
        self.url = ""

    def answer(self, path: str, authorization: str | None, form: dict[str, str]) -> tuple[int, Any]:
        if path != "/tokens":
            self.elsewhere.append(f"{path} {authorization} {form}")
            return 404, {}
        self.forms.append(form)
        if self.answers:
            return self.answers.pop(0)
        if authorization != self._wanted:
            return 401, {"error": "invalid_client"}
        life = {} if self.life_s is None else {"expires_in": self.life_s}
        return 200, {"access_token": f"token {len(self.forms)}", **life}


@contextmanager
def token_server(user: str, secret: str, life_s: int | None = None) -> Iterator[TokenServer]:
    """A token endpoint on this machine, which ends with the block."""
    found = TokenServer(user, secret, life_s)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, body = found.answer(self.path, self.headers.get("Authorization"), dict(parse_qsl(text)))
            data = json.dumps(body).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", found.url.replace("/tokens", "/elsewhere"))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/tokens"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class SignatureJudge:
    """Lets in what is signed with a key for a region and service (AWS Signature Version 4)."""

    def __init__(self, key: str, secret: str, region: str, service: str) -> None:
        self._key, self._secret, self._scope = key, secret, (region, service)
        self.seen: list[Any] = []

    def lets_in(self, request: Request) -> bool:
        self.seen.append(request.headers)
        header = request.headers.get("Authorization") or ""
        kind, _, parts = header.partition(" ")
        given = dict(part.strip().partition("=")[::2] for part in parts.split(","))
        date = request.headers.get("X-Amz-Date", "")
        scope = "/".join((date[:8], *self._scope, "aws4_request"))
        return (
            kind == "AWS4-HMAC-SHA256"
            and given["Credential"] == f"{self._key}/{scope}"
            and given["Signature"] == self._signature(request, given["SignedHeaders"], date, scope)
        )

    def _signature(self, request: Request, signed: str, date: str, scope: str) -> str:
        pairs = sorted((quote(k, safe="~"), quote(v, safe="~")) for k, v in parse_qsl(request.query, True))
        canonical = "\n".join(
            (
                request.method,
                quote(request.path, safe="/~"),
                "&".join(f"{key}={value}" for key, value in pairs),
                *(f"{name}:{request.headers[name].strip()}" for name in signed.split(";")),
                "",
                signed,
                hashlib.sha256(request.data).hexdigest(),
            )
        )
        key = f"AWS4{self._secret}".encode()
        for part in (date[:8], *self._scope, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = "\n".join(("AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()))
        return hmac.digest(key, text.encode(), "sha256").hex()
