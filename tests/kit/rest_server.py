"""A server of Iceberg's REST protocol on this machine, which loses, delays and doubles commits when it is told to.

Requirements and updates are checked and applied by PyIceberg's models, as a server of another make would; tables are
metadata files on the local disk and a dictionary of pointers. Like Java's, it applies a commit whose requirements hold to
whatever is current, and drops references to removed snapshots in silence. It can ask for OAuth2's client credentials or AWS's
signatures, worked out anew by the rules, and hand out keys for its tables' files.
"""

import hashlib
import hmac
import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlsplit

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV1
from pyiceberg.table.update import update_table_metadata
from pyiceberg.typedef import IcebergBaseModel

from icekeep.runtime import SYSTEM
from kit.object_store import ObjectStore

_ROOT = "/v1/{prefix}"
_NAMESPACE = f"{_ROOT}/namespaces/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
ENDPOINTS = (
    *(f"{method} {_ROOT}/namespaces" for method in ("GET", "POST")),
    *(f"{method} {_NAMESPACE}" for method in ("GET", "DELETE")),
    *(f"{method} {_NAMESPACE}/tables" for method in ("GET", "POST")),
    *(f"{method} {_TABLE}" for method in ("GET", "POST", "DELETE")),
    f"POST {_ROOT}/tables/rename",
    f"POST {_NAMESPACE}/register",
)
"""As the protocol names the requests that this server knows, but for `CREDENTIALS` and `UNREGISTER`."""

POLICIES = "GET /polaris/v1/{prefix}/applicable-policies"
"""Of Polaris, beside the protocol."""

CREDENTIALS = f"GET {_TABLE}/credentials"
UNREGISTER = f"POST {_TABLE}/unregister"


