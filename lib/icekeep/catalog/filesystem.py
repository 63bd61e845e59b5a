"""A catalog in a directory, with the layout of Iceberg's HadoopCatalog: namespaces and tables are directories.

A table's metadata are numbered files, and a commit creates the next number: the writer that creates it first has
committed. That is safe only where a name cannot be created twice, which is proved before each commit; other engines may
still overwrite what they should not, so a commit is looked at again after it landed.

A drop moves the version files to `<table>/.icekeep/trash/drop-<uuid>/`, under their names, and `register` moves them
back. As long as they lie there the table can come back, whatever table has its place meanwhile: no job takes its files
for garbage, and none deletes the version files of another table.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from icekeep.catalog.base import (
    BaseCatalog,
    Committed,
    Conflict,
    Description,
    Identifier,
    Pointer,
    SwapOutcome,
    Table,
    Unknown,
    as_identifier,
    check_meant,
    format_identifier,
    in_parts,
    namespace_exists,
    no_such_namespace,
    no_such_table,
    table_exists,
    validate_namespace,
    validate_table_identifier,
)
from icekeep.catalog.metadata_files import (
    HINT,
    METADATA_PATH,
    attached_metadata,
    compression_suffix,
    delete_dropped,
    encode,
    file_version,
    find_head,
    list_versions,
    next_metadata,
    parse_version_name,
    read_table,
    version_locations,
)
from icekeep.catalog.registering import read_unregistered
from icekeep.errors import (
    ConfigError,
    ConflictError,
    IcekeepError,
    MissingFileError,
    OutcomeUnknownError,
    SafetyError,
    UnsupportedError,
    UsageError,
    first_line,
)
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.metadata import TableMetadata, format_metadata
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.spec.snapshots import MetadataLogEntry
from icekeep.spec.types import DAY_MS
from icekeep.spec.updates import Requirement, Update, log_previous
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical, checksum_location, has_checksum_files, join


class DirectoryNamespaces(BaseCatalog):
    """Tables at `<warehouse>/<namespace>/<table>`, each a directory; raises as the catalog protocol says."""

    def __init__(self, name: str, properties: Mapping[str, str], storage: Storage, runtime: Runtime = SYSTEM) -> None:
        self.warehouse = properties.get("warehouse", "")
        if not self.warehouse:
            raise ConfigError(f"catalogs.{name}.warehouse", "is missing; give the directory of the tables as a URI")
        super().__init__(name, properties, runtime)
        self.storage = storage

    def default_location(self, identifier: Identifier) -> str:
        return self._location(validate_table_identifier(identifier))

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        if not self._has_namespace(in_parts(namespace)):
            raise no_such_namespace(self, namespace)
        children = [(*namespace, name) for name in self.storage.child_directories(self._location(namespace))]
        return [one for one in children if list_versions(self.storage, join(self._location(one), "metadata"))]

    def list_namespaces(self) -> list[Identifier]:
        found: list[Identifier] = []
        ahead: list[Identifier] = [()]
        while ahead:
            parent = ahead.pop()
            children = [(*parent, name) for name in self.storage.child_directories(self._location(parent))]
            namespaces = [child for child in children if self._has_namespace(child)]
            found += namespaces
            ahead += namespaces
        return sorted(found)

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        validate_namespace(namespace)
        if properties:
            raise UnsupportedError(f"a namespace of catalog {self.name!r} is a directory and cannot have properties")
        if self._has_namespace(namespace):
            if exists_ok:
                return
            raise namespace_exists(self, namespace)
        for level in range(1, len(namespace) + 1):
            if self.storage.directory_exists(self._location(namespace[:level])) and not self._has_namespace(
                namespace[:level]
            ):
                raise UsageError(
                    f"cannot create namespace {format_identifier(namespace)!r} in catalog {self.name!r}: "
                    f"{self._location(namespace[:level])!r} holds a table, or what a dropped table left"
                )
        self.storage.make_directory(self._location(namespace))

    def drop_namespace(self, namespace: Identifier) -> None:
        if not self._has_namespace(namespace):
            raise no_such_namespace(self, namespace)
        location = self._location(namespace)
        names = self.storage.child_names(location)
        if names:
            raise UsageError(
                f"namespace {format_identifier(namespace)!r} in catalog {self.name!r} is not empty: {location!r} holds "
                f"{names[0]!r}; drop the tables in it and remove what they left"
            )
        self.storage.remove_directory(location)

    def _has_namespace(self, namespace: Identifier) -> bool:
        """A directory that neither is a table nor was one: a dropped table leaves its data behind."""
        location = self._location(validate_namespace(namespace))
        inside = join(location, "metadata")
        # A directory called metadata may itself be a table of that name.
        is_table = self.storage.directory_exists(inside) and not self.storage.directory_exists(join(inside, "metadata"))
        return self.storage.directory_exists(location) and not is_table

    def _metadata_directory(self, identifier: Identifier) -> str:
        return join(self.default_location(identifier), "metadata")

    def _location(self, identifier: Identifier) -> str:
        if hidden := next((part for part in identifier if part.startswith(".")), None):
            raise UnsupportedError(
                f"catalog {self.name!r} cannot have {hidden!r}: directories whose names begin with a dot are not listed"
            )
        return join(self.warehouse, *identifier)


_TRASH = f"{OWN_DIRECTORY}/trash"
DROPPED_PREFIX = "drop-"
"""So begin the names of the directories in the trash that hold them."""

_ASIDE = rf"(?:^|/){re.escape(_TRASH)}/{DROPPED_PREFIX}[^/]+/"
_VERSION_NAME = r"v[0-9]+\.(?:[a-z]+\.)?metadata\.json(?:\.gz)?"

MOVED_ASIDE = f"{_ASIDE}{_VERSION_NAME}$"
"""A location of one of them, whatever is before that, as a pattern for Python and for Arrow."""

CHECKSUM_ASIDE = rf"{_ASIDE}\.{_VERSION_NAME}\.crc$"
"""The same of the checksum file that Hadoop wrote beside one."""


def new_trash(table_location: str, runtime: Runtime) -> str:
    """A directory for the version files of a table that is being dropped."""
    return join(table_location, _TRASH, f"{DROPPED_PREFIX}{runtime.new_uuid()}")


def move_aside(storage: Storage, directory: str, trash: str) -> str | None:
    """Move all version files out of a metadata directory, the head last; returns where that is now.

    A checksum goes before its file: one that is left behind would be that of the next file of the name, which needs none.
    """
    moved = None
    for _, locations in sorted(list_versions(storage, directory).items()):
        for location in locations:
            moved = join(trash, _name(location))
            _move_checksum(storage, location, moved)
            storage.move(location, moved)
    return moved


def _move_checksum(storage: Storage, location: str, moved: str) -> None:
    """Move the checksum of a file along, where Hadoop wrote one: by it readers would refuse another file of the name."""
    source, target = checksum_location(location), checksum_location(moved)
    if has_checksum_files(source) and storage.head(source) is not None:
        storage.move(source, target)


def dropped_heads(storage: Storage, table_location: str) -> Iterator[str]:
    """The newest version file of each table that was dropped at a location and not registered again since."""
    trash = join(table_location, _TRASH)
    for name in sorted(storage.child_names(trash)):
        if name.startswith(DROPPED_PREFIX):
            versions = list_versions(storage, join(trash, name))
            yield from versions[max(versions)] if versions else ()


def is_moved_aside(metadata_location: str, table_location: str) -> bool:
    """Whether a metadata file is a version that a drop of the table at a location moved aside."""
    trash, _, name = canonical(metadata_location).rpartition("/")
    above, _, run = trash.rpartition("/")
    is_trash = above == canonical(join(table_location, _TRASH)) and run.startswith(DROPPED_PREFIX)
    return is_trash and parse_version_name(name) is not None


def move_back(storage: Storage, metadata_location: str, directory: str) -> str:
    """Move a version file back, and then those before it; returns where it is, the head of the table from then on.

    Raises:
        FileExistsError: there is a version of its number.
    """
    location = join(directory, _name(metadata_location))
    try:
        storage.move(metadata_location, location)
    except IcekeepError:
        # A move is repeated until the file is there; whoever compares its bytes tells whose it is.
        if storage.head(location) is None:
            raise
    version = parse_version_name(_name(metadata_location)) or 0
    # They are history: what stays in the trash is missed by readers of the metadata log only, and checksums by nobody.
    with suppress(Exception):
        older = list_versions(storage, metadata_location.rpartition("/")[0])
        names = [each for number in sorted(older) if number < version for each in older[number]]
        storage.move_many((each, join(directory, _name(each))) for each in names)
        for each in (metadata_location, *names):
            _move_checksum(storage, each, join(directory, _name(each)))
    return location


def _name(location: str) -> str:
    return location.rsplit("/", 1)[-1]


VERSIONS_KEPT = 100
"""A slow writer may create a version that was deleted, and believe that it committed; so many stay in any case."""

VERSION_AGE_KEPT_MS = 3 * DAY_MS
"""And so long: the age below which orphan removal, too, takes a file for one that a writer still needs."""

CLOCK_GRAIN_MS = 2_000
"""How coarsely stores tell when a file was made."""


class FilesystemCatalog(DirectoryNamespaces):
    """Tables at `<warehouse>/<namespace>/<table>`; property `warehouse`."""

    compares_metadata = True
    restores_snapshots = True
    drop_frees_metadata_names = True

    @property
    def identity(self) -> str:
        return f"filesystem {canonical(self.warehouse)}"

    def load(self, identifier: Identifier | str) -> Table:
        identifier = as_identifier(identifier)
        head = self.find(identifier)
        try:
            return read_table(self, identifier, head.metadata_location, self.storage)
        except MissingFileError:
            # A table that keeps few versions may have moved on and deleted this one.
            newer = find_head(self.storage, self._metadata_directory(identifier))
            if newer is None or newer.location == head.metadata_location:
                raise
            return read_table(self, identifier, newer.location, self.storage)

    def find(self, identifier: Identifier | str) -> Pointer:
        identifier = as_identifier(identifier)
        head = find_head(self.storage, self._metadata_directory(identifier))
        if head is None:
            raise no_such_table(self, identifier)
        return Pointer(head.location, self.storage)

    def describe(self, identifier: Identifier) -> Description:
        return Description(self.default_location(identifier))

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        table_location = self.default_location(identifier)
        if not self._has_namespace(identifier[:-1]):
            raise no_such_namespace(self, identifier[:-1])
        if canonical(metadata.location) != canonical(table_location):
            raise UsageError(
                f"table {format_identifier(identifier)!r} cannot be at {metadata.location!r}: catalog {self.name!r} "
                f"finds tables by their directory, which for this one is {table_location!r}"
            )
        self._check_properties(metadata)
        directory = self._metadata_directory(identifier)
        if find_head(self.storage, directory) is not None:
            raise table_exists(self, identifier)
        self._check_store(directory)
        location = join(directory, f"v1{compression_suffix(metadata)}.metadata.json")
        data = encode(metadata)
        try:
            self.storage.create(location, data)
        except FileExistsError as error:
            raise table_exists(self, identifier) from error
        self._write_hint(directory, 1)
        outcome = self._verified(Table(identifier, metadata, location, self.storage, self), data)
        if isinstance(outcome, Unknown):
            raise OutcomeUnknownError(
                f"cannot tell whether table {format_identifier(identifier)!r} was created: {outcome.cause}",
                metadata_location=location,
            )
        return outcome.table

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        new = next_metadata(table, requirements, updates, self.runtime.now_ms())
        if isinstance(new, Conflict):
            return new
        self._check_commit(table, new)
        conflict = self._conflict_with_head(table)
        if conflict is not None:
            return conflict
        outcome = self._commit(table, new)
        if isinstance(outcome, Committed):
            self._trim(table.metadata, new, file_version(outcome.table.metadata_location))
        return outcome

    def reattach(self, table: Table) -> SwapOutcome:
        new = attached_metadata(table, self.runtime.now_ms())
        self._check_commit(table, new)
        head = find_head(self.storage, self._metadata_directory(table.identifier))
        if head is None or canonical(head.location) != canonical(table.metadata_location):
            return Conflict("the table was dropped, or another writer committed", is_final=True)
        return self._commit(table, new)

    def _commit(self, table: Table, new: TableMetadata) -> SwapOutcome:
        """Create the version that follows the head, which is at `table.metadata_location`."""
        directory, version = self._metadata_directory(table.identifier), file_version(table.metadata_location) + 1
        location = join(directory, f"v{version}{compression_suffix(new)}.metadata.json")
        data = encode(new)
        outcome = self._create_version(Table(table.identifier, new, location, self.storage, self), data, table.metadata)
        if not isinstance(outcome, Committed):
            return outcome
        self._write_hint(directory, version)
        return self._verified(outcome.table, data)

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        """Forget a table: its version files move to `.icekeep/trash/drop-<uuid>` below its location, the head last."""
        directory = self._metadata_directory(identifier)
        head = find_head(self.storage, directory)
        if head is None:
            raise no_such_table(self, identifier)
        check_meant(self, identifier, Pointer(head.location, self.storage), table_uuid, metadata_location)
        if not self.storage.capabilities(directory).move:
            raise UnsupportedError(
                f"cannot drop table {format_identifier(identifier)!r}: it is not proved that the store of {directory!r} can "
                "move its metadata aside without replacing a file"
            )
        trash = new_trash(self.default_location(identifier), self.runtime)
        # Where a directory is only what lies in it, this one would be gone, and the table's be taken for a namespace.
        self.storage.make_directory(directory)
        self.storage.delete_many(_hint_files(directory))
        moved = move_aside(self.storage, directory, trash)
        if find_head(self.storage, directory) is not None:
            raise ConflictError(
                f"another writer committed to table {format_identifier(identifier)!r} while it was being dropped; its "
                f"older versions are in {trash!r}; stop the writer and drop it again"
            )
        return moved or head.location

    def register_table(self, identifier: Identifier, metadata_location: str) -> Table:
        """As the protocol says; version files that a drop moved to the trash move back, all others begin a new count."""
        table = read_unregistered(self, identifier, metadata_location, self.storage)
        if not self._has_namespace(identifier[:-1]):
            raise no_such_namespace(self, identifier[:-1])
        at = self.default_location(identifier)
        if canonical(table.metadata.location) != canonical(at):
            raise UsageError(
                f"table {format_identifier(identifier)!r} cannot be registered in catalog {self.name!r}, which finds tables by "
                f"their directory: the table of {metadata_location!r} lies at {table.metadata.location!r}, and not at {at!r}"
            )
        if is_moved_aside(metadata_location, at):
            return self._taken_back(table)
        return self.create(identifier, log_previous(table.metadata, metadata_location, table.metadata.last_updated_ms))

    def _taken_back(self, table: Table) -> Table:
        """Move the version files of a dropped table back, the newest first: from then on it is there, as it was."""
        directory = self._metadata_directory(table.identifier)
        self._check_properties(table.metadata)
        self._check_store(directory)
        if not self.storage.capabilities(directory).move:
            raise UnsupportedError(
                f"cannot register table {table.name!r}: it is not proved that the store of {directory!r} can move its metadata "
                "back without replacing a file"
            )
        data = self.storage.read(table.metadata_location)
        try:
            location = move_back(self.storage, table.metadata_location, directory)
        except FileExistsError as error:
            raise table_exists(self, table.identifier) from error
        self._write_hint(directory, file_version(location))
        back = Table(table.identifier, table.metadata, location, self.storage, self)
        outcome = self._verified(back, data)
        if isinstance(outcome, Unknown):
            raise OutcomeUnknownError(
                f"cannot tell whether table {table.name!r} was registered: {outcome.cause}", metadata_location=location
            )
        return back

    def rename(self, old: Identifier, new: Identifier) -> None:
        raise UnsupportedError(
            f"cannot rename {format_identifier(old)!r}: catalog {self.name!r} finds tables by their directory"
        )

    def _conflict_with_head(self, table: Table) -> Conflict | None:
        """What stands against a commit on `table`, if it is not the head."""
        head = find_head(self.storage, self._metadata_directory(table.identifier))
        if head is None:
            return Conflict("the table was dropped", is_final=True)
        if canonical(head.location) == canonical(table.metadata_location):
            # Numbers come again when a table is dropped and created again, so the content decides.
            current = read_table(self, table.identifier, head.location, self.storage)
            if format_metadata(current.metadata) == format_metadata(table.metadata):
                return None
        return Conflict(f"another writer committed {head.location!r}", is_final=True)

    def _create_version(self, table: Table, data: bytes, base: TableMetadata) -> SwapOutcome:
        """The commit itself: create the version file that `table` names."""
        location = table.metadata_location
        try:
            self.storage.create(location, data)
        except OutcomeUnknownError as error:
            return Unknown(error.message, location)
        except FileExistsError:
            # A store that sends a request twice may find its own file in the way. Equal bytes prove that only if they
            # hold what no other writer can have chosen: two that set one property in one millisecond write the same.
            is_unique = not table.metadata.snapshots_by_id.keys() <= base.snapshots_by_id.keys()
            try:
                is_ours = is_unique and self.storage.read(location) == data
            except IcekeepError as error:
                return Unknown(first_line(error), location)
            if not is_ours:
                return Conflict(f"another writer committed {location!r}", is_final=True)
        return Committed(table)

    def _verified(self, table: Table, data: bytes) -> Committed | Unknown:
        """Look at the table once more: writers that rename over existing files may have replaced what we created."""
        directory = self._metadata_directory(table.identifier)
        location = table.metadata_location
        version = file_version(location)
        try:
            if any(self.storage.head(o) for o in version_locations(directory, version) if o != location):
                return Unknown(f"another writer committed version {version} under another name", location)
            head = find_head(self.storage, directory)
            if head is None:
                return Unknown("another writer removed the table", location)
            if head.version > version and self._is_behind(directory, version):
                return Unknown(
                    f"version {version} was there before, and deleted: {head.location!r} does not descend from it",
                    location,
                )
            with suppress(MissingFileError):
                if self.storage.read(location) != data:
                    return Unknown(f"another writer replaced {location!r}", location)
            if self._descends(head.location, table):
                return Committed(table)
        except IcekeepError as error:
            return Unknown(f"the commit cannot be looked at: {first_line(error)}", location)
        return Unknown(f"another writer replaced it: {head.location!r} does not descend from it", location)

    def _is_behind(self, directory: str, version: int) -> bool:
        """Whether the next version was there first: a name that was deleted can be created again, and logs name names."""
        infos = [[self.storage.head(o) for o in version_locations(directory, v)] for v in (version, version + 1)]
        ours, next_ = ([info.modified_ms for info in found if info is not None] for found in infos)
        return not next_ or min(next_) < max(ours, default=0) - CLOCK_GRAIN_MS

    def _descends(self, head_location: str, table: Table) -> bool:
        """Whether metadata logs lead from the head back to a table's metadata; a log may reach one version back only."""
        wanted, at = canonical(table.metadata_location), head_location
        while canonical(at) != wanted:
            try:
                log = read_table(self, table.identifier, at, self.storage).metadata.metadata_log
            except MissingFileError:
                return False
            if any(_is_entry_of(table, entry) for entry in log):
                return True
            if not log or file_version(log[0].metadata_file) >= file_version(at):
                return False
            at = log[0].metadata_file
        return True

    def _check_commit(self, table: Table, new: TableMetadata) -> None:
        if compression_suffix(new) != compression_suffix(table.metadata):
            raise UnsupportedError(
                f"the metadata compression of table {table.name!r} cannot change in catalog {self.name!r}: two writers "
                "could commit one version under two names"
            )
        self._check_properties(new)
        self._check_store(self._metadata_directory(table.identifier))

    def _check_properties(self, metadata: TableMetadata) -> None:
        if METADATA_PATH in metadata.properties:
            raise UnsupportedError(
                f"table property {METADATA_PATH} cannot be used in catalog {self.name!r}, which looks for metadata in "
                "the table's directory; remove it"
            )

    def _check_store(self, location: str) -> None:
        if not self.storage.capabilities(location).exclusive_create:
            raise SafetyError(
                f"cannot commit below {location!r}: it is not proved that the store there refuses to create a "
                "name twice, so that a commit could overwrite another; use a sql or rest catalog",
                location=location,
            )

    def _write_hint(self, directory: str, version: int) -> None:
        """Tell readers where to begin; a failure costs them some probes, and only them."""
        location = join(directory, HINT)
        with suppress(Exception):
            self.storage.delete_many(_hint_files(directory))
            self.storage.create(location, str(version).encode())

    def _trim(self, base: TableMetadata, new: TableMetadata, version: int) -> None:
        """Delete metadata files that fell out of the log, but none that a slow writer may create a second time."""
        oldest_kept = version - VERSIONS_KEPT
        newest_deleted_ms = self.runtime.now_ms() - VERSION_AGE_KEPT_MS

        def is_old(entry: MetadataLogEntry) -> bool:
            if file_version(entry.metadata_file) > oldest_kept or entry.timestamp_ms > newest_deleted_ms:
                return False
            # Its own timestamp may be that of a writer whose clock was slow, or who was.
            info = self.storage.head(entry.metadata_file)
            return info is not None and info.modified_ms <= newest_deleted_ms

        delete_dropped(self.storage, base, new, is_old, roots=self.reclaim_roots)


def _hint_files(directory: str) -> list[str]:
    """The hint, and the checksum that Hadoop may have written beside it: by that Hadoop would refuse another hint."""
    hint = join(directory, HINT)
    return [hint, *([checksum_location(hint)] if has_checksum_files(hint) else [])]


def _is_entry_of(table: Table, entry: MetadataLogEntry) -> bool:
    """Whether a log means a table's metadata: a version that was deleted and made again has the name of the old one."""
    is_same = canonical(entry.metadata_file) == canonical(table.metadata_location)
    return is_same and entry.timestamp_ms == table.metadata.last_updated_ms
