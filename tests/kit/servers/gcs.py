"""fake-gcs-server, built from its Go module, behind a proxy that translates what it does not speak of Google's language.

Google's store has two languages. The client of icekeep speaks the one of XML, and the server knows of it only how to read; in
JSON it knows all. So the proxy translates:

* a put, with its condition that the name is free and its metadata, into an upload;
* a copy, which in the server heeds no condition, into reading the source and an upload;
* an upload in parts into one upload, of parts that the proxy keeps;
* a listing, of which the server gives no pages in XML, into one in JSON;
* the answers that there is no such object or no such bucket into Google's own words.

All else goes through as it is, and other clients speak to the server itself.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from kit.servers.process import SERVERS, ServerProcess, go_release
from kit.shell import ROOT, free_port

_BOUNDARY = "part-of-an-upload"
_META = "x-goog-meta-"
_OF_A_CONNECTION = ("content-length", "transfer-encoding", "connection", "expect", "date")

_numbers = count(1)


class FakeGcsServer:
    """The server and the proxy, which run at once; its buckets outlive `kill`."""

    name = "fake-gcs-server"
    release = go_release("fake-gcs-server", "github.com/fsouza/fake-gcs-server")

    def __init__(self) -> None:
        port = free_port()
        self._address = f"http://127.0.0.1:{port}"
        command: list[str | Path] = [SERVERS / "stores" / "fake-gcs-server", "-scheme", "http", "-host", "127.0.0.1"]
        self._process = ServerProcess(
            self.name,
            [*command, "-port", str(port), "-backend", "filesystem", "-filesystem-root", "data", "-log-level", "error"],
            self._answers,
            environment={"HOME": "."},
        )
        self.endpoint = f"http://127.0.0.1:{(proxy_port := free_port())}"
        # In a process of its own: pyarrow holds the interpreter while it asks how long an object is.
        self._proxy = ServerProcess(
            "proxy of fake-gcs-server",
            [sys.executable, __file__, str(proxy_port), self._address],
            lambda: _sent("GET", f"{self.endpoint}/storage/v1/b?project=icekeep").status == 200,
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT / "lib")))},
        )
        self.start()

    def start(self) -> None:
        self._process.start()
        self._proxy.start()

    def kill(self) -> None:
        self._proxy.kill()
        self._process.kill()

    def close(self) -> None:
        self._proxy.close()
        self._process.close()

    def new_root(self) -> str:
        """A location in a bucket of its own."""
        bucket = f"bucket-{next(_numbers)}"
        body = json.dumps({"name": bucket}).encode()
        _sent("POST", f"{self._address}/storage/v1/b?project=icekeep", body, {"Content-Type": "application/json"})
        return f"gs://{bucket}/wh"

    def properties(self, **more: str) -> dict[str, str]:
        """The catalog properties that lead here; PyIceberg takes a token only with the time when it ends."""
        token = {"gcs.oauth2.token": "any", "gcs.oauth2.token-expires-at": "4102444800000"}
        return {"gcs.service.host": self.endpoint, **token, **more}

    def names(self, root: str) -> list[str]:
        """The names of all objects below a location, as another client sees them."""
        bucket, _, path = root.partition("://")[2].partition("/")
        found, token = [], ""
        while True:
            query = urlencode({"prefix": f"{path}/", "pageToken": token})
            page = json.loads(_sent("GET", f"{self._address}/storage/v1/b/{bucket}/o?{query}").body)
            found += [item["name"][len(path) + 1 :] for item in page.get("items") or ()]
            token = page.get("nextPageToken", "")
            if not token:
                return sorted(found)

    def _answers(self) -> bool:
        return _sent("GET", f"{self._address}/_internal/healthcheck").status == 200


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def _sent(method: str, address: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> _Answer:
    request = urllib.request.Request(address, data=body, method=method, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request) as answer:
            return _Answer(answer.status, answer.headers, answer.read())
    except HTTPError as error:
        with error:
            return _Answer(error.code, error.headers, error.read())


def _error(status: int, code: str, message: str = "") -> _Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return _Answer(status, {"Content-Type": "application/xml"}, body.encode())


class _Proxy(ThreadingHTTPServer):
    """Attributes: the address of the server behind it, and of each upload in parts the metadata and the parts so far."""

    def __init__(self, port: int, behind: str) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.behind = behind
        self.uploads: dict[str, tuple[dict[str, str], dict[int, bytes]]] = {}


class _Handler(BaseHTTPRequestHandler):
    server: _Proxy
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self._body()
        address = urlsplit(self.path)
        bucket, _, key = address.path[1:].partition("/")
        query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        answer = self._answer(unquote(bucket), unquote(key), query, body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(length))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> _Answer:
        if bucket in ("storage", "upload", "download", "batch", "resumable"):
            sent = {name: value for name, value in self.headers.items() if name.lower() not in _OF_A_CONNECTION}
            has_body = self.command in ("POST", "PUT", "PATCH")
            return _sent(self.command, self.server.behind + self.path, body if has_body else None, sent)
        if _sent("GET", f"{self.server.behind}/storage/v1/b/{bucket}").status == 404:
            return _error(404, "NoSuchBucket", "The specified bucket does not exist.")
        if not key:
            return _listed(self.server.behind, bucket, query)
        if "uploads" in query or "uploadId" in query:
            return self._in_parts(bucket, key, query, body)
        if self.command == "PUT" and "x-goog-copy-source" in self.headers:
            return self._copied(bucket, key)
        if self.command == "PUT":
            return _uploaded(self.server.behind, bucket, key, body, _metadata(self.headers), self._condition())
        kept = {name: value for name, value in self.headers.items() if name.lower() == "range"}
        way = "" if self.command == "DELETE" else "/download"
        answer = _sent(
            self.command, f"{self.server.behind}{way}/storage/v1/b/{bucket}/o/{quote(key, safe='')}", None, kept
        )
        return _error(404, "NoSuchKey") if answer.status == 404 else answer

    def _condition(self) -> str:
        return self.headers.get("x-goog-if-generation-match", "")

    def _copied(self, bucket: str, key: str) -> _Answer:
        bucket_before, _, key_before = unquote(self.headers["x-goog-copy-source"]).partition("/")
        source = _sent(
            "GET", f"{self.server.behind}/download/storage/v1/b/{bucket_before}/o/{quote(key_before, safe='')}"
        )
        if source.status != 200:
            return _error(404, "NoSuchKey")
        copied = _uploaded(self.server.behind, bucket, key, source.body, _metadata(source.headers), self._condition())
        done = f"<CopyObjectResult><ETag>{copied.headers.get('ETag', '')}</ETag></CopyObjectResult>".encode()
        return copied if copied.status != 200 else copied._replace(body=done)

    def _in_parts(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> _Answer:
        number = query.get("uploadId", "")
        if "uploads" in query:
            number = str(next(_numbers))
            self.server.uploads[number] = (_metadata(self.headers), {})
            done = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            return _Answer(200, {}, done.encode())
        if self.command == "DELETE":
            self.server.uploads.pop(number, None)
            return _Answer(204, {}, b"")
        if self.command == "PUT":
            self.server.uploads[number][1][int(query["partNumber"])] = body
            return _Answer(200, {"ETag": f'"{query["partNumber"]}"'}, b"")
        metadata, parts = self.server.uploads.pop(number)
        whole = b"".join(parts[part] for part in sorted(parts))
        made = _uploaded(self.server.behind, bucket, key, whole, metadata, "")
        done = f"<CompleteMultipartUploadResult><ETag>{made.headers['ETag']}</ETag></CompleteMultipartUploadResult>"
        return made._replace(body=done.encode())


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name.lower().removeprefix(_META): value for name, value in headers.items() if name.lower().startswith(_META)
    }


def _uploaded(server: str, bucket: str, key: str, body: bytes, metadata: dict[str, str], condition: str) -> _Answer:
    query = {"uploadType": "multipart", "name": key, **({"ifGenerationMatch": condition} if condition else {})}
    described = json.dumps({"name": key, "metadata": metadata}).encode()
    parts = [(b"application/json", described), (b"application/octet-stream", body)]
    lines = [b"--%b\r\nContent-Type: %b\r\n\r\n%b\r\n" % (_BOUNDARY.encode(), kind, data) for kind, data in parts]
    answer = _sent(
        "POST",
        f"{server}/upload/storage/v1/b/{bucket}/o?{urlencode(query)}",
        b"".join([*lines, b"--%b--\r\n" % _BOUNDARY.encode()]),
        {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"},
    )
    if answer.status == 412:
        return _error(412, "PreconditionFailed")
    made = json.loads(answer.body) if answer.status == 200 else {}
    headers = {"ETag": f'"{made.get("etag", "")}"', "x-goog-generation": str(made.get("generation", ""))}
    return _Answer(answer.status, headers, b"")


def _listed(server: str, bucket: str, query: Mapping[str, str]) -> _Answer:
    # A listing in XML begins behind a name, one in JSON with it.
    after = query.get("start-after", "")
    asked = {
        "prefix": query.get("prefix", ""),
        "delimiter": query.get("delimiter", ""),
        "maxResults": query.get("max-keys", "1000"),
        "pageToken": query.get("continuation-token", ""),
        "startOffset": f"{after}\0" if after else "",
    }
    answer = _sent("GET", f"{server}/storage/v1/b/{bucket}/o?{urlencode(asked)}")
    page = json.loads(answer.body)
    objects = "".join(
        f"<Contents><Key>{escape(item['name'])}</Key><LastModified>{item['updated']}</LastModified>"
        f"<ETag>{item['etag']}</ETag><Size>{item['size']}</Size></Contents>"
        for item in page.get("items") or ()
    )
    common = "".join(
        f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in page.get("prefixes") or ()
    )
    token = page.get("nextPageToken", "")
    more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    return _Answer(
        200,
        {"Content-Type": "application/xml"},
        f"<ListBucketResult>{objects}{common}{more}</ListBucketResult>".encode(),
    )


if __name__ == "__main__":
    _Proxy(int(sys.argv[1]), sys.argv[2]).serve_forever()
