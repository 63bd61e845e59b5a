"""A catalog in a directory, with the layout of Iceberg's HadoopCatalog.

A table is a directory, its metadata are numbered files, and a commit creates the next number: whoever creates it first
has committed. That is safe only where a name cannot be created twice, which is proved before each commit; other engines
may still overwrite what they should not, so a commit is looked at again after it landed.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from icekeep.catalog.base import (
    Committed,
    Conflict,
    Description,
    Identifier,
    OperatorRules,
    Pointer,
    SwapOutcome,
    Table,
    Unknown,
    as_identifier,
    format_identifier,
    named_roots_of,
    show_catalog,
)
from icekeep.catalog.directory_namespaces import DirectoryNamespaces
from icekeep.catalog.dropped_versions import is_moved_aside, move_aside, move_back, new_trash
from icekeep.catalog.meant_table import check_meant
from icekeep.catalog.metadata_files import (
    METADATA_PATH,
    attached_metadata,
    compression_suffix,
    delete_dropped,
    encode,
    file_version,
    next_metadata,
    read_table,
)
from icekeep.catalog.name_errors import no_such_namespace, no_such_table, table_exists
from icekeep.catalog.registering import read_unregistered
from icekeep.catalog.version_files import (
    HINT,
    find_head,
    version_locations,
)
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
from icekeep.spec.snapshots import MetadataLogEntry
from icekeep.spec.types import DAY_MS
from icekeep.spec.updates import Requirement, Update, log_previous
from icekeep.storage.base import DirectoryStorage
from icekeep.storage.locations import canonical, checksum_location, has_checksum_files, join

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
    garbage_collector = None

    def __init__(
        self, name: str, properties: Mapping[str, str], storage: DirectoryStorage, runtime: Runtime = SYSTEM
    ) -> None:
        warehouse = properties.get("warehouse", "")
        if not warehouse:
            raise ConfigError(f"catalogs.{name}.warehouse", "is missing; give the directory of the tables as a URI")
        super().__init__(name, warehouse, storage)
        self.reclaim_roots, self.rewrite_roots = named_roots_of(properties)
        self.rules = OperatorRules.of(properties)
        self.runtime = runtime

    def __repr__(self) -> str:
        return show_catalog(self)

    @property
    def identity(self) -> str:
        return f"filesystem {canonical(self.warehouse)}"

    def load(self, identifier: Identifier | str) -> Table:
        identifier = as_identifier(identifier)
        head = self.find(identifier)
        try:
            return read_table(self, identifier, head.metadata_location, self._storage)
        except MissingFileError:
            # A table that keeps few versions may have moved on and deleted this one.
            newer = find_head(self._storage, self._metadata_directory(identifier))
            if newer is None or newer.location == head.metadata_location:
                raise
            return read_table(self, identifier, newer.location, self._storage)

    def find(self, identifier: Identifier | str) -> Pointer:
        identifier = as_identifier(identifier)
        head = find_head(self._storage, self._metadata_directory(identifier))
        if head is None:
            raise no_such_table(self, identifier)
        return Pointer(head.location, self._storage)

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
        if find_head(self._storage, directory) is not None:
            raise table_exists(self, identifier)
        self._check_store(directory)
        location = join(directory, f"v1{compression_suffix(metadata)}.metadata.json")
        data = encode(metadata)
        try:
            self._storage.create(location, data)
        except FileExistsError as error:
            raise table_exists(self, identifier) from error
        self._write_hint(directory, 1)
        outcome = self._verified(Table(identifier, metadata, location, self._storage, self), data)
        if isinstance(outcome, Unknown):
            raise OutcomeUnknownError(
                f"cannot tell whether table {format_identifier(identifier)!r} was created: {outcome.cause}",
                metadata_location=location,
            )
        return outcome.table

    def locked(self, table: Table) -> AbstractContextManager[None]:
        return nullcontext()

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
        head = find_head(self._storage, self._metadata_directory(table.identifier))
        if head is None or canonical(head.location) != canonical(table.metadata_location):
            return Conflict("the table was dropped, or another writer committed", is_final=True)
        return self._commit(table, new)

    def _commit(self, table: Table, new: TableMetadata) -> SwapOutcome:
        """Create the version that follows the head, which is at `table.metadata_location`."""
        directory, version = self._metadata_directory(table.identifier), file_version(table.metadata_location) + 1
        location = join(directory, f"v{version}{compression_suffix(new)}.metadata.json")
        data = encode(new)
        outcome = self._create_version(
            Table(table.identifier, new, location, self._storage, self), data, table.metadata
        )
        if not isinstance(outcome, Committed):
            return outcome
        self._write_hint(directory, version)
        return self._verified(outcome.table, data)

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        """Forget a table: its version files move to `.icekeep/trash/drop-<uuid>` below its location, the head last."""
        directory = self._metadata_directory(identifier)
        head = find_head(self._storage, directory)
        if head is None:
            raise no_such_table(self, identifier)
        check_meant(self, identifier, Pointer(head.location, self._storage), table_uuid, metadata_location)
        if not self._storage.capabilities(directory).move:
            raise UnsupportedError(
                f"cannot drop table {format_identifier(identifier)!r}: it is not proved that the store of {directory!r} can "
                "move its metadata aside without replacing a file"
            )
        trash = new_trash(self.default_location(identifier), self.runtime)
        # Where a directory is only what lies in it, this one would be gone, and the table's be taken for a namespace.
        self._storage.make_directory(directory)
        self._storage.delete_many(_hint_files(directory))
        moved = move_aside(self._storage, directory, trash)
        if find_head(self._storage, directory) is not None:
            raise ConflictError(
                f"another writer committed to table {format_identifier(identifier)!r} while it was being dropped; its "
                f"older versions are in {trash!r}; stop the writer and drop it again"
            )
        return moved or head.location

    @property
    def storage(self) -> DirectoryStorage:
        return self._storage

    def register_table(self, identifier: Identifier, metadata_location: str) -> Table:
        """As the protocol says; version files that a drop moved to the trash move back, all others begin a new count."""
        table = read_unregistered(self, identifier, metadata_location, self._storage)
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
        if not self._storage.capabilities(directory).move:
            raise UnsupportedError(
                f"cannot register table {table.name!r}: it is not proved that the store of {directory!r} can move its metadata "
                "back without replacing a file"
            )
        data = self._storage.read(table.metadata_location)
        try:
            location = move_back(self._storage, table.metadata_location, directory)
        except FileExistsError as error:
            raise table_exists(self, table.identifier) from error
        self._write_hint(directory, file_version(location))
        back = Table(table.identifier, table.metadata, location, self._storage, self)
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
        head = find_head(self._storage, self._metadata_directory(table.identifier))
        if head is None:
            return Conflict("the table was dropped", is_final=True)
        if canonical(head.location) == canonical(table.metadata_location):
            # Numbers come again when a table is dropped and created again, so the content decides.
            current = read_table(self, table.identifier, head.location, self._storage)
            if format_metadata(current.metadata) == format_metadata(table.metadata):
                return None
        return Conflict(f"another writer committed {head.location!r}", is_final=True)

    def _create_version(self, table: Table, data: bytes, base: TableMetadata) -> SwapOutcome:
        """The commit itself: create the version file that `table` names."""
        location = table.metadata_location
        try:
            self._storage.create(location, data)
        except OutcomeUnknownError as error:
            return Unknown(error.message, location)
        except FileExistsError:
            # A store that sends a request twice may find its own file in the way. Equal bytes prove that only if they
            # hold what no other writer can have chosen: two that set one property in one millisecond write the same.
            is_unique = not table.metadata.snapshots_by_id.keys() <= base.snapshots_by_id.keys()
            try:
                is_ours = is_unique and self._storage.read(location) == data
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
            if any(self._storage.head(o) for o in version_locations(directory, version) if o != location):
                return Unknown(f"another writer committed version {version} under another name", location)
            head = find_head(self._storage, directory)
            if head is None:
                return Unknown("another writer removed the table", location)
            if head.version > version and self._is_behind(directory, version):
                return Unknown(
                    f"version {version} was there before, and deleted: {head.location!r} does not descend from it",
                    location,
                )
            with suppress(MissingFileError):
                if self._storage.read(location) != data:
                    return Unknown(f"another writer replaced {location!r}", location)
            if self._descends(head.location, table):
                return Committed(table)
        except IcekeepError as error:
            return Unknown(f"the commit cannot be looked at: {first_line(error)}", location)
        return Unknown(f"another writer replaced it: {head.location!r} does not descend from it", location)

    def _is_behind(self, directory: str, version: int) -> bool:
        """Whether the next version was there first: a name that was deleted can be created again, and logs name names."""
        infos = [[self._storage.head(o) for o in version_locations(directory, v)] for v in (version, version + 1)]
        ours, next_ = ([info.modified_ms for info in found if info is not None] for found in infos)
        return not next_ or min(next_) < max(ours, default=0) - CLOCK_GRAIN_MS

    def _descends(self, head_location: str, table: Table) -> bool:
        """Whether metadata logs lead from the head back to a table's metadata; a log may reach one version back only."""
        wanted, at = canonical(table.metadata_location), head_location
        while canonical(at) != wanted:
            try:
                log = read_table(self, table.identifier, at, self._storage).metadata.metadata_log
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
        if not self._storage.capabilities(location).exclusive_create:
            raise SafetyError(
                f"cannot commit below {location!r}: it is not proved that the store there refuses to create a "
                "name twice, so that a commit could overwrite another; use a sql or rest catalog",
                location=location,
            )

    def _write_hint(self, directory: str, version: int) -> None:
        """Tell readers where to begin; a failure costs them some probes, and only them."""
        location = join(directory, HINT)
        with suppress(Exception):
            self._storage.delete_many(_hint_files(directory))
            self._storage.create(location, str(version).encode())

    def _trim(self, base: TableMetadata, new: TableMetadata, version: int) -> None:
        """Delete metadata files that fell out of the log, but none that a slow writer may create a second time."""
        oldest_kept = version - VERSIONS_KEPT
        newest_deleted_ms = self.runtime.now_ms() - VERSION_AGE_KEPT_MS

        def is_old(entry: MetadataLogEntry) -> bool:
            if file_version(entry.metadata_file) > oldest_kept or entry.timestamp_ms > newest_deleted_ms:
                return False
            # Its own timestamp may be that of a writer whose clock was slow, or who was.
            info = self._storage.head(entry.metadata_file)
            return info is not None and info.modified_ms <= newest_deleted_ms

        delete_dropped(self._storage, base, new, is_old, roots=self.reclaim_roots)


def _hint_files(directory: str) -> list[str]:
    """The hint, and the checksum that Hadoop may have written beside it: by that Hadoop would refuse another hint."""
    hint = join(directory, HINT)
    return [hint, *([checksum_location(hint)] if has_checksum_files(hint) else [])]


def _is_entry_of(table: Table, entry: MetadataLogEntry) -> bool:
    """Whether a log means a table's metadata: a version that was deleted and made again has the name of the old one."""
    is_same = canonical(entry.metadata_file) == canonical(table.metadata_location)
    return is_same and entry.timestamp_ms == table.metadata.last_updated_ms
