"""The server of pages for its own user: who is answered, with which headers, and what is never told."""

import http.client
import logging
import socket
import threading
from collections.abc import Iterator, Mapping

import pytest

from icekeep.errors import UsageError
from icekeep.operations.serving import HttpResponse, LocalServer
from kit.cases import for_each

pytestmark = pytest.mark.server

TOKEN = "a-token-that-nobody-guesses"


class Stub:
    """Pages that say what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

    def answer(self, path: str, query: Mapping[str, str]) -> HttpResponse | None:
        self.asked.append((path, dict(query)))
        if path == "/broken":
            raise ValueError("secret of a table")
        if path == "/state":
            return HttpResponse(body="{}", content_type="application/json")
        policy = "default-src 'none'; script-src 'sha256-x'"
        return (
            HttpResponse(body=f"page {query}", content_type="text/html", policy=policy)
            if path in ("/", "/runs")
            else None
        )


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer(Stub(), "127.0.0.1", 0, TOKEN) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the server logs, also where a command has set up logs in this process."""
    logger = logging.getLogger("icekeep.operations.serving")
    level = logger.level
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.DEBUG)
    yield caplog
    logger.removeHandler(caplog.handler)
    logger.setLevel(level)


def asked(
    server: LocalServer, path: str = "/", *, method: str = "GET", host: str | None = None, cookie: str | None = None
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    headers = {"Host": f"127.0.0.1:{server.server_port}" if host is None else host}
    connection.request(method, path, headers=headers | ({} if cookie is None else {"Cookie": cookie}))
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response, body


def cookie_of(server: LocalServer) -> str:
    response, _ = asked(server, f"/?token={TOKEN}")
    given = response.headers["Set-Cookie"]
    assert given.endswith("; HttpOnly; SameSite=Strict; Path=/")
    return given.partition(";")[0]


@for_each(
    ("path", "cookie"),
    [
        ("/", None),
        ("/?token=", None),
        ("/?token=wrong", None),
        (f"/?token={TOKEN}x", None),
        (f"/?TOKEN={TOKEN}", None),
        ("/?token=%C3%A9%ED%A0%80", None),
        ("/", "icekeep=x; token=y"),
        ("/", "icekeep-PORT=wrong"),
        ("/", f"icekeep-1={TOKEN}"),
        ("/state", f"token={TOKEN}"),
        ("/nothing", None),
        ("/?token=wrong", f"icekeep-PORT={TOKEN}"),
    ],
)
def test_without_the_token_nothing_is_answered(server: LocalServer, path: str, cookie: str | None) -> None:
    response, body = asked(server, path, cookie=cookie and cookie.replace("PORT", str(server.server_port)))
    assert response.status == 403
    assert "open the address that `icekeep serve` printed" in body
    assert "Set-Cookie" not in response.headers
    assert server.pages.asked == []


def test_the_token_makes_a_cookie_and_leaves_the_address(server: LocalServer) -> None:
    response, body = asked(server, f"/runs?token={TOKEN}&table=a%22%3Eb")
    assert response.status == 200
    assert TOKEN not in body
    assert 'url=/runs?table=a%22%3Eb"' in body
    response, body = asked(server, "/runs?table=x", cookie=f"other=1; {cookie_of(server)}")
    assert (response.status, body) == (200, "page {'table': 'x'}")


def test_the_address_is_the_one_that_is_listened_at() -> None:
    # By `localhost` a browser may ask ::1, and so another server, with the token.
    with LocalServer(Stub(), "localhost", 0, TOKEN) as one:
        assert one.opening_address() == f"http://127.0.0.1:{one.server_port}/?token={TOKEN}"


def test_foreign_cookie_of_same_host_locks_nobody_out(server: LocalServer) -> None:
    assert asked(server, cookie=f"{server.cookie}=theirs; {cookie_of(server)}")[0].status == 200


def test_the_state_is_answered_at_its_address_with_the_token(server: LocalServer) -> None:
    assert asked(server, f"/state?token={TOKEN}")[1] == "{}"


@for_each(
    "host",
    [
        "evil.example",
        "evil.example:PORT",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:PORT",
        "",
        "127.0.0.1:PORT.x",
    ],
)
def test_a_name_that_leads_here_is_no_name_of_the_server(server: LocalServer, host: str) -> None:
    response, body = asked(server, host=host.replace("PORT", str(server.server_port)), cookie=cookie_of(server))
    assert response.status == 403
    assert f"open http://127.0.0.1:{server.server_port}/" in body


@for_each("host", ["127.0.0.1:PORT", "localhost:PORT", "LOCALHOST:PORT", "[::1]:PORT"])
def test_an_address_of_this_machine_is(server: LocalServer, host: str) -> None:
    assert asked(server, host=host.replace("PORT", str(server.server_port)), cookie=cookie_of(server))[0].status == 200


@for_each("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_nothing_but_a_look_is_answered(server: LocalServer, method: str) -> None:
    cookie = cookie_of(server)
    server.pages.asked.clear()
    response, body = asked(server, method=method, cookie=cookie)
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
    assert "nothing can be changed here" in body
    assert server.pages.asked == []


def test_a_head_has_the_headers_of_its_page_and_no_body(server: LocalServer) -> None:
    cookie = cookie_of(server)
    whole, body = asked(server, cookie=cookie)
    head, nothing = asked(server, method="HEAD", cookie=cookie)
    assert nothing == ""
    assert int(head.headers["Content-Length"]) == len(body)
    assert {**head.headers, "Date": ""} == {**whole.headers, "Date": ""}


@for_each("path", ["/", "/state", "/nothing", "/broken", "/?token=wrong", f"/?token={TOKEN}", "POST"])
def test_each_answer_has_the_headers_that_keep_others_out(server: LocalServer, path: str) -> None:
    method = "POST" if path == "POST" else "GET"
    response, _ = asked(server, "/" if path == "POST" else path, method=method, cookie=cookie_of(server))
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert ("script-src" in policy) is (path == "/")
    wanted = {
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Server": "icekeep",
    }
    assert {name: response.headers[name] for name in wanted} == wanted
    assert "Access-Control-Allow-Origin" not in response.headers


def test_what_fails_is_told_without_what_it_was(server: LocalServer, logged: pytest.LogCaptureFixture) -> None:
    response, body = asked(server, "/broken", cookie=cookie_of(server))
    assert response.status == 500
    assert "secret" not in body
    assert "/broken could not be answered: ValueError" in logged.text


def test_no_line_of_a_log_has_the_token(server: LocalServer, logged: pytest.LogCaptureFixture) -> None:
    asked(server, f"/state?token={TOKEN}", cookie=cookie_of(server))
    assert "GET /state: 200" in logged.text
    assert TOKEN not in logged.text


@for_each(
    ("request_text", "status"),
    [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/9.9\r\n\r\n", 505),
        ("GET / HTTP/1.1\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: evil.example\r\nCookie: COOKIE\r\n\r\n", 403),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nCookie: COOKIE\r\n\r\n", 404),
        ("GET //evil.example/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nCookie: COOKIE\r\n\r\n", 404),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nCookie: COOKIE\r\nContent-Length: 9\r\n\r\nPOST / H", 200),
    ],
)
def test_what_is_no_request_ends_nothing(server: LocalServer, request_text: str, status: int) -> None:
    sent = request_text.replace("PORT", str(server.server_port)).replace("COOKIE", cookie_of(server))
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        connection.sendall(sent.encode())
        with connection.makefile("rb") as stream:
            told = stream.read().decode()
    assert told.count("HTTP/1.0 ") == 1
    assert f"HTTP/1.0 {status} " in told
    assert asked(server, cookie=cookie_of(server))[0].status == 200


@for_each("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", "127.0.0.2", ""])
def test_it_is_bound_to_no_address_that_others_reach(host: str) -> None:
    with pytest.raises(
        UsageError, match=r"listens on this machine alone: --host is one of 127\.0\.0\.1, ::1, localhost"
    ):
        LocalServer(Stub(), host, 0, TOKEN)


def test_a_port_that_is_taken_is_told(server: LocalServer) -> None:
    with pytest.raises(
        UsageError, match=rf"cannot listen on port {server.server_port} of 127\.0\.0\.1: .*; give another --port"
    ):
        LocalServer(Stub(), "127.0.0.1", server.server_port, TOKEN)
    with pytest.raises(UsageError, match=r"cannot listen on port 70000 of 127\.0\.0\.1: there is no such port"):
        LocalServer(Stub(), "127.0.0.1", 70_000, TOKEN)
