"""What the catalogs behind a server's or service's client have in common: names, namespaces, loading, errors in our words.

Properties are PyIceberg's; the metadata is read from its location through our storage, so that keys which a client does not
know survive. How a commit is made differs: `rest.py` and `metastore.py`.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from icekeep.catalog.base import (
    BaseCatalog,
    Description,
    Identifier,
    NamespacesMissingError,
    Pointer,
    SwapOutcome,
    Table,
    as_identifier,
    check_meant,
    format_identifier,
    in_parts,
    namespace_exists,
    namespace_not_empty,
    no_such_namespace,
    no_such_table,
    table_exists,
    validate_namespace,
    validate_table_identifier,
)
from icekeep.catalog.clients.errors import (
    CommitRefused,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    Settings,
    TableExists,
    described,
    is_bad_request,
    proved_rejection,
    read_failure,
)
from icekeep.catalog.metadata_files import read_current
from icekeep.catalog.registering import read_unregistered, registered
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    brought_by,
)
from icekeep.runtime import Runtime
from icekeep.secrets import without_login
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Requirement, Update
from icekeep.storage.base import Storage
from icekeep.storage.open import open_storage

CONNECT_TIMEOUT = "rest.client.connection-timeout-ms"
ANSWER_TIMEOUT = "rest.client.socket-timeout-ms"
HIVE_TIMEOUT = "hive.client.socket-timeout-ms"
TIMEOUTS = (CONNECT_TIMEOUT, ANSWER_TIMEOUT, HIVE_TIMEOUT)
"""Properties in milliseconds that PyIceberg lacks; the first two are named as in Iceberg Java."""

_EXTRAS = {
    "puresasl": "pyiceberg[hive-kerberos]",
    "google.auth": "pyiceberg[gcp-auth]",
    "azure.identity": "pyiceberg[entra-auth]",
}
"""Of PyIceberg, that bring modules which no extra of icekeep does."""
_BRINGERS = {"hive_metastore": "pyiceberg"}
"""What a module comes with, where that has a name of its own."""


def require(catalog_name: str, modules: Iterable[str]) -> None:
    """Raise `UnsupportedError` unless the modules that a catalog's client takes are installed; none is imported."""
    for module in modules:
        try:
            is_installed = find_spec(module) is not None
        except ModuleNotFoundError:
            # Nor is the package that it is in.
            is_installed = False
        if is_installed:
            continue
        release = installed_release(_BRINGERS[module]) if module in _BRINGERS else None
        problem = "" if release is None else f", which {release} does not bring"
        extra = _EXTRAS.get(module)
        remedy = brought_by("catalogs") if extra is None else f"install it with: pip install '{extra}'"
        raise UnsupportedError(
            f"catalog {catalog_name!r} needs the Python module {module!r}{problem}; {remedy}", module=module
        )


