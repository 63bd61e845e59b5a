"""Operations that put delete files in the place of others: no row may change."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import (
    AddedDeletes,
    ConvertDeletes,
    ConvertedFile,
    EntryDigests,
    NamedFile,
    RewriteDeletes,
)
from icekeep.commit.file_sets import entry_digest
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_deletion_vector, is_newer, path_digest, sequence_number
from simulation.client import Client
from simulation.doing import Effect
from simulation.file_operations import OnBranch
from simulation.model import Model
from simulation.world import LOCATION

_PAUSES_MS = (0, 1_000, 10_000)


class OnDeletes(OnBranch):
    """Reads the delete files of a branch and replaces some of them."""

    def change(self, client: Client, table: Table) -> Any:
        head = table.metadata.head(self.branch)
        if table.metadata.format_version == 1 or head is None:
            return None
        self.makes_vectors = table.metadata.format_version > 2
        deletes = self.entries(client, table, ManifestContent.DELETES)
        data = {entry.data_file.file_path: entry for entry in self.entries(client, table)}
        change = self.replacement(client, table, data, deletes)
        client.sleep_ms(self.random.choice(_PAUSES_MS))
        return change

    def replacement(
        self, client: Client, table: Table, data: dict[str, ManifestEntry], deletes: Sequence[ManifestEntry]
    ) -> Any:
        """The change, on live data files by their paths and live delete files; null if there is nothing to do."""
        raise NotImplementedError

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        right = not self.added or self.makes_vectors is (after.format_version > 2)
        model.require(
            right, "D3", f"{self.name} added delete files of a kind that version {after.format_version} has not"
        )

    def chosen(self, deletes: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        """Some of the delete files."""
        return self.random.sample(deletes, min(len(deletes), self.random.randint(1, 4)))

    def write_positions(self, client: Client, data: DataFile, rows: frozenset[int]) -> DataFile:
        """A position delete file or a vector of a data file."""
        path = f"{LOCATION}/data/{self.number:03d}-{len(self.added)}-deletes.parquet"
        self.model.deletes[path] = (data.file_path, rows)
        self.added |= {path}
        with client.storage.write(path) as stream:
            stream.write(b"PAR1")
        file = DataFile(
            file_path=path,
            file_format="PARQUET",
            spec_id=data.spec_id,
            partition=data.partition,
            record_count=len(rows),
            file_size_in_bytes=4,
            content=FileContent.POSITION_DELETES,
            referenced_data_file=data.file_path,
        )
        form = {"file_format": "puffin", "content_offset": 4, "content_size_in_bytes": 40}
        return replace(file, **form) if self.makes_vectors else file

    def rows_in(self, deletes: Sequence[ManifestEntry]) -> frozenset[int]:
        """The rows that some delete files delete, where they reach."""
        return frozenset[int]().union(*(self.model.deletes[d.data_file.file_path][1] for d in deletes))


class ConvertByValue(OnDeletes):
    """Puts deletes of positions in the place of equality deletes, in all data files that these reach."""

    def replacement(
        self, client: Client, table: Table, data: dict[str, ManifestEntry], deletes: Sequence[ManifestEntry]
    ) -> Any:
        converted = self.chosen([d for d in deletes if d.data_file.content is FileContent.EQUALITY_DELETES])
        if not converted:
            return None
        specs, head = table.metadata.specs_by_id, table.metadata.head(self.branch)
        assert head is not None
        positions = [d for d in deletes if d.data_file.content is FileContent.POSITION_DELETES]
        by_value = reaching_deletes(data.values(), converted, specs)
        by_position = reaching_deletes(data.values(), positions, specs)
        added, named, replaced = list[DataFile](), list[ConvertedFile](), list[ManifestEntry]()
        for path in sorted(path for path, reaching in by_value.items() if reaching):
            found = self.model.rows[path] & self.rows_in(by_value[path])
            if not found:
                continue
            # As the job does: positions that are deleted already may be so no more where this lands, after a rollback.
            merged = by_position[path] if self.makes_vectors else ()
            named.append(ConvertedFile(data[path], tuple(merged)))
            if found <= self.rows_in(merged):
                continue
            added.append(self.write_positions(client, data[path].data_file, found | self.rows_in(merged)))
            replaced += merged
        self.removed = frozenset(d.data_file.file_path for d in (*converted, *replaced))
        return ConvertDeletes(
            converted=tuple(converted),
            data_files=EntryDigests.of(entry_digest(data[path]) for path, some in by_value.items() if some),
            added=tuple(added),
            named=tuple(named),
            replaced=tuple(replaced),
            format_version=table.metadata.format_version,
            starting_sequence_number=head.sequence_number,
            branch=self.branch,
        )

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(self.branch, self.removed, self.added, same_rows=True)


class MergeDeletes(OnDeletes):
    """Merges the position delete files of each of some data files, into vectors in version 3, and drops what reaches none."""

    def replacement(
        self, client: Client, table: Table, data: dict[str, ManifestEntry], deletes: Sequence[ManifestEntry]
    ) -> Any:
        positions = [d for d in deletes if d.data_file.content is FileContent.POSITION_DELETES]
        by_target: defaultdict[str, list[ManifestEntry]] = defaultdict(list)
        for delete in positions:
            if delete.data_file.file_path in self.model.unnamed:
                continue
            by_target[str(delete.data_file.referenced_data_file)].append(delete)
        self.numbers: dict[str, int] = {}
        rewritten, dangling = list[ManifestEntry](), list[ManifestEntry]()
        added, named = list[AddedDeletes](), dict[bytes, NamedFile]()
        for path in self.random.sample(sorted(by_target), min(len(by_target), self.random.randint(1, 3))):
            some = [d for d in by_target[path] if not is_deletion_vector(d.data_file)]
            has_vector = len(some) < len(by_target[path])
            number = sequence_number(data[path]) if path in data else None
            if number is None and (has_vector or self.random.random() < 0.5):
                dangling += by_target[path]
            elif some:
                rewritten += some
                kept = [] if number is None else [d for d in some if is_newer(d, number)]
                late = [sequence_number(d) for d in some if d not in kept]
                if has_vector:
                    kept = []
                elif kept:
                    file = self.write_positions(client, data[path].data_file, self.rows_in(kept))
                    self.numbers[file.file_path] = max(map(sequence_number, kept))
                    added.append(AddedDeletes(file, self.numbers[file.file_path]))
                least = min(map(sequence_number, kept), default=None)
                named[path_digest(path)] = NamedFile(least, max(late, default=None), has_vector=has_vector)
        if not (rewritten or dangling):
            return None
        self.removed = frozenset(d.data_file.file_path for d in (*rewritten, *dangling))
        return RewriteDeletes(
            rewritten=tuple(rewritten),
            added=tuple(added),
            named=named,
            dangling=tuple(dangling),
            format_version=table.metadata.format_version,
            branch=self.branch,
        )

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(self.branch, self.removed, self.added, same_rows=True, numbers=self.numbers)
