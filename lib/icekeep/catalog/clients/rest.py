"""A catalog behind Iceberg's REST protocol: the server checks a commit's requirements and writes the metadata.

The compare and swap is the server's, on the requirements and not on the base: a commit whose requirements still hold is
applied to whatever is current. What that can cost is looked for after an expiration.
"""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from icekeep.catalog.base import (
    Committed,
    Conflict,
    Identifier,
    Pointer,
    StoredPolicy,
    SwapOutcome,
    Table,
    Unknown,
    format_identifier,
    no_such_namespace,
    table_exists,
    validate_table_identifier,
)
from icekeep.catalog.clients import rest_protocol as protocol
from icekeep.catalog.clients.adapter import ClientCatalog, require
from icekeep.catalog.clients.errors import (
    AUTH_TYPE,
    SIGV4,
    CommitRefused,
    TableExists,
    described,
    is_answered,
    is_bad_request,
    proved_rejection,
)
from icekeep.catalog.metadata_files import next_metadata, read_table
from icekeep.catalog.resending import StatusChecks
from icekeep.errors import (
    IcekeepError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.settings import CatalogChange
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.properties import is_true
from icekeep.spec.updates import (
    AddSnapshot,
    RemoveSnapshots,
    Requirement,
    Update,
)
from icekeep.storage.base import Storage
from icekeep.storage.open import open_storage

if TYPE_CHECKING:
    from icekeep.catalog.clients.rest_client import ParsedResponse, RestClient

_ENDPOINTS_NEEDED = {
    CatalogChange.COMMIT: (protocol.UPDATE_TABLE,),
    CatalogChange.DROP: (protocol.DROP_TABLE, protocol.UNREGISTER_TABLE),
}
_LOGIN_MODULES = {
    "google": ("pyiceberg", "google.auth"),
    "entra": ("pyiceberg", "azure.identity"),
    "custom": ("pyiceberg",),
}
"""The modules of logins that have a type."""

_SNAPSHOT_LOADING_MODE = "snapshot-loading-mode"
_IS_NESSIE = "nessie.is-nessie-catalog"


class RestCatalog(ClientCatalog["RestClient"]):
    """Tables of a REST server; properties are PyIceberg's.

    Iceberg's names `rest.client.connection-timeout-ms` (60 s) and `rest.client.socket-timeout-ms` (300 s) bound each
    request, in milliseconds, and `first-answer-timeout-ms` (120 s) all tries until the server has answered once.
    """

    compares_metadata = False

    @property
    def modules(self) -> tuple[str, ...]:
        signs = ("boto3",) if self._settings().switch(SIGV4, default=False) else ()
        return ("requests", *signs, *_LOGIN_MODULES.get(self._properties.get(AUTH_TYPE, ""), ()))

    @property
    def storage(self) -> Storage:
        # The server may say where the store is.
        with self._reading():
            return open_storage(self._client().properties, self.runtime)

    @property
    def garbage_collector(self) -> str | None:
        """Nessie's, whose metadata shows one snapshot of one commit; the server says whether it is one."""
        with self._reading():
            return "nessie-gc" if is_true(self._client().properties, _IS_NESSIE, default=False) else None

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        validate_table_identifier(identifier)
        updates = protocol.updates_to_json(None, protocol.creation_updates(metadata))
        request = protocol.commit_request(identifier, [protocol.ASSERT_CREATE], updates)
        client = self._client()
        if not self._namespace_exists(identifier[:-1]):
            raise no_such_namespace(self, identifier[:-1])
        with suppress(NotFoundError):
            self._find(identifier)
            raise table_exists(self, identifier)
        with self._changing(f"the creation of table {format_identifier(identifier)!r}"):
            try:
                client.send_commit(identifier, request)
            except CommitRefused as error:
                # Ours, if a request that was sent twice on the way met itself.
                with suppress(IcekeepError):
                    table = self.load(identifier)
                    if table.metadata.table_uuid == metadata.table_uuid:
                        return table
                raise table_exists(self, identifier) from error
        try:
            return self.load(identifier)
        except IcekeepError as error:
            raise OutcomeUnknownError(
                f"table {format_identifier(identifier)!r} was created in catalog {self.name!r}, but cannot be loaded: "
                f"{error.message}",
                catalog=self.name,
            ) from error

    def default_location(self, identifier: Identifier) -> str:
        validate_table_identifier(identifier)
        # Only the server knows: it is asked to prepare a table, which creates none.
        with self._reading(namespace=identifier[:-1]):
            try:
                return self._client().stage_table(identifier)
            except TableExists as error:
                raise table_exists(self, identifier) from error

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        expected = next_metadata(table, requirements, updates, self.runtime.now_ms())
        if isinstance(expected, Conflict):
            return expected
        request = protocol.commit_request(
            table.identifier,
            [protocol.requirement_to_json(requirement) for requirement in requirements],
            protocol.updates_to_json(table.metadata, updates),
        )
        client = self._client()
        try:
            landed = client.send_commit(table.identifier, request, StatusChecks.of(table.metadata, is_lenient=True))
        except IcekeepError:
            raise
        except Exception as error:  # noqa: BLE001 - the whitelist is closed, and all else is unknown
            return self._outcome_of(error, table, updates)
        outcome = self._landed(table, landed.value)
        if isinstance(outcome, Committed) and any(isinstance(update, RemoveSnapshots) for update in updates):
            return _with_all_refs(outcome, table, expected, landed)
        return outcome

    def reattach(self, table: Table) -> SwapOutcome:
        raise UnsupportedError(
            f"catalog {self.name!r} writes metadata itself, and cannot be given that of {table.name!r}: fix it at the server, "
            "or drop the table there (without its files) and register a sound metadata file"
        )

    def stored_policies(self, identifier: Identifier) -> Sequence[StoredPolicy]:
        require(self.name, self.modules)
        client = self._client()
        with self._reading(identifier):
            return client.applicable_policies(identifier)

    def _drop(self, identifier: Identifier, pointer: Pointer | None) -> str | None:
        def is_another() -> bool:
            try:
                return pointer is None or self._find(identifier).metadata_location != pointer.metadata_location
            except NotFoundError:
                return False

        return self._client().drop_table(identifier, is_another)

    def check_change(self, change: CatalogChange) -> None:
        with self._reading():
            self._client().require(*_ENDPOINTS_NEEDED[change])

    def _namespace_exists(self, namespace: Identifier) -> bool:
        # Where that cannot be asked, the request that is made next finds out.
        return not self._client().has(protocol.LOAD_NAMESPACE) or super()._namespace_exists(namespace)

    def _register(self, table: Table) -> None:
        client = self._client()
        with self._changing(f"the registration of table {table.name!r}", None, table.identifier):
            client.send_registration(table.identifier, table.metadata_location)

    def _connect(self) -> "RestClient":
        from icekeep.catalog.clients.rest_client import RestClient

        client = RestClient(self._settings(), self.runtime)
        mode = client.properties.get(_SNAPSHOT_LOADING_MODE, "all")
        if mode != "all":
            raise UnsupportedError(
                f"catalog {self.name!r} has {_SNAPSHOT_LOADING_MODE}={mode}: with some of a table's snapshots only, files "
                "that others need would look like garbage; set it to all",
                catalog=self.name,
            )
        return client

    def _find(self, identifier: Identifier) -> Pointer:
        client = self._client()
        with self._reading(identifier):
            found = client.load_table(identifier)
        if not found.metadata_location:
            raise UnsupportedError(
                f"the server of catalog {self.name!r} gives no metadata location of table "
                f"{format_identifier(identifier)!r}",
                catalog=self.name,
            )
        renewal = TableCredentials(self, identifier, found.metadata_location)
        return Pointer(found.metadata_location, open_storage(found.storage_properties, self.runtime, renewal))

    def storage_properties(self, identifier: Identifier, location: str) -> Mapping[str, str]:
        """What the server hands out now for the files of a table, by the request for credentials or by loading the table.

        Raises:
            NotFoundError: the catalog has no such table any more.
        """
        require(self.name, self.modules)
        client = self._client()
        with self._reading(identifier):
            return client.load_credentials(identifier, location) or client.load_table(identifier).storage_properties

    def _outcome_of(self, error: Exception, base: Table, updates: Sequence[Update]) -> SwapOutcome:
        """What a failed commit is; raises the error where it is proved that nothing landed and trying again is no use."""
        text = described(error)
        if isinstance(error, CommitRefused):
            return Conflict(text)
        rejection = proved_rejection(error, self.name)
        if isinstance(rejection, NotFoundError):
            return Conflict(f"the table was dropped or renamed ({text})")
        if rejection is None:
            return Unknown(text, "")
        adds_snapshot = any(isinstance(update, AddSnapshot) for update in updates)
        if adds_snapshot and is_bad_request(error) and isinstance(rejection, UsageError) and self._has_moved_past(base):
            # No requirement names the last sequence number: many servers take one that is stale for a mistake (400).
            return Conflict(text)
        if isinstance(rejection, UnavailableError):
            rejection.was_sent = is_answered(error)
        raise rejection from error

    def _has_moved_past(self, base: Table) -> bool:
        """Whether a snapshot that was made for a table may have a sequence number or a first row id that is taken, or lack one.

        By this very commit perhaps, if it arrived twice.
        """
        try:
            now, before = self.load(base.identifier).metadata, base.metadata
        except IcekeepError:
            return True
        return (
            now.last_sequence_number > before.last_sequence_number
            or (now.next_row_id or 0) > (before.next_row_id or 0)
            or now.format_version > before.format_version
        )

    def _landed(self, table: Table, location: str) -> SwapOutcome:
        """The table after a commit that the server has confirmed, by way of new credentials if the old ones ran out."""
        try:
            return Committed(read_table(self, table.identifier, location, table.storage))
        except IcekeepError:
            pass
        try:
            return Committed(self.load(table.identifier))
        except IcekeepError as error:
            return Unknown(f"the server committed {location!r}, but that cannot be read: {error.message}", location)


class TableCredentials:
    """Asks a REST server again for what the files of a table are reached with, on the driver and in tasks.

    It travels with the catalog's properties, since a task has to log in by itself; its text shows none of them.
    """

    def __init__(self, catalog: RestCatalog, identifier: Identifier, location: str) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._location = location
        self.key: Hashable = (catalog.identity, catalog.digest, identifier, location.partition("/metadata/")[0])

    def properties(self) -> Mapping[str, str]:
        """See `Renewal`; the location decides which of several credentials is meant."""
        return self._catalog.storage_properties(self._identifier, self._location)


def _with_all_refs(
    outcome: Committed, base: Table, expected: TableMetadata, landed: "ParsedResponse[str]"
) -> SwapOutcome:
    """The outcome, or unknown where a reference was lost that was made after `base` was loaded.

    No requirement can name such a reference, and a server that removes its snapshot drops it in silence.
    """
    table, location = outcome.table, landed.value
    if not table.metadata.metadata_log and not base.metadata.metadata_log:
        # A server that keeps no log leaves no trace of what it replaced.
        return outcome
    history = [*(entry.metadata_file for entry in table.metadata.metadata_log), table.metadata_location]
    position = history.index(location) if location in history else 0
    before = history[:position]
    if before[-1:] == [base.metadata_location]:
        return outcome
    if landed.is_repeated:
        # Any later file may be the one that was replaced, since the answer tells of what is current.
        since = before.index(base.metadata_location) + 1 if base.metadata_location in before else position
        candidates = before[since:]
    else:
        candidates = before[-1:]
    try:
        replaced = [parse_metadata(table.storage.read(one), one) for one in candidates]
    except IcekeepError:
        replaced = []
    if not replaced:
        return Unknown(
            f"snapshots were removed, and it is not known which references went with them: the metadata before "
            f"{location!r} cannot be read",
            "",
        )
    kept = table.metadata.refs.keys() | (base.metadata.refs.keys() - expected.refs.keys())
    lost = {
        ref: file for file, metadata in zip(candidates, replaced, strict=True) for ref in metadata.refs.keys() - kept
    }
    if not lost:
        return outcome
    files = ", ".join(map(repr, dict.fromkeys(lost.values())))
    return Unknown(
        f"snapshots were removed, and with them the references {', '.join(map(repr, sorted(lost)))} that somebody made "
        f"meanwhile; they are in {files}, and no file was deleted",
        "",
    )
