"""Spoils files of a table behind everybody's back, as other tools, disks and people do: metadata, lists, manifests, data.

All is done on the files as they are, by fastavro and JSON alone, so that tables of any engine can be spoilt; also tables whose
compacted files are lost, for tests of what can be put back.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fastavro

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.compact.job import compact
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.metadata import unpacked
from icekeep.storage.locations import canonical, local_path
from kit.cases import Choices
from kit.columns import table_of
from kit.deletes import data_files, new_data_files
from kit.naive_scan import lineage_of, live_entries, naive_rows
from kit.row_histories import START, ByIcekeep, in_memory
from kit.rows import scanned_rows
from kit.runtime import no_spark
from kit.storage import MemoryStorage

Record = dict[str, Any]
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
DELETED = 2


class Place(NamedTuple):
    """An entry: its manifest's location, and where it stands there."""

    manifest: str
    index: int
    entry: Record

    @property
    def file(self) -> Record:
        found: Record = self.entry["data_file"]
        return found


class Damager:
    """One table, whose files are in memory or on the local disk.

    Attributes:
        chosen: by which places are chosen.
    """

    def __init__(self, catalog: Catalog, identifier: Identifier, chosen: Choices) -> None:
        pointer = catalog.find(identifier)
        self.chosen = chosen
        self.location = pointer.metadata_location
        self._storage = pointer.storage

    # Files

    def read(self, location: str) -> bytes:
        return self._storage.read(location)

    def write(self, location: str, data: bytes) -> None:
        files = self._memory()
        if files is None:
            self._path(location).write_bytes(data)
            self._forget_checksum(location)
        else:
            files[canonical(location)] = (data, files.get(canonical(location), (b"", 0))[1])

    def remove(self, location: str) -> None:
        files = self._memory()
        if files is None:
            self._path(location).unlink()
            self._forget_checksum(location)
        else:
            del files[canonical(location)]

    def change_bytes(self, location: str, change: Callable[[bytearray], object]) -> None:
        """Change some of a file's bytes; its length stays, if the change keeps it."""
        data = bytearray(self.read(location))
        change(data)
        self.write(location, bytes(data))

    def _forget_checksum(self, location: str) -> None:
        """Hadoop keeps checksums beside files, which would show the change."""
        path = self._path(location)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def _memory(self) -> dict[str, tuple[bytes, int]] | None:
        storage: Any = self._storage
        while not isinstance(storage, MemoryStorage):
            storage = getattr(storage, "inner", None)
            if storage is None:
                return None
        return storage.files

    @staticmethod
    def _path(location: str) -> Path:
        return Path(local_path(location))

    # Metadata

    def metadata(self) -> Record:
        found: Record = json.loads(unpacked(self.read(self.location)))
        return found

    def edit_metadata(self, change: Callable[[Record], object]) -> None:
        """Change the metadata file's JSON."""
        document = self.metadata()
        change(document)
        self.write(self.location, json.dumps(document).encode())

    def head(self) -> Record | None:
        document = self.metadata()
        current = document.get("current-snapshot-id")
        return next((s for s in document.get("snapshots", []) if s["snapshot-id"] == current), None)

    # Lists and manifests

    def rows(self) -> list[Record]:
        head = self.head()
        return [] if head is None or "manifest-list" not in head else self.records(head["manifest-list"])

    def records(self, location: str) -> list[Record]:
        reader = fastavro.reader(io.BytesIO(self.read(location)))
        return [record for record in reader if isinstance(record, dict)]

    def edit_avro(
        self, location: str, change: Callable[[list[Record]], object], header: Mapping[str, str | None] | None = None
    ) -> None:
        """Change the records of an Avro file; its schema stays, and what else its header says but for `header`, by key, where
        null removes one.
        """
        reader = fastavro.reader(io.BytesIO(self.read(location)))
        records = [record for record in reader if isinstance(record, dict)]
        change(records)
        said = {**reader.metadata, **(header or {})}
        metadata = {k: v for k, v in said.items() if v is not None and not k.startswith("avro.")}
        out = io.BytesIO()
        schema: Any = reader.writer_schema
        fastavro.writer(out, schema, records, codec=reader.codec, metadata=metadata)
        self.write(location, out.getvalue())

    def edit_rows(self, change: Callable[[list[Record]], object]) -> None:
        head = self.head()
        assert head is not None
        self.edit_avro(head["manifest-list"], change)

    def edit_row(self, manifest: str, **values: Any) -> None:
        """Change what every manifest list says of a manifest."""
        for snapshot in self.metadata()["snapshots"]:
            if "manifest-list" not in snapshot:
                continue
            rows = self.records(snapshot["manifest-list"])
            if any(row["manifest_path"] == manifest for row in rows):
                self.edit_avro(
                    snapshot["manifest-list"],
                    lambda some: [row.update(values) for row in some if row["manifest_path"] == manifest],
                )

    def edit_manifest(self, manifest: str, change: Callable[[list[Record]], object], **row: Any) -> None:
        """Change a manifest's entries, and in all lists its length and counts, so that these fit."""
        self.edit_avro(manifest, change)
        entries = self.records(manifest)
        counts = {
            name: sum(1 for one in entries if one["status"] == status)
            for name, status in (("existing", 0), ("added", 1), ("deleted", 2))
        }
        rows = {
            name: sum(one["data_file"]["record_count"] for one in entries if one["status"] == status)
            for name, status in (("existing", 0), ("added", 1), ("deleted", 2))
        }
        known = self.rows()[0].keys()
        values = {"manifest_length": len(self.read(manifest)), **row}
        for name in counts:
            values[f"{name}_files_count"] = values[f"{name}_data_files_count"] = counts[name]
            values[f"{name}_rows_count"] = rows[name]
        self.edit_row(manifest, **{name: value for name, value in values.items() if name in known})

    def edit_header(self, manifest: str, header: Mapping[str, str | None]) -> None:
        """Change what the header of a manifest says, in all lists its length; null removes a key."""
        self.edit_avro(manifest, lambda entries: None, header)
        self.edit_row(manifest, manifest_length=len(self.read(manifest)))

    def entries(self, content: int | None = None) -> Iterator[Place]:
        """The live entries of the current snapshot, of one content."""
        for row in sorted(self.rows(), key=lambda one: one["manifest_path"]):
            for index, entry in enumerate(self.records(row["manifest_path"])):
                if entry["status"] != DELETED and content in (None, entry["data_file"].get("content", DATA)):
                    yield Place(row["manifest_path"], index, entry)

    def some(self, places: list[Place]) -> Place:
        """One of some entries, by lot; raises `CannotDamageError` if there are none."""
        if not places:
            raise CannotDamageError
        return self.chosen.choice(places)

    def entry(self, content: int | None = DATA, where: Callable[[Record], object] = lambda file: True) -> Place:
        """A live entry by lot, of one content, whose file is of some kind."""
        return self.some([place for place in self.entries(content) if where(place.file)])

    def vector(self) -> Place:
        """A live deletion vector."""
        return self.entry(POSITION_DELETES, is_vector)

    def edit_file(self, place: Place, **values: Any) -> None:
        self.edit_entry(place, lambda entry: entry["data_file"].update(values))

    def edit_entry(self, place: Place, change: Callable[[Record], object]) -> None:
        self.edit_manifest(place.manifest, lambda entries: change(entries[place.index]))


