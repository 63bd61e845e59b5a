"""PyIceberg's REST client with what it lacks: bounds on how long a server may take, and no second sending of a commit.

Its sessions, its ways to log in and its errors are used as they are. Tables are loaded and committed to without its
models, which refuse metadata that they do not know and drop keys; that ties this file to the inner methods of PyIceberg
0.12.

Imported only when a REST catalog is used, since PyIceberg is an optional extra.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Self

from pyiceberg.catalog.rest import _RETRY_ARGS, Capability, Endpoints, RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from requests import HTTPError
from tenacity import retry
from urllib3 import Retry

from icekeep.catalog.base import Description, Identifier
from icekeep.catalog.clients.adapter import ANSWER_TIMEOUT, CONNECT_TIMEOUT

CONNECT_TIMEOUT_DEFAULT_MS = 60_000
ANSWER_TIMEOUT_DEFAULT_MS = 300_000


_READS = frozenset({"GET", "HEAD"})
_READS_AGAIN = 3
_PASSING = frozenset({429, 502, 503, 504})
_NEVER_AGAIN = Retry(0, read=False)


class _ReadsAgain(Retry):
    """Sends what only reads once more after a failure that may pass: at once first, since an idle connection may be dead.

    Anything else is sent once, also where it surely never left: what becomes of a commit is for its loop to decide.
    """

    def increment(self, method: str | None = None, *rest: Any, **named: Any) -> Self:
        if method not in _READS:
            # Raises, as it has nothing to spend.
            _NEVER_AGAIN.increment(method, *rest, **named)
        return super().increment(method, *rest, **named)


class BoundedRestCatalog(RestCatalog):  # type: ignore[misc]
    """A REST client whose sessions wait for as long as its properties say, in milliseconds, and repeat what only reads."""

    def _create_session(self) -> Any:
        session = super()._create_session()
        limits_s = tuple(
            int(self.properties.get(name, default)) / 1000
            for name, default in (
                (CONNECT_TIMEOUT, CONNECT_TIMEOUT_DEFAULT_MS),
                (ANSWER_TIMEOUT, ANSWER_TIMEOUT_DEFAULT_MS),
            )
        )
        session.request = partial(session.request, timeout=limits_s)
        for adapter in session.adapters.values():
            # One that signs requests for AWS comes with ten retries of its own.
            adapter.max_retries = _ReadsAgain(
                _READS_AGAIN,
                allowed_methods=_READS,
                status_forcelist=_PASSING,
                backoff_factor=0.2,
                raise_on_status=False,
                # A server may ask for hours.
                respect_retry_after_header=False,
            )
        return session

    @retry(**_RETRY_ARGS)  # type: ignore[untyped-decorator]
    def load_table(self, identifier: Identifier) -> "LoadedTable":
        """What the server says of a table, its metadata aside, which PyIceberg's models do not know all kinds of."""
        self._check_endpoint(Capability.V1_LOAD_TABLE)
        response = self._session.get(self._table_url(identifier))
        answer = _parsed(response, {404: NoSuchTableError})
        location = answer.get("metadata-location")
        properties = {**self.properties, **(answer.get("config") or {}), **self._chosen(answer, location)}
        return LoadedTable(location, {key: value for key, value in properties.items() if isinstance(value, str)})

    @retry(**_RETRY_ARGS)  # type: ignore[untyped-decorator]
    def describe(self, identifier: Identifier) -> Description | None:
        """What the server says of a table's places, in the answer to which it adds the metadata itself."""
        self._check_endpoint(Capability.V1_LOAD_TABLE)
        answer = _parsed(self._session.get(self._table_url(identifier)), {404: NoSuchTableError})
        metadata, file = answer.get("metadata"), answer.get("metadata-location")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("location"), str):
            return None
        properties = metadata.get("properties")
        given = properties if isinstance(properties, dict) else {}
        return Description(metadata["location"], given, (file,) if isinstance(file, str) else (), is_whole=True)

    @retry(**_RETRY_ARGS)  # type: ignore[untyped-decorator]
    def load_credentials(self, identifier: Identifier, location: str | None = None) -> dict[str, str]:
        """The credentials that the server hands out now for a table's files; none where it has no request of their own."""
        if Capability.V1_LOAD_CREDENTIALS not in self._supported_endpoints:
            return {}
        path = self._split_identifier_for_path(identifier)
        response = self._session.get(str(self.url(Endpoints.load_credentials, prefixed=True, **path)))
        answer = _parsed(response, {404: NoSuchTableError})
        return {key: value for key, value in self._chosen(answer, location).items() if isinstance(value, str)}

    @retry(**_RETRY_ARGS)  # type: ignore[untyped-decorator]
    def send_commit(self, identifier: Identifier, request: Mapping[str, Any]) -> str:
        """Send a commit as it stands and return the new metadata location.

        Only a request that was not let in (401, 419) is sent again, once.
        """
        self._check_endpoint(Capability.V1_UPDATE_TABLE)
        response = self._session.post(self._table_url(identifier), data=json.dumps(request).encode())
        location = _parsed(response, {409: CommitFailedException}).get("metadata-location")
        if not isinstance(location, str) or not location:
            raise ValueError("the answer to a commit has no metadata-location")
        return location

    @retry(**_RETRY_ARGS)  # type: ignore[untyped-decorator]
    def send_registration(self, identifier: Identifier, metadata_location: str) -> None:
        """Ask the server to take in a table by its metadata file, if the name is free; sent again as a commit is."""
        self._check_endpoint(Capability.V1_REGISTER_TABLE)
        path = self._split_identifier_for_path(identifier)
        request = {"name": identifier[-1], "metadata-location": metadata_location}
        url = str(self.url(Endpoints.register_table, prefixed=True, namespace=path["namespace"]))
        _parsed(
            self._session.post(url, data=json.dumps(request).encode()),
            {404: NoSuchNamespaceError, 409: TableAlreadyExistsError},
        )

    def _chosen(self, answer: Mapping[str, Any], location: str | None) -> dict[str, Any]:
        """The credentials of an answer for a location, by the longest prefix."""
        stored = [StorageCredential.model_validate(item) for item in answer.get("storage-credentials") or ()]
        return dict(self._resolve_storage_credentials(stored, location))

    def _table_url(self, identifier: Identifier) -> str:
        path = self._split_identifier_for_path(identifier)
        return str(self.url(Endpoints.load_table, prefixed=True, **path))

    def _load_file_io(self, *_: Any) -> None:
        """Files are our storage's business, and PyIceberg would import whatever class a table's properties name."""


def _parsed(response: Any, errors: Mapping[int, type[Exception]]) -> dict[str, Any]:
    """An answer's JSON object; raises PyIceberg's error for a status that is no success."""
    try:
        response.raise_for_status()
    except HTTPError as error:
        _handle_non_200_response(error, errors)
    answer = response.json()
    if not isinstance(answer, dict):
        raise ValueError("the answer is no JSON object")
    return answer


class LoadedTable(NamedTuple):
    """What an answer says of a table: where its metadata is, and what its storage is opened with, credentials included.

    The table's own properties are not among them: whoever may write a table must not say where its files are fetched.
    """

    metadata_location: str | None
    storage_properties: dict[str, str]
