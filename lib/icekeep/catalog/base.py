"""Where a table's pointer lives: the table as a value, what a swap may answer, and the protocol of a catalog.

A catalog hands out tables and swaps their pointers; nothing else does. Loops, retries and clean-up of what a change
wrote belong to `commit`; jobs never call `swap` themselves. Protocols beside it are for catalogs that can do more: give
the pointers of many tables in one request, or policies that their server stores.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from html import escape
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from icekeep.errors import ConfigError, ConflictError, NotFoundError, UnsupportedError, UsageError, shown_command
from icekeep.names import full_name, join_parts, split_name
from icekeep.runs import Run
from icekeep.runtime import Runtime
from icekeep.secrets import masked, without_secrets
from icekeep.settings import CatalogChange
from icekeep.spec.metadata import HistoryEntry, TableMetadata, history, parse_metadata
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.spec.retention import LEAST_AGE
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.times import format_time, span_ms
from icekeep.spec.updates import Requirement, Update
from icekeep.spelling import did_you_mean, with_one_typo
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical, split_locations

RECLAIM_ROOTS = "reclaim.roots"
"""The property of a catalog in the configuration, and the option of a run, that name places where files of tables may go."""

REWRITE_ROOTS = "rewrite.roots"
"""The property that names places whose files any table may have, though another table lies there."""

ROOTS_EXPECTED = "locations of directories such as s3://bucket/path, none of them a whole bucket or disk"


def named_roots_of(properties: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The places that a catalog's properties name: `reclaim.roots` and `rewrite.roots`."""
    reclaim, rewrite = (split_locations(properties.get(key, "")) for key in (RECLAIM_ROOTS, REWRITE_ROOTS))
    return reclaim, rewrite


CARRIED_KEYS = "carry.summary-keys"
"""The property that names keys of summaries which each snapshot of icekeep's jobs takes over from the one before it."""


class OperatorRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a catalog's properties say of all of its tables, whatever a table's owner or a run asks for.

    Attributes:
        carried_keys: of summaries, `*` at the end for any rest: external systems look for their progress in the head alone.
        least_snapshot_age_ms: no younger snapshot is expired, and no reference to one.
    """

    carried_keys: tuple[str, ...] = ()
    least_snapshot_age_ms: int = 0

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "OperatorRules":
        """Read the properties; raises `UsageError` for an age that is none."""
        keys = (key.strip() for key in properties.get(CARRIED_KEYS, "").split(","))
        age = properties.get(LEAST_AGE)
        return cls(carried_keys=tuple(filter(None, keys)), least_snapshot_age_ms=0 if age is None else span_ms(age))


Identifier = tuple[str, ...]
"""A namespace's levels; a table's name comes after those of its namespace."""


class Table(msgspec.Struct, frozen=True):
    """A table as it was when it was loaded; later commits do not show. `run` is the one that works on it, `None` for nobody's."""

    identifier: Identifier
    metadata: TableMetadata
    metadata_location: str
    storage: Storage
    catalog: "Catalog"
    run: Run | None = None

    @property
    def name(self) -> str:
        """The identifier as text, `db.events`."""
        return format_identifier(self.identifier)

    @property
    def full_name(self) -> str:
        """With the catalog's name, `lake.db.events`."""
        return full_name(self.catalog.name, self.identifier)

    @property
    def runtime(self) -> Runtime:
        """The clock and the chance that work on the table goes by: its catalog's."""
        return self.catalog.runtime

    @property
    def schema(self) -> Schema:
        """The current schema."""
        return self.metadata.schema

    @property
    def current_snapshot(self) -> Snapshot | None:
        """The head of `main`; `None` for a table without data."""
        return self.metadata.current_snapshot

    def history(self) -> tuple[HistoryEntry, ...]:
        """Which snapshot was current when, the oldest first, as in Iceberg's metadata table `history`."""
        return history(self.metadata)

    def refresh(self) -> "Table":
        """The table as it is now; this value stays as it is. Raises as `Catalog.load` does."""
        return self.catalog.load(self.identifier).for_run(self.run)

    def for_run(self, run: Run | None) -> "Table":
        """The same table for a run, whose commits say that they are its."""
        return msgspec.structs.replace(self, run=run)

    def __repr__(self) -> str:
        said = ", ".join(f"{key} {value}" for key, value in self._facts().items())
        return f"Table({self.full_name}: {said})"

    def _repr_html_(self) -> str:
        """For notebooks: what `repr` says and the columns, as a table each."""
        said = {"location": self.metadata.location, **self._facts()}
        rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in said.items())
        columns = "".join(
            f"<tr><td>{field.field_id}</td><td>{escape(field.name)}</td><td>{escape(str(field.type))}"
            f"{' not null' if field.required else ''}</td></tr>"
            for field in self.schema.fields
        )
        return (
            f"<b>{escape(self.full_name)}</b><table>{rows}</table>"
            f"<table><tr><th>id</th><th>column</th><th>type</th></tr>{columns}</table>"
        )

    def _facts(self) -> dict[str, str]:
        """What a person wants to know of the table first."""
        head = self.current_snapshot
        snapshot = "none" if head is None else f"{head.snapshot_id} of {format_time(head.timestamp_ms)}"
        return {
            "format version": str(self.metadata.format_version),
            "columns": str(len(self.schema.fields)),
            "snapshots": str(len(self.metadata.snapshots)),
            "current snapshot": snapshot,
        }