class CannotDamageError(Exception):
    """The table has nothing that could be spoilt in this way."""


def is_vector(file: Record) -> bool:
    """Whether a delete file is a deletion vector."""
    return str(file["file_format"]).lower() == "puffin"


REWRITE = "replace"


class Rows(NamedTuple):
    """What readers have of a branch; the lineage is of `main`, in format version 3."""

    scanned: Counter[str]
    naive: Counter[str]
    lineage: Any

    @classmethod
    def of(cls, table: Table, ref: str = "main") -> "Rows":
        lineage = lineage_of(table) if table.metadata.format_version == 3 else None
        return cls(scanned_rows(table, ref), naive_rows(table), lineage)


def filled(
    version: int = 2, *, file_format: str = "PARQUET", partition_by: Sequence[tuple[str, str]] = ()
) -> ByIcekeep:
    """A table of 24 rows, numbered by `id`, in three commits of two files."""
    by = in_memory()
    by.create(START, partition_by, version)
    for first in (0, 8, 16):
        append(by, range(first, first + 8), file_format)
    return by


def append(by: ByIcekeep, ids: Sequence[int], file_format: str = "PARQUET") -> None:
    """Append rows of kinds `a` and `b`."""
    names = [field.name for field in by.table.metadata.schema.fields]
    rows = [dict.fromkeys(names) | {"id": n, "number": n % 3} for n in ids]
    kinds = [{"kind": "ab"[n % 2]} if "kind" in names else {} for n in ids]
    by.append([row | kind for row, kind in zip(rows, kinds, strict=True)], file_format)


def compacted(by: ByIcekeep) -> ByIcekeep:
    """After all files of each partition were rewritten into one."""
    compact(by.table, no_spark, options={"rewrite-all": "true"})
    return by


def rewritten(by: ByIcekeep, *parts: Sequence[int], **facts: Any) -> ByIcekeep:
    """After all data files were rewritten into one file for each list of ids, whatever that does to rows."""
    table = by.table
    names = [field.name for field in table.metadata.schema.fields]
    rows = [[dict.fromkeys(names) | {"id": n, "kind": "ab"[n % 2], "number": n % 3} for n in part] for part in parts]
    files = [file for part in rows for file in new_data_files(table, table_of(table.metadata.schema, part))]
    old = tuple(entry for entry in live_entries(table) if entry.data_file.content is FileContent.DATA)
    change = RewriteFiles(removed=old, added=tuple(files), schema_id=table.metadata.current_schema_id, **facts)
    commit(table, change)
    return by


def rewritten_files(table: Table) -> list[DataFile]:
    by = {s.snapshot_id for s in table.metadata.snapshots if (s.summary or {})["operation"] == REWRITE}
    live = {entry.data_file.file_path for entry in live_entries(table) if entry.snapshot_id in by}
    return [file for file in data_files(table) if file.file_path in live]


def damager(by: ByIcekeep) -> Damager:
    """Who spoils the table as it is now."""
    return Damager(by.catalog, by.identifier, Choices(1))


def lose(by: ByIcekeep, *files: DataFile) -> None:
    """Remove files; all that a rewrite wrote, where none is named."""
    for file in files or rewritten_files(by.table):
        damager(by).remove(file.file_path)


def old_entries(table: Table) -> list[ManifestEntry]:
    """The live data files of the snapshot before the last rewrite, by path."""
    rewrite = [s for s in table.metadata.snapshots if (s.summary or {})["operation"] == REWRITE][-1]
    parent = table.metadata.snapshots_by_id[rewrite.parent_snapshot_id or 0]
    reader = ManifestReader(table.storage)
    entries = [e for m in reader.manifests(parent) for e in reader.entries(m, table.metadata) if e.is_live]
    data = [entry for entry in entries if entry.data_file.content is FileContent.DATA]
    return sorted(data, key=lambda entry: entry.data_file.file_path)
