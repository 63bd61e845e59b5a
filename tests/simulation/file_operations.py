"""What every operation of a writer is, and those that add, replace and remove files of a table.

A data file is a name on the disk; which rows it holds is known to the model alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit import retry
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, DeleteFiles, OverwriteFiles
from icekeep.commit.conflicts import Isolation
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import IcekeepError, OutcomeUnknownError
from icekeep.spec.filters.expressions import Expression, Predicate
from icekeep.spec.filters.expressions import Operation as Compares
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.reach import own_path, partition_key
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.spec.snapshots import MAIN
from icekeep.spec.transforms import Void
from icekeep.storage.base import Storage
from simulation.client import Client
from simulation.model import Model
from simulation.world import EVENTS, KINDS, LOCATION, Effect, Told, kind_of, kinds_of

_KIND_ID = 2


def by_kind(rows: frozenset[int]) -> list[frozenset[int]]:
    """Rows, those of each kind apart."""
    return [frozenset(row for row in rows if kind_of(row) == kind) for kind in kinds_of(rows)]


class Operation:
    """One call of the library by one writer.

    `met_faults`: something went wrong at one of its calls. `hidden`: it landed and was reported as a conflict. `outrun`: the
    table was raised to a later format version meanwhile, and a catalog that applies updates refused its snapshot, of the earlier
    one: all that it requires holds still, so what is known of this catalog its writer cannot know of all.
    `moves_refs`: the branches and tags that it may move. `changes`: which definitions of the table it may change.
    `expires`: it may remove snapshots and refs. `restores`: it may bring back what had expired. `waits`: it is done when
    two days have gone by in which nobody did anything. `began_ms`: when it was begun. `left`: files that it may leave behind
    where it is refused.
    """

    moves_refs: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    expires = False
    restores = False
    waits = False
    began_ms = 0
    makes_snapshot = False

    def __init__(self, number: int, random: Random, model: Model) -> None:
        self.name = f"{type(self).__name__} {number}"
        self.number, self.random, self.model = number, random, model
        self.told = Told.NOTHING
        self.landings = 0
        self.met_faults = self.hidden = self.outrun = False
        self.branch = MAIN
        self.removed: frozenset[str] = frozenset()
        self.added: frozenset[str] = frozenset()
        self.left: frozenset[str] = frozenset()

    @property
    def unrecognised(self) -> bool:
        """Whether its writer cannot know that it landed: a snapshot id tells, and a conflict names nothing else.

        Such a change is applied once more, and finds nothing to do unless others have changed the same meanwhile.
        """
        return self.hidden and not self.makes_snapshot

    def run(self, client: Client) -> bool:
        """Do it; whether anything was to be changed."""
        raise NotImplementedError

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect | None:
        """By default the live files of main stay what they are."""
        return Effect(self.branch, self.removed, self.added)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        """Nothing more."""

    def deletes(self, model: Model, location: str) -> None:
        """Nothing more."""

    def commit(self, client: Client, table: Table, change: Any) -> bool:
        """Commit a change; what came out is told to the model before anything else happens."""
        result = retry.commit(table, change, runtime=client)
        return result.changed

    def write_files(
        self, client: Client, table: Table, *rows: frozenset[int], spec: PartitionSpec | None = None
    ) -> tuple[DataFile, ...]:
        """Data files with these rows, in more files than asked for where they belong to several partitions."""
        spec = table.metadata.spec if spec is None else spec
        parted = rows if spec.is_unpartitioned else [part for held in rows for part in by_kind(held)]
        return tuple(self._write_file(client, spec, at, held) for at, held in enumerate(parted))

    def _write_file(self, client: Client, spec: PartitionSpec, at: int, rows: frozenset[int]) -> DataFile:
        path = f"{LOCATION}/data/{self.number:03d}-{at}.parquet"
        self.model.rows[path] = rows
        self.added |= {path}
        with client.storage.write(path) as stream:
            stream.write(b"PAR1")
        kinds = kinds_of(rows)
        return DataFile(
            file_path=path,
            file_format="PARQUET",
            spec_id=spec.spec_id,
            partition=tuple(None if isinstance(field.transform, Void) else kinds[0] for field in spec.fields),
            record_count=len(rows),
            file_size_in_bytes=4,
            value_counts={_KIND_ID: len(rows)},
            null_value_counts={_KIND_ID: 0},
            lower_bounds={_KIND_ID: kinds[0].encode()},
            upper_bounds={_KIND_ID: kinds[-1].encode()},
        )

    def new_rows(self, kind: str | None = None) -> frozenset[int]:
        """One to three rows of one kind that no other file holds."""
        at = self.model.next_row(kind)
        return frozenset(range(at, at + self.random.randint(1, 3)))

    @contextmanager
    def discarded_if_refused(self, client: Client) -> Iterator[None]:
        """As the jobs do it: new files go where an error of ours proves that nothing landed, and only there."""
        try:
            yield
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            client.storage.delete_many(sorted(self.added))
            raise


_MEETS_A_REWRITE = 0.8
_IS_WHOLE = 0.7
_CUT_BYTES = 8


class OnBranch(Operation):
    """An operation on main, or now and then on another branch, which it reads first.

    `seen`: the rows of the branch as they were read. `isolation` is what it asks of others over rows of `kind`, or all.
    """

    makes_snapshot = True
    isolation: Isolation | None = None
    kind: str | None = None

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        others = sorted(name for name, ref in table.metadata.refs.items() if ref.is_branch and name != MAIN)
        self.branch = self.random.choice(others) if others and self.random.random() < 0.4 else MAIN
        self.moves_refs = frozenset({self.branch})
        self.start_id = table.metadata.refs[self.branch].snapshot_id if self.branch in table.metadata.refs else None
        self.seen = Counter() if self.start_id is None else self.model.rows_of(self.live(table))
        with self.discarded_if_refused(client):
            change = self.change(client, table)
            return change is not None and self.commit(client, table, change)

    def change(self, client: Client, table: Table) -> Any:
        """The change to commit; null if there is nothing to do."""
        raise NotImplementedError

    def live(self, table: Table) -> dict[str, Any]:
        """The live files of the branch as it was read."""
        return self.model.live(table.metadata, self.branch)

    def entries(
        self, client: Client, table: Table, content: ManifestContent = ManifestContent.DATA
    ) -> list[ManifestEntry]:
        """The live entries of the branch's data files or delete files, as a plan reads them."""
        return live_entries(client, table, self.branch, content)

    def shown(self, storage: Storage, files: Sequence[DataFile]) -> list[DataFile]:
        """A `PathProof`: the delete files that are of the data file of which their bounds are the path."""
        targets = ((file, self.model.deletes[file.file_path][0]) for file in files)
        return [file for file, path in targets if path is not None and path.encode() == own_path(file)]

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        if self.isolation is Isolation.SERIALIZABLE:
            new = self._asked(model.rows_of(model.live(before, self.branch))) - self._asked(self.seen)
            model.require(not new, "D1", f"{self.name}, serializable, did not see rows {sorted(new)} of others")

    def _asked(self, rows: Counter[int]) -> Counter[int]:
        return Counter({row: count for row, count in rows.items() if self.kind in (None, kind_of(row))})