class Pointer(msgspec.Struct, frozen=True):
    """Where a table's current metadata is, and the storage that its files are reached through.

    Attributes:
        previous_location: the metadata file that was the table's before, where the catalog keeps that; it may be gone.
    """

    metadata_location: str
    storage: Storage
    previous_location: str | None = None


class Description(msgspec.Struct, frozen=True):
    """What a catalog itself says of a table, whose metadata may not be readable.

    Attributes:
        location: of the table.
        properties: those of the table that the catalog knows, such as `write.data.path`.
        elsewhere: other locations that it names.
        is_whole: whether the table can have no files elsewhere: then the properties are those of its metadata.
    """

    location: str
    properties: Mapping[str, str] = {}
    elsewhere: tuple[str, ...] = ()
    is_whole: bool = False


class Committed(msgspec.Struct, frozen=True):
    """The swap landed; `table` is the table after it."""

    table: Table


class Conflict(msgspec.Struct, frozen=True):
    """The swap was refused: apply the change to the new base. Where that is final the metadata file of the swap is gone.

    `is_final` says that the swap did not land and will not: nothing was sent, or what the catalog compared with is not ours. Else
    a refusal may be the answer to a request that arrived twice, whose twin may be at work still: whoever acts on it looks first.
    """

    reason: str
    is_final: bool = False


class Unknown(msgspec.Struct, frozen=True):
    """The swap may have landed, now or later, as `metadata_location`: nothing that it names may be deleted."""

    cause: str
    metadata_location: str


SwapOutcome = Committed | Conflict | Unknown


