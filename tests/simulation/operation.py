"""What every operation of a writer is: to be run, to be told, and to be held against the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit import retry
from icekeep.errors import IcekeepError, OutcomeUnknownError
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.snapshots import MAIN
from icekeep.spec.transforms import Void
from simulation.client import Client
from simulation.doing import Effect, Told, kind_of, kinds_of
from simulation.model import Model
from simulation.world import LOCATION

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