class Append(OnBranch):
    def change(self, client: Client, table: Table) -> Any:
        files = self.write_files(client, table, *(self.new_rows() for _ in range(self.random.randint(1, 2))))
        return AppendFiles(files=files, branch=self.branch)


class DeleteRows(OnBranch):
    """Deletes one row, or two, of one data file by position: with a vector that takes the place of another in version 3."""

    rows: frozenset[int] = frozenset()

    def change(self, client: Client, table: Table) -> Any:
        entries = self.entries(client, table)
        if not entries or table.metadata.format_version == 1:
            return None
        hot = [entry for entry in entries if entry.data_file.file_path in self.model.being_rewritten]
        self.data = self.random.choice(hot if hot and self.random.random() < _MEETS_A_REWRITE else entries).data_file
        visible = sorted(self.model.visible(self.live(table))[self.data.file_path])
        self.rows = frozenset(self.random.sample(visible, min(len(visible), self.random.randint(1, 2))))
        return self.delta(client, table)

    def delta(self, client: Client, table: Table) -> RowDelta | None:
        path, vectors = self.data.file_path, table.metadata.format_version > 2
        deletes = self.entries(client, table, ManifestContent.DELETES)
        old = [d for d in deletes if vectors and d.data_file.referenced_data_file == path]
        gone = self.rows.union(*(self.model.deletes[d.data_file.file_path][1] for d in old))
        self.removed = frozenset(d.data_file.file_path for d in old)
        self.isolation = self.random.choice([None, *Isolation])
        form = {"file_format": "puffin", "content_offset": 4, "content_size_in_bytes": 40} if vectors else {}
        return RowDelta(
            added_deletes=(self.write_deletes(client, table, path, gone, referenced_data_file=path, **form),),
            removed_deletes=tuple(old),
            isolation=self.isolation,
            starting_snapshot_id=self.start_id,
            branch=self.branch,
        )

    def write_deletes(
        self, client: Client, table: Table, target: str | None, rows: frozenset[int], **values: Any
    ) -> DataFile:
        """A delete file of these rows, in the partition of the data file."""
        path = f"{table.metadata.location}/data/{self.number:03d}-deletes.parquet"
        self.model.deletes[path] = (target, rows)
        self.added |= {path}
        with client.storage.write(path) as stream:
            stream.write(b"PAR1")
        file = DataFile(
            file_path=path,
            file_format="PARQUET",
            spec_id=self.data.spec_id,
            partition=self.data.partition,
            record_count=len(rows),
            file_size_in_bytes=4,
            content=FileContent.POSITION_DELETES,
        )
        return replace(file, **values)

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(self.branch, self.removed, self.added, deleted_rows=self.rows)


