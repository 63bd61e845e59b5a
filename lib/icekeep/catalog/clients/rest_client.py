"""The requests that we make of a REST catalog's server, and what we take from its answers.

Of a table an answer says where its metadata is, and it is read from there: what a server makes of it on the way is not
used. Imported only when such a catalog is used, since requests is an optional extra.
"""

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

from icekeep.catalog.base import Description, Identifier, StoredPolicy, format_identifier
from icekeep.catalog.clients import rest_protocol as protocol
from icekeep.catalog.clients.errors import (
    AUTH,
    CommitRefused,
    Refusal,
    Settings,
    protocol_error,
    proved_rejection,
    read_failure,
)
from icekeep.catalog.clients.rest_session import HttpRefusal, RestSession
from icekeep.catalog.resending import StatusChecks, resends
from icekeep.decoding import from_json
from icekeep.errors import IcekeepError, UnavailableError, UnsupportedError, UsageError
from icekeep.runtime import Runtime

A = TypeVar("A", bound=protocol.ResponseBody)
P = TypeVar("P", bound=protocol.ListPage)
V = TypeVar("V")

_CHECKS = StatusChecks()
_SHARE_USED = 0.9
"""For how much of a key's life a request is sent again with it: the last one takes a while to arrive."""

_SCAN_PLANNING_MODE, _PLANNED_BY_CLIENTS = "scan-planning-mode", "client"

_EMPTY_TABLE = {
    "schema": {"type": "struct", "schema-id": 0, "identifier-field-ids": [], "fields": []},
    "partition-spec": {"spec-id": 0, "fields": []},
    "write-order": {"order-id": 0, "fields": []},
    "properties": {},
}


class LoadedTable(NamedTuple):
    """What an answer says of a table: where its metadata is, and what its storage is opened with, credentials included.

    The table's own properties are not among them: a writer of the table must not redirect where its files are fetched.
    """

    metadata_location: str | None
    storage_properties: dict[str, str]


class ParsedResponse(NamedTuple, Generic[V]):
    """What was taken from an answer; where the request `is_repeated` the answer may tell of a later state."""

    value: V
    is_repeated: bool = False