class Catalog(Protocol):
    """Tables by name, in namespaces.

    Every operation raises `UnavailableError` when the catalog is out of reach. Those that change something raise
    `OutcomeUnknownError` when it is not known whether they did.
    """

    @property
    def name(self) -> str:
        """What the configuration calls the catalog."""

    @property
    def runtime(self) -> Runtime:
        """The clock and the chance that work on its tables goes by."""

    @property
    def identity(self) -> str:
        """Identifies this catalog, whatever a configuration calls it: its kind and address, without secrets."""

    @property
    def compares_metadata(self) -> bool:
        """Whether a swap lands only on the very metadata that its updates were applied to.

        Else it lands on whatever is current, as long as its requirements hold there.
        """

    @property
    def restores_snapshots(self) -> bool:
        """Whether a swap may add snapshots whose sequence numbers are older than the table's last."""

    @property
    def drop_frees_metadata_names(self) -> bool:
        """Whether a drop moves the metadata files aside, so that another table may have their names from then on."""

    @property
    def garbage_collector(self) -> str | None:
        """What alone may delete files of its tables, since others than their metadata names may need them.

        An error says "run ..." with it, so it is the name of a program, or of what people have to do.

        `None` where metadata names everything, so that icekeep may.
        """

    @property
    def warehouse(self) -> str | None:
        """The location below which new tables go by default; `None` if there is none, or only a server knows it."""

    @property
    def reclaim_roots(self) -> tuple[str, ...]:
        """Directories below which the operator lets files of the catalog's tables go, beside their locations."""

    @property
    def rewrite_roots(self) -> tuple[str, ...]:
        """Directories whose files the operator lets be read for any of the catalog's tables, though another table lies there."""

    @property
    def rules(self) -> OperatorRules:
        """What the operator lays down for all of its tables."""

    @property
    def storage(self) -> Storage:
        """What files are reached through by the catalog's own properties, of a table that it does not have yet."""

    def find(self, identifier: Identifier | str) -> Pointer:
        """Where a table's current metadata is; the metadata is not read, and need not be there.

        Raises:
            NotFoundError: the catalog has no such table.
            InvalidTableError: it has no one location for it.
            UnsupportedError: it has a table of another format, or does not give the location.
        """

    def describe(self, identifier: Identifier) -> Description | None:
        """What the catalog says of a table without its metadata file being read; `None` where it does not say where it lies.

        Asked of a table that cannot be loaded, of another format for example; raises as `find` does.
        """

    def load(self, identifier: Identifier | str) -> Table:
        """Load a table's current metadata; a name as text is taken apart at its dots, with parts in quotes where they have dots.

        Raises:
            NotFoundError: the catalog has no such table.
            InvalidTableError: the metadata is missing or breaks the spec.
            UnsupportedError: the format version is one that we do not read.
        """

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        """Create a table from metadata that was built for a location of the caller's choice.

        Raises:
            NotFoundError: the namespace does not exist.
            UsageError: the table exists already.
        """

    def default_location(self, identifier: Identifier) -> str:
        """Where a table of this name is put if nobody says otherwise."""

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        """Replace a table's metadata by the same with updates, if nobody replaced it since `table` was loaded.

        An error that is raised proves, like a final `Conflict`, that nothing landed. An interrupt (`KeyboardInterrupt` and the
        like) proves nothing.

        Raises:
            InvalidTableError: the updates do not fit the metadata.
            NotFoundError: an update names a snapshot or ref that is not there.
        """

    def locked(self, table: Table) -> AbstractContextManager[None]:
        """Hold the lock that writers take, if the catalog has one: a table that is loaded within stays current until the swap.

        Each swap compares with or without it. Not held where it is not granted in time. Letting go of it raises nothing: that
        would hide what became of the swap.

        Raises:
            UnavailableError: the catalog is out of reach.
        """

    def reattach(self, table: Table) -> SwapOutcome:
        """Give a table metadata again whose current file cannot be read: that of `table`, as a new file. None is deleted.

        Args:
            table: the metadata that it is to have, such as that of an earlier file, with this file in its log; and as
                `metadata_location` the file that is current and cannot be read. It lands only while that file is current, which
                does not come into the log.

        Raises:
            UnsupportedError: this catalog takes changes to metadata only, and no metadata; one that does not compare metadata
                (`compares_metadata`).
        """

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        """Forget a table; none of its data is deleted. Returns where its metadata is, by which it can be registered again.

        Args:
            table_uuid: of the table that is meant, as far as the caller knows.
            metadata_location: of that table, likewise. A catalog that can compare while it drops does so; the others look
                right before.

        Raises:
            NotFoundError: the catalog has no such table.
            ConflictError: another table has the name now, or other metadata; nothing is dropped.
        """

    def register_table(self, identifier: Identifier, metadata_location: str) -> Table:
        """Take in a table by its metadata file, such as one that was dropped; nothing is copied.

        Returns the table, whose metadata may have moved to where the catalog looks for it.

        Raises:
            NotFoundError: the namespace does not exist.
            UsageError: the table exists already; or the catalog finds tables by their directory, and it lies in another.
            MissingFileError: the metadata file is not there, or what its current snapshot begins with is not.
            InvalidTableError: it is no table metadata.
            UnsupportedError: this catalog cannot register tables.
        """

    def rename(self, old: Identifier, new: Identifier) -> None:
        """Give a table another name; its location stays.

        Raises:
            NotFoundError: there is no such table, or no such namespace to move it to.
            UsageError: the new name is taken.
            UnsupportedError: this kind of catalog derives names from locations.
        """

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        """The tables right in a namespace, sorted; raises `NotFoundError` if it does not exist, `UsageError` for a text."""

    def list_namespaces(self) -> list[Identifier]:
        """All namespaces at all levels, sorted; raises `NamespacesMissingError` where there may be others."""

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        """Create a namespace; raises `UsageError` if it exists, unless that is fine, and for a text: `("db",)` is in parts."""

    def drop_namespace(self, namespace: Identifier) -> None:
        """Remove an empty namespace.

        Raises:
            NotFoundError: it does not exist.
            UsageError: it has tables or namespaces in it, or its name is a text and not in parts.
        """