def empty_metadata(location: str, body: Any) -> Any:
    """The metadata of a table that was asked for by `body`."""
    return {
        "format-version": 2,
        "table-uuid": str(SYSTEM.new_uuid()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "schemas": [body["schema"]],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {},
        "snapshots": [],
    }


Name = tuple[str, ...]


class Refusal(Exception):
    """An answer that is no success, with the body that the protocol gives it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: Any = {"error": {"message": message, "type": kind, "code": status}}


class Fault(NamedTuple):
    """What happens to one commit, or to one load of a table, instead of its answer; a status without a body is a proxy's.

    A delay comes after the commit was applied, or before it if it `is_late`.
    """

    applied: bool
    status: int = 0
    body: str = ""
    is_cut: bool = False
    delay_ms: int = 0
    is_late: bool = False
    is_doubled: bool = False


class Request(NamedTuple):
    """One as it came in."""

    method: str
    path: str
    query: str
    headers: Any
    data: bytes


class RestServer:
    """Ends with `close`; `config` goes to clients, `vended` with each table.

    `token`, if set, is asked of every request, and `lets_in` looks at it; `log_in` answers forms at the token endpoint. With
    `key_lifetime` it keeps what became of requests that have a key. `endpoints` is what the server says that it has, if anything.
    A list has pages if `page_length` is set, and a change of a table is `redirected` once if that is a status. `vend`, if set,
    makes the credentials of each answer anew; tables may lie in the buckets of `objects`, a client of S3's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.namespaces: dict[Name, dict[str, str]] = {}
        self.pointers: dict[Name, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.queries: list[str] = []
        self.bodies: list[Any] = []
        self.faults: list[Fault] = []
        self.load_faults: list[Fault] = []
        self.read_fault: Fault | None = None
        """What every request that reads is answered with, but the one for the configuration."""
        self.token: str | None = None
        self.lets_in: Callable[[Request], bool] = self._has_token
        self.log_in: Callable[[dict[str, str]], tuple[int, Any]] | None = None
        self.endpoints: tuple[str, ...] = ()
        self.separator = "\x1f"
        self.page_length = 0
        self.redirected = 0
        self.config: dict[str, str] = {}
        self.policies: dict[Name, list[dict[str, Any]]] = {}
        """Polaris' stored policies, by table; a request for them is known where `endpoints` lists it."""
        self.vended: dict[str, str] = {}
        self.key_lifetime: str | None = None
        """For how long idempotency keys are kept, as the protocol says it; without it none is, and none is asked for."""
        self.honoured: Callable[[str, list[str]], bool] = lambda method, path: True
        """Of which requests, by method and path, keys are kept: some servers tell a lifetime and do so for commits alone."""
        self.finished: dict[str, tuple[int, Any]] = {}
        """By key, how a request was answered that was carried out, or refused for good."""
        self.keys: list[str | None] = []
        """Of each request that came in."""
        self.restrictions: Any = None
        """What is restricted of reading each table, as the protocol's `read-restrictions`."""
        self.credentials: list[dict[str, Any]] = []
        self.vend: Callable[[], dict[str, str]] | None = None
        self.objects: Any = None
        self.before_commit: Any = None
        self.after_commit: Any = None
        self.keeps_log = True
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def properties(self) -> dict[str, str]:
        """What our catalog is opened with."""
        return {"type": "rest", "uri": self.uri}

    @property
    def commits(self) -> int:
        """How many commits arrived, whatever became of them."""
        return sum(method == "POST" and "/tables/" in path for method, path in self.requests)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: list[str], query: dict[str, list[str]], body: Any) -> Any:
        """The answer to a request, as JSON; raises `Refusal`."""
        match method, path:
            case "GET", ["config"]:
                told: dict[str, Any] = {"endpoints": list(self.endpoints)} if self.endpoints else {}
                lifetime = {"idempotency-key-lifetime": self.key_lifetime} if self.key_lifetime else {}
                return {"defaults": {}, "overrides": self.config, **told, **lifetime}
            case "GET", ["polaris", "v1", *rest] if POLICIES in self.endpoints and rest[-1:] == ["applicable-policies"]:
                name = (*query["namespace"][0].split(self.separator), query["target-name"][0])
                self._pointer(name)
                return self._page("applicable-policies", self.policies.get(name, []), query)
            case "GET", ["namespaces"]:
                parent = tuple(query["parent"][0].split(self.separator)) if "parent" in query else ()
                depth = len(parent) + 1
                known = {name[:depth] for name in self.namespaces if name[: len(parent)] == parent}
                return self._page("namespaces", sorted(map(list, known - {parent})), query)
            case "POST", ["namespaces"]:
                return self._create_namespace(tuple(body["namespace"]), body.get("properties") or {})
            case "POST", ["tables", "rename"]:
                return self._rename(_name(body["source"]), _name(body["destination"]))
            case "POST", ["namespaces", encoded, "register"]:
                return self._register((*encoded.split(self.separator), body["name"]), body["metadata-location"])
            case _, ["namespaces", encoded, *rest]:
                namespace = tuple(encoded.split(self.separator))
                if (method, rest) == ("GET", ["tables"]):
                    names = [name for name in self.pointers if name[:-1] == self._known(namespace)]
                    return self._page("identifiers", [{"namespace": n[:-1], "name": n[-1]} for n in names], query)
                return self._in_namespace(method, self._known(namespace), rest, body)
        raise Refusal(404, "NotFound", f"no such endpoint: {method} {path}")

    def _known(self, namespace: Name) -> Name:
        if not any(name[: len(namespace)] == namespace for name in self.namespaces):
            raise Refusal(404, "NoSuchNamespaceException", f"Namespace does not exist: {namespace}")
        return namespace

    def _in_namespace(self, method: str, namespace: Name, rest: list[str], body: Any) -> Any:
        match method, rest:
            case "GET", []:
                return {"namespace": list(namespace), "properties": self.namespaces.get(namespace, {})}
            case "DELETE", []:
                below = [n for n in self.namespaces if n != namespace and n[: len(namespace)] == namespace]
                if below or any(name[:-1] == namespace for name in self.pointers):
                    raise Refusal(409, "NamespaceNotEmptyException", "Namespace is not empty")
                del self.namespaces[namespace]
                return None
            case "POST", ["tables"]:
                return self._stage(namespace, body)
            case "GET", ["tables", table]:
                return self._loaded((*namespace, table))
            case "GET", ["tables", table, "credentials"] if CREDENTIALS in self.endpoints:
                return {"storage-credentials": self._credentials((*namespace, table))}
            case "POST", ["tables", table, "unregister"] if UNREGISTER in self.endpoints:
                name = (*namespace, table)
                left = {"metadata-location": self._pointer(name), "metadata": self._read(self._pointer(name))}
                del self.pointers[name]
                return left
            case "DELETE", ["tables", table]:
                self._pointer((*namespace, table))
                del self.pointers[(*namespace, table)]
                return None
            case "POST", ["tables", table]:
                return self.commit((*namespace, table), body)
        raise Refusal(404, "NotFound", f"no such endpoint: {method} {rest}")

    def commit(self, name: Name, body: Any) -> Any:
        """Check the requirements against the current metadata, apply the updates to it, and move the pointer."""
        # PyIceberg applies everything to tables of version 3 but the update that makes them.
        upgrade = {"action": "upgrade-format-version", "format-version": 3}
        becomes_v3 = upgrade in body["updates"]
        known = [update for update in body["updates"] if update != upgrade]
        if becomes_v3:
            known.insert(0, {**upgrade, "format-version": 2})
        # Iceberg Java names the table in the path alone.
        identifier = {"namespace": name[:-1], "name": name[-1]}
        request = CommitTableRequest.model_validate({"identifier": identifier, **body, "updates": known})
        with self.lock:
            location = self.pointers.get(name)
            if location is None and {"type": "assert-create"} not in body["requirements"]:
                raise Refusal(404, "NoSuchTableException", f"Table does not exist: {name}")
            raw = {} if location is None else self._read(location)
            current = None if location is None else TableMetadataUtil.parse_obj(raw)
            try:
                for requirement in request.requirements:
                    requirement.validate(current)
            except CommitFailedException as error:
                raise Refusal(409, "CommitFailedException", str(error)) from error
            try:
                new = update_table_metadata(
                    current or TableMetadataV1.model_construct(location="", last_column_id=-1, schema=Schema()),
                    request.updates,
                    enforce_validation=current is None,
                    metadata_location=location,
                )
            except (ValueError, KeyError) as error:
                raise Refusal(400, "BadRequestException", str(error)) from error
            written = json.loads(IcebergBaseModel.model_dump_json(new))
            if becomes_v3:
                written |= {"format-version": 3, "next-row-id": 0}
            if not self.keeps_log:
                written["metadata-log"] = []
            unknown = {key: value for key, value in raw.items() if key.startswith("x-")}
            version = 0 if location is None else _version(location) + 1
            self.pointers[name] = self._write(new.location, version, {**unknown, **written})
            if self.after_commit is not None:
                self.after_commit()
            return self._loaded(name)

    def _register(self, name: Name, location: str) -> Any:
        with self.lock:
            if name[:-1] not in self.namespaces:
                raise Refusal(404, "NoSuchNamespaceException", f"Namespace does not exist: {name[:-1]}")
            if name in self.pointers:
                raise Refusal(409, "AlreadyExistsException", f"Table already exists: {name}")
            try:
                TableMetadataUtil.parse_obj(self._read(location))
            except (OSError, ValueError) as error:
                raise Refusal(400, "BadRequestException", str(error)) from error
            self.pointers[name] = location
            return self._loaded(name)

    def _page(self, key: str, items: list[Any], query: dict[str, list[str]]) -> Any:
        start = int(query.get("pageToken", ["0"])[0])
        end = start + (self.page_length or len(items) + 1)
        return {key: items[start:end], **({"next-page-token": str(end)} if end < len(items) else {})}

    def _has_token(self, request: Request) -> bool:
        return self.token is None or request.headers.get("Authorization") == f"Bearer {self.token}"

    def _loaded(self, name: Name) -> Any:
        location = self._pointer(name)
        restricted = {} if self.restrictions is None else {"read-restrictions": self.restrictions}
        return {
            "metadata-location": location,
            "metadata": self._read(location),
            "config": self.vended,
            "storage-credentials": self._credentials(name),
            **restricted,
        }

    def _credentials(self, name: Name) -> list[dict[str, Any]]:
        if self.vend is None:
            return self.credentials
        return [{"prefix": self._pointer(name).partition("/metadata/")[0], "config": self.vend()}]

    def _read(self, location: str) -> Any:
        if not location.startswith("s3://"):
            return json.loads(Path(location.removeprefix("file://")).read_bytes())
        bucket, _, key = location.removeprefix("s3://").partition("/")
        return json.loads(self.objects.get_object(Bucket=bucket, Key=key)["Body"].read())

    def _write(self, table_location: str, version: int, metadata: Any) -> str:
        location = f"{table_location}/metadata/{version:05d}-{SYSTEM.new_uuid()}.metadata.json"
        if location.startswith("s3://"):
            bucket, _, key = location.removeprefix("s3://").partition("/")
            self.objects.put_object(Bucket=bucket, Key=key, Body=json.dumps(metadata).encode())
            return location
        path = Path(location.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(metadata))
        return location

    def _pointer(self, name: Name) -> str:
        if name not in self.pointers:
            raise Refusal(404, "NoSuchTableException", f"Table does not exist: {name}")
        return self.pointers[name]

    def _create_namespace(self, namespace: Name, properties: dict[str, str]) -> Any:
        if any(name[: len(namespace)] == namespace for name in self.namespaces):
            raise Refusal(409, "AlreadyExistsException", f"Namespace already exists: {namespace}")
        self.namespaces[namespace] = properties
        return {"namespace": list(namespace), "properties": properties}

    def _rename(self, old: Name, new: Name) -> None:
        self._pointer(old)
        if new in self.pointers:
            raise Refusal(409, "AlreadyExistsException", "Table already exists")
        self.pointers[new] = self.pointers.pop(old)

    def _stage(self, namespace: Name, body: Any) -> Any:
        """Only what says where a table would be."""
        assert body["stage-create"]
        if (*namespace, body["name"]) in self.pointers:
            raise Refusal(409, "AlreadyExistsException", "Table already exists")
        place = (self.directory / "warehouse").joinpath(*namespace, body["name"]).as_uri()
        return {"metadata": empty_metadata(place, body), "config": self.vended}


class _Handler(BaseHTTPRequestHandler):
    owner: RestServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_DELETE = do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        owner, url = self.owner, urlsplit(self.path)
        prefix = owner.config.get("prefix", "")
        path = [unquote(part) for part in url.path.removeprefix("/v1/").removeprefix(f"{prefix}/").split("/") if part]
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == ["oauth", "tokens"] and owner.log_in is not None:
            self._send(*owner.log_in(dict(parse_qsl(data.decode()))))
            return
        body = json.loads(data or b"null")
        owner.requests.append((self.command, url.path))
        owner.queries.append(url.query)
        owner.bodies.append(body)
        owner.keys.append(self.headers.get("Idempotency-Key"))
        is_of_table = len(path) == 4 and path[2] == "tables"
        is_commit = self.command == "POST" and (is_of_table or path[2:] == ["register"])
        if is_commit and owner.before_commit is not None:
            act, owner.before_commit = owner.before_commit, None
            act()
        faults = owner.faults if is_commit else owner.load_faults if is_of_table else []
        reads = self.command == "GET" and path[-1:] != ["config"]
        fault = faults.pop(0) if faults else owner.read_fault if reads else None
        if not owner.lets_in(Request(self.command, url.path, url.query, self.headers, data)):
            self._send(401, Refusal(401, "NotAuthorizedException", "bad token").body)
        elif is_of_table and owner.redirected and self.command != "GET":
            status, owner.redirected = owner.redirected, 0
            self._send(status, None, self.path)
        elif fault is None:
            self._send(*self._answer(path, url.query, body))
        else:
            self._fail(fault, path, url.query, body)

    def _answer(self, path: list[str], query: str, body: Any) -> tuple[int, Any]:
        owner, key = self.owner, self.headers.get("Idempotency-Key")
        is_keyed = key is not None and owner.key_lifetime is not None and owner.honoured(self.command, path)
        if is_keyed and key in owner.finished:
            status, answer = owner.finished[key]
            # As Polaris and Lakekeeper do: the answer tells of what is current.
            is_table = status == 200 and len(path) == 4 and path[2] == "tables"
            return (status, owner.answer("GET", path, {}, None)) if is_table else (status, answer)
        try:
            answer = owner.answer(self.command, path, parse_qs(query), body)
            found = (204 if answer is None else 200), answer
        except Refusal as refusal:
            found = refusal.status, refusal.body
        if is_keyed and found[0] < 500:
            owner.finished[key] = found
        return found

    def _fail(self, fault: Fault, path: list[str], query: str, body: Any) -> None:
        answer: tuple[int, Any] = (200, None)
        if fault.is_late:
            SYSTEM.sleep_ms(fault.delay_ms)
        for _ in range(fault.applied + fault.is_doubled):
            answer = self._answer(path, query, body)
        if not fault.is_late:
            SYSTEM.sleep_ms(fault.delay_ms)
        if fault.is_cut:
            self.close_connection = True
            self.connection.close()
        elif fault.status:
            self._send(fault.status, fault.body)
        else:
            self._send(*answer)

    def _send(self, status: int, body: Any, location: str | None = None) -> None:
        data = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if location is not None:
                self.send_header("Location", location)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD" and status != 204:
                self.wfile.write(data)


def _version(location: str) -> int:
    """The number in the name of a metadata file, whether a catalog or a file system's layout gave it: `00003-...`, `v3...`."""
    return int(Path(location).name.removeprefix("v").partition("-")[0].partition(".")[0])


def _name(value: Any) -> Name:
    return (*value["namespace"], value["name"])


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


class Vending:
    """Tables in a bucket: every answer about one brings a new access key, good for `uses` requests, or until it is ended."""

    def __init__(self, directory: Path, store: ObjectStore, uses: int = 0) -> None:
        self.store = store
        self.server = RestServer(directory)
        self.uses = uses
        self.keys: list[str] = []
        self.ends_ms: int | None = None
        self._lock = threading.Lock()
        self.server.token = "hunter2"
        self.server.vend = self._vend
        self.server.objects = store.client
        self.bucket = store.new_bucket()

    @property
    def properties(self) -> dict[str, str]:
        """What a catalog is opened with: a token for the server is among it, and no keys for the store."""
        return {
            **self.server.properties,
            "token": "hunter2",
            "s3.endpoint": self.store.endpoint,
            "s3.region": "us-east-1",
        }

    def end_keys(self) -> None:
        """End all keys that were handed out so far."""
        for key in self.keys:
            self.store.end_key(key)

    def close(self) -> None:
        self.server.close()

    def _vend(self) -> dict[str, str]:
        with self._lock:
            key = f"vended{len(self.keys)}"
            self.keys.append(key)
        if self.uses:
            self.store.end_key(key, self.uses)
        ends = {} if self.ends_ms is None else {"s3.session-token-expires-at-ms": str(self.ends_ms)}
        return {"s3.access-key-id": key, "s3.secret-access-key": f"secret of {key}", "s3.session-token": "t", **ends}
