"""Namespaces that are directories: what lies where in a warehouse, and which directory is a table."""

from collections.abc import Mapping

from icekeep.catalog.base import Identifier, format_identifier, in_parts, validate_namespace, validate_table_identifier
from icekeep.catalog.name_errors import namespace_exists, no_such_namespace
from icekeep.catalog.version_files import list_versions
from icekeep.errors import UnsupportedError, UsageError
from icekeep.storage.base import DirectoryStorage
from icekeep.storage.locations import join


class DirectoryNamespaces:
    """Tables at `<warehouse>/<namespace>/<table>`, each a directory; raises as the catalog protocol says."""

    def __init__(self, name: str, warehouse: str, storage: DirectoryStorage) -> None:
        self.name = name
        self.warehouse = warehouse
        self._storage = storage

    def default_location(self, identifier: Identifier) -> str:
        return self._location(validate_table_identifier(identifier))

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        if not self._has_namespace(in_parts(namespace)):
            raise no_such_namespace(self, namespace)
        children = [(*namespace, name) for name in self._storage.child_directories(self._location(namespace))]
        return [child for child in children if self._is_table(child)]

    def list_namespaces(self) -> list[Identifier]:
        found: list[Identifier] = []
        ahead: list[Identifier] = [()]
        while ahead:
            parent = ahead.pop()
            children = [(*parent, name) for name in self._storage.child_directories(self._location(parent))]
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
            if self._storage.directory_exists(self._location(namespace[:level])) and not self._has_namespace(
                namespace[:level]
            ):
                raise UsageError(
                    f"cannot create namespace {format_identifier(namespace)!r} in catalog {self.name!r}: "
                    f"{self._location(namespace[:level])!r} holds a table, or what a dropped table left"
                )
        self._storage.make_directory(self._location(namespace))

    def drop_namespace(self, namespace: Identifier) -> None:
        if not self._has_namespace(namespace):
            raise no_such_namespace(self, namespace)
        location = self._location(namespace)
        names = self._storage.child_names(location)
        if names:
            raise UsageError(
                f"namespace {format_identifier(namespace)!r} in catalog {self.name!r} is not empty: {location!r} holds "
                f"{names[0]!r}; drop the tables in it and remove what they left"
            )
        self._storage.remove_directory(location)

    def _has_namespace(self, namespace: Identifier) -> bool:
        """A directory that neither is a table nor was one: a dropped table leaves its data behind."""
        location = self._location(validate_namespace(namespace))
        inside = join(location, "metadata")
        # A directory called metadata may itself be a table of that name.
        is_table = self._storage.directory_exists(inside) and not self._storage.directory_exists(
            join(inside, "metadata")
        )
        return self._storage.directory_exists(location) and not is_table

    def _is_table(self, identifier: Identifier) -> bool:
        return bool(list_versions(self._storage, join(self._location(identifier), "metadata")))

    def _metadata_directory(self, identifier: Identifier) -> str:
        return join(self.default_location(identifier), "metadata")

    def _location(self, identifier: Identifier) -> str:
        if hidden := next((part for part in identifier if part.startswith(".")), None):
            raise UnsupportedError(
                f"catalog {self.name!r} cannot have {hidden!r}: directories whose names begin with a dot are not listed"
            )
        return join(self.warehouse, *identifier)