class BaseCatalog:
    """What icekeep's own catalogs have in common; `properties` are those of the configuration."""

    compares_metadata: bool
    restores_snapshots = False
    drop_frees_metadata_names = False

    def __init__(self, name: str, properties: Mapping[str, str], runtime: Runtime) -> None:
        self.name = name
        # As the operator gives it: what a server adds to the properties is not asked.
        self.reclaim_roots, self.rewrite_roots = named_roots_of(properties)
        self.rules = OperatorRules.of(properties)
        self.runtime = runtime

    @property
    def garbage_collector(self) -> str | None:
        return None

    def locked(self, table: Table) -> AbstractContextManager[None]:
        return nullcontext()

    def __repr__(self) -> str:
        """Such as `RestCatalog(lake: rest https://host/api)`; it asks no server and holds no login."""
        catalog = cast(Catalog, self)
        warehouse = f", warehouse {masked('warehouse', catalog.warehouse)}" if catalog.warehouse else ""
        return without_secrets(f"{type(self).__name__}({self.name}: {catalog.identity}{warehouse})")


class NamespacesMissingError(UnsupportedError):
    """A catalog lists its namespaces, and perhaps not all of them: `known` are those that it does."""

    def __init__(self, message: str, known: Sequence[Identifier] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.known = known


def parse_identifier(text: str) -> Identifier:
    """Take `db.events` apart, as `icekeep.names` has its spelling.

    >>> parse_identifier("lake.db.events"), parse_identifier("db.`events.raw`")
    (('lake', 'db', 'events'), ('db', 'events.raw'))

    Raises:
        UsageError: it has no namespace, or a part that cannot be a name.
    """
    return validate_table_identifier(split_name(text))


def as_identifier(name: Identifier | str) -> Identifier:
    """A name that is given as text or in parts, in parts; raises `UsageError` for text that names no table."""
    return parse_identifier(name) if isinstance(name, str) else name


def format_identifier(identifier: Identifier) -> str:
    """The parts of a table's or namespace's name as people write them; parts with dots stand in backquotes."""
    return join_parts(identifier)


def in_parts(name: Identifier | str) -> Identifier:
    """Return a name that is given in parts, or raise `UsageError`: the parts of a text would be its letters."""
    if isinstance(name, str):
        raise UsageError(f"the name {name!r} is given as text; give its parts: {split_name(name)!r}")
    return name


def validate_table_identifier(identifier: Identifier) -> Identifier:
    """Return an identifier that can name a table, or raise `UsageError`."""
    in_parts(identifier)
    if len(identifier) < 2:
        raise UsageError(f"table {format_identifier(identifier)!r} has no namespace; name it as NAMESPACE.TABLE")
    validate_namespace(identifier)
    return identifier


def validate_namespace(namespace: Identifier) -> Identifier:
    """Return an identifier that can name a namespace, or raise `UsageError`.

    Its parts become parts of locations, so they hold no slashes, and none is a directory or the one above it, or the one in
    which icekeep keeps plans and trash below a table's location.
    """
    if not in_parts(namespace):
        raise UsageError("a namespace needs at least one part")
    for part in namespace:
        if part in ("", ".", "..") or "/" in part or not part.isprintable():
            raise UsageError(
                f"{part!r} in {format_identifier(namespace)!r} cannot be a name: give a text without slashes and control "
                "characters"
            )
        if part == OWN_DIRECTORY:
            raise UsageError(
                f"{part!r} in {format_identifier(namespace)!r} cannot be a name: icekeep keeps its plans and its trash in "
                "directories of that name; give another"
            )
    return namespace


def log_context(table: Table, step: str | None = None) -> dict[str, Any]:
    """The table's full name, the run and the job that work on it, and the step that the line is about."""
    run = table.run
    return {
        "table": table.full_name,
        "run": None if run is None else run.run_id,
        "job": None if run is None else run.job,
        "step": step,
    }


def check_meant(
    catalog: Catalog, identifier: Identifier, pointer: Pointer, table_uuid: str | None, metadata_location: str | None
) -> None:
    """Hold the table at a name against the one that is meant.

    Args:
        pointer: where the catalog says that the metadata is now.
        table_uuid: of the table that is meant; `None` where any will do.
        metadata_location: the metadata file that it is meant to have; `None` where any will do.

    Raises:
        ConflictError: it is another table, or the same with other metadata.
        InvalidTableError: its metadata cannot be read.
    """
    name = format_identifier(identifier)
    if metadata_location is not None and canonical(pointer.metadata_location) != canonical(metadata_location):
        raise ConflictError(
            f"table {name!r} in catalog {catalog.name!r} is not dropped: its metadata is {pointer.metadata_location!r} now, "
            f"and not {metadata_location!r}; another writer committed, or created it again; look at it, and drop it again",
            table=name,
            metadata_location=pointer.metadata_location,
        )
    if table_uuid is None:
        return
    found = parse_metadata(pointer.storage.read(pointer.metadata_location), pointer.metadata_location).table_uuid
    if found is None or found.lower() != table_uuid.lower():
        raise ConflictError(
            f"table {name!r} in catalog {catalog.name!r} is not dropped: it has the uuid {found} now, and not {table_uuid}; "
            "it was dropped and created again; look at it, and drop it again",
            table=name,
            table_uuid=found,
        )


@runtime_checkable
class ChecksChanges(Protocol):
    """A catalog that says beforehand what it does not take."""

    def check_change(self, change: CatalogChange) -> None:
        """Raise `UnsupportedError` for a change that its server does not take, `UnavailableError` where it is out of reach."""


@runtime_checkable
class ListsPointers(Protocol):
    """A catalog that knows all its tables at once."""

    def list_pointers(self) -> Mapping[Identifier, Pointer | None]:
        """Each table of each namespace, with what `Catalog.find` says of it; `None` where that raises `InvalidTableError`.

        Raises:
            UnavailableError: the catalog is out of reach.
        """

    def list_pointers_beside(self) -> Mapping[Identifier, Pointer | None]:
        """The same of tables of other catalogs in the same database, by the names of these catalogs and their own."""


_NAMES_SHOWN_MAX = 3
"""Of no more names than these all are told."""


def no_such_table(catalog: Catalog, identifier: Identifier) -> NotFoundError:
    """The error for a table that is not there, with names that the user may have meant, or how to list those that there are."""
    name, namespace = format_identifier(identifier), format_identifier(identifier[:-1])
    listed = ["report", "--catalog", catalog.name]
    try:
        tables = catalog.list_tables(identifier[:-1])
    except NotFoundError:
        problem = f", nor a namespace {namespace!r}"
        try:
            namespaces = catalog.list_namespaces()
        except NamespacesMissingError as error:
            namespaces = [*error.known]
        hint = _hint(identifier[:-1], namespaces, f"catalog {catalog.name!r}", "namespaces", listed)
        if quoted := _with_dots(catalog, identifier, namespaces):
            hint = f"{did_you_mean(map(format_identifier, quoted))} Put a part that has a dot in quotes"
    else:
        problem = ""
        listed += ["--match", f"{namespace}.*"]
        hint = _hint(identifier, tables, f"namespace {namespace!r}", "tables", listed)
    return NotFoundError(
        f"there is no table {name!r} in catalog {catalog.name!r}{problem}; {hint}", catalog=catalog.name, table=name
    )


def _hint(wanted: Identifier, known: Sequence[Identifier], place: str, kind: str, listed: Sequence[str]) -> str:
    """Names that are mistyped in one that is not there; else all names or, of many, how to list them.

    Only names beside the wanted one are compared, and only their last parts: the parts before are the same, and would make any
    two of them look alike. A command that deletes may be run with what is proposed here.
    """
    beside = {one[-1]: format_identifier(one) for one in known if one[:-1] == wanted[:-1]}
    near = with_one_typo(wanted[-1], beside) if wanted else []
    if wanted in known:
        # Some servers answer so for what the user may not read.
        return "the catalog lists it, and says that it is not there: see whether you may read it"
    if near:
        return did_you_mean(beside[one] for one in near)
    if not known:
        return f"{place} has no {kind}"
    if len(known) <= _NAMES_SHOWN_MAX:
        return f"there is {', '.join(repr(format_identifier(one)) for one in known)}"
    return f"{place} has {len(known):,} {kind}; `{shown_command(*listed)}` lists them"


def _with_dots(catalog: Catalog, wanted: Identifier, namespaces: Sequence[Identifier]) -> list[Identifier]:
    """The tables of the wanted name whose dots are not all between parts."""
    text, found = ".".join(wanted), []
    for namespace in namespaces:
        if text.startswith(f"{'.'.join(namespace)}."):
            with suppress(NotFoundError):
                found += [one for one in catalog.list_tables(namespace) if ".".join(one) == text]
    return found


class _Named(Protocol):
    name: str


def no_such_namespace(catalog: _Named, namespace: Identifier) -> NotFoundError:
    text = format_identifier(namespace)
    return NotFoundError(
        f"there is no namespace {text!r} in catalog {catalog.name!r}; create it first with "
        f"load_catalog({catalog.name!r}).create_namespace({namespace!r})",
        catalog=catalog.name,
        namespace=text,
    )


def namespace_exists(catalog: _Named, namespace: Identifier) -> UsageError:
    return UsageError(f"namespace {format_identifier(namespace)!r} exists already in catalog {catalog.name!r}")


def namespace_not_empty(catalog: _Named, namespace: Identifier) -> UsageError:
    return UsageError(
        f"namespace {format_identifier(namespace)!r} in catalog {catalog.name!r} is not empty; drop what is in it first"
    )


def no_warehouse(catalog: _Named) -> ConfigError:
    """The error for a catalog that is to say where a new table lies, and cannot."""
    return ConfigError(
        f"catalogs.{catalog.name}.warehouse",
        "is missing, so that new tables have no location; give a directory as a URI, or each table a location",
    )


def table_exists(catalog: Catalog, identifier: Identifier) -> UsageError:
    return UsageError(f"table {format_identifier(identifier)!r} exists already in catalog {catalog.name!r}")


class StoredPolicy(msgspec.Struct, frozen=True):
    """One that holds for a table; `content` is as it was written, JSON as a rule, and `None` where there is none."""

    type: str
    name: str
    content: str | None = None
    is_inherited: bool = False


@runtime_checkable
class StoresPolicies(Protocol):
    """A catalog whose server may have policies."""

    def stored_policies(self, identifier: Identifier) -> Sequence[StoredPolicy]:
        """Those that hold for a table, inherited ones too, one of each type; none where the server stores no policies.

        Raises:
            NotFoundError: the catalog has no such table.
            UnavailableError: the server is out of reach.
        """
