"""Runs in `.venv-java`: Iceberg Java as a server of its REST protocol, the protocol's HTTP aside.

Requests go to Java's own handlers (`CatalogHandlers`) over a catalog in SQLite, so Java checks requirements, applies
updates, assigns row ids and writes the metadata. Started by `kit.java`; prints its port, and ends when its standard
input does.
"""

import glob
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pyspark
from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

SEPARATOR = "\x1f"
SHADED = "org.apache.iceberg.shaded.com.fasterxml.jackson"
REST = "org.apache.iceberg.rest"
STATUS_BY_ERROR = {
    "IllegalArgumentException": 400,
    "ValidationException": 400,
    "BadRequestException": 400,
    "NamespaceNotEmptyException": 409,
    "NoSuchNamespaceException": 404,
    "NoSuchTableException": 404,
    "NoSuchIcebergTableException": 404,
    "AlreadyExistsException": 409,
    "CommitFailedException": 409,
    "UnprocessableEntityException": 422,
    "UnsupportedOperationException": 406,
    "CommitStateUnknownException": 500,
}


class Server:
    """Java's handlers, and a catalog for them."""

    def __init__(self, jars: str, directory: str, warehouse: str, keeps_keys: str = "") -> None:
        self.keeps_keys = bool(keeps_keys)
        spark = os.path.join(os.path.dirname(pyspark.__file__), "jars")
        classpath = os.pathsep.join([jars, os.path.join(spark, "*")])
        (py4j,) = glob.glob(os.path.join(spark, "py4j-*.jar"))
        port = launch_gateway(
            jarpath=py4j,
            classpath=classpath,
            die_on_exit=True,
            javaopts=["-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
        )
        self.gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
        )
        calls = self.gateway.java_gateway_server
        calls.resetCallbackClient(
            calls.getCallbackClient().getAddress(), self.gateway.get_callback_server().get_listening_port()
        )
        self.jvm = self.gateway.jvm
        self.mapper = self._mapper()
        java_class = self.jvm.java.lang.Class.forName
        self.catalog = java_class("org.apache.iceberg.jdbc.JdbcCatalog").getDeclaredConstructor(None).newInstance(None)
        self.catalog.setConf(
            java_class("org.apache.hadoop.conf.Configuration").getDeclaredConstructor(None).newInstance(None)
        )
        self.catalog.initialize(
            "rest",
            {
                "uri": f"jdbc:sqlite:{directory}/catalog.db?busy_timeout=30000",
                "jdbc.schema-version": "V1",
                "warehouse": warehouse,
            },
        )
        self.handlers = self._static(f"{REST}.CatalogHandlers")
        self.snapshot_mode = self._all_snapshots()

    def answer(self, method: str, path: list[str], query: dict[str, list[str]], body: str) -> str:
        """The answer to a request, as JSON text, empty where there is none."""
        catalog, handlers = self.catalog, self.handlers
        match method, path:
            case "GET", ["config"]:
                lifetime = {"idempotency-key-lifetime": "PT30M"} if self.keeps_keys else {}
                return json.dumps({"defaults": {}, "overrides": {}, **lifetime})
            case "GET", ["namespaces"]:
                return self._text(handlers.listNamespaces(catalog, self._namespace(query.get("parent", [""])[0])))
            case "POST", ["namespaces"]:
                return self._text(
                    handlers.createNamespace(catalog, self._request("requests.CreateNamespaceRequest", body))
                )
            case "GET", ["namespaces", name]:
                return self._text(handlers.loadNamespace(catalog, self._namespace(name)))
            case "DELETE", ["namespaces", name]:
                handlers.dropNamespace(catalog, self._namespace(name))
                return ""
            case "GET", ["namespaces", name, "tables"]:
                return self._text(handlers.listTables(catalog, self._namespace(name)))
            case "POST", ["namespaces", name, ("tables" | "register") as what]:
                return (self._create if what == "tables" else self._register)(self._namespace(name), body)
            case "POST", ["tables", "rename"]:
                handlers.renameTable(catalog, self._request("requests.RenameTableRequest", body))
                return ""
            case _, ["namespaces", name, "tables", table]:
                return self._on_table(method, self._identifier(name, table), body)
        raise LookupError(f"no such endpoint: {method} {path}")

    def answer_once(self, key: str, answer: Callable[[], str]) -> str:
        """The answer to a request with a key, by Java's own store of what became of such requests."""
        of = self.jvm.java.lang.Class.forName
        request, handlers = of(f"{REST}.HTTPRequest"), of(f"{REST}.CatalogHandlers")
        headers = self._static(f"{REST}.HTTPHeaders").of({"Idempotency-Key": key})
        asked = (
            self._static(f"{REST}.ImmutableHTTPRequest")
            .builder()
            .method(self._constant(f"{REST}.HTTPRequest$HTTPMethod", "POST"))
            .path("http://localhost/changes")
            .headers(headers)
            .build()
        )
        types = self._array("java.lang.Class", [request, of("java.util.function.Supplier")])
        with_idempotency = handlers.getDeclaredMethod("withIdempotencyInternal", types)
        with_idempotency.setAccessible(True)
        made, arguments = _Supplier(answer), self.jvm.java.util.ArrayList()
        for argument in (asked, made):
            arguments.add(argument)
        try:
            return str(with_idempotency.invoke(None, arguments.toArray()))
        except Py4JJavaError:
            # Of an error that came from Java itself only its first telling has the type.

            if made.error is not None:
                raise made.error from None
            raise

    def _on_table(self, method: str, identifier: Any, body: str) -> str:
        if method == "GET":
            return self._text(self.handlers.loadTable(self.catalog, identifier, *self.snapshot_mode))
        if method == "DELETE":
            self.handlers.dropTable(self.catalog, identifier)
            return ""
        request = self._request("requests.UpdateTableRequest", body)
        return self._text(self.handlers.updateTable(self.catalog, identifier, request))

    def _create(self, namespace: Any, body: str) -> str:
        request = self._request("requests.CreateTableRequest", body)
        make = self.handlers.stageTableCreate if request.stageCreate() else self.handlers.createTable
        return self._text(make(self.catalog, namespace, request))

    def _register(self, namespace: Any, body: str) -> str:
        # Its request is an interface, which only its parser reads.
        request = self._static(f"{REST}.requests.RegisterTableRequestParser").fromJson(body)
        return self._text(self.handlers.registerTable(self.catalog, namespace, request))

    def _request(self, name: str, body: str) -> Any:
        return self.mapper.readValue(body, self.jvm.java.lang.Class.forName(f"{REST}.{name}"))

    def _text(self, answer: Any) -> str:
        return str(self.mapper.writeValueAsString(answer))

    def _namespace(self, encoded: str) -> Any:
        names = [name for name in encoded.split(SEPARATOR) if name]
        return self._static("org.apache.iceberg.catalog.Namespace").of(self._strings(names))

    def _identifier(self, namespace: str, table: str) -> Any:
        identifiers = self._static("org.apache.iceberg.catalog.TableIdentifier")
        return identifiers.of(self._namespace(namespace), table)

    def _strings(self, values: list[str]) -> Any:
        return self._array("java.lang.String", values)

    def _array(self, of: str, values: list[Any]) -> Any:
        array = self.jvm.java.lang.reflect.Array.newInstance(self.jvm.java.lang.Class.forName(of), len(values))
        for position, value in enumerate(values):
            array[position] = value
        return array

    def _static(self, name: str) -> Any:
        found: Any = self.jvm
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def _mapper(self) -> Any:
        databind = self._static(f"{SHADED}.databind")
        annotation = self._static(f"{SHADED}.annotation")
        mapper = databind.ObjectMapper()
        anything = self._constant(f"{SHADED}.annotation.JsonAutoDetect$Visibility", "ANY")
        mapper.setVisibility(annotation.PropertyAccessor.FIELD, anything)
        mapper.configure(databind.DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, False)
        kebab = self.jvm.java.lang.Class.forName(f"{SHADED}.databind.PropertyNamingStrategies$KebabCaseStrategy")
        mapper.setPropertyNamingStrategy(kebab.getDeclaredConstructor(None).newInstance(None))
        self._static(f"{REST}.RESTSerializers").registerAll(mapper)
        return mapper

    def _all_snapshots(self) -> list[Any]:
        """What `loadTable` takes besides a name; Iceberg 1.10 has no modes."""
        try:
            return [self._constant(f"{REST}.RESTCatalogProperties$SnapshotMode", "ALL")]
        except Py4JJavaError:
            return []

    def _constant(self, name: str, constant: str) -> Any:
        return self.jvm.java.lang.Class.forName(name).getField(constant).get(None)


class _Supplier:
    """What Java asks for an answer, if it has none yet."""

    def __init__(self, answer: Callable[[], str]) -> None:
        self._answer = answer
        self.error: Py4JJavaError | None = None

    def get(self) -> str:
        try:
            return self._answer()
        except Py4JJavaError as error:
            self.error = error
            raise

    class Java:
        implements: ClassVar = ["java.util.function.Supplier"]


class Handler(BaseHTTPRequestHandler):
    """HTTP for the handlers, with Java's exceptions as the protocol's errors."""

    server_of_tables: Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = [unquote(part) for part in url.path.removeprefix("/v1/").split("/") if part]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        server, key = self.server_of_tables, self.headers.get("Idempotency-Key")
        answered = partial(server.answer, self.command, path, parse_qs(url.query), body)
        try:
            answer = server.answer_once(key, answered) if key is not None and server.keeps_keys else answered()
            status = 200 if answer else 204
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getSimpleName()
            status = STATUS_BY_ERROR.get(kind, 500)
            answer = json.dumps(
                {"error": {"message": str(error.java_exception.getMessage()), "type": kind, "code": status}}
            )
        data = answer.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    Handler.server_of_tables = Server(*sys.argv[1:])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
