"""Operations that add, replace and remove files of a table, and what each may do to its rows.

A data file is a name on the disk; which rows it holds is known to the model alone.
"""

from typing import Any

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.append_files import AppendFiles
from icekeep.commit.changes.delete_files import DeleteFiles
from icekeep.commit.changes.overwrite_files import OverwriteFiles
from icekeep.commit.changes.rewrite_files import RewriteFiles
from icekeep.commit.changes.rewrite_manifests import RewriteManifests
from icekeep.commit.changes.row_delta import RowDelta
from icekeep.commit.conflicts import Isolation
from icekeep.commit.manifests import StorageManifestReader
from icekeep.errors import IcekeepError, OutcomeUnknownError
from icekeep.spec.applicability import applied_delete, reaching_deletes
from icekeep.spec.manifests.encode import EntryEncoder, ManifestBuilder
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from simulation.model import Effect, Model
from simulation.operation import Operation
from simulation.world import EVENTS, Client


class Append(Operation):
    makes_snapshot = True

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        branches = sorted(name for name, ref in table.metadata.refs.items() if ref.is_branch)
        self.branch = self.moves_ref = self.random.choice(branches) if self.random.random() < 0.3 and branches else MAIN
        with self.discarded_if_refused(client):
            files = self.write_files(client, table, *(self.new_rows() for _ in range(self.random.randint(1, 2))))
            return self.commit(client, table, AppendFiles(files=files, branch=self.branch))


class Compact(Operation):
    moves_ref = MAIN
    makes_snapshot = True

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        head = table.metadata.current_snapshot
        entries, deletes = live_entries(client, table), live_entries(client, table, ManifestContent.DELETES)
        chosen = self.random.sample(entries, min(len(entries), self.random.randint(1, 4)))
        if head is None or not chosen:
            return False
        self.removed = frozenset(e.data_file.file_path for e in chosen)
        self.sequence_number = head.sequence_number if self.random.random() < 0.7 else None
        visible = self.model.visible(self.model.view(head).live)
        rows = frozenset(row for path in self.removed for row in visible[path])
        applied = reaching_deletes(chosen, deletes, table.metadata.specs_by_id)
        with self.discarded_if_refused(client):
            change = RewriteFiles(
                removed=tuple(chosen),
                added=self.write_files(client, table, rows) if rows else (),
                schema_id=table.metadata.current_schema_id,
                applied_deletes={path: frozenset(map(applied_delete, found)) for path, found in applied.items()},
                format_version=table.metadata.format_version,
                data_sequence_number=self.sequence_number,
            )
            return self.commit(client, table, change)

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(MAIN, self.removed, self.added, self.sequence_number, same_rows=True)


class DeleteRows(Operation):
    """Deletes one row, or two, of one data file by position: with a vector that takes the place of another in version 3."""

    moves_ref = MAIN
    makes_snapshot = True
    rows: frozenset[int] = frozenset()

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        head = table.metadata.current_snapshot
        if head is None or table.metadata.format_version == 1:
            return False
        entries, deletes = live_entries(client, table), live_entries(client, table, ManifestContent.DELETES)
        if not entries:
            return False
        data = self.random.choice(entries).data_file
        visible = sorted(self.model.visible(self.model.view(head).live)[data.file_path])
        self.rows = frozenset(self.random.sample(visible, min(len(visible), self.random.randint(1, 2))))
        with self.discarded_if_refused(client):
            change = self.change(client, table, data, deletes)
            return self.commit(client, table, change)

    def change(self, client: Client, table: Table, data: DataFile, deletes: list[ManifestEntry]) -> RowDelta:
        path, vectors = data.file_path, table.metadata.format_version > 2
        old = [d for d in deletes if vectors and d.data_file.referenced_data_file == path]
        gone = self.rows.union(*(self.model.deletes[d.data_file.file_path][1] for d in old))
        self.removed = frozenset(d.data_file.file_path for d in old)
        form = {"file_format": "puffin", "content_offset": 4, "content_size_in_bytes": 40} if vectors else {}
        return RowDelta(
            added_deletes=(self.write_deletes(client, table, path, gone, referenced_data_file=path, **form),),
            removed_deletes=tuple(old),
            isolation=self.random.choice([None, *Isolation]),
            starting_snapshot_id=table.metadata.current_snapshot_id,
        )

    def write_deletes(
        self, client: Client, table: Table, target: str | None, rows: frozenset[int], **values: Any
    ) -> DataFile:
        """A delete file of these rows."""
        (file,) = self.write_files(client, table, rows)
        del self.model.rows[file.file_path]
        self.model.deletes[file.file_path] = (target, rows)
        return replace(file, **{"content": FileContent.POSITION_DELETES, **values})

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(MAIN, self.removed, self.added, deleted_rows=self.rows)


