"""Where the files of a table lie (spec, Appendix F "Path Construction").

Properties `write.data.path` and `write.metadata.path`: absolute, or relative to the table's location. Data files are spread
over directories named by a hash where `write.object-storage.enabled` asks for it.
"""

from collections.abc import Mapping

import mmh3
import msgspec

from icekeep.errors import PropertyError, UnsupportedError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.table_properties import boolean_property

OWN_DIRECTORY = ".icekeep"
"""What is icekeep's own lies below this directory; the dot hides it from every engine's orphan removal."""

_DATA_PATH = "write.data.path"
_OBJECT_STORAGE = "write.object-storage.enabled"
_PARTITIONED_PATHS = "write.object-storage.partitioned-paths"
_PROVIDER = "write.location-provider.impl"
_WITHDRAWN = "write.folder-storage.path"
_WITHDRAWN_OF_OBJECTS = "write.object-storage.path"

_HASH_BITS = 20


class DataLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where a table's new data files go.

    Attributes:
        directory: above all of them, without a slash at the end.
        hashed: whether directories named by a hash of the rest of the path spread them over an object store's key space.
        partitioned_paths: whether the values of the partition are in the path; they always are where nothing is hashed.
        context: what tells tables apart that share one `directory`, by the last two names of their locations.
    """

    directory: str
    hashed: bool = False
    partitioned_paths: bool = True
    context: str = ""

    def location(self, file_name: str, partition_path: str = "") -> str:
        """The location of a new data file.

        Args:
            file_name: which no other file of the table has.
            partition_path: as `partition_path` makes it, empty for a table without partitions.
        """
        if not self.hashed:
            return f"{self.directory}/{_joined(partition_path, file_name)}"
        path = _joined(partition_path, file_name) if self.partitioned_paths else file_name
        directories = _hash_directories(path)
        if self.context or self.partitioned_paths:
            return f"{self.directory}/{_joined(directories, self.context, path)}"
        # With no directory of the partition below it, the last part of the hash would be one for each file.
        return f"{self.directory}/{directories}-{path}"


def data_layout(table_location: str, properties: Mapping[str, str]) -> DataLayout:
    """Read the table properties that say where data files go, as Iceberg Java reads them.

    Raises:
        PropertyError: a property has a value that it cannot take, or is one that was withdrawn.
        UnsupportedError: code of another engine decides where the files go.
    """
    if _PROVIDER in properties:
        raise UnsupportedError(
            f"table property {_PROVIDER!r} is {properties[_PROVIDER]!r}: code that icekeep cannot run says where data files "
            "go; remove the property",
            property=_PROVIDER,
        )
    table_location = table_location.rstrip("/")
    hashed = boolean_property(properties, _OBJECT_STORAGE, default=False)
    if not properties.get(_DATA_PATH):
        withdrawn = (_WITHDRAWN_OF_OBJECTS, _WITHDRAWN) if hashed else (_WITHDRAWN,)
        for key in withdrawn:
            if key in properties:
                raise PropertyError(
                    f"table property {key!r} was withdrawn; set {_DATA_PATH!r} to {properties[key]!r} instead",
                    property=key,
                )
    directory = _directory(table_location, properties, _DATA_PATH, "data")
    if not hashed:
        return DataLayout(directory=directory)
    return DataLayout(
        directory=directory,
        hashed=True,
        partitioned_paths=boolean_property(properties, _PARTITIONED_PATHS, default=True),
        context="" if directory.startswith(table_location) else _context(table_location),
    )


def data_directory(metadata: TableMetadata) -> str:
    """The directory above all new data files, without a slash at the end."""
    return _directory(metadata.location, metadata.properties, _DATA_PATH, "data")


def metadata_directory(metadata: TableMetadata) -> str:
    """Where new metadata files, manifests and manifest lists go, without a slash at the end."""
    return _directory(metadata.location, metadata.properties, "write.metadata.path", "metadata")


def manifest_location(metadata: TableMetadata, commit_uuid: str, number: int) -> str:
    """The location of the `number`th manifest of one commit."""
    return f"{metadata_directory(metadata)}/{commit_uuid}-m{number}.avro"


def manifest_list_location(metadata: TableMetadata, snapshot_id: int, attempt: int, commit_uuid: str) -> str:
    """The location of the manifest list of one attempt to commit a snapshot."""
    return f"{metadata_directory(metadata)}/snap-{snapshot_id}-{attempt}-{commit_uuid}.avro"


def own_directory(metadata: TableMetadata, name: str) -> str:
    """One of icekeep's own directories of a table, such as `plans`."""
    return f"{metadata.location.rstrip('/')}/{OWN_DIRECTORY}/{name}"


def _directory(table_location: str, properties: Mapping[str, str], property_name: str, default: str) -> str:
    text = properties.get(property_name, "")
    path = text.rstrip("/")
    if ":/" in text or text.startswith("/"):
        return path
    return f"{table_location.rstrip('/')}/{path or default}"


def _context(table_location: str) -> str:
    """The last two names of a table's location, its own and most often its namespace's."""
    path = table_location.partition("://")[2].partition("/")[2] if "://" in table_location else table_location
    return "/".join([name for name in path.split("/") if name][-2:])


def _hash_directories(path: str) -> str:
    """The low bits of a path's hash as names of directories: three of 4 bits, then one of 8."""
    bits = format(mmh3.hash(path.encode(), signed=False) % 2**_HASH_BITS, f"0{_HASH_BITS}b")
    return "/".join((bits[:4], bits[4:8], bits[8:12], bits[12:]))


def _joined(*parts: str) -> str:
    return "/".join(filter(None, parts))