class DeleteRowsUnnamed(DeleteRows):
    """The same as Iceberg Java does it in version 2: equal bounds of paths say of which data file, and of some they are cut."""

    def delta(self, client: Client, table: Table) -> RowDelta | None:
        if table.metadata.format_version > 2:
            return None
        path, is_whole = self.data.file_path, self.random.random() < _IS_WHOLE
        bounds = {DELETE_FILE_PATH.field_id: path.encode()[: None if is_whole else _CUT_BYTES]}
        file = self.write_deletes(client, table, path, self.rows, lower_bounds=bounds, upper_bounds=bounds)
        self.model.unnamed[file.file_path] = is_whole
        return RowDelta(added_deletes=(file,), named=frozenset({path}), branch=self.branch)


class DeleteByValue(DeleteRows):
    """Deletes one row, or two, by an equality delete file: wherever they are, or in the partition of a data file."""

    def delta(self, client: Client, table: Table) -> RowDelta:
        values = {"content": FileContent.EQUALITY_DELETES, "equality_ids": (1,)}
        return RowDelta(
            added_deletes=(self.write_deletes(client, table, None, self.rows, **values),),
            starting_snapshot_id=self.start_id,
            branch=self.branch,
        )

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        everywhere = before.specs_by_id[self.data.spec_id].is_unpartitioned
        live = model.live(before, self.branch)
        reached = {
            row
            for path, rows in model.visible(live).items()
            if everywhere or live[path].partition == partition_key(self.data)
            for row in rows
        }
        return Effect(self.branch, self.removed, self.added, deleted_rows=self.rows & reached)


class Overwrite(OnBranch):
    def change(self, client: Client, table: Table) -> Any:
        entries = self.entries(client, table)
        chosen = self.random.sample(entries, min(len(entries), self.random.randint(1, 2)))
        self.removed = frozenset(e.data_file.file_path for e in chosen)
        self.isolation = self.random.choice([None, *Isolation])
        return OverwriteFiles(
            removed=tuple(chosen),
            added=self.write_files(client, table, self.new_rows()),
            isolation=self.isolation,
            starting_snapshot_id=self.start_id,
            branch=self.branch,
        )


class OverwriteByFilter(OnBranch):
    """Replaces all rows of one kind, whatever files the base has them in."""

    def change(self, client: Client, table: Table) -> Any:
        self.kind = self.random.choice(KINDS)
        self.isolation = self.random.choice([None, *Isolation])
        return OverwriteFiles(
            rows=is_of(self.kind),
            added=self.write_files(client, table, self.new_rows(self.kind)),
            added_match_rows=True,
            isolation=self.isolation,
            starting_snapshot_id=self.start_id,
            branch=self.branch,
        )

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(self.branch, self.matching(model, before), self.added)

    def matching(self, model: Model, before: TableMetadata) -> frozenset[str]:
        """The live data files of the kind; one that also holds others must have been refused."""
        found = {path for path in model.live(before, self.branch) if self.kind in kinds_of(model.rows.get(path, ()))}
        mixed = sorted(path for path in found if len(kinds_of(model.rows[path])) > 1)
        model.require(not mixed, "D1", f"{self.name} removed {mixed}, of which not all rows match")
        return frozenset(found)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        if self.isolation is not None:
            lost = self._asked(self.seen) - self._asked(model.rows_of(model.live(before, self.branch)))
            model.require(not lost, "D1", f"{self.name}, isolated, did not see that rows {sorted(lost)} were deleted")


class Delete(OnBranch):
    def change(self, client: Client, table: Table) -> Any:
        entries = self.entries(client, table)
        chosen = self.random.sample(entries, min(len(entries), 1))
        self.removed = frozenset(e.data_file.file_path for e in chosen)
        return DeleteFiles(paths=self.removed, branch=self.branch)


class DeleteByFilter(OverwriteByFilter):
    """Deletes all rows of one kind, whatever files the base has them in."""

    def change(self, client: Client, table: Table) -> Any:
        self.kind = self.random.choice(KINDS)
        return DeleteFiles(rows=is_of(self.kind), branch=self.branch)


def is_of(kind: str) -> Expression:
    """The filter for the rows of a kind."""
    return Predicate(Compares.EQ, "kind", (kind,))


def live_entries(
    client: Client, table: Table, branch: str, content: ManifestContent = ManifestContent.DATA
) -> list[ManifestEntry]:
    """The live entries of a branch's data files or delete files, as a plan reads them."""
    reader, head = ManifestReader(client.storage), table.metadata.head(branch)
    return [
        entry
        for manifest in ([] if head is None else reader.manifests(head))
        if manifest.content is content and manifest.may_have_live_files
        for entry in reader.entries(manifest, table.metadata)
        if entry.is_live
    ]
