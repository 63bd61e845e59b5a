"""What the catalogs behind PyIceberg's clients have in common: names, namespaces, loading, and errors in our words.

PyIceberg brings its clients and their ways to log in; the metadata is read by us from its location through our storage,
so that keys which PyIceberg's models do not know survive. How a commit is made differs: `rest.py` and `metastore.py`.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

from icekeep.catalog.base import (
    Description,
    Identifier,
    Pointer,
    SwapOutcome,
    Table,
    as_identifier,
    format_identifier,
    no_such_namespace,
    no_such_table,
    table_exists,
    validate_namespace,
    validate_table_identifier,
)
from icekeep.catalog.clients.errors import described, proved_rejection, read_failure
from icekeep.catalog.meant_table import check_meant
from icekeep.catalog.metadata_files import read_current
from icekeep.catalog.registering import read_unregistered, registered
from icekeep.errors import IcekeepError, NotFoundError, OutcomeUnknownError, UnsupportedError, UsageError
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.requirements import Requirement
from icekeep.spec.updates import Update
from icekeep.storage.base import Storage
from icekeep.storage.open import open_storage

CONNECT_TIMEOUT = "rest.client.connection-timeout-ms"
ANSWER_TIMEOUT = "rest.client.socket-timeout-ms"
HIVE_TIMEOUT = "hive.client.socket-timeout-ms"
TIMEOUTS = (CONNECT_TIMEOUT, ANSWER_TIMEOUT, HIVE_TIMEOUT)
"""Properties in milliseconds that PyIceberg lacks; the first two are named as in Iceberg Java."""

_FIRST_VERSION = (0, 12)
_FIRST_UNKNOWN_VERSION = (0, 13)


def require_pyiceberg(catalog_name: str, installed: str | None = None) -> None:
    """Raise `UnsupportedError` unless a PyIceberg is installed whose inner workings are known.

    Args:
        installed: the version that is there, by default as the package itself says.
    """
    try:
        found = installed or version("pyiceberg")
    except PackageNotFoundError:
        raise UnsupportedError(
            f"catalog {catalog_name!r} needs PyIceberg's clients; install them with: pip install 'icekeep[catalogs]'"
        ) from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if not _FIRST_VERSION <= numbers < _FIRST_UNKNOWN_VERSION:
        raise UnsupportedError(
            f"catalog {catalog_name!r} needs PyIceberg 0.12, but {found} is installed; install the right one with: "
            "pip install 'icekeep[catalogs]'",
            version=found,
        )


_PARTS = ("warehouse", "prefix", "glue.id", "glue.region", "client.region", "glue.endpoint", "hive.catalog")
"""What tells catalogs apart that have one address."""


class ClientCatalog(ABC):
    """A catalog that one of PyIceberg's clients talks to; each thread and each process has a client of its own."""

    restores_snapshots = False
    """A server refuses old sequence numbers, and what stands behind a metastore may be read by engines that do."""

    def __init__(self, name: str, properties: Mapping[str, str], runtime: Runtime) -> None:
        require_pyiceberg(name)
        self.name = name
        self._properties = dict(properties)
        self._runtime = runtime
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def load(self, identifier: Identifier | str) -> Table:
        identifier = validate_table_identifier(as_identifier(identifier))
        return read_current(self, identifier, lambda: self._find(identifier))

    def find(self, identifier: Identifier | str) -> Pointer:
        return self._find(validate_table_identifier(as_identifier(identifier)))

    def describe(self, identifier: Identifier) -> Description | None:
        from pyiceberg.exceptions import NoSuchTableError

        client = self._client()
        with self._reading():
            try:
                described: Description | None = client.describe(validate_table_identifier(identifier))
            except NoSuchTableError as error:
                raise no_such_table(self, identifier) from error
        return described

    @property
    @abstractmethod
    def compares_metadata(self) -> bool:
        """As the protocol says."""

    @property
    def identity(self) -> str:
        said = urlsplit(self._properties.get("uri", ""))
        address = said._replace(netloc=said.netloc.rpartition("@")[2], query="", fragment="").geturl().rstrip("/")
        parts = (type(self).__name__.removesuffix("Catalog").lower(), address, *map(self._properties.get, _PARTS))
        return " ".join(part for part in parts if part)

    @property
    def digest(self) -> str:
        """A hash of all properties, secrets included: of two principals one must not get what the other is handed out."""
        return blake2b(repr(sorted(self._properties.items())).encode(), digest_size=16).hexdigest()

    @property
    def warehouse(self) -> str | None:
        # What a server calls a warehouse need not be a place.
        given = self._properties.get("warehouse", "")
        return given.rstrip("/") if ":/" in given or given.startswith("/") else None

    @abstractmethod
    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        """As the protocol says."""

    @abstractmethod
    def default_location(self, identifier: Identifier) -> str:
        """As the protocol says."""

    @abstractmethod
    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        """As the protocol says."""

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        validate_table_identifier(identifier)
        # No client compares while it drops, so that this is looked at right before.
        pointer = self._to_be_dropped(identifier, is_named=table_uuid is not None or metadata_location is not None)
        if pointer is not None:
            check_meant(self, identifier, pointer, table_uuid, metadata_location)
        with self._changing(f"the drop of table {format_identifier(identifier)!r}", identifier):
            self._client().drop_table(identifier)
        return "" if pointer is None else pointer.metadata_location

    def _to_be_dropped(self, identifier: Identifier, *, is_named: bool) -> Pointer | None:
        """Where the metadata of a table is that is to go; `None` where that is not known, and nobody says which is meant."""
        try:
            return self._find(identifier)
        except NotFoundError:
            raise
        except IcekeepError:
            # An entry that says nothing of use can be dropped as it is.
            if is_named:
                raise
            return None

    @property
    def storage(self) -> Storage:
        return open_storage(self._properties, self._runtime)

    def register_table(self, identifier: Identifier, metadata_location: str) -> Table:
        table = read_unregistered(self, identifier, metadata_location, self.storage)
        if not self._namespace_exists(identifier[:-1]):
            raise no_such_namespace(self, identifier[:-1])
        return registered(table, lambda: self._register(table))

    @abstractmethod
    def _register(self, table: Table) -> None:
        """Ask once for a table to be taken in, if its name is free.

        Raises:
            UsageError: the name is taken.
            OutcomeUnknownError: it may or may not have been taken in; any other error proves that it was not.
        """

    def rename(self, old: Identifier, new: Identifier) -> None:
        validate_table_identifier(old)
        validate_table_identifier(new)
        client = self._client()
        if not self._namespace_exists(new[:-1]):
            raise no_such_namespace(self, new[:-1])
        with self._changing(f"the renaming of table {format_identifier(old)!r}", old, new):
            client.rename_table(old, new)

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        with self._reading():
            # A Hive metastore answers with no tables where there is no database.
            tables = self._client().list_tables(namespace) if self._namespace_exists(namespace) else None
        if tables is None:
            raise no_such_namespace(self, namespace)
        return sorted(tuple(table) for table in tables)

    def list_namespaces(self) -> list[Identifier]:
        with self._reading():
            return sorted(self._below(()))

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        validate_namespace(namespace)
        from pyiceberg.exceptions import NamespaceAlreadyExistsError

        with self._changing(f"the creation of namespace {format_identifier(namespace)!r}"):
            try:
                self._client().create_namespace(namespace, dict(properties or {}))
            except NamespaceAlreadyExistsError as error:
                if not exists_ok:
                    raise UsageError(
                        f"namespace {format_identifier(namespace)!r} exists already in catalog {self.name!r}"
                    ) from error

    def drop_namespace(self, namespace: Identifier) -> None:
        from pyiceberg.exceptions import NamespaceNotEmptyError, NoSuchNamespaceError

        if not self._namespace_exists(namespace):
            raise no_such_namespace(self, namespace)
        with self._changing(f"the drop of namespace {format_identifier(namespace)!r}"):
            try:
                self._client().drop_namespace(namespace)
            except NoSuchNamespaceError as error:
                raise no_such_namespace(self, namespace) from error
            except NamespaceNotEmptyError as error:
                raise UsageError(
                    f"namespace {format_identifier(namespace)!r} in catalog {self.name!r} is not empty; drop what is in "
                    "it first"
                ) from error

    @abstractmethod
    def _connect(self) -> Any:
        """Make PyIceberg's catalog; it is used by one thread only."""

    @abstractmethod
    def _find(self, identifier: Identifier) -> Pointer:
        """As `find`, of an identifier that can name a table."""

    def _client(self) -> Any:
        known: tuple[int, Any] | None = getattr(self._local, "client", None)
        if known is None or known[0] != os.getpid():
            with self._reading():
                known = (os.getpid(), self._connect())
            self._local.client = known
        return known[1]

    def _namespace_exists(self, namespace: Identifier) -> bool:
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            with self._reading():
                self._client().load_namespace_properties(namespace)
        except NotFoundError:
            return False
        except IcekeepError as error:
            if isinstance(error.__cause__, NoSuchNamespaceError):
                return False
            raise
        return True

    def _below(self, namespace: Identifier) -> Iterator[Identifier]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            children = [tuple(child) for child in self._client().list_namespaces(namespace)]
        except NoSuchNamespaceError:
            # Somebody dropped it since its parent was listed.
            return
        for child in children:
            yield child
            yield from self._below(child)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except IcekeepError:
            raise
        except Exception as error:
            raise read_failure(error, self.name, self._properties) from error

    @contextmanager
    def _changing(self, what: str, old: Identifier | None = None, new: Identifier | None = None) -> Iterator[None]:
        """Turn what a client raises into an error that says whether the change may have been made.

        `old` is the table that must be there, `new` the one that must not.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError

        try:
            yield
        except IcekeepError:
            raise
        except NoSuchTableError as error:
            raise no_such_table(self, old or ()) from error
        except TableAlreadyExistsError as error:
            raise table_exists(self, new or ()) from error
        except NoSuchNamespaceError as error:
            raise no_such_namespace(self, (new or old or ())[:-1]) from error
        except Exception as error:
            rejected = proved_rejection(error, self.name, self._properties)
            raise rejected or OutcomeUnknownError(
                f"{what} in catalog {self.name!r} may or may not have happened ({self._described(error)}); look before "
                "it is tried again",
                catalog=self.name,
            ) from error

    def _described(self, error: BaseException) -> str:
        return described(error, self._properties)