def installed_release(package: str) -> str | None:
    """Name and version of a package that is installed as such; one may lie in a zip."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


_PARTS = ("warehouse", "prefix", "glue.id", "glue.region", "client.region", "glue.endpoint", "hive.catalog")
"""What tells catalogs apart that have one address."""


class Client(Protocol):
    """What is asked of a server or service; it raises refusals (`errors.py`), or whatever its library does."""

    def describe(self, identifier: Identifier) -> Description | None:
        """As `Catalog.describe`; raises `NoSuchTable`."""

    def drop_table(self, identifier: Identifier) -> str | None:
        """Drop a table and none of its files; returns its last metadata location, if the answer has it; raises `NoSuchTable`."""

    def rename_table(self, old: Identifier, new: Identifier) -> None:
        """Give a table another name; raises `NoSuchTable`, `TableExists` or `NoSuchNamespace`."""

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        """The tables right in a namespace that exists."""

    def list_namespaces(self, parent: Identifier) -> list[Identifier]:
        """The namespaces right below another, or at the top; raises `NoSuchNamespace`."""

    def namespace_properties(self, namespace: Identifier) -> Mapping[str, str]:
        """What a namespace says of itself; raises `NoSuchNamespace`."""

    def create_namespace(self, namespace: Identifier, properties: Mapping[str, str]) -> None:
        """Create a namespace; raises `NamespaceExists`."""

    def drop_namespace(self, namespace: Identifier) -> None:
        """Remove an empty namespace; raises `NoSuchNamespace` or `NamespaceNotEmpty`."""


C = TypeVar("C", bound=Client)


class ClientCatalog(BaseCatalog, ABC, Generic[C]):
    """A catalog behind a client; each thread and each process has a client of its own."""

    restores_snapshots = False
    """A server refuses old sequence numbers, and what stands behind a metastore may be read by engines that do."""

    def __init__(self, name: str, properties: Mapping[str, str], runtime: Runtime) -> None:
        super().__init__(name, properties, runtime)
        self._properties = dict(properties)
        self._local = threading.local()
        require(name, self.modules)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    @property
    @abstractmethod
    def modules(self) -> tuple[str, ...]:
        """The Python modules that the client takes, which an installation may lack."""

    def load(self, identifier: Identifier | str) -> Table:
        return read_current(self, as_identifier(identifier))

    def find(self, identifier: Identifier | str) -> Pointer:
        return self._find(validate_table_identifier(as_identifier(identifier)))

    def describe(self, identifier: Identifier) -> Description | None:
        client = self._client()
        with self._reading(identifier):
            return client.describe(validate_table_identifier(identifier))

    @property
    def identity(self) -> str:
        said = urlsplit(without_login(self._properties.get("uri", "")))
        address = said._replace(query="", fragment="").geturl().rstrip("/")
        parts = (type(self).__name__.removesuffix("Catalog").lower(), address, *map(self._properties.get, _PARTS))
        return " ".join(part for part in parts if part)

    @property
    def digest(self) -> str:
        """A hash of all properties, secrets included: of two principals one must not get what the other is handed out."""
        return blake2b(repr(sorted(self._properties.items())).encode(), digest_size=16).hexdigest()

    @property
    def warehouse(self) -> str | None:
        # What a server calls a warehouse need not be a location.
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

    @abstractmethod
    def reattach(self, table: Table) -> SwapOutcome:
        """As the protocol says."""

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        validate_table_identifier(identifier)
        # No client compares while it drops, so that this is looked at right before.
        pointer = None
        try:
            pointer = self._find(identifier)
        except NotFoundError:
            raise
        except IcekeepError:
            # An entry that says nothing of use can be dropped as it is.
            if table_uuid is not None or metadata_location is not None:
                raise
        if pointer is not None:
            check_meant(self, identifier, pointer, table_uuid, metadata_location)
        with self._changing(f"the drop of table {format_identifier(identifier)!r}", identifier):
            last = self._drop(identifier, pointer)
        return last or ("" if pointer is None else pointer.metadata_location)

    def _drop(self, identifier: Identifier, pointer: Pointer | None) -> str | None:
        """Drop a table, whose metadata is where `pointer` says; returns as `Client.drop_table`."""
        return self._client().drop_table(identifier)

    @property
    def storage(self) -> Storage:
        return open_storage(self._properties, self.runtime)

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
        with self._reading(namespace=in_parts(namespace)):
            # A Hive metastore answers with no tables where there is no database.
            if not self._namespace_exists(namespace):
                raise no_such_namespace(self, namespace)
            return sorted(self._client().list_tables(namespace))

    def list_namespaces(self) -> list[Identifier]:
        with self._reading():
            return sorted(self._all_namespaces())

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        validate_namespace(namespace)
        with self._changing(f"the creation of namespace {format_identifier(namespace)!r}"):
            try:
                self._client().create_namespace(namespace, dict(properties or {}))
            except NamespaceExists as error:
                if not exists_ok:
                    raise namespace_exists(self, namespace) from error

    def drop_namespace(self, namespace: Identifier) -> None:
        if not self._namespace_exists(in_parts(namespace)):
            raise no_such_namespace(self, namespace)
        with self._changing(f"the drop of namespace {format_identifier(namespace)!r}"):
            try:
                self._client().drop_namespace(namespace)
            except NoSuchNamespace as error:
                raise no_such_namespace(self, namespace) from error
            except NamespaceNotEmpty as error:
                raise namespace_not_empty(self, namespace) from error

    @abstractmethod
    def _connect(self) -> C:
        """Make the client; it is used by one thread only."""

    @abstractmethod
    def _find(self, identifier: Identifier) -> Pointer:
        """As `find`, of an identifier that can name a table."""

    def _settings(self) -> Settings:
        return Settings(self.name, self._properties)

    def _client(self) -> C:
        known: tuple[int, C] | None = getattr(self._local, "client", None)
        if known is None or known[0] != os.getpid():
            with self._reading():
                known = (os.getpid(), self._connect())
            self._local.client = known
        return known[1]

    def _namespace_exists(self, namespace: Identifier) -> bool:
        with self._reading():
            try:
                self._client().namespace_properties(namespace)
            except NoSuchNamespace:
                return False
        return True

    def _all_namespaces(self) -> set[Identifier]:
        """All there are, by asking for what is below each.

        Many servers have one level. Of these some pass over what they are asked about, and answer with the top again, others take
        the question for a mistake, whatever the parent is. Some servers fold the case of names.

        Raises:
            NamespacesMissingError: there may be others.
        """
        top = set(self._listed_below(()) or ())
        found, unasked, are_answered, refusals, strangers = set(top), [*top], False, list[str](), list[Identifier]()
        while unasked:
            parent = unasked.pop()
            try:
                answer = self._listed_below(parent)
            except Exception as error:
                if not is_bad_request(error) or proved_rejection(error, self.name) is None:
                    raise
                refusals.append(f"asked what is below {format_identifier(parent)!r}, it refuses ({described(error)})")
                continue
            if answer is None:
                continue
            listed, are_answered = set(answer), True
            below = listed if top <= listed else {name for name in listed if _lies_below(parent, name)}
            strangers += listed - below - {parent}
            unasked += below - found
            found |= below
        if strangers:
            refusals.append(f"it lists {format_identifier(min(strangers))!r} below a namespace that has another name")
        if strangers or (refusals and (are_answered or max(map(len, found)) > 1)):
            problem = f"catalog {self.name!r} may have namespaces that are not known: {refusals[0]}"
            raise NamespacesMissingError(problem, sorted(found.union(strangers)), catalog=self.name)
        return found

    def _listed_below(self, namespace: Identifier) -> Sequence[Identifier] | None:
        """What the server lists; `None` below a namespace that somebody dropped since its parent was listed."""
        try:
            return self._client().list_namespaces(namespace)
        except NoSuchNamespace as error:
            if not namespace:
                raise UnavailableError(
                    f"catalog {self.name!r} does not list its namespaces: {described(error)}", catalog=self.name
                ) from error
            return None

    @contextmanager
    def _reading(self, table: Identifier | None = None, namespace: Identifier | None = None) -> Iterator[None]:
        """Turn what a client raises into our errors; `table` and `namespace` must be there, where they are given."""
        try:
            yield
        except IcekeepError:
            raise
        except NoSuchTable as error:
            raise read_failure(error, self.name) if table is None else no_such_table(self, table) from error
        except NoSuchNamespace as error:
            raise read_failure(error, self.name) if namespace is None else no_such_namespace(self, namespace) from error
        except Exception as error:
            raise read_failure(error, self.name) from error

    @contextmanager
    def _changing(self, what: str, old: Identifier | None = None, new: Identifier | None = None) -> Iterator[None]:
        """Turn what a client raises into an error that says whether the change may have been made.

        `old` is the table that must be there, `new` the one that must not.
        """
        try:
            yield
        except IcekeepError:
            raise
        except NoSuchTable as error:
            raise no_such_table(self, old or ()) from error
        except TableExists as error:
            raise table_exists(self, new or ()) from error
        except NoSuchNamespace as error:
            raise no_such_namespace(self, (new or old or ())[:-1]) from error
        except CommitRefused as error:
            raise ConflictError(
                f"{what} in catalog {self.name!r} met another writer ({described(error)}); nothing was changed, run "
                "it again"
            ) from error
        except Exception as error:
            rejected = proved_rejection(error, self.name)
            raise rejected or OutcomeUnknownError(
                f"{what} in catalog {self.name!r} may or may not have happened ({described(error)}); look before "
                "it is tried again",
                catalog=self.name,
            ) from error


def _lies_below(parent: Identifier, name: Identifier) -> bool:
    above = name[: len(parent)]
    return len(name) > len(parent) and [*map(str.casefold, above)] == [*map(str.casefold, parent)]