class RestClient:
    """A session with a server; `properties` are the catalog's, with what the server adds to them and overrides."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        session = RestSession(settings, runtime)
        config = _config(settings, session)
        self.properties = {
            **_server_properties(config.defaults),
            **settings.properties,
            **_server_properties(config.overrides),
        }
        merged = Settings(settings.name, self.properties)
        self._name, self._runtime = settings.name, runtime
        self._key_lifetime_ms = config.key_lifetime_ms
        self._endpoints = {" ".join(text.split()) for text in config.endpoints or ()}
        self._separator = unquote(merged.text("namespace-separator") or "%1F")
        prefix = (merged.text("prefix") or "").strip("/")
        self._server = merged.address("uri").rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        page_size = merged.count("rest-page-size", 0)
        self._page_size = {"pageSize": str(page_size)} if page_size else {}
        self._session = session.with_settings(merged)

    def load_table(self, identifier: Identifier) -> LoadedTable:
        """What the server says of a table, its metadata aside.

        Raises:
            UnsupportedError: this login may read the table in part only, or by plans of the server alone. Manifests hold bounds
                of columns, so that no work on them is free of what is hidden.
        """
        answer = from_json(self._send(protocol.LOAD_TABLE, self._path(identifier)), protocol.Loaded)
        properties = {**self.properties, **protocol.texts(answer.config)}
        self._refuse_restricted(identifier, answer, properties)
        vended = protocol.chosen(answer.storage_credentials, answer.metadata_location)
        return LoadedTable(answer.metadata_location, {**properties, **vended})

    def describe(self, identifier: Identifier) -> Description | None:
        """What the server says of where a table lies, in the answer to which it adds the metadata itself."""
        answer = from_json(self._send(protocol.LOAD_TABLE, self._path(identifier)), protocol.Described)
        metadata, file = answer.metadata, answer.metadata_location
        if not isinstance(metadata, dict) or not isinstance(metadata.get("location"), str):
            return None
        properties = metadata.get("properties")
        given = properties if isinstance(properties, dict) else {}
        return Description(metadata["location"], given, (file,) if isinstance(file, str) else (), is_whole=True)

    def load_credentials(self, identifier: Identifier, location: str) -> dict[str, str]:
        """The credentials that the server hands out now for a table's files; none where it has no request of their own."""
        if not self.has(protocol.LOAD_CREDENTIALS):
            return {}
        answer = from_json(self._send(protocol.LOAD_CREDENTIALS, self._path(identifier)), protocol.Credentials)
        return protocol.chosen(answer.storage_credentials, location)

    def send_commit(
        self, identifier: Identifier, request: Mapping[str, Any], checks: StatusChecks = _CHECKS
    ) -> ParsedResponse[str]:
        """Send a commit as it stands, again with its key where its outcome is unknown.

        Raises:
            CommitRefused: it met another writer, or a request before it that was the very same.
        """

        def landed(answer: bytes) -> str:
            location = from_json(answer, protocol.Landed).metadata_location
            if not location:
                raise ValueError("the answer to a commit has no metadata-location")
            return location

        return self._change(protocol.UPDATE_TABLE, self._path(identifier), landed, body=request, checks=checks)

    def send_registration(self, identifier: Identifier, metadata_location: str) -> None:
        """Ask the server to take in a table by its metadata file, if the name is free."""
        body = {"name": identifier[-1], "metadata-location": metadata_location}
        self._change(protocol.REGISTER_TABLE, self._path(identifier), body=body)

    def stage_table(self, identifier: Identifier) -> str:
        """Where the server would put a table of this name; none is created."""
        body = {"name": identifier[-1], "stage-create": True, **_EMPTY_TABLE}
        staged = self._change(
            protocol.CREATE_TABLE, self._path(identifier), lambda answer: from_json(answer, protocol.Staged), body=body
        )
        return staged.value.metadata.location

    def drop_table(self, identifier: Identifier, is_another: Callable[[], bool] = lambda: False) -> str | None:
        """Drop a table and none of its files; returns its last metadata location, if the server names it.

        Args:
            is_another: whether the name belongs to another table now: a server may keep keys, and none of drops.
        """
        path = self._path(identifier)
        if self.has(protocol.UNREGISTER_TABLE):
            # A server that purges what is dropped does not purge what is unregistered.
            left = self._change(
                protocol.UNREGISTER_TABLE, path, lambda answer: from_json(answer, protocol.Landed), is_over=is_another
            )
            return left.value.metadata_location
        self._change(protocol.DROP_TABLE, path, params={"purgeRequested": "false"}, is_over=is_another)
        return None

    def rename_table(self, old: Identifier, new: Identifier) -> None:
        names = (("source", old), ("destination", new))
        body = {part: {"namespace": list(name[:-1]), "name": name[-1]} for part, name in names}
        self._change(protocol.RENAME_TABLE, {}, body=body)

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        pages = self._pages(protocol.TableNames, protocol.LIST_TABLES, self._namespace(namespace), {})
        return [(*table.namespace, table.name) for page in pages for table in page.identifiers]

    def list_namespaces(self, parent: Identifier) -> list[Identifier]:
        params = {"parent": self._joined(parent)} if parent else {}
        pages = self._pages(protocol.Namespaces, protocol.LIST_NAMESPACES, {}, params)
        return [namespace for page in pages for namespace in page.namespaces]

    def namespace_properties(self, namespace: Identifier) -> dict[str, str]:
        answer = self._send(protocol.LOAD_NAMESPACE, self._namespace(namespace))
        return protocol.texts(from_json(answer, protocol.Namespace).properties)

    def create_namespace(self, namespace: Identifier, properties: Mapping[str, str]) -> None:
        body = {"namespace": list(namespace), "properties": dict(properties)}
        self._change(protocol.CREATE_NAMESPACE, {}, body=body)

    def drop_namespace(self, namespace: Identifier) -> None:
        self._change(protocol.DROP_NAMESPACE, self._namespace(namespace))

    def applicable_policies(self, identifier: Identifier) -> list[StoredPolicy]:
        """The policies that the server has stored for a table; none where it does not say that it stores any."""
        if not self.has(protocol.APPLICABLE_POLICIES):
            return []
        params = {"namespace": self._joined(identifier[:-1]), "target-name": identifier[-1]}
        pages = self._pages(protocol.ApplicablePolicies, protocol.APPLICABLE_POLICIES, {}, params)
        policies = (policy for page in pages for policy in page.applicable_policies)
        return [StoredPolicy(one.policy_type, one.name, one.content_text, one.inherited) for one in policies]

    def _refuse_restricted(
        self, identifier: Identifier, answer: protocol.Loaded, properties: Mapping[str, str]
    ) -> None:
        name = format_identifier(identifier)
        if restricted := protocol.restrictions(answer.read_restrictions):
            raise UnsupportedError(
                f"catalog {self._name!r} lets this login read table {name!r} with restrictions only ({', '.join(restricted)}), "
                "and icekeep works on whole files; use a login that may read all rows and columns",
                catalog=self._name,
            )
        mode = properties.get(_SCAN_PLANNING_MODE, _PLANNED_BY_CLIENTS)
        if mode.lower() != _PLANNED_BY_CLIENTS:
            raise UnsupportedError(
                f"catalog {self._name!r} has {_SCAN_PLANNING_MODE}={mode} for table {name!r}, and icekeep reads manifests "
                f"itself; have the server say {_PLANNED_BY_CLIENTS} to this login",
                catalog=self._name,
            )

    def _change(
        self,
        endpoint: protocol.Endpoint,
        path: Mapping[str, str],
        read: Callable[[bytes], V] = lambda answer: None,  # type: ignore[assignment,return-value]
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        checks: StatusChecks = _CHECKS,
        is_over: Callable[[], bool] = lambda: False,
    ) -> ParsedResponse[V]:
        """Send a request that changes something, again with its key until it is known what became of it.

        Without keys it is sent once. An answer to a later request proves nothing of those before but a success, and a commit's
        conflict, which its caller looks into; else the error of the first request is raised.

        Args:
            read: takes what is wanted from the answer.
            checks: how often and how long it is sent again, at most for the life of its key.
            is_over: asked before it is sent again, whether it must not be.
        """
        key = None if self._key_lifetime_ms is None else _new_key(self._runtime)
        until_ms = self._runtime.monotonic_ms() + int((self._key_lifetime_ms or 0) * _SHARE_USED)

        def sent() -> V:
            return read(self._send(endpoint, path, params=params, body=body, key=key))

        try:
            return ParsedResponse(sent())
        except Exception as error:
            if key is None or not self._is_unknown(error):
                raise
            again = self._again(sent, checks, lambda: self._runtime.monotonic_ms() >= until_ms or is_over())
            if again is None:
                raise
            return again

    def _again(
        self, sent: Callable[[], V], checks: StatusChecks, is_over: Callable[[], bool]
    ) -> ParsedResponse[V] | None:
        """What a repeated request was answered; `None` where it stays unknown what became of the first one."""
        left_count = max(checks.num_retries, 1)
        for _ in resends(checks, self._runtime):
            try:
                return None if is_over() else ParsedResponse(sent(), is_repeated=True)
            except CommitRefused:
                raise
            except Refusal:
                return None
            except Exception as error:  # noqa: BLE001 - the caller raises the first error
                if self._is_unknown(error):
                    left_count -= 1
                elif not isinstance(read_failure(error, self._name), UnavailableError):
                    return None
            if not left_count:
                return None
        return None

    def _is_unknown(self, error: Exception) -> bool:
        """Whether a request that ended so may have been carried out."""
        return not isinstance(error, IcekeepError | Refusal) and proved_rejection(error, self._name) is None

    def _send(
        self,
        endpoint: protocol.Endpoint,
        path: Mapping[str, str],
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        key: str | None = None,
    ) -> bytes:
        self.require(endpoint)
        url = f"{self._server}/{endpoint.root}v1/{self._prefix}{endpoint.path.format(**path)}"
        try:
            return self._session.send(endpoint.method, url, params or {}, body, key)
        except HttpRefusal as error:
            status, text = error.response.status_code, error.response.text
            # A proxy that has no server behind it says 404 of everything: only the server knows what it does not have.
            is_proxys = status == HTTPStatus.NOT_FOUND and protocol_error(text) is None
            kind = None if is_proxys else endpoint.refusals.get(status)
            if kind is None:
                raise
            raise kind(str(error)) from error

    def _pages(
        self, kind: type[P], endpoint: protocol.Endpoint, path: Mapping[str, str], params: Mapping[str, str]
    ) -> Iterator[P]:
        token: dict[str, str] = {}
        asked: set[str] = set()
        while True:
            page = from_json(self._send(endpoint, path, params={**params, **self._page_size, **token}), kind)
            yield page
            if not page.next_page_token:
                return
            if page.next_page_token in asked:
                raise UnsupportedError(
                    f"the server repeats a page token of {endpoint}, so the listing never ends; "
                    "report this to the catalog's operator"
                )
            asked.add(page.next_page_token)
            token = {"pageToken": page.next_page_token}

    def require(self, *endpoints: protocol.Endpoint) -> None:
        """Raise `UnsupportedError` where the server has none of some kinds of requests."""
        if not any(map(self.has, endpoints)):
            wanted = " or ".join(repr(str(endpoint)) for endpoint in endpoints)
            raise UnsupportedError(
                f"catalog {self._name!r} does not take {wanted}: it is not among the endpoints that its server lists; ask its "
                "operator for it",
                catalog=self._name,
            )

    def has(self, endpoint: protocol.Endpoint) -> bool:
        """Whether the server has a kind of request: it lists those that it has, or has the protocol's first ones."""
        return str(endpoint) in self._endpoints if self._endpoints else not endpoint.is_newer

    def _path(self, identifier: Identifier) -> dict[str, str]:
        return {**self._namespace(identifier[:-1]), "table": quote(identifier[-1], safe="")}

    def _namespace(self, namespace: Identifier) -> dict[str, str]:
        return {"namespace": quote(self._joined(namespace), safe="")}

    def _joined(self, namespace: Identifier) -> str:
        """The levels of a namespace as the server takes them apart; raises `UsageError` for one that it would split."""
        if lost := next((level for level in namespace if self._separator in level), None):
            raise UsageError(
                f"the server separates the levels of a namespace with {self._separator!r}, so that no request can name "
                f"the level {lost!r}"
            )
        return self._separator.join(namespace)


def _server_properties(properties: Mapping[str, Any] | None) -> dict[str, str]:
    """What a server says of properties, but for logins that have a type: one of these names code that is run."""
    return {key: value for key, value in protocol.texts(properties).items() if not key.startswith(AUTH)}


def _config(settings: Settings, session: RestSession) -> protocol.ConfigResponse:
    """What the server wants to be known; it may change all that a session is made from."""
    server, warehouse = settings.address("uri").rstrip("/"), settings.text("warehouse")
    try:
        sent = session.send("GET", f"{server}/v1/config", {"warehouse": warehouse} if warehouse else {})
        return from_json(sent, protocol.ConfigResponse)
    except BaseException:
        session.close()
        raise


def _new_key(runtime: Runtime) -> str:
    """A key that no other request has: a UUID of version 7, of which the protocol wants them."""
    random = runtime.new_uuid().int & ((1 << 76) - 1)
    return str(UUID(int=(runtime.now_ms() & ((1 << 48) - 1)) << 80 | 7 << 76 | random))
