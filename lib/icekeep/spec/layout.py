"""Where the files of a table lie (spec, Appendix F "Path Construction").

Properties `write.data.path` and `write.metadata.path`: absolute, or relative to the table's location.
"""

from icekeep.spec.metadata import TableMetadata

OWN_DIRECTORY = ".icekeep"
"""What is icekeep's own lies below this directory; the dot hides it from every engine's orphan removal."""


def data_directory(metadata: TableMetadata) -> str:
    """Where new data files go, without a slash at the end."""
    return _directory(metadata, "write.data.path", "data")


def metadata_directory(metadata: TableMetadata) -> str:
    """Where new metadata files, manifests and manifest lists go, without a slash at the end."""
    return _directory(metadata, "write.metadata.path", "metadata")


def manifest_location(metadata: TableMetadata, commit_uuid: str, number: int) -> str:
    """The location of the `number`th manifest of one commit."""
    return f"{metadata_directory(metadata)}/{commit_uuid}-m{number}.avro"


def manifest_list_location(metadata: TableMetadata, snapshot_id: int, attempt: int, commit_uuid: str) -> str:
    """The location of the manifest list of one attempt to commit a snapshot."""
    return f"{metadata_directory(metadata)}/snap-{snapshot_id}-{attempt}-{commit_uuid}.avro"


def own_directory(metadata: TableMetadata, name: str) -> str:
    """One of icekeep's own directories of a table, such as `plans`."""
    return f"{metadata.location.rstrip('/')}/{OWN_DIRECTORY}/{name}"


def _directory(metadata: TableMetadata, property_name: str, default: str) -> str:
    text = metadata.properties.get(property_name, "")
    path = text.rstrip("/")
    if ":/" in text or text.startswith("/"):
        return path
    return f"{metadata.location.rstrip('/')}/{path or default}"
