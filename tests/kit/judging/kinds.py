"""What kind of table a judge is given: what of the format is in it, and which jobs it has been through."""

from collections.abc import Callable, Sequence
from functools import cached_property

from icekeep.catalog.base import Table
from icekeep.commit.summary import JOB_KEY, made_by
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.schema import Schema
from icekeep.spec.types import DOUBLE, FLOAT, NestedField, walk
from kit.naive_scan import live_entries

_FORMATS = {"parquet": "Parquet", "orc": "ORC", "avro": "Avro", "puffin": "Puffin"}


class Kind:
    """The kind of a table's main branch as it is now."""

    def __init__(self, table: Table) -> None:
        self.metadata = table.metadata
        self.entries: list[ManifestEntry] = live_entries(table)

    @cached_property
    def data_files(self) -> list[DataFile]:
        return [entry.data_file for entry in self.entries if entry.data_file.content is FileContent.DATA]

    @cached_property
    def equality_deletes(self) -> list[DataFile]:
        return [entry.data_file for entry in self.entries if entry.data_file.content is FileContent.EQUALITY_DELETES]

    @cached_property
    def position_deletes(self) -> list[DataFile]:
        """Files of position deletes; a deletion vector is none."""
        found = (entry.data_file for entry in self.entries if entry.data_file.content is FileContent.POSITION_DELETES)
        return [file for file in found if file.content_offset is None]

    @cached_property
    def has_vectors(self) -> bool:
        return any(entry.data_file.content_offset is not None for entry in self.entries)

    @cached_property
    def formats(self) -> set[str]:
        """Of all files but deletion vectors."""
        return {_FORMATS[entry.data_file.file_format.lower()] for entry in self.entries} - {"Puffin"}

    @cached_property
    def keys(self) -> set[int]:
        """The ids of columns by whose values rows are deleted."""
        return {field_id for file in self.equality_deletes for field_id in file.equality_ids or ()}

    def has_null_keys(self) -> bool:
        """Whether a row may have a null where an equality delete has a key."""
        return any((file.null_value_counts or {}).get(key) != 0 for file in self.data_files for key in self.keys)

    def has_keys(self, are_so: Callable[[Sequence[NestedField | None]], bool]) -> bool:
        """Whether a column by which rows are deleted is so in the table's schemas, oldest first; `None` where it is missing."""
        return any(are_so([_field(schema, key) for schema in self.metadata.schemas]) for key in self.keys)

    def is_partitioned_by(self, are_so: Callable[[Sequence[NestedField | None]], bool]) -> bool:
        """The same of the columns that partitions follow from."""
        sources = {source for spec in self.metadata.partition_specs for f in spec.fields for source in f.source_ids}
        return any(are_so([_field(schema, source) for schema in self.metadata.schemas]) for source in sources)

    def has_null_partitions(self) -> bool:
        """Whether files of deletes, or the files that they reach, lie in partitions with a null."""
        return any(None in entry.data_file.partition for entry in self.entries)

    @cached_property
    def fields(self) -> list[NestedField]:
        """All columns there are, and all that is nested in them."""
        return [*walk(self.metadata.schema.as_struct())]

    @cached_property
    def specs(self) -> set[int]:
        """The partition specs that the files are written in."""
        return {entry.data_file.spec_id for entry in self.entries}

    @cached_property
    def writers(self) -> set[str]:
        """The software that made the snapshots which are kept."""
        return {_writer(made_by(snapshot.summary)) for snapshot in self.metadata.snapshots}

    @cached_property
    def jobs(self) -> set[str]:
        """Those of icekeep that the snapshots name, and expiration, where parents of snapshots are gone."""
        metadata = self.metadata
        named = {(snapshot.summary or {}).get(JOB_KEY, "") for snapshot in metadata.snapshots} - {""}
        parents = {snapshot.parent_snapshot_id for snapshot in metadata.snapshots} - {None}
        return named | ({"expire_snapshots"} if parents - metadata.snapshots_by_id.keys() else set())

    def labels(self) -> list[str]:
        """All that is told of it when judges' readings are counted."""
        metadata = self.metadata
        has = {
            "position deletes": self.position_deletes,
            "equality deletes": self.equality_deletes,
            "deletion vectors": self.has_vectors,
            "columns changed": len(metadata.schemas) > 1,
            "partition fields changed": len(metadata.partition_specs) > 1,
            "partitions": any(spec.fields for spec in metadata.partition_specs),
        }
        return [
            f"format version {metadata.format_version}",
            *sorted(self.formats),
            *(name for name, is_so in has.items() if is_so),
            *(f"written by {writer}" for writer in sorted(self.writers)),
            *(f"after {job}" for job in sorted(self.jobs)),
        ]


def was_promoted(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column has had more than one type."""
    return len({field.type for field in fields if field is not None}) > 1


def is_young(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column was not there from the first."""
    return fields[0] is None


def is_gone(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column is there no more."""
    return fields[-1] is None


def has_default(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column has a value in rows that are older than it."""
    return any(field is not None and field.initial_default is not None for field in fields)


def is_float(fields: Sequence[NestedField | None]) -> bool:
    """Whether a column's numbers have a negative zero."""
    return any(field is not None and field.type in (FLOAT, DOUBLE) for field in fields)


def _field(schema: Schema, field_id: int) -> NestedField | None:
    return schema.fields_by_id.get(field_id)


def _writer(maker: str | None) -> str:
    if maker is None:
        return "PyIceberg"
    return next((name for name in ("icekeep", "Trino") if maker.startswith(name)), "Iceberg Java")