class DeleteByValue(DeleteRows):
    """Deletes one row, or two, wherever they are, by an equality delete file."""

    def change(self, client: Client, table: Table, data: DataFile, deletes: list[ManifestEntry]) -> RowDelta:
        values = {"content": FileContent.EQUALITY_DELETES, "equality_ids": (1,)}
        return RowDelta(
            added_deletes=(self.write_deletes(client, table, None, self.rows, **values),),
            starting_snapshot_id=table.metadata.current_snapshot_id,
        )


class Overwrite(Operation):
    moves_ref = MAIN
    makes_snapshot = True

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        entries = live_entries(client, table)
        chosen = self.random.sample(entries, min(len(entries), self.random.randint(1, 2)))
        self.removed = frozenset(e.data_file.file_path for e in chosen)
        with self.discarded_if_refused(client):
            change = OverwriteFiles(
                removed=tuple(chosen),
                added=self.write_files(client, table, self.new_rows()),
                isolation=self.random.choice([None, *Isolation]),
                starting_snapshot_id=table.metadata.current_snapshot_id,
            )
            return self.commit(client, table, change)


class Delete(Operation):
    moves_ref = MAIN
    makes_snapshot = True

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        entries = live_entries(client, table)
        chosen = self.random.sample(entries, min(len(entries), 1))
        self.removed = frozenset(e.data_file.file_path for e in chosen)
        return self.commit(client, table, DeleteFiles(paths=self.removed))


class MergeManifests(Operation):
    moves_ref = MAIN
    makes_snapshot = True

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        metadata, reader = table.metadata, StorageManifestReader(client.storage)
        head = metadata.current_snapshot
        manifests = [] if head is None else reader.manifests(head)
        chosen = [m for m in manifests if m.content is ManifestContent.DATA and self.random.random() < 0.7]
        entries = [e for m in chosen for e in reader.entries(m, metadata) if e.is_live]
        if not entries:
            return False
        location = f"{metadata.location}/metadata/merged-{self.number:03d}.avro"
        encoder = EntryEncoder(metadata.partition_type(0), metadata.format_version)
        builder = ManifestBuilder(
            location, encoder, metadata.spec, metadata.schema, format_version=metadata.format_version
        )
        for entry in entries:
            builder.add(replace(entry, status=Status.EXISTING))
        data, manifest = builder.finish(None)
        try:
            with client.storage.write(location) as stream:
                stream.write(data)
            version = table.metadata.format_version
            change = RewriteManifests(replaced=tuple(chosen), added=(manifest,), format_version=version)
            return self.commit(client, table, change)
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            client.storage.delete_many([location])
            raise

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(MAIN, same_rows=True)


def live_entries(client: Client, table: Table, content: ManifestContent = ManifestContent.DATA) -> list[ManifestEntry]:
    """The live entries of main's data files or delete files, as a plan reads them."""
    reader, head = StorageManifestReader(client.storage), table.metadata.current_snapshot
    return [
        entry
        for manifest in ([] if head is None else reader.manifests(head))
        if manifest.content is content and manifest.may_have_live_files
        for entry in reader.entries(manifest, table.metadata)
        if entry.is_live
    ]
